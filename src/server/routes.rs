//! Routing of a request: weir's own pages, the proxy, or an error. Reads no body and opens no
//! connection; `reply` renders its errors.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue, UPGRADE, VARY,
};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode, Uri};
use parking_lot::Mutex;

use super::accept::{Acceptor, Received};
use super::auth::{Auth, is_secret_in};
use super::body::{Bodies, BodyTimes};
use super::preflight::{is_preflight, preflight};
use super::reply::{self, Shape};
use super::shutdown::{Phase, Shutdown};
use crate::config::Config;
use crate::proxy::admit::host::{Hosts, Origins, check_framing};
use crate::proxy::{
    Admission, Asked, Body, Caller, ChatRequest, ErrorKind, MAX_LOGGED_BYTES, Pass, PassBody,
    Proxy, ProxyError, RequestOptions, RequestedModel, SpendQuery,
};
use crate::upstream::{Endpoint, Route, Target, TargetError};
use weir_engine::wire::Protocol;

/// Path of the metrics page for scrapers.
const METRICS: &str = "/metrics";
/// Paths of weir's own pages for callers, up to a name behind them.
const PAGES: [(&str, Page); 7] = [
    ("/weir/v1/originals/", Page::Original),
    ("/weir/v1/receipts/", Page::Receipt),
    ("/weir/v1/conversations", Page::Conversations),
    ("/weir/v1/usage", Page::Usage),
    ("/weir/v1/budgets", Page::Budgets),
    ("/weir/v1/plan", Page::Plan),
    ("/weir/v1/compaction", Page::Compaction),
];
/// Names of protocols in a plan's query, and the path that each is planned for.
const PLANNED_PATHS: [(&str, Protocol, &str); 3] = [
    ("chat", Protocol::Chat, "/v1/chat/completions"),
    ("responses", Protocol::Responses, "/v1/responses"),
    ("messages", Protocol::Messages, "/v1/messages"),
];
/// Methods that are answered or forwarded.
const FORWARDED: [Method; 7] = [
    Method::GET,
    Method::HEAD,
    Method::POST,
    Method::PUT,
    Method::PATCH,
    Method::DELETE,
    Method::OPTIONS,
];

/// Refusal of a request without the entrance of `weir run`.
const OUTSIDE: &str = "This weir serves the command that `weir run` runs, and nobody else. The command has the \
    whole address in OPENAI_BASE_URL and ANTHROPIC_BASE_URL.";

/// Address of a request's client, as determined by its connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Address(pub IpAddr);

/// Answers requests.
pub(super) struct ServedRoutes {
    pub(super) proxy: Arc<Proxy>,
    pub(super) acceptor: Acceptor,
    hosts: Hosts,
    origins: Origins,
    /// Hash of the first segment that paths have to have.
    entrance: Option<blake3::Hash>,
    last_target: LastTarget,
    pub(super) body_times: BodyTimes,
    state: RoutesState,
}

/// State that a reload keeps: known callers, and the memory held by bodies.
#[derive(Clone)]
pub(super) struct RoutesState {
    auth: Arc<Auth>,
    bodies: Bodies,
    shutdown: Shutdown,
    /// Whether the last configuration was refused.
    is_refused: Arc<AtomicBool>,
}

/// The last requested path and its target. Its length is bounded, as a request's head is.
type LastTarget = Mutex<Option<Arc<(String, Target)>>>;

/// Page of weir's own for a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Page {
    /// The original of a reference.
    Original,
    /// Receipt of a compaction, by the ID of its request.
    Receipt,
    /// The caller's kept conversations, to read or to change.
    Conversations,
    Usage,
    Budgets,
    /// The plan for this request, which is not sent.
    Plan,
    /// What a compaction item stands for.
    Compaction,
}

impl Page {
    /// Returns the page at a path, and the name behind it.
    fn at(path: &str) -> Option<(Self, &str)> {
        PAGES.iter().find_map(|(start, page)| {
            let name = path.strip_prefix(start)?;
            let is_whole = name.is_empty() || name.starts_with('/') && *page == Self::Conversations;
            (is_whole || start.ends_with('/')).then_some((*page, name))
        })
    }

    /// Returns the only methods that the page allows; `None` if it depends on the name.
    fn allowed(self) -> Option<&'static str> {
        match self {
            Self::Original | Self::Receipt | Self::Usage | Self::Budgets => Some("GET, HEAD"),
            Self::Plan | Self::Compaction => Some("POST"),
            Self::Conversations => None,
        }
    }
}

/// Next step for a request.
enum RouteStep {
    /// weir answers by itself.
    Own(Response<Body>),
    /// Returns the metrics.
    Metrics,
    /// One of weir's own pages, which allows only these methods.
    NotAllowed(&'static str),
    Called(CallerStep),
}

/// Next step for a request of a known caller.
enum CallerStep {
    /// A page, with the name behind its path.
    Page(Page, String),
    Forward(Target),
}

/// Returns the address behind the first segment of a path, if the segment is the `entrance`.
fn inside(entrance: &blake3::Hash, uri: &Uri) -> Option<Uri> {
    let path = uri.path_and_query()?.as_str().strip_prefix('/')?;
    let (segment, rest) = path.split_at(path.find(['/', '?']).unwrap_or(path.len()));
    // Hashes compare in constant time.
    if *entrance != blake3::hash(segment.as_bytes()) {
        return None;
    }
    let rest = if rest.starts_with('/') { rest.to_owned() } else { format!("/{rest}") };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(rest.try_into().ok()?);
    Uri::from_parts(parts).ok()
}

impl RoutesState {
    /// Creates the state for the configuration in force at the start.
    pub(super) fn new(config: &Config, proxy: &Proxy, shutdown: Shutdown) -> Self {
        let bodies = Bodies::new(config.server.max_bodies_in_flight_bytes);
        proxy.journal().metrics().watch_bodies(bodies.held_bytes());
        Self {
            auth: Arc::new(Auth::new(config.auth.mode, proxy)),
            bodies,
            shutdown,
            is_refused: Arc::default(),
        }
    }
}

impl ServedRoutes {
    /// Creates the routes of a configuration to its proxy.
    pub(super) fn new(config: &Config, proxy: Arc<Proxy>, state: RoutesState) -> Self {
        let server = &config.server;
        let bodies = state.bodies.limited(server.max_bodies_in_flight_bytes);
        Self {
            acceptor: Acceptor::new(server.max_body_bytes, bodies),
            hosts: Hosts::new(&server.allowed_hosts),
            origins: Origins::new(&config.cors.allow_origins),
            entrance: config
                .auth
                .entrance
                .as_ref()
                .map(|own| blake3::hash(own.expose().as_bytes())),
            last_target: Mutex::new(None),
            body_times: BodyTimes {
                idle: Duration::from_millis(server.body_idle_timeout_ms),
                total: Duration::from_millis(server.body_timeout_ms),
            },
            proxy,
            state,
        }
    }

    /// Returns the routes of another configuration to its proxy, with the same state.
    pub(super) fn reconfigured(&self, config: &Config, proxy: Arc<Proxy>) -> Self {
        Self::new(config, proxy, self.state.clone())
    }

    /// Records whether the last configuration was refused.
    pub(super) fn note_refused(&self, is_refused: bool) {
        self.state.is_refused.store(is_refused, Ordering::Relaxed);
    }

    /// Answers a request. Large futures are boxed: hyper keeps room for this one with each open HTTP/1.1
    /// connection, even while it is idle.
    pub(super) async fn answer(&self, mut request: Request<Body>) -> Response<Body> {
        if let Some(entrance) = &self.entrance {
            let Some(inside) = inside(entrance, request.uri()) else {
                let (parts, body) = request.into_parts();
                return self.refuse(
                    &parts,
                    body,
                    &ProxyError::new(ErrorKind::InvalidApiKey, OUTSIDE),
                );
            };
            *request.uri_mut() = inside;
        }
        if let Err(problem) = check_framing(request.headers()) {
            let (parts, body) = request.into_parts();
            return self.refuse(&parts, body, &problem);
        }
        if let Some(health) = self.health(&request) {
            return health;
        }
        let (parts, body) = request.into_parts();
        let origin = match self.origins.check(&parts.headers) {
            Ok(origin) => origin,
            Err(problem) => return self.refuse(&parts, body, &problem),
        };
        let mut response = match self.step(&parts, origin.is_some()) {
            Ok(RouteStep::Own(response)) => response,
            Ok(RouteStep::NotAllowed(allowed)) => self.refuse_method(&parts, body, allowed),
            Ok(RouteStep::Metrics) => Box::pin(self.metrics(&parts, body)).await,
            Ok(RouteStep::Called(step)) => {
                match self.state.auth.caller(&parts.headers, &parts.uri).await {
                    Ok(mut caller) => {
                        caller.address = address(&parts);
                        Box::pin(self.serve(step, parts, body, caller)).await
                    }
                    Err(problem) => self.refuse(&parts, body, &problem),
                }
            }
            Err(problem) => self.refuse(&parts, body, &problem),
        };
        if let Some(origin) = origin {
            let headers = response.headers_mut();
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("*"));
            headers.append(VARY, HeaderValue::from_static("origin"));
        }
        response
    }

    /// Carries out a step for `caller`. Rare steps are boxed: each copy of this future copies the largest.
    async fn serve(
        &self,
        step: CallerStep,
        parts: Parts,
        body: Body,
        caller: Caller,
    ) -> Response<Body> {
        match step {
            CallerStep::Forward(target) => self.forward(parts, body, target, caller).await,
            CallerStep::Page(Page::Conversations, name) => {
                Box::pin(self.conversations(parts, body, &name, &caller)).await
            }
            CallerStep::Page(page, name) => {
                Box::pin(self.page(page, &name, parts, body, caller)).await
            }
        }
    }

    /// Renders a page for `caller` alone.
    async fn page(
        &self,
        page: Page,
        name: &str,
        parts: Parts,
        body: Body,
        caller: Caller,
    ) -> Response<Body> {
        let found: Result<Bytes, ProxyError> = match page {
            Page::Plan | Page::Compaction => {
                let (method, path) = (parts.method.clone(), parts.uri.path().to_owned());
                let address = caller.address;
                let shown = match page {
                    Page::Plan => self.plan(parts, body, caller).await,
                    _ => self.compaction(&parts, body, &caller).await,
                };
                return shown.map_or_else(
                    |problem| {
                        self.note_refusal(&method, &path, address, &problem);
                        reply::error(&problem, Shape::OpenAi)
                    },
                    reply::private,
                );
            }
            Page::Original => self.proxy.originals().find(caller.tenant, name).await,
            Page::Receipt => self.proxy.receipts().find(caller.tenant, name).await,
            Page::Budgets => self.proxy.statuses(&caller).await.map(|own| own.to_string().into()),
            Page::Usage | Page::Conversations => {
                let query = SpendQuery::read(parts.uri.query().unwrap_or_default());
                let usage = async { self.proxy.spend(&caller, query?).await };
                usage.await.map(|own| own.to_string().into())
            }
        };
        match found {
            Ok(found) => reply::private(found),
            Err(problem) => self.refuse(&parts, body, &problem),
        }
    }

    /// Refuses a request on a connection for which there is no room.
    pub(super) fn turn_away(&self, request: Request<Body>) -> Response<Body> {
        if let Some(health) = self.health(&request) {
            return health;
        }
        let (parts, body) = request.into_parts();
        let problem = ProxyError::overloaded(
            "weir serves as many connections as it may at the moment \
                 (`server.max_connections`). Try again shortly.",
        );
        self.refuse(&parts, body, &problem)
    }

    /// Answers health checks, under any of their common names.
    fn health(&self, request: &Request<Body>) -> Option<Response<Body>> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return None;
        }
        match request.uri().path() {
            "/healthz" => Some(reply::json(StatusCode::OK, r#"{"status":"ok"}"#)),
            "/readyz" if self.state.shutdown.phase() == Phase::Serving => {
                let is_refused = self.state.is_refused.load(Ordering::Relaxed);
                Some(reply::json(StatusCode::OK, ready(&self.proxy, is_refused)))
            }
            "/readyz" => {
                Some(reply::json(StatusCode::SERVICE_UNAVAILABLE, r#"{"status":"draining"}"#))
            }
            _ => None,
        }
    }

    fn step(&self, parts: &Parts, from_page: bool) -> Result<RouteStep, ProxyError> {
        self.hosts.check(parts.version, &parts.uri, &parts.headers)?;
        if parts.method == Method::CONNECT {
            let message = "weir is no tunnel. Send requests to it as to the provider's API.";
            return Err(ProxyError::new(ErrorKind::MethodNotAllowed, message));
        }
        if !FORWARDED.contains(&parts.method) {
            // TRACE and the like return what they receive, credentials included.
            let message = "weir forwards GET, HEAD, POST, PUT, PATCH, DELETE and OPTIONS alone.";
            return Err(ProxyError::new(ErrorKind::MethodNotAllowed, message));
        }
        if asks_for_upgrade(parts) {
            return Err(ProxyError::new(
                ErrorKind::UpgradeNotSupported,
                "weir does not support WebSockets or other upgrades. Send the request as HTTP; the \
                 realtime API must be reached directly.",
            ));
        }
        if from_page && is_preflight(parts) {
            return Ok(RouteStep::Own(preflight(&parts.headers)));
        }
        let path = parts.uri.path();
        let is_read = matches!(parts.method, Method::GET | Method::HEAD);
        if path == "/" && is_read {
            let about = r#"{"name":"weir","message":"This is weir, an OpenAI-compatible proxy. Point your SDK's base_url at this address with /v1 at its end."}"#;
            return Ok(RouteStep::Own(reply::json(StatusCode::OK, about)));
        }
        if path == METRICS {
            let allowed = RouteStep::NotAllowed("GET, HEAD");
            return Ok(if is_read { RouteStep::Metrics } else { allowed });
        }
        if let Some((page, name)) = Page::at(path) {
            let allowed = page.allowed().filter(|allowed| !allows(allowed, &parts.method));
            return Ok(match allowed {
                Some(allowed) => RouteStep::NotAllowed(allowed),
                None => RouteStep::Called(CallerStep::Page(page, name.to_owned())),
            });
        }
        if path == "/weir" || path.starts_with("/weir/") {
            return Err(TargetError::Unknown.into());
        }
        let path_and_query = parts.uri.path_and_query().map_or("/", |both| both.as_str());
        Ok(RouteStep::Called(CallerStep::Forward(self.target(path_and_query)?)))
    }

    /// Returns a path's target. Nearly all requests ask for the same path as the one before.
    fn target(&self, path_and_query: &str) -> Result<Target, TargetError> {
        let lock = || self.last_target.lock();
        let last = lock().clone();
        if let Some(last) = last.filter(|last| last.0 == path_and_query) {
            return Ok(last.1.clone());
        }
        let target = Target::map(self.proxy.base(), path_and_query)?;
        *lock() = Some(Arc::new((path_and_query.to_owned(), target.clone())));
        Ok(target)
    }

    /// Returns the metrics to callers on the same machine. With virtual keys, other callers of this
    /// listener must not see the spending of teams.
    async fn metrics(&self, parts: &Parts, body: Body) -> Response<Body> {
        let is_own = address(parts).is_some_and(|address| address.to_canonical().is_loopback());
        if is_own && self.state.auth.is_open() {
            return reply::metrics(self.proxy.metrics_page().await);
        }
        let message = "Here metrics are shown in open mode and to this machine alone. The admin API's \
                       listener (admin.listen) has them at /metrics for those who send its token.";
        self.refuse(parts, body, &ProxyError::new(ErrorKind::NotFound, message))
    }

    /// Returns the plan for a request, which is read like one that is forwarded.
    async fn plan(&self, parts: Parts, body: Body, caller: Caller) -> Result<Bytes, ProxyError> {
        let (protocol, path) = planned_as(parts.uri.query().unwrap_or_default())?;
        let target = Target::map(self.proxy.base(), path)?;
        let call = self.call(parts, body, protocol, target, caller).await?;
        Ok(self.proxy.explain(call).await?.json().into())
    }

    /// Returns what a compaction item stands for to the caller that it was made for.
    async fn compaction(
        &self,
        parts: &Parts,
        body: Body,
        caller: &Caller,
    ) -> Result<Bytes, ProxyError> {
        let (_admission, body) = self.admitted(parts, body, caller).await?;
        let whole = self.acceptor.body(caller.tenant, &parts.headers, body).await?;
        Ok(self.proxy.show_compaction(caller, whole.readable())?.into())
    }

    async fn forward(
        &self,
        parts: Parts,
        body: Body,
        target: Target,
        caller: Caller,
    ) -> Response<Body> {
        if let Err(problem) = caller.check_route(&parts.method, &target, self.proxy.routes()) {
            return self.refuse(&parts, body, &problem);
        }
        let (method, path) = (parts.method.clone(), parts.uri.path().to_owned());
        let address = caller.address;
        let is_compact = *target.endpoint() == Endpoint::Route(Route::Compact);
        let protocol = match is_compact {
            true => Some(Protocol::Responses),
            false => target.protocol(),
        };
        let protocol = protocol.filter(|_| method == Method::POST);
        let shape = Shape::of(&path, &parts.headers);
        let refused = |problem| {
            self.note_refusal(&method, &path, address, &problem);
            problem
        };
        let answered = if let Some(protocol) = protocol {
            match self.call(parts, body, protocol, target, caller).await {
                Ok(call) if is_compact => Box::pin(self.proxy.compact(call)).await,
                Ok(call) => self.proxy.handle(call).await,
                Err(problem) => Err(refused(problem)),
            }
        } else {
            match self.pass(parts, body, target, caller).await {
                Ok(pass) => self.proxy.pass(pass).await,
                Err(problem) => Err(refused(problem)),
            }
        };
        answered.unwrap_or_else(|problem| reply::error(&problem, shape))
    }

    pub(super) fn refuse_method(
        &self,
        parts: &Parts,
        body: Body,
        allowed: &'static str,
    ) -> Response<Body> {
        Acceptor::refuse_body(&parts.headers, body);
        let message = format!("This address allows only {allowed}.");
        let problem = ProxyError::new(ErrorKind::MethodNotAllowed, message);
        self.note_refusal(&parts.method, parts.uri.path(), address(parts), &problem);
        reply::method_not_allowed(&problem, allowed)
    }

    /// Applies the limits of the caller's key. A refused request's body is not read.
    pub(super) async fn admitted(
        &self,
        parts: &Parts,
        body: Body,
        caller: &Caller,
    ) -> Result<(Admission, Body), ProxyError> {
        match self.proxy.admit(caller).await {
            Ok(admission) => Ok((admission, body)),
            Err(problem) => {
                Acceptor::refuse_body(&parts.headers, body);
                Err(problem)
            }
        }
    }

    /// Forwards a request that weir reads: authorizes it, then reads its body completely.
    async fn call(
        &self,
        parts: Parts,
        body: Body,
        protocol: Protocol,
        target: Target,
        caller: Caller,
    ) -> Result<ChatRequest, ProxyError> {
        let (admission, body) = self.admitted(&parts, body, &caller).await?;
        let whole = self.acceptor.body(caller.tenant, &parts.headers, body).await?;
        let is_known = matches!(target.endpoint(), Endpoint::Route(_));
        if protocol == Protocol::Responses || !is_known {
            // Such a body may refer to what is stored at the provider, or its path name another model.
            caller.check_body(&target, &parts.headers, whole.readable(), self.proxy.routes())?;
        }
        let Received { received, decoded, permit } = whole;
        Ok(ChatRequest {
            protocol,
            target,
            method: parts.method,
            headers: parts.headers,
            decoded: decoded.unwrap_or_else(|| received.clone()),
            received,
            caller,
            admission,
            permit: Box::new(permit),
            options: RequestOptions::default(),
            model: RequestedModel::default(),
            asked: Asked::default(),
            recall: None,
        })
    }

    /// Streams a request through. Reads its body first if the caller's key is limited to some
    /// models, if the model decides the route, or if its cost is to be held.
    async fn pass(
        &self,
        parts: Parts,
        body: Body,
        target: Target,
        caller: Caller,
    ) -> Result<Pass, ProxyError> {
        let (admission, body) = self.admitted(&parts, body, &caller).await?;
        let is_checked = caller.needs_body(&parts.method, &target);
        let (method, headers) = (&parts.method, &parts.headers);
        let body = if is_checked || self.proxy.needs_body(method, &target, headers).await {
            let whole = self.acceptor.body(caller.tenant, &parts.headers, body).await?;
            if is_checked {
                let readable = whole.readable();
                caller.check_body(&target, &parts.headers, readable, self.proxy.routes())?;
            }
            let Received { received, decoded, permit } = whole;
            PassBody::Whole { bytes: received, decoded, permit: Box::new(permit) }
        } else {
            PassBody::Streamed(body)
        };
        let Parts { method, headers, .. } = parts;
        Ok(Pass { caller, admission, target, method, headers, body })
    }

    /// Counts and logs a refusal. The proxy does this for requests that reach it.
    pub(super) fn note_refusal(
        &self,
        method: &Method,
        path: &str,
        address: Option<IpAddr>,
        problem: &ProxyError,
    ) {
        self.proxy.count_refused(path, problem);
        let path = match is_secret_in(path) {
            true => "(hidden: it holds a virtual key)",
            false => &path[..path.floor_char_boundary(MAX_LOGGED_BYTES)],
        };
        tracing::info!(
            target: "weir::request",
            event = "refused",
            method = method.as_str(),
            path,
            status = problem.kind.status().as_u16(),
            outcome = problem.kind.word(),
            address = address.map(tracing::field::display),
            "refused"
        );
    }

    fn refuse(&self, parts: &Parts, body: Body, problem: &ProxyError) -> Response<Body> {
        Acceptor::refuse_body(&parts.headers, body);
        self.note_refusal(&parts.method, parts.uri.path(), address(parts), problem);
        reply::error(problem, Shape::of(parts.uri.path(), &parts.headers))
    }
}

/// Returns whether a method is in a list for the header `allow`.
pub(super) fn allows(allowed: &str, method: &Method) -> bool {
    allowed.split(", ").any(|own| own == *method)
}

/// Renders the readiness report: the state of the store, whether the Redis that counts fails, and
/// whether the last configuration was refused. None of these makes weir unready.
fn ready(proxy: &Proxy, is_refused: bool) -> String {
    let store = proxy.store().state().word();
    let is_redis_failing = proxy.journal().budgets().is_redis_failing();
    let redis = if is_redis_failing { r#","redis":"failing""# } else { "" };
    let refused = if is_refused { r#","configuration":"refused""# } else { "" };
    format!(r#"{{"status":"ready","store":"{store}"{redis}{refused}}}"#)
}

/// Returns the protocol that a plan's query asks for, and the path that the plan is made for.
fn planned_as(query: &str) -> Result<(Protocol, &'static str), ProxyError> {
    let wanted = query.split('&').find_map(|pair| pair.strip_prefix("protocol="));
    let wanted = wanted.unwrap_or("chat");
    let found = PLANNED_PATHS.iter().find(|(name, ..)| *name == wanted);
    found.map(|(_, protocol, path)| (*protocol, *path)).ok_or_else(|| {
        let message = "'protocol' in the query must be chat, responses or messages.";
        ProxyError::new(ErrorKind::InvalidRequest, message)
    })
}

/// Returns the address of a request's client, if it is known.
fn address(parts: &Parts) -> Option<IpAddr> {
    parts.extensions.get().map(|Address(address)| *address)
}

/// Whether the caller wants to upgrade to another protocol. An offer of cleartext HTTP/2, which
/// some HTTP clients send with every request, does not count: HTTP lets a server ignore it.
fn asks_for_upgrade(parts: &Parts) -> bool {
    let offers = parts.headers.get_all(UPGRADE);
    offers.iter().any(|value| !value.as_bytes().eq_ignore_ascii_case(b"h2c"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::Client;
    use weir_store::Store;

    /// While weir drains, no new connection is accepted, so only a request already under way can
    /// see this; hence no socket here.
    #[tokio::test]
    async fn readiness_ends_when_draining_begins() {
        let config = Config::default();
        let client = Client::new(&config.upstream).expect("the defaults are valid");
        let shutdown = Shutdown::default();
        let store = Store::in_memory().expect("there is memory");
        let proxy = Proxy::new(config.clone().into(), client, store).expect("nothing is kept");
        let state = RoutesState::new(&config, &proxy, shutdown.clone());
        let routes = ServedRoutes::new(&config, proxy.into(), state);
        let ask = async |path: &str| {
            let body = reply::empty(StatusCode::OK).into_body();
            let mut request = Request::new(body);
            *request.uri_mut() = path.parse().expect("a path");
            routes.answer(request).await.status()
        };
        assert_eq!(ask("/readyz").await, StatusCode::OK);
        shutdown.drain();
        assert_eq!(ask("/readyz").await, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(ask("/healthz").await, StatusCode::OK);
    }
}
