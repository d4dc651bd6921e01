//! Rate and concurrency limits, in every place that counts them. Times come from the system clock,
//! so figures are chosen such that one second changes none.

use std::cell::Cell;
use std::time::Duration;

use weir_store::budget::rate::TooMany;
use weir_store::rates::{Limits, Place, Rates, Refused};
use weir_store::redis::Redis;

use super::server::{Prefix, Server};
use crate::eventually::{DEADLINE, eventually};

const LIFE: Duration = Duration::from_secs(30);

/// Two instances, each with its own connection to the place in which they count together; in one
/// process, one.
trait Counting: Sized {
    fn new() -> Self;
    fn instances(&self) -> [&Rates; 2];
}

struct InMemory(Rates);

impl Counting for InMemory {
    fn new() -> Self {
        Self(Rates::in_memory())
    }

    fn instances(&self) -> [&Rates; 2] {
        [&self.0, &self.0]
    }
}

struct InRedis {
    rates: [Rates; 2],
    _prefix: Prefix,
    _server: Server,
}

fn redis(server: &Server, prefix: &Prefix) -> Redis {
    Redis::new(&server.url, &prefix.name, Duration::from_secs(2)).expect("an address")
}

impl Counting for InRedis {
    fn new() -> Self {
        let server = Server::shared();
        let prefix = Prefix::new(&server);
        let rates = [(); 2].map(|()| Rates::in_redis(redis(&server, &prefix), LIFE));
        Self { rates, _prefix: prefix, _server: server }
    }

    fn instances(&self) -> [&Rates; 2] {
        [&self.rates[0], &self.rates[1]]
    }
}

/// Rounds waits to whole seconds, as in the answers to callers.
fn in_seconds(refused: Refused) -> Refused {
    let whole = |reason| match reason {
        TooMany::For { wait_ms } => TooMany::For { wait_ms: wait_ms.div_ceil(1000) * 1000 },
        TooMany::Ever => TooMany::Ever,
    };
    match refused {
        Refused::Requests(reason) => Refused::Requests(whole(reason)),
        Refused::Tokens(reason) => Refused::Tokens(whole(reason)),
        Refused::Places { .. } => refused,
    }
}

async fn refused(rates: &Rates, name: &str, limits: Limits) -> Refused {
    in_seconds(rates.admit(name, limits).await.err().expect("it is too much"))
}

async fn admitted(rates: &Rates, name: &str, limits: Limits) -> Place {
    rates.admit(name, limits).await.unwrap_or_else(|error| panic!("{error:?}"))
}

async fn requests_are_counted_though_they_end(place: impl Counting) {
    let [one, other] = place.instances();
    for (per_minute, wait_ms) in [(1, 60_000), (2, 30_000), (6, 10_000)] {
        let limits = Limits { requests_per_minute: Some(per_minute), ..Limits::default() };
        let name = format!("{per_minute}");
        for _ in 0..per_minute {
            drop(admitted(one, &name, limits).await);
        }
        let expected = Refused::Requests(TooMany::For { wait_ms });
        assert_eq!(refused(other, &name, limits).await, expected);
        drop(admitted(other, "another", limits).await);
    }
    let none = Limits { requests_per_minute: Some(0), ..Limits::default() };
    assert_eq!(refused(one, "none", none).await, Refused::Requests(TooMany::Ever));
}

async fn tokens_are_counted_by_what_is_known(place: impl Counting) {
    let [one, other] = place.instances();
    let limits = Limits { tokens_per_minute: Some(60), ..Limits::default() };
    let mut first = admitted(one, "a", limits).await;
    let mut second = admitted(other, "a", limits).await;
    first.take_tokens(40).await.expect("there is room");
    let too_many = |seconds: u64| Err(Refused::Tokens(TooMany::For { wait_ms: seconds * 1000 }));
    assert_eq!(second.take_tokens(40).await.map_err(in_seconds), too_many(20));
    assert_eq!(second.take_tokens(61).await, Err(Refused::Tokens(TooMany::Ever)));
    first.settle_tokens(10);
    // Settling does not wait for the correction, which may arrive a moment later.
    let taken = eventually(DEADLINE, async || second.take_tokens(40).await, Result::is_ok).await;
    taken.expect("there is room again");
    second.settle_tokens(u64::MAX);
    let mut third = admitted(one, "a", limits).await;
    let take = async || third.take_tokens(0).await.map_err(in_seconds);
    let refused = eventually(DEADLINE, take, |taken| *taken == too_many(540)).await;
    assert!(refused.is_err());
    let mut another = admitted(one, "b", limits).await;
    another.take_tokens(60).await.expect("each for itself");
}

async fn places_come_back_when_requests_end(place: impl Counting) {
    let [one, other] = place.instances();
    let limits = Limits { max_concurrent: Some(2), ..Limits::default() };
    let first = admitted(one, "a", limits).await;
    let _second = admitted(other, "a", limits).await;
    assert_eq!(refused(one, "a", limits).await, Refused::Places { most: 2 });
    assert_eq!(refused(other, "a", limits).await, Refused::Places { most: 2 });
    let _elsewhere = admitted(one, "b", limits).await;
    drop(first);
    let admit = async || other.admit("a", limits).await.map(drop);
    eventually(DEADLINE, admit, Result::is_ok).await.expect("a place is free");
}

async fn who_is_refused_takes_nothing(place: impl Counting) {
    let [one, other] = place.instances();
    let limits =
        Limits { requests_per_minute: Some(2), max_concurrent: Some(1), ..Limits::default() };
    let held = admitted(one, "a", limits).await;
    for _ in 0..5 {
        assert_eq!(refused(other, "a", limits).await, Refused::Places { most: 1 });
    }
    drop(held);
    let has_place = |admitted: &Result<(), Refused>| *admitted != Err(Refused::Places { most: 1 });
    let admit = async || one.admit("a", limits).await.map(drop);
    eventually(DEADLINE, admit, has_place).await.expect("it may ask twice a minute");
    let again = async || other.admit("a", limits).await.map(drop).map_err(in_seconds);
    let last = eventually(DEADLINE, again, has_place).await.expect_err("it is the third");
    assert_eq!(last, Refused::Requests(TooMany::For { wait_ms: 30_000 }));
}

macro_rules! in_both {
    ($($case:ident)*) => {
        cases_in!(mod memory, super, InMemory as Counting: $($case)*);
        cases_in!(#[ignore = "needs Redis"] mod redis, super, InRedis as Counting: $($case)*);
    };
}

in_both!(
    requests_are_counted_though_they_end
    tokens_are_counted_by_what_is_known
    places_come_back_when_requests_end
    who_is_refused_takes_nothing
);

#[test]
#[ignore = "needs Redis"]
fn places_of_a_killed_instance_are_free_again_and_others_stay() {
    let server = Server::shared();
    let prefix = Prefix::new(&server);
    let life = Duration::from_secs(1);
    let limits = Limits { max_concurrent: Some(2), ..Limits::default() };
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build();
    let (killed, lives) = (runtime().expect("a runtime"), runtime().expect("a runtime"));
    killed.block_on(async {
        let rates = Rates::in_redis(redis(&server, &prefix), life);
        std::mem::forget(admitted(&rates, "a", limits).await);
    });
    drop(killed);
    lives.block_on(async {
        let rates = Rates::in_redis(redis(&server, &prefix), life);
        let _own = admitted(&rates, "a", limits).await;
        let freed = Cell::new(None);
        let admit = async || rates.admit("a", limits).await.map(|place| freed.set(Some(place)));
        eventually(DEADLINE, admit, Result::is_ok).await.expect("a place is free");
        // Its own place has existed for as long as the free one, and is renewed.
        let still = tokio::time::Instant::now() + life * 2;
        while tokio::time::Instant::now() < still {
            assert_eq!(refused(&rates, "a", limits).await, Refused::Places { most: 2 });
            tokio::task::yield_now().await;
        }
    });
}

#[tokio::test]
#[ignore = "needs Redis"]
async fn each_counts_for_itself_while_redis_is_away() {
    let mut server = Server::own();
    let prefix = Prefix::new(&server);
    let rates = Rates::in_redis(redis(&server, &prefix), LIFE);
    let limits = Limits {
        requests_per_minute: Some(2),
        tokens_per_minute: Some(10),
        max_concurrent: Some(2),
    };
    let mut before = admitted(&rates, "a", limits).await;
    server.kill();
    before.take_tokens(100).await.expect("nobody counts");
    before.settle_tokens(5);
    drop(before);
    for _ in 0..2 {
        drop(admitted(&rates, "a", limits).await);
    }
    let expected = Refused::Requests(TooMany::For { wait_ms: 30_000 });
    assert_eq!(refused(&rates, "a", limits).await, expected);
}
