//! Admin API over HTTP: manages virtual keys on its own listener, protected by a token. Reads
//! requests and renders answers; `store::keys` does the work.

mod api;
mod token;

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, ORIGIN, WWW_AUTHENTICATE,
};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use jiff::tz::TimeZone;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

pub use token::{Token, load_or_make};

use crate::config::{Config, Policies};
use crate::proxy::admit::host::Hosts;
use crate::proxy::{Proxy, metrics};
use crate::tls::{HTTP1, Stream, Tls, TlsError};
use weir_store::Store;

/// Path of the metrics page for scrapers.
const METRICS: &str = "/metrics";
/// Maximum size of a request body.
const MAX_BODY_BYTES: usize = 64 << 10;
const MAX_HEAD_BYTES: usize = 16 << 10;
/// Maximum time for a request's head and body.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum number of simultaneous connections; others wait in the system's queue.
const MAX_CONNECTIONS: usize = 64;
/// Pause if the system cannot supply a connection, and grace period for open requests at shutdown.
const PAUSE: Duration = Duration::from_millis(100);
const FAREWELL: Duration = Duration::from_secs(2);

/// Admin API, bound to its address.
pub struct Admin {
    listener: TcpListener,
    address: SocketAddr,
    /// `None` if the listener speaks plain HTTP.
    tls: Option<Tls>,
    shared: Arc<Shared>,
}

/// Returns the proxy that is in force.
type ProxySource = Box<dyn Fn() -> Arc<Proxy> + Send + Sync>;

/// State shared by all requests.
struct Shared {
    store: Store,
    time_zone: TimeZone,
    token: Token,
    /// Proxy whose metrics are shown; set once it exists.
    proxy: OnceLock<ProxySource>,
    /// Rules for new requests.
    rules: RwLock<Arc<Rules>>,
}

/// Settings that a reload can change.
struct Rules {
    policies: Policies,
    hosts: Hosts,
}

impl Rules {
    fn new(config: &Config) -> Self {
        Self {
            policies: config.context.policies.clone(),
            hosts: Hosts::new(&config.server.allowed_hosts),
        }
    }
}

/// Handle that applies other configurations while the admin API serves.
#[derive(Clone)]
pub struct AdminRenewal {
    tls: Option<Tls>,
    shared: Arc<Shared>,
}

impl AdminRenewal {
    /// Prepares `config` for new requests and its certificate for new connections. Nothing changes
    /// until the returned function is called.
    pub fn prepare(&self, config: &Config) -> Result<impl FnOnce() + use<>, TlsError> {
        let tls = self.tls.clone().map(|tls| tls.prepare(&config.admin.tls).map(|new| (tls, new)));
        let tls = tls.transpose()?;
        let (shared, rules) = (Arc::clone(&self.shared), Arc::new(Rules::new(config)));
        Ok(move || {
            if let Some((tls, new)) = tls {
                tls.replace(new);
            }
            *shared.rules.write().unwrap_or_else(PoisonError::into_inner) = rules;
        })
    }
}

impl Admin {
    /// Binds to `address` and manages the keys in `store` for holders of `token`.
    pub async fn bind(
        address: SocketAddr,
        config: &Config,
        store: Store,
        token: Token,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let tls = Tls::new(&config.admin.tls, HTTP1)
            .map_err(|error| io::Error::other(format!("admin.tls.{error}")))?;
        let time_zone = config.budgets.time_zone.clone();
        let rules = RwLock::new(Arc::new(Rules::new(config)));
        let proxy = OnceLock::new();
        let shared = Arc::new(Shared { store, time_zone, token, proxy, rules });
        Ok(Self { listener, address, tls, shared })
    }

    /// Shows the metrics of the proxy that `proxy` returns.
    pub fn show_metrics(&self, proxy: impl Fn() -> Arc<Proxy> + Send + Sync + 'static) {
        // Only the first call has an effect.
        let _ = self.shared.proxy.set(Box::new(proxy));
    }

    /// Returns the listen address, with the port that the system assigned.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns a handle that applies other configurations.
    pub fn renewal(&self) -> AdminRenewal {
        AdminRenewal { tls: self.tls.clone(), shared: Arc::clone(&self.shared) }
    }

    /// Serves until `ended`, then gives open requests a short grace period.
    pub async fn run(self, ended: impl Future<Output = ()>) {
        let mut ended = pin!(ended);
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let mut open = JoinSet::new();
        loop {
            let place = places.clone().acquire_owned().await;
            let stream = tokio::select! {
                biased;
                () = &mut ended => break,
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => stream,
                    Err(error) => {
                        tracing::warn!(target: "weir::admin", %error, "cannot take a connection");
                        tokio::time::sleep(PAUSE).await;
                        continue;
                    }
                },
            };
            let (shared, tls) = (Arc::clone(&self.shared), self.tls.clone());
            open.spawn(async move {
                let Some(stream) = opened(tls, stream).await else { return };
                let service = service_fn(|request| {
                    let shared = Arc::clone(&shared);
                    async move { Ok::<_, Infallible>(shared.answer(request).await) }
                });
                let served = http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(PATIENCE)
                    .max_buf_size(MAX_HEAD_BYTES)
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
                if let Err(error) = served {
                    tracing::debug!(target: "weir::admin", %error, "connection ended");
                }
                drop(place);
            });
            while open.try_join_next().is_some() {}
        }
        let finished = async { while open.join_next().await.is_some() {} };
        // After the grace period only idle connections remain.
        let _ = tokio::time::timeout(FAREWELL, finished).await;
    }
}

/// Completes TLS on a connection, if the listener uses it.
async fn opened(tls: Option<Tls>, stream: TcpStream) -> Option<Stream> {
    let Some(tls) = tls else { return Some(Stream::Plain(stream)) };
    match tokio::time::timeout(PATIENCE, tls.accept(stream)).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(target: "weir::admin", %error, "no TLS on a connection");
            None
        }
        Err(_) => None,
    }
}

/// Error answer: status, code, message.
#[derive(Debug)]
struct Refusal {
    status: StatusCode,
    code: &'static str,
    message: String,
    /// Methods that the path allows, if the request had another.
    allowed: Option<&'static str>,
}

impl Refusal {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), allowed: None }
    }

    /// Creates the refusal of a method on a path that allows only `allowed`.
    fn method(allowed: &'static str) -> Self {
        let message = format!("This path does not support this method; it allows {allowed}.");
        let refusal = Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message);
        Self { allowed: Some(allowed), ..refusal }
    }
}

impl Shared {
    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let is_metrics = request.uri().path() == METRICS;
        match self.admitted(request).await {
            Ok((status, page)) if is_metrics => {
                let mut response = reply(status, page);
                let kind = HeaderValue::from_static(metrics::CONTENT_TYPE);
                response.headers_mut().insert(CONTENT_TYPE, kind);
                response
            }
            Ok((status, json)) => reply(status, json),
            Err(refusal) => {
                let Refusal { status, code, message, allowed } = refusal;
                tracing::info!(target: "weir::admin", status = status.as_u16(), code, "refused");
                let error = serde_json::json!({"error": {"message": message, "code": code}});
                let mut response = reply(status, error.to_string());
                if let Some(allowed) = allowed {
                    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
                }
                if status == StatusCode::UNAUTHORIZED {
                    let bearer = HeaderValue::from_static("Bearer");
                    response.headers_mut().insert(WWW_AUTHENTICATE, bearer);
                }
                response
            }
        }
    }

    /// Authenticates the caller before it reads anything else of the request.
    async fn admitted(&self, request: Request<Incoming>) -> Result<(StatusCode, String), Refusal> {
        let (parts, body) = request.into_parts();
        self.rules().hosts.check(parts.version, &parts.uri, &parts.headers).map_err(|error| {
            Refusal::new(StatusCode::FORBIDDEN, "host_not_allowed", error.message)
        })?;
        if parts.headers.contains_key(ORIGIN) {
            let message = "Web pages may not use the admin API.";
            return Err(Refusal::new(StatusCode::FORBIDDEN, "origin_not_allowed", message));
        }
        if !self.is_authorized(&parts.headers) {
            let message = "The admin API needs its token: 'Authorization: Bearer TOKEN'. weir \
                           printed it when it first started, and keeps it in admin.token_file.";
            return Err(Refusal::new(StatusCode::UNAUTHORIZED, "invalid_token", message));
        }
        let collected = Limited::new(body, MAX_BODY_BYTES).collect();
        let body = match tokio::time::timeout(PATIENCE, collected).await {
            Ok(Ok(body)) => body.to_bytes(),
            _ => {
                let message =
                    format!("The body must be complete and have at most {MAX_BODY_BYTES} bytes.");
                return Err(Refusal::new(StatusCode::BAD_REQUEST, "invalid_request", message));
            }
        };
        self.act(&parts.method, &parts.uri, &body).await
    }

    /// Returns the rules for new requests.
    fn rules(&self) -> Arc<Rules> {
        Arc::clone(&self.rules.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn is_authorized(&self, headers: &HeaderMap) -> bool {
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let value = values.next().and_then(|value| value.to_str().ok());
        let token = value.and_then(|value| value.split_once(' '));
        let is_one = values.next().is_none();
        token.is_some_and(|(scheme, token)| {
            is_one && scheme.eq_ignore_ascii_case("bearer") && self.token.is(token.trim())
        })
    }
}

fn reply(status: StatusCode, json: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(json.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
