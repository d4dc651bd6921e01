//! Counts in a Redis that is emptied, stopped and restarted.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::Builder;
use weir_store::counters::{Counters, NoRoom, Reservation};
use weir_store::ledger::Intent;
use weir_store::{Store, now_ms};

use super::places::{
    InRedis, LONG, Place, budget, figures, firm, id_at, intent, owner, take, tokens, until,
    wait_for, wanted, write_down,
};
use super::server::Server;
use crate::eventually::eventually;

#[tokio::test]
#[ignore = "needs Redis"]
async fn an_emptied_redis_is_told_what_is_held_and_what_was_spent() {
    let server = Server::own();
    let place = InRedis::on(server);
    let (one, other, store) = (place.instance(), place.instance(), place.store());
    let budget = budget("all/tokens/total", 150);
    let budgets = std::slice::from_ref(&budget);
    let now = now_ms();
    let before = intent(id_at(now), now);
    write_down(&store, before, 10).await;
    let wanted = wanted(budgets, firm(100), LONG);
    let goes_on = intent(wanted.id, wanted.begun_ms);
    store.open_request(&goes_on).await.expect("it is written down");
    let granted = one.reserve(wanted, owner()).await.expect("there is room");
    for round in 0..3 {
        place.server.empty();
        let refused = take(&other, budgets, 50).await.expect_err("110 of 150");
        assert_eq!(refused, NoRoom::Held, "round {round}");
        assert_eq!(figures(&other, &budget).await, (10, 100), "round {round}");
    }
    write_down(&store, goes_on, 70).await;
    place.server.empty();
    granted.held.settle(tokens(70)).await;
    assert_eq!(figures(&other, &budget).await, (80, 0), "it counts once");
    let last = wait_for(&one, budgets, 70).await;
    last.held.settle(tokens(70)).await;
    assert_eq!(figures(&other, &budget).await, (150, 0));
}

/// Builds an intent that records the amount held for its request.
fn holding(wanted: &Reservation, amount: u64) -> Arc<Intent> {
    let intent = Arc::unwrap_or_clone(intent(wanted.id, wanted.begun_ms));
    Arc::new(Intent { held_nano_usd: Some(amount), held_tokens: Some(amount), ..intent })
}

#[test]
#[ignore = "needs Redis"]
fn what_a_killed_instance_had_open_is_held_though_redis_was_emptied() {
    let server = Server::own();
    let mut place = InRedis::on(server);
    place.options.lease = Duration::from_millis(150);
    let budgets = [budget("all/tokens/total", 1000), budget("team:t/usd/day", 1000)];
    let runtime = || Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (killed, other, store) = (runtime(), runtime(), place.store());
    let open = killed.block_on(async {
        let counters = place.instance();
        let mut open = Vec::new();
        // The last one is recorded but never held, as during an outage of Redis.
        for is_held in [true, true, true, false] {
            let wanted = wanted(&budgets, firm(100), LONG);
            let intent = holding(&wanted, 100);
            if is_held {
                let granted = counters.reserve(wanted, owner()).await.expect("there is room");
                // Nobody settles it, as in a killed process.
                std::mem::forget(granted);
            }
            store.open_request(&intent).await.expect("it is written down");
            open.push(intent);
        }
        open
    });
    // Dropping the runtime ends the tasks that renew the requests' leases.
    drop(killed);
    other.block_on(async {
        let counters = place.instance();
        for round in 0..2 {
            place.server.empty();
            for budget in &budgets {
                assert_eq!(figures(&counters, budget).await, (0, 400), "round {round}");
            }
        }
        let refused = take(&counters, &budgets, 601).await.expect_err("400 of 1000 are held");
        assert_eq!(refused, NoRoom::Held);
        let [ended, adopted, released, last] = open.try_into().expect("four");
        write_down(&store, ended, 44).await;
        let held = counters.adopt(adopted.id, adopted.begun_ms, owner());
        write_down(&store, adopted, 33).await;
        held.settle(tokens(33)).await;
        store.release_request(released.id).await.expect("it is forgotten");
        for budget in &budgets {
            until(&counters, budget, (77, 100)).await;
        }
        place.server.empty();
        write_down(&store, last, 20).await;
        for budget in &budgets {
            until(&counters, budget, (97, 0)).await;
        }
        take(&counters, &budgets, 903)
            .await
            .expect("all that is left")
            .held
            .settle(tokens(1))
            .await;
    });
}

/// A count may have started without it: then another request may hold the same room.
#[tokio::test]
#[ignore = "needs Redis"]
async fn what_was_written_down_too_late_is_not_sent_once_redis_was_emptied() {
    let server = Server::own();
    let place = InRedis::on(server);
    let (one, other, store) = (place.instance(), place.instance(), place.store());
    let budget = budget("all/tokens/total", 150);
    let wanted = wanted(std::slice::from_ref(&budget), firm(100), LONG);
    let intent = holding(&wanted, 100);
    let granted = one.reserve(wanted, owner()).await.expect("there is room");
    assert_eq!(granted.held.opened().await, Ok(true));
    place.server.empty();
    // Waits for the grace period to pass.
    assert_eq!(figures(&other, &budget).await.0, 0);
    store.open_request(&intent).await.expect("it is written down");
    assert_eq!(granted.held.opened().await, Ok(false));
    drop(granted);
    store.release_request(intent.id).await.expect("it is forgotten");
    until(&other, &budget, (0, 0)).await;
}

#[tokio::test]
#[ignore = "needs Redis"]
async fn a_redis_that_is_away_is_told_when_it_is_back() {
    let server = Server::own();
    let mut place = InRedis::on(server);
    let (counters, store) = (place.instance(), place.store());
    let budget = budget("all/tokens/total", 1000);
    let budgets = std::slice::from_ref(&budget);
    let mut granted = Vec::new();
    for _ in 0..3 {
        let wanted = wanted(budgets, firm(100), LONG);
        let intent = intent(wanted.id, wanted.begun_ms);
        store.open_request(&intent).await.expect("it is written down");
        granted.push((counters.reserve(wanted, owner()).await.expect("there is room"), intent));
    }
    place.server.kill();
    let refused = take(&counters, budgets, 1).await.expect_err("nobody counts");
    assert!(matches!(refused, NoRoom::Store(_)), "{refused:?}");
    let (ended, row) = granted.pop().expect("three");
    write_down(&store, row, 7).await;
    ended.held.settle(tokens(7)).await;
    drop(granted.pop());
    place.server.start_again();
    until(&counters, &budget, (7, 100)).await;
    drop(granted);
    until(&counters, &budget, (7, 0)).await;
}

/// A Redis that refuses counts nothing, as one that is silent; spending on record stays spent.
#[tokio::test]
#[ignore = "needs Redis"]
async fn what_is_spent_on_record_stays_spent_while_redis_refuses() {
    type Row =
        (&'static str, &'static [&'static [&'static str]], &'static [&'static [&'static str]]);
    let rows: [Row; 4] = [
        (
            "NOAUTH",
            &[
                &["CONFIG", "SET", "requirepass", "another"],
                &["CLIENT", "KILL", "SKIPME", "yes", "TYPE", "normal"],
            ],
            &[&["CONFIG", "SET", "requirepass", ""]],
        ),
        ("READONLY", &[&["REPLICAOF", "127.0.0.1", "1"]], &[&["REPLICAOF", "NO", "ONE"]]),
        ("OOM", &[&["CONFIG", "SET", "maxmemory", "1"]], &[&["CONFIG", "SET", "maxmemory", "0"]]),
        (
            "NOPERM",
            &[&["ACL", "SETUSER", "default", "-@scripting"]],
            &[&["ACL", "SETUSER", "default", "+@all"]],
        ),
    ];
    for (code, refuse, mend) in rows {
        let server = Server::own();
        let place = InRedis::on(server);
        let (redis, counters) = place.watched_instance();
        let (spent, roomy) = (budget("all/tokens/total", 100), budget("team:t/tokens/day", 1000));
        let now = now_ms();
        write_down(&place.store(), intent(id_at(now), now), 100).await;
        assert_eq!(figures(&counters, &spent).await, (100, 0), "{code}");
        let mut operator = place.server.operator();
        let order = |operator: &mut redis::Connection, orders: &[&[&str]]| {
            for words in orders {
                let mut order = redis::cmd(words[0]);
                order.arg(&words[1..]).exec(operator).expect("it does so");
            }
        };
        order(&mut operator, refuse);
        let both = [roomy.clone(), spent.clone()];
        let refused = take(&counters, &both, 1).await.expect_err("it is spent on record");
        let NoRoom::Exhausted(status) = refused else { panic!("{code}: {refused:?}") };
        assert_eq!(status.budget.id, spent.budget.id, "{code}");
        let unknown =
            take(&counters, std::slice::from_ref(&roomy), 1).await.expect_err("nobody counts");
        assert!(matches!(unknown, NoRoom::Store(_)), "{code}: {unknown:?}");
        assert!(redis.is_failing(), "{code}");
        // Reads may succeed, and do not end the state.
        let _ = counters.statuses(vec![roomy.clone()], now_ms()).await;
        assert!(redis.is_failing(), "{code}");
        order(&mut operator, mend);
        let failing = async || redis.is_failing();
        eventually(LONG, failing, |is_failing| !*is_failing).await;
        until(&counters, &roomy, (100, 0)).await;
    }
}

#[tokio::test]
#[ignore = "needs Redis"]
async fn leases_that_a_redis_has_lost_are_held_once() {
    let server = Server::own();
    let mut place = InRedis::on(server);
    // The lease is checked at every third of its length.
    place.options.lease = Duration::from_millis(900);
    let (counters, store) = (place.instance(), place.store());
    let budget = budget("all/tokens/total", 100);
    let wanted = wanted(std::slice::from_ref(&budget), firm(60), LONG);
    let intent = intent(wanted.id, wanted.begun_ms);
    store.open_request(&intent).await.expect("it is written down");
    let granted = counters.reserve(wanted, owner()).await.expect("there is room");
    assert_eq!(place.server.lose_leases(), 1);
    let has_leases = async || place.server.has_leases();
    eventually(LONG, has_leases, |has_leases| *has_leases).await;
    until(&counters, &budget, (0, 60)).await;
    write_down(&store, intent, 7).await;
    granted.held.settle(tokens(7)).await;
    until(&counters, &budget, (7, 0)).await;
}

/// The saved data of a Redis may be older than its answers.
#[tokio::test]
#[ignore = "needs Redis"]
async fn a_redis_that_comes_back_as_it_was_earlier_is_not_believed() {
    let server = Server::own();
    let mut place = InRedis::on(server);
    let (counters, store) = (place.instance(), place.store());
    let budget = budget("all/tokens/total", 100);
    assert_eq!(figures(&counters, &budget).await, (0, 0));
    place.server.save();
    let wanted = wanted(std::slice::from_ref(&budget), firm(60), LONG);
    let intent = intent(wanted.id, wanted.begun_ms);
    let granted = counters.reserve(wanted, owner()).await.expect("there is room");
    write_down(&store, intent, 60).await;
    granted.held.settle(tokens(60)).await;
    place.server.kill();
    place.server.start_again();
    until(&counters, &budget, (60, 0)).await;
}

/// Forwards all commands to a Redis, and drops the answers while `is_losing` is set.
fn losing(server: &Server, is_losing: Arc<AtomicBool>) -> String {
    let upstream = server.url.strip_prefix("redis://").expect("an address").to_owned();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let address = listener.local_addr().expect("it is bound");
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = std::net::TcpStream::connect(&upstream) else { return };
            let (mut asks, mut asked) = (client.try_clone().expect("it is"), server.try_clone());
            std::thread::spawn(move || {
                std::io::copy(&mut asks, asked.as_mut().expect("it is open"))
            });
            let is_losing = Arc::clone(&is_losing);
            std::thread::spawn(move || answer(client, server, &is_losing));
        }
    });
    format!("redis://{address}")
}

fn answer(
    mut client: std::net::TcpStream,
    mut server: std::net::TcpStream,
    is_losing: &AtomicBool,
) {
    let mut buffer = [0; 16 << 10];
    while let Ok(count) = server.read(&mut buffer)
        && count > 0
        && !is_losing.load(Ordering::SeqCst)
        && client.write_all(&buffer[..count]).is_ok()
    {}
    // Closes the connection, so that waiting callers get an error.
    let _ = client.shutdown(Shutdown::Both);
    let _ = server.shutdown(Shutdown::Both);
}

#[tokio::test]
#[ignore = "needs Redis"]
async fn what_was_done_without_a_word_is_not_done_twice() {
    let server = Server::own();
    let direct = InRedis::on(server);
    let is_losing = Arc::new(AtomicBool::new(false));
    let url = losing(&direct.server, Arc::clone(&is_losing));
    let (other, counters) = (direct.instance(), direct.instance_at(&url));
    let budget = budget("all/tokens/total", 1000);
    let budgets = std::slice::from_ref(&budget);
    // Redis caches each script after its first run.
    take(&counters, budgets, 1).await.expect("there is room").held.settle(tokens(0)).await;
    let (mut spent, mut settled, mut held) = (0, 0, 0);
    // A connection that breaks before a command has no effect and is not tested here.
    for _ in 0..30 {
        let granted = take(&counters, budgets, 100).await.expect("there is room");
        is_losing.store(true, Ordering::SeqCst);
        granted.held.settle(tokens(7)).await;
        spent += 7;
        settled += u32::from(figures(&other, &budget).await == (spent, 0));
        is_losing.store(false, Ordering::SeqCst);
        until(&other, &budget, (spent, 0)).await;
        until(&counters, &budget, (spent, 0)).await;
        is_losing.store(true, Ordering::SeqCst);
        let refused = take(&counters, budgets, 100).await.expect_err("nobody hears the answer");
        assert!(matches!(refused, NoRoom::Store(_)), "{refused:?}");
        held += u32::from(figures(&other, &budget).await == (spent, 100));
        is_losing.store(false, Ordering::SeqCst);
        until(&other, &budget, (spent, 0)).await;
        until(&counters, &budget, (spent, 0)).await;
        if settled > 1 && held > 1 {
            return;
        }
    }
    panic!("{settled} were settled and {held} held without a word");
}

/// A request that is sent without a hold still counts.
#[tokio::test]
#[ignore = "needs Redis"]
async fn what_was_sent_while_redis_was_away_counts() {
    let server = Server::own();
    let mut place = InRedis::on(server);
    let (counters, store) = (place.instance(), place.store());
    let budget = budget("all/tokens/total", 1000);
    assert_eq!(figures(&counters, &budget).await, (0, 0));
    place.server.kill();
    let mut sent = Vec::new();
    for _ in 0..2 {
        let wanted = wanted(std::slice::from_ref(&budget), firm(100), Duration::ZERO);
        let intent = intent(wanted.id, wanted.begun_ms);
        let refused = counters.reserve(wanted, owner()).await.expect_err("nobody counts");
        assert!(matches!(refused, NoRoom::Store(_)), "{refused:?}");
        store.open_request(&intent).await.expect("it is written down");
        sent.push((counters.note(intent.id, intent.begun_ms, owner()), intent));
    }
    let (held, row) = sent.pop().expect("two");
    write_down(&store, row, 30).await;
    held.settle(tokens(30)).await;
    place.server.start_again();
    until(&counters, &budget, (30, 0)).await;
    let (held, row) = sent.pop().expect("two");
    write_down(&store, row, 12).await;
    held.settle(tokens(12)).await;
    assert_eq!(figures(&counters, &budget).await, (42, 0));
}

/// Sends requests of 10 to 40 that use half of their amount, until the budget stays full; returns
/// the sum of their costs.
async fn send_many(counters: Counters, store: Store, number: u64, sent: Arc<AtomicUsize>) -> u64 {
    let budgets = [budget("all/tokens/total", 3000)];
    let mut spent = 0;
    for step in 0..12 {
        let amount = 10 + (number * 7 + step * 11) % 31;
        let wanted = wanted(&budgets, firm(amount), LONG);
        let intent = intent(wanted.id, wanted.begun_ms);
        let granted = match counters.reserve(wanted, owner()).await {
            Ok(granted) => granted,
            Err(error) => panic!("{error:?}"),
        };
        let count = granted.statuses[0].count;
        assert!(count.spent + count.held <= 3000, "{count:?}");
        store.open_request(&intent).await.expect("it is written down");
        tokio::task::yield_now().await;
        write_down(&store, intent, amount / 2).await;
        granted.held.settle(tokens(amount / 2)).await;
        spent += amount / 2;
        sent.fetch_add(1, Ordering::SeqCst);
    }
    spent
}

#[tokio::test]
#[ignore = "needs Redis"]
async fn requests_count_once_though_redis_is_emptied_among_them() {
    let server = Server::own();
    let place = InRedis::on(server);
    let sent = Arc::new(AtomicUsize::new(0));
    let mut running = tokio::task::JoinSet::new();
    let instances = [place.instance(), place.instance()];
    for number in 0..10 {
        let counters = instances[number % 2].clone();
        running.spawn(send_many(counters, place.store(), number as u64, Arc::clone(&sent)));
    }
    for round in 1..=4 {
        let look = async || sent.load(Ordering::SeqCst);
        eventually(LONG, look, |sent| *sent >= round * 25).await;
        place.server.empty();
    }
    let spent: u64 = running.join_all().await.into_iter().sum();
    let budget = budget("all/tokens/total", 3000);
    until(&instances[0], &budget, (spent, 0)).await;
    place.server.empty();
    assert_eq!(figures(&instances[1], &budget).await, (spent, 0), "as the journal has it");
}
