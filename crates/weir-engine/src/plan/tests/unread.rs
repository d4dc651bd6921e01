//! Tests of what a provider leaves out of the prompt itself: it is sent as received and does not count.

use serde_json::{Value, json};

use crate::plan::{NoSummaries, Plan, PlanOptions, plan};
use crate::tokens::Encoding;
use crate::wire::Protocol;

fn planned(messages: &[Value], limit_tokens: u64) -> Plan {
    let body = json!({"model": "m", "max_tokens": 9, "system": "Be brief.", "messages": messages});
    let body = body.to_string();
    let request = Protocol::Messages.read(body.as_bytes(), 1000).expect("a request");
    let mut options = PlanOptions::new("m", Encoding::Estimate, limit_tokens);
    options.policy.strips_thinking = true;
    options.policy.notes_apart = true;
    let mut plan = plan(&request, &options, &NoSummaries).expect("it fits");
    plan.body = Some(plan.body.unwrap_or(body));
    plan
}

fn text(words: &str) -> Value {
    json!({"type": "text", "text": words})
}

/// A question, a call with thinking, its result, and an answer with thinking.
fn round(nth: usize, thinking: &str) -> [Value; 4] {
    let thought = |own: Value| match thinking {
        "" => json!([own]),
        _ => json!([{"type": "thinking", "thinking": thinking, "signature": "c2ln"}, own]),
    };
    let call =
        json!({"type": "tool_use", "id": format!("t{nth}"), "name": "look", "input": {"nth": nth}});
    let result =
        json!({"type": "tool_result", "tool_use_id": format!("t{nth}"), "content": "It is green."});
    [
        json!({"role": "user", "content": format!("Question {nth} about gate {nth}?")}),
        json!({"role": "assistant", "content": thought(call)}),
        json!({"role": "user", "content": [result]}),
        json!({"role": "assistant", "content": thought(text(&format!("Gate {nth} is green.")))}),
    ]
}

fn sent(plan: &Plan) -> Vec<Value> {
    let body: Value = serde_json::from_str(plan.body.as_deref().expect("a body")).expect("JSON");
    body["messages"].as_array().expect("a list").clone()
}

#[test]
fn thinking_of_earlier_rounds_does_not_count_where_the_provider_leaves_it_out() {
    let long = "The level of the river is to be read first. ".repeat(60);
    let rounds = |thinking: &str| (0..9).flat_map(|nth| round(nth, thinking)).collect::<Vec<_>>();
    let with = |last: &[Value], thinking: &str| {
        let messages = [rounds(thinking).as_slice(), last].concat();
        let plan = planned(&messages, 2_500);
        assert_eq!(sent(&plan), messages, "it fits, and stays as it is");
        assert_eq!(plan.received_tokens, plan.sent_tokens);
        plan.received_tokens
    };
    let question = &round(9, "")[..1];
    assert_eq!(with(question, &long), with(question, ""));
    // The thinking of the open round of tools is in the prompt.
    let open = &round(9, &long)[..3];
    let alone = with(open, "");
    assert_eq!(with(open, &long), alone);
    assert!(alone > with(&round(9, "")[..3], "") + 500);
}

#[test]
fn nothing_before_the_providers_own_compaction_counts() {
    let block = json!({"type": "compaction", "content": "They looked at gates."});
    let summary = json!({"role": "assistant", "content": [block, text("I go on.")]});
    let talk = |nth: usize, words: usize| {
        let said = "All of it was read, and the gate is green. ".repeat(words);
        [
            json!({"role": "user", "content": format!("Look at gate {nth}.")}),
            json!({"role": "assistant", "content": format!("Gate {nth}: {said}")}),
        ]
    };
    let before: Vec<Value> = (0..25).flat_map(|nth| round(nth, "")).collect();
    let question = json!({"role": "user", "content": "And now?"});
    let short = [question.clone(), summary, question.clone()];
    let alone = planned(&short[1..], 3_000).received_tokens;
    let whole = [before, short.to_vec()].concat();
    let plan = planned(&whole, 3_000);
    assert_eq!(sent(&plan), whole);
    assert_eq!(plan.received_tokens, alone);

    // Later messages are compacted; the block stays, and so does all before it.
    let later: Vec<Value> = (0..30).flat_map(|nth| talk(nth, 20)).collect();
    let grown = [whole.as_slice(), &later, &[question]].concat();
    let plan = planned(&grown, 3_000);
    let sent = sent(&plan);
    assert!(plan.compactions > 0 && plan.sent_tokens <= 3_000);
    assert_eq!(sent[..whole.len() - 1], grown[..whole.len() - 1]);
    let note = sent.iter().position(|own| own.to_string().contains("[weir: "));
    assert!(note.is_some_and(|note| note >= whole.len() - 1), "the note stands behind the block");
    assert_eq!(sent.last(), grown.last());
}
