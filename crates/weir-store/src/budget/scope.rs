//! Scopes of budgets: everybody, or one organisation, team, user, key, model, conversation, agent or tag.
//! Names and their text forms only.

use std::borrow::Cow;
use std::fmt;

/// Maximum length of a scope's name, in bytes.
pub const MAX_NAME_BYTES: usize = 200;
/// The name that creates a separate budget for each member of a kind.
pub const EACH: &str = "*";

/// Kind of a scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ScopeKind {
    All,
    Organisation,
    Team,
    User,
    Key,
    Model,
    /// A conversation of one caller, with the subagents that its client counts to it.
    Conversation,
    /// An agent of one caller: a program, or one of its subagents.
    Agent,
    /// What a caller says that it counts requests to.
    Tag,
}

impl ScopeKind {
    /// All kinds, in the order in which a request's scopes are reported.
    pub const ALL: [Self; 9] = [
        Self::All,
        Self::Organisation,
        Self::Team,
        Self::User,
        Self::Key,
        Self::Model,
        Self::Conversation,
        Self::Agent,
        Self::Tag,
    ];

    /// Returns the word used in text forms.
    pub fn word(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Organisation => "organisation",
            Self::Team => "team",
            Self::User => "user",
            Self::Key => "key",
            Self::Model => "model",
            Self::Conversation => "conversation",
            Self::Agent => "agent",
            Self::Tag => "tag",
        }
    }

    /// Whether its members are labels that callers choose. Each belongs to its caller: `key_1/LABEL`.
    pub fn is_label(self) -> bool {
        matches!(self, Self::Conversation | Self::Agent | Self::Tag)
    }
}

/// A scope: one member of a kind, or with [`EACH`] as its name every member separately.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope {
    pub kind: ScopeKind,
    /// Empty for [`ScopeKind::All`].
    pub name: String,
}

impl Scope {
    /// Parses `all`, `team:research`, `key:key_0123456789ab`, or `key:*` for each key separately.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (word, name) = text.trim().split_once(':').unwrap_or((text.trim(), ""));
        let kind = ScopeKind::ALL.into_iter().find(|kind| kind.word() == word);
        let Some(kind) = kind else {
            return Err(format!(
                "{word:?} is not a scope; write all, organisation:NAME, team:NAME, user:NAME, \
                 key:NAME or model:NAME, or * instead of a name for one budget each, also \
                 conversation:*, agent:* and tag:*"
            ));
        };
        let is_named = !name.is_empty();
        if is_named == (kind == ScopeKind::All) {
            return Err(match kind {
                ScopeKind::All => "'all' takes no name".to_owned(),
                _ => format!("{word} needs a name: {word}:NAME, or {word}:* for one budget each"),
            });
        }
        if name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control) {
            return Err(format!(
                "a scope's name has at most {MAX_NAME_BYTES} bytes and no control characters"
            ));
        }
        Ok(Self { kind, name: name.to_owned() })
    }

    /// Returns whether this scope stands for each member of its kind separately.
    pub fn is_each(&self) -> bool {
        self.name == EACH
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            ScopeKind::All => f.write_str(self.kind.word()),
            kind => write!(f, "{}:{}", kind.word(), self.name),
        }
    }
}

/// Scopes of one request, by name; `None` for kinds that it has no scope of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scopes<'a> {
    pub organisation: Option<&'a str>,
    pub team: Option<&'a str>,
    pub user: Option<&'a str>,
    pub key: Option<&'a str>,
    pub model: Option<&'a str>,
    pub conversation: Option<&'a str>,
    pub agent: Option<&'a str>,
    pub tag: Option<&'a str>,
    /// Stands for the key in labels of callers without one.
    pub tenant: [u8; 16],
}

impl<'a> Scopes<'a> {
    /// Returns the request's scope name of a kind; empty for [`ScopeKind::All`].
    pub fn name(&self, kind: ScopeKind) -> Option<Cow<'a, str>> {
        let name = match kind {
            ScopeKind::All => return Some("".into()),
            ScopeKind::Organisation => self.organisation,
            ScopeKind::Team => self.team,
            ScopeKind::User => self.user,
            ScopeKind::Key => self.key,
            ScopeKind::Model => self.model,
            ScopeKind::Conversation => return self.member(self.conversation),
            ScopeKind::Agent => return self.member(self.agent),
            ScopeKind::Tag => return self.member(self.tag),
        };
        name.filter(|name| !name.is_empty()).map(Cow::Borrowed)
    }

    /// Returns the name of a label that belongs to the caller.
    fn member(&self, label: Option<&str>) -> Option<Cow<'a, str>> {
        let label = label.filter(|label| !label.is_empty())?;
        let key = self.key.filter(|key| !key.is_empty()).map(Cow::Borrowed);
        let owner =
            key.unwrap_or_else(|| format!("{:032x}", u128::from_be_bytes(self.tenant)).into());
        Some(format!("{owner}/{label}").into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_are_read_as_they_are_shown() {
        for text in [
            "all",
            "team:research",
            "key:*",
            "model:gpt-4o",
            "user:a:b",
            "organisation:é",
            "conversation:*",
            "agent:key_1/codex",
        ] {
            let scope = Scope::parse(text).expect("a scope");
            assert_eq!(scope.to_string(), text);
            assert_eq!(scope.is_each(), text.ends_with('*'));
        }
    }

    #[test]
    fn an_invalid_scope_is_refused_with_a_hint() {
        for (text, part) in [
            ("", "write all, organisation:NAME"),
            ("everyone", "write all"),
            ("team", "team needs a name: team:NAME"),
            ("key:", "key needs a name"),
            ("all:x", "'all' takes no name"),
            ("team:a\nb", "no control characters"),
        ] {
            let said = Scope::parse(text).expect_err(text);
            assert!(said.contains(part), "{text}: {said}");
        }
        assert!(Scope::parse(&format!("team:{}", "x".repeat(MAX_NAME_BYTES))).is_ok());
        assert!(Scope::parse(&format!("team:{}", "x".repeat(MAX_NAME_BYTES + 1))).is_err());
    }

    #[test]
    fn a_request_is_in_scopes_by_its_names() {
        let scopes = Scopes { team: Some("a"), user: Some(""), ..Scopes::default() };
        let names = ScopeKind::ALL.map(|kind| scopes.name(kind));
        let mut expected = [None; ScopeKind::ALL.len()];
        (expected[0], expected[2]) = (Some(""), Some("a"));
        assert_eq!(
            names.map(|name| name.map(String::from)),
            expected.map(|name| name.map(String::from))
        );
    }

    #[test]
    fn labels_belong_to_their_caller() {
        let scopes = Scopes { conversation: Some("s/1"), agent: Some(""), ..Scopes::default() };
        let of = |scopes: Scopes<'_>| scopes.name(ScopeKind::Conversation).map(String::from);
        let keyed = Scopes { key: Some("key_1"), ..scopes };
        assert_eq!(of(keyed).as_deref(), Some("key_1/s/1"));
        let tenant = Scopes { tenant: [0xab; 16], key: Some(""), ..scopes };
        assert_eq!(of(tenant), Some(format!("{}/s/1", "ab".repeat(16))));
        assert_eq!(scopes.name(ScopeKind::Agent), None);
    }
}
