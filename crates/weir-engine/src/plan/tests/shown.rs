//! Tests of what notes and clips show: who spoke, what failed, what a user said to a tool, files that are no
//! text, and as much of a long part as there is room.

use serde_json::{Value, json};

use crate::plan::{NoSummaries, PlanOptions, plan};
use crate::tokens::Encoding;
use crate::wire::Protocol;

/// Returns the body that is sent for these messages or items, and its size.
fn sent(protocol: Protocol, messages: &[Value], limit_tokens: u64) -> (String, u64) {
    let list = if protocol == Protocol::Responses { "input" } else { "messages" };
    let body = json!({"model": "m", "max_tokens": 9, list: messages}).to_string();
    let request = protocol.read(body.as_bytes(), 1000).expect("a request");
    let mut options = PlanOptions::new("m", Encoding::O200kBase, limit_tokens);
    options.policy.notes_apart = true;
    let plan = plan(&request, &options, &NoSummaries).expect("it fits");
    assert!(plan.sent_tokens <= limit_tokens, "{}", plan.sent_tokens);
    (plan.body.unwrap_or(body), plan.sent_tokens)
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

/// Text of so many lines, each with a name of its own.
fn lines(name: &str, count: usize) -> String {
    let line = |nth: usize| format!("{name}_{nth} opens the gate of mill {}.", nth * 7 % 13);
    (0..count).map(line).collect::<Vec<_>>().join("\n")
}

/// Returns a call in a chat with its result.
fn called(nth: usize, name: &str, arguments: &Value, result: &str) -> [Value; 2] {
    let id = format!("c{nth}");
    let function = json!({"name": name, "arguments": arguments.to_string()});
    [
        json!({"role": "assistant", "content": null, "tool_calls": [{"id": id, "type": "function", "function": function}]}),
        json!({"role": "tool", "tool_call_id": id, "content": result}),
    ]
}

/// Adds turns that fill a window of 8,000 tokens.
fn filled(mut messages: Vec<Value>) -> Vec<Value> {
    for nth in 0..40 {
        let path = json!({"path": format!("src/part_{nth}.rs")});
        messages.extend(called(100 + nth, "read_file", &path, &lines(&format!("part_{nth}"), 40)));
    }
    messages
}

#[test]
fn a_long_part_of_the_assistants_takes_the_room_there_is() {
    let long = lines("row", 4000);
    let arguments = json!({"path": "a.txt", "content": long}).to_string();
    let chat = vec![
        user("Write it."),
        json!({"role": "assistant", "content": null, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "write", "arguments": arguments}}]}),
        json!({"role": "tool", "tool_call_id": "c", "content": "ok"}),
    ];
    let hosted = vec![
        user("Look."),
        json!({"type": "mcp_call", "id": "m", "server_label": "m", "name": "f", "arguments": "{}", "output": long, "error": null}),
        json!({"type": "function_call", "id": "f", "call_id": "c", "name": "f", "arguments": "{}"}),
        json!({"type": "function_call_output", "call_id": "c", "output": "ok"}),
    ];
    let custom = vec![
        user("Patch it."),
        json!({"type": "custom_tool_call", "id": "f", "call_id": "c", "name": "apply_patch", "input": long}),
        json!({"type": "custom_tool_call_output", "call_id": "c", "output": "ok"}),
    ];
    let messages = vec![
        user("Look."),
        json!({"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "Write", "input": {"path": "a", "content": long}}]}),
        json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "ok"}]}),
    ];
    for (protocol, messages) in [
        (Protocol::Chat, chat),
        (Protocol::Responses, hosted),
        (Protocol::Responses, custom),
        (Protocol::Messages, messages),
    ] {
        for (limit_tokens, least_tokens) in [(6000, 4000), (30_000, 20_000)] {
            let (body, tokens) = sent(protocol, &messages, limit_tokens);
            assert!(tokens >= least_tokens, "{protocol:?} {tokens} of {limit_tokens}");
            assert!(body.contains("row_0 ") && body.contains("row_3999 "), "{protocol:?}");
        }
    }
}

#[test]
fn images_of_results_leave_before_a_request_is_refused() {
    let image = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}});
    let calls: Vec<Value> = (0..14)
        .map(
            |nth| json!({"type": "tool_use", "id": format!("t{nth}"), "name": "Read", "input": {}}),
        )
        .collect();
    let results: Vec<Value> = (0..14)
        .map(|nth| json!({"type": "tool_result", "tool_use_id": format!("t{nth}"), "content": [image]}))
        .collect();
    let messages = [
        user("Read all pages."),
        json!({"role": "assistant", "content": &calls}),
        json!({"role": "user", "content": results}),
    ];
    let (whole, tokens) = sent(Protocol::Messages, &messages, 1_000_000);
    assert_eq!(whole.matches("AAAA").count(), 14);
    let (body, _) = sent(Protocol::Messages, &messages, tokens / 2);
    let left = body.matches("AAAA").count();
    assert!((4..8).contains(&left), "{left}");
    assert!(body.contains("image masked"), "{body}");
    let one = json!({"type": "tool_result", "tool_use_id": "t0", "content": vec![image; 14]});
    let messages = [
        user("Read all pages."),
        json!({"role": "assistant", "content": [calls[0]]}),
        json!({"role": "user", "content": [one]}),
    ];
    let (body, _) = sent(Protocol::Messages, &messages, tokens * 2 / 3);
    let left = body.matches("AAAA").count();
    assert!((6..14).contains(&left), "{left}");
}

#[test]
fn what_a_user_says_to_a_tool_that_asks_stays() {
    for (tool, answer) in [
        (
            "interactive_feedback",
            r#"{"command_logs":"","interactive_feedback":"Use the colour teal for all buttons."}"#,
        ),
        ("AskUserQuestion", "User has answered your questions: \"Colour?\"=\"teal\"."),
        ("ask_followup_question", "<answer>teal, please</answer>"),
        ("human_assistance", "No. Take teal."),
    ] {
        let mut messages = vec![user("Build the page.")];
        messages.extend(called(1, tool, &json!({"question": "Which colour?"}), answer));
        let (body, _) = sent(Protocol::Chat, &filled(messages), 8000);
        assert!(body.contains("teal"), "{tool}: {body}");
    }
}

#[test]
fn failed_and_refused_calls_are_marked() {
    let mut messages = vec![user("Clean up.")];
    let run = |command: &str| json!({"command": command});
    messages.extend(called(
        1,
        "Bash",
        &run("rm -rf data/prod_7"),
        "The user doesn't want to proceed with this tool use.",
    ));
    messages.extend(called(
        2,
        "Bash",
        &run("cargo test --lib mill_9"),
        "error: test failed\nexit code: 101",
    ));
    messages.extend(called(
        3,
        "Bash",
        &run("cat notes/errors_3.txt"),
        "How errors are told from others.",
    ));
    let edit = json!({"path": "src/gate_5.rs", "old": "a_1", "new": "port_9191 = 1"});
    messages.extend(called(4, "Edit", &edit, "Error: old text not found in src/gate_5.rs"));
    let (body, _) = sent(Protocol::Chat, &filled(messages), 12_000);
    for (shown, others) in [
        ("> Bash (failed): rm -rf data/prod_7", "> Bash: rm -rf"),
        ("> Bash (failed): cargo test --lib mill_9", "> Bash: cargo test"),
        ("> Bash: cat notes/errors_3.txt", "(failed): cat"),
        ("> Edit (failed): ", "> Edit: "),
    ] {
        assert!(body.contains(shown) && !body.contains(others), "{shown} in {body}");
    }
}

#[test]
fn failures_of_built_in_tools_are_marked() {
    let mut items = vec![
        user("Do it."),
        json!({"type": "mcp_approval_request", "id": "a1", "server_label": "m", "name": "delete_account", "arguments": "{\"who\":\"ann_17\"}"}),
        json!({"type": "mcp_approval_response", "approval_request_id": "a1", "approve": false}),
        json!({"type": "mcp_call", "id": "m1", "server_label": "m", "name": "lookup", "arguments": "{\"of\":\"bob_23\"}", "output": null, "error": "no such account"}),
        json!({"type": "web_search_call", "id": "w1", "status": "completed", "action": {"type": "search", "query": "tokio cancellation safety_31"}}),
        json!({"role": "assistant", "content": "Looked."}),
    ];
    for nth in 0..40 {
        let id = format!("c{nth}");
        items.push(
            json!({"type": "function_call", "call_id": id, "name": "read", "arguments": "{}"}),
        );
        items.push(json!({"type": "function_call_output", "call_id": id, "output": lines(&format!("part_{nth}"), 40)}));
    }
    let (body, _) = sent(Protocol::Responses, &items, 12_000);
    for shown in ["delete_account (failed): ", "lookup (failed): ", "tokio cancellation safety_31"]
    {
        assert!(body.contains(shown), "{shown} in {body}");
    }
}

#[test]
fn participants_and_files_are_named() {
    let messages = vec![
        json!({"role": "user", "name": "alice", "content": "My passport number is P-4471."}),
        json!({"role": "user", "name": "bob", "content": "Mine is P-7313."}),
        json!({"role": "user", "name": "carol\n#9 system", "content": "Mine is P-9921."}),
        json!({"role": "assistant", "content": "Noted."}),
        json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}),
        json!({"role": "assistant", "content": "Nice roof."}),
        json!({"role": "user", "content": [{"type": "file", "file": {"filename": "contract-77.pdf", "file_data": "data:application/pdf;base64,AAAA"}}]}),
        json!({"role": "assistant", "content": "Signed by both."}),
        user("Now look at the sources."),
    ];
    let (body, _) = sent(Protocol::Chat, &filled(messages), 8000);
    for shown in ["user bob:", "user carol9system:", "(image)", "(contract-77.pdf)"] {
        assert!(body.contains(shown), "{shown} in {body}");
    }
}

#[test]
fn the_newest_value_of_a_repeated_call_stays() {
    let gate = json!({"path": "conf/gate.toml"});
    let mut messages = vec![user("Watch the gate.")];
    for (nth, port) in [8081, 8081, 9093].into_iter().enumerate() {
        let text = format!("{}\nport = {port}\n{}", lines("head", 12), lines("tail", 12));
        messages.extend(called(nth, "read_file", &gate, &text));
        messages.push(json!({"role": "assistant", "content": format!("It says {nth}.")}));
    }
    let (body, _) = sent(Protocol::Chat, &filled(messages), 8000);
    assert!(body.contains("port = 9093"), "{body}");
}

#[test]
fn a_users_words_stay_next_to_pasted_obligations() {
    let mut messages = Vec::new();
    for nth in 0..60 {
        let own = if nth == 10 { "From now on always answer in Danish." } else { "What holds?" };
        let pasted = (0..12).map(|line| {
            format!("Employees must not accept gift {nth}.{line} above {} dollars.", nth * 7 + line)
        });
        let pasted: Vec<String> = pasted.collect();
        let text = format!("<context>\n{}\n</context>\nCase C-{nth}: {own}", pasted.join("\n"));
        messages.push(user(&text));
        messages.push(json!({"role": "assistant", "content": "See the section."}));
    }
    messages.push(user("And now?"));
    let (body, _) = sent(Protocol::Chat, &messages, 8000);
    assert!(body.contains("always answer in Danish"), "{body}");
    let own = (0..60).filter(|nth| body.contains(&format!("Case C-{nth}:"))).count();
    assert!(own >= 50, "{own}: {body}");
}
