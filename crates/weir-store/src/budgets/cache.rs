//! Budget cache: the budgets of each request's scopes, kept until any budget changes. A change by
//! any process applies from the next request on.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::budget::scope::EACH;
use crate::budget::{Budget, Scope, ScopeKind, Scopes};
use crate::{Store, Stored};

/// A budget that applies to a request, with its concrete scope.
#[derive(Debug, Clone)]
pub struct Applied {
    pub budget: Arc<Budget>,
    /// The member that it counts for, if the budget is separate for each.
    pub scope: Scope,
}

/// Cache of all budgets, by scope.
pub struct BudgetCache {
    store: Store,
    cached: RwLock<Option<Arc<Snapshot>>>,
    /// Lets one task at a time read, so that concurrent requests query the store once.
    loading: tokio::sync::Mutex<()>,
}

/// Budgets by the name of their scope.
type ByName = HashMap<String, Vec<Arc<Budget>>>;

/// The budgets at one value of the change counter.
struct Snapshot {
    version: u64,
    by_kind: Vec<(ScopeKind, ByName)>,
}

impl Snapshot {
    fn new(version: u64, budgets: Vec<Budget>) -> Self {
        let mut by_kind: Vec<(ScopeKind, ByName)> = Vec::new();
        for kind in ScopeKind::ALL {
            let of_kind = budgets.iter().filter(|budget| budget.id.scope.kind == kind);
            let mut by_name: ByName = HashMap::new();
            for budget in of_kind {
                let name = budget.id.scope.name.clone();
                by_name.entry(name).or_default().push(Arc::new(budget.clone()));
            }
            if !by_name.is_empty() {
                by_kind.push((kind, by_name));
            }
        }
        Self { version, by_kind }
    }

    fn of(&self, scopes: &Scopes<'_>) -> Vec<Applied> {
        let mut applied = Vec::new();
        for (kind, by_name) in &self.by_kind {
            let Some(name) = scopes.name(*kind) else { continue };
            // A member whose name is `EACH` itself matches once.
            let has_each = !name.is_empty() && name != EACH;
            let name = &*name;
            let each = by_name.get(EACH).filter(|_| has_each);
            let own = by_name.get(name).map_or(&[][..], Vec::as_slice);
            let is_raised = |each: &&Arc<Budget>| own.iter().any(|own| each.gives_way_to(own));
            let each = each.into_iter().flatten().filter(|each| !is_raised(each));
            for budget in own.iter().chain(each) {
                applied.push(Applied { scope: budget.scope_of(name), budget: Arc::clone(budget) });
            }
        }
        applied
    }
}

impl BudgetCache {
    /// Creates a cache of the budgets in `store`.
    pub fn new(store: Store) -> Self {
        store.backend.watch_changes();
        Self { store, cached: RwLock::new(None), loading: tokio::sync::Mutex::default() }
    }

    /// Returns the budgets that apply to a request. They reflect the last change, or the change
    /// counter `as_of` if the caller read it when the request came.
    pub async fn of(&self, scopes: &Scopes<'_>, as_of: Option<u64>) -> Stored<Vec<Applied>> {
        let snapshot = self.cached.read().clone();
        if let Some(snapshot) = snapshot.filter(|snapshot| as_of == Some(snapshot.version)) {
            return Ok(snapshot.of(scopes));
        }
        Ok(self.snapshot().await?.of(scopes))
    }

    /// Whether there is any budget.
    pub async fn has_any(&self) -> Stored<bool> {
        Ok(!self.snapshot().await?.by_kind.is_empty())
    }

    /// Whether a model has a budget of its own, or each has one.
    pub async fn has_models(&self) -> Stored<bool> {
        let snapshot = self.snapshot().await?;
        Ok(snapshot.by_kind.iter().any(|(kind, _)| *kind == ScopeKind::Model))
    }

    async fn snapshot(&self) -> Stored<Arc<Snapshot>> {
        if let Some(snapshot) = self.current() {
            return Ok(snapshot);
        }
        let _alone = self.loading.lock().await;
        if let Some(snapshot) = self.current() {
            return Ok(snapshot);
        }
        let (version, budgets) = self.store.budgets().await?;
        let snapshot = Arc::new(Snapshot::new(version, budgets));
        *self.cached.write() = Some(Arc::clone(&snapshot));
        Ok(snapshot)
    }

    /// Returns the cached budgets, if nothing has changed since.
    fn current(&self) -> Option<Arc<Snapshot>> {
        let snapshot = self.cached.read().clone();
        snapshot.filter(|snapshot| self.store.backend.is_current(snapshot.version))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::BudgetId;

    #[tokio::test]
    async fn a_member_s_own_budget_stands_in_for_that_of_each() {
        let store = Store::in_memory().expect("a store");
        for id in ["user:*/usd/day", "user:*/usd/month", "user:ada/usd/day"] {
            let id = BudgetId::parse(id).expect("a budget");
            store.set_budget(Budget { id, limit: 1, warn_permille: None }, 0).await.expect("set");
        }
        let cache = BudgetCache::new(store);
        for (user, expected) in [
            ("ada", "user:ada/usd/day user:*/usd/month"),
            ("ben", "user:*/usd/day user:*/usd/month"),
        ] {
            let scopes = Scopes { user: Some(user), ..Scopes::default() };
            let applied = cache.of(&scopes, None).await.expect("they are read");
            let ids: Vec<String> = applied.iter().map(|one| one.budget.id.to_string()).collect();
            assert_eq!(ids.join(" "), expected);
        }
    }

    #[tokio::test]
    async fn a_budget_for_a_model_named_as_each_counts_once() {
        let store = Store::in_memory().expect("a store");
        let id = BudgetId::parse("model:*/tokens/day").expect("a budget");
        let budget = Budget { id, limit: 1, warn_permille: None };
        store.set_budget(budget, 0).await.expect("it is set");
        let cache = BudgetCache::new(store);
        for model in ["*", "gpt-4o"] {
            let scopes = Scopes { model: Some(model), ..Scopes::default() };
            let applied = cache.of(&scopes, None).await.expect("they are read");
            let names: Vec<&str> = applied.iter().map(|one| one.scope.name.as_str()).collect();
            assert_eq!(names, [model]);
        }
    }
}
