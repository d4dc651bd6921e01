//! Room after compactions: each compaction leaves the growth that the policy promises. Checks how
//! often an agent's conversation is compacted and how much each compaction leaves, with long system
//! texts and many tools as well.
//! `cargo test --test it bursts -- --nocapture` prints the table.

use std::fmt::Write as _;

use super::fits::{newest_from, tools_tokens};
use super::frozen::requests;
use super::generate::{self, Case};
use super::harness::{MODEL, Weir, check};
use super::judge::Body;

const REQUESTS: usize = 60;
/// Maximum share of the limit that a compaction leaves if it could leave less, in percent.
const MOST_LEFT_PERCENT: u64 = 85;

/// Agent that makes one call per request and reads a result of about 900 tokens.
struct Agent {
    name: &'static str,
    tools_tokens: u64,
    system_tokens: u64,
    limit_tokens: u64,
    most_compactions: usize,
}

const AGENTS: [Agent; 3] = [
    Agent {
        name: "8K tools, 2K system, limit 16K",
        tools_tokens: 8000,
        system_tokens: 2000,
        limit_tokens: 16_000,
        most_compactions: 18,
    },
    Agent {
        name: "4K tools, 1K system, limit 12K",
        tools_tokens: 4000,
        system_tokens: 1000,
        limit_tokens: 12_000,
        most_compactions: 14,
    },
    Agent {
        name: ".5K tools, .3K system, limit 12K",
        tools_tokens: 500,
        system_tokens: 300,
        limit_tokens: 12_000,
        most_compactions: 9,
    },
];

/// Results of one agent.
#[derive(Default)]
struct Outcome {
    /// Requests whose conversation exceeds the limit.
    beyond: usize,
    /// Tokens that each compaction left.
    left: Vec<u64>,
    /// Tokens sent, and those in the cached prefix of the previous request.
    sent_tokens: u64,
    cached_tokens: u64,
    /// The same if everything were sent.
    whole_tokens: u64,
    whole_cached_tokens: u64,
}

impl Outcome {
    /// Cost of the input relative to sending everything, with a cached token at a tenth of the
    /// price.
    fn bill(&self) -> f64 {
        let billed = |all: u64, cached: u64| all as f64 - 0.9 * cached as f64;
        billed(self.sent_tokens, self.cached_tokens)
            / billed(self.whole_tokens, self.whole_cached_tokens)
    }
}

/// Deterministic random numbers by xorshift.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    fn words(&mut self, count: usize) -> String {
        const WORDS: [&str; 16] = [
            "request", "session", "handler", "buffer", "stream", "token", "window", "limit",
            "account", "ledger", "index", "cursor", "parser", "reader", "writer", "queue",
        ];
        let words: Vec<&str> = (0..count).map(|_| WORDS[self.below(16) as usize]).collect();
        words.join(" ")
    }

    /// Builds a result of about 900 tokens: code, half of it with names.
    fn result(&mut self, number: usize) -> String {
        let mut text = format!("src/part_{number}.rs: {} lines\n", self.below(400));
        for line in 0..44 {
            let (at, name) = (self.below(400), self.below(900) + 100);
            let part = 10 + at % 90;
            let _ = match line % 2 {
                0 => {
                    writeln!(text, "{at}: fn open_{name}(own: &Part{part}) -> Result<(), Error> {{")
                }
                _ => writeln!(text, "    // {}", self.words(18)),
            };
        }
        text
    }
}

fn json(text: &str) -> String {
    serde_json::to_string(text).expect("texts are JSON")
}

/// Builds the agent's tools as JSON with the wanted number of tokens by weir's count.
fn tools(agent: &Agent, weir: &Weir) -> String {
    let mut numbers = Numbers(11);
    let mut tools: Vec<String> = Vec::new();
    loop {
        let (number, description) = (tools.len(), json(&numbers.words(40)));
        tools.push(format!(
            r#"{{"type":"function","function":{{"name":"tool_{number}","description":{description},"parameters":{{"type":"object","properties":{{"path":{{"type":"string"}}}}}}}}}}"#
        ));
        let list = format!("[{}]", tools.join(","));
        let body = format!(r#"{{"model":"{MODEL}","messages":[],"tools":{list}}}"#);
        let body = body.replace("[]", r#"[{"role":"user","content":""}]"#);
        let planned = weir.plan(&body, 100_000).expect("tools fit a window");
        if planned.received_tokens >= agent.tools_tokens {
            return list;
        }
    }
}

/// Sends all of the agent's requests.
fn run(agent: &Agent) -> Outcome {
    let weir = Weir::new();
    let tools = tools(agent, &weir);
    let mut numbers = Numbers(7);
    let system = json(&numbers.words(agent.system_tokens as usize));
    let task = json(&format!("Find why the nightly run fails. {}", numbers.words(40)));
    let mut messages = vec![
        format!(r#"{{"role":"system","content":{system}}}"#),
        format!(r#"{{"role":"user","content":{task}}}"#),
    ];
    let mut outcome = Outcome::default();
    let mut before: Option<(u32, u64, Vec<String>)> = None;
    for number in 0..REQUESTS {
        let list = messages.join(",");
        let body = format!(r#"{{"model":"{MODEL}","tools":{tools},"messages":[{list}]}}"#);
        let planned = weir.plan(&body, agent.limit_tokens).expect("it fits");
        let bytes = planned.body.as_deref().unwrap_or(body.as_bytes());
        let text = std::str::from_utf8(bytes).expect("weir sends UTF-8");
        let sent = Body::read(text).expect("weir sends JSON");
        let overhead = planned.sent_tokens - sent.tokens().min(planned.sent_tokens);
        let raws: Vec<String> =
            (0..sent.messages().len()).map(|own| sent.raw(own).to_owned()).collect();
        outcome.beyond += usize::from(planned.received_tokens > agent.limit_tokens);
        outcome.sent_tokens += planned.sent_tokens;
        outcome.whole_tokens += planned.received_tokens;
        if let Some((cuts, received, earlier)) = &before {
            if planned.compactions > *cuts {
                outcome.left.push(planned.sent_tokens);
            }
            let alike = raws.iter().zip(earlier).take_while(|(now, then)| now == then).count();
            let alike: u64 = sent.sizes[..alike].iter().map(|size| size.all()).sum();
            outcome.cached_tokens += overhead + alike;
            outcome.whole_cached_tokens += received;
        }
        before = Some((planned.compactions, planned.received_tokens, raws));
        messages.extend(step(&mut numbers, number));
    }
    outcome
}

/// Builds a call and its result.
fn step(numbers: &mut Numbers, number: usize) -> [String; 2] {
    let result = numbers.result(number);
    step_with(numbers, number, &result)
}

fn step_with(numbers: &mut Numbers, number: usize, result: &str) -> [String; 2] {
    let why = json(&numbers.words(16));
    let arguments = json(&format!(r#"{{"path":"src/part_{number}.rs"}}"#));
    let result = json(result);
    [
        format!(
            r#"{{"role":"assistant","content":{why},"tool_calls":[{{"id":"c{number}","type":"function","function":{{"name":"tool_1","arguments":{arguments}}}}}]}}"#
        ),
        format!(r#"{{"role":"tool","tool_call_id":"c{number}","content":{result}}}"#),
    ]
}

#[test]
fn an_agent_is_not_compacted_in_bursts() {
    let mut wrong = Vec::new();
    println!("agent | beyond the limit | compactions | above 85 % | cached | bill");
    for agent in &AGENTS {
        let outcome = run(agent);
        let most = agent.limit_tokens * MOST_LEFT_PERCENT / 100;
        let high = outcome.left.iter().filter(|left| **left > most).count();
        let hit = outcome.cached_tokens as f64 / outcome.sent_tokens as f64;
        let (name, compactions) = (agent.name, outcome.left.len());
        println!(
            "{name} | {} | {compactions} | {high} | {hit:.3} | {:.3}",
            outcome.beyond,
            outcome.bill()
        );
        if compactions > agent.most_compactions || high > 0 {
            wrong.push(format!("{name}: {compactions}, {high} high, {:?}", outcome.left));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns the notes in a request.
fn notes(text: &str) -> Vec<String> {
    let body = Body::read(text).expect("weir sends JSON");
    let said = |message: usize| body.raw(message).to_owned();
    let all = (0..body.messages().len()).map(said);
    all.filter(|raw| raw.contains("[weir: ") && raw.contains("shortened to fit")).collect()
}

#[test]
fn a_note_written_under_an_outsized_turn_is_written_again() {
    const LIMIT_TOKENS: u64 = 8000;
    const OUTSIZED: usize = 9;
    let (weir, mut numbers) = (Weir::new(), Numbers(5));
    let task = json(&numbers.words(40));
    let mut messages = vec![format!(r#"{{"role":"user","content":{task}}}"#)];
    let mut states: Vec<(u32, Vec<String>)> = Vec::new();
    for number in 0..20 {
        messages.extend(match number {
            OUTSIZED => {
                let large = format!("{} and no more", "plain words ".repeat(3400));
                step_with(&mut numbers, number, &large)
            }
            _ => step(&mut numbers, number),
        });
        let body = format!(r#"{{"model":"{MODEL}","messages":[{}]}}"#, messages.join(","));
        let planned = weir.plan(&body, LIMIT_TOKENS).expect("it fits");
        let sent = planned.body.as_deref().unwrap_or(body.as_bytes());
        let sent = std::str::from_utf8(sent).expect("weir sends UTF-8");
        states.push((planned.compactions, notes(sent)));
    }
    let (cuts, thin) = &states[OUTSIZED];
    assert!(*cuts > states[OUTSIZED - 1].0, "the outsized result is compacted for: {states:?}");
    let thin = thin.last().expect("it left a note");
    let (_, later) = states.iter().find(|(own, _)| own > cuts).expect("a later compaction");
    assert!(!later.contains(thin), "the thin note stands still");
    let tokens = |notes: &[String]| notes.iter().map(String::len).sum::<usize>();
    assert!(tokens(later) > thin.len() * 5 / 4, "{} after {}", tokens(later), thin.len());
}

/// Tokens that stay in a request after any compaction, without notes; `None` if the caller pins a
/// message.
fn staying_tokens(body: &Body<'_>) -> Option<u64> {
    let users = || (0..body.messages().len()).filter(|message| body.role(*message) == "user");
    let (first, last) = (users().next(), users().next_back());
    let newest = newest_from(body);
    let stays = |message: &usize| {
        body.is_system(*message)
            || *message >= newest
            || Some(*message) == first
            || Some(*message) == last
    };
    let tokens = (0..body.messages().len()).filter(stays).map(|own| body.sizes[own].all()).sum();
    (!body.text.contains("weir")).then_some(tokens)
}

/// Whether the limit itself prevents the promised growth: after the messages that stay, there is no
/// room for it and for a note of 2,300 tokens or seven tenths of the remaining room.
fn is_forced(body: &Body<'_>, more_tokens: u64, limit: u64) -> bool {
    let Some(stays) = staying_tokens(body).map(|tokens| tokens + more_tokens) else { return true };
    let note = (limit.saturating_sub(stays) * 7 / 10).min(2300);
    stays + note > limit - limit / 4
}

fn has_room_to_grow(case: &Case) -> Result<(), String> {
    let (weir, limit) = (Weir::new(), case.limit_tokens());
    // Reply priming, a note's framing, and the rounding of tools.
    let slack = 32 + limit / 25;
    let more = tools_tokens(&weir, case.transcript.tools) + slack;
    let mut last: Option<(u32, u64, bool)> = None;
    for text in requests(case) {
        let Ok(planned) = weir.plan(&text, limit) else { continue };
        let body = Body::read(&text)?;
        let received = planned.received_tokens;
        let Some((cuts, before, is_forced_then)) = last else {
            last = Some((planned.compactions, received, true));
            continue;
        };
        if planned.compactions == cuts {
            continue;
        }
        let grown = received.saturating_sub(before);
        if !is_forced_then && (grown + slack) * 4 < limit {
            return Err(format!("compacted again after {grown} tokens of growth under {limit}"));
        }
        // If there were two at once, the second may have been at a point that is no request here.
        let is_single = planned.compactions == cuts + 1;
        last = Some((planned.compactions, received, !is_single || is_forced(&body, more, limit)));
    }
    Ok(())
}

#[test]
fn nothing_is_compacted_again_before_it_has_grown() {
    check("room to grow", 20, &generate::valid(), has_room_to_grow);
}
