//! Cost per request of one, two or four weirs that share a PostgreSQL and a Redis with a budget. It
//! is the weirs' CPU time per request, with the three setups in turn within each round. Linux only.
//! Two loads: a fixed rate per weir, which leaves the machine spare capacity; and callers that
//! never pause, so that all programs compete for the CPU.
//!
//! `WEIR_TEST_POSTGRES` and `WEIR_TEST_REDIS` name the servers; the bench leaves its own schema and
//! keys on them.

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

const PROGRAM: &str = env!("CARGO_BIN_EXE_weir");
const INSTANCES: [usize; 3] = [1, 2, 4];
const ROUNDS: usize = 15;
/// Connections to each weir, so that several weirs are as busy as a single one.
const CONNECTIONS: usize = 16;
/// Requests per connection and round.
const REQUESTS: usize = 50;
/// Requests per second to each weir with the fixed rate.
const PACED_PER_SECOND: usize = 150;
const PACED_ROUNDS: usize = 9;
const PACED_ROUND: Duration = Duration::from_secs(2);
const ANSWER: &str = "{\"model\":\"gpt-4o-mini\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\
\"content\":\"Water.\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":3,\
\"total_tokens\":15}}";

/// A running weir, killed on drop.
struct Weir {
    process: Child,
    address: SocketAddr,
}

impl Weir {
    fn start(upstream: SocketAddr, settings: &[(&str, String)]) -> Result<Self, Box<dyn Error>> {
        let mut process = Command::new(PROGRAM)
            .args(["serve", "--listen", "127.0.0.1:0", "--upstream"])
            .arg(format!("http://{upstream}/v1"))
            .env_remove("WEIR_TEST_POSTGRES")
            .env_remove("WEIR_TEST_REDIS")
            .envs(settings.iter().map(|(name, value)| (name, value)))
            .stderr(Stdio::piped())
            .spawn()?;
        let stderr = process.stderr.take().ok_or("no output")?;
        let mut lines = BufReader::new(stderr).lines();
        let mut said = String::new();
        let address = loop {
            let Some(line) = lines.next().transpose()? else {
                return Err(format!("weir ended:\n{said}").into());
            };
            if let Some((_, rest)) = line.split_once("listening on ") {
                break rest.split(',').next().unwrap_or_default().parse()?;
            }
            said = said + &line + "\n";
        };
        // Its log is drained, so that it never blocks on output.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(Self { process, address })
    }

    /// Returns the CPU time so far, of all living threads.
    fn cpu_ns(&self) -> u64 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.process.id()));
        let spent = tasks.into_iter().flatten().flatten().filter_map(|task| {
            let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split(' ').next()?.parse::<u64>().ok()
        });
        spent.sum()
    }
}

impl Drop for Weir {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Reads one message with a length; `None` at the end.
async fn message(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<()> {
    loop {
        if let Some(end) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&buffer[..end]).to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let whole = end + 4 + length.and_then(|text| text.parse::<usize>().ok()).unwrap_or(0);
            if buffer.len() >= whole {
                buffer.drain(..whole);
                return Some(());
            }
        }
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
}

/// Starts an upstream that answers everything at once.
async fn upstream() -> Result<SocketAddr, Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut buffer = Vec::new();
                let answer = format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{ANSWER}",
                    ANSWER.len()
                );
                while message(&mut stream, &mut buffer).await.is_some() {
                    if stream.write_all(answer.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    Ok(address)
}

/// Arrival of requests.
#[derive(Clone, Copy)]
enum Load {
    /// At a fixed rate per weir.
    Paced,
    /// Each as soon as its connection has the previous answer.
    Endless,
}

impl Load {
    /// Returns the number of requests per connection.
    fn requests(self) -> usize {
        match self {
            Self::Paced => PACED_PER_SECOND * PACED_ROUND.as_secs() as usize / CONNECTIONS,
            Self::Endless => REQUESTS,
        }
    }

    /// Returns the pause between two requests of one connection.
    fn pause(self) -> Duration {
        match self {
            Self::Paced => Duration::from_secs(1) * CONNECTIONS as u32 / PACED_PER_SECOND as u32,
            Self::Endless => Duration::ZERO,
        }
    }
}

/// Sends all requests of one round to these weirs, evenly.
async fn send(load: Load, addresses: &[SocketAddr]) -> Result<(), Box<dyn Error>> {
    let body = r#"{"model":"gpt-4o-mini","max_tokens":64,"messages":[{"role":"user","content":"What flows in?"}]}"#;
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer k\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut callers = JoinSet::new();
    let (connections, pause) = (CONNECTIONS * addresses.len(), load.pause());
    let start = Instant::now();
    for connection in 0..connections {
        let (address, request) = (addresses[connection % addresses.len()], request.clone());
        callers.spawn(async move {
            let mut stream = TcpStream::connect(address).await.ok()?;
            let mut buffer = Vec::new();
            // Staggered, not all at the same moment.
            let first = start + pause * connection as u32 / connections as u32;
            for number in 0..load.requests() {
                sleep_until(first + pause * number as u32).await;
                stream.write_all(request.as_bytes()).await.ok()?;
                message(&mut stream, &mut buffer).await?;
            }
            Some(())
        });
    }
    match callers.join_all().await.into_iter().all(|done| done.is_some()) {
        true => Ok(()),
        false => Err("a connection broke off".into()),
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let server =
        |name: &str| std::env::var(name).map_err(|_| format!("set {name} to a server's URL"));
    let settings = [
        ("WEIR_STORE__URL", server("WEIR_TEST_POSTGRES")?),
        (
            "WEIR_REDIS__URL",
            format!("{}?prefix=weir-bench-{}", server("WEIR_TEST_REDIS")?, std::process::id()),
        ),
        ("WEIR_LOG__LEVEL", "info".to_owned()),
    ];
    let upstream = upstream().await?;
    let most = INSTANCES[INSTANCES.len() - 1];
    let weirs: Result<Vec<Weir>, _> = (0..most).map(|_| Weir::start(upstream, &settings)).collect();
    let weirs = weirs?;
    let set = Command::new(PROGRAM)
        .args(["budgets", "set", "all", "--usd", "1000000", "--per", "total"])
        .env_remove("WEIR_TEST_POSTGRES")
        .env_remove("WEIR_TEST_REDIS")
        .envs(settings.iter().map(|(name, value)| (name, value)))
        .output()?;
    if !set.status.success() {
        return Err(String::from_utf8_lossy(&set.stderr).into_owned().into());
    }
    let addresses: Vec<SocketAddr> = weirs.iter().map(|weir| weir.address).collect();
    send(Load::Endless, &addresses).await?;
    println!("{PACED_PER_SECOND} requests a second to each:");
    measure(Load::Paced, PACED_ROUNDS, &weirs).await?;
    println!("as many as they can take, {CONNECTIONS} callers each:");
    measure(Load::Endless, ROUNDS, &weirs).await
}

async fn measure(load: Load, rounds: usize, weirs: &[Weir]) -> Result<(), Box<dyn Error>> {
    let addresses: Vec<SocketAddr> = weirs.iter().map(|weir| weir.address).collect();
    let mut micros = vec![Vec::new(); INSTANCES.len()];
    for round in 0..rounds {
        for turn in 0..INSTANCES.len() {
            let index = (round + turn) % INSTANCES.len();
            let group = &weirs[..INSTANCES[index]];
            let before: u64 = group.iter().map(Weir::cpu_ns).sum();
            send(load, &addresses[..INSTANCES[index]]).await?;
            let spent = group.iter().map(Weir::cpu_ns).sum::<u64>() - before;
            let requests = CONNECTIONS * group.len() * load.requests();
            micros[index].push(spent as f64 / 1000.0 / requests as f64);
        }
    }
    for (index, instances) in INSTANCES.iter().enumerate() {
        let ratios = micros[index].iter().zip(&micros[0]).map(|(own, one)| own / one).collect();
        println!(
            "{instances} instances: {:.1} us of CPU a request, {:.3} of one instance's",
            median(micros[index].clone()),
            median(ratios)
        );
    }
    Ok(())
}
