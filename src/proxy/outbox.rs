//! Outbox: a bounded queue in front of a task in the background. Putting something in never
//! waits; what finds no room is dropped and counted. Knows nothing of the contents.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

/// Queue to a task, which starts with the first item.
#[derive(Debug)]
pub(super) struct Outbox<T> {
    queue: mpsc::Sender<Parcel<T>>,
    /// The queue's other end, until the task has it.
    waiting: Mutex<Option<mpsc::Receiver<Parcel<T>>>>,
    is_started: AtomicBool,
    dropped: AtomicU64,
}

/// Contents of the queue.
#[derive(Debug)]
pub(super) enum Parcel<T> {
    Item(T),
    /// Everything before it is to be sent; then the sender gets its answer.
    Flush(oneshot::Sender<()>),
}

impl<T: Send + 'static> Outbox<T> {
    /// Creates an empty queue for at most `length` items.
    pub(super) fn new(length: usize) -> Self {
        let (queue, waiting) = mpsc::channel(length);
        let waiting = Mutex::new(Some(waiting));
        Self { queue, waiting, is_started: AtomicBool::new(false), dropped: AtomicU64::new(0) }
    }

    /// Puts an item in. `worker` makes the task, if there is none yet. The task ends when the outbox
    /// is dropped, so it must not hold it.
    pub(super) fn put<F>(&self, item: T, worker: impl FnOnce(mpsc::Receiver<Parcel<T>>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        if self.queue.try_send(Parcel::Item(item)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if self.is_started.load(Ordering::Acquire) {
            return;
        }
        // Without a runtime nothing can be sent: the process is starting or ending.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let waiting = self.waiting.lock().take();
        if let Some(waiting) = waiting {
            runtime.spawn(worker(waiting));
            self.is_started.store(true, Ordering::Release);
        }
    }

    /// Returns the number of items for which there was no room.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Waits until everything put in so far is sent, for `limit` at most.
    pub(super) async fn flush(&self, limit: Duration) {
        if !self.is_started.load(Ordering::Acquire) {
            return;
        }
        let (done, sent) = oneshot::channel();
        let flushed = async {
            if self.queue.send(Parcel::Flush(done)).await.is_ok() {
                // An error means that the task has ended.
                let _ = sent.await;
            }
        };
        // The rest is lost after that, which the limit accepts.
        let _ = tokio::time::timeout(limit, flushed).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_finds_no_room_is_dropped_and_counted() {
        let outbox = Outbox::new(2);
        let (started, begins) = oneshot::channel::<()>();
        let (sender, mut received) = mpsc::unbounded_channel();
        let worker = |mut waiting: mpsc::Receiver<Parcel<u32>>| async move {
            let _ = begins.await;
            while let Some(parcel) = waiting.recv().await {
                match parcel {
                    Parcel::Item(item) => sender.send(item).expect("the test listens"),
                    Parcel::Flush(done) => done.send(()).expect("the test waits"),
                }
            }
        };
        let no_worker = |_| std::future::ready(());
        outbox.put(1, worker);
        outbox.put(2, no_worker);
        outbox.put(3, no_worker);
        assert_eq!(outbox.dropped(), 1);
        started.send(()).expect("the task waits");
        outbox.flush(Duration::from_secs(60)).await;
        assert_eq!((received.try_recv(), received.try_recv()), (Ok(1), Ok(2)));
        drop(outbox);
        assert_eq!(received.recv().await, None, "the task ends with the outbox");
    }
}
