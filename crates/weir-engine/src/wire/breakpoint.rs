//! Breakpoints of a provider's prompt cache: counts them in a body and sets one on a message.

use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::Protocol;
use super::json::{self, Key};
use super::message::Content;

/// Maximum number of breakpoints in a request, the caller's own included; Anthropic's limit.
pub const MAX_BREAKPOINTS: usize = 4;

const MEMBER: &str = "cache_control";
const VALUE: &str = r#""cache_control":{"type":"ephemeral"}"#;

/// Counts the breakpoints in the JSON text `body`, at any depth; [`MAX_BREAKPOINTS`] if that cannot
/// be determined.
pub fn count(body: &str) -> usize {
    if !body.contains(MEMBER) && !body.contains("\\u") {
        return 0;
    }
    let mut found = 0;
    let mut deserializer = serde_json::Deserializer::from_str(body);
    let is_read = Count(&mut found).deserialize(&mut deserializer).is_ok();
    if is_read { found } else { MAX_BREAKPOINTS }
}

/// Whether a part of a body has a breakpoint with the lifetime of an hour. A shorter one, as weir sets, must
/// not stand before it: Anthropic's guide to prompt caching. May be true for other text like it.
pub fn is_long(raw: &str) -> bool {
    raw.contains("\"1h\"") && count(raw) > 0
}

/// Returns the message `raw` with a breakpoint at the end of its content: on its last text part, or
/// on the single part made from its text. A message without text, or with a breakpoint, stays as it
/// is.
pub fn mark(protocol: Protocol, raw: &str) -> String {
    marked(protocol, raw).unwrap_or_else(|| raw.to_owned())
}

fn marked(protocol: Protocol, raw: &str) -> Option<String> {
    if count(raw) > 0 {
        return None;
    }
    let message = protocol.read_message(raw).ok()?;
    let offset = |part: &str| part.as_ptr() as usize - raw.as_ptr() as usize;
    if let Content::Text(text) = message.content {
        let start = offset(text);
        let part = format!(r#"[{{"type":"text","text":{text},{VALUE}}}]"#);
        let is_empty = json::string(text)?.is_empty();
        return (!is_empty)
            .then(|| format!("{}{part}{}", &raw[..start], &raw[start + text.len()..]));
    }
    let (_, content) = json::members(raw)?.into_iter().find(|(key, _)| key == "content")?;
    let part = json::elements(content)?.into_iter().rev().find(|part| is_text(part))?;
    let end = offset(part) + part.len() - 1;
    Some(format!("{},{VALUE}{}", raw[..end].trim_end(), &raw[end..]))
}

/// Whether a part is a non-empty text.
fn is_text(part: &str) -> bool {
    let Some(members) = json::members(part) else { return false };
    let text = |name: &str| {
        let member = members.iter().find(|(key, _)| key == name);
        member.and_then(|(_, raw)| json::string(raw))
    };
    text("type").as_deref() == Some("text") && text("text").is_some_and(|text| !text.is_empty())
}

/// Counts the members of that name in any value.
struct Count<'a>(&'a mut usize);

impl<'de> DeserializeSeed<'de> for Count<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

macro_rules! skip_scalars {
    ($($visit:ident: $scalar:ty),*) => {
        $(fn $visit<E: de::Error>(self, _: $scalar) -> Result<(), E> { Ok(()) })*
    };
}

impl<'de> Visitor<'de> for Count<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(Key(key)) = map.next_key()? {
            *self.0 += usize::from(key == MEMBER);
            map.next_value_seed(Count(self.0))?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<(), A::Error> {
        while sequence.next_element_seed(Count(self.0))?.is_some() {}
        Ok(())
    }

    fn visit_unit<E: de::Error>(self) -> Result<(), E> {
        Ok(())
    }

    skip_scalars!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn breakpoints_are_counted_wherever_they_stand() {
        for (body, expected) in [
            ("{}", 0),
            (r#"{"cache_control":1,"a":[{"cache\u005fcontrol":{"cache_control":2}}]}"#, 3),
            (r#"{"a":"cache_control"}"#, 0),
            (r#"{"cache_control":1e999}"#, MAX_BREAKPOINTS),
        ] {
            assert_eq!(count(body), expected, "{body}");
        }
    }

    #[test]
    fn long_breakpoints_are_known() {
        for (raw, expected) in [
            (r#"{"content":[{"text":"a","cache_control":{"type":"ephemeral","ttl":"1h"}}]}"#, true),
            (
                r#"{"content":[{"text":"a","cache_control":{"type":"ephemeral","ttl":"5m"}}]}"#,
                false,
            ),
            (r#"{"content":"\"cache_control\" \"1h\""}"#, false),
        ] {
            assert_eq!(is_long(raw), expected, "{raw}");
        }
    }

    #[test]
    fn a_breakpoint_stands_on_the_last_text() {
        for (message, expected) in [
            (
                r#"{"role":"user","content":"a\"b"}"#,
                r#"{"role":"user","content":[{"type":"text","text":"a\"b","cache_control":{"type":"ephemeral"}}]}"#,
            ),
            (
                r#"{"role":"user","content":[{"type":"text","text":"a" },{"type":"image_url"}]}"#,
                r#"{"role":"user","content":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}},{"type":"image_url"}]}"#,
            ),
            (r#"{"role":"user","content":""}"#, r#"{"role":"user","content":""}"#),
            (r#"{"role":"assistant","content":null}"#, r#"{"role":"assistant","content":null}"#),
            (
                r#"{"role":"user","content":[{"type":"text","text":"a","cache_control":1}]}"#,
                r#"{"role":"user","content":[{"type":"text","text":"a","cache_control":1}]}"#,
            ),
        ] {
            assert_eq!(mark(Protocol::Chat, message), expected);
        }
    }
}
