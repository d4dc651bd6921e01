//! Queue of this process's waiting requests, in order of arrival. None overtakes another that waits
//! for the same counter; the order does not span instances.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

use super::super::super::ledger::RequestId;

/// A place in the queue.
pub(super) struct QueueTurn {
    id: RequestId,
    names: Vec<String>,
    /// Whether no earlier request waits for any of its counters.
    is_first: AtomicBool,
    wakeup: Notify,
}

impl QueueTurn {
    pub(super) fn is_first(&self) -> bool {
        self.is_first.load(Ordering::Acquire)
    }

    /// Waits until there may be room.
    pub(super) async fn woken(&self) {
        self.wakeup.notified().await;
    }
}

/// All waiting requests.
#[derive(Default)]
pub(super) struct Queue {
    waiting: VecDeque<Arc<QueueTurn>>,
    by_name: HashMap<String, usize>,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns whether any request waits for one of these counters.
    pub(super) fn has_any_for(&self, names: &[String]) -> bool {
        names.iter().any(|name| self.by_name.contains_key(name))
    }

    /// Returns whether any other request waits for one of these counters.
    pub(super) fn has_others_for(&self, id: RequestId, names: &[String]) -> bool {
        let is_for = |turn: &Arc<QueueTurn>| turn.names.iter().any(|name| names.contains(name));
        self.waiting.iter().any(|turn| turn.id != id && is_for(turn))
    }

    /// Joins at the end.
    pub(super) fn join(&mut self, id: RequestId, names: Vec<String>) -> Arc<QueueTurn> {
        let is_first = AtomicBool::new(!self.has_any_for(&names));
        for name in &names {
            *self.by_name.entry(name.clone()).or_default() += 1;
        }
        let turn = Arc::new(QueueTurn { id, names, is_first, wakeup: Notify::new() });
        self.waiting.push_back(Arc::clone(&turn));
        turn
    }

    /// Leaves the queue.
    pub(super) fn leave(&mut self, turn: &QueueTurn) {
        self.waiting.retain(|other| other.id != turn.id);
        for name in &turn.names {
            if let Some(count) = self.by_name.get_mut(name) {
                *count -= 1;
                if *count == 0 {
                    self.by_name.remove(name);
                }
            }
        }
    }

    /// Wakes the requests whose turn it is, after a change.
    pub(super) fn wake_next(&self) {
        let mut taken: HashSet<&str> = HashSet::new();
        for turn in &self.waiting {
            let is_first = turn.names.iter().all(|name| !taken.contains(name.as_str()));
            taken.extend(turn.names.iter().map(String::as_str));
            turn.is_first.store(is_first, Ordering::Release);
            if is_first {
                turn.wakeup.notify_one();
            }
        }
    }
}
