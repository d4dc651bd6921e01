//! The configuration as written, section by section: the keys, their ranges and what must agree.
//! What is not written keeps the code's default. Gathers nothing: see `cli::sources`.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::auth;
use super::budgets::{self, Budgets};
use super::checks::{address, host_name, network, origin, store_path, store_url};
use super::learning;
use super::names;
use super::own_models::models;
use super::policies::{self, Policies};
use super::prices;
use super::reader::{Problem, Reader, Warning};
use super::redis::{self, Redis};
use super::routes::{self, Routes};
use super::summaries::{self, Summaries};
use super::tls::{self, ListenTls};
use super::upstreams::{self, Upstream};
use super::{
    Admin, Auth, Cache, Catalogue, Config, Context, Cors, Learning, Ledger, Limit, Log, LogFormat,
    Mode, OnFailure, Originals, Prices, Server, Store, UnknownPrice, set,
};
use crate::context::Policy;

const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// A century.
const MAX_DAYS: u64 = 36_500;
const GIB: u64 = 1 << 30;
/// More than any model's window; less than what arithmetic on tokens could overflow with.
pub(super) const MAX_TOKENS: u64 = 1_000_000_000_000;

/// Reads all of a configuration, with the problems it has.
pub(super) fn read(mut reader: Reader) -> Result<(Config, Vec<Warning>), Vec<Problem>> {
    let config = sections(&mut reader);
    let problems = reader.finish();
    if problems.is_empty() {
        let warnings = warnings(&config);
        Ok((config, warnings))
    } else {
        Err(problems)
    }
}

/// Every key there is, read from `reader`.
pub(super) fn sections(reader: &mut Reader) -> Config {
    let mut config = Config::default();
    server(reader, &mut config.server);
    cors(reader, &mut config.cors);
    upstreams::read_default(reader, &mut config.upstream);
    config.upstreams = upstreams::read_named(reader);
    auth::read(reader, &mut config);
    context(reader, &mut config.context);
    config.routes =
        routes::read(reader, &config.upstream, &config.upstreams, &config.context.policies);
    summaries::read(reader, &mut config.summaries);
    learning::read(reader, &mut config.learning);
    config.limits = limits(reader);
    (config.models, config.model_settings) = models(reader, &config.context.policies);
    prices::read(reader, &mut config.prices);
    cache(reader, &mut config.cache);
    store(reader, &mut config.store);
    redis::read(reader, &mut config.redis);
    ledger(reader, &mut config.ledger);
    budgets::read(reader, &mut config.budgets);
    summaries::agree_with(reader, &config);
    log(reader, &mut config.log);
    config
}

impl Default for Config {
    fn default() -> Self {
        Self {
            server: Server {
                listen: SocketAddr::from(([127, 0, 0, 1], 8400)),
                allowed_hosts: Vec::new(),
                max_connections: 4096,
                max_header_bytes: 64 << 10,
                max_body_bytes: 64 << 20,
                max_bodies_in_flight_bytes: 1 << 30,
                max_messages: 20_000,
                header_timeout_ms: 10_000,
                drain_deadline_ms: 30_000,
                proxy_protocol_from: Vec::new(),
                tls: ListenTls::default(),
            },
            cors: Cors { allow_origins: Vec::new() },
            auth: Auth::default(),
            admin: Admin::default(),
            upstream: Upstream {
                forward_caller_key: true,
                ..Upstream::new("https://api.openai.com/v1")
            },
            upstreams: BTreeMap::new(),
            routes: Routes::default(),
            context: Context {
                mode: Mode::Compact,
                allow_bypass: false,
                policy: Policy::default(),
                policies: Policies::default(),
                default_policy: "default".to_owned(),
                allowed_policies: Vec::new(),
                originals: Originals::Off,
                originals_lifetime_ms: DAY_MS,
                originals_max_bytes: 64 << 20,
            },
            summaries: Summaries::default(),
            learning: Learning::default(),
            limits: Vec::new(),
            models: Catalogue::shipped(),
            model_settings: BTreeMap::new(),
            prices: Prices { unknown: UnknownPrice::Zero, default: None },
            cache: Cache { counts_bytes: 64 << 20, folds_bytes: 64 << 20 },
            store: Store { path: String::new(), url: None },
            redis: Redis::default(),
            ledger: Ledger {
                enabled: true,
                on_failure: OnFailure::Open,
                drain_ms: 2000,
                sync_interval_ms: 100,
                retention_days: 90,
                sums_retention_days: 1100,
            },
            budgets: Budgets::default(),
            log: Log { format: LogFormat::Text, level: "info".to_owned() },
        }
    }
}

fn size(reader: &mut Reader, path: &[&str], place: &mut usize, least: u64, most: u64) {
    let read = reader.whole(path, least..=most);
    set(place, read.and_then(|number| usize::try_from(number).ok()));
}

fn server(reader: &mut Reader, server: &mut Server) {
    let listen = reader.text_or_whole(&["server", "listen"], address);
    set(&mut server.listen, listen);
    let hosts = reader.list(&["server", "allowed_hosts"], host_name);
    set(&mut server.allowed_hosts, hosts);
    size(reader, &["server", "max_connections"], &mut server.max_connections, 1, 1_000_000);
    // The HTTP library refuses a header buffer below 8 KiB.
    size(reader, &["server", "max_header_bytes"], &mut server.max_header_bytes, 8 << 10, 16 << 20);
    size(reader, &["server", "max_body_bytes"], &mut server.max_body_bytes, 1 << 10, 4 * GIB);
    let in_flight = ["server", "max_bodies_in_flight_bytes"];
    size(reader, &in_flight, &mut server.max_bodies_in_flight_bytes, 1 << 10, 1024 * GIB);
    if server.max_bodies_in_flight_bytes < server.max_body_bytes {
        let body = server.max_body_bytes;
        let message =
            format!("is less than server.max_body_bytes ({body}): no such body could pass");
        reader.refuse(&in_flight, message);
    }
    size(reader, &["server", "max_messages"], &mut server.max_messages, 1, 10_000_000);
    let header = reader.whole(&["server", "header_timeout_ms"], 1..=DAY_MS);
    set(&mut server.header_timeout_ms, header);
    let drain = reader.whole(&["server", "drain_deadline_ms"], 0..=DAY_MS);
    set(&mut server.drain_deadline_ms, drain);
    let peers = reader.list(&["server", "proxy_protocol_from"], network);
    set(&mut server.proxy_protocol_from, peers);
    tls::read_listener(reader, &["server", "tls"], &mut server.tls);
}

fn cors(reader: &mut Reader, cors: &mut Cors) {
    let origins = reader.list(&["cors", "allow_origins"], origin);
    set(&mut cors.allow_origins, origins);
}

fn context(reader: &mut Reader, context: &mut Context) {
    let modes = [("compact", Mode::Compact), ("observe", Mode::Observe)];
    let mode = reader.choice(&["context", "mode"], &modes);
    set(&mut context.mode, mode);
    let allow_bypass = reader.switch(&["context", "allow_bypass"]);
    set(&mut context.allow_bypass, allow_bypass);
    policies::read(reader, &["context"], &mut context.policy);
    policies::policies(reader, context);
    originals(reader, context);
}

fn originals(reader: &mut Reader, context: &mut Context) {
    let places =
        [("off", Originals::Off), ("memory", Originals::Memory), ("store", Originals::Store)];
    let place = reader.choice(&["context", "originals"], &places);
    set(&mut context.originals, place);
    let lifetime = reader.whole(&["context", "originals_lifetime_ms"], 1000..=366 * DAY_MS);
    set(&mut context.originals_lifetime_ms, lifetime);
    let weight = reader.whole(&["context", "originals_max_bytes"], 1 << 10..=1024 * GIB);
    set(&mut context.originals_max_bytes, weight);
}

fn limits(reader: &mut Reader) -> Vec<Limit> {
    let mut limits = Vec::new();
    for row in 0..reader.rows("limits") {
        let row = row.to_string();
        let [model, input] = ["model", "max_input_tokens"].map(|key| ["limits", &row, key]);
        for path in [model, input] {
            if reader.is_absent(&path) {
                reader.refuse(&path, "is missing: a limit needs model and max_input_tokens");
            }
        }
        let pattern = reader.text(&model, |text| match text.trim() {
            "" => Err("is empty; write a model's name, such as \"gpt-4o*\"".to_owned()),
            text => Ok(text.to_owned()),
        });
        let max_input_tokens = reader.whole(&input, 1..=MAX_TOKENS);
        if let (Some(model), Some(max_input_tokens)) = (pattern, max_input_tokens) {
            limits.push(Limit { model, max_input_tokens });
        }
    }
    limits
}

fn cache(reader: &mut Reader, cache: &mut Cache) {
    let counts = reader.whole(&["cache", "counts_bytes"], 0..=1024 * GIB);
    set(&mut cache.counts_bytes, counts);
    let folds = reader.whole(&["cache", "folds_bytes"], 0..=1024 * GIB);
    set(&mut cache.folds_bytes, folds);
}

fn store(reader: &mut Reader, store: &mut Store) {
    let path = reader.text(&["store", "path"], store_path);
    set(&mut store.path, path);
    let url = reader.text(&["store", "url"], store_url);
    set(&mut store.url, url);
    if store.url.is_some() && !store.path.is_empty() {
        let message = "is given beside store.path; name one of them, a database server or a file";
        reader.refuse(&["store", "url"], message);
    }
}

fn ledger(reader: &mut Reader, ledger: &mut Ledger) {
    set(&mut ledger.enabled, reader.switch(&["ledger", "enabled"]));
    let choices = [("open", OnFailure::Open), ("closed", OnFailure::Closed)];
    set(&mut ledger.on_failure, reader.choice(&["ledger", "on_failure"], &choices));
    let wholes = [
        ("drain_ms", &mut ledger.drain_ms, 0..=DAY_MS),
        ("sync_interval_ms", &mut ledger.sync_interval_ms, 1..=DAY_MS),
        ("retention_days", &mut ledger.retention_days, 1..=MAX_DAYS),
        ("sums_retention_days", &mut ledger.sums_retention_days, 1..=MAX_DAYS),
    ];
    for (key, place, range) in wholes {
        set(place, reader.whole(&["ledger", key], range));
    }
}

fn log(reader: &mut Reader, log: &mut Log) {
    let formats = [("text", LogFormat::Text), ("json", LogFormat::Json)];
    let format = reader.choice(&["log", "format"], &formats);
    set(&mut log.format, format);
    let levels = ["error", "warn", "info", "debug", "trace"].map(|level| (level, level));
    let level = reader.choice(&["log", "level"], &levels);
    set(&mut log.level, level.map(str::to_owned));
}

fn warnings(config: &Config) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let mut warn = |key: &str, message: String| {
        let key = key.to_owned();
        warnings.push(Warning { key, message });
    };
    let server = &config.server;
    if !server.listen.ip().is_loopback() && server.allowed_hosts.is_empty() {
        let listen = server.listen;
        let message = format!(
            "weir listens on {listen}, yet callers on other machines get 403 until this lists the \
             names by which they reach it"
        );
        warn("server.allowed_hosts", message);
    }
    let admin = config.admin_listen().filter(|admin| !admin.ip().is_loopback());
    if let Some(admin) = admin.filter(|_| !config.admin.tls.is_on()) {
        let message = format!(
            "the admin API listens on {admin} without TLS: whoever hears it hears its token"
        );
        warn("admin.listen", message);
    }
    for (name, upstream) in config.all_upstreams() {
        let host = upstream.url.parse::<http::Uri>().ok();
        let host = host.as_ref().and_then(http::Uri::host).unwrap_or_default();
        let is_plain = upstream.url.to_ascii_lowercase().starts_with("http://");
        if !is_plain || names::is_local_host(host) {
            continue;
        }
        let whose = match (upstream.gets_callers_key(), upstream.lends()) {
            (true, _) => "callers' keys go",
            (false, true) => "weir's key goes",
            (false, false) => "conversations go",
        };
        let key = format!("{}.url", upstreams::section(name));
        warn(&key, format!("{whose} to {host} unencrypted; use https:// if it can"));
    }
    for (row, limit) in config.limits.iter().enumerate() {
        if !config.models.any_name(|name| limit.matches(name)) {
            let message = format!("{:?} matches no model that weir knows", limit.model);
            warn(&format!("limits[{row}].model"), message);
        }
    }
    warnings
}

#[cfg(test)]
mod problems;

#[cfg(test)]
mod tests;
