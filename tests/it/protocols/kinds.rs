//! Agents whose conversations hold the rarer kinds of messages: system messages inside a conversation,
//! programs and searches for tools, screenshots, documents, and results that leave no room for a user.

use serde_json::{Value, json};

use super::through::{output, post, whole};
use super::validity;
use crate::server::harness::{self, Upstream, Wire, ask};

/// Sends the conversation after each turn, and returns the last body that the upstream received. Each of
/// these bodies must be valid.
async fn sent(
    path: &str,
    list: &str,
    mut body: Value,
    turns: Vec<Vec<Value>>,
    limit_tokens: u64,
    check: fn(&Value) -> Result<(), String>,
) -> Value {
    let mut upstream = Upstream::start().await;
    let weir = harness::start(&upstream.address, |_| {}).await;
    let mut wire = Wire::connect(weir.address).await;
    let mut last = Value::Null;
    for (nth, turn) in turns.into_iter().enumerate() {
        body[list].as_array_mut().expect("a list").extend(turn);
        check(&body).expect("the agent is valid");
        wire.send(post(path, &format!("x-weir-max-input-tokens: {limit_tokens}\r\n"), &body)).await;
        let seen = upstream.next().await;
        last = serde_json::from_slice(&seen.body).expect("JSON");
        check(&last).unwrap_or_else(|fault| panic!("turn {nth}: {fault}: {last:.2000}"));
        seen.answer(whole(&json!([])));
        let answer = wire.message().await.expect("an answer");
        let tokens = answer.header("x-weir-sent-tokens").and_then(|own| own.parse::<u64>().ok());
        assert!(answer.status() == 200 && tokens <= Some(limit_tokens), "turn {nth}: {tokens:?}");
    }
    last
}

fn claude() -> Value {
    json!({"model": "claude-opus-4-8", "max_tokens": 512,
           "messages": [{"role": "user", "content": "Check every part."}]})
}

fn call_and_result(turn: usize, input: &str, text: &str) -> [Value; 2] {
    let id = format!("toolu_{turn}");
    [
        json!({"role": "assistant", "content": [
            {"type": "tool_use", "id": id, "name": "read", "input": {"text": input}}]}),
        json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": text}]}),
    ]
}

#[tokio::test]
async fn system_messages_stay_where_the_provider_accepts_them() {
    let turns = (0..40).map(|turn| {
        let mut list = call_and_result(turn, "a", &output(turn)).to_vec();
        if turn % 4 == 1 {
            list.push(json!({"role": "system", "content": rule(turn)}));
        }
        if turn % 4 == 3 {
            list.push(json!({"role": "assistant", "content": "Done."}));
            list.push(json!({"role": "user", "content": format!("Part {turn}?")}));
        }
        list
    });
    let last =
        sent("/v1/messages", "messages", claude(), turns.collect(), 4000, validity::messages).await;
    // The newest stay as messages, older ones in notes.
    let newest = json!({"role": "system", "content": rule(37)});
    assert!(last["messages"].as_array().is_some_and(|list| list.contains(&newest)), "{last:.3000}");
    for turn in (1..40).step_by(4) {
        assert!(last.to_string().contains(&rule(turn)), "{turn}: {last:.3000}");
    }
}

/// A rule, in words of its own for each turn.
fn rule(turn: usize) -> String {
    const PARTS: [&str; 10] = [
        "gates", "levels", "valves", "sills", "pumps", "gauges", "weirs", "banks", "locks", "boats",
    ];
    format!("Never change the {} without a test.", PARTS[turn / 4])
}

#[tokio::test]
async fn a_conversation_of_messages_begins_with_a_user() {
    let mut upstream = Upstream::start().await;
    let weir = harness::start(&upstream.address, |_| {}).await;
    let mut wire = Wire::connect(weir.address).await;
    let mut body = claude();
    let call = call_and_result(0, &"word ".repeat(330), &output(0));
    body["messages"].as_array_mut().expect("a list").extend(call);
    let mut opened = 0;
    // The newest turn leaves less and less room for the first message, for a note, and for anything.
    for limit_tokens in (500..600).step_by(2) {
        let limit = format!("x-weir-max-input-tokens: {limit_tokens}\r\n");
        wire.send(post("/v1/messages", &limit, &body)).await;
        tokio::select! {
            seen = upstream.next() => {
                let sent: Value = serde_json::from_slice(&seen.body).expect("JSON");
                validity::messages(&sent)
                    .unwrap_or_else(|fault| panic!("{limit_tokens}: {fault}: {sent:.1000}"));
                opened += u32::from(sent["messages"][0].to_string().contains("[weir: shortened]"));
                seen.answer(whole(&json!([])));
                let answer = wire.message().await.expect("an answer");
                let tokens = answer.header("x-weir-sent-tokens").and_then(|own| own.parse().ok());
                assert!(tokens.is_some_and(|tokens: u64| tokens <= limit_tokens), "{limit_tokens}");
            }
            answer = wire.message() => {
                answer.expect("an answer").assert_error(400, "context_length_exceeded");
                assert!(opened == 0, "{limit_tokens} is too little, and less was not");
            }
        }
    }
    assert!(opened > 0, "some begin with a message of weir's");
}

#[tokio::test]
async fn programs_and_searches_for_tools_stay_whole() {
    let body =
        json!({"model": "gpt-4o", "store": false, "input": [{"role": "user", "content": "Go."}]});
    let turns = (0..20).map(|turn| {
        let (id, call) = (format!("p{turn}"), format!("c{turn}"));
        let (caller, search) = (json!({"type": "program", "caller_id": id}), format!("s{turn}"));
        let tools = json!([{"type": "function", "name": "read", "description": output(turn), "parameters": {}}]);
        let execution = if turn % 2 == 0 { "client" } else { "server" };
        vec![
            json!({"type": "reasoning", "id": format!("rs_{turn}"), "summary": []}),
            json!({"type": "program", "id": id, "call_id": id, "code": output(turn), "fingerprint": "f"}),
            json!({"type": "function_call", "call_id": call, "name": "read", "arguments": "{}", "caller": caller}),
            json!({"type": "function_call_output", "call_id": call, "output": output(turn), "caller": caller}),
            json!({"type": "program_output", "id": id, "call_id": id, "result": "ok", "status": "completed"}),
            json!({"type": "tool_search_call", "call_id": search, "execution": execution, "arguments": {}}),
            json!({"type": "tool_search_output", "call_id": search, "execution": execution, "tools": tools}),
            json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]}),
            json!({"role": "user", "content": "And the next?"}),
        ]
    });
    sent("/v1/responses", "input", body, turns.collect(), 4000, validity::responses).await;
}

#[tokio::test]
async fn outputs_inside_a_program_are_clipped_before_a_refusal() {
    let mut upstream = Upstream::start().await;
    let weir = harness::start(&upstream.address, |_| {}).await;
    let caller = json!({"type": "program", "caller_id": "p"});
    let call = |id: &str| json!({"type": "function_call", "call_id": id, "name": "read", "arguments": "{}", "caller": caller});
    let said = |id: &str, output: &str| json!({"type": "function_call_output", "call_id": id, "output": output, "caller": caller});
    let body = json!({"model": "gpt-4o", "store": false, "input": [
        {"role": "user", "content": "Read all of it."},
        {"type": "program", "id": "p", "call_id": "p", "code": "read()", "fingerprint": "f"},
        call("a"), said("a", &output(3).repeat(20)), call("b"), said("b", &output(4).repeat(9)),
    ]});
    let mut wire = Wire::connect(weir.address).await;
    wire.send(post("/v1/responses", "x-weir-max-input-tokens: 3000\r\n", &body)).await;
    let seen = tokio::select! {
        seen = upstream.next() => seen,
        answer = wire.message() => panic!("{answer:?}"),
    };
    let sent: Value = serde_json::from_slice(&seen.body).expect("JSON");
    assert_eq!(sent["input"].as_array().map(Vec::len), Some(6));
    for (place, turn) in [(3, 3), (5, 4)] {
        let short = sent["input"][place]["output"].as_str().expect("a text");
        assert!(short.starts_with(&format!("src/part_{turn}.rs:0:")), "{short:.300}");
        assert!(short.contains("bytes left out here]"), "{short:.3000}");
        let members = |item: &Value| item.as_object().map(|item| item.len());
        assert_eq!(members(&sent["input"][place]), members(&body["input"][place]));
    }
    seen.answer(whole(&json!([])));
    let answer = wire.message().await.expect("an answer");
    assert!(answer.header("x-weir-action").is_some_and(|own| own.contains("fit")), "{answer:?}");
}

#[tokio::test]
async fn texts_in_the_results_of_built_in_tools_are_clipped_where_they_stand() {
    let mut upstream = Upstream::start().await;
    let weir = harness::start(&upstream.address, |_| {}).await;
    let mut wire = Wire::connect(weir.address).await;
    let long = output(3).repeat(20);
    let user = json!({"role": "user", "content": "Read all of it."});
    let text = json!([{"type": "text", "text": long}]);
    let shell = json!({"type": "shell_call", "call_id": "c", "action": {"commands": ["cat a"]}});
    let of_client = |content: Value| {
        let [call, mut result] = call_and_result(1, "a", "");
        result["content"][0]["content"] = json!([content]);
        ("/v1/messages", json!([user, call, result]), "/2/content/0/content/0")
    };
    let of_server = |call: &str, result: Value| {
        let call = json!({"type": call, "id": "s", "name": "x", "server_name": "x", "input": {}});
        let said = json!({"role": "assistant", "content": [call, result]});
        ("/v1/messages", json!([user, said]), "/1/content/1")
    };
    let of_item = |item: Value| ("/v1/responses", json!([user, item]), "/1");
    for ((path, list, place), text) in [
        (
            of_client(
                json!({"type": "search_result", "source": "s", "title": "t", "content": text}),
            ),
            "/content/0/text",
        ),
        (
            of_client(
                json!({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": long}}),
            ),
            "/source/data",
        ),
        (
            of_server(
                "mcp_tool_use",
                json!({"type": "mcp_tool_result", "tool_use_id": "s", "is_error": false, "content": text}),
            ),
            "/content/0/text",
        ),
        (
            of_server(
                "server_tool_use",
                json!({"type": "bash_code_execution_tool_result", "tool_use_id": "s",
            "content": {"type": "bash_code_execution_result", "stdout": long, "stderr": "", "return_code": 0, "content": []}}),
            ),
            "/content/stdout",
        ),
        (
            of_item(
                json!({"type": "mcp_call", "id": "m", "server_label": "x", "name": "read", "arguments": "{}", "output": long}),
            ),
            "/output",
        ),
        (
            of_item(
                json!({"type": "code_interpreter_call", "id": "i", "code": "x", "container_id": "k", "outputs": [{"type": "logs", "logs": long}]}),
            ),
            "/outputs/0/logs",
        ),
        (
            of_item(
                json!({"type": "file_search_call", "id": "f", "queries": ["q"], "results": [{"file_id": "f", "text": long}]}),
            ),
            "/results/0/text",
        ),
        (
            (
                "/v1/responses",
                json!([user, shell, {"type": "shell_call_output", "call_id": "c",
            "output": [{"stdout": long, "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]}]),
                "/2",
            ),
            "/output/0/stdout",
        ),
    ] {
        let name = if path == "/v1/messages" { "messages" } else { "input" };
        let mut body = json!({"model": "claude-opus-4-8", "max_tokens": 512, name: list});
        wire.send(post(path, "x-weir-max-input-tokens: 3000\r\n", &body)).await;
        let seen = tokio::select! {
            seen = upstream.next() => seen,
            answer = wire.message() => panic!("{text}: {answer:?}"),
        };
        let sent: Value = serde_json::from_slice(&seen.body).expect("JSON");
        seen.answer(whole(&json!([])));
        wire.message().await.expect("an answer");
        let at = format!("/{name}{place}{text}");
        let short = sent.pointer(&at).and_then(Value::as_str).expect("a text").to_owned();
        assert!(short.starts_with("src/part_3.rs:0:"), "{short:.300}");
        assert!(short.contains("bytes left out here]"), "{short:.3000}");
        *body.pointer_mut(&at).expect("a text") = json!(short);
        assert_eq!(sent[name], body[name], "all else is as it was");
    }
}

/// Returns the head of a large PNG in base64, and many bytes after it.
fn picture() -> String {
    format!("iVBORw0KGgoAAAANSUhEUgAABQAAAAPACAIAAAB{}", "Qq8Zk".repeat(40_000))
}

#[tokio::test]
async fn pictures_count_as_pictures_and_documents_as_their_text() {
    let upstream = Upstream::always("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]").await;
    let weir = harness::start(&upstream, |_| {}).await;
    let limit = "x-weir-max-input-tokens: 4000\r\n";
    let url = format!("data:image/png;base64,{}", picture());
    let screen = json!({"type": "computer_call_output", "call_id": "c",
                        "output": {"type": "computer_screenshot", "image_url": url}});
    let image = json!({"type": "image_generation_call", "id": "i", "status": "completed", "result": picture()});
    for item in [screen, image] {
        let body =
            json!({"model": "gpt-4o", "input": [{"role": "user", "content": "Look."}, item]});
        let answer = ask(weir.address, post("/v1/responses", limit, &body)).await;
        assert_eq!((answer.status(), answer.header("x-weir-action")), (200, Some("pass")));
    }
    let source = json!({"type": "text", "media_type": "text/plain", "data": "word ".repeat(9000)});
    let mut body = claude();
    body["messages"][0]["content"] = json!([{"type": "document", "source": source}]);
    let answer = ask(weir.address, post("/v1/messages", limit, &body)).await;
    assert_eq!(
        (answer.status(), answer.header("x-weir-error")),
        (400, Some("context_length_exceeded"))
    );
}

#[tokio::test]
async fn a_reference_needs_no_type() {
    let upstream = Upstream::always("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]").await;
    let weir = harness::start(&upstream, |_| {}).await;
    let body =
        json!({"model": "gpt-4o", "input": [{"id": "msg_1"}, {"role": "user", "content": "Go."}]});
    let answer = ask(weir.address, post("/v1/responses", "", &body)).await;
    assert_eq!((answer.status(), answer.header("x-weir-action")), (200, Some("provider_state")));
}

#[tokio::test]
async fn a_mark_on_any_block_pins_its_message_and_stays_here() {
    let mut upstream = Upstream::start().await;
    let weir = harness::start(&upstream.address, |_| {}).await;
    let mut wire = Wire::connect(weir.address).await;
    let text = |mark: bool| match mark {
        true => json!({"type": "text", "text": "Keep this.", "weir": {"pin": true}}),
        false => json!({"type": "text", "text": "Keep this."}),
    };
    let body = |mark| {
        let blocks: Vec<Value> = (0..3000).map(|_| text(mark)).collect();
        let mut body = claude();
        body["messages"][0]["content"] = json!(blocks);
        body
    };
    wire.send(post("/v1/messages", "", &body(true))).await;
    let seen = upstream.next().await;
    assert_eq!(serde_json::from_slice::<Value>(&seen.body).expect("JSON"), body(false));
    seen.answer(whole(&json!([])));
    assert_eq!(wire.message().await.expect("an answer").header("x-weir-edits"), Some("pin"));
}
