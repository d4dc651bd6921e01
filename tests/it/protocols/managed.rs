//! `context_management` of Responses for upstreams without it, through real sockets: exactly one
//! compaction item first in the answer, and everything else as the upstream sent it.

use serde_json::{Value, json};
use weir::config::CompactsBy;

use super::service::{RESPONSES, body, caller, conversation, message, only_item, sent, turn};
use super::through::{post, whole};
use super::validity;
use crate::server::harness::{self, Message, Upstream, Weir, Wire, ask};

/// Tokens above which the clients of these tests ask for a compaction.
const THRESHOLD: u64 = 6000;

fn managed(items: &[Value]) -> Value {
    let mut body = body(items);
    body["context_management"] = json!([{"type": "compaction", "compact_threshold": THRESHOLD}]);
    body
}

/// Sends a request, has the upstream answer with `bytes`, and returns the input that it saw with
/// weir's answer.
async fn exchanged(
    weir: &Weir,
    upstream: &mut Upstream,
    body: &Value,
    bytes: &str,
) -> (Value, Message) {
    let mut wire = Wire::connect(weir.address).await;
    wire.send(post(RESPONSES, &caller("one"), body)).await;
    let seen = upstream.next().await;
    let sent: Value = serde_json::from_slice(&seen.body).expect("JSON");
    validity::responses(&sent).unwrap_or_else(|fault| panic!("{fault}: {sent:.3000}"));
    assert_eq!(sent["context_management"], Value::Null);
    seen.answer(bytes);
    (sent["input"].clone(), wire.message().await.expect("an answer"))
}

fn answer() -> String {
    let output = json!([message("assistant", "Done.")]);
    whole(&json!({"object": "response", "x": 1.0, "output": output, "status": "completed"}))
}

#[tokio::test]
async fn a_long_conversation_gets_one_item_in_front_of_its_answer() {
    let mut upstream = Upstream::start().await;
    let weir = harness::start(&upstream.address, |_| {}).await;
    let short = conversation(3);
    let (input, own) = exchanged(&weir, &mut upstream, &managed(&short), &answer()).await;
    assert_eq!(input, Value::from(short));
    assert!(answer().ends_with(&String::from_utf8_lossy(&own.body).into_owned()));
    assert_eq!(own.header("x-weir-edits"), Some("context_management"));

    let all = conversation(60);
    let (input, own) = exchanged(&weir, &mut upstream, &managed(&all), &answer()).await;
    let compacted = input.as_array().expect("a list").clone();
    assert!(compacted.len() < all.len());
    let text = String::from_utf8(own.body.clone()).expect("text");
    let read: Value = serde_json::from_str(&text).expect("JSON");
    let (place, item) = only_item(read["output"].as_array().expect("a list"));
    assert_eq!(place, 0);
    // The rest of the answer keeps its bytes.
    let (_, received) =
        answer().split_once("\r\n\r\n").map(|(a, b)| (a.to_owned(), b.to_owned())).expect("a body");
    let start = text.find(r#"{"type":"compaction""#).expect("the item");
    let end = start + text[start..].find("},").expect("its end") + 2;
    assert_eq!(format!("{}{}", &text[..start], &text[end..]), received);

    // The client goes on with the whole list, or with the item and what follows it.
    let next = [item.clone(), message("assistant", "Done."), message("user", "And now?")];
    let (pruned, own) = sent(&weir, &mut upstream, &caller("one"), &next).await;
    assert_eq!(own.header("x-weir-edits"), Some("compaction"));
    let (appended, _) =
        sent(&weir, &mut upstream, &caller("one"), &[all.as_slice(), &next].concat()).await;
    assert_eq!(pruned, appended);
    let pruned = pruned.as_array().expect("a list");
    assert!(pruned.starts_with(&compacted), "the prefix is that of the request before");
    assert_eq!(pruned[compacted.len()..], next[1..]);
}

#[tokio::test]
async fn a_conversation_goes_on_from_item_to_item() {
    let mut upstream = Upstream::start().await;
    let weir = harness::start(&upstream.address, |_| {}).await;
    let mut list = conversation(5);
    let (mut before, mut items, mut moved): (Vec<Value>, usize, usize) = (Vec::new(), 0, 0);
    for nth in 0..60 {
        list.extend(turn(1000 + nth));
        let (input, own) = exchanged(&weir, &mut upstream, &managed(&list), &answer()).await;
        let input = input.as_array().expect("a list").clone();
        moved += usize::from(!input.starts_with(&before));
        before = input;
        let own: Value = serde_json::from_slice(&own.body).expect("JSON");
        let output = own["output"].as_array().expect("a list");
        if output.len() > 1 {
            only_item(output);
            items += 1;
            list.clear();
        }
        list.extend(output.clone());
        assert!(Value::from(before.clone()).to_string().contains("QX-7741"), "turn {nth}");
    }
    assert!((3..20).contains(&items), "{items} items");
    assert_eq!(moved, items, "the prefix moves at a compaction alone");
}

/// Events of a streamed answer.
fn events() -> String {
    let done = message("assistant", "Done.");
    let event = |value: Value| {
        format!("event: {}\ndata: {value}\n\n", value["type"].as_str().expect("a type"))
    };
    [
        json!({"type": "response.created", "sequence_number": 0, "response": {"output": []}}),
        json!({"type": "response.in_progress", "sequence_number": 1, "response": {"output": []}}),
        json!({"type": "response.output_item.added", "sequence_number": 2, "output_index": 0, "item": {"type": "message"}}),
        json!({"type": "response.output_text.delta", "sequence_number": 3, "output_index": 0, "content_index": 0, "delta": "Done."}),
        json!({"type": "response.output_item.done", "sequence_number": 4, "output_index": 0, "item": done.clone()}),
        json!({"type": "response.completed", "sequence_number": 5, "response": {"output": [done],
               "usage": {"input_tokens": 70, "output_tokens": 7, "total_tokens": 77}}}),
    ]
    .map(event)
    .concat()
}

#[tokio::test]
async fn a_streamed_answer_announces_the_item_first() {
    let mut upstream = Upstream::start().await;
    let weir = harness::start(&upstream.address, |_| {}).await;
    let stream = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\r\n{}",
        events().len(),
        events()
    );
    let mut body = managed(&conversation(60));
    body["stream"] = true.into();
    let (_, own) = exchanged(&weir, &mut upstream, &body, &stream).await;
    let text = String::from_utf8(own.body).expect("text");
    let read: Vec<Value> = text
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|data| serde_json::from_str(data).expect("JSON"))
        .collect();
    let kinds: Vec<&str> = read.iter().filter_map(|event| event["type"].as_str()).collect();
    assert_eq!(
        kinds,
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.output_item.done",
            "response.output_item.added",
            "response.output_text.delta",
            "response.output_item.done",
            "response.completed"
        ]
    );
    let numbers: Vec<u64> =
        read.iter().filter_map(|event| event["sequence_number"].as_u64()).collect();
    assert_eq!(numbers, (0..8).collect::<Vec<u64>>());
    let indexes: Vec<u64> =
        read.iter().filter_map(|event| event["output_index"].as_u64()).collect();
    assert_eq!(indexes, [0, 0, 1, 1, 1]);
    assert_eq!(read[2]["item"], read[3]["item"]);
    let (place, item) = only_item(read[7]["response"]["output"].as_array().expect("a list"));
    assert_eq!((place, item), (0, &read[2]["item"]));
    // A short conversation's stream keeps its bytes.
    let mut body = managed(&conversation(3));
    body["stream"] = true.into();
    let (_, own) = exchanged(&weir, &mut upstream, &body, &stream).await;
    assert_eq!(own.body, events().into_bytes());
}

#[tokio::test]
async fn the_member_reaches_an_upstream_that_has_it() {
    let mut upstream = Upstream::start().await;
    let weir = harness::start(&upstream.address, |config| {
        config.upstream.compaction = CompactsBy::Upstream;
    })
    .await;
    let body = managed(&conversation(3));
    let mut wire = Wire::connect(weir.address).await;
    wire.send(post(RESPONSES, "", &body)).await;
    let seen = upstream.next().await;
    assert_eq!(seen.body, body.to_string().into_bytes());
    seen.answer(answer());
    let own = wire.message().await.expect("an answer");
    assert_eq!(own.header("x-weir-edits"), None);
}

#[tokio::test]
async fn what_weir_does_not_know_is_refused() {
    let upstream = Upstream::start().await;
    let weir = harness::start(&upstream.address, |_| {}).await;
    for member in [
        json!({}),
        json!([{"type": "other"}]),
        json!([{"type": "compaction", "compact_threshold": -1}]),
    ] {
        let mut body = body(&conversation(1));
        body["context_management"] = member;
        let answer = ask(weir.address, post(RESPONSES, "", &body)).await;
        let said = answer.assert_error(400, "invalid_request");
        assert!(said.contains("'context_management'"), "{said}");
    }
}
