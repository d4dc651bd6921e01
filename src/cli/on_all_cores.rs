//! Work on all cores, with its results in order.

use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::progress::Progress;

/// Runs `work` for each of the items on all cores, and returns the results in order. A bar with this label shows
/// the progress, if it is wanted.
pub(super) fn on_all_cores<I: Sync, T: Send>(
    label: &'static str,
    is_shown: bool,
    items: &[I],
    work: impl Fn(&I) -> T + Sync,
) -> Vec<T> {
    let progress = Progress::new(is_shown, label, items.len() as u64);
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(items.len()));
    let take = || loop {
        let place = next.fetch_add(1, Ordering::Relaxed);
        let Some(item) = items.get(place) else { break };
        let result = work(item);
        progress.step();
        done.lock().expect("nothing panics while it is held").push((place, result));
    };
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        for _ in 0..threads.min(items.len()) {
            scope.spawn(take);
        }
    });
    let mut done = done.into_inner().expect("nothing panics while it is held");
    done.sort_by_key(|(place, _)| *place);
    done.into_iter().map(|(_, result)| result).collect()
}
