//! Writes answers in OpenAI's shapes: completions, chunks, and usage.
//!
//! Produces bytes in pieces and knows no connection. The same request gets the same bytes, except
//! for the cached tokens.

use bytes::Bytes;
use serde_json::{Value, json};

use super::chat::Verdict;

/// Creation time of every answer, so that answers can be compared.
pub const CREATED: u64 = 1_700_000_000;
const FINGERPRINT: &str = "fp_scripted";
/// Size of the pieces in which arguments are streamed.
const ARGUMENTS_PIECE_BYTES: usize = 12;
const CALL_TOKENS: u64 = 7;

/// Answer before any fault is applied.
pub struct Answer {
    pub status: u16,
    pub content_type: &'static str,
    pub headers: Vec<(&'static str, String)>,
    pub content: Content,
}

pub enum Content {
    Whole(Bytes),
    /// Pieces that a model would send one by one.
    Events(Vec<Bytes>),
    /// Bytes of the pattern, with or without a declared length.
    Pattern {
        bytes: u64,
        chunked: bool,
    },
}

impl Answer {
    pub fn json(status: u16, body: &Value) -> Self {
        Self::whole(status, "application/json", body.to_string())
    }

    pub fn whole(status: u16, content_type: &'static str, body: impl Into<Bytes>) -> Self {
        Self { status, content_type, headers: Vec::new(), content: Content::Whole(body.into()) }
    }

    pub fn events(events: Vec<Bytes>) -> Self {
        Self {
            status: 200,
            content_type: "text/event-stream",
            headers: vec![("cache-control", "no-cache".to_owned())],
            content: Content::Events(events),
        }
    }
}

/// Output of the model.
struct Said {
    pieces: Vec<String>,
    calls: Vec<(String, String)>,
    finish_reason: String,
    tokens: u64,
}

/// Builds the answer to a valid request, and its number of output tokens; `id` distinguishes it
/// from others.
pub fn chat(verdict: &Verdict, id: u64) -> (Answer, u64) {
    let said = say(verdict);
    let completion_tokens = said.tokens * verdict.choices as u64;
    (write(verdict, &said, id, completion_tokens), completion_tokens)
}

fn write(verdict: &Verdict, said: &Said, id: u64, completion_tokens: u64) -> Answer {
    let usage = json!({
        "prompt_tokens": verdict.prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": verdict.prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": verdict.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    });
    if verdict.stream {
        return Answer::events(chunks(verdict, said, id, &usage));
    }
    let choices: Vec<Value> = (0..verdict.choices)
        .map(|index| {
            json!({
                "index": index,
                "message": message(said, id, index),
                "logprobs": null,
                "finish_reason": said.finish_reason,
            })
        })
        .collect();
    let body = json!({
        "id": completion_id(id),
        "object": "chat.completion",
        "created": CREATED,
        "model": verdict.model,
        "choices": choices,
        "usage": usage,
        "service_tier": "default",
        "system_fingerprint": FINGERPRINT,
    });
    Answer::json(200, &body)
}

fn completion_id(id: u64) -> String {
    format!("chatcmpl-{id:016x}")
}

fn call_id(id: u64, choice: usize, index: usize) -> String {
    format!("call_{id:016x}{choice:02}{index:02}")
}

fn say(verdict: &Verdict) -> Said {
    let script = &verdict.script;
    let text = script.answer_text(verdict.messages, verdict.wants_json, verdict.fault.as_ref());
    let mut finish_reason = if script.tool_calls.is_empty() { "stop" } else { "tool_calls" };
    let mut pieces = Vec::new();
    let mut tokens = 0;
    let most = verdict.max_output_tokens.unwrap_or(u64::MAX);
    for piece in words_of(&text) {
        let piece_tokens = verdict.encoding.count(piece);
        if tokens + piece_tokens > most {
            finish_reason = "length";
            break;
        }
        tokens += piece_tokens;
        pieces.push(piece.to_owned());
    }
    let mut calls = Vec::new();
    for call in &script.tool_calls {
        let arguments = call.arguments();
        let count = |text: &str| verdict.encoding.count(text);
        tokens += count(&call.name) + count(&arguments) + CALL_TOKENS;
        calls.push((call.name.clone(), arguments));
    }
    Said {
        pieces,
        calls,
        finish_reason: script.finish_reason.as_deref().unwrap_or(finish_reason).to_owned(),
        tokens,
    }
}

/// Splits a text into words with the space before each, as most tokens begin.
fn words_of(text: &str) -> Vec<&str> {
    let spaces = text.match_indices(' ').map(|(at, _)| at).filter(|at| *at > 0);
    let mut words = Vec::new();
    let mut start = 0;
    for end in spaces.chain([text.len()]) {
        words.push(&text[start..end]);
        start = end;
    }
    words.retain(|word| !word.is_empty());
    words
}

fn message(said: &Said, id: u64, choice: usize) -> Value {
    let text = said.pieces.concat();
    let mut message = json!({
        "role": "assistant",
        "content": text,
        "refusal": null,
        "annotations": [],
    });
    if said.calls.is_empty() {
        return message;
    }
    if text.is_empty() {
        message["content"] = Value::Null;
    }
    let calls = said.calls.iter().enumerate();
    let calls = calls.map(|(index, (name, arguments))| {
        json!({
            "id": call_id(id, choice, index),
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        })
    });
    message["tool_calls"] = calls.collect();
    message
}

fn chunks(verdict: &Verdict, said: &Said, id: u64, usage: &Value) -> Vec<Bytes> {
    let event = |choices: Value, usage: Option<Value>| {
        let mut chunk = json!({
            "id": completion_id(id),
            "object": "chat.completion.chunk",
            "created": CREATED,
            "model": verdict.model,
            "service_tier": "default",
            "system_fingerprint": FINGERPRINT,
            "choices": choices,
        });
        if let Some(usage) = usage {
            chunk["usage"] = usage;
        }
        Bytes::from(format!("data: {chunk}\n\n"))
    };
    let nothing_yet = || verdict.include_usage.then_some(Value::Null);
    let mut events = Vec::new();
    for choice in 0..verdict.choices {
        let mut deltas = deltas(said, id, choice);
        let last = deltas.len() - 1;
        for (at, delta) in deltas.drain(..).enumerate() {
            let finish = (at == last).then_some(said.finish_reason.as_str());
            let choices = json!([{
                "index": choice,
                "delta": delta,
                "logprobs": null,
                "finish_reason": finish,
            }]);
            events.push(event(choices, nothing_yet()));
        }
    }
    if verdict.include_usage {
        events.push(event(json!([]), Some(usage.clone())));
    }
    events.push(Bytes::from_static(b"data: [DONE]\n\n"));
    events
}

/// Returns the steps in which one choice is streamed; the last is empty and carries the finish
/// reason.
fn deltas(said: &Said, id: u64, choice: usize) -> Vec<Value> {
    let content = if said.pieces.is_empty() && !said.calls.is_empty() {
        Value::Null
    } else {
        Value::from("")
    };
    let mut deltas = vec![json!({"role": "assistant", "content": content, "refusal": null})];
    deltas.extend(said.pieces.iter().map(|piece| json!({"content": piece})));
    for (index, (name, arguments)) in said.calls.iter().enumerate() {
        deltas.push(json!({"tool_calls": [{
            "index": index,
            "id": call_id(id, choice, index),
            "type": "function",
            "function": {"name": name, "arguments": ""},
        }]}));
        for piece in pieces_of(arguments) {
            let call = json!({"index": index, "function": {"arguments": piece}});
            deltas.push(json!({"tool_calls": [call]}));
        }
    }
    deltas.push(json!({}));
    deltas
}

fn pieces_of(text: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.ceil_char_boundary(ARGUMENTS_PIECE_BYTES);
        let (piece, after) = rest.split_at(end);
        pieces.push(piece);
        rest = after;
    }
    pieces
}
