//! Journal in a file: its state after a process was killed, locks held by others, and copies of the
//! file.

use rusqlite::Connection;
use weir_store::ledger::{Flags, Settlement};
use weir_store::{State, Store, StoreError, Tenant};

use super::journal::{complete, id, intent, rows, settle, total};
use super::places::{bytes, entry, kind, value};
use super::victim::{Victim, keyed, locks};
use crate::eventually::{DEADLINE, eventually};
use crate::folder::Folder;

#[tokio::test]
async fn what_a_killed_process_left_open_is_found_and_settled_once() {
    let folder = Folder::new();
    let path = folder.file("weir.db");
    let mut victim = Victim::start(&path);
    let stores = [(); 2].map(|()| Store::open(&path).expect("two may share it"));
    stores[0].open_request(&intent(7)).await.expect("it can be written");
    for store in &stores {
        assert_eq!(store.orphans(9).await, Ok(Vec::new()), "all of them live");
    }
    victim.kill();
    let orphans = stores[1].orphans(9).await.expect("it can be read");
    assert_eq!(orphans, [keyed(1), keyed(3)], "as they were, but for what goes on");
    assert_eq!(stores[0].orphans(1).await, Ok(vec![keyed(1)]));
    let by_rule = || Settlement {
        outcome: "killed".to_owned(),
        flags: Flags::ESTIMATED,
        prompt_tokens: Some(1000),
        ..Settlement::default()
    };
    for orphan in orphans {
        assert!(settle(&stores[1], orphan.clone(), by_rule()).await);
        assert!(!settle(&stores[0], orphan, by_rule()).await, "by one of them");
    }
    assert_eq!(stores[0].orphans(9).await, Ok(Vec::new()));
    let sums = total(&stores[0]).await;
    assert_eq!((sums.requests, sums.estimated, sums.failed), (3, 2, 2));
    assert_eq!(rows(&stores[0]).await.len(), 3);
    assert!(settle(&stores[0], intent(7), complete()).await, "the living settle their own");
}

#[tokio::test]
async fn a_handle_that_ends_leaves_its_open_requests_to_others() {
    let folder = Folder::new();
    let path = folder.file("weir.db");
    let (ending, other) = (Store::open(&path), Store::open(&path));
    let (ending, other) = (ending.expect("it is made"), other.expect("two may share it"));
    ending.open_request(&intent(1)).await.expect("it can be written");
    assert_eq!(locks(&path), 1);
    // Waits until it is gone; its last work may hold it a moment longer.
    drop(ending);
    let read = async || other.orphans(9).await.expect("it can be read");
    let left = eventually(DEADLINE, read, |left| !left.is_empty()).await;
    assert_eq!(left, [intent(1)]);
}

#[tokio::test]
async fn files_of_the_dead_are_cleared_away() {
    let folder = Folder::new();
    let path = folder.file("weir.db");
    Victim::start(&path).kill();
    assert_eq!(locks(&path), 1, "nobody was left to remove it");
    let store = Store::open(&path).expect("it is free");
    store.open_request(&intent(7)).await.expect("it can be written");
    assert_eq!(locks(&path), 1, "the living one's");
    assert_eq!(store.orphans(9).await.map(|found| found.len()), Ok(2));
}

#[tokio::test]
async fn intents_that_cannot_be_read_hold_up_no_others() {
    let folder = Folder::new();
    let path = folder.file("weir.db");
    let store = Store::open(&path).expect("it is made");
    store.open_request(&intent(1)).await.expect("it can be written");
    let broken = Connection::open(&path).expect("it was just made");
    for (number, facts) in [
        (10, "CAST(x'ff00fe' AS TEXT)"),
        (11, "''"),
        (12, "'{\"tenant\":[1],\"model\":7}'"),
        (13, "'{\"model\":\"m\",\"sent_tokens\":5,\"unknown\":{}}'"),
    ] {
        let sql = format!("INSERT INTO intent VALUES (?1, x'00', -1, {facts})");
        broken.execute(&sql, [id(number).0]).expect("a row");
    }
    let orphans = store.orphans(9).await.expect("it can be read");
    assert_eq!(orphans.len(), 4);
    assert_eq!((orphans[3].model.as_str(), orphans[3].sent_tokens), ("m", Some(5)));
    for orphan in orphans {
        assert!(settle(&store, orphan, Settlement::default()).await);
    }
    assert_eq!(store.orphans(9).await, Ok(Vec::new()));
    assert_eq!(total(&store).await.requests, 4);
}

#[tokio::test]
async fn a_file_that_another_holds_is_told_and_loses_nothing() {
    let folder = Folder::new();
    let path = folder.file("weir.db");
    let store = Store::open(&path).expect("it is made");
    store.open_request(&intent(1)).await.expect("it can be written");
    let other = Connection::open(&path).expect("it was just made");
    other.busy_timeout(std::time::Duration::from_secs(10)).expect("a time");
    other.execute_batch("BEGIN IMMEDIATE").expect("it is free at some moment");
    store.open_request(&intent(2)).await.expect("nobody waits for the file");
    assert!(settle(&store, intent(1), complete()).await);
    let never_opened = store.settle_request(intent(3).into(), complete()).await;
    assert_eq!(never_opened, Err(StoreError::Busy), "only the file can tell whether it has ended");
    assert_eq!(store.state(), State::Failing);
    assert_eq!(total(&store).await.requests, 0, "what there is is told");
    other.execute_batch("ROLLBACK").expect("it was begun");
    assert!(settle(&store, intent(2), complete()).await);
    assert!(settle(&store, intent(3), complete()).await, "its intent is missing");
    assert_eq!(store.state(), State::File);
    assert_eq!(total(&store).await.requests, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_made_while_others_write_is_a_store() {
    let folder = Folder::new();
    let store = Store::open(&folder.file("weir.db")).expect("it is made");
    let kept = kind("kept");
    store.put(Tenant([1; 16]), kept, vec![entry("k", "v", 9)], 1).await.expect("it is stored");
    let (writing, began) = (store.clone(), std::sync::Arc::new(tokio::sync::Notify::new()));
    let started = began.clone();
    let writer = tokio::spawn(async move {
        writing.open_request(&keyed(5000)).await.expect("it can be written");
        for number in 0..2000 {
            writing.open_request(&intent(number)).await.expect("it can be written");
            assert!(settle(&writing, intent(number), complete()).await);
            if number == 100 {
                started.notify_one();
            }
        }
    });
    began.notified().await;
    let copy = folder.file("copy.db");
    store.backup(&copy).await.expect("there is room");
    writer.await.expect("it ends");
    let copied = Store::open(&copy).expect("it is a store");
    assert_eq!(copied.secret(), store.secret());
    assert_eq!(value(&copied, Tenant([1; 16]), kept, "k", 1).await, Some(bytes("v")));
    let sums = total(&copied).await;
    assert!((101..=2000).contains(&sums.requests), "{sums:?}");
    assert_eq!(sums.requests as usize, rows(&copied).await.len());
    let check = Connection::open(&copy).expect("it is there");
    let sound: String =
        check.query_row("PRAGMA integrity_check", [], |row| row.get(0)).expect("it can be read");
    assert_eq!(sound, "ok");
    let open = copied.orphans(9).await.expect("it can be read");
    assert!(open.contains(&keyed(5000)), "what was open is open in the copy: {open:?}");
    let again = store.backup(&copy).await;
    assert!(matches!(again, Err(StoreError::Failed(_))), "what is there is kept: {again:?}");
    let nowhere = store.backup(&folder.file("missing/copy.db")).await;
    assert!(matches!(nowhere, Err(StoreError::Failed(_))), "{nowhere:?}");
}

#[cfg(unix)]
#[tokio::test]
async fn only_its_owner_may_read_a_copy() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    let store = Store::open(&folder.file("weir.db")).expect("it is made");
    store.backup(&folder.file("copy.db")).await.expect("there is room");
    let mode = std::fs::metadata(folder.file("copy.db")).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(!folder.file("copy.db.partial").exists());
    let memory = Store::in_memory().expect("there is memory").backup(&folder.file("m.db")).await;
    assert!(matches!(memory, Err(StoreError::Failed(_))), "{memory:?}");
}

#[tokio::test]
async fn what_was_written_can_be_waited_for_until_it_is_on_the_disk() {
    let folder = Folder::new();
    let store = Store::open(&folder.file("weir.db")).expect("it is made");
    store.open_request(&intent(1)).await.expect("it can be written");
    assert_eq!(store.sync().await, Ok(()));
    assert_eq!(Store::in_memory().expect("there is memory").sync().await, Ok(()));
}
