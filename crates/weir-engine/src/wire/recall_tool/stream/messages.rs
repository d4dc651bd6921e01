//! Events of streamed Messages.
//!
//! Anthropic's documentation of streaming gives the order: `message_start`, each block with its start,
//! deltas and stop, then `message_delta` with cumulative usage, and `message_stop`.

use super::super::answer::echoed_blocks;
use super::super::calls;
use super::super::text::{self, Object};
use super::super::usage::updated;
use super::super::{Next, valid_arguments};
use super::{Action, Marks, Shared, Write};
use crate::wire::json;

/// Maximum number of blocks of one answer.
const MAX_BLOCKS: usize = 4096;
/// Texts of blocks that arrive in deltas: the delta's type, its member, and the block's.
const DELTAS: [(&str, &str, &str); 5] = [
    ("text_delta", "text", "text"),
    ("thinking_delta", "thinking", "thinking"),
    ("signature_delta", "signature", "signature"),
    ("input_json_delta", "partial_json", INPUT),
    ("compaction_delta", "content", "content"),
];
/// Member that is JSON, not text.
const INPUT: &str = "input";

/// State of streamed Messages.
#[derive(Debug, Default)]
pub(super) struct Messages {
    /// Number of blocks that the client has from earlier rounds.
    base: u64,
    /// Blocks of this round.
    blocks: Vec<Block>,
    /// Whether a delta of an unknown kind makes the answer's request form unknown.
    is_unknown: bool,
    stop_reason: Option<String>,
}

#[derive(Debug)]
struct Block {
    index: u64,
    /// Position for the client; `None` if the block is withheld.
    mapped: Option<u64>,
    /// JSON text as it started.
    start: String,
    is_thinking: bool,
    /// Insides of the strings that arrived, for each of [`DELTAS`].
    texts: [String; DELTAS.len()],
    /// Citations, joined by commas.
    citations: String,
    /// Whether a mark stands in the queue instead of the signature.
    is_marked: bool,
}

impl Messages {
    pub(super) fn event(&mut self, shared: &mut Shared, data: &str) -> Action {
        let Some(event) = Object::read(data) else { return Action::default() };
        let kind = event.text("type").unwrap_or_default();
        match &*kind {
            "message_start" => {
                let message = event.get("message").and_then(Object::read);
                let usage = message.as_ref().and_then(|own| own.get("usage"));
                shared.usage = usage.filter(|raw| text::is_object(raw)).map(str::to_owned);
                if shared.is_first() { Action::default() } else { Action::drop() }
            }
            "content_block_start" => self.start(shared, data, &event),
            "content_block_delta" => self.delta(shared, data, &event),
            "content_block_stop" => self.stop(data, &event),
            "message_delta" => self.message_delta(shared, data, &event),
            "message_stop" => {
                shared.is_over = true;
                match shared.is_withholding {
                    true => Action::end(data.to_owned()),
                    false => Action::default().releasing(Marks::None),
                }
            }
            "error" => {
                shared.has_failed = true;
                Action::default().releasing(Marks::None)
            }
            _ => Action::default(),
        }
    }

    fn start(&mut self, shared: &mut Shared, data: &str, event: &Object<'_>) -> Action {
        let raw = event.get("content_block").unwrap_or("{}");
        let (Some(index), Some(block)) = (event.number("index"), Object::read(raw)) else {
            return Action::default();
        };
        // Blocks past the limit pass as they are.
        let has_room = self.blocks.len() < MAX_BLOCKS;
        let may_keep = shared.collect(if has_room { raw.len() } else { usize::MAX / 2 });
        let is_own = has_room && calls::is_call_block(&block, &shared.name);
        if !is_own && block.text("type").as_deref() == Some("tool_use") {
            shared.tally.other(block.text("id").unwrap_or_default().into_owned());
        }
        let is_thinking = calls::is_thinking(&block);
        let mapped = (!is_own).then(|| self.client_index(index));
        if has_room {
            let texts = Default::default();
            // An answer that is too large is not continued, so its blocks are not needed.
            let start = if may_keep { raw } else { "{}" }.to_owned();
            let citations = String::new();
            let block =
                Block { index, mapped, start, is_thinking, texts, citations, is_marked: false };
            self.blocks.push(block);
        }
        let Some(mapped) = mapped else {
            // Its meaning is known when it is complete; until then it counts as a call.
            shared.tally.own += 1;
            return Action::drop();
        };
        let placed = placed(data, index, mapped);
        if !is_thinking {
            return Action::data(data, placed).releasing(Marks::None);
        }
        let is_redacted = block.get("data").is_some();
        let marked =
            is_redacted.then(|| text::with(&placed, "content_block", &calls::marked_block(raw)));
        // Thinking behind thinking that is held waits for the same decision.
        match marked {
            Some(marked) => Action::write(Write::Queue(placed, Some(marked))),
            None => Action::data(data, placed),
        }
    }

    /// Returns the position for the client of a block that starts.
    fn client_index(&self, index: u64) -> u64 {
        let withheld = self.blocks.iter().filter(|own| own.mapped.is_none()).count() as u64;
        index.saturating_sub(withheld).saturating_add(self.base)
    }

    fn delta(&mut self, shared: &mut Shared, data: &str, event: &Object<'_>) -> Action {
        let raw = event.get("delta").unwrap_or("{}");
        let (Some(index), Some(delta)) = (event.number("index"), Object::read(raw)) else {
            return Action::default();
        };
        let unknown = self.client_index(index);
        let Some(block) = self.blocks.iter_mut().rev().find(|own| own.index == index) else {
            return Action::data(data, placed(data, index, unknown));
        };
        let kind = delta.text("type").unwrap_or_default();
        let may_keep = shared.collect(raw.len());
        if let Some(place) = DELTAS.iter().position(|(own, ..)| *own == kind) {
            let piece = delta.get(DELTAS[place].1).and_then(text::inner).unwrap_or_default();
            if may_keep {
                block.texts[place].push_str(piece);
            }
        } else if let (true, Some(citation)) = (kind == "citations_delta", delta.get("citation")) {
            let comma = if block.citations.is_empty() { "" } else { "," };
            if may_keep {
                block.citations.push_str(comma);
                block.citations.push_str(citation);
            }
        } else {
            self.is_unknown = true;
        }
        let Some(mapped) = block.mapped else { return Action::drop() };
        let placed = placed(data, index, mapped);
        if kind != "signature_delta" {
            return Action::data(data, placed);
        }
        // The mark replaces the whole signature, which may arrive in pieces.
        let own = delta.get("signature").unwrap_or("\"\"");
        let mark = match own {
            "\"\"" => own.to_owned(),
            _ if std::mem::replace(&mut block.is_marked, true) => "\"\"".to_owned(),
            _ => json::quoted(super::super::MARK),
        };
        let marked = text::with(&placed, "delta", &text::with(raw, "signature", &mark));
        Action::write(Write::Queue(placed, Some(marked)))
    }

    fn stop(&mut self, data: &str, event: &Object<'_>) -> Action {
        let Some(index) = event.number("index") else { return Action::default() };
        let block = self.blocks.iter().rev().find(|own| own.index == index);
        match block.map(|own| (own.mapped, own.is_thinking)) {
            Some((None, _)) => Action::drop(),
            Some((Some(mapped), _)) => Action::data(data, placed(data, index, mapped)),
            None => Action::data(data, placed(data, index, self.client_index(index))),
        }
    }

    fn message_delta(&mut self, shared: &mut Shared, data: &str, event: &Object<'_>) -> Action {
        if let Some(usage) = event.get("usage").filter(|raw| text::is_object(raw)) {
            shared.usage = Some(match &shared.usage {
                Some(start) => updated(start, usage),
                None => usage.to_owned(),
            });
        }
        let delta_raw = event.get("delta").unwrap_or("{}");
        let delta = Object::read(delta_raw);
        let reason = delta.as_ref().and_then(|own| own.get("stop_reason"));
        if let Some(reason) = reason.and_then(json::string) {
            self.stop_reason = Some(reason.into_owned());
        }
        self.count(shared);
        let is_end = reason.is_some() && shared.next(self.is_whole()) == Next::Recall;
        let mut whole = data.to_owned();
        if shared.tally.own > 0
            && !shared.tally.has_others
            && let Some(reason) = reason
        {
            let delta = text::with(delta_raw, "stop_reason", calls::messages_reason(reason));
            whole = text::with(&whole, "delta", &delta);
        }
        if is_end || shared.is_withholding {
            shared.is_withholding = true;
            return Action::end(whole).releasing(Marks::Set);
        }
        if !shared.is_first()
            && let Some(sum) = shared.summed()
        {
            whole = with_usage(&whole, &sum);
        }
        let action = Action::data(data, whole);
        if reason.is_some() { action.releasing(Marks::None) } else { action }
    }

    fn is_whole(&self) -> bool {
        calls::is_messages_whole(self.stop_reason.as_deref()) && !self.is_unknown
    }

    /// Counts the calls in order, now that all are complete.
    fn count(&self, shared: &mut Shared) {
        let mut tally = calls::Tally::default();
        for block in &self.blocks {
            let Some(object) = Object::read(&block.start) else { continue };
            let id = || object.text("id").unwrap_or_default().into_owned();
            if block.mapped.is_none() {
                tally.call(id(), block.input(), block.raw());
            } else if object.text("type").as_deref() == Some("tool_use") {
                tally.other(id());
            }
        }
        shared.tally = tally;
    }

    /// Ends a round; returns whether it is complete, and whether its calls can be answered.
    pub(super) fn ended(&mut self, shared: &mut Shared) -> (bool, bool) {
        self.count(shared);
        let is_decided = shared.is_withholding || shared.tally.has_others;
        (shared.is_over, self.is_whole() && is_decided)
    }

    /// Returns the message that continues the request.
    pub(super) fn assistant(&self) -> String {
        let blocks: Vec<String> = self.blocks.iter().map(Block::raw).collect();
        echoed_blocks(&blocks.iter().map(String::as_str).collect::<Vec<_>>())
    }

    pub(super) fn next_round(&mut self) {
        let visible = self.blocks.iter().filter(|own| own.mapped.is_some()).count() as u64;
        *self = Self { base: self.base.saturating_add(visible), ..Self::default() };
    }
}

impl Block {
    /// Returns the arguments of a call as the model wrote them.
    fn input(&self) -> String {
        let place = DELTAS.iter().position(|(.., own)| *own == INPUT);
        let inner = place.map_or("", |place| self.texts[place].as_str());
        let written = json::string(&format!("\"{inner}\"")).unwrap_or_default().into_owned();
        if !written.trim().is_empty() {
            return written;
        }
        let start = Object::read(&self.start).and_then(|own| own.get(INPUT));
        start.unwrap_or("{}").to_owned()
    }

    /// Returns the block as one of a request.
    fn raw(&self) -> String {
        let mut raw = self.start.clone();
        for ((.., member), inner) in
            DELTAS.iter().zip(&self.texts).filter(|(_, own)| !own.is_empty())
        {
            let value = match *member {
                INPUT => valid_arguments(&self.input()).to_owned(),
                _ => {
                    let begun = Object::read(&raw).and_then(|own| own.get(member));
                    format!("\"{}{inner}\"", begun.and_then(text::inner).unwrap_or_default())
                }
            };
            raw = text::with(&raw, member, &value);
        }
        if !self.citations.is_empty() {
            raw = text::with(&raw, "citations", &format!("[{}]", self.citations));
        }
        raw
    }
}

/// Returns an event with the block's position for the client.
fn placed(data: &str, index: u64, mapped: u64) -> String {
    match index == mapped {
        true => data.to_owned(),
        false => text::with(data, "index", &mapped.to_string()),
    }
}

/// Returns a `message_delta` with this usage; other events stay.
pub(super) fn with_usage(data: &str, sum: &str) -> String {
    let is_delta = text::member_text(data, "type").as_deref() == Some("message_delta");
    if is_delta { text::with(data, "usage", sum) } else { data.to_owned() }
}
