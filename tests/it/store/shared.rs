//! Behaviour specific to a store on a server: weirs that share it and end, broken connections, and
//! a server that is down or silent.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use weir_store::keys::{KeyCache, KeyChange, KeyStatus, NewKey};
use weir_store::ledger::{Attribution, Intent};
use weir_store::{OpenError, State, Store};

use super::journal::{complete, id, intent, rows, settle, total};
use super::places::{ALICE, BOB, Place, entry, kind};
use super::postgres::{Postgres, server};
use crate::eventually::{DEADLINE, eventually};
use crate::folder::Folder;
use crate::server::harness::{FINE, Upstream, ask, bare, start_with};

/// TCP relay to the server that can be closed or paused.
struct Way {
    address: SocketAddr,
    state: watch::Sender<WayState>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WayState {
    Open,
    Closed,
    Still,
}

impl Way {
    /// Starts it on its own thread: tests block theirs while they open a store.
    fn new() -> Self {
        let (state, seen) = watch::channel(WayState::Open);
        let (told, heard) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
                told.send(listener.local_addr().expect("it has one")).expect("it is waited for");
                let mut end = seen.clone();
                tokio::select! {
                    () = accept(listener, seen) => {}
                    // The relay ends with the test.
                    () = async { while end.changed().await.is_ok() {} } => {}
                }
            });
        });
        Self { address: heard.recv().expect("it begins"), state }
    }

    /// Returns the server's URL through this relay.
    fn server(&self) -> String {
        let config: tokio_postgres::Config = server().parse().expect("a URL");
        let password = config.get_password().map(String::from_utf8_lossy).unwrap_or_default();
        let (user, database) = (config.get_user(), config.get_dbname());
        let [user, database] = [user, database].map(|name| name.unwrap_or("postgres"));
        format!("postgres://{user}:{password}@{}/{database}", self.address)
    }

    fn become_(&self, state: WayState) {
        self.state.send_replace(state);
    }
}

async fn accept(listener: TcpListener, state: watch::Receiver<WayState>) {
    let config: tokio_postgres::Config = server().parse().expect("a URL");
    let Some(tokio_postgres::config::Host::Tcp(host)) = config.get_hosts().first() else {
        panic!("the tests' server is reached over TCP")
    };
    let port = config.get_ports().first().copied().unwrap_or(5432);
    loop {
        let (caller, _) = listener.accept().await.expect("it listens");
        if *state.borrow() == WayState::Closed {
            continue;
        }
        let server = TcpStream::connect((host.as_str(), port)).await.expect("the server is there");
        let ((from, to), (back_from, back_to)) = (caller.into_split(), server.into_split());
        tokio::spawn(pass(from, back_to, state.clone()));
        tokio::spawn(pass(back_from, to, state.clone()));
    }
}

async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut state: watch::Receiver<WayState>,
) {
    let mut buffer = vec![0; 1 << 16];
    let mut closed = state.clone();
    loop {
        let read = tokio::select! {
            read = from.read(&mut buffer) => read.unwrap_or(0),
            _ = closed.wait_for(|state| *state == WayState::Closed) => 0,
        };
        let passes = state.wait_for(|state| *state != WayState::Still).await;
        let is_open = passes.is_ok_and(|state| *state == WayState::Open);
        if read == 0 || !is_open || to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

/// Ages all weirs' records.
fn grow_old(place: &Postgres) {
    place.run("UPDATE weir_instance SET since = since - interval '1 hour'");
}

/// Waits until `store` reports this many orphans, and returns them.
async fn orphans(store: &Store, count: usize) -> Vec<Intent> {
    let read = async || store.orphans(9).await.expect("it can be read");
    eventually(DEADLINE, read, |found| found.len() >= count).await
}

#[tokio::test]
#[ignore = "needs PostgreSQL"]
async fn what_an_ended_weir_left_open_is_told_to_one_other_alone() {
    let place = Postgres::new();
    let (ending, first, second) = (place.handle(), place.handle(), place.handle());
    for number in 0..5 {
        ending.open_request(&intent(number)).await.expect("it can be written");
    }
    assert!(settle(&ending, intent(0), complete()).await);
    ending.release_request(id(1)).await.expect("it can be written");
    first.open_request(&intent(10)).await.expect("it can be written");
    assert_eq!(second.orphans(9).await, Ok(Vec::new()), "all live");
    drop(ending);
    assert_eq!(first.orphans(9).await, Ok(Vec::new()), "the server has not seen it for long");
    grow_old(&place);
    let found = orphans(&first, 3).await;
    assert_eq!(found, [intent(2), intent(3), intent(4)], "whole, and in their order");
    assert_eq!(second.orphans(9).await, Ok(Vec::new()), "they are the first one's");
    assert_eq!(first.orphans(9).await, Ok(found.clone()), "until they are settled");
    for intent in found {
        assert!(settle(&first, intent, complete()).await);
    }
    assert_eq!(first.orphans(9).await, Ok(Vec::new()));
    assert_eq!(total(&second).await.requests, 4);
    assert_eq!(place.number("SELECT count(*) FROM weir_intent"), 1, "of a weir that lives");
}

#[tokio::test]
#[ignore = "needs PostgreSQL"]
async fn a_weir_that_was_held_still_settles_nothing_twice() {
    let place = Postgres::new();
    let way = Way::new();
    let still = Store::connect(&place.url_at(&way.server())).expect("the way is open");
    let other = place.handle();
    for number in 0..2 {
        still.open_request(&intent(number)).await.expect("it can be written");
    }
    assert_eq!(other.orphans(9).await, Ok(Vec::new()));
    way.become_(WayState::Still);
    grow_old(&place);
    let read = async || {
        // Simulates elapsed time for the silent weir.
        place.run(
            "UPDATE weir_instance SET seen = seen - interval '1 hour'
             WHERE id = (SELECT instance FROM weir_intent LIMIT 1)",
        );
        other.orphans(9).await.expect("it can be read")
    };
    let found = eventually(DEADLINE, read, |found| found.len() == 2).await;
    assert!(settle(&other, found[0].clone(), complete()).await);
    way.become_(WayState::Open);
    let settle_late = async || still.settle_request(Arc::new(intent(0)), complete()).await;
    let late = eventually(DEADLINE, settle_late, Result::is_ok).await;
    assert_eq!(late, Ok(false), "the other was first");
    assert!(settle(&still, intent(1), complete()).await, "here it is the other way round");
    assert!(!settle(&other, found[1].clone(), complete()).await);
    assert_eq!(total(&other).await.requests, 2);
}

#[tokio::test]
#[ignore = "needs PostgreSQL"]
async fn every_request_counts_once_however_often_connections_end() {
    const REQUESTS: u64 = 400;
    let place = Postgres::new();
    let stores = [0, 1].map(|_| {
        let url = format!("{}&application_name={}", place.url(), "weir_cut");
        Store::connect(&url).expect("the schema is there")
    });
    let written = Arc::new(AtomicU64::new(0));
    let mut settling = tokio::task::JoinSet::new();
    for lane in 0..8 {
        let (store, written) = (stores[lane as usize % 2].clone(), Arc::clone(&written));
        settling.spawn(async move {
            for number in (lane..REQUESTS).step_by(8) {
                let (opening, ending) = (store.clone(), store.clone());
                let open = move || {
                    let store = opening.clone();
                    async move { store.open_request(&intent(number)).await }
                };
                let end = move || {
                    let store = ending.clone();
                    async move { store.settle_request(Arc::new(intent(number)), complete()).await }
                };
                eventually(DEADLINE, open, Result::is_ok).await.expect("it was opened");
                written.fetch_add(1, Ordering::Relaxed);
                eventually(DEADLINE, end, Result::is_ok).await.expect("it was settled");
                written.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let ends = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                WHERE application_name = 'weir_cut'";
    let (mut ended, mut seen) = (0, 0);
    while !settling.is_empty() {
        tokio::select! {
            done = settling.join_next() => done.expect("there is one").expect("it does not panic"),
            () = tokio::task::yield_now() => {
                // Each time something was written, so that all is in the end.
                let now = written.load(Ordering::Relaxed);
                if std::mem::replace(&mut seen, now) < now {
                    ended += place.number(ends);
                }
            }
        }
    }
    assert!(ended > 0);
    assert_eq!(total(&place.handle()).await.requests, REQUESTS);
    assert_eq!(rows(&place.handle()).await.len() as u64, REQUESTS);
    assert_eq!(place.number("SELECT count(*) FROM weir_intent"), 0);
}

async fn make(store: &Store) -> (String, String) {
    let change = KeyChange { name: Some("a key".to_owned()), ..KeyChange::default() };
    let new = NewKey { change, ..NewKey::default() };
    let issued = store.create_key(new, 1).await.expect("it can be made");
    (issued.facts.key.id, issued.secret.expose().to_owned())
}

async fn status(ring: &KeyCache, secret: &str) -> Option<KeyStatus> {
    let found = ring.find(secret).await.expect("it can be read");
    found.map(|(holder, _)| holder.status(2))
}

#[tokio::test]
#[ignore = "needs PostgreSQL"]
async fn keys_changed_by_another_weir_count() {
    let place = Postgres::new();
    let (own, other) = (place.handle(), place.handle());
    let ring = KeyCache::new(own.clone());
    let (id, secret) = make(&other).await;
    for _ in 0..3 {
        assert_eq!(status(&ring, &secret).await, Some(KeyStatus::Live));
    }
    let issued = other.rotate_key(&id, 0, 1).await.expect("it is live");
    // The notification takes a moment; queries create and remove no key.
    eventually(DEADLINE, async || status(&ring, &secret).await, Option::is_none).await;
    let new = issued.secret.expose();
    assert_eq!(status(&ring, new).await, Some(KeyStatus::Live));
    other.revoke_key(&id, 1).await.expect("it is live");
    let look = async || status(&ring, new).await;
    let later = eventually(DEADLINE, look, |status| *status != Some(KeyStatus::Live)).await;
    assert_eq!(later, Some(KeyStatus::Revoked));
    let (id, secret) = make(&own).await;
    assert_eq!(status(&ring, &secret).await, Some(KeyStatus::Live));
    own.revoke_key(&id, 1).await.expect("it is live");
    assert_eq!(status(&ring, &secret).await, Some(KeyStatus::Revoked), "one's own at once");
}

#[tokio::test]
#[ignore = "needs PostgreSQL"]
async fn a_server_that_is_away_is_told_and_comes_back() {
    let place = Postgres::new();
    let way = Way::new();
    let store = Store::connect(&place.url_at(&way.server())).expect("the way is open");
    let ring = KeyCache::new(store.clone());
    let (_, secret) = make(&store).await;
    assert_eq!(status(&ring, &secret).await, Some(KeyStatus::Live));
    store.open_request(&intent(1)).await.expect("it can be written");
    assert_eq!(store.state(), State::Server);
    for state in [WayState::Closed, WayState::Still] {
        way.become_(state);
        assert!(store.open_request(&intent(2)).await.is_err());
        assert_eq!(store.state(), State::Failing);
        assert!(store.settle_request(Arc::new(intent(1)), complete()).await.is_err());
        // A cached key is trusted for a moment, and no longer.
        let is_trusted = async || ring.find(&secret).await.is_ok();
        eventually(DEADLINE, is_trusted, |is_trusted| !is_trusted).await;
        way.become_(WayState::Open);
        let open = async || store.open_request(&intent(2)).await;
        eventually(DEADLINE, open, Result::is_ok).await.expect("it was opened");
        eventually(DEADLINE, async || store.state(), |state| *state == State::Server).await;
        assert_eq!(status(&ring, &secret).await, Some(KeyStatus::Live));
    }
    settle(&store, intent(1), complete()).await;
    settle(&store, intent(2), complete()).await;
    assert_eq!(total(&store).await.requests, 2);
}

#[tokio::test]
#[ignore = "needs PostgreSQL"]
async fn what_is_at_hand_is_what_others_have_put() {
    let place = Postgres::new();
    let (own, other) = (place.handle(), place.handle());
    let peek = |key: &[u8], now_ms| own.peek(ALICE, kind("small"), key, now_ms);
    for number in 0..1500_u32 {
        let entry = vec![entry(number.to_be_bytes(), "1", 9)];
        other.put(ALICE, kind("small"), entry, 1).await.expect("it is stored");
    }
    assert_eq!(peek(&[0; 4], 1), None, "it is not at hand");
    own.replicate(kind("small"));
    assert_eq!(peek(&1499_u32.to_be_bytes(), 1), Some(Some(entry([0, 0, 5, 219], "1", 9))));
    assert_eq!((peek(&[0; 4], 9), peek(b"none", 1)), (Some(None), Some(None)));
    other.put(ALICE, kind("small"), vec![entry([0; 4], "2", 9)], 1).await.expect("it is stored");
    let changed = Some(Some(entry([0; 4], "2", 9)));
    eventually(DEADLINE, async || peek(&[0; 4], 1), |found| *found == changed).await;
    assert_eq!(own.peek(BOB, kind("small"), &[0; 4], 1), Some(None), "it is nobody else's");
}

#[test]
#[ignore = "needs PostgreSQL"]
fn conversations_make_room_without_a_look_at_the_marks_that_stay() {
    let place = Postgres::new();
    drop(place.handle());
    // Two conversations have ended, and one of 5,000 marks more has to go.
    place.run(
        "INSERT INTO weir_conversation
          (tenant, name, created_ms, expires_ms, messages, weight_bytes)
          SELECT '\\x01'::bytea, '~' || number, 0, 100000 + number, 0, 256
          FROM generate_series(1, 5000) number
          UNION ALL SELECT '\\x01'::bytea, name, 0, 150000, 0, 256 FROM unnest(ARRAY['a', 'b']) name;
         ANALYZE weir_conversation;
         DO $$
         DECLARE
             most bigint := (SELECT bytes - 2 * 256 - 1 FROM weir_total WHERE kind = 'conversation');
             fetched bigint;
         BEGIN
             PERFORM weir_evict_conversations(200000, 100000, most);
             SELECT seq_tup_read + idx_tup_fetch INTO fetched FROM pg_stat_xact_user_tables
                 WHERE relid = 'weir_conversation'::regclass;
             IF fetched > 100 THEN RAISE EXCEPTION '% rows were read', fetched; END IF;
         END
         $$",
    );
    assert_eq!(place.number("SELECT count(*) FROM weir_conversation"), 4999);
}

#[tokio::test]
#[ignore = "needs PostgreSQL"]
async fn tables_of_an_earlier_version_keep_their_rows() {
    let place = Postgres::new();
    assert!(settle(&place.handle(), intent(1), complete()).await);
    place.run(
        "ALTER TABLE weir_request DROP COLUMN conversation, DROP COLUMN agent, DROP COLUMN parent,
         DROP COLUMN class, DROP COLUMN planned_saved_nano_usd, DROP COLUMN tag;
         ALTER TABLE weir_usage_day DROP COLUMN planned_saved_nano_usd;
         DROP TABLE weir_conversation_message, weir_conversation;
         DROP FUNCTION weir_weigh_conversation, weir_evict_conversations(bigint, bigint),
          weir_evict_conversations(bigint, bigint, bigint);
         UPDATE weir_meta SET value = '\\x0000000000000001' WHERE name = 'version'",
    );
    let store = place.handle();
    assert!(settle(&store, intent(2), complete()).await);
    let rows = rows(&store).await;
    let labels: Vec<_> = rows.into_iter().map(|row| row.attribution).collect();
    assert_eq!(labels, [intent(2).attribution, Attribution::default()]);
}

#[tokio::test]
#[ignore = "needs PostgreSQL"]
async fn many_who_make_the_tables_at_once_have_one_secret() {
    let place = Postgres::new();
    let opening: Vec<_> = (0..6)
        .map(|_| {
            let url = place.url();
            std::thread::spawn(move || Store::connect(&url).expect("it can be made").secret())
        })
        .collect();
    let secrets: Vec<_> =
        opening.into_iter().map(|opening| opening.join().expect("it does not panic")).collect();
    assert!(secrets.iter().all(|secret| *secret == secrets[0]));
    assert_eq!(place.number("SELECT count(*) FROM weir_meta WHERE name = 'secret'"), 1);
}

#[tokio::test]
#[ignore = "needs PostgreSQL"]
async fn what_a_weir_cannot_use_is_left_alone_and_told_without_the_password() {
    let place = Postgres::new();
    drop(place.handle());
    place.run("UPDATE weir_meta SET value = '\\x0000000000000063' WHERE name = 'version'");
    let refused = Store::connect(&place.url()).map(drop);
    let is_newer = matches!(refused, Err(OpenError::Newer { version: 99, .. }));
    assert!(is_newer, "{refused:?}");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let closed = listener.local_addr().expect("it has one");
    drop(listener);
    for url in [
        format!("postgres://weir:sesame@{closed}/weir"),
        format!("{}&dbname=sesame_is_not_there", place.url()),
        format!("postgres://weir:sesame@{closed}/weir?sslmode=maybe"),
    ] {
        let said = Store::connect(&url).map(drop).expect_err("it cannot be used").to_string();
        assert!(!said.contains("weir:sesame"), "{said}");
    }
}

#[test]
fn where_tls_is_wanted_nothing_is_sent_without() {
    use std::io::{Read as _, Write as _};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("it has one");
    // Plays a server without TLS, and returns the bytes that it receives after it has said so.
    let asked = std::thread::spawn(move || {
        let (mut caller, _) = listener.accept().expect("it is asked");
        let mut question = [0; 8];
        caller.read_exact(&mut question).expect("whether it has TLS");
        caller.write_all(b"N").expect("it is waited for");
        let mut rest = Vec::new();
        caller.read_to_end(&mut rest).expect("it is given up");
        rest
    });
    let url = format!("postgres://weir:sesame@{address}/weir?sslmode=require");
    let said = Store::connect(&url).map(drop).expect_err("there is no TLS").to_string();
    assert!(said.contains("TLS"), "{said}");
    assert_eq!(asked.join().expect("it does not panic"), b"");
}

#[tokio::test]
#[ignore = "needs PostgreSQL"]
async fn a_copy_is_left_to_the_servers_own_tool() {
    let place = Postgres::new();
    let folder = Folder::new();
    let refused = place.handle().backup(&folder.file("copy.db")).await;
    assert!(refused.is_err_and(|error| error.to_string().contains("pg_dump")));
    assert!(place.handle().sync().await.is_ok());
}

#[tokio::test]
#[ignore = "needs PostgreSQL"]
async fn what_used_nothing_is_released_although_the_server_was_away() {
    let (place, way) = (Postgres::new(), Way::new());
    let store = Store::connect(&place.url_at(&way.server())).expect("the way is open");
    let mut upstream = Upstream::start().await;
    let weir = start_with(store, &upstream.address.clone(), |_| {}).await;
    let request = bare("POST", "/v1/files", "content-length: 0\r\n");
    let (address, open) = (weir.address, || place.number("SELECT count(*) FROM weir_intent"));
    let asking = tokio::spawn(async move { ask(address, request).await });
    let seen = upstream.next().await;
    assert_eq!(open(), 1);
    way.become_(WayState::Closed);
    seen.answer(FINE);
    assert_eq!(asking.await.expect("it is answered").status(), 200);
    way.become_(WayState::Open);
    let tended = async || {
        weir.renewal.proxy().journal().tend().await;
        open()
    };
    eventually(DEADLINE, tended, |open| *open == 0).await;
}
