//! Deduplicated background work: each piece runs once, however many wait for it. Waiters do not own
//! it: one that leaves ends nothing. Work that failed recently is not started again.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};

use super::keys::Key;
use crate::proxy::cache::Cache;

/// Maximum pieces of work running or waiting for a slot; more are not started.
const MOST_UNDER_WAY: usize = 1024;
/// How long failed work is not tried again.
const FAILED_FOR: Duration = Duration::from_secs(60);
/// Maximum number of failures remembered.
const MOST_FAILED: u64 = 10_000;

/// Work by the start of its span, each with the receiver of its end.
type UnderWay = HashMap<Key, Vec<(Part, watch::Receiver<()>)>>;

/// Work in progress, by the start of its span. Conversations with the same beginning share that
/// start, and each has its own work.
pub(super) struct Flights {
    under_way: Mutex<UnderWay>,
    places: Semaphore,
    failed: Cache<Key, Part>,
}

/// Messages of a piece of work: their number from the start of the span, and their key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    pub messages: usize,
    pub key: Key,
}

/// End of a piece of work.
#[derive(Clone)]
pub(super) struct Landing(watch::Receiver<()>);

impl Landing {
    /// Waits for the end, successful or not.
    pub(super) async fn reached(mut self) {
        while self.0.changed().await.is_ok() {}
    }
}

impl Flights {
    /// Creates an empty set that runs `most` pieces at once.
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            under_way: Mutex::default(),
            places: Semaphore::new(most),
            failed: Cache::builder(MOST_FAILED).time_to_live(FAILED_FOR).build(),
        })
    }

    /// Whether work that starts at `start` for a part that `is_own` is in progress or has just
    /// failed, so that none need be started.
    pub(super) fn has(&self, start: &Key, is_own: impl Fn(&Part) -> bool) -> bool {
        self.failed.get(start).is_some_and(|part| is_own(&part))
            || self
                .under_way
                .lock()
                .get(start)
                .is_some_and(|own| own.iter().any(|(part, _)| is_own(part)))
    }

    /// Starts the work for `part` from `start`, which returns whether it succeeded, or joins work
    /// in progress for a part that `is_own`. `None` if such work failed recently, or there is too
    /// much to do.
    pub(super) fn begin<W>(
        self: &Arc<Self>,
        (start, part): (Key, Part),
        is_own: impl Fn(&Part) -> bool,
        work: impl FnOnce() -> W,
    ) -> Option<Landing>
    where
        W: Future<Output = bool> + Send + 'static,
    {
        let mut list = self.under_way.lock();
        let under_way = list.get(&start).into_iter().flatten().find(|(part, _)| is_own(part));
        if let Some((_, under_way)) = under_way {
            return Some(Landing(under_way.clone()));
        }
        let has_failed = self.failed.get(&start).is_some_and(|part| is_own(&part));
        if has_failed || list.values().map(Vec::len).sum::<usize>() >= MOST_UNDER_WAY {
            return None;
        }
        let runtime = tokio::runtime::Handle::try_current().ok()?;
        let (end, landing) = watch::channel(());
        list.entry(start).or_default().push((part, landing.clone()));
        drop(list);
        let flights = Arc::clone(self);
        let flight = Flight { flights, start, part, has_failed: true, _end: end };
        let work = work();
        runtime.spawn(async move {
            let mut flight = flight;
            let flights = Arc::clone(&flight.flights);
            let _place = flights.places.acquire().await;
            flight.has_failed = !work.await;
        });
        Some(Landing(landing))
    }

    /// Waits for all work in progress.
    pub(super) async fn finish(&self) {
        let all: Vec<_> = self.under_way.lock().values().flatten().cloned().collect();
        for (_, one) in all {
            Landing(one).reached().await;
        }
    }
}

/// Piece of work; it is over when this is dropped, even after a panic.
struct Flight {
    flights: Arc<Flights>,
    start: Key,
    part: Part,
    has_failed: bool,
    /// Notifies the waiters, after all else.
    _end: watch::Sender<()>,
}

impl Drop for Flight {
    fn drop(&mut self) {
        if self.has_failed {
            self.flights.failed.insert(&self.start, self.part);
        }
        let mut list = self.flights.under_way.lock();
        if let Some(own) = list.get_mut(&self.start) {
            own.retain(|(part, _)| *part != self.part);
            if own.is_empty() {
                list.remove(&self.start);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    const START: Key = [7; 32];

    fn part(number: u8) -> Part {
        Part { messages: 1, key: [number; 32] }
    }

    fn begin<W>(flights: &Arc<Flights>, number: u8, work: impl FnOnce() -> W) -> Option<Landing>
    where
        W: Future<Output = bool> + Send + 'static,
    {
        flights.begin((START, part(number)), |other| *other == part(number), work)
    }

    fn has(flights: &Flights, number: u8) -> bool {
        flights.has(&START, |other| *other == part(number))
    }

    #[tokio::test]
    async fn a_thousand_wait_for_one_though_its_leader_leaves() {
        let flights = Flights::new(2);
        let calls = Arc::new(AtomicU32::new(0));
        let gate = Arc::new(Semaphore::new(0));
        let join = || {
            let (calls, gate) = (Arc::clone(&calls), Arc::clone(&gate));
            begin(&flights, 1, move || async move {
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
        assert!(!has(&flights, 1), "it can be begun again");
    }

    #[tokio::test]
    async fn what_failed_or_broke_is_not_begun_again_at_once() {
        let flights = Flights::new(1);
        begin(&flights, 1, || async { false }).expect("it begins").reached().await;
        begin(&flights, 2, || async { panic!("on purpose") }).expect("too").reached().await;
        assert!(begin(&flights, 2, || async { true }).is_none());
        assert!(has(&flights, 2));
        begin(&flights, 3, || async { true }).expect("it begins").reached().await;
        assert!(!has(&flights, 3));
    }

    #[tokio::test]
    async fn what_begins_alike_has_work_of_its_own() {
        let flights = Flights::new(2);
        let gate = Arc::new(Semaphore::new(0));
        let landings: Vec<Landing> = (1..=2)
            .filter_map(|number| {
                let gate = Arc::clone(&gate);
                begin(&flights, number, move || async move { gate.acquire().await.is_ok() })
            })
            .collect();
        assert_eq!((landings.len(), has(&flights, 1), has(&flights, 2)), (2, true, true));
        assert!(!has(&flights, 3));
        gate.add_permits(2);
        for landing in landings {
            landing.reached().await;
        }
        assert!(!has(&flights, 1) && !has(&flights, 2));
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
            let begun = begin(&flights, key, move || async move {
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
