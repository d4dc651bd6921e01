//! Write-ahead log of requests in front of SQLite. Each process appends its records (`record`) to
//! segments of its own next to the store (`segment`, `instances`), or to memory for an in-memory
//! store. One record is one write, which survives the end of the process. A checkpoint moves records
//! into the tables (`checkpoint`). `docs/internals/wal.md` has the reasons and the measurements.

pub(crate) mod checkpoint;
pub(crate) mod instances;
pub(crate) mod record;
mod segment;
mod session;

use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::files::{create_private, sync_folder};
use crate::health::Health;
use crate::ledger::RequestId;
use crate::{Activity, StoreError, Stored};
use instances::{SegmentFile, segment_path};
use segment::{ClosedSegment, Segment, Tail, is_unlinked};
pub(crate) use session::Session;

/// Maximum number of segments at the usual size: the current one, and closed ones that are not
/// checkpointed yet.
const MAX_SEGMENTS: u64 = 16;
/// Share of the log (one part in this number) reserved for the ends of opened requests.
const RESERVED_SHARE: u64 = 4;
/// Size in memory above which a checkpoint is due.
const MEMORY_BYTES: usize = 64 << 10;

/// Position in a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Position {
    /// Segments are numbered from 0; each is a file.
    pub segment: u64,
    pub bytes: u64,
}

/// Write-ahead log of one process.
pub(crate) struct RequestLog {
    instance: [u8; 16],
    /// Folder of its files; `None` in memory.
    folder: Option<PathBuf>,
    max_bytes: u64,
    inner: Mutex<LogState>,
    is_dirty: AtomicBool,
    health: Health,
    /// Whether its file was removed.
    is_lost: AtomicBool,
    /// Whether to close the current segment soon.
    must_rotate: AtomicBool,
    /// In memory: whether a checkpoint is due, and whether a caller was asked for it.
    is_checkpoint_due: AtomicBool,
    is_checkpoint_requested: AtomicBool,
    /// Bytes in closed segments that are still to be checkpointed or deleted.
    closed_bytes: AtomicU64,
    checkpoints: AtomicU64,
}

#[derive(Default)]
struct LogState {
    /// Requests opened in this log and not ended.
    open: HashSet<RequestId>,
    tail: Tail,
    /// Closed segments that are not finished, oldest first.
    closed: VecDeque<ClosedSegment>,
    /// How far records were moved into the tables.
    checkpoint: Position,
}

impl RequestLog {
    /// Creates the log of `instance`, in `folder` or in memory. Creates no file yet.
    pub(crate) fn new(instance: [u8; 16], folder: Option<PathBuf>, max_bytes: u64) -> Self {
        let tail = match folder {
            Some(_) => Tail::Closed,
            None => Tail::Memory { from: 0, bytes: Vec::new() },
        };
        Self {
            instance,
            folder,
            max_bytes,
            inner: Mutex::new(LogState { tail, ..LogState::default() }),
            is_dirty: AtomicBool::new(false),
            health: Health::new(
                "requests cannot be recorded; ledger.on_failure decides whether they are sent anyway",
                "requests can be recorded again",
            ),
            is_lost: AtomicBool::new(false),
            must_rotate: AtomicBool::new(false),
            is_checkpoint_due: AtomicBool::new(false),
            is_checkpoint_requested: AtomicBool::new(false),
            closed_bytes: AtomicU64::new(0),
            checkpoints: AtomicU64::new(0),
        }
    }

    /// Creates the first segment. Requires its instance's lock.
    pub(crate) fn create_first_segment(&self) -> io::Result<()> {
        let mut inner = self.inner.lock();
        if matches!(inner.tail, Tail::Closed) {
            inner.tail = Tail::File(self.new_segment(0)?);
        }
        Ok(())
    }

    fn new_segment(&self, number: u64) -> io::Result<Segment> {
        let folder = self.folder.as_deref().unwrap_or(Path::new("."));
        let file = create_private(&segment_path(folder, &self.instance, number))?;
        Ok(Segment::new(number, file))
    }

    /// Returns whether the last write failed, or the file was removed.
    pub(crate) fn is_failing(&self) -> bool {
        self.health.is_failing() || self.is_lost.load(Ordering::Relaxed)
    }

    /// Writes the record that opens a request.
    pub(crate) fn open(&self, id: RequestId, record: &[u8]) -> Stored<()> {
        if self.is_lost.load(Ordering::Relaxed) {
            return Err(removed_error());
        }
        let mut inner = self.inner.lock();
        self.write(&mut inner, record, self.max_bytes)?;
        inner.open.insert(id);
        Ok(())
    }

    /// Returns those of the requests that are open here.
    pub(crate) fn open_of(&self, ids: &[RequestId]) -> impl Iterator<Item = RequestId> {
        let inner = self.inner.lock();
        let open: Vec<RequestId> =
            ids.iter().filter(|id| inner.open.contains(*id)).copied().collect();
        open.into_iter()
    }

    /// Writes the record that ends a request; `None` if it is not open here.
    pub(crate) fn end(&self, id: RequestId, record: &[u8]) -> Option<Stored<()>> {
        let mut inner = self.inner.lock();
        if !inner.open.contains(&id) {
            return None;
        }
        if self.is_lost.load(Ordering::Relaxed) {
            // The record goes directly into the store.
            inner.open.remove(&id);
            return None;
        }
        let written =
            self.write(&mut inner, record, self.max_bytes + self.max_bytes / RESERVED_SHARE);
        if written.is_ok() {
            inner.open.remove(&id);
        }
        Some(written)
    }

    fn write(&self, inner: &mut LogState, record: &[u8], max_bytes: u64) -> Stored<()> {
        let written_bytes = match &inner.tail {
            Tail::Closed => return Err(StoreError::Closed),
            Tail::Memory { bytes, .. } => bytes.len() as u64,
            Tail::File(segment) => segment.bytes,
        };
        let bytes = written_bytes + self.closed_bytes.load(Ordering::Relaxed);
        let written = if bytes + record.len() as u64 > max_bytes {
            Err(StoreError::Behind { bytes })
        } else {
            let begun = Instant::now();
            let appended = inner.tail.append(record);
            self.health.latency.note(begun.elapsed());
            appended
        };
        if self.folder.is_none() && bytes > MEMORY_BYTES as u64 {
            self.is_checkpoint_due.store(true, Ordering::Relaxed);
        }
        if written.is_ok() {
            self.is_dirty.store(true, Ordering::Release);
        }
        self.health.report(written.as_ref().copied());
        written
    }

    /// Logs a failure, once.
    pub(crate) fn report(&self, error: &StoreError) {
        self.health.fail(error);
    }

    /// Returns whether there is so much in memory that the caller should start a checkpoint. Returns
    /// `true` only once until the next attempt.
    pub(crate) fn should_checkpoint(&self) -> bool {
        self.is_checkpoint_due.load(Ordering::Relaxed)
            && !self.is_checkpoint_requested.swap(true, Ordering::Relaxed)
    }

    /// Records an attempt of a checkpoint.
    pub(crate) fn note_checkpoint_tried(&self) {
        self.is_checkpoint_requested.store(false, Ordering::Relaxed);
    }

    /// Returns the number of writes, and the bytes after the checkpoint.
    pub(crate) fn activity(&self) -> Activity {
        let inner = self.inner.lock();
        let (segment, bytes) = match &inner.tail {
            Tail::Closed => (0, 0),
            Tail::Memory { from, bytes } => (0, from + bytes.len() as u64),
            Tail::File(segment) => (segment.number, segment.bytes),
        };
        let segments = inner.closed.iter().map(|closed| (closed.number, closed.bytes));
        let pending = |(number, bytes): (u64, u64)| match number.cmp(&inner.checkpoint.segment) {
            std::cmp::Ordering::Less => 0,
            std::cmp::Ordering::Equal => bytes.saturating_sub(inner.checkpoint.bytes),
            std::cmp::Ordering::Greater => bytes,
        };
        let (writes, failed_writes) = self.health.counts();
        Activity {
            writes,
            failed_writes,
            checkpoints: self.checkpoints.load(Ordering::Relaxed),
            appends: self.health.latency.read(),
            log_bytes: segments.chain([(segment, bytes)]).map(pending).sum(),
            ..Activity::default()
        }
    }

    /// Returns whether any record lies after the checkpoint.
    pub(crate) fn is_checkpoint_pending(&self) -> bool {
        let inner = self.inner.lock();
        !inner.closed.is_empty() || inner.end() > inner.checkpoint
    }

    /// Returns up to `limit` bytes in memory after `position`; `None` if the log is in files.
    pub(crate) fn read_memory(&self, position: Position, limit: u64) -> Option<Vec<u8>> {
        let inner = self.inner.lock();
        let Tail::Memory { from, bytes } = &inner.tail else { return None };
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let left = bytes.get(size(position.bytes.saturating_sub(*from))..).unwrap_or_default();
        Some(left[..left.len().min(size(limit))].to_vec())
    }

    /// Returns whether the log is closed for writing.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.inner.lock().tail, Tail::Closed)
    }

    /// Returns the files of unfinished segments, oldest first.
    pub(crate) fn segment_files(&self) -> Vec<SegmentFile> {
        let Some(folder) = &self.folder else { return Vec::new() };
        let inner = self.inner.lock();
        let closed = inner.closed.iter().map(|closed| closed.number);
        let tail = match &inner.tail {
            Tail::File(segment) => Some(segment.number),
            _ => None,
        };
        let numbers = closed.chain(tail);
        numbers.map(|segment| SegmentFile::new(folder, self.instance, segment)).collect()
    }

    /// Advances the checkpoint, after its commit.
    pub(crate) fn advance_checkpoint(&self, position: Position) {
        let mut inner = self.inner.lock();
        if position > inner.checkpoint {
            inner.checkpoint = position;
            self.checkpoints.fetch_add(1, Ordering::Relaxed);
        }
        if let Tail::Memory { from, bytes } = &mut inner.tail {
            let done = usize::try_from(position.bytes.saturating_sub(*from)).unwrap_or(usize::MAX);
            let done = done.min(bytes.len());
            bytes.drain(..done);
            *from += done as u64;
            self.is_checkpoint_due.store(bytes.len() > MEMORY_BYTES, Ordering::Relaxed);
        }
        let unfinished = |closed: &ClosedSegment| closed.number >= position.segment;
        while inner.closed.front().is_some_and(|closed| !unfinished(closed)) {
            inner.closed.pop_front();
        }
        let closed_bytes = inner.closed.iter().map(|closed| closed.bytes).sum();
        self.closed_bytes.store(closed_bytes, Ordering::Relaxed);
    }

    /// Requests that the current segment is closed soon.
    pub(crate) fn request_rotation(&self) {
        self.must_rotate.store(true, Ordering::Relaxed);
    }

    /// Starts another segment if the current one is large or its end was requested.
    pub(crate) fn rotate_if_due(&self) {
        let must_rotate = self.must_rotate.swap(false, Ordering::Relaxed);
        let mut inner = self.inner.lock();
        let Tail::File(segment) = &inner.tail else { return };
        let may_be_longer =
            segment.bytes < self.max_bytes / MAX_SEGMENTS && !(must_rotate && segment.bytes > 0);
        if may_be_longer || inner.closed.len() as u64 >= MAX_SEGMENTS {
            return;
        }
        match self.new_segment(segment.number + 1) {
            Ok(next) => {
                if let Tail::File(last) = std::mem::replace(&mut inner.tail, Tail::File(next)) {
                    self.closed_bytes.fetch_add(last.bytes, Ordering::Relaxed);
                    inner.closed.push_back(last.close());
                }
            }
            // The current one can grow a little, and the next write shows whether there is space.
            Err(error) => {
                tracing::debug!(target: "weir::store", %error, "cannot create a new segment")
            }
        }
    }

    /// Closes the log for writing.
    pub(crate) fn close(&self) {
        let mut inner = self.inner.lock();
        if let Tail::File(last) = std::mem::take(&mut inner.tail) {
            inner.closed.push_back(last.close());
        }
    }

    /// Syncs the log to disk and waits for it.
    pub(crate) fn sync(&self) -> io::Result<()> {
        if !self.is_dirty.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let synced = self.sync_files();
        if synced.is_err() {
            self.is_dirty.store(true, Ordering::Release);
            // After a failed sync the system may treat unwritten data as written. A new segment
            // starts clean, and requests open in this one are moved into the tables.
            self.request_rotation();
        }
        synced
    }

    fn sync_files(&self) -> io::Result<()> {
        let mut closed: Vec<(u64, Arc<File>)> = Vec::new();
        let mut tail = None;
        let mut unnamed = None;
        {
            let inner = self.inner.lock();
            let unsynced = |it: &ClosedSegment| Some((it.number, it.unsynced.clone()?));
            closed.extend(inner.closed.iter().filter_map(unsynced));
            if let Tail::File(segment) = &inner.tail {
                tail = Some(Arc::clone(&segment.file));
                unnamed = (!segment.is_name_synced).then_some(segment.number);
            }
        }
        for file in closed.iter().map(|(_, file)| file).chain(&tail) {
            file.sync_data()?;
        }
        if tail.is_some_and(|file| is_unlinked(&file)) {
            self.report(&removed_error());
            self.is_lost.store(true, Ordering::Relaxed);
        }
        if let (Some(number), Some(folder)) = (unnamed, &self.folder) {
            sync_folder(&segment_path(folder, &self.instance, number))?;
            sync_folder(folder)?;
        }
        let mut inner = self.inner.lock();
        for synced in &mut inner.closed {
            // A segment that was ended since may have been written to since.
            if closed.iter().any(|(number, _)| *number == synced.number) {
                synced.unsynced = None;
            }
        }
        if let Tail::File(segment) = &mut inner.tail {
            segment.is_name_synced |= unnamed == Some(segment.number);
        }
        Ok(())
    }
}

fn removed_error() -> StoreError {
    StoreError::Failed(
        "the log of requests next to the store was removed while weir was running; restart weir"
            .to_owned(),
    )
}

impl LogState {
    fn end(&self) -> Position {
        match &self.tail {
            Tail::Closed => Position::default(),
            Tail::Memory { from, bytes } => {
                Position { segment: 0, bytes: from + bytes.len() as u64 }
            }
            Tail::File(segment) => Position { segment: segment.number, bytes: segment.bytes },
        }
    }
}
