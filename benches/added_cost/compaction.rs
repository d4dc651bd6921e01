//! Cost of the first compaction of a long conversation: one request at a time, each after a pause,
//! as in a real conversation. Every program gets the same bodies in the same round.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use crate::conversation::{self, Random};
use crate::load::{CHAT, Client, Exchange};
use crate::process::{self, CpuTimes, Subject};
use crate::report::{Spread, print_spread};
use crate::{CREDENTIAL, SEED, Target, recorded};
use weir_engine::plan::{NoSummaries, PlanOptions, plan};
use weir_engine::{Encoding, Protocol};

/// A conversation of a given size, and the limit that its first request is compacted to.
struct Case {
    name: &'static str,
    body_bytes: usize,
    limit: &'static str,
    /// Limit under which the conversation is sent earlier, in the phase with known counts.
    earlier_limit: &'static str,
}

const CASES: [Case; 3] = [
    Case {
        name: "100k tokens",
        body_bytes: 450_000,
        limit: "x-weir-max-input-tokens: 60000\r\n",
        // It fits.
        earlier_limit: "",
    },
    Case {
        name: "250k tokens",
        body_bytes: 1_125_000,
        limit: "x-weir-max-input-tokens: 100000\r\n",
        earlier_limit: "",
    },
    Case {
        name: "400k tokens",
        body_bytes: 1_800_000,
        limit: "x-weir-max-input-tokens: 100000\r\n",
        earlier_limit: "",
    },
];

/// Number of requests that follow the conversation's first one.
const NEXT_REQUESTS: usize = 3;
/// Pause before each measured request: long enough for the allocator to return memory.
const PAUSE: Duration = Duration::from_millis(40);
/// Pause after it: background work is part of its CPU time.
const BACKGROUND: Duration = Duration::from_millis(40);
/// Seeds of the conversations that grow begin here.
const GROWN_SEED: u64 = 10_000;
/// Model of all requests, and a window that holds them.
const MODEL: &str = "gpt-4.1";
const WINDOW_TOKENS: u64 = 1_000_000;
/// Number of rounds in which processes are restarted.
const STARTED_ROUNDS: usize = 5;

/// Measured phase of a conversation.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Phase {
    /// First long conversation of a process.
    AfterStart,
    /// A conversation that the process has not seen.
    Cold,
    /// A conversation that it has seen under another limit.
    Counted,
    /// A conversation whose last request was below the limit.
    Grown,
    /// The requests that follow the first one.
    Next,
}

impl Phase {
    const ALL: [Self; 5] = [Self::AfterStart, Self::Cold, Self::Counted, Self::Grown, Self::Next];

    fn name(self) -> &'static str {
        match self {
            Self::AfterStart => "first request, process just started",
            Self::Cold => "first request, cold",
            Self::Counted => "first request under a lower limit, counts at hand",
            Self::Grown => "grown beyond its limit",
            Self::Next => "next requests",
        }
    }
}

/// Cost of one request.
#[derive(Clone, Copy)]
struct Taken {
    wall_ms: f64,
    cpu_ms: Option<f64>,
    page_faults: Option<f64>,
}

/// Requests of one phase: per round, the mean of its requests.
#[derive(Default)]
struct Measured {
    taken: Vec<Taken>,
    actions: Vec<String>,
    failures: Vec<String>,
}

#[derive(Serialize)]
pub struct Report {
    case: &'static str,
    body_bytes: usize,
    body_tokens: usize,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    phase: Phase,
    subject: String,
    wall_ms: Option<Spread>,
    /// Compared with the streaming baseline in the same round.
    added_wall_ms: Option<Spread>,
    cpu_ms: Option<Spread>,
    added_cpu_ms: Option<Spread>,
    /// CPU time above the baseline's, divided by that of [`OTHER`] in the same round.
    added_cpu_ratio: Option<Spread>,
    page_faults: Option<Spread>,
    actions: Vec<String>,
    failures: Vec<String>,
}

/// Index of the baseline among the targets.
const BASE: usize = 1;
/// The name of this build of weir.
pub const OWN: &str = "weir";
/// The name of the build that it is compared with.
pub const OTHER: &str = "other";

/// Measures all cases whose name contains `only`. `subjects` are the programs behind all targets
/// except the first, which is the upstream itself.
pub fn measure(
    targets: &[Target],
    subjects: &[Subject],
    upstream: SocketAddr,
    rounds: usize,
    only: Option<&str>,
) -> Result<Vec<Report>, Box<dyn Error>> {
    let wanted = CASES.iter().filter(|case| only.is_none_or(|part| case.name.contains(part)));
    let recorded = recorded::conversations();
    let mut reports = Vec::new();
    for case in wanted {
        eprintln!("measuring: {}", case.name);
        let mut measured: Vec<[Measured; 5]> = targets.iter().map(|_| Default::default()).collect();
        // The first round is discarded: the processes grow to the size of the case in it.
        for round in 0..=rounds {
            let bodies = Bodies::of(case, &recorded, round);
            for turn in 0..targets.len() {
                let turn = if round % 2 == 0 { turn } else { targets.len() - 1 - turn };
                let place = (round / 2 + turn) % targets.len();
                let kept = run(case, &targets[place], &bodies);
                if round > 0 {
                    record(&mut measured[place], kept);
                }
            }
        }
        for round in 0..rounds.min(STARTED_ROUNDS) {
            let bodies = Bodies::of(case, &recorded, rounds + 1 + round);
            for (place, subject) in (1..).zip(subjects) {
                let target = Target::start(subject.clone(), upstream, CREDENTIAL)?;
                record(&mut measured[place], vec![first(case, &target, &bodies)]);
            }
        }
        let whole = String::from_utf8_lossy(&Bodies::of(case, &recorded, 1).cold[0]).into_owned();
        reports.push(Report {
            case: case.name,
            body_bytes: whole.len(),
            body_tokens: Encoding::O200kBase.count(whole.as_str()) as usize,
            rows: rows(targets, &measured),
        });
    }
    Ok(reports)
}

/// Bodies of one round: conversations that no program has seen.
struct Bodies {
    small: Vec<u8>,
    /// A first request and those that follow.
    cold: Vec<Vec<u8>>,
    counted: Vec<u8>,
    /// The last request of a conversation below its limit, and the first above it.
    grown: [Vec<u8>; 2],
    /// Header with that limit.
    grown_limit: String,
}

impl Bodies {
    fn of(case: &Case, recorded: &[Vec<Value>], round: usize) -> Self {
        let seed = 2 * round as u64;
        let small = conversation::small(&mut Random::new(SEED ^ seed), false);
        let first = |seed, next| growing(recorded, case.body_bytes, seed, next);
        let mut pair = first(seed + GROWN_SEED, 1).into_iter();
        let grown = [(); 2].map(|()| pair.next().unwrap_or_default());
        let limit_tokens = least_limit(&grown[0]);
        Self {
            small,
            cold: first(seed, NEXT_REQUESTS),
            counted: first(seed + 1, 0).remove(0),
            grown,
            grown_limit: format!("x-weir-max-input-tokens: {limit_tokens}\r\n"),
        }
    }
}

/// Returns the least limit under which a request is sent whole.
fn least_limit(body: &[u8]) -> u64 {
    let request = Protocol::Chat.read(body, usize::MAX).expect("a request");
    let is_whole = |limit_tokens: u64| {
        let mut options = PlanOptions::new(MODEL, Encoding::O200kBase, WINDOW_TOKENS);
        options.limits.header_tokens = Some(limit_tokens);
        plan(&request, &options, &NoSummaries).is_ok_and(|plan| plan.compactions == 0)
    };
    let (mut below_tokens, mut enough_tokens) = (0, body.len() as u64);
    while enough_tokens - below_tokens > 1 {
        let middle_tokens = below_tokens.midpoint(enough_tokens);
        match is_whole(middle_tokens) {
            true => enough_tokens = middle_tokens,
            false => below_tokens = middle_tokens,
        }
    }
    enough_tokens
}

/// Creates a conversation of recorded text that shares no message with another `seed`: a first body
/// of about `first_bytes`, and `next` more.
fn growing(recorded: &[Vec<Value>], first_bytes: usize, seed: u64, next: usize) -> Vec<Vec<u8>> {
    let mut body = format!(r#"{{"model":"{MODEL}","max_tokens":1024,"messages":["#);
    let mut bodies = Vec::new();
    let mut is_grown = false;
    // Other seeds begin with another record.
    let rounds = (0_u64..).flat_map(|round| recorded.iter().map(move |messages| (round, messages)));
    let records = rounds.skip(7 * seed as usize % recorded.len());
    for (number, (round, message)) in
        records.flat_map(|(round, own)| own.iter().map(move |own| (round, own))).enumerate()
    {
        let is_first = number == 0;
        if message["role"] == "system" && !is_first {
            continue;
        }
        // A request ends before an answer of the model.
        if message["role"] == "assistant" && is_grown && body.len() >= first_bytes {
            bodies.push(format!("{body}]}}").into_bytes());
            if bodies.len() > next {
                return bodies;
            }
            is_grown = false;
        }
        is_grown |= message["role"] != "assistant";
        let mut varied = recorded::vary(message.clone(), ((round + seed) % 26) as u8);
        if let Some(Value::String(text)) = varied.get_mut("content") {
            text.push_str(&format!(" ({seed}.{number})"));
        }
        body.push_str(if is_first { "" } else { "," });
        body.push_str(&varied.to_string());
    }
    bodies
}

type Kept = (Phase, io::Result<(Vec<Taken>, Vec<Exchange>)>);

fn run(case: &Case, target: &Target, bodies: &Bodies) -> Vec<Kept> {
    let cold = || -> io::Result<_> {
        let mut client = opened(target, case.limit, &bodies.small)?;
        let first = timed(target, &mut client, &bodies.cold[..1])?;
        Ok((first, timed(target, &mut client, &bodies.cold[1..])?))
    };
    let counted = || -> io::Result<_> {
        opened(target, case.earlier_limit, &bodies.small)?.exchange(&bodies.counted)?;
        let mut client = opened(target, case.limit, &bodies.small)?;
        timed(target, &mut client, std::slice::from_ref(&bodies.counted))
    };
    let mut kept = match cold() {
        Ok((first, next)) => vec![(Phase::Cold, Ok(first)), (Phase::Next, Ok(next))],
        Err(error) => vec![(Phase::Cold, Err(error))],
    };
    let grown = || -> io::Result<_> {
        let mut client = opened(target, &bodies.grown_limit, &bodies.small)?;
        client.exchange(&bodies.grown[0])?;
        timed(target, &mut client, &bodies.grown[1..])
    };
    kept.push((Phase::Counted, counted()));
    kept.push((Phase::Grown, grown()));
    kept
}

/// Measures the first long request of a process that has answered only short ones.
fn first(case: &Case, target: &Target, bodies: &Bodies) -> Kept {
    let timed = opened(target, case.limit, &bodies.small)
        .and_then(|mut client| timed(target, &mut client, &bodies.cold[..1]));
    (Phase::AfterStart, timed)
}

/// Opens a connection and uses it once.
fn opened(target: &Target, headers: &str, small: &[u8]) -> io::Result<Client> {
    let mut client = Client::open(target.address, &target.credential, (CHAT, headers))?;
    client.exchange(small)?;
    Ok(client)
}

fn timed(
    target: &Target,
    client: &mut Client,
    bodies: &[Vec<u8>],
) -> io::Result<(Vec<Taken>, Vec<Exchange>)> {
    let mut taken = Vec::new();
    let mut exchanges = Vec::new();
    for body in bodies {
        thread::sleep(PAUSE);
        let spent = || target.pid().map(|pid| (CpuTimes::of(pid), process::page_faults(pid)));
        let before = spent();
        let exchange = client.exchange(body)?;
        thread::sleep(BACKGROUND);
        let pair = spent().zip(before);
        let faults = |((_, after), (_, before)): &(_, (_, Option<u64>))| -> Option<f64> {
            let after: &Option<u64> = after;
            Some((*after)?.saturating_sub((*before)?) as f64)
        };
        taken.push(Taken {
            wall_ms: exchange.sample.total.as_secs_f64() * 1e3,
            cpu_ms: pair
                .as_ref()
                .map(|((after, _), (before, _))| after.since_ns(before) as f64 / 1e6),
            page_faults: pair.as_ref().and_then(faults),
        });
        exchanges.push(exchange);
    }
    Ok((taken, exchanges))
}

fn record(measured: &mut [Measured; 5], kept: Vec<Kept>) {
    for (phase, outcome) in kept {
        let own = &mut measured[phase as usize];
        match outcome {
            Ok((taken, exchanges)) if exchanges.iter().all(|exchange| exchange.complete) => {
                let mean = |of: fn(&Taken) -> Option<f64>| {
                    let all: Option<Vec<f64>> = taken.iter().map(of).collect();
                    all.map(|all| all.iter().sum::<f64>() / all.len() as f64)
                };
                own.taken.push(Taken {
                    wall_ms: mean(|taken| Some(taken.wall_ms)).unwrap_or(f64::NAN),
                    cpu_ms: mean(|taken| taken.cpu_ms),
                    page_faults: mean(|taken| taken.page_faults),
                });
                let actions = exchanges.into_iter().filter_map(|exchange| exchange.action);
                own.actions.extend(
                    actions.filter(|action| !own.actions.contains(action)).collect::<Vec<_>>(),
                );
                own.actions.dedup();
            }
            Ok((_, exchanges)) => {
                own.failures.extend(exchanges.into_iter().map(|exchange| exchange.opening));
            }
            Err(error) => own.failures.push(error.to_string()),
        }
    }
}

/// Returns the rows by phase, in the order of `targets`.
fn rows(targets: &[Target], measured: &[[Measured; 5]]) -> Vec<Row> {
    let mut rows = Vec::new();
    let other = targets.iter().position(|target| target.name == OTHER);
    for phase in Phase::ALL {
        let base = &measured[BASE][phase as usize];
        let other = other.map(|place| &measured[place][phase as usize]);
        for (target, own) in targets.iter().zip(measured) {
            let own = &own[phase as usize];
            if own.taken.is_empty() && own.failures.is_empty() {
                continue;
            }
            let spread =
                |of: fn(&Taken) -> Option<f64>| Spread::of(own.taken.iter().filter_map(of));
            // Per round: slow moments of the machine affect both sides.
            let added = |of: fn(&Taken) -> Option<f64>| {
                let pairs = own.taken.iter().zip(&base.taken);
                Spread::of(pairs.filter_map(|(own, base)| Some(of(own)? - of(base)?)))
            };
            let ratio = other.filter(|_| target.name == OWN).and_then(|other| {
                let rounds = own.taken.iter().zip(&other.taken).zip(&base.taken);
                Spread::of(rounds.filter_map(|((own, other), base)| {
                    let base = base.cpu_ms?;
                    Some((own.cpu_ms? - base) / (other.cpu_ms? - base))
                }))
            });
            rows.push(Row {
                phase,
                subject: target.name.clone(),
                wall_ms: spread(|taken| Some(taken.wall_ms)),
                added_wall_ms: added(|taken| Some(taken.wall_ms)),
                cpu_ms: spread(|taken| taken.cpu_ms),
                added_cpu_ms: added(|taken| taken.cpu_ms),
                added_cpu_ratio: ratio,
                page_faults: spread(|taken| taken.page_faults),
                actions: own.actions.clone(),
                failures: own.failures.clone(),
            });
        }
    }
    rows
}

/// Prints the table, one block of lines per case and phase.
pub fn print_table(reports: &[Report]) {
    println!(
        "{:<12} {:>22} {:>22} {:>20} {:>20} {:>17} {:>8}  answers",
        "times in ms", "wall p50", "above streaming", "CPU", "above streaming", "÷ other", "faults"
    );
    for report in reports {
        let Report { case, body_bytes, body_tokens, .. } = report;
        println!("\n{case} · {:.1} KB, {body_tokens} tokens", *body_bytes as f64 / 1e3);
        let mut phase = None;
        for row in &report.rows {
            if phase != Some(row.phase) {
                println!("  {}", row.phase.name());
                phase = Some(row.phase);
            }
            let faults = row.page_faults.map_or("-".to_owned(), |own| format!("{:.0}", own.median));
            println!(
                "{:<12} {:>22} {:>22} {:>20} {:>20} {:>17} {faults:>8}  {}",
                row.subject,
                print_spread(row.wall_ms),
                print_spread(row.added_wall_ms),
                print_spread(row.cpu_ms),
                print_spread(row.added_cpu_ms),
                row.added_cpu_ratio.map_or(String::new(), |ratio| print_spread(Some(ratio))),
                row.actions.join(", ")
            );
            if let Some(failure) = row.failures.first() {
                let words: Vec<&str> = failure.split_whitespace().collect();
                println!("           FAILED {}: {}", row.failures.len(), words.join(" "));
            }
        }
    }
}
