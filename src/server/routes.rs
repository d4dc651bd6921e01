//! Where a request goes: weir's own pages, the proxy, or nowhere. Reads no body and opens no
//! connection; says nothing of errors but what `reply` renders.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::header::{
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, CACHE_CONTROL, HeaderValue,
    UPGRADE, VARY,
};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};

use super::accept::{Acceptor, Received};
use super::health;
use super::identify::{Gate, is_secret_in};
use super::preflight::{is_preflight, preflight};
use super::reply;
use super::shutdown::{Phase, Shutdown};
use crate::config::Config;
use crate::proxy::host::{Hosts, Origins};
use crate::proxy::{
    Body, Call, Caller, ErrorKind, MAX_LOGGED_BYTES, Pass, PassBody, Proxy, ProxyError, SpendQuery,
};
use crate::upstream::{Target, TargetError};
use crate::wire::Protocol;

/// Where originals are, by reference.
const ORIGINALS: &str = "/weir/v1/originals/";
/// Where a chat completion's body is explained, and the path whose plan is told.
const PLAN: &str = "/weir/v1/plan";
/// Where a caller is told what it has used.
const USAGE: &str = "/weir/v1/usage";
/// Where a caller is told how its budgets stand.
const BUDGETS: &str = "/weir/v1/budgets";
/// Where a scraper reads what weir has counted.
const METRICS: &str = "/metrics";
const PLANNED_PATH: &str = "/v1/chat/completions";
/// When to try again after all connections were taken.
const RETRY_AFTER_MS: u64 = 1000;

/// Where a request comes from, as its connection tells.
#[derive(Debug, Clone, Copy)]
pub struct Address(pub IpAddr);

/// Answers requests.
pub struct Routes {
    proxy: Arc<Proxy>,
    acceptor: Acceptor,
    gate: Arc<Gate>,
    hosts: Hosts,
    origins: Origins,
    shutdown: Shutdown,
    last_target: LastTarget,
    /// How long a request's body may pause.
    body_idle: Duration,
    /// Whether what weir was last told was refused.
    is_refused: Arc<AtomicBool>,
}

/// The path asked for last, and where it leads. Its length is bounded as a request's head is.
type LastTarget = Mutex<Option<Arc<(String, Target)>>>;

/// What is to be done with a request.
enum Step {
    /// weir answers by itself.
    Own(Response<Body>),
    /// The original of this reference is asked for.
    Original(String),
    /// What would be sent in place of this request is asked for.
    Plan,
    /// What the caller has used is asked for.
    Usage,
    /// How the caller's budgets stand is asked for.
    Budgets,
    /// What weir has counted is asked for.
    Metrics,
    /// A page of weir's own, which takes these methods alone.
    NotAllowed(&'static str),
    Forward(Target),
}

impl Routes {
    pub fn new(config: &Config, proxy: Proxy, shutdown: Shutdown) -> Self {
        let server = &config.server;
        Self {
            acceptor: Acceptor::new(server.max_body_bytes, server.max_bodies_in_flight_bytes),
            gate: Arc::new(Gate::new(config.auth.mode, proxy.store())),
            hosts: Hosts::new(&server.allowed_hosts),
            origins: Origins::new(&config.cors.allow_origins),
            shutdown,
            last_target: Mutex::new(None),
            body_idle: Duration::from_millis(config.upstream.idle_timeout_ms),
            is_refused: Arc::default(),
            proxy: Arc::new(proxy),
        }
    }

    /// The same by another configuration, with its own way to the upstream. What is known of callers, and
    /// what their bodies hold, goes on.
    pub fn renewed(&self, config: &Config, proxy: Arc<Proxy>) -> Self {
        let server = &config.server;
        let limits = (server.max_body_bytes, server.max_bodies_in_flight_bytes);
        Self {
            acceptor: self.acceptor.renewed(limits.0, limits.1),
            gate: Arc::clone(&self.gate),
            hosts: Hosts::new(&server.allowed_hosts),
            origins: Origins::new(&config.cors.allow_origins),
            shutdown: self.shutdown.clone(),
            last_target: Mutex::new(None),
            body_idle: Duration::from_millis(config.upstream.idle_timeout_ms),
            is_refused: Arc::clone(&self.is_refused),
            proxy,
        }
    }

    /// The way of requests to the upstream.
    pub fn proxy(&self) -> &Arc<Proxy> {
        &self.proxy
    }

    /// How long a request's body may pause.
    pub fn body_idle(&self) -> Duration {
        self.body_idle
    }

    /// Notes whether the configuration that weir was last told is in force.
    pub fn note_refused(&self, is_refused: bool) {
        self.is_refused.store(is_refused, Ordering::Relaxed);
    }

    /// Answers a request.
    pub async fn answer(&self, request: Request<Body>) -> Response<Body> {
        if let Some(health) = self.health(&request) {
            return health;
        }
        let (parts, body) = request.into_parts();
        let origin = match self.origins.check(&parts.headers) {
            Ok(origin) => origin,
            Err(problem) => return self.refuse(&parts, body, &problem),
        };
        let mut response = match self.step(&parts, origin.is_some()) {
            Ok(Step::Own(response)) => response,
            Ok(Step::NotAllowed(allowed)) => self.refuse_method(&parts, body, allowed),
            Ok(Step::Metrics) => self.metrics(&parts, body).await,
            Ok(step) => match self.gate.caller(&parts.headers, &parts.uri).await {
                Ok(mut caller) => {
                    caller.address = address(&parts);
                    self.serve(step, parts, body, caller).await
                }
                Err(problem) => self.refuse(&parts, body, &problem),
            },
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

    /// Does for `caller` what is to be done.
    async fn serve(&self, step: Step, parts: Parts, body: Body, caller: Caller) -> Response<Body> {
        match step {
            Step::Own(response) => response,
            Step::Metrics => self.metrics(&parts, body).await,
            Step::NotAllowed(allowed) => self.refuse_method(&parts, body, allowed),
            Step::Original(reference) => self.original(parts, body, &reference, &caller).await,
            Step::Usage => {
                let query = SpendQuery::read(parts.uri.query().unwrap_or_default());
                let told = async { self.proxy.spend(&caller, query?).await };
                self.told(parts, body, told.await)
            }
            Step::Budgets => self.told(parts, body, self.proxy.standings(&caller).await),
            Step::Plan => self.plan(parts, body, caller).await,
            Step::Forward(target) => self.forward(parts, body, target, caller).await,
        }
    }

    /// Answers a request on a connection for which there is no place.
    pub fn turn_away(&self, request: Request<Body>) -> Response<Body> {
        if let Some(health) = self.health(&request) {
            return health;
        }
        let (parts, body) = request.into_parts();
        let problem = ProxyError {
            retry_after_ms: Some(RETRY_AFTER_MS),
            ..ProxyError::new(
                ErrorKind::Overloaded,
                "weir serves as many connections as it may at the moment \
                 (`server.max_connections`). Try again shortly.",
            )
        };
        self.refuse(&parts, body, &problem)
    }

    /// For whoever watches over weir, by whatever name it is called.
    fn health(&self, request: &Request<Body>) -> Option<Response<Body>> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return None;
        }
        match request.uri().path() {
            "/healthz" => Some(reply::json(StatusCode::OK, r#"{"status":"ok"}"#)),
            "/readyz" if self.shutdown.phase() == Phase::Serving => {
                let is_refused = self.is_refused.load(Ordering::Relaxed);
                Some(reply::json(
                    StatusCode::OK,
                    health::ready(self.proxy.store().state(), is_refused),
                ))
            }
            "/readyz" => {
                Some(reply::json(StatusCode::SERVICE_UNAVAILABLE, r#"{"status":"draining"}"#))
            }
            _ => None,
        }
    }

    fn step(&self, parts: &Parts, from_page: bool) -> Result<Step, ProxyError> {
        self.hosts.check(parts.version, &parts.uri, &parts.headers)?;
        if asks_for_upgrade(parts) {
            return Err(ProxyError::new(
                ErrorKind::UpgradeNotSupported,
                "weir does not support protocol upgrades, tunnels or WebSockets. Use the HTTP \
                 API; the realtime API must be reached directly.",
            ));
        }
        if from_page && is_preflight(parts) {
            return Ok(Step::Own(preflight(&parts.headers)));
        }
        let path = parts.uri.path();
        let is_read = matches!(parts.method, Method::GET | Method::HEAD);
        if path == "/" && is_read {
            let about = r#"{"name":"weir","message":"This is weir, an OpenAI-compatible proxy. Point your SDK's base_url at this address with /v1 at its end."}"#;
            return Ok(Step::Own(reply::json(StatusCode::OK, about)));
        }
        if path == METRICS {
            return Ok(if is_read { Step::Metrics } else { Step::NotAllowed("GET, HEAD") });
        }
        if let Some(reference) = path.strip_prefix(ORIGINALS) {
            return Ok(match is_read {
                true => Step::Original(reference.to_owned()),
                false => Step::NotAllowed("GET, HEAD"),
            });
        }
        if path == USAGE || path == BUDGETS {
            return Ok(match is_read {
                true if path == USAGE => Step::Usage,
                true => Step::Budgets,
                false => Step::NotAllowed("GET, HEAD"),
            });
        }
        if path == PLAN {
            return Ok(match parts.method {
                Method::POST => Step::Plan,
                _ => Step::NotAllowed("POST"),
            });
        }
        if path == "/weir" || path.starts_with("/weir/") {
            return Err(TargetError::Unknown.into());
        }
        let path_and_query = parts.uri.path_and_query().map_or("/", |both| both.as_str());
        Ok(Step::Forward(self.target(path_and_query)?))
    }

    /// Where a path leads. Nearly all requests ask for the path of the one before.
    fn target(&self, path_and_query: &str) -> Result<Target, TargetError> {
        let lock = || self.last_target.lock().unwrap_or_else(PoisonError::into_inner);
        let last = lock().clone();
        if let Some(last) = last.filter(|last| last.0 == path_and_query) {
            return Ok(last.1.clone());
        }
        let target = Target::map(self.proxy.base(), path_and_query)?;
        *lock() = Some(Arc::new((path_and_query.to_owned(), target.clone())));
        Ok(target)
    }

    /// What weir has counted, for those on its own machine. With virtual keys, what teams spend is
    /// nothing for whoever else can reach this listener.
    async fn metrics(&self, parts: &Parts, body: Body) -> Response<Body> {
        let is_own = address(parts).is_some_and(|address| address.to_canonical().is_loopback());
        if is_own && self.gate.is_open() {
            return reply::metrics(self.proxy.metrics_page().await);
        }
        let message = "Here metrics are shown in open mode and to this machine alone. The admin API's \
                       listener (admin.listen) has them at /metrics for those who send its token.";
        self.refuse(parts, body, &ProxyError::new(ErrorKind::NotFound, message))
    }

    /// What `reference` stands for, to the caller that sent it.
    async fn original(
        &self,
        parts: Parts,
        body: Body,
        reference: &str,
        caller: &Caller,
    ) -> Response<Body> {
        match self.proxy.originals().find(caller.tenant, reference).await {
            Ok(original) => {
                let mut response = reply::json(StatusCode::OK, original);
                let headers = response.headers_mut();
                headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
                response
            }
            Err(problem) => self.refuse(&parts, body, &problem),
        }
    }

    /// What the caller has used.
    fn told(
        &self,
        parts: Parts,
        body: Body,
        told: Result<serde_json::Value, ProxyError>,
    ) -> Response<Body> {
        match told {
            Ok(told) => {
                let mut response = reply::json(StatusCode::OK, told.to_string());
                let headers = response.headers_mut();
                headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
                response
            }
            Err(problem) => self.refuse(&parts, body, &problem),
        }
    }

    /// What would be sent in place of a request, which is read as one that is forwarded.
    async fn plan(&self, parts: Parts, body: Body, caller: Caller) -> Response<Body> {
        let (method, path) = (parts.method.clone(), parts.uri.path().to_owned());
        let address = caller.address;
        let explained = async {
            let target = Target::map(self.proxy.base(), PLANNED_PATH)?;
            let call = self.call(parts, body, Protocol::Chat, target, caller).await?;
            self.proxy.explain(call).await
        };
        match explained.await {
            Ok(explained) => {
                let mut response = reply::json(StatusCode::OK, explained.json());
                let headers = response.headers_mut();
                headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
                response
            }
            Err(problem) => {
                self.note_refusal(&method, &path, address, &problem);
                reply::error(&problem)
            }
        }
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
        let protocol = target.protocol().filter(|_| method == Method::POST);
        let refused = |problem| {
            self.note_refusal(&method, &path, address, &problem);
            problem
        };
        let answered = if let Some(protocol) = protocol {
            match self.call(parts, body, protocol, target, caller).await {
                Ok(call) => self.proxy.handle(call).await,
                Err(problem) => Err(refused(problem)),
            }
        } else {
            match self.pass(parts, body, target, caller).await {
                Ok(pass) => self.proxy.pass(pass).await,
                Err(problem) => Err(refused(problem)),
            }
        };
        answered.unwrap_or_else(|problem| reply::error(&problem))
    }

    fn refuse_method(&self, parts: &Parts, body: Body, allowed: &'static str) -> Response<Body> {
        Acceptor::refuse_body(&parts.headers, body);
        let message = format!("This address takes no other method than {allowed}.");
        let problem = ProxyError::new(ErrorKind::MethodNotAllowed, message);
        self.note_refusal(&parts.method, parts.uri.path(), address(parts), &problem);
        reply::method_not_allowed(&problem, allowed)
    }

    /// A request that is read, let in and read whole.
    async fn call(
        &self,
        parts: Parts,
        body: Body,
        protocol: Protocol,
        target: Target,
        caller: Caller,
    ) -> Result<Call, ProxyError> {
        let admission = match self.proxy.admit(&caller).await {
            Ok(admission) => admission,
            Err(problem) => {
                Acceptor::refuse_body(&parts.headers, body);
                return Err(problem);
            }
        };
        let Received { received, decoded, permit } =
            self.acceptor.body(&parts.headers, body).await?;
        Ok(Call {
            protocol,
            target,
            method: parts.method,
            headers: parts.headers,
            received,
            decoded,
            caller,
            admission,
            permit: Box::new(permit),
        })
    }

    /// A request that is let in and streamed; read whole before that where its caller's key does not
    /// open every model, and where its model says where it goes.
    async fn pass(
        &self,
        parts: Parts,
        body: Body,
        target: Target,
        caller: Caller,
    ) -> Result<Pass, ProxyError> {
        let admission = match self.proxy.admit(&caller).await {
            Ok(admission) => admission,
            Err(problem) => {
                Acceptor::refuse_body(&parts.headers, body);
                return Err(problem);
            }
        };
        let is_checked = caller.needs_body(&parts.method, &target);
        let body = if is_checked || self.proxy.needs_body(&parts.method, &target, &parts.headers) {
            let whole = self.acceptor.body(&parts.headers, body).await?;
            let Received { received, decoded, permit } = whole;
            if is_checked {
                let readable = decoded.as_ref().unwrap_or(&received);
                caller.check_body(&target, readable, self.proxy.routes())?;
            }
            PassBody::Whole { bytes: received, decoded, permit: Box::new(permit) }
        } else {
            PassBody::Streamed(body)
        };
        let Parts { method, headers, .. } = parts;
        Ok(Pass { caller, admission, target, method, headers, body })
    }

    /// Counts and logs a refusal. The proxy does this for requests that reach it.
    fn note_refusal(
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
            outcome = problem.kind.code(),
            address = address.map(tracing::field::display),
            "refused"
        );
    }

    fn refuse(&self, parts: &Parts, body: Body, problem: &ProxyError) -> Response<Body> {
        Acceptor::refuse_body(&parts.headers, body);
        self.note_refusal(&parts.method, parts.uri.path(), address(parts), problem);
        reply::error(problem)
    }
}

/// Where a request comes from, where that is known.
fn address(parts: &Parts) -> Option<IpAddr> {
    parts.extensions.get().map(|Address(address)| *address)
}

/// Whether the caller wants to speak something else than HTTP. An offer of cleartext HTTP/2, which
/// some HTTP clients make with every request, is no such wish: HTTP lets a server pass it over.
fn asks_for_upgrade(parts: &Parts) -> bool {
    let offers = parts.headers.get_all(UPGRADE);
    parts.method == Method::CONNECT
        || offers.iter().any(|value| !value.as_bytes().eq_ignore_ascii_case(b"h2c"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Store;
    use crate::upstream::Client;

    /// While it drains no new connection is taken, so that only a request that was on its way
    /// already can see it; hence no socket here.
    #[tokio::test]
    async fn readiness_ends_when_draining_begins() {
        let config = Config::default();
        let client = Client::new(&config.upstream).expect("the defaults are valid");
        let shutdown = Shutdown::default();
        let store = Store::in_memory().expect("there is memory");
        let proxy = Proxy::new(config.clone().into(), client, store).expect("nothing is kept");
        let routes = Routes::new(&config, proxy, shutdown.clone());
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
