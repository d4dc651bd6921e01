//! Waiting for a state that another task, thread or process brings about.

use std::fmt::Debug;
use std::panic::Location;
use std::time::Duration;

/// Timeout: a test that reaches it has hung.
pub const DEADLINE: Duration = Duration::from_secs(60);
/// Pause between two polls. The task that changes the state needs the processor more.
const PAUSE: Duration = Duration::from_millis(1);

/// Polls until `holds` accepts a value, and returns that value. If none is accepted within
/// `deadline`, the test fails with the last value seen.
#[track_caller]
pub fn eventually<T: Debug>(
    deadline: Duration,
    mut look: impl AsyncFnMut() -> T,
    holds: impl Fn(&T) -> bool,
) -> impl Future<Output = T> {
    let place = Location::caller();
    async move {
        let mut last = None;
        let looking = async {
            loop {
                let seen = look().await;
                if holds(&seen) {
                    return seen;
                }
                last = Some(seen);
                tokio::time::sleep(PAUSE).await;
            }
        };
        match tokio::time::timeout(deadline, looking).await {
            Ok(seen) => seen,
            Err(_) => panic!("{place}: not within {deadline:?}, last seen: {last:?}"),
        }
    }
}

#[tokio::test]
async fn the_value_that_holds_is_returned() {
    let mut number = 0;
    let count = async || {
        number += 1;
        number
    };
    assert_eq!(eventually(DEADLINE, count, |number| *number == 3).await, 3);
}

#[tokio::test]
#[should_panic(expected = "last seen: Some(7)")]
async fn a_deadline_that_passes_names_the_last_value() {
    eventually(Duration::from_millis(20), async || 7, |_| false).await;
}

#[tokio::test]
#[should_panic(expected = "last seen: None")]
async fn a_look_that_never_ends_is_given_up() {
    eventually(Duration::from_millis(20), async || std::future::pending::<u8>().await, |_| true)
        .await;
}
