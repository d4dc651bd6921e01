//! Strict readers of streams: they accept only what an ordinary answer has, and return it as a whole.

use serde_json::{Map, Value, json};

use super::json as parsed;

/// Returns the data of the events of a stream, with their names.
fn events(stream: &str) -> Vec<(String, String)> {
    let mut events = Vec::new();
    for event in stream.split("\n\n").filter(|event| !event.is_empty()) {
        let mut name = String::new();
        let mut data = Vec::new();
        for line in event.lines().filter(|line| !line.starts_with(':')) {
            match line.split_once(": ").expect("a field") {
                ("event", value) => name = value.to_owned(),
                ("data", value) => data.push(value),
                other => panic!("{other:?}"),
            }
        }
        if !data.is_empty() {
            events.push((name, data.join("\n")));
        }
    }
    assert!(stream.ends_with("\n\n"), "the last event is complete");
    events
}

fn append(own: &mut Value, more: &Value) {
    let text = own.as_str().unwrap_or_default().to_owned() + more.as_str().unwrap_or_default();
    *own = text.into();
}

/// Reads a chat: one ID, model and role; calls by consecutive indexes; one finish reason; usage once at
/// most; `[DONE]` at the end. Returns `{message, finish_reason, usage}`.
pub fn chat(stream: &str) -> Value {
    let events = events(stream);
    let (last, chunks) = events.split_last().expect("events");
    assert_eq!(last.1, "[DONE]");
    let mut message = Map::new();
    let mut calls: Vec<Value> = Vec::new();
    let (mut reason, mut usage, mut first) = (Value::Null, Value::Null, None);
    for (_, data) in chunks {
        let chunk = parsed(data);
        let envelope = (chunk["id"].clone(), chunk["created"].clone(), chunk["model"].clone());
        assert_eq!(*first.get_or_insert(envelope.clone()), envelope);
        if !chunk["usage"].is_null() {
            assert!(usage.is_null(), "usage comes once: {stream}");
            usage = chunk["usage"].clone();
        }
        let choices = chunk["choices"].as_array().expect("choices");
        assert!(choices.len() <= 1);
        for choice in choices {
            assert!(reason.is_null(), "nothing follows the end: {stream}");
            assert_eq!(choice["index"], 0);
            reason = choice["finish_reason"].clone();
            for (name, value) in choice["delta"].as_object().expect("a delta") {
                match name.as_str() {
                    "role" => assert!(message.insert("role".into(), value.clone()).is_none()),
                    "tool_calls" => {
                        for call in value.as_array().expect("calls") {
                            read_call(&mut calls, call);
                        }
                    }
                    _ => append(message.entry(name.clone()).or_insert(Value::Null), value),
                }
            }
        }
    }
    assert!(reason.is_string(), "a finish reason: {stream}");
    assert_eq!(reason == "tool_calls", !calls.is_empty(), "{stream}");
    if !calls.is_empty() {
        message.insert("tool_calls".into(), calls.into());
    }
    json!({"message": message, "finish_reason": reason, "usage": usage})
}

fn read_call(calls: &mut Vec<Value>, fragment: &Value) {
    let index = fragment["index"].as_u64().expect("an index") as usize;
    assert!(index <= calls.len(), "indexes are consecutive");
    if index == calls.len() {
        assert!(fragment["id"].is_string());
        calls.push(json!({"id": fragment["id"], "name": "", "arguments": ""}));
    }
    let function = fragment["function"].as_object().expect("a function");
    for (name, value) in function {
        append(&mut calls[index][name.as_str()], value);
    }
}

/// Reads Messages: one start and stop, blocks one after the other with consecutive indexes, one stop
/// reason. Returns the message with its blocks.
pub fn messages(stream: &str) -> Value {
    let mut message = Value::Null;
    let mut content: Vec<Value> = Vec::new();
    let mut open: Option<Value> = None;
    let mut is_over = false;
    for (name, data) in events(stream) {
        let event = parsed(&data);
        assert_eq!(event["type"], *name);
        assert!(!is_over, "nothing follows the end: {stream}");
        assert_eq!(message.is_null(), name == "message_start", "{stream}");
        match name.as_str() {
            "message_start" => message = event["message"].clone(),
            "content_block_start" => {
                assert_eq!(event["index"], content.len(), "{stream}");
                assert!(open.is_none(), "one block at a time: {stream}");
                open = Some(event["content_block"].clone());
            }
            "content_block_delta" => {
                assert_eq!(event["index"], content.len(), "{stream}");
                let block = open.as_mut().expect("a block");
                for (member, value) in event["delta"].as_object().expect("a delta") {
                    if member == "partial_json" && block["input"].is_object() {
                        block["input"] = "".into();
                    }
                    match member.as_str() {
                        "type" => {}
                        "partial_json" => append(&mut block["input"], value),
                        _ => append(&mut block[member.as_str()], value),
                    }
                }
            }
            "content_block_stop" => {
                assert_eq!(event["index"], content.len(), "{stream}");
                content.push(open.take().expect("a block"));
            }
            "message_delta" => {
                assert!(open.is_none());
                assert!(message["stop_reason"].is_null(), "one stop reason");
                message["stop_reason"] = event["delta"]["stop_reason"].clone();
                for (name, value) in event["usage"].as_object().expect("usage") {
                    message["usage"][name.as_str()] = value.clone();
                }
            }
            "message_stop" => is_over = true,
            "ping" => {}
            _ => panic!("{name}"),
        }
    }
    assert!(is_over && message["stop_reason"].is_string(), "{stream}");
    let has_use = content.iter().any(|block| block["type"] == "tool_use");
    assert_eq!(message["stop_reason"] == "tool_use", has_use, "{stream}");
    message["content"] = content.into();
    message
}

/// Reads Responses: consecutive numbers; items added and done once each, in order; all of them in the last
/// event. Returns the response.
pub fn responses(stream: &str) -> Value {
    let mut items: Vec<Option<Value>> = Vec::new();
    let mut response = Value::Null;
    let mut id = Value::Null;
    for (number, (name, data)) in events(stream).into_iter().enumerate() {
        let event = parsed(&data);
        assert_eq!(event["type"], *name);
        assert_eq!(event["sequence_number"], number, "{stream}");
        assert!(response.is_null(), "nothing follows the end: {stream}");
        let index = event["output_index"].as_u64().map(|index| index as usize);
        match name.as_str() {
            "response.created" => {
                assert_eq!(number, 0);
                id = event["response"]["id"].clone();
            }
            "response.in_progress" => assert_eq!(event["response"]["id"], id),
            "response.output_item.added" => {
                assert_eq!(index, Some(items.len()), "{stream}");
                items.push(None);
            }
            "response.output_item.done" => {
                let item = items.get_mut(index.expect("an index")).expect("an item");
                assert!(item.replace(event["item"].clone()).is_none(), "done once: {stream}");
            }
            "response.completed" | "response.incomplete" => response = event["response"].clone(),
            _ => {
                let item = items.get(index.expect("an index")).expect("an item");
                assert!(item.is_none(), "the item is open: {stream}");
            }
        }
    }
    assert_eq!(response["id"], id);
    let items: Vec<Value> = items.into_iter().map(|item| item.expect("it is done")).collect();
    assert_eq!(response["output"], Value::from(items), "{stream}");
    response
}
