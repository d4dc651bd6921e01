//! Open connections of a listener, so that one without a request gives way to a new one. Closes none itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::time::Instant;

/// Connection that leaves if its place is needed while it has no request.
pub trait GivesWay {
    /// Returns when its last request ended; `None` while it has one.
    fn idle_since(&self) -> Option<Instant>;

    /// Signals that it must leave.
    fn leave(&self);
}

/// Connections of a listener, by their numbers.
pub struct OpenConnections<C> {
    next: AtomicU64,
    open: Mutex<BTreeMap<u64, Arc<C>>>,
}

impl<C> Default for OpenConnections<C> {
    fn default() -> Self {
        Self { next: AtomicU64::new(0), open: Mutex::new(BTreeMap::new()) }
    }
}

impl<C: GivesWay> OpenConnections<C> {
    /// Adds a connection until the returned entry is dropped.
    pub fn enter(self: &Arc<Self>, own: Arc<C>) -> Entered<C> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.open.lock().insert(number, own);
        Entered { all: Arc::clone(self), number }
    }

    /// Returns the number of connections that are meant.
    pub fn count(&self, is_meant: impl Fn(&C) -> bool) -> usize {
        self.open.lock().values().filter(|own| is_meant(own)).count()
    }

    /// Lets the connection that has idled longest leave, of those that are meant, so that nobody locks others
    /// out by keeping connections. Returns it, if there is one.
    pub fn release(&self, is_meant: impl Fn(&C) -> bool) -> Option<Arc<C>> {
        let mut open = self.open.lock();
        let meant = open.iter().filter(|(_, own)| is_meant(own));
        let idle = meant.filter_map(|(number, own)| Some((own.idle_since()?, *number)));
        let (_, number) = idle.min()?;
        let released = open.remove(&number)?;
        released.leave();
        Some(released)
    }
}

/// Entry of a connection, which ends on drop.
pub struct Entered<C> {
    all: Arc<OpenConnections<C>>,
    number: u64,
}

impl<C> Drop for Entered<C> {
    fn drop(&mut self) {
        self.all.open.lock().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use super::*;

    struct Open {
        idle_since: Option<Instant>,
        has_left: AtomicBool,
    }

    impl GivesWay for Open {
        fn idle_since(&self) -> Option<Instant> {
            self.idle_since
        }

        fn leave(&self) {
            self.has_left.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn the_longest_idle_gives_way() {
        let (all, now) = (Arc::new(OpenConnections::default()), Instant::now());
        let enter = |idle_since| {
            let own = Arc::new(Open { idle_since, has_left: AtomicBool::new(false) });
            (all.enter(Arc::clone(&own)), own)
        };
        let later = now + Duration::from_secs(1);
        let entered = [None, Some(later), Some(now), Some(now)].map(enter);
        let left = || {
            let left = entered.iter().map(|(_, own)| own.has_left.load(Ordering::Relaxed));
            left.collect::<Vec<_>>()
        };
        assert!(all.release(|own| own.idle_since == Some(later)).is_some());
        assert_eq!(left(), [false, true, false, false]);
        assert!(all.release(|_| true).is_some());
        assert_eq!(left(), [false, true, true, false], "the first of those");
        assert_eq!(all.count(|_| true), 2);
        assert!(all.release(|_| true).is_some());
        assert!(all.release(|_| true).is_none(), "it has a request");
        drop(entered);
        assert_eq!(all.count(|_| true), 0);
    }
}
