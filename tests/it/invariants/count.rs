//! Message tokens by weir's published rule, counted by OpenAI's own tokenizer.

use std::cell::RefCell;
use std::collections::HashMap;

use super::json::{Kind, Node};

/// Maximum size of a tool result's texts after the last step of clipping.
const FLOOR_TOKENS: u64 = 32;

/// Size of a message.
#[derive(Debug, Clone, Copy, Default)]
pub struct Size {
    pub texts: u64,
    pub rest: u64,
}

impl Size {
    pub fn all(self) -> u64 {
        self.texts + self.rest
    }

    /// Returns the size as a tool result after the last step of clipping.
    pub fn at_floor(self) -> u64 {
        self.texts.min(FLOOR_TOKENS) + self.rest
    }
}

/// Tokens of a text in o200k_base.
pub fn text(text: &str) -> u64 {
    thread_local! {
        static KNOWN: RefCell<HashMap<String, u64>> = RefCell::default();
    }
    KNOWN.with_borrow_mut(|known| {
        if let Some(tokens) = known.get(text) {
            return *tokens;
        }
        let tokens = tiktoken_rs::o200k_base_singleton().encode_ordinary(text).len() as u64;
        if known.len() > 20_000 {
            known.clear();
        }
        known.insert(text.to_owned(), tokens);
        tokens
    })
}

/// Counts a message: four tokens, eight for each call, one for a name, in addition to the texts;
/// 150 for parts that cannot be counted.
pub fn message(message: &Node, body: &str) -> Size {
    let mut size = Size { texts: 0, rest: 4 };
    match message.get("content").map(|content| &content.kind) {
        Some(Kind::Text(content)) => size.texts += text(content),
        Some(Kind::List(parts)) => {
            for part in parts {
                count_part(part, &mut size);
            }
        }
        _ => {}
    }
    for name in ["reasoning_content", "reasoning", "refusal"] {
        size.rest += text(message.text_of(name));
    }
    if let Some(name) = message.get("name") {
        size.rest += 1 + text(name.text().unwrap_or_default());
    }
    for call in message.get("tool_calls").map_or(&[][..], Node::items) {
        let function = call.get("function").or(call.get("custom")).unwrap_or(call);
        size.rest += count_call(function, body);
    }
    if let Some(call) = message.get("function_call") {
        size.rest += count_call(call, body);
    }
    if message.get("audio").is_some() {
        size.rest += 150;
    }
    size
}

fn count_call(function: &Node, body: &str) -> u64 {
    let value = |name| match function.get(name) {
        None => 0,
        Some(value) => value.text().map_or_else(|| text(value.raw(body)), text),
    };
    8 + value("name") + value("arguments") + value("input")
}

fn count_part(part: &Node, size: &mut Size) {
    match part.text_of("type") {
        "text" => size.texts += text(part.text_of("text")),
        "refusal" => size.texts += text(part.text_of("refusal")),
        "image_url" => {
            // An image of unknown size counts as the largest: eight tiles.
            let detail = part.get("image_url").map_or("", |image| image.text_of("detail"));
            size.rest += if detail == "low" { 85 } else { 85 + 8 * 170 };
        }
        _ => match &part.kind {
            Kind::Text(plain) => size.texts += text(plain),
            _ => size.rest += 150,
        },
    }
}
