//! Which budgets a request is in, remembered for as long as no budget changes. A change by any process
//! counts from the next request on.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use super::super::keys::changes::Changes;
use super::super::{Store, StoreError};
use crate::budget::scope::EACH;
use crate::budget::{Budget, Scope, ScopeKind, Scopes};

/// A budget that a request is in, and whose.
#[derive(Debug, Clone)]
pub struct Applied {
    pub budget: Arc<Budget>,
    /// The one that it counts for, where the budget is one for each by itself.
    pub scope: Scope,
}

/// All budgets, by scope.
pub struct Book {
    store: Store,
    changes: Changes,
    read: RwLock<Option<Arc<Page>>>,
    /// One at a time reads, so that a crowd asks the store once.
    reading: tokio::sync::Mutex<()>,
}

/// Budgets by the name of their scope.
type ByName = HashMap<String, Vec<Arc<Budget>>>;

/// The budgets as they were when there had been so many changes.
struct Page {
    version: u64,
    by_kind: Vec<(ScopeKind, ByName)>,
}

impl Page {
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
            // One that is called so itself is in it once.
            let has_each = !name.is_empty() && name != EACH;
            let each = by_name.get(EACH).filter(|_| has_each);
            for budget in by_name.get(name).into_iter().chain(each).flatten() {
                applied.push(Applied { scope: budget.scope_of(name), budget: Arc::clone(budget) });
            }
        }
        applied
    }
}

impl Book {
    /// The budgets in `store`.
    pub fn new(store: Store) -> Self {
        Self {
            changes: Changes::new(store.clone()),
            store,
            read: RwLock::new(None),
            reading: tokio::sync::Mutex::default(),
        }
    }

    /// The budgets that a request is in, by the last change or, where it is known how many there had been
    /// when the request came, by that one.
    pub async fn of(
        &self,
        scopes: &Scopes<'_>,
        as_of: Option<u64>,
    ) -> Result<Vec<Applied>, StoreError> {
        let page = self.read.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(page) = page.filter(|page| as_of == Some(page.version)) {
            return Ok(page.of(scopes));
        }
        if let Some(page) = self.last() {
            return Ok(page.of(scopes));
        }
        let _alone = self.reading.lock().await;
        if let Some(page) = self.last() {
            return Ok(page.of(scopes));
        }
        let (version, budgets) = self.store.budgets().await?;
        let page = Arc::new(Page::new(version, budgets));
        *self.read.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&page));
        Ok(page.of(scopes))
    }

    /// All budgets in the order of their ids, each for the scope that it names.
    pub async fn all(&self) -> Result<Vec<Applied>, StoreError> {
        let (_, budgets) = self.store.budgets().await?;
        let applied = budgets.into_iter().map(|budget| {
            let scope = budget.id.scope.clone();
            Applied { budget: Arc::new(budget), scope }
        });
        Ok(applied.collect())
    }

    /// The budgets as they were read, if nothing has changed since.
    fn last(&self) -> Option<Arc<Page>> {
        let page = self.read.read().unwrap_or_else(PoisonError::into_inner).clone();
        page.filter(|page| self.changes.is_last(page.version))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::BudgetId;

    #[tokio::test]
    async fn one_that_is_called_as_each_is_counts_once() {
        let store = Store::in_memory().expect("a store");
        let id = BudgetId::parse("model:*/tokens/day").expect("a budget");
        let budget = Budget { id, limit: 1, warn_permille: None };
        store.set_budget(budget, 0).await.expect("it is set");
        let book = Book::new(store);
        for model in ["*", "gpt-4o"] {
            let scopes = Scopes { model: Some(model), ..Scopes::default() };
            let applied = book.of(&scopes, None).await.expect("they are read");
            let names: Vec<&str> = applied.iter().map(|one| one.scope.name.as_str()).collect();
            assert_eq!(names, [model]);
        }
    }
}
