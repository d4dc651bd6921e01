//! Checkpointing: moves records from logs into the tables, as rows of ended requests and totals.
//! The checkpoint position is stored in the same transaction, so each request counts once, for any
//! process that moves it and after any interruption.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use rusqlite::{Connection, params};

use super::instances::SegmentFile;
use super::record::{self, Record, Records, Remainder};
use super::{Position, Session};
use crate::ledger::RequestId;
use crate::ledger::rollup::Rollup;
use crate::ledger::text::from_stored;
use crate::sql::stored;
use crate::sqlite::totals::{self, DayRows};
use crate::sqlite::{cached, rows};

/// Maximum bytes of one log per transaction, so that others do not wait long. It exceeds the
/// largest record.
const CHUNK_BYTES: u64 = 256 << 10;
/// Maximum requests of an earlier version that one transaction adds to the totals.
const MAX_COUNTED_AT_ONCE: usize = 64;

/// Result of one transaction.
pub(crate) struct CheckpointProgress {
    /// New checkpoint of the process's own log.
    pub own: Position,
    /// Whether there may be more.
    pub has_more: bool,
}

/// Moves part of the process's own log.
pub(crate) fn own(
    connection: &Connection,
    session: &Session,
) -> rusqlite::Result<CheckpointProgress> {
    let checkpointer = Checkpointer { connection, session };
    let instance = session.instance.id;
    let from = checkpointer.position(instance)?;
    let mut at = from;
    let has_more = match session.log.read_memory(from, CHUNK_BYTES) {
        Some(bytes) => {
            let is_partial = bytes.len() as u64 == CHUNK_BYTES;
            let remainder = if is_partial { Remainder::More } else { Remainder::OwnerWrites };
            at.bytes += apply(connection, &session.day_rows, &bytes, remainder, false)?.bytes;
            is_partial
        }
        None => {
            checkpointer.advance(&mut at, &session.log.segment_files(), session.log.is_closed())?
        }
    };
    checkpointer.store_position(instance, from, at)?;
    Ok(CheckpointProgress { own: at, has_more })
}

/// Moves part of all logs, and finishes those of ended processes.
pub(crate) fn all(
    connection: &Connection,
    session: &Session,
) -> rusqlite::Result<CheckpointProgress> {
    let CheckpointProgress { own, mut has_more } = own(connection, session)?;
    let checkpointer = Checkpointer { connection, session };
    let logs = session.instance.segments();
    for files in logs.chunk_by(|one, next| one.instance == next.instance) {
        let instance = files[0].instance;
        if instance == session.instance.id {
            continue;
        }
        // Checked before its log is read: an ended process has already written everything.
        let is_ended = session.instance.is_dead(&instance);
        let from = checkpointer.position(instance)?;
        let mut at = from;
        has_more |= checkpointer.advance(&mut at, files, is_ended)?;
        checkpointer.store_position(instance, from, at)?;
    }
    checkpointer.delete_stale_positions(&logs)?;
    let left = totals::uncounted(connection, MAX_COUNTED_AT_ONCE)?;
    if !left.is_empty() {
        totals::count(connection, &session.day_rows, &left)?;
        has_more |= left.len() == MAX_COUNTED_AT_ONCE;
    }
    Ok(CheckpointProgress { own, has_more })
}

/// Returns whether there is anything to move.
pub(crate) fn is_pending(connection: &Connection, session: &Session) -> rusqlite::Result<bool> {
    if session.log.is_checkpoint_pending() || !totals::uncounted(connection, 1)?.is_empty() {
        return Ok(true);
    }
    for file in session.instance.segments() {
        let at = stored_position(connection, file.instance)?;
        // A log without a readable size may be gone.
        let bytes = std::fs::metadata(&file.path).map_or(0, |file| file.len());
        let is_further = Position { segment: file.segment, bytes } > at;
        let is_left = file.segment >= at.segment && session.instance.is_dead(&file.instance);
        if is_further || is_left {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the log files that are finished: all their records are moved.
pub(crate) fn finished_segments(
    connection: &Connection,
    session: &Session,
) -> rusqlite::Result<Vec<PathBuf>> {
    let mut finished = Vec::new();
    for file in session.instance.segments() {
        if file.segment < stored_position(connection, file.instance)?.segment {
            finished.push(file.path);
        }
    }
    Ok(finished)
}

/// Result of one pass over records.
#[derive(Default)]
pub(crate) struct Applied {
    /// Bytes consumed.
    bytes: u64,
    /// Requests that got a new row.
    pub new_rows: u64,
}

/// Applies complete records of a log to the tables.
pub(crate) fn apply(
    connection: &Connection,
    day_rows: &DayRows,
    bytes: &[u8],
    remainder: Remainder,
    is_ended: bool,
) -> rusqlite::Result<Applied> {
    let has_intents: bool = cached::value(connection, "SELECT EXISTS (SELECT 1 FROM intent)", [])?;
    let mut records = Records::new(bytes, remainder, is_ended);
    let (mut rollup, mut applied) = (Rollup::default(), Applied::default());
    for content in records.by_ref() {
        if record::header(content).is_some_and(|(_, is_opened)| is_opened) {
            continue;
        }
        match record::decode(content) {
            Some(Record::Settled(intent, settlement)) => {
                if rows::insert(connection, &intent, &settlement)? {
                    rollup.add_request(&intent, &settlement);
                    applied.new_rows += 1;
                    if has_intents {
                        rows::end(connection, intent.id)?;
                    }
                }
            }
            Some(Record::Released(id)) if has_intents => rows::release(connection, id)?,
            Some(_) => {}
            None => tracing::warn!(
                target: "weir::store",
                bytes = content.len(),
                "skipped a record of a request log that this version of weir does not understand"
            ),
        }
    }
    totals::write(rollup, connection, day_rows)?;
    applied.bytes = records.consumed_bytes() as u64;
    Ok(applied)
}

/// Returns the requests that the log in `files` has opened and not ended, with their records.
pub(crate) fn open_requests(files: &[SegmentFile]) -> io::Result<HashMap<RequestId, Vec<u8>>> {
    let mut open = HashMap::new();
    for file in files {
        let mut at = 0;
        loop {
            let chunk = Chunk::read(&file.path, at)?;
            let mut records = Records::new(&chunk.bytes, chunk.remainder(true), true);
            for content in records.by_ref() {
                match record::header(content) {
                    Some((id, true)) => drop(open.insert(id, content.to_vec())),
                    Some((id, false)) => drop(open.remove(&id)),
                    None => {}
                }
            }
            at += records.consumed_bytes() as u64;
            if !chunk.is_partial {
                break;
            }
        }
    }
    Ok(open)
}

fn stored_position(connection: &Connection, instance: [u8; 16]) -> rusqlite::Result<Position> {
    let select = "SELECT segment, bytes FROM moved WHERE instance = ?1";
    let found = cached::first(connection, select, [instance], |row| {
        Ok(Position { segment: from_stored(row.get(0)?), bytes: from_stored(row.get(1)?) })
    })?;
    Ok(found.unwrap_or_default())
}

struct Checkpointer<'a> {
    connection: &'a Connection,
    session: &'a Session,
}

impl Checkpointer<'_> {
    fn position(&self, instance: [u8; 16]) -> rusqlite::Result<Position> {
        stored_position(self.connection, instance)
    }

    /// Moves part of the log in `files` from `at` on; returns whether there may be more. An
    /// unreadable log does not block the others.
    fn advance(
        &self,
        at: &mut Position,
        files: &[SegmentFile],
        is_ended: bool,
    ) -> rusqlite::Result<bool> {
        for (index, file) in files.iter().enumerate() {
            if file.segment < at.segment {
                continue;
            }
            if file.segment > at.segment {
                *at = Position { segment: file.segment, bytes: 0 };
            }
            // A segment is final once there is a later one.
            let is_closed = is_ended || index + 1 < files.len();
            let Some(chunk) = or_warn(&file.path, Chunk::read(&file.path, at.bytes)) else {
                return Ok(false);
            };
            let remainder = chunk.remainder(is_closed);
            let day_rows = &self.session.day_rows;
            let applied = apply(self.connection, day_rows, &chunk.bytes, remainder, is_closed)?;
            at.bytes += applied.bytes;
            if chunk.is_partial {
                return Ok(applied.bytes > 0);
            }
            if !is_closed {
                return Ok(false);
            }
            let Some(open) = or_warn(&file.path, open_requests(std::slice::from_ref(file))) else {
                return Ok(false);
            };
            for (id, content) in open {
                rows::insert_intent(self.connection, file.instance, id, &content)?;
            }
            *at = Position { segment: file.segment + 1, bytes: 0 };
            self.session.has_finished.store(true, Ordering::Relaxed);
        }
        Ok(false)
    }

    /// Stores the checkpoint of `instance`'s log.
    fn store_position(
        &self,
        instance: [u8; 16],
        from: Position,
        to: Position,
    ) -> rusqlite::Result<()> {
        if from == to {
            return Ok(());
        }
        let put = "INSERT OR REPLACE INTO moved VALUES (?1, ?2, ?3)";
        let params = params![instance, stored(to.segment), stored(to.bytes)];
        cached::run(self.connection, put, params).map(drop)
    }

    /// Deletes the checkpoints of logs that are gone.
    fn delete_stale_positions(&self, logs: &[SegmentFile]) -> rusqlite::Result<()> {
        let (all, delete) = ("SELECT instance FROM moved", "DELETE FROM moved WHERE instance = ?1");
        for instance in cached::all::<[u8; 16]>(self.connection, all, [], |row| row.get(0))? {
            let has_log = logs.iter().any(|file| file.instance == instance);
            if !has_log && self.session.instance.is_dead(&instance) {
                cached::run(self.connection, delete, [instance])?;
            }
        }
        Ok(())
    }
}

/// A chunk of a log.
struct Chunk {
    bytes: Vec<u8>,
    /// Whether there may be more after it.
    is_partial: bool,
}

impl Chunk {
    fn read(path: &Path, from: u64) -> io::Result<Self> {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.take(CHUNK_BYTES).read_to_end(&mut bytes)?;
        let is_partial = bytes.len() as u64 == CHUNK_BYTES;
        Ok(Self { bytes, is_partial })
    }

    fn remainder(&self, is_closed: bool) -> Remainder {
        match (self.is_partial, is_closed) {
            (true, _) => Remainder::More,
            (false, true) => Remainder::Nothing,
            (false, false) => Remainder::OwnerWrites,
        }
    }
}

/// Returns the result of reading a log, or logs the error.
fn or_warn<T>(path: &Path, read: io::Result<T>) -> Option<T> {
    read.inspect_err(|error| {
        let path = path.display();
        tracing::warn!(target: "weir::store", %path, %error, "a log of requests cannot be read");
    })
    .ok()
}
