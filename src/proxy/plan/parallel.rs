//! Parallel work on many messages of a body, shared with other threads while cores are free.
//! Without a free core, the caller does it alone; the results are the same.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

/// Smaller work finishes before another thread wakes up.
const MIN_BYTES: usize = 64 << 10;
/// Maximum number of helper threads for one body.
const MAX_HELPERS: usize = 3;

/// Messages of one body to work on.
struct Task<W> {
    body: Bytes,
    spans: Vec<Range<usize>>,
    /// First message that no thread has taken.
    next: AtomicUsize,
    work: W,
}

impl<W> Task<W> {
    /// Takes one message after another until none is left; returns the results with their indexes.
    fn take<T>(&self) -> Vec<(usize, T)>
    where
        W: Fn(&str) -> T,
    {
        let mut done = Vec::new();
        loop {
            let place = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(span) = self.spans.get(place) else { return done };
            let raw = self.body.get(span.clone()).unwrap_or_default();
            // The body was parsed as text; only a span outside it could be invalid.
            done.push((place, (self.work)(std::str::from_utf8(raw).unwrap_or_default())));
        }
    }
}

/// Applies `work` to each of the `messages`, which lie in `body`, and returns the results in order.
/// Each other thread takes one of `places`. Not for async threads: waits for the others.
pub(super) fn map<T: Send + 'static>(
    places: &Arc<Semaphore>,
    body: &Bytes,
    messages: &[&str],
    work: impl Fn(&str) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let bytes: usize = messages.iter().map(|raw| raw.len()).sum();
    let most = (bytes / MIN_BYTES).min(MAX_HELPERS).min(messages.len().saturating_sub(1));
    let runtime = Handle::try_current().ok().filter(|_| most > 0);
    let Some(runtime) = runtime else { return messages.iter().map(|raw| work(raw)).collect() };
    let span = |raw: &&str| {
        let start = (raw.as_ptr() as usize).wrapping_sub(body.as_ptr() as usize);
        start..start.wrapping_add(raw.len())
    };
    let spans = messages.iter().map(span).collect();
    let task = Arc::new(Task { body: body.clone(), spans, next: AtomicUsize::new(0), work });
    let (sender, receiver) = mpsc::channel();
    for _ in 0..most {
        let Ok(place) = Arc::clone(places).try_acquire_owned() else { break };
        let (task, sender) = (Arc::clone(&task), sender.clone());
        runtime.spawn_blocking(move || {
            // Nobody listens if the other threads finished first.
            let _ = sender.send(task.take());
            drop(place);
        });
    }
    drop(sender);
    let mut results: Vec<Option<T>> = messages.iter().map(|_| None).collect();
    let mut done = task.take();
    let mut left = messages.len();
    loop {
        left -= done.len();
        for (place, result) in done {
            results[place] = Some(result);
        }
        if left == 0 {
            return results.into_iter().flatten().collect();
        }
        done = receiver.recv().expect("the other threads work without a fault");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(body: &Bytes) -> Vec<&str> {
        std::str::from_utf8(body).expect("a text").split(' ').collect()
    }

    #[test]
    fn results_are_in_order_however_many_work() {
        let body: Bytes =
            (0..60_000).map(|number| format!("{number} é")).collect::<Vec<_>>().join(" ").into();
        let messages = texts(&body);
        let work = |raw: &str| (raw.to_owned(), std::thread::current().id());
        let alone = map(&Arc::new(Semaphore::new(0)), &body, &messages, work);
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        for places in [0, 1, 8] {
            let places = Arc::new(Semaphore::new(places));
            let (body, before) = (body.clone(), places.available_permits());
            let held = Arc::clone(&places);
            let done = runtime.spawn_blocking(move || map(&held, &body, &texts(&body), work));
            let done = runtime.block_on(done).expect("no fault");
            let said =
                |all: &[(String, _)]| all.iter().map(|(raw, _)| raw.clone()).collect::<Vec<_>>();
            assert_eq!(said(&done), said(&alone));
            // Helpers that came too late release their permits by themselves.
            let all = u32::try_from(before).expect("few");
            drop(runtime.block_on(places.acquire_many(all)).expect("it is open"));
        }
    }

    #[test]
    fn a_fault_of_another_thread_is_the_callers_too() {
        let body: Bytes = vec![b'x'; 1 << 20].into();
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let faulty = runtime.spawn_blocking(move || {
            let text = std::str::from_utf8(&body).expect("a text");
            let messages = [&text[..1], &text[1..]];
            let caller = std::thread::current().id();
            let (sender, receiver) = mpsc::channel();
            let (sender, receiver) =
                (std::sync::Mutex::new(sender), std::sync::Mutex::new(receiver));
            map(&Arc::new(Semaphore::new(1)), &body, &messages, move |_| {
                if std::thread::current().id() != caller {
                    sender.lock().expect("unlocked").send(()).expect("somebody waits");
                    panic!("a fault on purpose");
                }
                // Until the other thread has the remaining message.
                receiver.lock().expect("unlocked").recv().expect("it comes");
            })
        });
        assert!(runtime.block_on(faulty).expect_err("a fault").is_panic());
    }
}
