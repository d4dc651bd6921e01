//! Sanitising of external texts and numbers for storage, sums and display: short, on one line,
//! within SQLite's range. Drops the rest.

use std::borrow::Cow;

use super::MAX_FIGURE;

/// Maximum bytes of a text in the journal.
pub const MAX_TEXT_BYTES: usize = 200;
/// Replacement for a character that is not stored.
const REPLACED: char = '\u{fffd}';

/// Truncates `text` to [`MAX_TEXT_BYTES`] and replaces each character that would control a terminal
/// or end a line.
pub fn sanitise(text: &str) -> Cow<'_, str> {
    let short = &text[..text.floor_char_boundary(MAX_TEXT_BYTES)];
    // Most texts are plain ASCII; a scan without branches detects that fastest.
    let strange = short.bytes().fold(false, |so_far, byte| so_far | !matches!(byte, b' '..=b'~'));
    if !strange || !short.chars().any(acts) {
        return Cow::Borrowed(short);
    }
    let mut replaced = String::with_capacity(MAX_TEXT_BYTES);
    for letter in short.chars() {
        let letter = if acts(letter) { REPLACED } else { letter };
        if replaced.len() + letter.len_utf8() > MAX_TEXT_BYTES {
            break;
        }
        replaced.push(letter);
    }
    Cow::Owned(replaced)
}

/// Returns whether a character is a control, a line end, a direction mark or invisible.
fn acts(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// Converts a figure to its stored form.
pub(crate) fn figure(number: Option<u64>) -> Option<i64> {
    number.map(|number| i64::try_from(number.min(MAX_FIGURE)).unwrap_or(i64::MAX))
}

/// Converts a signed figure to its stored form.
pub(crate) fn signed_figure(number: Option<i64>) -> Option<i64> {
    const MOST: i64 = MAX_FIGURE as i64;
    number.map(|number| number.clamp(-MOST, MOST))
}

/// Converts a stored figure back; a negative one was not written by weir.
pub(crate) fn from_stored(stored: i64) -> u64 {
    u64::try_from(stored).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_sanitised() {
        let long = "é".repeat(150);
        let nuls = "\0".repeat(250);
        for (text, expected) in [
            ("", ""),
            ("gpt-4.1", "gpt-4.1"),
            ("ünïcödé 模型 🙂", "ünïcödé 模型 🙂"),
            ("a\0b", "a\u{fffd}b"),
            ("a\x1b[31mb\nc\td\u{7f}", "a\u{fffd}[31mb\u{fffd}c\u{fffd}d\u{fffd}"),
            ("a\u{202e}b\u{feff}\u{2028}", "a\u{fffd}b\u{fffd}\u{fffd}"),
            (&long, &"é".repeat(100)),
            (&nuls, &"\u{fffd}".repeat(66)),
        ] {
            assert_eq!(sanitise(text), expected, "{text:?}");
        }
    }

    #[test]
    fn figures_are_clamped() {
        for (number, expected) in [
            (None, None),
            (Some(0), Some(0)),
            (Some(MAX_FIGURE), Some(1 << 53)),
            (Some(MAX_FIGURE + 1), Some(1 << 53)),
            (Some(u64::MAX), Some(1 << 53)),
        ] {
            assert_eq!(figure(number), expected, "{number:?}");
        }
        for (number, expected) in [
            (None, None),
            (Some(-5), Some(-5)),
            (Some(i64::MIN), Some(-(1 << 53))),
            (Some(i64::MAX), Some(1 << 53)),
        ] {
            assert_eq!(signed_figure(number), expected, "{number:?}");
        }
    }
}
