//! Requests that go on with results, and later ones in which calls are put back.

use super::*;
use crate::wire::Protocol::{Chat, Messages, Responses};

const RESULTS: &[ToolResult<'_>] = &[ToolResult { id: "r", text: "It said \"5\"." }];

#[test]
fn requests_go_on_behind_their_last_message() {
    for (protocol, body, assistant, wanted) in [
        (
            Chat,
            r#"{"model":"m", "messages":[ {"role":"user","content":"a"} ],"stream":true}"#,
            "A",
            r#"{"model":"m", "messages":[ {"role":"user","content":"a"},A,{"role":"tool","tool_call_id":"r","content":"It said \"5\"."}],"stream":true}"#,
        ),
        (
            Responses,
            r#"{"input":[1,2]}"#,
            "A,B",
            r#"{"input":[1,2,A,B,{"type":"function_call_output","call_id":"r","output":"It said \"5\"."}]}"#,
        ),
        (
            Responses,
            r#"{"input":"a\n"}"#,
            "A",
            r#"{"input":[{"type":"message","role":"user","content":"a\n"},A,{"type":"function_call_output","call_id":"r","output":"It said \"5\"."}]}"#,
        ),
        (
            Messages,
            r#"{"messages":[{"role":"user","content":"a"}],"system":"s"}"#,
            "A",
            r#"{"messages":[{"role":"user","content":"a"},A,{"role":"user","content":[{"type":"tool_result","tool_use_id":"r","content":"It said \"5\"."}]}],"system":"s"}"#,
        ),
        (
            Messages,
            r#"{"messages":[{"role":"user","content":"a"}, {"role":"assistant","content":"b"}]}"#,
            r#"{"role":"assistant","content":[1]}"#,
            r#"{"messages":[{"role":"user","content":"a"}, {"role":"assistant","content":[{"type":"text","text":"b"},1]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"r","content":"It said \"5\"."}]}]}"#,
        ),
        (
            Messages,
            r#"{"messages":[{"role":"assistant","content":[0]}]}"#,
            r#"{"role":"assistant","content":[1]}"#,
            r#"{"messages":[{"role":"assistant","content":[0,1]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"r","content":"It said \"5\"."}]}]}"#,
        ),
    ] {
        assert_eq!(appended(protocol, body, assistant, RESULTS).as_deref(), Some(wanted));
    }
    for body in ["", "[]", "{}", r#"{"messages":3,"input":{}}"#] {
        for (_, protocol) in Protocol::NAMES {
            assert_eq!(appended(protocol, body, "{}", RESULTS), None, "{body}");
        }
    }
}

/// Returns the elements of a request's only list.
fn inside(body: &str) -> &str {
    let start = body.find('[').expect("a list") + 1;
    &body[start..body.rfind(']').expect("its end")]
}

/// Returns a request with the same messages twice.
fn twice(body: &str) -> String {
    body.replacen(inside(body), &format!("{0},{0}", inside(body)), 1)
}

/// Checks the request with a withheld call put back.
fn check(protocol: Protocol, body: &str, before: Option<&str>, wanted: &str) {
    let calls = [Call {
        id: "r".to_owned(),
        raw: "{\"R\":1}".to_owned(),
        before: before.map(str::to_owned),
        ..Call::default()
    }];
    let others = ["a".to_owned(), "b".to_owned()];
    let withheld = Withheld { calls: &calls, others: &others, results: RESULTS };
    let place = match protocol {
        Messages => body.find('[').expect("a list") + 1,
        _ => body.find("},").expect("a user") + 2,
    };
    let made = inserted(protocol, body, place, &withheld);
    assert_eq!(made.as_deref(), Some(wanted), "{before:?}");
    // The ID is that of the raw call in real ones; nothing is put back twice.
    let known = body.replace("\"b\"", "\"r\"");
    assert_eq!(inserted(protocol, &known, place, &withheld), None);
    assert_eq!(inserted(protocol, "{\"messages\":[],\"input\":[]}", place, &withheld), None);
    // Another answer may have the same IDs.
    let twice = twice(body);
    let wanted = twice.replacen(inside(body), inside(wanted), 1);
    assert_eq!(inserted(protocol, &twice, place, &withheld), Some(wanted), "{before:?}");
    assert_eq!(inserted(protocol, &twice, place + 1, &withheld), None);
}

#[test]
fn calls_are_put_back_where_they_were() {
    let chat = |calls: &str, result: &str| {
        format!(
            r#"{{"messages":[{{"role":"user"}},{{"role":"assistant","tool_calls":[{calls}]}},{result}{{"role":"tool","tool_call_id":"a"}},{{"role":"tool","tool_call_id":"b"}}]}}"#
        )
    };
    let result = r#"{"role":"tool","tool_call_id":"r","content":"It said \"5\"."},"#;
    let (a, b, r) = (r#"{"id":"a"}"#, r#"{"id":"b"}"#, r#"{"R":1}"#);
    let body = chat(&format!("{a}, {b}"), "");
    check(Chat, &body, Some("a"), &chat(&format!("{r},{a}, {b}"), result));
    check(Chat, &body, Some("b"), &chat(&format!("{a}, {r},{b}"), result));
    check(Chat, &body, None, &chat(&format!("{a}, {b},{r}"), result));

    let responses = |calls: &str, result: &str| {
        format!(
            r#"{{"input":[{{"role":"user"}},{calls}{result},{{"type":"function_call_output","call_id":"a"}},{{"type":"function_call_output","call_id":"b"}}]}}"#
        )
    };
    let result = r#",{"type":"function_call_output","call_id":"r","output":"It said \"5\"."}"#;
    let item = |id: &str| format!(r#"{{"type":"function_call","call_id":"{id}"}}"#);
    let (a, b) = (item("a"), item("b"));
    let body = responses(&format!("{a}, {b}"), "");
    check(Responses, &body, Some("a"), &responses(&format!("{r},{a}, {b}"), result));
    check(Responses, &body, Some("b"), &responses(&format!("{a}, {r},{b}"), result));

    // One result after the other, and no user between two answers.
    let items = |own: &str| {
        let output = |id: &str| format!(r#"{{"type":"function_call_output","call_id":"{id}"}}"#);
        let answer = format!("{a},{},{b},{}", output("a"), output("b"));
        format!(r#"{{"input":[{{"role":"user"}},{own},{answer}]}}"#)
    };
    let (left, right) = (
        format!(r#"{a},{{"type":"function_call_output","call_id":"a"}},{r},{b}"#),
        r#"{"type":"function_call_output","call_id":"b"}"#,
    );
    let own = format!("{},{right}", left.replace(&format!("{r},"), ""));
    check(Responses, &items(&own), Some("b"), &items(&format!("{left}{result},{right}")));

    let messages = |calls: &str, result: &str| {
        format!(
            r#"{{"messages":[{{"role":"assistant","content":[{calls}]}}, {{"role":"user","content":[{result}{{"type":"tool_result","tool_use_id":"a","cache_control":{{}}}},{{"type":"tool_result","tool_use_id":"b"}}]}}]}}"#
        )
    };
    let result = r#"{"type":"tool_result","tool_use_id":"r","content":"It said \"5\"."},"#;
    let block = |id: &str| format!(r#"{{"type":"tool_use","id":"{id}"}}"#);
    let (t, a, b) = (r#"{"type":"thinking","signature":"s"}"#, block("a"), block("b"));
    let body = messages(&format!("{t},{a}, {b}"), "");
    check(Messages, &body, Some("a"), &messages(&format!("{t},{r},{a}, {b}"), result));
    check(Messages, &body, None, &messages(&format!("{t},{a}, {b},{r}"), result));
}

#[test]
fn a_real_mixed_answer_returns_to_its_place() {
    let body = r#"{"id":"x","content":[{"type":"tool_use","id":"a","name":"f","input":{}},{"type":"tool_use","id":"r","name":"recall","input":{"messages":[3]}}],"stop_reason":"tool_use"}"#;
    let round = read(Messages, NAME, body.as_bytes());
    assert_eq!(round.next, Next::Mixed);
    let seen = joined(Messages, NAME, &[body.as_bytes()]).expect("without the call");
    let seen = json(std::str::from_utf8(&seen).expect("text"));
    let request = serde_json::json!({"messages": [
        {"role": "assistant", "content": seen["content"]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "x"}]},
    ]});
    let withheld = Withheld { calls: &round.calls, others: &round.others, results: RESULTS };
    let start = r#"{"messages":["#.len();
    let made = inserted(Messages, &request.to_string(), start, &withheld).expect("a place");
    assert_eq!(json(&made)["messages"][0]["content"], json(body)["content"]);
    assert_eq!(json(&made)["messages"][1]["content"][0]["tool_use_id"], "r");
    assert_eq!(inserted(Messages, &made, start, &withheld), None);
}

#[test]
fn marked_thinking_leaves() {
    for (protocol, body, wanted) in [
        (
            Messages,
            r#"{"messages":[{"role":"assistant","content":[{"type":"thinking","thinking":"a","signature":"weir-recall"},{"type":"redacted_thinking","data":"weir-recall"}, {"type":"thinking","thinking":"b","signature":"s"},{"type":"text","text":"weir-recall"}]},{"role":"user","content":"weir-recall"}]}"#,
            Some(
                r#"{"messages":[{"role":"assistant","content":[{"type":"thinking","thinking":"b","signature":"s"},{"type":"text","text":"weir-recall"}]},{"role":"user","content":"weir-recall"}]}"#,
            ),
        ),
        (
            Responses,
            r#"{"input":[{"type":"reasoning","encrypted_content":"weir-recall"}, {"type":"reasoning","encrypted_content":"s"}]}"#,
            Some(r#"{"input":[{"type":"reasoning","encrypted_content":"s"}]}"#),
        ),
        (Chat, r#"{"messages":["weir-recall"]}"#, None),
        (Messages, r#"{"messages":[{"role":"user","content":"weir-recall"}]}"#, None),
        (Responses, r#"{"input":"weir-recall"}"#, None),
        (Messages, "{", None),
    ] {
        assert_eq!(without_marked(protocol, body).as_deref(), wanted);
    }
}
