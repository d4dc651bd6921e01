//! How much one may do a minute and at once, wherever that is counted. Moments are the system's own,
//! so figures are such that a second changes none.

use std::time::Duration;

use weir::budget::rate::TooMany;
use weir::store::rates::{Limits, Place, Rates, Refused};
use weir::store::redis::Redis;

use super::server::{Prefix, Server};

const LIFE: Duration = Duration::from_secs(30);

/// Two instances, each with its own way to where they count together; in one process one.
trait Counting: Sized {
    fn new() -> Option<Self>;
    fn instances(&self) -> [&Rates; 2];
}

struct InMemory(Rates);

impl Counting for InMemory {
    fn new() -> Option<Self> {
        Some(Self(Rates::in_memory()))
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
    fn new() -> Option<Self> {
        let server = Server::shared()?;
        let prefix = Prefix::new(&server);
        let rates = [(); 2].map(|()| Rates::in_redis(redis(&server, &prefix), LIFE));
        Some(Self { rates, _prefix: prefix, _server: server })
    }

    fn instances(&self) -> [&Rates; 2] {
        [&self.rates[0], &self.rates[1]]
    }
}

/// Waits told in whole seconds, as callers are told them.
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
    // What is put right is not waited for.
    while second.take_tokens(40).await.is_err() {
        tokio::task::yield_now().await;
    }
    second.settle_tokens(u64::MAX);
    let mut third = admitted(one, "a", limits).await;
    while third.take_tokens(0).await.map_err(in_seconds) != too_many(540) {
        tokio::task::yield_now().await;
    }
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
    while other.admit("a", limits).await.is_err() {
        tokio::task::yield_now().await;
    }
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
    while one.admit("a", limits).await.is_err_and(|it| it == Refused::Places { most: 1 }) {
        tokio::task::yield_now().await;
    }
    let mut last = refused(other, "a", limits).await;
    while last == (Refused::Places { most: 1 }) {
        last = refused(other, "a", limits).await;
    }
    assert_eq!(last, Refused::Requests(TooMany::For { wait_ms: 30_000 }));
}

macro_rules! in_both {
    ($place:ident as $module:ident: $($case:ident)*) => {
        mod $module {
            use super::{Counting, $place};
            $(
                #[tokio::test]
                async fn $case() {
                    if let Some(place) = <$place as Counting>::new() {
                        super::$case(place).await;
                    }
                }
            )*
        }
    };
    ($($case:ident)*) => {
        in_both!(InMemory as memory: $($case)*);
        in_both!(InRedis as redis: $($case)*);
    };
}

in_both!(
    requests_are_counted_though_they_end
    tokens_are_counted_by_what_is_known
    places_come_back_when_requests_end
    who_is_refused_takes_nothing
);

#[test]
fn places_of_a_killed_instance_are_free_again_and_others_stay() {
    let Some(server) = Server::shared() else { return };
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
        let mut freed = rates.admit("a", limits).await;
        while freed.is_err() {
            tokio::task::yield_now().await;
            freed = rates.admit("a", limits).await;
        }
        // Its own place has lived for as long as the one that is free, and is prolonged.
        let still = tokio::time::Instant::now() + life * 2;
        while tokio::time::Instant::now() < still {
            assert_eq!(refused(&rates, "a", limits).await, Refused::Places { most: 2 });
            tokio::task::yield_now().await;
        }
    });
}

#[tokio::test]
async fn each_counts_for_itself_while_redis_is_away() {
    let Some(mut server) = Server::own() else { return };
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
