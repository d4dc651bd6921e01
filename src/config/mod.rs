//! Validated configuration: complete, with units at the end of key names.

mod auth;
mod budgets;
pub mod changes;
mod checks;
mod choices;
mod conversations;
pub mod events;
pub mod keys;
mod learning;
pub mod models;
pub mod names;
mod open_models;
mod own_models;
pub mod policies;
mod prices;
mod raw;
mod reader;
mod redis;
pub mod routes;
pub mod shown;
mod summaries;
mod tls;
pub mod traces;
pub mod upstreams;
pub(crate) mod words;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

use figment::Figment;
use ipnet::IpNet;

pub use auth::{Admin, AdminListen, Auth, SecretPlace};
pub use budgets::Budgets;
pub use checks::is_database_url;
pub use choices::{
    AskUsage, AuthMode, CompactsBy, LargerWhen, LateSystem, LogFormat, Mode, OnFailure, Originals,
    SummaryMode, UnknownPrice,
};
pub use conversations::Conversations;
pub use events::{EventKind, Events};
pub use learning::Learning;
pub use models::{Catalogue, Found, Known, ModelEntry};
pub use policies::Policies;
pub use reader::{DEFAULTS, Problem, Warning};
pub use redis::Redis;
pub use routes::{FallbackOn, Route, Routes};
pub use summaries::{SAME_MODEL, Summaries};
pub use tls::{ConnectTls, ListenTls};
pub use traces::Traces;
pub use upstreams::{DEFAULT_UPSTREAM, Upstream};
use weir_engine::compact::Policy;
pub use weir_store::Secret;
use weir_store::budget::Price;

/// Every key with its default and its description, as TOML.
pub const DEFAULT_TOML: &str = include_str!("../../config/default.toml");

/// Validates and completes the merged configuration; returns all problems at once.
pub fn load(figment: Figment) -> Result<(Config, Vec<Warning>), Vec<Problem>> {
    raw::read(reader::Reader::new(figment)?)
}

/// The whole configuration, from defaults, file, environment and flags.
#[derive(Debug, Clone)]
pub struct Config {
    pub server: Server,
    pub cors: Cors,
    pub auth: Auth,
    pub admin: Admin,
    pub upstream: Upstream,
    /// Named upstreams.
    pub upstreams: BTreeMap<String, Upstream>,
    pub routes: Routes,
    pub context: Context,
    pub summaries: Summaries,
    pub learning: Learning,
    /// Lower limits by model pattern, for the whole organisation; the lowest match applies.
    pub limits: Vec<Limit>,
    /// Windows and prices by model: the shipped catalogue, overridden by the configuration's own
    /// entries.
    pub models: Catalogue,
    /// Other settings per model, by catalogue name.
    pub model_settings: BTreeMap<String, ModelSettings>,
    pub prices: Prices,
    pub cache: Cache,
    pub store: Store,
    pub redis: Redis,
    pub conversations: Conversations,
    pub ledger: Ledger,
    pub budgets: Budgets,
    pub events: Events,
    pub traces: Traces,
    pub log: Log,
}

impl Config {
    /// Returns the lowest configured limit for `model`, if any matches.
    pub fn configured_limit_tokens(&self, model: &str) -> Option<u64> {
        let matching = self.limits.iter().filter(|limit| limit.matches(model));
        matching.map(|limit| limit.max_input_tokens).min()
    }

    /// Returns whether requests are refused while they cannot be recorded or their budgets are unknown.
    pub fn fails_closed(&self) -> bool {
        [self.ledger.on_failure, self.budgets.on_failure].contains(&OnFailure::Closed)
    }

    /// Returns everything but the shipped catalogue, to compare configurations by its text. Secrets
    /// print as stars.
    pub fn written(&self) -> impl fmt::Debug + '_ {
        let Self { server, cors, auth, admin, upstream, upstreams, routes, context, .. } = self;
        let Self { summaries, learning, limits, models, model_settings, prices, .. } = self;
        let Self { cache, store, redis, ledger, budgets, events, traces, log, .. } = self;
        (
            (server, cors, auth, admin, upstream, upstreams, routes, context),
            (summaries, learning, limits, models.own(), model_settings, prices),
            (cache, store, redis, ledger, budgets, events, traces, log),
        )
    }

    /// Returns all upstreams with their names, the default first.
    pub fn all_upstreams(&self) -> impl Iterator<Item = (&str, &Upstream)> {
        let named = self.upstreams.iter().map(|(name, upstream)| (name.as_str(), upstream));
        std::iter::once((DEFAULT_UPSTREAM, &self.upstream)).chain(named)
    }

    /// Returns whether requests may go to another upstream than the default, or be changed on the
    /// way.
    pub fn is_routed(&self) -> bool {
        !self.upstreams.is_empty() || !self.routes.rows.is_empty()
    }

    /// Returns the settings of the model with the catalogue name `name`.
    pub fn settings(&self, name: Option<&str>) -> ModelSettings {
        name.and_then(|name| self.model_settings.get(name)).cloned().unwrap_or_default()
    }

    /// Returns the price of `model`, or the rule for unknown prices.
    pub fn price(&self, model: &str) -> Priced<'_> {
        match (self.models.price(model), self.prices.unknown, &self.prices.default) {
            (Some(price), _, _) => Priced::Known(price),
            (None, UnknownPrice::Reject, _) => Priced::Refused,
            (None, UnknownPrice::Default, Some(price)) => Priced::Default(price),
            (None, UnknownPrice::Zero | UnknownPrice::Default, _) => Priced::Unpriced,
        }
    }

    /// Returns the policy for a request: `asked` by the request, or `by_model` from the model's
    /// settings.
    pub fn policy(&self, asked: Option<&str>, by_model: Option<&str>) -> Policy {
        let context = &self.context;
        let name = asked.or(by_model).unwrap_or(&context.default_policy);
        context.policies.find(name, &context.policy).unwrap_or_else(|| context.policy.clone())
    }
}

/// `[server]`: the listener.
#[derive(Debug, Clone)]
pub struct Server {
    pub listen: SocketAddr,
    /// Names, besides those of loopback, that a `Host` header may carry.
    pub allowed_hosts: Vec<String>,
    pub max_connections: usize,
    pub max_header_bytes: usize,
    pub max_body_bytes: usize,
    /// Maximum bytes of request bodies held at once, over all requests.
    pub max_bodies_in_flight_bytes: usize,
    pub max_messages: usize,
    pub header_timeout_ms: u64,
    pub body_idle_timeout_ms: u64,
    pub body_timeout_ms: u64,
    pub drain_deadline_ms: u64,
    /// Networks whose connections start with a PROXY protocol header.
    pub proxy_protocol_from: Vec<IpNet>,
    pub tls: ListenTls,
}

/// `[cors]`: web pages that may use this proxy.
#[derive(Debug, Clone)]
pub struct Cors {
    pub allow_origins: Vec<String>,
}

/// `[context]`: compaction of growing conversations.
#[derive(Debug, Clone)]
pub struct Context {
    pub mode: Mode,
    pub allow_bypass: bool,
    /// The section's own keys: the policy `default`.
    pub policy: Policy,
    /// Other policies, by name.
    pub policies: Policies,
    /// Policy used if neither the request nor the model names one.
    pub default_policy: String,
    /// Policies that callers may choose.
    pub allowed_policies: Vec<String>,
    /// Text put after the system text of each request, if its key has none; empty for none.
    pub profile: String,
    pub originals: Originals,
    /// How long an original is kept after the last request that left it out.
    pub originals_lifetime_ms: u64,
    /// Maximum total size of all originals, including overhead.
    pub originals_max_bytes: u64,
}

/// Settings of one model besides its windows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelSettings {
    pub policy: Option<String>,
    /// Whether its provider accepts `cache_control`.
    pub cache_control: bool,
    pub late_system: LateSystem,
    /// The model's own tokens per thousand of weir's estimate; disables learning of the ratio.
    pub token_permille: Option<u32>,
    /// Path of its vocabulary, a `tokenizer.json`.
    pub tokenizer: Option<String>,
}

/// `[[limits]]`: a lower limit for matching models.
#[derive(Debug, Clone)]
pub struct Limit {
    /// A model name; `*` stands for any run of characters.
    pub model: String,
    pub max_input_tokens: u64,
}

impl Limit {
    /// Returns whether the limit applies to `model`, by its name or any shorter name: a provider's
    /// prefix does not bypass a limit.
    pub fn matches(&self, model: &str) -> bool {
        let pattern = self.model.to_ascii_lowercase();
        names::candidates(model).iter().any(|name| names::fits_pattern(name, &pattern))
    }
}

/// `[prices]`: models without a known price.
#[derive(Debug, Clone)]
pub struct Prices {
    pub unknown: UnknownPrice,
    /// Whether a cost that a provider states counts instead of a price.
    pub stated: bool,
    /// Price to assume if `unknown` selects it.
    pub default: Option<Price>,
}

/// Price of a model, or the rule if it is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priced<'a> {
    Known(&'a Price),
    /// Unknown: the configured default price.
    Default(&'a Price),
    /// Unknown: metered at no cost, with a warning.
    Unpriced,
    /// Unknown: not served.
    Refused,
}

/// `[cache]`: memory for token counts and compaction plans; never changes a result.
#[derive(Debug, Clone)]
pub struct Cache {
    pub counts_bytes: u64,
    pub folds_bytes: u64,
}

/// `[store]`: data that outlives requests and the process.
#[derive(Debug, Clone)]
pub struct Store {
    /// The file; empty for the default place in the user's state folder, `:memory:` for none.
    pub path: String,
    /// URL of a database server instead of a file. Contains its password.
    pub url: Option<Secret>,
}

/// `[ledger]`: the journal of requests' usage.
#[derive(Debug, Clone)]
pub struct Ledger {
    /// Whether requests are recorded.
    pub enabled: bool,
    pub on_failure: OnFailure,
    /// How long an answer is read for its usage after its caller has left; 0 stops at once.
    pub drain_ms: u64,
    /// How long rows of single requests are kept.
    pub retention_days: u64,
    /// How long daily totals are kept.
    pub sums_retention_days: u64,
    /// Whether each compaction leaves a receipt.
    pub receipts: bool,
}

/// `[log]`: one line per request, never with content.
#[derive(Debug, Clone)]
pub struct Log {
    pub format: LogFormat,
    /// `error`, `warn`, `info`, `debug` or `trace`.
    pub level: String,
}
