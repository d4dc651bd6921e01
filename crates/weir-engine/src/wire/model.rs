//! The model name in a body: finds, replaces or adds it without changing another byte. Reads
//! nothing else of the body. In answers the name that the caller asked for replaces the upstream's.

use std::ops::Range;

use super::event_filter::{self, Judge, Verdict};
use super::json;

/// Position of the model name in a body, or where it would be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelField {
    /// The body has a `model` member: its value, which is `None` if it is not text, and the span of
    /// its JSON text.
    Named { model: Option<String>, at: Range<usize> },
    /// The body has none: the position after the object's opening brace, and whether the object is
    /// empty.
    Unnamed { at: usize, is_empty: bool },
}

impl ModelField {
    /// Finds the model name in `body`; `None` if the body is not one JSON object, or names several
    /// models.
    pub fn of(body: &[u8]) -> Option<Self> {
        let text = simdutf8::basic::from_utf8(body).ok()?;
        let members = json::members(text)?;
        let end = match members.last() {
            Some((_, raw)) => raw.as_ptr() as usize - text.as_ptr() as usize + raw.len(),
            None => text.find('{')? + 1,
        };
        // What stands behind the object may be another one, which an upstream may prefer.
        if text[end..].trim() != "}" {
            return None;
        }
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

    /// Returns the model that the body names.
    pub fn model(&self) -> Option<&str> {
        match self {
            Self::Named { model, .. } => model.as_deref(),
            Self::Unnamed { .. } => None,
        }
    }

    /// Returns `body`, for which this position was found, with `model` in it.
    pub fn put(&self, body: &[u8], model: &str) -> Vec<u8> {
        let mut literal = String::with_capacity(model.len() + 12);
        if let Self::Unnamed { .. } = self {
            literal.push_str("\"model\":");
        }
        literal.push_str(&json::quoted(model));
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

/// Names the model that its caller asked for in an answer: at the top level, in the `response` of an
/// event of Responses, and in the `message` of one of Messages.
#[derive(Debug)]
pub struct AnsweredAs {
    /// JSON text of the name.
    literal: String,
}

impl AnsweredAs {
    /// Creates it for the name that the caller asked for.
    pub fn new(model: &str) -> Self {
        Self { literal: json::quoted(model) }
    }

    /// Returns an answer, or the data of an event, with that name; `None` if it names no model.
    pub fn named(&self, text: &str) -> Option<String> {
        let mut names = Vec::new();
        for (name, raw) in json::members(text)? {
            match &*name {
                "model" => names.push(raw),
                "response" | "message" => names.extend(json::member(raw, "model")),
                _ => {}
            }
        }
        names.retain(|raw| raw.starts_with('"'));
        let (mut named, mut end) = (String::with_capacity(text.len() + self.literal.len()), 0);
        for raw in &names {
            let start = raw.as_ptr() as usize - text.as_ptr() as usize;
            named.push_str(&text[end..start]);
            named.push_str(&self.literal);
            end = start + raw.len();
        }
        named.push_str(&text[end..]);
        (!names.is_empty()).then_some(named)
    }
}

impl Judge for AnsweredAs {
    fn judge(&mut self, event: &[u8], at_start: bool) -> Verdict {
        event_filter::edited(event, at_start, |data| self.named(data))
    }
}

/// Maximum length of a model name found in a streamed body.
const MAX_FOUND_BYTES: usize = 200;

/// Finds the model that a JSON object names while the object streams through in pieces. Keeps no
/// more of it than one member's name or the model's.
#[derive(Debug, Default)]
pub struct ModelFinder {
    depth: u32,
    /// Whether the current bytes are inside a string.
    in_string: bool,
    is_escaped: bool,
    /// The current string, if it is at the object's top level and not too long.
    text: Vec<u8>,
    is_overlong: bool,
    /// Whether the next top-level string is a member's value.
    is_value: bool,
    /// Whether that member is the model.
    is_model: bool,
    is_done: bool,
}

impl ModelFinder {
    /// Takes the next bytes, and returns the model if they complete its name.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Option<String> {
        while let ([first, rest @ ..], false) = (bytes, self.is_done) {
            if !self.in_string {
                self.outside(*first);
                bytes = rest;
            } else if std::mem::take(&mut self.is_escaped) {
                self.keep(&bytes[..1]);
                bytes = rest;
            } else {
                let end = memchr::memchr2(b'"', b'\\', bytes).unwrap_or(bytes.len());
                self.keep(&bytes[..end]);
                let mark = bytes.get(end)?;
                bytes = &bytes[end + 1..];
                if *mark == b'\\' {
                    self.keep(b"\\");
                    self.is_escaped = true;
                } else if let Some(model) = self.end_string() {
                    return Some(model);
                }
            }
        }
        None
    }

    fn outside(&mut self, byte: u8) {
        match byte {
            b'"' => {
                self.in_string = true;
                self.is_overlong = false;
                self.text.clear();
            }
            b'{' | b'[' => {
                // A list, or a value that is not an object, names no model.
                self.is_done = self.depth == 0 && byte == b'[';
                self.depth += 1;
            }
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                self.is_done = self.depth == 0;
            }
            b':' if self.depth == 1 => self.is_value = true,
            b',' if self.depth == 1 => (self.is_value, self.is_model) = (false, false),
            _ => {}
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.depth != 1 {
            return;
        }
        self.is_overlong |= self.text.len() + bytes.len() > MAX_FOUND_BYTES;
        if !self.is_overlong {
            self.text.extend_from_slice(bytes);
        }
    }

    fn end_string(&mut self) -> Option<String> {
        self.in_string = false;
        if self.depth != 1 || self.is_overlong {
            return None;
        }
        let quoted = format!("\"{}\"", std::str::from_utf8(&self.text).ok()?);
        let text = json::string(&quoted)?;
        if !self.is_value {
            self.is_model = text.eq_ignore_ascii_case("model");
            return None;
        }
        self.is_done = self.is_model;
        self.is_model.then(|| text.into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::super::event_filter::Filter;
    use super::*;

    #[test]
    fn a_model_is_found_wherever_a_body_is_divided() {
        let long = format!(r#"{{"model":"{}"}}"#, "m".repeat(MAX_FOUND_BYTES + 1));
        let rows = [
            (r#"{"model":"gpt-4o","input":"x"}"#, Some("gpt-4o")),
            (
                r#"{"input":[{"model":"no"},"model"],"x":"model","model" : "a\u0062\"c"}"#,
                Some("ab\"c"),
            ),
            (r#"{"input":"a \" model\":\"no\" ","MODEL":"m"}"#, Some("m")),
            (r#"{"model":7,"x":"y"}"#, None),
            (r#"{"model":{"model":"no"},"y":"z"}"#, None),
            (r#"[{"model":"no"}]"#, None),
            (r#"{"x":1}{"model":"no"}"#, None),
            (r#""model":"no""#, None),
            ("", None),
            (&long, None),
        ];
        for (body, expected) in rows {
            for middle in 0..=body.len() {
                let mut finder = ModelFinder::default();
                let (one, other) = body.as_bytes().split_at(middle);
                let found = finder.feed(one).or_else(|| finder.feed(other));
                assert_eq!(found.as_deref(), expected, "{body} at {middle}");
            }
            let mut finder = ModelFinder::default();
            let found = body.as_bytes().chunks(1).find_map(|byte| finder.feed(byte));
            assert_eq!(found.as_deref(), expected, "{body} byte by byte");
        }
    }

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
            let spot = ModelField::of(body.as_bytes()).expect(body);
            assert_eq!(spot.model(), model, "{body}");
            let put = spot.put(body.as_bytes(), "b\"c");
            assert_eq!(String::from_utf8(put).as_deref(), Ok(expected));
        }
        for body in [r#"{"model":"a","model":"b"}"#, r#"["model"]"#, "{", ""] {
            assert_eq!(ModelField::of(body.as_bytes()), None, "{body}");
        }
        assert_eq!(ModelField::of(b"{\"model\":\"\xff\"}"), None);
    }

    #[test]
    fn an_answer_names_the_model_that_was_asked_for() {
        for (body, wanted) in [
            (
                r#"{"id":"a","model": "m-2026", "choices":[{"model":"x"}]}"#,
                Some(r#"{"id":"a","model": M, "choices":[{"model":"x"}]}"#),
            ),
            (
                r#"{"type":"response.created","response":{"model":"m","x":1.0 }}"#,
                Some(r#"{"type":"response.created","response":{"model":M,"x":1.0 }}"#),
            ),
            (
                r#"{"type":"message_start","message":{"model":"m"},"model":"m"}"#,
                Some(r#"{"type":"message_start","message":{"model":M},"model":M}"#),
            ),
            (r#"{"model":null,"choices":[]}"#, None),
            (r#"{"message":"no model"}"#, None),
            ("[]", None),
        ] {
            let wanted = wanted.map(|text| text.replace('M', r#""a \"b\"""#));
            assert_eq!(AnsweredAs::new("a \"b\"").named(body), wanted, "{body}");
        }
    }

    #[test]
    fn events_name_the_model_that_was_asked_for_wherever_they_are_cut() {
        let stream = "\u{feff}data: {\"model\":\"m\",\"choices\":[]}\r\n\r\n: ping\n\n\
                      event: x\ndata: {\"a\":1,\ndata: \"model\":\"m\"}\n\ndata: [DONE]\n\n";
        let wanted = "\u{feff}data: {\"model\":\"f\",\"choices\":[]}\r\n\r\n: ping\n\n\
                      event: x\ndata: {\"a\":1,\"model\":\"f\"}\n\ndata: [DONE]\n\n";
        for at in 0..=stream.len() {
            let mut filter = Filter::with(AnsweredAs::new("f"), 1000);
            let (head, tail) = stream.as_bytes().split_at(at);
            let mut out = filter.feed(head).into_owned();
            out.extend_from_slice(&filter.feed(tail));
            out.extend(filter.finish());
            assert_eq!(String::from_utf8(out).expect("text"), wanted, "cut at {at}");
        }
    }
}
