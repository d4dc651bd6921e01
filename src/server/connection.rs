//! One connection: HTTP/1.1 or HTTP/2 on it, and how long it may be silent. Knows nothing of what
//! requests ask for.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Version};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::body::Patient;
use super::opening::{Openings, Unopened};
use super::routes::{Address, Routes};
use super::shutdown::{Phase, Shutdown};
use crate::config::Config;
use crate::proxy::{Body, BoxError};
use crate::tls::{Stream, Tls, TlsError};

/// How long a connection may stay open between two requests. Longer than the pools of common HTTP
/// clients keep theirs, so that it is they who close.
const IDLE_CONNECTION: Duration = Duration::from_secs(300);
/// The least that hyper takes for its read buffer, which bounds the head of a request.
const MIN_HEAD_BYTES: usize = 8192;

/// Whether a connection is served or told that there is no place for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Welcome {
    Serve,
    TurnAway,
}

/// Serves connections.
pub struct Connections {
    builder: auto::Builder<TokioExecutor>,
    openings: Openings,
    /// What requests go by that come now.
    routes: RwLock<Arc<Routes>>,
    shutdown: Shutdown,
    header_timeout: Duration,
}

impl Connections {
    pub fn new(config: &Config, routes: Routes, shutdown: Shutdown) -> Result<Self, TlsError> {
        let max_head_bytes = config.server.max_header_bytes.max(MIN_HEAD_BYTES);
        let mut builder = auto::Builder::new(TokioExecutor::new());
        // How long a head may take is watched below, for both protocols and from the first byte.
        builder.http1().header_read_timeout(None).max_buf_size(max_head_bytes);
        builder.http2().max_header_list_size(u32::try_from(max_head_bytes).unwrap_or(u32::MAX));
        Ok(Self {
            builder,
            openings: Openings::new(&config.server)?,
            routes: RwLock::new(Arc::new(routes)),
            shutdown,
            header_timeout: Duration::from_millis(config.server.header_timeout_ms),
        })
    }

    /// What handshakes go by; `None` where plain HTTP is spoken.
    pub fn tls(&self) -> Option<&Tls> {
        self.openings.tls()
    }

    /// What requests go by that come now.
    pub fn routes(&self) -> Arc<Routes> {
        Arc::clone(&self.routes.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Has requests from now on go by other routes.
    pub fn follow(&self, routes: Routes) {
        *self.routes.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(routes);
    }

    /// Serves one connection to its end.
    pub async fn serve(self: Arc<Self>, stream: TcpStream, peer: SocketAddr, welcome: Welcome) {
        let pulse = Arc::new(Pulse::default());
        let Some((stream, address)) = self.open(stream, peer, &pulse).await else { return };
        let io = TokioIo::new(Watched { stream, pulse: pulse.clone() });
        let service =
            service_fn(|request| self.clone().answer(request, address, welcome, pulse.clone()));
        let mut connection = pin!(self.builder.serve_connection(io, service));
        let ended = tokio::select! {
            biased;
            ended = connection.as_mut() => Some(ended),
            () = self.shutdown.reached(Phase::Draining) => None,
            () = pulse.leave.notified() => None,
            silence = pulse.silence(self.header_timeout) => match silence {
                Silence::InHead => return,
                Silence::Idle => None,
            },
        };
        let ended = match ended {
            Some(ended) => ended,
            None => {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    biased;
                    ended = connection => ended,
                    () = pulse.farewell(self.header_timeout) => return,
                }
            }
        };
        if let Err(error) = ended {
            tracing::debug!(target: "weir::connection", %error, "connection ended");
        }
    }

    /// Takes what stands before HTTP off a connection, in the time that a first head may take.
    async fn open(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        pulse: &Pulse,
    ) -> Option<(Stream, IpAddr)> {
        let opened = tokio::select! {
            biased;
            opened = self.openings.open(stream, peer) => opened,
            () = self.shutdown.reached(Phase::Draining) => return None,
            _ = pulse.silence(self.header_timeout) => return None,
        };
        match opened {
            Ok(opened) => return Some(opened),
            Err(Unopened::Preamble) => tracing::warn!(
                target: "weir::connection",
                %peer,
                "a connection from server.proxy_protocol_from did not begin with a PROXY protocol \
                 header; have the load balancer send one, or take its network out of that list"
            ),
            Err(Unopened::Handshake(error)) => {
                tracing::debug!(target: "weir::connection", %error, "no TLS on a connection");
            }
            Err(Unopened::Gone(error)) => {
                tracing::debug!(target: "weir::connection", %error, "connection ended");
            }
        }
        None
    }

    async fn answer(
        self: Arc<Self>,
        mut request: Request<Incoming>,
        address: IpAddr,
        welcome: Welcome,
        pulse: Arc<Pulse>,
    ) -> Result<Response<Beating>, Infallible> {
        let beat = Beat::start(pulse, request.version());
        let routes = self.routes();
        let body_idle = routes.body_idle();
        request.extensions_mut().insert(Address(address));
        let request = request.map(|body| Patient::new(body, body_idle).boxed_unsync());
        let response = match welcome {
            Welcome::Serve => routes.answer(request).await,
            Welcome::TurnAway => {
                beat.pulse.leave.notify_one();
                routes.turn_away(request)
            }
        };
        Ok(response.map(|body| Beating { body, _beat: beat }))
    }
}

/// What has been silent for too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Silence {
    /// A request has begun to come and does not end, or a new connection says nothing at all.
    InHead,
    /// There is no request.
    Idle,
}

/// When something last happened on a connection. Milliseconds are since the connection began.
struct Pulse {
    began: Instant,
    in_flight: AtomicUsize,
    /// When the last request ended.
    quiet_since_ms: AtomicU64,
    /// When, after that, the first byte came; `NEVER` if none has.
    head_since_ms: AtomicU64,
    /// Frames that belong to no request come on HTTP/2 at any time, and mean nothing.
    is_http2: AtomicBool,
    /// Tells that the connection is to end with the request that is in flight.
    leave: Notify,
}

const NEVER: u64 = u64::MAX;

impl Default for Pulse {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            in_flight: AtomicUsize::new(0),
            quiet_since_ms: AtomicU64::new(0),
            // A new connection is expected to begin at once.
            head_since_ms: AtomicU64::new(0),
            is_http2: AtomicBool::new(false),
            leave: Notify::new(),
        }
    }
}

impl Pulse {
    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(NEVER)
    }

    fn bytes_came(&self) {
        if self.in_flight.load(Ordering::Relaxed) == 0
            && !self.is_http2.load(Ordering::Relaxed)
            && self.head_since_ms.load(Ordering::Relaxed) == NEVER
        {
            self.head_since_ms.store(self.now_ms(), Ordering::Relaxed);
        }
    }

    /// Waits until the connection has been silent for too long.
    async fn silence(&self, header_timeout: Duration) -> Silence {
        loop {
            let now = Instant::now();
            let head_since_ms = self.head_since_ms.load(Ordering::Relaxed);
            let (deadline, silence) = if self.in_flight.load(Ordering::Relaxed) > 0 {
                // Looked at again when a head could be overdue at the earliest.
                (now + header_timeout, None)
            } else if head_since_ms == NEVER {
                let since_ms = self.quiet_since_ms.load(Ordering::Relaxed);
                let deadline = self.began + Duration::from_millis(since_ms) + IDLE_CONNECTION;
                // A head that begins meanwhile has a nearer deadline.
                (deadline.min(now + header_timeout), (now >= deadline).then_some(Silence::Idle))
            } else {
                let deadline = self.began + Duration::from_millis(head_since_ms) + header_timeout;
                (deadline, (now >= deadline).then_some(Silence::InHead))
            };
            match silence {
                Some(silence) => return silence,
                None => tokio::time::sleep_until(deadline).await,
            }
        }
    }

    /// Waits until a connection that is to end has had its time to do so.
    async fn farewell(&self, patience: Duration) {
        loop {
            tokio::time::sleep(patience).await;
            if self.in_flight.load(Ordering::Relaxed) == 0 {
                return;
            }
        }
    }
}

/// A request in flight, from its head to the last byte of its answer.
struct Beat {
    pulse: Arc<Pulse>,
}

impl Beat {
    fn start(pulse: Arc<Pulse>, version: Version) -> Self {
        pulse.in_flight.fetch_add(1, Ordering::Relaxed);
        pulse.head_since_ms.store(NEVER, Ordering::Relaxed);
        if version == Version::HTTP_2 {
            pulse.is_http2.store(true, Ordering::Relaxed);
        }
        Self { pulse }
    }
}

impl Drop for Beat {
    fn drop(&mut self) {
        let now_ms = self.pulse.now_ms();
        self.pulse.quiet_since_ms.store(now_ms, Ordering::Relaxed);
        self.pulse.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An answer's body, which keeps its request in flight.
struct Beating {
    body: Body,
    _beat: Beat,
}

impl http_body::Body for Beating {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A socket that tells when bytes come.
struct Watched {
    stream: Stream,
    pulse: Arc<Pulse>,
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let filled = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > filled {
            self.pulse.bytes_came();
        }
        read
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
