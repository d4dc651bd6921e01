//! Copy of a JSON object without the members that no bill needs, made while it streams by: a picture or a
//! page of numbers is passed over, however large. Reads no figures.

use crate::wire::json;

/// Maximum size of the copy.
const MAX_KEPT_BYTES: usize = 256 << 10;
/// Maximum length of a member's name; longer ones are of no interest.
const MAX_KEY_BYTES: usize = 64;
/// Maximum nesting of the objects that are entered.
const MAX_FRAMES: usize = 6;

/// Members that hold what a model has said, with their quotes.
const SAID: [&str; 7] = [
    "\"content\"",
    "\"text\"",
    "\"thinking\"",
    "\"reasoning_content\"",
    "\"reasoning\"",
    "\"tool_calls\"",
    "\"input\"",
];

/// What becomes of a member's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Treatment {
    Copied,
    /// An object whose members are looked at.
    Entered,
    /// A list of objects; only what [`fate`] names is copied.
    Listed,
    PassedOver,
}

/// Object or list whose parts are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Frame {
    Answer,
    /// Object inside the answer with the same members.
    Inner,
    List,
    Item,
}

/// What comes next.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Expected {
    Key,
    #[default]
    Value,
    /// A comma, or the end of the object or list.
    Next,
}

/// Scanner of one JSON object in pieces.
#[derive(Debug, Default)]
pub(super) struct Skim {
    kept: Vec<u8>,
    frames: Vec<Frame>,
    expected: Expected,
    /// The name being read or just read, with its quotes.
    key: Vec<u8>,
    in_string: bool,
    is_escaped: bool,
    /// Depth inside a value that is not entered, and what becomes of it.
    value: Option<(u32, Treatment)>,
    /// Whether the object was read to its end.
    is_whole: bool,
    is_broken: bool,
    /// Bytes of texts among the choices and the content.
    said_bytes: u64,
}

impl Skim {
    /// Returns the copy, if the object was read to its end.
    pub(super) fn kept(&self) -> Option<&[u8]> {
        (self.is_whole && !self.is_broken).then_some(&self.kept)
    }

    /// Returns the size of the texts that were passed over.
    pub(super) fn said_bytes(&self) -> u64 {
        self.said_bytes
    }

    /// Takes the next bytes.
    pub(super) fn feed(&mut self, mut bytes: &[u8]) {
        while let ([first, rest @ ..], false) = (bytes, self.is_whole || self.is_broken) {
            if !self.in_string {
                self.outside(*first);
                bytes = rest;
            } else if std::mem::take(&mut self.is_escaped) {
                self.text(&bytes[..1]);
                bytes = rest;
            } else {
                let end = memchr::memchr2(b'"', b'\\', bytes).unwrap_or(bytes.len());
                self.text(&bytes[..end]);
                let Some(mark) = bytes.get(end) else { return };
                bytes = &bytes[end + 1..];
                self.is_escaped = *mark == b'\\';
                self.in_string = *mark != b'"';
                self.mark(*mark);
            }
        }
    }

    /// Takes a part of a string.
    fn text(&mut self, bytes: &[u8]) {
        match self.value {
            Some((_, Treatment::Copied)) => self.keep(bytes),
            Some(_) => self.said_bytes += self.said_in(bytes),
            None if self.key.len() + bytes.len() <= MAX_KEY_BYTES => {
                self.key.extend_from_slice(bytes);
            }
            None => self.key.resize(MAX_KEY_BYTES, b'.'),
        }
    }

    fn said_in(&self, bytes: &[u8]) -> u64 {
        let key = self.key.as_slice();
        let is_said = SAID.iter().any(|name| name.as_bytes() == key);
        if is_said { bytes.len() as u64 } else { 0 }
    }

    /// Takes a quote that ends a string, or a backslash in one.
    fn mark(&mut self, mark: u8) {
        match self.value {
            Some((_, Treatment::Copied)) => self.keep(&[mark]),
            Some(_) => {}
            None if self.key.len() < MAX_KEY_BYTES => self.key.push(mark),
            None => {}
        }
        if mark == b'"' && self.value.is_some_and(|(depth, _)| depth == 0) {
            self.end_value();
        }
    }

    /// Takes a byte outside strings.
    fn outside(&mut self, byte: u8) {
        if byte.is_ascii_whitespace() {
            return;
        }
        match (self.value, self.expected) {
            (Some(_), _) => self.inside(byte),
            (None, Expected::Value) => self.begin_value(byte),
            (None, Expected::Key) => match byte {
                b'"' => {
                    self.in_string = true;
                    self.key.clear();
                    self.key.push(b'"');
                }
                b':' if !self.key.is_empty() => self.expected = Expected::Value,
                b'}' => self.end_frame(b'}'),
                _ => self.is_broken = true,
            },
            (None, Expected::Next) => match (byte, self.frames.last()) {
                (b',', Some(Frame::List)) => self.expected = Expected::Value,
                (b',', Some(_)) => {
                    self.key.clear();
                    self.expected = Expected::Key;
                }
                (b'}' | b']', Some(_)) => self.end_frame(byte),
                _ => self.is_broken = true,
            },
        }
    }

    /// Takes a byte of a value that is not entered.
    fn inside(&mut self, byte: u8) {
        let Some((depth, fate)) = self.value else { return };
        if depth == 0 && matches!(byte, b',' | b'}' | b']') {
            // The end of a number or a word.
            self.end_value();
            return self.outside(byte);
        }
        if fate == Treatment::Copied {
            self.keep(&[byte]);
        }
        let depth = match byte {
            b'{' | b'[' => depth.saturating_add(1),
            b'}' | b']' => depth - 1,
            _ => depth,
        };
        self.in_string = byte == b'"';
        self.value = Some((depth, fate));
        if depth == 0 && matches!(byte, b'}' | b']') {
            self.end_value();
        }
    }

    /// Takes the first byte of a value.
    fn begin_value(&mut self, byte: u8) {
        let Some(frame) = self.frames.last().copied() else {
            match byte {
                b'{' => self.enter(Frame::Answer, b"{"),
                // The byte order mark.
                0xef | 0xbb | 0xbf => {}
                _ => self.is_broken = true,
            }
            return;
        };
        if frame == Frame::List {
            return match byte {
                b'{' => self.enter(Frame::Item, b"{"),
                b']' => self.end_frame(b']'),
                _ => {
                    self.value = Some((0, Treatment::PassedOver));
                    self.inside(byte);
                }
            };
        }
        let name = std::str::from_utf8(&self.key).ok().and_then(json::string);
        let fate = fate(frame, name.as_deref().unwrap_or_default());
        let is_full = self.frames.len() >= MAX_FRAMES;
        match (fate, byte) {
            (Treatment::Entered, b'{') if !is_full => {
                self.name();
                self.enter(Frame::Inner, b"{");
            }
            (Treatment::Listed, b'[') if !is_full => {
                self.name();
                self.enter(Frame::List, b"[");
                self.expected = Expected::Value;
            }
            (Treatment::Copied, _) => {
                self.name();
                self.value = Some((0, Treatment::Copied));
                self.inside(byte);
            }
            _ => {
                self.value = Some((0, Treatment::PassedOver));
                self.inside(byte);
            }
        }
    }

    /// Copies the name of a member.
    fn name(&mut self) {
        let key = std::mem::take(&mut self.key);
        self.separate();
        self.keep(&key);
        self.keep(b":");
        self.key = key;
    }

    /// Copies a comma, if something stands before it.
    fn separate(&mut self) {
        if self.kept.last().is_some_and(|last| !matches!(last, b'{' | b'[')) {
            self.keep(b",");
        }
    }

    fn enter(&mut self, frame: Frame, opening: &[u8]) {
        if frame == Frame::Item {
            self.separate();
        }
        self.keep(opening);
        self.frames.push(frame);
        self.key.clear();
        self.expected = Expected::Key;
    }

    fn end_frame(&mut self, closing: u8) {
        let is_list = self.frames.pop() == Some(Frame::List);
        self.is_broken |= is_list != (closing == b']');
        self.keep(&[closing]);
        self.expected = Expected::Next;
        self.is_whole = self.frames.is_empty();
    }

    fn end_value(&mut self) {
        self.value = None;
        self.expected = Expected::Next;
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.is_broken |= self.kept.len() + bytes.len() > MAX_KEPT_BYTES;
        if !self.is_broken {
            self.kept.extend_from_slice(bytes);
        }
    }
}

/// Returns what becomes of a member: those that `answer` reads are copied.
fn fate(frame: Frame, name: &str) -> Treatment {
    match (frame, name) {
        (Frame::Item, "type" | "finish_reason" | "usage" | "container_id" | "environment") => {
            Treatment::Copied
        }
        (Frame::Item, "message" | "delta") => Treatment::Entered,
        (Frame::Item | Frame::List, _) => Treatment::PassedOver,
        (_, "output" | "content" | "choices" | "images" | "executed_tools" | "web_search") => {
            Treatment::Listed
        }
        (Frame::Answer, "response" | "message" | "x_groq") => Treatment::Entered,
        (Frame::Answer, "error" | "type") => Treatment::Copied,
        (
            _,
            "usage" | "usageMetadata" | "model" | "service_tier" | "stop_reason"
            | "incomplete_details" | "duration",
        ) => Treatment::Copied,
        _ => Treatment::PassedOver,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Skims a text, whole and byte by byte.
    fn skimmed(text: &str) -> Option<String> {
        let skim = |parts: &mut dyn Iterator<Item = &[u8]>| {
            let mut skim = Skim::default();
            parts.for_each(|part| skim.feed(part));
            skim.kept().map(|kept| String::from_utf8(kept.to_vec()).expect("text"))
        };
        let whole = skim(&mut std::iter::once(text.as_bytes()));
        assert_eq!(skim(&mut text.as_bytes().chunks(1)), whole, "{text}");
        whole
    }

    #[test]
    fn what_bills_need_is_kept() {
        for (text, kept) in [
            (
                r#"{"data":[{"b64_json":"AA\"}]"}],"usage":{"a":[1,"}"]}}"#,
                r#"{"usage":{"a":[1,"}"]}}"#,
            ),
            (r#" {"a":1.5e3 ,"model":"m\"" , "b" : null}"#, r#"{"model":"m\""}"#),
            (
                r#"{"type":"response.completed","response":{"id":"r","output":[{"type":"web_search_call",
                    "x":[1]},5,{"text":"y"}],"usage":{"input_tokens":1}},"z":{}}"#,
                r#"{"type":"response.completed","response":{"output":[{"type":"web_search_call"},{}],"usage":{"input_tokens":1}}}"#,
            ),
            (
                r#"{"choices":[{"index":0,"message":{"content":"x","images":[{"type":"image_url","image_url":{}}]},"finish_reason":"stop"}]}"#,
                r#"{"choices":[{"message":{"images":[{"type":"image_url"}]},"finish_reason":"stop"}]}"#,
            ),
            (
                r#"{"choices":[{"message":{"executed_tools":[{"type":"search","output":"x"}]}}],"web_search":[{"a":1}]}"#,
                r#"{"choices":[{"message":{"executed_tools":[{"type":"search"}]}}],"web_search":[{}]}"#,
            ),
            (r#"{"us\u0061ge":{"a":1}}"#, r#"{"us\u0061ge":{"a":1}}"#),
            ("\u{feff}{}", "{}"),
            (r#"{"a":{"usage":{"b":1}},"output":[]}"#, r#"{"output":[]}"#),
        ] {
            assert_eq!(skimmed(text).as_deref(), Some(kept), "{text}");
        }
        for text in ["", "[]", "{", r#"{"usage":{}"#, r#"{"output":[}"#, "5", r#"{"a" 5}"#, "{]"] {
            assert_eq!(skimmed(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_skimmed_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut skim = Skim::default();
            skim.feed(b"{\"output\":[{\"type\":");
            skim.feed(&bytes);
            prop_assert!(skim.kept.len() <= MAX_KEPT_BYTES);
        }
    }
}
