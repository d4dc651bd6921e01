//! Answers whose callers have left: read for a while for the usage at their end, then cancelled.
//! Keeps none of their content.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::config;
use crate::proxy::relay::Relay;
use crate::upstream::BoxError;

/// Maximum number of answers read at once; past that, a caller that leaves cancels its answer.
const MAX_DRAINS: usize = 1024;

/// Answers that are read without their callers.
#[derive(Clone)]
pub struct Drains {
    limit: Duration,
    tasks: Arc<Mutex<JoinSet<()>>>,
}

impl Drains {
    /// Creates an empty set.
    pub fn new(config: &config::Ledger) -> Self {
        Self {
            limit: Duration::from_millis(config.drain_ms),
            tasks: Arc::new(Mutex::new(JoinSet::new())),
        }
    }

    /// Waits until all of them have ended.
    pub async fn settled(&self) {
        while poll_fn(|cx| self.tasks.lock().poll_join_next(cx)).await.is_some() {}
    }

    /// Cancels them all, and waits until each has been accounted for.
    pub async fn end(&self) {
        self.tasks.lock().abort_all();
        self.settled().await;
    }

    fn take(&self, mut relay: Relay) {
        if !relay.may_reveal_usage() {
            return;
        }
        relay.leave();
        self.take_running(async move { while relay.may_reveal_usage() && relay.next().await {} });
    }

    /// Takes over the reading of an answer whose caller has left.
    pub(crate) fn take_running(&self, reading: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        // Without a runtime nothing can be read: it is shutting down.
        let Ok(runtime) = Handle::try_current() else { return };
        if self.limit.is_zero() || tasks.len() >= MAX_DRAINS {
            return;
        }
        let limit = self.limit;
        let drain = async move {
            // Everything read so far counts; the rest is cancelled with the body.
            let _ = timeout(limit, reading).await;
        };
        tasks.spawn_on(drain, &runtime);
    }
}

/// Answer body that is read further if it is dropped before its end.
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
