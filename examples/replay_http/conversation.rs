//! Recorded conversations, read from files and counted once by the judge's own rule.
//!
//! Keeps the bytes of each message as in the file and knows nothing of proxies.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::thread;

use flate2::read::MultiGzDecoder;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tiktoken_rs::o200k_base_singleton;

const MESSAGE_TOKENS: u64 = 4;
const CALL_TOKENS: u64 = 8;
/// Maximum size of a tool result after the last step of clipping.
const FLOOR_TOKENS: u64 = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    System,
    User,
    Assistant,
    Tool,
}

/// Message in the caller's own bytes.
pub struct Message {
    pub raw: Box<str>,
    pub role: Role,
    pub tokens: u64,
    text_tokens: u64,
    calls: usize,
}

pub struct Conversation {
    pub id: String,
    pub source: String,
    pub tools: Option<Box<str>>,
    pub messages: Vec<Message>,
    /// Number of messages in each request: all before an assistant's answer.
    pub turns: Vec<usize>,
    /// Prefix sums of tokens: entry `n` covers the first `n` messages.
    sums: Vec<u64>,
}

#[derive(Deserialize)]
struct Line<'a> {
    id: String,
    source: String,
    #[serde(borrow)]
    messages: Vec<&'a RawValue>,
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
}

/// Reads JSON lines, plain or gzip. Errors give the line number.
pub fn read(path: &Path) -> Result<Vec<Conversation>, String> {
    let place = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let file = File::open(path).map_err(|error| place(&error))?;
    let plain: Box<dyn Read> = match path.extension() {
        Some(extension) if extension == "gz" => Box::new(MultiGzDecoder::new(file)),
        _ => Box::new(file),
    };
    let lines = BufReader::new(plain).lines().collect::<Result<Vec<_>, _>>();
    let lines = lines.map_err(|error| place(&error))?;
    let lines: Vec<_> = lines.iter().enumerate().filter(|(_, line)| !line.is_empty()).collect();
    let threads = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    // Interleaved, so that each thread gets a share of the long ones.
    let share = |first: usize| -> Vec<(usize, Result<Conversation, String>)> {
        let own = lines.iter().skip(first).step_by(threads);
        own.map(|(number, line)| (*number, read_line(line))).collect()
    };
    let mut read: Vec<_> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|first| scope.spawn(move || share(first))).collect();
        let joined = workers.into_iter().map(|worker| worker.join());
        joined.flat_map(|part| part.expect("reading a line does not panic")).collect()
    });
    read.sort_by_key(|(number, _)| *number);
    let located = |(number, line): (usize, Result<Conversation, String>)| {
        line.map_err(|error| format!("{}, line {}: {error}", path.display(), number + 1))
    };
    read.into_iter().map(located).collect()
}

/// Parses one conversation from its line.
pub fn read_line(line: &str) -> Result<Conversation, String> {
    let line: Line<'_> = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let messages = line.messages.iter().map(|raw| Message::read(raw.get()));
    let messages = messages.collect::<Result<Vec<_>, _>>()?;
    let asks = |at: &usize| {
        let answered = messages[*at].role == Role::Assistant;
        answered && matches!(messages[at - 1].role, Role::User | Role::Tool)
    };
    let turns = (1..messages.len()).filter(asks).collect();
    let mut sums = vec![0];
    sums.extend(messages.iter().scan(0, |sum, message| {
        *sum += message.tokens;
        Some(*sum)
    }));
    let tools = line.tools.map(|raw| raw.get().into());
    Ok(Conversation { id: line.id, source: line.source, tools, messages, turns, sums })
}

impl Conversation {
    /// Whether each call of message `index` has its result among the first `length` messages.
    pub fn is_answered(&self, index: usize, length: usize) -> bool {
        let calls = self.messages[index].calls;
        let results = self.messages[index + 1..length].iter();
        calls > 0 && results.take_while(|own| own.role == Role::Tool).count() >= calls
    }

    /// Returns the index at which the newest turn of the first `length` messages begins: the last
    /// message, or the message with the calls that the trailing results answer.
    pub fn newest_from(&self, length: usize) -> usize {
        let messages = &self.messages[..length];
        match messages.last() {
            Some(last) if last.role == Role::Tool => {
                messages.iter().rposition(|own| own.role != Role::Tool).unwrap_or(0)
            }
            _ => length.saturating_sub(1),
        }
    }

    /// Tokens of the request of the first `length` messages, all of them sent.
    pub fn full_tokens(&self, length: usize) -> u64 {
        self.sums[length]
    }

    /// Tokens of the last request.
    pub fn last_tokens(&self) -> u64 {
        self.turns.last().map_or(0, |length| self.full_tokens(*length))
    }

    /// Minimum size of the request of the first `length` messages: its system messages and its last
    /// turn, with that turn's results at the floor.
    pub fn least_tokens(&self, length: usize) -> u64 {
        let messages = &self.messages[..length];
        let is_system = |message: &&Message| message.role == Role::System;
        let system: u64 = messages.iter().filter(is_system).map(|message| message.tokens).sum();
        let turn = messages[self.newest_from(length)..]
            .iter()
            .filter(|message| message.role != Role::System);
        system + turn.map(Message::least_tokens).sum::<u64>()
    }
}

impl Message {
    fn read(raw: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(raw).map_err(|error| error.to_string())?;
        let role = match value["role"].as_str() {
            Some("system" | "developer") => Role::System,
            Some("user") => Role::User,
            Some("assistant") => Role::Assistant,
            Some("tool") => Role::Tool,
            _ => return Err("a message has no role that is known here".to_owned()),
        };
        let text_tokens = text_tokens(&value["content"]);
        let calls = value["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
        let tokens = MESSAGE_TOKENS + text_tokens + calls.iter().map(call_tokens).sum::<u64>();
        Ok(Self { raw: raw.into(), role, tokens, text_tokens, calls: calls.len() })
    }

    fn least_tokens(&self) -> u64 {
        match self.role {
            Role::Tool => self.tokens - self.text_tokens + self.text_tokens.min(FLOOR_TOKENS),
            _ => self.tokens,
        }
    }
}

/// Counts a message by the judge's rule: its texts, plus 4, plus 8 for each call.
pub fn count(raw: &str) -> Result<u64, String> {
    Message::read(raw).map(|message| message.tokens)
}

fn text_tokens(content: &Value) -> u64 {
    match content {
        Value::String(text) => o200k_base_singleton().encode_ordinary(text).len() as u64,
        Value::Array(parts) => parts.iter().map(|part| text_tokens(&part["text"])).sum(),
        _ => 0,
    }
}

fn call_tokens(call: &Value) -> u64 {
    let function = &call["function"];
    CALL_TOKENS + text_tokens(&function["name"]) + text_tokens(&function["arguments"])
}
