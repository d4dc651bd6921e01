//! Bodies of Responses and Messages: read and planned as in the proxy, without its caches.
//!
//! An input is two control bytes, which select protocol and limit, and a body.

use std::convert::Infallible;

use serde_json::value::RawValue;
use weir_engine::compact::{Fate, Limits};
use weir_engine::plan::{NoSummaries, PlanOptions, plan};
use weir_engine::tokens::Encoding;
use weir_engine::wire::compaction::{self, Opened};
use weir_engine::wire::{Protocol, Request, Role, splice};
use weir_engine::{Measure, Policy};

use super::reading;

const MAX_MESSAGES: usize = 256;
/// Content of a compaction item that no input has.
const SEALED: &str = "sealed by the check";

pub fn check(input: &[u8]) {
    let Some(([protocol, limit], body)) = input.split_first_chunk::<2>() else { return };
    let protocol = if protocol & 1 == 0 { Protocol::Responses } else { Protocol::Messages };
    let Ok(request) = protocol.read(body, MAX_MESSAGES) else { return };
    assert_json(request.text);
    assert_eq!(splice::apply(protocol, &request, &[]).as_bytes(), body, "no edit, no changed byte");
    reading::check(protocol, &request);
    for raw in &request.messages {
        let identity = protocol.identity(raw);
        assert_eq!(protocol.identity(&identity), identity, "an identity is its own");
    }
    let limit_tokens = u64::from(*limit) * u64::from(*limit) / 4 + 8;
    let options = PlanOptions::new("", Encoding::O200kBase, limit_tokens.max(1000) * 2);
    let options = PlanOptions {
        limits: Limits { header_tokens: Some(limit_tokens), ..options.limits },
        policy: Policy { is_thinking_bound: limit & 1 == 1, ..Policy::default() },
        ..options
    };
    if protocol == Protocol::Responses {
        check_shortened(&request, &options);
    }
    let plan = match plan(&request, &options, &NoSummaries) {
        Ok(plan) => plan,
        Err(_) => return,
    };
    assert!(plan.sent_tokens <= plan.limit_tokens);
    // A result goes if its call went long before, or never was.
    let is_gone = plan.fates().last() == Some(&Fate::Gone);
    let is_result = plan.end.facts().last().is_some_and(|fact| fact.role == Role::Tool);
    assert!(!is_gone || is_result, "the last message stays");
    let text = plan.body.as_deref().unwrap_or(request.text);
    assert_json(text);
    let sent = protocol.read(text.as_bytes(), MAX_MESSAGES).expect("the forwarded body is valid");
    assert_eq!(sent.model, request.model);
    assert_eq!(sent.max_output_tokens, request.max_output_tokens);
    assert_eq!(sent.extras, request.extras);
    let planned_tokens = plan.sent_tokens - plan.overhead_tokens;
    let counted_tokens = counted(&sent, options.measure);
    assert!(
        counted_tokens <= planned_tokens,
        "{counted_tokens} tokens are sent, {planned_tokens} were planned: {text}"
    );
}

/// Checks that a shortened list is one that the next request may send: with its compaction item opened,
/// it is what the plan sends.
fn check_shortened(request: &Request<'_>, options: &PlanOptions) {
    let options = PlanOptions { shortens: true, ..options.clone() };
    let Ok(plan) = plan(request, &options, &NoSummaries) else { return };
    assert!(plan.sent_tokens <= plan.limit_tokens.max(plan.received_tokens));
    let own = plan.shortened(request, false);
    let joined = |items: [&str; 3]| {
        let items: Vec<&str> = items.into_iter().filter(|items| !items.is_empty()).collect();
        format!(r#"{{"input":[{}]}}"#, items.join(","))
    };
    let (kept, open) = (own.kept.join(","), own.open.join(","));
    let item = compaction::item("cmp", SEALED);
    let text = joined([&kept, &item, &open]);
    assert_json(&text);
    let opened = compaction::replace(&text, |contents| {
        let is_own = contents.iter().any(|content| content == SEALED);
        let content = Opened { is_whole: false, items: own.rest.clone() };
        Ok::<_, Infallible>(is_own.then_some(content))
    });
    let Ok(opened) = opened;
    let wanted = joined([&kept, &own.rest, &open]);
    assert_eq!(opened, Some(wanted.clone()));
    assert_json(&wanted);
    assert!(Protocol::Responses.read(wanted.as_bytes(), usize::MAX).is_ok());
}

fn counted(request: &Request<'_>, measure: Measure) -> u64 {
    let tokens = request.messages.iter().map(|raw| {
        let message = request.protocol.read_message(raw).expect("the forwarded body is valid");
        assert!(message.weir.is_none(), "the product's own member is never forwarded");
        measure.fact(&message).tokens
    });
    tokens.sum()
}

#[track_caller]
fn assert_json(text: &str) {
    let parsed = serde_json::from_str::<&RawValue>(text);
    assert!(parsed.is_ok(), "{parsed:?} in {text}");
}
