//! Small helpers for JSON text: lenient unescaping, escaping, member lookup.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use memchr::memchr2;
use serde::de::{self, Deserializer, Visitor};

use super::walk::Walk;

/// Unescapes a JSON string literal; `raw` includes the quotes. `None` if `raw` is not a string.
///
/// Lone surrogates, which JSON allows and some clients send, become U+FFFD instead of an error.
pub fn string(raw: &str) -> Option<Cow<'_, str>> {
    let inner = raw.strip_prefix('"')?.strip_suffix('"')?;
    if memchr::memchr(b'\\', inner.as_bytes()).is_none() {
        return Some(Cow::Borrowed(inner));
    }
    if let Some(text) = unescaped(inner) {
        return Some(Cow::Owned(text));
    }
    let mut deserializer = serde_json::Deserializer::from_str(raw);
    let bytes = deserializer.deserialize_bytes(Bytes).ok()?;
    Some(Cow::Owned(match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    }))
}

/// Unescapes the inside of a literal if it is valid and has no surrogates, which is nearly always
/// the case. Several times faster than serde_json, which handles the rest.
fn unescaped(inner: &str) -> Option<String> {
    let bytes = inner.as_bytes();
    if bytes.iter().fold(u8::MAX, |least, byte| least.min(*byte)) < b' ' {
        return None;
    }
    let mut text = String::with_capacity(inner.len());
    let mut from = 0;
    while let Some(length) = memchr2(b'"', b'\\', &bytes[from..]) {
        let at = from + length;
        if bytes[at] == b'"' {
            return None;
        }
        text.push_str(&inner[from..at]);
        from = at + 2;
        text.push(match bytes.get(at + 1)? {
            own @ (b'"' | b'\\' | b'/') => char::from(*own),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                from = at + 6;
                let digits = bytes.get(at + 2..from)?.iter();
                let digit = |code, own: &u8| Some(code * 16 + char::from(*own).to_digit(16)?);
                char::from_u32(digits.copied().try_fold(0, |code, own| digit(code, &own))?)?
            }
            _ => return None,
        });
    }
    text.push_str(&inner[from..]);
    Some(text)
}

/// Largest number that every JSON reader holds exactly, as some of them read all numbers as floats.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

/// Reads a whole number that is not negative, however it is written: `100`, `100.0`, `1e2` or
/// `"100"`. `None` for any other value.
pub fn count(raw: &str) -> Option<u64> {
    let text = raw.strip_prefix('"').and_then(|raw| raw.strip_suffix('"')).unwrap_or(raw);
    if !text.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    if let Ok(count) = text.parse() {
        return Some(count);
    }
    let number: f64 = text.parse().ok()?;
    (number.fract() == 0.0 && number <= MAX_EXACT).then_some(number as u64)
}

/// Returns `text` as a JSON string.
pub fn quoted(text: &str) -> String {
    let mut raw = String::with_capacity(text.len() + 2);
    raw.push('"');
    escape_into(text, &mut raw);
    raw.push('"');
    raw
}

/// Returns `text` as the inside of a JSON string.
pub fn escaped(text: &str) -> String {
    let mut raw = String::new();
    escape_into(text, &mut raw);
    raw
}

/// Appends `text` to `out` as the inside of a JSON string literal.
pub fn escape_into(text: &str, out: &mut String) {
    out.reserve(text.len());
    let (bytes, mut from) = (text.as_bytes(), 0);
    while let Some(length) = bytes[from..].iter().position(|byte| IS_ESCAPED[usize::from(*byte)]) {
        let at = from + length;
        out.push_str(&text[from..at]);
        from = at + 1;
        let escape = match bytes[at] {
            b'"' => "\\\"",
            b'\\' => "\\\\",
            b'\n' => "\\n",
            b'\r' => "\\r",
            b'\t' => "\\t",
            0x08 => "\\b",
            0x0c => "\\f",
            byte => {
                let digit = |value: u8| char::from_digit(u32::from(value), 16).unwrap_or('0');
                out.push_str("\\u00");
                out.extend([digit(byte >> 4), digit(byte & 15)]);
                continue;
            }
        };
        out.push_str(escape);
    }
    out.push_str(&text[from..]);
}

/// Bytes that a string literal has escaped.
const IS_ESCAPED: [bool; 256] = {
    let mut is_escaped = [false; 256];
    let mut index = 0;
    while index < 256 {
        is_escaped[index] = matches!(index as u8, b'"' | b'\\' | ..b' ');
        index += 1;
    }
    is_escaped
};

/// Collects the bytes of a string, as WTF-8 if it has lone surrogates.
struct Bytes;

impl Visitor<'_> for Bytes {
    type Value = Vec<u8>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a string")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Vec<u8>, E> {
        Ok(text.as_bytes().to_vec())
    }

    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
        Ok(bytes.to_vec())
    }
}

/// Key that borrows if it has no escapes.
pub struct Key<'a>(pub Cow<'a, str>);

impl<'de> de::Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(KeyVisitor).map(Key)
    }
}

struct KeyVisitor;

impl<'de> Visitor<'de> for KeyVisitor {
    type Value = Cow<'de, str>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a member name")
    }

    fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}

/// Unescapes the `raw` name of a member; `None` if it is not text.
pub fn name(raw: &str) -> Option<Cow<'_, str>> {
    let inner = raw.strip_prefix('"')?.strip_suffix('"')?;
    match inner.contains('\\') {
        false => Some(Cow::Borrowed(inner)),
        true => serde_json::from_str(raw).ok().map(Cow::Owned),
    }
}

/// Returns the members of the object `raw`, each as name and JSON text, in order; `None` if `raw`
/// is not an object.
pub fn members(raw: &str) -> Option<Vec<(Cow<'_, str>, &str)>> {
    let mut members = Vec::new();
    Walk::new(raw).members(|own, walk| {
        members.push((name(own)?, walk.value()?));
        Some(())
    })?;
    Some(members)
}

/// Returns the values of all members of an object that have this name: of two a provider may read either.
pub fn all<'a>(raw: &'a str, name: &str) -> Vec<&'a str> {
    let members = members(raw).unwrap_or_default().into_iter();
    members.filter(|(own, _)| own == name).map(|(_, raw)| raw).collect()
}

/// Returns the JSON text of an object's member; `None` if `raw` is no object or has none.
pub fn member<'a>(raw: &'a str, name: &str) -> Option<&'a str> {
    let is_object = raw.trim_ascii_start().starts_with('{');
    let members = is_object.then(|| members(raw)).flatten()?;
    members.into_iter().find(|(own, _)| own == name).map(|(_, value)| value)
}

/// Returns the strings in `text` (JSON) that are values rather than names, quotes included, in
/// order.
pub fn value_strings(text: &str) -> Vec<&str> {
    let bytes = text.as_bytes();
    let mut strings = Vec::new();
    let mut at = 0;
    while let Some(start) = memchr::memchr(b'"', &bytes[at..]).map(|place| at + place) {
        let mut end = start + 1;
        loop {
            let rest = bytes.get(end..).unwrap_or_default();
            let Some(place) = memchr::memchr2(b'"', b'\\', rest) else { return strings };
            end += place;
            if bytes[end] == b'"' {
                break;
            }
            end += 2;
        }
        let literal = &text[start..=end];
        at = end + 1;
        let is_name = text[at..].trim_start().starts_with(':');
        if !is_name {
            strings.push(literal);
        }
    }
    strings
}

/// Returns the entry of `known` that equals `name` except for letter case. Some upstreams treat
/// both as the same member, so the one would override the other.
pub fn known_in_other_case(name: &str, known: &[&'static str]) -> Option<&'static str> {
    known.iter().copied().find(|known| *known != name && known.eq_ignore_ascii_case(name))
}

/// Returns the error message for a member with such a name.
pub fn other_case_message(name: &str, known: &str) -> String {
    format!("'{name}' is not a member of a request; write '{known}'.")
}

/// Like [`members`], but `None` if a name is given twice.
pub fn unique_members(raw: &str) -> Option<Vec<(Cow<'_, str>, &str)>> {
    let members = members(raw)?;
    let mut names: Vec<&str> = members.iter().map(|(key, _)| key.as_ref()).collect();
    names.sort_unstable();
    let twice = names.windows(2).any(|pair| pair[0] == pair[1]);
    (!twice).then_some(members)
}

/// Returns the text of the member `name` of the object `body`; `None` if there is no such text.
pub fn text_member(body: &[u8], name: &str) -> Option<String> {
    let members = members(std::str::from_utf8(body).ok()?)?;
    let (_, raw) = members.iter().find(|(own, _)| own == name)?;
    string(raw).map(Cow::into_owned)
}

/// Returns the elements of the array `raw` as JSON texts; `None` if `raw` is not an array.
pub fn elements(raw: &str) -> Option<Vec<&str>> {
    let mut elements = Vec::new();
    let mut walk = Walk::new(raw);
    walk.elements(|walk| {
        elements.push(walk.value()?);
        Some(())
    })?;
    walk.end()?;
    Some(elements)
}

/// Returns the values in `raw`, which are separated by commas as in an array; `None` if it is no such
/// text.
pub fn run(raw: &str) -> Option<Vec<&str>> {
    let mut values = Vec::new();
    Walk::new(raw).run(|walk| {
        values.push(walk.value()?);
        Some(())
    })?;
    Some(values)
}

/// Rewrites each of `elements`, which lie in `whole` as the elements of one array, with `rewrite`.
///
/// The separator before a removed element is removed too, or the one after it if it was the first.
/// So the rest of the array keeps its bytes.
pub fn rejoin<'a>(
    whole: &'a str,
    elements: &[&'a str],
    mut rewrite: impl FnMut(usize, &'a str) -> Option<Cow<'a, str>>,
) -> String {
    let mut out = String::with_capacity(whole.len() + 1024);
    let mut written = 0; // Bytes of the whole already written.
    let mut kept_any = false;
    for (index, raw) in elements.iter().enumerate() {
        let start = raw.as_ptr() as usize - whole.as_ptr() as usize;
        let kept = rewrite(index, raw);
        if index == 0 || (kept.is_some() && kept_any) {
            out.push_str(&whole[written..start]);
        }
        written = start + raw.len();
        if let Some(kept) = kept {
            kept_any = true;
            out.push_str(&kept);
        }
    }
    out.push_str(&whole[written..]);
    out
}

/// Removes the member of the object `raw` whose value is `value`, a slice of `raw` as
/// [`members`] returns it.
pub fn without_member(raw: &str, value: &str) -> String {
    let span = member_span(raw, value);
    format!("{}{}", &raw[..span.start], &raw[span.end..])
}

/// Returns the place of that member in `raw`, with the comma that separates it from another.
pub(super) fn member_span(raw: &str, value: &str) -> Range<usize> {
    let start = value.as_ptr() as usize - raw.as_ptr() as usize;
    let mut end = start + value.len();
    let before_colon = raw[..start].trim_end().trim_end_matches(':').trim_end();
    let inside_key = before_colon.len().saturating_sub(1);
    let mut from = raw[..inside_key].rfind('"').unwrap_or(inside_key);
    let after = raw[end..].trim_start();
    if let Some(rest) = after.strip_prefix(',') {
        end = raw.len() - rest.trim_start().len();
    } else {
        let before = raw[..from].trim_end();
        from = before.strip_suffix(',').unwrap_or(before).len();
    }
    from..end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_found_in_an_object_behind_blanks() {
        assert_eq!(member(" \n{ \"a\": [1] }", "a"), Some("[1]"));
        assert_eq!(member("[{\"a\":1}]", "a"), None);
    }

    #[test]
    fn strings_are_unescaped_leniently() {
        for (raw, text) in [
            (r#""""#, ""),
            (r#""plain""#, "plain"),
            (r#""a\nb\"c\\""#, "a\nb\"c\\"),
            (r#""\u00e9\ud83d\ude00""#, "é😀"),
        ] {
            assert_eq!(string(raw).as_deref(), Some(text));
        }
        let lone = string(r#""x\ud800y""#).expect("a string");
        assert!(lone.starts_with('x') && lone.ends_with('y') && lone.contains('\u{fffd}'));
        assert_eq!(string("12"), None);
        assert_eq!(string("null"), None);
    }

    #[test]
    fn strings_are_read_and_written_as_serde_json_does() {
        let all: String =
            (0..0x250_u32).chain(0xfff0..0x1_0010).filter_map(char::from_u32).collect();
        let mut escaped = String::new();
        escape_into(&all, &mut escaped);
        assert_eq!(format!("\"{escaped}\""), serde_json::Value::from(all.as_str()).to_string());
        assert_eq!(unescaped(&escaped), Some(all));
        for inner in
            ["", r#"a\"b"#, r#"\u00e9\n\u00E9\/\u0000"#, r#"\b\f\r\t\\u0041"#, "\\n\u{7f}é\u{85}"]
        {
            let read: Option<String> = serde_json::from_str(&format!("\"{inner}\"")).ok();
            assert_eq!(unescaped(inner), read, "{inner}");
        }
        // Left to serde_json to read or refuse.
        for inner in [
            r#"a"b"#,
            "a\nb\\n",
            r#"\ud83d\ude00"#,
            r#"\ud800"#,
            r#"\u12"#,
            r#"\u+123"#,
            r#"\u 123"#,
            r#"\x"#,
            r#"\é"#,
            r#"\"#,
        ] {
            assert_eq!(unescaped(inner), None, "{inner}");
        }
    }

    #[test]
    fn escaping_is_undone_by_reading() {
        let text = "a\"b\\c\n\t\u{1}é😀</script>";
        let mut raw = String::from("\"");
        escape_into(text, &mut raw);
        raw.push('"');
        assert_eq!(string(&raw).as_deref(), Some(text));
    }

    #[test]
    fn strings_that_are_values_are_found() {
        for (text, expected) in [
            (
                r#"{"a": "b", "c\"d" : ["e", {"f":"g\\"}], "h":1}"#,
                &[r#""b""#, r#""e""#, r#""g\\""#][..],
            ),
            (r#""alone""#, &[r#""alone""#]),
            (r#"{"a":{}, "b": ""}"#, &[r#""""#]),
            ("[1, true, null]", &[]),
            ("", &[]),
            (r#"["torn"#, &[]),
            (r#"["torn\"#, &[]),
        ] {
            assert_eq!(value_strings(text), expected, "{text}");
        }
    }
}
