//! The proxy under test: a process on a free port, killed on drop, and its answers to requests.
//!
//! Uses only the interface of any caller: flags, environment and headers.

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

/// Header that identifies a request in the upstream's log.
pub const REQUEST_NAME: &str = "x-replay-request";
const LIMIT_NAME: &str = "x-weir-max-input-tokens";
const START_DEADLINE: Duration = Duration::from_secs(30);
/// Maximum number of warnings and errors kept.
const MAX_COMPLAINTS: usize = 20;

/// Running weir.
pub struct Weir {
    child: Mutex<Child>,
    pid: u32,
    address: SocketAddr,
    complaints: Arc<Mutex<VecDeque<String>>>,
}

impl Weir {
    /// Starts `weir serve` in front of `upstream`. A setting is a configuration key such as
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
            // Outside the package, so that no configuration file is found.
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

    /// Base URL for an SDK.
    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// The last warnings and errors in its log, and output that is not a log line.
    pub fn complaints(&self) -> Vec<String> {
        let complaints = self.complaints.lock().unwrap_or_else(PoisonError::into_inner);
        complaints.iter().cloned().collect()
    }

    /// Returns how the process ended, if it did: it should not.
    pub fn ended(&self) -> Option<String> {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let status = child.try_wait().ok().flatten()?;
        Some(format!("weir ended in the middle ({status}): {:?}", self.complaints()))
    }

    /// Peak of its resident memory so far, if the system reports it.
    pub fn peak_memory_kib(&self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        line.trim().trim_end_matches(" kB").parse().ok()
    }
}

impl Drop for Weir {
    fn drop(&mut self) {
        // It may have ended by itself; there is nothing else to do in either case.
        let child = self.child.get_mut().unwrap_or_else(PoisonError::into_inner);
        child.kill().unwrap_or_default();
        child.wait().map(drop).unwrap_or_default();
    }
}

/// Reads the log to its end: sends the first address in it, and keeps lines that are not routine.
fn follow(stderr: ChildStderr, address: &mpsc::Sender<SocketAddr>, kept: &Mutex<VecDeque<String>>) {
    for line in BufReader::new(stderr).lines() {
        let Ok(line) = line else { return };
        if let Some(found) = listening_on(&line) {
            // Nobody listens any more after the deadline.
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

/// Request to send.
pub struct Asked<'a> {
    pub base_url: &'a str,
    pub key: &'a str,
    pub request: &'a str,
    pub limit_tokens: Option<u64>,
    pub body: Vec<u8>,
}

/// Answer, without the model's text.
#[derive(Debug, Default)]
pub struct Answer {
    pub status: u16,
    /// `x-weir-action`.
    pub action: String,
    pub received_tokens: Option<u64>,
    pub limit_tokens: Option<u64>,
    /// Error code of weir's own error; `None` if the answer is the upstream's.
    pub own_error: Option<String>,
    /// Message of an error from either.
    pub message: String,
}

/// Creates a caller with its own connections, kept for its next request.
pub fn caller() -> Result<reqwest::Client, String> {
    // The client needs a TLS provider even for plain HTTP. Another caller may have installed it
    // before.
    rustls::crypto::ring::default_provider().install_default().ok();
    let builder = reqwest::Client::builder().no_proxy().tcp_nodelay(true);
    builder.build().map_err(|error| error.to_string())
}

/// Weir's report on a compacted request.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Number of compactions up to this request.
    pub compactions: u64,
    /// Number of messages in the conversation at the last compaction.
    pub messages: usize,
    pub low_tokens: u64,
}

/// Asks weir to explain its plan of a request.
pub async fn explain(caller: &reqwest::Client, asked: Asked<'_>) -> Result<Plan, String> {
    let url = asked.base_url.replace("/v1", "/weir/v1/plan");
    let answer = send(caller, url, asked).await?;
    let status = answer.status();
    let body = answer.bytes().await.map_err(|error| format!("{error:?}"))?;
    let report: Value = serde_json::from_slice(&body).unwrap_or_default();
    let own = &report["compaction"];
    let last = &own["last_cut"]["messages"];
    match (own["cuts"].as_u64(), last.as_u64(), own["low_tokens"].as_u64()) {
        (Some(compactions), Some(messages), Some(low_tokens)) => {
            Ok(Plan { compactions, messages: messages as usize, low_tokens })
        }
        (Some(0), None, Some(low_tokens)) => Ok(Plan { compactions: 0, messages: 0, low_tokens }),
        _ => Err(format!("{status}: weir explains no plan: {report}")),
    }
}

/// Makes a chat completion request and reads the answer to its end.
pub async fn ask(caller: &reqwest::Client, asked: Asked<'_>) -> Result<Answer, String> {
    let answer = send(caller, format!("{}/chat/completions", asked.base_url), asked).await?;
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

async fn send(
    caller: &reqwest::Client,
    url: String,
    asked: Asked<'_>,
) -> Result<reqwest::Response, String> {
    let mut request = caller
        .post(url)
        .header(CONTENT_TYPE, "application/json")
        .header(AUTHORIZATION, format!("Bearer {}", asked.key))
        .header(REQUEST_NAME, asked.request);
    if let Some(tokens) = asked.limit_tokens {
        request = request.header(LIMIT_NAME, tokens);
    }
    request.body(asked.body).send().await.map_err(|error| format!("{error:?}"))
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}
