//! JSON parser that keeps positions: the judge compares bytes, so it needs the position of each
//! value. As lenient as JSON: accepts numbers too large for any type and lone surrogates.

use std::ops::Range;

/// Value with its position.
#[derive(Debug, Clone)]
pub struct Node {
    pub span: Range<usize>,
    pub kind: Kind,
}

#[derive(Debug, Clone)]
pub enum Kind {
    Null,
    True,
    False,
    Number,
    Text(String),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

impl Node {
    /// Parses a whole text that serde_json accepts too.
    pub fn read(text: &str) -> Result<Self, String> {
        serde_json::from_str::<serde::de::IgnoredAny>(text).map_err(|error| error.to_string())?;
        let mut reader = Reader { text, at: 0, depth: 0 };
        let node = reader.value()?;
        reader.space();
        if reader.at == text.len() { Ok(node) } else { Err(format!("more at {}", reader.at)) }
    }

    pub fn raw<'a>(&self, text: &'a str) -> &'a str {
        &text[self.span.clone()]
    }

    /// Returns the member `name`; `None` if it is absent or null.
    pub fn get(&self, name: &str) -> Option<&Self> {
        self.members()
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value)
            .filter(|value| !matches!(value.kind, Kind::Null))
    }

    pub fn members(&self) -> &[(String, Self)] {
        if let Kind::Map(members) = &self.kind { members } else { &[] }
    }

    pub fn items(&self) -> &[Self] {
        if let Kind::List(items) = &self.kind { items } else { &[] }
    }

    pub fn text(&self) -> Option<&str> {
        if let Kind::Text(text) = &self.kind { Some(text) } else { None }
    }

    /// Returns the text of a member, or an empty text.
    pub fn text_of(&self, name: &str) -> &str {
        self.get(name).and_then(Self::text).unwrap_or_default()
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

/// Maximum depth: each level takes some of the stack.
const DEPTH: usize = 200;

impl Reader<'_> {
    fn peek(&self) -> u8 {
        self.text.as_bytes().get(self.at).copied().unwrap_or(0)
    }

    fn space(&mut self) {
        while matches!(self.peek(), b' ' | b'\n' | b'\r' | b'\t') {
            self.at += 1;
        }
    }

    fn take(&mut self, byte: u8) -> Result<(), String> {
        self.space();
        if self.peek() != byte {
            return Err(format!("no {:?} at {}", char::from(byte), self.at));
        }
        self.at += 1;
        Ok(())
    }

    /// Whether a list or map continues after its opening or an item.
    fn goes_on(&mut self, is_first: bool, end: u8) -> Result<bool, String> {
        self.space();
        if self.peek() == end {
            self.at += 1;
            return Ok(false);
        }
        if !is_first {
            self.take(b',')?;
        }
        Ok(true)
    }

    fn value(&mut self) -> Result<Node, String> {
        self.space();
        self.depth += 1;
        if self.depth > DEPTH {
            return Err(format!("too deep at {}", self.at));
        }
        let start = self.at;
        let kind = match self.peek() {
            b'"' => Kind::Text(self.string()?),
            b'[' => {
                self.at += 1;
                let mut items = Vec::new();
                while self.goes_on(items.is_empty(), b']')? {
                    items.push(self.value()?);
                }
                Kind::List(items)
            }
            b'{' => {
                self.at += 1;
                let mut members = Vec::new();
                while self.goes_on(members.is_empty(), b'}')? {
                    self.space();
                    let key = self.string()?;
                    self.take(b':')?;
                    members.push((key, self.value()?));
                }
                Kind::Map(members)
            }
            _ => {
                while matches!(self.peek(), b'a'..=b'z' | b'0'..=b'9' | b'-' | b'+' | b'.' | b'E') {
                    self.at += 1;
                }
                match &self.text[start..self.at] {
                    "null" => Kind::Null,
                    "true" => Kind::True,
                    "false" => Kind::False,
                    "" => return Err(format!("no value at {start}")),
                    _ => Kind::Number,
                }
            }
        };
        self.depth -= 1;
        Ok(Node { span: start..self.at, kind })
    }

    fn string(&mut self) -> Result<String, String> {
        self.take(b'"')?;
        let mut units = Vec::new();
        loop {
            let rest = &self.text[self.at..];
            let character = rest.chars().next().ok_or("a text without an end")?;
            self.at += character.len_utf8();
            match character {
                '"' => return Ok(String::from_utf16_lossy(&units)),
                '\\' => units.push(self.escape()?),
                other => units.extend(other.encode_utf16(&mut [0; 2]).iter()),
            }
        }
    }

    fn escape(&mut self) -> Result<u16, String> {
        let letter = self.peek();
        self.at += 1;
        Ok(u16::from(match letter {
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'b' => 8,
            b'f' => 12,
            b'u' => {
                let digits = self.text.get(self.at..self.at + 4).ok_or("a short escape")?;
                self.at += 4;
                return u16::from_str_radix(digits, 16).map_err(|error| error.to_string());
            }
            plain => plain,
        }))
    }
}
