//! Where this weir's store is: the configured database server or file, the user's state folder, or
//! memory with a warning. Knows nothing of what is stored.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::sources::{self, Flag};
use crate::config::{self, Config, Secret, is_database_url};
use crate::proxy::Journal;
use crate::store::{Store, StoreOptions, now_ms};

/// The path that stands for no file.
const MEMORY: &str = ":memory:";
/// How often what has ended is deleted.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);
/// How often the journal on a server is looked after: others may wait for what an ended weir has left
/// open.
const SHARED_TEND_INTERVAL: Duration = Duration::from_secs(15);

/// What `--store` says: a database server by its URL, or a file. It goes before both.
pub fn told(value: String) -> [Flag; 2] {
    let (path, url) =
        if is_database_url(&value) { (String::new(), value) } else { (value, String::new()) };
    [("store.path", path), ("store.url", url)].map(|(key, value)| Flag {
        name: "--store".into(),
        key: key.into(),
        value,
    })
}

/// Opens the store that `config` names. A file that cannot be used is warned of and does not keep
/// weir from serving; a server that others share does, since with a store of its own this weir would
/// not be one of them.
pub fn open(
    config: &Config,
    env: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Store, String> {
    match open_or_say(config, env) {
        Ok(store) => Ok(store),
        Err(said) if config.store.url.is_some() => Err(said),
        Err(said) => {
            tracing::warn!(
                target: "weir::store",
                "keeping the store in memory, since {said}: what is in it ends with this process. \
                 Name a file that can be written with --store FILE (store.path), or --store {MEMORY} \
                 if this is what you want"
            );
            Store::in_memory().map_err(|error| error.to_string())
        }
    }
}

/// Opens the store that `config` names, or says why it cannot be used.
pub fn open_or_say(
    config: &Config,
    env: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Store, String> {
    if let Some(url) = &config.store.url {
        return connect(url);
    }
    let told = &config.store.path;
    if told == MEMORY {
        return Store::in_memory().map_err(|error| error.to_string());
    }
    let path = path(told, env).ok_or("the environment names no home")?;
    let sync_interval = Duration::from_millis(config.ledger.sync_interval_ms);
    let options = StoreOptions { sync_interval, ..StoreOptions::default() };
    let opened = Store::open_with(&path, options);
    opened.map_err(|error| format!("{} cannot be used ({error})", path.display()))
}

/// What the flags `--config` and `--store` of a command, and the environment, say.
pub fn configuration(config: Option<&Path>, store: Option<String>) -> Result<Config, String> {
    let told = store.map(told);
    let figment = sources::figment(config, None, std::env::vars_os(), told.into_iter().flatten());
    let (config, _) = config::load(figment).map_err(|problems| {
        let lines: Vec<String> = problems.iter().map(|problem| format!("  - {problem}")).collect();
        format!("the configuration cannot be used:\n{}", lines.join("\n"))
    })?;
    Ok(config)
}

/// Opens the store on a server.
fn connect(url: &Secret) -> Result<Store, String> {
    Store::connect(url.expose())
        .map_err(|error| format!("the PostgreSQL server of store.url cannot be used: {error}"))
}

/// Opens the store for a command that writes to it, on a server or in a file, which is made where it
/// is missing.
pub fn kept(config: &Config) -> Result<Store, String> {
    if let Some(url) = &config.store.url {
        return connect(url);
    }
    let Some(path) = file(&config.store, std::env::vars_os()) else {
        return Err(
            "keys and budgets are kept in the store's file, and there is none: name it with --store \
                    FILE (store.path), or a PostgreSQL server (store.url)"
                .to_owned(),
        );
    };
    Store::open(&path)
        .map_err(|error| format!("the store {} cannot be used: {error}", path.display()))
}

/// Opens the store for a command that reads what a weir has written: on a server, or in a file that
/// is there.
pub fn existing(config: Option<&Path>, store: Option<String>) -> Result<Store, String> {
    let config = configuration(config, store)?;
    if let Some(url) = &config.store.url {
        return connect(url);
    }
    let Some(path) = file(&config.store, std::env::vars_os()) else {
        return Err(
            "there is no file to read: name the store's with --store FILE (store.path)".to_owned()
        );
    };
    if !path.is_file() {
        return Err(format!(
            "there is no store at {}: no weir has served with it yet. Start `weir serve` and send a \
             request, or name the store that weir serves with by --store FILE (store.path)",
            path.display()
        ));
    }
    Store::open(&path)
        .map_err(|error| format!("the store {} cannot be used: {error}", path.display()))
}

/// The store's file; `None` where it is in memory or on a server.
pub fn file(
    told: &config::Store,
    env: impl IntoIterator<Item = (OsString, OsString)>,
) -> Option<PathBuf> {
    if told.path == MEMORY || told.url.is_some() { None } else { path(&told.path, env) }
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

/// Looks after the journal that is in force, again and again.
pub async fn tend(journal: impl Fn() -> Arc<Journal>, is_shared: bool) {
    let every = if is_shared { SHARED_TEND_INTERVAL } else { SWEEP_INTERVAL };
    let mut interval = tokio::time::interval(every);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // The first comes at once, and at the start it has been done.
    interval.tick().await;
    loop {
        interval.tick().await;
        journal().tend().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_names_a_server_or_a_file() {
        for (value, expected) in [
            ("weir.db", ["weir.db", ""]),
            (":memory:", [":memory:", ""]),
            ("postgres://u:p@h/d", ["", "postgres://u:p@h/d"]),
            ("PostgreSQL://h/d", ["", "PostgreSQL://h/d"]),
        ] {
            let told = told(value.to_owned());
            assert_eq!(told.each_ref().map(|flag| &*flag.value), expected, "{value}");
            assert_eq!(told.map(|flag| flag.key), ["store.path", "store.url"]);
        }
    }

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
