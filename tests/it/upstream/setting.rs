//! Fixture: an upstream that speaks raw TCP by script, a proxy in front of it, and the log of both.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::task::{self, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Empty, Full};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use weir::config::{AskUsage, Cache, Catalogue, Config, Cors, Log, LogFormat, Server, Upstream};
use weir::proxy::{
    Admission, Body, BoxError, Caller, ChatRequest, ErrorKind, Pass, PassBody, Proxy, ProxyError,
    RequestOptions, RequestedModel, Tenant,
};
use weir::upstream::{Client, Target};
use weir_engine::wire::Protocol;
use weir_store::Store;

pub const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// Reaction of the upstream to a request that it has read.
pub enum Reply {
    /// Answers, and waits for the next request on the connection.
    Keep(String),
    /// Answers, and closes the connection.
    Close(String),
    /// Sends this much, holds the connection open and reports when the other side closes it.
    Hold(String),
}

/// Request as received.
#[derive(Debug)]
pub struct Seen {
    pub connection: usize,
    pub head: String,
    pub body: Vec<u8>,
}

impl Seen {
    pub fn values(&self, name: &str) -> Vec<&str> {
        self.head
            .lines()
            .skip(1)
            .filter_map(|line| line.split_once(": "))
            .filter(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
            .collect()
    }

    pub fn line(&self) -> &str {
        self.head.lines().next().expect("a request line")
    }
}

/// Upstream on loopback that plays a script: one reply for each request, in order.
pub struct Scripted {
    pub port: u16,
    pub seen: Arc<Mutex<Vec<Seen>>>,
    /// Signals each time a caller closes a held connection.
    pub left: mpsc::UnboundedReceiver<()>,
}

impl Scripted {
    pub async fn start(script: Vec<Reply>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let port = listener.local_addr().expect("bound").port();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (leaves, left) = mpsc::unbounded_channel();
        let script = Arc::new(script);
        let next = Arc::new(AtomicUsize::new(0));
        let log = Arc::clone(&seen);
        tokio::spawn(async move {
            for connection in 0.. {
                let Ok((stream, _)) = listener.accept().await else {
                    return;
                };
                let play = play(
                    stream,
                    connection,
                    Arc::clone(&script),
                    Arc::clone(&next),
                    Arc::clone(&log),
                    leaves.clone(),
                );
                tokio::spawn(play);
            }
        });
        Self { port, seen, left }
    }

    pub fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.seen.lock().expect("no test panics with it"))
    }
}

pub async fn play(
    mut stream: TcpStream,
    connection: usize,
    script: Arc<Vec<Reply>>,
    next: Arc<AtomicUsize>,
    seen: Arc<Mutex<Vec<Seen>>>,
    leaves: mpsc::UnboundedSender<()>,
) {
    let mut buffer = Vec::new();
    while let Some((head, body)) = read_request(&mut stream, &mut buffer).await {
        let seen_now = Seen { connection, head, body };
        seen.lock().expect("no test panics with it").push(seen_now);
        let step = next.fetch_add(1, Ordering::SeqCst);
        match script.get(step).expect("a reply for each request") {
            Reply::Keep(answer) => stream.write_all(answer.as_bytes()).await.expect("sent"),
            Reply::Close(answer) => {
                stream.write_all(answer.as_bytes()).await.expect("sent");
                return;
            }
            Reply::Hold(answer) => {
                stream.write_all(answer.as_bytes()).await.expect("sent");
                let closed = stream.read(&mut [0; 64]).await;
                assert!(matches!(closed, Ok(0) | Err(_)), "nothing more is sent");
                let _ = leaves.send(());
                return;
            }
        }
    }
}

/// Reads one request; chunked bodies are returned as received, including the framing.
pub async fn read_request(
    stream: &mut TcpStream,
    buffer: &mut Vec<u8>,
) -> Option<(String, Vec<u8>)> {
    let head_end = loop {
        if let Some(at) = find(buffer, b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(buffer.drain(..head_end).collect()).expect("an ASCII head");
    let lower = head.to_ascii_lowercase();
    let length = lower
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .map(|length| length.parse::<usize>().expect("a number"));
    let is_chunked = lower.contains("transfer-encoding: chunked");
    let body_end = loop {
        let end = match length {
            Some(length) => (buffer.len() >= length).then_some(length),
            None if is_chunked => find(buffer, b"0\r\n\r\n").map(|at| at + 5),
            None => Some(0),
        };
        if let Some(end) = end {
            break end;
        }
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    };
    Some((head, buffer.drain(..body_end).collect()))
}

pub fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

pub fn config(url: String) -> Config {
    Config {
        server: Server {
            listen: "127.0.0.1:0".parse().expect("an address"),
            allowed_hosts: Vec::new(),
            max_connections: 8,
            max_header_bytes: 65_536,
            max_body_bytes: 1 << 20,
            max_bodies_in_flight_bytes: 1 << 24,
            max_messages: 1000,
            header_timeout_ms: 60_000,
            drain_deadline_ms: 60_000,
            ..Config::default().server
        },
        cors: Cors { allow_origins: Vec::new() },
        upstream: Upstream {
            url,
            connect_timeout_ms: 60_000,
            first_byte_timeout_ms: 60_000,
            idle_timeout_ms: 60_000,
            ask_usage: AskUsage::Auto,
            ..Config::default().upstream
        },
        store: Config::default().store,
        limits: Vec::new(),
        models: Catalogue::default(),
        cache: Cache { counts_bytes: 1 << 20, folds_bytes: 1 << 20 },
        log: Log { format: LogFormat::Json, level: "info".to_owned() },
        ..Config::default()
    }
}

pub fn proxy_of(config: Config) -> Proxy {
    let client = Client::new(&config.upstream).expect("a client");
    let store = Store::in_memory().expect("there is memory");
    Proxy::new(Arc::new(config), client, store).expect("there is memory")
}

pub fn proxy_to(port: u16) -> Proxy {
    proxy_of(config(format!("http://127.0.0.1:{port}/v1")))
}

pub fn headers(rows: &[(&'static str, &'static str)]) -> HeaderMap {
    rows.iter()
        .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
        .collect()
}

pub fn anybody() -> Caller {
    Caller::new(Tenant([0; 16]), None)
}

pub fn chat(
    proxy: &Proxy,
    body: &'static [u8],
    rows: &[(&'static str, &'static str)],
) -> ChatRequest {
    ChatRequest {
        protocol: Protocol::Chat,
        target: Target::map(proxy.base(), "/v1/chat/completions?q=1").expect("a known path"),
        method: Method::POST,
        headers: headers(rows),
        received: Bytes::from_static(body),
        decoded: Bytes::from_static(body),
        caller: anybody(),
        admission: Admission::unlimited(),
        permit: Box::new(()),
        options: RequestOptions::default(),
        model: RequestedModel::default(),
        asked: Default::default(),
        recall: None,
    }
}

pub fn pass(proxy: &Proxy, method: Method, path: &str, body: Body) -> Pass {
    Pass {
        caller: anybody(),
        admission: Admission::unlimited(),
        target: Target::map(proxy.base(), path).expect("a known path"),
        method,
        headers: HeaderMap::new(),
        body: PassBody::Streamed(body),
    }
}

pub fn empty() -> Body {
    Body::new(Empty::new().map_err(|never| match never {}))
}

pub fn full(bytes: &'static [u8]) -> Body {
    Body::new(Full::new(Bytes::from_static(bytes)).map_err(|never| match never {}))
}

/// Body of unknown length.
pub struct Chunks(VecDeque<Result<Bytes, BoxError>>);

impl http_body::Body for Chunks {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut task::Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Poll::Ready(self.0.pop_front().map(|chunk| chunk.map(Frame::data)))
    }
}

pub fn streamed(chunks: impl IntoIterator<Item = Result<&'static str, BoxError>>) -> Body {
    let chunks = chunks.into_iter().map(|chunk| chunk.map(Bytes::from));
    Body::new(Chunks(chunks.collect()))
}

pub async fn text(response: Response<Body>) -> String {
    let body = response.into_body().collect().await.expect("a whole body");
    String::from_utf8(body.to_bytes().to_vec()).expect("text")
}

pub fn kind(result: Result<Response<Body>, ProxyError>) -> ErrorKind {
    result.map(|response| response.status()).expect_err("no answer").kind
}

thread_local! {
    /// Log of this thread and so of one test: each has its own thread and runtime.
    static LOGGED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

pub struct LogWriter;

impl io::Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOGGED.with_borrow_mut(|logged| logged.extend_from_slice(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Captures the log. One subscriber serves all tests: with one per thread, a thread without one
/// could disable the log line for all.
pub fn capture_log() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let subscriber =
            tracing_subscriber::fmt().json().flatten_event(true).with_writer(|| LogWriter).finish();
        tracing::subscriber::set_global_default(subscriber).expect("the only one");
        tracing::callsite::rebuild_interest_cache();
    });
}

/// Returns all lines that this test has logged since the last call.
pub fn log_lines() -> Vec<serde_json::Value> {
    let logged = LOGGED.take();
    let lines = logged.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).expect("a JSON line")).collect()
}

/// Returns the one line that this test must have logged about requests.
pub fn log_line() -> serde_json::Value {
    let mut lines = log_lines();
    lines.retain(|line| line["target"] == "weir::request");
    assert_eq!(lines.len(), 1, "{lines:#?}");
    lines.remove(0)
}
