//! The model that a body names, told and put there, anew or for the first time, without another changed
//! byte. Reads nothing else of the body.

use std::ops::Range;

use super::json;

/// Where a body names its model, or would.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spot {
    /// What is named, which is no model where it is no text, and where its JSON text stands.
    Named { model: Option<String>, at: Range<usize> },
    /// Nothing is: behind the brace that an object begins with, which may be an empty one.
    Unnamed { at: usize, is_empty: bool },
}

impl Spot {
    /// That of `body`; `None` where it is no JSON object, or names several.
    pub fn of(body: &[u8]) -> Option<Self> {
        let text = simdutf8::basic::from_utf8(body).ok()?;
        let members = json::members(text)?;
        let mut own = members
            .iter()
            .filter(|(name, _)| name.eq_ignore_ascii_case("model"))
            .map(|(_, raw)| *raw);
        let Some(raw) = own.next() else {
            return Some(Self::Unnamed { at: text.find('{')? + 1, is_empty: members.is_empty() });
        };
        if own.next().is_some() {
            return None;
        }
        let start = raw.as_ptr() as usize - text.as_ptr() as usize;
        let model = json::string(raw).map(|model| model.into_owned());
        Some(Self::Named { model, at: start..start + raw.len() })
    }

    /// The model that is named.
    pub fn model(&self) -> Option<&str> {
        match self {
            Self::Named { model, .. } => model.as_deref(),
            Self::Unnamed { .. } => None,
        }
    }

    /// `body`, which it is the spot of, with `model` there.
    pub fn put(&self, body: &[u8], model: &str) -> Vec<u8> {
        let mut literal = String::with_capacity(model.len() + 12);
        if let Self::Unnamed { .. } = self {
            literal.push_str("\"model\":");
        }
        literal.push('"');
        json::escape_into(model, &mut literal);
        literal.push('"');
        let at = match self {
            Self::Named { at, .. } => at.clone(),
            Self::Unnamed { at, is_empty } => {
                literal.push_str(if *is_empty { "" } else { "," });
                *at..*at
            }
        };
        let mut put = Vec::with_capacity(body.len() + literal.len());
        put.extend_from_slice(&body[..at.start]);
        put.extend_from_slice(literal.as_bytes());
        put.extend_from_slice(&body[at.end..]);
        put
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_alone_is_put_anew() {
        for (body, model, expected) in [
            (r#"{"model":"a"}"#, Some("a"), r#"{"model":"b\"c"}"#),
            (
                " { \"x\" : [ 1.0e5, {\"model\":\"y\"} ] , \"model\"\n: \"a\\u0062\" , \"z\":1 } ",
                Some("ab"),
                " { \"x\" : [ 1.0e5, {\"model\":\"y\"} ] , \"model\"\n: \"b\\\"c\" , \"z\":1 } ",
            ),
            (r#"{"mod\u0065l":"a"}"#, Some("a"), r#"{"mod\u0065l":"b\"c"}"#),
            (r#"{"model":7}"#, None, r#"{"model":"b\"c"}"#),
            (r#"{"x":1,"model": null }"#, None, r#"{"x":1,"model": "b\"c" }"#),
            (" {\n\"x\":{}}", None, " {\"model\":\"b\\\"c\",\n\"x\":{}}"),
            ("{ }", None, "{\"model\":\"b\\\"c\" }"),
        ] {
            let spot = Spot::of(body.as_bytes()).expect(body);
            assert_eq!(spot.model(), model, "{body}");
            let put = spot.put(body.as_bytes(), "b\"c");
            assert_eq!(String::from_utf8(put).as_deref(), Ok(expected));
        }
        for body in [r#"{"model":"a","model":"b"}"#, r#"["model"]"#, "{", ""] {
            assert_eq!(Spot::of(body.as_bytes()), None, "{body}");
        }
        assert_eq!(Spot::of(b"{\"model\":\"\xff\"}"), None);
    }
}
