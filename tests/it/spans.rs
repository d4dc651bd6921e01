//! Traces: the spans that a collector receives, with their parents and attributes; the caller's context
//! continued, and none without a collector.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use weir::config::{Config, Secret};

use crate::cli::{Serving, weir};
use crate::eventually::{DEADLINE, eventually};
use crate::server::harness::{self, Seen, Upstream, Wire, ask, bare, chat};

const ACCEPTED: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]";
const ANSWER: &str = r#"{"id":"c","object":"chat.completion","model":"gpt-4o-2024-11-20","choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"secret answer"}}],"usage":{"prompt_tokens":11,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":5}}}"#;
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";

/// Span as a collector decodes it.
#[derive(Debug)]
struct Span {
    trace: String,
    id: String,
    parent: String,
    name: String,
    kind: u64,
    times_ns: (u64, u64),
    is_error: bool,
    attributes: BTreeMap<String, Value>,
}

impl Span {
    fn text(&self, name: &str) -> &str {
        self.attributes.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    fn whole(&self, name: &str) -> Option<u64> {
        self.attributes.get(name)?.as_u64()
    }
}

/// Decodes a value by OTLP's rules for JSON.
fn value(value: &Value) -> Value {
    let (kind, inner) = value.as_object().and_then(|own| own.iter().next()).expect("one kind");
    match kind.as_str() {
        "stringValue" | "boolValue" | "doubleValue" => inner.clone(),
        "intValue" => json!(inner.as_str().expect("a text").parse::<u64>().expect("a number")),
        "arrayValue" => {
            inner["values"].as_array().expect("values").iter().map(self::value).collect()
        }
        other => panic!("{other} is no kind of value"),
    }
}

fn attributes(list: &Value) -> BTreeMap<String, Value> {
    let pairs = list.as_array().expect("attributes").iter();
    let pair = |own: &Value| (own["key"].as_str().expect("a key").to_owned(), value(&own["value"]));
    let pairs: Vec<_> = pairs.map(pair).collect();
    let count = pairs.len();
    let map: BTreeMap<_, _> = pairs.into_iter().collect();
    assert_eq!(map.len(), count, "each attribute once: {list}");
    map
}

fn hex(value: &Value, digits: usize) -> String {
    let text = value.as_str().expect("a text");
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    assert!(text.len() == digits && text.bytes().all(is_digit), "{text:?} is no ID");
    text.to_owned()
}

/// Decodes an export request, and checks its frame.
fn decoded(seen: &Seen) -> Vec<Span> {
    let head = seen.head.to_lowercase();
    assert!(head.starts_with("post /v1/traces "), "{head}");
    assert!(head.contains("content-type: application/json"), "{head}");
    let body: Value = serde_json::from_slice(&seen.body).expect("JSON");
    let resource = attributes(&body["resourceSpans"][0]["resource"]["attributes"]);
    assert_eq!(resource["service.name"], "weir-of-a-test");
    let spans = &body["resourceSpans"][0]["scopeSpans"][0]["spans"];
    let span = |own: &Value| {
        let time = |name: &str| own[name].as_str().expect("a text").parse().expect("nanoseconds");
        Span {
            trace: hex(&own["traceId"], 32),
            id: hex(&own["spanId"], 16),
            parent: match own["parentSpanId"].as_str() {
                Some("") => String::new(),
                _ => hex(&own["parentSpanId"], 16),
            },
            name: own["name"].as_str().expect("a name").to_owned(),
            kind: own["kind"].as_u64().expect("a kind"),
            times_ns: (time("startTimeUnixNano"), time("endTimeUnixNano")),
            is_error: own["status"]["code"] == 2,
            attributes: attributes(&own["attributes"]),
        }
    };
    spans.as_array().expect("spans").iter().map(span).collect()
}

/// Receives the spans of one request: the last is the request's own.
async fn received(collector: &mut Upstream) -> Vec<Span> {
    let mut spans = Vec::new();
    while !spans.iter().any(|span: &Span| span.kind == 2) {
        let seen = tokio::time::timeout(DEADLINE, collector.next()).await.expect("an export");
        spans.extend(decoded(&seen));
        seen.answer(ACCEPTED);
    }
    for span in &spans {
        assert!(span.times_ns.0 <= span.times_ns.1 && span.times_ns.0 > 1 << 60, "{span:?}");
    }
    spans
}

fn traced(collector: &str) -> impl FnOnce(&mut Config) {
    let endpoint = format!("http://{collector}/v1/traces");
    move |config| {
        config.ledger.enabled = true;
        config.upstream.retry_max_wait_ms = 1;
        config.upstream.max_retries = 1;
        config.upstream.forward_trace_headers = true;
        config.traces.endpoint = endpoint;
        config.traces.service_name = "weir-of-a-test".to_owned();
        config.traces.headers = vec![("x-collector-key".to_owned(), Secret::new("k1"))];
    }
}

fn whole(status: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

const BODY: &str = r#"{"model":"gpt-4o","max_tokens":40,"messages":[{"role":"user","content":"secret question"}]}"#;

fn header<'a>(seen: &'a Seen, name: &str) -> Option<&'a str> {
    seen.head.lines().find_map(|line| {
        let (own, value) = line.split_once(": ")?;
        own.eq_ignore_ascii_case(name).then_some(value)
    })
}

#[tokio::test]
async fn a_retried_request_has_a_span_for_each_step_and_each_attempt() {
    let (mut upstream, mut collector) = (Upstream::start().await, Upstream::start().await);
    let weir = harness::start(&upstream.address, traced(&collector.address)).await;
    let headers = format!(
        "traceparent: 00-{TRACE}-{CALLER}-01\r\nauthorization: Bearer sk-secret\r\n\
         tracestate: vendor=1\r\n"
    );
    let asked = ask(weir.address, chat(&headers, BODY));
    let answered = async {
        let first = upstream.next().await;
        let parents = vec![header(&first, "traceparent").map(str::to_owned)];
        first.answer(whole("503 Busy", "{}"));
        let second = upstream.next().await;
        let parents = [parents, vec![header(&second, "traceparent").map(str::to_owned)]].concat();
        assert_eq!(header(&second, "tracestate"), Some("vendor=1"));
        second.answer(whole("200 OK", ANSWER));
        parents
    };
    let (answer, parents) = tokio::join!(asked, answered);
    assert_eq!(answer.status(), 200);
    let spans = received(&mut collector).await;
    let own = spans.iter().find(|span| span.kind == 2).expect("the request's own");
    assert_eq!((own.trace.as_str(), own.parent.as_str()), (TRACE, CALLER));
    assert_eq!(own.name, "POST /v1/chat/completions");
    assert!(!own.is_error);
    assert_eq!((own.text("weir.outcome"), own.text("weir.action")), ("complete", "pass"));
    assert_eq!(own.whole("http.response.status_code"), Some(200));
    assert_eq!(own.whole("weir.attempts"), Some(2));
    assert!(own.attributes["weir.cost_usd"].as_f64().is_some_and(|cost| cost > 0.0));
    let request_id = answer.header("x-weir-request-id").expect("it is named");
    assert_eq!(own.text("weir.request_id"), request_id);
    assert!(spans.iter().all(|span| span.trace == TRACE), "{spans:#?}");
    let children: Vec<_> = spans.iter().filter(|span| span.kind != 2).collect();
    assert!(children.iter().all(|span| span.parent == own.id), "{spans:#?}");
    for span in &children {
        let is_inside = own.times_ns.0 <= span.times_ns.0 && span.times_ns.1 <= own.times_ns.1;
        assert!(is_inside, "{span:?} lies in {own:?}");
    }
    let named = |name: &str| children.iter().filter(|span| span.name == name).count();
    assert_eq!((named("plan"), named("hold"), named("settle")), (1, 2, 1));
    let plan = children.iter().find(|span| span.name == "plan").expect("a plan");
    assert_eq!(plan.whole("weir.sent_tokens"), plan.whole("weir.received_tokens"));

    // The attempts are the provider's calls, and each is the parent of what its upstream records.
    let attempts: Vec<_> = children.iter().filter(|span| span.kind == 3).collect();
    assert_eq!(attempts.len(), 2);
    let expected = |id: &str| Some(format!("00-{TRACE}-{id}-01"));
    assert_eq!(parents, [expected(&attempts[0].id), expected(&attempts[1].id)]);
    let port = upstream.address.rsplit(':').next().and_then(|port| port.parse().ok());
    for attempt in &attempts {
        assert_eq!(attempt.name, "chat gpt-4o");
        assert_eq!(attempt.text("gen_ai.operation.name"), "chat");
        assert_eq!(attempt.text("gen_ai.provider.name"), "openai");
        assert_eq!(attempt.text("gen_ai.request.model"), "gpt-4o");
        assert_eq!(attempt.whole("gen_ai.request.max_tokens"), Some(40));
        assert_eq!(attempt.text("server.address"), "127.0.0.1");
        assert_eq!(attempt.whole("server.port"), port);
    }
    assert!(attempts[0].is_error && !attempts[1].is_error);
    assert_eq!(attempts[0].text("error.type"), "503");
    let last = attempts[1];
    assert_eq!(last.text("gen_ai.response.model"), "gpt-4o-2024-11-20");
    assert_eq!(last.attributes["gen_ai.response.finish_reasons"], json!(["stop"]));
    let usage = ["input_tokens", "output_tokens", "cache_read.input_tokens"]
        .map(|name| last.whole(&format!("gen_ai.usage.{name}")));
    assert_eq!(usage, [Some(11), Some(3), Some(5)]);
    let all = format!("{spans:?}");
    assert!(!all.contains("secret"), "no content and no credential: {all}");
    // The answer may reach the exporter later than the test.
    let exported = format!("weir_trace_spans_total{{result=\"exported\"}} {}\n", spans.len());
    let page = async || ask(weir.address, bare("GET", "/metrics", "")).await.body;
    let has_all = |page: &Vec<u8>| String::from_utf8_lossy(page).contains(&exported);
    eventually(DEADLINE, page, has_all).await;
}

#[tokio::test]
async fn a_new_trace_begins_without_a_context_and_errors_are_marked() {
    let mut collector = Upstream::start().await;
    let nobody = "127.0.0.1:1";
    let weir = harness::start(nobody, traced(&collector.address)).await;
    let answer = ask(weir.address, chat("", BODY)).await;
    assert_eq!(answer.status(), 502);
    let spans = received(&mut collector).await;
    let own = spans.iter().find(|span| span.kind == 2).expect("the request's own");
    assert_eq!(own.parent, "");
    assert!(own.is_error);
    assert_eq!(own.text("error.type"), "upstream_connect");
    let attempts: Vec<_> = spans.iter().filter(|span| span.kind == 3).collect();
    assert!(!attempts.is_empty() && attempts.iter().all(|span| span.is_error), "{spans:#?}");
    assert!(attempts.iter().all(|span| span.text("error.type") == "upstream_connect"));
    // A broken context counts as none, and another request has another trace.
    ask(weir.address, chat("traceparent: 00-zz-1-01\r\n", BODY)).await;
    let others = received(&mut collector).await;
    assert!(others.iter().all(|span| span.trace != own.trace));
    assert!(others.iter().any(|span| span.kind == 2 && span.parent.is_empty()));
}

#[tokio::test]
async fn the_state_of_a_trace_goes_on_with_its_context_alone() {
    let (mut upstream, collector) = (Upstream::start().await, Upstream::start().await);
    let weir = harness::start(&upstream.address, traced(&collector.address)).await;
    let mut wire = Wire::connect(weir.address).await;
    let sound = format!("00-{TRACE}-{CALLER}-01");
    for (context, expected) in [(sound.as_str(), Some("vendor=x")), ("garbage", None)] {
        let headers = format!("traceparent: {context}\r\ntracestate: vendor=x\r\n");
        wire.send(chat(&headers, BODY)).await;
        let seen = upstream.next().await;
        assert_eq!(header(&seen, "tracestate"), expected, "{context}");
        seen.answer(whole("200 OK", ANSWER));
        assert_eq!(wire.message().await.expect("an answer").status(), 200);
    }
}

/// Callers choose their contexts, and the operator how many traces there are.
#[tokio::test]
async fn contexts_of_callers_are_sampled_within_the_share() {
    let (mut upstream, mut collector) = (Upstream::start().await, Upstream::start().await);
    let weir = harness::start(&upstream.address, |config| {
        traced(&collector.address)(config);
        config.traces.sample_permille = 0;
    })
    .await;
    let mut wire = Wire::connect(weir.address).await;
    let context = format!("00-{TRACE}-{CALLER}-01");
    wire.send(chat(&format!("traceparent: {context}\r\n"), BODY)).await;
    let seen = upstream.next().await;
    // Without a span of weir's own the caller's context goes on as it came.
    assert_eq!(header(&seen, "traceparent"), Some(context.as_str()));
    seen.answer(whole("200 OK", ANSWER));
    assert_eq!(wire.message().await.expect("an answer").status(), 200);
    weir.renewal.proxy().flush().await;
    assert!(collector.try_next().is_none(), "nothing is exported");
}

#[tokio::test]
async fn a_context_that_is_not_sampled_has_no_spans_and_is_passed_on() {
    let (mut upstream, mut collector) = (Upstream::start().await, Upstream::start().await);
    let weir = harness::start(&upstream.address, traced(&collector.address)).await;
    let context = format!("00-{TRACE}-{CALLER}-00");
    let mut wire = Wire::connect(weir.address).await;
    wire.send(chat(&format!("traceparent: {context}\r\n"), BODY)).await;
    let seen = upstream.next().await;
    assert_eq!(header(&seen, "traceparent"), Some(context.as_str()));
    seen.answer(whole("200 OK", ANSWER));
    assert_eq!(wire.message().await.expect("an answer").status(), 200);
    // The next request is sampled: the collector's first spans are its.
    wire.send(chat(&format!("traceparent: 00-{TRACE}-{CALLER}-01\r\n"), BODY)).await;
    upstream.next().await.answer(whole("200 OK", ANSWER));
    wire.message().await.expect("an answer");
    let spans = received(&mut collector).await;
    assert_eq!(spans.iter().filter(|span| span.kind == 2).count(), 1, "{spans:#?}");
}

#[tokio::test]
async fn without_a_collector_headers_pass_as_they_came() {
    let mut upstream = Upstream::start().await;
    let weir = harness::start(&upstream.address, |_| {}).await;
    let context = format!("00-{TRACE}-{CALLER}-01");
    let mut wire = Wire::connect(weir.address).await;
    for (headers, expected) in
        [(format!("traceparent: {context}\r\n"), Some(context.as_str())), (String::new(), None)]
    {
        wire.send(chat(&headers, BODY)).await;
        let seen = upstream.next().await;
        assert_eq!(header(&seen, "traceparent"), expected);
        seen.answer(whole("200 OK", ANSWER));
        assert_eq!(wire.message().await.expect("an answer").status(), 200);
    }
}

#[tokio::test]
async fn a_collector_that_is_gone_costs_no_request() {
    let upstream = Upstream::always(harness::FINE).await;
    let weir = harness::start(&upstream, traced("127.0.0.1:1")).await;
    for _ in 0..20 {
        assert_eq!(ask(weir.address, chat("", BODY)).await.status(), 200);
    }
}

#[tokio::test]
async fn variables_of_opentelemetry_turn_it_on_and_the_last_traces_are_sent_at_the_end() {
    let (mut upstream, mut collector) = (Upstream::start().await, Upstream::start().await);
    let url = format!("http://{}/v1", upstream.address);
    let mut command = weir(&["serve", "--listen", "127.0.0.1:0", "--upstream", &url]);
    command
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{}", collector.address))
        .env("OTEL_EXPORTER_OTLP_HEADERS", "x-collector-key=k%202")
        .env("OTEL_SERVICE_NAME", "weir-of-a-test");
    let serving = Serving::run(&mut command);
    let mut wire = Wire::connect(serving.address).await;
    wire.send(chat("", BODY)).await;
    upstream.next().await.answer(whole("200 OK", ANSWER));
    wire.message().await.expect("an answer");
    drop(wire);
    let ending = tokio::task::spawn_blocking(move || serving.log());
    let seen = tokio::time::timeout(DEADLINE, collector.next()).await.expect("an export");
    assert_eq!(header(&seen, "x-collector-key"), Some("k 2"));
    assert!(decoded(&seen).iter().any(|span| span.kind == 2));
    seen.answer(ACCEPTED);
    let log = ending.await.expect("it ends");
    assert!(log.contains("shut down cleanly"), "{log}");
}
