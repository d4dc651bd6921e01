//! Answers whose callers have left: read on for a while, for the usage at their end, and then
//! cancelled. Keeps nothing of what they say.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::BoxError;
use super::relay::Relay;
use crate::config;

/// How many answers are read on at once; past that a caller that leaves takes its answer along.
const MAX_DRAINS: usize = 1024;

/// The answers that are read on without their callers.
#[derive(Clone)]
pub struct Drains {
    limit: Duration,
    tasks: Arc<Mutex<JoinSet<()>>>,
}

impl Drains {
    /// None, to begin with.
    pub fn new(config: &config::Ledger) -> Self {
        Self {
            limit: Duration::from_millis(config.drain_ms),
            tasks: Arc::new(Mutex::new(JoinSet::new())),
        }
    }

    /// Waits until all of them have come to an end.
    pub async fn settled(&self) {
        while poll_fn(|cx| self.tasks().poll_join_next(cx)).await.is_some() {}
    }

    /// Cancels them all, and waits until each has been accounted for.
    pub async fn end(&self) {
        self.tasks().abort_all();
        self.settled().await;
    }

    fn take(&self, mut relay: Relay) {
        let mut tasks = self.tasks();
        while tasks.try_join_next().is_some() {}
        // Without a runtime there is nobody to read on: it is being taken down.
        let Ok(runtime) = Handle::try_current() else { return };
        if self.limit.is_zero() || tasks.len() >= MAX_DRAINS || !relay.may_tell_more() {
            return;
        }
        relay.leave();
        let limit = self.limit;
        let drain = async move {
            let read = async { while relay.may_tell_more() && relay.next().await {} };
            // Whatever came until then counts; the rest is cancelled with the body.
            let _ = timeout(limit, read).await;
        };
        tasks.spawn_on(drain, &runtime);
    }

    fn tasks(&self) -> MutexGuard<'_, JoinSet<()>> {
        // The set is whole whoever held it: nothing in here panics halfway.
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An answer's body that is read on when it is dropped before its end.
pub struct Drained {
    relay: Option<Relay>,
    drains: Drains,
}

impl Drained {
    pub fn new(relay: Relay, drains: &Drains) -> Self {
        Self { relay: Some(relay), drains: drains.clone() }
    }
}

impl HttpBody for Drained {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.relay {
            Some(relay) => Pin::new(relay).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.relay.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.relay.as_ref().map_or_else(SizeHint::new, HttpBody::size_hint)
    }
}

impl Drop for Drained {
    fn drop(&mut self) {
        if let Some(relay) = self.relay.take() {
            self.drains.take(relay);
        }
    }
}
