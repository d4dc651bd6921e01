//! Behaviour specific to a store in a SQLite file: who may read it, who may share it, and which
//! files weir leaves unchanged.

use std::path::Path;

use rusqlite::Connection;
use weir_store::{Kind, OpenError, State, Store, StoreError};

use super::places::{ALICE, bytes, entry, kind, value};
use crate::folder::Folder;

const KIND: Kind = kind("a kind");
const NOW: u64 = 1_800_000_000_000;

#[tokio::test]
async fn what_was_written_is_there_when_it_is_opened_again() {
    let folder = Folder::new();
    let path = folder.file("new/folders/weir.db");
    let store = Store::open(&path).expect("the folders are made");
    assert_eq!(store.state(), State::File);
    let secret = store.secret();
    store.put(ALICE, KIND, vec![entry("k", "v", NOW + 1)], NOW).await.expect("it is stored");
    drop(store);
    let again = Store::open(&path).expect("it was just there");
    assert_eq!(again.secret(), secret);
    assert_eq!(value(&again, ALICE, KIND, "k", NOW).await, Some(bytes("v")));
}

#[cfg(unix)]
#[tokio::test]
async fn only_its_owner_may_read_it() {
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &Path| {
        let metadata = std::fs::metadata(path).expect("it is there");
        metadata.permissions().mode() & 0o777
    };
    let folder = Folder::new();
    let path = folder.file("state/weir.db");
    let fresh = Store::open(&path).expect("it is made");
    fresh.put(ALICE, KIND, vec![entry("k", "v", NOW + 1)], NOW).await.expect("it is stored");
    assert_eq!(mode(&folder.file("state")), 0o700);
    for name in ["weir.db", "weir.db-wal", "weir.db-shm"] {
        assert_eq!(mode(&folder.file("state").join(name)), 0o600, "{name}");
    }
    let open = folder.file("open.db");
    std::fs::write(&open, "").expect("the folder can be written");
    std::fs::set_permissions(&open, PermissionsExt::from_mode(0o644)).expect("it is ours");
    let _store = Store::open(&open).expect("an empty file will do");
    assert_eq!(mode(&open), 0o600);
}

#[test]
fn files_that_are_not_its_own_are_left_alone() {
    let folder = Folder::new();
    let foreign = folder.file("songs.db");
    let songs = Connection::open(&foreign).expect("it is made");
    songs.execute_batch("CREATE TABLE songs (name TEXT)").expect("a table");
    drop(songs);
    let text = folder.file("text.db");
    std::fs::write(&text, "a text that somebody needs. ".repeat(100)).expect("it is written");
    let later = folder.file("later.db");
    // Not created by a store, whose threads may still be closing it: "weir" in ASCII identifies the
    // file.
    let connection = Connection::open(&later).expect("it is made");
    connection.pragma_update(None, "application_id", 0x7765_6972).expect("a number");
    connection.pragma_update(None, "user_version", 1000).expect("a number");
    connection.execute_batch("CREATE TABLE entry (kept BLOB)").expect("a table");
    drop(connection);
    for (path, expected) in [
        (&foreign, OpenError::Foreign),
        (&text, OpenError::Foreign),
        (&later, OpenError::Newer { version: 1000, known: 9 }),
    ] {
        let before = std::fs::read(path).expect("it is there");
        let permissions = || std::fs::metadata(path).expect("it is there").permissions();
        let permissions_before = permissions();
        assert_eq!(Store::open(path).err(), Some(expected), "{}", path.display());
        assert_eq!(std::fs::read(path).expect("it is there"), before, "{}", path.display());
        assert_eq!(permissions(), permissions_before, "{}", path.display());
    }
}

#[test]
fn a_place_that_cannot_be_written_is_told() {
    let folder = Folder::new();
    std::fs::write(folder.file("file"), "").expect("it is written");
    std::fs::create_dir(folder.file("folder")).expect("it is made");
    let permissions = |path: &Path| std::fs::metadata(path).expect("it is there").permissions();
    let before = permissions(&folder.file("folder"));
    for path in [folder.file("file/weir.db"), folder.file("folder"), "/proc/weir/weir.db".into()] {
        let opened = Store::open(&path).err();
        assert!(matches!(opened, Some(OpenError::Unusable { .. })), "{}", path.display());
    }
    assert_eq!(permissions(&folder.file("folder")), before);
}

#[test]
fn many_may_make_it_at_once() {
    const OPENERS: usize = 8;
    for round in 0..10 {
        let folder = Folder::new();
        let path = folder.file("state/weir.db");
        let barrier = std::sync::Barrier::new(OPENERS);
        let secrets = std::thread::scope(|scope| {
            let open = || {
                barrier.wait();
                Store::open(&path).map(|store| store.secret())
            };
            let openers = [(); OPENERS].map(|()| scope.spawn(open));
            openers.map(|opener| opener.join().expect("it does not panic"))
        });
        assert!(secrets[0].is_ok(), "round {round}: {secrets:?}");
        assert!(secrets.iter().all(|secret| *secret == secrets[0]), "round {round}: {secrets:?}");
    }
}

#[tokio::test]
async fn another_that_holds_the_file_is_waited_for_and_then_told() {
    let folder = Folder::new();
    let path = folder.file("weir.db");
    let store = Store::open(&path).expect("it is made");
    let stored = || vec![entry("k", "v", NOW + 1)];
    store.put(ALICE, KIND, stored(), NOW).await.expect("it is stored");
    let other = Connection::open(&path).expect("it was just made");
    other.execute_batch("BEGIN IMMEDIATE").expect("nobody writes");
    let refused = store.put(ALICE, KIND, vec![entry("k", "w", NOW + 1)], NOW).await;
    assert_eq!(refused, Err(StoreError::Busy));
    assert_eq!(store.state(), State::Failing);
    assert_eq!(value(&store, ALICE, KIND, "k", NOW).await, Some(bytes("v")), "reading goes on");
    other.execute_batch("ROLLBACK").expect("it was begun");
    store.put(ALICE, KIND, stored(), NOW).await.expect("it is free again");
    assert_eq!(store.state(), State::File);
}

#[tokio::test]
async fn what_has_ended_leaves_no_trace_in_the_file() {
    let folder = Folder::new();
    let path = folder.file("weir.db");
    let secret = "a secret that nobody may read once it has ended";
    let store = Store::open(&path).expect("it is made");
    store.put(ALICE, KIND, vec![entry("k", secret, NOW + 1)], NOW).await.expect("it is stored");
    let checkpoint = || {
        let connection = Connection::open(&path).expect("it was just made");
        let pragma = "PRAGMA wal_checkpoint(TRUNCATE)";
        connection.query_row(pragma, [], |_| Ok(())).expect("nobody reads");
    };
    let is_in_the_file = || {
        let content = std::fs::read(&path).expect("it is there");
        content.windows(secret.len()).any(|window| window == secret.as_bytes())
    };
    checkpoint();
    assert!(is_in_the_file());
    assert_eq!(store.delete_expired(NOW + 1).await, Ok(1));
    checkpoint();
    assert!(!is_in_the_file());
}
