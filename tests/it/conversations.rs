//! Kept conversations, through sockets: what is sent, what is kept, and to whom it is shown.

use serde_json::{Value, json};
use weir::config::Config;
use weir_eval::conversation::Conversation;

use weir_store::ledger::{Column, UsageQuery};
use weir_store::{Store, Tenant};

use crate::eventually::{DEADLINE, eventually};
use crate::folder::Folder;
use crate::keys::setting;
use crate::server::harness::{Message, Upstream, Weir, Wire, ask, bare, chat, start, start_with};

const ALICE: &str = "authorization: Bearer alice\r\n";
const BOB: &str = "authorization: Bearer bob\r\n";
const PATH: &str = "/weir/v1/conversations";

fn on(config: &mut Config) {
    config.conversations.enabled = true;
}

/// Returns the headers of a request in the conversation `name`.
fn within(credential: &str, name: &str) -> String {
    format!("{credential}x-weir-conversation: {name}\r\n")
}

fn body(messages: &[Value], stream: bool) -> String {
    json!({"model": "gpt-4o", "messages": messages, "stream": stream}).to_string()
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

fn assistant(text: &str) -> Value {
    json!({"role": "assistant", "content": text})
}

fn system(text: &str) -> Value {
    json!({"role": "system", "content": text})
}

fn http(content_type: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

/// Returns a complete answer with this message.
fn whole(message: &Value, reason: &str) -> String {
    let choice = json!({"index": 0, "message": message, "finish_reason": reason});
    http("application/json", &json!({"choices": [choice]}).to_string())
}

/// Returns a streamed answer with this text, with or without its end.
fn streamed(text: &str, is_whole: bool) -> String {
    let mut events = String::new();
    for piece in text.split_inclusive(' ') {
        let choice = json!({"index": 0, "delta": {"content": piece}, "finish_reason": null});
        events += &format!("data: {}\n\n", json!({"choices": [choice]}));
    }
    if is_whole {
        let choice = json!({"index": 0, "delta": {}, "finish_reason": "stop"});
        events += &format!("data: {}\n\ndata: [DONE]\n\n", json!({"choices": [choice]}));
    }
    http("text/event-stream", &events)
}

/// Sends a request that the upstream answers so; returns the answer and the messages that the
/// upstream received.
async fn exchange(
    weir: &Weir,
    upstream: &mut Upstream,
    headers: &str,
    body: String,
    answer: &str,
) -> (Message, Vec<Value>) {
    let (address, request) = (weir.address, chat(headers, body));
    let asking = tokio::spawn(async move { ask(address, request).await });
    let seen = upstream.next().await;
    let sent: Value = serde_json::from_slice(&seen.body).expect("JSON");
    seen.answer(answer);
    let answered = asking.await.expect("it is answered");
    (answered, sent["messages"].as_array().cloned().expect("a list"))
}

async fn get(weir: &Weir, credential: &str, path: &str) -> Message {
    ask(weir.address, bare("GET", &format!("{PATH}{path}"), credential)).await
}

fn json_of(message: &Message) -> Value {
    assert_eq!(message.status(), 200, "{message:?}");
    assert_eq!(message.header("cache-control"), Some("no-store"));
    serde_json::from_slice(&message.body).expect("JSON")
}

/// Returns the messages of a conversation.
async fn kept(weir: &Weir, credential: &str, name: &str) -> Vec<Value> {
    let shown = json_of(&get(weir, credential, &format!("/{name}")).await);
    shown["messages"].as_array().cloned().expect("a list")
}

/// Returns the tenant whose requests are in the store.
async fn only_tenant(store: &Store) -> Tenant {
    let query = UsageQuery { by: vec![Column::Tenant], ..UsageQuery::default() };
    let rows = store.usage(query).await.expect("it can be read");
    rows.first().and_then(|row| row.tenant).expect("a caller")
}

#[tokio::test]
async fn each_exchange_adds_two_messages_and_the_next_request_has_them() {
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, on).await;
    let headers = within(ALICE, "trip-1");
    let turn = |text: &str| [system("Be brief."), user(text)];
    for (number, stream) in [(0, false), (1, true), (2, false), (3, true)] {
        let text = format!("question {number} \"ü\"");
        let said = format!("answer {number}\nto \"é\" it");
        let answer = match stream {
            true => streamed(&said, true),
            false => whole(&assistant(&said), "stop"),
        };
        let (answered, sent) =
            exchange(&weir, &mut upstream, &headers, body(&turn(&text), stream), &answer).await;
        assert_eq!(answered.status(), 200);
        let count = format!("messages={}", 2 * number);
        assert_eq!(answered.header("x-weir-conversation"), Some(count.as_str()));
        let edits = answered.header("x-weir-edits").unwrap_or_default();
        assert_eq!(edits.split(',').any(|edit| edit == "conversation"), number > 0, "{edits}");
        // System text first, then the kept messages, then the new one.
        let before = match number {
            0 => Vec::new(),
            _ => kept(&weir, ALICE, "trip-1").await[..2 * number].to_vec(),
        };
        let expected = [vec![system("Be brief.")], before, vec![user(&text)]].concat();
        assert_eq!(sent, expected);
        let now = kept(&weir, ALICE, "trip-1").await;
        assert_eq!(now.len(), 2 * number + 2);
        assert_eq!(now[2 * number..], [user(&text), assistant(&said)]);
    }
    let listed = json_of(&get(&weir, ALICE, "").await);
    let facts = &listed["data"][0];
    assert_eq!((&facts["name"], &facts["message_count"]), (&json!("trip-1"), &json!(8)));
    assert!(facts["last_message_ms"].as_u64() > facts["created_ms"].as_u64().map(|ms| ms - 1));
}

#[tokio::test]
async fn an_exchange_with_calls_is_kept_when_its_answer_comes() {
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, on).await;
    let headers = within(ALICE, "a");
    let call =
        json!({"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let calling = json!({"role": "assistant", "content": "I look.", "tool_calls": [call]});
    let first = [user("what is it?")];
    let answer = whole(&calling, "tool_calls");
    exchange(&weir, &mut upstream, &headers, body(&first, false), &answer).await;
    get(&weir, ALICE, "/a").await.assert_error(404, "not_found");
    // The caller sends the open exchange itself.
    let result = json!({"role": "tool", "tool_call_id": "c1", "content": "42"});
    let open = [user("what is it?"), calling, result];
    let answer = streamed("it is 42", true);
    let (_, sent) = exchange(&weir, &mut upstream, &headers, body(&open, true), &answer).await;
    assert_eq!(sent, open);
    assert_eq!(kept(&weir, ALICE, "a").await, [user("what is it?"), assistant("it is 42")]);
}

#[tokio::test]
async fn nothing_is_kept_of_an_answer_without_its_end() {
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, on).await;
    let headers = within(ALICE, "a");
    let error = "HTTP/1.1 500 No\r\ncontent-length: 2\r\n\r\n{}";
    let filtered = whole(&assistant("no"), "content_filter");
    let silent = whole(&json!({"role": "assistant", "content": null}), "stop");
    for answer in [
        &streamed("half of", false),
        error,
        &filtered,
        &silent,
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]",
    ] {
        let body = body(&[user("q")], true);
        let (answered, _) = exchange(&weir, &mut upstream, &headers, body, answer).await;
        assert!([200, 500].contains(&answered.status()), "{answered:?}");
        get(&weir, ALICE, "/a").await.assert_error(404, "not_found");
    }
    // A caller that leaves in the middle of an answer has not had it.
    let mut caller = Wire::connect(weir.address).await;
    caller.send(chat(&headers, body(&[user("q")], true))).await;
    let mut seen = upstream.next().await;
    let answer = streamed("one two", true);
    let half = answer.len() - 30;
    seen.begin(&answer[..half]);
    caller.head().await.expect("a head");
    drop(caller);
    seen.left().await;
    get(&weir, ALICE, "/a").await.assert_error(404, "not_found");
}

#[tokio::test]
async fn a_kept_conversation_is_planned_as_if_its_caller_had_sent_it() {
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, on).await;
    let plain = start(&upstream.address, |_| {}).await;
    let limit = "x-weir-max-input-tokens: 2400\r\n";
    let text = |who: &str, turn: usize| {
        format!("{who} {turn} says {}", format!("value_{turn} and more of it, ").repeat(6))
    };
    let mut transcript = vec![system("Be brief.")];
    let mut before: Vec<Value> = Vec::new();
    let (mut rewrites, mut compactions) = (0, 0);
    for turn in 0..40 {
        let (question, said) = (text("question", turn), text("answer", turn));
        let answer = whole(&assistant(&said), "stop");
        let headers = within(ALICE, "a") + limit;
        let own = body(&[system("Be brief."), user(&question)], false);
        let (answered, sent) = exchange(&weir, &mut upstream, &headers, own, &answer).await;
        transcript.push(user(&question));
        let headers = format!("{ALICE}{limit}");
        let all = body(&transcript, false);
        let (_, expected) = exchange(&plain, &mut upstream, &headers, all, &answer).await;
        assert_eq!(sent, expected, "turn {turn}");
        let tokens = |name: &str| answered.header(name).and_then(|text| text.parse::<u64>().ok());
        assert!(tokens("x-weir-sent-tokens") <= Some(2400), "turn {turn}");
        compactions += usize::from(answered.header("x-weir-action") != Some("pass"));
        rewrites += usize::from(!sent.starts_with(&before));
        // The last message may hold passages that its question recalls.
        before = sent[..sent.len() - 1].to_vec();
        transcript.push(assistant(&said));
    }
    assert!(compactions > 10, "{compactions}");
    assert!((1..=8).contains(&rewrites), "{rewrites} rewrites");
    assert_eq!(kept(&weir, ALICE, "a").await, transcript[1..], "all of it is kept");
}

#[tokio::test]
async fn the_newest_messages_are_sent_from_the_beginning_of_a_turn() {
    let mut upstream = Upstream::start().await;
    let change = |config: &mut Config| {
        on(config);
        config.conversations.max_messages = 8;
    };
    let weir = start(&upstream.address, change).await;
    let mut counts = Vec::new();
    let mut starts: Vec<Value> = Vec::new();
    for turn in 0..12 {
        let answer = whole(&assistant("a"), "stop");
        let body = body(&[user(&format!("q{turn}"))], false);
        let (_, sent) = exchange(&weir, &mut upstream, &within(ALICE, "a"), body, &answer).await;
        counts.push(sent.len() - 1);
        starts.push(sent[0]["content"].clone());
    }
    assert_eq!(counts, [0, 2, 4, 6, 8, 6, 8, 6, 8, 6, 8, 6], "{starts:?}");
    starts.dedup();
    assert!(starts.len() <= 5, "the start moves rarely: {starts:?}");
}

#[tokio::test]
async fn exchanges_at_once_do_not_mix() {
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, on).await;
    let asking: Vec<_> = (0..12)
        .map(|number| {
            let request = chat(&within(ALICE, "a"), body(&[user(&format!("q{number}"))], true));
            let address = weir.address;
            tokio::spawn(async move { ask(address, request).await })
        })
        .collect();
    let mut seen = Vec::new();
    for _ in 0..12 {
        seen.push(upstream.next().await);
    }
    for seen in seen.into_iter().rev() {
        let sent: Value = serde_json::from_slice(&seen.body).expect("JSON");
        let last = sent["messages"].as_array().and_then(|all| all.last()).expect("a message");
        let text = last["content"].as_str().expect("text");
        seen.answer(streamed(&format!("to {text}"), true));
    }
    for asking in asking {
        assert_eq!(asking.await.expect("no panic").status(), 200);
    }
    let kept = kept(&weir, ALICE, "a").await;
    assert_eq!(kept.len(), 24);
    for pair in kept.chunks(2) {
        let question = pair[0]["content"].as_str().expect("text");
        assert_eq!(pair, [user(question), assistant(&format!("to {question}"))]);
    }
}

#[tokio::test]
async fn kept_messages_take_room_like_bodies() {
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, |config| {
        on(config);
        config.server.max_bodies_in_flight_bytes = 6 << 20;
    })
    .await;
    let long = user(&"q".repeat(1 << 20));
    let put = json!({"messages": [long]}).to_string();
    let put = setting::post(&format!("{PATH}/a"), ALICE, put).replacen("POST", "PUT", 1);
    assert_eq!(ask(weir.address, put).await.status(), 200);
    let request = || chat(&within(ALICE, "a"), body(&[user("q")], false));
    // A request has its megabyte while it waits for the answer, and 4 MiB while it reads.
    let (mut waiting, mut open) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let (address, request) = (weir.address, request());
        waiting.push(tokio::spawn(async move { ask(address, request).await }));
        open.push(upstream.next().await);
    }
    let refused = ask(weir.address, request()).await;
    assert_eq!(refused.status(), 503, "{refused:?}");
    assert_eq!(refused.header("retry-after"), Some("1"));
    for seen in open {
        seen.answer(whole(&assistant("a"), "stop"));
    }
    for asking in waiting {
        assert_eq!(asking.await.expect("no panic").status(), 200);
    }
    let answer = whole(&assistant("a"), "stop");
    let (last, _) =
        exchange(&weir, &mut upstream, &within(ALICE, "a"), body(&[user("q")], false), &answer)
            .await;
    assert_eq!(last.status(), 200, "all room is given back");
}

#[tokio::test]
async fn an_answer_that_comes_after_a_clear_is_not_kept() {
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, on).await;
    let answer = whole(&assistant("a"), "stop");
    let headers = within(ALICE, "a");
    exchange(&weir, &mut upstream, &headers, body(&[user("q")], false), &answer).await;
    let (address, request) = (weir.address, chat(&headers, body(&[user("q2")], false)));
    let asking = tokio::spawn(async move { ask(address, request).await });
    let seen = upstream.next().await;
    let cleared = ask(address, bare("POST", &format!("{PATH}/a/clear"), ALICE)).await;
    assert_eq!(json_of(&cleared)["message_count"], 0);
    seen.answer(&answer);
    assert_eq!(asking.await.expect("no panic").status(), 200);
    assert_eq!(kept(&weir, ALICE, "a").await, [] as [Value; 0]);
}

#[tokio::test]
async fn callers_reach_their_own_alone() {
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, on).await;
    let answer = whole(&assistant("a secret"), "stop");
    let body = || body(&[user("q")], false);
    exchange(&weir, &mut upstream, &within(ALICE, "a"), body(), &answer).await;
    let (_, sent) = exchange(&weir, &mut upstream, &within(BOB, "a"), body(), &answer).await;
    assert_eq!(sent, [user("q")], "another caller's conversation of that name is another");
    let delete = bare("DELETE", &format!("{PATH}/a"), BOB);
    assert_eq!(json_of(&ask(weir.address, &delete).await)["deleted"], true);
    ask(weir.address, &delete).await.assert_error(404, "not_found");
    assert_eq!(kept(&weir, ALICE, "a").await.len(), 2);
    assert_eq!(json_of(&get(&weir, BOB, "").await)["data"], json!([]));
    for nobody in ["", "authorization: Bearer \r\n"] {
        for path in ["", "/a", "/a/export"] {
            get(&weir, nobody, path).await.assert_error(403, "credential_required");
        }
        let refused = ask(weir.address, chat(&within(nobody, "a"), body())).await;
        refused.assert_error(403, "credential_required");
    }
}

#[tokio::test]
async fn requests_that_cannot_be_kept_are_refused_clearly() {
    let upstream = Upstream::start().await;
    let weir = start(&upstream.address, |config| {
        on(config);
        config.context.allow_bypass = true;
    })
    .await;
    let off = start(&upstream.address, |_| {}).await;
    let request = |headers: &str| chat(headers, body(&[user("q")], false));
    let refused = ask(off.address, request(&within(ALICE, "a"))).await;
    let said = refused.assert_error(403, "conversations_not_allowed");
    assert!(said.contains("conversations.enabled") && said.contains("keys limit"), "{said}");
    let long = "a".repeat(101);
    for name in ["", "-a", "a/b", "a b", "ä", &long] {
        let refused = ask(weir.address, request(&within(ALICE, name))).await;
        refused.assert_error(400, "invalid_request");
    }
    let twice = within(ALICE, "a") + "x-weir-conversation: b\r\n";
    ask(weir.address, request(&twice)).await.assert_error(400, "invalid_request");
    let bypass = within(ALICE, "a") + "x-weir-bypass: 1\r\n";
    let said = ask(weir.address, request(&bypass)).await.assert_error(400, "invalid_request");
    assert!(said.contains("x-weir-bypass"), "{said}");
    for path in ["/v1/responses", "/v1/messages"] {
        let body = r#"{"model":"gpt-4o","input":"q","messages":[],"max_tokens":9}"#;
        let post = setting::post(path, &within(ALICE, "a"), body);
        let said = ask(weir.address, post).await.assert_error(400, "invalid_request");
        assert!(said.contains("chat completions"), "{said}");
    }
}

#[tokio::test]
async fn a_key_decides_for_its_callers() {
    let mut upstream = Upstream::start().await;
    let setting = setting::start(&upstream.address, |_| {}).await;
    let may = setting.key("a", r#"{"conversations":true}"#).await;
    let same_team = setting.key("a", "{}").await;
    let other_team = setting.key("b", r#"{"conversations":true}"#).await;
    let answer = whole(&assistant("a"), "stop");
    let headers = within(&may.header(), "a");
    let body = || body(&[user("q")], false);
    exchange(&setting.weir, &mut upstream, &headers, body(), &answer).await;
    let refused = setting.ask(chat(&within(&same_team.header(), "a"), body())).await;
    refused.assert_error(403, "conversations_not_allowed");
    let put = format!("{PATH}/a");
    let put = setting::post(&put, &same_team.header(), r#"{"messages":[]}"#);
    let put = put.replacen("POST", "PUT", 1);
    setting.ask(put).await.assert_error(403, "conversations_not_allowed");
    // A team's keys share conversations.
    assert_eq!(kept(&setting.weir, &same_team.header(), "a").await.len(), 2);
    let other = get(&setting.weir, &other_team.header(), "/a").await;
    other.assert_error(404, "not_found");
}

#[tokio::test]
async fn a_conversation_is_replaced_exported_and_deleted() {
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, on).await;
    let put = |body: &str| {
        let request = setting::post(&format!("{PATH}/a"), ALICE, body).replacen("POST", "PUT", 1);
        ask(weir.address, request)
    };
    let call = r#"{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]}"#;
    let result = r#"{"role":"tool", "tool_call_id":"c","content":"\u00e9"}"#;
    let list = format!(
        r#"{{"role":"user","content":"q"}},{call},{result},{{"role":"assistant","content":"a"}}"#
    );
    let facts = json_of(&put(&format!(r#"{{"messages":[{list}]}}"#)).await);
    assert_eq!((&facts["name"], &facts["message_count"]), (&json!("a"), &json!(4)));
    let shown = get(&weir, ALICE, "/a").await;
    let text = String::from_utf8(shown.body).expect("text");
    assert!(text.contains(&format!(r#""messages":[{list}]"#)), "as received: {text}");
    let exported = get(&weir, ALICE, "/a/export").await;
    assert_eq!(exported.header("content-type"), Some("application/jsonl"));
    let line = String::from_utf8(exported.body).expect("text");
    let read = Conversation::read(line.trim_end(), 1, None).expect("replay reads it");
    assert_eq!((read.id.as_str(), read.messages.len()), ("a", 4));
    assert_eq!(line.lines().count(), 1);
    // Line breaks between members stay in the messages, and out of the export.
    put("{\"messages\":[{\"role\":\n\"user\",\r\n\"content\":\"q\"}]}").await;
    let broken = String::from_utf8(get(&weir, ALICE, "/a/export").await.body).expect("text");
    assert_eq!(broken.lines().count(), 1, "{broken}");
    Conversation::read(broken.trim_end(), 1, None).expect("replay reads it");
    put(&format!(r#"{{"messages":[{list}]}}"#)).await;
    // It is sent as it is.
    let answer = whole(&assistant("b"), "stop");
    let body = body(&[user("q2")], false);
    let (_, sent) = exchange(&weir, &mut upstream, &within(ALICE, "a"), body, &answer).await;
    assert_eq!(sent.len(), 5);
    put(r#"{"messages":[{"role":"system","content":"x"}]}"#)
        .await
        .assert_error(400, "invalid_request");
    put(&format!(r#"{{"messages":[{call}]}}"#)).await.assert_error(400, "invalid_request");
    let large =
        format!(r#"{{"messages":[{{"role":"user","content":"{}"}}]}}"#, "x".repeat(3 << 20));
    put(&large).await.assert_error(400, "invalid_request");
    assert_eq!(kept(&weir, ALICE, "a").await.len(), 6, "a refused change changes nothing");
    for (method, path, allowed) in [
        ("POST", "", "GET, HEAD"),
        ("PATCH", "/a", "GET, HEAD, PUT, DELETE"),
        ("GET", "/a/clear", "POST"),
        ("PUT", "/a/export", "GET, HEAD"),
    ] {
        let refused = ask(weir.address, bare(method, &format!("{PATH}{path}"), ALICE)).await;
        assert_eq!((refused.status(), refused.header("allow")), (405, Some(allowed)), "{path}");
    }
    for path in ["/a/b/c", "/", "/a/other", "?before=a"] {
        let status = get(&weir, ALICE, path).await.status();
        assert!([400, 404].contains(&status), "{path}: {status}");
    }
}

#[tokio::test]
async fn a_failing_store_never_breaks_an_exchange() {
    let mut upstream = Upstream::start().await;
    let folder = Folder::new();
    let path = folder.file("weir.db");
    let store = Store::open(&path).expect("a store");
    let weir = start_with(store, &upstream.address, on).await;
    let answer = whole(&assistant("fine"), "stop");
    let headers = within(ALICE, "a");
    exchange(&weir, &mut upstream, &headers, body(&[user("q")], false), &answer).await;
    let raw = rusqlite::Connection::open(&path).expect("the file");
    // The exchange cannot be written, then the conversation cannot be read.
    raw.execute_batch("DROP TABLE conversation_message").expect("SQL");
    let (answered, sent) =
        exchange(&weir, &mut upstream, &headers, body(&[user("q2")], false), &answer).await;
    assert_eq!((answered.status(), sent), (200, vec![user("q2")]));
    assert_eq!(answered.header("x-weir-conversation"), Some("unavailable"));
    assert!(answered.body.windows(4).any(|part| part == b"fine"));
    get(&weir, ALICE, "/a").await.assert_error(503, "store_unavailable");
    // Another conversation can be read, since it does not exist, but not written.
    let headers = within(ALICE, "new");
    let (answered, _) = exchange(
        &weir,
        &mut upstream,
        &headers,
        body(&[user("q3")], true),
        &streamed("fine", true),
    )
    .await;
    assert_eq!(answered.header("x-weir-conversation"), Some("messages=0"));
    assert!(answered.body.ends_with(b"data: [DONE]\n\n"));
}

#[tokio::test]
async fn a_conversation_outlives_a_restart() {
    let mut upstream = Upstream::start().await;
    let folder = Folder::new();
    let path = folder.file("weir.db");
    let answer = whole(&assistant("a"), "stop");
    let store = || Store::open(&path).expect("a store");
    let first = start_with(store(), &upstream.address, on).await;
    exchange(&first, &mut upstream, &within(ALICE, "a"), body(&[user("q")], false), &answer).await;
    first.shutdown.drain();
    first.stops_listening().await;
    let second = start_with(store(), &upstream.address, on).await;
    let look = async || kept(&second, ALICE, "a").await.len();
    assert_eq!(eventually(DEADLINE, look, |count| *count > 0).await, 2);
}

#[tokio::test]
async fn the_plan_has_the_kept_messages() {
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, on).await;
    let answer = whole(&assistant("a"), "stop");
    let headers = within(ALICE, "a");
    exchange(&weir, &mut upstream, &headers, body(&[user("q")], false), &answer).await;
    let plan = setting::post("/weir/v1/plan", &headers, body(&[user("q2")], false));
    let plan = json_of(&ask(weir.address, plan).await);
    assert_eq!(plan["messages"].as_array().map(Vec::len), Some(3), "{plan}");
    assert_eq!(kept(&weir, ALICE, "a").await.len(), 2, "a plan keeps nothing");
}

#[tokio::test]
async fn the_command_line_lists_shows_exports_and_deletes() {
    let mut upstream = Upstream::start().await;
    let folder = Folder::new();
    let path = folder.file("weir.db");
    let store = Store::open(&path).expect("a store");
    let weir = start_with(store.clone(), &upstream.address, on).await;
    let answer = whole(&assistant("a"), "stop");
    let headers = within(ALICE, "trip-1");
    exchange(&weir, &mut upstream, &headers, body(&[user("q")], false), &answer).await;
    let tenant = only_tenant(&store).await;
    let tenant = format!("{:032x}", u128::from_be_bytes(tenant.0));
    let run = |arguments: &[&str], owner: [&str; 2]| {
        let output = crate::cli::weir(&["conversations"])
            .args(arguments)
            .args(owner)
            .arg("--store")
            .arg(&path)
            .output()
            .expect("weir starts");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        match output.status.success() {
            true => Ok(text(output.stdout)),
            false => Err(text(output.stderr)),
        }
    };
    let own = ["--tenant", tenant.as_str()];
    let listed = run(&["list"], own).expect("it works");
    let line = listed.lines().nth(1).expect("a conversation");
    assert!(line.starts_with("trip-1  2 "), "{listed}");
    let shown = run(&["show", "trip-1"], own).expect("it works");
    assert_eq!(shown.lines().count(), 2, "{shown}");
    let exported = run(&["export", "trip-1"], own).expect("it works");
    let api = get(&weir, ALICE, "/trip-1/export").await.body;
    assert_eq!(exported.as_bytes(), api);
    let others = run(&["show", "trip-1"], ["--team", "search"]).expect_err("not theirs");
    assert!(others.contains("--team"), "{others}");
    assert!(run(&["list"], ["--tenant", "xyz"]).is_err());
    assert_eq!(run(&["delete", "trip-1"], own).as_deref(), Ok("deleted trip-1\n"));
    let none = run(&["list"], own).expect("it works");
    assert!(none.contains("--tenant"), "{none}");
    get(&weir, ALICE, "/trip-1").await.assert_error(404, "not_found");
}

#[tokio::test]
async fn a_first_exchange_is_not_kept_after_a_delete() {
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, on).await;
    let answer = whole(&assistant("a"), "stop");
    let headers = within(ALICE, "a");
    let (address, request) = (weir.address, chat(&headers, body(&[user("early")], false)));
    let asking = tokio::spawn(async move { ask(address, request).await });
    let early = upstream.next().await;
    // The conversation begins after that request, and is deleted before its answer.
    exchange(&weir, &mut upstream, &headers, body(&[user("q")], false), &answer).await;
    let deleted = ask(address, bare("DELETE", &format!("{PATH}/a"), ALICE)).await;
    assert_eq!(json_of(&deleted)["deleted"], true);
    early.answer(&answer);
    assert_eq!(asking.await.expect("no panic").status(), 200);
    get(&weir, ALICE, "/a").await.assert_error(404, "not_found");
    let listed = json_of(&get(&weir, ALICE, "").await);
    assert_eq!(listed["data"], json!([]), "nothing else is listed");
    exchange(&weir, &mut upstream, &headers, body(&[user("q")], false), &answer).await;
    assert_eq!(kept(&weir, ALICE, "a").await.len(), 2, "a new one begins");
}

#[tokio::test]
async fn a_delete_wins_over_an_exchange_that_began_before_it_even_if_nothing_was_there() {
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, on).await;
    let answer = whole(&assistant("a"), "stop");
    let headers = within(ALICE, "a");
    let delete = async || ask(weir.address, bare("DELETE", &format!("{PATH}/a"), ALICE)).await;
    for _ in 0..2 {
        let (address, request) = (weir.address, chat(&headers, body(&[user("early")], false)));
        let asking = tokio::spawn(async move { ask(address, request).await });
        let early = upstream.next().await;
        delete().await.assert_error(404, "not_found");
        early.answer(&answer);
        assert_eq!(asking.await.expect("no panic").status(), 200);
        get(&weir, ALICE, "/a").await.assert_error(404, "not_found");
    }
    // The next exchange is kept, however soon it comes.
    delete().await.assert_error(404, "not_found");
    exchange(&weir, &mut upstream, &headers, body(&[user("q")], false), &answer).await;
    assert_eq!(kept(&weir, ALICE, "a").await, [user("q"), assistant("a")]);
}

#[tokio::test]
async fn a_delete_where_nothing_is_kept_writes_nothing() {
    let mut upstream = Upstream::start().await;
    let folder = Folder::new();
    let store = Store::open(&folder.file("weir.db")).expect("a store");
    let weir = start_with(store.clone(), &upstream.address, |_| ()).await;
    let answer = whole(&assistant("a"), "stop");
    exchange(&weir, &mut upstream, ALICE, body(&[user("q")], false), &answer).await;
    let tenant = only_tenant(&store).await;
    let deleted = ask(weir.address, bare("DELETE", &format!("{PATH}/a"), ALICE)).await;
    deleted.assert_error(404, "not_found");
    assert_eq!(store.conversation_change(tenant, "a").await, Ok(0));
    let on = start_with(store.clone(), &upstream.address, on).await;
    let deleted = ask(on.address, bare("DELETE", &format!("{PATH}/a"), ALICE)).await;
    deleted.assert_error(404, "not_found");
    assert_ne!(store.conversation_change(tenant, "a").await, Ok(0));
}

#[tokio::test]
async fn a_delete_by_a_key_that_keeps_nothing_writes_nothing() {
    let upstream = Upstream::start().await;
    let setting = setting::start(&upstream.address, |_| ()).await;
    let tenant = setting.store.team_tenant("a");
    for (settings, writes) in
        [("{}", false), (r#"{"conversations":false}"#, false), (r#"{"conversations":true}"#, true)]
    {
        let key = setting.key("a", settings).await;
        let deleted = setting.ask(bare("DELETE", &format!("{PATH}/b"), &key.header())).await;
        deleted.assert_error(404, "not_found");
        let change = setting.store.conversation_change(tenant, "b").await.expect("it can be read");
        assert_eq!(change > 0, writes, "{settings}");
    }
}

#[tokio::test]
async fn reading_conversations_counts_towards_the_limits_of_a_key() {
    let upstream = Upstream::start().await;
    let setting = setting::start(&upstream.address, on).await;
    let key = setting.key("a", r#"{"requests_per_minute":3}"#).await;
    for path in ["", "/a", "/a/export"] {
        let answer = get(&setting.weir, &key.header(), path).await;
        assert!(matches!(answer.status(), 200 | 404), "{path}: {answer:?}");
    }
    let refused = get(&setting.weir, &key.header(), "").await;
    assert_eq!(refused.status(), 429, "{refused:?}");
}
