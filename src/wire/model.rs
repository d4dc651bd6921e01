//! The model that a body names, told and put there again without another changed byte. Reads nothing
//! else of the body.

use std::ops::Range;

use super::json;

/// The model that a body names, and where its JSON text stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    pub model: String,
    pub at: Range<usize>,
}

/// The model that the JSON object `body` names; `None` where it names none, or more than one.
pub fn named(body: &[u8]) -> Option<Named> {
    let text = simdutf8::basic::from_utf8(body).ok()?;
    let members = json::members(text)?;
    let mut own = members.iter().filter(|(name, _)| name == "model").map(|(_, raw)| *raw);
    let raw = own.next()?;
    if own.next().is_some() {
        return None;
    }
    let model = json::string(raw)?.into_owned();
    let start = raw.as_ptr() as usize - text.as_ptr() as usize;
    Some(Named { model, at: start..start + raw.len() })
}

/// `body` with `model` in the place of what stands at `at`.
pub fn renamed(body: &[u8], at: &Range<usize>, model: &str) -> Vec<u8> {
    let mut literal = String::with_capacity(model.len() + 2);
    literal.push('"');
    json::escape_into(model, &mut literal);
    literal.push('"');
    let mut renamed = Vec::with_capacity(body.len() + literal.len());
    renamed.extend_from_slice(&body[..at.start]);
    renamed.extend_from_slice(literal.as_bytes());
    renamed.extend_from_slice(&body[at.end..]);
    renamed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_alone_is_put_anew() {
        for (body, model, renamed_body) in [
            (r#"{"model":"a"}"#, Some("a"), r#"{"model":"b\"c"}"#),
            (
                " { \"x\" : [ 1.0e5, {\"model\":\"y\"} ] , \"model\"\n: \"a\\u0062\" , \"z\":1 } ",
                Some("ab"),
                " { \"x\" : [ 1.0e5, {\"model\":\"y\"} ] , \"model\"\n: \"b\\\"c\" , \"z\":1 } ",
            ),
            (r#"{"mod\u0065l":"a"}"#, Some("a"), r#"{"mod\u0065l":"b\"c"}"#),
            (r#"{"model":"a","model":"b"}"#, None, ""),
            (r#"{"model":7}"#, None, ""),
            (r#"{"model":null}"#, None, ""),
            (r#"["model"]"#, None, ""),
            ("{", None, ""),
            ("", None, ""),
        ] {
            let found = named(body.as_bytes());
            assert_eq!(found.as_ref().map(|named| named.model.as_str()), model, "{body}");
            if let Some(found) = found {
                let put = renamed(body.as_bytes(), &found.at, "b\"c");
                assert_eq!(String::from_utf8(put).as_deref(), Ok(renamed_body));
            }
        }
        assert_eq!(named(b"{\"model\":\"\xff\"}"), None);
    }
}
