//! Refusals by budgets, and their error texts.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use weir::config::Clamp;
use weir_store::ledger::{Column, UsageQuery};

use super::setting::{Budgeted, MODEL, chat, set, sum};
use crate::keys::setting::{Key, post};
use crate::server::harness::{Message, Upstream};

/// Returns the body of a request as the upstream received it.
fn sent(budgeted: &Budgeted, index: usize) -> Value {
    serde_json::from_slice(&budgeted.upstream.requests()[index].body).expect("JSON")
}

fn error(answer: &Message) -> Value {
    let body: Value = serde_json::from_slice(&answer.body).expect("JSON");
    body["error"].clone()
}

#[tokio::test]
async fn what_is_over_is_refused_in_openais_shape_before_anything_is_sent() {
    let budgeted = Budgeted::start(|_| {}).await;
    budgeted.set("team:research/usd/day", "0.000001").await;
    let refused = budgeted.chat(5, json!({})).await;
    assert_eq!(refused.status(), 429, "{refused:?}");
    assert_eq!(refused.header("x-weir-error"), Some("insufficient_quota"));
    assert_eq!(refused.header("x-should-retry"), Some("false"));
    let error = error(&refused);
    assert_eq!(error["code"], "insufficient_quota");
    assert_eq!(error["type"], "insufficient_quota");
    let message = error["message"].as_str().expect("a text");
    assert!(message.contains("team:research/usd/day"), "{message}");
    assert!(message.contains("0.000001 USD of 0.000001 USD left"), "{message}");
    assert_eq!(budgeted.upstream.requests().len(), 0, "nothing was sent");
    assert_eq!(sum(&budgeted.weir.store).await.2, [], "and nothing written down");
}

/// Before a budget refuses, conversations get half of their limit.
#[tokio::test]
async fn a_budget_that_is_nearly_spent_makes_conversations_shorter() {
    let budgeted = Budgeted::start(|config| config.budgets.clamp = Clamp::Context).await;
    let more = || {
        let turn = |number: usize| {
            let role = if number.is_multiple_of(2) { "user" } else { "assistant" };
            json!({"role": role, "content": format!("gate {number} ").repeat(60)})
        };
        json!({"messages": (0..15).map(turn).collect::<Vec<_>>()})
    };
    let limit = "x-weir-max-input-tokens: 4000\r\n";
    budgeted.set("team:research/tokens/total", "40000").await;
    let mut words = Vec::new();
    while let answer =
        budgeted.weir.ask(chat(&format!("{}{limit}", budgeted.key.header()), 50, more())).await
        && answer.status() == 200
    {
        let of = |name: &str| answer.header(name).map(str::to_owned).unwrap_or_default();
        words.push((of("x-weir-action"), of("x-weir-limit-tokens")));
    }
    let at = words.iter().position(|(action, _)| action.contains("+tight")).expect("a step");
    assert!(at >= 2, "{words:?}");
    assert!(words[..at].iter().all(|(action, limit)| action == "pass" && limit == "4000"));
    assert!(words[at..].iter().all(|own| *own == ("evict+tight".into(), "2000".into())));
    // A fifth of the budget is left then, for more than a fifth of the requests.
    assert!(4 * (words.len() - at) > at, "{words:?}");
}

/// A limit that is no number, or none, is longer once it is lowered; the request for usage stands behind it.
#[tokio::test]
async fn a_limit_that_grows_moves_nothing_else() {
    for given in ["0", "-1", "\"0\""] {
        let budgeted = Budgeted::start(|_| {}).await;
        budgeted.set("all/tokens/total", "200").await;
        let body = format!(
            r#"{{"model":"{MODEL}","max_tokens":{given},"stream":true,"messages":[{{"role":"user","content":"hi"}}]}}"#
        );
        let request = post("/v1/chat/completions", &budgeted.key.header(), body);
        let answer = budgeted.weir.ask(request).await;
        assert_eq!(answer.status(), 200, "{given}: {answer:?}");
        let body = sent(&budgeted, 0);
        assert!((1..=200).contains(&body["max_tokens"].as_u64().expect("a limit")), "{body}");
        assert_eq!(body["stream_options"], json!({"include_usage": true}), "{given}: {body}");
        let (_, spent, _) = sum(&budgeted.weir.store).await;
        assert!(spent <= 200, "{given}: {spent}");
    }
}

/// A key that spends faster than a minute allows is stopped, and learns until when.
#[tokio::test]
async fn a_minute_is_a_brake() {
    let budgeted = Budgeted::start(|_| {}).await;
    budgeted.set("key:*/tokens/minute", "200").await;
    // One minute may end between them, not each.
    let mut answers = Vec::new();
    for _ in 0..8 {
        answers.push(budgeted.chat(60, json!({})).await);
    }
    let refused = answers.iter().find(|answer| answer.status() == 429).expect("it is stopped");
    assert_eq!(answers[0].status(), 200);
    let message = error(refused)["message"].as_str().expect("a text").to_owned();
    assert!(message.contains("/tokens/minute") && message.contains(":00Z"), "{message}");
}

/// A spent budget of a model is spent for each spelling that is billed as the model.
#[tokio::test]
async fn a_model_is_one_however_it_is_spelled() {
    let budgeted = Budgeted::start(|_| {}).await;
    budgeted.set("model:gpt-4o-mini/tokens/total", "60").await;
    assert_eq!(budgeted.chat(100, json!({"model": "openai/GPT-4o-mini"})).await.status(), 200);
    for spelled in [
        "gpt-4o-mini",
        "GPT-4O-MINI",
        " gpt-4o-mini ",
        "gpt-4o-mini\n",
        "openai/gpt-4o-mini",
        "OpenRouter/openai/gpt-4o-mini",
        "gpt-4o-mini:nitro",
        "gpt-4o-mini-2031-01-01",
        "gpt-4o-mini-latest",
    ] {
        let answer = budgeted.chat(5, json!({"model": spelled})).await;
        assert_eq!(answer.status(), 429, "{spelled:?}");
    }
    for other in ["gpt-4o", "ft:gpt-4o-mini:org::id", "gpt-4o-mini-audio"] {
        assert_eq!(budgeted.chat(5, json!({"model": other})).await.status(), 200, "{other}");
    }
    let (_, _, rows) = sum(&budgeted.weir.store).await;
    assert!(rows.iter().any(|row| row.model == MODEL));
}

/// Each conversation of a key has a budget of its own, with its subagents in it.
#[tokio::test]
async fn a_conversation_ends_at_its_own_budget() {
    let budgeted = Budgeted::start(|_| {}).await;
    let other = budgeted.weir.key("sales", r#"{"user":"bob"}"#).await;
    budgeted.set("conversation:*/tokens/day", "60").await;
    let ask = async |headers: &str, key: &Key| {
        let headers = format!("{}{headers}", key.header());
        budgeted.weir.ask(chat(&headers, 100, json!({}))).await
    };
    let (first, second) = ("x-session-id: s1\r\n", "x-session-id: s2\r\n");
    let child = "x-session-id: s3\r\nx-parent-session-id: s1\r\n";
    assert_eq!(ask(first, &budgeted.key).await.status(), 200);
    let refused = ask(first, &budgeted.key).await;
    assert_eq!(refused.header("x-weir-error"), Some("insufficient_quota"), "{refused:?}");
    let name = format!("conversation:{}/s1/tokens/day", budgeted.key.id);
    let error = error(&refused);
    assert!(error["message"].as_str().is_some_and(|text| text.contains(&name)), "{error}");
    assert_eq!(ask(child, &budgeted.key).await.status(), 429, "a part of the first");
    assert_eq!(ask(second, &budgeted.key).await.status(), 200);
    assert_eq!(ask(first, &other).await.status(), 200, "another key's conversation");
    // Without a name, a conversation is found by its first message.
    assert_eq!(ask("", &budgeted.key).await.status(), 200);
    assert_eq!(ask("", &budgeted.key).await.status(), 429);
    // One conversation gets more.
    budgeted.set(&name, "5000").await;
    assert_eq!(ask(first, &budgeted.key).await.status(), 200);
    assert_eq!(ask(second, &budgeted.key).await.status(), 429);
}

/// All that a caller tags with one name has one budget, across its conversations.
#[tokio::test]
async fn a_tag_ends_at_its_own_budget() {
    let budgeted = Budgeted::start(|_| {}).await;
    let other = budgeted.weir.key("sales", r#"{"user":"bob"}"#).await;
    budgeted.set("tag:*/tokens/day", "60").await;
    let ask = async |headers: &str, key: &Key| {
        let headers = format!("{}{headers}", key.header());
        budgeted.weir.ask(chat(&headers, 100, json!({}))).await
    };
    let (search, nightly) = ("x-weir-tag: search\r\n", "x-weir-tag: nightly\r\n");
    assert_eq!(ask(search, &budgeted.key).await.status(), 200);
    let refused = ask(&format!("x-session-id: s2\r\n{search}"), &budgeted.key).await;
    assert_eq!(refused.header("x-weir-error"), Some("insufficient_quota"), "{refused:?}");
    let name = format!("tag:{}/search/tokens/day", budgeted.key.id);
    let error = error(&refused);
    assert!(error["message"].as_str().is_some_and(|text| text.contains(&name)), "{error}");
    for (headers, key) in [(nightly, &budgeted.key), ("", &budgeted.key), (search, &other)] {
        assert_eq!(ask(headers, key).await.status(), 200, "{headers}");
    }
    let seen = budgeted.upstream.requests();
    assert!(seen.iter().all(|request| !request.headers.contains_key("x-weir-tag")), "weir's alone");
    let query = UsageQuery { by: vec![Column::Tag], ..UsageQuery::default() };
    let rows = budgeted.weir.store.usage(query).await.expect("it can be read");
    let counts = rows.iter().map(|row| (row.shown(Column::Tag), row.totals.requests));
    let counts: BTreeMap<String, u64> = counts.collect();
    assert_eq!((counts["search"], counts["nightly"], counts[""]), (2, 1, 1), "{counts:?}");
}

#[tokio::test]
async fn every_scope_of_a_request_counts() {
    let budgeted = Budgeted::start(|_| {}).await;
    let other = budgeted.weir.key("sales", r#"{"user":"bob"}"#).await;
    let key = format!("key:{}/tokens/total", budgeted.key.id);
    for (id, is_others) in [
        ("all/tokens/total", true),
        ("organisation:default/tokens/month", true),
        ("team:research/tokens/week", false),
        ("user:ada/tokens/day", false),
        (key.as_str(), false),
        ("key:*/tokens/24h", true),
        ("team:*/tokens/hour", true),
        ("model:gpt-4o-mini/tokens/30d", true),
    ] {
        budgeted.set(id, "3").await;
        assert_eq!(budgeted.chat(5, json!({})).await.status(), 429, "{id}");
        let request = super::setting::chat(&other.header(), 5, json!({}));
        let status = budgeted.weir.ask(request).await.status();
        assert_eq!(status, if is_others { 429 } else { 200 }, "{id} for another");
        let id = weir_store::budget::BudgetId::parse(id).expect("a budget");
        assert_eq!(budgeted.weir.store.remove_budget(&id).await, Ok(true));
        assert_eq!(budgeted.chat(5, json!({})).await.status(), 200, "without {id}");
    }
}

#[tokio::test]
async fn what_is_spent_is_what_the_rows_say_also_of_before() {
    let budgeted = Budgeted::start(|_| {}).await;
    for words in [10, 20] {
        assert_eq!(budgeted.chat(words, json!({})).await.status(), 200);
    }
    // The budget is set after something was spent.
    budgeted.set("user:ada/usd/month", "1").await;
    budgeted.set("key:*/tokens/24h", "1000000").await;
    assert_eq!(budgeted.chat(30, json!({"stream": true})).await.status(), 200);
    let (cost, tokens, rows) = sum(&budgeted.weir.store).await;
    assert_eq!(rows.len(), 3);
    let statuses = budgeted.statuses().await;
    assert_eq!(statuses.len(), 2, "{statuses:?}");
    for status in &statuses {
        match status["measure"].as_str() {
            Some("usd") => assert_eq!(super::setting::nano_usd(&status["spent"]), cost),
            _ => assert_eq!(status["spent"], tokens),
        }
        assert!(status["held"] == 0 || status["held"] == "0.00", "{status}");
    }
}

#[tokio::test]
async fn an_output_limit_is_lowered_or_put_to_what_is_left() {
    let budgeted = Budgeted::start(|_| {}).await;
    budgeted.set("all/tokens/total", "200").await;
    let answer = budgeted.chat(1000, json!({})).await;
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.header("x-weir-edits"), Some("clamp"), "{answer:?}");
    let body = sent(&budgeted, 0);
    let prompt = 200 - body["max_tokens"].as_u64().expect("a limit was put");
    assert!((5..30).contains(&prompt), "{body}");
    let (_, spent, _) = sum(&budgeted.weir.store).await;
    assert_eq!(spent, 200, "it was used up and not passed");
    assert_eq!(budgeted.chat(1, json!({})).await.status(), 429);
    budgeted.set("all/tokens/total", "400").await;
    let answer = budgeted.chat(1000, json!({"max_completion_tokens": 5000, "n": 2})).await;
    assert_eq!(answer.header("x-weir-edits"), Some("clamp"));
    let body = sent(&budgeted, 1);
    let each = (200 - prompt) / 2;
    assert_eq!(body["max_completion_tokens"], each, "two answers may have it");
    assert_eq!(body.get("max_tokens"), None);
    let (_, spent, _) = sum(&budgeted.weir.store).await;
    assert!(spent <= 400, "{spent}");
}

#[tokio::test]
async fn where_there_is_room_requests_go_byte_for_byte() {
    let budgeted = Budgeted::start(|_| {}).await;
    budgeted.set("all/usd/day", "5").await;
    let body = json!({"model": MODEL, "messages": [{"role": "user", "content": "a"}]}).to_string();
    let request = post("/v1/chat/completions", &budgeted.key.header(), &body);
    let answer = budgeted.weir.ask(request).await;
    assert_eq!((answer.status(), answer.header("x-weir-edits")), (200, None));
    assert_eq!(budgeted.upstream.requests()[0].body, body.as_bytes());
    let left = answer.header("x-weir-budget-left-usd").expect("it is told");
    assert!(left.starts_with("4.9"), "{left}");
}

#[tokio::test]
async fn without_clamping_a_limit_of_the_callers_is_taken_at_its_word() {
    let budgeted = Budgeted::start(|config| config.budgets.clamp = Clamp::Off).await;
    budgeted.set("all/tokens/total", "200").await;
    let refused = budgeted.chat(5, json!({"max_tokens": 4000})).await;
    assert_eq!(refused.status(), 429);
    let answer = budgeted.chat(5, json!({"max_tokens": 50})).await;
    assert_eq!((answer.status(), answer.header("x-weir-edits")), (200, None));
    let answer = budgeted.chat(300, json!({})).await;
    assert_eq!((answer.status(), answer.header("x-weir-edits")), (200, None));
    assert!(sum(&budgeted.weir.store).await.1 > 200, "what nobody knew is overspent");
    assert_eq!(budgeted.chat(1, json!({})).await.status(), 429);
}

#[tokio::test]
async fn warnings_come_by_header_and_webhook_once() {
    let mut hook = Upstream::start().await;
    let url = format!("http://{}/hook?secret=1", hook.address);
    let budgeted = Budgeted::start(|config| config.events.webhook_url = url).await;
    budgeted.set("all/tokens/total", "1000").await;
    let first = budgeted.chat(900, json!({})).await;
    assert_eq!(first.header("x-weir-budget-warning"), None);
    let second = budgeted.chat(1, json!({})).await;
    let warning = second.header("x-weir-budget-warning").expect("it has passed its mark");
    assert!(warning.starts_with("all/tokens/total: "), "{warning}");
    assert!(warning.contains("of 1000 tokens are spent"), "{warning}");
    let posted = hook.next().await;
    assert!(posted.head.starts_with("POST /hook?secret=1 "), "{}", posted.head);
    let event: Value = serde_json::from_slice(&posted.body).expect("JSON");
    assert_eq!(event["event"], "budget_warning");
    assert_eq!(
        (&event["budget"], &event["measure"]),
        (&json!("all/tokens/total"), &json!("tokens"))
    );
    posted.answer("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
    // The threshold is reported once, and exhaustion once.
    assert_eq!(budgeted.chat(1, json!({})).await.status(), 200);
    set(&budgeted.weir.store, "all/tokens/total", "10").await;
    assert_eq!(budgeted.chat(1, json!({})).await.status(), 429);
    let posted = hook.next().await;
    let event: Value = serde_json::from_slice(&posted.body).expect("JSON");
    assert_eq!(event["event"], "budget_exhausted");
}

#[tokio::test]
async fn routes_that_weir_does_not_read_end_with_the_budget_too() {
    let budgeted = Budgeted::start(|_| {}).await;
    budgeted.set("all/tokens/total", "40").await;
    let input: Vec<u64> = (0..30).collect();
    let body = json!({"model": "text-embedding-3-small", "input": input}).to_string();
    let request = post("/v1/embeddings", &budgeted.key.header(), body);
    assert_eq!(budgeted.weir.ask(&request).await.status(), 200);
    let refused = budgeted.weir.ask(&request).await;
    assert_eq!((refused.status(), &error(&refused)["code"]), (429, &json!("insufficient_quota")));
    // A budget of the model counts them too, by their current name.
    budgeted.set("all/tokens/total", "1000000").await;
    budgeted.set("model:text-embedding-3-small/tokens/total", "80").await;
    assert_eq!(budgeted.weir.ask(&request).await.status(), 200);
    assert_eq!(budgeted.weir.ask(&request).await.status(), 429);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn routes_that_weir_does_not_read_hold_what_they_may_come_to() {
    let budgeted = Budgeted::start(|_| {}).await;
    budgeted.set("team:research/tokens/day", "300").await;
    let input: Vec<u64> = (0..30).collect();
    let body = json!({"model": "text-embedding-3-small", "input": input}).to_string();
    let request = post("/v1/embeddings", &budgeted.key.header(), body);
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..60 {
        let (address, request) = (budgeted.weir.weir.address, request.clone());
        all.spawn(async move { crate::server::harness::ask(address, request).await.status() });
    }
    let statuses = all.join_all().await;
    let sent = statuses.iter().filter(|status| **status == 200).count();
    assert_eq!(statuses.iter().filter(|status| **status == 429).count(), 60 - sent);
    let (_, spent, rows) = sum(&budgeted.weir.store).await;
    assert_eq!((rows.len(), spent), (sent, 30 * sent as u64));
    assert!((270..=330).contains(&spent), "{spent} of 300, at once or not");
}

#[tokio::test]
async fn who_finds_all_held_waits_for_it() {
    let budgeted = Budgeted::start(|_| {}).await;
    budgeted.set("all/tokens/total", "100").await;
    let held = super::setting::chat(
        &format!("{}x-upstream-fault: hold_head\r\n", budgeted.key.header()),
        10,
        json!({"max_tokens": 80}),
    );
    let mut stream =
        tokio::net::TcpStream::connect(budgeted.weir.weir.address).await.expect("weir listens");
    stream.write_all(held.as_bytes()).await.expect("weir reads");
    budgeted.upstream.wait_for(|log| log.len() == 1).await;
    let held_tokens = budgeted.statuses().await[0]["held"].as_u64().expect("a number");
    assert!(held_tokens > 80, "{held_tokens}");
    let second = budgeted.chat(10, json!({"max_tokens": 60}));
    let release = async {
        // The second request waits by now, or finds room at once: both are right.
        tokio::task::yield_now().await;
        budgeted.upstream.release();
    };
    let (second, ()) = tokio::join!(second, release);
    assert_eq!(second.status(), 200, "{second:?}");
    assert_eq!(budgeted.upstream.requests().len(), 2);
}
