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
        ScopeKind::Key => key.id == name || key.name == name,
        ScopeKind::All | ScopeKind::Model => false,
    };
    let name = match kind {
        ScopeKind::All => name,
        ScopeKind::Model => model(&name, models, routes)?,
        _ => {
            let mut found = keys(store, member).await?;
            // An ID is meant before a name of the same text.
            if found.iter().any(|id| kind == ScopeKind::Key && *id == name) {
                found = vec![name.clone()];
            }
            match (kind, &found[..]) {
                (ScopeKind::Key, [id]) => id.clone(),
                (ScopeKind::Key, [_, _, ..]) => {
                    return Err(format!(
                        "several keys are named {name:?}; write the ID of one: {}",
                        found.join(", ")
                    ));
                }
                (_, []) => {
                    let word = kind.word();
                    let member = if kind == ScopeKind::Key { "ID or name" } else { word };
                    return Err(format!(
                        "no key has the {member} {name:?}, so no request would count. Create the key \
                         first (`weir keys create`), or set {word}:* for one budget each"
                    ));
                }
                _ => name,
            }
        }
    };
    Ok(Scope { kind, name })
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
