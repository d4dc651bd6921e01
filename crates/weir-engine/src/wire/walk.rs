//! Fast walk over JSON without parsing its values. Accepts exactly the texts that serde_json
//! accepts, in a fraction of its time. Long conversations are mostly strings, which are skipped by
//! their quotes and backslashes. Returns no error details; serde_json supplies those on demand.

use memchr::memchr2;

/// Position in a text, before a value or between two.
pub struct Walk<'a> {
    text: &'a str,
    at: usize,
}

/// List or object that contains the current value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    List,
    Object,
}

impl<'a> Walk<'a> {
    pub fn new(text: &'a str) -> Self {
        Self::at(text, 0)
    }

    /// Creates a walk that starts at `at`.
    pub fn at(text: &'a str, at: usize) -> Self {
        Self { text, at }
    }

    /// Returns the position, in bytes of the text.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Returns the text from `start` to the position.
    pub fn since(&self, start: usize) -> Option<&'a str> {
        self.text.get(start..self.at)
    }

    /// Skips whitespace and returns the next byte.
    pub fn peek(&mut self) -> Option<u8> {
        let bytes = self.text.as_bytes();
        while matches!(bytes.get(self.at), Some(b' ' | b'\n' | b'\t' | b'\r')) {
            self.at += 1;
        }
        bytes.get(self.at).copied()
    }

    /// Skips a value and returns its text.
    pub fn value(&mut self) -> Option<&'a str> {
        self.peek()?;
        let start = self.at;
        self.skip()?;
        self.text.get(start..self.at)
    }

    /// Passes the text of each member's name, quotes included, to `member`, which must skip its
    /// value.
    pub fn members(
        &mut self,
        mut member: impl FnMut(&'a str, &mut Self) -> Option<()>,
    ) -> Option<()> {
        self.take(b'{')?;
        if self.peek()? == b'}' {
            return self.take(b'}');
        }
        self.member(&mut member)?;
        self.more_members(member)
    }

    /// Continues with the members after one.
    pub fn more_members(
        &mut self,
        mut member: impl FnMut(&'a str, &mut Self) -> Option<()>,
    ) -> Option<()> {
        while self.peek()? == b',' {
            self.at += 1;
            self.member(&mut member)?;
        }
        self.take(b'}')
    }

    fn member(&mut self, member: &mut impl FnMut(&'a str, &mut Self) -> Option<()>) -> Option<()> {
        self.peek()?;
        let start = self.at;
        self.string()?;
        let name = self.text.get(start..self.at)?;
        self.take(b':')?;
        member(name, self)
    }

    /// Calls `element` to skip each element of a list.
    pub fn elements(&mut self, mut element: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.take(b'[')?;
        if self.peek()? == b']' {
            return self.take(b']');
        }
        element(self)?;
        self.more_elements(element)
    }

    /// Continues with the elements after one.
    pub fn more_elements(
        &mut self,
        mut element: impl FnMut(&mut Self) -> Option<()>,
    ) -> Option<()> {
        while self.peek()? == b',' {
            self.at += 1;
            element(self)?;
        }
        self.take(b']')
    }

    /// Calls `element` for each of the values that follow, separated by commas, up to the end of the
    /// text.
    pub fn run(&mut self, mut element: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        element(self)?;
        while self.peek().is_some() {
            self.take(b',')?;
            element(self)?;
        }
        Some(())
    }

    /// Skips the colon after a member's name.
    pub fn colon(&mut self) -> Option<()> {
        self.take(b':')
    }

    /// Returns `None` if anything remains.
    pub fn end(&mut self) -> Option<()> {
        self.peek().is_none().then_some(())
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    fn skip(&mut self) -> Option<()> {
        // Not recursive: a body may be nested as deep as it is long.
        let mut open = Vec::new();
        loop {
            match self.peek()? {
                b'"' => self.string()?,
                first @ (b'{' | b'[') => {
                    self.at += 1;
                    let (kind, last) = match first {
                        b'{' => (Open::Object, b'}'),
                        _ => (Open::List, b']'),
                    };
                    if self.peek()? != last {
                        open.push(kind);
                        self.name_in(kind)?;
                        continue;
                    }
                    self.at += 1;
                }
                b't' => self.word("true")?,
                b'f' => self.word("false")?,
                b'n' => self.word("null")?,
                _ => self.number()?,
            }
            loop {
                let Some(kind) = open.last().copied() else { return Some(()) };
                match (self.peek()?, kind) {
                    (b',', _) => {
                        self.at += 1;
                        self.name_in(kind)?;
                        break;
                    }
                    (b'}', Open::Object) | (b']', Open::List) => {
                        self.at += 1;
                        open.pop();
                    }
                    _ => return None,
                }
            }
        }
    }

    /// Skips a member's name, if one must follow.
    fn name_in(&mut self, kind: Open) -> Option<()> {
        if kind == Open::Object {
            self.peek()?;
            self.string()?;
            self.take(b':')?;
        }
        Some(())
    }

    fn word(&mut self, word: &str) -> Option<()> {
        let rest = self.text.as_bytes().get(self.at..)?;
        rest.starts_with(word.as_bytes()).then(|| self.at += word.len())
    }

    fn string(&mut self) -> Option<()> {
        let bytes = self.text.as_bytes();
        if bytes.get(self.at) != Some(&b'"') {
            return None;
        }
        let start = self.at + 1;
        let mut at = start;
        loop {
            at += memchr2(b'"', b'\\', bytes.get(at..)?)?;
            if bytes[at] == b'"' {
                break;
            }
            at += match bytes.get(at + 1)? {
                b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => 2,
                b'u' if bytes.get(at + 2..at + 6)?.iter().all(u8::is_ascii_hexdigit) => 6,
                _ => return None,
            };
        }
        self.at = at + 1;
        // One minimum over all bytes is cheaper than a search for one of them.
        let least = bytes[start..at].iter().fold(u8::MAX, |least, byte| least.min(*byte));
        (least >= 0x20).then_some(())
    }

    fn number(&mut self) -> Option<()> {
        let bytes = self.text.as_bytes();
        if bytes.get(self.at) == Some(&b'-') {
            self.at += 1;
        }
        match bytes.get(self.at)? {
            b'0' => self.at += 1,
            b'1'..=b'9' => self.digits()?,
            _ => return None,
        }
        if bytes.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(bytes.get(self.at), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(bytes.get(self.at), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Some(())
    }

    fn digits(&mut self) -> Option<()> {
        let rest = self.text.as_bytes().get(self.at..)?;
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += digits;
        (digits > 0).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::value::RawValue;

    use super::*;

    /// Returns the value's own text if `text` is exactly one value for this walk.
    fn walked(text: &str) -> Option<&str> {
        let mut walk = Walk::new(text);
        let value = walk.value()?;
        walk.end()?;
        Some(value)
    }

    fn by_serde(text: &str) -> Option<&str> {
        serde_json::from_str::<&RawValue>(text).ok().map(RawValue::get)
    }

    /// JSON, and near-JSON.
    const ROWS: &[&str] = &[
        "",
        " ",
        "0",
        "-0",
        "01",
        "-",
        "+1",
        "1.",
        ".5",
        "1.5",
        "1e5",
        "1E+05",
        "1e",
        "1e+",
        "-1.5e-3",
        "1 2",
        "0x1",
        "1e999",
        "true",
        "tru",
        "truex",
        "null",
        "nul",
        "false",
        " [ ] ",
        "[",
        "]",
        "[1",
        "[1,",
        "[1,]",
        "[,1]",
        "[1 2]",
        "[1,2]",
        "[[[]]]",
        "[}",
        "{]",
        "{}",
        " { } ",
        "{",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1",
        "{\"a\":1}",
        "{\"a\":1,}",
        "{\"a\":1,\"a\":2}",
        "{a:1}",
        "{1:1}",
        "{\"a\" : [ {\"b\":\n\"c\"} ]\t}",
        "\"",
        "\"a",
        "\"a\"",
        "\"\\\"",
        "\"\\\"\"",
        "\"\\\\\"",
        "\"\\\\\\\"\"",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\\u12g4\"",
        "\"\\u1234\"",
        "\"\\ud800\"",
        "\"\\u\"",
        "\"\\",
        "\"a\nb\"",
        "\"\u{1f}\"",
        "\"\u{7f}\"",
        "\"é😀\"",
        "\"a\"b",
        "[\"a\"\"b\"]",
        "\u{feff}1",
        "1\u{0}",
        "[1]]",
        "{}{}",
        "\u{a0}1",
        "\u{c}1",
        "nan",
        "Infinity",
    ];

    #[test]
    fn what_serde_json_takes_is_taken_and_nothing_else() {
        for text in ROWS {
            assert_eq!(walked(text), by_serde(text), "{text:?}");
        }
    }

    #[test]
    fn depth_has_no_end() {
        let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
        assert_eq!(walked(&deep).map(str::len), Some(400_000));
        let deep = format!("{}1{}", "{\"a\":[".repeat(100_000), "]}".repeat(100_000));
        assert_eq!(walked(&deep).map(str::len), Some(deep.len()));
        assert_eq!(walked(&deep[..deep.len() - 1]), None);
    }

    #[test]
    fn members_and_elements_are_handed_out_in_order() {
        let mut walk = Walk::new(" { \"a\" : [ 1 , \"x\" ,{}] ,\"b\":{\"c\":[]} }");
        let mut seen = Vec::new();
        let done = walk.members(|name, walk| {
            seen.push(name);
            if name == "\"a\"" {
                return walk.elements(|walk| {
                    seen.push(walk.value()?);
                    Some(())
                });
            }
            seen.push(walk.value()?);
            Some(())
        });
        assert_eq!(done.and_then(|()| walk.end()), Some(()));
        assert_eq!(seen, ["\"a\"", "1", "\"x\"", "{}", "\"b\"", "{\"c\":[]}"]);
        for text in
            ["[]", "{\"a\":1", "{\"a\":1,}", "{,}", "{\"a\"1}", "{\"a\":1 \"b\":2}", "1", ""]
        {
            let walked = Walk::new(text).members(|_, walk| walk.value().map(drop));
            assert_eq!(walked, None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn near_json_is_judged_as_serde_json_does(text in near_json()) {
            prop_assert_eq!(walked(&text), by_serde(&text));
        }

        #[test]
        fn any_text_is_judged_as_serde_json_does(text in "\\PC{0,40}") {
            prop_assert_eq!(walked(&text), by_serde(&text));
            let quoted = serde_json::Value::from(text.clone()).to_string();
            prop_assert_eq!(walked(&quoted), Some(&*quoted));
        }
    }

    /// JSON in pieces, mostly fitting together.
    fn near_json() -> impl Strategy<Value = String> {
        let leaf = prop_oneof![
            "-?(0|[1-9][0-9]{0,3})(\\.[0-9]{0,2})?([eE][+-]?[0-9]{0,2})?",
            "\"([ -~é]|\\\\[\"\\\\/bfnrtu]|\\\\u[0-9a-fA-F]{3,4}|\n){0,12}\"",
            Just("true".to_owned()),
            Just("null".to_owned()),
            Just(" ".to_owned()),
        ];
        let value = leaf.prop_recursive(4, 40, 4, |inner| {
            let joint = prop_oneof![6 => Just(","), 1 => Just(" ,\n"), 1 => Just("")];
            let list = (prop::collection::vec(inner.clone(), 0..4), joint)
                .prop_map(|(values, joint)| format!("[{}]", values.join(joint)));
            let object = prop::collection::vec((".{0,4}", inner), 0..4).prop_map(|members| {
                let members = members.iter().map(|(name, value)| {
                    format!("{}: {value}", serde_json::Value::from(name.clone()))
                });
                format!("{{{}}}", members.collect::<Vec<_>>().join(","))
            });
            prop_oneof![list, object]
        });
        (value, 0usize..400, 0u8..4).prop_map(|(mut text, cut, how)| {
            let cut = (0..=cut.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
            match (how, cut) {
                (0, Some(cut)) => text.truncate(cut),
                (1, Some(cut)) => text.insert(cut, '"'),
                _ => {}
            }
            text
        })
    }
}
