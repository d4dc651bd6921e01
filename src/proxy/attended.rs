//! Handling of a request that goes on without its caller: what an upstream is working on is billed, so
//! its answer is read for its usage. Nothing more is sent for a caller that has left.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use http::Response;

use super::error::ProxyError;
use super::relay::drain::Drains;
use crate::upstream::Body;
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
        *self.slot() = Some(slot);
    }

    /// Records that the caller has left, which frees its slot.
    pub fn leave(&self) {
        self.has_left.store(true, Ordering::Relaxed);
        drop(self.slot().take());
    }

    fn slot(&self) -> MutexGuard<'_, Option<Slot>> {
        // Nothing panics under the lock.
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records whether an upstream has the request.
    pub fn sent(&self, is_sent: bool) {
        self.is_sent.store(is_sent, Ordering::Relaxed);
    }

    /// Whether the caller has left.
    pub fn has_left(&self) -> bool {
        self.has_left.load(Ordering::Relaxed)
    }
}

type Handling = Pin<Box<dyn Future<Output = Result<Response<Body>, ProxyError>> + Send>>;

/// Handling of a request up to the head of its answer. If it is dropped before, because the caller has
/// left, and an upstream has the request, the drains take it over.
pub(super) struct Attended {
    /// `None` once it is done.
    handling: Option<Handling>,
    presence: Arc<Presence>,
    drains: Drains,
}

impl Attended {
    /// Creates the handling of a request whose record has this `presence`.
    pub(super) fn new(
        handling: impl Future<Output = Result<Response<Body>, ProxyError>> + Send + 'static,
        presence: Arc<Presence>,
        drains: &Drains,
    ) -> Self {
        Self { handling: Some(Box::pin(handling)), presence, drains: drains.clone() }
    }
}

impl Future for Attended {
    type Output = Result<Response<Body>, ProxyError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(handling) = &mut self.handling else { return Poll::Pending };
        let polled = handling.as_mut().poll(cx);
        if polled.is_ready() {
            self.handling = None;
        }
        polled
    }
}

impl Drop for Attended {
    fn drop(&mut self) {
        let Some(handling) = self.handling.take() else { return };
        if !self.presence.is_sent.load(Ordering::Relaxed) {
            return;
        }
        self.presence.leave();
        self.drains.take_running(async move {
            // A body that is dropped is read on by itself.
            drop(handling.await);
        });
    }
}
