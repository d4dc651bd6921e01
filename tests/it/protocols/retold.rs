//! Chat completions retold as Responses and Messages. Texts, arguments and results keep their bytes, so
//! the same messages have the same sizes.

use serde_json::{Map, Value, json};

/// Returns the body of Responses for these messages of a chat; `None` if they cannot be expressed in it.
pub fn responses(messages: &[Value]) -> Option<Value> {
    let mut body = json!({"model": "gpt-4o", "input": [], "store": false});
    let mut items = Vec::new();
    let mut messages = messages.iter();
    // The first system message becomes `instructions`.
    if let Some(first) = messages.clone().next().filter(|first| is_plain_system(first)) {
        body["instructions"] = first["content"].clone();
        messages.next();
    }
    for message in messages {
        let role = message["role"].as_str()?;
        if role == "tool" {
            items.push(json!({
                "type": "function_call_output",
                "call_id": message["tool_call_id"],
                "output": responses_content(&message["content"], "input_text")?,
            }));
            continue;
        }
        if let Some(text) = message["reasoning_content"].as_str() {
            let summary = json!([{"type": "summary_text", "text": text}]);
            items.push(json!({"type": "reasoning", "id": "rs_1", "summary": summary}));
        }
        let kind = if role == "assistant" { "output_text" } else { "input_text" };
        let calls = calls(message);
        if !message["content"].is_null() || calls.is_empty() {
            let content = responses_content(&message["content"], kind)?;
            let mut item = json!({"type": "message", "role": role, "content": content});
            if let Some(weir) = message.get("weir") {
                item["weir"] = weir.clone();
            }
            items.push(item);
        }
        for (id, name, arguments) in calls {
            items.push(json!({
                "type": "function_call", "call_id": id, "name": name, "arguments": arguments,
            }));
        }
    }
    body["input"] = items.into();
    Some(body)
}

fn is_plain_system(message: &Value) -> bool {
    message["role"] == "system" && message["content"].is_string() && message.get("weir").is_none()
}

fn responses_content(content: &Value, kind: &str) -> Option<Value> {
    let part = |part: &Value| match part["type"].as_str()? {
        "text" => Some(json!({"type": kind, "text": part["text"]})),
        "image_url" => Some(json!({
            "type": "input_image",
            "image_url": part["image_url"]["url"],
            "detail": part["image_url"].get("detail").cloned().unwrap_or(json!("auto")),
        })),
        _ => None,
    };
    match content {
        Value::String(_) => Some(content.clone()),
        Value::Array(parts) => parts.iter().map(part).collect::<Option<Vec<_>>>().map(Value::Array),
        Value::Null => Some(json!("")),
        _ => None,
    }
}

/// Returns the calls of a message: id, name and arguments.
fn calls(message: &Value) -> Vec<(Value, Value, Value)> {
    let calls = message["tool_calls"].as_array().into_iter().flatten();
    calls
        .map(|call| {
            let function = &call["function"];
            (call["id"].clone(), function["name"].clone(), function["arguments"].clone())
        })
        .collect()
}

/// Returns the body of Messages for these messages of a chat; `None` if they cannot be expressed in it.
/// With `is_joined`, a user's words after results stand in the same message as these.
pub fn messages(messages: &[Value], is_joined: bool) -> Option<Value> {
    let mut body = json!({"model": "gpt-4o", "max_tokens": 1024});
    let mut list: Vec<Value> = Vec::new();
    let mut own = messages.iter();
    if let Some(first) = own.clone().next().filter(|first| is_plain_system(first)) {
        body["system"] = json!([{"type": "text", "text": first["content"]}]);
        own.next();
    }
    for message in own {
        let role = message["role"].as_str()?;
        let mut blocks = Vec::new();
        if message.get("reasoning_content").is_some() {
            // Signed thinking is left out earlier than other reasoning.
            return None;
        }
        match (&message["content"], role) {
            (content, "tool") => blocks.push(json!({
                "type": "tool_result",
                "tool_use_id": message["tool_call_id"],
                "content": anthropic_content(content)?,
            })),
            (Value::Null, _) => {}
            (content, _) => match anthropic_content(content)? {
                Value::Array(own) => blocks.extend(own),
                text => blocks.push(json!({"type": "text", "text": text})),
            },
        }
        for (id, name, arguments) in calls(message) {
            let input: Map<String, Value> = serde_json::from_str(arguments.as_str()?).ok()?;
            // Serialised again, its size must be the same.
            let written = Value::Object(input.clone()).to_string();
            if arguments.as_str() != Some(written.as_str()) {
                return None;
            }
            blocks.push(json!({"type": "tool_use", "id": id, "name": name, "input": input}));
        }
        if blocks.is_empty() {
            return None;
        }
        let holds_results = |last: &Value| last["content"][0]["type"] == "tool_result";
        let last = list.last_mut().filter(|last| holds_results(last));
        match (role, last) {
            ("tool", Some(last)) => last["content"].as_array_mut()?.extend(blocks),
            ("user", Some(last)) if is_joined => last["content"].as_array_mut()?.extend(blocks),
            _ => {
                let role = match role {
                    "tool" => "user",
                    "developer" => "system",
                    role => role,
                };
                let mut sent = json!({"role": role, "content": blocks});
                if let Some(weir) = message.get("weir") {
                    sent["weir"] = weir.clone();
                }
                list.push(sent);
            }
        }
    }
    body["messages"] = list.into();
    Some(body)
}

fn anthropic_content(content: &Value) -> Option<Value> {
    let part = |part: &Value| match part["type"].as_str()? {
        "text" => Some(json!({"type": "text", "text": part["text"]})),
        "image_url" => {
            let source = json!({"type": "url", "url": part["image_url"]["url"]});
            // Anthropic knows no detail, which decides the size of an image.
            let has_detail = part["image_url"].get("detail").is_some();
            (!has_detail).then(|| json!({"type": "image", "source": source}))
        }
        _ => None,
    };
    match content {
        Value::String(_) => Some(content.clone()),
        Value::Array(parts) => parts.iter().map(part).collect::<Option<Vec<_>>>().map(Value::Array),
        Value::Null => Some(json!("")),
        _ => None,
    }
}
