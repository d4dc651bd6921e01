//! Load generator: a minimal HTTP/1.1 client on blocking sockets, and one round of requests with
//! wall time and CPU time. Low cost, and no body is built while the clock runs.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use crate::process::CpuTimes;
use crate::upstream;

/// Timeout of a single read; after it the request counts as failed.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// After the last answer a server still ends tasks and parks threads; that is part of its cost.
const SETTLE: Duration = Duration::from_millis(5);

/// Bodies of one round, identical for every subject.
pub struct Batch {
    /// Sent once by each connection before the measurement.
    pub warm_up: Vec<u8>,
    /// Measured, distributed over the connections in order.
    pub requests: Vec<Vec<u8>>,
    /// Extra header lines, each with its line end.
    pub headers: &'static str,
    pub connections: usize,
    pub path: &'static str,
}

/// Path of chat completions.
pub const CHAT: &str = "/v1/chat/completions";

/// Client-side times of one request.
#[derive(Clone, Copy)]
pub struct Sample {
    pub first_byte: Duration,
    pub total: Duration,
}

/// Results of one round of one subject.
#[derive(Default)]
pub struct Round {
    pub cpu_ns_per_request: Option<f64>,
    pub samples: Vec<Sample>,
    /// `x-weir-action` of each answer that has one.
    pub actions: Vec<String>,
    /// Descriptions of all results other than a complete 200.
    pub failures: Vec<String>,
}

/// Sends a batch to `address` with `credential`; `pid` is the process whose CPU time is counted, if
/// any.
pub fn run(address: SocketAddr, credential: &str, pid: Option<u32>, batch: &Batch) -> Round {
    let barrier = Barrier::new(batch.connections + 1);
    let share = batch.requests.len().div_ceil(batch.connections);
    let mut round = Round::default();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..batch.connections)
            .map(|index| {
                let bodies = batch.requests.iter().skip(index * share).take(share);
                let barrier = &barrier;
                scope.spawn(move || work(address, credential, batch, bodies, barrier))
            })
            .collect();
        barrier.wait();
        thread::sleep(SETTLE);
        let before = pid.map(CpuTimes::of);
        barrier.wait();
        for worker in workers {
            round.absorb(worker.join().expect("a worker reports errors and does not panic"));
        }
        thread::sleep(SETTLE);
        if let (Some(pid), Some(before)) = (pid, before)
            && !round.samples.is_empty()
        {
            let spent_ns = CpuTimes::of(pid).since_ns(&before);
            round.cpu_ns_per_request = Some(spent_ns as f64 / round.samples.len() as f64);
        }
    });
    round
}

impl Round {
    fn absorb(&mut self, other: Self) {
        self.samples.extend(other.samples);
        self.actions.extend(other.actions);
        self.failures.extend(other.failures);
    }

    fn note(&mut self, outcome: io::Result<Exchange>) {
        match outcome {
            Ok(exchange) if exchange.complete => {
                self.samples.push(exchange.sample);
                self.actions.extend(exchange.action);
            }
            Ok(exchange) => self.failures.push(exchange.opening),
            Err(error) => self.failures.push(error.to_string()),
        }
    }
}

/// Runs one connection's part of a round. It passes both barriers even after a failure.
fn work<'a>(
    address: SocketAddr,
    credential: &str,
    batch: &Batch,
    bodies: impl Iterator<Item = &'a Vec<u8>>,
    barrier: &Barrier,
) -> Round {
    let mut round = Round::default();
    let opened = Client::open(address, credential, (batch.path, batch.headers));
    let opened = opened.and_then(|mut client| {
        client.exchange(&batch.warm_up)?;
        Ok(client)
    });
    barrier.wait();
    barrier.wait();
    match opened {
        Ok(mut client) => {
            for body in bodies {
                round.note(client.exchange(body));
            }
        }
        Err(error) => round.failures.push(format!("warm-up: {error}")),
    }
    round
}

/// One answer.
pub struct Exchange {
    pub sample: Sample,
    pub complete: bool,
    pub action: Option<String>,
    /// First characters of the answer, to describe a failure.
    pub opening: String,
}

/// One keep-alive connection.
pub struct Client {
    stream: TcpStream,
    head: String,
    request: Vec<u8>,
    answer: Vec<u8>,
}

impl Client {
    /// Opens a connection for requests to `path` with the extra `headers`.
    pub fn open(
        address: SocketAddr,
        credential: &str,
        (path, headers): (&str, &str),
    ) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(READ_TIMEOUT))?;
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: {address}\r\naccept: application/json\r\n\
             content-type: application/json\r\nauthorization: Bearer {credential}\r\n\
             user-agent: added-cost/1\r\n{headers}content-length: "
        );
        Ok(Self { stream, head, request: Vec::new(), answer: Vec::with_capacity(64 * 1024) })
    }

    pub fn exchange(&mut self, body: &[u8]) -> io::Result<Exchange> {
        self.request.clear();
        write!(self.request, "{}{}\r\n\r\n", self.head, body.len())?;
        self.request.extend_from_slice(body);
        self.answer.clear();

        let begun = Instant::now();
        self.stream.write_all(&self.request)?;
        let mut frame = None;
        let mut first_byte = None;
        let mut piece = [0; 16 * 1024];
        loop {
            let count = self.stream.read(&mut piece)?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.answer.extend_from_slice(&piece[..count]);
            if frame.is_none() {
                frame = Frame::read(&self.answer);
            }
            let Some(frame) = &frame else { continue };
            if first_byte.is_none() && self.answer.len() > frame.head_bytes {
                first_byte = Some(begun.elapsed());
            }
            if frame.ends(&self.answer) {
                break;
            }
        }
        let total = begun.elapsed();
        let sample = Sample { first_byte: first_byte.unwrap_or(total), total };
        Ok(self.describe(sample))
    }

    fn describe(&self, sample: Sample) -> Exchange {
        let text = String::from_utf8_lossy(&self.answer);
        let streamed = text.contains("text/event-stream");
        let is_ended = || upstream::ENDS.iter().any(|end| text.contains(end));
        let complete = text.starts_with("HTTP/1.1 200") && (!streamed || is_ended());
        let action = header(&text, "x-weir-action").map(str::to_owned);
        let opening = if complete { String::new() } else { text.chars().take(600).collect() };
        Exchange { sample, complete, action, opening }
    }
}

/// Framing of an answer.
struct Frame {
    head_bytes: usize,
    /// `None` if chunked.
    body_bytes: Option<usize>,
}

impl Frame {
    fn read(answer: &[u8]) -> Option<Self> {
        let head_bytes = answer.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
        let head = String::from_utf8_lossy(&answer[..head_bytes]);
        let body_bytes = header(&head, "content-length").and_then(|value| value.parse().ok());
        Some(Self { head_bytes, body_bytes })
    }

    /// No event of the canned answers ends like a last chunk, so a plain search finds the end.
    fn ends(&self, answer: &[u8]) -> bool {
        match self.body_bytes {
            Some(body_bytes) => answer.len() >= self.head_bytes + body_bytes,
            None => answer.ends_with(b"\r\n0\r\n\r\n"),
        }
    }
}

/// Returns a header's value from an answer with lower-case names, as hyper and the upstream write
/// them.
fn header<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    let head = answer.split("\r\n\r\n").next()?;
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}
