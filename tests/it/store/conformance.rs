//! Behaviour of every implementation of the store: see [`super::places::Place`].

use weir_store::{ENTRY_BYTES, Entry, Kind, Life, MAX_KEY_BYTES, Store, StoreError, Tenant};

use super::in_every_place;
use super::places::{ALICE, BOB, Place, bytes, entry, fetch, kind, value};

const KIND: Kind = kind("a kind");
/// Reference time of this file.
const NOW: u64 = 1_800_000_000_000;

async fn what_is_put_is_found(place: impl Place) {
    let (writer, reader) = (place.handle(), place.handle());
    let first = vec![entry("a", "1", NOW + 1), entry("b", "2", NOW + 1)];
    writer.put(ALICE, KIND, first, NOW).await.expect("it is stored");
    writer.put(ALICE, KIND, vec![entry("a", "one", NOW + 1)], NOW).await.expect("it is stored");
    writer.put(ALICE, KIND, Vec::new(), NOW).await.expect("nothing is to be stored");
    let keys: [&[u8]; 4] = [b"b", b"missing", b"a", b"b"];
    let found = fetch(&reader, ALICE, KIND, &keys, NOW, Life::Left).await;
    let expected = vec![Some(bytes("2")), None, Some(bytes("one")), Some(bytes("2"))];
    assert_eq!(found, Ok(expected));
    assert_eq!(fetch(&reader, ALICE, KIND, &[], NOW, Life::Left).await, Ok(Vec::new()));
}

async fn any_bytes_are_kept_as_they_are(place: impl Place) {
    let store = place.handle();
    let every_byte: Vec<u8> = (0..=u8::MAX).collect();
    let large = vec![b'\\'; 3 << 20];
    let rows: [&[u8]; 9] = [
        b"",
        b"\0",
        b"a\0b",
        b"a\0c",
        b"\xff\xfe\xc0 broken",
        b"'; DROP TABLE entry; --",
        "ünïcödé \u{10ffff}".as_bytes(),
        &every_byte,
        &large,
    ];
    for (index, row) in rows.iter().enumerate() {
        let key = if row.len() <= MAX_KEY_BYTES { row } else { &b"large"[..] };
        let both = vec![entry(key, row, NOW + 1)];
        store.put(ALICE, KIND, both, NOW).await.expect("any bytes will do");
        assert_eq!(value(&store, ALICE, KIND, key, NOW).await, Some(bytes(row)), "row {index}");
    }
    for (index, row) in rows.iter().enumerate().filter(|(_, row)| row.len() <= MAX_KEY_BYTES) {
        let found = value(&store, ALICE, KIND, row, NOW).await;
        assert_eq!(found, Some(bytes(row)), "row {index} after all others");
    }
}

async fn nothing_is_found_once_it_has_ended(place: impl Place) {
    let store = place.handle();
    for (key, expires_ms, is_there) in [
        ("ended", NOW - 1, false),
        ("ends now", NOW, false),
        ("ends soon", NOW + 1, true),
        ("never ends", u64::MAX, true),
        ("never was", 0, false),
    ] {
        let stored = vec![entry(key, "v", expires_ms)];
        store.put(ALICE, KIND, stored, NOW - 2).await.expect("it is stored");
        assert_eq!(value(&store, ALICE, KIND, key, NOW).await.is_some(), is_there, "{key}");
    }
}

async fn reading_renews_a_life_when_asked(place: impl Place) {
    let store = place.handle();
    let renewed = Life::Renewed { lifetime_ms: 100 };
    // The old expiry, how the value is read, and the times at which it is still there and gone.
    for (key, expires_ms, life, there_ms, gone_ms) in [
        ("left", 10, Life::Left, 9, 10),
        ("near its end", 10, renewed, 99, 100),
        ("at half", 50, renewed, 99, 100),
        ("above half", 51, renewed, 50, 51),
        ("longer than asked", 500, renewed, 499, 500),
    ] {
        let stored = vec![entry(key, "v", NOW + expires_ms)];
        store.put(ALICE, KIND, stored, NOW).await.expect("it is stored");
        let found = fetch(&store, ALICE, KIND, &[key.as_bytes()], NOW, life).await;
        assert_eq!(found, Ok(vec![Some(bytes("v"))]), "{key}");
        assert!(value(&store, ALICE, KIND, key, NOW + there_ms).await.is_some(), "{key}");
        assert!(value(&store, ALICE, KIND, key, NOW + gone_ms).await.is_none(), "{key}");
    }
    store.put(ALICE, KIND, vec![entry("ended", "v", NOW)], NOW).await.expect("it is stored");
    let found = fetch(&store, ALICE, KIND, &[b"ended"], NOW, renewed).await;
    assert_eq!(found, Ok(vec![None]), "what has ended stays so");
    assert!(value(&store, ALICE, KIND, "ended", NOW).await.is_none());
}

async fn tenants_and_kinds_are_apart(place: impl Place) {
    let store = place.handle();
    let other = kind("other");
    let rows = [(ALICE, KIND, "1"), (BOB, KIND, "2"), (ALICE, other, "3"), (BOB, other, "4")];
    for (tenant, kind, text) in rows {
        assert_eq!(value(&store, tenant, kind, "key", NOW).await, None, "{text}");
        let stored = vec![entry("key", text, NOW + 1)];
        let stands = store.put_if_absent(tenant, kind, stored, NOW).await;
        assert_eq!(stands, Ok(vec![bytes(text)]));
    }
    for (tenant, kind, text) in rows {
        assert_eq!(value(&store, tenant, kind, "key", NOW).await, Some(bytes(text)));
    }
}

async fn the_first_writer_wins(place: impl Place) {
    const WRITERS: usize = 8;
    const KEYS: usize = 20;
    let handles: Vec<Store> = (0..WRITERS).map(|_| place.handle()).collect();
    let start = std::sync::Arc::new(tokio::sync::Barrier::new(WRITERS));
    let mut writers = tokio::task::JoinSet::new();
    for (writer, store) in handles.iter().cloned().enumerate() {
        let start = start.clone();
        writers.spawn(async move {
            start.wait().await;
            let mut stand = Vec::new();
            for key in 0..KEYS {
                let own = vec![entry(key.to_string(), writer.to_string(), NOW + 1)];
                let found = store.put_if_absent(ALICE, KIND, own, NOW).await;
                stand.extend(found.expect("it is stored"));
            }
            stand
        });
    }
    let stand = writers.join_all().await;
    for other in &stand {
        assert_eq!(other, &stand[0], "every writer is given the first one's value");
    }
    for (key, first) in stand[0].iter().enumerate() {
        let found = value(&handles[0], ALICE, KIND, key.to_string(), NOW).await;
        assert_eq!(found.as_ref(), Some(first));
    }
    let later = vec![entry("0", "anew", NOW + 9), entry("new", "too", NOW + 9)];
    let stands = handles[1].put_if_absent(ALICE, KIND, later, NOW + 1).await;
    assert_eq!(stands, Ok(vec![bytes("anew"), bytes("too")]), "what has ended is absent");
}

/// Returns a kind with room for this many entries of [`small`].
fn room_for(entries: u64) -> Kind {
    Kind { name: "bounded", max_bytes: entries * small(0, 0).weight_bytes() }
}

fn small(number: u8, expires_ms: u64) -> Entry {
    entry([number], "0123456789", NOW + expires_ms)
}

async fn held(store: &Store, tenant: Tenant) -> Vec<u8> {
    let mut held = Vec::new();
    for number in 0..20 {
        if value(store, tenant, room_for(1), [number], NOW).await.is_some() {
            held.push(number);
        }
    }
    held
}

async fn the_oldest_goes_where_there_is_no_room(place: impl Place) {
    let store = place.handle();
    for number in 0..4 {
        let one = vec![small(number, 10 + u64::from(number))];
        store.put(ALICE, room_for(4), one, NOW).await.expect("it is stored");
    }
    assert_eq!(held(&store, ALICE).await, [0, 1, 2, 3], "at the limit");
    store.put(ALICE, room_for(4), vec![small(4, 14)], NOW).await.expect("it is stored");
    assert_eq!(held(&store, ALICE).await, [1, 2, 3, 4], "one past it");
    store.put(ALICE, room_for(4), vec![small(1, 20)], NOW).await.expect("it is stored");
    let more = vec![small(5, 15), small(6, 16)];
    store.put_if_absent(ALICE, room_for(4), more, NOW).await.expect("it is stored");
    assert_eq!(held(&store, ALICE).await, [1, 4, 5, 6], "what was written again is younger");
    let many = (7..15).map(|number| small(number, 30)).collect();
    store.put(ALICE, room_for(4), many, NOW).await.expect("it is stored");
    assert_eq!(held(&store, ALICE).await, [11, 12, 13, 14], "of equals the first written goes");
}

async fn nobody_pushes_out_the_little_of_another(place: impl Place) {
    let store = place.handle();
    store.put(BOB, room_for(4), vec![small(0, 1)], NOW).await.expect("it is stored");
    for number in 0..9 {
        store.put(ALICE, room_for(4), vec![small(number, 50)], NOW).await.expect("it is stored");
    }
    assert_eq!(held(&store, BOB).await, [0]);
    assert_eq!(held(&store, ALICE).await, [6, 7, 8]);
    let other = Kind { name: "other", ..room_for(4) };
    store
        .put(BOB, other, (0..4).map(|number| small(number, 9)).collect(), NOW)
        .await
        .expect("it is");
    assert_eq!(held(&store, ALICE).await, [6, 7, 8], "another kind has its own room");
}

async fn what_has_ended_makes_room_first(place: impl Place) {
    let store = place.handle();
    store.put(BOB, room_for(3), vec![small(0, 1)], NOW).await.expect("it is stored");
    store.put(ALICE, room_for(3), vec![small(0, 9), small(1, 9)], NOW).await.expect("it is stored");
    store.put(ALICE, room_for(3), vec![small(2, 9)], NOW + 1).await.expect("it is stored");
    assert_eq!(held(&store, ALICE).await, [0, 1, 2]);
    assert_eq!(held(&store, BOB).await, [] as [u8; 0]);
}

async fn what_no_limit_would_hold_is_refused_whole(place: impl Place) {
    let store = place.handle();
    let limited = Kind { name: "limited", max_bytes: ENTRY_BYTES + 10 };
    let long_key = [7; MAX_KEY_BYTES + 1];
    let (fits, too_large) = (entry("k", "123456789", NOW + 1), entry("k", "1234567890", NOW + 1));
    let error = StoreError::TooLarge { bytes: ENTRY_BYTES + 11, max_bytes: ENTRY_BYTES + 10 };
    for batch in [vec![too_large.clone()], vec![fits.clone(), too_large]] {
        assert_eq!(store.put(ALICE, limited, batch.clone(), NOW).await, Err(error.clone()));
        let refused = store.put_if_absent(ALICE, limited, batch, NOW).await;
        assert_eq!(refused, Err(error.clone()));
        assert_eq!(value(&store, ALICE, limited, "k", NOW).await, None);
    }
    store.put(ALICE, limited, vec![fits], NOW).await.expect("it fits to the byte");
    assert_eq!(value(&store, ALICE, limited, "k", NOW).await, Some(bytes("123456789")));
    let long = store.put(ALICE, KIND, vec![entry(long_key, "", NOW + 1)], NOW).await;
    let max_bytes = MAX_KEY_BYTES as u64;
    assert_eq!(long, Err(StoreError::TooLarge { bytes: max_bytes + 1, max_bytes }));
    let longest = vec![entry(&long_key[1..], "v", NOW + 1)];
    store.put(ALICE, KIND, longest, NOW).await.expect("a key of the longest kind");
}

async fn what_has_ended_is_deleted(place: impl Place) {
    let store = place.handle();
    let many = |tenant: Tenant, expires_ms| {
        let entries = (0..1200u32).map(|number| entry(number.to_le_bytes(), "v", expires_ms));
        store.put(tenant, KIND, entries.collect(), NOW)
    };
    many(ALICE, NOW + 5).await.expect("it is stored");
    many(BOB, NOW + 6).await.expect("it is stored");
    let other = place.handle();
    assert_eq!(other.delete_expired(NOW + 4).await, Ok(0));
    assert_eq!(other.delete_expired(NOW + 5).await, Ok(1200));
    assert_eq!(other.delete_expired(NOW + 5).await, Ok(0));
    assert!(value(&store, BOB, KIND, 7u32.to_le_bytes(), NOW + 5).await.is_some());
    assert_eq!(other.delete_expired(u64::MAX).await, Ok(1200));
}

async fn many_writers_lose_nothing(place: impl Place) {
    const WRITERS: usize = 40;
    const ROUNDS: usize = 10;
    let handles = [place.handle(), place.handle()];
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let store = handles[writer % 2].clone();
        writers.spawn(async move {
            for round in 0..ROUNDS {
                let key = format!("{writer}/{round}");
                let stored = vec![entry(&key, &key, NOW + 1)];
                store.put(ALICE, KIND, stored, NOW).await.expect("it is stored");
                assert_eq!(value(&store, ALICE, KIND, &key, NOW).await, Some(bytes(&key)));
            }
        });
    }
    writers.join_all().await;
    for writer in 0..WRITERS {
        let key = format!("{writer}/{}", ROUNDS - 1);
        let found = value(&handles[(writer + 1) % 2], ALICE, KIND, &key, NOW).await;
        assert_eq!(found, Some(bytes(&key)), "seen by the other handle");
    }
}

async fn all_handles_have_one_secret(place: impl Place) {
    let secret = place.handle().secret();
    assert_eq!(place.handle().secret(), secret);
    assert_ne!(secret, [0; 32]);
}

in_every_place!(
    what_is_put_is_found
    any_bytes_are_kept_as_they_are
    nothing_is_found_once_it_has_ended
    reading_renews_a_life_when_asked
    tenants_and_kinds_are_apart
    the_first_writer_wins
    the_oldest_goes_where_there_is_no_room
    nobody_pushes_out_the_little_of_another
    what_has_ended_makes_room_first
    what_no_limit_would_hold_is_refused_whole
    what_has_ended_is_deleted
    many_writers_lose_nothing
    all_handles_have_one_secret
);
