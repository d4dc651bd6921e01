//! Conclusions of an assistant: sentences that say a decision or its reason, and the first and last words
//! of a turn without calls, which has nothing else to show for it. Pure.

use std::sync::LazyLock;

use memchr::memmem;
use regex::Regex;

use crate::compact::message::reading::{BlockKind, Reading, Unit};
use crate::tokens::letters::in_lower_case;
use crate::wire::Role;

/// Bytes of a unit that are searched, and the minimum size of one that says something.
const MOST_BYTES: usize = 400;
const LEAST_BYTES: usize = 12;
/// Words of decisions and of reasons for them, in lower case: English, German, French, Spanish, Portuguese,
/// Italian, Dutch, Polish, Russian, Chinese, Japanese and Korean.
const WORDS: &[&str] = &[
    "decided",
    "i'll use ",
    "i will use ",
    "let's use ",
    "we'll use ",
    "we will use ",
    "go with ",
    "going with ",
    "i chose ",
    "we agreed",
    "root cause",
    "the cause ",
    "the problem is ",
    "the issue is ",
    "the bug is ",
    "the fix is ",
    "turns out",
    "because ",
    "entschieden",
    "beschlossen",
    "wir nehmen ",
    "ich nehme ",
    " weil ",
    "die ursache",
    "décidé",
    "parce que",
    "la cause ",
    "decidido",
    "decidimos",
    "porque ",
    "la causa ",
    "deciso",
    "perché ",
    "besloten",
    "omdat ",
    "zdecydowa",
    "ponieważ",
    "решил",
    "потому что",
    "причина",
    "决定",
    "因为",
    "原因是",
    "改用",
    "決め",
    "ことにし",
    "原因は",
    "결정",
    "때문",
    "하기로",
];

static DECIDES: LazyLock<Regex> = LazyLock::new(|| any_of(WORDS));

/// Returns a pattern that finds any of the words in one pass over a text.
pub(crate) fn any_of(words: &[&str]) -> Regex {
    let words: Vec<String> = words.iter().map(|word| regex::escape(word)).collect();
    Regex::new(&words.join("|")).expect("words are a pattern")
}

/// Returns the units in which an assistant says a decision, or its reason, in its own words. They are
/// searched for once.
pub(crate) fn decisions(reading: &Reading) -> &[u32] {
    reading.findings.decisions.get_or_init(|| {
        // Most messages have no such word, and need no search of each unit.
        if reading.role != Role::Assistant || !DECIDES.is_match(&in_lower_case(&reading.text)) {
            return Box::default();
        }
        let all = (0..).zip(&reading.units);
        all.filter(|(_, unit)| decides(reading, unit)).map(|(index, _)| index).collect()
    })
}

fn decides(reading: &Reading, unit: &Unit) -> bool {
    let said = &reading.text[unit.span.clone()];
    reading.blocks[unit.block as usize].kind == BlockKind::Text
        && said.len() >= LEAST_BYTES
        && DECIDES.is_match(&in_lower_case(&said[..said.floor_char_boundary(MOST_BYTES)]))
}

/// Returns whether a message is an assistant's without a call, or the code that agents without tools write
/// instead of one.
pub(crate) fn is_plain_turn(reading: &Reading) -> bool {
    reading.role == Role::Assistant
        && reading.blocks.iter().all(|block| block.kind == BlockKind::Text)
        && memmem::find(reading.text.as_bytes(), b"```").is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_and_their_reasons_are_found() {
        for (said, expected) in [
            ("I'll use a B-tree here, since keys come in order.", true),
            ("It fails because the sill is not counted.", true),
            ("Wir nehmen SQLite.", true),
            ("我们决定改用第二个闸门。", true),
            ("Let me look at the gate.", false),
            ("", false),
        ] {
            let own = Reading::of_text(Role::Assistant, said);
            assert_eq!(!decisions(&own).is_empty(), expected, "{said}");
        }
        let other = Reading::of_text(Role::Tool, "we decided to use it");
        assert!(decisions(&other).is_empty());
    }
}
