//! Scripted upstream: an OpenAI-shaped server on loopback that judges the requests it receives.
//!
//! Root of one module tree: the example's `main.rs` runs it as a process and the integration tests
//! include it in their own. It shares no code with the proxy it judges, must never import from it,
//! and counts tokens with tiktoken-rs alone.

mod answer;
mod body;
mod chat;
mod control;
mod count;
mod extras;
mod fault;
mod files;
mod log;
mod memory;
mod overflow;
mod responses;
mod routes;
mod script;
mod strict;
mod validate;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::{JoinHandle, JoinSet};

use fault::Fault;
pub use log::Seen;

/// Options of the server; the flags of the process are the same.
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "scripted_upstream")]
pub struct Options {
    /// Address to listen on; port 0 selects a free one.
    #[arg(long, default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// Window shared by prompt and answer, in tokens; `x-upstream-context-tokens` overrides it for
    /// one request.
    #[arg(long, default_value_t = 128_000)]
    pub context_tokens: u64,
    /// Largest `max_tokens` accepted; unlimited if absent.
    #[arg(long)]
    pub max_output_tokens: Option<u64>,
    /// Refuse two user or two assistant messages in a row, and a late system message.
    #[arg(long)]
    pub strict_alternation: bool,
    /// Accept members that the API does not know, except those that begin with `weir`.
    #[arg(long)]
    pub allow_unknown: bool,
    /// Refuse `stream_options`, like vendors that do not know it.
    #[arg(long)]
    pub refuse_stream_options: bool,
    /// The only key accepted; by default any request is.
    #[arg(long)]
    pub require_key: Option<String>,
    /// Answer 404 to every path that does not begin with /v1.
    #[arg(long)]
    pub only_v1: bool,
    /// The only models known; by default every name that does not begin with `missing`.
    #[arg(long, value_delimiter = ',')]
    pub models: Vec<String>,
    /// Compress answers with gzip if the request allows it.
    #[arg(long)]
    pub compress: bool,
    /// Cached tokens are reported in multiples of this.
    #[arg(long, default_value_t = 1)]
    pub cache_step_tokens: u64,
    /// Text of answers without a script; `{id}` stands for the request's own number.
    #[arg(long)]
    pub say: Option<String>,
    /// Tokens that the model's chat template adds to every prompt.
    #[arg(long, default_value_t = 0)]
    pub template_tokens: u64,
    /// Vendor whose words a refusal for size uses.
    #[arg(long, default_value = "openai")]
    pub overflow_style: String,
    /// The vocabulary of models whose names begin with `foreign`: one of Mistral's `tekken_….json`,
    /// or a `tokenizer.json`.
    #[arg(long)]
    pub tokenizer: Option<PathBuf>,
    /// Faults of the first requests, one each, in order; `none` is no fault.
    #[arg(long, value_delimiter = ',')]
    pub faults: Vec<String>,
    /// Entries kept in the log; the oldest are dropped first.
    #[arg(long, default_value_t = 100_000)]
    pub log_entries: usize,
    /// Bytes of request bodies kept in the log; the oldest are dropped first, 0 keeps none.
    #[arg(long, default_value_t = 268_435_456)]
    pub log_body_bytes: usize,
    /// Largest request body accepted.
    #[arg(long, default_value_t = 268_435_456)]
    pub max_body_bytes: usize,
    /// Timeout of `Server::wait_for`: a test that reaches it has hung.
    #[arg(skip = Duration::from_secs(60))]
    pub wait_limit: Duration,
}

impl Default for Options {
    fn default() -> Self {
        <Self as clap::Parser>::parse_from(["scripted_upstream"])
    }
}

/// State shared by all connections.
struct State {
    options: Options,
    log: Arc<log::Log>,
    counts: count::Counts,
    cache: memory::PrefixCache,
    files: files::Files,
    faults: Mutex<VecDeque<Option<Fault>>>,
    /// Counts the calls of `release`; a held answer waits for the next one.
    released: watch::Sender<u64>,
    stop: watch::Sender<bool>,
    connections: AtomicU64,
}

/// Running server. Dropping it closes every connection.
pub struct Server {
    pub addr: SocketAddr,
    state: Arc<State>,
    accepting: JoinHandle<()>,
}

impl Server {
    /// Listens and serves on the current runtime.
    pub async fn start(options: Options) -> std::io::Result<Self> {
        let faults = fault::queue(&options.faults)
            .map_err(|problem| std::io::Error::new(std::io::ErrorKind::InvalidInput, problem))?;
        if let Some(path) = &options.tokenizer {
            count::read_tokenizer(path).map_err(|problem| {
                std::io::Error::new(std::io::ErrorKind::InvalidInput, problem)
            })?;
        }
        let listener = TcpListener::bind(options.listen).await?;
        let addr = listener.local_addr()?;
        let state = Arc::new(State {
            log: Arc::new(log::Log::new(options.log_entries, options.log_body_bytes)),
            counts: count::Counts::default(),
            cache: memory::PrefixCache::default(),
            files: files::Files::default(),
            faults: Mutex::new(faults.into()),
            released: watch::Sender::new(0),
            stop: watch::Sender::new(false),
            connections: AtomicU64::new(0),
            options,
        });
        let accepting = tokio::spawn(accept(listener, state.clone(), state.stop.subscribe()));
        Ok(Self { addr, state, accepting })
    }

    /// Base URL for an SDK.
    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.addr)
    }

    /// Returns a copy of the log, oldest first.
    pub fn requests(&self) -> Vec<Seen> {
        self.state.log.read(<[Seen]>::to_vec)
    }

    /// Number of connections accepted so far.
    pub fn connections(&self) -> u64 {
        self.state.connections.load(Ordering::Relaxed)
    }

    /// Waits until `holds` is true of the log; checks again at every change.
    pub async fn wait_for(&self, holds: impl Fn(&[Seen]) -> bool) {
        tokio::time::timeout(self.state.options.wait_limit, self.state.log.wait_for(holds))
            .await
            .expect("the log meets the caller's condition within the limit");
    }

    /// Appends faults for the next requests, one each, in the syntax of `--faults`.
    pub fn queue_faults(&self, faults: &[&str]) -> Result<(), String> {
        let faults = fault::queue(faults)?;
        locked(&self.state.faults).extend(faults);
        Ok(())
    }

    /// Releases every answer that a `hold_…` fault is currently holding.
    pub fn release(&self) {
        self.state.released.send_modify(|count| *count += 1);
    }

    /// Closes everything and returns when it is closed.
    pub async fn stop(mut self) {
        self.state.stop.send_replace(true);
        if let Err(failure) = (&mut self.accepting).await {
            assert!(!failure.is_panic(), "the accept loop does not panic");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.state.stop.send_replace(true);
    }
}

async fn accept(listener: TcpListener, state: Arc<State>, mut stop: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            // Sent once, or never again when the last sender is gone: both mean the end.
            _ = stop.changed() => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let number = state.connections.fetch_add(1, Ordering::Relaxed) + 1;
                    connections.spawn(serve(stream, state.clone(), number));
                }
                // Out of descriptors, for example: the others must be able to release theirs.
                Err(_) => tokio::task::yield_now().await,
            }
        }
    }
    drop(listener);
    connections.shutdown().await;
}

async fn serve(stream: TcpStream, state: Arc<State>, number: u64) {
    // If this fails, the peer is gone, and the first read will report it.
    stream.set_nodelay(true).unwrap_or_default();
    let link = Arc::new(Link {
        number,
        reset: AtomicBool::new(false),
        close_on_next: AtomicBool::new(false),
        ended: Notify::new(),
    });
    let socket = Socket { stream, link: link.clone() };
    let service = service_fn(|request| routes::answer(state.clone(), link.clone(), request));
    let builder = auto::Builder::new(TokioExecutor::new());
    tokio::select! {
        // The log entries of its requests show how a connection ended.
        _ = builder.serve_connection(TokioIo::new(socket), service) => {}
        () = link.ended.notified() => {}
    }
}

/// Control of a request over its connection.
struct Link {
    number: u64,
    reset: AtomicBool,
    close_on_next: AtomicBool,
    ended: Notify,
}

impl Link {
    /// Ends the connection now, with RST or with FIN.
    fn cut(&self, reset: bool) {
        self.reset.store(reset, Ordering::Release);
        self.ended.notify_one();
    }
}

/// TCP stream that closes with RST instead of FIN if its link requests that.
struct Socket {
    stream: TcpStream,
    link: Arc<Link>,
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.link.reset.load(Ordering::Acquire) {
            self.stream.set_zero_linger().unwrap_or_default();
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Locks a mutex, even if a test panicked while it held the lock.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
