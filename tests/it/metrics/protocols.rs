//! Metrics of requests in all protocols, streamed and not, compacted, failed and retried: each sum is
//! exactly that of the ledger.

use serde_json::{Value, json};
use weir::config::Config;
use weir_store::Store;
use weir_store::ledger::{Column, RequestQuery, Totals, UsageQuery, UsageRow};

use super::{Samples, sum, told};
use crate::server::harness::{self, Seen, Upstream, Wire, bare};

/// Models of the run, each of one protocol.
const MODELS: [&str; 3] = ["gpt-4o", "gpt-5", "claude-sonnet-4-5"];

/// Returns an answer of the protocol behind the request's path. Figures grow with `number`.
fn answer(seen: &Seen, number: u64) -> String {
    let body: Value = serde_json::from_slice(&seen.body).expect("JSON");
    if seen.head.to_lowercase().contains("x-fails: ") {
        return "HTTP/1.1 503 Busy\r\ncontent-length: 2\r\n\r\n{}".to_owned();
    }
    let (prompt, cached, output) = (1000 + number, 100 + number, 10 + number);
    let model = &body["model"];
    let is_stream = body["stream"] == true;
    let path = seen.head.split(' ').nth(1).expect("a path");
    let (whole, events) = match path {
        "/v1/messages" => {
            let usage = json!({
                "input_tokens": prompt, "cache_read_input_tokens": cached,
                "cache_creation_input_tokens": number, "output_tokens": output,
            });
            let start = json!({"id": "msg_1", "type": "message", "role": "assistant", "model": model,
                               "content": [], "usage": usage});
            let mut whole = start.clone();
            whole["stop_reason"] = "end_turn".into();
            let events = vec![
                json!({"type": "message_start", "message": start}),
                json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"},
                       "usage": {"output_tokens": output}}),
                json!({"type": "message_stop"}),
            ];
            (whole, events)
        }
        "/v1/responses" => {
            let whole = json!({
                "id": "resp_1", "object": "response", "status": "completed", "model": model,
                "output": [],
                "usage": {
                    "input_tokens": prompt, "input_tokens_details": {"cached_tokens": cached},
                    "output_tokens": output, "output_tokens_details": {"reasoning_tokens": number},
                },
            });
            (whole.clone(), vec![json!({"type": "response.completed", "response": whole})])
        }
        _ => {
            let usage = json!({
                "prompt_tokens": prompt, "completion_tokens": output,
                "prompt_tokens_details": {"cached_tokens": cached},
            });
            let whole = json!({
                "id": "chatcmpl-1", "object": "chat.completion", "model": model, "usage": usage,
                "choices": [{"index": 0, "finish_reason": "stop",
                             "message": {"role": "assistant", "content": "ok"}}],
            });
            let last = json!({"object": "chat.completion.chunk", "model": model, "choices": [],
                              "usage": usage});
            (whole, vec![last])
        }
    };
    if !is_stream {
        let text = whole.to_string();
        return format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{text}",
            text.len()
        );
    }
    let event = |event: &Value| match event["type"].as_str() {
        Some(name) => format!("event: {name}\ndata: {event}\n\n"),
        None => format!("data: {event}\n\n"),
    };
    let mut text: String = events.iter().map(event).collect();
    if path == "/v1/chat/completions" {
        text.push_str("data: [DONE]\n\n");
    }
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\r\n{text}",
        text.len()
    )
}

/// Returns a request of the protocol of `model` with this many exchanges.
fn request(model: &str, exchanges: usize, headers: &str, is_stream: bool) -> Vec<u8> {
    let text = |number: usize| format!("number {number}, and the rest of it. ").repeat(10);
    let mut messages: Vec<Value> = Vec::new();
    for number in 0..exchanges {
        messages.push(json!({"role": "user", "content": text(number)}));
        messages.push(json!({"role": "assistant", "content": text(number)}));
    }
    messages.push(json!({"role": "user", "content": "And now?"}));
    let (path, body) = match model {
        "gpt-5" => ("/v1/responses", json!({"model": model, "input": messages})),
        "gpt-4o" => ("/v1/chat/completions", json!({"model": model, "messages": messages})),
        _ => {
            let body = json!({"model": model, "max_tokens": 100, "messages": messages});
            ("/v1/messages", body)
        }
    };
    let mut body = body;
    if is_stream {
        body["stream"] = true.into();
    }
    crate::protocols::through::post(path, headers, &body)
}

/// Sends requests of all kinds, and returns the metrics after them.
pub(super) async fn run(store: &Store, change: impl FnOnce(&mut Config)) -> (Samples, String) {
    let mut upstream = Upstream::start().await;
    let weir = harness::start_with(store.clone(), &upstream.address, |config| {
        config.ledger.enabled = true;
        config.upstream.retry_max_wait_ms = 1;
        config.upstream.max_retries = 1;
        change(config);
    })
    .await;
    tokio::spawn(async move {
        let mut number = 0;
        loop {
            let seen = upstream.next().await;
            number += 1;
            let answer = answer(&seen, number);
            seen.answer(&answer);
        }
    });
    let mut wire = Wire::connect(weir.address).await;
    let limit = "x-weir-max-input-tokens: 1500\r\n";
    for model in MODELS {
        for is_stream in [false, true] {
            for (exchanges, headers, status) in [
                (1, "", 200),
                (8, limit, 200),
                (30, limit, 200),
                (1, "x-fails: 1\r\n", 503),
                (1, "x-weir-max-input-tokens: 1\r\n", 400),
            ] {
                let answer = wire.ask(request(model, exchanges, headers, is_stream)).await;
                assert_eq!(answer.status(), status, "{model} {exchanges}: {answer:?}");
            }
        }
    }
    let page = wire.ask(bare("GET", "/metrics", "")).await;
    let text = String::from_utf8(page.body.clone()).expect("text");
    (told(&page), text)
}

async fn usage(store: &Store, by: Vec<Column>) -> Vec<UsageRow> {
    store.sync().await.expect("it can be written");
    store.usage(UsageQuery { by, ..UsageQuery::default() }).await.expect("readable")
}

#[tokio::test]
async fn every_sum_is_that_of_the_ledger() {
    let store = Store::in_memory().expect("there is memory");
    let (samples, _) = run(&store, |_| {}).await;
    let by_model = usage(&store, vec![Column::Model]).await;
    assert_eq!(by_model.len(), MODELS.len(), "{by_model:?}");
    type Figure = fn(&Totals) -> u64;
    let kinds: [(&str, Figure); 5] = [
        ("prompt", |own| own.prompt_tokens),
        ("completion", |own| own.completion_tokens),
        ("cached", |own| own.cached_tokens),
        ("cache_write", |own| own.cache_write_tokens),
        ("reasoning", |own| own.reasoning_tokens),
    ];
    let mut seen = [0; 5];
    for row in &by_model {
        let model = format!("model=\"{}\"", row.name(Column::Model).expect("a model"));
        for (place, (kind, figure)) in kinds.into_iter().enumerate() {
            let labels = [model.as_str(), &format!("kind=\"{kind}\"")];
            let counted = sum(&samples, "weir_tokens_total", &labels);
            assert_eq!(counted, figure(&row.totals) as f64, "{model} {kind}");
            seen[place] += figure(&row.totals);
        }
        let cost = sum(&samples, "weir_cost_usd_total", &[&model]);
        let of_row = row.totals.cost_nano_usd as f64 / 1e9;
        assert!(of_row > 0.0 && (cost - of_row).abs() < 1e-9, "{model}: {cost} and {of_row}");
    }
    assert!(seen.iter().all(|sum| *sum > 0), "each kind was there: {seen:?}");
    let all = usage(&store, Vec::new()).await[0].totals;
    let saved = sum(&samples, "weir_saved_usd", &[]);
    assert!((saved - all.saved_nano_usd as f64 / 1e9).abs() < 1e-9, "{saved} and {all:?}");

    let rows = store.requests(RequestQuery::default()).await.expect("readable");
    // A retried attempt has a row of its own and is no request, and a refused conversation has no row.
    let requests = |labels: &[&str]| sum(&samples, "weir_requests_total", labels);
    let resends = sum(&samples, "weir_resends_total", &["failure"]);
    let refused = sum(&samples, "weir_refusals_total", &["context_length"]);
    assert_eq!((resends, refused), (6.0, 6.0));
    assert_eq!(rows.len() as f64, all.requests as f64 + resends);
    assert_eq!(requests(&[]) - refused, all.requests as f64);
    assert_eq!(requests(&["status=\"5xx\""]), all.failed as f64);
    let attempts = sum(&samples, "weir_upstream_attempts_total", &[]);
    assert_eq!(attempts, rows.len() as f64, "an attempt is a row");
    for (kind, total) in [("received", all.received_tokens), ("sent", all.sent_tokens)] {
        let counted = sum(&samples, "weir_conversation_tokens_total", &[kind]);
        // The ledger has retried attempts, too.
        let retried: u64 = rows
            .iter()
            .filter(|row| row.settlement.outcome == "retried")
            .filter_map(|row| if kind == "sent" { row.sent_tokens } else { row.received_tokens })
            .sum();
        assert_eq!(counted, (total - retried) as f64, "{kind}");
    }
    let compactions = sum(&samples, "weir_compactions_total", &[]);
    assert!(compactions >= 3.0, "one of each protocol at least: {compactions}");
    let streams = sum(&samples, "weir_stream_duration_seconds_count", &[]);
    assert_eq!(streams, 9.0, "three answers in events of each protocol");
    let hits = sum(&samples, "weir_prompt_cache_requests_total", &["hit"]);
    assert_eq!(hits, 18.0, "each accepted request");
}
