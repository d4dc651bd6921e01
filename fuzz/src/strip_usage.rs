//! Removal of usage from streams: the result is the same for any chunking of the bytes, equals that
//! of a second, simpler implementation, and is unchanged if there is no usage.
//!
//! An input is two control bytes, which select the limit and the chunks, and a stream.

use weir_engine::wire::event_filter::Filter;

use super::sse::cut;

/// More than any input holds.
const NO_LIMIT_BYTES: usize = 1 << 20;
/// Memory kept from one event to the next, for any limit.
const KEPT_BYTES: usize = 64 << 10;

const ENVELOPE: &str =
    "id object created model system_fingerprint service_tier provider obfuscation";

pub fn check(input: &[u8]) {
    let Some(([limit, cuts], stream)) = input.split_first_chunk::<2>() else { return };
    let max_event_bytes = usize::from(*limit) * usize::from(*limit) / 8;
    for limit in [max_event_bytes, NO_LIMIT_BYTES] {
        let whole = filtered(limit, &[stream]);
        assert_eq!(whole, filtered(limit, &cut(stream, 1, 0)), "cut after each byte");
        assert_eq!(whole, filtered(limit, &cut(stream, 64, u32::from(*cuts))), "cut by {cuts}");
        let by_the_book = by_the_book(limit, stream);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert_eq!(text(&whole), text(&by_the_book));
        assert_eq!(whole, by_the_book);
        let has_none = |needle: &[u8]| !stream.windows(needle.len()).any(|part| part == needle);
        if has_none(b"\"usage\"") && has_none(b"\\u") {
            assert_eq!(whole, stream, "without usage nothing changes");
        }
        assert_eq!(filtered(limit, &[&whole]), filtered(limit, &cut(&whole, 1, 0)));
    }
}

fn filtered(max_event_bytes: usize, pieces: &[&[u8]]) -> Vec<u8> {
    let mut filter = Filter::new(max_event_bytes);
    let mut out = Vec::new();
    for piece in pieces {
        out.extend_from_slice(&filter.feed(piece));
        let held_bytes = filter.held_bytes();
        assert!(held_bytes <= max_event_bytes.max(KEPT_BYTES), "{held_bytes} bytes are held");
    }
    out.extend(filter.finish());
    out
}

/// A line with its end.
type Line<'s> = (&'s [u8], &'s [u8]);

fn by_the_book(max_event_bytes: usize, stream: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut event: Vec<Line> = Vec::new();
    let mut is_first = true;
    let mut in_first = true;
    for line in lines(stream) {
        let begins = event.is_empty();
        if begins {
            in_first = is_first;
        }
        is_first = false;
        if begins && (line.0.is_empty() || line.0.starts_with(b":")) {
            out.extend([line.0, line.1].concat());
            continue;
        }
        event.push(line);
        if line.0.is_empty() {
            out.extend(without_usage(max_event_bytes, &std::mem::take(&mut event), in_first));
        }
    }
    out.extend(without_usage(max_event_bytes, &event, in_first));
    out
}

fn lines(stream: &[u8]) -> Vec<Line<'_>> {
    let mut lines = Vec::new();
    let mut rest = stream;
    while !rest.is_empty() {
        let at = rest.iter().position(|byte| b"\r\n".contains(byte)).unwrap_or(rest.len());
        let (line, after) = rest.split_at(at);
        let end = if after.starts_with(b"\r\n") { 2 } else { after.len().min(1) };
        lines.push((line, &after[..end]));
        rest = &after[end..];
    }
    lines
}

/// Returns the value of a line that is a `data` field.
fn data<'s>(line: &Line<'s>, is_first: bool) -> Option<&'s [u8]> {
    let mark = b"\xEF\xBB\xBF";
    let text = if is_first { line.0.strip_prefix(mark).unwrap_or(line.0) } else { line.0 };
    let value = text.strip_prefix(b"data")?;
    match value {
        [] => Some(value),
        [b':', b' ', value @ ..] | [b':', value @ ..] => Some(value),
        _ => None,
    }
}

fn without_usage(max_event_bytes: usize, event: &[Line<'_>], is_first: bool) -> Vec<u8> {
    let whole: Vec<u8> =
        event.iter().flat_map(|line| [line.0, line.1]).flatten().copied().collect();
    let ends_twice = matches!(event.last(), Some(([], b"\r\n")));
    let is_overlong = whole.len() - usize::from(ends_twice) > max_event_bytes;
    if is_overlong || std::str::from_utf8(&whole).is_err() {
        return whole;
    }
    // Each byte of the data with the event's bytes it stands for; bytes between two lines of data
    // belong to the line feed that joins them.
    let mut bytes: Vec<(u8, Vec<u8>)> = Vec::new();
    let mut before = Vec::new();
    let mut others = Vec::new();
    let mut has_others = false;
    let mut has_data = false;
    for (index, line) in event.iter().enumerate() {
        let Some(value) = data(line, is_first && index == 0) else {
            before.extend([line.0, line.1].concat());
            others.extend([line.0, line.1].concat());
            let is_name = line.0 == b"event" || line.0.starts_with(b"event:");
            let marked = is_first && index == 0 && line.0.starts_with(b"\xEF\xBB\xBFevent");
            let is_marked_name = marked && matches!(line.0.get(8), None | Some(b':'));
            has_others |= !(line.0.is_empty() || is_name || is_marked_name);
            continue;
        };
        before.extend(&line.0[..line.0.len() - value.len()]);
        let gap = std::mem::take(&mut before);
        match has_data {
            true => bytes.push((b'\n', gap)),
            false => bytes.push((b' ', gap)),
        }
        has_data = true;
        bytes.extend(value.iter().map(|byte| (*byte, vec![*byte])));
        before.extend(line.1);
    }
    let after = before;
    let text: Vec<u8> = bytes.iter().map(|(byte, _)| *byte).collect();
    let Some(members) = members(&text) else { return whole };
    if !members.iter().any(|member| member.name == "usage") {
        return whole;
    }
    let has_cost = |value: &str| {
        let inner = self::members(value.as_bytes()).unwrap_or_default();
        inner.iter().any(|member| member.name.starts_with("cost"))
    };
    let is_plain = |member: &Member| match member.name.as_str() {
        "usage" => !has_cost(&member.value),
        name if ENVELOPE.split(' ').any(|known| known == name) => true,
        _ => {
            let compact: String = member.value.split_ascii_whitespace().collect();
            ["null", "\"\"", "[]", "{}"].contains(&compact.as_str())
        }
    };
    let brings = members.iter().any(|member| member.name == "usage" && member.value != "null");
    if brings && members.iter().all(is_plain) {
        return if has_others { others } else { Vec::new() };
    }
    // Usage that comes with anything else was not caused by the request for it.
    let is_kept = |member: &Member| member.name != "usage" || member.value != "null";
    if members.iter().all(is_kept) {
        return whole;
    }
    let mut gone = vec![false; text.len()];
    for (index, member) in members.iter().enumerate() {
        if !is_kept(member) {
            gone[member.start..member.next].fill(true);
        } else if !members[index + 1..].iter().any(is_kept) && index + 1 < members.len() {
            // The comma before members removed at the end.
            gone[member.comma..member.next].fill(true);
        }
    }
    if let Some(last) = members.last().filter(|last| !is_kept(last)) {
        // Bytes between the last value and the brace stay.
        gone[last.comma..].fill(false);
    }
    let kept = bytes.iter().zip(gone).filter(|(_, gone)| !gone).flat_map(|((_, own), _)| own);
    kept.chain(&after).copied().collect()
}

struct Member {
    name: String,
    value: String,
    /// Start of its name.
    start: usize,
    /// Position of its comma; for the last member, end of its value.
    comma: usize,
    /// Start of the next member; for the last, the closing brace.
    next: usize,
}

/// Returns the members of a JSON object; `None` for other values.
fn members(text: &[u8]) -> Option<Vec<Member>> {
    let text = std::str::from_utf8(text).ok()?;
    serde_json::from_str::<&serde_json::value::RawValue>(text).ok()?;
    let skip = |mut at: usize| {
        while matches!(text.as_bytes().get(at), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            at += 1;
        }
        at
    };
    let mut at = skip(0);
    text[at..].starts_with('{').then_some(())?;
    at = skip(at + 1);
    let mut members = Vec::new();
    while !text[at..].starts_with('}') {
        let start = at;
        at = end_of_value(text, at);
        let name = serde_json::from_str(&text[start..at]).ok()?;
        let value_start = skip(skip(at) + 1);
        let value_end = end_of_value(text, value_start);
        let value = text[value_start..value_end].to_owned();
        let comma = skip(value_end);
        let has_more = text[comma..].starts_with(',');
        at = if has_more { skip(comma + 1) } else { comma };
        let comma = if has_more { comma } else { value_end };
        members.push(Member { name, value, start, comma, next: at });
    }
    Some(members)
}

/// Returns the end of the value that begins at `start`; the text must be JSON.
fn end_of_value(text: &str, start: usize) -> usize {
    let mut depth = 0;
    let mut in_string = false;
    let mut escaped = false;
    for (at, letter) in text.bytes().enumerate().skip(start) {
        match letter {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => {
                in_string = !in_string;
                if !in_string && depth == 0 {
                    return at + 1;
                }
            }
            _ if in_string => {}
            b'{' | b'[' => depth += 1,
            b'}' | b']' | b',' | b' ' | b'\t' | b'\r' | b'\n' if depth == 0 => return at,
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
    }
    text.len()
}
