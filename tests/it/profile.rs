//! Profile texts of the operator, through sockets: where they stand, in each protocol, and for whom.

use serde_json::{Value, json};
use weir::config::Config;

use crate::keys::setting;
use crate::server::harness::{FINE, Message, Upstream, Weir, ask, start};

const ALICE: &str = "authorization: Bearer alice\r\n";
const PROFILE: &str = "Write \"metric\" units.\nNever apologise.";

fn with_profile(config: &mut Config) {
    config.context.profile = PROFILE.to_owned();
    config.context.allow_bypass = true;
}

/// Sends a request; returns the answer and the body that the upstream received.
async fn sent(
    weir: &Weir,
    upstream: &mut Upstream,
    path: &str,
    headers: &str,
    body: &str,
) -> (Message, String) {
    let (address, request) = (weir.address, setting::post(path, headers, body));
    let asking = tokio::spawn(async move { ask(address, request).await });
    let seen = upstream.next().await;
    let received = String::from_utf8(seen.body.clone()).expect("text");
    seen.answer(FINE);
    (asking.await.expect("it is answered"), received)
}

fn tokens(answer: &Message) -> u64 {
    let tokens = answer.header("x-weir-received-tokens").expect("it was read");
    tokens.parse().expect("a number")
}

#[tokio::test]
async fn a_profile_follows_the_system_text_in_every_protocol() {
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, with_profile).await;
    let plain = start(&upstream.address, |_| {}).await;
    let rows = [
        (
            "/v1/chat/completions",
            json!({"model": "gpt-4o", "messages": [
                {"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]}),
            "/messages/0/content",
        ),
        (
            "/v1/responses",
            json!({"model": "gpt-4o", "instructions": "Be brief.", "input": "hi"}),
            "/instructions",
        ),
        (
            "/v1/messages",
            json!({"model": "claude-sonnet-4-5", "max_tokens": 9, "system": "Be brief.",
                   "messages": [{"role": "user", "content": "hi"}]}),
            "/system",
        ),
    ];
    for (path, body, place) in rows {
        let text = body.to_string();
        let (answer, received) = sent(&weir, &mut upstream, path, ALICE, &text).await;
        assert_eq!(answer.header("x-weir-edits"), Some("profile"), "{path}");
        let mut expected = body.clone();
        *expected.pointer_mut(place).expect("a place") = json!(format!("Be brief.\n\n{PROFILE}"));
        let received: Value = serde_json::from_str(&received).expect("JSON");
        assert_eq!(received, expected, "{path}");
        let (own, _) = sent(&plain, &mut upstream, path, ALICE, &text).await;
        assert!(tokens(&answer) > tokens(&own) + 5, "it is counted: {path}");
        let bypass = format!("{ALICE}x-weir-bypass: 1\r\n");
        let (answer, received) = sent(&weir, &mut upstream, path, &bypass, &text).await;
        assert_eq!((answer.header("x-weir-edits"), received), (None, text), "{path}");
    }
    // Without a system text of the caller's own.
    let body = r#"{"model":"gpt-4o","messages":[{"role":"user","content":"hi"}]}"#;
    let (_, received) = sent(&weir, &mut upstream, "/v1/chat/completions", ALICE, body).await;
    let received: Value = serde_json::from_str(&received).expect("JSON");
    assert_eq!(received["messages"][0], json!({"role": "system", "content": PROFILE}));
    assert_eq!(received["messages"][1]["role"], "user");
}

#[tokio::test]
async fn the_beginning_of_a_conversation_stays_the_same() {
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, with_profile).await;
    let mut messages = vec![r#"{"role":"system","content":"Be brief."}"#.to_owned()];
    let mut before = String::new();
    for turn in 0..20 {
        messages.push(format!(r#"{{"role":"user","content":"question {turn}"}}"#));
        let body = format!(r#"{{"model":"gpt-4o","messages":[{}]}}"#, messages.join(","));
        let (_, received) = sent(&weir, &mut upstream, "/v1/chat/completions", ALICE, &body).await;
        assert!(received.starts_with(before.trim_end_matches("]}")), "turn {turn}");
        before = received;
        messages.push(format!(r#"{{"role":"assistant","content":"answer {turn}"}}"#));
    }
}

#[tokio::test]
async fn a_key_has_its_own_profile() {
    let mut upstream = Upstream::start().await;
    let setting = setting::start(&upstream.address, with_profile).await;
    let own = setting.key("a", r#"{"profile":"Speak Welsh."}"#).await;
    let other = setting.key("a", "{}").await;
    let body = r#"{"model":"gpt-4o","messages":[{"role":"user","content":"hi"}]}"#;
    let path = "/v1/chat/completions";
    for (key, expected) in [(&own, "Speak Welsh."), (&other, PROFILE)] {
        let (answer, received) =
            sent(&setting.weir, &mut upstream, path, &key.header(), body).await;
        assert_eq!(answer.header("x-weir-edits"), Some("profile"));
        let received: Value = serde_json::from_str(&received).expect("JSON");
        assert_eq!(received["messages"][0]["content"], expected);
    }
    let change = serde_json::from_str(r#"{"profile":null}"#).expect("a change");
    setting.store.change_key(&own.id, change).await.expect("it exists");
    let (_, received) = sent(&setting.weir, &mut upstream, path, &own.header(), body).await;
    assert!(received.contains("metric") && !received.contains("Welsh"), "{received}");
}

#[tokio::test]
async fn a_body_without_a_place_for_it_is_treated_as_before() {
    let upstream = Upstream::always(FINE).await;
    let weir = start(&upstream, with_profile).await;
    let plain = start(&upstream, |_| {}).await;
    let twice = r#"{"messages":[],"messages":[]}"#;
    for body in ["", "[]", r#"{"model":"gpt-4o"}"#, r#"{"messages":{}}"#, twice] {
        let request = setting::post("/v1/chat/completions", ALICE, body);
        let answer = ask(weir.address, &request).await;
        let own = ask(plain.address, &request).await;
        assert_eq!((answer.status(), answer.body), (own.status(), own.body), "{body}");
        assert!(!answer.head.contains("x-weir-edits"), "{body}");
    }
}
