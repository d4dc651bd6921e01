//! What is written down in logs, moved into the tables: a row for each request that has ended, and
//! the sums. How far a log is moved is kept in the same transaction, so that each request counts
//! once, whoever moves it and wherever that is cut off.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use rusqlite::{Connection, OptionalExtension, params};

use super::added::Added;
use super::frame::{self, Behind, Frames, Said};
use super::instances::LogFile;
use super::log::Position;
use super::sums::{self, RowsOfDay};
use super::text::given;
use super::{Ledger, RequestId, journal};

/// How many bytes of one log a transaction moves, so that others are not kept waiting. It is more
/// than any frame has.
const MOVED_AT_ONCE: u64 = 256 << 10;
/// How many requests of an earlier weir one transaction adds up.
const COUNTED_AT_ONCE: usize = 64;

/// What one transaction has moved.
pub struct Moved {
    /// How far the process's own log is moved now.
    pub own: Position,
    /// Whether there may be more.
    pub has_more: bool,
}

/// Moves some of the process's own log.
pub fn own(connection: &Connection, ledger: &Ledger) -> rusqlite::Result<Moved> {
    let mover = Mover { connection, ledger };
    let instance = ledger.instance.id();
    let from = mover.position(instance)?;
    let mut at = from;
    let has_more = match ledger.log.in_memory(from, MOVED_AT_ONCE) {
        Some(bytes) => {
            let is_cut = bytes.len() as u64 == MOVED_AT_ONCE;
            let behind = if is_cut { Behind::More } else { Behind::Owner };
            at.bytes += take(connection, &ledger.rows, &bytes, behind, false)?.bytes;
            is_cut
        }
        None => mover.advance(&mut at, &ledger.log.files(), ledger.log.is_closed())?,
    };
    mover.note(instance, from, at)?;
    Ok(Moved { own: at, has_more })
}

/// Moves some of everybody's logs, and finishes those of processes that have ended.
pub fn all(connection: &Connection, ledger: &Ledger) -> rusqlite::Result<Moved> {
    let Moved { own, mut has_more } = own(connection, ledger)?;
    let mover = Mover { connection, ledger };
    let logs = ledger.instance.logs();
    for files in logs.chunk_by(|one, next| one.instance == next.instance) {
        let instance = files[0].instance;
        if instance == ledger.instance.id() {
            continue;
        }
        // Asked before its log is read: what has ended by now has written all that it will.
        let is_ended = ledger.instance.is_dead(&instance);
        let from = mover.position(instance)?;
        let mut at = from;
        has_more |= mover.advance(&mut at, files, is_ended)?;
        mover.note(instance, from, at)?;
    }
    mover.forget_others(&logs)?;
    let left = sums::uncounted(connection, COUNTED_AT_ONCE)?;
    if !left.is_empty() {
        sums::count(connection, &ledger.rows, &left)?;
        has_more |= left.len() == COUNTED_AT_ONCE;
    }
    Ok(Moved { own, has_more })
}

/// Whether there is something to move.
pub fn is_any(connection: &Connection, ledger: &Ledger) -> rusqlite::Result<bool> {
    if ledger.log.is_unmoved() || !sums::uncounted(connection, 1)?.is_empty() {
        return Ok(true);
    }
    for file in ledger.instance.logs() {
        let at = position(connection, file.instance)?;
        // One whose length cannot be told may be gone.
        let bytes = std::fs::metadata(&file.path).map_or(0, |file| file.len());
        let is_further = Position { segment: file.segment, bytes } > at;
        let is_left = file.segment >= at.segment && ledger.instance.is_dead(&file.instance);
        if is_further || is_left {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The files of logs that are finished: nothing in them is still to be moved.
pub fn finished(connection: &Connection, ledger: &Ledger) -> rusqlite::Result<Vec<PathBuf>> {
    let mut finished = Vec::new();
    for file in ledger.instance.logs() {
        if file.segment < position(connection, file.instance)?.segment {
            finished.push(file.path);
        }
    }
    Ok(finished)
}

/// What one frame did.
#[derive(Default)]
pub struct Taken {
    /// How many bytes are done with.
    bytes: u64,
    /// How many requests have a row that had none.
    pub new_rows: u64,
}

/// Takes whole frames of a log into the tables.
pub fn take(
    connection: &Connection,
    rows: &RowsOfDay,
    bytes: &[u8],
    behind: Behind,
    is_ended: bool,
) -> rusqlite::Result<Taken> {
    let has_intents: bool = connection
        .prepare_cached("SELECT EXISTS (SELECT 1 FROM intent)")?
        .query_row([], |row| row.get(0))?;
    let mut frames = Frames::new(bytes, behind, is_ended);
    let (mut added, mut taken) = (Added::default(), Taken::default());
    for content in frames.by_ref() {
        if frame::about(content).is_some_and(|(_, is_opened)| is_opened) {
            continue;
        }
        match frame::read(content) {
            Some(Said::Settled(facts, ending)) => {
                if journal::insert(connection, &facts, &ending)? {
                    added.note(&facts, &ending);
                    taken.new_rows += 1;
                    if has_intents {
                        journal::end(connection, facts.id)?;
                    }
                }
            }
            Some(Said::Released(id)) if has_intents => journal::release(connection, id)?,
            Some(_) => {}
            None => tracing::warn!(
                target: "weir::store",
                bytes = content.len(),
                "passed over an entry of a log of requests that this weir does not understand"
            ),
        }
    }
    sums::write(added, connection, rows)?;
    taken.bytes = frames.done_bytes() as u64;
    Ok(taken)
}

/// The requests that the log in `files` has opened and not ended, by the contents of their frames.
pub fn open_in(files: &[LogFile]) -> io::Result<HashMap<RequestId, Vec<u8>>> {
    let mut open = HashMap::new();
    for file in files {
        let mut at = 0;
        loop {
            let chunk = Chunk::read(&file.path, at)?;
            let mut frames = Frames::new(&chunk.bytes, chunk.behind(true), true);
            for content in frames.by_ref() {
                match frame::about(content) {
                    Some((id, true)) => drop(open.insert(id, content.to_vec())),
                    Some((id, false)) => drop(open.remove(&id)),
                    None => {}
                }
            }
            at += frames.done_bytes() as u64;
            if !chunk.is_cut {
                break;
            }
        }
    }
    Ok(open)
}

fn position(connection: &Connection, instance: [u8; 16]) -> rusqlite::Result<Position> {
    let found = connection
        .prepare_cached("SELECT segment, bytes FROM moved WHERE instance = ?1")?
        .query_row([instance], |row| {
            Ok(Position { segment: given(row.get(0)?), bytes: given(row.get(1)?) })
        })
        .optional()?;
    Ok(found.unwrap_or_default())
}

struct Mover<'a> {
    connection: &'a Connection,
    ledger: &'a Ledger,
}

impl Mover<'_> {
    fn position(&self, instance: [u8; 16]) -> rusqlite::Result<Position> {
        position(self.connection, instance)
    }

    /// Moves some of the log in `files` from `at` on; whether there may be more. A log that cannot
    /// be read keeps nobody else's from being moved.
    fn advance(
        &self,
        at: &mut Position,
        files: &[LogFile],
        is_ended: bool,
    ) -> rusqlite::Result<bool> {
        for (index, file) in files.iter().enumerate() {
            if file.segment < at.segment {
                continue;
            }
            if file.segment > at.segment {
                *at = Position { segment: file.segment, bytes: 0 };
            }
            // Nobody goes back to a segment once there is a later one.
            let is_closed = is_ended || index + 1 < files.len();
            let Some(chunk) = told(&file.path, Chunk::read(&file.path, at.bytes)) else {
                return Ok(false);
            };
            let behind = chunk.behind(is_closed);
            let rows = &self.ledger.rows;
            let taken = take(self.connection, rows, &chunk.bytes, behind, is_closed)?;
            at.bytes += taken.bytes;
            if chunk.is_cut {
                return Ok(taken.bytes > 0);
            }
            if !is_closed {
                return Ok(false);
            }
            let Some(open) = told(&file.path, open_in(std::slice::from_ref(file))) else {
                return Ok(false);
            };
            for (id, content) in open {
                journal::insert_intent(self.connection, file.instance, id, &content)?;
            }
            *at = Position { segment: file.segment + 1, bytes: 0 };
            self.ledger.has_finished.store(true, Ordering::Relaxed);
        }
        Ok(false)
    }

    /// Notes that the log of `instance` was moved.
    fn note(&self, instance: [u8; 16], from: Position, to: Position) -> rusqlite::Result<()> {
        if from == to {
            return Ok(());
        }
        let stored = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        self.connection
            .prepare_cached("INSERT OR REPLACE INTO moved VALUES (?1, ?2, ?3)")?
            .execute(params![instance, stored(to.segment), stored(to.bytes)])?;
        Ok(())
    }

    /// Forgets how far logs were moved that are gone.
    fn forget_others(&self, logs: &[LogFile]) -> rusqlite::Result<()> {
        let instances: Vec<[u8; 16]> = self
            .connection
            .prepare_cached("SELECT instance FROM moved")?
            .query_map([], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        for instance in instances {
            let has_log = logs.iter().any(|file| file.instance == instance);
            if !has_log && self.ledger.instance.is_dead(&instance) {
                self.connection
                    .prepare_cached("DELETE FROM moved WHERE instance = ?1")?
                    .execute([instance])?;
            }
        }
        Ok(())
    }
}

/// A piece of a log.
struct Chunk {
    bytes: Vec<u8>,
    /// Whether there may be more behind it.
    is_cut: bool,
}

impl Chunk {
    fn read(path: &Path, from: u64) -> io::Result<Self> {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.take(MOVED_AT_ONCE).read_to_end(&mut bytes)?;
        let is_cut = bytes.len() as u64 == MOVED_AT_ONCE;
        Ok(Self { bytes, is_cut })
    }

    fn behind(&self, is_closed: bool) -> Behind {
        match (self.is_cut, is_closed) {
            (true, _) => Behind::More,
            (false, true) => Behind::Nothing,
            (false, false) => Behind::Owner,
        }
    }
}

/// What was read of a log, or a word on why nothing was.
fn told<T>(path: &Path, read: io::Result<T>) -> Option<T> {
    read.inspect_err(|error| {
        let path = path.display();
        tracing::warn!(target: "weir::store", %path, %error, "a log of requests cannot be read");
    })
    .ok()
}
