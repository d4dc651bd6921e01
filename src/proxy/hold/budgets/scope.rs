//! Resolves the scope of a budget that is about to be set: to the ID of a key, or to the one name that
//! all spellings of a model count under. A scope that no request can reach is refused.

use weir_store::Store;
use weir_store::budget::{Scope, ScopeKind};
use weir_store::keys::{KeyFacts, VirtualKey};

use crate::config::{Catalogue, Routes};

/// Returns the scope whose requests `scope` means.
///
/// # Errors
///
/// Fails with what to write instead if no request could count in it, or if the store cannot be read.
pub async fn resolve(
    scope: Scope,
    models: &Catalogue,
    routes: &Routes,
    store: &Store,
) -> Result<Scope, String> {
    if scope.is_each() {
        return Ok(scope);
    }
    let Scope { kind, name } = scope;
    let member = |key: &VirtualKey| match kind {
        ScopeKind::Organisation => key.organisation == name,
        ScopeKind::Team => key.team == name,
        ScopeKind::User => key.user == name,
        _ => false,
    };
    let name = match kind {
        ScopeKind::All => name,
        ScopeKind::Model => model(&name, models, routes)?,
        _ if kind.is_label() && name.contains('/') => name,
        ScopeKind::Conversation | ScopeKind::Agent | ScopeKind::Tag => {
            let word = kind.word();
            return Err(format!(
                "a {word} belongs to its caller: write {word}:KEY/{name} with the key's ID, as `weir budgets list` \
                 names it, or {word}:* for one budget each"
            ));
        }
        ScopeKind::Key => key_id(&name, store).await?.ok_or_else(|| unreached(kind, &name))?,
        _ if keys(store, member).await?.is_empty() => return Err(unreached(kind, &name)),
        _ => name,
    };
    Ok(Scope { kind, name })
}

/// Says that no key belongs to a scope.
fn unreached(kind: ScopeKind, name: &str) -> String {
    let word = kind.word();
    let member = if kind == ScopeKind::Key { "ID or name" } else { word };
    format!(
        "no key has the {member} {name:?}, so no request would count. Create the key first (`weir keys \
         create`), or set {word}:* for one budget each"
    )
}

/// Returns the ID of the key with this ID or name; `None` if no key that is not revoked has it.
///
/// # Errors
///
/// Fails if several keys have the name, or if the store cannot be read.
pub async fn key_id(name: &str, store: &Store) -> Result<Option<String>, String> {
    let mut found = keys(store, |key| key.id == name || key.name == name).await?;
    // An ID is meant before a name of the same text.
    match found.iter().position(|id| id == name).unwrap_or(0) {
        _ if found.is_empty() => Ok(None),
        place if found.len() == 1 || found[place] == name => Ok(Some(found.swap_remove(place))),
        _ => Err(format!(
            "several keys are named {name:?}; write the ID of one: {}",
            found.join(", ")
        )),
    }
}

/// Returns the name that the requests of a model count under.
fn model(name: &str, models: &Catalogue, routes: &Routes) -> Result<String, String> {
    if name.contains('*') {
        return Err(format!(
            "model:{name} is a pattern, and a budget is for one model. Write its name, or model:* for \
             one budget each"
        ));
    }
    let row = routes.find(name).and_then(|row| routes.rows.get(row));
    match row.and_then(|row| row.send_as.as_deref()).filter(|sent| *sent != name) {
        Some(sent) => Err(format!(
            "requests for {name} are sent as {sent}, and count as that: write model:{sent}"
        )),
        None => Ok(models.billed_name(name)),
    }
}

/// Returns the IDs of the keys that are `wanted`.
async fn keys(store: &Store, wanted: impl Fn(&VirtualKey) -> bool) -> Result<Vec<String>, String> {
    let (mut found, mut after) = (Vec::new(), String::new());
    loop {
        let page: Vec<KeyFacts> =
            store.list_keys(None, &after).await.map_err(|error| error.to_string())?;
        let Some(last) = page.last() else { return Ok(found) };
        after.clone_from(&last.key.id);
        let own = page.into_iter().map(|facts| facts.key).filter(&wanted);
        found.extend(own.filter(|key| key.revoked_ms.is_none()).map(|key| key.id));
    }
}
