//! One message of any protocol: role, contents, calls. Borrows from the body's text.

use std::borrow::Cow;

use serde::Serialize;

use super::{Protocol, allowance, json};

/// Maximum number of files of a message that are named, and of characters of each name.
const MOST_MEDIA: usize = 16;
const FILE_CHARACTERS: usize = 64;

/// Returns the name of a file, document or video that is a part of a message, in brackets, which open no record.
fn file_of(raw: &str) -> Option<String> {
    let kind = json::member(raw, "type").and_then(json::string)?;
    if !["file", "document", "video"].iter().any(|own| kind.contains(own)) {
        return None;
    }
    let inside = json::member(raw, "file").unwrap_or(raw);
    let name = ["filename", "title", "name"].iter().find_map(|own| json::member(inside, own));
    let name = name.and_then(json::string).unwrap_or(kind);
    let is_plain = |own: &char| own.is_alphanumeric() || " ._-()".contains(*own);
    Some(format!("({})", name.chars().filter(is_plain).take(FILE_CHARACTERS).collect::<String>()))
}

/// Role of a message, as far as the engine distinguishes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// `system` or `developer`.
    System,
    User,
    Assistant,
    /// `tool`, or the legacy `function`: the result of a call.
    Tool,
    /// Role that weir does not know; kept as it is.
    Other,
}

impl Role {
    /// Returns the name in reports and in chat completions.
    pub fn word(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
            Self::Other => "other",
        }
    }
}

/// One message of a request.
#[derive(Debug)]
pub struct Message<'a> {
    /// Protocol that it was read by.
    pub protocol: Protocol,
    /// JSON text of the message.
    pub raw: &'a str,
    pub role: Role,
    pub name: Option<Cow<'a, str>>,
    pub content: Content<'a>,
    /// Calls that an assistant makes, each by name and arguments.
    pub calls: Vec<Call<'a>>,
    /// Calls of built-in tools, which the provider answers.
    pub inner_calls: Vec<Call<'a>>,
    /// JSON texts of the outputs of calls inside the message, such as those of a program of the model.
    pub inner_outputs: Vec<&'a str>,
    /// JSON text of the ID of the call that a result answers.
    pub answers: Option<&'a str>,
    /// Whether a result is marked as an error (`is_error` of Messages), as failed or as not approved.
    pub is_error: bool,
    /// JSON texts of the IDs with which other parts of the message name a block, this or an earlier one.
    pub names: Vec<(Naming, &'a str)>,
    /// Other texts of the message that the model reads (reasoning, a refusal), as JSON strings.
    pub side_texts: Vec<&'a str>,
    /// Number of those, from the front, that are the model's signed thinking.
    pub thinking_texts: usize,
    /// Parts outside the content, such as reasoning or the calls of built-in tools.
    pub others: Vec<Part<'a>>,
    /// Members whose tokens cannot be counted, such as a reference to earlier audio.
    pub opaque_members: u32,
    /// Whether a user's text stands behind a tool's result in one message of Messages. Agents put their
    /// reminders there, so it belongs to the work on the result, and asks nothing.
    pub is_aside: bool,
    /// weir's own member `weir`, if the caller set one.
    pub weir: Option<&'a str>,
}

/// Way in which a part of a message names a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// Is a call with this ID, and waits for a result.
    Call,
    /// Has this ID, and waits for nothing.
    Own,
    /// Is a result of the call with this ID.
    Answer,
    /// Refers to the block with this ID, such as the program that makes a call.
    Mention,
    /// Is a call with this ID by a program, which alone reads its result: that is no part of the prompt.
    Inner,
}

/// Tool call, or legacy function call.
#[derive(Debug, Default)]
pub struct Call<'a> {
    /// JSON text of the name; empty if there is none.
    pub name: &'a str,
    /// JSON text of the arguments; empty if there are none. A string in OpenAI's protocols, an object
    /// in Anthropic's.
    pub arguments: &'a str,
    /// JSON text of the call's ID; empty if there is none.
    pub id: &'a str,
    /// Whether it says itself that it failed, as calls of built-in tools do.
    pub has_failed: bool,
}

impl<'a> Call<'a> {
    /// Returns the arguments as text: a string unescaped, an object as its JSON text.
    pub fn text(&self) -> Cow<'a, str> {
        arguments_text(self.arguments).unwrap_or(Cow::Borrowed(self.arguments))
    }
}

/// Returns the text of a call's arguments: a string unescaped, an object as its JSON text; `None` for
/// others.
pub fn arguments_text(raw: &str) -> Option<Cow<'_, str>> {
    json::string(raw).or(raw.starts_with('{').then_some(Cow::Borrowed(raw)))
}

/// Content of a message.
#[derive(Debug)]
pub enum Content<'a> {
    /// Absent or null.
    None,
    /// JSON text of one string.
    Text(&'a str),
    /// List of parts.
    Parts(Vec<Part<'a>>),
}

/// Part of a message's content.
#[derive(Debug)]
pub enum Part<'a> {
    /// JSON text of the part's string.
    Text(&'a str),
    Image {
        /// Address of the image: a `data:` or other URL.
        url: Cow<'a, str>,
        detail: Option<Cow<'a, str>>,
    },
    Audio {
        /// Base64.
        data: Cow<'a, str>,
        format: Cow<'a, str>,
    },
    /// JSON text of a string that the model reads and that is never shortened, such as its thinking.
    Thinking(&'a str),
    /// JSON text of an encrypted or signed string.
    Sealed(&'a str),
    /// JSON text that counts as it stands: an item of known form, or a part that gives a member twice, which
    /// parsers read differently.
    Ambiguous(&'a str),
    /// JSON text of a list of tools, declared in the conversation.
    Tools(&'a str),
    /// JSON text of any other part.
    Other(&'a str),
}

impl<'a> Content<'a> {
    /// Reads a string, or a list of parts.
    pub(super) fn read(raw: Option<&'a str>, read_part: fn(&'a str) -> Part<'a>) -> Self {
        match raw {
            None => Self::None,
            Some(raw) if raw.starts_with('"') => Self::Text(raw),
            Some(raw) => match json::elements(raw) {
                Some(parts) => Self::Parts(parts.into_iter().map(read_part).collect()),
                // Counted by its text; only the upstream knows its meaning.
                None => Self::Parts(vec![Part::Other(raw)]),
            },
        }
    }
}

impl<'a> Message<'a> {
    /// Returns a message of `role` that has nothing else.
    pub(super) fn empty(protocol: Protocol, raw: &'a str, role: Role) -> Self {
        Self {
            protocol,
            raw,
            role,
            name: None,
            content: Content::None,
            calls: Vec::new(),
            inner_calls: Vec::new(),
            inner_outputs: Vec::new(),
            names: Vec::new(),
            answers: None,
            is_error: false,
            side_texts: Vec::new(),
            thinking_texts: 0,
            others: Vec::new(),
            opaque_members: 0,
            is_aside: false,
            weir: None,
        }
    }

    /// Returns its calls, then those of built-in tools.
    pub fn all_calls(&self) -> impl Iterator<Item = &Call<'a>> {
        self.calls.iter().chain(&self.inner_calls)
    }

    /// Whether all that the model reads of the message is text.
    pub fn is_text(&self) -> bool {
        let content = match &self.content {
            Content::Parts(parts) => parts.as_slice(),
            Content::None | Content::Text(_) => &[],
        };
        let mut parts = content.iter().chain(&self.others);
        let is_text =
            |part: &Part<'_>| matches!(part, Part::Text(_) | Part::Thinking(_) | Part::Tools(_));
        // The signature of thinking that can be read stands for nothing more.
        let count = |of: fn(&Part<'_>) -> bool| self.others.iter().filter(|own| of(own)).count();
        let sealed = count(|own| matches!(own, Part::Sealed(_)));
        let are_signatures = self.protocol == Protocol::Messages
            && sealed <= count(|own| matches!(own, Part::Thinking(_)));
        self.opaque_members == 0
            && parts.all(|own| is_text(own) || (are_signatures && matches!(own, Part::Sealed(_))))
    }

    /// Whether a part of it is a reference to content that stands elsewhere.
    pub fn is_elsewhere(&self) -> bool {
        let Content::Parts(parts) = &self.content else { return false };
        let is_elsewhere =
            |part: &Part<'_>| matches!(part, Part::Other(raw) if allowance::is_elsewhere(raw));
        parts.iter().chain(&self.others).any(is_elsewhere)
    }

    /// Returns the JSON texts that [`Edit::Arguments`](super::Edit::Arguments) replaces, in order: the
    /// arguments of calls, and the outputs inside the message.
    pub fn arguments(&self) -> impl Iterator<Item = &'a str> {
        let calls = self.calls.iter().map(|call| call.arguments);
        calls.chain(self.inner_outputs.iter().copied())
    }

    /// Whether the caller pinned this message (`weir: {"pin": true}`).
    pub fn is_pinned(&self) -> bool {
        self.has_mark("pin")
    }

    /// Whether this is the note of an earlier compaction that a caller sends back
    /// (`weir: {"note": true}`).
    pub fn is_note(&self) -> bool {
        self.has_mark("note")
    }

    fn has_mark(&self, name: &str) -> bool {
        let marks = self.weir.and_then(json::members).unwrap_or_default();
        marks.iter().any(|(key, raw)| key == name && *raw == "true")
    }

    /// Whether it has a block of the provider's own compaction, which replaces all before it: the provider
    /// leaves that out of the prompt.
    ///
    /// Source: Anthropic's guide to compaction.
    pub fn replaces_earlier(&self) -> bool {
        let is_compaction = |raw: &str| {
            let members = json::members(raw).unwrap_or_default();
            members.iter().any(|(key, raw)| key == "type" && *raw == r#""compaction""#)
        };
        let mut others = self.others.iter();
        self.protocol == Protocol::Messages
            && others.any(|part| matches!(part, Part::Other(raw) if is_compaction(raw)))
    }

    /// Names what its content has besides texts, such as `(image) (plan.pdf)`; `None` if that is nothing.
    pub fn media(&self) -> Option<String> {
        let Content::Parts(parts) = &self.content else { return None };
        let named = parts.iter().filter_map(|part| match part {
            Part::Image { .. } => Some("(image)".to_owned()),
            Part::Audio { .. } => Some("(audio)".to_owned()),
            Part::Other(raw) => file_of(raw),
            _ => None,
        });
        let named: Vec<String> = named.take(MOST_MEDIA).collect();
        (!named.is_empty()).then(|| named.join(" "))
    }

    /// Returns the content's texts, as JSON strings, in order; a plain string is one text.
    pub fn texts(&self) -> Vec<&'a str> {
        match &self.content {
            Content::None => Vec::new(),
            Content::Text(raw) => vec![*raw],
            Content::Parts(parts) => parts
                .iter()
                .filter_map(|part| match part {
                    Part::Text(raw) => Some(*raw),
                    _ => None,
                })
                .collect(),
        }
    }
}
