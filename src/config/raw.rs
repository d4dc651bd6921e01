//! The configuration as written, section by section: the keys, their ranges and what must agree.
//! What is not written keeps the code's default. Gathers nothing: see `cli::sources`.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::auth;
use super::budgets::{self, Budgets};
use super::checks::{address, base_url, host_name, origin, store_path, store_url};
use super::learning;
use super::names;
use super::own_models::models;
use super::policies::{self, Policies};
use super::prices;
use super::reader::{Problem, Reader, Warning};
use super::redis::{self, Redis};
use super::summaries::{self, Summaries};
use super::{
    Admin, AskUsage, Auth, Cache, Catalogue, Config, Context, Cors, Learning, Ledger, Limit, Log,
    LogFormat, Mode, OnFailure, Originals, Prices, Server, Store, UnknownPrice, Upstream, set,
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
    upstream(reader, &mut config.upstream);
    auth::read(reader, &mut config);
    context(reader, &mut config.context);
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
            },
            cors: Cors { allow_origins: Vec::new() },
            auth: Auth::default(),
            admin: Admin::default(),
            upstream: Upstream {
                url: "https://api.openai.com/v1".to_owned(),
                api_key_env: String::new(),
                api_key_file: String::new(),
                own_key: None,
                connect_timeout_ms: 10_000,
                first_byte_timeout_ms: 600_000,
                idle_timeout_ms: 300_000,
                ask_usage: AskUsage::Auto,
            },
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
    let listen = reader.text(&["server", "listen"], address);
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
}

fn cors(reader: &mut Reader, cors: &mut Cors) {
    let origins = reader.list(&["cors", "allow_origins"], origin);
    set(&mut cors.allow_origins, origins);
}

fn upstream(reader: &mut Reader, upstream: &mut Upstream) {
    let url = reader.text(&["upstream", "url"], base_url);
    set(&mut upstream.url, url);
    let timeouts = [
        ("connect_timeout_ms", &mut upstream.connect_timeout_ms),
        ("first_byte_timeout_ms", &mut upstream.first_byte_timeout_ms),
        ("idle_timeout_ms", &mut upstream.idle_timeout_ms),
    ];
    for (key, place) in timeouts {
        let read = reader.whole(&["upstream", key], 1..=DAY_MS);
        set(place, read);
    }
    let asks = [("auto", AskUsage::Auto), ("always", AskUsage::Always), ("never", AskUsage::Never)];
    set(&mut upstream.ask_usage, reader.choice(&["upstream", "ask_usage"], &asks));
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
    if let Some(admin) = config.admin_listen().filter(|admin| !admin.ip().is_loopback()) {
        let message = format!(
            "the admin API listens on {admin} without TLS: whoever hears it hears its token"
        );
        warn("admin.listen", message);
    }
    let host = config.upstream.url.parse::<http::Uri>().ok();
    let host = host.as_ref().and_then(http::Uri::host).unwrap_or_default();
    let is_plain = config.upstream.url.to_ascii_lowercase().starts_with("http://");
    if is_plain && !names::is_local_host(host) {
        let message = format!("callers' keys go to {host} unencrypted; use https:// if it can");
        warn("upstream.url", message);
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
mod tests {
    use std::collections::BTreeSet;

    use figment::Figment;
    use figment::providers::{Format, Toml};

    use super::problems::PROBLEMS;
    use super::*;
    use crate::config::{AdminListen, AuthMode, DEFAULT_TOML, ModelEntry, load};
    use crate::context::anchors::Anchors;
    use crate::context::policy::{
        Breakpoints, Counting, Eviction, Extract, FileHints, Fill, Importance, Mask, Notes,
        Notices, Restart, Shares, Zones,
    };
    use crate::context::preset::preset;
    use crate::tokens::Encoding;

    fn toml(text: &str) -> Figment {
        Figment::from(Toml::string(text))
    }

    fn loaded(text: &str) -> (Config, Vec<Warning>) {
        load(toml(text)).expect("this configuration is right")
    }

    /// The lines of the problems in `text`, less where they came from.
    fn problems(text: &str) -> Vec<String> {
        let problems = load(toml(text)).expect_err("this configuration is wrong");
        let lines = problems.iter().map(ToString::to_string);
        lines.map(|line| line.replace(" (TOML source string)", "")).collect()
    }

    #[test]
    fn the_default_file_says_what_the_code_does() {
        let (config, warnings) = loaded(DEFAULT_TOML);
        assert_eq!(format!("{config:#?}"), format!("{:#?}", Config::default()));
        assert_eq!(warnings, []);
        let (config, _) = loaded("");
        assert_eq!(format!("{config:#?}"), format!("{:#?}", Config::default()));
    }

    #[test]
    fn the_default_file_has_every_key_with_a_comment_above() {
        let mut reader = Reader::new(Figment::new()).expect("nothing is readable");
        sections(&mut reader);
        let known: BTreeSet<String> = reader.keys().map(str::to_owned).collect();
        let mut section = "";
        let mut before = "";
        let mut written = BTreeSet::new();
        for line in DEFAULT_TOML.lines() {
            if let Some(name) = line.strip_prefix('[') {
                section = name.trim_end_matches(']');
            } else if let Some((key, _)) = line.split_once(" = ").filter(|_| !line.starts_with('#'))
            {
                assert!(before.starts_with("# "), "{key} has no comment above it");
                written.insert(format!("{section}.{key}"));
            }
            before = line;
        }
        assert_eq!(written, known);
    }

    #[test]
    fn the_examples_in_the_default_file_work() {
        let example = |line: &str| line.starts_with('[') || line.contains(" = ");
        let lines = DEFAULT_TOML.lines().filter_map(|line| line.strip_prefix("# "));
        let text: Vec<&str> = lines.filter(|line| example(line)).collect();
        let (config, warnings) = loaded(&text.join("\n"));
        assert_eq!(config.configured_limit_tokens("gpt-4o-mini"), Some(100_000));
        let found = config.models.find("my-model");
        assert_eq!(
            found.entry,
            ModelEntry {
                window_tokens: 32_768,
                max_input_tokens: Some(28_672),
                max_output_tokens: Some(4_096),
                encoding: Encoding::O200kBase,
                strict_alternation: false,
            }
        );
        let price = config.models.price("my-model").map(ToString::to_string);
        let tiered = "in 2.5 cached 0.25 out 10 above 200000 in 5 cached 0.5 out 15";
        assert_eq!(price.as_deref(), Some(tiered));
        let default = config.prices.default.as_ref().map(ToString::to_string);
        assert_eq!(default.as_deref(), Some("in 3 out 15"));
        assert_eq!(warnings, []);
    }

    const EVERY_KEY: &str = r#"
        [server]
        listen = "[::1]:0"
        allowed_hosts = ["Weir.Example", "[fd00::1]"]
        max_connections = 1
        max_header_bytes = 8192
        max_body_bytes = 1024
        max_bodies_in_flight_bytes = 1024
        max_messages = 2
        header_timeout_ms = 3
        drain_deadline_ms = 0
        [cors]
        allow_origins = ["https://Chat.example:8443/"]
        [auth]
        mode = "keys"
        allow_anonymous = true
        [admin]
        listen = "127.0.0.1:2"
        token_file = "kept/token"
        [upstream]
        url = "http://localhost:1/v1"
        api_key_env = "PROVIDER_KEY"
        connect_timeout_ms = 4
        first_byte_timeout_ms = 5
        idle_timeout_ms = 6
        ask_usage = "never"
        [context]
        mode = "observe"
        allow_bypass = true
        hard = 0.9
        low = 0.625
        min_growth = 0
        recent_messages = 7
        recent = 1
        pinned = 0.0
        notes = "off"
        thrift = 2.5
        tail = 0.2
        originals = "store"
        originals_lifetime_ms = 1000
        originals_max_bytes = 1024
        policy = "mine"
        allowed_policies = ["zones", "mine"]
        soft = 0.7
        trigger_tokens = 24000
        min_progress = 0.02
        restart_at = "exhausted"
        carryover_turns = 5
        notice_mask = "a"
        notice_wind_down = "b"
        notice_restart = "c"
        margin = 0.2
        reserve_tokens = 1024
        encoding = "estimate"
        mask = "placeholder"
        mask_repeats = "placeholder"
        mask_images = "placeholder"
        mask_arguments = "placeholder"
        mask_batch = 4
        window = 0.3
        anchors = ["^Decision"]
        importance = "reference"
        fill = "greedy"
        keep_messages = 10
        extract = 0.2
        request_characters = 100
        attack = "shares"
        system_share = 0.2
        anchors_share = 0.3
        conversation_share = 0.4
        oversize_tokens = 8000
        file_hints = "full"
        cache_tier_requests = 2
        cache_target_tokens = 2048
        [policies.mine]
        preset = "zones"
        mask_batch = 5
        [policies.plain]
        notes = "count"
        [learning]
        heal = false
        limit_lifetime_ms = 1000
        calibrate = false
        [prices]
        unknown = "reject"
        [cache]
        counts_bytes = 8
        folds_bytes = 0
        [store]
        path = "kept/weir.db"
        url = ""
        [ledger]
        enabled = false
        on_failure = "closed"
        drain_ms = 7
        sync_interval_ms = 8
        retention_days = 9
        sums_retention_days = 10
        [budgets]
        time_zone = "Europe/Berlin"
        clamp = false
        wait_ms = 0
        on_failure = "closed"
        webhook_url = "https://chat.example/hook"
        [log]
        format = "json"
        level = "debug"
    "#;

    #[test]
    fn every_key_is_taken() {
        let (config, _) = loaded(EVERY_KEY);
        let expected = Config {
            server: Server {
                listen: "[::1]:0".parse().expect("an address"),
                allowed_hosts: vec!["weir.example".into(), "[fd00::1]".into()],
                max_connections: 1,
                max_header_bytes: 8192,
                max_body_bytes: 1024,
                max_bodies_in_flight_bytes: 1024,
                max_messages: 2,
                header_timeout_ms: 3,
                drain_deadline_ms: 0,
            },
            cors: Cors { allow_origins: vec!["https://chat.example:8443".into()] },
            auth: Auth { mode: AuthMode::Keys, allow_anonymous: true },
            admin: Admin {
                listen: AdminListen::At("127.0.0.1:2".parse().expect("an address")),
                token_file: "kept/token".into(),
            },
            upstream: Upstream {
                url: "http://localhost:1/v1".into(),
                api_key_env: "PROVIDER_KEY".into(),
                api_key_file: String::new(),
                own_key: None,
                connect_timeout_ms: 4,
                first_byte_timeout_ms: 5,
                idle_timeout_ms: 6,
                ask_usage: AskUsage::Never,
            },
            context: Context {
                mode: Mode::Observe,
                allow_bypass: true,
                policy: every_key_of_a_policy(),
                policies: config.context.policies.clone(),
                default_policy: "mine".into(),
                allowed_policies: vec!["zones".into(), "mine".into()],
                originals: Originals::Store,
                originals_lifetime_ms: 1000,
                originals_max_bytes: 1024,
            },
            learning: Learning { heal: false, limit_lifetime_ms: 1000, calibrate: false },
            prices: Prices { unknown: UnknownPrice::Reject, default: None },
            cache: Cache { counts_bytes: 8, folds_bytes: 0 },
            store: Store { path: "kept/weir.db".into(), url: None },
            ledger: Ledger {
                enabled: false,
                on_failure: OnFailure::Closed,
                drain_ms: 7,
                sync_interval_ms: 8,
                retention_days: 9,
                sums_retention_days: 10,
            },
            budgets: every_key_of_budgets(),
            log: Log { format: LogFormat::Json, level: "debug".into() },
            ..Config::default()
        };
        assert_eq!(format!("{config:#?}"), format!("{expected:#?}"));
        let mut zones = preset("zones").expect("a preset");
        zones.mask.batch = 5;
        assert_eq!(config.policy(None, None), zones);
        let plain = Policy { notes: Notes::Count, ..every_key_of_a_policy() };
        assert_eq!(config.policy(None, Some("plain")), plain);
        assert_eq!(config.policy(Some("default"), Some("plain")), every_key_of_a_policy());
        assert_eq!(Some(config.policy(Some("scored"), None)), preset("scored"));
    }

    /// The section `[budgets]` that [`EVERY_KEY`] writes.
    fn every_key_of_budgets() -> Budgets {
        Budgets {
            time_zone: jiff::tz::TimeZone::get("Europe/Berlin").expect("it is shipped"),
            clamp: false,
            wait_ms: 0,
            on_failure: OnFailure::Closed,
            webhook_url: "https://chat.example/hook".into(),
        }
    }

    /// The policy that [`EVERY_KEY`] writes.
    fn every_key_of_a_policy() -> Policy {
        let text = |text: &str| Some(text.into());
        Policy {
            hard_permille: 900,
            low_permille: 625,
            min_growth_permille: 0,
            recent_messages: 7,
            recent_permille: 1000,
            pinned_permille: 0,
            notes: Notes::Nothing,
            thrift_permille: 2500,
            tail_permille: 200,
            notes_apart: true,
            strict_alternation: false,
            zones: Zones {
                soft_permille: 700,
                trigger_tokens: 24_000,
                min_progress_permille: 20,
                restart: Restart::Exhausted,
                carryover_turns: 5,
                notices: Notices { mask: text("a"), wind_down: text("b"), restart: text("c") },
            },
            mask: Mask {
                results: true,
                repeats: true,
                images: true,
                arguments: true,
                batch: 4,
                window_permille: 300,
            },
            eviction: Eviction {
                importance: Importance::Reference,
                fill: Fill::Greedy,
                keep_messages: 10,
            },
            extract: Extract { permille: 200, request_characters: 100 },
            counting: Counting { margin_permille: 200, reserve_tokens: 1024, is_estimated: true },
            shares: Shares {
                is_attacked: true,
                system_permille: 200,
                anchors_permille: 300,
                conversation_permille: 400,
                oversize_tokens: 8000,
                file_hints: FileHints::Full,
            },
            breakpoints: Breakpoints { tier_requests: 2, target_tokens: 2048 },
            anchors: Anchors::new(vec!["^Decision".into()]).expect("a pattern"),
        }
    }

    #[test]
    fn each_problem_names_its_key_and_its_cure() {
        for (text, expected) in PROBLEMS {
            assert_eq!(problems(text), [*expected], "{text}");
        }
    }

    #[test]
    fn an_upstream_must_be_a_plain_base_url() {
        let example = "write it as an SDK would be given it, such as https://api.openai.com/v1";
        for (url, expected) in [
            ("api.openai.com/v1", "does not begin with https:// or http://"),
            ("ftp://a/", "does not begin with https:// or http://"),
            ("https:///v1", "\"https:///v1\" is no URL"),
            ("https://a b/v1", "\"https://a b/v1\" is no URL"),
            ("https://a:99999/v1", "\"https://a:99999/v1\" has a port that is not from 1 to 65535"),
            (
                "https://a/v1#x",
                "\"https://a/v1#x\" has a fragment (from # on), which is never sent",
            ),
        ] {
            let problems = problems(&format!("[upstream]\nurl = {url:?}"));
            assert_eq!(problems, [format!("upstream.url: {expected}; {example}")], "{url}");
        }
        let [problem] = &problems("[upstream]\nurl = \"https://me:secret@a/v1\"")[..] else {
            panic!("one problem");
        };
        assert!(problem.contains("leave them out") && !problem.contains("secret"), "{problem}");
        for url in ["http://[::1]:8080", "HTTPS://a.b/openai/v1/?api-version=1", "https://a:443"] {
            assert_eq!(loaded(&format!("[upstream]\nurl = {url:?}")).0.upstream.url, url);
        }
    }

    #[test]
    fn all_problems_come_at_once() {
        let text =
            "colour = 1\n[server]\nlisten = 1\n[context]\nlow = 2\nhigh = 1\n[log]\nlevel = 3";
        let keys: Vec<_> =
            load(toml(text)).expect_err("wrong").into_iter().map(|p| p.key).collect();
        assert_eq!(keys, ["server.listen", "context.low", "log.level", "colour", "context.high"]);
    }

    #[test]
    fn own_models_go_before_the_catalogue() {
        let (config, _) = loaded(
            "[models.\"GPT-4o\"]\nwindow_tokens = 1000\n\
             [models.\"openai/gpt-5\"]\nmax_output_tokens = 9\n\
             [models.small-mistral]\nwindow_tokens = 500\nstrict_alternation = true",
        );
        let gpt_4o = config.models.find("azure/gpt-4o").entry;
        assert_eq!((gpt_4o.window_tokens, gpt_4o.max_output_tokens), (1000, None));
        assert_eq!(config.models.find("gpt-5").entry.max_output_tokens, Some(128_000));
        let gpt_5 = config.models.find("openai/gpt-5").entry;
        let expected = (400_000, Some(272_000), Some(9));
        assert_eq!(
            (gpt_5.window_tokens, gpt_5.max_input_tokens, gpt_5.max_output_tokens),
            expected
        );
        let own = config.models.find("small-mistral").entry;
        assert_eq!(
            (own.window_tokens, own.max_input_tokens, own.max_output_tokens),
            (500, None, None)
        );
        assert!(own.strict_alternation);
    }

    #[test]
    fn the_least_matching_limit_wins_and_no_prefix_avoids_it() {
        let (config, warnings) = loaded(
            "[[limits]]\nmodel = \"GPT-4o*\"\nmax_input_tokens = 100\n\
             [[limits]]\nmodel = \"*-mini\"\nmax_input_tokens = 50\n\
             [[limits]]\nmodel = \"gpt4o\"\nmax_input_tokens = 1",
        );
        assert_eq!(config.configured_limit_tokens("gpt-4o"), Some(100));
        assert_eq!(config.configured_limit_tokens("openai/gpt-4o-mini"), Some(50));
        assert_eq!(config.configured_limit_tokens("o3"), None);
        let lines: Vec<_> = warnings.iter().map(ToString::to_string).collect();
        assert_eq!(lines, ["limits[2].model: \"gpt4o\" matches no model that weir knows"]);
    }

    #[test]
    fn what_is_probably_not_meant_is_warned_of() {
        let (_, warnings) = loaded(
            "[server]\nlisten = \"0.0.0.0:8400\"\n[upstream]\nurl = \"http://models.internal/v1\"",
        );
        let keys: Vec<_> = warnings.iter().map(|warning| warning.key.as_str()).collect();
        assert_eq!(keys, ["server.allowed_hosts", "upstream.url"]);
        let (_, warnings) = loaded("[upstream]\nurl = \"http://127.0.0.1:11434/v1\"");
        assert_eq!(warnings, []);
    }
}
