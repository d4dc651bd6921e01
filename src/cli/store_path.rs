//! Location of this weir's store: the configured database server or file, the user's state folder,
//! or memory with a warning. Knows nothing of its contents.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;

use super::sources::{self, Flag};
use crate::config::{self, Config, Secret, is_database_url};
use crate::proxy::Journal;
use weir_store::{OpenError, Store, now_ms};

/// Path that stands for memory instead of a file.
const MEMORY: &str = ":memory:";
/// Interval at which expired entries are deleted.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);
/// Interval of journal maintenance on a server: other weirs may wait for entries that an ended weir
/// left open.
const SHARED_TEND_INTERVAL: Duration = Duration::from_secs(15);

/// Flags of a command that works on a store.
#[derive(Debug, Args)]
pub(super) struct StoreArgs {
    /// A configuration file in TOML
    #[arg(long, value_name = "FILE", env = "WEIR_CONFIG", global = true)]
    config: Option<PathBuf>,
    /// The store's file, or its PostgreSQL server's URL [default: weir/weir.db in the user's state
    /// folder]
    #[arg(long, value_name = "FILE", global = true)]
    store: Option<String>,
}

impl StoreArgs {
    /// Loads the configuration that names the store.
    pub(super) fn configuration(&self) -> Result<Config, String> {
        configuration(self.config.as_deref(), self.store.clone())
    }

    /// Opens the store that a weir has written.
    pub(super) fn existing(&self) -> Result<Store, String> {
        existing_of(&self.configuration()?)
    }
}

/// Converts `--store` (a database server's URL, or a file) to flags. It takes precedence over both
/// keys.
pub(super) fn given(value: String) -> [Flag; 2] {
    let (path, url) =
        if is_database_url(&value) { (String::new(), value) } else { (value, String::new()) };
    [("store.path", path), ("store.url", url)].map(|(key, value)| Flag {
        name: "--store".into(),
        key: key.into(),
        value,
    })
}

/// Reason why the store that the configuration names cannot be used, with what to do.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnusableStore {
    #[error(
        "no home folder is set in the environment. Name a writable file with --store FILE (store.path)"
    )]
    NoHome,
    #[error("{} cannot be used ({source}). {}", path.display(), cure(source))]
    File { path: PathBuf, source: OpenError },
    #[error(transparent)]
    Memory(OpenError),
    #[error("the PostgreSQL server of store.url cannot be used: {0}")]
    Server(#[source] OpenError),
}

impl UnusableStore {
    /// Returns whether there is no store that could hold spending: neither file nor folder exists at its
    /// path. A path that cannot be examined may have one.
    fn is_missing(&self) -> bool {
        match self {
            Self::NoHome => true,
            Self::File { path, .. } => matches!(path.try_exists(), Ok(false)),
            Self::Memory(_) | Self::Server(_) => false,
        }
    }
}

/// Returns what makes a file usable that could not be opened.
fn cure(error: &OpenError) -> &'static str {
    match error {
        OpenError::Newer { .. } => {
            "Start the version of weir that wrote it, or a later one; or restore a backup of before \
             (`weir backup`), or name another file with --store FILE (store.path)"
        }
        OpenError::Foreign => {
            "If it was weir's, it is damaged: restore a backup. Else name another file with --store \
             FILE (store.path)"
        }
        OpenError::Busy => {
            "End the other process, or name another file with --store FILE (store.path)"
        }
        OpenError::Unusable { .. } | OpenError::System { .. } => {
            "Make it a file that weir's user may read and write, restore a backup if it is damaged, or \
             name a writable file with --store FILE (store.path)"
        }
    }
}

/// Opens the store that `config` names. Only a store that nobody configured and that does not exist
/// gives way to memory, with a warning, and never if a setting demands to fail closed. Otherwise weir
/// does not serve: an existing store may hold spent budgets, which memory would make whole again.
pub(super) fn open(
    config: &Config,
    env: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Store, UnusableStore> {
    let may_be_missing = config.store.path.is_empty() && !config.fails_closed();
    match open_or_say(config, env) {
        Ok(store) => Ok(store),
        Err(said) if !(may_be_missing && said.is_missing()) => Err(said),
        Err(said) => {
            tracing::warn!(
                target: "weir::store",
                "keeping the store in memory: its contents, spending and budgets among them, are lost when \
                 this process ends. Use --store {MEMORY} if this is intended. The reason: {said}"
            );
            Store::in_memory().map_err(UnusableStore::Memory)
        }
    }
}

/// Opens the store that `config` names, or returns the reason why it cannot be used.
pub(super) fn open_or_say(
    config: &Config,
    env: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Store, UnusableStore> {
    if let Some(url) = &config.store.url {
        return connect(url);
    }
    let given = &config.store.path;
    if given == MEMORY {
        return Store::in_memory().map_err(UnusableStore::Memory);
    }
    let path = path(given, env).ok_or(UnusableStore::NoHome)?;
    Store::open(&path).map_err(|source| UnusableStore::File { path, source })
}

/// Loads the configuration from a command's flags `--config` and `--store` and the environment.
pub(super) fn configuration(
    config: Option<&Path>,
    store: Option<String>,
) -> Result<Config, String> {
    let given = store.map(given);
    let figment = sources::figment(config, None, std::env::vars_os(), given.into_iter().flatten());
    let (config, _) = config::load(figment).map_err(|problems| {
        let lines: Vec<String> = problems.iter().map(|problem| format!("  - {problem}")).collect();
        format!("the configuration cannot be used:\n{}", lines.join("\n"))
    })?;
    Ok(config)
}

/// Opens the store on a server.
fn connect(url: &Secret) -> Result<Store, UnusableStore> {
    Store::connect(url.expose()).map_err(UnusableStore::Server)
}

/// Opens the store for a command that writes to it, on a server or in a file, which is created if
/// missing.
pub(super) fn kept(config: &Config) -> Result<Store, String> {
    let none = "keys and budgets are kept in the store's file, and there is none: name it with --store \
                FILE (store.path), or a PostgreSQL server (store.url)";
    opened(config, none, |_| Ok(()))
}

/// Opens the store for a command that reads data written by a weir: on a server, or in an existing
/// file.
pub(super) fn existing_of(config: &Config) -> Result<Store, String> {
    let none = "there is no file to read: name the store's with --store FILE (store.path)";
    opened(config, none, |path| match path.is_file() {
        true => Ok(()),
        false => Err(format!(
            "there is no store at {}: no weir has served with it yet. Start `weir serve` and send a \
             request, or name the store that weir uses with --store FILE (store.path)",
            path.display()
        )),
    })
}

/// Opens the store on a server, or in a file that `check` accepts. `none` says that there is no file.
fn opened(
    config: &Config,
    none: &str,
    check: impl Fn(&Path) -> Result<(), String>,
) -> Result<Store, String> {
    if let Some(url) = &config.store.url {
        return connect(url).map_err(|error| error.to_string());
    }
    let path = file(&config.store, std::env::vars_os()).ok_or(none)?;
    check(&path)?;
    Store::open(&path)
        .map_err(|error| format!("the store {} cannot be used: {error}", path.display()))
}

/// Returns the store's file; `None` if the store is in memory or on a server.
pub(super) fn file(
    given: &config::Store,
    env: impl IntoIterator<Item = (OsString, OsString)>,
) -> Option<PathBuf> {
    if given.path == MEMORY || given.url.is_some() { None } else { path(&given.path, env) }
}

/// Returns the file of the admin token: as configured, or next to the store; `None` if that is in no
/// file.
pub(super) fn token_file(config: &Config) -> Option<PathBuf> {
    match config.admin.token_file.as_str() {
        "" => file(&config.store, std::env::vars_os())
            .map(|store| store.with_file_name("admin.token")),
        own => Some(own.into()),
    }
}

/// Returns the store's file: as configured, or in the user's state folder by the rules of the XDG
/// base directories. `None` if the environment sets neither that folder nor a home.
fn path(given: &str, env: impl IntoIterator<Item = (OsString, OsString)>) -> Option<PathBuf> {
    if !given.is_empty() {
        return Some(given.into());
    }
    let (mut state, mut home) = (None, None);
    for (name, value) in env {
        // A relative path is invalid by those rules, and would depend on the current folder.
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

/// Deletes expired entries periodically.
pub(super) async fn sweep(store: Store) {
    let mut interval = super::every(SWEEP_INTERVAL);
    loop {
        interval.tick().await;
        match store.delete_expired(now_ms()).await {
            Ok(0) => {}
            Ok(entries) => {
                tracing::debug!(target: "weir::store", entries, "deleted expired entries")
            }
            Err(error) => {
                tracing::debug!(target: "weir::store", %error, "could not delete expired entries")
            }
        }
    }
}

/// Maintains the journal in force periodically.
pub(super) async fn tend(journal: impl Fn() -> Arc<Journal>, is_shared: bool) {
    let mut interval = super::every(if is_shared { SHARED_TEND_INTERVAL } else { SWEEP_INTERVAL });
    // The first tick is immediate, but maintenance was already done at the start.
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
            let given = given(value.to_owned());
            assert_eq!(given.each_ref().map(|flag| &*flag.value), expected, "{value}");
            assert_eq!(given.map(|flag| flag.key), ["store.path", "store.url"]);
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
        for (given, env, expected) in rows {
            let env = env.iter().map(|(name, value)| ((*name).into(), (*value).into()));
            assert_eq!(path(given, env), expected.map(PathBuf::from), "{given} {expected:?}");
        }
    }
}
