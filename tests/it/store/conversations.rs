//! Kept conversations in every implementation of the store: see [`super::places::Place`].

use std::sync::Arc;

use weir_store::conversations::{
    Added, Addition, Conversation, ConversationLimits, KeptMessage, MAX_PAGE,
};
use weir_store::{Store, Tenant};

use super::in_every_place;
use super::places::{ALICE, BOB, Place, bytes, kind, value};

/// Reference time of this file.
const NOW: u64 = 1_800_000_000_000;
const LIMITS: ConversationLimits =
    ConversationLimits { lifetime_ms: 1000, max_conversation_bytes: 1 << 20, max_bytes: 1 << 30 };

const MOST: u64 = LIMITS.max_bytes;

/// Returns an exchange: a message that opens a turn, and one that does not.
fn exchange(name: &str) -> Vec<KeptMessage> {
    let message = |role: &str, opens| KeptMessage { text: bytes(format!("{role} {name}")), opens };
    vec![message("user", true), message("assistant", false)]
}

async fn found(store: &Store, tenant: Tenant, name: &str, now_ms: u64) -> Option<Conversation> {
    store.conversation(tenant, name, now_ms).await.expect("it can be read")
}

async fn texts(store: &Store, name: &str) -> String {
    let conversation = found(store, ALICE, name, NOW).await.expect("it is there");
    let texts = conversation.messages.iter().map(|(_, message)| &message.text[..]);
    String::from_utf8(texts.collect::<Vec<_>>().join(&b","[..])).expect("text")
}

/// Adds an exchange to the conversation as it is read now.
async fn add(store: &Store, tenant: Tenant, name: &str, said: &str, now_ms: u64) -> Added {
    let continues = found(store, tenant, name, now_ms).await.map(|found| found.id);
    let addition = Addition { continues, change: now_ms, messages: exchange(said) };
    let added = store.add_to_conversation(tenant, name, addition, LIMITS, now_ms).await;
    added.expect("it can be written")
}

async fn exchanges_stay_in_order(place: impl Place) {
    let (writer, reader) = (place.handle(), place.handle());
    assert_eq!(found(&reader, ALICE, "a", NOW).await, None);
    for said in ["1", "2", "3"] {
        assert_eq!(add(&writer, ALICE, "a", said, NOW).await, Added::Whole);
    }
    let expected = "user 1,assistant 1,user 2,assistant 2,user 3,assistant 3";
    assert_eq!(texts(&reader, "a").await, expected);
    let conversation = found(&reader, ALICE, "a", NOW).await.expect("it is there");
    let places: Vec<u64> = conversation.messages.iter().map(|(place, _)| *place).collect();
    assert_eq!(places, [0, 1, 2, 3, 4, 5]);
    let opens = conversation.messages.iter().map(|(_, message)| message.opens);
    assert_eq!(opens.collect::<Vec<_>>(), [true, false, true, false, true, false]);
    let facts = conversation.facts;
    assert_eq!((facts.messages, facts.created_ms), (6, NOW));
    assert_eq!((facts.last_message_ms, facts.expires_ms), (Some(NOW), NOW + 1000));
    assert_eq!(found(&reader, BOB, "a", NOW).await, None, "another tenant has none");
    assert_eq!(found(&reader, ALICE, "A", NOW).await, None, "nor has another name");
}

async fn exchanges_at_once_are_next_to_each_other(place: impl Place) {
    let stores = [Arc::new(place.handle()), Arc::new(place.handle())];
    add(&stores[0], ALICE, "a", "first", NOW).await;
    let id = found(&stores[0], ALICE, "a", NOW).await.map(|found| found.id);
    let adding = (0..20).map(|number| {
        let store = Arc::clone(&stores[number % 2]);
        let addition =
            Addition { continues: id, change: NOW, messages: exchange(&number.to_string()) };
        tokio::spawn(
            async move { store.add_to_conversation(ALICE, "a", addition, LIMITS, NOW).await },
        )
    });
    let adding: Vec<_> = adding.collect();
    for added in adding {
        assert_eq!(added.await.expect("no panic"), Ok(Added::Whole));
    }
    let all = texts(&stores[1], "a").await;
    let all: Vec<&str> = all.split(',').collect();
    assert_eq!(all.len(), 42, "none is lost");
    for pair in all.chunks(2) {
        let said = |text: &str| text.split_once(' ').map(|(_, said)| said.to_owned());
        assert_eq!(said(pair[0]), said(pair[1]), "{all:?}");
    }
}

async fn two_first_exchanges_are_both_kept(place: impl Place) {
    let store = place.handle();
    for said in ["1", "2"] {
        let addition = Addition { continues: None, change: NOW, messages: exchange(said) };
        let added = store.add_to_conversation(ALICE, "a", addition, LIMITS, NOW).await;
        assert_eq!(added, Ok(Added::Whole));
    }
    assert_eq!(texts(&store, "a").await, "user 1,assistant 1,user 2,assistant 2");
}

async fn an_exchange_does_not_undo_a_change(place: impl Place) {
    let store = place.handle();
    for change in ["replaced", "cleared", "deleted"] {
        add(&store, ALICE, change, "before", NOW).await;
        let continues = found(&store, ALICE, change, NOW).await.map(|found| found.id);
        match change {
            "deleted" => {
                assert_eq!(store.delete_conversation(ALICE, change, MOST, NOW).await, Ok(true))
            }
            change => {
                let messages = if change == "cleared" { Vec::new() } else { exchange("new") };
                let put =
                    store.replace_conversation(ALICE, change, messages, LIMITS, NOW + 1).await;
                let facts = put.expect("it can be written");
                let count = if change == "cleared" { 0 } else { 2 };
                assert_eq!((facts.messages, facts.created_ms), (count, NOW), "{change}");
                let last_ms = (change == "replaced").then_some(NOW + 1);
                assert_eq!(facts.last_message_ms, last_ms, "{change}");
            }
        }
        let late = Addition { continues, change: NOW, messages: exchange("late") };
        let added = store.add_to_conversation(ALICE, change, late, LIMITS, NOW).await;
        assert_eq!(added, Ok(Added::Changed), "{change}");
        let left = found(&store, ALICE, change, NOW).await.map(|found| found.messages.len());
        let expected = match change {
            "replaced" => Some(2),
            "cleared" => Some(0),
            _ => None,
        };
        assert_eq!(left, expected, "{change}");
        let _ = store.delete_conversation(ALICE, change, MOST, NOW).await;
    }
    assert_eq!(store.delete_conversation(ALICE, "a", MOST, NOW).await, Ok(false));
}

/// Adds a first exchange that began after the change `change`.
async fn add_first(store: &Store, name: &str, change: u64) -> Added {
    let addition = Addition { continues: None, change, messages: exchange("late") };
    let added = store.add_to_conversation(ALICE, name, addition, LIMITS, NOW + 9).await;
    added.expect("it can be written")
}

async fn a_first_exchange_does_not_undo_a_change(place: impl Place) {
    let (store, other) = (place.handle(), place.handle());
    for (number, change) in ["replaced", "cleared", "deleted"].into_iter().enumerate() {
        add(&store, ALICE, change, "first", NOW + 1).await;
        match change {
            "deleted" => {
                assert_eq!(store.delete_conversation(ALICE, change, MOST, NOW + 2).await, Ok(true));
            }
            change => {
                let messages = if change == "cleared" { Vec::new() } else { exchange("new") };
                let put =
                    store.replace_conversation(ALICE, change, messages, LIMITS, NOW + 2).await;
                assert!(put.is_ok(), "{change}");
            }
        }
        let count = async || {
            let found = found(&store, ALICE, change, NOW + 9).await;
            found.map(|found| found.messages.len())
        };
        let before = count().await;
        // It began before the conversation, so it continues none.
        assert_eq!(add_first(&other, change, NOW).await, Added::Changed, "{change}");
        assert_eq!(count().await, before, "{change}");
        // The mark is no conversation, and outlives a cleaning.
        let listed = other.list_conversations(ALICE, "", NOW + 9).await.expect("it can be read");
        let own = number + usize::from(change != "deleted");
        assert_eq!(listed.len(), own, "{change}");
        assert_eq!(other.delete_expired(NOW + 9).await, Ok(0), "{change}");
        assert_eq!(add_first(&other, change, NOW + 1).await, Added::Changed, "{change}");
        // One that began after the change is added; an earlier one still is not.
        assert_eq!(add_first(&store, change, NOW + 2).await, Added::Whole, "{change}");
        assert_eq!(add_first(&other, change, NOW + 1).await, Added::Changed, "{change}");
    }
    let day_ms = 24 * 60 * 60 * 1000;
    let ended = store.delete_expired(NOW + day_ms + 2).await;
    assert_eq!(ended, Ok(6), "the conversations and their marks");
}

async fn a_delete_of_nothing_counts_for_exchanges_under_way(place: impl Place) {
    let (store, other) = (place.handle(), place.handle());
    let latest = async || other.conversation_change(ALICE, "a").await.expect("it can be read");
    let mut before = latest().await;
    assert_eq!(before, 0);
    // Deletes of one millisecond are different changes.
    for _ in 0..2 {
        assert_eq!(store.delete_conversation(ALICE, "a", MOST, NOW).await, Ok(false));
        let after = latest().await;
        assert!(after > before, "{after} after {before}");
        assert_eq!(add_first(&other, "a", before).await, Added::Changed);
        before = after;
    }
    assert_eq!(found(&store, ALICE, "a", NOW).await, None);
    let listed = store.list_conversations(ALICE, "", NOW).await;
    assert_eq!(listed.map(|listed| listed.len()), Ok(0), "changes are no conversations");
    assert_eq!(other.conversation_change(BOB, "a").await, Ok(0));
    assert_eq!(add_first(&other, "a", before).await, Added::Whole);
}

async fn changes_outlast_conversations_if_there_is_no_room(place: impl Place) {
    let store = place.handle();
    let limits = ConversationLimits { max_bytes: 40_000, ..LIMITS };
    let large = "x".repeat(3000);
    assert_eq!(store.delete_conversation(ALICE, "a0", 40_000, NOW).await, Ok(false));
    for number in 1..10 {
        let addition = Addition { continues: None, change: 0, messages: exchange(&large) };
        let name = format!("a{number}");
        let added = store.add_to_conversation(ALICE, &name, addition, limits, NOW + number).await;
        assert_eq!(added, Ok(Added::Whole));
    }
    assert_eq!(found(&store, ALICE, "a1", NOW).await, None, "the oldest made room");
    assert_eq!(add_first(&store, "a0", 0).await, Added::Changed);
    // Many changes leave room for themselves in the end.
    for number in 0..300 {
        let deleted = store.delete_conversation(BOB, &format!("b{number}"), 40_000, NOW).await;
        assert_eq!(deleted, Ok(false));
    }
    let latest = async |name: &str| store.conversation_change(BOB, name).await;
    assert_eq!((latest("b0").await, latest("b299").await), (Ok(0), Ok(NOW)));
}

async fn conversations_are_listed_in_pages(place: impl Place) {
    let store = place.handle();
    let name = |number: usize| format!("c{number:04}");
    for number in 0..=MAX_PAGE {
        add(&store, ALICE, &name(number), "x", NOW).await;
    }
    add(&store, BOB, "b", "x", NOW).await;
    let page = store.list_conversations(ALICE, "", NOW).await.expect("it can be read");
    assert_eq!((page.len(), page[0].name.clone()), (MAX_PAGE, name(0)));
    let last = page.last().map_or("", |facts| &facts.name);
    let rest = store.list_conversations(ALICE, last, NOW).await.expect("it can be read");
    assert_eq!(rest.iter().map(|facts| &facts.name).collect::<Vec<_>>(), [&name(MAX_PAGE)]);
    assert_eq!(rest[0].messages, 2);
}

async fn conversations_end(place: impl Place) {
    let store = place.handle();
    add(&store, ALICE, "a", "1", NOW).await;
    add(&store, ALICE, "a", "2", NOW + 500).await;
    let ended_ms = NOW + 1500;
    assert!(found(&store, ALICE, "a", ended_ms - 1).await.is_some(), "an exchange renews it");
    assert_eq!(found(&store, ALICE, "a", ended_ms).await, None);
    let listed = store.list_conversations(ALICE, "", ended_ms).await;
    assert_eq!(listed.map(|listed| listed.len()), Ok(0));
    // Another one takes its name, and nothing of it.
    assert_eq!(add(&store, ALICE, "a", "3", ended_ms).await, Added::Whole);
    let new = found(&store, ALICE, "a", ended_ms).await.expect("it is there");
    assert_eq!((new.messages.len(), new.facts.created_ms), (2, ended_ms));
    assert_eq!(store.delete_expired(ended_ms).await, Ok(0));
    assert_eq!(store.delete_expired(ended_ms + 1000).await, Ok(1));
    let deleted = store.delete_conversation(ALICE, "a", MOST, ended_ms + 1000).await;
    assert_eq!(deleted, Ok(false), "it is deleted");
}

async fn a_long_conversation_loses_its_oldest_turns(place: impl Place) {
    let store = place.handle();
    let limits = ConversationLimits { max_conversation_bytes: 4000, ..LIMITS };
    let mut sizes = Vec::new();
    for number in 0..40 {
        let continues = found(&store, ALICE, "a", NOW).await.map(|found| found.id);
        let addition =
            Addition { continues, change: NOW, messages: exchange(&format!("{number:0100}")) };
        let added = store.add_to_conversation(ALICE, "a", addition, limits, NOW).await;
        assert_eq!(added, Ok(Added::Whole));
        let conversation = found(&store, ALICE, "a", NOW).await.expect("it is there");
        assert!(conversation.facts.bytes <= 4000, "{}", conversation.facts.bytes);
        assert_eq!(conversation.facts.messages as usize, conversation.messages.len());
        assert!(conversation.messages[0].1.opens, "it begins with a turn");
        let last = conversation.messages.last().map(|(place, _)| *place);
        assert_eq!(last, Some(2 * number + 1), "places go on");
        sizes.push(conversation.messages.len());
    }
    let shrunk = sizes.windows(2).filter(|pair| pair[1] < pair[0]).count();
    assert!((2..=8).contains(&shrunk), "it shrinks rarely: {sizes:?}");
}

async fn the_tenant_with_the_most_loses_its_oldest(place: impl Place) {
    let store = place.handle();
    let limits = ConversationLimits { max_bytes: 40_000, ..LIMITS };
    let large = "x".repeat(3000);
    let add = async |tenant, name: &str, now_ms| {
        let addition = Addition { continues: None, change: NOW, messages: exchange(&large) };
        let added = store.add_to_conversation(tenant, name, addition, limits, now_ms).await;
        assert_eq!(added, Ok(Added::Whole));
    };
    add(BOB, "b", NOW).await;
    for number in 0..10 {
        add(ALICE, &format!("a{number}"), NOW + number).await;
    }
    assert!(found(&store, BOB, "b", NOW).await.is_some(), "the other tenant keeps its one");
    let left = store.list_conversations(ALICE, "", NOW).await.expect("it can be read");
    let left: Vec<&str> = left.iter().map(|facts| &*facts.name).collect();
    assert_eq!(left, ["a5", "a6", "a7", "a8", "a9"]);
    // Values of other kinds are not counted with them.
    let other = kind("conversation-like");
    assert_eq!(value(&store, ALICE, other, "a9", NOW).await, None);
}

in_every_place! {
    exchanges_stay_in_order
    exchanges_at_once_are_next_to_each_other
    two_first_exchanges_are_both_kept
    a_delete_of_nothing_counts_for_exchanges_under_way
    a_first_exchange_does_not_undo_a_change
    an_exchange_does_not_undo_a_change
    changes_outlast_conversations_if_there_is_no_room
    conversations_are_listed_in_pages
    conversations_end
    a_long_conversation_loses_its_oldest_turns
    the_tenant_with_the_most_loses_its_oldest
}
