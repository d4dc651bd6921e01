//! `/metrics`: agrees with the journal, is well formed and bounded, and is visible to operators
//! only.

mod documented;
mod protocols;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use tokio::sync::oneshot;
use weir::admin::{Admin, Token};
use weir::config::{Config, Secret};
use weir_store::Store;
use weir_store::ledger::{RequestQuery, Settlement};

use crate::budgeted::setting::set;
use crate::keys::setting::{bearer, start};
use crate::scripted_upstream::{Options, Server};
use crate::server::harness::{self, FINE, Message, Upstream, Weir, Wire, ask, bare, chat};

/// Samples of a page by name and labels, as written.
type Samples = BTreeMap<String, f64>;

/// Parses a page as strictly as OpenMetrics is defined, and panics on invalid input.
fn read(page: &str) -> Samples {
    let page = page.strip_suffix("# EOF\n").expect("it ends as OpenMetrics does");
    let mut samples = Samples::new();
    let mut families = BTreeSet::new();
    let mut family = Family::default();
    for line in page.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            let (kind, rest) = comment.split_once(' ').expect("a word of its own");
            let (name, text) = rest.split_once(' ').expect("a name and a text");
            assert_name(name);
            if name != family.name {
                assert!(families.insert(name.to_owned()), "{name} comes twice");
                family = Family { name: name.to_owned(), ..Family::default() };
            }
            assert!(!family.has_samples, "{line} stands behind samples");
            let place = match kind {
                "HELP" => &mut family.help,
                "TYPE" => &mut family.kind,
                "UNIT" => &mut family.unit,
                other => panic!("{other} is no word of OpenMetrics"),
            };
            assert!(place.is_none(), "{line} comes twice");
            *place = Some(text.to_owned());
            continue;
        }
        let (name, labels, value) = sample(line);
        family.has_samples = true;
        family.check(&name, line);
        let key = format!("{name}{{{}}}", labels.join(","));
        assert!(samples.insert(key, value).is_none(), "{line} comes twice");
    }
    check_histograms(&samples);
    samples
}

#[derive(Default)]
struct Family {
    name: String,
    help: Option<String>,
    kind: Option<String>,
    unit: Option<String>,
    has_samples: bool,
}

impl Family {
    fn check(&self, sample: &str, line: &str) {
        let kind = self.kind.as_deref().expect("a family has a type");
        assert!(self.help.as_ref().is_some_and(|help| help.len() > 5), "{line} has no help");
        let suffixes: &[&str] = match kind {
            "counter" => &["_total"],
            "gauge" => &[""],
            "info" => &["_info"],
            "histogram" => &["_bucket", "_sum", "_count"],
            other => panic!("{other} is no type"),
        };
        let rest = sample.strip_prefix(&self.name);
        assert!(
            rest.is_some_and(|rest| suffixes.contains(&rest)),
            "{line} is not of {}",
            self.name
        );
        if let Some(unit) = &self.unit {
            assert!(self.name.ends_with(&format!("_{unit}")), "{} has the unit {unit}", self.name);
        }
    }
}

fn assert_name(name: &str) {
    let is_own = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    let is_ours = name.starts_with("weir_") || name.starts_with("process_");
    assert!(is_ours && name.bytes().all(is_own), "{name} is no name");
}

/// Splits a line into name, labels as written, and value.
fn sample(line: &str) -> (String, Vec<String>, f64) {
    let end = line.find(['{', ' ']).expect("a name");
    let (name, mut rest) = line.split_at(end);
    assert_name(name);
    let mut labels = Vec::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while !rest.starts_with('}') {
            let (label, behind) = label(rest);
            rest = behind.strip_prefix(',').unwrap_or(behind);
            labels.push(label);
        }
        rest = &rest[1..];
    }
    let value = rest.strip_prefix(' ').expect("one space before the value");
    (name.to_owned(), labels, value.parse().expect("a number"))
}

fn label(text: &str) -> (String, &str) {
    let (name, value) = text.split_once("=\"").expect("a label");
    assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
    let mut is_escaped = false;
    for (place, own) in value.char_indices() {
        assert!(!own.is_control(), "{value:?}");
        match own {
            _ if is_escaped => {
                assert!(matches!(own, '\\' | '"' | 'n'), "{value:?}");
                is_escaped = false;
            }
            '\\' => is_escaped = true,
            '"' => return (format!("{name}=\"{}\"", &value[..place]), &value[place + 1..]),
            _ => {}
        }
    }
    panic!("{text} does not end")
}

/// Checks that buckets are cumulative and the last holds everything.
fn check_histograms(samples: &Samples) {
    let mut histograms: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for (key, count) in samples.iter().filter(|(key, _)| key.contains("_bucket{")) {
        let (name, labels) = key.split_once("_bucket{").expect("it is one");
        let labels: Vec<&str> = labels.trim_end_matches('}').split(',').collect();
        let (bounds, others): (Vec<&str>, Vec<&str>) =
            labels.into_iter().partition(|label| label.starts_with("le="));
        let bound = bounds[0].trim_start_matches("le=\"").trim_end_matches('"');
        let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().expect("a bound") };
        let key = format!("{name}_count{{{}}}", others.join(","));
        histograms.entry(key).or_default().push((bound, *count));
    }
    assert!(!histograms.is_empty(), "there are histograms");
    for (key, mut buckets) in histograms {
        buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
        assert!(buckets.windows(2).all(|two| two[0].1 <= two[1].1), "{key}: {buckets:?}");
        let last = buckets.last().expect("there are buckets");
        assert_eq!((last.0, Some(&last.1)), (f64::INFINITY, samples.get(&key)), "{key}");
    }
}

/// Sums the samples of `name` that have all of `labels`.
fn sum(samples: &Samples, name: &str, labels: &[&str]) -> f64 {
    let start = format!("{name}{{");
    let own = samples.iter().filter(|(key, _)| key.starts_with(&start));
    let own = own.filter(|(key, _)| labels.iter().all(|label| key.contains(label)));
    own.map(|(_, value)| value).sum()
}

fn told(answer: &Message) -> Samples {
    assert_eq!(answer.status(), 200, "{answer:?}");
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!(answer.header("content-type"), Some(kind));
    read(std::str::from_utf8(&answer.body).expect("text"))
}

/// Builds a chat of this many exchanges.
fn conversation(exchanges: usize, more: &Value) -> Vec<u8> {
    let mut messages = vec![json!({"role": "system", "content": "You help."})];
    for number in 0..=exchanges {
        let text = format!("number {number}, and what there is to say of it. ").repeat(10);
        messages.push(json!({"role": "user", "content": text}));
        if number < exchanges {
            messages.push(json!({"role": "assistant", "content": text}));
        }
    }
    let mut body = json!({"model": "gpt-4o", "messages": messages});
    if let (Value::Object(body), Value::Object(more)) = (&mut body, more) {
        body.extend(more.clone());
    }
    body.to_string().into_bytes()
}

fn post(path: &str, body: &str) -> String {
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{body}")
}

/// Sends one request of each kind on one connection: each has ended when the next is read.
async fn mixed(wire: &mut Wire) -> u64 {
    let hello = json!({});
    let limit = "x-weir-max-input-tokens: 2500\r\n";
    let embeddings = r#"{"model": "text-embedding-3-small", "input": "hello"}"#;
    let rows: Vec<(Vec<u8>, u16)> = vec![
        (chat("", conversation(1, &hello)), 200),
        (chat("", conversation(1, &json!({"stream": true}))), 200),
        (chat(limit, conversation(5, &hello)), 200),
        (chat(limit, conversation(30, &hello)), 200),
        (chat(limit, conversation(30, &json!({"stream": true}))), 200),
        (chat("x-weir-max-input-tokens: 1\r\n", conversation(1, &hello)), 400),
        (chat("x-upstream-fault: status:500\r\n", conversation(1, &hello)), 500),
        (chat("x-upstream-fault: status:429\r\n", conversation(1, &hello)), 429),
        (
            chat("", r#"{"model": "missing-1", "messages": [{"role": "user", "content": "a"}]}"#),
            404,
        ),
        (chat("", "no JSON"), 400),
        (post("/v1/embeddings", embeddings).into_bytes(), 200),
        (bare("GET", "/v1/models", "").into_bytes(), 200),
        (bare("GET", "/elsewhere", "").into_bytes(), 404),
        (bare("GET", "/v1/models", "origin: https://elsewhere.example\r\n").into_bytes(), 403),
    ];
    let sent = rows.len() as u64;
    for (number, (request, status)) in rows.into_iter().enumerate() {
        let answer = wire.ask(request).await;
        assert_eq!(answer.status(), status, "request {number}: {answer:?}");
    }
    sent
}

async fn journaled(store: &Store, upstream: &str) -> Weir {
    let change = |config: &mut Config| config.ledger.enabled = true;
    harness::start_with(store.clone(), upstream, change).await
}

#[tokio::test]
async fn metrics_agree_with_the_journal() {
    let upstream = Server::start(Options::default()).await.expect("a free port");
    let store = Store::in_memory().expect("there is memory");
    set(&store, "all/usd/day", "20").await;
    let weir = journaled(&store, &upstream.addr.to_string()).await;
    let mut wire = Wire::connect(weir.address).await;
    let sent = mixed(&mut wire).await;
    let samples = told(&wire.ask(bare("GET", "/metrics", "")).await);
    let rows = store.requests(RequestQuery::default()).await.expect("readable");
    let of = |figure: fn(&Settlement) -> Option<u64>| {
        rows.iter().filter_map(|row| figure(&row.settlement)).sum::<u64>() as f64
    };
    type Figure = fn(&Settlement) -> Option<u64>;
    let kinds: [(&str, Figure); 3] = [
        ("prompt", |own| own.prompt_tokens),
        ("completion", |own| own.completion_tokens),
        ("cached", |own| own.cached_tokens),
    ];
    for (kind, figure) in kinds {
        let counted = sum(&samples, "weir_tokens_total", &[&format!("kind=\"{kind}\"")]);
        assert_eq!(counted, of(figure), "{kind}");
    }
    assert!(of(|own| own.prompt_tokens) > 0.0);
    let cost = sum(&samples, "weir_cost_usd_total", &[]);
    let cost_of_rows = of(|own| own.cost_nano_usd) / 1e9;
    assert!((cost - cost_of_rows).abs() < 1e-9, "{cost} and {cost_of_rows}");
    assert!(cost > 0.0);
    let saved: i64 = rows.iter().filter_map(|row| row.settlement.saved_nano_usd).sum();
    let counted = sum(&samples, "weir_saved_usd", &[]);
    assert!((counted - saved as f64 / 1e9).abs() < 1e-9, "{counted} and {saved}");

    let requests = |labels: &[&str]| sum(&samples, "weir_requests_total", labels);
    assert_eq!(requests(&[]), sent as f64);
    assert_eq!(requests(&["outcome=\"context_length_exceeded\"", "status=\"4xx\""]), 1.0);
    assert_eq!(requests(&["model=\"gpt-4o\"", "status=\"5xx\""]), 1.0);
    assert_eq!(requests(&["route=\"embeddings\"", "outcome=\"complete\""]), 1.0);
    assert_eq!(requests(&["missing"]), 0.0, "nobody accepted it");
    let errors = |kind: &str| sum(&samples, "weir_errors_total", &[kind]);
    for kind in ["context_length_exceeded", "invalid_request", "not_found", "origin_not_allowed"] {
        assert_eq!(errors(&format!("kind=\"{kind}\"")), 1.0, "{kind}");
    }
    assert_eq!(errors(""), 4.0);
    let actions = |action: &str| sum(&samples, "weir_actions_total", &[action]);
    let in_rows = |word: &str| {
        let has = |action: &str| action.split('+').any(|own| own == word);
        rows.iter().filter(|row| has(&row.action)).count() as f64
    };
    assert_eq!(actions("action=\"evict\""), in_rows("evict"));
    assert_eq!(actions("action=\"evict\""), 2.0);
    assert_eq!(
        sum(&samples, "weir_compactions_total", &[]),
        1.0,
        "the second request had it already"
    );
    let received: u64 = rows.iter().filter_map(|row| row.received_tokens).sum();
    let counted = sum(&samples, "weir_conversation_tokens_total", &["kind=\"received\""]);
    assert_eq!(counted, received as f64);
    for name in ["request_duration", "first_byte_duration", "plan_duration", "queue_duration"] {
        assert!(sum(&samples, &format!("weir_{name}_seconds_count"), &[]) > 0.0, "{name}");
    }
    assert_eq!(sum(&samples, "weir_requests_in_flight", &[]), 0.0);
    let budget = |name: &str| sum(&samples, &format!("weir_budget_{name}_usd"), &["all/usd/day"]);
    assert_eq!((budget("limit"), budget("held")), (20.0, 0.0));
    assert!((budget("spent") - cost).abs() < 1e-9);
    assert_eq!(sum(&samples, "weir_store_state", &["state=\"memory\""]), 1.0);
    assert!(sum(&samples, "weir_store_writes_total", &[]) >= rows.len() as f64);
    assert_eq!(sum(&samples, "weir_build_info", &["version="]), 1.0);
    assert_eq!(sum(&samples, "weir_config_info", &["hash="]), 1.0);
    let refusals = |reason: &str| sum(&samples, "weir_refusals_total", &[reason]);
    assert_eq!((refusals("context_length"), refusals("origin"), refusals("")), (1.0, 1.0, 2.0));
    let attempts = |result: &str| sum(&samples, "weir_upstream_attempts_total", &[result]);
    let with = |status: u16| {
        rows.iter().filter(|row| row.settlement.status == Some(status)).count() as f64
    };
    assert_eq!((attempts("failed"), attempts("rate_limited")), (with(500), with(429)));
    assert!(with(500) > 0.0 && with(429) > 0.0);
    assert_eq!(attempts(""), rows.len() as f64, "each attempt has a row");
    let times = sum(&samples, "weir_upstream_attempt_duration_seconds_count", &["default"]);
    assert_eq!(times, attempts(""));
    let holds = |result: &str| sum(&samples, "weir_budget_holds_total", &[result]);
    assert_eq!((holds("granted"), holds("exhausted")), (rows.len() as f64, 0.0));
    assert_eq!(sum(&samples, "weir_stream_duration_seconds_count", &["chat/completions"]), 2.0);
    assert_eq!(sum(&samples, "weir_connections_open", &[]), 1.0);
    assert_eq!(sum(&samples, "weir_connections_total", &[]), 1.0);
    assert!(sum(&samples, "weir_received_bytes_total", &[]) > 10_000.0);
    assert!(sum(&samples, "weir_sent_bytes_total", &[]) > 1000.0);
    assert_eq!(sum(&samples, "weir_upstream_breaker_open", &["default"]), 0.0);
    assert!(sum(&samples, "weir_store_append_duration_seconds_count", &[]) > 0.0);
    assert!(sum(&samples, "weir_cache_lookups_total", &["plans"]) > 0.0);
    if cfg!(target_os = "linux") {
        assert!(sum(&samples, "process_resident_memory_bytes", &[]) > 1e6);
        assert!(sum(&samples, "process_start_time_seconds", &[]) > 1e9);
    }
}

#[tokio::test]
async fn metrics_count_tokens_without_a_journal_too() {
    let upstream = Server::start(Options::default()).await.expect("a free port");
    let weir = harness::start(&upstream.addr.to_string(), |config| {
        config.ledger.enabled = false;
    })
    .await;
    let mut wire = Wire::connect(weir.address).await;
    let answer = wire.ask(chat("", conversation(1, &json!({})))).await;
    let answer: Value = serde_json::from_slice(&answer.body).expect("JSON");
    let samples = told(&wire.ask(bare("GET", "/metrics", "")).await);
    let prompt = sum(&samples, "weir_tokens_total", &["kind=\"prompt\"", "model=\"gpt-4o\""]);
    assert_eq!(Some(prompt), answer["usage"]["prompt_tokens"].as_f64());
}

#[tokio::test]
async fn a_compaction_finds_what_an_earlier_one_has_read() {
    let upstream = Server::start(Options::default()).await.expect("a free port");
    let weir = harness::start(&upstream.addr.to_string(), |_| {}).await;
    let mut wire = Wire::connect(weir.address).await;
    let said = |number: usize| {
        let role = if number.is_multiple_of(2) { "user" } else { "assistant" };
        json!({"role": role, "content": format!("{number} is the value. ").repeat(100)})
    };
    let mut sent = Vec::new();
    for messages in (1..100).step_by(2) {
        let messages: Vec<Value> = (0..messages).map(said).collect();
        let body = json!({"model": "gpt-4o", "messages": messages}).to_string();
        let answer = wire.ask(chat("x-weir-max-input-tokens: 10000\r\n", body)).await;
        assert_eq!(answer.status(), 200);
        sent.push(messages.len() as f64);
    }
    let samples = told(&wire.ask(bare("GET", "/metrics", "")).await);
    let compactions = sum(&samples, "weir_compactions_total", &[]);
    assert!(compactions > 2.0, "{compactions}");
    let lookups =
        |result: &str| sum(&samples, "weir_cache_lookups_total", &["cache=\"readings\"", result]);
    let (found, read) = (lookups("result=\"hit\""), lookups("result=\"miss\""));
    // Each message is read by one compaction at most, whether or not a free core was faster.
    assert!(read <= sent[sent.len() - 1], "{read} of {sent:?}");
    assert!(found > read / 2.0, "{found} found, {read} read");
}

#[tokio::test]
async fn what_callers_make_up_does_not_make_a_page_grow_without_end() {
    let upstream = Server::start(Options::default()).await.expect("a free port");
    let store = Store::in_memory().expect("there is memory");
    let weir = journaled(&store, &upstream.addr.to_string()).await;
    let mut wire = Wire::connect(weir.address).await;
    for number in 0..100 {
        let body = json!({"model": format!("made-up-{number}"),
                          "messages": [{"role": "user", "content": "a"}]});
        assert_eq!(wire.ask(chat("", body.to_string())).await.status(), 200);
        let path = format!("/made/up/{number}\"}} 1");
        wire.ask(bare("GET", &path.replace([' ', '"', '}'], "%22"), "")).await;
    }
    let page = wire.ask(bare("GET", "/metrics", "")).await;
    let samples = told(&page);
    let models: BTreeSet<&str> = samples
        .keys()
        .filter(|key| key.starts_with("weir_requests_total{"))
        .filter_map(|key| key.split("model=\"").nth(1)?.split('"').next())
        .collect();
    assert_eq!(models.len(), 65, "64 and the others together: {models:?}");
    assert_eq!(sum(&samples, "weir_requests_total", &["route=\"chat/completions\""]), 100.0);
    assert!(page.body.len() < 100_000, "{}", page.body.len());
}

#[tokio::test]
async fn metrics_are_for_this_machine_and_no_page_or_name_of_another() {
    let upstream = Upstream::always(FINE).await;
    let weir = harness::start(&upstream, |_| {}).await;
    told(&ask(weir.address, bare("GET", "/metrics", "")).await);
    let origin = "origin: https://elsewhere.example\r\n";
    let answer = ask(weir.address, bare("GET", "/metrics", origin)).await;
    answer.assert_error(403, "origin_not_allowed");
    let foreign = bare("GET", "/metrics", "").replace("host: localhost", "host: elsewhere.example");
    ask(weir.address, foreign).await.assert_error(403, "host_not_allowed");
    let answer = ask(weir.address, bare("POST", "/metrics", "content-length: 0\r\n")).await;
    assert_eq!(answer.status(), 405);
}

#[tokio::test]
async fn with_virtual_keys_metrics_are_for_those_who_have_the_admin_token() {
    let upstream = Upstream::always(FINE).await;
    let setting = start(&upstream, |_| {}).await;
    set(&setting.store, "team:research/usd/day", "7").await;
    let key = setting.key("research", "{}").await;
    for headers in ["", key.header().as_str()] {
        let answer = setting.ask(bare("GET", "/metrics", headers)).await;
        answer.assert_error(404, "not_found");
    }
    let secret = "weir-admin-of-this-test-0123456789abcdef";
    let token = Token::new(&Secret::new(secret));
    let here = ([127, 0, 0, 1], 0).into();
    let (config, store) = (Config::default(), setting.store.clone());
    let admin = Admin::bind(here, &config, store, token).await.expect("a free port");
    let address = admin.address();
    let renewal = setting.weir.renewal.clone();
    admin.show_metrics(move || renewal.proxy());
    let (_running, ended) = oneshot::channel::<()>();
    tokio::spawn(admin.run(async move {
        // Ends on the signal, or when its sender is dropped.
        let _ = ended.await;
    }));
    assert_eq!(ask(address, bare("GET", "/metrics", "")).await.status(), 401);
    assert_eq!(ask(address, bare("GET", "/metrics", &key.header())).await.status(), 401);
    let samples = told(&ask(address, bare("GET", "/metrics", &bearer(secret))).await);
    assert_eq!(sum(&samples, "weir_budget_limit_usd", &["team:research/usd/day"]), 7.0);
}
