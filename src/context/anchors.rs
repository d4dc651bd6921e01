//! Anchors: patterns whose messages stay, together within their share. Matches texts alone; what
//! staying means is the cut's.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use regex::{RegexSet, RegexSetBuilder};

use crate::wire::{Message, Role, json};

/// The most patterns, and the longest one.
pub const MAX_PATTERNS: usize = 64;
pub const MAX_PATTERN_BYTES: usize = 500;
/// What the compiled patterns, and what matching builds from them, may take in memory.
const MAX_COMPILED_BYTES: usize = 1 << 20;
/// As much of each text as is looked at.
const SCANNED_BYTES: usize = 64 << 10;

/// Patterns, compiled once. Equal where the patterns are.
#[derive(Clone, Default)]
pub struct Anchors {
    patterns: Arc<[String]>,
    compiled: Option<Arc<RegexSet>>,
}

impl Anchors {
    /// Compiles `patterns`; says what is wrong with one that cannot be.
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

    /// Whether a pattern matches what `message` says. Of results none is looked for: they are the
    /// bulk that compaction is for, and anyone's words.
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
