//! Simulated applications: how each one's history grows, changes and is sent. The same on every
//! run; contains no expectation about weir's results.

use std::fmt::Write as _;

use super::harness::{MODEL, SMALL_MODEL};

/// Number of requests of a client.
const REQUESTS: usize = 60;
const LIMIT_TOKENS: u64 = 6000;

/// A client and all its requests, in order.
pub struct Client {
    pub name: &'static str,
    /// Value of `x-weir-max-input-tokens`.
    pub limit_tokens: u64,
    /// Number of changes to the room for its messages: by tools or by the answer's length.
    pub limit_changes: usize,
    pub requests: Vec<Request>,
}

pub struct Request {
    /// Index of the client's conversation.
    pub conversation: usize,
    pub body: String,
}

/// Returns all clients, by their special behaviour.
pub fn clients() -> Vec<Client> {
    vec![
        agent(),
        chat(),
        edited(),
        regenerated(),
        ephemeral(),
        pruning(),
        sliding(),
        growing_tools(),
        max_tokens("max_tokens varies a little", &[1024, 900, 1000, 1010]),
        max_tokens("max_tokens varies widely", &[2000, 256, 1000, 700]),
        two_agents(),
        summary(),
    ]
}

/// Runs tool loops of several turns after each question.
pub fn agent() -> Client {
    let mut client = Simulation::new("agent, appends only");
    let mut history = client.opening();
    for request in 0..REQUESTS {
        client.send(&history);
        client.step(&mut history, request);
    }
    client.done()
}

/// Exchanges questions and answers.
fn chat() -> Client {
    let mut client = Simulation::new("chat, appends only");
    let mut history = client.opening();
    for _ in 0..REQUESTS {
        client.send(&history);
        client.exchange(&mut history);
    }
    client.done()
}

/// Goes back two exchanges now and then, and asks a different question there.
fn edited() -> Client {
    let mut client = Simulation::new("edited message");
    let mut history = client.opening();
    for request in 0..REQUESTS {
        client.send(&history);
        client.exchange(&mut history);
        if request % 6 == 5 {
            history.truncate(history.len() - 5);
            history.push(client.said("user", 20, 90));
        }
    }
    client.done()
}

/// Asks again now and then, and continues from the second answer.
fn regenerated() -> Client {
    let mut client = Simulation::new("regenerated message");
    let mut history = client.opening();
    for request in 0..REQUESTS {
        client.send(&history);
        if request % 4 != 3 {
            client.exchange(&mut history);
        }
    }
    client.done()
}

/// Reports the current state in a last message that no later request repeats.
fn ephemeral() -> Client {
    let mut client = Simulation::new("ephemeral last message");
    let mut history = client.opening();
    for request in 0..REQUESTS {
        let state = client.said("user", 60, 120);
        client.send(&[&history[..], &[state]].concat());
        client.step(&mut history, request);
    }
    client.done()
}

/// Empties its older tool results now and then.
fn pruning() -> Client {
    let mut client = Simulation::new("prunes its own results");
    let mut history = client.opening();
    for request in 0..REQUESTS {
        client.send(&history);
        client.step(&mut history, request);
        if request % 8 == 7 {
            let newest = history.len() - 8;
            for message in &mut history[..newest] {
                if let Some((frame, _)) = message.split_once(r#","content":"#)
                    && message.starts_with(r#"{"role":"tool""#)
                {
                    *message = format!(r#"{frame},"content":"[old result cleared]"}}"#);
                }
            }
        }
    }
    client.done()
}

/// Sends only its system message and the newest messages.
fn sliding() -> Client {
    let mut client = Simulation::new("own sliding window");
    let mut history = client.opening();
    for request in 0..REQUESTS {
        let mut from = history.len().saturating_sub(40).max(1);
        while history[from].starts_with(r#"{"role":"tool""#) {
            from += 1;
        }
        client.send(&[&history[..1], &history[from..]].concat());
        client.step(&mut history, request);
    }
    client.done()
}

/// Gains one more tool now and then.
fn growing_tools() -> Client {
    let mut client = Simulation::new("growing tool list");
    let mut history = client.opening();
    for request in 0..REQUESTS {
        let tools = 1 + request / 6;
        client.limit_changes += usize::from(tools > client.tools);
        client.tools = tools;
        client.send(&history);
        client.step(&mut history, request);
    }
    client.done()
}

/// Requests answers of different lengths from a model whose small window makes this matter.
fn max_tokens(name: &'static str, lengths: &[u64]) -> Client {
    let mut client = Simulation::new(name);
    (client.model, client.limit_tokens) = (SMALL_MODEL, 100_000);
    let mut history = client.opening();
    for request in 0..REQUESTS {
        let most = Some(lengths[request % lengths.len()]);
        let class = |most: Option<u64>| most.map(u64::next_power_of_two);
        client.limit_changes += usize::from(class(most) != class(client.max_tokens));
        client.max_tokens = most;
        client.send(&history);
        client.step(&mut history, request);
    }
    client.done()
}

/// Runs two agents under one system message, in turns.
fn two_agents() -> Client {
    let mut client = Simulation::new("two agents, one system prompt");
    let first = client.opening();
    let second = vec![first[0].clone(), client.said("user", 60, 120)];
    let mut histories = [first, second];
    for request in 0..REQUESTS {
        client.conversation = request % 2;
        let history = &mut histories[request % 2];
        client.send(history);
        client.step(history, request / 2);
    }
    client.done()
}

/// Begins with its own summary of the past, and summarises again now and then.
fn summary() -> Client {
    let mut client = Simulation::new("opens with its own summary");
    let mut history = client.opening();
    for request in 0..REQUESTS {
        if request % 20 == 0 {
            history.truncate(1);
            history.push(client.said("user", 300, 400));
        }
        client.send(&history);
        client.step(&mut history, request);
    }
    client.done()
}

/// Client in progress.
struct Simulation {
    name: &'static str,
    model: &'static str,
    limit_tokens: u64,
    limit_changes: usize,
    conversation: usize,
    tools: usize,
    max_tokens: Option<u64>,
    requests: Vec<Request>,
    calls: usize,
    state: u64,
}

impl Simulation {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            model: MODEL,
            limit_tokens: LIMIT_TOKENS,
            limit_changes: 0,
            conversation: 0,
            tools: 1,
            max_tokens: None,
            requests: Vec::new(),
            calls: 0,
            state: name.bytes().fold(0x9e37_79b9, |state, byte| {
                state.wrapping_mul(31).wrapping_add(u64::from(byte))
            }),
        }
    }

    fn done(self) -> Client {
        let Self { name, limit_tokens, limit_changes, requests, .. } = self;
        Client { name, limit_tokens, limit_changes, requests }
    }

    fn send(&mut self, messages: &[String]) {
        let tools: Vec<String> = (0..self.tools).map(tool).collect();
        let max_tokens =
            self.max_tokens.map_or_else(String::new, |most| format!(r#""max_tokens":{most},"#));
        let body = format!(
            r#"{{"model":"{}",{max_tokens}"tools":[{}],"messages":[{}]}}"#,
            self.model,
            tools.join(","),
            messages.join(",")
        );
        self.requests.push(Request { conversation: self.conversation, body });
    }

    /// Returns a number from `least` to below `end`, by xorshift.
    fn number(&mut self, least: usize, end: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        least + (self.state % (end - least) as u64) as usize
    }

    fn words(&mut self, least: usize, end: usize) -> String {
        const WORDS: [&str; 16] = [
            "weir", "river", "level", "wall", "gate", "water", "bank", "flow", "stone", "spill",
            "pool", "fish", "mill", "wheel", "flood", "reed",
        ];
        let mut text = String::new();
        for _ in 0..self.number(least, end) {
            let number = self.number(0, 100);
            let _ = match WORDS.get(number) {
                Some(word) => write!(text, "{word} "),
                None => write!(text, "{} {number} ", WORDS[number % 16]),
            };
        }
        text
    }

    fn said(&mut self, role: &str, least: usize, end: usize) -> String {
        let text = self.words(least, end);
        format!(r#"{{"role":"{role}","content":"{text}"}}"#)
    }

    /// Builds a system message and a first question.
    fn opening(&mut self) -> Vec<String> {
        vec![self.said("system", 100, 200), self.said("user", 60, 120)]
    }

    fn exchange(&mut self, history: &mut Vec<String>) {
        history.push(self.said("assistant", 40, 200));
        history.push(self.said("user", 20, 90));
    }

    /// Adds an agent's step: a turn with calls, or now and then an answer and the next question.
    fn step(&mut self, history: &mut Vec<String>, step: usize) {
        if step % 9 == 8 {
            return self.exchange(history);
        }
        let calls: Vec<usize> = (0..self.number(1, 3)).map(|call| self.calls + call).collect();
        self.calls += calls.len();
        let asked: Vec<String> = calls.iter().map(|call| self.call(*call)).collect();
        history.push(format!(
            r#"{{"role":"assistant","content":null,"tool_calls":[{}]}}"#,
            asked.join(",")
        ));
        for call in calls {
            let end = if self.number(0, 8) == 0 { 900 } else { 220 };
            let text = self.words(30, end);
            history.push(format!(
                r#"{{"role":"tool","tool_call_id":"call_{call}","content":"{text}"}}"#
            ));
        }
    }

    fn call(&mut self, call: usize) -> String {
        let path = self.number(0, 40);
        format!(
            r#"{{"id":"call_{call}","type":"function","function":{{"name":"tool_0","arguments":"{{\"path\":\"a/{path}.rs\"}}"}}}}"#
        )
    }
}

fn tool(number: usize) -> String {
    format!(
        r#"{{"type":"function","function":{{"name":"tool_{number}","description":"Reads what tool {number} can read.","parameters":{{"type":"object","properties":{{"path":{{"type":"string"}}}}}}}}}}"#
    )
}
