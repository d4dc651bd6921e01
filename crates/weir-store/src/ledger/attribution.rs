//! Origin of a request, as its client states it. Labels for reports: no right or limit depends on
//! them, and each belongs to its tenant.

/// Origin of a request, as its client states it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attribution {
    /// ID of the conversation.
    pub conversation: Option<String>,
    /// ID of the agent, or the name of its program.
    pub agent: Option<String>,
    /// ID of the agent that started this one.
    pub parent: Option<String>,
    /// Class of the request: `main`, `subagent`, `compaction` or `auxiliary`.
    pub class: Option<String>,
    /// What the caller counts the request to, such as a feature or a customer.
    pub tag: Option<String>,
}

impl Attribution {
    /// Returns the labels but the tag, in the order of their columns.
    pub fn labels(&self) -> [Option<&str>; 4] {
        [&self.conversation, &self.agent, &self.parent, &self.class].map(Option::as_deref)
    }

    /// Creates it from labels in the order of their columns, and a tag.
    pub(crate) fn from_labels(labels: [Option<String>; 4], tag: Option<String>) -> Self {
        let [conversation, agent, parent, class] = labels;
        Self { conversation, agent, parent, class, tag }
    }
}
