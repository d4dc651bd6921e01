//! Limits by price: a conversation stays below a price step or where it is cheapest, nothing is refused or clipped
//! for it, and all instances agree.

use std::process::Command;

use bytes::Bytes;
use serde_json::{Value, json};
use weir::config::Config;
use weir_engine::compact::policy::Goal;
use weir_store::budget::Price;

use crate::cli::isolate;
use crate::scripted_upstream::{Options, Server};
use crate::server::harness::{self, Message, Weir, ask, chat};

/// Reads cost a tenth, and all input twice as much above 6,000 tokens.
const STEPPED: &str = "in 1 cached 0.1 out 4 above 6000 in 2 cached 0.2 out 8";
const PLAIN: &str = "in 1 cached 0.1 out 4";

fn goal(word: &str) -> Goal {
    let found = Goal::WORDS.iter().find(|(own, _)| *own == word);
    found.unwrap_or_else(|| panic!("{word} is a goal")).1
}

async fn weir(goal: Goal, price: &str) -> (Server, Weir) {
    let upstream = Server::start(Options::default()).await.expect("a free port");
    let price = Price::parse(price).expect("a price");
    let change = |config: &mut Config| {
        config.context.policy.zones.goal = goal;
        config.models.insert_price("gpt-4o", price);
    };
    let weir = harness::start(&upstream.addr.to_string(), change).await;
    (upstream, weir)
}

/// Conversation of so many turns, whose messages have some `words` tokens each.
fn conversation(turns: usize, words: usize) -> Vec<Value> {
    let turn = |turn: usize| {
        let text = format!("part {turn}:{}", format!(" value_{turn}").repeat(words / 4));
        let answer = format!("I read part {turn}.");
        [json!({"role": "user", "content": text}), json!({"role": "assistant", "content": answer})]
    };
    let mut messages: Vec<Value> = (0..turns).flat_map(turn).collect();
    messages.pop();
    messages
}

async fn send(weir: &Weir, messages: &[Value]) -> Message {
    let body = json!({"model": "gpt-4o", "messages": messages}).to_string();
    let answer = ask(weir.address, chat("", body)).await;
    assert_eq!(answer.status(), 200, "{answer:?}");
    answer
}

fn last_body(upstream: &Server) -> Bytes {
    upstream.requests().pop().expect("it was sent").body
}

#[tokio::test]
async fn a_conversation_stays_below_the_next_price_step() {
    let (upstream, weir) = weir(goal("step"), STEPPED).await;
    let mut compactions = 0;
    for turns in 1..40 {
        let answer = send(&weir, &conversation(turns, 400)).await;
        compactions += usize::from(answer.header("x-weir-action") != Some("pass"));
        let prompt_tokens = upstream.requests().pop().and_then(|seen| seen.prompt_tokens);
        assert!(prompt_tokens <= Some(6000), "{prompt_tokens:?} after {turns} turns");
    }
    assert!(compactions > 10, "{compactions}");
    // What must stay is above the step, and goes whole.
    let mut messages = conversation(40, 400);
    messages.push(json!({"role": "assistant", "content": "so"}));
    let long = format!("look:{}", " word".repeat(9000));
    messages.push(json!({"role": "user", "content": long}));
    send(&weir, &messages).await;
    let sent = String::from_utf8(last_body(&upstream).to_vec()).expect("text");
    assert!(sent.contains(&long), "{} bytes", sent.len());
}

#[tokio::test]
async fn every_instance_finds_the_same_cheapest_sizes() {
    let (upstream, weir) = self::weir(goal("economic"), PLAIN).await;
    let mut largest_tokens = 0;
    let mut sent = Vec::new();
    for turns in 1..50 {
        let messages = conversation(turns, 1500);
        send(&weir, &messages).await;
        let seen = upstream.requests().pop().expect("it was sent");
        largest_tokens = largest_tokens.max(seen.prompt_tokens.unwrap_or(0));
        sent.push((messages, seen.body));
    }
    // At least 16,000 tokens that stay and √(2 · .9 · 16,000 · 1,500 / .1) more, besides the first message.
    assert!((30_000..60_000).contains(&largest_tokens), "{largest_tokens}");
    let (other_upstream, other) = self::weir(goal("economic"), PLAIN).await;
    for (messages, body) in sent.iter().rev().step_by(7) {
        send(&other, messages).await;
        assert_eq!(last_body(&other_upstream), *body, "{} messages", messages.len());
    }
}

#[tokio::test]
async fn a_window_is_the_default() {
    assert_eq!(Config::default().context.policy.zones.goal, Goal::Limit);
    let (_upstream, weir) = weir(Goal::Limit, STEPPED).await;
    let answer = send(&weir, &conversation(40, 400)).await;
    assert_eq!(answer.header("x-weir-action"), Some("pass"));
}

#[test]
fn what_is_assumed_of_a_model_is_shown_with_its_source() {
    let shown = |name: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        isolate(command.args(["models", "show", name]));
        let output = command.output().expect("weir starts");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let known = shown("openai/gpt-5.4");
    for part in [
        "1,050,000 tokens",
        "in $2.50, cached $0.25, out $15.00",
        "above 272,000 tokens",
        "catalogue, \"gpt-5.4\"",
        "limit \"step\"      263,840 tokens",
        "kept 10 minutes",
    ] {
        assert!(known.contains(part), "{part}: {known}");
    }
    let unknown = shown("nobody/knows-me");
    for part in ["assumed: weir does not know the name", "not known"] {
        assert!(unknown.contains(part), "{part}: {unknown}");
    }
}
