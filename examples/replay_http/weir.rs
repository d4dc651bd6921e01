//! The proxy under judgement: a process of its own, started on a free port and killed when
//! dropped, and what it answers to a request.
//!
//! It knows of weir what any caller knows: flags, environment and headers.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap};
use serde_json::Value;

/// The header that tells the upstream's log entries apart.
pub const REQUEST_NAME: &str = "x-replay-request";
const LIMIT_NAME: &str = "x-weir-max-input-tokens";
const START_DEADLINE: Duration = Duration::from_secs(30);
/// How many of its complaints are kept.
const MAX_COMPLAINTS: usize = 20;

/// A running weir.
pub struct Weir {
    child: Mutex<Child>,
    pid: u32,
    address: SocketAddr,
    complaints: Arc<Mutex<VecDeque<String>>>,
}

impl Weir {
    /// Starts `weir serve` in front of `upstream`. A setting is a key of the configuration such as
    /// `context.low`, and its value.
    pub fn start(
        program: &Path,
        upstream: &str,
        settings: &[(String, String)],
    ) -> Result<Self, String> {
        let place = |error: std::io::Error| format!("{}: {error}", program.display());
        let mut command = Command::new(program.canonicalize().map_err(place)?);
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            let is_proxy = name.to_ascii_lowercase().ends_with("_proxy");
            if name.starts_with("WEIR_") || name == "OPENAI_BASE_URL" || is_proxy {
                command.env_remove(name);
            }
        }
        for (key, value) in settings {
            let name = key.to_ascii_uppercase().replace('.', "__");
            command.env(format!("WEIR_{name}"), value);
        }
        command
            // Away from the package, so that no configuration file lies beside it.
            .current_dir(std::env::temp_dir())
            .args(["serve", "--listen", "127.0.0.1:0", "--upstream", upstream])
            .args(["--log-format", "json", "--store", ":memory:"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn().map_err(place)?;
        let complaints = Arc::new(Mutex::new(VecDeque::new()));
        let (sender, receiver) = mpsc::channel();
        if let Some(stderr) = child.stderr.take() {
            let complaints = complaints.clone();
            thread::spawn(move || follow(stderr, &sender, &complaints));
        }
        let pid = child.id();
        let child = Mutex::new(child);
        let mut weir = Self { child, pid, address: ([127, 0, 0, 1], 0).into(), complaints };
        match receiver.recv_timeout(START_DEADLINE) {
            Ok(address) => weir.address = address,
            Err(_) => return Err(format!("weir did not start: {:?}", weir.complaints())),
        }
        Ok(weir)
    }

    /// The base URL an SDK is given.
    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// The warnings and errors that it logged last, and what it said that is no log line.
    pub fn complaints(&self) -> Vec<String> {
        let complaints = self.complaints.lock().unwrap_or_else(PoisonError::into_inner);
        complaints.iter().cloned().collect()
    }

    /// How it ended, where it did: it is not meant to.
    pub fn ended(&self) -> Option<String> {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let status = child.try_wait().ok().flatten()?;
        Some(format!("weir ended in the middle ({status}): {:?}", self.complaints()))
    }

    /// The peak of its resident memory so far, where the system tells.
    pub fn peak_memory_kib(&self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        line.trim().trim_end_matches(" kB").parse().ok()
    }
}

impl Drop for Weir {
    fn drop(&mut self) {
        // It may have ended by itself; there is nothing else to do about it either way.
        let child = self.child.get_mut().unwrap_or_else(PoisonError::into_inner);
        child.kill().unwrap_or_default();
        child.wait().map(drop).unwrap_or_default();
    }
}

/// Reads the log to its end: tells the address that it names first, and keeps what is no routine.
fn follow(stderr: ChildStderr, address: &mpsc::Sender<SocketAddr>, kept: &Mutex<VecDeque<String>>) {
    for line in BufReader::new(stderr).lines() {
        let Ok(line) = line else { return };
        if let Some(found) = listening_on(&line) {
            // Nobody listens any more once the deadline has passed.
            address.send(found).unwrap_or_default();
        }
        if !line.contains(r#""level":"INFO""#) {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.push_back(line);
            if kept.len() > MAX_COMPLAINTS {
                kept.pop_front();
            }
        }
    }
}

fn listening_on(line: &str) -> Option<SocketAddr> {
    let (_, rest) = line.split_once("listening on ")?;
    rest.split(',').next()?.parse().ok()
}

/// One request to make.
pub struct Asked<'a> {
    pub base_url: &'a str,
    pub key: &'a str,
    pub request: &'a str,
    pub limit_tokens: Option<u64>,
    pub body: Vec<u8>,
}

/// What came back, without what the model said.
#[derive(Debug, Default)]
pub struct Answer {
    pub status: u16,
    /// `x-weir-action`.
    pub action: String,
    pub received_tokens: Option<u64>,
    pub limit_tokens: Option<u64>,
    /// The code of an error of weir's own; `None` where the answer is the upstream's.
    pub own_error: Option<String>,
    /// The message of an error, whoever made it.
    pub message: String,
}

/// A caller with connections of its own that are kept for its next request.
pub fn caller() -> Result<reqwest::Client, String> {
    // The client wants a TLS provider even where all it speaks is plain HTTP. Another caller may
    // have installed it before.
    rustls::crypto::ring::default_provider().install_default().ok();
    let builder = reqwest::Client::builder().no_proxy().tcp_nodelay(true);
    builder.build().map_err(|error| error.to_string())
}

/// Makes a chat completion request and reads the answer to its end.
pub async fn ask(caller: &reqwest::Client, asked: Asked<'_>) -> Result<Answer, String> {
    let mut request = caller
        .post(format!("{}/chat/completions", asked.base_url))
        .header(CONTENT_TYPE, "application/json")
        .header(AUTHORIZATION, format!("Bearer {}", asked.key))
        .header(REQUEST_NAME, asked.request);
    if let Some(tokens) = asked.limit_tokens {
        request = request.header(LIMIT_NAME, tokens);
    }
    let answer = request.body(asked.body).send().await.map_err(|error| format!("{error:?}"))?;
    let status = answer.status().as_u16();
    let text = |name: &str| text(answer.headers(), name);
    let mut read = Answer {
        status,
        action: text("x-weir-action").unwrap_or_default(),
        received_tokens: text("x-weir-received-tokens").and_then(|text| text.parse().ok()),
        limit_tokens: text("x-weir-limit-tokens").and_then(|text| text.parse().ok()),
        own_error: text("x-weir-error"),
        message: String::new(),
    };
    let body = answer.bytes().await.map_err(|error| format!("{error:?}"))?;
    if status != 200 {
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        read.message = body["error"]["message"].as_str().unwrap_or("").to_owned();
    }
    Ok(read)
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}
