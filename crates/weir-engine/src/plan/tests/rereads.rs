//! Tests of results that come again after a compaction has left them out.

use serde_json::{Value, json};

use crate::compact::Repeated;
use crate::plan::{NoSummaries, PlanOptions, plan};
use crate::tokens::Encoding;
use crate::wire::Protocol;

/// Reads these files in one message; each has a text of its own.
fn read(nth: usize, files: &[&str], version: usize) -> [Value; 2] {
    let id = |place: usize| format!("t{nth}_{place}");
    let calls = files.iter().enumerate().map(|(place, file)| {
        json!({"type": "tool_use", "id": id(place), "name": "read", "input": {"path": file}})
    });
    let results = files.iter().enumerate().map(|(place, file)| {
        let text = format!("{file}_{version} opens the gate. ").repeat(60);
        json!({"type": "tool_result", "tool_use_id": id(place), "content": text})
    });
    let [calls, results] = [calls.collect::<Vec<_>>(), results.collect()];
    [json!({"role": "assistant", "content": calls}), json!({"role": "user", "content": results})]
}

fn repeated(messages: &[Value]) -> Repeated {
    let body = json!({"model": "m", "max_tokens": 9, "messages": messages}).to_string();
    let request = Protocol::Messages.read(body.as_bytes(), 1000).expect("a request");
    let options = PlanOptions::new("m", Encoding::Estimate, 6000);
    let plan = plan(&request, &options, &NoSummaries).expect("it fits");
    assert!(plan.compactions > 0, "{}", plan.received_tokens);
    plan.state.repeated()
}

#[test]
fn a_result_that_comes_again_is_told_from_others() {
    let mut messages = vec![json!({"role": "user", "content": "Compare the gates."})];
    for nth in 0..6 {
        let names: Vec<String> = (0..5).map(|place| format!("gate_{nth}_{place}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        messages.extend(read(nth, &names, 0));
    }
    let after = |reads: &[[Value; 2]]| repeated(&[messages.as_slice(), &reads.concat()].concat());
    let none = Repeated::default();
    assert_eq!(after(&[]), none);
    assert_eq!(after(&[read(9, &["gate_9_0"], 0)]), none, "a new one");
    assert_eq!(after(&[read(9, &["gate_0_4"], 1)]), none, "another text");
    let again = after(&[read(9, &["gate_0_4"], 0)]);
    assert!(again.is_all && again.tokens == again.new_tokens && again.tokens > 300, "{again:?}");
    let both = after(&[read(9, &["gate_9_0", "gate_0_4"], 0)]);
    assert_eq!(both, Repeated { is_all: false, ..again });
    let later = after(&[read(9, &["gate_0_4"], 0), read(10, &["gate_9_0"], 0)]);
    assert_eq!(later, Repeated { new_tokens: 0, is_all: false, ..again });
    // It is there now.
    let twice = after(&[read(9, &["gate_0_4"], 0), read(10, &["gate_0_4"], 0)]);
    assert_eq!(twice, later);
}
