//! Protocols and their names.

/// Protocols whose request bodies weir reads. Each has one module next to this file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// OpenAI's chat completions.
    #[default]
    Chat,
    /// OpenAI's Responses.
    Responses,
    /// Anthropic's Messages.
    Messages,
}

impl Protocol {
    /// Names of the protocols on the command line.
    pub const NAMES: [(&'static str, Self); 3] =
        [("chat", Self::Chat), ("responses", Self::Responses), ("messages", Self::Messages)];

    /// Returns the protocol called `name`, if there is one.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(own, _)| *own == name).map(|(_, protocol)| *protocol)
    }

    /// Returns the name of the protocol.
    pub fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Responses => "responses",
            Self::Messages => "messages",
        }
    }
}
