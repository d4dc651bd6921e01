//! Budget definitions: scope, measure, window and limit, their text forms and their validation.
//! Counts nothing.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::hold::Measure;
use super::money::NanoUsd;
use super::scope::{Scope, ScopeKind};
use super::window::Window;

/// Largest limit in either measure: an integer that every JSON reader represents exactly.
pub const MAX_LIMIT: u64 = 1 << 53;

/// Identity of a budget: at most one exists per scope, measure and window.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BudgetId {
    pub scope: Scope,
    pub measure: Measure,
    pub window: Window,
}

impl BudgetId {
    /// Parses the text form, such as `team:research/usd/month`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parts = text.trim().rsplitn(3, '/');
        let (window, measure, scope) = (parts.next(), parts.next(), parts.next());
        let (Some(window), Some(measure), Some(scope)) = (window, measure, scope) else {
            return Err(format!(
                "{text:?} is not a budget; write SCOPE/MEASURE/WINDOW, such as \
                 team:research/usd/month"
            ));
        };
        let measure = match measure {
            "usd" => Measure::NanoUsd,
            "tokens" => Measure::Tokens,
            other => return Err(format!("{other:?} is not a measure; write usd or tokens")),
        };
        Ok(Self { scope: Scope::parse(scope)?, measure, window: Window::parse(window)? })
    }
}

impl fmt::Display for BudgetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.scope, self.measure.word(), self.window)
    }
}

impl Measure {
    /// Returns the word used in text forms.
    pub fn word(self) -> &'static str {
        match self {
            Self::NanoUsd => "usd",
            Self::Tokens => "tokens",
        }
    }

    /// Formats an amount with its unit.
    pub fn shown(self, amount: u64) -> String {
        match self {
            Self::NanoUsd => format!("{} USD", NanoUsd(amount).to_decimal()),
            Self::Tokens => format!("{amount} tokens"),
        }
    }
}

/// A spending limit for one scope, measure and window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget {
    pub id: BudgetId,
    /// In nano-dollars or tokens.
    pub limit: u64,
    /// Warning threshold in thousandths of the limit; `None` disables the warning.
    pub warn_permille: Option<u16>,
}

/// Stored and reported form of a budget.
#[derive(Serialize, Deserialize)]
struct BudgetJson {
    limit: u64,
    #[serde(default)]
    warn_permille: Option<u16>,
}

impl Budget {
    /// Validates the limit and the warning threshold.
    pub fn check(&self) -> Result<(), String> {
        if self.limit > MAX_LIMIT {
            let most = self.id.measure.shown(MAX_LIMIT);
            return Err(format!("the limit exceeds {most}"));
        }
        if self.warn_permille.is_some_and(|permille| !(1..=1000).contains(&permille)) {
            return Err(
                "the warning threshold must be above 0 and at most 1, the whole limit".to_owned()
            );
        }
        Ok(())
    }

    /// Serializes the fields that are stored next to the id.
    pub fn to_json(&self) -> String {
        let written = BudgetJson { limit: self.limit, warn_permille: self.warn_permille };
        serde_json::to_string(&written).expect("numbers under fixed keys are JSON")
    }

    /// Reads a stored budget; `None` if it is invalid.
    pub fn read(id: &str, json: &str) -> Option<Self> {
        let written: BudgetJson = serde_json::from_str(json).ok()?;
        let budget = Self {
            id: BudgetId::parse(id).ok()?,
            limit: written.limit,
            warn_permille: written.warn_permille,
        };
        budget.check().is_ok().then_some(budget)
    }

    /// Returns the amount from which a warning is given.
    pub fn warn_at(&self) -> Option<u64> {
        let permille = u128::from(self.warn_permille?);
        u64::try_from((u128::from(self.limit) * permille).div_ceil(1000)).ok()
    }

    /// Whether a budget for each member does not apply to the one that `other` is for: that has its own amount
    /// of the same measure and window.
    pub fn gives_way_to(&self, other: &Self) -> bool {
        let (id, other) = (&self.id, &other.id);
        id.scope.is_each()
            && !other.scope.is_each()
            && (id.scope.kind, id.measure, id.window)
                == (other.scope.kind, other.measure, other.window)
    }

    /// Returns the concrete scope for `name`: `team:a` for a budget of `team:*`.
    pub fn scope_of(&self, name: &str) -> Scope {
        let kind = self.id.scope.kind;
        let name = if kind == ScopeKind::All { String::new() } else { name.to_owned() };
        Scope { kind, name }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_read_as_they_are_shown() {
        for text in ["all/usd/day", "team:a/b/tokens/24h", "key:*/usd/total", "model:x/y/usd/month"]
        {
            assert_eq!(BudgetId::parse(text).expect("a budget").to_string(), text);
        }
        for text in ["", "all", "all/usd", "all/eur/day", "nobody/usd/day", "all/usd/year"] {
            assert!(BudgetId::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_stored_comes_back_and_nothing_else_does() {
        let id = BudgetId::parse("team:a/usd/day").expect("a budget");
        let budget = Budget { id, limit: 10_000_000_000, warn_permille: Some(800) };
        assert_eq!(Budget::read("team:a/usd/day", &budget.to_json()), Some(budget.clone()));
        assert_eq!(budget.warn_at(), Some(8_000_000_000));
        assert_eq!(Budget { limit: 3, ..budget }.warn_at(), Some(3), "no earlier than set");
        for (id, json) in [
            ("team:a/usd", r#"{"limit":1}"#),
            ("team:a/usd/day", "{}"),
            ("team:a/usd/day", r#"{"limit":-1}"#),
            ("team:a/usd/day", r#"{"limit":1,"warn_permille":1001}"#),
            ("team:a/usd/day", r#"{"limit":9007199254740993}"#),
        ] {
            assert_eq!(Budget::read(id, json), None, "{id} {json}");
        }
    }
}
