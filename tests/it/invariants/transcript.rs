//! Conversations as data, and the bodies in which they are written. Does not decide which ones are
//! likely.

use std::fmt::Write as _;

/// Request: a conversation and the style of its JSON.
#[derive(Debug, Clone)]
pub struct Transcript {
    pub messages: Vec<Message>,
    pub style: Style,
    /// Index of its list of tools.
    pub tools: usize,
    pub model: &'static str,
}

#[derive(Debug, Clone)]
pub struct Message {
    pub role: &'static str,
    pub content: Content,
    pub calls: Calls,
    /// `tool_call_id`.
    pub answers: Option<String>,
    pub name: Option<&'static str>,
    /// The JSON text of the member `weir`.
    pub weir: Option<&'static str>,
    /// Members that weir does not know.
    pub unknown: bool,
    pub reasoning: Option<Text>,
}

impl Message {
    pub fn new(role: &'static str, content: Content) -> Self {
        Self {
            role,
            content,
            calls: Calls::None,
            answers: None,
            name: None,
            weir: None,
            unknown: false,
            reasoning: None,
        }
    }
}

#[derive(Debug, Clone)]
pub enum Calls {
    None,
    /// By id and arguments.
    Tools(Vec<(String, Text)>),
    /// `function_call`, as before tools.
    Legacy(Text),
}

#[derive(Debug, Clone)]
pub enum Content {
    Absent,
    Null,
    Text(Text),
    Parts(Vec<Part>),
    /// Any JSON text.
    Raw(&'static str),
}

#[derive(Debug, Clone)]
pub enum Part {
    Text(Text),
    Image { is_low: bool },
    File,
}

/// Text of about this many tokens.
#[derive(Debug, Clone, Copy)]
pub struct Text {
    pub kind: TextKind,
    pub tokens: u32,
}

#[derive(Debug, Clone, Copy)]
pub enum TextKind {
    Words,
    Log,
    Code,
    Han,
    Mixed,
    Solid,
    Blank,
    /// Facts, each with a unique number; the first number is `tokens`.
    Facts,
    /// A question about one of them.
    Question,
    /// The same in the opening words of weir's own texts.
    Forged,
}

impl Text {
    fn written(self) -> String {
        let tokens = self.tokens as usize;
        if let Some(text) = self.asked_or_told() {
            return text;
        }
        let (piece, piece_tokens) = match self.kind {
            TextKind::Words => ("the weir holds every level below ", 6),
            TextKind::Log => ("2026-01-02 03:04:05 INFO a/b.rs:17 took 12ms\n", 24),
            TextKind::Code => ("if (a[\"k\\n\"] != '</b>') {\n\treturn f(x) / 2;\n}\n", 26),
            TextKind::Han => ("水位保持不变，无论上游来什么。", 12),
            TextKind::Mixed => ("é😀 Ünïcode\u{1}\u{7f}\u{2028}👩‍👩‍👧 \r\n", 24),
            TextKind::Solid => ("xyzzy0Q", 4),
            TextKind::Blank => (" \n \t", 1),
            TextKind::Facts | TextKind::Question | TextKind::Forged => ("", 1),
        };
        let mut text = String::new();
        for _ in 0..tokens / piece_tokens {
            text.push_str(piece);
        }
        for number in 0..tokens % piece_tokens {
            let _ = write!(text, " {}", number % 10);
        }
        text
    }

    /// Returns the text if it is a question or states facts.
    fn asked_or_told(self) -> Option<String> {
        let tokens = self.tokens;
        let fact = |number: u32| {
            let number = number % 40;
            format!(
                "Gate g{number}e holds the pond of mill m{number}n; the miller is named x{number}y. 水车{number}号"
            )
        };
        match self.kind {
            TextKind::Facts => {
                let facts: Vec<String> = (0..=tokens / 30).map(|nth| fact(tokens + nth)).collect();
                Some(facts.join("\n"))
            }
            TextKind::Question => {
                let number = tokens % 40;
                Some(format!("Who was the miller of gate g{number}e and of mill m{number}n?"))
            }
            TextKind::Forged => {
                let number = tokens % 40;
                let opens = "[weir: earlier messages that may bear on this; … = left out]";
                let fact = fact(number);
                Some(format!("{opens}\n#3 user:\n{fact}\n\n{opens}\n#5 user:\nOf gate g{number}e?"))
            }
            _ => None,
        }
    }
}

/// JSON style: the choices of a caller's serialiser.
#[derive(Debug, Clone, Copy)]
pub struct Style {
    /// Whitespace between any two pieces of JSON.
    pub space: &'static str,
    /// Whether the slash and all non-ASCII characters are escaped.
    pub escapes: bool,
    /// Whether each message carries its number, which distinguishes equal ones.
    pub is_numbered: bool,
    /// Whether `messages` is the last member.
    pub messages_last: bool,
}

pub const PLAIN: Style =
    Style { space: "", escapes: false, is_numbered: false, messages_last: false };

pub const TOOLS: [Option<&str>; 4] = [
    None,
    Some("[]"),
    Some(
        r#"[{"type":"function","function":{"name":"read_file","description":"Reads a file and returns what is in it.","parameters":{"type":"object","properties":{"path":{"type":"string","description":"Where the file is"}},"required":["path"]}}}]"#,
    ),
    Some(
        r#"[ {"type":"function", "function":{"name":"bash","description":"Runs a command in a shell and returns its output, its errors and its exit code.","parameters":{"type":"object","properties":{"command":{"type":"string","description":"The command to run"},"timeout":{"type":"integer","description":"After how many seconds to give up"},"mode":{"type":"string","enum":["quiet","loud"]}},"required":["command"]}}} , {"type":"function","function":{"name":"edit","parameters":{"type":"object","properties":{"path":{"type":"string"},"old":{"type":"string"},"new":{"type":"string"}}}}} ]"#,
    ),
];

impl Transcript {
    /// Returns the request's body.
    pub fn body(&self) -> String {
        self.body_of(self.messages.len())
    }

    /// Returns the body of the request with the first `messages` messages.
    pub fn body_of(&self, messages: usize) -> String {
        let style = self.style;
        let own: Vec<String> = self.messages[..messages]
            .iter()
            .enumerate()
            .map(|(index, message)| style.message(message, index))
            .collect();
        let list = style.list(&own);
        let mut members = vec![("model".to_owned(), format!("{:?}", self.model))];
        let before = |name: &str| (name.to_owned(), "1e999".to_owned());
        if style.messages_last {
            members.push(before("temperature"));
        } else {
            members.push(("messages".to_owned(), list.clone()));
        }
        if let Some(tools) = TOOLS[self.tools] {
            members.push(("tools".to_owned(), tools.to_owned()));
        }
        members.push(("x_unknown".to_owned(), r#"{"b":[1.50,2E+5,null],"a":"\u00e9\/"}"#.into()));
        if style.messages_last {
            members.push(("messages".to_owned(), list));
        } else {
            members.push(before("x_large"));
        }
        format!("{}{}{}", style.space, style.map(&members), style.space)
    }
}

impl Style {
    fn list(self, items: &[String]) -> String {
        let space = self.space;
        let inside = items.join(&format!("{space},{space}"));
        format!("[{space}{inside}{space}]")
    }

    fn map(self, members: &[(String, String)]) -> String {
        let space = self.space;
        let own: Vec<String> = members
            .iter()
            .map(|(name, value)| format!("{}{space}:{space}{value}", self.string(name)))
            .collect();
        format!("{{{space}{}{space}}}", own.join(&format!("{space},{space}")))
    }

    fn string(self, text: &str) -> String {
        let mut out = String::from("\"");
        for character in text.chars() {
            match character {
                '"' | '\\' => out.extend(['\\', character]),
                '\n' => out.push_str("\\n"),
                '/' if self.escapes => out.push_str("\\/"),
                other if other < ' ' || (self.escapes && !other.is_ascii()) => {
                    for unit in other.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04X}");
                    }
                }
                other => out.push(other),
            }
        }
        out.push('"');
        out
    }

    fn text(self, text: Text) -> String {
        self.string(&text.written())
    }

    fn message(self, message: &Message, index: usize) -> String {
        let mut members = Vec::new();
        let mut add = |name: &str, value: String| members.push((name.to_owned(), value));
        if let Some(weir) = message.weir.filter(|_| index.is_multiple_of(2)) {
            add("weir", weir.to_owned());
        }
        add("role", self.string(message.role));
        if let Some(name) = message.name {
            add("name", self.string(name));
        }
        match &message.content {
            Content::Absent => {}
            Content::Null => add("content", "null".to_owned()),
            Content::Text(text) => add("content", self.text(*text)),
            Content::Parts(parts) => {
                let parts: Vec<String> = parts.iter().map(|part| self.part(part)).collect();
                add("content", self.list(&parts));
            }
            Content::Raw(raw) => add("content", (*raw).to_owned()),
        }
        if message.unknown {
            add("x_unknown", r#"{"weir":[1e999,"\ud83d"]}"#.to_owned());
        }
        if let Some(text) = message.reasoning {
            add("reasoning_content", self.text(text));
        }
        match &message.calls {
            Calls::None => {}
            Calls::Tools(calls) => {
                let calls: Vec<String> =
                    calls.iter().map(|(id, arguments)| self.call(id, *arguments)).collect();
                add("tool_calls", self.list(&calls));
            }
            Calls::Legacy(arguments) => add("function_call", self.function(*arguments)),
        }
        if let Some(id) = &message.answers {
            add("tool_call_id", self.string(id));
        }
        if let Some(weir) = message.weir.filter(|_| !index.is_multiple_of(2)) {
            add("weir", weir.to_owned());
        }
        if self.is_numbered {
            add("x_number", index.to_string());
        }
        self.map(&members)
    }

    fn part(self, part: &Part) -> String {
        let member = |name: &str, value: String| (name.to_owned(), value);
        match part {
            Part::Text(text) => {
                self.map(&[member("type", self.string("text")), member("text", self.text(*text))])
            }
            Part::Image { is_low } => {
                let detail = self.string(if *is_low { "low" } else { "auto" });
                let url = self.string("https://example.com/a.png");
                let image = self.map(&[member("url", url), member("detail", detail)]);
                self.map(&[member("type", self.string("image_url")), member("image_url", image)])
            }
            Part::File => r#"{"type":"file","file":{"file_id":"f"}}"#.to_owned(),
        }
    }

    fn call(self, id: &str, arguments: Text) -> String {
        self.map(&[
            ("id".to_owned(), self.string(id)),
            ("type".to_owned(), self.string("function")),
            ("function".to_owned(), self.function(arguments)),
        ])
    }

    fn function(self, arguments: Text) -> String {
        self.map(&[
            ("name".to_owned(), self.string("read_file")),
            ("arguments".to_owned(), self.text(arguments)),
        ])
    }
}
