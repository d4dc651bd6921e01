//! One HTTP/1.1 or HTTP/2 connection and its silence timeouts. Knows nothing of the requests on it.

use std::convert::Infallible;
use std::io;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
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
use parking_lot::{Mutex, RwLock};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::time::Instant;

use super::body::Patient;
use super::handshake::{HandshakeError, Handshakes};
use super::routes::{Address, ServedRoutes};
use super::shutdown::{Phase, Shutdown};
use crate::config::Config;
use crate::proxy::metrics::Metrics;
use crate::proxy::{Body, BoxError};
use crate::tls::{GivesWay, OpenConnections, Stream, Tls, TlsError};

/// Maximum idle time between two requests. Longer than in the pools of common HTTP clients, so that
/// the client closes first.
const IDLE_CONNECTION: Duration = Duration::from_secs(300);
/// Maximum time for a connection that gives way to another between requests.
const GIVES_WAY: Duration = Duration::from_secs(1);
/// hyper's minimum read buffer, which bounds the head of a request.
const MIN_HEAD_BYTES: usize = 8192;
/// Maximum number of headers of an HTTP/1 request. Many servers accept 100; weir adds `via`, and
/// perhaps a length, a credential and an encoding.
const MAX_HEADERS: usize = 96;

/// Maximum number of requests at once on a connection of HTTP/2, and of bytes that each keeps for a caller who
/// does not read: together no more than some connections of HTTP/1 keep.
const MAX_STREAMS: u32 = 100;
const MAX_SEND_BYTES: usize = 64 << 10;

/// Whether a connection is served or refused for lack of room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Welcome {
    Serve,
    TurnAway,
}

/// Serves connections.
pub(super) struct Connections {
    builder: auto::Builder<TokioExecutor>,
    handshakes: Handshakes,
    /// ServedRoutes for new requests.
    routes: RwLock<Arc<ServedRoutes>>,
    shutdown: Shutdown,
    header_timeout: Duration,
    metrics: Arc<Metrics>,
    /// Those that are served.
    served: Arc<OpenConnections<Seated>>,
}

/// Connection with its place.
struct Seated {
    pulse: Arc<Pulse>,
    place: Mutex<OwnedSemaphorePermit>,
}

impl GivesWay for Seated {
    fn idle_since(&self) -> Option<Instant> {
        self.pulse.idle_since()
    }

    fn leave(&self) {
        self.pulse.leave.notify_one();
    }
}

impl Connections {
    pub(super) fn new(
        config: &Config,
        routes: ServedRoutes,
        shutdown: Shutdown,
    ) -> Result<Self, TlsError> {
        let max_head_bytes = config.server.max_header_bytes.max(MIN_HEAD_BYTES);
        let mut builder = auto::Builder::new(TokioExecutor::new());
        // The timeout of a head is watched below, for both protocols and from the first byte.
        builder
            .http1()
            .header_read_timeout(None)
            .max_buf_size(max_head_bytes)
            .max_headers(MAX_HEADERS);
        builder
            .http2()
            .max_header_list_size(u32::try_from(max_head_bytes).unwrap_or(u32::MAX))
            .max_concurrent_streams(MAX_STREAMS)
            .max_send_buf_size(MAX_SEND_BYTES);
        Ok(Self {
            metrics: Arc::clone(routes.proxy.journal().metrics()),
            builder,
            handshakes: Handshakes::new(&config.server)?,
            routes: RwLock::new(Arc::new(routes)),
            shutdown,
            header_timeout: Duration::from_millis(config.server.header_timeout_ms),
            served: Arc::default(),
        })
    }

    /// Lets the connection that has idled longest leave from the place `aside`, and returns its own; turns the
    /// new one away if all have requests.
    pub(super) fn give_way(&self, aside: OwnedSemaphorePermit) -> (OwnedSemaphorePermit, Welcome) {
        match self.served.release(|_| true) {
            Some(idle) => (mem::replace(&mut *idle.place.lock(), aside), Welcome::Serve),
            None => (aside, Welcome::TurnAway),
        }
    }

    /// Returns the TLS settings; `None` if the listener speaks plain HTTP.
    pub(super) fn tls(&self) -> Option<&Tls> {
        self.handshakes.tls.as_ref()
    }

    /// Returns the routes for new requests.
    pub(super) fn routes(&self) -> Arc<ServedRoutes> {
        Arc::clone(&self.routes.read())
    }

    /// Uses other routes for new requests.
    pub(super) fn follow(&self, routes: ServedRoutes) {
        *self.routes.write() = Arc::new(routes);
    }

    /// Serves one connection to its end.
    pub(super) async fn serve(
        self: Arc<Self>,
        stream: TcpStream,
        peer: SocketAddr,
        (place, welcome): (OwnedSemaphorePermit, Welcome),
    ) {
        let pulse = Arc::new(Pulse::default());
        let seated = Arc::new(Seated { pulse: Arc::clone(&pulse), place: Mutex::new(place) });
        let is_served = welcome == Welcome::Serve;
        let _entered = is_served.then(|| self.served.enter(Arc::clone(&seated)));
        let _open = OpenCount::count(&self.metrics, welcome);
        let Some((stream, address)) = self.open(stream, peer, &pulse).await else { return };
        let metrics = Arc::clone(&self.metrics);
        let io = TokioIo::new(Watched { stream, pulse: pulse.clone(), metrics });
        let service =
            service_fn(|request| self.clone().answer(request, address, welcome, pulse.clone()));
        let mut connection = pin!(self.builder.serve_connection(io, service));
        let unread_timeout = || self.routes().body_times.idle;
        let mut patience = self.header_timeout;
        let ended = tokio::select! {
            biased;
            ended = connection.as_mut() => Some(ended),
            () = self.shutdown.reached(Phase::Draining) => None,
            () = pulse.leave.notified() => {
                patience = if is_served { patience.min(GIVES_WAY) } else { patience };
                None
            }
            silence = pulse.silence(self.header_timeout, unread_timeout) => match silence {
                // What is dropped unread is read on for its usage.
                Silence::InHead | Silence::Unread => return,
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
                    () = pulse.farewell(patience) => return,
                }
            }
        };
        if let Err(error) = ended {
            tracing::debug!(target: "weir::connection", %error, "connection ended");
        }
    }

    /// Reads the bytes before HTTP (load balancer header, TLS) within the timeout of a first head.
    async fn open(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        pulse: &Pulse,
    ) -> Option<(Stream, IpAddr)> {
        let opened = tokio::select! {
            biased;
            opened = self.handshakes.open(stream, peer) => opened,
            () = self.shutdown.reached(Phase::Draining) => return None,
            _ = pulse.silence(self.header_timeout, || Duration::MAX) => return None,
        };
        match opened {
            Ok(opened) => return Some(opened),
            Err(HandshakeError::Header) => tracing::warn!(
                target: "weir::connection",
                %peer,
                "a connection from server.proxy_protocol_from did not begin with a PROXY protocol \
                 header; have the load balancer send one, or take its network out of that list"
            ),
            Err(HandshakeError::Handshake(error)) => {
                tracing::debug!(target: "weir::connection", %error, "no TLS on a connection");
            }
            Err(HandshakeError::Gone(error)) => {
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
        let times = routes.body_times;
        request.extensions_mut().insert(Address(address));
        let request = request.map(|body| Patient::new(body, times).boxed_unsync());
        let response = match welcome {
            Welcome::Serve => routes.answer(request).await,
            Welcome::TurnAway => {
                beat.pulse.leave.notify_one();
                routes.turn_away(request)
            }
        };
        Ok(response.map(|body| Beating { body, beat, is_owing: false }))
    }
}

/// Count of an open connection.
struct OpenCount<'a>(&'a Metrics);

impl<'a> OpenCount<'a> {
    fn count(metrics: &'a Metrics, welcome: Welcome) -> Self {
        metrics.connections.open.inc();
        metrics.connections.accepted.inc();
        if welcome == Welcome::TurnAway {
            metrics.connections.turned_away.inc();
        }
        Self(metrics)
    }
}

impl Drop for OpenCount<'_> {
    fn drop(&mut self) {
        self.0.connections.open.dec();
    }
}

/// Kind of silence that exceeded its timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Silence {
    /// A request head started and does not end, or a new connection sends nothing at all.
    InHead,
    /// There is no request.
    Idle,
    /// The caller takes nothing of its answers.
    Unread,
}

/// Times of the last activity on a connection, in milliseconds since the connection began.
struct Pulse {
    began: Instant,
    in_flight: AtomicUsize,
    /// When the last request ended.
    quiet_since_ms: AtomicU64,
    /// When the first byte after that arrived; `NEVER` if none has.
    head_since_ms: AtomicU64,
    /// Number of answers with bytes that the caller has not taken.
    owing: AtomicUsize,
    /// Number of times that the caller has taken some. A count, since a clock is dear at each event of a stream.
    taken: AtomicU64,
    /// On HTTP/2, frames that belong to no request arrive at any time and are not activity.
    is_http2: AtomicBool,
    /// Signals that the connection ends with the request in flight.
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
            owing: AtomicUsize::new(0),
            taken: AtomicU64::new(0),
            is_http2: AtomicBool::new(false),
            leave: Notify::new(),
        }
    }
}

impl Pulse {
    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(NEVER)
    }

    /// Returns when the last request ended; `None` if another has begun to come.
    fn idle_since(&self) -> Option<Instant> {
        let is_idle = self.in_flight.load(Ordering::Relaxed) == 0
            && self.head_since_ms.load(Ordering::Relaxed) == NEVER;
        let since_ms = self.quiet_since_ms.load(Ordering::Relaxed);
        is_idle.then(|| self.began + Duration::from_millis(since_ms))
    }

    fn bytes_came(&self) {
        if self.in_flight.load(Ordering::Relaxed) == 0
            && !self.is_http2.load(Ordering::Relaxed)
            && self.head_since_ms.load(Ordering::Relaxed) == NEVER
        {
            self.head_since_ms.store(self.now_ms(), Ordering::Relaxed);
        }
    }

    /// Records that the caller takes what it is owed.
    fn takes(&self) {
        let taken = self.taken.load(Ordering::Relaxed);
        self.taken.store(taken.wrapping_add(1), Ordering::Relaxed);
    }

    /// Waits until the connection has been silent for too long: `unread_timeout` if an answer waits for
    /// its caller.
    async fn silence(
        &self,
        header_timeout: Duration,
        unread_timeout: impl Fn() -> Duration,
    ) -> Silence {
        // When the caller was last seen to have taken something.
        let (mut taken, mut taken_at) = (0, Instant::now());
        loop {
            let now = Instant::now();
            let newest = self.taken.load(Ordering::Relaxed);
            if newest != taken || self.owing.load(Ordering::Relaxed) == 0 {
                (taken, taken_at) = (newest, now);
            }
            let head_since_ms = self.head_since_ms.load(Ordering::Relaxed);
            let (deadline, silence) = if self.owing.load(Ordering::Relaxed) > 0 {
                let unread_timeout = unread_timeout();
                let unread = now.saturating_duration_since(taken_at);
                let wait = unread_timeout.saturating_sub(unread).min(header_timeout);
                (now + wait, (unread >= unread_timeout).then_some(Silence::Unread))
            } else if self.in_flight.load(Ordering::Relaxed) > 0 {
                // Checks again at the earliest time at which a head could be overdue, or an answer unread.
                (now + header_timeout.min(unread_timeout()), None)
            } else if head_since_ms == NEVER {
                let since_ms = self.quiet_since_ms.load(Ordering::Relaxed);
                let deadline = self.began + Duration::from_millis(since_ms) + IDLE_CONNECTION;
                // A head that starts meanwhile has an earlier deadline.
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

    /// Waits until a connection that is to end has had its grace period.
    async fn farewell(&self, patience: Duration) {
        loop {
            tokio::time::sleep(patience).await;
            if self.in_flight.load(Ordering::Relaxed) == 0 {
                return;
            }
        }
    }
}

/// Marker of a request in flight, from its head to the last byte of its answer.
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

/// Answer body that keeps its request marked as in flight.
struct Beating {
    body: Body,
    beat: Beat,
    /// Whether its last bytes have not all been taken, as far as known.
    is_owing: bool,
}

impl Beating {
    fn owes(&mut self, is_owing: bool) {
        let pulse = &self.beat.pulse;
        if is_owing {
            pulse.takes();
        }
        match (self.is_owing, is_owing) {
            (false, true) => _ = pulse.owing.fetch_add(1, Ordering::Relaxed),
            (true, false) => _ = pulse.owing.fetch_sub(1, Ordering::Relaxed),
            _ => {}
        }
        self.is_owing = is_owing;
    }
}

impl Drop for Beating {
    fn drop(&mut self) {
        self.owes(false);
    }
}

impl http_body::Body for Beating {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        // It is polled again once there is room for more.
        self.owes(polled.is_ready());
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Socket that records when bytes arrive, and counts them.
struct Watched {
    stream: Stream,
    pulse: Arc<Pulse>,
    metrics: Arc<Metrics>,
}

impl Watched {
    /// Counts the bytes of a write.
    fn wrote(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = &written {
            // On HTTP/2 they may be no part of an answer: a caller that asks for signs of life takes nothing.
            let is_answer = !self.pulse.is_http2.load(Ordering::Relaxed);
            if is_answer && self.pulse.owing.load(Ordering::Relaxed) > 0 {
                self.pulse.takes();
            }
            self.metrics.connections.sent_bytes.inc_by(*bytes as u64);
        }
        written
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let filled = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        let bytes = buffer.filled().len().saturating_sub(filled);
        if bytes > 0 {
            self.pulse.bytes_came();
            self.metrics.connections.received_bytes.inc_by(bytes as u64);
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
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wrote(written)
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
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.wrote(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the size of the future that a function of five arguments returns.
    fn future_bytes<A, B, C, D, E, F>(_: fn(A, B, C, D, E) -> F) -> usize {
        size_of::<F>()
    }

    /// hyper keeps room for a request's future with each HTTP/1.1 connection, even between requests.
    #[test]
    fn an_idle_connection_needs_little_room() {
        let bytes = future_bytes(Connections::answer);
        assert!(bytes <= 4 << 10, "{bytes}");
    }
}
