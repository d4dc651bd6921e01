//! Upstreams: for each its client, weir's own credentials and headers, the treatment of callers'
//! headers, its learned values, and its breaker. Decides no route.

pub mod base_url;
pub mod bound_thinking;
mod cooldowns;
pub mod headers;
pub mod learned;
pub mod learned_store;
pub mod probe;
pub mod refused_models;
pub mod routes;
pub mod usage_refusals;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT_ENCODING, HeaderValue};
use http::{HeaderMap, HeaderName};
use tokio::time::Instant;

use crate::config::{self, CompactsBy, Config, DEFAULT_UPSTREAM, Learning};
use crate::proxy::error::{ErrorKind, Proxied, ProxyError, SetupError};
use crate::proxy::events::{Event, Events};
use crate::proxy::traces::context::{BAGGAGE, TRACESTATE};
use crate::proxy::upstreams::base_url::BaseUrl;
use crate::proxy::upstreams::bound_thinking::BoundThinking;
use crate::proxy::upstreams::cooldowns::Cooldowns;
use crate::proxy::upstreams::headers::Via;
use crate::proxy::upstreams::learned::Learned;
use crate::proxy::upstreams::routes::UpstreamKnowledge;
use crate::proxy::upstreams::usage_refusals::UsageRefusals;
use crate::upstream::breaker::{Breaker, Change, Health};
use crate::upstream::retry::{RetryLimits, Tried};
use crate::upstream::{Client, Endpoint, ProviderKey, Route, SendError, Target};
use weir_engine::compact::LearnedLimits;
use weir_store::{Store, Tenant};

/// Failures in a row after which an upstream is skipped, and for how long.
const MOST_FAILURES: u32 = 5;
const PAUSE: Duration = Duration::from_secs(10);
/// Domains of providers that compact conversations themselves, by their guides to compaction and to
/// context editing.
const COMPACTING: [&str; 2] = [OPENAI, "api.anthropic.com"];
const OPENAI: &str = "api.openai.com";

/// Upstream, with everything known of it.
pub struct Upstream {
    pub name: Arc<str>,
    pub client: Client,
    /// Scheme, host and port.
    pub origin: Arc<str>,
    /// Key sent instead of callers' credentials; `None` if weir has none.
    pub provider_key: Option<ProviderKey>,
    /// Headers added to every request.
    headers: Vec<(HeaderName, HeaderValue)>,
    /// Whether it receives callers' own credentials.
    pub gets_callers_key: bool,
    /// Whether it receives callers' `baggage` and `tracestate`.
    gets_trace_headers: bool,
    /// Whether it compacts conversations whose callers ask for it; else weir does.
    pub compacts: bool,
    pub retry_limits: RetryLimits,
    pub knowledge: Arc<UpstreamKnowledge>,
    pub(crate) base_url: BaseUrl,
    breaker: Breaker,
    cooldowns: Cooldowns,
    events: Events,
}

/// All upstreams.
pub struct Upstreams {
    pub default: Arc<Upstream>,
    named: BTreeMap<String, Arc<Upstream>>,
}

impl Upstreams {
    /// Creates the upstreams of `config`; `client` is the default's, made if absent. One that is as
    /// in `before` keeps its connections; learned values carry over if they still apply to the same
    /// callers.
    pub fn new(
        config: &Config,
        client: Option<Client>,
        shared: (&Store, &Events),
        before: Option<(&Config, &Self)>,
    ) -> Result<Self, SetupError> {
        let old = before.map(|(old, upstreams)| UpstreamBefore {
            config: &old.upstream,
            learning: old.learning,
            upstream: &upstreams.default,
        });
        let default = (DEFAULT_UPSTREAM, &config.upstream);
        let default = upstream(default, client, config.learning, shared, old)?;
        let mut named = BTreeMap::new();
        for (name, own) in &config.upstreams {
            let old = before.and_then(|(old, upstreams)| {
                let (config, upstream) = old.upstreams.get(name).zip(upstreams.named.get(name))?;
                Some(UpstreamBefore { config, learning: old.learning, upstream })
            });
            let own = upstream((name, own), None, config.learning, shared, old)?;
            named.insert(name.clone(), own);
        }
        Ok(Self { default, named })
    }

    /// Returns the upstream called `name`; the default if there is none.
    pub fn find(&self, name: &str) -> &Arc<Upstream> {
        self.named.get(name).unwrap_or(&self.default)
    }

    /// Returns all of them, the default first.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Upstream>> {
        std::iter::once(&self.default).chain(self.named.values())
    }
}

/// Whether the upstream at `host` compacts conversations whose callers ask for it.
fn compacts(by: CompactsBy, host: &str) -> bool {
    let host = host.trim_end_matches('.');
    let is_of = |domain: &&str| {
        host.strip_suffix(*domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    match by {
        CompactsBy::Weir => false,
        CompactsBy::Upstream => true,
        CompactsBy::Auto => COMPACTING.iter().any(is_of),
    }
}

/// Creates a client for the upstream called `name`.
fn client_of(name: &str, config: &config::Upstream) -> Result<Client, SetupError> {
    let section = config::upstreams::section(name);
    Client::new(config).map_err(|source| SetupError::Client { section, source })
}

/// Upstream of the configuration before.
struct UpstreamBefore<'a> {
    config: &'a config::Upstream,
    learning: Learning,
    upstream: &'a Arc<Upstream>,
}

/// Creates an upstream, or keeps that of `before` if it is configured alike.
fn upstream(
    (name, config): (&str, &config::Upstream),
    client: Option<Client>,
    learning: Learning,
    shared: (&Store, &Events),
    before: Option<UpstreamBefore<'_>>,
) -> Result<Arc<Upstream>, SetupError> {
    let before = before.filter(|before| before.learning == learning);
    if let Some(before) = before.as_ref().filter(|before| before.config == config) {
        return Ok(Arc::clone(before.upstream));
    }
    let client = client.map_or_else(|| client_of(name, config), Ok)?;
    let mut new = Upstream::new((name, config), client, learning, shared)?;
    if let Some(UpstreamBefore { config: old, upstream, .. }) = before
        && old.ask_usage == config.ask_usage
        && upstream.origin == new.origin
        && upstream.gets_callers_key == new.gets_callers_key
    {
        new.knowledge = Arc::clone(&upstream.knowledge);
    }
    Ok(Arc::new(new))
}

impl Upstream {
    fn new(
        (name, config): (&str, &config::Upstream),
        client: Client,
        learning: Learning,
        (store, events): (&Store, &Events),
    ) -> Result<Self, SetupError> {
        let provider_key = config
            .provider_key
            .as_ref()
            .map(|secret| ProviderKey::new(secret, client.base()).ok_or(SetupError::ProviderKey));
        let provider_key = provider_key.transpose()?;
        let plain = config.headers.iter().map(|(name, value)| (name, value.as_str(), false));
        let secret = config.secret_headers.iter().map(|(name, value)| (name, value.expose(), true));
        let mut headers = Vec::new();
        for (header, value, is_secret) in plain.chain(secret) {
            let pair = HeaderName::try_from(header).ok().zip(HeaderValue::from_str(value).ok());
            let Some((header, mut value)) = pair else {
                let (upstream, header) = (name.to_owned(), header.clone());
                return Err(SetupError::Header { upstream, header });
            };
            value.set_sensitive(is_secret);
            headers.push((header, value));
        }
        let origin: Arc<str> = client.base().origin().into();
        // Values learned at one address may depend on the credentials sent there.
        let place = match name {
            DEFAULT_UPSTREAM => origin.to_string(),
            name => format!("{name} {origin}"),
        };
        let gets_callers_key = config.gets_callers_key() && provider_key.is_none();
        let learned = Learned::new(Some((store.clone(), place)), !gets_callers_key, learning);
        let usage_refusals = UsageRefusals::new(config.ask_usage);
        Ok(Self {
            name: name.into(),
            compacts: compacts(config.compaction, client.base().host()),
            client,
            provider_key,
            headers,
            gets_callers_key,
            gets_trace_headers: config.forward_trace_headers,
            retry_limits: RetryLimits {
                max_retries: config.max_retries,
                max_wait_ms: config.retry_max_wait_ms,
            },
            knowledge: Arc::new(UpstreamKnowledge {
                name: name.into(),
                origin: (name != DEFAULT_UPSTREAM).then(|| Arc::clone(&origin)),
                learned: Arc::new(learned),
                usage_refusals,
                bound_thinking: BoundThinking::new(!gets_callers_key),
            }),
            origin,
            base_url: BaseUrl::default(),
            breaker: Breaker::new(MOST_FAILURES, PAUSE),
            cooldowns: Cooldowns::default(),
            events: events.clone(),
        })
    }

    /// Refuses a request of Anthropic's protocol that OpenAI would refuse anyway, before the caller's key goes
    /// there.
    pub fn check_protocol(&self, target: &Target) -> Proxied<()> {
        let is_other = ["/messages/count_tokens", "/messages/batches"]
            .iter()
            .any(|path| target.path().ends_with(path));
        let is_messages = is_other || *target.endpoint() == Endpoint::Route(Route::Messages);
        if !is_messages || !self.is_openai() {
            return Ok(());
        }
        Err(ProxyError::new(
            ErrorKind::NotFound,
            format!(
                "The upstream {} has no Messages API, so nothing was sent there. To serve Messages \
                 (Claude Code) and Responses (codex) with one weir, add to its configuration: \
                 upstreams.anthropic = {{ url = \"https://api.anthropic.com/v1\", forward_caller_key = true }} \
                 and [[routes]] with models = [\"claude*\"], upstream = \"anthropic\".",
                self.client.base().host(),
            ),
        ))
    }

    /// Whether it is OpenAI, in any of its regions.
    fn is_openai(&self) -> bool {
        let host = self.client.base().host().trim_end_matches('.').to_ascii_lowercase();
        host == OPENAI || host.strip_suffix(OPENAI).is_some_and(|region| region.ends_with('.'))
    }

    /// Prepares a caller's headers for this upstream.
    pub fn outbound(&self, callers: HeaderMap, via: &Via, endpoint: &Endpoint) -> HeaderMap {
        let mut headers = headers::outbound(callers, via);
        if !self.gets_trace_headers {
            headers.remove(BAGGAGE);
            headers.remove(TRACESTATE);
        }
        self.put_own(&mut headers, endpoint);
        headers
    }

    /// Removes the caller's headers that this upstream must not get, and adds weir's own.
    pub fn put_own(&self, headers: &mut HeaderMap, endpoint: &Endpoint) {
        match &self.provider_key {
            Some(provider_key) => provider_key.put_into(headers, endpoint),
            None if !self.gets_callers_key => ProviderKey::take_out(headers),
            None if self.is_openai() => ProviderKey::take_out_anthropic(headers),
            None => {}
        }
        for (name, value) in &self.headers {
            headers.insert(name.clone(), value.clone());
        }
    }

    /// Like [`Self::outbound`], for an answer whose usage is read.
    pub fn outbound_read(&self, callers: HeaderMap, via: &Via, endpoint: &Endpoint) -> HeaderMap {
        let mut headers = self.outbound(callers, via, endpoint);
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        headers
    }

    /// Converts the reason for a missing answer to an error. The client names the default's section
    /// in errors about its settings.
    pub fn error(&self, error: SendError) -> ProxyError {
        let error = ProxyError::from(error);
        if &*self.name == DEFAULT_UPSTREAM {
            return error;
        }
        let message = error.message.replace("(upstream.", &format!("(upstreams.{}.", self.name));
        ProxyError { message, ..error }
    }

    /// Prepares its headers for the caller.
    pub fn inbound(&self, upstreams: HeaderMap) -> HeaderMap {
        let mut headers = headers::inbound(upstreams);
        if !self.gets_callers_key {
            ProviderKey::clean_answer(&mut headers);
        }
        headers
    }

    /// Whether a request of this tenant for this model may go there while another upstream could serve
    /// it, too.
    pub fn may_be_asked(&self, (tenant, model): (Tenant, &str)) -> bool {
        let now = Instant::now();
        !self.cooldowns.is_cooling(self.limited(tenant), model, now)
            && self.breaker.lets_through(now)
    }

    /// Records that it asks not to get such requests for this long.
    pub fn cool_down(&self, (tenant, model): (Tenant, &str), wait: Duration) {
        self.cooldowns.note(self.limited(tenant), model, Instant::now(), wait);
    }

    /// Returns whose limits apply: those of a tenant that sends its own credential.
    fn limited(&self, tenant: Tenant) -> Option<Tenant> {
        self.gets_callers_key.then_some(tenant)
    }

    /// Returns its health.
    pub fn health(&self) -> Health {
        self.breaker.health(Instant::now())
    }

    /// Records how a request came back.
    pub fn note(&self, tried: Tried) {
        let upstream = &*self.name;
        let change = self.breaker.note(!tried.is_trouble(), Instant::now());
        match change {
            Change::None => return,
            Change::Opened => tracing::warn!(
                target: "weir::upstream",
                event = "breaker",
                state = "open",
                upstream,
                "an upstream has failed several times in a row: it is skipped for a while if \
                 there is another"
            ),
            Change::Closed => tracing::info!(
                target: "weir::upstream",
                event = "breaker",
                state = "closed",
                upstream,
                "an upstream answers again"
            ),
        }
        self.events.send(&Event::Breaker { upstream, is_open: change == Change::Opened });
    }

    /// Whether it is skipped while there is another.
    pub fn is_skipped(&self) -> bool {
        self.breaker.is_open(Instant::now())
    }

    /// Reports limits of `model` that were learned from a refusal.
    pub fn report_limits(&self, model: &str, limits: LearnedLimits) {
        let limit_tokens = limits.least_tokens();
        self.events.send(&Event::LimitLearned { upstream: &self.name, model, limit_tokens });
    }
}
