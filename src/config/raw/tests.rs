//! Tests of every key, every error message and the default file.

use std::collections::BTreeSet;

use figment::Figment;
use figment::providers::{Format, Toml};

use super::problems::PROBLEMS;
use super::*;
use crate::config::keys::{Kind, SECTIONS};
use crate::config::{
    Admin, AdminListen, AskUsage, Auth, AuthMode, Budgets, Clamp, CompactsBy, Conversations,
    DEFAULT_TOML, EventKind, Events, Learning, LogFormat, Mode, ModelEntry, OnFailure, Originals,
    Prices, SecretPlace, TlsFiles, Traces, UnknownPrice, Upstream, load,
};
use weir_engine::compact::anchors::Anchors;
use weir_engine::compact::policy::{
    Breakpoints, Counting, Eviction, Extract, FileHints, Fill, Goal, Importance, Mask, Notes,
    Notices, Restart, Shares, Zones,
};
use weir_engine::compact::preset::preset;
use weir_engine::tokens::Encoding;
use weir_store::conversations::ConversationLimits;

fn toml(text: &str) -> Figment {
    Figment::from(Toml::string(text))
}

fn loaded(text: &str) -> (Config, Vec<Warning>) {
    load(toml(text)).expect("this configuration is right")
}

/// Returns the problem lines of `text`, without their origin.
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
fn every_declared_key_is_read() {
    let mut reader = Reader::new(Figment::new()).expect("nothing is readable");
    sections(&mut reader);
    let read: BTreeSet<String> = reader.keys().map(str::to_owned).collect();
    let plain = SECTIONS.iter().filter(|section| !section.path.contains('*'));
    let declared: BTreeSet<String> = plain
        .flat_map(|section| section.keys.iter().copied().flatten().map(move |key| (section, key)))
        .flat_map(|(section, key)| {
            let name = format!("{}.{}", section.path, key.name);
            match key.kind {
                Kind::Members(members) => {
                    members.iter().map(|(member, _)| format!("{name}.{member}")).collect()
                }
                _ => vec![name],
            }
        })
        .collect();
    assert_eq!(read, declared);
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
    assert_eq!(warnings, []);
}

const EVERY_KEY: &str = r#"
        [server]
        listen = "[::1]:0"
        allowed_hosts = ["Weir.Example", "[fd00::1]"]
        max_connections = 1
        max_body_bytes = 1024
        max_bodies_in_flight_bytes = 65538
        max_messages = 2
        timeouts_ms.header = 3
        body_timeouts_ms.idle = 4
        body_timeouts_ms.total = 5
        timeouts_ms.drain = 0
        proxy_protocol_from = ["10.0.0.0/8", "fd00::1"]
        [server.tls]
        cert_file = "a.pem"
        key_file = "b.pem"
        client_ca_file = "c.pem"
        [cors]
        allow_origins = ["https://Chat.example:8443/"]
        [auth]
        mode = "keys"
        allow_anonymous = true
        secret = "env:WEIR_SECRET"
        [admin]
        listen = "127.0.0.1:2"
        token_file = "kept/token"
        show_conversations = true
        [admin.tls]
        cert_file = "d.pem"
        key_file = "e.pem"
        [upstream]
        url = "http://localhost:1/v1"
        api_key = "env:PROVIDER_KEY"
        forward_trace_headers = true
        timeouts_ms.connect = 4
        timeouts_ms.first_byte = 5
        timeouts_ms.idle = 6
        request_usage = "never"
        compaction = "weir"
        tls.ca_file = "f.pem"
        tls.cert_file = "g.pem"
        tls.key_file = "h.pem"
        retries.max = 7
        retries.max_wait_ms = 8
        headers = { HTTP-Referer = "https://example.com", X-Team = "env:TEAM_KEY" }
                [context]
        mode = "observe"
        allow_bypass = true
        hard = 0.9
        low = 0.625
        notes = "off"
        excerpt_cost = 2.5
        recall.share = 0.2
        recall.tool = true
        profile = "Be brief."
        originals = "store"
        policy = "mine"
        allowed_policies = ["zones", "mine"]
        anchors = ["^Decision"]
        limit = 24000
        [context.advanced]
        marks.early = 0.85
        marks.min_growth = 0
        keep.recent_messages = 7
        keep.recent = 1
        keep.pinned = 0.0
        keep.survival = 0.3
        originals.lifetime_ms = 1000
        originals.max_bytes = 1024
        marks.soft = 0.7
        marks.min_progress = 0.02
        restart.at = "exhausted"
        restart.carryover_turns = 5
        notices.mask = "a"
        notices.wind_down = "b"
        notices.restart = "c"
        counting.margin = 0.2
        counting.reserve_tokens = 1024
        counting.encoding = "estimate"
        mask.content = ["results", "repeats", "images", "arguments"]
        mask.batch = 4
        mask.window = 0.3
        evict.importance = "reference"
        evict.fill = "greedy"
        evict.last_messages = 10
        extract.share = 0.2
        extract.request_characters = 100
        shares.order = "shares"
        shares.system = 0.2
        shares.anchors = 0.3
        shares.conversation = 0.4
        mask.oversize_tokens = 8000
        notices.files = "full"
        breakpoints.tier_requests = 2
        breakpoints.target_tokens = 2048
        [policies.mine]
        preset = "zones"
        [policies.mine.advanced]
        mask.batch = 5
        [policies.plain]
        notes = "count"
        [learning]
        overflow_retry = false
        calibrate = false
        [prices]
        unknown = "reject"
        [cache]
        max_bytes = 8
        [store]
        path = "kept/weir.db"
        url = ""
        [conversations]
        enabled = true
        max_messages = 11
        retention_days = 12
        max_bytes.conversation = 65537
        max_bytes.total = 1048577
        [ledger]
        enabled = false
        on_failure = "closed"
        drain_ms = 7
        retention_days.requests = 9
        retention_days.totals = 10
        receipts = true
        [budgets]
        time_zone = "Europe/Berlin"
        clamp = "off"
        wait_ms = 0
        on_failure = "closed"
        [events]
        webhook_url = "https://ops.example/hook"
        kinds = ["reload_refused", "store_failing"]
        secret = "env:EVENTS_SECRET"
        [traces]
        endpoint = "https://collector.example:4318/"
        sample_ratio = 0.25
        [log]
        format = "json"
        level = "debug"
    "#;

#[test]
fn every_key_is_taken() {
    let (config, _) = loaded(EVERY_KEY);
    let expected = Config {
        server: every_key_of_the_server(),
        cors: Cors { allow_origins: vec!["https://chat.example:8443".into()] },
        auth: Auth {
            mode: AuthMode::Keys,
            allow_anonymous: true,
            secret_place: SecretPlace::Variable("WEIR_SECRET".into()),
            ..Auth::default()
        },
        admin: Admin {
            listen: AdminListen::At("127.0.0.1:2".parse().expect("an address")),
            token_file: "kept/token".into(),
            show_conversations: true,
            tls: TlsFiles {
                cert_file: "d.pem".into(),
                key_file: "e.pem".into(),
                ..TlsFiles::default()
            },
        },
        upstream: every_key_of_an_upstream(),
        context: Context {
            mode: Mode::Observe,
            allow_bypass: true,
            policy: every_key_of_a_policy(),
            policies: config.context.policies.clone(),
            default_policy: "mine".into(),
            allowed_policies: vec!["zones".into(), "mine".into()],
            profile: "Be brief.".into(),
            originals: Originals::Store,
            originals_lifetime_ms: 1000,
            originals_max_bytes: 1024,
        },
        learning: Learning { heal: false, calibrate: false },
        prices: Prices { unknown: UnknownPrice::Reject, stated: false, default: None },
        cache: Cache { counts_bytes: 8, folds_bytes: 8 },
        store: Store { path: "kept/weir.db".into(), url: None },
        conversations: every_key_of_conversations(),
        ledger: Ledger {
            enabled: false,
            on_failure: OnFailure::Closed,
            drain_ms: 7,
            retention_days: 9,
            sums_retention_days: 10,
            receipts: true,
        },
        budgets: every_key_of_budgets(),
        events: Events {
            webhook_url: "https://ops.example/hook".into(),
            kinds: vec![EventKind::ReloadRefused, EventKind::StoreFailing],
            secret_place: SecretPlace::Variable("EVENTS_SECRET".into()),
            ..Events::default()
        },
        traces: every_key_of_traces(),
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

fn every_key_of_traces() -> Traces {
    Traces {
        endpoint: "https://collector.example:4318/v1/traces".into(),
        headers: Vec::new(),
        service_name: "weir".into(),
        sample_permille: 250,
    }
}

/// The sections `[server]` and `[server.tls]` of [`EVERY_KEY`].
fn every_key_of_the_server() -> Server {
    Server {
        listen: "[::1]:0".parse().expect("an address"),
        allowed_hosts: vec!["weir.example".into(), "[fd00::1]".into()],
        max_connections: 1,
        max_header_bytes: 65_536,
        max_body_bytes: 1024,
        max_bodies_in_flight_bytes: 65_538,
        max_messages: 2,
        header_timeout_ms: 3,
        body_idle_timeout_ms: 4,
        body_timeout_ms: 5,
        drain_deadline_ms: 0,
        proxy_protocol_from: ["10.0.0.0/8", "fd00::1/128"]
            .map(|network| network.parse().expect("a network"))
            .to_vec(),
        tls: TlsFiles {
            cert_file: "a.pem".into(),
            key_file: "b.pem".into(),
            ca_file: "c.pem".into(),
            ..TlsFiles::default()
        },
    }
}

/// The section `[conversations]` of [`EVERY_KEY`].
fn every_key_of_conversations() -> Conversations {
    Conversations {
        enabled: true,
        max_messages: 11,
        limits: ConversationLimits {
            lifetime_ms: 12 * 24 * 60 * 60 * 1000,
            max_conversation_bytes: 65_537,
            max_bytes: 1_048_577,
        },
    }
}

/// The section `[budgets]` of [`EVERY_KEY`].
fn every_key_of_budgets() -> Budgets {
    Budgets {
        time_zone: jiff::tz::TimeZone::get("Europe/Berlin").expect("it is shipped"),
        clamp: Clamp::Off,
        wait_ms: 0,
        on_failure: OnFailure::Closed,
    }
}

/// The upstream of [`EVERY_KEY`].
fn every_key_of_an_upstream() -> Upstream {
    Upstream {
        api_key: SecretPlace::Variable("PROVIDER_KEY".into()),
        forward_caller_key: true,
        headers: vec![("http-referer".into(), "https://example.com".into())],
        header_envs: vec![("x-team".into(), "TEAM_KEY".into())],
        connect_timeout_ms: 4,
        first_byte_timeout_ms: 5,
        idle_timeout_ms: 6,
        max_retries: 7,
        retry_max_wait_ms: 8,
        forward_trace_headers: true,
        ask_usage: AskUsage::Never,
        compaction: CompactsBy::Weir,
        tls: TlsFiles {
            ca_file: "f.pem".into(),
            cert_file: "g.pem".into(),
            key_file: "h.pem".into(),
            ..TlsFiles::default()
        },
        ..Upstream::new("http://localhost:1/v1")
    }
}

/// The policy of [`EVERY_KEY`].
fn every_key_of_a_policy() -> Policy {
    let text = |text: &str| Some(text.into());
    Policy {
        clearing: None,
        hard_permille: 900,
        low_permille: 625,
        early_permille: 850,
        min_growth_permille: 0,
        recent_messages: 7,
        recent_permille: 1000,
        pinned_permille: 0,
        notes: Notes::Nothing,
        excerpt_cost_permille: 2500,
        survival_permille: 300,
        cached_permille: 100,
        recall_permille: 200,
        offers_recall: true,
        notes_apart: true,
        is_thinking_bound: false,
        strips_thinking: false,
        keeps_thinking: false,
        begins_with_user: false,
        strict_alternation: false,
        zones: Zones {
            soft_permille: 700,
            goal: Goal::Tokens(24_000),
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
    let found: Vec<_> = PROBLEMS.iter().map(|(text, _)| (*text, problems(text))).collect();
    let expected: Vec<_> =
        PROBLEMS.iter().map(|(text, line)| (*text, vec![(*line).to_owned()])).collect();
    let wrong: Vec<_> = found.iter().zip(&expected).filter(|(one, other)| one != other).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn an_upstream_must_be_a_plain_base_url() {
    let example = "write it as you would for an SDK, such as https://api.openai.com/v1";
    for (url, expected) in [
        ("api.openai.com/v1", "does not begin with https:// or http://"),
        ("ftp://a/", "does not begin with https:// or http://"),
        ("https:///v1", "\"https:///v1\" is not a URL"),
        ("https://a b/v1", "\"https://a b/v1\" is not a URL"),
        ("https://a:99999/v1", "\"https://a:99999/v1\" has a port that is not from 1 to 65535"),
        ("https://a/v1#x", "\"https://a/v1#x\" has a fragment (from # on), which is never sent"),
    ] {
        let problems = problems(&format!("[upstream]\nurl = {url:?}"));
        assert_eq!(problems, [format!("upstream.url: {expected}; {example}")], "{url}");
    }
    for route in ["/chat/completions", "/responses", "/messages/?beta=true"] {
        let url = format!("https://a/v1{route}");
        let named = route.trim_end_matches("/?beta=true");
        let expected = format!(
            "upstream.url: {url:?} ends with a route; leave out {named}, which callers put behind \
             the base URL"
        );
        assert_eq!(problems(&format!("[upstream]\nurl = {url:?}")), [expected]);
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
        "colour = 1\n[server]\nlisten = true\n[context]\nlow = 2\nhigh = 1\n[log]\nlevel = 3";
    let keys: Vec<_> = load(toml(text)).expect_err("wrong").into_iter().map(|p| p.key).collect();
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
    assert_eq!((gpt_5.window_tokens, gpt_5.max_input_tokens, gpt_5.max_output_tokens), expected);
    let own = config.models.find("small-mistral").entry;
    assert_eq!((own.window_tokens, own.max_input_tokens, own.max_output_tokens), (500, None, None));
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
    for (text, keys) in [
        ("[events]\nkinds = [\"store_failing\"]", vec!["events.kinds"]),
        ("[events]\nsecret = \"env:A\"", vec!["events.webhook_url"]),
        ("[ledger]\nenabled = false\nreceipts = true", vec!["ledger.receipts"]),
        ("[ledger]\nreceipts = true", vec![]),
        ("[events]\nwebhook_url = \"https://a.example/\"", vec!["events.secret"]),
        ("[events]\nwebhook_url = \"http://127.0.0.1:9/\"", vec![]),
        (
            "[events]\nwebhook_url = \"http://a.example/\"\nsecret = \"env:A\"",
            vec!["events.webhook_url"],
        ),
        ("[traces]\nendpoint = \"http://127.0.0.1:4317\"", vec!["traces.endpoint"]),
        ("[traces]\nendpoint = \"http://c.example:4318\"", vec!["traces.endpoint"]),
        (
            "[traces]\nendpoint = \"http://127.0.0.1:4318\"\nsample_ratio = 0.0",
            vec!["traces.sample_ratio"],
        ),
    ] {
        let (_, warnings) = loaded(text);
        let found: Vec<_> = warnings.iter().map(|warning| warning.key.as_str()).collect();
        assert_eq!(found, keys, "{text}");
    }
}

#[test]
fn a_port_is_an_address_of_loopback() {
    for (written, expected) in [
        ("8400", "127.0.0.1:8400"),
        ("\"8400\"", "127.0.0.1:8400"),
        ("\"localhost:9\"", "127.0.0.1:9"),
        ("\"0.0.0.0:8400\"", "0.0.0.0:8400"),
        ("\"[::1]:0\"", "[::1]:0"),
    ] {
        let (config, _) = loaded(&format!("[server]\nlisten = {written}"));
        assert_eq!(config.server.listen.to_string(), expected, "{written}");
    }
    let (config, _) = loaded("[admin]\nlisten = 8411");
    assert_eq!(config.admin.listen, AdminListen::At(([127, 0, 0, 1], 8411).into()));
}
