//! Chats of qwen-code and gemini-cli, whose messages have parts as contents of Gemini's API do. They are retold
//! as chat completions.
//!
//! The chats have no system prompt and no tools. They are read in the order of the file, so a branch that the
//! user left by going back stays in. A subagent is a conversation of its own, and so is each part after a
//! compaction by the agent.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::value::RawValue;

use super::chat::{self, ChatPart};
use super::{LineMembers, Recorded, as_text, time_ms};
use weir_engine::wire::json;
use weir_engine::wire::usage::{Metered, Usage};

/// ContentParts of a content, by their kind.
#[derive(Default)]
struct ContentParts {
    /// What a reader sees, as parts of a chat.
    shown: Vec<String>,
    calls: Vec<String>,
    /// Name of each call and its result.
    results: Vec<(String, String)>,
}

impl ContentParts {
    /// Reads a list of parts, one part, or a text.
    fn of(raw: &str) -> Self {
        let mut own = Self::default();
        match json::elements(raw) {
            Some(parts) => parts.into_iter().for_each(|part| own.add(part)),
            None => own.add(raw),
        }
        own
    }

    fn add(&mut self, raw: &str) {
        if raw.starts_with('"') {
            self.shown.push(chat::text(raw));
            return;
        }
        let Some(part) = LineMembers::of(raw) else { return };
        // The model's own thinking is not sent again.
        if let Some(text) = part.get("text").filter(|_| part.get("thought") != Some("true")) {
            self.shown.push(chat::text(text));
        }
        let inner = |name| part.get(name).and_then(LineMembers::of);
        if let Some(call) = inner("functionCall") {
            let (id, name) = names(&call);
            self.calls.push(chat::call(&id, &name, call.get("args")));
        }
        if let Some(result) = inner("functionResponse") {
            let response = result.get("response").unwrap_or(r#""""#);
            let output = json::member(response, "output").filter(|own| own.starts_with('"'));
            let content = output.map_or_else(|| as_text(response), str::to_owned);
            self.results.push((names(&result).0, content));
        }
        if let Some(data) = inner("inlineData") {
            let (kind, data) = (data.text("mimeType"), data.text("data"));
            let picture = kind.zip(data).and_then(|(kind, data)| chat::picture(&kind, &data));
            self.shown.extend(picture);
        }
    }

    /// Adds the parts as messages: of the model, or of a user and tools.
    fn add_to(self, part: &mut ChatPart, is_models: bool, at_ms: Option<u64>) {
        for (id, content) in self.results {
            part.result(&id, &content, at_ms);
        }
        let content = chat::content(&self.shown);
        if is_models && !(self.shown.is_empty() && self.calls.is_empty()) {
            part.answer(&content, &self.calls);
        } else if !is_models && !self.shown.is_empty() {
            part.user(&content, at_ms);
        }
    }
}

/// Returns the name of a call, and that of its tool, which stands for the first if there is none.
fn names(call: &LineMembers<'_>) -> (String, String) {
    let name = call.text("name").unwrap_or_default();
    (call.text("id").unwrap_or_else(|| name.clone()), name)
}

/// Returns usage by the names that it has in a chat, in this order: prompt, read from the cache, output,
/// thinking, and all.
fn reported(raw: Option<&str>, names: [&str; 5]) -> Metered {
    let count = |name| json::member(raw?, name).and_then(json::count);
    let [prompt_tokens, cached_tokens, output, thinking, all] = names.map(count);
    // Some count thinking as output, others apart. The sum shows which.
    let said = || Some(output?.saturating_add(thinking.unwrap_or(0)));
    let completion_tokens = all
        .zip(prompt_tokens)
        .and_then(|(all, prompt)| all.checked_sub(prompt))
        .filter(|tokens| Some(*tokens) >= output)
        .or_else(said);
    let usage = Usage {
        prompt_tokens,
        completion_tokens,
        cached_tokens: cached_tokens.or(Some(0)),
        ..Usage::default()
    };
    let usage = Some(usage).filter(|own| own.prompt_tokens > Some(0));
    Metered { usage, ..Metered::default() }
}

/// Returns the conversations of a chat of qwen-code: that of the user first, then those of subagents.
pub(crate) fn qwen(lines: &[&RawValue]) -> Vec<Recorded> {
    const USAGE: [&str; 5] = [
        "promptTokenCount",
        "cachedContentTokenCount",
        "candidatesTokenCount",
        "thoughtsTokenCount",
        "totalTokenCount",
    ];
    let mut all: BTreeMap<String, Vec<ChatPart>> = BTreeMap::new();
    let (mut session, mut project, mut seen) = (None, None, HashSet::new());
    for raw in lines {
        let Some(line) = LineMembers::of(raw.get()) else { continue };
        if line.get("uuid").is_some_and(|uuid| !seen.insert(uuid)) {
            continue;
        }
        session = session.or_else(|| line.text("sessionId"));
        project = project.or_else(|| line.text("cwd"));
        let is_aside = line.get("isSidechain") == Some("true");
        let agent = line.text("agentId").filter(|_| is_aside).unwrap_or_default();
        let parts = all.entry(agent).or_default();
        if line.get("subtype") == Some(r#""chat_compression""#) {
            let payload = line.get("systemPayload").unwrap_or_default();
            let history = json::member(payload, "compressedHistory").and_then(json::elements);
            parts.push(ChatPart::default());
            let part = parts.last_mut();
            part.into_iter()
                .for_each(|part| history.iter().flatten().for_each(|own| add(own, part)));
            continue;
        }
        let Some(content) = line.get("message").and_then(|own| json::member(own, "parts")) else {
            continue;
        };
        if parts.is_empty() {
            parts.push(ChatPart::default());
        }
        let (Some(part), at_ms) = (parts.last_mut(), line.at_ms()) else { continue };
        let is_models = line.get("type") == Some(r#""assistant""#);
        if is_models {
            let own = part.begin(at_ms);
            (own.model, own.id) = (line.text("model"), line.text("uuid"));
            own.reported = reported(line.get("usageMetadata"), USAGE);
        }
        ContentParts::of(content).add_to(part, is_models, at_ms);
    }
    let session = session.unwrap_or_else(|| "chat".to_owned());
    let named = all.into_iter().flat_map(|(agent, parts)| {
        let id = if agent.is_empty() { &session } else { &agent };
        chat::recorded(id, project.as_deref(), parts)
    });
    named.collect()
}

/// Adds a content that was not sent by itself.
fn add(content: &str, part: &mut ChatPart) {
    let is_models = json::member(content, "role") == Some(r#""model""#);
    let parts = json::member(content, "parts").unwrap_or_default();
    ContentParts::of(parts).add_to(part, is_models, None);
}

/// Whether these are the members of a session of gemini-cli.
pub(crate) fn is_session(line: &LineMembers<'_>) -> bool {
    line.get("sessionId").is_some() && line.get("projectHash").is_some()
}

/// Returns the conversation of a session of gemini-cli: one object with all messages, or lines with a message
/// each. A message that is written again takes the place of the first.
pub(crate) fn gemini_cli(lines: &[&RawValue]) -> Vec<Recorded> {
    let (mut id, mut project) = (None, None);
    let mut messages: Vec<&str> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for raw in lines {
        let Some(line) = LineMembers::of(raw.get()) else { continue };
        if is_session(&line) {
            (id, project) = (id.or(line.text("sessionId")), project.or(line.text("projectHash")));
        }
        let listed = line.get("messages").and_then(json::elements);
        let single = line.get("type").map(|_| vec![raw.get()]);
        for message in listed.or(single).unwrap_or_default() {
            let name = json::member(message, "id").and_then(json::string).unwrap_or_default();
            let known = places.get(&*name).filter(|_| !name.is_empty());
            match known.and_then(|place| messages.get_mut(*place)) {
                Some(first) => *first = message,
                None => {
                    places.insert(name.into_owned(), messages.len());
                    messages.push(message);
                }
            }
        }
    }
    let mut part = ChatPart::default();
    for message in messages.into_iter().filter_map(LineMembers::of) {
        add_message(&message, &mut part);
    }
    chat::recorded(&id.unwrap_or_else(|| "chat".to_owned()), project.as_deref(), vec![part])
}

fn add_message(message: &LineMembers<'_>, part: &mut ChatPart) {
    let mut parts = ContentParts::of(message.get("content").unwrap_or("[]"));
    let at_ms = message.at_ms();
    match message.text("type").as_deref() {
        Some("user") => parts.add_to(part, false, at_ms),
        Some("gemini") => {
            let own = part.begin(at_ms);
            (own.model, own.id) = (message.text("model"), message.text("id"));
            let words = ["input", "cached", "output", "thoughts", "total"];
            own.reported = reported(message.get("tokens"), words);
            let calls = message.get("toolCalls").and_then(json::elements).unwrap_or_default();
            let calls: Vec<_> = calls.into_iter().filter_map(LineMembers::of).collect();
            for call in &calls {
                let (id, name) = names(call);
                parts.calls.push(chat::call(&id, &name, call.get("args")));
            }
            parts.add_to(part, true, at_ms);
            for call in &calls {
                let Some(result) = call.get("result") else { continue };
                let at_ms = call.get("timestamp").and_then(time_ms);
                let own = ContentParts::of(result);
                let content = own.results.into_iter().next().map(|(_, content)| content);
                let content = content.unwrap_or_else(|| chat::content(&own.shown));
                part.result(&names(call).0, &content, at_ms);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
