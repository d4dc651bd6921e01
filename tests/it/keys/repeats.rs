//! The brake on loops: equal calls with equal results in a row.

use serde_json::{Value, json};

use super::setting::start;
use crate::server::harness::{FINE, Upstream, chat};

/// Body of a conversation with these results of the same call, each behind it.
fn body(results: &[&str]) -> String {
    let mut messages = vec![json!({"role": "user", "content": "watch it"})];
    for (place, result) in results.iter().enumerate() {
        let id = format!("call_{place}");
        let function = json!({"name": "poll", "arguments": "{\"id\":7}"});
        let call = json!({"id": id, "type": "function", "function": function});
        messages.push(json!({"role": "assistant", "content": null, "tool_calls": [call]}));
        messages.push(json!({"role": "tool", "tool_call_id": id, "content": result}));
    }
    json!({"model": "gpt-4o", "messages": messages}).to_string()
}

#[tokio::test]
async fn a_key_ends_loops_and_others_do_not() {
    let upstream = Upstream::always(FINE).await;
    let setting = start(&upstream, |config| config.context.allow_bypass = true).await;
    let key = setting.key("a", r#"{"max_repeats":3}"#).await;
    let other = setting.key("a", "{}").await;
    let loops = body(&["working"; 3]);
    for (header, body, status) in [
        (key.header(), body(&["working"; 2]), 200),
        (key.header(), body(&["working", "working", "done"]), 200),
        (key.header(), loops.clone(), 429),
        (key.header(), body(&["starting", "working", "working", "working"]), 429),
        (format!("{}x-weir-bypass: 1\r\n", key.header()), loops.clone(), 200),
        (other.header(), loops.clone(), 200),
    ] {
        let answer = setting.ask(chat(&header, &body)).await;
        assert_eq!(answer.status(), status, "{body}: {answer:?}");
        if status == 429 {
            assert_eq!(answer.header("x-weir-error"), Some("repeated_call"));
            assert_eq!(answer.header("x-should-retry"), Some("false"));
            let told: Value = serde_json::from_slice(&answer.body).expect("JSON");
            let message = told["error"]["message"].as_str().expect("text");
            assert!(message.contains("'poll' was made 3 times in a row"), "{message}");
        }
    }
}
