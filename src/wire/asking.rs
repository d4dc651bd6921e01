//! Asking a stream for its usage, by splice into the caller's own bytes, and taking the question
//! back. Decides nothing: whether to ask is not this module's to say.

use std::ops::Range;

use super::{Request, json};

/// A question that can be put into a request, beside its messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    /// Where it stands in the request's text, in bytes.
    at: usize,
    /// What it stands in the place of.
    replaced: &'static str,
    added: &'static str,
}

/// A question that was put into a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Put {
    /// Where it stands in that body.
    start: usize,
    question: Question,
}

impl Question {
    /// The question that makes a streamed chat completion tell its usage. `None` where the caller
    /// asks already, and where it is not clear what the caller asks.
    ///
    /// `stream` and `stream_options` are the JSON texts of those members, which lie in `text`.
    /// OpenAI's reference of chat completions describes them.
    pub(super) fn missing(text: &str, stream: &str, stream_options: Option<&str>) -> Option<Self> {
        let offset = |raw: &str| raw.as_ptr() as usize - text.as_ptr() as usize;
        let Some(options) = stream_options else {
            let added = r#","stream_options":{"include_usage":true}"#;
            return Some(Self { at: offset(stream) + stream.len(), replaced: "", added });
        };
        if options == "null" {
            let added = r#"{"include_usage":true}"#;
            return Some(Self { at: offset(options), replaced: "null", added });
        }
        let members = json::members(options)?;
        let mut asks = members.iter().filter(|(name, _)| name == "include_usage");
        let (replaced, place) = match (asks.next(), asks.next()) {
            (None, _) => {
                let added = match members.is_empty() {
                    true => r#""include_usage":true"#,
                    false => r#""include_usage":true,"#,
                };
                return Some(Self { at: offset(options) + 1, replaced: "", added });
            }
            (Some((_, raw)), None) if *raw == "false" => ("false", raw),
            (Some((_, raw)), None) if *raw == "null" => ("null", raw),
            _ => return None,
        };
        Some(Self { at: offset(place), replaced, added: "true" })
    }

    /// Puts the question into `body`, which is that of `request` with any of its messages changed.
    pub fn put(self, request: &Request<'_>, body: &mut String) -> Put {
        let text = request.text;
        let offset = |raw: &&str| raw.as_ptr() as usize - text.as_ptr() as usize;
        let is_before = request.messages.first().map(offset).is_none_or(|first| self.at < first);
        let start = match is_before {
            true => self.at,
            // What stands behind the messages is as far from the end as it was.
            false => body.len() - (text.len() - self.at),
        };
        body.replace_range(start..start + self.replaced.len(), self.added);
        Put { start, question: self }
    }
}

impl Put {
    /// `body`, into which the question was put, without it.
    pub fn taken_back(self, body: &[u8]) -> Vec<u8> {
        let Question { replaced, added, .. } = self.question;
        let Range { start, end } = self.start..self.start + added.len();
        [&body[..start], replaced.as_bytes(), &body[end..]].concat()
    }
}

#[cfg(test)]
mod tests {
    use crate::wire::{Edit, Protocol, splice};

    /// The body with the question, and without it again; with a message removed where `edits`.
    fn asked(body: &str, edits: &[(usize, Edit)]) -> Option<(String, String)> {
        let request = Protocol::Chat.read(body.as_bytes(), 100).expect("readable");
        let mut sent = splice::apply(Protocol::Chat, &request, edits);
        let asked = request.usage_question?.put(&request, &mut sent);
        let back = asked.taken_back(sent.as_bytes());
        Some((sent, String::from_utf8(back).expect("text")))
    }

    #[test]
    fn a_stream_is_asked_by_one_splice() {
        for (options, wanted) in [
            (r#""stream" : true"#, r#""stream" : true,"stream_options":{"include_usage":true}"#),
            (
                r#""stream_options": null ,"stream":true"#,
                r#""stream_options": {"include_usage":true} ,"stream":true"#,
            ),
            (
                r#""stream":true,"stream_options":{}"#,
                r#""stream":true,"stream_options":{"include_usage":true}"#,
            ),
            (
                r#""stream":true,"stream_options":{ "include_obfuscation":false }"#,
                r#""stream":true,"stream_options":{"include_usage":true, "include_obfuscation":false }"#,
            ),
            (
                r#""stream":true,"stream_options":{"a":1,"include_usage" : false}"#,
                r#""stream":true,"stream_options":{"a":1,"include_usage" : true}"#,
            ),
            (
                r#""stream":true,"stream_options":{"include\u005fusage":null}"#,
                r#""stream":true,"stream_options":{"include\u005fusage":true}"#,
            ),
        ] {
            let messages = r#""messages":[ {"role":"user","content":"grüße"} , {"role":"user"} ]"#;
            let left = r#""messages":[ {"role":"user"} ]"#;
            for edits in [&[][..], &[(0, Edit::Remove)]] {
                let kept = if edits.is_empty() { messages } else { left };
                for order in [["OPTIONS", "MESSAGES"], ["MESSAGES", "OPTIONS"]] {
                    let frame = format!(r#" {{ "a":1.50, {} ,{}, "b":2}} "#, order[0], order[1]);
                    let body = |messages, options| {
                        frame.replace("MESSAGES", messages).replace("OPTIONS", options)
                    };
                    let (sent, back) = asked(&body(messages, options), edits).expect("a question");
                    assert_eq!(sent, body(kept, wanted));
                    assert_eq!(back, body(kept, options));
                }
            }
        }
    }

    #[test]
    fn who_asks_or_says_something_else_is_left_alone() {
        for body in [
            r#"{"messages":[]}"#,
            r#"{"stream":false,"stream_options":{}}"#,
            r#"{"stream":null}"#,
            r#"{"stream":true,"stream_options":{"include_usage":true}}"#,
            r#"{"stream":true,"stream_options":{"include_usage":1}}"#,
            r#"{"stream":true,"stream_options":{"include_usage":"false"}}"#,
            r#"{"stream":true,"stream_options":{"include_usage":false,"include_usage":true}}"#,
            r#"{"stream":true,"stream_options":[]}"#,
            r#"{"stream":true,"stream_options":"x"}"#,
            r#"{"stream":true,"stream_options":false}"#,
        ] {
            assert_eq!(asked(body, &[]), None, "{body}");
        }
    }
}
