//! Responses.

use serde_json::json as value;

use super::*;
use crate::wire::Protocol::Responses;

const OWN_TOOL: &str = r#"{"type":"function","name":"recall","parameters":{}}"#;

/// Returns a response object.
fn response(id: &str, status: &str, output: &[String], input: u32) -> String {
    let usage = match input {
        0 => "null".to_owned(),
        _ => format!(
            r#"{{"input_tokens":{input},"input_tokens_details":{{"cached_tokens":{}}},"output_tokens":4,"output_tokens_details":{{"reasoning_tokens":2}},"total_tokens":{}}}"#,
            input / 2,
            input + 4
        ),
    };
    format!(
        r#"{{"id":"{id}","object":"response","created_at":17,"status":"{status}","model":"m","output":[{}],"tools":[{{"type":"function","name":"read"}},{OWN_TOOL}],"usage":{usage}}}"#,
        output.join(",")
    )
}

fn message(id: &str, said: &str) -> String {
    format!(
        r#"{{"id":"{id}","type":"message","status":"completed","role":"assistant","content":[{{"type":"output_text","text":"{said}","annotations":[]}}]}}"#
    )
}

fn reasoning(id: &str) -> String {
    format!(r#"{{"id":"{id}","type":"reasoning","summary":[],"encrypted_content":"secret-{id}"}}"#)
}

fn call(id: &str, name: &str) -> String {
    format!(
        r#"{{"id":"fc_{id}","type":"function_call","status":"completed","call_id":"{id}","name":"{name}","arguments":"{{\"messages\":[3]}}"}}"#
    )
}

/// Returns a stream of these items, ended as `status`.
fn stream(id: &str, items: &[String], status: &str, input: u32) -> String {
    let mut events = vec![
        format!(
            r#"{{"type":"response.created","response":{}}}"#,
            response(id, "in_progress", &[], 0)
        ),
        format!(
            r#"{{"type":"response.in_progress","response":{}}}"#,
            response(id, "in_progress", &[], 0)
        ),
    ];
    for (index, item) in items.iter().enumerate() {
        events.push(format!(
            r#"{{"type":"response.output_item.added","output_index":{index},"item":{item}}}"#
        ));
        let own = json(item);
        let deltas = match own["type"].as_str() {
            Some("message") => ["response.output_text.delta", "response.output_text.done"],
            Some("reasoning") => {
                ["response.reasoning_summary_text.delta", "response.reasoning_summary_text.done"]
            }
            _ => {
                ["response.function_call_arguments.delta", "response.function_call_arguments.done"]
            }
        };
        for kind in deltas {
            events.push(format!(
                r#"{{"type":"{kind}","output_index":{index},"item_id":{},"delta":"x"}}"#,
                own["id"]
            ));
        }
        events.push(format!(
            r#"{{"type":"response.output_item.done","output_index":{index},"item":{item}}}"#
        ));
    }
    events.push(format!(
        r#"{{"type":"response.{status}","response":{}}}"#,
        response(id, status, items, input)
    ));
    let numbered: Vec<String> = events
        .iter()
        .enumerate()
        .map(|(number, event)| event.replacen(',', &format!(r#","sequence_number":{number},"#), 1))
        .collect();
    named(&numbered.iter().map(String::as_str).collect::<Vec<_>>())
}

fn asking(id: &str) -> String {
    let items =
        [message(&format!("msg_{id}"), "Let me look."), reasoning("rs_1"), call("call_r", NAME)];
    stream(id, &items, "completed", 10)
}

fn answering() -> String {
    stream("b", &[reasoning("rs_2"), message("msg_b", "It is 5.")], "completed", 20)
}

/// Returns a stream as one without the tool.
fn without_tool(stream: &str) -> String {
    stream.replace(&format!(",{OWN_TOOL}"), "")
}

#[test]
fn two_rounds_are_one_answer() {
    let (out, rounds) = streamed(Responses, &[&asking("a"), &answering()]);
    assert_eq!(nexts(&rounds), [Next::Recall, Next::Final]);
    let response = valid::responses(&out);
    assert_eq!(response["id"], "a");
    let kinds: Vec<_> = response["output"]
        .as_array()
        .expect("items")
        .iter()
        .map(|item| item["id"].clone())
        .collect();
    assert_eq!(kinds, ["msg_a", "rs_1", "rs_2", "msg_b"]);
    assert_eq!(response["output"][1]["encrypted_content"], "weir-recall");
    assert_eq!(response["output"][2]["encrypted_content"], "secret-rs_2");
    assert_eq!(
        response["usage"],
        value!({"input_tokens": 30, "input_tokens_details": {"cached_tokens": 15},
            "output_tokens": 8, "output_tokens_details": {"reasoning_tokens": 4},
            "total_tokens": 38})
    );
    assert_eq!(response["tools"].as_array().expect("tools").len(), 1);
    assert!(!out.contains("\"recall\"") && !out.contains("call_r"));
    let items = [message("msg_a", "Let me look."), reasoning("rs_1"), call("call_r", NAME)];
    assert_eq!(rounds[0].assistant, items.join(","));
    assert_eq!(rounds[0].calls[0].arguments, r#"{"messages":[3]}"#);
}

#[test]
fn rounds_may_end_at_a_limit() {
    let (out, rounds) = streamed(Responses, &[&asking("a"), &asking("b"), &asking("c")]);
    assert_eq!(nexts(&rounds), [Next::Recall; 3]);
    let response = valid::responses(&out);
    assert_eq!(response["status"], "completed");
    assert_eq!(response["output"].as_array().expect("items").len(), 6);
    assert_eq!(response["usage"]["input_tokens"], 30);
}

#[test]
fn an_answer_without_calls_of_the_tool_stays() {
    let failed = stream("a", &[reasoning("r")], "failed", 1);
    let error = named(&[r#"{"type":"error","sequence_number":0,"code":"x","message":"y"}"#]);
    let own = stream("a", &[reasoning("r"), call("o", "recall_all")], "completed", 1);
    for round in [answering(), failed, error, own] {
        let (out, rounds) = streamed(Responses, &[&round]);
        assert_eq!(out, without_tool(&round), "but for the tool's definition");
        let plain = without_tool(&round);
        assert_eq!(streamed(Responses, &[&plain]).0, plain);
        assert_eq!(rounds[0].next, Next::Final);
    }
}

#[test]
fn events_behind_the_last_one_follow_the_last_round() {
    let more = |stream: String| format!("{stream}data: [DONE]\n\nevent: x\ndata: {{}}");
    let plain = without_tool(&more(answering()));
    assert_eq!(streamed(Responses, &[&plain]).0, plain);
    let rounds = [more(asking("a")), more(answering())];
    let (out, _) = streamed(Responses, &[&rounds[0], &rounds[1]]);
    assert_eq!(out.matches("[DONE]").count(), 1);
    assert!(out.ends_with("\n\ndata: [DONE]\n\nevent: x\ndata: {}"), "{out}");
    // The last one that there may be: its end was withheld.
    let (out, _) = streamed(Responses, &[&rounds[0]]);
    assert!(out.contains("response.completed"));
    assert!(out.ends_with("\n\ndata: [DONE]\n\nevent: x\ndata: {}"), "{out}");
    let mut stream = RecallStream::new(Responses, NAME);
    let mut out = Vec::new();
    stream.feed(rounds[0].as_bytes(), &mut out);
    for _ in 0..100 {
        stream.feed(&[b"data: ", "x".repeat(1 << 20).as_bytes(), b"\n\n"].concat(), &mut out);
        assert!(stream.held_bytes() < 8 << 20);
    }
}

#[test]
fn calls_of_the_client_keep_their_order_and_reasoning() {
    let items = [reasoning("rs"), call("o1", "read"), call("r", NAME), call("o2", "write")];
    let mixed = stream("a", &items, "completed", 1);
    let (out, rounds) = streamed(Responses, &[&mixed]);
    assert_eq!(nexts(&rounds), [Next::Mixed]);
    let response = valid::responses(&out);
    assert_eq!(response["output"].as_array().expect("items").len(), 3);
    assert_eq!(response["output"][0]["encrypted_content"], "secret-rs");
    assert_eq!(rounds[0].others, ["o1", "o2"]);
    assert_eq!(rounds[0].calls[0].before.as_deref(), Some("o2"));
    let first = [reasoning("rs"), call("r", NAME), call("o", "read")];
    let (out, rounds) = streamed(Responses, &[&asking("a"), &stream("b", &first, "completed", 1)]);
    assert_eq!(nexts(&rounds), [Next::Recall, Next::Mixed]);
    let output = &valid::responses(&out)["output"];
    assert_eq!(output[2]["encrypted_content"], "secret-rs");
    assert_eq!(output[3]["call_id"], "o");
}

#[test]
fn what_cannot_be_answered_ends_without_the_call() {
    let items = [message("m", "x"), call("r", NAME)];
    let round = stream("a", &items, "incomplete", 3);
    let (out, rounds) = streamed(Responses, &[&round]);
    assert_eq!(nexts(&rounds), [Next::Ended]);
    let response = valid::responses(&out);
    assert_eq!(response["status"], "incomplete");
    assert_eq!(response["output"].as_array().expect("items").len(), 1);
    // A failure of the next round has the next number.
    let mut stream = RecallStream::new(Responses, NAME);
    let mut out = Vec::new();
    stream.feed(asking("a").as_bytes(), &mut out);
    assert_eq!(stream.end_round(&mut out).next, Next::Recall);
    let events = String::from_utf8(out.clone()).expect("text").matches("event: ").count();
    out.clear();
    stream.fail("", "upstream_closed", "gone", &mut out);
    assert_eq!(
        String::from_utf8(out).expect("text"),
        format!(
            "event: error\ndata: {{\"type\":\"error\",\"sequence_number\":{events},\"code\":\"upstream_closed\",\"message\":\"gone\",\"param\":null}}\n\n"
        )
    );
}

#[test]
fn upstreams_may_leave_items_out_of_the_last_event() {
    let bare = |stream: &str| {
        let at = stream.find("event: response.completed").expect("the last event");
        let (before, last) = stream.split_at(at);
        let start = last.find(r#""output":["#).expect("a list") + 10;
        let end = last.find(r#"],"tools""#).expect("its end");
        format!("{before}{}{}", &last[..start], &last[end..])
    };
    let (out, rounds) = streamed(Responses, &[&bare(&asking("a")), &bare(&answering())]);
    assert_eq!(nexts(&rounds), [Next::Recall, Next::Final]);
    assert_eq!(valid::responses(&out)["output"].as_array().expect("items").len(), 4);
}

#[test]
fn whole_answers_are_joined() {
    let items = [message("m", "One."), reasoning("rs"), call("r", NAME)];
    let first = response("a", "completed", &items, 10);
    let last = response("b", "completed", &[reasoning("rs_2"), message("n", "Two.")], 20);
    let round = read(Responses, NAME, first.as_bytes());
    assert_eq!((round.next, round.assistant), (Next::Recall, items.join(",")));
    let body = joined(Responses, NAME, &[first.as_bytes(), last.as_bytes()]).expect("an answer");
    let body = json(std::str::from_utf8(&body).expect("text"));
    assert_eq!(body["id"], "b");
    assert_eq!(body["usage"]["input_tokens"], 30);
    let (out, _) = streamed(Responses, &[&asking("a"), &answering()]);
    assert_eq!(body["output"].as_array().expect("items").len(), 4);
    assert_eq!(body["output"][1]["encrypted_content"], "weir-recall");
    assert_eq!(body["tools"], valid::responses(&out)["tools"]);
    let only = response("a", "completed", &[message("m", "x")], 10);
    let body = joined(Responses, NAME, &[only.as_bytes()]).expect("without the tool");
    assert_eq!(String::from_utf8(body).expect("text"), without_tool(&only));
}
