//! Conversations with recalls that weir keeps itself, and records in a store that several weirs share.

use serde_json::{Value, json};
use weir_engine::compact::receipt::{Receipt, check};

use super::answers::{Made, Protocol, call, said};
use super::{NUMBER, Setting, conversation, exact, offers, parsed};
use crate::cli::{Serving, weir};
use crate::keys::setting::post;
use crate::routes::setting::{Play, Up};
use crate::server::harness::{Message, ask, bare, start_with};
use crate::several::setting::Shared;
use crate::store::places::{Place as _, Postgres};

fn asks() -> String {
    let own = call("r1", "recall", json!({"messages": [NUMBER]}));
    Protocol::Chat.answer(&Made::calls(&[own], [700, 9]), false)
}

fn done(text: &str) -> String {
    Protocol::Chat.answer(&Made::text(text, [900, 5]), false)
}

#[tokio::test]
async fn a_kept_conversation_has_the_answer_and_later_requests_the_recall() {
    let mut setting = Setting::start(|config| {
        offers(config);
        config.conversations.enabled = true;
    })
    .await;
    let headers = format!("{}x-weir-conversation: trip\r\n", super::ALICE);
    let body = Protocol::Chat.request(&[said("user", &exact())]);
    let own = call("r1", "recall", json!({"messages": [1]}));
    let asks = Protocol::Chat.answer(&Made::calls(&[own], [700, 9]), false);
    let answers = vec![asks, done("It is done.")];
    let (answer, before) = setting.exchange_with(Protocol::Chat, &headers, &body, answers).await;
    assert_eq!(answer.status(), 200);
    // The kept messages are those that the caller knows.
    let path = "/weir/v1/conversations/trip";
    let kept = ask(setting.weir.address, bare("GET", path, super::ALICE)).await;
    let kept: Value = serde_json::from_slice(&kept.body).expect("JSON");
    assert_eq!(kept["messages"], json!([said("user", &exact()), said("assistant", "It is done.")]));
    // A request with the next question alone is continued behind the recall.
    let mut next = body.clone();
    next["messages"] = json!([said("system", "Be brief."), said("user", "Thank you.")]);
    let (_, after) =
        setting.exchange_with(Protocol::Chat, &headers, &next, vec![done("Bye.")]).await;
    let (before, after) = (parsed(&before[1]), parsed(&after[0]));
    assert_eq!(Protocol::Chat.results(&after), Protocol::Chat.results(&before));
    let old = before["messages"].as_array().expect("a list");
    assert_eq!(&after["messages"].as_array().expect("a list")[..old.len()], &old[..]);
}

#[tokio::test]
#[ignore = "needs PostgreSQL"]
async fn a_record_in_postgresql_is_read_by_another_instance() {
    let place = Postgres::new();
    let up = Up::start("up").await;
    let one = start_with(place.handle(), &up.address, offers).await;
    let other = start_with(place.handle(), &up.address, offers).await;
    let send = async |weir: &crate::server::harness::Weir, body: &Value| -> Message {
        ask(weir.address, post(Protocol::Chat.path(), super::ALICE, body.to_string())).await
    };
    up.then([Play::Answer(asks()), Play::Answer(done("It is done."))]);
    assert_eq!(send(&one, &conversation(Protocol::Chat, &[])).await.status(), 200);
    let before = parsed(&up.seen()[1].text());
    let more = [said("assistant", "It is done."), said("user", "Thank you.")];
    let body = conversation(Protocol::Chat, &more);
    for weir in [&other, &one] {
        assert_eq!(send(weir, &body).await.status(), 200);
        let after = parsed(&up.seen()[0].text());
        assert_eq!(Protocol::Chat.results(&after), Protocol::Chat.results(&before));
    }
}

/// Starts a weir process with the tool in front of `up`.
fn serve(shared: &Shared, up: &Up) -> Serving {
    let mut command = weir(&["serve", "--listen", "127.0.0.1:0", "--upstream", &up.url()]);
    command.env("WEIR_CONTEXT__RECALL__TOOL", "true");
    Serving::run(shared.told(&mut command))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and Redis"]
async fn processes_share_the_records_and_the_counters_of_each_round() {
    let shared = Shared::start().await;
    shared.set("all/tokens/total", "1000000").await;
    let up = Up::start("up").await;
    let (one, other) = (serve(&shared, &up), serve(&shared, &up));
    let send = async |weir: &Serving, body: &Value| -> Message {
        let headers =
            format!("{}x-weir-max-input-tokens: 8000\r\n", crate::several::setting::HEADER);
        ask(weir.address, post(Protocol::Chat.path(), &headers, body.to_string())).await
    };
    up.then([Play::Answer(asks()), Play::Answer(done("It is done."))]);
    assert_eq!(send(&one, &conversation(Protocol::Chat, &[])).await.status(), 200);
    let before = parsed(&up.seen()[1].text());
    let more = [said("assistant", "It is done."), said("user", "Thank you.")];
    let body = conversation(Protocol::Chat, &more);
    up.then([Play::Answer(done("Bye."))]);
    assert_eq!(send(&other, &body).await.status(), 200);
    let after = parsed(&up.seen()[0].text());
    assert_eq!(Protocol::Chat.results(&after), Protocol::Chat.results(&before));
    // Three attempts: two rounds of one request, and the other request.
    let spent = crate::ledger::rows(&shared.store, 3).await;
    let tokens: u64 = spent
        .iter()
        .map(|row| {
            let own = &row.settlement;
            own.prompt_tokens.unwrap_or_default() + own.completion_tokens.unwrap_or_default()
        })
        .sum();
    assert_eq!(tokens, 709 + 905 + 905);
}

#[tokio::test]
async fn receipts_know_recalls_as_weirs_own() {
    for protocol in Protocol::ALL {
        let mut setting = Setting::start(|config| {
            offers(config);
            config.ledger.receipts = true;
        })
        .await;
        let own = call("r1", "recall", json!({"messages": [NUMBER]}));
        let asks = protocol.answer(&Made::calls(&[own], [700, 9]), false);
        let done = || protocol.answer(&Made::text("It is done.", [900, 5]), false);
        let body = conversation(protocol, &[]);
        let (_, before) = setting.exchange(protocol, &body, vec![asks, done()]).await;
        let mut more = vec![said("assistant", "It is done."), said("user", "Thank you.")];
        for nth in 0..60 {
            let text = format!("Later step {nth}: {}", "The level fell again. ".repeat(30));
            more.extend([said("assistant", &text), said("user", &format!("And step {nth}?"))]);
        }
        // The second request compacts again; with the first one's end alone the recall stays.
        for (length, is_kept) in [(2, true), (more.len(), false)] {
            let body = conversation(protocol, &more[..length]);
            let (answer, seen) = setting.exchange(protocol, &body, vec![done()]).await;
            let name = format!("{protocol:?} with {length}");
            assert_eq!(protocol.results(&parsed(&seen[0])).is_empty(), !is_kept, "{name}");
            let received = weir_protocol(protocol);
            let client = body.to_string();
            let client = received.read(client.as_bytes(), usize::MAX).expect("a request");
            let sent = received.read(seen[0].as_bytes(), usize::MAX).expect("a request");
            if is_kept {
                // The two bodies alone show the recall too.
                let made = Receipt::of(received, &client.messages, &sent.messages);
                assert_eq!(made.added, Vec::<usize>::new(), "{name}");
                continue;
            }
            let id = answer.header("x-weir-request-id").expect("it has an ID");
            let path = format!("/weir/v1/receipts/{id}");
            let found = ask(setting.weir.address, bare("GET", &path, super::ALICE)).await;
            assert_eq!(found.status(), 200, "{name}");
            let receipt: Receipt = serde_json::from_slice(&found.body).expect("a receipt");
            assert!(receipt.messages.iter().any(|entry| entry.recall), "{name}");
            assert_eq!(receipt.added, Vec::<usize>::new(), "{name}");
            let checked = check(&receipt, received, &client.messages);
            assert_eq!(checked.problems, [], "{name}");
        }
        assert_eq!(protocol.results(&parsed(&before[1])).len(), 1);
    }
}

fn weir_protocol(protocol: Protocol) -> weir_engine::wire::Protocol {
    match protocol {
        Protocol::Chat => weir_engine::wire::Protocol::Chat,
        Protocol::Responses => weir_engine::wire::Protocol::Responses,
        Protocol::Messages => weir_engine::wire::Protocol::Messages,
    }
}
