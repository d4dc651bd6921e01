//! Answers to requests that the upstream refused as too long: callers get an ordinary answer.

use serde_json::{Value, json};
use weir_store::ledger::{Flags, RequestQuery};

use super::{WINDOW, before, conversation, memory, said, send, statuses, upstream};
use crate::ledger::post;
use crate::server::harness::ask;

/// Each vendor, and the number of attempts until a request fits.
const VENDORS: [(&str, usize); 20] = [
    ("openai", 2),
    ("anthropic", 2),
    ("gemini", 2),
    ("llamacpp", 2),
    ("ollama", 2),
    ("vllm", 2),
    ("vllm_new", 2),
    ("sglang", 2),
    ("tgi", 2),
    ("mistral", 2),
    ("deepseek", 2),
    ("openrouter", 2),
    ("openrouter_raw", 2),
    ("lmstudio", 2),
    ("lmstudio_200", 2),
    ("xai", 2),
    ("vllm_negative", 2),
    ("cloudflare", 2),
    ("siliconflow", 2),
    ("deepinfra", 2),
];

#[tokio::test]
async fn an_overflow_is_healed_in_each_vendors_words_streamed_or_not() {
    for (vendor, sends) in VENDORS {
        for stream in [false, true] {
            let upstream = upstream(vendor, WINDOW).await;
            let weir = before(&upstream, &memory(), |_| {}).await;
            let more = json!({"stream": stream});
            let answer = send(&weir, "a", &conversation(20, &more)).await;
            let seen = upstream.requests();
            assert_eq!((answer.status(), seen.len()), (200, sends), "{vendor}: {answer:?}");
            assert!(said(&answer).starts_with("ok "), "{vendor}: {answer:?}");
            assert!(seen[sends - 1].prompt_tokens < Some(WINDOW), "{vendor}");
            let action = answer.header("x-weir-action").expect("it is told");
            assert!(action.contains("evict"), "{vendor}: {action}");
            // The next request of the conversation, and any other, is sent once.
            for exchanges in [21, 30] {
                let answer = send(&weir, "a", &conversation(exchanges, &more)).await;
                assert_eq!(answer.status(), 200, "{vendor}: {answer:?}");
            }
            assert_eq!(statuses(&upstream.requests()[sends..]), [200, 200], "{vendor}");
        }
    }
}

#[tokio::test]
async fn a_refusal_without_numbers_is_healed_whatever_its_words() {
    for vendor in ["novita", "zai"] {
        let upstream = upstream(vendor, 4 * WINDOW / 3).await;
        let weir = before(&upstream, &memory(), |_| {}).await;
        let answer = send(&weir, "a", &conversation(20, &json!({}))).await;
        assert_eq!(answer.status(), 200, "{vendor}: {answer:?}");
    }
}

#[tokio::test]
async fn a_refusal_as_a_streams_first_event_is_healed() {
    for vendor in ["vllm_event", "llamacpp_event", "sglang_error_event", "openrouter_event"] {
        let upstream = upstream(vendor, WINDOW).await;
        let store = memory();
        let weir = before(&upstream, &store, |_| {}).await;
        let more = json!({"stream": true});
        for exchanges in [20, 21] {
            let answer = send(&weir, "a", &conversation(exchanges, &more)).await;
            assert_eq!(answer.status(), 200, "{vendor}: {answer:?}");
            assert!(said(&answer).starts_with("ok "), "{vendor}: {answer:?}");
        }
        // Only the first was sent twice, and the refusal is settled as such.
        assert_eq!(upstream.requests().len(), 3, "{vendor}");
        let rows = store.requests(RequestQuery::default()).await.expect("readable");
        let refused = rows.iter().filter(|row| row.settlement.outcome == "overflow").count();
        assert_eq!((rows.len(), refused), (3, 1), "{vendor}");
    }
}

#[tokio::test]
async fn where_no_number_is_told_it_is_found_in_steps() {
    for vendor in ["groq", "unnumbered"] {
        // Some 4,700 tokens: a step of an eighth and one of a quarter lead below 3,000 and a bit.
        let upstream = upstream(vendor, 3200).await;
        let weir = before(&upstream, &memory(), |_| {}).await;
        let answer = send(&weir, "a", &conversation(24, &json!({}))).await;
        assert_eq!(answer.status(), 200, "{vendor}: {answer:?}");
        let sends = upstream.requests().len();
        assert!((3..=4).contains(&sends), "{vendor}: {sends}");
        let answer = send(&weir, "a", &conversation(25, &json!({}))).await;
        assert_eq!((answer.status(), upstream.requests().len()), (200, sends + 1), "{vendor}");
    }
}

#[tokio::test]
async fn a_refusal_that_no_step_heals_shrinks_no_others_limit() {
    // The excess is in a part that weir does not count: the upstream accepts 40 tokens.
    let upstream = upstream("unnumbered", 40).await;
    let weir = before(&upstream, &memory(), |_| {}).await;
    let answer = send(&weir, "a", &conversation(24, &json!({}))).await;
    answer.assert_error(400, "context_length_exceeded");
    let tiny = json!({"model": "gpt-4o", "messages": [{"role": "user", "content": "hello"}]});
    let answer = send(&weir, "a", &tiny).await;
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.header("x-weir-limit-tokens"), Some("112000"));
}

#[tokio::test]
async fn output_that_does_not_fit_beside_the_input_is_lowered_in_place() {
    for vendor in ["openai", "anthropic", "vllm_new", "sglang", "tgi", "deepseek", "openrouter"] {
        for name in ["max_tokens", "max_completion_tokens"] {
            let upstream = upstream(vendor, WINDOW).await;
            let weir = before(&upstream, &memory(), |_| {}).await;
            let mut body = conversation(3, &json!({}));
            body[name] = json!(16_000);
            let answer = send(&weir, "a", &body).await;
            assert_eq!(answer.status(), 200, "{vendor}: {answer:?}");
            assert_eq!(answer.header("x-weir-edits"), Some("clamp"), "{vendor}");
            assert_eq!(answer.header("x-weir-action"), Some("pass"), "{vendor}");
            let seen = upstream.requests();
            assert_eq!(seen.len(), 2, "{vendor}");
            let sent: Value = serde_json::from_slice(&seen[1].body).expect("JSON");
            let lowered = sent[name].as_u64().expect("a number");
            let prompt_tokens = seen[1].prompt_tokens.expect("counted");
            assert!(
                lowered + prompt_tokens <= WINDOW && lowered > WINDOW / 2,
                "{vendor} {lowered}"
            );
            // All other members are unchanged.
            let first = String::from_utf8(seen[0].body.to_vec()).expect("text");
            let expected = first.replace("16000", &format!("{lowered:<5}"));
            assert_eq!(String::from_utf8_lossy(&seen[1].body), expected, "{vendor}");
            // Later requests are lowered before they are sent.
            let answer = send(&weir, "a", &body).await;
            assert_eq!(answer.header("x-weir-edits"), Some("clamp"), "{vendor}");
            assert_eq!(
                statuses(&upstream.requests()),
                [400, 200, 200]
                    .map(|status| { if status == 400 && vendor == "tgi" { 422 } else { status } })
            );
        }
    }
}

#[tokio::test]
async fn an_upstream_that_counts_more_than_weir_is_believed() {
    // Each word is one token by weir's tokenizer and several by the upstream's.
    let upstream = upstream("llamacpp", WINDOW).await;
    let weir = before(&upstream, &memory(), |config| {
        let mut entry = config.models.find("gpt-4o").entry;
        entry.window_tokens = WINDOW;
        config.models.insert("foreign-model", entry);
    })
    .await;
    // It was compacted and has grown again: by weir's count it nearly fills the limit.
    let mut longest = (0, Value::Null);
    for exchanges in 16..24 {
        let mut body = conversation(exchanges, &json!({"model": "foreign-model"}));
        for message in body["messages"].as_array_mut().expect("a list") {
            let text = message["content"].as_str().expect("a text").replace("the", "100 200 300");
            message["content"] = json!(text);
        }
        let headers = "authorization: Bearer a\r\n";
        let plan = ask(weir.address, post("/weir/v1/plan", headers, &body.to_string())).await;
        let plan: Value = serde_json::from_slice(&plan.body).expect("JSON");
        assert!(plan["compaction"]["cuts"].as_u64() > Some(0), "{plan}");
        let sent_tokens = plan["window"]["sent_tokens"].as_u64().expect("a number");
        longest = if sent_tokens > longest.0 { (sent_tokens, body) } else { longest };
    }
    let body = longest.1;
    let answer = send(&weir, "a", &body).await;
    let seen = upstream.requests();
    assert_eq!((answer.status(), seen.len()), (200, 2), "{answer:?}");
    assert!(seen[0].prompt_tokens > Some(WINDOW) && seen[1].prompt_tokens < Some(WINDOW));
    // The accepted size by weir's count is remembered.
    let answer = send(&weir, "a", &body).await;
    assert_eq!((answer.status(), upstream.requests().len()), (200, 3), "{answer:?}");
}

#[tokio::test]
async fn the_journal_has_a_row_for_each_send_and_refusals_cost_nothing() {
    for vendor in ["openai", "lmstudio_200", "unnumbered"] {
        let upstream = upstream(vendor, WINDOW).await;
        let store = memory();
        let weir = before(&upstream, &store, |_| {}).await;
        let answer = send(&weir, "a", &conversation(20, &json!({"stream": true}))).await;
        let seen = upstream.requests();
        let mut rows = store.requests(RequestQuery::default()).await.expect("readable");
        assert_eq!(rows.len(), seen.len(), "{vendor}");
        // The caller knows the last row by its request id; rows of one millisecond have no order.
        let named = answer.header("x-weir-request-id").expect("it has a name");
        let at = rows.iter().position(|row| row.id.to_string() == named).expect("it is there");
        let last = rows.remove(at);
        let logged = seen[seen.len() - 1].prompt_tokens;
        assert_eq!(last.settlement.prompt_tokens, logged, "{vendor}");
        assert_eq!(last.settlement.outcome, "complete");
        for row in rows {
            let settled = &row.settlement;
            assert_eq!(settled.outcome, "overflow", "{vendor}");
            assert_eq!(settled.cost_nano_usd, Some(0), "{vendor}");
            assert_eq!((settled.prompt_tokens, settled.completion_tokens), (None, None));
            assert_eq!(settled.flags, Flags::REPLACED, "{vendor}: {settled:?}");
            assert_eq!(settled.status, Some(seen[0].status), "{vendor}");
        }
    }
}

#[tokio::test]
async fn an_empty_answer_is_suspected_only_of_models_that_nobody_knows() {
    for (model, sends) in [("gpt-4o", 1), ("my-own-model", 2)] {
        let upstream = upstream("empty", 2500).await;
        let weir = before(&upstream, &memory(), |_| {}).await;
        let body = conversation(20, &json!({"model": model}));
        let answer = send(&weir, "a", &body).await;
        assert_eq!((answer.status(), upstream.requests().len()), (200, sends), "{model}");
        assert_eq!(answer.body.is_empty(), sends == 1, "{model}");
        // The learned limit was right, so the next request is sent once.
        let again = send(&weir, "a", &body).await;
        assert_eq!((again.body.is_empty(), upstream.requests().len()), (sends == 1, sends + 1));
    }
}

#[tokio::test]
async fn any_output_limit_is_lowered_to_the_room_that_a_refusal_names() {
    for vendor in ["openai", "deepseek", "vllm_new", "sglang", "anthropic"] {
        for max_tokens in [200_000_u64, 1_000_000_000_000_000_000, u64::MAX / 2] {
            let upstream = upstream(vendor, WINDOW).await;
            let weir = before(&upstream, &memory(), |_| {}).await;
            let more = json!({"model": "my-own-model", "max_tokens": max_tokens});
            let answer = send(&weir, "a", &conversation(2, &more)).await;
            let sends = upstream.requests().len();
            assert_eq!(answer.status(), 200, "{vendor} {max_tokens}: {answer:?}");
            // Some vendors' first numbers leave a few tokens too many.
            assert!((2..=3).contains(&sends), "{vendor} {max_tokens}: {sends}");
            let edits = answer.header("x-weir-edits").unwrap_or_default();
            assert!(edits.contains("clamp"), "{vendor} {max_tokens}: {edits}");
        }
    }
}
