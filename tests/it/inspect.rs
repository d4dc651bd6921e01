//! The inspector over sockets: each form of input in each protocol, the same fates as `POST
//! /weir/v1/plan`, and refusals of input that is none.

use std::net::SocketAddr;

use rustls::version::TLS13;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use weir::admin::{Admin, Token};
use weir::config::{Config, Originals, Secret};
use weir_store::Store;

use crate::keys::setting::{bearer, post};
use crate::scripted_upstream::{Options, Server};
use crate::server::harness::{self, Message, Weir, ask, bare};
use crate::tls::setting::{Authority, ask_over, caller, connect, shown};

const SECRET: &str = "weir-admin-of-this-test-0123456789abcdef";
const PATH: &str = "/admin/v1/inspect";
const RECENT: &str = "/admin/v1/conversations";

/// A weir with an admin listener.
struct Inspected {
    weir: Weir,
    admin: SocketAddr,
    _running: oneshot::Sender<()>,
}

impl Inspected {
    async fn start(change: impl Fn(&mut Config)) -> Self {
        // Nothing is sent, so nothing needs to answer.
        Self::over("127.0.0.1:9", change).await
    }

    /// Starts one in front of the upstream at this address.
    async fn over(upstream: &str, change: impl Fn(&mut Config)) -> Self {
        let store = Store::in_memory().expect("a store");
        let weir = harness::start_with(store.clone(), upstream, &change).await;
        let mut config = Config::default();
        change(&mut config);
        let token = Token::new(&Secret::new(SECRET));
        let here = ([127, 0, 0, 1], 0).into();
        let admin = Admin::bind(here, &config, store, token).await.expect("a free port");
        let address = admin.address();
        let renewal = weir.renewal.clone();
        admin.show_metrics(move || renewal.proxy());
        let (running, ended) = oneshot::channel::<()>();
        tokio::spawn(admin.run(async move {
            // Ends when its sender is dropped.
            let _ = ended.await;
        }));
        Self { weir, admin: address, _running: running }
    }

    async fn ask(&self, body: &Value) -> Message {
        ask(self.admin, post(PATH, &bearer(SECRET), body.to_string())).await
    }

    /// Reads a page with the token.
    async fn get(&self, path: &str) -> (u16, Value) {
        let answer = ask(self.admin, bare("GET", path, &bearer(SECRET))).await;
        (answer.status(), serde_json::from_slice(&answer.body).expect("JSON"))
    }

    async fn inspect(&self, body: &Value) -> Value {
        let answer = self.ask(body).await;
        assert_eq!(answer.status(), 200, "{answer:?}");
        assert_eq!(answer.header("cache-control"), Some("no-store"));
        serde_json::from_slice(&answer.body).expect("JSON")
    }

    /// Returns the plan of a request by `POST /weir/v1/plan`.
    async fn plan(&self, body: &str, headers: &str, path: &str) -> Value {
        let answer = ask(self.weir.address, post(path, headers, body)).await;
        assert_eq!(answer.status(), 200, "{answer:?}");
        serde_json::from_slice(&answer.body).expect("JSON")
    }
}

/// Returns the message of a refusal.
fn refused(answer: &Message, status: u16, code: &str) -> String {
    assert_eq!(answer.status(), status, "{answer:?}");
    let body: Value = serde_json::from_slice(&answer.body).expect("JSON");
    assert_eq!(body["error"]["code"], code);
    body["error"]["message"].as_str().expect("a message").to_owned()
}

fn result(turn: usize) -> String {
    format!("part_{turn} holds at level {turn}.\n").repeat(30)
}

fn chat(turns: usize) -> Value {
    let mut messages = vec![
        json!({"role": "system", "content": "Be brief."}),
        json!({"role": "user", "content": "Check all parts."}),
    ];
    for turn in 0..turns {
        let function = json!({"name": "read", "arguments": format!("{{\"part\":{turn}}}")});
        let call = json!({"id": format!("c{turn}"), "type": "function", "function": function});
        messages.push(json!({"role": "assistant", "content": null, "tool_calls": [call]}));
        messages.push(
            json!({"role": "tool", "tool_call_id": format!("c{turn}"), "content": result(turn)}),
        );
    }
    json!({"model": "gpt-4o", "messages": messages})
}

fn responses(turns: usize) -> Value {
    let mut items = vec![json!({"role": "user", "content": "Check all parts."})];
    for turn in 0..turns {
        let id = format!("c{turn}");
        items.push(
            json!({"type": "function_call", "call_id": id, "name": "read", "arguments": format!("{{\"part\":{turn}}}")}),
        );
        items.push(json!({"type": "function_call_output", "call_id": id, "output": result(turn)}));
    }
    json!({"model": "gpt-4o", "instructions": "Be brief.", "input": items})
}

fn messages(turns: usize) -> Value {
    let mut messages = vec![json!({"role": "user", "content": "Check all parts."})];
    for turn in 0..turns {
        let id = format!("c{turn}");
        let call = json!({"type": "tool_use", "id": id, "name": "read", "input": {"part": turn}});
        let own = json!({"type": "tool_result", "tool_use_id": id, "content": result(turn)});
        messages.push(json!({"role": "assistant", "content": [call]}));
        messages.push(json!({"role": "user", "content": [own]}));
    }
    json!({"model": "claude-sonnet-4-5", "max_tokens": 99, "system": "Be brief.", "messages": messages})
}

/// Returns the members of each row that say how its message is treated.
fn rows(plan: &Value) -> Vec<[Value; 4]> {
    let rows = plan["messages"].as_array().expect("rows").iter();
    let names = ["index", "fate", "sent_tokens", "why_text"];
    rows.map(|row| names.map(|name| row[name].clone())).collect()
}

#[tokio::test]
async fn fates_are_those_of_the_plan_in_each_protocol_and_policy() {
    const POLICIES: [&str; 3] = ["default", "zones", "scored"];
    let weir = Inspected::start(|config| {
        config.context.allowed_policies = POLICIES.map(str::to_owned).to_vec();
    })
    .await;
    for (protocol, body) in
        [("chat", chat(20)), ("responses", responses(20)), ("messages", messages(20))]
    {
        let text = body.to_string();
        let inspected = weir
            .inspect(&json!({"text": text, "policies": POLICIES, "max_input_tokens": 2500}))
            .await;
        assert_eq!(
            (&inspected["form"], &inspected["protocol"]),
            (&json!("request"), &json!(protocol))
        );
        let policies = inspected["policies"].as_array().expect("policies");
        assert_eq!(policies.len(), 3);
        let mut fates = std::collections::BTreeSet::new();
        for own in policies {
            let policy = own["policy"].as_str().expect("a name");
            let headers = format!(
                "x-weir-max-input-tokens: 2500\r\nx-weir-policy: {policy}\r\n{}",
                bearer("k")
            );
            let path = format!("/weir/v1/plan?protocol={protocol}");
            let plan = weir.plan(&text, &headers, &path).await;
            assert_eq!(rows(&own["plan"]), rows(&plan), "{protocol}, {policy}");
            assert_eq!(own["plan"]["window"], plan["window"], "{protocol}, {policy}");
            assert_eq!(own["plan"]["action"], plan["action"], "{protocol}, {policy}");
            let turns = own["turns"].as_array().expect("turns");
            assert_eq!(turns.len(), 21, "{protocol}");
            let last = turns.last().expect("a turn");
            assert_eq!(last["sent_tokens"], plan["window"]["sent_tokens"], "{protocol}, {policy}");
            assert!(last["compactions"].as_u64() > Some(0), "{protocol}, {policy}");
            let appearances = own["plan"]["appearances"].as_array().expect("appearances").clone();
            assert_eq!(appearances.len(), rows(&plan).len());
            fates.extend(appearances.iter().filter_map(Value::as_str).map(str::to_owned));
        }
        for expected in ["pinned", "note", "masked"] {
            assert!(fates.contains(expected), "{protocol}: {fates:?}");
        }
    }
}

/// Lines of Claude Code for the messages of a body.
fn claude_code(body: &Value) -> String {
    let mut lines = vec![json!({"type": "summary", "summary": "Parts", "leafUuid": "x"})];
    for (number, message) in body["messages"].as_array().expect("messages").iter().enumerate() {
        let mut said = message.clone();
        if said["role"] == "assistant" {
            said["model"] = body["model"].clone();
            said["id"] = json!(format!("msg_{number}"));
        }
        lines.push(json!({"type": said["role"], "uuid": number.to_string(), "sessionId": "s1",
            "isSidechain": false, "message": said}));
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// Lines of codex for the items of a body.
fn codex(body: &Value) -> String {
    let line =
        |kind: &str, payload: Value| json!({"timestamp": "t", "type": kind, "payload": payload});
    let meta = json!({"id": "r1", "instructions": body["instructions"]});
    let mut lines = vec![
        line("session_meta", meta),
        line("turn_context", json!({"model": body["model"]})),
        line("event_msg", json!({"type": "token_count"})),
    ];
    for item in body["input"].as_array().expect("items") {
        let mut item = item.clone();
        if item.get("type").is_none() {
            item["type"] = json!("message");
        }
        lines.push(line("response_item", item));
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}

#[tokio::test]
async fn transcripts_are_planned_as_the_requests_that_they_record() {
    let weir = Inspected::start(|_| {}).await;
    let mut without_system = messages(20);
    without_system.as_object_mut().expect("an object").remove("system");
    let mut typed = responses(20);
    typed["input"][0]["type"] = json!("message");
    for (form, transcript, body, id) in [
        ("claude_code", claude_code(&without_system), without_system, "s1"),
        ("codex", codex(&typed), typed, "r1"),
    ] {
        let asking = |text: String| json!({"text": text, "max_input_tokens": 2500});
        let own = weir.inspect(&asking(transcript)).await;
        let same = weir.inspect(&asking(body.to_string())).await;
        assert_eq!((&own["form"], &own["conversations"][0]["id"]), (&json!(form), &json!(id)));
        assert_eq!(own["model"], body["model"]);
        assert_eq!(own["turns"], same["turns"]);
        let (own, same) = (&own["policies"][0], &same["policies"][0]);
        assert_eq!(rows(&own["plan"]), rows(&same["plan"]), "{form}");
        assert_eq!(own["turns"], same["turns"], "{form}");
    }
}

#[tokio::test]
async fn a_conversation_of_several_is_chosen() {
    let weir = Inspected::start(|_| {}).await;
    let mut line = chat(9);
    line["id"] = json!("first");
    let text = format!("{line}\n\n{}\n{}\n", messages(4), responses(3));
    let asking = |place: usize| json!({"text": text, "conversation": place, "limit_percent": 50});
    for (place, protocol, turns) in [(0, "chat", 10), (1, "messages", 5), (2, "responses", 4)] {
        let own = weir.inspect(&asking(place)).await;
        assert_eq!((&own["form"], &own["protocol"]), (&json!("trace"), &json!(protocol)));
        let ids: Vec<&Value> =
            own["conversations"].as_array().expect("a list").iter().map(|own| &own["id"]).collect();
        assert_eq!(ids, ["first", "line-3", "line-4"]);
        assert_eq!(own["turns"].as_array().map(Vec::len), Some(turns), "{protocol}");
        let window = &own["policies"][0]["plan"]["window"];
        let [limit, received] =
            ["limit_tokens", "received_tokens"].map(|name| window[name].as_u64());
        assert!(limit <= received.map(|tokens| tokens / 2), "{protocol}: {window}");
    }
    let message = refused(&weir.ask(&asking(3)).await, 400, "invalid_request");
    assert!(message.contains("the text has 3"), "{message}");
}

#[tokio::test]
async fn a_turn_shows_its_messages_and_notes() {
    let weir = Inspected::start(|_| {}).await;
    let text = chat(20).to_string();
    let ask_for = |more: Value| {
        let mut body = json!({"text": text, "max_input_tokens": 2500, "turns": false});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("one").clone());
        body
    };
    let whole = weir.inspect(&json!({"text": text, "max_input_tokens": 2500})).await;
    let all = whole["policies"][0]["turns"].as_array().expect("turns");
    for turn in [1, 12, 21] {
        let own = weir.inspect(&ask_for(json!({"turn": turn}))).await;
        let policy = &own["policies"][0];
        assert!(policy["turns"].is_null() && policy["total"].is_null() && own["whole"].is_null());
        let window = &policy["plan"]["window"];
        assert_eq!(window["sent_tokens"], all[turn - 1]["sent_tokens"]);
        assert_eq!(window["messages"], own["turns"][turn - 1]);
    }
    let plan = &whole["policies"][0]["plan"];
    let quoted =
        plan["appearances"].as_array().expect("a list").iter().position(|own| own == "note");
    let quoted = quoted.expect("a message in a note");
    let own = weir.inspect(&ask_for(json!({"message": quoted}))).await;
    let opened = &own["policies"][0]["opened"];
    let said = opened["excerpts"]["text"].as_str().expect("excerpts");
    assert!(said.starts_with(&format!("#{quoted} ")), "{said}");
    assert!(opened["sent"].is_null() && opened["received"]["is_whole"] == true);
    let note = weir.inspect(&ask_for(json!({"note": opened["note"]}))).await;
    let note =
        note["policies"][0]["opened"]["excerpts"]["text"].as_str().expect("a note").to_owned();
    assert!(note.starts_with("[weir: ") && note.contains(said), "{note}");
    let last = weir.inspect(&ask_for(json!({"message": 41}))).await;
    let last = &last["policies"][0]["opened"];
    assert_eq!(last["received"]["text"], result(19));
    assert_eq!(last["sent"], last["received"]);
}

#[tokio::test]
async fn long_texts_are_shown_whole_on_request() {
    let weir = Inspected::start(|_| {}).await;
    let said = "é".repeat(40_000);
    let text =
        json!({"model": "gpt-4o", "messages": [{"role": "user", "content": said}]}).to_string();
    let short = weir.inspect(&json!({"text": text, "message": 0})).await;
    let short = &short["policies"][0]["opened"]["received"];
    assert_eq!((&short["bytes"], &short["is_whole"]), (&json!(80_000), &json!(false)));
    assert_eq!(short["text"].as_str().map(str::len), Some(64 << 10));
    let whole = weir.inspect(&json!({"text": text, "message": 0, "whole": true})).await;
    assert_eq!(whole["policies"][0]["opened"]["received"]["text"], said);
}

#[tokio::test]
async fn a_request_that_cannot_fit_is_shown_as_refused() {
    let weir = Inspected::start(|_| {}).await;
    let text = chat(6).to_string();
    let own = weir.inspect(&json!({"text": text, "max_input_tokens": 60})).await;
    let policy = &own["policies"][0];
    assert_eq!(policy["plan"]["action"], "refuse");
    assert!(policy["plan"]["refusal"].as_str().is_some_and(|said| said.contains("too many")));
    let refused = policy["total"]["refused_requests"].as_u64().expect("a number");
    assert!(refused > 0);
    let rows = policy["turns"].as_array().expect("turns");
    assert_eq!(rows.iter().filter(|row| row["is_refused"] == true).count() as u64, refused);
}

#[tokio::test]
async fn costs_sum_up() {
    let weir = Inspected::start(|_| {}).await;
    let own = weir.inspect(&json!({"text": chat(60).to_string(), "limit_percent": 40})).await;
    let policy = &own["policies"][0];
    let nanos = |text: &Value| {
        let text = text.as_str().expect("an amount");
        let (sign, text) = text.strip_prefix('-').map_or((1, text), |text| (-1, text));
        let parsed = weir_store::budget::NanoUsd::parse(text).expect("dollars");
        sign * i64::try_from(parsed.0).expect("small")
    };
    let rows = policy["turns"].as_array().expect("turns");
    for name in ["cost_usd", "rewrite_usd", "saved_usd"] {
        let sum: i64 = rows.iter().map(|row| nanos(&row[name])).sum();
        assert_eq!(sum, nanos(&policy["total"][name]), "{name}");
    }
    let (whole, sent) = (nanos(&own["whole"]["cost_usd"]), nanos(&policy["total"]["cost_usd"]));
    let saved = nanos(&policy["total"]["saved_usd"]);
    assert_eq!(whole - sent, saved);
    for pair in rows.windows(2) {
        let number = |row: &Value, name: &str| row[name].as_u64().expect("a number");
        let [before, row] = pair else { panic!("a pair") };
        match row["steps"].is_null() {
            true => assert_eq!(number(row, "rewritten_tokens"), 0, "{row}"),
            false => assert!(number(row, "compactions") > number(before, "compactions")),
        }
        let reused = number(row, "reused_tokens");
        assert!(reused <= number(before, "sent_tokens"), "{row}");
        assert!(row["steps"].is_string() || reused == 0 || reused == number(before, "sent_tokens"));
    }
}

#[tokio::test]
async fn input_that_is_none_is_refused_with_the_reason() {
    let weir = Inspected::start(|_| {}).await;
    let text = chat(3).to_string();
    let deep = format!(r#"{{"messages":{}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
    let said = json!({"role": "user", "content": "x"});
    let answer = json!({"role": "assistant", "content": "y"});
    let many: Vec<Value> =
        (0..8000).map(|n| if n % 2 == 0 { said.clone() } else { answer.clone() }).collect();
    let many = json!({"model": "gpt-4o", "messages": many}).to_string();
    for (body, reason) in [
        (json!({}), "text"),
        (json!({"text": 7}), "text"),
        (json!({"text": text, "limit": 3}), "unknown field"),
        (json!({"text": ""}), "neither"),
        (json!({"text": "<script>alert(1)</script>"}), "neither"),
        (json!({"text": deep}), ""),
        (json!({"text": "{\"messages\":[]}"}), "no messages"),
        (json!({"text": "{\"messages\":7}"}), "messages"),
        (json!({"text": "{\"messages\":[7]}"}), "messages[0]"),
        (json!({"text": format!("{text}\n{{")}), "Line 2"),
        (json!({"text": many}), "4001 requests"),
        (json!({"text": text, "turn": 0}), "turns 1 to 4"),
        (json!({"text": text, "turn": 5}), "turns 1 to 4"),
        (json!({"text": text, "conversation": 1}), "has 1"),
        (json!({"text": text, "policies": ["none"]}), "is not a policy"),
        (json!({"text": text, "policies": vec!["zones"; 5]}), "5 policies"),
        (json!({"text": text, "protocol": "soap"}), "chat, responses, messages"),
        (json!({"text": text, "limit_percent": 0}), "from 1 to 100"),
        (json!({"text": text, "limit_percent": 101}), "from 1 to 100"),
        (json!({"text": text, "max_input_tokens": 0}), "above 0"),
        (json!({"text": text, "max_input_tokens": 9, "limit_percent": 9}), "not both"),
        (json!({"text": text, "message": 1, "note": 1}), "not both"),
    ] {
        let answer = weir.ask(&body).await;
        let message = refused(&answer, 400, "invalid_request");
        assert!(message.contains(reason), "{reason}: {message}");
        // The reason quotes none of the conversation.
        assert!(!message.contains("alert") && !message.contains("part_"), "{message}");
    }
}

#[tokio::test]
async fn requests_are_bounded_and_need_the_token() {
    let weir = Inspected::start(|_| {}).await;
    let body = json!({"text": chat(1).to_string()}).to_string();
    let answer = ask(weir.admin, post(PATH, "", &body)).await;
    assert_eq!(answer.status(), 401);
    let origin = format!("{}origin: http://elsewhere.example\r\n", bearer(SECRET));
    let answer = ask(weir.admin, post(PATH, &origin, &body)).await;
    refused(&answer, 403, "origin_not_allowed");
    let answer = ask(weir.admin, bare("DELETE", PATH, &bearer(SECRET))).await;
    assert_eq!((answer.status(), answer.header("allow")), (405, Some("GET, POST")));
    let choices = ask(weir.admin, bare("GET", PATH, &bearer(SECRET))).await;
    let choices: Value = serde_json::from_slice(&choices.body).expect("JSON");
    let policies = choices["policies"].as_array().expect("names");
    assert!(policies.contains(&json!("default")) && policies.contains(&json!("zones")));
    let most = choices["max_body_bytes"].as_u64().expect("a number") as usize;
    let frame = json!({"text": ""}).to_string().len();
    for (bytes, reason) in [(most, "neither"), (most + 1, "at most")] {
        let answer = weir.ask(&json!({"text": "x".repeat(bytes - frame)})).await;
        let message = refused(&answer, 400, "invalid_request");
        assert!(message.contains(reason), "{bytes}: {message}");
    }
}

/// Its plans depend on the requests before, so a single turn needs them too.
#[tokio::test]
async fn bound_thinking_is_planned_as_after_all_requests_before() {
    let weir = Inspected::start(|_| {}).await;
    let mut messages = Vec::new();
    for turn in 0..25 {
        let thinking =
            json!({"type": "thinking", "thinking": format!("Part {turn}."), "signature": "s"});
        let said = json!({"type": "text", "text": format!("I opened {turn}. {}", "It holds. ".repeat(30))});
        messages.push(
            json!({"role": "user", "content": format!("Open {turn}. {}", "It rose. ".repeat(40))}),
        );
        messages.push(json!({"role": "assistant", "content": [thinking, said]}));
    }
    messages.push(json!({"role": "user", "content": "Go on."}));
    let body =
        json!({"model": "claude-opus-5-5", "max_tokens": 9, "messages": messages}).to_string();
    let all = weir.inspect(&json!({"text": body, "max_input_tokens": 3000})).await;
    let rows = all["policies"][0]["turns"].as_array().expect("turns");
    assert!(rows[25]["compactions"].as_u64() > Some(1));
    let mut edits = Vec::new();
    for turn in [1, 13, 14, 15, 20, 26] {
        let request = json!({"text": body, "max_input_tokens": 3000, "turn": turn, "turns": false});
        let own = weir.inspect(&request).await;
        let window = &own["policies"][0]["plan"]["window"];
        assert_eq!(window["sent_tokens"], rows[turn - 1]["sent_tokens"], "turn {turn}");
        edits.push(own["policies"][0]["plan"]["edits"].clone());
    }
    assert!(edits.contains(&json!("thinking")), "{edits:?}");
}

#[tokio::test]
async fn live_conversations_are_shown_if_the_operator_says_so() {
    let upstream = Server::start(Options::default()).await.expect("a free port");
    let address = upstream.addr.to_string();
    let weir = Inspected::over(&address, |config| {
        config.context.originals = Originals::Memory;
        config.admin.show_conversations = true;
    })
    .await;
    let (status, list) = weir.get(RECENT).await;
    assert_eq!((status, &list["is_on"], &list["data"]), (200, &json!(true), &json!([])));

    let paths = ["/v1/chat/completions", "/v1/responses"];
    for (path, body) in paths.into_iter().zip([chat(2), responses(2)]) {
        for (own, note) in [(body.clone(), ""), (body, "again")] {
            let mut own = own;
            own["metadata"] = json!({"note": note});
            let headers = format!("x-session-id: s{path}\r\n{}", bearer("k"));
            let answer = ask(weir.weir.address, post(path, &headers, own.to_string())).await;
            assert_eq!(answer.status(), 200, "{answer:?}");
            let rows = weir.get(RECENT).await.1["data"].as_array().expect("rows").clone();
            assert_eq!(rows[0]["conversation"], format!("s{path}"));
            let (status, shown) = weir.get(&format!("{RECENT}/{}", rows[0]["id"])).await;
            assert_eq!((status, &shown["text"]), (200, &json!(own.to_string())));
            let asked = json!({"text": shown["text"], "protocol": shown["protocol"], "model": shown["model"],
                "policies": [shown["policy"]], "max_input_tokens": shown["limit_tokens"]});
            let inspected = weir.inspect(&asked).await;
            assert_eq!(inspected["turn"], 3, "{path}");
            let window = &inspected["policies"][0]["plan"]["window"];
            let recorded = [
                ("x-weir-received-tokens", "received_tokens"),
                ("x-weir-sent-tokens", "sent_tokens"),
                ("x-weir-limit-tokens", "limit_tokens"),
            ];
            for (header, name) in recorded {
                assert_eq!(
                    answer.header(header),
                    Some(window[name].to_string().as_str()),
                    "{name}"
                );
            }
        }
    }
    assert_eq!(weir.get(RECENT).await.1["data"].as_array().map(Vec::len), Some(2));
    let side = format!(
        "x-session-id: titles\r\nx-claude-code-request-class: auxiliary\r\n{}",
        bearer("k")
    );
    let answer = ask(weir.weir.address, post(paths[0], &side, chat(1).to_string())).await;
    assert_eq!(answer.status(), 200, "{answer:?}");
    assert_eq!(weir.get(RECENT).await.1["data"].as_array().map(Vec::len), Some(2));
    assert_eq!(weir.get(&format!("{RECENT}/77")).await.0, 404);
    assert_eq!(weir.get(&format!("{RECENT}/x")).await.0, 404);
    let answer = ask(weir.admin, bare("GET", RECENT, "")).await;
    assert_eq!(answer.status(), 401, "{answer:?}");
}

#[tokio::test]
async fn live_conversations_outlive_a_reload_that_is_refused() {
    let upstream = Server::start(Options::default()).await.expect("a free port");
    let address = upstream.addr.to_string();
    let authority = Authority::new("one");
    let tls = shown(&authority.issue("weir"), None);
    let change = |config: &mut Config| {
        config.context.originals = Originals::Memory;
        config.admin.show_conversations = true;
        config.server.tls = tls.clone();
    };
    let weir = Inspected::over(&address, change).await;
    let send = async |session: &str| {
        let connector = caller(&authority, None, &[&TLS13]);
        let mut stream = connect(&connector, weir.weir.address).await.expect("a handshake");
        let headers = format!("connection: close\r\nx-session-id: {session}\r\n{}", bearer("k"));
        let request = post("/v1/chat/completions", &headers, chat(1).to_string());
        let answer = ask_over(&mut stream, request).await.expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    };
    let listed = async || {
        let list = weir.get(RECENT).await.1;
        (list["is_on"].as_bool(), list["data"].as_array().map(Vec::len))
    };
    send("a").await;
    assert_eq!(listed().await, (Some(true), Some(1)));
    let mut config = Config::default();
    config.upstream.url = format!("http://{address}/v1");
    change(&mut config);
    config.admin.show_conversations = false;
    let mut broken = config.clone();
    broken.server.tls.cert = Some(Secret::new("half a certificate"));
    assert!(weir.weir.renewal.prepare(broken).is_err());
    let apply = weir.weir.renewal.prepare(config.clone()).expect("a sound configuration");
    send("b").await;
    assert_eq!(listed().await, (Some(true), Some(2)), "nothing has changed yet");
    apply();
    assert_eq!(listed().await, (Some(false), Some(0)));
    config.admin.show_conversations = true;
    weir.weir.renewal.prepare(config).expect("a sound configuration")();
    assert_eq!(listed().await, (Some(true), Some(0)), "they are deleted");
    send("c").await;
    assert_eq!(listed().await, (Some(true), Some(1)));
}

#[tokio::test]
async fn live_conversations_are_not_kept_unasked() {
    for (originals, show_conversations) in [(Originals::Memory, false), (Originals::Off, true)] {
        let upstream = Server::start(Options::default()).await.expect("a free port");
        let weir = Inspected::over(&upstream.addr.to_string(), |config| {
            config.context.originals = originals;
            config.admin.show_conversations = show_conversations;
        })
        .await;
        let headers = format!("x-session-id: one\r\n{}", bearer("k"));
        let answer =
            ask(weir.weir.address, post("/v1/chat/completions", &headers, chat(1).to_string()))
                .await;
        assert_eq!(answer.status(), 200, "{answer:?}");
        let (status, list) = weir.get(RECENT).await;
        assert_eq!((status, &list["is_on"], &list["data"]), (200, &json!(false), &json!([])));
        let (status, refused) = weir.get(&format!("{RECENT}/1")).await;
        assert_eq!((status, &refused["error"]["code"]), (404, &json!("not_found")));
    }
}
