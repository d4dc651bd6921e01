//! Check of a summariser's answer: accepts and cleans it to plain lines within the cap.

use std::collections::HashSet;

use crate::tokens::Encoding;

/// Percentage of the cap up to which an answer is cut short: models count in their own tokens. A
/// longer one did not follow its instructions.
const CUT_SHORT_PERCENT: u64 = 150;
/// Number of lines below which repeated lines are acceptable.
const FEW_LINES: usize = 8;
/// Tags around the thoughts that some models write before their answer.
const THOUGHT: (&str, &str) = ("<think>", "</think>");

/// Reason for rejecting an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfit {
    /// It is empty.
    Empty,
    /// It exceeds the cap by more than differences in counting explain.
    Oversized,
    /// It is no text: mostly symbols, or one line over and over.
    Garbage,
    /// The model says that it will not.
    Refused,
}

impl Unfit {
    /// Returns the word used in logs and metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Oversized => "oversized",
            Self::Garbage => "garbage",
            Self::Refused => "refused",
        }
    }
}

/// Returns a summariser's answer, cleaned and limited to `cap_tokens`.
///
/// # Errors
///
/// If the answer is unfit for a note.
pub fn check(answer: &str, encoding: Encoding, cap_tokens: u64) -> Result<String, Unfit> {
    let text = clean(unwrapped(unthought(answer)));
    if text.is_empty() {
        return Err(Unfit::Empty);
    }
    if encoding.count(&text) > cap_tokens.saturating_mul(CUT_SHORT_PERCENT) / 100 {
        return Err(Unfit::Oversized);
    }
    if is_garbage(&text) {
        return Err(Unfit::Garbage);
    }
    if is_refusal(&text) {
        return Err(Unfit::Refused);
    }
    let text = cap(&text, encoding, cap_tokens);
    if text.is_empty() { Err(Unfit::Empty) } else { Ok(text) }
}

/// Returns the longest head of `text` that ends with a line, else with a word, and takes at most
/// `cap_tokens`.
pub fn cap(text: &str, encoding: Encoding, cap_tokens: u64) -> String {
    if encoding.count(text) <= cap_tokens {
        return text.to_owned();
    }
    let mut most_tokens = cap_tokens;
    while most_tokens > 0 {
        let head = &text[..encoding.head_bytes(text, most_tokens)];
        let end = head.rfind('\n').or_else(|| head.rfind(char::is_whitespace));
        let kept = head[..end.unwrap_or(head.len())].trim_end();
        if encoding.count(kept) <= cap_tokens {
            return kept.to_owned();
        }
        most_tokens -= 1;
    }
    String::new()
}

/// Returns `text` as plain lines: line ends of one kind, no more than one empty line in a row, and
/// no invisible characters with an effect. Cleaning again changes nothing.
pub fn clean(text: &str) -> String {
    let text = text.replace("\r\n", "\n");
    let plain = text.chars().map(|own| if ends_line(own) { '\n' } else { own });
    let plain: String =
        plain.filter(|own| matches!(own, '\n' | '\t') || !is_hidden(*own)).collect();
    let mut out = String::with_capacity(plain.len());
    let mut is_after_empty = true;
    for line in plain.split('\n') {
        let line = line.trim_end();
        if line.is_empty() && is_after_empty {
            continue;
        }
        is_after_empty = line.is_empty();
        out.push_str(line);
        out.push('\n');
    }
    out.truncate(out.trim_end().len());
    out
}

/// Returns whether a character ends a line for some reader.
fn ends_line(own: char) -> bool {
    matches!(own, '\r' | '\u{b}' | '\u{c}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

fn is_hidden(own: char) -> bool {
    own.is_control()
        || matches!(own, '\u{ad}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}')
        || matches!(own, '\u{2060}'..='\u{2069}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}

/// Returns the answer without the thoughts at its start.
fn unthought(answer: &str) -> &str {
    let Some(thought) = answer.trim_start().strip_prefix(THOUGHT.0) else { return answer };
    thought.split_once(THOUGHT.1).map_or("", |(_, after)| after)
}

/// Removes the fence of an answer that is a single block of code.
fn unwrapped(answer: &str) -> &str {
    let inner = answer.trim().strip_prefix("```").and_then(|rest| rest.strip_suffix("```"));
    let inner = inner.filter(|inner| !inner.contains("```")).and_then(|rest| rest.split_once('\n'));
    inner.map_or(answer, |(_, text)| text)
}

/// Length up to which a text may be a refusal alone, in bytes.
const MAX_REFUSAL_BYTES: usize = 400;
/// Words with which models begin to refuse.
const REFUSALS: [&str; 10] = [
    "i'm sorry, but",
    "i’m sorry, but",
    "i am sorry, but",
    "sorry, but i",
    "i can't",
    "i can’t",
    "i cannot",
    "i'm unable to",
    "i am unable to",
    "i won't",
];

/// Returns whether a short text begins as refusals do.
fn is_refusal(text: &str) -> bool {
    let start: String = text.chars().take(40).collect::<String>().to_lowercase();
    text.len() <= MAX_REFUSAL_BYTES && REFUSALS.iter().any(|own| start.starts_with(own))
}

/// Returns whether a text is mostly symbols, or mostly one line over and over.
fn is_garbage(text: &str) -> bool {
    let (mut words, mut all) = (0, 0);
    for own in text.chars().filter(|own| !own.is_whitespace()) {
        all += 1;
        words += usize::from(own.is_alphanumeric());
    }
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let different: HashSet<&str> = lines.iter().copied().collect();
    words * 4 < all || (lines.len() >= FEW_LINES && different.len() * 4 < lines.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENCODING: Encoding = Encoding::O200kBase;

    #[test]
    fn answers_are_taken_or_refused_with_the_reason() {
        let looping = "the same line again\n".repeat(20);
        let long = "one two three four ".repeat(100);
        for (answer, word) in [
            ("", "empty"),
            (" \n\u{0}\u{feff}\n", "empty"),
            ("<think>what did they say", "empty"),
            ("<think>a</think>\n", "empty"),
            (&*long, "oversized"),
            ("{}[]();:<>//**&&%%$$##@@!!", "garbage"),
            (&*looping, "garbage"),
            ("I'm sorry, but I can't help with that.", "refused"),
        ] {
            let unfit = check(answer, ENCODING, 100).expect_err(answer);
            assert_eq!(unfit.word(), word, "{answer:?}");
        }
        for (answer, kept) in [
            ("## Task\nfix it", "## Task\nfix it"),
            ("<think>well</think>\n\n## Task\nfix it\n\n", "## Task\nfix it"),
            ("```markdown\n## Task\nfix it\n```", "## Task\nfix it"),
            (
                "## Files\n```\na.rs\n```\nb.rs\n```\nc\n```",
                "## Files\n```\na.rs\n```\nb.rs\n```\nc\n```",
            ),
            ("水位保持不变", "水位保持不变"),
        ] {
            assert_eq!(check(answer, ENCODING, 100).as_deref(), Ok(kept), "{answer:?}");
        }
    }

    #[test]
    fn what_is_a_little_too_long_ends_with_a_line() {
        let text = "## Task\nkeep the level\n## Files\nsrc/a.rs was read\n## Open points\nnone";
        let all = ENCODING.count(text);
        for cap_tokens in 0..=all {
            let kept = cap(text, ENCODING, cap_tokens);
            assert!(ENCODING.count(&kept) <= cap_tokens, "{kept:?} above {cap_tokens}");
            assert!(text.starts_with(&kept));
        }
        assert_eq!(cap(text, ENCODING, all), text);
        assert_eq!(
            check(text, ENCODING, all - 1).as_deref(),
            Ok(text.rsplit_once('\n').map_or("", |own| own.0))
        );
        // One endless word.
        let solid = "水".repeat(500);
        assert!(ENCODING.count(&cap(&solid, ENCODING, 50)) <= 50);
    }

    #[test]
    fn cleaned_text_is_plain_lines() {
        for (text, wanted) in [
            ("a\r\nb\rc\u{2028}d\u{85}e", "a\nb\nc\nd\ne"),
            ("\n\n a  \n\n\n\nb\n", " a\n\nb"),
            ("a\u{1b}[31m\u{202e}b\u{200b}c\tд", "a[31mbc\tд"),
            ("👩\u{200d}👧", "👩\u{200d}👧"),
            ("\u{0}\n\u{7f}", ""),
        ] {
            assert_eq!(clean(text), wanted, "{text:?}");
            assert_eq!(clean(wanted), wanted, "again: {wanted:?}");
        }
    }
}
