//! Write-ahead logs in which processes record requests: their state after truncation at any point,
//! and that each request in them counts once, whichever process moves it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use weir_store::ledger::{Flags, Settlement, UsageQuery};
use weir_store::{State, Store, StoreError, StoreOptions};
use xxhash_rust::xxh3::xxh3_64;

use super::journal::{complete, id, intent, rows, settle, total};
use super::victim::{Victim, keyed, logs};
use crate::eventually::{DEADLINE, eventually};
use crate::folder::Folder;

/// Builds a frame with this content.
fn frame(content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).expect("it is short");
    [&length.to_le_bytes()[..], &xxh3_64(content).to_le_bytes(), content].concat()
}

/// Returns the positions at which the frames of a log end.
fn ends(log: &[u8]) -> Vec<usize> {
    let mut ends = vec![0];
    while let Some(length) = log[*ends.last().expect("one")..].first_chunk::<4>() {
        let last = *ends.last().expect("one");
        ends.push(last + 12 + u32::from_le_bytes(*length) as usize);
    }
    ends
}

/// Returns the log of a process that was killed with requests 1 and 3 open and 2 settled.
fn killed(path: &Path) -> (std::path::PathBuf, Vec<u8>) {
    Victim::start(path).kill();
    let log = logs(path).pop().expect("it has written");
    let content = std::fs::read(&log).expect("it is there");
    (log, content)
}

fn by_rule() -> Settlement {
    Settlement {
        outcome: "killed".to_owned(),
        flags: Flags::ESTIMATED,
        prompt_tokens: Some(1000),
        ..Settlement::default()
    }
}

/// Returns the numbers of open requests whose process has ended.
async fn orphans(store: &Store) -> Vec<u8> {
    let found = store.orphans(99).await.expect("it can be read");
    found.iter().map(|intent| intent.id.0[15]).collect()
}

#[tokio::test]
async fn of_a_log_cut_anywhere_its_whole_frames_count() {
    let folder = Folder::new();
    let (_, whole) = killed(&folder.file("weir.db"));
    let ends = ends(&whole);
    assert_eq!((ends.len(), ends[4]), (5, whole.len()));
    let cuts = ends.iter().flat_map(|end| [end.saturating_sub(1), *end, end + 5, end + 40]);
    for cut in cuts.filter(|cut| *cut <= whole.len()) {
        let folder = Folder::new();
        let path = folder.file("weir.db");
        drop(Store::open(&path).expect("it is made"));
        std::fs::create_dir(folder.file("weir.db.instances")).expect("it can be written");
        let log = folder.file("weir.db.instances").join(format!("{}-0.log", "7".repeat(32)));
        std::fs::write(log, &whole[..cut]).expect("it can be written");
        let frames = ends.iter().rposition(|end| *end <= cut).expect("zero is");
        let expected: &[u8] = [&[][..], &[1], &[1, 2], &[1, 2, 3], &[1, 3]][frames];
        let store = Store::open(&path).expect("it is there");
        assert_eq!(orphans(&store).await, expected, "{cut} bytes");
        assert_eq!(total(&store).await.requests, u64::from(frames == 4), "{cut} bytes");
    }
}

#[tokio::test]
async fn what_cannot_be_read_holds_up_nothing_behind_it() {
    let folder = Folder::new();
    let path = folder.file("weir.db");
    let (log, whole) = killed(&path);
    let first = &whole[12..ends(&whole)[1]];
    let mut later = first.to_vec();
    later[0] = 200;
    // Only the fact that one is open is known.
    let mut cut = first[..first.len() - 1].to_vec();
    cut[17] = 4;
    let mut broken = frame(first);
    broken[30] ^= 1;
    let elsewhere = Folder::new();
    let other = Store::open(&elsewhere.file("weir.db")).expect("it is made");
    other.open_request(&intent(9)).await.expect("it can be written");
    assert!(settle(&other, intent(9), complete()).await);
    let sound = std::fs::read(logs(&elsewhere.file("weir.db")).pop().expect("one")).expect("there");
    let parts =
        [&whole[..], &frame(&later), &frame(&cut), &broken, &[0; 5000], &[0xff; 77], &sound];
    std::fs::write(log, parts.concat()).expect("it can be written");
    let store = Store::open(&path).expect("it is there");
    assert_eq!(orphans(&store).await, [1, 4, 3], "as their ids lie");
    assert_eq!(total(&store).await.requests, 2);
    assert_eq!(rows(&store).await[0].id, id(9));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_may_move_a_log_at_once() {
    const REQUESTS: u64 = 3000;
    let folder = Folder::new();
    let path = folder.file("weir.db");
    let open = || Store::open(&path).expect("it can be shared");
    let writing = open();
    let ended = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut movers = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let (store, ended) = (open(), Arc::clone(&ended));
        movers.spawn(async move {
            let mut last = 0;
            while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                let seen = total(&store).await.requests;
                assert!(seen >= last, "{seen} after {last}");
                last = seen;
            }
        });
    }
    let reader = open();
    for number in 0..REQUESTS {
        writing.open_request(&intent(number)).await.expect("it can be written");
        assert!(settle(&writing, intent(number), complete()).await);
        if number % 500 == 0 {
            assert_eq!(total(&reader).await.requests, number + 1, "what has ended is seen at once");
        }
    }
    ended.store(true, std::sync::atomic::Ordering::Relaxed);
    movers.join_all().await;
    assert_eq!(total(&reader).await.requests, REQUESTS);
    assert_eq!(total(&reader).await.cost_nano_usd, REQUESTS * 5_000_000);
    assert_eq!(rows(&reader).await.len() as u64, REQUESTS);
}

#[tokio::test]
async fn what_is_open_outlives_the_log_that_it_was_opened_in() {
    let folder = Folder::new();
    let path = folder.file("weir.db");
    let short = StoreOptions { sync_interval: Duration::from_millis(1), max_log_bytes: 64 << 10 };
    let store = Store::open_with(&path, short).expect("it is made");
    let other = Store::open(&path).expect("it can be shared");
    for number in 1..=20 {
        store.open_request(&keyed(number)).await.expect("it can be written");
    }
    let first = logs(&path).pop().expect("it has written");
    let mut settled = 0;
    // The thread decides when it moves which records.
    let write = async || {
        settled += 1;
        let number = 1000 + settled;
        let open = async || store.open_request(&intent(number)).await;
        eventually(DEADLINE, open, Result::is_ok).await.expect("it was opened");
        assert!(settle(&store, intent(number), complete()).await);
        first.exists()
    };
    eventually(DEADLINE, write, |is_there| !is_there).await;
    assert!(logs(&path).len() <= 17, "{:?}", logs(&path));
    assert_eq!(orphans(&other).await, [0; 0], "whose they are lives");
    for number in 1..=10 {
        assert!(settle(&store, keyed(number), complete()).await);
    }
    store.release_request(id(11)).await.expect("it can be written");
    assert_eq!(total(&other).await.requests, settled + 10);
    drop(store);
    let left = eventually(DEADLINE, async || orphans(&other).await, |left| !left.is_empty()).await;
    assert_eq!(left, (12..=20).collect::<Vec<_>>());
    assert!(settle(&other, keyed(12), by_rule()).await);
    assert!(!settle(&other, keyed(1), by_rule()).await, "it has ended");
    assert_eq!(total(&other).await.requests, settled + 11);
    assert_eq!(rows(&other).await.len() as u64, settled + 11);
}

#[tokio::test]
async fn a_log_that_comes_back_counts_nothing_again() {
    let folder = Folder::new();
    let path = folder.file("weir.db");
    let (log, whole) = killed(&path);
    let options =
        StoreOptions { sync_interval: Duration::from_millis(1), ..StoreOptions::default() };
    let store = Store::open_with(&path, options).expect("it is there");
    for orphan in store.orphans(9).await.expect("it can be read") {
        assert!(settle(&store, orphan, by_rule()).await);
    }
    let before = total(&store).await;
    assert_eq!(before.requests, 3);
    // As after a power loss: with the checkpoint position kept, and lost.
    for _ in 0..2 {
        let write = async || {
            // The log is removed once enough was written behind it.
            for _ in 0..200 {
                store.open_request(&intent(50)).await.expect("it can be written");
                store.release_request(id(50)).await.expect("it can be written");
            }
            log.exists()
        };
        eventually(DEADLINE, write, |is_there| !is_there).await;
        std::fs::write(&log, &whole).expect("it can be written");
        assert_eq!(orphans(&store).await, [0; 0]);
        assert_eq!(total(&store).await, before);
        assert_eq!(rows(&store).await.len(), 3);
    }
}

#[tokio::test]
async fn a_log_that_cannot_be_moved_grows_to_its_limit_and_keeps_room_for_ends() {
    let folder = Folder::new();
    let path = folder.file("weir.db");
    let options = StoreOptions { sync_interval: Duration::from_millis(1), max_log_bytes: 64 << 10 };
    let store = Store::open_with(&path, options).expect("it is made");
    store.open_request(&intent(0)).await.expect("it can be written");
    let other = Connection::open(&path).expect("it was just made");
    other.busy_timeout(Duration::from_secs(10)).expect("a time");
    other.execute_batch("BEGIN IMMEDIATE").expect("it is free at some moment");
    let mut opened = 1;
    let refused = loop {
        match store.open_request(&intent(opened)).await {
            Ok(()) => opened += 1,
            Err(error) => break error,
        }
        if opened % 2 == 0 {
            assert!(settle(&store, intent(opened - 2), complete()).await);
        }
    };
    // The last end may lie above the limit.
    assert!(matches!(refused, StoreError::Behind { bytes: 60_000..=66_560 }), "{refused:?}");
    assert!(opened > 100, "{opened}");
    assert_eq!(store.state(), State::Failing);
    let bytes: u64 =
        logs(&path).iter().map(|log| std::fs::metadata(log).expect("it is there").len()).sum();
    assert!(bytes <= 65 << 10, "{bytes}");
    // One in two is open, and its end is still recorded.
    assert!(settle(&store, intent(opened - 1), complete()).await);
    assert_eq!(total(&store).await.requests, 0, "what there is is told");
    other.execute_batch("ROLLBACK").expect("it was begun");
    let settled = opened / 2 + 1;
    let sum = async || total(&store).await.requests;
    let moved = eventually(DEADLINE, sum, |requests| *requests >= settled).await;
    assert_eq!(moved, settled);
    // Waits until its thread has continued in another file.
    let open = async || store.open_request(&intent(opened + 1)).await;
    eventually(DEADLINE, open, Result::is_ok).await.expect("it was opened");
    assert_eq!(store.state(), State::File);
    assert_eq!(orphans(&store).await, [0; 0]);
}

#[tokio::test]
async fn a_store_of_an_earlier_weir_is_taken_over_whole() {
    let folder = Folder::new();
    let path = folder.file("weir.db");
    let store = Store::open(&path).expect("it is made");
    assert!(settle(&store, intent(1), complete()).await);
    assert_eq!(total(&store).await.requests, 1);
    drop(store);
    // Restores the earlier state: a request that is in no sum yet has its row and its intent.
    let earlier = Connection::open(&path).expect("it was just made");
    earlier.busy_timeout(Duration::from_secs(10)).expect("a time");
    earlier
        .execute_batch(
            "DROP TABLE moved; DROP TABLE budget; PRAGMA user_version = 2; DELETE FROM usage_day;
             DROP TABLE conversation; DROP TABLE conversation_message;
             ALTER TABLE request DROP COLUMN conversation; ALTER TABLE request DROP COLUMN agent;
             ALTER TABLE request DROP COLUMN parent; ALTER TABLE request DROP COLUMN class;
             ALTER TABLE request DROP COLUMN planned_saved_nano_usd;
             ALTER TABLE request DROP COLUMN tag;
             ALTER TABLE usage_day DROP COLUMN planned_saved_nano_usd;
             INSERT INTO intent SELECT id, x'00', begun_ms, '' FROM request",
        )
        .expect("SQL");
    let facts = r#"{"tenant":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"model":"gpt-4.1","sent_tokens":7}"#;
    earlier
        .execute("INSERT INTO intent VALUES (?1, x'00', 5, ?2)", (id(2).0, facts))
        .expect("a row");
    drop(earlier);
    let store = Store::open(&path).expect("it is brought forward");
    assert_eq!(total(&store).await.requests, 1);
    let open = store.orphans(9).await.expect("it can be read");
    assert_eq!((open.len(), open[0].sent_tokens), (1, Some(7)));
    assert!(settle(&store, open[0].clone(), by_rule()).await);
    assert_eq!(total(&store).await.requests, 2);
    assert_eq!(rows(&store).await.len(), 2);
    assert_eq!(store.orphans(9).await, Ok(Vec::new()));
}

#[cfg(unix)]
#[tokio::test]
async fn files_that_are_taken_away_are_told() {
    let options =
        StoreOptions { sync_interval: Duration::from_millis(1), ..StoreOptions::default() };
    for takes_log in [true, false] {
        let folder = Folder::new();
        let path = folder.file("weir.db");
        let store = Store::open_with(&path, options).expect("it is made");
        store.open_request(&intent(0)).await.expect("it can be written");
        let taken = if takes_log { logs(&path).pop().expect("one") } else { path.clone() };
        std::fs::remove_file(taken).expect("it is there");
        let mut number = 1;
        let mut write = async || {
            let written = store.open_request(&intent(number)).await;
            number += 1;
            (store.state(), written)
        };
        let seen = eventually(DEADLINE, &mut write, |(state, _)| *state == State::Failing).await;
        assert_eq!(seen.0, State::Failing);
        if takes_log {
            // The syncing thread may report the failure before the log does.
            let has_failed = |written: &(State, Result<(), StoreError>)| {
                matches!(written.1, Err(StoreError::Failed(_)))
            };
            assert!(eventually(DEADLINE, write, has_failed).await.1.is_err());
            assert!(settle(&store, intent(0), complete()).await, "in the store itself");
            assert_eq!(store.usage(UsageQuery::default()).await.map(|rows| rows.len()), Ok(1));
        }
    }
}
