//! Handling of a request that goes on without its caller: what an upstream is working on is billed, so
//! its answer is read for its usage. Nothing more is sent for a caller that has left.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Response;

use super::drain::Drains;
use crate::proxy::error::ProxyError;
use crate::proxy::record::Presence;
use crate::upstream::Body;

/// Large, and moved as a pointer.
pub type Handling = Pin<Box<dyn Future<Output = Result<Response<Body>, ProxyError>> + Send>>;

/// Handling of a request up to the head of its answer. If it is dropped before, because the caller has
/// left, and an upstream has the request, the drains take it over.
pub struct Attended {
    /// `None` once it is done.
    handling: Option<Handling>,
    presence: Arc<Presence>,
    drains: Drains,
}

impl Attended {
    /// Creates the handling of a request whose record has this `presence`.
    pub fn new(handling: Handling, presence: Arc<Presence>, drains: &Drains) -> Self {
        Self { handling: Some(handling), presence, drains: drains.clone() }
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
        if !self.presence.is_sent() {
            return;
        }
        self.presence.leave();
        self.drains.take_running(async move {
            // A body that is dropped is read on by itself.
            drop(handling.await);
        });
    }
}
