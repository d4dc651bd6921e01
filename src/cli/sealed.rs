//! Compaction items of weir's in the files that `weir explain` and `weir replay` read: opened with the
//! secret of the store's weirs and the API key that they were made for. Those of others stay sealed.

use std::borrow::Cow;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{provider_key, store_path};
use crate::config::{AuthMode, Config};
use crate::proxy::Tenant;
use crate::proxy::compaction::open;
use crate::proxy::compaction::seal::Sealer;
use crate::proxy::instance_secret;
use crate::server::tenants_of;
use weir_store::keys::KeyCache;

/// Opens the items of files.
pub(super) struct Opener {
    /// Sealer, and the tenants that the items may have been made for; `None` without an API key.
    known: Option<(Sealer, Vec<Tenant>)>,
    /// Number of requests with items that stayed sealed.
    sealed: AtomicUsize,
}

impl Opener {
    /// Creates an opener for the items of the API key in the variable `key_env`, if one is named. Only
    /// then it reads the store of `config`.
    ///
    /// # Errors
    ///
    /// If there is no such variable or no store, or if the key is not known in keys mode.
    pub(super) fn new(
        key_env: Option<&str>,
        config: impl FnOnce() -> Result<Config, String>,
    ) -> Result<Self, String> {
        let sealed = AtomicUsize::new(0);
        let Some(name) = key_env else { return Ok(Self { known: None, sealed }) };
        let key = std::env::var(name)
            .map_err(|_| format!("--key-env: the variable {name} is not set, or not text"))?;
        let mut config = config()?;
        provider_key::read_secret(&mut config, || std::env::vars_os().collect())?;
        let store = store_path::existing_of(&config)?;
        let secret = instance_secret(&config, &store);
        let tenants = match config.auth.mode {
            AuthMode::Open => tenants_of(&secret, &key),
            AuthMode::Keys => {
                let found = super::block_on(async {
                    let found = KeyCache::new(store).find(&key).await;
                    found.map_err(|error| format!("the store cannot be read: {error}"))
                })?;
                let (holder, _) = found.ok_or_else(|| {
                    format!("--key-env: the key in {name} is not one of this store's")
                })?;
                vec![holder.tenant]
            }
        };
        Ok(Self { known: Some((Sealer::new(&secret), tenants)), sealed })
    }

    /// Returns a request's body with weir's items opened, as far as they can be.
    pub(super) fn opened<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if !open::is_in(text.as_bytes()) {
            return Cow::Borrowed(text);
        }
        for (sealer, tenant) in self
            .known
            .iter()
            .flat_map(|(sealer, tenants)| tenants.iter().map(move |tenant| (sealer, *tenant)))
        {
            if let Ok(opened) = open::open(sealer, tenant, text.as_bytes()) {
                let opened = opened.and_then(|body| String::from_utf8(body.into()).ok());
                return opened.map_or(Cow::Borrowed(text), Cow::Owned);
            }
        }
        // The text may stand elsewhere than in an item.
        if open::has_items(text) {
            self.sealed.fetch_add(1, Ordering::Relaxed);
        }
        Cow::Borrowed(text)
    }

    /// Returns a warning about the requests whose items stayed sealed, if there are any.
    pub(super) fn warning(&self) -> Option<String> {
        let count = self.sealed.load(Ordering::Relaxed);
        let requests = if count == 1 { "a request has" } else { "requests have" };
        let number = if count == 1 { String::new() } else { format!("{count} ") };
        let advice = match self.known {
            None => "Name the variable with the API key that sent them: --key-env NAME",
            Some(_) => {
                "They were made for another API key, by weirs with another store or secret, or were \
                 changed"
            }
        };
        (count > 0).then(|| {
            format!(
                "weir: {number}{requests} sealed compaction items, whose content is missing here. \
                 {advice}.\n"
            )
        })
    }
}
