//! Backup: a copy of the whole store in one new file, made during writes. Requests that are open in
//! any log are open in the copy.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;

use rusqlite::Connection;

use super::rows;
use crate::files::{beside, private};
use crate::ledger::RequestId;
use crate::wal::checkpoint;
use crate::wal::instances::{Instance, SegmentFile};
use crate::{StoreError, Stored};

/// Open requests by instance, with their records.
type Open = Vec<([u8; 16], HashMap<RequestId, Vec<u8>>)>;

/// Writes a snapshot of `connection` to a new file at `path`, readable only by its owner because it
/// contains the store's secret. The file gets its name only when it is complete.
pub(super) fn write(connection: &Connection, instance: &Instance, path: &Path) -> Stored<()> {
    let failed = |error: io::Error| StoreError::Failed(format!("{}: {error}", path.display()));
    if fs::symlink_metadata(path).is_ok() {
        return Err(failed(io::ErrorKind::AlreadyExists.into()));
    }
    let partial = &beside(path, ".partial");
    // Read before the snapshot: a request that ends in between is open in the copy, or has its row.
    let open = open_requests(instance);
    let copied = copy(connection, partial)
        .and_then(|()| complete(partial, &open))
        .and_then(|()| fs::rename(partial, path).map_err(failed));
    if copied.is_err() {
        // If removal fails, its name marks it as incomplete.
        let _ = fs::remove_file(partial);
    }
    copied
}

fn open_requests(instance: &Instance) -> Open {
    let logs = instance.segments();
    let of = |files: &[SegmentFile]| {
        // An unreadable log was already logged; a missing one was moved into the tables.
        let open = checkpoint::open_requests(files).unwrap_or_default();
        (files[0].instance, open)
    };
    logs.chunk_by(|one, next| one.instance == next.instance).map(of).collect()
}

/// Adds the open requests, which are in no table, to the copy.
fn complete(partial: &Path, open: &Open) -> Stored<()> {
    let mut copy = Connection::open(partial)?;
    // No other process uses it yet, and an incomplete copy is removed.
    copy.pragma_update_and_check(None, "journal_mode", "memory", |_| Ok(()))?;
    let transaction = copy.transaction()?;
    for (instance, requests) in open {
        for (id, content) in requests {
            rows::insert_intent(&transaction, *instance, *id, content)?;
        }
    }
    transaction.commit()?;
    Ok(())
}

fn copy(connection: &Connection, partial: &Path) -> Stored<()> {
    let failed = |error: io::Error| StoreError::Failed(format!("{}: {error}", partial.display()));
    let file = private().create(true).truncate(true).open(partial).map_err(failed)?;
    let Some(name) = partial.to_str() else {
        return Err(failed(io::Error::other("the name is not UTF-8")));
    };
    connection.execute("VACUUM INTO ?1", [name])?;
    file.sync_all().map_err(failed)
}
