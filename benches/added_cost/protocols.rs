//! Cost of the same conversation in each protocol that weir reads: of its plan, in this process, and of
//! the request, above a proxy that does nothing. Each figure is divided by that of chat completions in
//! the same round.

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use weir::config::Config;
use weir::proxy::Tenant;
use weir::proxy::plan::{Planner, PlannerParts, RequestOptions};
use weir_engine::tokens::Encoding;
use weir_engine::wire::Protocol;

use crate::conversation::{self, Random};
use crate::load::{self, Batch};
use crate::report::{Spread, print_spread};
use crate::{SEED, Target};

/// Protocols, chat completions first, with their paths.
pub const PROTOCOLS: [(Protocol, &str); 3] = [
    (Protocol::Chat, "/v1/chat/completions"),
    (Protocol::Responses, "/v1/responses"),
    (Protocol::Messages, "/v1/messages"),
];
/// Index of the baseline among the targets, and that of weir.
const BASE: usize = 1;
const WEIR: usize = 3;
/// Requests of a conversation in a round that are measured.
const TURNS: usize = 8;

/// One kind of load.
struct Case {
    name: &'static str,
    first_bytes: usize,
    /// Whether the conversation was sent before, up to its last turn.
    is_warm: bool,
    streamed: bool,
    limit_tokens: Option<u64>,
}

const CASES: [Case; 7] = [
    case("40 KB", 20_000, true, false, None),
    case("40 KB streamed", 20_000, true, true, None),
    case("40 KB cold", 40_000, false, false, None),
    case("400 KB", 380_000, true, false, None),
    case("400 KB streamed", 380_000, true, true, None),
    case("400 KB over the limit", 380_000, true, false, Some(60_000)),
    case("400 KB cold", 400_000, false, false, None),
];

const fn case(
    name: &'static str,
    first_bytes: usize,
    is_warm: bool,
    streamed: bool,
    limit_tokens: Option<u64>,
) -> Case {
    Case { name, first_bytes, is_warm, streamed, limit_tokens }
}

#[derive(Serialize)]
pub struct Report {
    case: &'static str,
    body_bytes: usize,
    rounds: usize,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    protocol: &'static str,
    plan_us: Spread,
    /// CPU time per request above that of the streaming baseline.
    added_cpu_us: Option<Spread>,
    /// Median time of a request above that of the streaming baseline.
    added_wall_us: Option<Spread>,
    /// The three figures as ratios to chat completions in the same round.
    ratios: [Option<Spread>; 3],
    actions: Vec<String>,
    failures: Vec<String>,
}

/// Figures of one protocol, by round: plan, CPU and wall time in µs.
#[derive(Default)]
struct Measured {
    rounds: [Vec<f64>; 3],
    actions: Vec<String>,
    failures: Vec<String>,
}

/// Measures all cases whose name contains `only`.
pub fn measure(
    targets: &[Target],
    rounds: usize,
    only: Option<&str>,
) -> Result<Vec<Report>, Box<dyn Error>> {
    let runtime = Runtime::new()?;
    Encoding::O200kBase.warm();
    let wanted = CASES.iter().filter(|case| only.is_none_or(|part| case.name.contains(part)));
    let mut reports = Vec::new();
    for case in wanted {
        eprintln!("measuring: {}", case.name);
        let mut measured: [Measured; 3] = Default::default();
        // The first round is discarded: the processes grow to the size of the case in it.
        for round in 0..=rounds {
            for turn in 0..PROTOCOLS.len() {
                let place = (round + turn) % PROTOCOLS.len();
                // Each protocol gets each conversation, but none directly after another one: texts that
                // were counted a moment ago are counted faster.
                let batch = case.batch(place, round + place);
                let plan_us = case.plan_us(&runtime, PROTOCOLS[place].0, &batch);
                let own = &mut measured[place];
                let (base, weir) = match round % 2 {
                    0 => (own.take(&targets[BASE], &batch), own.take(&targets[WEIR], &batch)),
                    _ => {
                        let weir = own.take(&targets[WEIR], &batch);
                        (own.take(&targets[BASE], &batch), weir)
                    }
                };
                if round > 0 {
                    let figures = [plan_us, weir.0 - base.0, weir.1 - base.1];
                    for (all, figure) in own.rounds.iter_mut().zip(figures) {
                        all.push(figure);
                    }
                }
            }
        }
        reports.push(case.report(&measured, rounds));
    }
    Ok(reports)
}

impl Measured {
    /// Sends a batch to a target; returns CPU time per request and the median time of a request.
    fn take(&mut self, target: &Target, batch: &Batch) -> (f64, f64) {
        let kept = load::run(target.address, &target.credential, target.pid(), batch);
        self.failures.extend(kept.failures);
        let new = kept.actions.into_iter().filter(|action| !self.actions.contains(action));
        let new: BTreeSet<String> = new.collect();
        self.actions.extend(new);
        let walls = kept.samples.iter().map(|own| own.total.as_secs_f64() * 1e6);
        (kept.cpu_ns_per_request.unwrap_or(f64::NAN) / 1e3, median(walls))
    }
}

/// Returns the median; NaN if there are no values.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    Spread::of(values).map_or(f64::NAN, |own| own.median)
}

impl Case {
    /// Creates the requests of a conversation in a protocol.
    fn batch(&self, place: usize, conversation: usize) -> Batch {
        let mut random = Random::new(SEED ^ (conversation as u64) << 32);
        let bodies = |random: &mut Random, turns| {
            let bodies = conversation::growing(random, self.streamed, self.first_bytes, turns);
            bodies.iter().map(|body| told(PROTOCOLS[place].0, body)).collect::<Vec<_>>()
        };
        let (warm_up, requests) = match self.is_warm {
            true => {
                let mut bodies = bodies(&mut random, TURNS);
                (bodies.remove(0), bodies)
            }
            false => {
                let small = conversation::small(&mut random, self.streamed);
                (told(PROTOCOLS[place].0, &small), bodies(&mut random, 0))
            }
        };
        let headers = match self.limit_tokens {
            Some(_) => crate::OVER_LIMIT,
            None => "",
        };
        Batch { warm_up, requests, headers, connections: 1, path: PROTOCOLS[place].1 }
    }

    /// Returns the median time of the plans of a batch, in µs.
    fn plan_us(&self, runtime: &Runtime, protocol: Protocol, batch: &Batch) -> f64 {
        let planner = Planner::new(Arc::new(Config::default()), PlannerParts::default());
        let plan = |body: &[u8]| {
            let options =
                RequestOptions { max_input_tokens: self.limit_tokens, ..RequestOptions::default() };
            let body = body.to_vec().into();
            let begun = Instant::now();
            let plan = planner.plan(Tenant([7; 16]), protocol, body, None, options);
            let planned =
                runtime.block_on(plan).unwrap_or_else(|error| panic!("{}", error.message));
            drop(planned);
            begun.elapsed().as_secs_f64() * 1e6
        };
        plan(&batch.warm_up);
        median(batch.requests.iter().map(|body| plan(body)))
    }

    fn report(&self, measured: &[Measured; 3], rounds: usize) -> Report {
        let spread = |all: &[f64]| Spread::of(all.iter().copied().filter(|own| own.is_finite()));
        let rows = PROTOCOLS.iter().zip(measured).map(|((protocol, _), own)| {
            let ratio = |figure: usize| {
                let pairs = own.rounds[figure].iter().zip(&measured[0].rounds[figure]);
                Spread::of(pairs.map(|(own, chat)| own / chat).filter(|own| own.is_finite()))
            };
            Row {
                protocol: match protocol {
                    Protocol::Chat => "chat",
                    Protocol::Responses => "responses",
                    Protocol::Messages => "messages",
                },
                plan_us: spread(&own.rounds[0]).expect("a plan takes time"),
                added_cpu_us: spread(&own.rounds[1]),
                added_wall_us: spread(&own.rounds[2]),
                ratios: [ratio(0), ratio(1), ratio(2)],
                actions: own.actions.clone(),
                failures: own.failures.clone(),
            }
        });
        let body = self.batch(0, 0).requests.pop().unwrap_or_default();
        Report { case: self.name, body_bytes: body.len(), rounds, rows: rows.collect() }
    }
}

/// Prints the table, one block of lines per case.
pub fn print_table(reports: &[Report]) {
    println!(
        "{:<10} {:>22} {:>17} {:>22} {:>17} {:>22} {:>17}  answers",
        "times in µs",
        "plan",
        "÷ chat",
        "CPU above streaming",
        "÷ chat",
        "wall above streaming",
        "÷ chat"
    );
    for Report { case, body_bytes, rounds, rows } in reports {
        println!(
            "\n{case} · {:.1} KB · {rounds} rounds · goal: ≤ 1.3 × chat",
            *body_bytes as f64 / 1e3
        );
        for row in rows {
            println!(
                "{:<10} {:>22} {:>17} {:>22} {:>17} {:>22} {:>17}  {}",
                row.protocol,
                print_spread(Some(row.plan_us)),
                print_spread(row.ratios[0]),
                print_spread(row.added_cpu_us),
                print_spread(row.ratios[1]),
                print_spread(row.added_wall_us),
                print_spread(row.ratios[2]),
                row.actions.join(", ")
            );
            if let Some(failure) = row.failures.first() {
                println!("FAILED {}: {failure}", row.failures.len());
            }
        }
    }
}

/// Returns the body of a chat in another protocol, with members in the order of OpenAI's and Anthropic's
/// own agents. Texts, arguments and results stay the same.
fn told(protocol: Protocol, chat: &[u8]) -> Vec<u8> {
    let chat_body: Value = serde_json::from_slice(chat).expect("the bench writes JSON");
    match protocol {
        Protocol::Chat => chat.to_vec(),
        Protocol::Responses => responses(&chat_body).into_bytes(),
        Protocol::Messages => messages(&chat_body).into_bytes(),
    }
}

fn listed<'a>(body: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    body[name].as_array().into_iter().flatten()
}

/// Returns the start of a body, up to its stream member.
fn opening(body: &Value) -> String {
    let stream = if body["stream"] == true { r#""stream":true,"# } else { "" };
    format!(r#"{{"model":{},{stream}"#, body["model"])
}

fn responses(body: &Value) -> String {
    let mut items: Vec<String> = Vec::new();
    let mut instructions = &Value::Null;
    for message in listed(body, "messages") {
        let (role, content) = (&message["role"], &message["content"]);
        match role.as_str() {
            Some("system") => instructions = content,
            Some("tool") => items.push(format!(
                r#"{{"type":"function_call_output","call_id":{},"output":{content}}}"#,
                message["tool_call_id"]
            )),
            _ => {
                let kind = if role == "assistant" { "output_text" } else { "input_text" };
                items.push(format!(
                    r#"{{"type":"message","role":{role},"content":[{{"type":"{kind}","text":{content}}}]}}"#
                ));
            }
        }
        items.extend(listed(message, "tool_calls").map(|call| {
            format!(
                r#"{{"type":"function_call","name":{},"arguments":{},"call_id":{}}}"#,
                call["function"]["name"], call["function"]["arguments"], call["id"]
            )
        }));
    }
    let tools: Vec<Value> = listed(body, "tools")
        .map(|tool| {
            let mut own = tool["function"].clone();
            own["type"] = "function".into();
            own
        })
        .collect();
    format!(
        r#"{}"instructions":{instructions},"input":[{}],"tools":{},"max_output_tokens":{},"store":false}}"#,
        opening(body),
        items.join(","),
        Value::from(tools),
        body["max_tokens"]
    )
}

/// As the agent of Anthropic writes it: `system` and `tools` after the messages, and a mark of the cache on
/// the last block of the system text and of the last message.
fn messages(body: &Value) -> String {
    const MARK: &str = r#","cache_control":{"type":"ephemeral"}"#;
    let mut list: Vec<(&str, Vec<String>)> = Vec::new();
    let mut system = String::new();
    for message in listed(body, "messages") {
        let content = &message["content"];
        let text = || vec![format!(r#"{{"type":"text","text":{content}"#)];
        match message["role"].as_str() {
            Some("system") => system = format!("[{}{MARK}}}]", text()[0]),
            Some("tool") => {
                let id = &message["tool_call_id"];
                list.push((
                    "user",
                    vec![format!(
                        r#"{{"tool_use_id":{id},"type":"tool_result","content":{content}"#
                    )],
                ));
            }
            Some("assistant") => {
                let calls = listed(message, "tool_calls").map(|call| {
                    let arguments = call["function"]["arguments"].as_str().unwrap_or("{}");
                    let (id, name) = (&call["id"], &call["function"]["name"]);
                    format!(r#"{{"type":"tool_use","id":{id},"name":{name},"input":{arguments}"#)
                });
                list.push(("assistant", text().into_iter().chain(calls).collect()));
            }
            _ => list.push(("user", text())),
        }
    }
    let last = list.len() - 1;
    let list = list.iter().enumerate().map(|(place, (role, blocks))| {
        let mark = if place == last { MARK } else { "" };
        format!(r#"{{"role":"{role}","content":[{}{mark}}}]}}"#, blocks.join("},"))
    });
    let tools: Vec<Value> = listed(body, "tools")
        .map(|tool| {
            let own = &tool["function"];
            json!({
                "name": own["name"],
                "description": own["description"],
                "input_schema": own["parameters"],
            })
        })
        .collect();
    format!(
        r#"{}"messages":[{}],"system":{},"tools":{},"max_tokens":{}}}"#,
        opening(body),
        list.collect::<Vec<_>>().join(","),
        if system.is_empty() { "null" } else { &system },
        Value::from(tools),
        body["max_tokens"]
    )
}
