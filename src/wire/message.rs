//! One message, whatever its protocol: role, contents, calls. Borrows from the body's text.

use std::borrow::Cow;

use super::json;

/// Who speaks, as far as the engine must tell them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// `system` or `developer`.
    System,
    User,
    Assistant,
    /// `tool`, or the legacy `function`: the result of a call.
    Tool,
    /// A role weir does not know; kept as it is.
    Other,
}

/// One message of a request.
#[derive(Debug)]
pub struct Message<'a> {
    /// The message's JSON text.
    pub raw: &'a str,
    pub role: Role,
    pub name: Option<Cow<'a, str>>,
    pub content: Content<'a>,
    /// The calls an assistant makes, each by name and arguments.
    pub calls: Vec<Call<'a>>,
    /// JSON text of the id of the call that a result answers.
    pub answers: Option<&'a str>,
    /// Other texts of the message that the model reads (reasoning, a refusal), as JSON strings.
    pub side_texts: Vec<&'a str>,
    /// Members that take tokens that cannot be counted, such as a reference to earlier audio.
    pub opaque_members: u32,
    /// weir's own member `weir`, where the caller set one.
    pub weir: Option<&'a str>,
}

/// A tool call, or the legacy function call.
#[derive(Debug)]
pub struct Call<'a> {
    /// JSON text of the name; empty where there is none.
    pub name: &'a str,
    /// JSON text of the arguments; empty where there are none.
    pub arguments: &'a str,
    /// JSON text of the call's id; empty where there is none.
    pub id: &'a str,
}

/// What a message says.
#[derive(Debug)]
pub enum Content<'a> {
    /// Absent or null.
    None,
    /// One string; the JSON text of it.
    Text(&'a str),
    /// A list of parts.
    Parts(Vec<Part<'a>>),
}

/// A part of a message's content.
#[derive(Debug)]
pub enum Part<'a> {
    /// JSON text of the part's string.
    Text(&'a str),
    Image {
        /// Where the image is: a `data:` or other URL.
        url: Cow<'a, str>,
        detail: Option<Cow<'a, str>>,
    },
    Audio {
        /// Base64.
        data: Cow<'a, str>,
        format: Cow<'a, str>,
    },
    /// A part that gives a member twice, which parsers read differently; its JSON text.
    Ambiguous(&'a str),
    /// Anything else; its JSON text.
    Other(&'a str),
}

impl Message<'_> {
    /// Whether the caller asked that this message stays (`weir: {"pin": true}`).
    pub fn is_pinned(&self) -> bool {
        self.weir
            .and_then(json::members)
            .is_some_and(|members| members.iter().any(|(key, raw)| key == "pin" && *raw == "true"))
    }

    /// The content's texts, as JSON strings, in order; a plain string is one text.
    pub fn texts(&self) -> Vec<&str> {
        match &self.content {
            Content::None => Vec::new(),
            Content::Text(raw) => vec![raw],
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
