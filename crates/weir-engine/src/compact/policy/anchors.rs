//! Anchors: patterns whose matching messages stay, together within their share. Only matches texts;
//! the compaction decides how they stay.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use regex::{RegexSet, RegexSetBuilder};
use serde::{Deserialize, Serialize};

use crate::wire::{Message, Role, json};

/// Maximum number of patterns, and maximum length of one.
pub const MAX_PATTERNS: usize = 64;
pub const MAX_PATTERN_BYTES: usize = 500;
/// Maximum memory of the compiled patterns and of the automata that matching builds from them.
const MAX_COMPILED_BYTES: usize = 1 << 20;
/// Bytes scanned of each text.
const SCANNED_BYTES: usize = 64 << 10;

/// Set of patterns, compiled once. Sets are equal if their patterns are, and are written as these.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct Anchors {
    patterns: Arc<[String]>,
    compiled: Option<Arc<RegexSet>>,
}

impl Anchors {
    /// Compiles `patterns`.
    ///
    /// # Errors
    ///
    /// If there are too many, or one is too long or invalid.
    pub fn new(patterns: Vec<String>) -> Result<Self, String> {
        if patterns.is_empty() {
            return Ok(Self::default());
        }
        if patterns.len() > MAX_PATTERNS {
            return Err(format!("{} patterns are more than {MAX_PATTERNS}", patterns.len()));
        }
        if let Some(long) = patterns.iter().find(|pattern| pattern.len() > MAX_PATTERN_BYTES) {
            let bytes = long.len();
            return Err(format!("a pattern of {bytes} bytes is longer than {MAX_PATTERN_BYTES}"));
        }
        let compiled = RegexSetBuilder::new(&patterns)
            .size_limit(MAX_COMPILED_BYTES)
            .dfa_size_limit(MAX_COMPILED_BYTES)
            .build()
            .map_err(|error| match error {
                regex::Error::CompiledTooBig(bytes) => {
                    format!("the patterns take more than {bytes} bytes when compiled")
                }
                error => error.to_string(),
            })?;
        Ok(Self { patterns: patterns.into(), compiled: Some(Arc::new(compiled)) })
    }

    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// Returns whether a pattern matches the text of `message`. Tool results never match: they are
    /// the bulk that compaction removes, and anyone may have written them.
    pub fn matches(&self, message: &Message<'_>) -> bool {
        let Some(compiled) = &self.compiled else { return false };
        matches!(message.role, Role::User | Role::Assistant)
            && message.texts().into_iter().any(|raw| {
                let text = json::string(raw).unwrap_or_default();
                let end = text.floor_char_boundary(SCANNED_BYTES);
                compiled.is_match(&text[..end])
            })
    }
}

impl TryFrom<Vec<String>> for Anchors {
    type Error = String;

    fn try_from(patterns: Vec<String>) -> Result<Self, String> {
        Self::new(patterns)
    }
}

impl From<Anchors> for Vec<String> {
    fn from(anchors: Anchors) -> Self {
        anchors.patterns.to_vec()
    }
}

impl std::fmt::Debug for Anchors {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.patterns.fmt(formatter)
    }
}

impl PartialEq for Anchors {
    fn eq(&self, other: &Self) -> bool {
        self.patterns == other.patterns
    }
}

impl Eq for Anchors {}

impl Hash for Anchors {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.patterns.hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Protocol;

    #[test]
    fn messages_of_people_and_models_are_matched() {
        let anchors = Anchors::new(vec!["(?i)decision:".into(), "^TODO".into()]).expect("sound");
        for (raw, expected) in [
            (r#"{"role":"user","content":"Decision: \u0062lue"}"#, true),
            (r#"{"role":"assistant","content":[{"type":"text","text":"TODO x"}]}"#, true),
            (r#"{"role":"user","content":"a TODO"}"#, false),
            (r#"{"role":"tool","content":"decision: x"}"#, false),
            (r#"{"role":"assistant","content":null}"#, false),
        ] {
            let message = Protocol::Chat.read_message(raw).expect("readable");
            assert_eq!(anchors.matches(&message), expected, "{raw}");
        }
    }

    #[test]
    fn patterns_are_limited() {
        assert!(Anchors::new(vec!["(".into()]).is_err());
        assert!(Anchors::new(vec!["x{1000}{1000}".into()]).is_err());
        assert!(Anchors::new(vec!["x".into(); MAX_PATTERNS + 1]).is_err());
        assert!(Anchors::new(vec!["x".repeat(MAX_PATTERN_BYTES + 1)]).is_err());
        assert!(Anchors::new(vec!["x".repeat(MAX_PATTERN_BYTES)]).is_ok());
    }
}
