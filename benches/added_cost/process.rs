//! Processes of a run: start on free loopback ports, readiness, CPU time and memory from `/proc`,
//! and termination on drop. Contains no measurement logic.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Time limit for a process to answer after its start.
const START_DEADLINE: Duration = Duration::from_secs(15);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The kernel's clock tick, the unit of `/proc/PID/stat`: 100 per second on every Linux in use.
const TICK_NS: u64 = 10_000_000;

/// Variables of the caller's shell that would redirect or reconfigure the measured programs.
const CLEARED_VARIABLES: [&str; 8] = [
    "HTTP_PROXY",
    "http_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "ALL_PROXY",
    "all_proxy",
    "OPENAI_BASE_URL",
    "RUST_LOG",
];

/// A program that listens and forwards, with its flags.
#[derive(Clone)]
pub struct Subject {
    pub name: String,
    pub program: PathBuf,
    /// Flags before `--listen ADDRESS --upstream URL`.
    pub leading: Vec<String>,
    /// Flags after them.
    pub trailing: Vec<String>,
}

/// A running process.
pub struct Process {
    child: Child,
    pub address: SocketAddr,
}

impl Process {
    /// Starts a subject on a free port and waits until it answers `GET /healthz`.
    pub fn start(subject: &Subject, upstream: SocketAddr, log: &Path) -> io::Result<Self> {
        let address = free_address()?;
        let folder = log.parent().unwrap_or(Path::new("/"));
        let log = File::create(log)?;
        let child = command(&subject.program.canonicalize()?)
            // Outside the package, so that no configuration file is found.
            .current_dir(folder)
            .args(&subject.leading)
            .args(["--listen", &address.to_string()])
            .args(["--upstream", &format!("http://{upstream}/v1")])
            .args(&subject.trailing)
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        let mut process = Self { child, address };
        process.wait_until_ready()?;
        Ok(process)
    }

    /// Starts this program again as the canned upstream, which prints its address on stdout.
    pub fn start_upstream() -> io::Result<Self> {
        let mut child = command(&std::env::current_exe()?)
            .arg("--canned-upstream")
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let address = line.trim().strip_prefix("listening on http://").map(str::parse);
        let Some(Ok(address)) = address else {
            return Err(io::Error::other("the canned upstream did not print its address"));
        };
        Ok(Self { child, address })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn wait_until_ready(&mut self) -> io::Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < START_DEADLINE {
            if let Some(status) = self.child.try_wait()? {
                return Err(io::Error::other(format!("it exited at once: {status}")));
            }
            if is_healthy(self.address) {
                return Ok(());
            }
            thread::sleep(POLL_INTERVAL);
        }
        Err(io::Error::other("it did not answer GET /healthz with 200 in time"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself; there is nothing else to do in either case.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("WEIR_") {
            command.env_remove(name);
        }
    }
    for name in CLEARED_VARIABLES {
        command.env_remove(name);
    }
    command
}

/// Returns a port that was free a moment ago. If another program takes it first, the start fails.
pub fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}

fn is_healthy(address: SocketAddr) -> bool {
    let ask = || -> io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(START_DEADLINE))?;
        write!(stream, "GET /healthz HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n")?;
        let mut status = vec![0; 12];
        stream.read_exact(&mut status)?;
        Ok(status)
    };
    ask().is_ok_and(|status| status == b"HTTP/1.1 200")
}

/// CPU time of a process at one moment, by thread.
pub struct CpuTimes {
    thread_ns: BTreeMap<String, u64>,
    /// Of the whole process, including ended threads, in whole ticks.
    ticks_ns: u64,
}

impl CpuTimes {
    pub fn of(pid: u32) -> Self {
        let mut thread_ns = BTreeMap::new();
        for entry in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            // A thread may end between listing and reading.
            let spent = fs::read_to_string(entry.path().join("schedstat")).ok();
            let spent = spent.and_then(|text| text.split(' ').next()?.parse().ok());
            if let Some(spent_ns) = spent {
                thread_ns.insert(entry.file_name().to_string_lossy().into_owned(), spent_ns);
            }
        }
        Self { thread_ns, ticks_ns: ticks(pid).unwrap_or(0) * TICK_NS }
    }

    /// Returns the CPU time since `earlier`. The ticks account for ended threads, and replace
    /// `schedstat` if the kernel has none.
    pub fn since_ns(&self, earlier: &Self) -> u64 {
        let ticks_ns = self.ticks_ns.saturating_sub(earlier.ticks_ns);
        if self.thread_ns.is_empty() {
            return ticks_ns;
        }
        let fine_ns = self
            .thread_ns
            .iter()
            .map(|(id, ns)| ns.saturating_sub(earlier.thread_ns.get(id).copied().unwrap_or(0)))
            .sum::<u64>();
        // Truncation to ticks, of user and of system time, can exceed the true value by two ticks.
        fine_ns.max(ticks_ns.saturating_sub(2 * TICK_NS))
    }
}

/// Returns `utime + stime`, fields 14 and 15; the second field may contain spaces and is skipped by
/// its bracket.
fn ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

/// Returns the minor page faults of a process so far, without disk access: field 10 of
/// `/proc/PID/stat`.
pub fn page_faults(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(7)?.parse().ok()
}

/// Resets the peak of a process's memory to its current size.
pub fn reset_peak_memory(pid: u32) {
    // If the kernel refuses, the peak is that of the whole run so far: an upper bound.
    let _ = fs::write(format!("/proc/{pid}/clear_refs"), "5");
}

/// Returns the peak of resident memory, `VmHWM`.
pub fn peak_memory_kib(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}
