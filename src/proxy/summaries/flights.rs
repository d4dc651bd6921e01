//! Work that is under way once, however many wait for it. It belongs to none of them: one that goes
//! away ends nothing. What failed a short while ago is not begun again.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use moka::sync::Cache;
use tokio::sync::{Semaphore, watch};

use super::keys::Key;

/// The most pieces of work that are under way or wait for a place; more are not begun.
const MOST_UNDER_WAY: usize = 1024;
/// How long what failed is not tried again.
const FAILED_FOR: Duration = Duration::from_secs(60);
/// How many failures are remembered.
const MOST_FAILED: u64 = 10_000;

/// What is under way.
pub struct Flights {
    under_way: Mutex<HashMap<Key, watch::Receiver<()>>>,
    places: Semaphore,
    failed: Cache<Key, ()>,
}

/// The end of a piece of work.
#[derive(Clone)]
pub struct Landing(watch::Receiver<()>);

impl Landing {
    /// Waits for the end, however it comes.
    pub async fn reached(mut self) {
        while self.0.changed().await.is_ok() {}
    }
}

impl Flights {
    /// With room for `most` pieces at once.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            under_way: Mutex::default(),
            places: Semaphore::new(most),
            failed: Cache::builder().max_capacity(MOST_FAILED).time_to_live(FAILED_FOR).build(),
        })
    }

    /// Whether the work for `key` is under way or has failed just now, so that there is none to
    /// begin.
    pub fn has(&self, key: &Key) -> bool {
        self.failed.contains_key(key) || self.list().contains_key(key)
    }

    /// Begins the work for `key`, which tells whether it succeeded, or joins what is under way.
    /// `None` where it failed a short while ago, or there is too much to do.
    pub fn begin<W>(self: &Arc<Self>, key: Key, work: impl FnOnce() -> W) -> Option<Landing>
    where
        W: Future<Output = bool> + Send + 'static,
    {
        let mut list = self.list();
        if let Some(under_way) = list.get(&key) {
            return Some(Landing(under_way.clone()));
        }
        if list.len() >= MOST_UNDER_WAY || self.failed.contains_key(&key) {
            return None;
        }
        let runtime = tokio::runtime::Handle::try_current().ok()?;
        let (end, landing) = watch::channel(());
        list.insert(key, landing.clone());
        drop(list);
        let flight = Flight { flights: Arc::clone(self), key, has_failed: true, _end: end };
        let work = work();
        runtime.spawn(async move {
            let mut flight = flight;
            let flights = Arc::clone(&flight.flights);
            let _place = flights.places.acquire().await;
            flight.has_failed = !work.await;
        });
        Some(Landing(landing))
    }

    /// Waits for all that is under way.
    pub async fn finish(&self) {
        let all: Vec<_> = self.list().values().cloned().collect();
        for one in all {
            Landing(one).reached().await;
        }
    }

    fn list(&self) -> MutexGuard<'_, HashMap<Key, watch::Receiver<()>>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A piece of work; it is over when this is dropped, also by a fault.
struct Flight {
    flights: Arc<Flights>,
    key: Key,
    has_failed: bool,
    /// Tells those who wait, after all else.
    _end: watch::Sender<()>,
}

impl Drop for Flight {
    fn drop(&mut self) {
        if self.has_failed {
            self.flights.failed.insert(self.key, ());
        }
        self.flights.list().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test]
    async fn a_thousand_wait_for_one_though_its_leader_leaves() {
        let flights = Flights::new(2);
        let calls = Arc::new(AtomicU32::new(0));
        let gate = Arc::new(Semaphore::new(0));
        let join = || {
            let (calls, gate) = (Arc::clone(&calls), Arc::clone(&gate));
            flights.begin([1; 32], move || async move {
                calls.fetch_add(1, Ordering::Relaxed);
                gate.acquire().await.is_ok()
            })
        };
        let leader = tokio::spawn(join().expect("it begins").reached());
        let waiters: Vec<_> =
            (0..1000).map(|_| tokio::spawn(join().expect("it is under way").reached())).collect();
        leader.abort();
        for waiter in waiters.iter().step_by(3) {
            waiter.abort();
        }
        tokio::task::yield_now().await;
        gate.add_permits(1);
        for (index, waiter) in waiters.into_iter().enumerate() {
            assert_eq!(waiter.await.is_ok(), index % 3 != 0);
        }
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        assert!(!flights.has(&[1; 32]), "it can be begun again");
    }

    #[tokio::test]
    async fn what_failed_or_broke_is_not_begun_again_at_once() {
        let flights = Flights::new(1);
        flights.begin([1; 32], || async { false }).expect("it begins").reached().await;
        flights.begin([2; 32], || async { panic!("on purpose") }).expect("too").reached().await;
        for key in [[1; 32], [2; 32]] {
            assert!(flights.begin(key, || async { true }).is_none());
        }
        flights.begin([3; 32], || async { true }).expect("it begins").reached().await;
        assert!(!flights.has(&[3; 32]));
    }

    #[tokio::test]
    async fn there_are_no_more_at_once_than_there_may_be() {
        let flights = Flights::new(1);
        let gate = Arc::new(Semaphore::new(0));
        let at_once = Arc::new(AtomicU32::new(0));
        let most = Arc::new(AtomicU32::new(0));
        for key in 0..5 {
            let (gate, at_once, most) =
                (Arc::clone(&gate), Arc::clone(&at_once), Arc::clone(&most));
            let begun = flights.begin([key; 32], move || async move {
                most.fetch_max(at_once.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                let is_open = gate.acquire().await.is_ok();
                at_once.fetch_sub(1, Ordering::Relaxed);
                is_open
            });
            assert!(begun.is_some());
        }
        gate.add_permits(5);
        flights.finish().await;
        assert_eq!(most.load(Ordering::Relaxed), 1);
    }
}
