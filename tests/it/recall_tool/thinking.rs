//! Thinking of a model that recalls: the upstream gets it back as it was signed, and no later request has
//! thinking that was signed over a call that it does not show.

use serde_json::{Value, json};

use super::answers::{Protocol, said};
use super::{NUMBER, Setting, conversation, offers, parsed};

/// Returns the bytes of a whole answer.
fn whole(body: &Value) -> String {
    http("application/json", &body.to_string())
}

fn http(kind: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n{body}")
}

fn arguments() -> Value {
    json!({"messages": [NUMBER]})
}

/// Returns an answer of Messages with this thinking, its signature and one more block.
fn message(signature: &str, block: &Value, stop: &str) -> Value {
    json!({"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5",
        "content": [{"type": "thinking", "thinking": "Well.", "signature": signature}, block],
        "stop_reason": stop, "stop_sequence": null, "usage": {"input_tokens": 9, "output_tokens": 1}})
}

/// Returns the same as events.
fn events(message: &Value) -> String {
    let mut begun = message.clone();
    (begun["content"], begun["stop_reason"]) = (json!([]), Value::Null);
    let mut all = vec![json!({"type": "message_start", "message": begun})];
    for (index, block) in message["content"].as_array().expect("a list").iter().enumerate() {
        let mut empty = block.clone();
        let deltas = match block["type"].as_str() {
            Some("thinking") => {
                (empty["thinking"], empty["signature"]) = (json!(""), json!(""));
                vec![
                    json!({"type": "thinking_delta", "thinking": block["thinking"]}),
                    json!({"type": "signature_delta", "signature": block["signature"]}),
                ]
            }
            Some("text") => {
                empty["text"] = json!("");
                vec![json!({"type": "text_delta", "text": block["text"]})]
            }
            _ => {
                empty["input"] = json!({});
                let input = block["input"].to_string();
                vec![json!({"type": "input_json_delta", "partial_json": input})]
            }
        };
        all.push(json!({"type": "content_block_start", "index": index, "content_block": empty}));
        let delta =
            |own: Value| json!({"type": "content_block_delta", "index": index, "delta": own});
        all.extend(deltas.into_iter().map(delta));
        all.push(json!({"type": "content_block_stop", "index": index}));
    }
    all.push(json!({"type": "message_delta", "delta": {"stop_reason": message["stop_reason"]},
        "usage": {"output_tokens": 1}}));
    all.push(json!({"type": "message_stop"}));
    let event = |own: &Value| {
        format!("event: {}\ndata: {own}\n\n", own["type"].as_str().unwrap_or_default())
    };
    all.iter().map(event).collect()
}

#[tokio::test]
async fn signed_thinking_goes_back_and_is_not_kept_without_its_call() {
    for streams in [false, true] {
        let mut setting = Setting::start(offers).await;
        let call = json!({"type": "tool_use", "id": "r1", "name": "recall", "input": arguments()});
        let done = json!({"type": "text", "text": "It is done."});
        let answers = [message("sig-1", &call, "tool_use"), message("sig-2", &done, "end_turn")];
        let answers = answers.map(|own| match streams {
            true => http("text/event-stream", &events(&own)),
            false => whole(&own),
        });
        let mut body = conversation(Protocol::Messages, &[]);
        Protocol::Messages.stream(&mut body, streams);
        let (answer, seen) = setting.exchange(Protocol::Messages, &body, answers.to_vec()).await;
        let second = parsed(&seen[1]);
        let list = second["messages"].as_array().expect("a list");
        let round = &list[list.len() - 2]["content"];
        assert_eq!(round[0]["signature"], "sig-1");
        assert_eq!((&round[0]["thinking"], &round[1]), (&json!("Well."), &call));
        // The caller does not see the call, so it gets no signature that covers it.
        let text = String::from_utf8(answer.body.clone()).expect("text");
        assert!(!text.contains("sig-1") && text.contains("sig-2"), "{text}");
        assert!(text.contains("weir-recall") && !text.contains("tool_use"), "{text}");
        let mut echo = message("weir-recall", &done, "end_turn")["content"].clone();
        let last = message("sig-2", &done, "end_turn")["content"][0].clone();
        echo.as_array_mut().expect("a list").insert(1, last);
        if !streams {
            assert_eq!(parsed(&text)["content"], echo);
        }
        let more = [json!({"role": "assistant", "content": echo}), said("user", "Thank you.")];
        let body = conversation(Protocol::Messages, &more);
        let bye = whole(&message("sig-3", &done, "end_turn"));
        let (_, after) = setting.exchange(Protocol::Messages, &body, vec![bye]).await;
        assert!(!after[0].contains("weir-recall") && after[0].contains("sig-2"), "{}", after[0]);
        let results = Protocol::Messages.results(&parsed(&after[0]));
        assert_eq!(results, Protocol::Messages.results(&second));
    }
}

#[tokio::test]
async fn encrypted_reasoning_goes_back_with_its_call() {
    let reasoning = |nth: usize| {
        json!({"type": "reasoning", "id": format!("rs_{nth}"), "summary": [],
            "encrypted_content": format!("enc-{nth}")})
    };
    let call = json!({"type": "function_call", "id": "fc_1", "call_id": "r1", "name": "recall",
        "arguments": arguments().to_string(), "status": "completed"});
    let done = said_by_the_model("msg_1", "It is done.");
    let mut setting = Setting::start(offers).await;
    let body = conversation(Protocol::Responses, &[]);
    let answers =
        vec![response(json!([reasoning(1), call])), response(json!([reasoning(2), done]))];
    let (answer, seen) = setting.exchange(Protocol::Responses, &body, answers).await;
    let second = parsed(&seen[1]);
    let list = second["input"].as_array().expect("a list");
    assert_eq!(list[list.len() - 3..list.len() - 1], [reasoning(1), call.clone()]);
    let output = parsed(&String::from_utf8_lossy(&answer.body))["output"].clone();
    let mut marked = reasoning(1);
    marked["encrypted_content"] = json!("weir-recall");
    assert_eq!(output, json!([marked, reasoning(2), done]));
    // The caller sends back all items of the answer.
    let mut more = output.as_array().expect("a list").clone();
    more.push(said("user", "Thank you."));
    let body = conversation(Protocol::Responses, &more);
    let (_, after) =
        setting.exchange(Protocol::Responses, &body, vec![response(json!([done]))]).await;
    let after = parsed(&after[0]);
    let items = after["input"].as_array().expect("a list");
    assert!(!items.contains(&marked) && items.contains(&reasoning(2)));
    assert_eq!(Protocol::Responses.results(&after), Protocol::Responses.results(&second));
    // The call follows the reasoning that its ID belongs to, as in the round.
    let place = items.iter().position(|item| *item == call).expect("the call");
    assert_eq!(items[place - 1], reasoning(1));
    assert_eq!(items[place + 1], list[list.len() - 1], "its result");
}

#[tokio::test]
async fn a_call_whose_reasoning_cannot_go_back_has_no_id() {
    let call = json!({"type": "function_call", "id": "fc_1", "call_id": "r1", "name": "recall",
        "arguments": arguments().to_string(), "status": "completed"});
    let done = said_by_the_model("msg_1", "It is done.");
    let bare = json!({"type": "reasoning", "id": "rs_1", "summary": []});
    let sealed =
        json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "enc"});
    // One has no content of its own; the other stays in the client's answer with its text.
    for first in [json!([bare, call]), json!([sealed, said_by_the_model("msg_0", "So."), call])] {
        let mut setting = Setting::start(offers).await;
        let body = conversation(Protocol::Responses, &[]);
        let answers = vec![response(first), response(json!([done]))];
        let (answer, _) = setting.exchange(Protocol::Responses, &body, answers).await;
        let output = parsed(&String::from_utf8_lossy(&answer.body))["output"].clone();
        let mut more = output.as_array().expect("a list").clone();
        more.push(said("user", "Thank you."));
        let body = conversation(Protocol::Responses, &more);
        let (_, after) =
            setting.exchange(Protocol::Responses, &body, vec![response(json!([done]))]).await;
        let after = parsed(&after[0]);
        let items = after["input"].as_array().expect("a list");
        let restored = items.iter().find(|item| item["type"] == "function_call").expect("the call");
        assert_eq!((&restored["call_id"], restored.get("id")), (&json!("r1"), None));
    }
}

fn response(output: Value) -> String {
    whole(&json!({"id": "resp_1", "object": "response", "status": "completed", "model": "gpt-4o",
        "output": output, "usage": {"input_tokens": 9, "output_tokens": 1, "total_tokens": 10}}))
}

fn said_by_the_model(id: &str, text: &str) -> Value {
    json!({"type": "message", "id": id, "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}]})
}

#[tokio::test]
async fn reasoning_content_goes_back_and_such_conversations_keep_no_recall() {
    let answer = |message: Value, reason: &str| {
        whole(&json!({"id": "c", "object": "chat.completion", "created": 1, "model": "gpt-4o",
            "choices": [{"index": 0, "message": message, "finish_reason": reason}],
            "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}}))
    };
    let asks = json!({"role": "assistant", "content": null, "reasoning_content": "I need it.",
        "tool_calls": [{"id": "r1", "type": "function",
            "function": {"name": "recall", "arguments": arguments().to_string()}}]});
    let done = json!({"role": "assistant", "content": "It is done.",
        "reasoning_content": "Now I know."});
    let mut setting = Setting::start(offers).await;
    let body = conversation(Protocol::Chat, &[]);
    let answers = vec![answer(asks.clone(), "tool_calls"), answer(done.clone(), "stop")];
    let (first, seen) = setting.exchange(Protocol::Chat, &body, answers).await;
    let second = parsed(&seen[1]);
    let list = second["messages"].as_array().expect("a list");
    assert_eq!(list[list.len() - 2], asks);
    let message = parsed(&String::from_utf8_lossy(&first.body))["choices"][0]["message"].clone();
    assert_eq!(message["content"], "It is done.");
    assert_eq!(message["reasoning_content"], "I need it.\n\nNow I know.");
    // A provider that wants the reasoning of each call back gets no call without it.
    let bye = || vec![answer(json!({"role": "assistant", "content": "Bye."}), "stop")];
    let with = conversation(Protocol::Chat, &[message, said("user", "Thank you.")]);
    let (_, after) = setting.exchange(Protocol::Chat, &with, bye()).await;
    assert_eq!(Protocol::Chat.results(&parsed(&after[0])), []);
    let more = [said("assistant", "It is done."), said("user", "Thank you.")];
    let (_, after) =
        setting.exchange(Protocol::Chat, &conversation(Protocol::Chat, &more), bye()).await;
    assert_eq!(Protocol::Chat.results(&parsed(&after[0])), Protocol::Chat.results(&second));
}
