//! Readable form of numbers and texts. Never passes control characters on to a terminal.

/// Formats tokens as 500, 1.5K, 1.2M.
pub fn tokens(tokens: u64) -> String {
    // Rounded half up to tenths, which may carry over into the next unit.
    let in_unit = |unit: u64| (u128::from(tokens) * 10 + u128::from(unit) / 2) / u128::from(unit);
    let tenths = |tenths: u128, letter: char| match (tenths / 10, tenths % 10) {
        (whole, 0) => format!("{whole}{letter}"),
        (whole, tenth) => format!("{whole}.{tenth}{letter}"),
    };
    match tokens {
        0..1000 => tokens.to_string(),
        _ if in_unit(1000) < 10_000 => tenths(in_unit(1000), 'K'),
        _ => tenths(in_unit(1_000_000), 'M'),
    }
}

/// Returns `part` of `whole` in whole percent, rounded down, so that only the full amount is 100.
pub fn percent(part: u64, whole: u64) -> u64 {
    let percent = u128::from(part) * 100 / u128::from(whole.max(1));
    u64::try_from(percent).unwrap_or(u64::MAX)
}

/// Returns `noun` with its number.
pub fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Returns the first words of `text` on one line, at most so many characters.
pub fn first_words(text: &str, most_characters: usize) -> String {
    let mut line = String::new();
    let mut length = 0;
    for word in text.split(|own: char| own.is_whitespace() || is_hidden(own)) {
        if word.is_empty() {
            continue;
        }
        if length > 0 {
            line.push(' ');
            length += 1;
        }
        for own in word.chars() {
            if length >= most_characters {
                line.truncate(line.trim_end().len());
                line.push('…');
                return line;
            }
            line.push(own);
            length += 1;
        }
    }
    line
}

/// Returns `text` with its lines, regardless of the kind of line end, without other characters that
/// a terminal would interpret.
pub fn safe_lines(text: &str) -> String {
    let text = text.replace("\r\n", "\n");
    let ends_line =
        |own: char| matches!(own, '\r' | '\u{b}' | '\u{c}' | '\u{85}' | '\u{2028}' | '\u{2029}');
    let shown = text.chars().map(|own| if ends_line(own) { '\n' } else { own });
    shown.filter(|own| matches!(own, '\n' | '\t') || !is_hidden(*own)).collect()
}

/// Returns `json` on one line, and escapes the characters in its strings that a terminal would interpret.
/// Its value stays the same.
pub fn json_line(json: &str) -> String {
    let mut line = String::with_capacity(json.len());
    for own in json.chars() {
        match own {
            // Between values; strings have none.
            '\n' | '\r' | '\t' => line.push(' '),
            own if is_hidden(own) => line.push_str(&format!("\\u{:04x}", u32::from(own))),
            own => line.push(own),
        }
    }
    line
}

/// Returns whether a character is invisible but has an effect: controls, and direction marks.
fn is_hidden(own: char) -> bool {
    own.is_control()
        || matches!(own, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_json_has_no_hidden_characters() {
        let json = "{\"a\":\r\n\t\"\u{9b}31m é\u{7f}\u{202e}\\n\"}";
        let line = json_line(json);
        assert_eq!(line, "{\"a\":   \"\\u009b31m é\\u007f\\u202e\\n\"}");
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
        assert_eq!(value(&line), value(json));
    }

    #[test]
    fn tokens_are_short() {
        for (count, expected) in [
            (0, "0"),
            (500, "500"),
            (999, "999"),
            (1000, "1K"),
            (1049, "1K"),
            (1050, "1.1K"),
            (1500, "1.5K"),
            (128_000, "128K"),
            (999_949, "999.9K"),
            (999_950, "1M"),
            (1_200_000, "1.2M"),
            (u64::MAX, "18446744073709.6M"),
        ] {
            assert_eq!(tokens(count), expected, "{count}");
        }
    }

    #[test]
    fn percents_are_rounded_down() {
        for (part, whole, expected) in
            [(0, 0, 0), (999, 1000, 99), (1000, 1000, 100), (3, 2, 150), (1, u64::MAX, 0)]
        {
            assert_eq!(percent(part, whole), expected, "{part} of {whole}");
        }
    }

    #[test]
    fn first_words_are_one_safe_line() {
        for (text, most, expected) in [
            ("", 10, ""),
            ("  a\n\tb  ", 10, "a b"),
            ("exactly ten", 11, "exactly ten"),
            ("exactly ten", 8, "exactly…"),
            ("exactly ten", 7, "exactly…"),
            ("\u{1b}[31mred\u{7}\u{202e}evil", 20, "[31mred evil"),
            ("é😀é😀", 3, "é😀é…"),
        ] {
            assert_eq!(first_words(text, most), expected, "{text:?}");
        }
    }

    #[test]
    fn lines_stay_whatever_ends_them() {
        for (text, expected) in [
            ("a\r\n\tb\u{1b}]0;x\u{7}", "a\n\tb]0;x"),
            ("a\rb\r\n\r\nc", "a\nb\n\nc"),
            ("a\u{2028}b\u{2029}c\u{85}d\u{b}e\u{c}f", "a\nb\nc\nd\ne\nf"),
            ("a\u{202e}b\u{200b}c", "abc"),
        ] {
            assert_eq!(safe_lines(text), expected, "{text:?}");
        }
    }
}
