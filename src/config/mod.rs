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
use std::net::SocketAddr;

use figment::Figment;
use ipnet::IpNet;

pub use auth::{Admin, AdminListen, Auth, SecretPlace};
pub use budgets::Budgets;
pub use checks::is_database_url;
use checks::{address, host_name, network, origin, store_path, store_url};
pub use choices::{
    AskUsage, AuthMode, Clamp, CompactsBy, LargerWhen, LateSystem, LogFormat, Mode, OnFailure,
    Originals, SummaryMode, UnknownPrice,
};
pub use conversations::Conversations;
pub use events::{EventKind, Events};
pub use learning::Learning;
pub use models::{Catalogue, Found, Known, ModelEntry};
pub use policies::Policies;
use reader::settings;
pub use reader::{DEFAULTS, Problem, Warning};
pub use redis::Redis;
pub use routes::{FallbackOn, Route, Routes};
pub use summaries::{SAME_MODEL, Summaries};
pub use tls::TlsFiles;
pub use traces::Traces;
pub use upstreams::{DEFAULT_UPSTREAM, Upstream};
use weir_engine::compact::Policy;
pub use weir_store::Secret;
use weir_store::budget::Price;

/// Every key with its default and its description, as TOML.
pub const DEFAULT_TOML: &str = include_str!("../../config/default.toml");

/// Maximum size of a request line and its headers: twice the most of common servers, with room for the
/// tokens of identity providers.
const MAX_HEADER_BYTES: usize = 64 << 10;

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

settings! {
    /// `[server]`: the listener.
    #[derive(Debug, Clone)]
    Server from keys {
        listen: SocketAddr = keys.text("listen", address),
        /// Names, besides those of loopback, that a `Host` header may carry.
        allowed_hosts: Vec<String> = keys.list("allowed_hosts", host_name).unwrap_or_default(),
        max_connections: usize = keys.get("max_connections"),
        max_header_bytes: usize = MAX_HEADER_BYTES,
        max_body_bytes: usize = keys.get("max_body_bytes"),
        /// Maximum bytes of request bodies held at once, over all requests.
        max_bodies_in_flight_bytes: usize = keys.get("max_bodies_in_flight_bytes"),
        max_messages: usize = keys.get("max_messages"),
        header_timeout_ms: u64 = keys.get("timeouts_ms.header"),
        body_idle_timeout_ms: u64 = keys.get("body_timeouts_ms.idle"),
        body_timeout_ms: u64 = keys.get("body_timeouts_ms.total"),
        drain_deadline_ms: u64 = keys.get("timeouts_ms.drain"),
        /// Networks whose connections start with a PROXY protocol header.
        proxy_protocol_from: Vec<IpNet> = keys.list("proxy_protocol_from", network).unwrap_or_default(),
        tls: TlsFiles = tls::read_listener(keys),
    }

    /// `[cors]`: web pages that may use this proxy.
    #[derive(Debug, Clone)]
    Cors from keys {
        allow_origins: Vec<String> = keys.list("allow_origins", origin).unwrap_or_default(),
    }
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

settings! {
    /// `[store]`: data that outlives requests and the process.
    #[derive(Debug, Clone)]
    Store from keys {
        /// The file; empty for the default place in the user's state folder, `:memory:` for none.
        path: String = keys.text("path", store_path),
        /// URL of a database server instead of a file. Contains its password.
        url: Option<Secret> = keys.text("url", store_url),
    }

    /// `[ledger]`: the journal of requests' usage.
    #[derive(Debug, Clone)]
    Ledger from keys {
        /// Whether requests are recorded.
        enabled: bool = keys.get("enabled"),
        on_failure: OnFailure = keys.get("on_failure"),
        /// How long an answer is read for its usage after its caller has left; 0 stops at once.
        drain_ms: u64 = keys.get("drain_ms"),
        /// How long rows of single requests are kept.
        retention_days: u64 = keys.get("retention_days.requests"),
        /// How long daily totals are kept.
        sums_retention_days: u64 = keys.get("retention_days.totals"),
        /// Whether each compaction leaves a receipt.
        receipts: bool = keys.get("receipts"),
    }

    /// `[log]`: one line per request, never with content.
    #[derive(Debug, Clone)]
    Log from keys {
        format: LogFormat = keys.get("format"),
        /// `error`, `warn`, `info`, `debug` or `trace`.
        level: String = keys.get("level"),
    }
}
