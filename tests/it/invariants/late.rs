//! Late results: all that names an earlier block is sent with it, or neither is. The judge reads JSON
//! alone, and shares no code with weir.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::{Value, json};
use weir_engine::wire::Protocol;

use super::harness::{Weir, check};

/// Growing conversation of one protocol: the messages that are added between two requests.
#[derive(Debug, Clone)]
struct Growing {
    protocol: Protocol,
    steps: Vec<Step>,
    limit_tokens: u64,
    /// Whether each call has an ID of its own; otherwise a few IDs come again and again.
    has_own_ids: bool,
}

/// What a model does next.
#[derive(Debug, Clone, Copy)]
struct Step {
    kind: u8,
    /// Number of other calls and results before the late one.
    others: u8,
    words: u8,
    says: bool,
}

fn growing(protocol: Protocol) -> impl Strategy<Value = Growing> {
    let step = (0..6u8, 0..4u8, 5..60u8, any::<bool>())
        .prop_map(|(kind, others, words, says)| Step { kind, others, words, says });
    let steps = prop::collection::vec(step, 3..14);
    // Items of unknown size count as 150 tokens each, and a program or an approval with its results stays
    // whole.
    (steps, 900..2000u64, prop::bool::weighted(0.9)).prop_map(
        move |(steps, limit_tokens, has_own_ids)| Growing {
            protocol,
            steps,
            limit_tokens,
            has_own_ids,
        },
    )
}

/// Writes a conversation, and remembers where requests end.
struct Writer {
    protocol: Protocol,
    list: Vec<Value>,
    ends: Vec<usize>,
    ids: usize,
    has_own_ids: bool,
}

impl Writer {
    fn id(&mut self) -> String {
        self.ids += 1;
        let own = if self.has_own_ids { self.ids } else { self.ids % 7 };
        format!("id_{own}")
    }

    fn words(&self, count: u8) -> String {
        let nth = self.list.len();
        (0..count).map(|word| format!("gate{nth} level{word}")).collect::<Vec<_>>().join(" ")
    }

    /// Adds an assistant's message of these blocks; in OpenAI's protocols the blocks are items or calls.
    fn says(&mut self, blocks: Vec<Value>) {
        match self.protocol {
            Protocol::Messages => {
                self.list.push(json!({"role": "assistant", "content": blocks}));
            }
            Protocol::Responses => self.list.extend(blocks),
            Protocol::Chat => self
                .list
                .push(json!({"role": "assistant", "content": "I look.", "tool_calls": blocks})),
        }
    }

    fn call(&self, id: &str, program: Option<&str>) -> Value {
        let input = json!({"path": "src/gate.rs"});
        let mut call = match self.protocol {
            Protocol::Messages => {
                json!({"type": "tool_use", "id": id, "name": "bash", "input": input})
            }
            Protocol::Responses => {
                json!({"type": "function_call", "call_id": id, "name": "bash", "arguments": input.to_string()})
            }
            Protocol::Chat => {
                json!({"id": id, "type": "function", "function": {"name": "bash", "arguments": input.to_string()}})
            }
        };
        if let Some(program) = program {
            call["caller"] = match self.protocol {
                Protocol::Messages => json!({"type": "code_execution", "tool_id": program}),
                _ => json!({"type": "program", "caller_id": program}),
            };
        }
        call
    }

    /// Adds a result of the client, and ends a request behind it.
    fn result(&mut self, id: &str, words: u8, reminds: bool) {
        let text = self.words(words);
        self.list.push(match self.protocol {
            Protocol::Messages => {
                let mut blocks =
                    vec![json!({"type": "tool_result", "tool_use_id": id, "content": text})];
                if reminds {
                    blocks.push(json!({"type": "text", "text": "Reminder: is the list current?"}));
                }
                json!({"role": "user", "content": blocks})
            }
            Protocol::Responses => {
                json!({"type": "function_call_output", "call_id": id, "output": text})
            }
            Protocol::Chat => json!({"role": "tool", "tool_call_id": id, "content": text}),
        });
        self.ends.push(self.list.len());
    }

    fn user(&mut self, words: u8) {
        let text = self.words(words);
        self.list.push(json!({"role": "user", "content": text}));
        self.ends.push(self.list.len());
    }

    /// Adds calls that are answered at once.
    fn others(&mut self, step: Step, program: Option<&str>) {
        for _ in 0..step.others {
            let id = self.id();
            self.says(vec![self.call(&id, program)]);
            self.result(&id, step.words, step.says);
        }
    }

    /// Adds a call of a server's tool, next to a client's, whose result comes later.
    fn server_tool(&mut self, step: Step, call: &str, result: &str) {
        let (id, own) = (self.id(), self.id());
        let mut blocks = vec![
            json!({"type": call, "id": id, "name": "advisor", "input": {}}),
            self.call(&own, None),
        ];
        if step.kind == 3 {
            blocks.truncate(1);
        }
        self.says(blocks);
        if step.kind != 3 {
            self.result(&own, step.words, step.says);
            self.others(step, None);
        }
        let own = self.id();
        let text = self.words(step.words);
        self.says(vec![
            json!({"type": result, "tool_use_id": id, "content": {"type": "advice", "text": text}}),
            json!({"type": "text", "text": "I go on."}),
            self.call(&own, None),
        ]);
        self.result(&own, step.words, step.says);
    }

    fn program(&mut self, step: Step) {
        let (id, own) = (self.id(), self.id());
        let is_messages = self.protocol == Protocol::Messages;
        let call = match is_messages {
            true => {
                json!({"type": "server_tool_use", "id": id, "name": "code_execution", "input": {"code": "run()"}})
            }
            false => {
                json!({"type": "program", "id": format!("p_{id}"), "call_id": id, "code": "run()"})
            }
        };
        self.says(vec![call, self.call(&own, Some(&id))]);
        self.result(&own, step.words, false);
        self.others(Step { says: false, ..step }, Some(&id));
        let text = self.words(step.words);
        self.says(vec![match is_messages {
            true => {
                json!({"type": "code_execution_tool_result", "tool_use_id": id, "content": {"type": "code_execution_result", "stdout": text}})
            }
            false => json!({"type": "program_output", "call_id": id, "result": text}),
        }]);
    }

    /// Adds a call that is answered after others.
    fn background(&mut self, step: Step) {
        let id = self.id();
        self.says(vec![self.call(&id, None)]);
        self.others(step, None);
        self.result(&id, step.words, step.says);
    }

    fn approval(&mut self, step: Step) {
        let id = self.id();
        self.says(vec![
            json!({"type": "mcp_approval_request", "id": id, "name": "open", "arguments": "{}", "server_label": "s"}),
        ]);
        self.others(step, None);
        self.list.push(
            json!({"type": "mcp_approval_response", "approval_request_id": id, "approve": true}),
        );
        self.ends.push(self.list.len());
        self.says(vec![
            json!({"type": "mcp_call", "id": format!("m_{id}"), "approval_request_id": id, "name": "open", "arguments": "{}", "server_label": "s", "output": "done"}),
        ]);
    }

    fn step(&mut self, step: Step) {
        let is_messages = self.protocol == Protocol::Messages;
        match (step.kind, self.protocol) {
            (0, _) => self.others(Step { others: 1, ..step }, None),
            (1, _) if is_messages => {
                self.server_tool(step, "server_tool_use", "advisor_tool_result");
            }
            (2, _) if is_messages => self.server_tool(step, "new_use", "new_result"),
            (3, _) if is_messages => {
                self.server_tool(step, "server_tool_use", "web_search_tool_result");
            }
            (1, Protocol::Responses) => self.approval(step),
            (4, Protocol::Messages | Protocol::Responses) => self.program(step),
            (5, _) => self.user(step.words),
            _ if is_messages => self.others(step, None),
            _ => self.background(step),
        }
    }
}

impl Growing {
    fn written(&self) -> Writer {
        let mut writer = Writer {
            protocol: self.protocol,
            list: Vec::new(),
            ends: Vec::new(),
            ids: 0,
            has_own_ids: self.has_own_ids,
        };
        writer.user(6);
        for step in &self.steps {
            writer.step(*step);
        }
        writer
    }

    fn body(&self, list: &[Value]) -> Value {
        match self.protocol {
            Protocol::Messages => {
                json!({"model": "claude-sonnet-4-5", "max_tokens": 64, "messages": list})
            }
            Protocol::Responses => json!({"model": "gpt-4o", "input": list}),
            Protocol::Chat => json!({"model": "gpt-4o", "messages": list}),
        }
    }
}

/// Blocks of a body by ID: how many have it, and how many name it before one with it and after.
#[derive(Default)]
struct Names {
    own: BTreeMap<String, usize>,
    named: BTreeMap<String, usize>,
    without_block: BTreeSet<String>,
}

impl Names {
    fn of(value: &Value) -> Self {
        let mut names = Self::default();
        names.add(value);
        names
    }

    fn add(&mut self, value: &Value) {
        if let Value::Array(list) = value {
            return list.iter().for_each(|own| self.add(own));
        }
        let Value::Object(members) = value else { return };
        let text = |name: &str| members.get(name).and_then(Value::as_str).map(str::to_owned);
        let kind = text("type").unwrap_or_default();
        let is_answer = kind.ends_with("_output") || kind.ends_with("_result");
        let call_id = text("call_id");
        let own = text("id").filter(|_| call_id.is_none() && kind != "mcp_call");
        let own = own.or_else(|| call_id.clone().filter(|_| !is_answer));
        if let Some(own) = own {
            *self.own.entry(own).or_default() += 1;
        }
        let others = ["tool_use_id", "tool_id", "caller_id", "approval_request_id", "tool_call_id"];
        let named = others.iter().filter_map(|name| text(name));
        for id in named.chain(call_id.filter(|_| is_answer)) {
            if !self.own.contains_key(&id) {
                self.without_block.insert(id.clone());
            }
            *self.named.entry(id).or_default() += 1;
        }
        ["content", "caller", "tool_calls"]
            .iter()
            .filter_map(|name| members.get(*name))
            .for_each(|own| self.add(own));
    }
}

/// Returns why a provider refuses what is sent, although it takes what was received.
fn fault(received: &Value, sent: &Value) -> Result<(), String> {
    let (received, sent) = (Names::of(received), Names::of(sent));
    if let Some(id) = sent.without_block.difference(&received.without_block).next() {
        return Err(format!("{id} is named, but its block is gone"));
    }
    for (id, blocks) in &sent.own {
        let of = |names: &Names| {
            (names.own.get(id).copied(), names.named.get(id).copied().unwrap_or_default())
        };
        let (all_blocks, all_named) = of(&received);
        let (_, named) = of(&sent);
        // All blocks with one ID stay, so all that names them does.
        if Some(*blocks) == all_blocks && named < all_named {
            return Err(format!("{id} is sent without what names it"));
        }
    }
    Ok(())
}

fn stays_paired(growing: &Growing) -> Result<(), String> {
    let weir = Weir::new();
    let written = growing.written();
    let name = if growing.protocol == Protocol::Responses { "input" } else { "messages" };
    for end in written.ends {
        let received = growing.body(&written.list[..end]);
        let planned = weir.plan_as(growing.protocol, &received.to_string(), growing.limit_tokens);
        let planned = planned.map_err(|error| format!("refused at {end}: {error:?}"))?;
        let Some(sent) = planned.body else { continue };
        let sent: Value = serde_json::from_slice(&sent).map_err(|error| error.to_string())?;
        fault(&received[name], &sent[name])
            .map_err(|fault| format!("request of {end}: {fault}\n{sent}"))?;
    }
    Ok(())
}

#[test]
fn late_results_stay_with_their_calls_in_messages() {
    check("late, Messages", 150, &growing(Protocol::Messages), stays_paired);
}

#[test]
fn late_outputs_stay_with_their_calls_in_responses() {
    check("late, Responses", 150, &growing(Protocol::Responses), stays_paired);
}

#[test]
fn late_results_stay_with_their_calls_in_chat() {
    check("late, chat", 150, &growing(Protocol::Chat), stays_paired);
}
