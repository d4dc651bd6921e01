//! Segments of a write-ahead log: the tail that records are appended to, and closed ones.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::sync::Arc;

use crate::{StoreError, Stored};

/// Place that records are appended to.
#[derive(Default)]
pub(super) enum Tail {
    /// None yet, or none any more.
    #[default]
    Closed,
    /// Records that may not be checkpointed yet, with the offset of the first byte.
    Memory {
        from: u64,
        bytes: Vec<u8>,
    },
    File(Segment),
}

/// Segment that is being written.
pub(super) struct Segment {
    pub number: u64,
    pub file: Arc<File>,
    /// Bytes of complete records.
    pub bytes: u64,
    /// Whether a failed write left data after them.
    is_torn: bool,
    /// Whether the file's folder entry is synced to disk.
    pub is_name_synced: bool,
}

/// Segment that is no longer written.
pub(super) struct ClosedSegment {
    pub number: u64,
    pub bytes: u64,
    /// `None` once synced to disk.
    pub unsynced: Option<Arc<File>>,
}

impl Tail {
    /// Appends a record completely or not at all.
    pub(super) fn append(&mut self, record: &[u8]) -> Stored<()> {
        match self {
            Self::Closed => Err(StoreError::Closed),
            Self::Memory { bytes, .. } => {
                bytes.extend(record);
                Ok(())
            }
            Self::File(segment) => segment.append(record).map_err(|error| match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreError::Full,
                _ => StoreError::Failed(error.to_string()),
            }),
        }
    }
}

impl Segment {
    pub(super) fn new(number: u64, file: File) -> Self {
        Self { number, file: Arc::new(file), bytes: 0, is_torn: false, is_name_synced: false }
    }

    /// Ends writing to it.
    pub(super) fn close(self) -> ClosedSegment {
        ClosedSegment { number: self.number, bytes: self.bytes, unsynced: Some(self.file) }
    }

    fn append(&mut self, record: &[u8]) -> io::Result<()> {
        let mut file = &*self.file;
        if self.is_torn {
            file.set_len(self.bytes)?;
            file.seek(SeekFrom::Start(self.bytes))?;
            self.is_torn = false;
        }
        self.is_torn = true;
        match file.write(record) {
            Ok(bytes) if bytes == record.len() => {}
            // The remainder of a nearly full disk.
            Ok(_) => return Err(io::ErrorKind::StorageFull.into()),
            Err(error) => return Err(error),
        }
        self.is_torn = false;
        self.bytes += record.len() as u64;
        Ok(())
    }
}

/// Returns whether the file was removed while it is open.
#[cfg(unix)]
pub(super) fn is_unlinked(file: &File) -> bool {
    use std::os::unix::fs::MetadataExt;
    file.metadata().is_ok_and(|file| file.nlink() == 0)
}

/// On other systems an open file cannot be removed.
#[cfg(not(unix))]
pub fn is_unlinked(_file: &File) -> bool {
    false
}
