//! Compaction for clients of Responses that ask for it, answered by weir through real sockets: shorter
//! lists, sealed items, and what later requests with such an item are sent as.

use serde_json::{Value, json};
use weir::config::{CompactsBy, Config};
use weir_store::ledger::RequestQuery;
use weir_store::{Secret, Store};

use super::through::{output, post, whole};
use super::validity;
use crate::eventually::{DEADLINE, eventually};
use crate::server::harness::{self, Message, Upstream, Weir, Wire, ask};

pub const COMPACT: &str = "/v1/responses/compact";
pub const RESPONSES: &str = "/v1/responses";
/// Fact in an early message, which a note must carry on.
const FACT: &str = "The vault code is QX-7741.";

/// Credential of a caller.
pub fn caller(name: &str) -> String {
    format!("authorization: Bearer sk-{name}\r\n")
}

pub fn message(role: &str, text: &str) -> Value {
    let kind = if role == "assistant" { "output_text" } else { "input_text" };
    json!({"type": "message", "role": role, "content": [{"type": kind, "text": text}]})
}

/// Items of one turn of an agent.
pub fn turn(nth: usize) -> Vec<Value> {
    let call = format!("call_{nth}");
    let arguments = json!({"path": format!("src/part_{nth}.rs")}).to_string();
    vec![
        message("assistant", &format!("I read part {nth}.")),
        json!({"type": "function_call", "call_id": call, "name": "read", "arguments": arguments}),
        json!({"type": "function_call_output", "call_id": call, "output": output(nth)}),
    ]
}

/// Conversation of an agent after some turns, with a fact at its start.
pub fn conversation(turns: usize) -> Vec<Value> {
    let mut items = vec![
        message("developer", "You are a careful engineer."),
        message("user", "Check every part."),
        message("assistant", &format!("I will. {FACT}")),
    ];
    items.extend((0..turns).flat_map(turn));
    items.push(message("user", "Go on."));
    items
}

pub fn body(items: &[Value]) -> Value {
    json!({"model": "gpt-4o", "instructions": "Be brief.", "input": items})
}

/// Asks for a shorter list, and returns its items.
async fn compacted(weir: &Weir, headers: &str, items: &[Value]) -> Vec<Value> {
    let answer = ask(weir.address, post(COMPACT, headers, &body(items))).await;
    assert_eq!(answer.status(), 200, "{answer:?}");
    let answer: Value = serde_json::from_slice(&answer.body).expect("JSON");
    answer["output"].as_array().expect("a list").clone()
}

/// Sends items to the upstream, and returns the input that it sees, with weir's answer.
pub async fn sent(
    weir: &Weir,
    upstream: &mut Upstream,
    headers: &str,
    items: &[Value],
) -> (Value, Message) {
    let mut wire = Wire::connect(weir.address).await;
    wire.send(post(RESPONSES, headers, &body(items))).await;
    let seen = upstream.next().await;
    let sent: Value = serde_json::from_slice(&seen.body).expect("JSON");
    validity::responses(&sent).unwrap_or_else(|fault| panic!("{fault}: {sent:.3000}"));
    assert!(!String::from_utf8_lossy(&seen.body).contains("weir1."), "sealed items stay here");
    seen.answer(whole(&json!({"object": "response", "output": []})));
    (sent["input"].clone(), wire.message().await.expect("an answer"))
}

/// Returns an item of an answer without what weir adds to it.
fn as_sent(item: &Value) -> Value {
    let mut item = item.clone();
    let members = item.as_object_mut().expect("an object");
    assert!(members.remove("id").is_some_and(|id| id.is_string()), "{members:?}");
    assert_eq!(members.remove("status"), Some("completed".into()));
    if members["type"] == "message" {
        for part in members["content"].as_array_mut().expect("a list") {
            let part = part.as_object_mut().expect("an object");
            assert_eq!(part.remove("annotations").is_some(), part["type"] == "output_text");
        }
    }
    item
}

/// Returns the only compaction item of a list, and its position.
pub fn only_item(items: &[Value]) -> (usize, &Value) {
    let own: Vec<(usize, &Value)> =
        items.iter().enumerate().filter(|(_, item)| item["type"] == "compaction").collect();
    let [own] = own[..] else { panic!("one compaction item: {items:.3000?}") };
    own
}

#[tokio::test]
async fn a_compacted_list_is_shorter_and_continues() {
    let mut upstream = Upstream::start().await;
    let weir = harness::start(&upstream.address, |_| {}).await;
    let key = caller("one");
    let all = conversation(60);
    let answer = ask(weir.address, post(COMPACT, &key, &body(&all))).await;
    assert_eq!(answer.status(), 200, "{answer:?}");
    let number = |name: &str| answer.header(name).and_then(|own| own.parse::<u64>().ok());
    let (received, now) = (number("x-weir-received-tokens"), number("x-weir-sent-tokens"));
    assert!(now < received.map(|tokens| tokens * 3 / 4), "{now:?} of {received:?}");
    let answer: Value = serde_json::from_slice(&answer.body).expect("JSON");
    assert_eq!(answer["object"], "response.compaction");
    assert!(answer["id"].as_str().is_some_and(|id| id.starts_with("resp_")));
    assert!(answer["created_at"].as_u64().is_some_and(|at| at > 1_700_000_000));
    assert_eq!(answer["usage"]["input_tokens"].as_u64(), received);
    let [input, output, total] = ["input_tokens", "output_tokens", "total_tokens"]
        .map(|name| answer["usage"][name].as_u64().expect("a number"));
    assert!(output > 0 && input + output == total);
    let list = answer["output"].as_array().expect("a list");
    let (place, item) = only_item(list);
    assert_eq!(place + 1, list.len(), "nothing stands behind it");
    let plain: Vec<Value> = list[..place].iter().map(as_sent).collect();
    assert_eq!(plain, all[..place], "the first items stay, with an ID and a status");
    assert!(place >= 2, "the task stays");
    assert!(item["id"].as_str().is_some_and(|id| id.starts_with("cmp_")));
    // The next requests: valid, with a note, and each begins with the one before.
    let mut list = list.clone();
    let mut before: Vec<Value> = Vec::new();
    for nth in 100..105 {
        list.extend([message("user", "And now?")]);
        let (input, answer) = sent(&weir, &mut upstream, &key, &list).await;
        assert_eq!(answer.header("x-weir-edits"), Some("compaction"));
        assert_eq!(answer.header("x-weir-action"), Some("pass"));
        let input = input.as_array().expect("a list").clone();
        assert!(input.starts_with(&before), "turn {nth}");
        let text = Value::from(input.clone()).to_string();
        assert!(text.contains("[weir: ") && !text.contains("\"weir\""), "turn {nth}");
        assert!(text.contains("QX-7741"), "the note has the fact");
        before = input;
        list.extend(turn(nth));
    }
}

#[tokio::test]
async fn an_item_that_asks_for_compaction_is_answered_with_one_that_stands_for_all() {
    let mut upstream = Upstream::start().await;
    let weir = harness::start(&upstream.address, |_| {}).await;
    let key = caller("one");
    for streams in [false, true] {
        let mut all = conversation(60);
        all.push(json!({"type": "compaction_trigger"}));
        let mut asked = body(&all);
        asked["stream"] = streams.into();
        let answer = ask(weir.address, post(RESPONSES, &key, &asked)).await;
        assert_eq!(answer.status(), 200, "{answer:?}");
        let text = String::from_utf8(answer.body.clone()).expect("text");
        let response: Value = match streams {
            false => serde_json::from_str(&text).expect("JSON"),
            true => {
                let events: Vec<Value> = text
                    .split("\n\n")
                    .filter_map(|event| event.split_once("data: "))
                    .map(|(_, data)| serde_json::from_str(data).expect("JSON"))
                    .collect();
                let kinds: Vec<&str> =
                    events.iter().filter_map(|event| event["type"].as_str()).collect();
                let [created, added, done, completed] = [
                    "response.created",
                    "response.output_item.added",
                    "response.output_item.done",
                    "response.completed",
                ];
                assert_eq!(kinds, [created, added, done, completed]);
                for (event, number) in events.iter().zip(0..) {
                    assert_eq!(event["sequence_number"], json!(number));
                }
                assert_eq!(events[2]["item"], events[3]["response"]["output"][0]);
                events[3]["response"].clone()
            }
        };
        assert_eq!(
            (&response["object"], &response["status"]),
            (&json!("response"), &json!("completed"))
        );
        assert_eq!(response["model"], "gpt-4o");
        let output = response["output"].as_array().expect("a list");
        let (place, item) = only_item(output);
        assert_eq!((place, output.len()), (0, 1));
        // codex keeps messages of the user in front of it.
        let list =
            [message("user", "Check every part."), item.clone(), message("user", "And now?")];
        let (input, _) = sent(&weir, &mut upstream, &key, &list).await;
        let text = input.to_string();
        assert!(text.contains("QX-7741") && text.contains("[weir: "), "{text:.2000}");
        assert_eq!(
            text.matches("Check every part.").count(),
            1,
            "the item stands for all before it"
        );
    }
}

#[tokio::test]
async fn an_item_that_asks_for_compaction_passes_to_an_upstream_that_compacts() {
    let mut upstream = Upstream::start().await;
    let weir = harness::start(&upstream.address, |config| {
        config.upstream.compaction = CompactsBy::Upstream;
    })
    .await;
    let all = [message("user", "Go."), json!({"type": "compaction_trigger"})];
    let mut wire = Wire::connect(weir.address).await;
    let request = post(RESPONSES, &caller("one"), &body(&all));
    wire.send(request.clone()).await;
    let seen = upstream.next().await;
    assert_eq!(seen.body, serde_json::to_vec(&body(&all)).expect("JSON"));
    seen.answer(whole(&json!({"object": "response", "output": []})));
    assert_eq!(wire.message().await.expect("an answer").status(), 200);
}

#[tokio::test]
async fn items_that_stay_keep_their_bytes() {
    let upstream = Upstream::start().await;
    let weir = harness::start(&upstream.address, |_| {}).await;
    let first = "{ \"role\" :\"user\", \"content\":\"Check \\u0065very part.\",  \"x\":1.50 }";
    let rest: Vec<Value> = (0..40).flat_map(turn).collect();
    let rest = Value::from(rest).to_string();
    let text = format!(r#"{{"model":"gpt-4o","input":[{first},{}}}"#, &rest[1..]);
    let mut request = post(COMPACT, "", &json!(0));
    request.truncate(request.len() - 1);
    let request = String::from_utf8(request).expect("text");
    let request = request.replace("content-length: 1", &format!("content-length: {}", text.len()));
    let answer = ask(weir.address, request + &text).await;
    assert_eq!(answer.status(), 200, "{answer:?}");
    let answer = String::from_utf8(answer.body).expect("text");
    assert!(
        answer.contains(r#""status":"completed", "role" :"user", "content":[{"type":"input_text","text":"Check \u0065very part."}],  "x":1.50 },{"type":"compaction","#),
        "{answer:.500}"
    );
}

#[tokio::test]
async fn a_later_compaction_keeps_the_earlier_note() {
    let mut upstream = Upstream::start().await;
    let weir = harness::start(&upstream.address, |_| {}).await;
    let mut list = conversation(30);
    for round in 0..5 {
        list = compacted(&weir, "", &list).await;
        only_item(&list);
        list.extend((0..30).flat_map(|nth| turn(round * 30 + nth + 100)));
        list.push(message("user", "Go on."));
    }
    let (input, _) = sent(&weir, &mut upstream, "", &list).await;
    assert!(input.to_string().contains("QX-7741"), "the fact is carried on");
}

#[tokio::test]
async fn a_short_list_and_a_text_are_answered_too() {
    let upstream = Upstream::start().await;
    let weir = harness::start(&upstream.address, |_| {}).await;
    for input in [json!("Hello."), json!([message("user", "Hello.")]), json!([])] {
        let body = json!({"model": "gpt-4o", "input": input});
        let answer = ask(weir.address, post(COMPACT, "", &body)).await;
        assert_eq!(answer.status(), 200, "{answer:?}");
        let answer: Value = serde_json::from_slice(&answer.body).expect("JSON");
        let list = answer["output"].as_array().expect("a list");
        only_item(list);
        if body["input"] != json!([]) {
            assert_eq!(as_sent(&list[0]), message("user", "Hello."));
        }
    }
}

#[tokio::test]
async fn calls_that_wait_for_their_results_stay_with_the_client() {
    let mut upstream = Upstream::start().await;
    let weir = harness::start(&upstream.address, |_| {}).await;
    let mut list = conversation(30);
    let open = turn(31);
    list.extend(open[..2].to_vec());
    let mut list = compacted(&weir, "", &list).await;
    let (place, _) = only_item(&list);
    let behind: Vec<Value> = list[place + 1..].iter().map(as_sent).collect();
    assert_eq!(behind, open[..2]);
    list.push(open[2].clone());
    sent(&weir, &mut upstream, "", &list).await;
}

/// Sends a list with an item, and expects the refusal of it.
async fn assert_refused(weir: &Weir, headers: &str, item: &Value) {
    for path in [RESPONSES, COMPACT] {
        let items = [message("user", "Hi."), item.clone()];
        let answer = ask(weir.address, post(path, headers, &body(&items))).await;
        let said = answer.assert_error(400, "invalid_request");
        assert!(said.contains("compaction item") && !said.contains("weir1."), "{said}");
        let answer: Value = serde_json::from_slice(&answer.body).expect("JSON");
        assert_eq!(answer["error"]["param"], "input");
    }
}

#[tokio::test]
async fn only_items_that_weir_made_for_the_caller_are_opened() {
    let mut upstream = Upstream::start().await;
    let weir = harness::start(&upstream.address, |_| {}).await;
    let list = compacted(&weir, &caller("one"), &conversation(30)).await;
    let (_, item) = only_item(&list);
    let sealed = item["encrypted_content"].as_str().expect("text");
    assert!(sealed.starts_with("weir1.") && !sealed.contains("QX-7741"));
    assert_refused(&weir, &caller("two"), item).await;
    assert_refused(&weir, "", item).await;
    let (middle, last) = (sealed.len() / 2, sealed.len() - 1);
    let changed = if &sealed[middle..=middle] == "A" { "B" } else { "A" };
    for forged in [
        format!("{}{changed}{}", &sealed[..middle], &sealed[middle + 1..]),
        sealed[..last].to_owned(),
        format!("{sealed}AAAA"),
        "weir1.".to_owned(),
        "weir1.AAAA".to_owned(),
        "weir1.%%%".to_owned(),
    ] {
        let mut item = item.clone();
        item["encrypted_content"] = forged.into();
        assert_refused(&weir, &caller("one"), &item).await;
    }
    let many: Vec<Value> = std::iter::repeat_n(item.clone(), 65).collect();
    let answer = ask(weir.address, post(RESPONSES, &caller("one"), &body(&many))).await;
    assert!(answer.assert_error(400, "invalid_request").contains("more than 64"));
    // A provider's own item passes.
    let own = json!({"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAAABk"});
    let (input, answer) =
        sent(&weir, &mut upstream, &caller("one"), &[own.clone(), message("user", "Hi.")]).await;
    assert_eq!((&input[0], answer.header("x-weir-edits")), (&own, None));
}

fn with_secret(secret: &str) -> impl FnOnce(&mut Config) {
    let secret = Secret::new(secret.repeat(8));
    |config| config.auth.secret = Some(secret)
}

#[tokio::test]
async fn any_instance_with_the_same_secret_opens_an_item() {
    let mut upstream = Upstream::start().await;
    let one = harness::start(&upstream.address, with_secret("same")).await;
    let list = compacted(&one, &caller("one"), &conversation(30)).await;
    let other = harness::start(&upstream.address, with_secret("same")).await;
    let (here, _) = sent(&one, &mut upstream, &caller("one"), &list).await;
    let (there, _) = sent(&other, &mut upstream, &caller("one"), &list).await;
    assert_eq!(here, there);
    let (_, item) = only_item(&list);
    assert_refused(&other, &caller("two"), item).await;
    let stranger = harness::start(&upstream.address, with_secret("else")).await;
    assert_refused(&stranger, &caller("one"), item).await;
    // Without a secret of their own, instances share that of their store.
    let store = Store::in_memory().expect("there is memory");
    let one = harness::start_with(store.clone(), &upstream.address, |_| {}).await;
    let list = compacted(&one, &caller("one"), &conversation(30)).await;
    let other = harness::start_with(store, &upstream.address, |_| {}).await;
    sent(&other, &mut upstream, &caller("one"), &list).await;
}

#[tokio::test]
async fn its_caller_may_read_an_item() {
    let upstream = Upstream::start().await;
    let weir = harness::start(&upstream.address, |_| {}).await;
    let list = compacted(&weir, &caller("one"), &conversation(30)).await;
    let (_, item) = only_item(&list);
    let path = "/weir/v1/compaction";
    let answer = ask(weir.address, post(path, &caller("one"), item)).await;
    assert_eq!((answer.status(), answer.header("cache-control")), (200, Some("no-store")));
    let shown: Value = serde_json::from_slice(&answer.body).expect("JSON");
    assert_eq!((&shown["object"], &shown["is_whole"]), (&json!("weir.compaction"), &json!(false)));
    let text = shown["text"].as_str().expect("a text");
    assert!(text.contains("QX-7741") && text.contains("[weir: "), "{text:.500}");
    assert!(shown["items"].as_array().is_some_and(|items| items.len() > 1));
    let answer = ask(weir.address, post(path, &caller("two"), item)).await;
    answer.assert_error(400, "invalid_request");
    for other in [json!([]), json!({}), json!({"type": "compaction", "encrypted_content": "x"})] {
        let answer = ask(weir.address, post(path, &caller("one"), &other)).await;
        answer.assert_error(400, "invalid_request");
    }
    let answer = ask(weir.address, harness::bare("GET", path, "")).await;
    answer.assert_error(405, "method_not_allowed");
}

#[tokio::test]
async fn a_compaction_of_weirs_is_recorded_and_costs_nothing() {
    let upstream = Upstream::start().await;
    let store = Store::in_memory().expect("there is memory");
    let weir = harness::start_with(store.clone(), &upstream.address, |config| {
        config.ledger.enabled = true;
    })
    .await;
    let answer = ask(weir.address, post(COMPACT, "", &body(&conversation(30)))).await;
    let rows = async || {
        let rows = store.requests(RequestQuery::default()).await.expect("the store works");
        rows.iter().map(|row| row.json()).collect::<Vec<Value>>()
    };
    let is_settled = |rows: &Vec<Value>| rows.len() == 1 && rows[0]["outcome"] != Value::Null;
    let rows = eventually(DEADLINE, rows, is_settled).await;
    let shown = ["route", "action", "upstream", "outcome", "status", "model"];
    let shown = shown.map(|name| rows[0][name].clone());
    let wanted = ["responses/compact", "compaction", "weir", "complete", "200", "gpt-4o"];
    assert_eq!(shown.map(|value| value.to_string().replace('"', "")), wanted);
    assert_eq!(rows[0]["id"].as_str(), answer.header("x-weir-request-id"), "{rows:?}");
    let cost = rows[0]["cost_usd"].as_str().map(|cost| cost.parse::<f64>());
    assert_eq!(cost, Some(Ok(0.0)), "{rows:?}");
    assert_eq!(rows[0]["prompt_tokens"], Value::Null);
}

#[tokio::test]
async fn an_upstream_that_compacts_gets_the_request() {
    let mut upstream = Upstream::start().await;
    let weir = harness::start(&upstream.address, |config| {
        config.upstream.compaction = CompactsBy::Upstream;
    })
    .await;
    let body = body(&conversation(3));
    let mut wire = Wire::connect(weir.address).await;
    wire.send(post(COMPACT, "", &body)).await;
    let seen = upstream.next().await;
    assert!(seen.head.starts_with("POST /v1/responses/compact "), "{}", seen.head);
    assert_eq!(seen.body, body.to_string().into_bytes());
    seen.answer(whole(&json!({"object": "response.compaction", "output": []})));
    assert_eq!(wire.message().await.expect("an answer").status(), 200);
}

#[tokio::test]
async fn a_list_without_a_model_is_refused() {
    let upstream = Upstream::start().await;
    let weir = harness::start(&upstream.address, |_| {}).await;
    let body = json!({"input": [message("user", "Hello.")]});
    let answer = ask(weir.address, post(COMPACT, "", &body)).await;
    assert!(answer.assert_error(400, "invalid_request").contains("'model'"));
    let answer: Value = serde_json::from_slice(&answer.body).expect("JSON");
    assert_eq!(answer["error"]["param"], "model");
}

#[tokio::test]
async fn a_conversation_that_the_provider_keeps_is_refused() {
    let upstream = Upstream::start().await;
    let weir = harness::start(&upstream.address, |_| {}).await;
    let body = json!({"model": "gpt-4o", "previous_response_id": "resp_1", "input": "Go on."});
    let answer = ask(weir.address, post(COMPACT, "", &body)).await;
    let said = answer.assert_error(400, "invalid_request");
    assert!(said.contains("previous_response_id") && said.contains("store: false"), "{said}");
}
