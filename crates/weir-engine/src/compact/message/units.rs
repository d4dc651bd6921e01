//! Units of a text: pieces that make sense alone and stay whole in an excerpt. A unit is a line, a
//! sentence of a long line, or a record of structured data. Pure.

use std::ops::Range;

use memchr::memmem::find;
use memchr::{memchr, memchr2};

/// Maximum length of a line that is one unit.
const LINE_BYTES: usize = 240;
/// Length from which a sentence end closes a unit; shorter sentences are joined. Sentences longer
/// than `LINE_BYTES` are split.
const SENTENCE_BYTES: usize = 60;
/// Maximum length of a record that stays whole.
const RECORD_BYTES: usize = 260;
/// Maximum length of joined scalar members of a larger record.
const MEMBERS_BYTES: usize = 160;
/// Maximum size of a list of tasks, and of its name.
const TASKS_BYTES: usize = 16 << 10;
const NAME_BYTES: usize = 40;
/// Ends of the states of done and of open tasks.
const DONE: [&str; 5] = ["completed\"", "cancelled\"", "canceled\"", "done\"", "done\": true"];
const OPEN: [&str; 6] =
    ["pending\"", "in_progress\"", "not_started\"", "\"todo\"", "\"open\"", "done\": false"];
/// Maximum depth to which records are split; deeper ones are split like prose.
const DEPTH: usize = 12;

/// Splits `text` into units, in order, without surrounding white space. Together they contain all
/// of its content.
pub(crate) fn units(text: &str) -> Vec<Range<usize>> {
    let mut units = Vec::new();
    let trimmed = trim(text, 0..text.len());
    if is_record(text, &trimmed) {
        split_record(text, trimmed, 0, &mut units);
        return split_overlong(text, units);
    }
    let (bytes, mut start) = (text.as_bytes(), 0);
    while start < bytes.len() {
        let end = memchr(b'\n', &bytes[start..]).map_or(bytes.len(), |length| start + length);
        let span = trim_end(text, start..end);
        start = end + 1;
        if span.is_empty() {
            continue;
        }
        if span.len() <= LINE_BYTES {
            if !split_tasks(text, &span, &mut units) {
                units.push(span);
            }
        } else {
            split_long(text, span, &mut units);
        }
    }
    split_overlong(text, units)
}

/// Splits a line too long for one unit: records into members, the rest into sentences.
fn split_long(text: &str, span: Range<usize>, units: &mut Vec<Range<usize>>) {
    let open = opening(text, &span);
    if let Some(open) = open
        && let Some(close) =
            matching(text, open, span.end).filter(|close| close - open > LINE_BYTES)
    {
        if open > span.start {
            split_prose(text, span.start..open, units);
        }
        split_record(text, open..close, 0, units);
        if close < span.end {
            split_prose(text, close..span.end, units);
        }
        return;
    }
    split_prose(text, span, units);
}

/// Finds the first bracket in the span that opens a record.
fn opening(text: &str, span: &Range<usize>) -> Option<usize> {
    let at = memchr2(b'{', b'[', &text.as_bytes()[span.clone()])?;
    Some(span.start + at)
}

/// Returns whether the span is one bracketed whole.
fn is_record(text: &str, span: &Range<usize>) -> bool {
    let bytes = text.as_bytes();
    span.len() > 1
        && matches!(bytes[span.start], b'{' | b'[')
        && matches!(bytes[span.end - 1], b'}' | b']')
        && matching(text, span.start, span.end) == Some(span.end)
}

/// Finds the end of the bracket at `open`, skipping strings; one past it.
fn matching(text: &str, open: usize, end: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut depth = 0_usize;
    let mut at = open;
    loop {
        at += bytes.get(at..end)?.iter().position(|byte| is(*byte, BRACKET | QUOTE))?;
        match bytes[at] {
            b'"' | b'\'' if opens_string(bytes, at) => {
                at = string_end(bytes, at, end);
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
        at += 1;
    }
}

/// Splits a record: a small one stays whole, a larger one becomes its members, each with its name;
/// scalar ones are joined. Its brackets stay with the first and the last of them.
fn split_record(text: &str, span: Range<usize>, depth: usize, units: &mut Vec<Range<usize>>) {
    if split_tasks(text, &span, units) {
        return;
    }
    if span.len() <= RECORD_BYTES {
        return units.push(span);
    }
    if depth == DEPTH {
        return split_prose(text, span, units);
    }
    let before = units.len();
    let mut together: Option<Range<usize>> = None;
    for member in members(text, span.start + 1, span.end - 1) {
        let is_large = member.len() > MEMBERS_BYTES;
        let nested = if is_large { opening(text, &member) } else { None };
        let Some(open) = nested.filter(|open| is_record(text, &(*open..member.end))) else {
            match &mut together {
                Some(run) if member.end - run.start <= MEMBERS_BYTES => run.end = member.end,
                _ => {
                    units.extend(together.take());
                    together = Some(member);
                }
            }
            continue;
        };
        units.extend(together.take());
        let first = units.len();
        split_record(text, open..member.end, depth + 1, units);
        // The member's name stays with the first unit of its value.
        if let Some(unit) = units.get_mut(first) {
            unit.start = member.start;
        }
    }
    units.extend(together);
    // The brackets belong to what they enclose.
    if let Some(first) = units.get_mut(before) {
        first.start = span.start;
    }
    if let Some(last) = units[before..].last_mut() {
        last.end = span.end;
    }
}

/// Splits a list of tasks, some done and some open, into one unit per task, so that the open ones
/// can be shown alone. Returns whether it is such a list.
fn split_tasks(text: &str, span: &Range<usize>, units: &mut Vec<Range<usize>>) -> bool {
    let own = &text.as_bytes()[span.clone()];
    // The list has its name before it.
    let name_end = own.len().min(NAME_BYTES + 1);
    let Some(open) = memchr(b'[', &own[..name_end]).map(|at| span.start + at) else { return false };
    let has = |words: &[&str]| words.iter().any(|word| find(own, word.as_bytes()).is_some());
    if own.len() > TASKS_BYTES || memchr(b'{', own).is_none() || !has(&DONE) || !has(&OPEN) {
        return false;
    }
    let Some(close) = matching(text, open, span.end) else { return false };
    let tasks = members(text, open + 1, close - 1);
    let is_record = |task: &Range<usize>| {
        text.as_bytes()[task.start] == b'{' && task.len() <= LINE_BYTES + RECORD_BYTES
    };
    // The list is not a part of more.
    let is_whole = span.end - close <= 2;
    if !is_whole || tasks.len() < 2 || !tasks.iter().all(is_record) {
        return false;
    }
    let first = units.len();
    units.extend(tasks);
    units[first].start = span.start;
    if let Some(last) = units.last_mut() {
        last.end = span.end;
    }
    true
}

/// Splits members that exceed a unit, such as one long string, into sentences.
fn split_overlong(text: &str, units: Vec<Range<usize>>) -> Vec<Range<usize>> {
    const MOST_BYTES: usize = RECORD_BYTES + LINE_BYTES;
    if units.iter().all(|unit| unit.len() <= MOST_BYTES) {
        return units;
    }
    let mut split = Vec::with_capacity(units.len() * 2);
    for unit in units {
        match unit.len() <= MOST_BYTES {
            true => split.push(unit),
            false => split_prose(text, unit, &mut split),
        }
    }
    split
}

/// Returns the members between two brackets, trimmed.
fn members(text: &str, start: usize, end: usize) -> Vec<Range<usize>> {
    let bytes = text.as_bytes();
    let mut members = Vec::new();
    let mut from = start;
    let mut at = start;
    let signs = |bytes: &[u8]| bytes.iter().position(|byte| is(*byte, OPENING | QUOTE | COMMA));
    while let Some(place) = bytes.get(at..end).and_then(signs) {
        at += place;
        match bytes[at] {
            b'{' | b'[' => at = matching(text, at, end).unwrap_or(end),
            b',' => {
                members.push(trim(text, from..at));
                at += 1;
                from = at;
            }
            _ if opens_string(bytes, at) => at = string_end(bytes, at, end),
            _ => at += 1,
        }
    }
    members.push(trim(text, from..end));
    members.retain(|member| !member.is_empty());
    members
}

/// Returns whether a string begins at `at`: in JSON's quotes, or in Python's at a position where
/// one can begin.
fn opens_string(bytes: &[u8], at: usize) -> bool {
    let before = || at.checked_sub(1).map(|before| bytes[before]);
    match bytes[at] {
        b'"' => true,
        b'\'' => matches!(before(), Some(b' ' | b'[' | b'{' | b'(' | b':' | b',')),
        _ => false,
    }
}

/// Returns one past the end of the string that begins at `open`; `end` if it does not end before.
fn string_end(bytes: &[u8], open: usize, end: usize) -> usize {
    let mut at = open + 1;
    while let Some(inside) = bytes.get(at..end)
        && let Some(place) = memchr2(bytes[open], b'\\', inside)
    {
        at += place + 1;
        if inside[place] == bytes[open] {
            return at;
        }
        at += 1;
    }
    end
}

/// Splits prose into sentences: joins short ones, and splits long ones between words.
fn split_prose(text: &str, span: Range<usize>, units: &mut Vec<Range<usize>>) {
    let mut start = span.start;
    while let Some(cut) = sentence_end(text, start, span.end) {
        let unit = trim(text, start..cut);
        if !unit.is_empty() {
            units.push(unit);
        }
        start = cut;
    }
    let rest = trim(text, start..span.end);
    // A short rest belongs to the sentence before it.
    match units.last_mut() {
        Some(last)
            if rest.len() < SENTENCE_BYTES / 2 && last.end <= start && last.start >= span.start =>
        {
            last.end = rest.end.max(last.end);
        }
        _ if rest.is_empty() => {}
        _ => units.push(rest),
    }
}

/// Returns the end of the sentence that begins at `start`: at its mark, or else behind the last blank of
/// the bytes that it may have, or else at any character. `None` if it does not end before `end`.
fn sentence_end(text: &str, start: usize, end: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    let most = (start + LINE_BYTES..end).find(|at| text.is_char_boundary(*at));
    let behind = most.map_or(end, |most| most + 1);
    let mut at = start + SENTENCE_BYTES;
    while let Some(place) =
        bytes.get(at..behind).and_then(|rest| rest.iter().position(|byte| is(*byte, ENDING)))
    {
        at += place;
        if let Some(length) = mark_bytes(text, at, end) {
            return Some(at + length);
        }
        at += 1;
    }
    let most = most?;
    let (least, letter) = (start + SENTENCE_BYTES, text[most..].chars().next()?);
    let blank = text[start..most + letter.len_utf8()].rfind(is_blank);
    let behind_blank =
        |at: usize| start + at + text[start + at..].chars().next().map_or(0, char::len_utf8);
    Some(blank.map(behind_blank).filter(|blank| *blank > least).unwrap_or(most))
}

fn is_blank(letter: char) -> bool {
    letter.is_whitespace() || matches!(letter, ',' | '，' | '、')
}

/// Returns the length of the mark at `at` that ends a sentence; `None` if there is none.
fn mark_bytes(text: &str, at: usize, end: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    let ends = match bytes[at] {
        b'.' | b'!' | b'?' | b';' | b'}' | b']' => {
            text[at + 1..end].starts_with(char::is_whitespace)
        }
        b'\n' => true,
        // A line break as written inside a JSON string.
        b'n' => at > 0 && bytes[at - 1] == b'\\',
        _ => {
            return text
                .get(at..)?
                .starts_with(['。', '！', '？', '；'])
                .then_some('。'.len_utf8());
        }
    };
    ends.then_some(1)
}

fn trim(text: &str, span: Range<usize>) -> Range<usize> {
    let span = trim_end(text, span);
    let inside = &text[span.clone()];
    span.start + (inside.len() - inside.trim_start().len())..span.end
}

/// Trims the end only: white space before a line has meaning in many languages, white space after
/// it has none.
fn trim_end(text: &str, span: Range<usize>) -> Range<usize> {
    // Nearly all lines end with a letter or sign.
    match text.as_bytes()[span.clone()] {
        [.., b'!'..=b'~'] => span,
        _ => span.start..span.start + text[span].trim_end().len(),
    }
}

/// Classes of bytes that a text is split by.
const BRACKET: u8 = 1;
const OPENING: u8 = 1 << 1;
const QUOTE: u8 = 1 << 2;
const COMMA: u8 = 1 << 3;
/// First byte of a mark that may end a sentence.
const ENDING: u8 = 1 << 4;

const CLASSES: [u8; 256] = {
    let mut classes = [0; 256];
    let mut index = 0;
    while index < 256 {
        classes[index] = match index as u8 {
            b'{' | b'[' => BRACKET | OPENING,
            b'}' | b']' => BRACKET | ENDING,
            b'"' | b'\'' => QUOTE,
            b',' => COMMA,
            b'.' | b'!' | b'?' | b';' | b'\n' | b'n' => ENDING,
            // Marks of Chinese and Japanese.
            0xe3 | 0xef => ENDING,
            _ => 0,
        };
        index += 1;
    }
    classes
};

/// Whether a byte belongs to one of `classes`.
fn is(byte: u8, classes: u8) -> bool {
    CLASSES[usize::from(byte)] & classes != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(text: &str) -> Vec<&str> {
        units(text).into_iter().map(|span| &text[span]).collect()
    }

    #[test]
    fn lines_are_units_and_keep_their_indentation() {
        assert_eq!(pieces("a\n    b  \n\n\tc\n"), ["a", "    b", "\tc"]);
        assert_eq!(pieces(""), [""; 0]);
        assert_eq!(pieces(" \n \n"), [""; 0]);
    }

    #[test]
    fn records_stay_whole_and_members_keep_their_names() {
        let flight = |number: u32| {
            format!(
                r#"{{"flight_number": "HAT{number}", "origin": "LAS", "date": "2024-05-{number}", "price": {number}}}"#
            )
        };
        let flights: Vec<String> = (10..20).map(flight).collect();
        let text = format!(
            r#"{{"id": "XEHM4B", "user": "daiki", "flights": [{}], "paid": true}}"#,
            flights.join(", ")
        );
        let pieces = pieces(&text);
        assert_eq!(pieces[0], r#"{"id": "XEHM4B", "user": "daiki""#);
        assert!(pieces[1].starts_with(r#""flights": [{"flight_number": "HAT10""#));
        for flight in &flights[1..] {
            assert!(
                pieces.iter().any(|piece| piece.contains(flight.as_str())),
                "{flight} {pieces:#?}"
            );
        }
        assert_eq!(pieces.last(), Some(&r#""paid": true}"#));
    }

    #[test]
    fn a_list_with_done_and_open_tasks_has_a_unit_for_each() {
        let (done, open) = (
            r#"{"step": "dig", "status": "completed"}"#,
            r#"{"step": "lay", "status": "pending"}"#,
        );
        for (text, expected) in [
            (format!("plan: [{done}, {open}]"), vec![format!("plan: [{done}"), format!("{open}]")]),
            (
                format!(r#"{{"todos": [{open}, {done}]}}"#),
                vec![format!(r#"{{"todos": [{open}"#), format!("{done}]}}")],
            ),
            (format!("[{open}, {open}]"), vec![format!("[{open}, {open}]")]),
            (format!("[{done}, [{open}]]"), vec![format!("[{done}, [{open}]]")]),
        ] {
            assert_eq!(pieces(&text), expected, "{text}");
        }
    }

    #[test]
    fn members_end_at_no_comma_inside_a_string() {
        for quote in ['"', '\''] {
            let member = |nth: u32| {
                let name = format!("{quote}name_{nth}{quote}");
                let other = if quote == '"' { '\'' } else { '"' };
                format!("{name}: {quote}one, two}} {other} \\{quote} {}{quote}", "x".repeat(60))
            };
            let members: Vec<String> = (0..8).map(member).collect();
            let text = format!("{{{}}}", members.join(", "));
            let pieces = pieces(&text);
            let bare: Vec<&str> = pieces.iter().map(|own| own.trim_matches(['{', '}'])).collect();
            assert_eq!(bare, members);
            assert!(pieces[0].starts_with('{') && pieces[7].ends_with('}'), "{pieces:?}");
        }
    }

    #[test]
    fn any_text_is_covered_and_cut_at_characters() {
        let long = "ein Satz mit Wörtern und, ja, Kommas".repeat(40);
        let han = "没有空格的很长的一行文字".repeat(60);
        let broken = format!("{{\"a\": [1, 2, {}", "[".repeat(300));
        let json_lines = format!("{{\"text\": \"{}\"}}", "line of code\\n".repeat(80));
        for text in [&long, &han, &broken, &json_lines] {
            let mut end = 0;
            for unit in units(text) {
                assert!(unit.start >= end && unit.len() <= 600, "{unit:?}");
                assert!(
                    text[end..unit.start].trim_matches([' ', ',', '\n', '[', '{', '"']).is_empty()
                );
                end = unit.end;
            }
            assert!(text[end..].trim_matches(['}', ']', ' ', ',']).is_empty());
        }
    }
}
