//! The log that a process writes down its requests in before they are moved into the store: a file
//! of its own beside the store, or memory beside a store in memory. One frame is one write, which
//! survives the end of the process. Knows which of its requests are open, and moves nothing itself.

use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::super::files::{create_private, sync_folder};
use super::super::{Activity, StoreError};
use super::RequestId;
use super::instances::{LogFile, log_path};

/// A log has at most so many segments of the usual size: one that is written, and others that could
/// not be moved yet.
const SEGMENTS: u64 = 16;
/// What of a log is kept for the ends of requests that were opened, as a part of the whole.
const RESERVE: u64 = 4;
/// Bytes in memory past which they are moved.
const MEMORY_BYTES: usize = 64 << 10;

/// A place in a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Position {
    /// Segments are counted from 0, and each is a file.
    pub segment: u64,
    pub bytes: u64,
}

/// A log.
pub struct Log {
    instance: [u8; 16],
    /// Where its files are; `None` in memory.
    folder: Option<PathBuf>,
    max_bytes: u64,
    inner: Mutex<Inner>,
    is_dirty: AtomicBool,
    is_failing: AtomicBool,
    /// Whether its file was taken away.
    is_lost: AtomicBool,
    /// Whether it is to go on in another segment, so that the present one can be forgotten.
    is_old: AtomicBool,
    /// In memory: whether somebody should move it, and whether somebody was told to.
    is_long: AtomicBool,
    is_told: AtomicBool,
    /// Bytes in segments that are still to be moved or deleted, but for the one that is written.
    ended_bytes: AtomicU64,
    writes: AtomicU64,
    failed_writes: AtomicU64,
}

#[derive(Default)]
struct Inner {
    /// Requests that this log has opened and not ended.
    open: HashSet<RequestId>,
    writing: Writing,
    /// Segments that are written and not finished, oldest first.
    ended: VecDeque<Ended>,
    /// How far it was moved.
    moved: Position,
}

#[derive(Default)]
enum Writing {
    #[default]
    Nothing,
    /// What is not known to have been moved, from this byte on.
    Memory {
        from: u64,
        bytes: Vec<u8>,
    },
    File(Segment),
}

struct Segment {
    number: u64,
    file: Arc<File>,
    /// Its whole frames.
    bytes: u64,
    /// Whether a write has left something behind them.
    is_torn: bool,
    /// Whether the folder's own entry for it is on the disk.
    is_named: bool,
}

struct Ended {
    number: u64,
    bytes: u64,
    /// `None` once it is on the disk.
    unsynced: Option<Arc<File>>,
}

impl Log {
    /// The log of `instance`, in `folder` or in memory. Makes no file yet.
    pub fn new(instance: [u8; 16], folder: Option<PathBuf>, max_bytes: u64) -> Self {
        let writing = match folder {
            Some(_) => Writing::Nothing,
            None => Writing::Memory { from: 0, bytes: Vec::new() },
        };
        Self {
            instance,
            folder,
            max_bytes,
            inner: Mutex::new(Inner { writing, ..Inner::default() }),
            is_dirty: AtomicBool::new(false),
            is_failing: AtomicBool::new(false),
            is_lost: AtomicBool::new(false),
            is_old: AtomicBool::new(false),
            is_long: AtomicBool::new(false),
            is_told: AtomicBool::new(false),
            ended_bytes: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            failed_writes: AtomicU64::new(0),
        }
    }

    /// Makes its first segment. To be called once its instance's lock is held.
    pub fn begin(&self) -> io::Result<()> {
        let mut inner = self.inner();
        if matches!(inner.writing, Writing::Nothing) {
            inner.writing = Writing::File(self.segment(0)?);
        }
        Ok(())
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn segment(&self, number: u64) -> io::Result<Segment> {
        let folder = self.folder.as_deref().unwrap_or(Path::new("."));
        let file = create_private(&log_path(folder, &self.instance, number))?;
        Ok(Segment { number, file: Arc::new(file), bytes: 0, is_torn: false, is_named: false })
    }

    /// Whether its last write failed, or what is written leads nowhere.
    pub fn is_failing(&self) -> bool {
        self.is_failing.load(Ordering::Relaxed) || self.is_lost.load(Ordering::Relaxed)
    }

    /// Writes the frame that opens a request.
    pub fn open(&self, id: RequestId, frame: &[u8]) -> Result<(), StoreError> {
        if self.is_lost.load(Ordering::Relaxed) {
            return Err(lost());
        }
        let mut inner = self.inner();
        self.write(&mut inner, frame, self.max_bytes)?;
        inner.open.insert(id);
        Ok(())
    }

    /// Which of these requests are open here.
    pub fn open_of(&self, ids: &[RequestId]) -> impl Iterator<Item = RequestId> {
        let inner = self.inner();
        let open: Vec<RequestId> =
            ids.iter().filter(|id| inner.open.contains(*id)).copied().collect();
        open.into_iter()
    }

    /// Writes the frame that ends a request; `None` if it is not open here.
    pub fn end(&self, id: RequestId, frame: &[u8]) -> Option<Result<(), StoreError>> {
        let mut inner = self.inner();
        if !inner.open.contains(&id) {
            return None;
        }
        if self.is_lost.load(Ordering::Relaxed) {
            // It goes into the store itself.
            inner.open.remove(&id);
            return None;
        }
        let written = self.write(&mut inner, frame, self.max_bytes + self.max_bytes / RESERVE);
        if written.is_ok() {
            inner.open.remove(&id);
        }
        Some(written)
    }

    fn write(&self, inner: &mut Inner, frame: &[u8], max_bytes: u64) -> Result<(), StoreError> {
        let written_bytes = match &inner.writing {
            Writing::Nothing => return Err(StoreError::Closed),
            Writing::Memory { bytes, .. } => bytes.len() as u64,
            Writing::File(segment) => segment.bytes,
        };
        let bytes = written_bytes + self.ended_bytes.load(Ordering::Relaxed);
        let written = if bytes + frame.len() as u64 > max_bytes {
            Err(StoreError::Behind { bytes })
        } else {
            inner.writing.append(frame)
        };
        if self.folder.is_none() && bytes > MEMORY_BYTES as u64 {
            self.is_long.store(true, Ordering::Relaxed);
        }
        let count = if written.is_ok() { &self.writes } else { &self.failed_writes };
        count.fetch_add(1, Ordering::Relaxed);
        match &written {
            Ok(()) => {
                self.is_dirty.store(true, Ordering::Release);
                if self.is_failing.load(Ordering::Relaxed)
                    && self.is_failing.swap(false, Ordering::Relaxed)
                {
                    tracing::info!(target: "weir::store", "requests can be written down again");
                }
            }
            Err(error) => self.report(error),
        }
        written
    }

    /// Tells of a failure, once.
    pub fn report(&self, error: &StoreError) {
        if !self.is_failing.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                target: "weir::store",
                %error,
                "requests cannot be written down; ledger.on_failure says whether they go on without it"
            );
        }
    }

    /// Whether there is so much in memory that the caller should have it moved. Said once until
    /// somebody has tried to.
    pub fn should_be_moved(&self) -> bool {
        self.is_long.load(Ordering::Relaxed) && !self.is_told.swap(true, Ordering::Relaxed)
    }

    /// Says that somebody has tried to move it.
    pub fn note_tried(&self) {
        self.is_told.store(false, Ordering::Relaxed);
    }

    /// What was written so far, and how much of it is not known to have been moved.
    pub fn activity(&self) -> Activity {
        let inner = self.inner();
        let (segment, bytes) = match &inner.writing {
            Writing::Nothing => (0, 0),
            Writing::Memory { from, bytes } => (0, from + bytes.len() as u64),
            Writing::File(segment) => (segment.number, segment.bytes),
        };
        let segments = inner.ended.iter().map(|ended| (ended.number, ended.bytes));
        let unmoved = |(number, bytes): (u64, u64)| match number.cmp(&inner.moved.segment) {
            std::cmp::Ordering::Less => 0,
            std::cmp::Ordering::Equal => bytes.saturating_sub(inner.moved.bytes),
            std::cmp::Ordering::Greater => bytes,
        };
        Activity {
            writes: self.writes.load(Ordering::Relaxed),
            failed_writes: self.failed_writes.load(Ordering::Relaxed),
            queued: 0,
            log_bytes: segments.chain([(segment, bytes)]).map(unmoved).sum(),
        }
    }

    /// Whether anything was written that is not known to have been moved.
    pub fn is_unmoved(&self) -> bool {
        let inner = self.inner();
        !inner.ended.is_empty() || inner.end() > inner.moved
    }

    /// What is in memory behind `position`, at most `limit` bytes; `None` where it is in files.
    pub fn in_memory(&self, position: Position, limit: u64) -> Option<Vec<u8>> {
        let inner = self.inner();
        let Writing::Memory { from, bytes } = &inner.writing else { return None };
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let left = bytes.get(size(position.bytes.saturating_sub(*from))..).unwrap_or_default();
        Some(left[..left.len().min(size(limit))].to_vec())
    }

    /// Whether nothing more will be written.
    pub fn is_closed(&self) -> bool {
        matches!(self.inner().writing, Writing::Nothing)
    }

    /// The files of its segments that are not finished, oldest first.
    pub fn files(&self) -> Vec<LogFile> {
        let Some(folder) = &self.folder else { return Vec::new() };
        let inner = self.inner();
        let ended = inner.ended.iter().map(|ended| ended.number);
        let writing = match &inner.writing {
            Writing::File(segment) => Some(segment.number),
            _ => None,
        };
        let numbers = ended.chain(writing);
        numbers.map(|segment| LogFile::new(folder, self.instance, segment)).collect()
    }

    /// Notes how far it was moved, once that is committed.
    pub fn note_moved(&self, position: Position) {
        let mut inner = self.inner();
        inner.moved = inner.moved.max(position);
        if let Writing::Memory { from, bytes } = &mut inner.writing {
            let done = usize::try_from(position.bytes.saturating_sub(*from)).unwrap_or(usize::MAX);
            let done = done.min(bytes.len());
            bytes.drain(..done);
            *from += done as u64;
            self.is_long.store(bytes.len() > MEMORY_BYTES, Ordering::Relaxed);
        }
        let unfinished = |ended: &Ended| ended.number >= position.segment;
        while inner.ended.front().is_some_and(|ended| !unfinished(ended)) {
            inner.ended.pop_front();
        }
        let ended_bytes = inner.ended.iter().map(|ended| ended.bytes).sum();
        self.ended_bytes.store(ended_bytes, Ordering::Relaxed);
    }

    /// Says that the segment that is written is to be forgotten before long.
    pub fn age(&self) {
        self.is_old.store(true, Ordering::Relaxed);
    }

    /// Goes on in another segment where the present one has grown, or is old.
    pub fn turn(&self) {
        let is_old = self.is_old.swap(false, Ordering::Relaxed);
        let mut inner = self.inner();
        let Writing::File(segment) = &inner.writing else { return };
        let may_be_longer =
            segment.bytes < self.max_bytes / SEGMENTS && !(is_old && segment.bytes > 0);
        if may_be_longer || inner.ended.len() as u64 >= SEGMENTS {
            return;
        }
        match self.segment(segment.number + 1) {
            Ok(next) => {
                if let Writing::File(last) =
                    std::mem::replace(&mut inner.writing, Writing::File(next))
                {
                    self.ended_bytes.fetch_add(last.bytes, Ordering::Relaxed);
                    let ended =
                        Ended { number: last.number, bytes: last.bytes, unsynced: Some(last.file) };
                    inner.ended.push_back(ended);
                }
            }
            // It can grow a little longer, and the next write tells whether there is room.
            Err(error) => tracing::debug!(target: "weir::store", %error, "no new segment"),
        }
    }

    /// Ends it: nothing more will be written.
    pub fn close(&self) {
        let mut inner = self.inner();
        if let Writing::File(last) = std::mem::take(&mut inner.writing) {
            let unsynced = Some(last.file);
            inner.ended.push_back(Ended { number: last.number, bytes: last.bytes, unsynced });
        }
    }

    /// Brings what was written to the disk, and waits for it.
    pub fn sync(&self) -> io::Result<()> {
        if !self.is_dirty.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let synced = self.sync_files();
        if synced.is_err() {
            self.is_dirty.store(true, Ordering::Release);
            // The system may hold for written what is not. In another segment it begins anew, and
            // what is open in this one goes into the tables.
            self.age();
        }
        synced
    }

    fn sync_files(&self) -> io::Result<()> {
        let mut ended: Vec<(u64, Arc<File>)> = Vec::new();
        let mut writing = None;
        let mut unnamed = None;
        {
            let inner = self.inner();
            let unsynced = |it: &Ended| Some((it.number, it.unsynced.clone()?));
            ended.extend(inner.ended.iter().filter_map(unsynced));
            if let Writing::File(segment) = &inner.writing {
                writing = Some(Arc::clone(&segment.file));
                unnamed = (!segment.is_named).then_some(segment.number);
            }
        }
        for file in ended.iter().map(|(_, file)| file).chain(&writing) {
            file.sync_data()?;
        }
        if writing.is_some_and(|file| has_lost_its_name(&file)) {
            self.report(&lost());
            self.is_lost.store(true, Ordering::Relaxed);
        }
        if let (Some(number), Some(folder)) = (unnamed, &self.folder) {
            sync_folder(&log_path(folder, &self.instance, number))?;
            sync_folder(folder)?;
        }
        let mut inner = self.inner();
        for synced in &mut inner.ended {
            // One that has ended since may have been written to since.
            if ended.iter().any(|(number, _)| *number == synced.number) {
                synced.unsynced = None;
            }
        }
        if let Writing::File(segment) = &mut inner.writing {
            segment.is_named |= unnamed == Some(segment.number);
        }
        Ok(())
    }
}

fn lost() -> StoreError {
    StoreError::Failed(
        "the log of requests beside the store was removed while weir ran; restart weir".to_owned(),
    )
}

#[cfg(unix)]
fn has_lost_its_name(file: &File) -> bool {
    use std::os::unix::fs::MetadataExt;
    file.metadata().is_ok_and(|file| file.nlink() == 0)
}

/// Elsewhere a file that is open cannot be removed.
#[cfg(not(unix))]
fn has_lost_its_name(_file: &File) -> bool {
    false
}

impl Inner {
    fn end(&self) -> Position {
        match &self.writing {
            Writing::Nothing => Position::default(),
            Writing::Memory { from, bytes } => {
                Position { segment: 0, bytes: from + bytes.len() as u64 }
            }
            Writing::File(segment) => Position { segment: segment.number, bytes: segment.bytes },
        }
    }
}

impl Writing {
    /// Writes a frame, whole or not at all.
    fn append(&mut self, frame: &[u8]) -> Result<(), StoreError> {
        match self {
            Self::Nothing => Err(StoreError::Closed),
            Self::Memory { bytes, .. } => {
                bytes.extend(frame);
                Ok(())
            }
            Self::File(segment) => segment.append(frame).map_err(|error| match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreError::Full,
                _ => StoreError::Failed(error.to_string()),
            }),
        }
    }
}

impl Segment {
    fn append(&mut self, frame: &[u8]) -> io::Result<()> {
        let mut file = &*self.file;
        if self.is_torn {
            file.set_len(self.bytes)?;
            file.seek(SeekFrom::Start(self.bytes))?;
            self.is_torn = false;
        }
        self.is_torn = true;
        match file.write(frame) {
            Ok(bytes) if bytes == frame.len() => {}
            // What is left of a disk that is nearly full.
            Ok(_) => return Err(io::ErrorKind::StorageFull.into()),
            Err(error) => return Err(error),
        }
        self.is_torn = false;
        self.bytes += frame.len() as u64;
        Ok(())
    }
}
