//! Labels of a report's enums. Decides nothing.

use super::members::{FateName, RoleName, Section};
use crate::compact::state::messages::Fate;
use crate::compact::state::note::Place;
use crate::wire::Role;

impl Section {
    /// Returns the label used in tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::System => "system",
            Self::Anchors => "anchors",
            Self::Conversation => "conversation",
            Self::ToolResults => "tool results",
            Self::Notes => "notes",
        }
    }
}

impl RoleName {
    /// Returns the label used in tables.
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

impl From<Role> for RoleName {
    fn from(role: Role) -> Self {
        match role {
            Role::System => Self::System,
            Role::User => Self::User,
            Role::Assistant => Self::Assistant,
            Role::Tool => Self::Tool,
            Role::Other => Self::Other,
        }
    }
}

impl From<Fate> for FateName {
    fn from(fate: Fate) -> Self {
        match fate {
            Fate::Kept => Self::Kept,
            Fate::Masked => Self::Masked,
            Fate::Clipped => Self::Clipped,
            Fate::Gone => Self::Gone,
        }
    }
}

impl FateName {
    /// Returns the label used in tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Masked => "masked",
            Self::Clipped => "clipped",
            Self::Gone => "gone",
        }
    }
}

impl Place {
    /// Returns the label used in reports.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Before => "before what it says",
            Self::After => "after what it says",
            Self::Own => "a message after it",
            Self::OwnBefore => "a message before it",
        }
    }
}
