//! Rounds that do not end as usual: the caller leaves in the second one, or its model fails and its route
//! has another.

use serde_json::{Value, json};

use super::answers::{Made, Protocol, call};
use super::{NUMBER, conversation, offers, parsed};
use crate::budgeted::setting::set;
use crate::eventually::{DEADLINE, eventually};
use crate::keys::setting;
use crate::ledger::rows;
use crate::routes::setting::{
    Play, failing, memory, question, rows as shown, said, send, ups, weir,
};
use crate::server::harness::{Upstream, Wire, ask_until, bare};

/// Head and first event of an answer, and its rest.
const HEAD: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
const BEGUN: &str =
    "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"It is\"}}]}\n\n";
const REST: &str = "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n\
    data: {\"id\":\"c\",\"choices\":[],\"usage\":{\"prompt_tokens\":900,\"completion_tokens\":5}}\n\n\
    data: [DONE]\n\n";

fn chunk(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}

fn asks(streams: bool) -> String {
    let own = call("r1", "recall", json!({"messages": [NUMBER]}));
    Protocol::Chat.answer(&Made::calls(&[own], [700, 9]), streams)
}

#[tokio::test]
async fn a_caller_that_leaves_in_the_second_round_leaves_nothing_held() {
    for streams in [false, true] {
        let mut upstream = Upstream::start().await;
        let keyed = setting::start(&upstream.address, |config| {
            offers(config);
            config.server.max_connections = 1;
        })
        .await;
        let key = keyed.key("research", "{}").await;
        set(&keyed.store, "team:research/usd/total", "1000").await;
        let mut body = conversation(Protocol::Chat, &[]);
        Protocol::Chat.stream(&mut body, streams);
        let headers = format!("{}x-weir-max-input-tokens: 8000\r\n", key.header());
        let mut wire = Wire::connect(keyed.weir.address).await;
        wire.send(setting::post(Protocol::Chat.path(), &headers, body.to_string())).await;
        upstream.next().await.answer(asks(streams));
        let second = upstream.next().await;
        if streams {
            second.begin(format!("{HEAD}{}", chunk(BEGUN)));
            assert!(wire.head().await.expect("a head").starts_with("HTTP/1.1 200"));
            let mut text = String::new();
            while !text.contains("It is") {
                text += &String::from_utf8_lossy(&wire.chunk().await.expect("a chunk"));
            }
        }
        drop(wire);
        // There is one place: an admitted request shows that the caller's place is free.
        let health = bare("GET", "/healthz", "connection: close\r\n");
        ask_until(keyed.weir.address, health, 200).await;
        if streams {
            second.begin(format!("{}0\r\n\r\n", chunk(REST)));
        }
        // Both rounds are settled: the first by its usage, the second by its own or by the rule.
        let rows = rows(&keyed.store, 2).await;
        let outcomes: Vec<&str> = rows.iter().map(|row| row.settlement.outcome.as_str()).collect();
        assert_eq!((outcomes[0], rows[0].settlement.prompt_tokens), ("recalled", Some(700)));
        assert_ne!(outcomes[1], "complete", "streamed: {streams}");
        if streams {
            assert_eq!((outcomes[1], rows[1].settlement.prompt_tokens), ("caller_left", Some(900)));
        }
        let look = async || {
            let answer = keyed.ask(bare("GET", "/weir/v1/budgets", &key.header())).await;
            let said: Value = serde_json::from_slice(&answer.body).expect("JSON");
            said["data"][0].clone()
        };
        let is_free = |own: &Value| own["held"] == "0.00";
        eventually(DEADLINE, look, is_free).await;
    }
}

const CHAIN: &str = r#"
    [context]
    recall.tool = true
    [upstream]
    url = "{a}"
    api_key = "env:A"
    retries.max = 0
    [upstreams.b]
    url = "{b}"
    [[routes]]
    models = ["first"]
    send_as = "gpt-4o"
    fallback = ["second"]
    [[routes]]
    models = ["second"]
    upstream = "b"
    send_as = "gpt-4.1"
"#;

fn recalls() -> Play {
    let own = call("r1", "recall", json!({"messages": [0]}));
    Play::Answer(Protocol::Chat.answer(&Made::calls(&[own], [700, 9]), false))
}

#[tokio::test]
async fn a_fallback_that_recalls_goes_on_at_its_own_upstream() {
    let (ups, urls) = ups(["a", "b"]).await;
    let store = memory();
    let weir = weir(&store, CHAIN, &urls).await;
    ups[0].then([failing(500)]);
    ups[1].then([recalls()]);
    let answer = send(&weir, &question("first")).await;
    assert_eq!((answer.status(), said(&answer).as_str()), (200, "from b"));
    assert_eq!((ups[0].seen().len(), answer.header("x-weir-recalls")), (1, Some("1")));
    let seen = ups[1].seen();
    assert_eq!(seen.len(), 2);
    assert!(seen.iter().all(|own| own.json()["model"] == "gpt-4.1"));
    assert_eq!(Protocol::Chat.results(&parsed(&seen[1].text())).len(), 1);
    let rows: Vec<String> = shown(&store, &urls).await;
    let starts = ["a gpt-4o retried 500", "b gpt-4.1 complete 200", "b gpt-4.1 recalled 200"];
    assert!(
        rows.len() == 3 && rows.iter().zip(starts).all(|(row, own)| row.starts_with(own)),
        "{rows:?}"
    );
}

#[tokio::test]
async fn another_model_does_not_get_a_round_that_was_begun() {
    let (ups, urls) = ups(["a", "b"]).await;
    let weir = weir(&memory(), CHAIN, &urls).await;
    ups[0].then([recalls(), failing(503)]);
    let answer = send(&weir, &question("first")).await;
    assert_eq!(answer.status(), 503);
    assert_eq!((ups[0].seen().len(), ups[1].seen().len()), (2, 0));
}
