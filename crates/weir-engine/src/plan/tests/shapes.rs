//! Tests of conversations with server tools, programs and deferred tools: a provider takes what is left of
//! them.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::plan::{NoSummaries, PlanError, PlanOptions, plan};
use crate::tokens::Encoding;
use crate::wire::Protocol;

/// Plans a request of Messages; returns the body that is sent.
fn sent(messages: &[Value], limit_tokens: u64) -> Result<Value, PlanError> {
    let tools: Vec<Value> = (0..60)
        .map(|nth| json!({"name": format!("t{nth}"), "defer_loading": true, "input_schema": {}}))
        .collect();
    let body = json!({"model": "m", "max_tokens": 9, "system": "Be brief.", "tools": tools, "messages": messages});
    let body = body.to_string();
    let request = Protocol::Messages.read(body.as_bytes(), 10_000).expect("a request");
    let mut options = PlanOptions::new("m", Encoding::Estimate, limit_tokens);
    options.policy.notes_apart = true;
    let plan = plan(&request, &options, &NoSummaries)?;
    assert!(plan.sent_tokens <= limit_tokens);
    Ok(serde_json::from_str(plan.body.as_deref().unwrap_or(&body)).expect("JSON"))
}

fn blocks(body: &Value) -> impl Iterator<Item = &Value> {
    let messages = body["messages"].as_array().expect("a list").iter();
    messages.flat_map(|message| message["content"].as_array().into_iter().flatten())
}

/// Checks that each block comes behind what it names, and that the tool of each call is loaded.
fn check(body: &Value) {
    let text = |own: &Value| own.as_str().map(str::to_owned);
    let (mut ids, mut loaded) = (BTreeSet::new(), BTreeSet::new());
    let tools = body["tools"].as_array().expect("tools").iter();
    loaded.extend(tools.filter(|own| own["defer_loading"] != true).map(|own| text(&own["name"])));
    for block in blocks(body) {
        for name in [&block["tool_use_id"], &block["caller"]["tool_id"]] {
            assert!(name.is_null() || ids.contains(&text(name)), "{name} in {body}");
        }
        for reference in block["content"]["tool_references"].as_array().into_iter().flatten() {
            loaded.insert(text(&reference["tool_name"]));
        }
        if block["type"] == "tool_use" {
            assert!(loaded.contains(&text(&block["name"])), "{} in {body}", block["name"]);
        }
        ids.insert(text(&block["id"]));
    }
}

fn call(id: &str, tool: usize) -> Value {
    json!({"type": "tool_use", "id": id, "name": format!("t{tool}"), "input": {"nth": tool}})
}

fn result(id: &str, words: usize) -> Value {
    let said = "The gate of the lock is green. ".repeat(words);
    json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": said}]})
}

/// A search that loads a tool.
fn load(id: &str, tool: usize) -> [Value; 2] {
    let found = json!({"type": "tool_search_tool_search_result",
        "tool_references": [{"type": "tool_reference", "tool_name": format!("t{tool}")}]});
    [
        json!({"type": "server_tool_use", "id": id, "name": "tool_search_tool_regex", "input": {}}),
        json!({"type": "tool_search_tool_result", "tool_use_id": id, "content": found}),
    ]
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": [{"type": "text", "text": text}]})
}

#[test]
fn loads_that_need_each_other_leave_room() {
    let mut messages = vec![user("Look at all gates.")];
    for nth in 0..120 {
        // Each load stands next to a call of the tool before.
        let [search, found] = load(&format!("s{nth}"), nth % 60);
        let id = format!("c{nth}");
        let mut content = vec![search, found];
        content.extend((nth > 0).then(|| call(&id, (nth - 1) % 60)));
        messages.push(json!({"role": "assistant", "content": content}));
        messages.push(if nth > 0 { result(&id, 12) } else { user("Go on.") });
        if nth % 5 == 4 {
            check(&sent(&messages, 3_000).expect("it fits"));
        }
    }
}

/// A call in each round is answered in the next one, while a new one waits, for ever.
#[test]
fn calls_that_are_answered_late_leave_room() {
    let mut input = vec![json!({"role": "user", "content": "Look at all gates."})];
    for nth in 0..120_usize {
        for id in [format!("a{nth}"), format!("b{nth}")] {
            input.push(
                json!({"type": "function_call", "call_id": id, "name": "look", "arguments": "{}"}),
            );
        }
        let answered = nth.checked_sub(1).map(|before| format!("a{before}"));
        for id in answered.into_iter().chain([format!("b{nth}")]) {
            let output = "The gate of the lock is green. ".repeat(12);
            input.push(json!({"type": "function_call_output", "call_id": id, "output": output}));
        }
        let body = json!({"model": "m", "input": input}).to_string();
        let request = Protocol::Responses.read(body.as_bytes(), 10_000).expect("a request");
        let options = PlanOptions::new("m", Encoding::Estimate, 3_000);
        let plan = plan(&request, &options, &NoSummaries).expect("it fits");
        assert!(plan.sent_tokens <= 3_000);
        let sent: Value =
            serde_json::from_str(plan.body.as_deref().unwrap_or(&body)).expect("JSON");
        let sent = sent["input"].as_array().expect("a list");
        let ids = |kind: &str| {
            let items = sent.iter().filter(|item| item["type"] == kind);
            items.map(|item| item["call_id"].to_string()).collect::<BTreeSet<String>>()
        };
        let mut answers = ids("function_call_output");
        assert!(answers.len() >= 4.min(2 * nth + 1), "{nth}: {answers:?}");
        answers.insert(format!("\"a{nth}\""));
        assert_eq!(ids("function_call"), answers, "{nth}");
    }
}

/// The last item answers a call that others have followed since.
#[test]
fn an_answer_at_the_end_stays_with_its_call() {
    let named = |kind: &str, id: &str| {
        let output = "The gate of the lock is green. ".repeat(12);
        json!({"type": kind, "call_id": id, "name": "look", "arguments": "{}", "output": output})
    };
    for others in 1..40_usize {
        let mut input = vec![json!({"role": "user", "content": "Look at all gates."})];
        input.push(named("function_call", "slow"));
        for nth in 0..others {
            input.push(named("function_call", &format!("c{nth}")));
            input.push(named("function_call_output", &format!("c{nth}")));
        }
        input.push(named("function_call_output", "slow"));
        let body = json!({"model": "m", "input": input}).to_string();
        let request = Protocol::Responses.read(body.as_bytes(), 10_000).expect("a request");
        let options = PlanOptions::new("m", Encoding::Estimate, 3_000);
        let plan = plan(&request, &options, &NoSummaries).expect("it fits");
        let sent: Value =
            serde_json::from_str(plan.body.as_deref().unwrap_or(&body)).expect("JSON");
        let sent = sent["input"].as_array().expect("a list");
        assert_eq!(sent.last().map(|item| &item["call_id"]), Some(&json!("slow")), "{others}");
        let is_call = |item: &&Value| item["type"] == "function_call" && item["call_id"] == "slow";
        assert_eq!(sent.iter().filter(is_call).count(), 1, "{others}");
    }
}

/// The last message answers a call that stands with one whose result is long.
#[test]
fn an_answer_at_the_end_stays_next_to_a_long_one() {
    let call = |id: &str| json!({"id": id, "type": "function", "function": {"name": "look", "arguments": "{}"}});
    let output = |id: &str, times: usize| {
        let text = "The gate of the lock is green. ".repeat(times);
        json!({"role": "tool", "tool_call_id": id, "content": text})
    };
    for (others, times) in (1..40_usize).flat_map(|others| [(others, 40), (others, 400)]) {
        let mut messages = vec![json!({"role": "user", "content": "Look at all gates."})];
        let both = json!({"role": "assistant", "content": null, "tool_calls": [call("slow"), call("quick")]});
        messages.extend([both, output("quick", times)]);
        for nth in 0..others {
            let id = format!("c{nth}");
            messages.push(json!({"role": "assistant", "content": null, "tool_calls": [call(&id)]}));
            messages.push(output(&id, 12));
        }
        messages.push(output("slow", 12));
        let body = json!({"model": "m", "messages": messages}).to_string();
        let request = Protocol::Chat.read(body.as_bytes(), 10_000).expect("a request");
        let options = PlanOptions::new("m", Encoding::Estimate, 3_000);
        let plan = plan(&request, &options, &NoSummaries).expect("it fits");
        assert!(plan.sent_tokens <= 3_000);
        let sent: Value =
            serde_json::from_str(plan.body.as_deref().unwrap_or(&body)).expect("JSON");
        let sent = sent["messages"].as_array().expect("a list");
        let last = sent.last().expect("a message");
        assert_eq!(last["tool_call_id"], "slow", "{others} {times}");
        let calls = sent.iter().flat_map(|own| own["tool_calls"].as_array().into_iter().flatten());
        assert_eq!(calls.filter(|own| own["id"] == "slow").count(), 1, "{others} {times}");
    }
}

/// Results of two calls of a server stand in one message, with a call of the client's.
#[test]
fn a_call_stays_with_results_whose_calls_are_gone() {
    let wait = |id: &str, own: &str| {
        let server = json!({"type": "server_tool_use", "id": id, "name": "advisor", "input": {}});
        json!({"role": "assistant", "content": [server, call(own, 0)]})
    };
    let advice = |id: &str| {
        let text = "Open the gate. ".repeat(30);
        json!({"type": "advisor_tool_result", "tool_use_id": id, "content": {"type": "advisor_result", "text": text}})
    };
    for (others, words) in (0..30_usize).flat_map(|others| [(others, 20), (others, 90)]) {
        let [search, found] = load("s", 0);
        let mut messages = vec![user("Look at all gates.")];
        messages.push(json!({"role": "assistant", "content": [search, found]}));
        messages.push(user("All of them."));
        for nth in 0..2 {
            messages.push(wait(&format!("s{nth}"), &format!("w{nth}")));
            messages.push(result(&format!("w{nth}"), words));
        }
        for nth in 0..others {
            let id = format!("c{nth}");
            messages.push(json!({"role": "assistant", "content": [call(&id, 0)]}));
            messages.push(result(&id, words));
        }
        let late = [advice("s0"), advice("s1"), call("last", 0)];
        messages.push(json!({"role": "assistant", "content": late}));
        messages.push(result("last", 5));
        for limit_tokens in [1_200, 2_600, 5_000] {
            let body = sent(&messages, limit_tokens).expect("it fits");
            check(&body);
            let is_last = |own: &Value| own["tool_use_id"] == "last";
            assert!(blocks(&body).any(is_last), "{others} {words} {limit_tokens}: {body}");
        }
    }
}

#[test]
fn a_program_stays_with_its_calls() {
    let mut messages = vec![user("Look at all gates.")];
    let [search, found] = load("s", 0);
    let mut before = vec![search, found];
    for nth in 0..24 {
        let (program, id) = (format!("p{nth}"), format!("c{nth}"));
        let mut own = call(&id, 0);
        own["caller"] = json!({"type": "code_execution_20250825", "tool_id": program});
        before.push(json!({"type": "server_tool_use", "id": program, "name": "code_execution", "input": {"code": "look()"}}));
        before.push(own);
        messages.push(json!({"role": "assistant", "content": before}));
        messages.push(result(&id, 30 + nth));
        before = vec![
            json!({"type": "code_execution_tool_result", "tool_use_id": program, "content": {"stdout": "green ".repeat(90)}}),
        ];
        for limit_tokens in [1_200, 1_800, 2_600] {
            check(&sent(&messages, limit_tokens).expect("it fits"));
        }
    }
}

/// What a program reads is no part of the prompt: it does not count, and nothing cuts it.
#[test]
fn results_for_a_program_stay_whole() {
    let mut query = call("c", 0);
    query["caller"] = json!({"type": "code_execution_20260120", "tool_id": "p"});
    query["name"] = json!("query");
    let program =
        json!({"type": "server_tool_use", "id": "p", "name": "code_execution", "input": {}});
    let mut messages = vec![user("Sum the levels.")];
    messages.push(json!({"role": "assistant", "content": [program, query]}));
    messages.push(result("c", 9_000));
    let body = sent(&messages, 2_000).expect("it fits");
    assert_eq!(body["messages"], json!(messages));
    // A client's own call has no such result.
    messages[1]["content"][1]["caller"] = json!({"type": "direct"});
    let body = sent(&messages, 2_000).expect("it fits");
    assert_ne!(body["messages"], json!(messages));
}

#[test]
fn the_last_round_of_tools_has_its_thinking() {
    let thought =
        || json!({"type": "thinking", "thinking": "It is green. ".repeat(8), "signature": "c2ln"});
    let mut checked = 0;
    for answer_words in [5, 60, 200] {
        let mut messages = vec![user("Look at all gates.")];
        for nth in 0..16 {
            let [search, found] = load(&format!("s{nth}"), nth);
            let id = format!("c{nth}");
            let content = json!([thought(), search, found, call(&id, nth)]);
            messages.push(json!({"role": "assistant", "content": content}));
            messages.push(result(&id, 8));
            if nth % 4 == 3 {
                let said = "All of them are green, and no boat waits. ".repeat(answer_words);
                let content = json!([thought(), {"type": "text", "text": said}]);
                messages.push(json!({"role": "assistant", "content": content}));
                messages.push(user(&"And what of the other side? ".repeat(nth)));
            }
            for limit_tokens in [1_500, 2_200, 3_000] {
                let Ok(body) = sent(&messages, limit_tokens) else { continue };
                check(&body);
                let all = body["messages"].as_array().expect("a list");
                let last = all.iter().rev().find(|own| own["role"] == "assistant");
                let content = last.and_then(|own| own["content"].as_array());
                let Some(content) = content else { continue };
                let calls = content.iter().any(|block| block["type"] == "tool_use");
                let thinks = content.iter().any(|block| block["type"] == "thinking");
                assert!(!calls || thinks, "{body}");
                checked += 1;
            }
        }
    }
    assert!(checked >= 48, "{checked} fit");
}
