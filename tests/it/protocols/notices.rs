//! Agents that add a system message to each request, or declare their tools again: they stay within their
//! limit, keep several turns, and their prefix breaks no more often.

use serde_json::{Value, json};

use super::through::{output, post, whole};
use super::validity;
use crate::server::harness::{self, Upstream, Wire};

const REQUESTS: usize = 300;
const LIMIT_TOKENS: u64 = 4000;

/// Agent of one protocol.
struct Agent {
    path: &'static str,
    list: &'static str,
    /// Adds a call and its result.
    turn: fn(usize) -> Vec<Value>,
    /// Makes a system message.
    notice: fn(String) -> Value,
    check: fn(&Value) -> Result<(), String>,
}

fn short(turn: usize) -> String {
    output(turn).lines().take(8).collect::<Vec<_>>().join("\n")
}

const AGENTS: [Agent; 3] = [
    Agent {
        path: "/v1/chat/completions",
        list: "messages",
        turn: |nth| {
            let call = json!({"id": format!("c{nth}"), "type": "function",
                "function": {"name": "read", "arguments": "{}"}});
            vec![
                json!({"role": "assistant", "content": null, "tool_calls": [call]}),
                json!({"role": "tool", "tool_call_id": format!("c{nth}"), "content": short(nth)}),
            ]
        },
        notice: |text| json!({"role": "system", "content": text}),
        check: |_| Ok(()),
    },
    Agent {
        path: "/v1/responses",
        list: "input",
        turn: |nth| {
            vec![
                json!({"type": "function_call", "call_id": format!("c{nth}"), "name": "read", "arguments": "{}"}),
                json!({"type": "function_call_output", "call_id": format!("c{nth}"), "output": short(nth)}),
            ]
        },
        notice: |text| json!({"type": "message", "role": "developer", "content": [{"type": "input_text", "text": text}]}),
        check: validity::responses,
    },
    Agent {
        path: "/v1/messages",
        list: "messages",
        turn: |nth| {
            let id = format!("toolu_{nth}");
            vec![
                json!({"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": "read", "input": {}}]}),
                json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": short(nth)}]}),
            ]
        },
        notice: |text| json!({"role": "system", "content": text}),
        check: validity::messages,
    },
];

impl Agent {
    fn first(&self) -> Value {
        let mut body = json!({"model": "claude-opus-4-8", "max_tokens": 256,
            (self.list): [{"role": "user", "content": "Check every part."}]});
        if self.path == "/v1/responses" {
            body = json!({"model": "gpt-4o", "store": false, "instructions": "Be careful.",
                "input": [{"type": "message", "role": "user", "content": "Check every part."}]});
        }
        body
    }

    /// Runs the agent. Returns the number of prefix breaks and the least number of results sent after the
    /// first compaction.
    async fn run(&self, with_notices: bool) -> (usize, usize) {
        let mut upstream = Upstream::start().await;
        let weir = harness::start(&upstream.address, |_| {}).await;
        let mut wire = Wire::connect(weir.address).await;
        let mut body = self.first();
        let (mut before, mut breaks, mut least): (Vec<Value>, _, _) = (Vec::new(), 0, usize::MAX);
        for nth in 0..REQUESTS {
            let list = body[self.list].as_array_mut().expect("a list");
            list.extend(if nth == 0 { Vec::new() } else { (self.turn)(nth) });
            if with_notices {
                let left = 9_000_000 - 1234 * nth;
                list.push((self.notice)(format!(
                    "<reminder id=\"r{nth}\">{left} tokens are left of your budget.</reminder>"
                )));
            }
            let headers = format!("x-weir-max-input-tokens: {LIMIT_TOKENS}\r\n");
            wire.send(post(self.path, &headers, &body)).await;
            let seen = upstream.next().await;
            let sent: Value = serde_json::from_slice(&seen.body).expect("JSON");
            seen.answer(whole(&json!({"object": "x"})));
            let answer = wire.message().await.expect("an answer");
            assert_eq!(answer.status(), 200, "request {nth} of {}", self.path);
            (self.check)(&sent).unwrap_or_else(|fault| panic!("{nth}: {fault}: {sent:.3000}"));
            let sent = sent[self.list].as_array().expect("a list");
            assert_eq!(sent.last(), body[self.list].as_array().and_then(|list| list.last()));
            breaks += usize::from(!sent.starts_with(&before));
            if breaks > 0 {
                let is_result = |own: &&Value| {
                    let text = own.to_string();
                    text.contains("tool_call_id")
                        || text.contains("function_call_output")
                        || text.contains("tool_result")
                };
                least = least.min(sent.iter().filter(is_result).count());
            }
            before.clone_from(sent);
        }
        (breaks, least)
    }
}

#[tokio::test]
async fn a_notice_with_each_request_displaces_no_turns() {
    for agent in AGENTS {
        let (without, least_without) = agent.run(false).await;
        let (with, least) = agent.run(true).await;
        println!("{}: {with} breaks with notices, {without} without", agent.path);
        assert!(without >= 3 && least >= least_without, "{}: {least}, {least_without}", agent.path);
        // A notice takes a fifth of a request's tokens, and as much less is left until the next compaction.
        assert!(with * 3 <= without * 4 + 3, "{}: {with}, {without}", agent.path);
    }
}

#[tokio::test]
async fn of_tools_that_are_declared_again_the_newest_stay() {
    let agent = &AGENTS[1];
    let tools = |nth: usize| {
        let tool = |own: usize| {
            json!({"type": "function", "name": format!("tool_{own}"), "parameters": {"type": "object"},
                "description": "Reads the level of a gate, and says how it changed. ".repeat(10)})
        };
        json!({"type": "additional_tools", "id": format!("at_{nth}"), "role": "developer",
            "tools": (0..80).map(tool).collect::<Vec<_>>()})
    };
    let mut upstream = Upstream::start().await;
    let weir = harness::start(&upstream.address, |_| {}).await;
    let mut wire = Wire::connect(weir.address).await;
    let mut body = agent.first();
    for nth in 0..60 {
        let list = body["input"].as_array_mut().expect("a list");
        if nth == 0 {
            list.insert(0, tools(0));
        } else {
            list.extend((agent.turn)(nth));
        }
        if nth > 0 && nth % 10 == 0 {
            list.push(tools(nth));
            list.push(json!({"type": "message", "role": "user", "content": "Go on."}));
        }
        wire.send(post(agent.path, "x-weir-max-input-tokens: 30000\r\n", &body)).await;
        let seen = upstream.next().await;
        let sent = String::from_utf8(seen.body.to_vec()).expect("text");
        seen.answer(whole(&json!({"object": "x"})));
        assert_eq!(wire.message().await.expect("an answer").status(), 200, "request {nth}");
        assert!(sent.contains(&format!("at_{}\"", nth / 10 * 10)), "{nth}: the newest tools stay");
        assert!(sent.contains("Be careful."), "{nth}");
    }
}

/// System text with a counter, a hash and a clock that change with each request.
fn volatile(nth: usize) -> String {
    let hash = xxhash_rust::xxh3::xxh3_64(&nth.to_le_bytes());
    let (hour, minute) = (nth / 60, nth % 60);
    format!(
        "billing: version=2.1.{nth}; cch={hash:016x};\nYou are careful. It is {hour:02}:{minute:02}, request {nth}, level {}.",
        7 * nth
    )
}

/// Sends a growing conversation under a system text of each request's own. Returns what is sent behind it.
async fn sent_under(agent: &Agent, system: impl Fn(usize) -> String) -> Vec<Vec<Value>> {
    let mut upstream = Upstream::start().await;
    let weir = harness::start(&upstream.address, |_| {}).await;
    let mut wire = Wire::connect(weir.address).await;
    let mut body = agent.first();
    let mut all = Vec::new();
    for nth in 0..80 {
        let list = body[agent.list].as_array_mut().expect("a list");
        list.extend(if nth == 0 { Vec::new() } else { (agent.turn)(nth) });
        let mut body = body.clone();
        match agent.path {
            "/v1/messages" => body["system"] = json!([{"type": "text", "text": system(nth)}]),
            "/v1/responses" => body["instructions"] = system(nth).into(),
            _ => {
                let list = body["messages"].as_array_mut().expect("a list");
                list.insert(0, json!({"role": "system", "content": system(nth)}));
            }
        }
        wire.send(post(agent.path, "x-weir-max-input-tokens: 2000\r\n", &body)).await;
        let seen = upstream.next().await;
        let sent: Value = serde_json::from_slice(&seen.body).expect("JSON");
        seen.answer(whole(&json!({"object": "x"})));
        assert_eq!(wire.message().await.expect("an answer").status(), 200, "request {nth}");
        let mut sent = sent[agent.list].as_array().expect("a list").clone();
        sent.retain(|message| message["role"] != "system");
        all.push(sent);
    }
    all
}

#[tokio::test]
async fn a_system_text_that_changes_with_each_request_moves_no_byte_behind_it() {
    for agent in AGENTS {
        let volatile = sent_under(&agent, volatile).await;
        let stable = sent_under(&agent, |_| self::volatile(33)).await;
        let breaks = |all: &[Vec<Value>]| {
            all.windows(2).filter(|pair| !pair[1].starts_with(&pair[0])).count()
        };
        println!("{}: {} breaks, {} stable", agent.path, breaks(&volatile), breaks(&stable));
        assert!(breaks(&stable) >= 3, "{}", agent.path);
        assert_eq!(breaks(&volatile), breaks(&stable), "{}", agent.path);
    }
}
