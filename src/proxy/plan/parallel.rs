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

/// [`Task`] of any work.
trait Take<T>: Send + Sync {
    /// Takes the next message before `end`, and returns the result with its index; `None` if none is left.
    fn take(&self, end: usize) -> Option<(usize, T)>;

    /// Leaves no message to take.
    fn stop(&self);
}

impl<T, W: Fn(&str) -> T + Send + Sync> Take<T> for Task<W> {
    fn take(&self, end: usize) -> Option<(usize, T)> {
        let end = end.min(self.spans.len());
        let take = |next: usize| (next < end).then_some(next + 1);
        let place = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
        let raw = self.body.get(self.spans.get(place)?.clone()).unwrap_or_default();
        // The body was parsed as text; only a span outside it could be invalid.
        Some((place, (self.work)(std::str::from_utf8(raw).unwrap_or_default())))
    }

    fn stop(&self) {
        self.next.store(self.spans.len(), Ordering::Relaxed);
    }
}

/// Work on the messages of one body, in their order. Other threads work ahead of the caller while it does
/// something else; they stop when this is dropped.
pub(super) struct Ahead<T> {
    task: Arc<dyn Take<T>>,
    results: Vec<Option<T>>,
    /// Number of first messages whose results were returned.
    returned: usize,
    done: mpsc::Receiver<(usize, T)>,
}

impl<T: Send + 'static> Ahead<T> {
    /// Begins to apply `work` to each of the `messages`, which lie in `body`. Each other thread takes one of
    /// `places`; without a free one, all work is left to the caller.
    pub(super) fn new(
        places: &Arc<Semaphore>,
        body: &Bytes,
        messages: &[&str],
        work: impl Fn(&str) -> T + Send + Sync + 'static,
    ) -> Self {
        let bytes: usize = messages.iter().map(|raw| raw.len()).sum();
        let most = (bytes / MIN_BYTES).min(MAX_HELPERS).min(messages.len().saturating_sub(1));
        let spans = messages.iter().map(|raw| span(body, raw)).collect();
        let task: Arc<dyn Take<T>> =
            Arc::new(Task { body: body.clone(), spans, next: AtomicUsize::new(0), work });
        let (sender, done) = mpsc::channel();
        if let Ok(runtime) = Handle::try_current() {
            for _ in 0..most {
                let Ok(place) = Arc::clone(places).try_acquire_owned() else { break };
                let (task, sender) = (Arc::clone(&task), sender.clone());
                runtime.spawn_blocking(move || {
                    // Nobody listens if the others finished first.
                    while let Some(result) = task.take(usize::MAX)
                        && sender.send(result).is_ok()
                    {}
                    drop(place);
                });
            }
        }
        Self { task, results: messages.iter().map(|_| None).collect(), returned: 0, done }
    }

    /// Works until the results of the first `end` messages are there. Returns those that it has not returned
    /// before, in order. Not for async threads: waits for the others.
    pub(super) fn up_to(&mut self, end: usize) -> Vec<T> {
        let end = end.min(self.results.len());
        while let Some((place, result)) = self.task.take(end) {
            self.results[place] = Some(result);
        }
        let start = self.returned;
        self.returned = end.max(start);
        let mut place = start;
        while place < end {
            if self.results[place].is_some() {
                place += 1;
                continue;
            }
            let done = self.done.recv().expect("the other threads work without a fault");
            self.results[done.0] = Some(done.1);
        }
        self.results[start.min(end)..end].iter_mut().filter_map(Option::take).collect()
    }
}

impl<T> Drop for Ahead<T> {
    fn drop(&mut self) {
        self.task.stop();
    }
}

/// Returns the place of a message in the body that it lies in.
pub(super) fn span(body: &Bytes, raw: &str) -> Range<usize> {
    let start = (raw.as_ptr() as usize).wrapping_sub(body.as_ptr() as usize);
    start..start.wrapping_add(raw.len())
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
    // Before another thread could begin, the caller has finished.
    if bytes < MIN_BYTES {
        return messages.iter().map(|raw| work(raw)).collect();
    }
    Ahead::new(places, body, messages, work).up_to(messages.len())
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
    fn results_come_in_parts_and_others_stop_with_the_caller() {
        let body: Bytes = "0123456789 ".repeat(60_000).trim_end().to_owned().into();
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        for places in [0, 2] {
            let places = Arc::new(Semaphore::new(places));
            let (body, before) = (body.clone(), places.available_permits());
            let held = Arc::clone(&places);
            let done = runtime.spawn_blocking(move || {
                let messages = texts(&body);
                let at = body.as_ptr() as usize;
                let work = move |raw: &str| (raw.as_ptr() as usize - at) / 11;
                let mut ahead = Ahead::new(&held, &body, &messages, work);
                let parts = [0, 1, 2500, 2500, 700, 40_000, 40_001].map(|end| ahead.up_to(end));
                let all: Vec<usize> = parts.concat();
                assert_eq!(all, (0..40_001).collect::<Vec<_>>());
                assert_eq!(parts.map(|part| part.len()), [0, 1, 2499, 0, 0, 37_500, 1]);
            });
            runtime.block_on(done).expect("no fault");
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
