//! Overflow retries that fail or must not happen: the caller's answer, and the number of attempts.

use serde_json::{Value, json};
use weir::config::Mode;
use weir_store::ledger::RequestQuery;

use super::{WINDOW, before, conversation, memory, upstream};
use crate::server::harness::{self, Upstream, Weir, ask, chat};

/// Builds an answer with this status and body.
fn answer(status: u16, body: &str) -> String {
    format!(
        "HTTP/1.1 {status} Said\r\ncontent-type: application/json\r\nx-of-upstream: 1\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Sends a request to a weir whose upstream always answers with `bytes`; returns the answer and the
/// number of attempts.
async fn always(
    weir: &Weir,
    upstream: &mut Upstream,
    body: &Value,
    bytes: &str,
) -> (harness::Message, usize) {
    let headers = "authorization: Bearer a\r\n";
    let asking = ask(weir.address, chat(headers, body.to_string()));
    tokio::pin!(asking);
    let mut sends = 0;
    loop {
        tokio::select! {
            answer = &mut asking => return (answer, sends),
            seen = upstream.next() => {
                sends += 1;
                seen.answer(bytes);
            }
        }
    }
}

#[tokio::test]
async fn what_is_refused_each_time_ends_in_openais_error_after_a_bounded_number_of_sends() {
    let numbers = "This model's maximum context length is 1500 tokens. However, your messages \
                   resulted in 9000 tokens. Please reduce the length of the messages.";
    let least = "This model's maximum context length is 1500 tokens. However, your prompt contains at \
                 least 1501 input tokens. Please reduce the length of the input prompt.";
    let total = "This model's maximum context length is 1500 tokens. However, you requested 9800 \
                 tokens (9000 in the messages, 800 in the completion). Please reduce it.";
    for (said, sends) in [
        (numbers, 3),
        (total, 3),
        (least, 4),
        ("Please reduce the length of the messages or completion.", 4),
        ("Your input exceeds the context window of this model.", 4),
    ] {
        for more in [json!({}), json!({"stream": true}), json!({"max_tokens": 800})] {
            let mut upstream = Upstream::start().await;
            let store = memory();
            let weir = harness::start_with(store.clone(), &upstream.address, |_| {}).await;
            let original = json!({"error": {"message": said, "type": "x", "code": 400}});
            let bytes = answer(400, &original.to_string());
            let body = conversation(20, &more);
            let (answer, sent) = always(&weir, &mut upstream, &body, &bytes).await;
            let message = answer.assert_error(400, "context_length_exceeded");
            assert!(message.starts_with("This model's maximum context length is "), "{message}");
            let told: Value = serde_json::from_slice(&answer.body).expect("JSON");
            assert_eq!(told["error"]["upstream"]["body"], original, "{said}");
            assert_eq!(told["error"]["upstream"]["status"], 400);
            assert_eq!(sent, sends, "{said} {more}");
            let rows = store.requests(RequestQuery::default()).await.expect("readable");
            assert_eq!(rows.len(), sends, "{said}");
            assert!(rows.iter().all(|row| row.settlement.cost_nano_usd == Some(0)), "{rows:#?}");
        }
    }
}

#[tokio::test]
async fn what_cannot_be_made_to_fit_says_so_with_the_original() {
    let mut upstream = Upstream::start().await;
    let weir = harness::start(&upstream.address, |_| {}).await;
    let body = json!({"model": "gpt-4o", "messages": [
        {"role": "system", "content": "word ".repeat(3000)}, {"role": "user", "content": "hello"},
    ]});
    let plain = "request (3010 tokens) exceeds the available context size (2048 tokens), try it";
    let (answer, sent) = always(&weir, &mut upstream, &body, &answer(400, plain)).await;
    answer.assert_error(400, "context_length_exceeded");
    let told: Value = serde_json::from_slice(&answer.body).expect("JSON");
    assert_eq!(told["error"]["upstream"]["body"], plain);
    assert_eq!(sent, 1);
}

#[tokio::test]
async fn every_other_answer_is_the_upstreams_own_byte_for_byte() {
    let table = include_str!("../../golden/overflow/texts.jsonl");
    let rows = table.lines().map(|line| serde_json::from_str::<Value>(line).expect("a line"));
    let mut upstream = Upstream::start().await;
    let weir = harness::start(&upstream.address, |_| {}).await;
    let mut tried = 0;
    for row in rows {
        let body = row["body"].as_str().map_or_else(|| row["body"].to_string(), str::to_owned);
        let status = row["status"].as_u64().expect("a status") as u16;
        // Similar texts, and refusals with statuses that give them another meaning.
        let statuses = match row["told"].is_null() {
            true => vec![status],
            false => vec![401, 403, 404, 409, 429, 500, 503],
        };
        for status in statuses {
            let bytes = answer(status, &body);
            let asked = conversation(20, &json!({}));
            let (through, sent) = always(&weir, &mut upstream, &asked, &bytes).await;
            assert_eq!((through.status(), sent), (status, 1), "{row}");
            assert_eq!(String::from_utf8_lossy(&through.body), body, "{row}");
            assert_eq!(through.header("x-of-upstream"), Some("1"), "{row}");
            assert_eq!(through.header("x-weir-error"), None, "{row}");
            tried += 1;
        }
    }
    assert!(tried > 350, "{tried}");
}

#[tokio::test]
async fn a_bypass_an_observer_and_who_wants_no_healing_get_the_refusal_itself() {
    for (name, headers) in [("bypass", "x-weir-bypass: 1\r\n"), ("observe", ""), ("off", "")] {
        let upstream = upstream("llamacpp", WINDOW).await;
        let weir = before(&upstream, &memory(), |config| {
            config.context.allow_bypass = true;
            config.learning.heal = name != "off";
            if name == "observe" {
                config.context.mode = Mode::Observe;
            }
        })
        .await;
        let body = conversation(20, &json!({})).to_string();
        for _ in 0..2 {
            let through = ask(weir.address, chat(headers, &body)).await;
            let without = ask(upstream.addr, chat("", &body)).await;
            assert_eq!((through.status(), &through.body), (400, &without.body), "{name}");
        }
        assert_eq!(upstream.requests().len(), 4, "{name}");
    }
}

#[tokio::test]
async fn small_requests_are_not_taken_to_be_too_long() {
    let mut upstream = Upstream::start().await;
    let weir = harness::start(&upstream.address, |_| {}).await;
    let said = r#"{"error":{"message":"Your input exceeds the context window of this model."}}"#;
    let body = json!({"model": "gpt-4o", "messages": [{"role": "user", "content": "hello"}]});
    let (through, sent) = always(&weir, &mut upstream, &body, &answer(400, said)).await;
    through.assert_error(400, "context_length_exceeded");
    assert_eq!(sent, 1);
    // Nothing is learned from it either.
    let large = conversation(20, &json!({}));
    let fine = answer(200, r#"{"choices":[]}"#);
    let (through, _) = always(&weir, &mut upstream, &large, &fine).await;
    assert_eq!(through.header("x-weir-action"), Some("pass"));
}
