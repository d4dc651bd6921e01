//! Records of recalls: each belongs to one answer. And what a later round leaves out, and takes of memory.

use serde_json::{Value, json};

use super::answers::{Made, Protocol, call, said};
use super::{ALICE, NUMBER, Setting, conversation, offers, parsed};
use crate::server::harness::{ask, bare, start_with};

/// Returns the answers of a model that asks for words, and then says `text`.
fn asking(protocol: Protocol, streams: bool, (id, query): (&str, &str), text: &str) -> Vec<String> {
    let own = call(id, "recall", json!({"query": query}));
    let rounds = [Made::calls(&[own], [700, 9]), Made::text(text, [900, 5])];
    rounds.map(|made| protocol.answer(&made, streams)).to_vec()
}

/// Returns the IDs of the calls that a request has results for.
fn recalled(protocol: Protocol, request: &str) -> Vec<String> {
    protocol.results(&parsed(request)).into_iter().map(|(id, _)| id).collect()
}

#[tokio::test]
async fn a_recall_stays_with_the_answer_that_it_led_to() {
    for protocol in Protocol::ALL {
        for streams in [false, true] {
            let name = format!("{protocol:?}, streamed: {streams}");
            let mut setting = Setting::start(offers).await;
            let mut body = conversation(protocol, &[]);
            protocol.stream(&mut body, streams);
            // The same request three times: once it is answered at once, twice after a recall.
            let plain = vec![protocol.answer(&Made::text("At once.", [700, 9]), streams)];
            let level = asking(protocol, streams, ("r1", "level"), "It rose.");
            let step = asking(protocol, streams, ("r2", "step 7"), "It went on.");
            for answers in [plain, level, step] {
                let (answer, _) = setting.exchange(protocol, &body, answers).await;
                assert_eq!(answer.status(), 200, "{name}");
            }
            let done = || vec![protocol.answer(&Made::text("Bye.", [950, 2]), false)];
            let other = start_with(setting.store.clone(), &setting.upstream.address, offers).await;
            let mut weirs = Some(other);
            loop {
                for (text, ids) in
                    [("At once.", &[][..]), ("It rose.", &["r1"]), (" It went\non.", &["r2"])]
                {
                    let more = [said("assistant", text), said("user", "Thank you.")];
                    let next = conversation(protocol, &more);
                    let (_, seen) = setting.exchange(protocol, &next, done()).await;
                    assert_eq!(recalled(protocol, &seen[0]), ids, "{name}: {text}");
                }
                let Some(other) = weirs.take() else { break };
                setting.weir = other;
            }
        }
    }
}

#[tokio::test]
async fn a_compaction_of_a_later_round_has_a_receipt() {
    let mut setting = Setting::start(|config| {
        offers(config);
        config.ledger.receipts = true;
    })
    .await;
    let turn = |nth: usize| {
        let text = format!("Step {nth}: {}", "The level rose again. ".repeat(40));
        [said("assistant", &text), said("user", &format!("Go on with step {nth}."))]
    };
    let mut turns = vec![said("user", "Set up the service.")];
    turns.extend((0..16).flat_map(turn));
    let body = Protocol::Chat.request(&turns);
    // The words that the model asks for take more room than is left.
    let long = "level of the reservoir in spring ".repeat(800);
    let answers = asking(Protocol::Chat, false, ("r1", &long), "It rose.");
    let (answer, seen) = setting.exchange(Protocol::Chat, &body, answers).await;
    assert_eq!((answer.status(), seen.len()), (200, 2));
    let list = |text: &str| parsed(text)["messages"].as_array().map_or(0, Vec::len);
    assert_eq!(list(&seen[0]), turns.len() + 1, "the first round sends all messages");
    assert!(list(&seen[1]) < list(&seen[0]), "the second one does not");
    let id = answer.header("x-weir-request-id").expect("it has an ID");
    let found =
        ask(setting.weir.address, bare("GET", &format!("/weir/v1/receipts/{id}"), ALICE)).await;
    assert_eq!(found.status(), 200);
    let receipt: Value = serde_json::from_slice(&found.body).expect("JSON");
    assert!(receipt["messages"].is_array(), "{receipt}");
}

#[tokio::test]
async fn a_round_takes_its_share_of_the_memory_for_bodies() {
    for streams in [false, true] {
        let mut body = conversation(Protocol::Chat, &[]);
        Protocol::Chat.stream(&mut body, streams);
        let bytes = body.to_string().len();
        let mut setting = Setting::start(|config| {
            offers(config);
            config.server.max_bodies_in_flight_bytes = bytes + 1000;
        })
        .await;
        let own = call("r1", "recall", json!({"messages": [NUMBER]}));
        let asks = Protocol::Chat.answer(&Made::calls(&[own], [700, 9]), streams);
        let (answer, _) = setting.exchange(Protocol::Chat, &body, vec![asks]).await;
        let text = String::from_utf8(answer.body.clone()).expect("text");
        assert_eq!(answer.status(), if streams { 200 } else { 503 }, "{text}");
        assert!(text.contains("max_bodies_in_flight_bytes"), "{text}");
        // It is released with the answer.
        let done = vec![Protocol::Chat.answer(&Made::text("Well.", [9, 1]), streams)];
        let (answer, _) = setting.exchange(Protocol::Chat, &body, done).await;
        assert_eq!(answer.status(), 200);
    }
}
