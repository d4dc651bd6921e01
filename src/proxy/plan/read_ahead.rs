//! Reading of messages ahead of the compaction that asks for them, in the background.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::readings::Unread;
use super::shared::PlanState;

/// Reading that is left to do once its request is sent, if any.
#[derive(Clone, Default)]
pub struct ReadAhead(Option<(Arc<PlanState>, Box<Unread>)>);

impl ReadAhead {
    pub(super) fn new(state: &Arc<PlanState>, unread: Option<Unread>) -> Self {
        Self(unread.map(|unread| (Arc::clone(state), Box::new(unread))))
    }

    /// Reads the messages now.
    #[cfg(test)]
    pub(super) fn run(self) {
        if let Some((state, unread)) = self.0 {
            unread.read(&state.cache.readings, || Some(()));
        }
    }

    /// Reads the messages in the background while a core is free. The compaction reads the others. Plans that
    /// wait for a core get it after the current message. Meanwhile the body, of at most a third of the cache's
    /// size, stays in memory. Returns the task, if there is one.
    pub fn start(self) -> Option<JoinHandle<()>> {
        let (state, unread) = self.0?;
        let runtime = Handle::try_current().ok()?;
        Some(runtime.spawn_blocking(move || {
            let read = || unread.read(&state.cache.readings, || state.heavy.try_acquire().ok());
            if catch_unwind(AssertUnwindSafe(read)).is_err() {
                tracing::error!(target: "weir::fault", "reading ahead failed");
            }
        }))
    }
}

impl fmt::Debug for ReadAhead {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let messages = self.0.as_ref().map_or(0, |(_, unread)| unread.messages.len());
        formatter.debug_tuple("ReadAhead").field(&messages).finish()
    }
}

/// Part of no plan: two are equal if they send the same.
impl PartialEq for ReadAhead {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for ReadAhead {}
