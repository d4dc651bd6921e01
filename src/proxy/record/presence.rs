//! Presence of a request's caller, and of an upstream that works for it. Ends nothing by itself.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use weir_store::rates::Slot;

/// Whether a request's caller is there, and whether an upstream has the request.
#[derive(Debug, Default)]
pub struct Presence {
    is_sent: AtomicBool,
    has_left: AtomicBool,
    /// The caller's slot among the concurrent requests of its key.
    slot: Mutex<Option<Slot>>,
}

impl Presence {
    /// Keeps the caller's slot until it leaves, or all is over.
    pub fn occupies(&self, slot: Slot) {
        *self.slot.lock() = Some(slot);
    }

    /// Records that the caller has left, which frees its slot.
    pub fn leave(&self) {
        self.has_left.store(true, Ordering::Relaxed);
        drop(self.slot.lock().take());
    }

    /// Records whether an upstream has the request.
    pub fn sent(&self, is_sent: bool) {
        self.is_sent.store(is_sent, Ordering::Relaxed);
    }

    /// Whether an upstream has the request.
    pub fn is_sent(&self) -> bool {
        self.is_sent.load(Ordering::Relaxed)
    }

    /// Whether the caller has left.
    pub fn has_left(&self) -> bool {
        self.has_left.load(Ordering::Relaxed)
    }
}
