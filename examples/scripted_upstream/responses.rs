//! Answers of Responses in the form of the Open Responses specification, whole or as events: a text, or
//! a call if the request requires one.
//!
//! Reads only as much of a request as an answer repeats.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::State;
use super::answer::{Answer, CREATED};
use super::count::Encoding;
use super::extras::body_of;
use super::routes::Call;
use super::validate::Refusal;

const TEXT: &str = "ok response";
const ARGUMENTS: &str = r#"{"location":"here"}"#;
const OUTPUT_TOKENS: u64 = 2;

/// Answers a request.
pub fn answer(state: &State, call: &Call) -> Result<Answer, Refusal> {
    let (body, model) = body_of(state, call)?;
    if body["input"].is_null() {
        return Err(Refusal::missing("input"));
    }
    let tokens = Encoding::for_model(&model).count(&body["input"].to_string());
    let item = item(&body, call.id);
    let usage = json!({
        "input_tokens": tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": OUTPUT_TOKENS,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": tokens + OUTPUT_TOKENS,
    });
    let mut started = response(&body, &model, call.id);
    let mut completed = started.clone();
    started["status"] = "in_progress".into();
    completed["completed_at"] = CREATED.into();
    completed["output"] = json!([item]);
    completed["usage"] = usage;
    if body["stream"] != true {
        return Ok(Answer::json(200, &completed));
    }
    Ok(Answer::events(events(&item, &started, &completed)))
}

/// Returns the answer's only item.
fn item(body: &Value, id: u64) -> Value {
    let tools = body["tools"].as_array().into_iter().flatten();
    let mut functions = tools.filter(|tool| tool["type"] == "function");
    match functions.next().filter(|_| body["tool_choice"] == "required") {
        Some(function) => json!({
            "id": format!("fc_{id:016x}"),
            "type": "function_call",
            "status": "completed",
            "call_id": format!("call_{id:016x}"),
            "name": function["name"],
            "arguments": ARGUMENTS,
        }),
        None => json!({
            "id": format!("msg_{id:016x}"),
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": TEXT, "annotations": []}],
        }),
    }
}

/// Returns an answer without output.
fn response(body: &Value, model: &str, id: u64) -> Value {
    let mut answer = json!({
        "id": format!("resp_{id:016x}"),
        "object": "response",
        "created_at": CREATED,
        "completed_at": null,
        "status": "completed",
        "model": model,
        "output": [],
        "error": null,
        "incomplete_details": null,
        "usage": null,
    });
    let settings = json!({
        "background": false,
        "frequency_penalty": 0.0,
        "instructions": null,
        "max_output_tokens": null,
        "max_tool_calls": null,
        "metadata": {},
        "parallel_tool_calls": true,
        "presence_penalty": 0.0,
        "previous_response_id": null,
        "prompt_cache_key": null,
        "reasoning": {"effort": null, "summary": null},
        "safety_identifier": null,
        "service_tier": "default",
        "store": true,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
    });
    let empty = Map::new();
    for (name, usual) in settings.as_object().unwrap_or(&empty) {
        let given = Some(&body[name]).filter(|given| !given.is_null());
        answer[name] = given.unwrap_or(usual).clone();
    }
    for tool in answer["tools"].as_array_mut().into_iter().flatten() {
        for name in ["description", "parameters", "strict"] {
            tool[name] = tool[name].take();
        }
    }
    answer
}

/// Returns the events in which an answer's only item is streamed.
fn events(item: &Value, started: &Value, completed: &Value) -> Vec<Bytes> {
    let about = |kind: &str, more: Value| {
        let mut event = json!({"type": kind, "item_id": item["id"], "output_index": 0});
        if let (Some(event), Value::Object(more)) = (event.as_object_mut(), more) {
            event.extend(more);
        }
        event
    };
    let mut empty = item.clone();
    empty["status"] = json!("in_progress");
    let begun = |empty: Value| {
        let added = json!({"type": "response.output_item.added", "output_index": 0, "item": empty});
        vec![json!({"type": "response.created", "response": started}), added]
    };
    let mut events = if item["type"] == "function_call" {
        empty["arguments"] = json!("");
        let mut events = begun(empty);
        for piece in ARGUMENTS.split_inclusive(':') {
            events.push(about("response.function_call_arguments.delta", json!({"delta": piece})));
        }
        let done = json!({"arguments": ARGUMENTS, "name": item["name"]});
        events.push(about("response.function_call_arguments.done", done));
        events
    } else {
        let part = |text: &str| json!({"type": "output_text", "text": text, "annotations": []});
        empty["content"] = json!([]);
        let mut events = begun(empty);
        let added = json!({"content_index": 0, "part": part("")});
        events.push(about("response.content_part.added", added));
        for piece in TEXT.split_inclusive(' ') {
            let delta = json!({"content_index": 0, "delta": piece, "logprobs": []});
            events.push(about("response.output_text.delta", delta));
        }
        let done = json!({"content_index": 0, "text": TEXT, "logprobs": []});
        events.push(about("response.output_text.done", done));
        let done = json!({"content_index": 0, "part": part(TEXT)});
        events.push(about("response.content_part.done", done));
        events
    };
    events.push(json!({"type": "response.output_item.done", "output_index": 0, "item": item}));
    events.push(json!({"type": "response.completed", "response": completed}));
    let events = events.into_iter().enumerate().map(|(number, mut event)| {
        event["sequence_number"] = Value::from(number);
        let kind = event["type"].as_str().unwrap_or("").to_owned();
        Bytes::from(format!("event: {kind}\ndata: {event}\n\n"))
    });
    events.collect()
}
