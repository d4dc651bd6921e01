//! The same conversation gets the same fates in each protocol, and what is sent of it is valid.

use proptest::prelude::*;
use serde_json::Value;
use weir_engine::compact::{Fate, Policy};
use weir_engine::tokens::media::ImageRule;
use weir_engine::{Encoding, Measure, NoSummaries, Plan, PlanOptions, Protocol, plan};

use super::{retold, validity};
use crate::invariants::generate::{self, Case};
use crate::invariants::harness::check;
use crate::traces;

/// Plans `body` for messages of at most `limit_tokens`.
fn planned(protocol: Protocol, body: &str, limit_tokens: u64) -> Option<Plan> {
    let measure = Measure { encoding: Encoding::O200kBase, images: ImageRule::of_model("gpt-4o") };
    let policy = Policy { notes_apart: true, ..Policy::default() };
    let options = PlanOptions::for_messages(limit_tokens, policy, measure);
    let request = protocol.read(body.as_bytes(), 100_000).expect("readable");
    plan(&request, &options, &NoSummaries).ok()
}

fn sent(plan: &Plan, received: &Value) -> Value {
    match &plan.body {
        Some(body) => serde_json::from_str(body).expect("JSON"),
        None => received.clone(),
    }
}

/// Compares the plans of one conversation under one limit, as long as it can be expressed in each protocol.
/// Returns how many protocols it was compared in.
fn compare(messages: &[Value], limit_tokens: u64) -> Result<usize, String> {
    let chat = serde_json::json!({"model": "gpt-4o", "messages": messages}).to_string();
    let by_chat = planned(Protocol::Chat, &chat, limit_tokens);
    let retellings = [
        (Protocol::Responses, retold::responses(messages)),
        (Protocol::Messages, retold::messages(messages, false)),
        (Protocol::Messages, retold::messages(messages, true)),
    ];
    let mut compared = 0;
    for (protocol, body) in retellings {
        let Some(body) = body else { continue };
        let check_valid = |body: &Value| match protocol {
            Protocol::Responses => validity::responses(body),
            _ => validity::messages(body),
        };
        let is_valid = check_valid(&body).is_ok();
        let plan = planned(protocol, &body.to_string(), limit_tokens);
        let fates = |plan: &Option<Plan>| plan.as_ref().map(|plan| plan.fates().to_vec());
        if fates(&by_chat) != fates(&plan) {
            let (one, other) = (fates(&by_chat), fates(&plan));
            return Err(format!("{protocol:?} under {limit_tokens}: {one:?}, {other:?}"));
        }
        let Some(plan) = plan else { continue };
        if let Some(chat) = &by_chat
            && (chat.sent_tokens, chat.compactions) != (plan.sent_tokens, plan.compactions)
        {
            return Err(format!("{protocol:?}: {} and {}", chat.sent_tokens, plan.sent_tokens));
        }
        compared += 1;
        if is_valid {
            check_valid(&sent(&plan, &body)).map_err(|fault| {
                format!("{protocol:?} under {limit_tokens}: {fault} in {}", sent(&plan, &body))
            })?;
        }
    }
    Ok(compared)
}

fn messages_of(case: &Case) -> Vec<Value> {
    let body: Value = serde_json::from_str(&case.transcript.body()).unwrap_or_default();
    body["messages"].as_array().cloned().unwrap_or_default()
}

/// Conversations without what the other protocols cannot say.
fn tellable() -> impl Strategy<Value = Case> {
    generate::valid().prop_filter("told in chat alone", |case| {
        messages_of(case).iter().all(|message| {
            let is_named = ["name", "function_call", "refusal", "audio"];
            is_named.iter().all(|member| message.get(*member).is_none())
        })
    })
}

#[test]
fn generated_conversations_have_the_same_fates_in_each_protocol() {
    check("retold", 60, &tellable(), |case| {
        compare(&messages_of(case), case.limit_tokens()).map(drop)
    });
}

#[test]
fn recorded_conversations_have_the_same_fates_in_each_protocol() {
    let (mut compared, mut compacted) = (0, 0);
    for conversation in traces::all() {
        let messages = conversation.messages;
        let bytes: usize = messages.iter().map(|message| message.to_string().len()).sum();
        let last = messages.iter().rposition(|message| message["role"] != "assistant");
        let messages = &messages[..last.map_or(0, |last| last + 1)];
        for share in [8, 12] {
            let limit_tokens = (bytes / share) as u64;
            compared += compare(messages, limit_tokens)
                .unwrap_or_else(|fault| panic!("{}: {fault:.4000}", conversation.id));
            let chat = serde_json::json!({"messages": messages}).to_string();
            let plan = planned(Protocol::Chat, &chat, limit_tokens);
            let is_gone = |plan: &Plan| plan.fates().contains(&Fate::Gone);
            compacted += usize::from(plan.as_ref().is_some_and(is_gone));
        }
    }
    println!("{compared} plans compared, {compacted} chats compacted");
    assert!(compared >= 20 && compacted >= 10, "{compared}, {compacted}");
}
