//! Bound on the work for one request: it ends if its caller leaves, or if it takes too long. Plans nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::proxy::error::{ErrorKind, ProxyError};

/// Maximum time for a plan, and for each megabyte of its body: several times what a slow machine needs for
/// any conversation but those of hundreds of compactions at once.
const MAX_TIME: Duration = Duration::from_secs(60);
const MAX_TIME_A_MEGABYTE: Duration = Duration::from_secs(2);

/// What work asks now and then.
#[derive(Debug, Clone)]
pub(crate) struct Effort {
    has_left: Arc<AtomicBool>,
    until: Option<Instant>,
}

impl Effort {
    /// Creates a bound that ends with the time `limit`, and that the caller's [`Left`] ends.
    pub(super) fn begin() -> (Self, Left) {
        let has_left = Arc::new(AtomicBool::new(false));
        (Self { has_left: Arc::clone(&has_left), until: None }, Left(has_left))
    }

    /// Starts the time for the plan of a body of this size.
    #[must_use]
    pub(super) fn for_body(self, body_bytes: usize) -> Self {
        let megabytes = u32::try_from(body_bytes >> 20).unwrap_or(u32::MAX);
        self.within(MAX_TIME + MAX_TIME_A_MEGABYTE.saturating_mul(megabytes))
    }

    /// Starts a time of this length.
    #[must_use]
    pub(super) fn within(self, limit: Duration) -> Self {
        Self { until: Some(Instant::now() + limit), ..self }
    }

    /// Whether the work is to end.
    pub(super) fn is_over(&self) -> bool {
        self.has_left.load(Ordering::Relaxed)
            || self.until.is_some_and(|until| Instant::now() > until)
    }
}

/// Error of a plan that took too long.
pub(super) fn too_long(compactions: u32) -> ProxyError {
    let message = format!(
        "Planning this conversation takes too long: after {compactions} compactions it is not at its end. Raise \
         the limit of its model, or begin a new conversation."
    );
    ProxyError::new(ErrorKind::Overloaded, message)
}

/// Ends the work if it is dropped, as its caller leaves.
pub(super) struct Left(Arc<AtomicBool>);

impl Drop for Left {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
