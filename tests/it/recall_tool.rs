//! The recall tool through sockets: a model asks for messages that a compaction left out, weir answers
//! from the request, and the caller sees one ordinary answer. In each protocol, plain and streamed.

mod answers;
mod ends;
mod fit;
mod leaving;
mod minute;
mod places;
mod records;
mod thinking;

use serde_json::{Value, json};
use weir::config::Config;
use weir_store::Store;

use self::answers::{Made, Protocol, Read, call, said};
use crate::budgeted::setting::set;
use crate::keys::setting;
use crate::ledger::rows;
use crate::server::harness::{Message, Upstream, Weir, Wire, start_with};

const ALICE: &str = "authorization: Bearer alice\r\nx-weir-max-input-tokens: 8000\r\n";
/// Number of the message that the tests ask for, as notes print it.
const NUMBER: usize = 3;

/// Text that no excerpt shows whole, with what JSON escapes.
fn exact() -> String {
    let line =
        |nth: usize| format!("{nth:02} \"key\\{}\" = naïve — 東京\t#{};\n", nth * 7919, nth * 31);
    (0..40).map(line).collect()
}

fn offers(config: &mut Config) {
    config.context.policy.offers_recall = true;
    config.context.allow_bypass = true;
}

/// Returns a conversation that is longer than its limit, with `more` behind it.
fn conversation(protocol: Protocol, more: &[Value]) -> Value {
    let mut turns = vec![said("user", "Set up the service."), said("assistant", "I do.")];
    turns.push(said("user", &exact()));
    for nth in 0..36 {
        turns.push(said(
            "assistant",
            &format!("Step {nth}: {}", "The level rose again. ".repeat(40)),
        ));
        turns.push(said("user", &format!("Go on with step {nth}.")));
    }
    turns.extend_from_slice(more);
    protocol.request(&turns)
}

/// Test with a weir and its upstream.
struct Setting {
    weir: Weir,
    upstream: Upstream,
    store: Store,
}

impl Setting {
    async fn start(change: impl FnOnce(&mut Config)) -> Self {
        let upstream = Upstream::start().await;
        let store = Store::in_memory().expect("there is memory");
        let weir = start_with(store.clone(), &upstream.address, change).await;
        Self { weir, upstream, store }
    }

    /// Sends a request, which the upstream answers in so many rounds. Returns the caller's answer and the
    /// requests that the upstream got.
    async fn exchange(
        &mut self,
        protocol: Protocol,
        body: &Value,
        answers: Vec<String>,
    ) -> (Message, Vec<String>) {
        self.exchange_with(protocol, ALICE, body, answers).await
    }

    async fn exchange_with(
        &mut self,
        protocol: Protocol,
        headers: &str,
        body: &Value,
        answers: Vec<String>,
    ) -> (Message, Vec<String>) {
        let request = setting::post(protocol.path(), headers, body.to_string());
        let mut wire = Wire::connect(self.weir.address).await;
        let asking = tokio::spawn(async move { wire.ask(request).await });
        let mut seen = Vec::new();
        for answer in answers {
            let next = self.upstream.next().await;
            seen.push(String::from_utf8(next.body.clone()).expect("text"));
            next.answer(&answer);
        }
        (asking.await.expect("it is answered"), seen)
    }
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// Asserts that the messages of one request begin with those of the one before, byte by byte.
fn assert_continues(protocol: Protocol, before: &str, after: &str) {
    let list = |text: &str| {
        let raw: Value = parsed(text);
        raw[protocol.list()].as_array().expect("a list").clone()
    };
    let (old, new) = (list(before), list(after));
    assert!(new.len() > old.len());
    assert_eq!(new[..old.len()], old);
    assert_eq!(parsed(before)["tools"], parsed(after)["tools"]);
    let start = |text: &str| text.find(&format!("\"{}\":", protocol.list())).expect("a list");
    // The last message, and what follows the list, may differ in form.
    let last = old.last().expect("a message").to_string().len();
    let end = before.find("\"r1\"").unwrap_or(before.len()).saturating_sub(last + 2_500);
    assert!(end > 3_000, "most of it is compared");
    let (from, to) = (start(before), start(after));
    let length = end - from;
    assert_eq!(before.as_bytes()[from..end], after.as_bytes()[to..to + length], "the same bytes");
}

#[tokio::test]
async fn a_recall_is_answered_and_never_seen() {
    for protocol in Protocol::ALL {
        for streams in [false, true] {
            let mut setting = Setting::start(offers).await;
            let mut body = conversation(protocol, &[]);
            protocol.stream(&mut body, streams);
            let asks =
                Made::calls(&[call("r1", "recall", json!({"messages": [NUMBER]}))], [700, 9]);
            let answers = [asks, Made::text("It is done.", [900, 5])];
            let answers = answers.map(|made| protocol.answer(&made, streams)).to_vec();
            let (answer, seen) = setting.exchange(protocol, &body, answers).await;
            let name = format!("{protocol:?}, streamed: {streams}");
            assert_eq!(answer.status(), 200, "{name}");
            assert!(
                answer.header("x-weir-edits").is_some_and(|own| own.contains("recall")),
                "{name}"
            );
            let text = String::from_utf8(answer.body.clone()).expect("text");
            assert!(!text.contains("recall"), "{name}: {text}");
            let read = protocol.read(&text, streams);
            assert_eq!(read.text, "It is done.", "{name}");
            assert_eq!((read.calls.len(), read.is_stopped), (0, true), "{name}");
            assert_eq!(read.usage, Some([1600, 14]), "{name}");
            let rounds = answer.header("x-weir-recalls");
            assert_eq!(rounds, if streams { None } else { Some("1") }, "{name}");
            // The tool stands in both requests, and the second one continues the first.
            let [first, second] = seen.as_slice() else { panic!("{name}: two requests") };
            assert!(parsed(first)["tools"].to_string().contains("\"recall\""), "{name}");
            assert_continues(protocol, first, second);
            let results = protocol.results(&parsed(second));
            assert_eq!(results.len(), 1, "{name}");
            assert_eq!(
                results[0],
                ("r1".to_owned(), format!("#{NUMBER} user, whole:\n{}", exact()))
            );
            assert!(
                !first.contains("39 \\\"key") || !first.contains("01 \\\"key"),
                "it was left out"
            );
            // Each round has its row and its bill.
            let rows = rows(&setting.store, 2).await;
            let outcomes: Vec<&str> =
                rows.iter().map(|row| row.settlement.outcome.as_str()).collect();
            assert_eq!(outcomes, ["recalled", "complete"], "{name}");
            let prompts: Vec<Option<u64>> =
                rows.iter().map(|row| row.settlement.prompt_tokens).collect();
            assert_eq!(prompts, [Some(700), Some(900)], "{name}");
        }
    }
}

#[tokio::test]
async fn the_callers_own_calls_reach_it_alone() {
    for protocol in Protocol::ALL {
        for streams in [false, true] {
            let mut setting = Setting::start(offers).await;
            let mut body = conversation(protocol, &[]);
            protocol.stream(&mut body, streams);
            body["tools"] = protocol.tools(&["read"]);
            let both = [
                call("c1", "read", json!({"path": "a"})),
                call("r1", "recall", json!({"query": "level"})),
            ];
            let answers = vec![protocol.answer(&Made::calls(&both, [700, 9]), streams)];
            let (answer, _) = setting.exchange(protocol, &body, answers).await;
            let text = String::from_utf8(answer.body.clone()).expect("text");
            let name = format!("{protocol:?}, streamed: {streams}");
            assert!(!text.contains("recall"), "{name}: {text}");
            let Read { calls, is_stopped, usage, .. } = protocol.read(&text, streams);
            assert_eq!(calls, [("c1".to_owned(), "read".to_owned())], "{name}");
            assert_eq!((is_stopped, usage), (false, Some([700, 9])), "{name}");
        }
    }
}

#[tokio::test]
async fn a_recall_stays_in_later_requests_on_any_instance() {
    for protocol in Protocol::ALL {
        for streams in [false, true] {
            let name = format!("{protocol:?}, streamed: {streams}");
            let mut setting = Setting::start(offers).await;
            let mut body = conversation(protocol, &[]);
            protocol.stream(&mut body, streams);
            let asks =
                Made::calls(&[call("r1", "recall", json!({"messages": [NUMBER]}))], [700, 9]);
            let answers = [asks, Made::text("It is done.", [900, 5])];
            let answers = answers.map(|made| protocol.answer(&made, streams)).to_vec();
            let (_, before) = setting.exchange(protocol, &body, answers).await;
            let more = [said("assistant", "It is done."), said("user", "Thank you.")];
            let body = conversation(protocol, &more);
            let done = || vec![protocol.answer(&Made::text("Bye.", [950, 2]), false)];
            let (_, after) = setting.exchange(protocol, &body, done()).await;
            assert_continues(protocol, &before[1], &after[0]);
            assert_eq!(
                protocol.results(&parsed(&after[0])),
                protocol.results(&parsed(&before[1])),
                "{name}"
            );
            setting.weir =
                start_with(setting.store.clone(), &setting.upstream.address, offers).await;
            let (_, again) = setting.exchange(protocol, &body, done()).await;
            assert_eq!(again, after, "{name}");
            // Another caller has no such record.
            let other = ALICE.replace("alice", "bob");
            let (_, others) = setting.exchange_with(protocol, &other, &body, done()).await;
            assert_eq!(protocol.results(&parsed(&others[0])), [], "{name}");
        }
    }
}

#[tokio::test]
async fn a_recall_next_to_the_callers_calls_is_answered_with_them() {
    for protocol in Protocol::ALL {
        for streams in [false, true] {
            let name = format!("{protocol:?}, streamed: {streams}");
            let mut setting = Setting::start(offers).await;
            let mut body = conversation(protocol, &[]);
            protocol.stream(&mut body, streams);
            body["tools"] = protocol.tools(&["read"]);
            let own = call("c1", "read", json!({"path": "a"}));
            let both = [own.clone(), call("r1", "recall", json!({"messages": [NUMBER]}))];
            let answers = vec![protocol.answer(&Made::calls(&both, [700, 9]), streams)];
            let (_, before) = setting.exchange(protocol, &body, answers).await;
            let mut body = conversation(protocol, &protocol.carried_out(&own, "empty"));
            body["tools"] = protocol.tools(&["read"]);
            let done = vec![protocol.answer(&Made::text("Bye.", [950, 2]), false)];
            let (_, after) = setting.exchange(protocol, &body, done).await;
            assert_continues(protocol, &before[0], &after[0]);
            let mut results = protocol.results(&parsed(&after[0]));
            results.sort();
            let recalled = format!("#{NUMBER} user, whole:\n{}", exact());
            let expected = [("c1", "empty"), ("r1", &recalled)];
            assert_eq!(
                results,
                expected.map(|(id, text)| (id.to_owned(), text.to_owned())),
                "{name}"
            );
            let calls = parsed(&after[0])[protocol.list()].to_string();
            assert_eq!(calls.matches("\"r1\"").count(), 2, "{name}: the call and its result");
        }
    }
}

#[tokio::test]
async fn loops_end_and_nonsense_is_answered() {
    for protocol in Protocol::ALL {
        for streams in [false, true] {
            let mut setting = Setting::start(offers).await;
            let mut body = conversation(protocol, &[]);
            protocol.stream(&mut body, streams);
            let asks = |nth: usize| {
                let arguments = [json!({}), json!({"messages": [9999]}), json!({"query": " "})];
                let own = call(&format!("r{nth}"), "recall", arguments[nth % 3].clone());
                protocol.answer(&Made::calls(&[own], [100, 1]), streams)
            };
            let (answer, seen) =
                setting.exchange(protocol, &body, (0..6).map(asks).collect()).await;
            let name = format!("{protocol:?}, streamed: {streams}");
            let text = String::from_utf8(answer.body.clone()).expect("text");
            assert!(!text.contains("recall"), "{name}: {text}");
            let read = protocol.read(&text, streams);
            assert_eq!(
                (read.text.as_str(), read.calls.len(), read.is_stopped),
                ("", 0, true),
                "{name}"
            );
            assert_eq!(read.usage, Some([600, 6]), "{name}");
            let results = protocol.results(&parsed(&seen[5]));
            assert_eq!(results.len(), 5, "{name}");
            assert!(results[0].1.contains("{\"messages\": [12]}"), "{name}: {}", results[0].1);
            assert!(results[1].1.contains("no message #9999"), "{name}: {}", results[1].1);
            assert!(results[4].1.contains("no more recalls"), "{name}: {}", results[4].1);
        }
    }
}

#[tokio::test]
async fn the_tool_is_offered_where_the_policy_says_so() {
    let mut setting = Setting::start(offers).await;
    let body = json!({"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}]});
    let done = || vec![Protocol::Chat.answer(&Made::text("Hello.", [9, 1]), false)];
    let (answer, seen) = setting.exchange(Protocol::Chat, &body, done()).await;
    assert_eq!(answer.header("x-weir-edits"), Some("recall"));
    assert_eq!(parsed(&seen[0])["tools"][0]["function"]["name"], "recall");
    // The caller's own tool of that name keeps it.
    let mut own = body.clone();
    own["tools"] = Protocol::Chat.tools(&["recall"]);
    let (_, seen) = setting.exchange(Protocol::Chat, &own, done()).await;
    let tools = &parsed(&seen[0])["tools"];
    assert_eq!(
        (&tools[0], &tools[1]["function"]["name"]),
        (&own["tools"][0], &json!("weir_recall"))
    );
    // Its calls are the caller's.
    let calls = Made::calls(&[call("c1", "recall", json!({"messages": [0]}))], [9, 1]);
    let (answer, _) =
        setting.exchange(Protocol::Chat, &own, vec![Protocol::Chat.answer(&calls, false)]).await;
    let read = Protocol::Chat.read(&String::from_utf8_lossy(&answer.body), false);
    assert_eq!(read.calls, [("c1".to_owned(), "recall".to_owned())]);
    for headers in ["x-weir-bypass: 1\r\n", "x-claude-code-request-class: auxiliary\r\n"] {
        let (_, seen) = setting.exchange_with(Protocol::Chat, headers, &body, done()).await;
        assert_eq!(parsed(&seen[0]), body, "{headers}");
    }
    // What a provider keeps could not be continued by its ID.
    for streams in [false, true] {
        let mut kept = Protocol::Responses.request(&[said("user", "hi")]);
        Protocol::Responses.stream(&mut kept, streams);
        for store in [None, Some(true)] {
            kept.as_object_mut().expect("an object").remove("store");
            kept.as_object_mut()
                .expect("an object")
                .extend(store.map(|store| ("store".to_owned(), json!(store))));
            let made = Protocol::Responses.answer(&Made::text("Hello.", [9, 1]), streams);
            let (answer, seen) = setting.exchange(Protocol::Responses, &kept, vec![made]).await;
            assert_eq!((answer.header("x-weir-edits"), parsed(&seen[0])), (None, kept.clone()));
        }
    }
    let mut off = Setting::start(|_| {}).await;
    let (answer, seen) = off.exchange(Protocol::Chat, &body, done()).await;
    assert_eq!((answer.header("x-weir-edits"), parsed(&seen[0])), (None, body));
}

#[tokio::test]
async fn an_answer_without_a_recall_stays_as_it_is() {
    for protocol in Protocol::ALL {
        for streams in [false, true] {
            let mut setting = Setting::start(offers).await;
            let mut body = conversation(protocol, &[]);
            protocol.stream(&mut body, streams);
            let made = protocol.answer(&Made::text("Well, well.", [700, 9]), streams);
            let (answer, _) = setting.exchange(protocol, &body, vec![made.clone()]).await;
            let (_, expected) = made.split_once("\r\n\r\n").expect("a head");
            if protocol == Protocol::Responses {
                // It repeats the tools of the request.
                let text = String::from_utf8(answer.body).expect("text");
                assert_eq!(protocol.read(&text, streams).text, "Well, well.");
            } else {
                assert_eq!(
                    String::from_utf8_lossy(&answer.body),
                    expected,
                    "{protocol:?} {streams}"
                );
            }
        }
    }
}

#[tokio::test]
async fn recalls_are_counted_without_usage() {
    let mut setting = Setting::start(offers).await;
    let body = conversation(Protocol::Chat, &[]);
    let recall = Made::calls(&[call("r1", "recall", json!({"messages": [NUMBER]}))], [700, 20]);
    // Some upstreams send none.
    let answers = [recall, Made::text("Well.", [800, 9])]
        .map(|made| Protocol::Chat.answer(&made, false).replace("\"usage\"", "\"other\""));
    let (answer, _) = setting.exchange(Protocol::Chat, &body, answers.to_vec()).await;
    assert_eq!((answer.status(), answer.header("x-weir-recalls")), (200, Some("1")));
}

#[tokio::test]
async fn a_budget_without_room_for_another_round_ends_the_answer() {
    let both = [(Protocol::Chat, "insufficient_quota"), (Protocol::Messages, "rate_limit_error")];
    let all = both.into_iter().flat_map(|own| [false, true].map(|streams| (own, streams)));
    for ((protocol, kind), streams) in all {
        let mut upstream = Upstream::start().await;
        let keyed = setting::start(&upstream.address, offers).await;
        let key = keyed.key("research", "{}").await;
        set(&keyed.store, "team:research/tokens/total", "16000").await;
        let mut body = conversation(protocol, &[]);
        protocol.stream(&mut body, streams);
        let headers = format!("{}x-weir-max-input-tokens: 8000\r\n", key.header());
        let request = setting::post(protocol.path(), &headers, body.to_string());
        let mut wire = Wire::connect(keyed.weir.address).await;
        let asking = tokio::spawn(async move { wire.ask(request).await });
        let own = call("r1", "recall", json!({"messages": [NUMBER]}));
        let asks = protocol.answer(&Made::calls(&[own], [12_000, 9]), streams);
        upstream.next().await.answer(&asks);
        let answer = asking.await.expect("it is answered");
        let text = String::from_utf8(answer.body.clone()).expect("text");
        assert!(text.contains(&format!("\"type\":\"{kind}\"")), "{text}");
        assert_eq!(answer.status(), if streams { 200 } else { 429 });
        let rows = rows(&keyed.store, 1).await;
        assert_eq!(rows[0].settlement.prompt_tokens, Some(12_000));
    }
}
