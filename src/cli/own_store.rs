//! Where this weir's store is: the configured file, the user's state folder, or memory with a
//! warning. Knows nothing of what is stored.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::config::{self, Config};
use crate::store::ledger::DAY_MS;
use crate::store::{OpenError, Store, StoreOptions, now_ms};

/// The path that stands for no file.
const MEMORY: &str = ":memory:";
/// How often what has ended is deleted.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);
/// How often old requests are deleted.
const PRUNE_INTERVAL: Duration = Duration::from_secs(600);

/// Opens the store that `config` names. One that cannot be used is warned of and does not keep weir
/// from serving.
pub fn open(
    config: &Config,
    env: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Store, OpenError> {
    let told = &config.store.path;
    if told == MEMORY {
        return Store::in_memory();
    }
    let Some(path) = path(told, env) else {
        tracing::warn!(
            target: "weir::store",
            "keeping the store in memory, since the environment names no home: what is in it ends \
             with this process. Name a file with --store FILE (store.path)"
        );
        return Store::in_memory();
    };
    let sync_interval = Duration::from_millis(config.ledger.sync_interval_ms);
    match Store::open_with(&path, StoreOptions { sync_interval }) {
        Ok(store) => Ok(store),
        Err(error) => {
            tracing::warn!(
                target: "weir::store",
                "keeping the store in memory, since {} cannot be used ({error}): what is in it \
                 ends with this process. Name a file that can be written with --store FILE \
                 (store.path), or --store {MEMORY} if this is what you want",
                path.display()
            );
            Store::in_memory()
        }
    }
}

/// The store's file: as told, or in the user's state folder by the rules of the XDG base
/// directories; `None` where the environment names neither that nor a home.
fn path(told: &str, env: impl IntoIterator<Item = (OsString, OsString)>) -> Option<PathBuf> {
    if !told.is_empty() {
        return Some(told.into());
    }
    let (mut state, mut home) = (None, None);
    for (name, value) in env {
        // A relative path is invalid by those rules, and would mean another place in each folder.
        let value = Some(PathBuf::from(value)).filter(|path| path.is_absolute());
        if name == "XDG_STATE_HOME" {
            state = value;
        } else if name == "HOME" {
            home = value;
        }
    }
    let state = state.or_else(|| home.map(|home| home.join(".local/state")))?;
    Some(state.join("weir").join("weir.db"))
}

/// Deletes what has ended, again and again.
pub async fn sweep(store: Store) {
    let mut interval = tokio::time::interval(SWEEP_INTERVAL);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        match store.delete_expired(now_ms()).await {
            Ok(0) => {}
            Ok(entries) => {
                tracing::debug!(target: "weir::store", entries, "deleted what had ended")
            }
            Err(error) => tracing::debug!(target: "weir::store", %error, "could not delete"),
        }
    }
}

/// Deletes rows of requests and sums that are older than is kept, again and again.
pub async fn prune(store: Store, ledger: config::Ledger) {
    let mut interval = tokio::time::interval(PRUNE_INTERVAL);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        let before = |days: u64| now_ms().saturating_sub(days.saturating_mul(DAY_MS));
        let (requests, sums) = (before(ledger.retention_days), before(ledger.sums_retention_days));
        match store.prune_requests(requests, sums).await {
            Ok(0) => {}
            Ok(rows) => tracing::debug!(target: "weir::store", rows, "deleted old requests"),
            Err(error) => tracing::debug!(target: "weir::store", %error, "could not delete"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_in_the_users_state_folder() {
        type Row<'a> = (&'a str, &'a [(&'a str, &'a str)], Option<&'a str>);
        let rows: &[Row<'_>] = &[
            ("x.db", &[("HOME", "/home/me")], Some("x.db")),
            ("", &[("HOME", "/home/me")], Some("/home/me/.local/state/weir/weir.db")),
            ("", &[("HOME", "/home/me"), ("XDG_STATE_HOME", "/s")], Some("/s/weir/weir.db")),
            ("", &[("XDG_STATE_HOME", "s"), ("HOME", "/h")], Some("/h/.local/state/weir/weir.db")),
            ("", &[("XDG_STATE_HOME", ""), ("HOME", "")], None),
            ("", &[], None),
        ];
        for (told, env, expected) in rows {
            let env = env.iter().map(|(name, value)| ((*name).into(), (*value).into()));
            assert_eq!(path(told, env), expected.map(PathBuf::from), "{told} {expected:?}");
        }
    }
}
