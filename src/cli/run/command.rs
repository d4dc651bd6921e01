//! The command of `weir run`: its environment, the signals that reach it, and its exit code.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitStatus;

use tokio::process::{Child, Command};

use crate::config::Secret;

/// Value of variables that are hidden from the command.
const PLACEHOLDER: &str = "kept-by-weir";
/// Exit code of a command whose end is not known.
const UNKNOWN_END: u8 = 1;
/// Exit code of a command that a signal ended, without the signal's number.
const SIGNALLED: i32 = 128;

/// Addresses that weir listens on for the command.
pub(super) struct Addresses {
    pub(super) openai: SocketAddr,
    pub(super) anthropic: SocketAddr,
    /// First segment of all paths.
    pub(super) entrance: Option<Secret>,
}

impl Addresses {
    /// Base URL of OpenAI's SDKs.
    fn openai(&self) -> String {
        format!("{}/v1", self.base(self.openai))
    }

    fn base(&self, address: SocketAddr) -> String {
        format!("http://{address}/{}", self.entrance.as_ref().map_or("", Secret::expose))
    }

    /// Variables that lead a client to weir.
    fn variables(&self) -> [(&'static str, String); 3] {
        [
            ("OPENAI_BASE_URL", self.openai()),
            ("OPENAI_API_BASE", self.openai()),
            // Anthropic's SDKs append /v1.
            ("ANTHROPIC_BASE_URL", self.base(self.anthropic)),
        ]
    }

    /// Arguments that lead `program` to weir if it reads no variable.
    fn arguments(&self, program: &Path) -> Vec<String> {
        match program.file_stem().and_then(|name| name.to_str()) {
            Some("codex") => vec!["-c".into(), format!("openai_base_url={:?}", self.openai())],
            _ => Vec::new(),
        }
    }
}

/// Running command.
pub(super) struct RunningCommand {
    child: Child,
    signals: ForwardedSignals,
}

impl RunningCommand {
    /// Starts `command`, its program first, with `addresses` in its environment. Clients refuse to start
    /// without a key, so the variables that are `hidden` have a placeholder, which weir replaces.
    pub(super) fn start(
        command: &[OsString],
        addresses: &Addresses,
        hidden: &[String],
    ) -> io::Result<Self> {
        let signals = ForwardedSignals::listen()?;
        let mut child = Command::new(&command[0]);
        child.args(addresses.arguments(Path::new(&command[0]))).args(&command[1..]);
        child.envs(hidden.iter().map(|name| (name, PLACEHOLDER))).envs(addresses.variables());
        Ok(Self { child: child.spawn()?, signals })
    }

    /// Forwards signals until the command has ended, and returns its exit code.
    pub(super) async fn ended(&mut self) -> u8 {
        loop {
            tokio::select! {
                status = self.child.wait() => return status.map_or(UNKNOWN_END, code),
                signal = self.signals.next() => self.signals.forward(signal, &self.child),
            }
        }
    }

    /// Waits for the next signal.
    pub(super) async fn signal(&mut self) {
        self.signals.next().await;
    }
}

#[cfg(unix)]
fn code(status: ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt as _;
    let code = status.code().or_else(|| Some(SIGNALLED + status.signal()?));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(UNKNOWN_END)
}

#[cfg(not(unix))]
fn code(status: ExitStatus) -> u8 {
    // Codes are wider on other platforms; a failure stays one.
    status.code().map_or(UNKNOWN_END, |code| u8::try_from(code).unwrap_or(UNKNOWN_END))
}

#[cfg(unix)]
use self::unix::ForwardedSignals;

#[cfg(unix)]
mod unix {
    use std::io::{self, IsTerminal as _};

    use rustix::process::{Pid, Signal as Number, kill_process};
    use tokio::process::Child;
    use tokio::signal::unix::{Signal, SignalKind, signal};

    /// ForwardedSignals to forward.
    pub(super) struct ForwardedSignals {
        terminate: Signal,
        interrupt: Signal,
        hangup: Signal,
        /// Whether a terminal sends its Ctrl-C to the command, too.
        has_terminal: bool,
    }

    impl ForwardedSignals {
        /// Starts listening; the signals no longer kill this process.
        pub(super) fn listen() -> io::Result<Self> {
            Ok(Self {
                terminate: signal(SignalKind::terminate())?,
                interrupt: signal(SignalKind::interrupt())?,
                hangup: signal(SignalKind::hangup())?,
                has_terminal: io::stdin().is_terminal()
                    || io::stdout().is_terminal()
                    || io::stderr().is_terminal(),
            })
        }

        /// Waits for the next signal.
        pub(super) async fn next(&mut self) -> Number {
            tokio::select! {
                _ = self.terminate.recv() => Number::TERM,
                _ = self.interrupt.recv() => Number::INT,
                _ = self.hangup.recv() => Number::HUP,
            }
        }

        /// Sends `signal` to `child`, unless the terminal has done so.
        pub(super) fn forward(&self, signal: Number, child: &Child) {
            let is_known = signal == Number::INT && self.has_terminal;
            let pid = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
            if let Some(pid) = pid.filter(|_| !is_known) {
                // A command that has just ended needs no signal.
                let _ = kill_process(pid, signal);
            }
        }
    }
}

/// Only Ctrl-C exists here, and it reaches the command by itself.
#[cfg(not(unix))]
struct ForwardedSignals {}

#[cfg(not(unix))]
impl ForwardedSignals {
    fn listen() -> io::Result<Self> {
        Ok(Self {})
    }

    async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    fn forward(&self, (): (), _: &Child) {}
}
