//! Work on all cores, with its results in order.

use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Runs `work` for the first `count` numbers on all cores, and returns the results in order.
pub(super) fn on_all_cores<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(count));
    let take = || loop {
        let place = next.fetch_add(1, Ordering::Relaxed);
        if place >= count {
            break;
        }
        let result = work(place);
        done.lock().expect("nothing panics while it is held").push((place, result));
    };
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        for _ in 0..threads.min(count) {
            scope.spawn(take);
        }
    });
    let mut done = done.into_inner().expect("nothing panics while it is held");
    done.sort_by_key(|(place, _)| *place);
    done.into_iter().map(|(_, result)| result).collect()
}
