//! Worth of a message's pieces in a note, apart from their values. Pure.

use xxhash_rust::xxh3::xxh3_64;

use super::subject::Subject;
use crate::compact::message::reading::{Block, BlockKind, Mention, Reading, Unit};
use crate::compact::message::values::{ValueKind, is_moment};
use crate::wire::Role;

/// Tokens of a speaker line, and of a gap mark.
pub(crate) const HEADER_TOKENS: f64 = 5.0;
pub(crate) const GAP_TOKENS: f64 = 2.0;
/// Maximum size of user messages that stay or go whole.
pub(crate) const SHORT_TOKENS: f64 = 120.0;
/// Coverage of a value by a bare name in a list, and by a unit with little else; in context it is
/// full.
pub(crate) const NAME_COVER: f64 = 0.5;
const BARE_COVER: f64 = 0.6;
/// Minimum further text that forms a context.
const CONTEXT_BYTES: usize = 12;
/// Worth per token apart from values. Short user messages: a user's own words are dropped last.
/// Head of a call: the action stays known. First and last words of an assistant's text. Rest of a
/// call.
pub(crate) const USER_WORTH: f64 = 0.08;
const ACTION_WORTH: f64 = 0.04;
const LEAD_WORTH: f64 = 0.015;
const CALL_WORTH: f64 = 0.005;
/// Maximum size of an assistant's text that counts as its first words, whole.
const SHORT_TEXT_BYTES: usize = 300;
/// Number of lines at the beginning of a call that may say little.
const MOST_LITTLE: usize = 3;
/// Worth per token of text that an edit wrote into a file: the agent goes on from it.
pub(crate) const EDIT_WORTH: f64 = 0.006;
/// Maximum tokens of a unit with worth of their own: they suffice to convey action and intent. The
/// rest depends on its values.
pub(crate) const WORTHY_TOKENS: f64 = 24.0;
/// Worth per token of a unit for each neighbouring unit that is shown: text is read, and used
/// again, in one piece.
pub(crate) const JOINED_WORTH: f64 = 0.0045;
/// Worth per token of plain talk, halved after 30 messages, if a conversation has no other signal
/// of importance.
pub(crate) const TALK_WORTH: f64 = 0.012;

/// Returns a hash of each unit without its values, by index; none for an assistant's. They are computed
/// once.
pub(crate) fn shapes(reading: &Reading) -> &[u64] {
    reading.findings.shapes.get_or_init(|| {
        if reading.role == Role::Assistant {
            return Box::default();
        }
        let mut rest = Vec::new();
        reading.units.iter().map(|unit| shape(reading, unit, &mut rest)).collect()
    })
}

/// Hashes a line without its values. `rest` is a work buffer.
fn shape(reading: &Reading, unit: &Unit, rest: &mut Vec<u8>) -> u64 {
    rest.clear();
    let mut from = unit.span.start;
    for mention in reading.values_of(unit).filter(|mention| mention.kind == ValueKind::Name) {
        let start = mention.start as usize;
        if start >= from {
            rest.extend_from_slice(&reading.text.as_bytes()[from..start]);
            rest.push(0);
        }
        // A nested value, such as the date of a timestamp, ends before the outer one.
        from = from.max(mention.end as usize);
    }
    rest.extend_from_slice(&reading.text.as_bytes()[from..unit.span.end]);
    xxh3_64(rest)
}

/// Returns whether a value has meaning without its surroundings: a name does; a number, a date and
/// the key of a record do not.
pub(crate) fn stands_alone(reading: &Reading, mention: &Mention) -> bool {
    let said = reading.said(mention);
    said.bytes().any(|byte| byte.is_ascii_alphabetic())
        && !mention.names_member
        && !is_moment(said.as_bytes())
}

/// Returns whether a unit covers one of its values fully, by its context.
pub(crate) fn is_full(unit_bytes: usize, value_bytes: u32) -> bool {
    unit_bytes >= value_bytes as usize + CONTEXT_BYTES
}

/// Returns the coverage of a value by a unit, full or not.
pub(crate) fn cover(is_full: bool) -> f64 {
    if is_full { 1.0 } else { BARE_COVER }
}

/// Returns whether a conversation is a plain dialogue: no message calls a tool, and names and
/// numbers are too rare to indicate importance.
pub(crate) fn is_talk(subject: &Subject<'_>) -> bool {
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

/// Returns the worth per token of a unit for conveying an assistant turn's subject: its first and
/// last words, and the head of each call.
pub(crate) fn lead(reading: &Reading, index: usize) -> f64 {
    if reading.role != Role::Assistant {
        return 0.0;
    }
    let block = reading.units[index].block;
    let is_first = index == 0 || reading.units[index - 1].block != block;
    let is_short = reading.blocks[block as usize].span.len() < SHORT_TEXT_BYTES;
    let is_last = index + 1 == reading.units.len() || reading.units[index + 1].block != block;
    match reading.blocks[block as usize].kind {
        BlockKind::Call { .. } if is_first || leads_on(reading, index) => ACTION_WORTH,
        BlockKind::Call { .. } => CALL_WORTH,
        BlockKind::Output => 0.0,
        BlockKind::Text => {
            let is_fence = |index: usize| {
                let own = &reading.text[reading.units[index].span.clone()];
                match own.as_bytes() {
                    [b'!'..=b'~', ..] => own.starts_with("```"),
                    _ => own.trim_start().starts_with("```"),
                }
            };
            // Agents without tools write actions as a block of code.
            if !is_first && is_fence(index - 1) && !is_fence(index) {
                ACTION_WORTH
            } else if is_first || is_last || is_short {
                LEAD_WORTH
            } else {
                0.0
            }
        }
    }
}

/// Whether a unit of a call says what the few before it do not.
fn leads_on(reading: &Reading, index: usize) -> bool {
    let block = reading.units[index].block;
    let before = reading.units[..index].iter().rev().take_while(|unit| unit.block == block);
    let before: Vec<&Unit> = before.take(MOST_LITTLE + 1).collect();
    before.len() <= MOST_LITTLE
        && before.iter().all(|unit| says_little(&reading.text[unit.span.clone()]))
}

/// Whether a line of a call says little of what it does: another folder, a number, or a program that is yet
/// to come.
fn says_little(line: &str) -> bool {
    let line = line.trim();
    let value = line.split_once(": ").map_or(line, |(_, value)| value);
    (line.starts_with("cd ") && !line.contains(['&', ';', '|']))
        || !value.contains(char::is_alphabetic)
        || line.ends_with(['"', '\'', '(', '{', '[', '\\', '>', ':'])
        || line.rsplit_once("<<").is_some_and(|(_, word)| !word.contains(' '))
}

/// Returns the total tokens of a message's units.
pub(crate) fn text_tokens_of(reading: &Reading, per_byte: f64) -> f64 {
    reading.units.iter().map(|unit| unit.span.len() as f64 * per_byte).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_say_little_are_known() {
        for (line, expected) in [
            ("cd /srv/app", true),
            ("cd /srv/app && cargo test", false),
            ("limit: 8", true),
            ("query: tide gates", false),
            ("python3 -c \"", true),
            ("python3 - <<'EOF'", true),
            ("cat <<EOF > gate.txt", false),
            ("node -e '", true),
            ("docker run \\", true),
            ("# opens the gate", false),
            ("grep -n gate src/main.rs", false),
            ("import os", false),
        ] {
            assert_eq!(says_little(line), expected, "{line}");
        }
    }

    /// The first line that says something leads, and none behind it.
    #[test]
    fn a_call_leads_with_its_first_line_that_says_something() {
        let script = "cd /srv\npython3 - <<'EOF'\nimport gates\ngates.close(7)\nEOF";
        let mut reading = Reading::of_text(Role::Assistant, script);
        let (name, id) = ("run".to_owned(), "a".to_owned());
        reading.blocks[0].kind =
            BlockKind::Call { name, id, arguments: Box::default(), has_failed: false };
        let leads: Vec<bool> =
            (0..reading.units.len()).map(|unit| lead(&reading, unit) >= ACTION_WORTH).collect();
        assert_eq!(leads, [true, true, true, false, false]);
    }
}
