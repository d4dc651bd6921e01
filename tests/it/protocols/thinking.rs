//! Signed thinking over compactions: the upstream signs each block over everything before it, as
//! Anthropic documents, and refuses a block that comes back behind anything else. The conversation
//! keeps its decisions while limits, ratios, policies and instances change.

use std::net::SocketAddr;

use serde_json::{Value, json};
use weir::config::{Config, Secret};
use weir::proxy::learned::ratio_rows;
use weir_engine::compact::Policy;
use weir_store::Store;
use xxhash_rust::xxh3::xxh3_64;

use super::through::{post, unmarked, whole};
use super::validity;
use crate::eventually::{DEADLINE, eventually};
use crate::server::harness::{self, Message, Seen, Upstream, Weir, Wire};

const LIMIT_TOKENS: u64 = 4000;
const TURNS: usize = 64;
/// Model that is known to bind its thinking.
const BOUND: &str = "claude-opus-5-5";

/// Form in which a provider hands out signed thinking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Blocks of Messages.
    Messages,
    /// `reasoning_details` in chat completions.
    Details,
    /// `thinking_blocks` in chat completions.
    Blocks,
}

impl Form {
    fn path(self) -> &'static str {
        match self {
            Self::Messages => "/v1/messages",
            Self::Details | Self::Blocks => "/v1/chat/completions",
        }
    }

    /// Returns the reason for which a provider would refuse the body.
    fn check(self, body: &Value) -> Result<(), String> {
        match self {
            Self::Messages => validity::messages(body),
            Self::Details | Self::Blocks => answered_calls(body),
        }
    }
}

/// Checks that each call of chat completions is answered at once, and nothing else is.
fn answered_calls(body: &Value) -> Result<(), String> {
    let mut open: Vec<&Value> = Vec::new();
    for (place, message) in list(body).iter().enumerate() {
        if message["role"] == "tool" {
            let own = open.iter().position(|id| *id == &message["tool_call_id"]);
            open.remove(own.ok_or(format!("message {place} answers no call"))?);
            continue;
        }
        if !open.is_empty() {
            return Err(format!("message {place} stands where results are due"));
        }
        let calls = message["tool_calls"].as_array().into_iter().flatten();
        open.extend(calls.map(|call| &call["id"]));
    }
    if open.is_empty() { Ok(()) } else { Err("results are missing at the end".to_owned()) }
}

/// Signs the thinking that answers a request with these messages.
fn signature(body: &Value, messages: &[Value]) -> String {
    let signed = json!([body["system"], body["tools"], unmarked(&messages.into())]);
    format!("{:016x}", xxh3_64(signed.to_string().as_bytes()))
}

/// Returns the signatures in a message.
fn signatures(message: &Value) -> impl Iterator<Item = &Value> {
    let members = ["content", "reasoning_details", "thinking_blocks"].into_iter();
    let blocks = members.filter_map(|name| message[name].as_array()).flatten();
    blocks.map(|block| &block["signature"]).filter(|signature| signature.is_string())
}

fn list(body: &Value) -> &Vec<Value> {
    body["messages"].as_array().expect("a list")
}

/// Returns the position of the first message whose thinking was signed over something else.
fn first_foreign(body: &Value) -> Option<usize> {
    let messages = list(body);
    messages.iter().enumerate().position(|(place, message)| {
        let expected = signature(body, &messages[..place]);
        signatures(message).any(|signature| signature != &*expected)
    })
}

/// Answers that a block was signed over something else. A gateway quotes its provider's answer.
fn refuse(form: Form, seen: Seen, place: usize) {
    let message =
        format!("messages.{place}.content.0: thinking block is bound to a different conversation");
    let error =
        json!({"type": "error", "error": {"type": "invalid_request_error", "message": message}});
    let error = match form {
        Form::Messages => error,
        Form::Details | Form::Blocks => json!({"error": {"message": "Provider returned error",
            "code": 400, "metadata": {"raw": error.to_string()}}}),
    };
    let error = error.to_string();
    let length = error.len();
    seen.answer(format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{error}"
    ));
}

/// What came of an agent's run.
#[derive(Debug, Default, PartialEq, Eq)]
struct Run {
    /// Requests that the upstream refused for their thinking.
    refused: usize,
    /// Answers that reached the agent with the edit `thinking`.
    edited: usize,
    /// Thinking blocks that the upstream accepted.
    accepted: usize,
    compactions: usize,
    /// Those of them that came while the model worked.
    inside: usize,
}

/// Agent that sends all thinking back, with the upstream of its model. A word of its user comes every
/// ten turns, with a result, or in a message of its own after an answer.
struct Agent {
    form: Form,
    upstream: Upstream,
    /// Header with its caller's credential, if any.
    credential: &'static str,
    model: &'static str,
    tools: Value,
    /// Lines of each result.
    lines: usize,
    /// Number of turns until the model answers without a call; 0 if it never does.
    round: usize,
    limit_tokens: u64,
    /// Bytes for each token that the upstream reports; 0 reports none.
    bytes_per_token: usize,
    history: Vec<Value>,
    /// Messages of the last request that the upstream saw.
    before: Vec<Value>,
    turn: usize,
    run: Run,
}

impl Agent {
    async fn new(model: &'static str) -> Self {
        Self::of(Form::Messages, model).await
    }

    async fn of(form: Form, model: &'static str) -> Self {
        Self {
            form,
            upstream: Upstream::start().await,
            credential: "",
            model,
            tools: Value::Null,
            lines: 40,
            round: 0,
            limit_tokens: LIMIT_TOKENS,
            bytes_per_token: 0,
            history: vec![json!({"role": "user", "content": "Check every part."})],
            before: Vec::new(),
            turn: 0,
            run: Run::default(),
        }
    }

    fn body(&self) -> Value {
        let mut body = json!({"model": self.model, "max_tokens": 512, "messages": self.history});
        if self.form == Form::Messages {
            body["system"] = "Be careful.".into();
            body["thinking"] = json!({"type": "enabled", "budget_tokens": 256});
        }
        if !self.tools.is_null() {
            body["tools"] = self.tools.clone();
        }
        body
    }

    /// Takes turns through a weir until `turn`.
    async fn until(&mut self, turn: usize, address: SocketAddr) {
        let mut wire = Wire::connect(address).await;
        while self.turn < turn {
            self.take_turn(&mut wire).await;
        }
    }

    async fn take_turn(&mut self, wire: &mut Wire) -> Message {
        let turn = self.turn;
        let headers =
            format!("{}x-weir-max-input-tokens: {}\r\n", self.credential, self.limit_tokens);
        wire.send(post(self.form.path(), &headers, &self.body())).await;
        let said = loop {
            let seen = self.upstream.next().await;
            let sent: Value = serde_json::from_slice(&seen.body).expect("JSON");
            self.form.check(&sent).unwrap_or_else(|fault| panic!("turn {turn}: {fault}"));
            if let Some(place) = first_foreign(&sent) {
                self.run.refused += 1;
                refuse(self.form, seen, place);
                continue;
            }
            self.run.accepted += list(&sent).iter().flat_map(signatures).count();
            let now = list(&sent).clone();
            let is_compaction = !now.starts_with(&self.before);
            self.run.compactions += usize::from(is_compaction);
            self.run.inside += usize::from(is_compaction && !self.begins_round());
            self.before = now;
            let said = self.answer(&sent, seen.body.len());
            seen.answer(whole(&said));
            break said;
        };
        let reply = wire.message().await.expect("an answer");
        assert_eq!(reply.status(), 200, "turn {turn} of {}: {reply:?}", self.model);
        let edits = reply.header("x-weir-edits").unwrap_or_default();
        self.run.edited += usize::from(edits.split(',').any(|edit| edit == "thinking"));
        self.go_on(&said);
        reply
    }

    /// Whether this turn begins with the user's message after an answer.
    fn begins_round(&self) -> bool {
        self.round > 0 && self.turn.is_multiple_of(self.round)
    }

    /// Answers as a model that thinks, and calls a tool unless it has done its work.
    fn answer(&self, body: &Value, bytes: usize) -> Value {
        let turn = self.turn;
        let input_tokens = bytes.checked_div(self.bytes_per_token).unwrap_or(9);
        let signature = signature(body, list(body));
        let thinking = format!("Part {turn} is next. It may leak.");
        let (text, path) = (format!("I read part {turn}."), format!("src/part_{turn}.rs"));
        let id = format!("toolu_{turn}");
        if self.form == Form::Messages && self.ends_round() {
            return json!({
                "id": "msg_1", "type": "message", "role": "assistant", "stop_reason": "end_turn",
                "usage": {"input_tokens": input_tokens, "output_tokens": 1},
                "content": [
                    {"type": "thinking", "thinking": thinking, "signature": signature},
                    {"type": "text", "text": text},
                ],
            });
        }
        if self.form == Form::Messages {
            return json!({
                "id": "msg_1", "type": "message", "role": "assistant", "stop_reason": "tool_use",
                "usage": {"input_tokens": input_tokens, "output_tokens": 1},
                "content": [
                    {"type": "thinking", "thinking": thinking, "signature": signature},
                    {"type": "text", "text": text},
                    {"type": "tool_use", "id": id, "name": "read", "input": {"path": path}},
                ],
            });
        }
        let arguments = json!({"path": path}).to_string();
        let mut message = json!({"role": "assistant", "content": text, "tool_calls": [
            {"id": id, "type": "function", "function": {"name": "read", "arguments": arguments}}]});
        if self.form == Form::Details {
            message["reasoning"] = thinking.clone().into();
            message["reasoning_details"] =
                json!([{"type": "reasoning.text", "text": thinking, "signature": signature}]);
        } else {
            message["reasoning_content"] = thinking.clone().into();
            message["thinking_blocks"] =
                json!([{"type": "thinking", "thinking": thinking, "signature": signature}]);
        }
        json!({"id": "c", "object": "chat.completion", "choices": [{"index": 0, "message": message}],
               "usage": {"prompt_tokens": input_tokens, "completion_tokens": 1}})
    }

    /// Whether the answer of this turn calls nothing.
    fn ends_round(&self) -> bool {
        self.round > 0 && (self.turn + 1).is_multiple_of(self.round)
    }

    /// Adds an answer and the result of its call to the history, or the user's next message.
    fn go_on(&mut self, said: &Value) {
        let turn = self.turn;
        if self.ends_round() {
            let word = format!("Good. Now look at what follows part {turn}.");
            self.history.push(json!({"role": "assistant", "content": said["content"]}));
            self.history.push(json!({"role": "user", "content": word}));
            self.turn += 1;
            return;
        }
        let lines = (0..self.lines)
            .map(|line| format!("src/part_{turn}.rs:{line}: level {} held", turn * line));
        let output = lines.collect::<Vec<_>>().join("\n");
        let word = (turn % 10 == 9).then(|| format!("Mind part {turn} as well."));
        let id = format!("toolu_{turn}");
        if self.form == Form::Messages {
            self.history.push(json!({"role": "assistant", "content": said["content"]}));
            let mut blocks =
                vec![json!({"type": "tool_result", "tool_use_id": id, "content": output})];
            blocks.extend(word.map(|word| json!({"type": "text", "text": word})));
            self.history.push(json!({"role": "user", "content": blocks}));
        } else {
            self.history.push(said["choices"][0]["message"].clone());
            self.history.push(json!({"role": "tool", "tool_call_id": id, "content": output}));
            self.history.extend(word.map(|word| json!({"role": "user", "content": word})));
        }
        self.turn += 1;
    }

    /// Asserts the number of refusals, and that compactions happened and thinking stayed.
    fn assert_refused(&self, refused: usize) {
        let run = &self.run;
        assert_eq!(run.refused, refused, "{run:?}");
        assert!(run.compactions >= 3 && run.accepted > TURNS && run.edited > 0, "{run:?}");
    }
}

fn memory() -> Store {
    Store::in_memory().expect("there is memory")
}

async fn weir(agent: &Agent, store: &Store, change: impl FnOnce(&mut Config)) -> Weir {
    harness::start_with(store.clone(), &agent.upstream.address, change).await
}

/// Another policy than the default.
fn lower(config: &mut Config) {
    config.context.policy.low_permille = 500;
    config.context.policy.hard_permille = 900;
}

#[tokio::test]
async fn thinking_stays_valid_over_compactions() {
    let mut agent = Agent::new(BOUND).await;
    let weir = weir(&agent, &memory(), |_| {}).await;
    agent.until(TURNS, weir.address).await;
    agent.assert_refused(0);
}

/// Runs an agent whose user speaks every three turns, with this early mark.
async fn rounds(early_permille: u32) -> Run {
    let mut agent = Agent::new(BOUND).await;
    (agent.round, agent.lines) = (3, 8);
    let change = |config: &mut Config| config.context.policy.early_permille = early_permille;
    let weir = weir(&agent, &memory(), change).await;
    agent.until(6 * TURNS, weir.address).await;
    assert_eq!(agent.run.refused, 0, "{:?}", agent.run);
    assert!(agent.run.compactions >= 10 && agent.run.accepted > TURNS, "{:?}", agent.run);
    agent.run
}

#[tokio::test]
async fn compactions_come_with_the_user_s_messages() {
    let (late, early) = (rounds(0).await, rounds(Policy::default().early_permille).await);
    println!("compactions at the hard mark alone {late:?}, early {early:?}");
    assert!(late.inside * 2 > late.compactions, "{late:?}");
    assert!(early.inside * 4 <= late.inside, "{early:?} after {late:?}");
    assert!(early.compactions * 3 <= late.compactions * 4, "{early:?} after {late:?}");
}

#[tokio::test]
async fn a_model_that_binds_its_thinking_is_found_out_by_one_refusal() {
    let mut agent = Agent::new("claude-next").await;
    let store = memory();
    let one = weir(&agent, &store, |_| {}).await;
    agent.until(TURNS, one.address).await;
    assert_eq!(agent.run.refused, 1, "{:?}", agent.run);
    assert!(agent.run.compactions >= 3 && agent.run.accepted > TURNS, "{:?}", agent.run);
}

/// With weir's own key all callers are one account to the upstream.
fn shared(config: &mut Config) {
    config.upstream.provider_key = Some(Secret::new("sk-weirs-own-key-0123456789"));
}

#[tokio::test]
async fn a_binding_found_out_by_two_callers_holds_for_all() {
    let mut agent = Agent::new("claude-next").await;
    let weir = weir(&agent, &memory(), shared).await;
    for (credential, refused) in [
        ("authorization: Bearer sk-one\r\n", 1),
        ("authorization: Bearer sk-two\r\n", 1),
        ("authorization: Bearer sk-three\r\n", 0),
    ] {
        let upstream = agent.upstream;
        agent = Agent { upstream, credential, ..Agent::new("claude-next").await };
        agent.until(TURNS, weir.address).await;
        assert_eq!(agent.run.refused, refused, "{credential}{:?}", agent.run);
    }
}

#[tokio::test]
async fn a_refusal_in_the_words_of_a_request_teaches_nothing() {
    let mut agent = Agent::new("claude-next").await;
    let weir = weir(&agent, &memory(), |_| {}).await;
    let said =
        json!([{"role": "user", "content": "thinking is bound to a different conversation"}]);
    let body = json!({"model": agent.model, "max_tokens": 9, "messages": said});
    let request = post(agent.form.path(), "", &body);
    let asking = tokio::spawn(harness::ask(weir.address, request));
    // The upstream repeats them. Without thinking there is nothing to leave out.
    refuse(agent.form, agent.upstream.next().await, 0);
    assert_eq!(asking.await.expect("it is answered").status(), 400);
    assert!(agent.upstream.try_next().is_none(), "it is sent once");
    agent.until(TURNS, weir.address).await;
    assert_eq!(agent.run.refused, 1, "{:?}", agent.run);
}

#[tokio::test]
async fn a_ratio_learned_in_mid_conversation_refuses_nothing() {
    // The upstream counts more than weir, then less.
    for bytes_per_token in [2, 4] {
        let mut agent = Agent::new(BOUND).await;
        let store = memory();
        let weir = weir(&agent, &store, |_| {}).await;
        agent.until(24, weir.address).await;
        assert!(agent.run.compactions > 0, "{:?}", agent.run);
        agent.bytes_per_token = bytes_per_token;
        agent.until(34, weir.address).await;
        let rows = async || ratio_rows(&store, 10).await.expect("readable");
        eventually(DEADLINE, rows, |rows| !rows.is_empty()).await;
        let before = agent.run.compactions;
        agent.until(TURNS, weir.address).await;
        agent.assert_refused(0);
        assert!(agent.run.compactions > before, "{:?}", agent.run);
    }
}

#[tokio::test]
async fn a_reload_refuses_nothing() {
    let mut agent = Agent::new(BOUND).await;
    let weir = weir(&agent, &memory(), |_| {}).await;
    agent.until(30, weir.address).await;
    let mut config = Config::default();
    config.server.listen = ([127, 0, 0, 1], 0).into();
    config.upstream.url = format!("http://{}/v1", agent.upstream.address);
    lower(&mut config);
    let before = agent.run.compactions;
    weir.renewal.prepare(config).expect("a sound configuration")();
    agent.until(31, weir.address).await;
    assert_eq!(agent.run.compactions, before, "the prefix stays");
    agent.until(TURNS, weir.address).await;
    agent.assert_refused(0);
}

#[tokio::test]
async fn a_restart_refuses_nothing() {
    let mut agent = Agent::new(BOUND).await;
    let store = memory();
    let first = weir(&agent, &store, |_| {}).await;
    agent.until(30, first.address).await;
    drop(first);
    let before = agent.run.compactions;
    let second = weir(&agent, &store, lower).await;
    agent.until(31, second.address).await;
    assert_eq!(agent.run.compactions, before, "the prefix stays");
    agent.until(TURNS, second.address).await;
    agent.assert_refused(0);
}

#[tokio::test]
async fn instances_that_differ_refuse_nothing() {
    let mut agent = Agent::new(BOUND).await;
    let store = memory();
    let one = weir(&agent, &store, |_| {}).await;
    let other = weir(&agent, &store, lower).await;
    for turn in 1..=TURNS {
        let address = if turn % 2 == 0 { one.address } else { other.address };
        agent.until(turn, address).await;
    }
    agent.assert_refused(0);
}

#[tokio::test]
async fn a_lower_limit_refuses_nothing() {
    let mut agent = Agent::new(BOUND).await;
    let weir = weir(&agent, &memory(), |_| {}).await;
    agent.until(30, weir.address).await;
    agent.limit_tokens = 2500;
    agent.until(45, weir.address).await;
    agent.limit_tokens = LIMIT_TOKENS;
    agent.until(TURNS, weir.address).await;
    agent.assert_refused(0);
}

/// The size of tools is rounded up for compactions, so the first one shows a few requests late.
#[tokio::test]
async fn a_compaction_that_shows_late_refuses_nothing() {
    for said in [60, 75, 90] {
        let mut agent = Agent::new(BOUND).await;
        let description = "level ".repeat(said);
        agent.tools = json!([{"name": "read", "description": description,
                              "input_schema": {"type": "object"}}]);
        agent.lines = 1;
        let weir = weir(&agent, &memory(), |_| {}).await;
        agent.until(2 * TURNS, weir.address).await;
        assert_eq!(agent.run.refused, 0, "{:?}", agent.run);
        assert!(agent.run.compactions > 0 && agent.run.edited > 0, "{:?}", agent.run);
    }
}

#[tokio::test]
async fn signed_reasoning_in_chat_completions_stays_valid_over_compactions() {
    for form in [Form::Details, Form::Blocks] {
        let mut agent = Agent::of(form, "anthropic/claude-opus-5.5").await;
        let store = memory();
        let one = weir(&agent, &store, |_| {}).await;
        agent.until(30, one.address).await;
        let other = weir(&agent, &store, lower).await;
        for turn in 31..=TURNS {
            let address = if turn % 2 == 0 { one.address } else { other.address };
            agent.until(turn, address).await;
        }
        agent.assert_refused(0);
    }
}

#[tokio::test]
async fn a_refusal_of_signed_reasoning_in_chat_completions_is_repaired_once() {
    for form in [Form::Details, Form::Blocks] {
        let mut agent = Agent::of(form, "router/next").await;
        let weir = weir(&agent, &memory(), |_| {}).await;
        agent.until(TURNS, weir.address).await;
        agent.assert_refused(1);
    }
}

#[tokio::test]
async fn reasoning_of_other_models_in_chat_completions_stays_with_its_message() {
    let mut agent = Agent::of(Form::Details, "deepseek-reasoner").await;
    let weir = weir(&agent, &memory(), |_| {}).await;
    let mut wire = Wire::connect(weir.address).await;
    let mut compactions = 0;
    for turn in 0..TURNS {
        let headers = format!("x-weir-max-input-tokens: {LIMIT_TOKENS}\r\n");
        wire.send(post(agent.form.path(), &headers, &agent.body())).await;
        let seen = agent.upstream.next().await;
        let sent: Value = serde_json::from_slice(&seen.body).expect("JSON");
        answered_calls(&sent).unwrap_or_else(|fault| panic!("turn {turn}: {fault}"));
        for message in list(&sent).iter().filter(|message| message["role"] == "assistant") {
            let is_own =
                |own: &&Value| own["tool_calls"][0]["id"] == message["tool_calls"][0]["id"];
            let own = agent.history.iter().find(is_own).expect("it was received");
            assert_eq!(message["reasoning_content"], own["reasoning_content"], "turn {turn}");
            assert!(message["reasoning_content"].is_string(), "turn {turn}");
        }
        compactions += usize::from(!list(&sent).starts_with(&agent.before));
        agent.before = list(&sent).clone();
        let mut said = agent.answer(&sent, 9);
        let message = &mut said["choices"][0]["message"];
        message["reasoning_content"] = message["reasoning"].take();
        for name in ["reasoning", "reasoning_details"] {
            message.as_object_mut().expect("an object").remove(name);
        }
        seen.answer(whole(&said));
        assert_eq!(wire.message().await.expect("an answer").status(), 200);
        agent.go_on(&said);
    }
    assert!(compactions >= 3, "{compactions}");
}
