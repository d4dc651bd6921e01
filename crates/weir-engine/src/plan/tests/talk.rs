//! Tests of what stays of conversations in which the assistant writes most: dialogues, agents that put their
//! observations into its messages, one long round of tools.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::plan::{NoSummaries, Plan, PlanError, PlanOptions, plan};
use crate::tokens::Encoding;
use crate::wire::Protocol;

struct Options {
    limit_tokens: u64,
    encoding: Encoding,
    is_strict: bool,
    shortens: bool,
}

const USUAL: Options = Options {
    limit_tokens: 8000,
    encoding: Encoding::O200kBase,
    is_strict: false,
    shortens: false,
};

/// Returns the plan of a chat, and the messages that are sent.
fn planned(messages: &[Value], own: &Options) -> Result<(Plan, Vec<Value>), PlanError> {
    let body = json!({"model": "m", "max_tokens": 9, "messages": messages}).to_string();
    let request = Protocol::Chat.read(body.as_bytes(), 1000).expect("a request");
    let mut options = PlanOptions::new("m", own.encoding, own.limit_tokens);
    options.policy.strict_alternation = own.is_strict;
    options.policy.notes_apart = !own.is_strict;
    options.shortens = own.shortens;
    let plan = plan(&request, &options, &NoSummaries)?;
    let sent: Value = serde_json::from_str(plan.body.as_deref().unwrap_or(&body)).expect("JSON");
    assert!(own.shortens || plan.sent_tokens <= own.limit_tokens, "{}", plan.sent_tokens);
    let sent = sent["messages"].as_array().expect("a list").clone();
    Ok((plan, sent))
}

fn message(role: &str, text: impl Into<String>) -> Value {
    json!({"role": role, "content": text.into()})
}

/// Text of so many lines, each with a name of its own.
fn lines(name: &str, count: usize) -> String {
    let line = |nth: usize| format!("{name}_{nth} opens the gate of mill {}.", nth * 7 % 13);
    (0..count).map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_answer_that_a_question_is_about_stays() {
    let mut messages = vec![message("system", "You are a writer."), message("user", "Hello.")];
    let mut compactions = BTreeSet::new();
    for nth in 0..100 {
        let answer = lines(&format!("part_{nth}"), 16);
        messages.push(message("assistant", answer.clone()));
        messages.push(message("user", "Please translate that answer, line by line."));
        let (plan, sent) = planned(&messages, &USUAL).expect("it fits");
        compactions.insert(plan.compactions);
        let before = &sent[sent.len() - 2];
        assert_eq!(before["content"], answer.as_str(), "{} compactions", plan.compactions);
    }
    assert!(compactions.len() > 3, "{compactions:?}");
}

#[test]
fn a_note_stands_before_the_last_message_if_there_is_no_other_place() {
    let strict = Options { is_strict: true, ..USUAL };
    let first = format!("The release is ZEBRA-42.\n{}", lines("plan", 330));
    let messages = [
        message("system", "Be brief."),
        message("user", first),
        message("assistant", lines("answer", 100)),
        message("user", format!("Which release is it?\n{}", lines("more", 330))),
    ];
    let (_, sent) = planned(&messages, &strict).expect("it fits");
    let last = sent.last().expect("a message")["content"].as_str().expect("text");
    assert!(last.contains("ZEBRA-42") && last.contains("Which release is it?"), "{sent:?}");
    let roles: Vec<&str> = sent.iter().filter_map(|own| own["role"].as_str()).collect();
    assert_eq!(roles, ["system", "user"]);
}

#[test]
fn an_agent_that_writes_observations_into_answers_keeps_its_prefix() {
    let mut messages = vec![message("system", "You are careful."), message("user", "Do it.")];
    let (mut before, mut rewrites): (Vec<Value>, usize) = (Vec::new(), 0);
    for nth in 0..60 {
        let text = format!("Thought: look.\nObservation: {}", lines(&format!("seen_{nth}"), 25));
        messages.push(message("assistant", text));
        let (_, sent) = planned(&messages, &USUAL).expect("it fits");
        rewrites += usize::from(!before.is_empty() && !sent.starts_with(&before));
        before = sent;
    }
    assert!((2..12).contains(&rewrites), "{rewrites}");
}

#[test]
fn the_only_exchange_keeps_its_task_when_it_is_to_be_shorter() {
    for results in [1, 4] {
        let calls: Vec<Value> = (0..results)
            .map(|nth| json!({"id": format!("c{nth}"), "type": "function", "function": {"name": "bash", "arguments": "{}"}}))
            .collect();
        let mut messages = vec![
            message("user", "The release is ZEBRA-42. Fix the failing test."),
            json!({"role": "assistant", "content": null, "tool_calls": calls}),
        ];
        messages.extend((0..results).map(|nth| {
            json!({"role": "tool", "tool_call_id": format!("c{nth}"), "content": lines("log", 90)})
        }));
        let shorter = Options { shortens: true, limit_tokens: 100_000, ..USUAL };
        let (plan, _) = planned(&messages, &shorter).expect("it fits");
        assert!(!plan.fates().contains(&crate::compact::Fate::Gone), "{results}");
    }
}

#[test]
fn a_short_question_stays_before_more_of_its_results() {
    for (limit_tokens, results) in [(4000, 20), (8000, 60)] {
        let mut messages = vec![message("system", "Be brief."), message("user", "Hello there.")];
        for nth in 0..14 {
            messages.push(message("assistant", format!("Answer {nth} is short.")));
            messages.push(message("user", format!("Question {nth} of many?")));
        }
        messages.push(message("assistant", "Wait for it."));
        messages.push(message("user", "No wait: delete nothing, only list ZEBRA-42."));
        let call = |nth: usize| json!({"id": format!("c{nth}"), "type": "function", "function": {"name": "bash", "arguments": "{}"}});
        let calls: Vec<Value> = (0..results).map(call).collect();
        messages.push(json!({"role": "assistant", "content": null, "tool_calls": calls}));
        messages.extend((0..results).map(|nth| {
            let text = lines(&format!("file_{nth}"), 40);
            json!({"role": "tool", "tool_call_id": format!("c{nth}"), "content": text})
        }));
        let (_, sent) = planned(&messages, &Options { limit_tokens, ..USUAL }).expect("it fits");
        let stays = sent.iter().any(|own| {
            own["role"] == "user"
                && own["content"].as_str().is_some_and(|text| text.contains("ZEBRA-42"))
        });
        assert!(stays, "{limit_tokens}");
    }
}

#[test]
fn a_long_answer_becomes_shorter_before_a_request_is_refused() {
    let call =
        json!({"id": "c", "type": "function", "function": {"name": "bash", "arguments": "{}"}});
    let messages = [
        message("user", "Go."),
        json!({"role": "assistant", "content": lines("thought", 800), "tool_calls": [call]}),
        json!({"role": "tool", "tool_call_id": "c", "content": "done"}),
    ];
    let (plan, sent) = planned(&messages, &USUAL).expect("it fits");
    assert!(plan.received_tokens > 8000 && sent.len() == 3);
    // A user's text is never cut.
    assert!(planned(&[message("user", lines("thought", 800))], &USUAL).is_err());
}

#[test]
fn numbers_that_are_counted_by_estimate_leave_excerpts() {
    let own = Options { limit_tokens: 16_000, encoding: Encoding::Estimate, ..USUAL };
    let mut messages = vec![message("system", "You watch a fleet."), message("user", "Begin.")];
    for nth in 0..60 {
        let line = |place: usize| {
            let (minute, number) = (place % 60, 66_203 + nth * 97 + place);
            format!("2026-11-23T12:{minute:02}:07Z ERROR commit[{number}]: disk {place} is full")
        };
        let text = (0..20).map(line).collect::<Vec<_>>().join("\n");
        messages.push(message("assistant", format!("Report {nth}:\n{text}")));
        messages.push(message("user", "Next."));
    }
    let (plan, sent) = planned(&messages, &own).expect("it fits");
    assert!(plan.compactions > 0);
    let note = sent
        .iter()
        .find_map(|own| own["content"].as_str().filter(|text| text.starts_with("[weir")));
    let note = note.expect("a note");
    assert!(note.len() > 2000, "{note}");
}
