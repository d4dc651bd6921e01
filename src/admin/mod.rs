//! Admin API and dashboard over HTTP: their own listener, protected by a token or by a session of
//! the dashboard. Reads requests and renders answers; the store and the proxy do the work.

mod api;
mod assets;
mod inspect;
mod live;
mod organization;
mod session;
mod status;
mod token;
mod usage;

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderName, HeaderValue, ORIGIN,
    RETRY_AFTER, SET_COOKIE, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use http_body::Body as HttpBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use jiff::tz::TimeZone;
use parking_lot::RwLock;
use serde::Deserialize;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Instant;

pub use status::{InForce, Reloaded};
pub use token::{Token, for_metrics, keep_apart, keep_for_metrics, load_or_make, random_secret};

use crate::config::{Catalogue, Config, Policies, Routes};
use crate::proxy::BoxError;
use crate::proxy::admit::host::Hosts;
use crate::proxy::{Proxy, metrics};
use crate::tls::{Entered, GivesWay, HTTP1, OpenConnections, Stream, Tls, TlsError};
use session::{LoginAttempt, Sessions};
use weir_store::Store;

/// Path of the metrics page for scrapers.
const METRICS: &str = "/metrics";
/// Paths that begin, show and end a session of the dashboard.
const LOGIN: &str = "/login";
const LOGOUT: &str = "/logout";
/// Header of the dashboard's requests that change something; pages of other origins cannot send it.
const CSRF: &str = "x-weir-csrf";
/// Header in which browsers state whether a request comes from a page of the same origin.
const FETCH_SITE: &str = "sec-fetch-site";
/// Maximum size of a request body.
const MAX_BODY_BYTES: usize = 64 << 10;
const MAX_HEAD_BYTES: usize = 16 << 10;
/// Maximum time for a request's head and body.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum number of simultaneous connections. One more ends the oldest without a request, or waits in the
/// system's queue.
const MAX_CONNECTIONS: usize = 64;
/// Maximum number of simultaneous connections of one address. One more ends the oldest without a request, or is
/// closed at once.
const MAX_CONNECTIONS_OF_ADDRESS: usize = 32;
/// Age at which a connection ends after its current request, so that a caller that reads nothing keeps
/// no place.
const MAX_AGE: Duration = Duration::from_secs(60);
/// Time for that request; an inspection takes up to 30 seconds.
const LAST_REQUEST: Duration = Duration::from_secs(40);
/// Pause if the system cannot supply a connection, and grace period for open requests at shutdown.
const PAUSE: Duration = Duration::from_millis(100);
const FAREWELL: Duration = Duration::from_secs(2);

/// Admin API, bound to its address.
pub struct Admin {
    listener: TcpListener,
    address: SocketAddr,
    /// `None` if the listener speaks plain HTTP.
    tls: Option<Tls>,
    shared: Arc<AdminState>,
}

/// Returns the proxy that is in force.
type ProxySource = Box<dyn Fn() -> Arc<Proxy> + Send + Sync>;

/// State shared by all requests.
struct AdminState {
    store: Store,
    time_zone: TimeZone,
    token: Token,
    sessions: Sessions,
    /// Proxy whose metrics are shown; set once it exists.
    proxy: OnceLock<ProxySource>,
    /// Rules for new requests.
    rules: RwLock<Arc<Rules>>,
    /// Facts of the process for the status.
    in_force: RwLock<InForce>,
}

/// Settings that a reload can change.
struct Rules {
    policies: Policies,
    models: Catalogue,
    routes: Routes,
    hosts: Hosts,
}

impl Rules {
    fn new(config: &Config) -> Self {
        Self {
            policies: config.context.policies.clone(),
            models: config.models.clone(),
            routes: config.routes.clone(),
            hosts: Hosts::new(&config.server.allowed_hosts),
        }
    }
}

/// Handle that applies other configurations while the admin API serves.
#[derive(Clone)]
pub struct AdminRenewal {
    tls: Option<Tls>,
    shared: Arc<AdminState>,
}

impl AdminRenewal {
    /// Shows other facts in the status.
    pub fn note(&self, change: impl FnOnce(&mut InForce)) {
        change(&mut self.shared.in_force.write());
    }

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
            *shared.rules.write() = rules;
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
        let shared = Arc::new(AdminState {
            store,
            time_zone: config.budgets.time_zone.clone(),
            token,
            sessions: Sessions::new(address.port(), tls.is_some()),
            proxy: OnceLock::new(),
            rules: RwLock::new(Arc::new(Rules::new(config))),
            in_force: RwLock::default(),
        });
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

    /// Creates a code that logs a browser in once, within two minutes.
    pub fn login_code(&self) -> io::Result<String> {
        self.shared.sessions.code(Instant::now())
    }

    /// Returns a handle that applies other configurations.
    pub fn renewal(&self) -> AdminRenewal {
        AdminRenewal { tls: self.tls.clone(), shared: Arc::clone(&self.shared) }
    }

    /// Serves until `ended`, then gives open requests a short grace period.
    pub async fn run(self, ended: impl Future<Output = ()>) {
        let mut ended = pin!(ended);
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let peers: Arc<OpenConnections<OpenConnection>> = Arc::default();
        let mut open = JoinSet::new();
        loop {
            if places.available_permits() == 0 {
                peers.release(|_| true);
            }
            let accept = async {
                let place = Arc::clone(&places).acquire_owned().await;
                self.listener.accept().await.map(|(stream, peer)| (stream, peer, place))
            };
            let (stream, peer, place) = tokio::select! {
                biased;
                () = &mut ended => break,
                accepted = accept => match accepted {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        tracing::warn!(target: "weir::admin", %error, "cannot take a connection");
                        tokio::time::sleep(PAUSE).await;
                        continue;
                    }
                },
            };
            // Few addresses are open at once, so a search is cheap.
            let Some(share) = AddressShare::of(&peers, peer.ip()) else { continue };
            let (shared, tls) = (Arc::clone(&self.shared), self.tls.clone());
            open.spawn(async move {
                if let Some(stream) = opened(tls, stream).await {
                    serve(shared, stream, &share.open).await;
                }
                drop((place, share));
            });
            while open.try_join_next().is_some() {}
        }
        let finished = async { while open.join_next().await.is_some() {} };
        // After the grace period only idle connections remain.
        let _ = tokio::time::timeout(FAREWELL, finished).await;
    }
}

/// Connection with its address, whether it has a request, and the sign to leave.
#[derive(Debug)]
struct OpenConnection {
    peer: IpAddr,
    began: Instant,
    is_busy: AtomicBool,
    leaves: Notify,
}

impl GivesWay for OpenConnection {
    fn idle_since(&self) -> Option<Instant> {
        (!self.is_busy.load(Ordering::Acquire)).then_some(self.began)
    }

    fn leave(&self) {
        self.leaves.notify_one();
    }
}

/// A connection's share of those of its address, released on drop.
struct AddressShare {
    open: Arc<OpenConnection>,
    _entered: Entered<OpenConnection>,
}

impl AddressShare {
    /// Counts a connection of `peer`; `None` if it has enough, all with requests.
    fn of(peers: &Arc<OpenConnections<OpenConnection>>, peer: IpAddr) -> Option<Self> {
        let is_own = |own: &OpenConnection| own.peer == peer;
        if peers.count(is_own) >= MAX_CONNECTIONS_OF_ADDRESS {
            peers.release(is_own)?;
        }
        let (began, is_busy, leaves) = (Instant::now(), AtomicBool::new(false), Notify::new());
        let open = Arc::new(OpenConnection { peer, began, is_busy, leaves });
        Some(Self { _entered: peers.enter(Arc::clone(&open)), open })
    }
}

/// Answers the requests of a connection, up to its maximum age.
async fn serve(shared: Arc<AdminState>, stream: Stream, open: &OpenConnection) {
    let service = service_fn(|request| {
        let shared = Arc::clone(&shared);
        async move {
            open.is_busy.store(true, Ordering::Release);
            let answer = shared.answer(request, open.peer).await;
            open.is_busy.store(false, Ordering::Release);
            Ok::<_, Infallible>(answer)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let served = tokio::select! {
        served = &mut connection => Some(served),
        () = tokio::time::sleep(MAX_AGE) => {
            connection.as_mut().graceful_shutdown();
            tokio::time::timeout(LAST_REQUEST, connection).await.ok()
        }
        () = open.leaves.notified() => Some(Ok(())),
    };
    match served {
        Some(Ok(())) => {}
        Some(Err(error)) => tracing::debug!(target: "weir::admin", %error, "connection ended"),
        None => tracing::debug!(target: "weir::admin", "a connection read nothing and was closed"),
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
    /// Time to wait before the next attempt.
    retry: Option<Duration>,
}

impl Refusal {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), allowed: None, retry: None }
    }

    /// Creates the refusal of a method on a path that allows only `allowed`.
    fn method(allowed: &'static str) -> Self {
        let message = format!("This path does not support this method; it allows {allowed}.");
        let refusal = Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message);
        Self { allowed: Some(allowed), ..refusal }
    }
}

/// Creates the refusal of an invalid request.
fn refused(message: impl Into<String>) -> Refusal {
    Refusal::new(StatusCode::BAD_REQUEST, "invalid_request", message)
}

/// Body of a login: the admin token, or a one-time code.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Login {
    token: Option<String>,
    code: Option<String>,
}

impl AdminState {
    async fn answer(&self, request: Request<Incoming>, peer: IpAddr) -> Response<Full<Bytes>> {
        let mut response = match self.admitted(request, peer).await {
            Ok(response) => response,
            Err(refusal) => {
                let Refusal { status, code, message, allowed, retry } = refusal;
                tracing::info!(target: "weir::admin", status = status.as_u16(), code, "refused");
                let error = serde_json::json!({"error": {"message": message, "code": code}});
                let mut response = reply(status, error.to_string());
                let headers = response.headers_mut();
                if let Some(allowed) = allowed {
                    headers.insert(ALLOW, HeaderValue::from_static(allowed));
                }
                if let Some(retry) = retry {
                    headers.insert(RETRY_AFTER, HeaderValue::from(retry.as_secs() + 1));
                }
                if status == StatusCode::UNAUTHORIZED {
                    headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
                }
                response
            }
        };
        let headers = response.headers_mut();
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        let resource = HeaderName::from_static("cross-origin-resource-policy");
        headers.insert(resource, HeaderValue::from_static("same-origin"));
        response
    }

    /// Serves the dashboard's files and logins to anybody, and authenticates the caller of anything
    /// else before it reads more of the request.
    async fn admitted(
        &self,
        request: Request<Incoming>,
        peer: IpAddr,
    ) -> Result<Response<Full<Bytes>>, Refusal> {
        let (parts, body) = request.into_parts();
        self.rules().hosts.check(parts.version, &parts.uri, &parts.headers).map_err(|error| {
            Refusal::new(StatusCode::FORBIDDEN, "host_not_allowed", error.message)
        })?;
        let is_read = matches!(parts.method, Method::GET | Method::HEAD);
        let is_same_origin = check_origin(&parts)?;
        if is_read && let Some(file) = assets::asset(parts.uri.path(), &parts.headers) {
            return Ok(file);
        }
        match parts.uri.path() {
            LOGIN => return self.login(&parts, body, peer).await,
            LOGOUT => return self.logout(&parts),
            _ => {}
        }
        let given = bearer(&parts.headers);
        let is_page = is_read && parts.uri.path() == METRICS;
        let is_scraper = is_page && given.is_some_and(|given| self.token.is_of_metrics(given));
        if !is_scraper && !given.is_some_and(|given| self.token.is(given)) {
            if !self.sessions.is_of_one(&parts.headers, Instant::now()) {
                let message = "The admin API needs its token: 'Authorization: Bearer TOKEN'. weir \
                               printed it when it first started, and keeps it in \
                               admin.token_file. In a browser, log in at /.";
                return Err(Refusal::new(StatusCode::UNAUTHORIZED, "invalid_token", message));
            }
            check_page(&parts.headers, is_read, is_same_origin)?;
        }
        let max_bytes = match parts.uri.path() {
            inspect::PATH => inspect::MAX_BODY_BYTES,
            _ => MAX_BODY_BYTES,
        };
        let body = read_body(body, max_bytes, PATIENCE).await?;
        let (status, page) = self.act(&parts.method, &parts.uri, &body).await?;
        let mut response = reply(status, page);
        if parts.uri.path() == METRICS {
            let kind = HeaderValue::from_static(metrics::CONTENT_TYPE);
            response.headers_mut().insert(CONTENT_TYPE, kind);
        }
        Ok(response)
    }

    /// Reports whether the browser has a session, or begins one.
    async fn login(
        &self,
        parts: &Parts,
        body: Incoming,
        peer: IpAddr,
    ) -> Result<Response<Full<Bytes>>, Refusal> {
        match parts.method {
            Method::GET => {
                let is_signed_in = self.sessions.is_of_one(&parts.headers, Instant::now());
                return Ok(session(is_signed_in));
            }
            Method::POST => {}
            _ => return Err(Refusal::method("GET, POST")),
        }
        let body = read_body(body, MAX_BODY_BYTES, PATIENCE).await?;
        let login: Login = serde_json::from_slice(&body)
            .map_err(|_| refused("A login is {\"token\": \"…\"} or {\"code\": \"…\"}."))?;
        let now = Instant::now();
        let is_right = match (&login.token, &login.code) {
            (Some(token), None) => self.token.is(token.trim()),
            (None, Some(code)) => self.sessions.redeem(code, now),
            _ => false,
        };
        match self.sessions.attempt(peer, now, is_right) {
            LoginAttempt::Granted => {}
            LoginAttempt::Refused if login.code.is_some() => {
                let message = "This link has been used or is older than two minutes. Log in with \
                               the token, or restart `weir serve --open` for another link.";
                return Err(Refusal::new(StatusCode::UNAUTHORIZED, "invalid_code", message));
            }
            LoginAttempt::Refused => {
                let message = "This is not the token. weir keeps it in the file admin.token next \
                               to its store, or in admin.token_file.";
                return Err(Refusal::new(StatusCode::UNAUTHORIZED, "invalid_token", message));
            }
            LoginAttempt::TooMany(wait) => {
                let message = "Too many logins failed, and this one is wrong, too. Wait a minute, then try again.";
                let status = StatusCode::TOO_MANY_REQUESTS;
                let refusal = Refusal::new(status, "too_many_attempts", message);
                return Err(Refusal { retry: Some(wait), ..refusal });
            }
        }
        let cookie = self.sessions.begin(now).map_err(|error| {
            Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "no_session", error.to_string())
        })?;
        tracing::info!(target: "weir::admin", address = %peer, "logged in to the dashboard");
        with_cookie(session(true), &cookie)
    }

    /// Ends the session of a browser.
    fn logout(&self, parts: &Parts) -> Result<Response<Full<Bytes>>, Refusal> {
        if parts.method != Method::POST {
            return Err(Refusal::method("POST"));
        }
        if parts.headers.get(CSRF).is_none_or(|value| value != "1") {
            return Err(foreign());
        }
        with_cookie(session(false), &self.sessions.end(&parts.headers))
    }

    /// Returns the rules for new requests.
    fn rules(&self) -> Arc<Rules> {
        Arc::clone(&self.rules.read())
    }
}

/// Returns the token of a request that has one.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (scheme, token) = values.next()?.to_str().ok()?.split_once(' ')?;
    let is_one = values.next().is_none() && scheme.eq_ignore_ascii_case("bearer");
    is_one.then(|| token.trim())
}

/// Refuses requests of web pages of other origins. Returns whether the request names its origin.
fn check_origin(parts: &Parts) -> Result<bool, Refusal> {
    let mut origins = parts.headers.get_all(ORIGIN).iter();
    let Some(origin) = origins.next() else { return Ok(false) };
    let host = host(&parts.headers, &parts.uri);
    let named = origin.to_str().ok().and_then(|text| text.split_once("://"));
    let is_same = named.zip(host).is_some_and(|((scheme, authority), host)| {
        matches!(scheme, "http" | "https") && authority.eq_ignore_ascii_case(host)
    });
    if is_same && origins.next().is_none() {
        return Ok(true);
    }
    let message = "Web pages of other origins may not use the admin API.";
    Err(Refusal::new(StatusCode::FORBIDDEN, "origin_not_allowed", message))
}

/// Returns the host name and port that a request was sent to, as its client knows them.
fn host<'a>(headers: &'a HeaderMap, uri: &'a Uri) -> Option<&'a str> {
    let named = headers.get(HOST).and_then(|value| value.to_str().ok());
    named.or_else(|| uri.authority().map(http::uri::Authority::as_str))
}

/// Checks that a request with a session comes from the dashboard's own pages. Servers on other
/// ports of the same host get the same cookies, so the cookie alone does not show that.
fn check_page(headers: &HeaderMap, is_read: bool, is_same_origin: bool) -> Result<(), Refusal> {
    let site = headers.get(FETCH_SITE).map(HeaderValue::as_bytes);
    let is_foreign = site.is_some_and(|site| site != b"same-origin" && site != b"none");
    let is_marked = is_same_origin && headers.get(CSRF).is_some_and(|value| value == "1");
    if is_foreign || !(is_read || is_marked) { Err(foreign()) } else { Ok(()) }
}

/// Creates the refusal of a request that another page may have made.
fn foreign() -> Refusal {
    let message = "With a session of the dashboard, requests come from its own pages: those that \
                   change something carry 'x-weir-csrf: 1' and an Origin equal to their Host. \
                   Programs use 'Authorization: Bearer TOKEN'.";
    Refusal::new(StatusCode::FORBIDDEN, "csrf", message)
}

/// Reads a body of at most `max_bytes` that ends within `patience`.
async fn read_body<B>(body: B, max_bytes: usize, patience: Duration) -> Result<Bytes, Refusal>
where
    B: HttpBody,
    B::Error: Into<BoxError>,
{
    let collected = Limited::new(body, max_bytes).collect();
    match tokio::time::timeout(patience, collected).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(_)) => {
            Err(refused(format!("The body must be complete and have at most {max_bytes} bytes.")))
        }
        Err(_) => {
            let message = format!(
                "The body did not arrive within {} seconds. Send it again over a faster connection, or \
                 send less.",
                patience.as_secs()
            );
            Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message))
        }
    }
}

/// Reports whether the browser has a session.
fn session(is_signed_in: bool) -> Response<Full<Bytes>> {
    let json = serde_json::json!({"object": "session", "signed_in": is_signed_in});
    reply(StatusCode::OK, json.to_string())
}

fn with_cookie(
    mut response: Response<Full<Bytes>>,
    cookie: &str,
) -> Result<Response<Full<Bytes>>, Refusal> {
    let value = HeaderValue::try_from(cookie).map_err(|error| {
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "no_session", error.to_string())
    })?;
    response.headers_mut().insert(SET_COOKIE, value);
    Ok(response)
}

fn reply(status: StatusCode, json: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(json.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use http_body::Frame;

    use super::*;

    /// Body that sends nothing and does not end.
    struct Silent;

    impl HttpBody for Silent {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Pending
        }
    }

    #[tokio::test]
    async fn a_slow_body_is_not_called_a_wrong_one() {
        let refusal = read_body(Silent, 100, Duration::ZERO).await.expect_err("it does not end");
        assert_eq!((refusal.status, refusal.code), (StatusCode::REQUEST_TIMEOUT, "body_timeout"));
        assert!(refusal.message.contains("did not arrive within"), "{}", refusal.message);
        for (max_bytes, expected) in [(1, None), (2, Some("{}"))] {
            let body = Full::new(Bytes::from_static(b"{}"));
            match read_body(body, max_bytes, PATIENCE).await {
                Ok(read) => assert_eq!(Some(&read[..]), expected.map(str::as_bytes)),
                Err(refusal) => {
                    let found = (refusal.status, expected);
                    assert_eq!(found, (StatusCode::BAD_REQUEST, None), "{}", refusal.message);
                }
            }
        }
    }
}
