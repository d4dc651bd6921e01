//! Request for a stream's usage, spliced into the caller's own bytes, and its removal. Does not
//! decide whether to ask.

use std::ops::Range;

use super::{Request, json};

/// Usage request that can be added to a body, outside its messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsageOption {
    /// Position in the request's text, in bytes.
    at: usize,
    /// Text that it replaces.
    replaced: &'static str,
    added: &'static str,
}

/// Usage request that was added to a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddedUsageOption {
    /// Position in that body.
    start: usize,
    option: UsageOption,
}

impl UsageOption {
    /// Returns the request that makes a streamed chat completion report its usage. `None` if the
    /// caller already asks for it, or if that is unclear.
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

    /// Adds the usage request to `body`, which is the body of `request` with any of its messages
    /// changed, and with values that have `grown` (see [`super::clamp::put`]).
    pub fn add_to(
        self,
        request: &Request<'_>,
        body: &mut String,
        grown: &[(usize, usize)],
    ) -> AddedUsageOption {
        let text = request.text;
        let offset = |raw: &&str| raw.as_ptr() as usize - text.as_ptr() as usize;
        let is_before = request.listed().first().map(offset).is_none_or(|first| self.at < first);
        let bytes = |is_counted: fn(&usize, &usize) -> bool| {
            let own = grown.iter().filter(|(at, _)| is_counted(at, &self.at));
            own.map(|(_, bytes)| bytes).sum::<usize>()
        };
        let start = match is_before {
            true => self.at + bytes(usize::lt),
            // Only what grew behind it changes its distance to the end.
            false => body.len() - bytes(usize::gt) - (text.len() - self.at),
        };
        body.replace_range(start..start + self.replaced.len(), self.added);
        AddedUsageOption { start, option: self }
    }
}

impl AddedUsageOption {
    /// Returns `body` without the added usage request.
    pub fn removed_from(self, body: &[u8]) -> Vec<u8> {
        let UsageOption { replaced, added, .. } = self.option;
        let Range { start, end } = self.start..self.start + added.len();
        [&body[..start], replaced.as_bytes(), &body[end..]].concat()
    }
}

#[cfg(test)]
mod tests {
    use crate::wire::{Edit, Protocol, splice};

    /// Adds the usage request and removes it again; removes a message first if `edits` says so.
    fn asked(body: &str, edits: &[(usize, Edit)]) -> Option<(String, String)> {
        let request = Protocol::Chat.read(body.as_bytes(), 100).expect("readable");
        let mut sent = splice::apply(Protocol::Chat, &request, edits);
        let asked = request.missing_usage_option?.add_to(&request, &mut sent, &[]);
        let back = asked.removed_from(sent.as_bytes());
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
