//! Small helpers over JSON text: strings unescaped leniently, strings escaped, members found.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, Deserializer, Visitor};

use super::walk::Walk;

/// The text of a JSON string literal, quotes included in `raw`; `None` where `raw` is no string.
///
/// Lone surrogates, which JSON allows and some clients send, become U+FFFD instead of an error.
pub fn string(raw: &str) -> Option<Cow<'_, str>> {
    let inner = raw.strip_prefix('"')?.strip_suffix('"')?;
    if !inner.contains('\\') {
        return Some(Cow::Borrowed(inner));
    }
    let mut deserializer = serde_json::Deserializer::from_str(raw);
    let bytes = deserializer.deserialize_bytes(Bytes).ok()?;
    Some(Cow::Owned(match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    }))
}

/// Appends `text` to `out` as the inside of a JSON string literal.
pub fn escape_into(text: &str, out: &mut String) {
    let quoted = serde_json::Value::String(text.to_owned()).to_string();
    out.push_str(&quoted[1..quoted.len() - 1]);
}

/// Collects the bytes of a string, WTF-8 where it holds lone surrogates.
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

/// A key that borrows where it holds no escapes.
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

/// The name that a member's `raw` name says; `None` where it is no text.
pub fn name(raw: &str) -> Option<Cow<'_, str>> {
    let inner = raw.strip_prefix('"')?.strip_suffix('"')?;
    match inner.contains('\\') {
        false => Some(Cow::Borrowed(inner)),
        true => serde_json::from_str(raw).ok().map(Cow::Owned),
    }
}

/// The members of the object `raw`, each as name and JSON text, in order; `None` where `raw` is
/// no object.
pub fn members(raw: &str) -> Option<Vec<(Cow<'_, str>, &str)>> {
    let mut members = Vec::new();
    Walk::new(raw).members(|own, walk| {
        members.push((name(own)?, walk.value()?));
        Some(())
    })?;
    Some(members)
}

/// The strings in `text`, which is JSON, that are values and no names, quotes included, in order.
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

/// The one of these names that `name` is but for the case of its letters. Some upstreams take the two for
/// the same, so that what is said of the one would be settled by the other.
pub fn known_in_other_case(name: &str, known: &[&'static str]) -> Option<&'static str> {
    known.iter().copied().find(|known| *known != name && known.eq_ignore_ascii_case(name))
}

/// What is said to whoever names a member so.
pub fn other_case_message(name: &str, known: &str) -> String {
    format!("'{name}' is not a member of a request; write '{known}'.")
}

/// [`members`], or `None` where a name is given twice too.
pub fn unique_members(raw: &str) -> Option<Vec<(Cow<'_, str>, &str)>> {
    let members = members(raw)?;
    let mut names: Vec<&str> = members.iter().map(|(key, _)| key.as_ref()).collect();
    names.sort_unstable();
    let twice = names.windows(2).any(|pair| pair[0] == pair[1]);
    (!twice).then_some(members)
}

/// What the member `name` of the object `body` says; `None` where there is none that is a text.
pub fn text_member(body: &[u8], name: &str) -> Option<String> {
    let members = members(std::str::from_utf8(body).ok()?)?;
    let (_, raw) = members.iter().find(|(own, _)| own == name)?;
    string(raw).map(Cow::into_owned)
}

/// The elements of the array `raw` as JSON texts; `None` where `raw` is no array.
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

#[cfg(test)]
mod tests {
    use super::*;

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
