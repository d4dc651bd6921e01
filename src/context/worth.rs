//! What pieces of a message are worth to a note, beside the values in them. Pure.

use xxhash_rust::xxh3::xxh3_64;

use super::excerpt::Subject;
use super::reading::{Block, BlockKind, Mention, Reading, Unit};
use super::values::{ValueKind, is_moment};
use crate::wire::Role;

/// How well a value is said by a bare name in a list, and by a unit that says little else; in
/// context it is said fully.
pub const NAME_COVER: f64 = 0.5;
const BARE_COVER: f64 = 0.6;
/// How much further text makes a context.
const CONTEXT_BYTES: usize = 12;
/// What a token of a short user message is worth beside its values, so that a user's own words go
/// last; of the head of a call, so that it stays known what was done; of the first and last words
/// of an assistant's text; of the rest of a call.
pub const USER_WORTH: f64 = 0.04;
const ACTION_WORTH: f64 = 0.025;
const LEAD_WORTH: f64 = 0.0044;
const CALL_WORTH: f64 = 0.004;
/// So many tokens of a unit at most are worth something by themselves: what was done and meant is
/// told by then, the rest must earn its place by its values.
pub const WORTHY_TOKENS: f64 = 24.0;
/// What a token of a unit is worth for each unit beside it that is shown: text reads, and is used
/// again, in one piece.
pub const BESIDE_WORTH: f64 = 0.002;
/// What a token of plain talk is worth, half of it after 30 messages, where nothing but talk is there to
/// tell what matters.
pub const TALK_WORTH: f64 = 0.012;

/// A line without its values, as a hash. `rest` is room to work in.
pub fn shape(reading: &Reading, unit: &Unit, rest: &mut Vec<u8>) -> u64 {
    rest.clear();
    let mut from = unit.span.start;
    for mention in reading.values_of(unit).filter(|mention| mention.kind == ValueKind::Name) {
        let start = mention.start as usize;
        if start >= from {
            rest.extend_from_slice(&reading.text.as_bytes()[from..start]);
            rest.push(0);
        }
        // One within another, as the day of a moment, ends before it.
        from = from.max(mention.end as usize);
    }
    rest.extend_from_slice(&reading.text.as_bytes()[from..unit.span.end]);
    xxh3_64(rest)
}

/// Whether a value says something without what stood around it: a name does; a number, a date and
/// the key of a record do not.
pub fn is_telling_alone(reading: &Reading, mention: &Mention) -> bool {
    let said = reading.said(mention);
    let is_key = reading.text[mention.end as usize..].starts_with(['"', '\''])
        && reading.text[mention.end as usize + 1..].starts_with(':');
    said.bytes().any(|byte| byte.is_ascii_alphabetic()) && !is_key && !is_moment(said.as_bytes())
}

/// Whether a unit says a value in it fully: context counts.
pub fn is_full(unit_bytes: usize, value_bytes: u32) -> bool {
    unit_bytes >= value_bytes as usize + CONTEXT_BYTES
}

/// How well a unit says a value, fully or not.
pub fn cover(is_full: bool) -> f64 {
    if is_full { 1.0 } else { BARE_COVER }
}

/// Whether a conversation is a plain dialogue: nobody calls a tool, and names and numbers are too
/// rare in what is said to tell what matters.
pub fn is_talk(subject: &Subject<'_>) -> bool {
    const NAMES_PER_TOKEN: f64 = 0.03;
    let mut names = 0;
    let mut said_tokens = 0;
    for (message, reading) in subject.readings.iter().enumerate() {
        let is_call = |block: &Block| block.kind != BlockKind::Text;
        if reading.role == Role::Tool || reading.blocks.iter().any(is_call) {
            return false;
        }
        if reading.role != Role::System {
            let is_name = |mention: &&Mention| mention.kind == ValueKind::Name;
            names += reading.values.iter().filter(is_name).count();
            said_tokens += subject.text_tokens[message];
        }
    }
    (names as f64) < NAMES_PER_TOKEN * said_tokens as f64
}

/// What a unit is worth by each token for telling what an assistant turn was about: its first and
/// last words, and the head of each call.
pub fn lead(reading: &Reading, index: usize) -> f64 {
    if reading.role != Role::Assistant {
        return 0.0;
    }
    let block = reading.units[index].block;
    let is_first = index == 0 || reading.units[index - 1].block != block;
    let is_last = index + 1 == reading.units.len() || reading.units[index + 1].block != block;
    match reading.blocks[block as usize].kind {
        BlockKind::Call { .. } if is_first => ACTION_WORTH,
        BlockKind::Call { .. } => CALL_WORTH,
        BlockKind::Text => {
            let is_fence = |index: usize| {
                reading.text[reading.units[index].span.clone()].trim_start().starts_with("```")
            };
            // Agents without tools write what is to be run as a block of code.
            if !is_first && is_fence(index - 1) && !is_fence(index) {
                ACTION_WORTH
            } else if is_first || is_last {
                LEAD_WORTH
            } else {
                0.0
            }
        }
    }
}

/// What all units of a message take.
pub fn text_tokens_of(reading: &Reading, per_byte: f64) -> f64 {
    reading.units.iter().map(|unit| unit.span.len() as f64 * per_byte).sum()
}
