//! Proxies under test: a command in a process group of its own, a program that runs already, or a bound in
//! this process. Knows their addresses and how to start and stop them, and nothing of conversations.

use std::convert::Infallible;
use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener as StdListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::cleanup;

/// Time in which a proxy has to answer its first request.
const READY: Duration = Duration::from_secs(90);
const POLL: Duration = Duration::from_millis(50);
/// Time in which a stopped proxy has to end.
const STOP: Duration = Duration::from_secs(3);
/// Bytes of a proxy's output that are shown if it does not start.
const SHOWN_BYTES: usize = 600;

/// How a command is started.
pub struct Start<'a> {
    pub command: &'a str,
    pub upstream: &'a str,
    pub limit_tokens: u64,
    /// 1, or 2 for the second instance.
    pub instance: u8,
    /// Its working folder, kept over a restart.
    pub folder: &'a Path,
}

/// Running proxy. Dropping it ends it.
pub struct Running {
    pub base_url: String,
    host: Host,
}

enum Host {
    Process(Child),
    /// A program that is not the bench's to end.
    Other,
    Here(JoinHandle<()>, Slot),
}

/// Body that a bound sends on in place of the one it receives.
type Slot = Arc<Mutex<Option<Vec<u8>>>>;

impl Running {
    /// Starts a command and waits until it answers.
    pub async fn start(client: &reqwest::Client, start: &Start<'_>) -> Result<Self, String> {
        let port = free_port()?;
        let shown = start
            .command
            .replace("{upstream}", start.upstream)
            .replace("{port}", &port.to_string())
            .replace("{limit_tokens}", &start.limit_tokens.to_string())
            .replace("{instance}", &start.instance.to_string());
        let log = start.folder.with_extension("log");
        let out = File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        let mut command = Command::new("sh");
        command
            .args(["-c", &shown])
            .current_dir(start.folder)
            .env("UPSTREAM_URL", start.upstream)
            .env("PORT", port.to_string())
            .env("LIMIT_TOKENS", start.limit_tokens.to_string())
            .env("FITBENCH_INSTANCE", start.instance.to_string())
            .env("OPENAI_BASE_URL", start.upstream)
            .env("OPENAI_API_KEY", "fitbench")
            .env("NO_PROXY", "127.0.0.1,localhost")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::from(out));
        let child = cleanup::spawn(&mut command).map_err(|error| format!("{shown}: {error}"))?;
        let base_url = format!("http://127.0.0.1:{port}/v1");
        let mut running = Self { base_url, host: Host::Process(child) };
        if let Err(problem) = running.wait_ready(client).await {
            let text = fs::read(&log).unwrap_or_default();
            let text = String::from_utf8_lossy(&text[text.len().saturating_sub(SHOWN_BYTES)..]);
            return Err(format!("{problem}: {shown}: {}", text.trim()));
        }
        Ok(running)
    }

    /// Names a program that runs already.
    pub fn at(base_url: &str) -> Self {
        Self { base_url: base_url.trim_end_matches('/').to_owned(), host: Host::Other }
    }

    /// Starts a bound in this process.
    pub async fn here(client: &reqwest::Client, upstream: &str) -> Result<Self, String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(|error| error.to_string())?;
        let address: SocketAddr = listener.local_addr().map_err(|error| error.to_string())?;
        let slot = Slot::default();
        let serving =
            tokio::spawn(forward_all(listener, client.clone(), upstream.to_owned(), slot.clone()));
        let base_url = format!("http://{address}/v1");
        Ok(Self { base_url, host: Host::Here(serving, slot) })
    }

    /// Sets the body that a bound sends next in place of the one it receives.
    pub fn put(&self, body: Vec<u8>) {
        if let Host::Here(_, slot) = &self.host {
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(body);
        }
    }

    async fn wait_ready(&mut self, client: &reqwest::Client) -> Result<(), String> {
        let until = Instant::now() + READY;
        let url = format!("{}/models", self.base_url);
        while Instant::now() < until {
            if let Host::Process(child) = &mut self.host
                && let Ok(Some(status)) = child.try_wait()
            {
                return Err(format!("it ended before it answered ({status})"));
            }
            let asked = client.get(&url).bearer_auth("fitbench").timeout(POLL * 40).send().await;
            if asked.is_ok() {
                return Ok(());
            }
            tokio::time::sleep(POLL).await;
        }
        Err(format!("it did not answer within {} s", READY.as_secs()))
    }

    /// Ends it, and waits until it has ended.
    pub async fn stop(mut self) {
        let Host::Process(child) = &mut self.host else { return };
        cleanup::stop(child);
        let until = Instant::now() + STOP;
        while Instant::now() < until && matches!(child.try_wait(), Ok(None)) {
            tokio::time::sleep(POLL).await;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        match &mut self.host {
            Host::Process(child) => cleanup::end(child),
            Host::Other => {}
            Host::Here(serving, _) => serving.abort(),
        }
    }
}

fn free_port() -> Result<u16, String> {
    let listener = StdListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    listener.local_addr().map(|address| address.port()).map_err(|error| error.to_string())
}

async fn forward_all(listener: TcpListener, client: reqwest::Client, upstream: String, slot: Slot) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::task::yield_now().await;
            continue;
        };
        stream.set_nodelay(true).unwrap_or_default();
        let (client, upstream, slot) = (client.clone(), upstream.clone(), slot.clone());
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let (client, upstream, slot) = (client.clone(), upstream.clone(), slot.clone());
                async move { Ok::<_, Infallible>(forward(&client, &upstream, &slot, request).await) }
            });
            let builder = auto::Builder::new(TokioExecutor::new());
            builder.serve_connection(TokioIo::new(stream), service).await.unwrap_or_default();
        });
    }
}

/// Sends a request on, with the body of the slot if there is one.
async fn forward(
    client: &reqwest::Client,
    upstream: &str,
    slot: &Slot,
    request: Request<Incoming>,
) -> Response<Full<Bytes>> {
    let failed = || {
        let mut response = Response::new(Full::new(Bytes::new()));
        *response.status_mut() = StatusCode::BAD_GATEWAY;
        response
    };
    let (head, body) = request.into_parts();
    let path = head.uri.path().strip_prefix("/v1").unwrap_or(head.uri.path()).to_owned();
    let Ok(body) = body.collect().await else { return failed() };
    let other = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
    let body = other.map_or_else(|| body.to_bytes(), Bytes::from);
    let sent = client
        .request(head.method, format!("{upstream}{path}"))
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(body)
        .send()
        .await;
    let Ok(answer) = sent else { return failed() };
    let status = answer.status();
    let Ok(body) = answer.bytes().await else { return failed() };
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response
}

/// Temporary folder of one instance, removed on drop with its log.
pub struct Folder(pub PathBuf);

impl Folder {
    /// Creates a folder of its own.
    pub fn new() -> Result<Self, String> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("fitbench-{}-{number}", std::process::id()));
        cleanup::create_folder(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        cleanup::remove_folder(&self.0);
    }
}
