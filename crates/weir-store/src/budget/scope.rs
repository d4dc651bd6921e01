//! Scopes of budgets: everybody, or one organisation, team, user, key or model. Names and their
//! text forms only.

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
}

impl ScopeKind {
    /// All kinds, in the order in which a request's scopes are reported.
    pub const ALL: [Self; 6] =
        [Self::All, Self::Organisation, Self::Team, Self::User, Self::Key, Self::Model];

    /// Returns the word used in text forms.
    pub fn word(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Organisation => "organisation",
            Self::Team => "team",
            Self::User => "user",
            Self::Key => "key",
            Self::Model => "model",
        }
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
                 key:NAME or model:NAME, or * instead of a name for one budget each"
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
}

impl<'a> Scopes<'a> {
    /// Returns the request's scope name of a kind; empty for [`ScopeKind::All`].
    pub fn name(&self, kind: ScopeKind) -> Option<&'a str> {
        let name = match kind {
            ScopeKind::All => return Some(""),
            ScopeKind::Organisation => self.organisation,
            ScopeKind::Team => self.team,
            ScopeKind::User => self.user,
            ScopeKind::Key => self.key,
            ScopeKind::Model => self.model,
        };
        name.filter(|name| !name.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_are_read_as_they_are_shown() {
        for text in ["all", "team:research", "key:*", "model:gpt-4o", "user:a:b", "organisation:é"]
        {
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
        assert_eq!(names, [Some(""), None, Some("a"), None, None, None]);
    }
}
