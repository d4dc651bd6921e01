//! Limits that the system sets to the process: the number of its open files, and the size of one. Knows no
//! connection.

#[cfg(unix)]
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
#[cfg(unix)]
use tokio::signal::unix::{SignalKind, signal};

/// Open files of a connection: its own, and one to a provider.
#[cfg(unix)]
const FILES_OF_CONNECTION: u64 = 2;
/// Open files besides those: listeners, the store, the log.
#[cfg(unix)]
const OTHER_FILES: u64 = 100;

/// Makes a file that may not grow further an error of the write alone: by default a signal ends the
/// process.
#[cfg(unix)]
pub fn outlive_full_files() -> std::io::Result<()> {
    // It stays handled when nobody listens any more.
    signal(SignalKind::from_raw(Signal::XFSZ.as_raw())).map(drop)
}

/// Takes as many open files as the system allows, and warns if so many connections may need more.
#[cfg(unix)]
pub fn take_open_files(max_connections: usize) {
    let connections = u64::try_from(max_connections).unwrap_or(u64::MAX);
    let needed = connections.saturating_mul(FILES_OF_CONNECTION).saturating_add(OTHER_FILES);
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let is_more = |wanted: &Option<u64>| {
        current.is_some_and(|current| wanted.is_none_or(|wanted| wanted > current))
    };
    // Some systems allow a number only, where they name no maximum.
    let wanted = [maximum, Some(needed)].into_iter().filter(is_more);
    let taken = wanted.map(|current| Rlimit { current, maximum });
    let _ = taken.map(|limit| setrlimit(Resource::Nofile, limit)).find(Result::is_ok);
    if let Some(open_files) = getrlimit(Resource::Nofile).current
        && open_files < needed
    {
        tracing::warn!(
            target: "weir",
            "the process may have {open_files} open files, and {max_connections} connections \
             (server.max_connections) need about {needed}: raise its limit (LimitNOFILE of systemd, ulimit -n), \
             or lower that setting"
        );
    }
}

/// This platform has no such signal.
#[cfg(not(unix))]
pub fn outlive_full_files() -> std::io::Result<()> {
    Ok(())
}

/// This platform has no such limit.
#[cfg(not(unix))]
pub fn take_open_files(_: usize) {}
