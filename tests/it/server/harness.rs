//! Server, caller and upstream on loopback, which speak in raw bytes.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use weir::config::Config;
use weir::proxy::Proxy;
use weir::proxy::summaries::Summaries;
use weir::server::{Ending, Renewal, Server, Shutdown};
use weir::upstream::Client;
use weir_store::Store;

use crate::eventually::{DEADLINE, eventually};

/// Default answer of the scripted upstream.
pub const FINE: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]";

/// Running server.
pub struct Weir {
    pub address: SocketAddr,
    pub shutdown: Shutdown,
    pub running: JoinHandle<Ending>,
    pub renewal: Renewal,
    /// Summaries by a model, if one is configured.
    pub summaries: Option<Arc<Summaries>>,
}

/// Starts a server that forwards to `upstream`, with the defaults changed by `change`.
pub async fn start(upstream: &str, change: impl FnOnce(&mut Config)) -> Weir {
    let store = Store::in_memory().expect("there is memory");
    start_with(store, upstream, change).await
}

/// Starts a server that keeps its data in `store`.
pub async fn start_with(store: Store, upstream: &str, change: impl FnOnce(&mut Config)) -> Weir {
    let mut config = defaults();
    config.server.listen = ([127, 0, 0, 1], 0).into();
    config.upstream.url = format!("http://{upstream}/v1");
    change(&mut config);
    let config = Arc::new(config);
    let client = Client::new(&config.upstream).expect("the upstream's URL is valid");
    let proxy = Proxy::new(config.clone(), client, store).expect("there is memory");
    let summaries = proxy.summaries().cloned();
    let server = Server::bind(&config, proxy).await.expect("a free port");
    Weir {
        address: server.address(),
        shutdown: server.shutdown(),
        renewal: server.renewal(),
        running: tokio::spawn(server.run()),
        summaries,
    }
}

fn defaults() -> Config {
    Config::default()
}

impl Weir {
    /// Waits until nothing listens any more: the listener closes asynchronously.
    pub async fn stops_listening(&self) {
        let is_closed = async || TcpStream::connect(self.address).await.is_err();
        eventually(DEADLINE, is_closed, |is_closed| *is_closed).await;
    }
}

/// Upstream that hands each request to the test, which answers it.
pub struct Upstream {
    pub address: String,
    requests: mpsc::UnboundedReceiver<Seen>,
}

/// Request as the upstream saw it.
pub struct Seen {
    pub head: String,
    pub body: Vec<u8>,
    /// Number of its connection, from 0 on.
    pub connection: usize,
    answer: mpsc::UnboundedSender<Vec<u8>>,
    /// Closed when the other end has closed the connection.
    connected: mpsc::Receiver<()>,
}

impl Seen {
    /// Answers with these bytes; the connection stays open.
    pub fn answer(self, bytes: impl AsRef<[u8]>) {
        self.begin(bytes);
    }

    /// Waits until the other end has closed the connection.
    pub async fn left(&mut self) {
        assert_eq!(self.connected.recv().await, None);
    }

    /// Answers with these bytes, and perhaps more later.
    pub fn begin(&self, bytes: impl AsRef<[u8]>) {
        // The test notices if the other end is gone.
        let _ = self.answer.send(bytes.as_ref().to_vec());
    }
}

impl Upstream {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound").to_string();
        let (sender, requests) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            for connection in 0.. {
                let Ok((stream, _)) = listener.accept().await else { return };
                tokio::spawn(converse(stream, connection, sender.clone()));
            }
        });
        Self { address, requests }
    }

    /// Starts an upstream that answers everything with the same bytes.
    pub async fn always(answer: &'static str) -> String {
        let mut upstream = Self::start().await;
        let address = upstream.address.clone();
        tokio::spawn(async move {
            while let Some(seen) = upstream.requests.recv().await {
                seen.answer(answer);
            }
        });
        address
    }

    /// Returns a request that has arrived and was not taken yet.
    pub fn try_next(&mut self) -> Option<Seen> {
        self.requests.try_recv().ok()
    }

    pub async fn next(&mut self) -> Seen {
        self.requests.recv().await.expect("the upstream runs")
    }
}

async fn converse(stream: TcpStream, connection: usize, requests: mpsc::UnboundedSender<Seen>) {
    let mut wire = Wire::over(stream);
    while let Some(message) = wire.message().await {
        let (answer, mut answered) = mpsc::unbounded_channel();
        let (is_connected, connected) = mpsc::channel(1);
        let Message { head, body } = message;
        let seen = Seen { head, body, connection, answer, connected };
        if requests.send(seen).is_err() {
            return;
        }
        let mut is_connected = Some(is_connected);
        loop {
            tokio::select! {
                bytes = answered.recv() => match bytes {
                    Some(bytes) => wire.send(bytes).await,
                    None => break,
                },
                () = wire.silence_ends(), if is_connected.is_some() => is_connected = None,
            }
        }
    }
}

/// One end of a connection.
pub struct Wire {
    stream: BufReader<TcpStream>,
}

/// Request or answer as received.
#[derive(Debug)]
pub struct Message {
    pub head: String,
    pub body: Vec<u8>,
}

impl Message {
    pub fn status(&self) -> u16 {
        let word = self.head.split(' ').nth(1).expect("a status line");
        word.parse().expect("a status")
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// Asserts that this is weir's own error of the given status and code, in OpenAI's shape.
    pub fn assert_error(&self, status: u16, code: &str) -> String {
        assert_eq!(self.status(), status, "{self:?}");
        assert_eq!(self.header("content-type"), Some("application/json"));
        assert_eq!(self.header("x-weir-error"), Some(code));
        let body: serde_json::Value = serde_json::from_slice(&self.body).expect("JSON");
        let error = body["error"].as_object().expect("an error");
        if body["type"] == "error" {
            // Anthropic's shape, which has no code.
            return error["message"].as_str().expect("a message").to_owned();
        }
        assert_eq!(error["code"], code);
        assert!(error.contains_key("param"));
        let kind = if status >= 500 { "server_error" } else { "invalid_request_error" };
        assert_eq!(error["type"], kind);
        error["message"].as_str().expect("a message").to_owned()
    }
}

impl Wire {
    pub async fn connect(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect(address).await.expect("weir listens"))
    }

    fn over(stream: TcpStream) -> Self {
        stream.set_nodelay(true).expect("a TCP socket");
        Self { stream: BufReader::new(stream) }
    }

    /// Sends bytes; the next read notices a closed end.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.stream.write_all(bytes.as_ref()).await;
    }

    /// Waits for the next byte or the end of the connection.
    async fn silence_ends(&mut self) {
        let _ = self.stream.fill_buf().await;
    }

    /// Reads the head of the next message; `None` at the end of the connection.
    pub async fn head(&mut self) -> Option<String> {
        let mut head = String::new();
        loop {
            let start = head.len();
            match self.stream.read_line(&mut head).await {
                Ok(0) | Err(_) => return None,
                Ok(_) if head[start..].trim().is_empty() => return Some(head),
                Ok(_) => {}
            }
        }
    }

    /// Reads the next message, its body by `content-length` or chunks; `None` at the connection's
    /// end.
    pub async fn message(&mut self) -> Option<Message> {
        let mut message = Message { head: self.head().await?, body: Vec::new() };
        if message.header("transfer-encoding") == Some("chunked") {
            while let Some(chunk) = self.chunk().await {
                message.body.extend(chunk);
            }
        } else if let Some(length) = message.header("content-length") {
            message.body = vec![0; length.parse().expect("a length")];
            self.stream.read_exact(&mut message.body).await.ok()?;
        }
        Some(message)
    }

    /// Reads the next chunk of a chunked body; `None` at its end.
    pub async fn chunk(&mut self) -> Option<Vec<u8>> {
        let mut line = String::new();
        self.stream.read_line(&mut line).await.ok()?;
        let size = usize::from_str_radix(line.trim(), 16).expect("a chunk's size");
        let mut chunk = vec![0; size + 2];
        self.stream.read_exact(&mut chunk).await.ok()?;
        chunk.truncate(size);
        (size > 0).then_some(chunk)
    }

    /// Sends a request and reads its answer.
    pub async fn ask(&mut self, request: impl AsRef<[u8]>) -> Message {
        self.send(request).await;
        self.message().await.expect("an answer")
    }

    /// Waits for the end of the connection, with nothing before it.
    pub async fn assert_ends(&mut self) {
        let mut rest = Vec::new();
        // A reset is also an end.
        let _ = self.stream.read_to_end(&mut rest).await;
        assert_eq!(String::from_utf8_lossy(&rest), "");
    }
}

/// Sends a request on its own connection and reads the answer.
pub async fn ask(address: SocketAddr, request: impl AsRef<[u8]>) -> Message {
    Wire::connect(address).await.ask(request).await
}

/// Sends a request repeatedly until it is answered with this status.
pub async fn ask_until(address: SocketAddr, request: impl AsRef<[u8]>, status: u16) -> Message {
    let asking = async || ask(address, request.as_ref()).await;
    eventually(DEADLINE, asking, |answer| answer.status() == status).await
}

/// Builds a chat request with this body and these additional header lines.
pub fn chat(headers: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let mut request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n{headers}content-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    request.extend_from_slice(body);
    request
}

/// Builds a request without a body.
pub fn bare(method: &str, path: &str, headers: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n")
}

/// Builds a valid chat body of exactly this many bytes.
pub fn body_of(bytes: usize) -> String {
    let (before, after) =
        (r#"{"model":"gpt-4o","messages":[{"role":"user","content":""#, r#""}]}"#);
    let filler = bytes.checked_sub(before.len() + after.len()).expect("room for the body's frame");
    format!("{before}{}{after}", "a ".repeat(filler.div_ceil(2)).split_at(filler).0)
}
