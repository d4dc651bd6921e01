//! Time of `/v1/responses/compact`: long lists of items, one request at a time, above a do-nothing proxy
//! that gets the same bytes in the same round. Cold lists were never sent; those with counts at hand were
//! sent once to `/v1/responses` before, as by a client that asks for a compaction between two turns.

use std::error::Error;
use std::io;
use std::thread;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use crate::load::{Client, Exchange};
use crate::{Target, recorded};

const COMPACT: &str = "/v1/responses/compact";
const RESPONSES: &str = "/v1/responses";
/// A list's name and size in bytes: that of the recorded text with so many tokens.
const CASES: [(&str, usize); 3] =
    [("100k tokens", 337_000), ("400k tokens", 1_337_000), ("1M tokens", 3_350_000)];
/// Pause before each measured request: background work of the one before ends in it.
const PAUSE: Duration = Duration::from_millis(60);
/// Index of the baseline among the targets.
const BASE: usize = 1;

/// Times of one target and phase, in milliseconds, by round.
#[derive(Default)]
struct Times {
    cold: Vec<f64>,
    counted: Vec<f64>,
    failures: Vec<String>,
}

#[derive(Serialize)]
pub struct Report {
    case: &'static str,
    body_bytes: usize,
    body_tokens: usize,
    rounds: usize,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    phase: &'static str,
    subject: String,
    wall_ms: Pair,
    /// Above the baseline in the same round.
    added_ms: Pair,
    failures: Vec<String>,
}

#[derive(Clone, Copy, Serialize)]
struct Pair {
    p50: f64,
    p99: f64,
}

impl Pair {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let rank = |share: f64| (values.len() as f64 * share).ceil() as usize;
        let at = |share| values.get(rank(share).saturating_sub(1)).copied().unwrap_or(f64::NAN);
        Self { p50: at(0.5), p99: at(0.99) }
    }
}

/// Measures all cases whose name contains `only`. The first target is the upstream itself, which is left
/// out.
pub fn measure(
    targets: &[Target],
    rounds: usize,
    only: Option<&str>,
) -> Result<Vec<Report>, Box<dyn Error>> {
    let recorded = recorded::conversations();
    let mut reports = Vec::new();
    for (case, bytes) in CASES.iter().filter(|case| only.is_none_or(|part| case.0.contains(part))) {
        eprintln!("measuring: {case}");
        let mut times: Vec<Times> = targets.iter().map(|_| Times::default()).collect();
        // The first round is discarded: the processes grow to the size of the case in it.
        for round in 0..=rounds {
            let lists = [0, 1].map(|own| list(&recorded, *bytes, 2 * round as u64 + own));
            for turn in BASE..targets.len() {
                let place = BASE + (round + turn) % (targets.len() - BASE);
                if let Err(error) = run(&targets[place], &lists, &mut times[place], round > 0) {
                    times[place].failures.push(error.to_string());
                }
            }
        }
        let whole = list(&recorded, *bytes, 1);
        let text = String::from_utf8_lossy(&whole);
        reports.push(Report {
            case,
            body_bytes: whole.len(),
            body_tokens: weir_engine::tokens::Encoding::O200kBase.count(text.as_ref()) as usize,
            rounds,
            rows: rows(targets, &times),
        });
    }
    Ok(reports)
}

/// Creates a request with a list of about so many bytes. Lists of different seeds share no message.
fn list(recorded: &[Vec<Value>], bytes: usize, seed: u64) -> Vec<u8> {
    let mut body = String::from(r#"{"model":"gpt-4.1","input":["#);
    let rounds = (0_u64..).flat_map(|round| recorded.iter().map(move |messages| (round, messages)));
    let records = rounds.skip(7 * seed as usize % recorded.len());
    let messages = records.flat_map(|(round, own)| own.iter().map(move |own| (round, own)));
    let mut number = 0;
    for (round, message) in messages {
        let is_first = number == 0;
        let ends = message["role"] == "assistant" && body.len() >= bytes;
        if ends {
            break;
        }
        if message["role"] == "system" && !is_first {
            continue;
        }
        let varied = recorded::vary(message.clone(), ((round + seed) % 26) as u8);
        for item in items(&varied, &format!(" ({seed}.{number})")) {
            body.push_str(if body.ends_with('[') { "" } else { "," });
            body.push_str(&item.to_string());
        }
        number += 1;
    }
    body.push_str("]}");
    body.into_bytes()
}

/// Retells a message of chat completions as items, with a unique word in each.
fn items(message: &Value, unique: &str) -> Vec<Value> {
    let text = match &message["content"] {
        Value::String(text) => format!("{text}{unique}"),
        Value::Null => String::new(),
        other => format!("{other}{unique}"),
    };
    let said = |role: &str, kind: &str| json!({"type": "message", "role": role, "content": [{"type": kind, "text": text}]});
    match message["role"].as_str().unwrap_or_default() {
        "tool" => {
            let call = &message["tool_call_id"];
            vec![json!({"type": "function_call_output", "call_id": call, "output": text})]
        }
        "assistant" => {
            let mut items = Vec::new();
            if !text.is_empty() {
                items.push(said("assistant", "output_text"));
            }
            for call in message["tool_calls"].as_array().into_iter().flatten() {
                let function = &call["function"];
                items.push(json!({"type": "function_call", "call_id": call["id"],
                                  "name": function["name"], "arguments": function["arguments"]}));
            }
            items
        }
        "system" => vec![said("developer", "input_text")],
        _ => vec![said("user", "input_text")],
    }
}

/// Measures both phases at one target.
fn run(target: &Target, lists: &[Vec<u8>; 2], times: &mut Times, is_kept: bool) -> io::Result<()> {
    let [cold, counted] = lists;
    let open = |path| Client::open(target.address, &target.credential, (path, ""));
    let first = timed(open(COMPACT)?, cold)?;
    open(RESPONSES)?.exchange(counted)?;
    let second = timed(open(COMPACT)?, counted)?;
    for (exchange, own) in [(first, &mut times.cold), (second, &mut times.counted)] {
        if !exchange.complete {
            times.failures.push(exchange.opening);
        } else if is_kept {
            own.push(exchange.sample.total.as_secs_f64() * 1e3);
        }
    }
    Ok(())
}

fn timed(mut client: Client, body: &[u8]) -> io::Result<Exchange> {
    thread::sleep(PAUSE);
    client.exchange(body)
}

fn rows(targets: &[Target], times: &[Times]) -> Vec<Row> {
    type Phase = (&'static str, fn(&Times) -> &Vec<f64>);
    let phases: [Phase; 2] =
        [("cold", |times| &times.cold), ("counts at hand", |times| &times.counted)];
    let mut rows = Vec::new();
    for (phase, of) in phases {
        for (target, own) in targets.iter().zip(times).skip(BASE) {
            let pairs = of(own).iter().zip(of(&times[BASE]));
            rows.push(Row {
                phase,
                subject: target.name.clone(),
                wall_ms: Pair::of(of(own).iter().copied()),
                added_ms: Pair::of(pairs.map(|(own, base)| own - base)),
                failures: own.failures.clone(),
            });
        }
    }
    rows
}

/// Prints the table.
pub fn print_table(reports: &[Report]) {
    println!(
        "{:<12} {:<16} {:<12} {:>9} {:>9} {:>14} {:>14}",
        "list", "phase", "subject", "p50 ms", "p99 ms", "added p50 ms", "added p99 ms"
    );
    for report in reports {
        for row in &report.rows {
            let Row { phase, subject, wall_ms, added_ms, .. } = row;
            println!(
                "{:<12} {phase:<16} {subject:<12} {:>9.2} {:>9.2} {:>14.2} {:>14.2}",
                report.case, wall_ms.p50, wall_ms.p99, added_ms.p50, added_ms.p99
            );
            if let Some(failure) = row.failures.first() {
                let words: Vec<&str> = failure.split_whitespace().take(40).collect();
                println!("             FAILED {}: {}", row.failures.len(), words.join(" "));
            }
        }
        let Report { body_bytes, body_tokens, rounds, .. } = report;
        let kilobytes = *body_bytes as f64 / 1e3;
        println!("             {kilobytes:.0} KB, {body_tokens} tokens, {rounds} rounds");
    }
}
