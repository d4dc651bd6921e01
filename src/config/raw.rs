//! Reading of the configuration, by section, with consistency checks. `keys` declares keys, ranges
//! and defaults; `cli::sources` merges the sources.

use figment::Figment;

use super::auth;
use super::conversations;
use super::events;
use super::keys::{
    ADMIN, AUTH, BUDGETS, CACHE, CONTEXT, CONTEXT_ADVANCED, CONVERSATIONS, CORS, EVENTS, LEARNING,
    LEDGER, LIMITS, LOG, SERVER, STORE, SUMMARIES, TRACES,
};
use super::names;
use super::own_models::models;
use super::policies;
use super::prices;
use super::reader::{Problem, Reader, Warning};
use super::redis;
use super::routes;
use super::summaries;
use super::traces;
use super::upstreams;
use super::{
    Admin, Auth, Budgets, Cache, Config, Context, Conversations, Cors, Events, Learning, Ledger,
    Limit, Log, Server, Store, Summaries, Traces,
};
use weir_engine::compact::Policy;

/// Reads a whole configuration and collects its problems.
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

/// Reads every key.
pub(super) fn sections(reader: &mut Reader) -> Config {
    let server = server(reader);
    let cors = Cors::read(&mut reader.section(&CORS));
    let upstream = upstreams::read_default(reader);
    let upstreams = upstreams::read_named(reader);
    let auth = Auth::read(&mut reader.section(&AUTH));
    let admin = Admin::read(&mut reader.section(&ADMIN));
    let context = context(reader);
    let routes = routes::read(reader, &upstream, &upstreams, &context.policies);
    let summaries = Summaries::read(&mut reader.section(&SUMMARIES));
    summaries::agree(reader, &summaries);
    let learning = Learning::read(&mut reader.section(&LEARNING));
    let limits = limits(reader);
    let (models, model_settings) = models(reader, &context.policies);
    let config = Config {
        server,
        cors,
        auth,
        admin,
        upstream,
        upstreams,
        routes,
        context,
        summaries,
        learning,
        limits,
        models,
        model_settings,
        prices: prices::read(reader),
        cache: cache(reader),
        store: store(reader),
        redis: redis::read(reader),
        conversations: Conversations::read(&mut reader.section(&CONVERSATIONS)),
        ledger: Ledger::read(&mut reader.section(&LEDGER)),
        budgets: Budgets::read(&mut reader.section(&BUDGETS)),
        events: Events::read(&mut reader.section(&EVENTS)),
        traces: Traces::read(&mut reader.section(&TRACES)),
        log: Log::read(&mut reader.section(&LOG)),
    };
    auth::agree(reader, &config);
    conversations::agree(reader, &config);
    summaries::agree_with(reader, &config);
    config
}

impl Default for Config {
    fn default() -> Self {
        let reader = Reader::new(Figment::new());
        sections(&mut reader.expect("there is nothing to merge"))
    }
}

fn server(reader: &mut Reader) -> Server {
    let mut keys = reader.section(&SERVER);
    let server = Server::read(&mut keys);
    if server.max_bodies_in_flight_bytes < server.max_body_bytes {
        let body = server.max_body_bytes;
        let message =
            format!("is less than server.max_body_bytes ({body}): no such body could pass");
        keys.refuse("max_bodies_in_flight_bytes", message);
    }
    server
}

fn context(reader: &mut Reader) -> Context {
    let mut policy = Policy::default();
    policies::read(reader, &["context"], [&CONTEXT, &CONTEXT_ADVANCED], &mut policy);
    let policies = policies::named(reader, &policy);
    let mut advanced = reader.section(&CONTEXT_ADVANCED);
    let originals_lifetime_ms = advanced.get("originals.lifetime_ms");
    let originals_max_bytes = advanced.get("originals.max_bytes");
    let mut keys = reader.section(&CONTEXT);
    Context {
        mode: keys.get("mode"),
        allow_bypass: keys.get("allow_bypass"),
        policy,
        default_policy: keys.text("policy", |text| policies.read_name(text)),
        allowed_policies: keys
            .list("allowed_policies", |text| policies.read_name(text))
            .unwrap_or_default(),
        policies,
        profile: keys.text("profile", conversations::profile),
        originals: keys.get("originals"),
        originals_lifetime_ms,
        originals_max_bytes,
    }
}

fn limits(reader: &mut Reader) -> Vec<Limit> {
    let mut limits = Vec::new();
    for row in 0..reader.rows("limits") {
        let row = row.to_string();
        let mut keys = reader.at(&LIMITS, &["limits", &row]);
        for key in ["model", "max_input_tokens"] {
            if keys.is_absent(key) {
                keys.refuse(key, "is missing: a limit needs model and max_input_tokens");
            }
        }
        let pattern = keys.written_text("model", |text| match text.trim() {
            "" => Err("is empty; write a model's name, such as \"gpt-4o*\"".to_owned()),
            text => Ok(text.to_owned()),
        });
        let max_input_tokens = keys.written("max_input_tokens");
        if let (Some(model), Some(max_input_tokens)) = (pattern, max_input_tokens) {
            limits.push(Limit { model, max_input_tokens });
        }
    }
    limits
}

fn cache(reader: &mut Reader) -> Cache {
    let max_bytes = reader.section(&CACHE).get("max_bytes");
    Cache { counts_bytes: max_bytes, folds_bytes: max_bytes }
}

fn store(reader: &mut Reader) -> Store {
    let mut keys = reader.section(&STORE);
    let store = Store::read(&mut keys);
    if store.url.is_some() && !store.path.is_empty() {
        let message =
            "is set together with store.path; keep one of them, a database server or a file";
        keys.refuse("url", message);
    }
    store
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
            "weir listens on {listen}, but callers on other machines get 403 until this lists the \
             host names that they use"
        );
        warn("server.allowed_hosts", message);
    }
    let admin = config.admin_listen().filter(|admin| !admin.ip().is_loopback());
    if let Some(admin) = admin.filter(|_| !config.admin.tls.is_on()) {
        let message = format!(
            "the admin API listens on {admin} without TLS: anyone who can read its traffic can \
             read its token"
        );
        warn("admin.listen", message);
    }
    if config.admin.show_conversations && !config.shows_conversations() {
        let message = "has no effect while context.originals is \"off\"".to_owned();
        warn("admin.show_conversations", message);
    }
    if config.ledger.receipts && !config.ledger.enabled {
        warn("ledger.receipts", "has no effect while ledger.enabled is false".to_owned());
    }
    for (name, upstream) in config.all_upstreams() {
        let host = upstream.url.parse::<http::Uri>().ok();
        let host = host.as_ref().and_then(http::Uri::host).unwrap_or_default();
        let is_plain = upstream.url.to_ascii_lowercase().starts_with("http://");
        let has_key = upstream.gets_callers_key() || upstream.lends();
        if !is_plain && !has_key && !names::is_local_host(host) {
            let key = format!("{}.api_key", upstreams::section(name));
            let cure = "set it, or forward_caller_key = true";
            warn(&key, format!("is absent, so {host} gets no key, not even callers' own: {cure}"));
        }
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
    let others = events::warnings(config).into_iter().chain(traces::warnings(config));
    for (key, message) in others.chain(conversations::warnings(config)) {
        warn(key, message);
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
