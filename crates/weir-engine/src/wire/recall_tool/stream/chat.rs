//! Events of streamed chat completions.
//!
//! OpenAI's reference of chat completions describes chunks. Other providers leave out indexes of calls,
//! repeat roles, names and IDs, send usage with every chunk, and omit `[DONE]`.

use std::borrow::Cow;

use super::super::answer::{CHAT_TEXTS, GAP, ends_paragraph};
use super::super::calls::{self, Tally};
use super::super::text::{self, Object};
use super::super::{Next, valid_arguments};
use super::fragments::Fragments;
use super::{Action, Shared};
use crate::wire::json;

/// Maximum number of calls of one answer that are kept apart.
const MAX_SLOTS: usize = 1024;
/// Members of a chunk that are the same in the whole stream.
const ENVELOPE: [&str; 3] = ["id", "created", "model"];
/// Lists in a delta that arrive in fragments.
const LISTS: [&str; 2] = ["reasoning_details", "thinking_blocks"];
/// Members of a delta that are no part of a request.
const NOT_ECHOED: [&str; 8] = [
    "role",
    "content",
    "reasoning_content",
    "reasoning",
    "reasoning_details",
    "thinking_blocks",
    "tool_calls",
    "function_call",
];

/// State of a streamed chat.
#[derive(Debug, Default)]
pub(super) struct Chat {
    /// Members of [`ENVELOPE`] in the first chunk, as JSON texts.
    envelope: Vec<(&'static str, String)>,
    has_role: bool,
    /// Whether an empty line stands between earlier text and the next, for each of [`CHAT_TEXTS`].
    gaps: [bool; CHAT_TEXTS.len()],
    /// Insides of the strings of this round, for each of [`CHAT_TEXTS`].
    texts: [String; CHAT_TEXTS.len()],
    lists: [Fragments; LISTS.len()],
    /// Other members of deltas.
    extras: Vec<(String, String)>,
    slots: Vec<Slot>,
    /// Whether there are several choices.
    has_several: bool,
    /// Finish reason of the first choice.
    reason: Option<String>,
}

/// Call in a stream.
#[derive(Debug, Default)]
struct Slot {
    choice: u64,
    index: Option<u64>,
    id: String,
    name: String,
    /// Inside of a JSON string.
    arguments: String,
    /// Other members of the call.
    extras: Vec<(String, String)>,
    kind: Kind,
    /// Position for the client.
    mapped: Option<u64>,
    /// Fragments of a call whose name is incomplete.
    held: Vec<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Kind {
    /// The name so far could be the beginning of the tool's.
    #[default]
    Unknown,
    /// A call of the tool.
    Own,
    /// A call for the client.
    Other,
}

/// Choice of a chunk, for the client.
struct Choice<'a> {
    raw: Cow<'a, str>,
    /// Whether anything besides the end is left of it.
    has_substance: bool,
    /// Whether the end of the answer is withheld.
    is_end: bool,
}

impl Chat {
    pub(super) fn event(&mut self, shared: &mut Shared, data: &str) -> Action {
        if data.trim_ascii() == "[DONE]" {
            shared.is_over = true;
            return if shared.is_withholding {
                Action::end(data.to_owned())
            } else {
                Action::default()
            };
        }
        let Some(chunk) = Object::read(data) else { return Action::default() };
        if chunk.get("error").is_some() {
            shared.has_failed = true;
            return Action::default();
        }
        let usage = chunk.get("usage").filter(|raw| text::is_object(raw));
        if let Some(usage) = usage {
            shared.usage = Some(usage.to_owned());
        }
        let Some(raw) = chunk.get("choices") else { return Action::default() };
        if self.envelope.is_empty() {
            let own = |name: &&'static str| Some((*name, chunk.get(name)?.to_owned()));
            self.envelope = ENVELOPE.iter().filter_map(own).collect();
        }
        let choices = json::elements(raw).unwrap_or_default();
        if choices.is_empty() || shared.is_withholding {
            return match usage {
                _ if !shared.is_withholding && shared.is_first() => Action::default(),
                None => Action::drop(),
                Some(_) if shared.is_withholding => {
                    Action::end(self.continued(shared, &text::with(data, "choices", "[]")))
                }
                Some(_) => Action::data(data, self.continued(shared, data)),
            };
        }
        self.chunk(shared, data, raw, &choices)
    }

    /// Treats a chunk with choices.
    fn chunk(&mut self, shared: &mut Shared, data: &str, raw: &str, choices: &[&str]) -> Action {
        let treated: Vec<Choice<'_>> =
            choices.iter().map(|choice| self.choice(shared, choice)).collect();
        let is_end = treated.iter().any(|own| own.is_end);
        let has_substance = treated.iter().any(|own| own.has_substance);
        let mut treated = treated.into_iter();
        let list =
            text::edited(raw, |_, own| Some(treated.next().map_or(own.into(), |own| own.raw)));
        let whole = match list == raw {
            true => data.to_owned(),
            false => text::with(data, "choices", &list),
        };
        let whole = self.continued(shared, &whole);
        let mut action = match has_substance {
            true => Action::data(data, if is_end { with_usage(&whole, "null") } else { whole }),
            false => Action::drop(),
        };
        if is_end {
            let ending = r#"[{"index":0,"delta":{},"finish_reason":"stop"}]"#;
            action.end = Some(self.continued(shared, &text::with(data, "choices", ending)));
            shared.is_withholding = true;
        }
        action
    }

    /// Returns a chunk as one of the first round's stream.
    fn continued(&self, shared: &Shared, data: &str) -> String {
        let mut data = data.to_owned();
        if shared.is_first() {
            return data;
        }
        for (name, value) in &self.envelope {
            data = text::with(&data, name, value);
        }
        let has_usage = Object::read(&data).is_some_and(|own| own.get("usage").is_some());
        match has_usage.then(|| shared.summed()).flatten() {
            Some(sum) => text::with(&data, "usage", &sum),
            None => data,
        }
    }

    /// Treats one choice.
    fn choice<'a>(&mut self, shared: &mut Shared, raw: &'a str) -> Choice<'a> {
        let kept = Choice { raw: raw.into(), has_substance: true, is_end: false };
        let Some(choice) = Object::read(raw) else { return kept };
        let index = choice.number("index").unwrap_or(0);
        self.has_several |= index > 0;
        let reason = choice.text("finish_reason");
        let delta_raw = choice.get("delta").unwrap_or("{}");
        let delta = self.delta(shared, index, delta_raw, reason.is_some());
        let mut changed = match delta == delta_raw {
            true => Cow::Borrowed(raw),
            false => text::with(raw, "delta", &delta).into(),
        };
        let adds_something = self.has_substance(&delta);
        let mut has_substance = delta == delta_raw || adds_something;
        self.has_role |= Object::read(&delta).is_some_and(|own| own.get("role").is_some());
        let Some(reason) = reason else {
            return Choice { raw: changed, has_substance, is_end: false };
        };
        let mut is_end = false;
        if index == 0 {
            self.reason = Some(reason.clone().into_owned());
            shared.tally = self.tally();
            let is_whole = calls::is_chat_whole(Some(&reason)) && !self.has_several;
            is_end = shared.next(is_whole) == Next::Recall;
        }
        if is_end {
            changed = text::with(&changed, "finish_reason", "null").into();
            has_substance = adds_something;
        } else {
            has_substance = true;
            let is_only_own = |slots: &[Slot]| {
                let mut own = slots.iter().filter(|slot| slot.choice == index).peekable();
                own.peek().is_some() && own.all(|slot| slot.kind == Kind::Own)
            };
            if is_only_own(&self.slots)
                && let Some(raw) = choice.get("finish_reason")
                && calls::chat_reason(raw) != raw
            {
                changed = text::with(&changed, "finish_reason", calls::chat_reason(raw)).into();
            }
        }
        Choice { raw: changed, has_substance, is_end }
    }

    /// Whether a delta adds anything for the client.
    fn has_substance(&self, delta: &str) -> bool {
        let Some(delta) = Object::read(delta) else { return true };
        delta.members().iter().any(|(name, raw)| match &**name {
            "role" => !self.has_role,
            _ => !text::is_empty(raw),
        })
    }

    /// Reads a delta and returns it for the client.
    fn delta<'a>(
        &mut self,
        shared: &mut Shared,
        choice: u64,
        raw: &'a str,
        is_last: bool,
    ) -> Cow<'a, str> {
        let mut delta = Cow::Borrowed(raw);
        let Some(object) = Object::read(raw) else { return delta };
        if choice == 0 {
            self.collect(shared, &object);
        }
        let list = object.get("tool_calls").unwrap_or("[]");
        let elements = json::elements(list).unwrap_or_default();
        let mut kept: Vec<Cow<'_, str>> = Vec::new();
        for element in &elements {
            self.call(shared, choice, element, &mut kept);
        }
        if is_last {
            self.decide(choice, &mut kept);
        }
        if kept != elements {
            delta = match kept.is_empty() {
                true => text::without(raw, "tool_calls").into(),
                false => text::with(raw, "tool_calls", &format!("[{}]", kept.join(","))).into(),
            };
        }
        if shared.is_first() {
            return delta;
        }
        if object.get("role").is_some() {
            delta = text::without(&delta, "role").into();
        }
        for (member, gap) in CHAT_TEXTS.iter().zip(&mut self.gaps) {
            let piece = object.get(member).and_then(text::inner).unwrap_or_default();
            if choice == 0 && !piece.is_empty() && std::mem::take(gap) {
                delta = text::with(&delta, member, &format!("\"{GAP}{piece}\"")).into();
            }
        }
        delta
    }

    /// Collects a delta for the request that goes on.
    fn collect(&mut self, shared: &mut Shared, delta: &Object<'_>) {
        for (name, value) in delta.members() {
            let is_call = *name == "tool_calls";
            if is_call || text::is_empty(value) || !shared.collect(value.len()) {
                continue;
            }
            if let Some(place) = CHAT_TEXTS.iter().position(|own| own == name) {
                self.texts[place].push_str(text::inner(value).unwrap_or_default());
            } else if let Some(place) = LISTS.iter().position(|own| own == name) {
                let mut fragments = json::elements(value).unwrap_or_default().into_iter();
                if !fragments.all(|fragment| self.lists[place].add(fragment)) {
                    shared.collect(usize::MAX / 2);
                }
            } else if !NOT_ECHOED.contains(&&**name) {
                set(&mut self.extras, name, value);
            }
        }
    }

    /// Reads a fragment of a call, and adds the client's part of it to `kept`.
    fn call<'a>(
        &mut self,
        shared: &mut Shared,
        choice: u64,
        raw: &'a str,
        kept: &mut Vec<Cow<'a, str>>,
    ) {
        let Some(call) = Object::read(raw) else { return kept.push(raw.into()) };
        let may_keep = shared.collect(raw.len());
        let id = call.text("id").unwrap_or_default();
        let index = call.number("index");
        let belongs = |slot: &Slot| {
            let is_same = id.is_empty() || slot.id.is_empty() || *slot.id == *id;
            slot.choice == choice && slot.index == index && is_same
        };
        let place = match self.slots.iter().rposition(belongs) {
            Some(place) => place,
            None => {
                // Calls come one after the other: those before have their names.
                self.decide(choice, kept);
                if self.slots.len() >= MAX_SLOTS {
                    shared.collect(usize::MAX / 2);
                    return kept.push(raw.into());
                }
                let id = id.clone().into_owned();
                self.slots.push(Slot { choice, index, id, ..Slot::default() });
                self.slots.len() - 1
            }
        };
        let removed = self.removed_before(choice, index);
        let slot = &mut self.slots[place];
        slot.read(&call, &id, may_keep, &shared.name);
        match slot.kind {
            Kind::Unknown => slot.held.push(raw.to_owned()),
            Kind::Own => slot.held.clear(),
            Kind::Other => {
                slot.release(removed, kept);
                kept.push(slot.placed(raw));
            }
        }
    }

    /// Decides that calls with incomplete names are the client's, and adds them to `kept`.
    fn decide(&mut self, choice: u64, kept: &mut Vec<Cow<'_, str>>) {
        let is_open = |slot: &Slot| slot.choice == choice && slot.kind == Kind::Unknown;
        while let Some(place) = self.slots.iter().position(is_open) {
            let removed = self.removed_before(choice, self.slots[place].index);
            self.slots[place].kind = Kind::Other;
            self.slots[place].release(removed, kept);
        }
    }

    /// Returns the number of the tool's calls in front of a position.
    fn removed_before(&self, choice: u64, index: Option<u64>) -> u64 {
        let is_before =
            |slot: &&Slot| slot.choice == choice && slot.kind == Kind::Own && slot.index < index;
        self.slots.iter().filter(is_before).count() as u64
    }

    /// Returns the calls so far.
    fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        for slot in &self.slots {
            match slot.kind {
                Kind::Own => {
                    let quoted = format!("\"{}\"", slot.arguments);
                    let arguments = json::string(&quoted).unwrap_or_default().into_owned();
                    tally.call(slot.id.clone(), arguments, slot.raw());
                }
                Kind::Unknown | Kind::Other => tally.other(slot.id.clone()),
            }
        }
        tally
    }

    /// Ends a round; returns whether it is complete, and whether its calls can be answered.
    pub(super) fn ended(&mut self, shared: &mut Shared) -> (bool, bool) {
        shared.tally = self.tally();
        let is_whole = calls::is_chat_whole(self.reason.as_deref()) && !self.has_several;
        // A stream may lack its last line, but an answer that was withheld has ended.
        (
            shared.is_over || self.reason.is_some(),
            is_whole && (shared.is_withholding || shared.tally.has_others),
        )
    }

    /// Returns the message that continues the request.
    pub(super) fn assistant(&self) -> String {
        let [content, reasoning_content, reasoning] = &self.texts;
        let mut message = String::from(r#"{"role":"assistant","content":"#);
        match content.is_empty() {
            true => message.push_str("null"),
            false => message.push_str(&format!("\"{content}\"")),
        }
        let mut push =
            |name: &str, raw: &str| message.push_str(&format!(",{}:{raw}", json::quoted(name)));
        for (name, inner) in [("reasoning_content", reasoning_content), ("reasoning", reasoning)] {
            if !inner.is_empty() {
                push(name, &format!("\"{inner}\""));
            }
        }
        for (name, list) in LISTS.iter().zip(&self.lists).filter(|(_, list)| !list.is_empty()) {
            push(name, &list.list());
        }
        for (name, value) in &self.extras {
            push(name, value);
        }
        let calls: Vec<String> = self.slots.iter().map(Slot::raw).collect();
        push("tool_calls", &format!("[{}]", calls.join(",")));
        message.push('}');
        message
    }

    pub(super) fn next_round(&mut self) {
        for (gap, said) in self.gaps.iter_mut().zip(&self.texts) {
            if !said.is_empty() {
                *gap = !ends_paragraph(said);
            }
        }
        let envelope = std::mem::take(&mut self.envelope);
        *self = Self { envelope, has_role: self.has_role, gaps: self.gaps, ..Self::default() };
    }
}

impl Slot {
    /// Reads a fragment, and decides whose call it is as soon as its name says so.
    fn read(&mut self, call: &Object<'_>, id: &str, may_keep: bool, tool: &str) {
        if self.id.is_empty() {
            id.clone_into(&mut self.id);
        }
        let function = call.get("function").and_then(Object::read);
        let own = |name: &str| function.as_ref().and_then(|own| own.get(name));
        let arguments = own("arguments").and_then(text::inner).unwrap_or_default();
        if self.kind == Kind::Unknown {
            let piece = own("name").and_then(json::string).unwrap_or_default();
            // Some providers repeat the name in every fragment.
            if piece != self.name.as_str() && self.name.len() + piece.len() <= MAX_NAME_BYTES {
                self.name.push_str(&piece);
            }
            self.kind = match () {
                _ if self.name == tool => Kind::Own,
                _ if call.get("custom").is_some() || !tool.starts_with(&self.name) => Kind::Other,
                _ if !arguments.is_empty() || !may_keep => Kind::Other,
                _ => Kind::Unknown,
            };
        }
        if may_keep {
            self.arguments.push_str(arguments);
            for (name, value) in call.members() {
                if !matches!(&**name, "index" | "id" | "type" | "function") && *value != "null" {
                    set(&mut self.extras, name, value);
                }
            }
        }
    }

    /// Adds the fragments that were held.
    fn release(&mut self, removed: u64, kept: &mut Vec<Cow<'_, str>>) {
        if self.mapped.is_none() {
            self.mapped = self.index.map(|index| index.saturating_sub(removed));
        }
        for raw in std::mem::take(&mut self.held) {
            let placed = self.placed(&raw).into_owned();
            kept.push(placed.into());
        }
    }

    /// Returns a fragment with the position for the client.
    fn placed<'a>(&self, raw: &'a str) -> Cow<'a, str> {
        match (self.index, self.mapped) {
            (Some(index), Some(mapped)) if index != mapped => {
                text::with(raw, "index", &mapped.to_string()).into()
            }
            _ => raw.into(),
        }
    }

    /// Returns the call as an element of a request's `tool_calls`.
    fn raw(&self) -> String {
        let (id, name) = (json::quoted(&self.id), json::quoted(&self.name));
        let quoted = format!("\"{}\"", self.arguments);
        let arguments = json::string(&quoted).unwrap_or_default();
        let arguments = match valid_arguments(&arguments) == arguments {
            true => quoted.as_str(),
            false => "\"{}\"",
        };
        let mut raw = format!(
            r#"{{"id":{id},"type":"function","function":{{"name":{name},"arguments":{arguments}}}"#
        );
        for (name, value) in &self.extras {
            raw.push_str(&format!(",{}:{value}", json::quoted(name)));
        }
        raw.push('}');
        raw
    }
}

/// Longer names are cut: no tool has one.
const MAX_NAME_BYTES: usize = 1024;

/// Sets a member in a list of them.
fn set(members: &mut Vec<(String, String)>, name: &str, value: &str) {
    const MAX_MEMBERS: usize = 64;
    if let Some((_, own)) = members.iter_mut().find(|(own, _)| own == name) {
        value.clone_into(own);
    } else if members.len() < MAX_MEMBERS {
        members.push((name.to_owned(), value.to_owned()));
    }
}

/// Returns a chunk with this usage, if it has any.
pub(super) fn with_usage(data: &str, sum: &str) -> String {
    let has_usage = Object::read(data).is_some_and(|own| own.get("usage").is_some());
    if has_usage { text::with(data, "usage", sum) } else { data.to_owned() }
}
