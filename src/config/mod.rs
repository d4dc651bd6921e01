//! Configuration as used: complete, checked, every key with its unit last.

mod auth;
mod budgets;
pub mod changes;
mod checks;
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
mod summaries;
mod tls;
pub mod upstreams;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use figment::Figment;
use ipnet::IpNet;

use crate::budget::Price;
use crate::context::Policy;
pub use auth::{Admin, AdminListen, Auth, AuthMode, Secret};
pub use budgets::Budgets;
pub use checks::is_database_url;
pub use learning::Learning;
pub use models::{Catalogue, Found, Known, ModelEntry};
pub use policies::Policies;
pub use reader::{Problem, Warning};
pub use redis::Redis;
pub use routes::{LargerWhen, Route, Routes};
pub use summaries::{SAME_MODEL, Summaries, SummaryMode};
pub use tls::{ConnectTls, ListenTls};
pub use upstreams::{DEFAULT_UPSTREAM, Upstream};

/// Every key with its default and what it is for, as TOML.
pub const DEFAULT_TOML: &str = include_str!("../../config/default.toml");

/// Checks and completes what `figment` gathered; all problems at once.
pub fn load(figment: Figment) -> Result<(Config, Vec<Warning>), Vec<Problem>> {
    raw::read(reader::Reader::new(figment)?)
}

/// Everything weir is told, from defaults, file, environment and flags.
#[derive(Debug, Clone)]
pub struct Config {
    pub server: Server,
    pub cors: Cors,
    pub auth: Auth,
    pub admin: Admin,
    pub upstream: Upstream,
    /// The others, by name.
    pub upstreams: BTreeMap<String, Upstream>,
    pub routes: Routes,
    pub context: Context,
    pub summaries: Summaries,
    pub learning: Learning,
    /// Lower limits by model pattern, for a whole organisation; the least that matches wins.
    pub limits: Vec<Limit>,
    /// Windows and prices by model: the shipped catalogue with the configuration's own entries on top.
    pub models: Catalogue,
    /// What is set for models beside that, by the catalogue's name.
    pub model_settings: BTreeMap<String, ModelSettings>,
    pub prices: Prices,
    pub cache: Cache,
    pub store: Store,
    pub redis: Redis,
    pub ledger: Ledger,
    pub budgets: Budgets,
    pub log: Log,
}

impl Config {
    /// The least of the configured limits for `model`, if any matches.
    pub fn configured_limit_tokens(&self, model: &str) -> Option<u64> {
        let matching = self.limits.iter().filter(|limit| limit.matches(model));
        matching.map(|limit| limit.max_input_tokens).min()
    }

    /// All upstreams, the default first, each by its name.
    pub fn all_upstreams(&self) -> impl Iterator<Item = (&str, &Upstream)> {
        let named = self.upstreams.iter().map(|(name, upstream)| (name.as_str(), upstream));
        std::iter::once((DEFAULT_UPSTREAM, &self.upstream)).chain(named)
    }

    /// Whether requests may go elsewhere than to the default upstream, or otherwise than as they are.
    pub fn is_routed(&self) -> bool {
        !self.upstreams.is_empty() || !self.routes.rows.is_empty()
    }

    /// What is set for the model that the catalogue calls `name`.
    pub fn settings(&self, name: Option<&str>) -> ModelSettings {
        name.and_then(|name| self.model_settings.get(name)).cloned().unwrap_or_default()
    }

    /// What `model` costs, or what is done where nobody knows.
    pub fn price(&self, model: &str) -> Priced<'_> {
        match (self.models.price(model), self.prices.unknown, &self.prices.default) {
            (Some(price), _, _) => Priced::Known(price),
            (None, UnknownPrice::Reject, _) => Priced::Refused,
            (None, UnknownPrice::Default, Some(price)) => Priced::Default(price),
            (None, UnknownPrice::Zero | UnknownPrice::Default, _) => Priced::Unpriced,
        }
    }

    /// The policy for a request that asks for `asked`, of a model that is set to `by_model`.
    pub fn policy(&self, asked: Option<&str>, by_model: Option<&str>) -> Policy {
        let context = &self.context;
        let name = asked.or(by_model).unwrap_or(&context.default_policy);
        context.policies.find(name, &context.policy).unwrap_or_else(|| context.policy.clone())
    }
}

/// Puts what was read, if anything, in the place of the default.
fn set<T>(place: &mut T, read: Option<T>) {
    if let Some(value) = read {
        *place = value;
    }
}

/// `[server]`: the listening side.
#[derive(Debug, Clone)]
pub struct Server {
    pub listen: SocketAddr,
    /// Names, beside loopback's, that a `Host` header may carry.
    pub allowed_hosts: Vec<String>,
    pub max_connections: usize,
    pub max_header_bytes: usize,
    pub max_body_bytes: usize,
    /// Bytes of request bodies held at once, over all requests.
    pub max_bodies_in_flight_bytes: usize,
    pub max_messages: usize,
    pub header_timeout_ms: u64,
    pub drain_deadline_ms: u64,
    /// Where connections come from whose first bytes tell whose they are.
    pub proxy_protocol_from: Vec<IpNet>,
    pub tls: ListenTls,
}

/// `[cors]`: web pages that may use this proxy.
#[derive(Debug, Clone)]
pub struct Cors {
    pub allow_origins: Vec<String>,
}

/// When a streamed chat whose caller does not ask for its usage is asked for it all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AskUsage {
    /// Always, but where the upstream has refused it for the model.
    Auto,
    /// Always; one that refuses is asked again with each request.
    Always,
    Never,
}

/// `[context]`: what becomes of a conversation that grows.
#[derive(Debug, Clone)]
pub struct Context {
    pub mode: Mode,
    pub allow_bypass: bool,
    /// What the section's own keys say: the policy `default`.
    pub policy: Policy,
    /// The others, by name.
    pub policies: Policies,
    /// The policy where neither the request nor the model names one.
    pub default_policy: String,
    /// The policies that a caller may choose.
    pub allowed_policies: Vec<String>,
    pub originals: Originals,
    /// How long an original is kept after the last request that it was left out of.
    pub originals_lifetime_ms: u64,
    /// What all originals together may weigh, book-keeping included.
    pub originals_max_bytes: u64,
}

/// Where messages that are not sent whole are kept, so that they can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Originals {
    /// Nowhere.
    Off,
    /// In this process alone.
    Memory,
    /// In the store.
    Store,
}

/// What is set for one model beside its windows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelSettings {
    pub policy: Option<String>,
    /// Whether its provider takes `cache_control`.
    pub cache_control: bool,
    pub late_system: LateSystem,
    /// Tokens of the model's own for a thousand of weir's estimate; nothing is learned of it then.
    pub token_permille: Option<u32>,
    /// The file of its vocabulary, a `tokenizer.json`.
    pub tokenizer: Option<String>,
}

/// What becomes of a system message that stands behind others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LateSystem {
    /// It stays as it is.
    #[default]
    Keep,
    /// It becomes a user's, for templates that refuse it.
    User,
}

/// What weir does with a conversation past its mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Brings it inside the limit.
    Compact,
    /// Plans and reports, and forwards it unchanged.
    Observe,
}

/// `[[limits]]`: a lower limit for models that match.
#[derive(Debug, Clone)]
pub struct Limit {
    /// A model name; `*` stands for any run of characters.
    pub model: String,
    pub max_input_tokens: u64,
}

impl Limit {
    /// Whether the limit holds for `model`, by its name or by any shorter name it is known by: a
    /// provider's prefix is no way around a limit.
    pub fn matches(&self, model: &str) -> bool {
        let pattern = self.model.to_ascii_lowercase();
        names::candidates(model).iter().any(|name| names::fits_pattern(name, &pattern))
    }
}

/// `[prices]`: what becomes of models whose price nobody knows.
#[derive(Debug, Clone)]
pub struct Prices {
    pub unknown: UnknownPrice,
    /// What they are taken to cost where `unknown` says so.
    pub default: Option<Price>,
}

/// What a request costs whose model has no known price.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnknownPrice {
    /// Nothing, and its record says that it has no price.
    Zero,
    /// It is refused.
    Reject,
    /// What the default price says.
    Default,
}

/// What the configuration knows of a model's price.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priced<'a> {
    Known(&'a Price),
    /// Not known: the price that is set for such models.
    Default(&'a Price),
    /// Not known: metered at no cost, which is worth a warning.
    Unpriced,
    /// Not known: not to be served.
    Refused,
}

/// `[cache]`: memory for counts and folds; never changes a result.
#[derive(Debug, Clone)]
pub struct Cache {
    pub counts_bytes: u64,
    pub folds_bytes: u64,
}

/// `[store]`: what outlives a request, and the process.
#[derive(Debug, Clone)]
pub struct Store {
    /// The file; empty for the usual place in the user's state folder, `:memory:` for none.
    pub path: String,
    /// A database server in the place of a file. Its password is in it.
    pub url: Option<Secret>,
}

/// `[ledger]`: what requests used, written down.
#[derive(Debug, Clone)]
pub struct Ledger {
    /// Whether requests are written down at all.
    pub enabled: bool,
    pub on_failure: OnFailure,
    /// How long an answer is read on for its usage when its caller has left; 0 is not at all.
    pub drain_ms: u64,
    /// How long what is written down may wait until it survives a loss of power as well.
    pub sync_interval_ms: u64,
    /// How long the rows of single requests are kept.
    pub retention_days: u64,
    /// How long the sums over days are kept.
    pub sums_retention_days: u64,
}

/// What becomes of a request that cannot be written down before it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnFailure {
    /// It is sent all the same.
    Open,
    /// It is refused.
    Closed,
}

/// `[log]`: one line a request, never with content.
#[derive(Debug, Clone)]
pub struct Log {
    pub format: LogFormat,
    /// `error`, `warn`, `info`, `debug` or `trace`.
    pub level: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}
