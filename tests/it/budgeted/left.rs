//! Requests whose usage nobody reads: what was held for them is spent. A plain answer is read for its
//! usage although its caller left before it came.

use std::net::SocketAddr;

use serde_json::{Value, json};
use weir::config::Config;
use weir_store::Store;
use weir_store::ledger::{Flags, RequestRow};

use super::setting::{MODEL, nano_usd, set};
use crate::eventually::{DEADLINE, eventually};
use crate::keys::setting::post;
use crate::ledger::rows;
use crate::server::harness::{Seen, Upstream, Weir, Wire, ask, ask_until, bare, start_with};

const KEY: &str = "authorization: Bearer k\r\n";
const ANSWER: &str = r#"{"choices":[{"index":0,"message":{"role":"assistant","content":"hm"},"finish_reason":"stop"}],"usage":{"prompt_tokens":10,"completion_tokens":5}}"#;

/// A weir with a budget of a dollar, and its upstream.
struct Held {
    upstream: Upstream,
    weir: Weir,
    store: Store,
}

impl Held {
    async fn start(change: impl FnOnce(&mut Config)) -> Self {
        let (upstream, store) = (Upstream::start().await, crate::routes::setting::memory());
        set(&store, "all/usd/total", "1").await;
        let weir = start_with(store.clone(), &upstream.address, |config| {
            config.server.max_connections = 1;
            config.ledger.drain_ms = 60_000;
            change(config);
        })
        .await;
        Self { upstream, weir, store }
    }

    /// Sends a request whose caller leaves as soon as the upstream has it, and waits until weir knows.
    async fn left(&mut self, path: &str, body: &Value) -> Seen {
        let mut wire = Wire::connect(self.weir.address).await;
        wire.send(post(path, KEY, body.to_string())).await;
        let seen = self.upstream.next().await;
        drop(wire);
        // There is one place: an admitted request shows that the caller's place is free.
        ask_until(self.weir.address, bare("GET", "/healthz", "connection: close\r\n"), 200).await;
        seen
    }

    /// Returns the spent and the held amount of the budget.
    async fn amounts(&self) -> [u64; 2] {
        amounts(self.weir.address).await
    }

    /// Returns the one row, and the amounts once nothing is held.
    async fn settled(&self) -> (RequestRow, u64) {
        let row = rows(&self.store, 1).await.remove(0);
        let look = async || self.amounts().await;
        let [spent, _] = eventually(DEADLINE, look, |[_, held]| *held == 0).await;
        (row, spent)
    }
}

async fn amounts(address: SocketAddr) -> [u64; 2] {
    let headers = format!("{KEY}connection: close\r\n");
    let answer = ask(address, bare("GET", "/weir/v1/budgets", &headers)).await;
    let told: Value = serde_json::from_slice(&answer.body).expect("JSON");
    ["spent", "held"].map(|name| nano_usd(&told["data"][0][name]))
}

fn hello(more: &Value) -> Value {
    let mut body = json!({"model": MODEL, "messages": [{"role": "user", "content": "hi"}]});
    for (name, value) in more.as_object().expect("members") {
        body[name] = value.clone();
    }
    body
}

fn answered(body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

#[tokio::test]
async fn the_usage_of_a_plain_answer_is_read_though_its_caller_left_before_it() {
    for (path, body, answer) in [
        ("/v1/chat/completions", hello(&json!({})), ANSWER.to_owned()),
        ("/v1/completions", json!({"model": MODEL, "prompt": "hi"}), ANSWER.to_owned()),
        (
            "/v1/responses",
            json!({"model": MODEL, "input": "hi"}),
            r#"{"output":[],"usage":{"input_tokens":10,"output_tokens":5}}"#.to_owned(),
        ),
    ] {
        let mut held = Held::start(|_| {}).await;
        let seen = held.left(path, &body).await;
        assert!(held.amounts().await[1] > 0, "{path}: it is still held");
        seen.answer(answered(&answer));
        let (row, spent) = held.settled().await;
        let settled = &row.settlement;
        assert_eq!(settled.outcome, "caller_left", "{path}");
        assert_eq!(
            (settled.prompt_tokens, settled.completion_tokens),
            (Some(10), Some(5)),
            "{path}"
        );
        assert!(!settled.flags.any(Flags::ESTIMATED | Flags::USAGE_MISSING), "{path}: {row:?}");
        assert_eq!(Some(spent), settled.cost_nano_usd, "{path}");
    }
}

#[tokio::test]
async fn without_its_usage_the_hold_is_spent() {
    for more in [json!({}), json!({"max_tokens": 1000}), json!({"stream": true}), json!({"n": 3})] {
        let mut held = Held::start(|config| config.ledger.drain_ms = 0).await;
        let mut wire = Wire::connect(held.weir.address).await;
        wire.send(post("/v1/chat/completions", KEY, hello(&more).to_string())).await;
        let mut seen = held.upstream.next().await;
        let most: Value = serde_json::from_slice(&seen.body).expect("JSON");
        drop(wire);
        seen.left().await;
        let (row, spent) = held.settled().await;
        let settled = &row.settlement;
        assert!(settled.flags.any(Flags::ESTIMATED), "{more}: {row:?}");
        assert_eq!(Some(spent), settled.cost_nano_usd, "{more}");
        // All that the provider may charge for the output that the request allows.
        let allowed = most["max_tokens"].as_u64().or(most["max_completion_tokens"].as_u64());
        let choices = most["n"].as_u64().unwrap_or(1);
        assert!(spent >= allowed.unwrap_or(16_384) * choices * 600, "{more}: {spent} {most}");
    }
}

#[tokio::test]
async fn a_stream_that_is_cut_or_left_spends_its_hold() {
    let event = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n";
    let begun = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{event}\r\nx",
        event.len()
    );
    let mut held = Held::start(|_| {}).await;
    let body = hello(&json!({"stream": true, "max_tokens": 1000}));
    let mut wire = Wire::connect(held.weir.address).await;
    wire.send(post("/v1/chat/completions", KEY, body.to_string())).await;
    // A chunk of no size: the answer is broken.
    held.upstream.next().await.answer(begun);
    assert!(wire.head().await.expect("a head").starts_with("HTTP/1.1 200"));
    drop(wire);
    let (row, spent) = held.settled().await;
    assert!(row.settlement.flags.any(Flags::ESTIMATED), "{row:?}");
    assert!(spent >= 1000 * 600, "{spent}: {row:?}");
}

/// Nobody charges for an answer that failed before its content, although no other attempt follows.
#[tokio::test]
async fn answers_that_failed_cost_nothing() {
    for answer in [
        r#"{"detail":"overloaded"}"#,
        r#"{"object":"error","message":"overloaded","code":503}"#,
        r#"{"success":false}"#,
        r#"{"choices":[{"index":0,"finish_reason":"error","error":{"code":502}}]}"#,
        r#"{"error":{"message":"overloaded"}}"#,
    ] {
        let mut held = Held::start(|config| config.upstream.max_retries = 0).await;
        let mut wire = Wire::connect(held.weir.address).await;
        let body = hello(&json!({"max_tokens": 1000})).to_string();
        wire.send(post("/v1/chat/completions", &format!("{KEY}connection: close\r\n"), body)).await;
        held.upstream.next().await.answer(answered(answer));
        let received = wire.message().await.expect("an answer");
        assert_eq!(received.body, answer.as_bytes());
        drop(wire);
        let (row, spent) = held.settled().await;
        assert_eq!((spent, row.settlement.cost_nano_usd), (0, Some(0)), "{answer}: {row:?}");
    }
}

/// Usage that a provider reports is billed, also of an answer that failed.
#[tokio::test]
async fn answers_that_failed_cost_what_they_report() {
    let usage = json!({"prompt_tokens": 1000, "completion_tokens": 500, "total_tokens": 1500});
    let error = json!({"message": "x", "code": 502});
    let event = format!("data: {}\n\n", json!({"error": error, "choices": [], "usage": usage}));
    let plain = |status: &str, kind: &str, body: &str| {
        let bytes = body.len();
        format!(
            "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {bytes}\r\n\r\n{body}"
        )
    };
    let json = "application/json";
    for (name, failing, is_retried) in [
        ("an error", json!({"error": error, "choices": [], "usage": usage}), false),
        ("nothing", json!({"object": "chat.completion", "choices": null, "usage": usage}), false),
        ("a status", json!({"error": error, "usage": usage}), true),
        ("an event", Value::Null, false),
    ] {
        let mut held =
            Held::start(|config| config.upstream.max_retries = u32::from(is_retried)).await;
        let mut wire = Wire::connect(held.weir.address).await;
        let body = hello(&json!({"max_tokens": 1000, "stream": failing.is_null()})).to_string();
        wire.send(post("/v1/chat/completions", &format!("{KEY}connection: close\r\n"), body)).await;
        let seen = held.upstream.next().await;
        seen.answer(match failing.is_null() {
            true => plain("200 OK", "text/event-stream", &event),
            false if is_retried => plain("500 No", json, &failing.to_string()),
            false => plain("200 OK", json, &failing.to_string()),
        });
        if is_retried {
            held.upstream.next().await.answer(plain("400 No", json, "{}"));
        }
        wire.message().await.expect("an answer");
        drop(wire);
        let rows = rows(&held.store, 1 + usize::from(is_retried)).await;
        let usage = rows.iter().filter_map(|row| row.settlement.completion_tokens);
        assert_eq!(usage.collect::<Vec<_>>(), [500], "{name}: {rows:?}");
        let look = async || held.amounts().await;
        let [spent, _] = eventually(DEADLINE, look, |[_, held]| *held == 0).await;
        assert!(spent > 0, "{name}: {rows:?}");
    }
}

#[tokio::test]
async fn pictures_and_speech_spend_their_hold() {
    for (path, answer) in [
        ("/v1/images/generations", answered(r#"{"data":[{"b64_json":"AAAA"}]}"#)),
        (
            "/v1/audio/speech",
            "HTTP/1.1 200 OK\r\ncontent-type: audio/mpeg\r\ncontent-length: 3\r\n\r\nabc"
                .to_owned(),
        ),
    ] {
        let mut held = Held::start(|_| {}).await;
        let body = json!({"model": MODEL, "input": "a text ".repeat(100), "prompt": "a picture"});
        let mut wire = Wire::connect(held.weir.address).await;
        wire.send(post(path, &format!("{KEY}connection: close\r\n"), body.to_string())).await;
        let seen = held.upstream.next().await;
        seen.answer(answer.clone());
        assert_eq!(wire.message().await.expect("an answer").status(), 200);
        drop(wire);
        let (row, spent) = held.settled().await;
        assert_eq!(row.settlement.outcome, "complete", "{path}");
        assert!(row.settlement.flags.any(Flags::ESTIMATED), "{path}: {row:?}");
        assert!(spent > 0 && Some(spent) == row.settlement.cost_nano_usd, "{path}: {row:?}");
        let (mut upstream, store) = (Upstream::start().await, crate::routes::setting::memory());
        let weir = start_with(store.clone(), &upstream.address, |_| {}).await;
        let mut wire = Wire::connect(weir.address).await;
        wire.send(post(path, KEY, body.to_string())).await;
        upstream.next().await.answer(answer);
        assert_eq!(wire.message().await.expect("an answer").status(), 200);
        let row = rows(&store, 1).await.remove(0);
        assert_eq!(row.settlement.cost_nano_usd, Some(spent), "without a budget: {row:?}");
    }
}

/// An answer of Responses in this state.
fn response(status: &str, usage: &Value) -> Value {
    json!({"id": "resp_1", "object": "response", "model": MODEL, "status": status, "background": true,
           "error": null, "output": [], "usage": usage})
}

/// A response in the background: its hold stays until a request finds its usage.
#[tokio::test]
async fn a_response_in_the_background_is_settled_by_the_request_that_has_its_end() {
    for is_stream in [false, true] {
        let mut held = Held::start(|_| {}).await;
        let body = json!({"model": MODEL, "input": "a text ".repeat(100), "background": true,
                          "stream": is_stream});
        let headers = format!("{KEY}connection: close\r\n");
        let ask = async |held: &mut Held, request: Vec<u8>, answer: String| {
            let mut wire = Wire::connect(held.weir.address).await;
            wire.send(request).await;
            held.upstream.next().await.answer(answer);
            let head = wire.head().await.expect("a head");
            head.split(' ').nth(1).and_then(|status| status.parse().ok())
        };
        let get = |path: &str| bare("GET", path, &headers).into_bytes();
        let queued = response("queued", &Value::Null);
        let begun = match is_stream {
            false => answered(&queued.to_string()),
            // It breaks off behind its first words.
            true => {
                let events = format!(
                    "event: response.created\ndata: {}\n\n\
                     event: response.output_text.delta\ndata: {}\n\n",
                    json!({"type": "response.created", "response": queued}),
                    json!({"type": "response.output_text.delta", "delta": "hm"})
                );
                // No chunk begins so: it is cut there.
                format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                     transfer-encoding: chunked\r\n\r\n{:x}\r\n{events}\r\n!\r\n",
                    events.len()
                )
            }
        };
        ask(&mut held, post("/v1/responses", &headers, body.to_string()).into_bytes(), begun).await;
        let open = eventually(DEADLINE, async || held.amounts().await, |[_, held]| *held > 0).await;
        assert_eq!(open[0], 0, "{open:?}");
        let working = response("in_progress", &Value::Null).to_string();
        let missing =
            "HTTP/1.1 404 No\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
        for (path, answer, status) in [
            ("/v1/responses/resp_1", answered(&working), 200),
            ("/v1/responses/resp_1?include[]=x", missing.to_owned(), 404),
            (
                "/v1/responses/resp_2",
                answered(&response("completed", &json!(null)).to_string()),
                200,
            ),
        ] {
            assert_eq!(ask(&mut held, get(path), answer).await, Some(status), "{path}");
            assert_eq!(held.amounts().await, open, "{path}");
        }
        let done = response("completed", &json!({"input_tokens": 1000, "output_tokens": 2000}));
        for _ in 0..2 {
            let answer = answered(&done.to_string());
            assert_eq!(ask(&mut held, get("/v1/responses/resp_1"), answer).await, Some(200));
            let (row, spent) = held.settled().await;
            // $.15 and $.60 per million tokens, and once.
            assert_eq!(spent, 1000 * 150 + 2000 * 600, "{row:?}");
            assert_eq!(row.settlement.cost_nano_usd, Some(spent));
            assert!(!row.settlement.flags.any(Flags::ESTIMATED | Flags::USAGE_MISSING), "{row:?}");
        }
    }
}

/// Nobody asks for it: what was held is its cost at the latest when weir ends.
#[tokio::test]
async fn a_response_that_nobody_asks_for_costs_what_was_held() {
    let mut held = Held::start(|_| {}).await;
    let body = json!({"model": MODEL, "input": "a text", "background": true});
    let mut wire = Wire::connect(held.weir.address).await;
    wire.send(post("/v1/responses", &format!("{KEY}connection: close\r\n"), body.to_string()))
        .await;
    held.upstream.next().await.answer(answered(&response("queued", &Value::Null).to_string()));
    assert_eq!(wire.message().await.expect("an answer").status(), 200);
    drop(wire);
    let [_, most] =
        eventually(DEADLINE, async || held.amounts().await, |[_, held]| *held > 0).await;
    held.weir.renewal.proxy().journal().finish().await;
    let (row, spent) = held.settled().await;
    assert!(row.settlement.flags.any(Flags::ESTIMATED), "{row:?}");
    assert_eq!((spent, row.settlement.cost_nano_usd), (most, Some(most)), "{row:?}");
}

/// One that failed costs nothing, as any answer that failed before its content.
#[tokio::test]
async fn a_response_in_the_background_that_fails_costs_nothing() {
    let mut held = Held::start(|_| {}).await;
    let body = json!({"model": MODEL, "input": "a text", "background": true}).to_string();
    let headers = format!("{KEY}connection: close\r\n");
    let mut failed = response("failed", &Value::Null);
    failed["error"] = json!({"code": "server_error", "message": "no"});
    let queued = response("queued", &Value::Null);
    for (request, answer) in [
        (post("/v1/responses", &headers, body), queued),
        (bare("GET", "/v1/responses/resp_1", &headers), failed),
    ] {
        let mut wire = Wire::connect(held.weir.address).await;
        wire.send(request).await;
        held.upstream.next().await.answer(answered(&answer.to_string()));
        assert_eq!(wire.message().await.expect("an answer").status(), 200);
    }
    let (row, spent) = held.settled().await;
    assert_eq!((spent, row.settlement.cost_nano_usd), (0, Some(0)), "{row:?}");
}

#[tokio::test]
async fn nothing_is_sent_again_for_a_caller_that_has_left() {
    let mut held = Held::start(|config| {
        config.upstream.max_retries = 3;
        config.upstream.retry_max_wait_ms = 1;
    })
    .await;
    let seen = held.left("/v1/chat/completions", &hello(&json!({}))).await;
    let failing =
        "HTTP/1.1 503 No\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
    seen.answer(failing);
    let (row, spent) = held.settled().await;
    assert_eq!((row.settlement.status, spent), (Some(503), 0), "{row:?}");
}

#[tokio::test]
async fn callers_that_leave_at_once_spend_no_more_than_their_budget() {
    let mut held = Held::start(|config| {
        config.ledger.drain_ms = 0;
        config.server.max_connections = 100;
    })
    .await;
    set(&held.store, "all/usd/total", "0.02").await;
    // The upstream bills all that each request allows.
    let (mut billed, mut sent, mut refused) = (0, 0, None);
    while refused.is_none() && sent < 100 {
        let mut wire = Wire::connect(held.weir.address).await;
        let body = hello(&json!({"max_tokens": 1000})).to_string();
        wire.send(post("/v1/chat/completions", KEY, body)).await;
        tokio::select! {
            seen = held.upstream.next() => {
                let body: Value = serde_json::from_slice(&seen.body).expect("JSON");
                billed += body["max_tokens"].as_u64().expect("a limit") * 600;
                sent += 1;
            }
            answer = wire.message() => refused = answer,
        }
    }
    let refused = refused.expect("it is refused");
    assert_eq!(refused.header("x-weir-error"), Some("insufficient_quota"), "{refused:?}");
    // Each holds, and spends, the price of a tier that its project may have.
    assert!(sent > 12 && billed <= 20_000_000, "{sent} requests, {billed}");
    let look = async || held.amounts().await;
    let [spent, _] = eventually(DEADLINE, look, |[_, held]| *held == 0).await;
    assert!(spent >= billed && spent <= 20_000_000, "{spent} {billed}");
}
