//! Requests and answers of the three protocols, as the tests of the recall tool need them.

use serde_json::{Value, json};

/// Protocol of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Chat,
    Responses,
    Messages,
}

/// Message of a conversation: who speaks, and what.
pub fn said(role: &str, text: &str) -> Value {
    json!({"role": role, "content": text})
}

/// Call of a model: ID, name and arguments.
#[derive(Debug, Clone)]
pub struct Called {
    id: String,
    name: String,
    arguments: Value,
}

pub fn call(id: &str, name: &str, arguments: Value) -> Called {
    Called { id: id.to_owned(), name: name.to_owned(), arguments }
}

/// Answer that the upstream gives.
#[derive(Debug, Clone)]
pub struct Made {
    text: String,
    calls: Vec<Called>,
    /// Tokens of prompt and answer.
    usage: [u64; 2],
}

impl Made {
    pub fn text(text: &str, usage: [u64; 2]) -> Self {
        Self { text: text.to_owned(), calls: Vec::new(), usage }
    }

    pub fn calls(calls: &[Called], usage: [u64; 2]) -> Self {
        Self { text: String::new(), calls: calls.to_vec(), usage }
    }
}

/// Answer as the caller reads it.
#[derive(Debug, Default)]
pub struct Read {
    pub text: String,
    /// ID and name of each call.
    pub calls: Vec<(String, String)>,
    /// Whether the model ended its turn, rather than to wait for results.
    pub is_stopped: bool,
    pub usage: Option<[u64; 2]>,
}

fn text_of(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn figures(usage: &Value, names: [&str; 2]) -> Option<[u64; 2]> {
    Some([usage[names[0]].as_u64()?, usage[names[1]].as_u64()?])
}

impl Protocol {
    pub const ALL: [Self; 3] = [Self::Chat, Self::Responses, Self::Messages];

    pub fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Responses => "/v1/responses",
            Self::Messages => "/v1/messages",
        }
    }

    /// Name of the list of messages.
    pub fn list(self) -> &'static str {
        match self {
            Self::Chat | Self::Messages => "messages",
            Self::Responses => "input",
        }
    }

    /// Returns a request with these messages behind a system text.
    pub fn request(self, turns: &[Value]) -> Value {
        match self {
            Self::Chat => {
                let mut messages = vec![said("system", "Be brief.")];
                messages.extend_from_slice(turns);
                json!({"model": "gpt-4o", "messages": messages})
            }
            Self::Responses => {
                json!({"model": "gpt-4o", "instructions": "Be brief.", "input": turns,
                    "store": false})
            }
            Self::Messages => json!({"model": "claude-sonnet-4-5", "max_tokens": 1000,
                "system": "Be brief.", "messages": turns}),
        }
    }

    /// Asks for an answer in events, with its usage.
    pub fn stream(self, request: &mut Value, streams: bool) {
        request["stream"] = json!(streams);
        if self == Self::Chat && streams {
            request["stream_options"] = json!({"include_usage": true});
        }
    }

    pub fn tools(self, names: &[&str]) -> Value {
        let schema = json!({"type": "object", "properties": {"path": {"type": "string"}}});
        let tool = |name: &&str| match self {
            Self::Chat => {
                json!({"type": "function", "function": {"name": name, "parameters": schema}})
            }
            Self::Responses => json!({"type": "function", "name": name, "parameters": schema}),
            Self::Messages => json!({"name": name, "input_schema": schema}),
        };
        names.iter().map(tool).collect()
    }

    /// Returns the messages of a client that has carried out a call.
    pub fn carried_out(self, own: &Called, result: &str) -> Vec<Value> {
        let Called { id, name, arguments } = own;
        match self {
            Self::Chat => vec![
                json!({"role": "assistant", "content": null, "tool_calls": [chat_call(own)]}),
                json!({"role": "tool", "tool_call_id": id, "content": result}),
            ],
            Self::Responses => vec![
                json!({"type": "function_call", "call_id": id, "name": name,
                    "arguments": arguments.to_string()}),
                json!({"type": "function_call_output", "call_id": id, "output": result}),
            ],
            Self::Messages => vec![
                json!({"role": "assistant", "content": [
                    {"type": "tool_use", "id": id, "name": name, "input": arguments}]}),
                json!({"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": id, "content": result}]}),
            ],
        }
    }

    /// Returns the results in a request: the ID of each call, and the text.
    pub fn results(self, request: &Value) -> Vec<(String, String)> {
        let list = request[self.list()].as_array().cloned().unwrap_or_default();
        match self {
            Self::Chat => list
                .iter()
                .filter(|own| own["role"] == "tool")
                .map(|own| (text_of(&own["tool_call_id"]), text_of(&own["content"])))
                .collect(),
            Self::Responses => list
                .iter()
                .filter(|own| own["type"] == "function_call_output")
                .map(|own| (text_of(&own["call_id"]), text_of(&own["output"])))
                .collect(),
            Self::Messages => list
                .iter()
                .filter_map(|own| own["content"].as_array())
                .flatten()
                .filter(|block| block["type"] == "tool_result")
                .map(|block| (text_of(&block["tool_use_id"]), text_of(&block["content"])))
                .collect(),
        }
    }

    /// Returns the bytes of an answer.
    pub fn answer(self, made: &Made, streams: bool) -> String {
        let (kind, body) = match streams {
            false => ("application/json", self.whole(made).to_string()),
            true => ("text/event-stream", self.events(made)),
        };
        format!(
            "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
    }

    fn whole(self, made: &Made) -> Value {
        let Made { text, calls, usage: [prompt, output] } = made;
        match self {
            Self::Chat => {
                let mut message = json!({"role": "assistant", "content": null});
                if !text.is_empty() {
                    message["content"] = json!(text);
                }
                if !calls.is_empty() {
                    message["tool_calls"] = calls.iter().map(chat_call).collect();
                }
                let finish = if calls.is_empty() { "stop" } else { "tool_calls" };
                json!({"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "gpt-4o",
                    "choices": [{"index": 0, "message": message, "finish_reason": finish}],
                    "usage": {"prompt_tokens": prompt, "completion_tokens": output,
                        "total_tokens": prompt + output}})
            }
            Self::Responses => json!({"id": "resp_1", "object": "response", "created_at": 1,
                "status": "completed", "model": "gpt-4o", "output": items(made),
                "tools": [{"type": "function", "name": "recall", "parameters": {}}],
                "usage": {"input_tokens": prompt, "output_tokens": output,
                    "total_tokens": prompt + output}}),
            Self::Messages => {
                let mut content = Vec::new();
                if !text.is_empty() {
                    content.push(json!({"type": "text", "text": text}));
                }
                content.extend(calls.iter().map(|own| {
                    json!({"type": "tool_use", "id": own.id, "name": own.name, "input": own.arguments})
                }));
                let stop = if calls.is_empty() { "end_turn" } else { "tool_use" };
                json!({"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5",
                    "content": content, "stop_reason": stop, "stop_sequence": null,
                    "usage": {"input_tokens": prompt, "output_tokens": output}})
            }
        }
    }

    fn events(self, made: &Made) -> String {
        match self {
            Self::Chat => chat_events(made),
            Self::Responses => responses_events(made, &self.whole(made)),
            Self::Messages => messages_events(made),
        }
    }

    /// Reads an answer as a caller does.
    pub fn read(self, text: &str, streams: bool) -> Read {
        if streams {
            return match self {
                Self::Chat => read_chat_events(text),
                Self::Responses => {
                    let last = data(text).find(|own| own["type"] == "response.completed");
                    let last = last.unwrap_or_else(|| panic!("no end in {text}"));
                    Self::Responses.read(&last["response"].to_string(), false)
                }
                Self::Messages => read_messages_events(text),
            };
        }
        let value: Value = serde_json::from_str(text).unwrap_or_else(|_| panic!("no JSON: {text}"));
        match self {
            Self::Chat => {
                let choice = &value["choices"][0];
                let calls = choice["message"]["tool_calls"].as_array().cloned().unwrap_or_default();
                Read {
                    text: text_of(&choice["message"]["content"]),
                    calls: calls
                        .iter()
                        .map(|own| (text_of(&own["id"]), text_of(&own["function"]["name"])))
                        .collect(),
                    is_stopped: choice["finish_reason"] == "stop",
                    usage: figures(&value["usage"], ["prompt_tokens", "completion_tokens"]),
                }
            }
            Self::Responses => {
                let mut read = Read {
                    usage: figures(&value["usage"], ["input_tokens", "output_tokens"]),
                    ..Read::default()
                };
                assert_eq!(value["status"], "completed");
                for item in value["output"].as_array().into_iter().flatten() {
                    match item["type"].as_str() {
                        Some("message") => read.text += &text_of(&item["content"][0]["text"]),
                        Some("function_call") => {
                            read.calls.push((text_of(&item["call_id"]), text_of(&item["name"])));
                        }
                        _ => {}
                    }
                }
                read.is_stopped = read.calls.is_empty();
                read
            }
            Self::Messages => {
                let blocks = value["content"].as_array().cloned().unwrap_or_default();
                let texts = blocks.iter().filter(|own| own["type"] == "text");
                let calls = blocks.iter().filter(|own| own["type"] == "tool_use");
                Read {
                    text: texts.map(|own| text_of(&own["text"])).collect(),
                    calls: calls.map(|own| (text_of(&own["id"]), text_of(&own["name"]))).collect(),
                    is_stopped: value["stop_reason"] == "end_turn",
                    usage: figures(&value["usage"], ["input_tokens", "output_tokens"]),
                }
            }
        }
    }
}

fn chat_call(own: &Called) -> Value {
    json!({"id": own.id, "type": "function",
        "function": {"name": own.name, "arguments": own.arguments.to_string()}})
}

fn items(made: &Made) -> Vec<Value> {
    let mut items = Vec::new();
    if !made.text.is_empty() {
        items.push(
            json!({"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": made.text, "annotations": []}]}),
        );
    }
    items.extend(made.calls.iter().map(|own| {
        json!({"type": "function_call", "id": format!("fc_{}", own.id), "call_id": own.id,
            "name": own.name, "arguments": own.arguments.to_string(), "status": "completed"})
    }));
    items
}

fn chat_events(made: &Made) -> String {
    let mut out = String::new();
    let mut chunk = |delta: Value, finish: Value| {
        let choice = json!({"index": 0, "delta": delta, "finish_reason": finish});
        let chunk = json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1,
            "model": "gpt-4o", "choices": [choice]});
        out.push_str(&format!("data: {chunk}\n\n"));
    };
    chunk(json!({"role": "assistant", "content": ""}), Value::Null);
    for letter in made.text.chars() {
        chunk(json!({"content": letter.to_string()}), Value::Null);
    }
    for (index, own) in made.calls.iter().enumerate() {
        let begun = json!({"name": own.name, "arguments": ""});
        let begun = json!({"index": index, "id": own.id, "type": "function", "function": begun});
        chunk(json!({"tool_calls": [begun]}), Value::Null);
        let more = json!({"index": index, "function": {"arguments": own.arguments.to_string()}});
        chunk(json!({"tool_calls": [more]}), Value::Null);
    }
    let finish = if made.calls.is_empty() { "stop" } else { "tool_calls" };
    chunk(json!({}), json!(finish));
    let [prompt, output] = made.usage;
    let usage = json!({"prompt_tokens": prompt, "completion_tokens": output,
        "total_tokens": prompt + output});
    let last = json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1,
        "model": "gpt-4o", "choices": [], "usage": usage});
    out.push_str(&format!("data: {last}\n\ndata: [DONE]\n\n"));
    out
}

fn responses_events(made: &Made, whole: &Value) -> String {
    let mut out = String::new();
    let mut sequence = 0;
    let mut event = |mut data: Value| {
        data["sequence_number"] = json!(sequence);
        sequence += 1;
        out.push_str(&format!("event: {}\ndata: {data}\n\n", text_of(&data["type"])));
    };
    let mut begun = whole.clone();
    begun["status"] = json!("in_progress");
    begun["output"] = json!([]);
    begun["usage"] = Value::Null;
    event(json!({"type": "response.created", "response": begun}));
    for (index, item) in items(made).iter().enumerate() {
        let mut empty = item.clone();
        empty["status"] = json!("in_progress");
        let id = item["id"].clone();
        if item["type"] == "message" {
            empty["content"] = json!([]);
            event(
                json!({"type": "response.output_item.added", "output_index": index, "item": empty}),
            );
            let part = json!({"type": "output_text", "text": "", "annotations": []});
            event(
                json!({"type": "response.content_part.added", "item_id": id, "output_index": index,
                "content_index": 0, "part": part}),
            );
            event(
                json!({"type": "response.output_text.delta", "item_id": id, "output_index": index,
                "content_index": 0, "delta": made.text}),
            );
            event(
                json!({"type": "response.output_text.done", "item_id": id, "output_index": index,
                "content_index": 0, "text": made.text}),
            );
            event(
                json!({"type": "response.content_part.done", "item_id": id, "output_index": index,
                "content_index": 0, "part": item["content"][0]}),
            );
        } else {
            empty["arguments"] = json!("");
            event(
                json!({"type": "response.output_item.added", "output_index": index, "item": empty}),
            );
            event(json!({"type": "response.function_call_arguments.delta", "item_id": id,
                "output_index": index, "delta": item["arguments"]}));
            event(json!({"type": "response.function_call_arguments.done", "item_id": id,
                "output_index": index, "arguments": item["arguments"]}));
        }
        event(json!({"type": "response.output_item.done", "output_index": index, "item": item}));
    }
    event(json!({"type": "response.completed", "response": whole}));
    out
}

fn messages_events(made: &Made) -> String {
    let mut out = String::new();
    let mut event = |data: Value| {
        out.push_str(&format!("event: {}\ndata: {data}\n\n", text_of(&data["type"])));
    };
    let [prompt, output] = made.usage;
    event(json!({"type": "message_start", "message": {"id": "msg_1", "type": "message",
        "role": "assistant", "model": "claude-sonnet-4-5", "content": [], "stop_reason": null,
        "stop_sequence": null, "usage": {"input_tokens": prompt, "output_tokens": 0}}}));
    let mut index = 0;
    if !made.text.is_empty() {
        event(json!({"type": "content_block_start", "index": index,
            "content_block": {"type": "text", "text": ""}}));
        event(json!({"type": "content_block_delta", "index": index,
            "delta": {"type": "text_delta", "text": made.text}}));
        event(json!({"type": "content_block_stop", "index": index}));
        index += 1;
    }
    for own in &made.calls {
        event(json!({"type": "content_block_start", "index": index,
            "content_block": {"type": "tool_use", "id": own.id, "name": own.name, "input": {}}}));
        event(json!({"type": "content_block_delta", "index": index,
            "delta": {"type": "input_json_delta", "partial_json": own.arguments.to_string()}}));
        event(json!({"type": "content_block_stop", "index": index}));
        index += 1;
    }
    let stop = if made.calls.is_empty() { "end_turn" } else { "tool_use" };
    event(json!({"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": null},
        "usage": {"output_tokens": output}}));
    event(json!({"type": "message_stop"}));
    out
}

/// Returns the data of each event.
fn data(text: &str) -> impl Iterator<Item = Value> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("data: "));
    lines.filter_map(|line| serde_json::from_str(line).ok())
}

fn read_chat_events(text: &str) -> Read {
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    let mut read = Read::default();
    for chunk in data(text) {
        let choice = &chunk["choices"][0];
        read.text += choice["delta"]["content"].as_str().unwrap_or_default();
        for own in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            if own["id"].is_string() {
                read.calls.push((text_of(&own["id"]), text_of(&own["function"]["name"])));
            }
        }
        if let Some(finish) = choice["finish_reason"].as_str() {
            read.is_stopped = finish == "stop";
        }
        let usage = figures(&chunk["usage"], ["prompt_tokens", "completion_tokens"]);
        read.usage = usage.or(read.usage);
    }
    read
}

fn read_messages_events(text: &str) -> Read {
    let mut read = Read::default();
    let mut usage = [0, 0];
    for event in data(text) {
        match event["type"].as_str() {
            Some("message_start") => {
                usage[0] = event["message"]["usage"]["input_tokens"].as_u64().unwrap_or(0);
            }
            Some("content_block_start") if event["content_block"]["type"] == "tool_use" => {
                let own = &event["content_block"];
                read.calls.push((text_of(&own["id"]), text_of(&own["name"])));
            }
            Some("content_block_delta") => read.text += &text_of(&event["delta"]["text"]),
            Some("message_delta") => {
                read.is_stopped = event["delta"]["stop_reason"] == "end_turn";
                let own = &event["usage"];
                usage[0] = own["input_tokens"].as_u64().unwrap_or(usage[0]);
                usage[1] = own["output_tokens"].as_u64().unwrap_or(usage[1]);
            }
            Some("message_stop") => read.usage = Some(usage),
            _ => {}
        }
    }
    read
}
