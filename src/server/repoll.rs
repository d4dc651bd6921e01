//! Future that is polled again at once if it wakes itself. hyper wakes a connection's own task
//! whenever a piece of a request's body is read. On a multi-threaded runtime that wakes another
//! thread, which costs more than the request. Knows nothing of connections.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;

/// Maximum polls in a row before other tasks run.
const MAX_POLLS: usize = 16;

/// No poll was requested.
const ASLEEP: u8 = 0;
/// The future is being polled.
const POLLED: u8 = 1;
/// A poll was requested, during the last one or since.
const WOKEN: u8 = 2;

/// Runs `future` and polls it again in place if it is woken while it is polled.
pub(super) async fn repolled<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let repoller = Arc::new(Repoller { state: AtomicU8::new(ASLEEP), task: Mutex::new(None) });
    let waker = Waker::from(Arc::clone(&repoller));
    poll_fn(|context| {
        repoller.follow(context.waker());
        for _ in 0..MAX_POLLS {
            repoller.state.swap(POLLED, Ordering::AcqRel);
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return Poll::Ready(output);
            }
            let slept = repoller.state.compare_exchange(
                POLLED,
                ASLEEP,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            if slept.is_ok() {
                return Poll::Pending;
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}

/// Waker between the future and the task it runs on.
struct Repoller {
    state: AtomicU8,
    task: Mutex<Option<Waker>>,
}

impl Repoller {
    /// Forwards wakes to `task` from now on.
    fn follow(&self, task: &Waker) {
        let mut known = self.task.lock();
        if !known.as_ref().is_some_and(|known| known.will_wake(task)) {
            *known = Some(task.clone());
        }
    }
}

impl Wake for Repoller {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.swap(WOKEN, Ordering::AcqRel) != ASLEEP {
            // The running poll will see it, or the task was already woken.
            return;
        }
        let task = self.task.lock().clone();
        if let Some(task) = task {
            task.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Counts how often the task is woken.
    #[derive(Default)]
    struct Task(AtomicUsize);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Checks a future that wakes itself at each of its first `wakes` polls and is ready after
    /// `polls` polls. Compares how often one poll woke the task, and how often the future was
    /// polled.
    #[track_caller]
    fn check(wakes: usize, polls: usize, expected: (usize, usize, bool)) {
        let task = Arc::new(Task::default());
        let waker = Waker::from(Arc::clone(&task));
        let polled = AtomicUsize::new(0);
        let mut future = pin!(repolled(poll_fn(|context| {
            let number = polled.fetch_add(1, Ordering::Relaxed);
            if number < wakes {
                context.waker().wake_by_ref();
            }
            if number < polls { Poll::Pending } else { Poll::Ready(()) }
        })));
        let is_ready = future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        let woken = task.0.load(Ordering::Relaxed);
        assert_eq!((woken, polled.load(Ordering::Relaxed), is_ready), expected);
    }

    #[test]
    fn what_wakes_itself_is_polled_in_place() {
        check(0, 0, (0, 1, true));
        check(0, 9, (0, 1, false));
        check(1, 9, (0, 2, false));
        check(1, 1, (0, 2, true));
        check(3, 9, (0, 4, false));
        check(15, 99, (0, 16, false));
        check(16, 99, (1, 16, false));
        check(99, 99, (1, 16, false));
    }

    #[test]
    fn a_wake_from_elsewhere_reaches_the_task_once() {
        let task = Arc::new(Task::default());
        let waker = Waker::from(Arc::clone(&task));
        let kept = Mutex::new(None);
        let mut future = pin!(repolled(poll_fn(|context| {
            *kept.lock() = Some(context.waker().clone());
            Poll::<()>::Pending
        })));
        let woken = || task.0.load(Ordering::Relaxed);
        for round in 0..3 {
            assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            assert_eq!(woken(), round);
            let other = kept.lock().clone().expect("it was polled");
            other.wake_by_ref();
            other.wake();
            assert_eq!(woken(), round + 1);
        }
    }

    #[test]
    fn a_future_may_move_to_another_task() {
        let tasks = [Arc::new(Task::default()), Arc::new(Task::default())];
        let kept = Mutex::new(None);
        let mut future = pin!(repolled(poll_fn(|context| {
            *kept.lock() = Some(context.waker().clone());
            Poll::<()>::Pending
        })));
        for task in &tasks {
            let waker = Waker::from(Arc::clone(task));
            assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        kept.lock().take().expect("it was polled").wake();
        let woken = tasks.each_ref().map(|task| task.0.load(Ordering::Relaxed));
        assert_eq!(woken, [0, 1]);
    }
}
