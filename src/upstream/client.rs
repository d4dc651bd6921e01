//! HTTP client with pooled connections. Follows no redirect, decodes only gzip that was not allowed, and
//! never sends a request twice if the upstream may have acted on it.

use std::error::Error;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_LENGTH};
use http::{HeaderMap, Method, StatusCode};
use reqwest::redirect;
use tokio::time::{Instant, timeout_at};

use super::retry::{self, FailedAttempt, Failure, Tried};
use super::upload::{Upload, UploadError};
use super::{AnswerBody, Base, BaseError, Body, Target, tls};
use crate::config;

/// Sends requests to one upstream.
#[derive(Debug, Clone)]
pub struct Client {
    base: Arc<Base>,
    /// Reuses connections.
    pooled: reqwest::Client,
    /// Opens a new connection per request, for requests that failed on a pooled connection.
    unpooled: reqwest::Client,
    connect_timeout_ms: u64,
    first_byte_timeout_ms: u64,
    idle_timeout_ms: u64,
}

/// Reason why the client could not be created.
#[derive(Debug, thiserror::Error)]
#[error("{}", self.said("upstream"))]
pub enum ClientError {
    /// `upstream.url` cannot be used.
    Base(#[source] BaseError),
    /// TLS or the system's certificates could not be set up.
    Build(#[source] reqwest::Error),
    /// A TLS file has no usable content.
    Tls { key: &'static str, cause: &'static str },
}

impl ClientError {
    /// Describes the problem, with the key under `section` that caused it.
    pub fn said(&self, section: &str) -> String {
        match self {
            Self::Base(error) => format!("{section}.url: {error}"),
            Self::Build(error) => {
                format!("{section}: the client cannot be set up: {}", root_cause(error))
            }
            Self::Tls { key, cause } => format!("{section}.{key}: {cause}"),
        }
    }
}

/// Outgoing request; its headers are sent unchanged.
pub struct Outbound {
    pub method: Method,
    pub target: Target,
    pub headers: HeaderMap,
    pub body: OutboundBody,
}

/// Body of an outgoing request.
pub enum OutboundBody {
    Empty,
    Bytes(Bytes),
    Stream(Body),
}

/// Head of an answer, and its body as a stream.
pub struct Inbound {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: AnswerBody,
    /// Status that its error gives, if it failed before its first content.
    pub failed: Option<u16>,
    /// Latest time for its first content, and the limit that this follows from.
    pub(super) begins_by: Instant,
    pub(super) first_byte_timeout_ms: u64,
}

/// Reason why there is no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SendError {
    #[error("no connection to the upstream {origin}: {}", root_cause(&**source))]
    Connect { origin: String, source: Arc<reqwest::Error> },
    #[error(
        "no connection to the upstream {origin} within {timeout_ms} ms (upstream.timeouts_ms.connect)"
    )]
    ConnectTimeout { origin: String, timeout_ms: u64 },
    #[error(
        "the upstream did not begin to answer within {timeout_ms} ms (upstream.timeouts_ms.first_byte)"
    )]
    FirstByteTimeout { timeout_ms: u64 },
    /// An answer began, and nothing of it followed in time.
    #[error("the upstream sent nothing for {timeout_ms} ms (upstream.timeouts_ms.idle)")]
    Idle { timeout_ms: u64 },
    /// An answer ended before its first content, without an error for its caller.
    #[error("the upstream accepted the request, and its answer ended without content")]
    Empty,
    /// The connection closed before any part of an answer arrived.
    #[error(
        "the upstream closed the connection without an answer; the request may have been acted on, \
         so it was not sent again"
    )]
    Closed,
    /// The caller's own body broke off.
    #[error("the request's body broke off")]
    Upload,
    /// The upstream sent an answer that is not HTTP.
    #[error("the upstream's answer could not be read: {}", root_cause(&**source))]
    Protocol { source: Arc<dyn Error + Send + Sync> },
}

/// Selects ring for all TLS of this process. May be called any number of times.
pub fn install_tls_provider() {
    // An error means that a provider is already installed, which is sufficient.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

impl Client {
    /// Creates a client for the upstream in `config`.
    pub fn new(config: &config::Upstream) -> Result<Self, ClientError> {
        install_tls_provider();
        let base = Base::parse(&config.url).map_err(ClientError::Base)?;
        let build = |builder: reqwest::ClientBuilder| builder.build().map_err(ClientError::Build);
        Ok(Self {
            pooled: build(tls::apply(builder(&base, config), &config.tls)?)?,
            unpooled: build(
                tls::apply(builder(&base, config), &config.tls)?.pool_max_idle_per_host(0),
            )?,
            base: Arc::new(base),
            connect_timeout_ms: config.connect_timeout_ms,
            first_byte_timeout_ms: config.first_byte_timeout_ms,
            idle_timeout_ms: config.idle_timeout_ms,
        })
    }

    /// Base URL onto which targets are mapped.
    pub fn base(&self) -> &Base {
        &self.base
    }

    /// Sends a request and waits for the head of its answer. Dropping the future cancels it.
    pub async fn send(&self, outbound: Outbound) -> Result<Inbound, SendError> {
        let sending = Sending {
            url: outbound.target.url.clone(),
            method: outbound.method,
            headers: outbound.headers,
            body: match outbound.body {
                OutboundBody::Empty => Source::Bytes(Bytes::new()),
                OutboundBody::Bytes(bytes) => Source::Bytes(bytes),
                OutboundBody::Stream(body) => Source::Upload(Upload::new(body)),
            },
        };
        let new_connection = Arc::new(AtomicBool::new(false));
        let begun = Instant::now();
        let first =
            NEW_CONNECTION.scope(Arc::clone(&new_connection), self.attempt(&self.pooled, &sending));
        let error = match first.await {
            Ok(inbound) => return Ok(inbound),
            Err(error) => error,
        };
        let attempt = FailedAttempt {
            failure: error.failure(),
            new_connection: new_connection.load(Ordering::Relaxed),
            replayable: sending.is_replayable(),
            waited_ms: begun.elapsed().as_millis() as u64,
        };
        if retry::sends_again(attempt) {
            return self.attempt(&self.unpooled, &sending).await;
        }
        Err(error)
    }

    async fn attempt(
        &self,
        client: &reqwest::Client,
        sending: &Sending,
    ) -> Result<Inbound, SendError> {
        let begun = Instant::now();
        let answer = self
            .within_first_byte(client.execute(sending.request()), sending)
            .await?
            .map_err(|error| self.send_error(error))?;
        let (parts, body) = http::Response::<reqwest::Body>::from(answer).into_parts();
        if parts.status.is_informational() {
            // weir asks for no other protocol, so what follows would be no answer.
            let said = format!("status {} in place of an answer", parts.status.as_u16());
            let source = Box::<dyn Error + Send + Sync>::from(said).into();
            return Err(SendError::Protocol { source });
        }
        let mut inbound = Inbound {
            status: parts.status,
            headers: parts.headers,
            body: AnswerBody::new(body, Duration::from_millis(self.idle_timeout_ms)),
            failed: None,
            begins_by: sending.last_moved().map_or(begun, |moved| moved.max(begun))
                + Duration::from_millis(self.first_byte_timeout_ms),
            first_byte_timeout_ms: self.first_byte_timeout_ms,
        };
        if sending.headers.get(ACCEPT_ENCODING).is_some_and(|only| only == "identity") {
            inbound.unzip();
        }
        Ok(inbound)
    }

    /// Waits for the head of the answer. Each sent piece of a streamed body restarts the timeout: a
    /// long upload is not silence.
    async fn within_first_byte<T>(
        &self,
        head: impl Future<Output = T>,
        sending: &Sending,
    ) -> Result<T, SendError> {
        let timeout = Duration::from_millis(self.first_byte_timeout_ms);
        let mut head = pin!(head);
        let mut deadline = Instant::now() + timeout;
        loop {
            if let Ok(head) = timeout_at(deadline, &mut head).await {
                return Ok(head);
            }
            match sending.last_moved() {
                Some(moved) if moved + timeout > deadline => deadline = moved + timeout,
                _ => {
                    return Err(SendError::FirstByteTimeout {
                        timeout_ms: self.first_byte_timeout_ms,
                    });
                }
            }
        }
    }

    fn send_error(&self, error: reqwest::Error) -> SendError {
        let origin = self.base.origin().to_owned();
        if error.is_connect() && error.is_timeout() {
            return SendError::ConnectTimeout { origin, timeout_ms: self.connect_timeout_ms };
        }
        if error.is_connect() {
            return SendError::Connect { origin, source: Arc::new(error) };
        }
        if sources(&error).any(|source| source.is::<UploadError>()) {
            return SendError::Upload;
        }
        if sources(&error).any(is_closed) {
            return SendError::Closed;
        }
        SendError::Protocol { source: Arc::new(error) }
    }
}

/// Request that may have to be sent a second time.
struct Sending {
    method: Method,
    url: reqwest::Url,
    headers: HeaderMap,
    body: Source,
}

enum Source {
    Bytes(Bytes),
    Upload(Upload),
}

impl Sending {
    /// Builds the request from its first byte. Copies share the body's bytes.
    fn request(&self) -> reqwest::Request {
        let mut request = reqwest::Request::new(self.method.clone(), self.url.clone());
        *request.headers_mut() = self.headers.clone();
        match &self.body {
            Source::Bytes(bytes) if bytes.is_empty() => {}
            Source::Bytes(bytes) => *request.body_mut() = Some(bytes.clone().into()),
            Source::Upload(upload) => {
                if let Some(length) = upload.length_bytes {
                    request.headers_mut().insert(CONTENT_LENGTH, length.into());
                }
                *request.body_mut() = Some(upload.send());
            }
        }
        request
    }

    fn is_replayable(&self) -> bool {
        match &self.body {
            Source::Bytes(_) => true,
            Source::Upload(upload) => upload.is_replayable(),
        }
    }

    fn last_moved(&self) -> Option<Instant> {
        match &self.body {
            Source::Bytes(_) => None,
            Source::Upload(upload) => Some(upload.last_moved()),
        }
    }
}

impl SendError {
    /// Returns how the request came back, if it left for the upstream.
    pub fn tried(&self) -> Option<Tried> {
        match self {
            Self::Connect { .. } | Self::ConnectTimeout { .. } => Some(Tried::Unconnected),
            Self::Closed | Self::Protocol { .. } => Some(Tried::Unanswered),
            Self::FirstByteTimeout { .. } | Self::Idle { .. } => Some(Tried::Silent),
            // As if it had said that it is overloaded.
            Self::Empty => Some(Tried::Status(529)),
            Self::Upload => None,
        }
    }

    fn failure(&self) -> Failure {
        match self {
            Self::Closed => Failure::Closed,
            Self::Connect { .. } | Self::ConnectTimeout { .. } => Failure::Connect,
            _ => Failure::Other,
        }
    }
}

fn builder(base: &Base, config: &config::Upstream) -> reqwest::ClientBuilder {
    let builder = reqwest::Client::builder()
        .connect_timeout(Duration::from_millis(config.connect_timeout_ms))
        .redirect(redirect::Policy::none())
        .referer(false)
        .tcp_nodelay(true)
        .connector_layer(MarkLayer);
    if !base.is_loopback() {
        return builder;
    }
    // A proxy from the environment is meant for other hosts, but NO_PROXY rarely lists this
    // machine's own ports.
    let builder = builder.no_proxy();
    if base.is_plain() {
        // Without TLS there is nothing to verify, so a machine without certificates works, too.
        return builder.tls_certs_only([]);
    }
    builder
}

tokio::task_local! {
    /// Set if a connection is opened for the request that this task waits for.
    static NEW_CONNECTION: Arc<AtomicBool>;
}

/// Records whether a request got a new connection rather than a pooled one.
#[derive(Clone)]
struct MarkLayer;

impl<S> tower::Layer<S> for MarkLayer {
    type Service = Mark<S>;

    fn layer(&self, inner: S) -> Mark<S> {
        Mark { inner }
    }
}

#[derive(Clone)]
struct Mark<S> {
    inner: S,
}

impl<S, R> tower::Service<R> for Mark<S>
where
    S: tower::Service<R>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, destination: R) -> S::Future {
        // Outside a request there is nothing to mark.
        let _ = NEW_CONNECTION.try_with(|mark| mark.store(true, Ordering::Relaxed));
        self.inner.call(destination)
    }
}

/// Whether an error means that the connection closed.
fn is_closed(error: &(dyn Error + 'static)) -> bool {
    if let Some(error) = error.downcast_ref::<hyper::Error>() {
        return error.is_incomplete_message() || error.is_closed() || error.is_canceled();
    }
    error.downcast_ref::<io::Error>().is_some_and(|error| {
        matches!(
            error.kind(),
            io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::BrokenPipe
                | io::ErrorKind::NotConnected
                | io::ErrorKind::UnexpectedEof
        )
    })
}

fn sources<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// Returns the innermost cause; outer ones repeat the URL or add nothing.
pub(super) fn root_cause(error: &(dyn Error + 'static)) -> String {
    sources(error).last().map_or_else(String::new, ToString::to_string)
}
