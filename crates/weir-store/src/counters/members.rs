//! State of budgets with that of their members: of a budget for each key, the keys nearest to their limit.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use super::{BudgetStatus, Counters};
use crate::budget::{Budget, Measure, Scopes};
use crate::budgets::Applied;
use crate::ledger::{Column, DAY_MS, FAILED, OTHER, UsageQuery, UsageRow};
use crate::{Store, Stored};

/// Maximum members of a budget whose state is read: those that spent most since its window began.
pub const MAX_MEMBERS: usize = 100;

/// State of a budget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    pub status: BudgetStatus,
    /// Of a budget for each member: those that have spent, the nearest to their limit first.
    pub members: Vec<BudgetStatus>,
}

impl Listed {
    /// Formats it as JSON: that of [`BudgetStatus::json`], with a list `members` for a budget of each.
    pub fn json(&self) -> Value {
        let mut row = self.status.json();
        if self.status.scope.is_each() {
            row["members"] = self.members.iter().map(BudgetStatus::json).collect();
        }
        row
    }

    /// Returns the state of the budget and of its members.
    pub fn all(self) -> impl Iterator<Item = BudgetStatus> {
        std::iter::once(self.status).chain(self.members)
    }
}

impl Counters {
    /// Returns the state of `budgets` at `now_ms`, with that of their members.
    pub async fn listed(
        &self,
        store: &Store,
        budgets: Vec<Budget>,
        now_ms: u64,
    ) -> Stored<Vec<Listed>> {
        let own = budgets.iter().map(|budget| {
            let scope = budget.id.scope.clone();
            Applied { budget: Arc::new(budget.clone()), scope }
        });
        let statuses = self.statuses(own.collect(), now_ms).await?;
        let mut listed = Vec::with_capacity(statuses.len());
        for status in statuses {
            let mut members = Vec::new();
            if status.scope.is_each() {
                let applied = self.members(store, &status.budget, &budgets, now_ms).await?;
                members = self.statuses(applied, now_ms).await?;
                members.sort_by_key(|member| (Reverse(member.used()), member.scope.clone()));
            }
            listed.push(Listed { status, members });
        }
        Ok(listed)
    }

    /// Returns the members of a budget for each that have spent since its window began, but for those with a
    /// budget of their own in its place.
    async fn members(
        &self,
        store: &Store,
        budget: &Arc<Budget>,
        budgets: &[Budget],
        now_ms: u64,
    ) -> Stored<Vec<Applied>> {
        let kind = budget.id.scope.kind;
        let Some(column) = Column::named(kind.word()) else { return Ok(Vec::new()) };
        let from_ms = budget.id.window.span(self.zone(), now_ms).first_ms;
        let query = UsageQuery {
            by: match kind.is_label() {
                true => vec![Column::Tenant, Column::Key, column],
                false => vec![column],
            },
            from_day: Some(from_ms / DAY_MS),
            ..UsageQuery::default()
        };
        let mut rows = store.usage(query).await?;
        let spent = |row: &UsageRow| match budget.id.measure {
            Measure::NanoUsd => row.totals.cost_nano_usd,
            Measure::Tokens => {
                row.totals.prompt_tokens.saturating_add(row.totals.completion_tokens)
            }
        };
        rows.sort_by_key(|row| Reverse(spent(row)));
        let names = rows.iter().filter_map(|row| {
            let scopes = Scopes {
                organisation: row.name(Column::Organisation),
                team: row.name(Column::Team),
                user: row.name(Column::User),
                key: row.name(Column::Key),
                model: row.name(Column::Model),
                conversation: row.name(Column::Conversation),
                agent: row.name(Column::Agent),
                tag: row.name(Column::Tag),
                tenant: row.tenant.map_or([0; 16], |tenant| tenant.0),
            };
            scopes.name(kind)
        });
        let is_member = |name: &Cow<'_, str>| name != FAILED && name != OTHER;
        let applied = names.filter(is_member).map(|name| budget.scope_of(&name));
        let is_own = |scope: &crate::budget::Scope| {
            budgets.iter().any(|own| budget.gives_way_to(own) && own.id.scope == *scope)
        };
        // A label of one key may have rows of several tenants.
        let mut seen = BTreeSet::new();
        let is_new = |scope: &crate::budget::Scope| seen.insert(scope.clone());
        let applied = applied.filter(|scope| !is_own(scope)).filter(is_new).take(MAX_MEMBERS);
        Ok(applied.map(|scope| Applied { budget: Arc::clone(budget), scope }).collect())
    }
}

impl BudgetStatus {
    /// Share of its limit that is spent or held, in millionths.
    fn used(&self) -> u128 {
        let used = u128::from(self.count.spent) + u128::from(self.count.held);
        used * 1_000_000 / u128::from(self.budget.limit.max(1))
    }
}
