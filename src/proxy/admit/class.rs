//! Class of a request within an agent's work, from the client's headers. A claim of the caller: it
//! grants no right and lifts no limit. An agent's own compaction passes the policy's marks, up to the
//! limit, and a side request asks for no summary. Bodies are recognised elsewhere.

use http::HeaderMap;

use crate::config::words::{Worded, worded};
use weir_engine::wire::json;

worded! {
    /// Class of a request within an agent's work.
    RequestClass {
        /// A turn of the conversation with the user.
        Main = "main",
        /// A turn of an agent that another agent started.
        Subagent = "subagent",
        /// A request with which the client compacts its own conversation.
        Compaction = "compaction",
        /// A side request, such as one for a title.
        Auxiliary = "auxiliary",
    }
}

/// Headers that only the requests of agents have that another agent started.
const SUBAGENT: [&str; 3] =
    ["x-claude-code-agent-id", "x-codex-parent-thread-id", "x-parent-session-id"];
/// Maximum size of a header that is read as JSON.
const MAX_JSON_BYTES: usize = 16 << 10;

impl RequestClass {
    /// Returns the class with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        let is_named = |(word, _): &&(&str, Self)| word.eq_ignore_ascii_case(name.trim());
        Self::WORDS.iter().find(is_named).map(|(_, class)| *class)
    }

    /// Returns the class that the client's headers state; `None` if they state none.
    ///
    /// Claude Code sends `x-claude-code-request-class` if its gateway hints are enabled, and the ID
    /// of a subagent always (<https://code.claude.com/docs/en/llm-gateway-protocol>). codex states
    /// the kind of a request in `x-codex-turn-metadata`, and that of a subagent in
    /// `x-openai-subagent` (`codex-rs/core/src/responses_metadata.rs` in `openai/codex`).
    pub fn from_headers(headers: &HeaderMap) -> Option<Self> {
        Self::from_labels(&LabelHeaders::of(headers))
    }

    /// Returns the class that these headers state; `None` if they state none.
    pub(super) fn from_labels(labels: &LabelHeaders<'_>) -> Option<Self> {
        let text = |name: &str| labels.get(name).map(str::trim);
        let has = |name: &str| text(name).is_some_and(|value| !value.is_empty());
        if let Some(class) = text("x-claude-code-request-class") {
            return Self::from_name(class).or((class == "workflow").then_some(Self::Subagent));
        }
        let subagent = text("x-openai-subagent").unwrap_or_default();
        let kind = text(TURN_METADATA).and_then(|raw| metadata(raw, "request_kind"));
        match (kind.as_deref(), subagent) {
            (Some("compaction"), _) | (_, "compact") => Some(Self::Compaction),
            (Some("prewarm" | "memory"), _) | (_, "memory_consolidation") => Some(Self::Auxiliary),
            (_, name) if !name.is_empty() => Some(Self::Subagent),
            _ if SUBAGENT.into_iter().any(has) => Some(Self::Subagent),
            (Some("turn"), _) => Some(Self::Main),
            _ => None,
        }
    }
}

/// Headers of a request that may label it, as texts. Most requests have none, and some thirty names are looked up.
pub(super) struct LabelHeaders<'h>(Vec<(&'h str, &'h str)>);

impl<'h> LabelHeaders<'h> {
    /// Collects them in one pass.
    pub(super) fn of(headers: &'h HeaderMap) -> Self {
        let may_label = |name: &str| match name.strip_prefix("x-") {
            Some(own) => !own.starts_with("stainless-"),
            None => ["session", "thread", "conversation"].iter().any(|own| name.starts_with(own)),
        };
        let own = headers.iter().filter(|(name, _)| may_label(name.as_str()));
        Self(own.filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?))).collect())
    }

    /// Returns the first value of a header.
    pub(super) fn get(&self, name: &str) -> Option<&'h str> {
        self.0.iter().find(|(own, _)| *own == name).map(|(_, value)| *value)
    }
}

/// Header in which codex describes a request, as a JSON object.
pub const TURN_METADATA: &str = "x-codex-turn-metadata";

/// Returns a text member of a JSON object in a header.
pub fn metadata(raw: &str, name: &str) -> Option<String> {
    (raw.len() <= MAX_JSON_BYTES).then(|| json::text_member(raw.as_bytes(), name)).flatten()
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    #[test]
    fn headers_state_a_class_or_none() {
        use RequestClass::{Auxiliary, Compaction, Main, Subagent};
        type Headers<'a> = &'a [(&'a str, &'a str)];
        let rows: [(Headers<'_>, Option<RequestClass>); 14] = [
            (&[], None),
            (&[("x-claude-code-request-class", "main")], Some(Main)),
            (&[("x-claude-code-request-class", "auxiliary")], Some(Auxiliary)),
            (&[("x-claude-code-request-class", "workflow")], Some(Subagent)),
            (&[("x-claude-code-request-class", "of its own")], None),
            (
                &[("x-claude-code-request-class", "compaction"), ("x-claude-code-agent-id", "a")],
                Some(Compaction),
            ),
            (&[("x-claude-code-agent-id", "a1")], Some(Subagent)),
            (&[("x-claude-code-agent-id", " ")], None),
            (&[("x-openai-subagent", "review")], Some(Subagent)),
            (&[("x-openai-subagent", "compact")], Some(Compaction)),
            (&[(TURN_METADATA, r#"{"request_kind":"turn"}"#)], Some(Main)),
            (
                &[(TURN_METADATA, r#"{"request_kind":"compaction"}"#), ("x-openai-subagent", "x")],
                Some(Compaction),
            ),
            (
                &[(TURN_METADATA, r#"{"request_kind":"turn"}"#), ("x-codex-parent-thread-id", "t")],
                Some(Subagent),
            ),
            (&[(TURN_METADATA, "{")], None),
        ];
        for (given, expected) in rows {
            let headers = given.iter().map(|(name, value)| {
                (HeaderName::from_static(name), HeaderValue::from_static(value))
            });
            assert_eq!(RequestClass::from_headers(&headers.collect()), expected, "{given:?}");
        }
    }
}
