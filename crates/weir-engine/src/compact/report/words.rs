//! Labels of a report's enums. Decides nothing.

use super::members::Section;
use crate::compact::state::note::Place;

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
