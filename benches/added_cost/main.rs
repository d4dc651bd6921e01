//! Cost that weir adds to a request, compared with a proxy on the same stack that does nothing, in
//! separate processes, under the same load, in one run. README.md in the parent folder explains the
//! figures. The bench measures and does not judge: it exits with 0 for any figures.

#![expect(
    clippy::disallowed_methods,
    reason = "a bench times itself, and paces its load by the clock"
)]

mod compaction;
mod conversation;
mod load;
mod metered;
mod process;
mod protocols;
#[path = "../support/recorded.rs"]
mod recorded;
mod report;
mod service;
mod upstream;
mod watched;

use std::error::Error;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser;

use crate::conversation::Random;
use crate::load::{Batch, Round};
use crate::process::{Process, Subject};
use crate::report::{CaseReport, Figure, Goal, Measured, Ratio};

const SEED: u64 = 20_260_301;
/// Callers' credential if nothing checks it.
const CREDENTIAL: &str = "sk-bench";

/// Comparison of a run's rows.
struct Comparison {
    ratios: [Ratio; 2],
    /// Replaces the cases' own goals.
    goal: Option<Goal>,
}

/// weir against both baselines.
const PROXIES: Comparison = Comparison {
    ratios: [
        Ratio { name: "÷ streaming", figure: Figure::CpuPerRequest, base: 1 },
        Ratio { name: "÷ buffering", figure: Figure::CpuPerRequest, base: 2 },
    ],
    goal: None,
};

#[derive(Parser)]
#[command(about = "CPU, latency and memory that weir adds to a request")]
struct Flags {
    /// Short run: a sixth of the rounds.
    #[arg(long)]
    quick: bool,
    /// Print JSON instead of the table.
    #[arg(long)]
    json: bool,
    /// Rounds of a streamed case (default 30); a plain one, with short rounds, has four times as
    /// many.
    #[arg(long)]
    rounds: Option<usize>,
    /// Run only the cases whose name contains this text.
    #[arg(long)]
    only: Option<String>,
    /// Measure the cost of virtual keys and the journal instead.
    #[arg(long)]
    ledger: bool,
    /// Measure the additional cost of budgets instead.
    #[arg(long, conflicts_with = "ledger")]
    budgets: bool,
    /// Measure the first compaction of long conversations instead.
    #[arg(long, conflicts_with_all = ["ledger", "budgets"])]
    compaction: bool,
    /// Compare the protocols instead: plan and added cost of the same conversations.
    #[arg(long, conflicts_with_all = ["ledger", "budgets", "compaction"])]
    protocols: bool,
    /// Measure `/v1/responses/compact` instead.
    #[arg(long, conflicts_with_all = ["ledger", "budgets", "compaction", "protocols"])]
    service: bool,
    /// Measure the cost of reading metrics and live requests each second instead.
    #[arg(long, conflicts_with_all = ["ledger", "budgets", "compaction", "protocols", "service"])]
    watched: bool,
    /// Also measure this build of weir, in a row `other`.
    #[arg(long)]
    weir: Option<PathBuf>,
    /// Measure this program, which takes `--listen` and `--upstream`, instead of `weir serve`.
    #[arg(long)]
    subject: Option<PathBuf>,
    /// Use a do-nothing proxy that is already built.
    #[arg(long)]
    baseline: Option<PathBuf>,
    /// Passed by `cargo bench` to every bench.
    #[arg(long, hide = true)]
    bench: bool,
    /// Run as the canned upstream.
    #[arg(long, hide = true)]
    canned_upstream: bool,
}

/// One kind of load.
struct Case {
    name: &'static str,
    shape: Shape,
    streamed: bool,
    connections: usize,
    /// Measured requests per connection and round: few, so that the targets alternate often and
    /// disturbances affect them equally.
    requests: usize,
    headers: &'static str,
    goal_cpu_ratio: Option<f64>,
}

#[derive(Clone, Copy)]
enum Shape {
    Small,
    /// One conversation; its first request is the warm-up.
    Growing,
    /// Conversations of the same size that were never sent before.
    Cold,
}

/// First body of a growing conversation; 16 turns of about 5 KB later it has 440 KB.
const GROWING_START_BYTES: usize = 360_000;
const GROWING_TURNS: usize = 16;
/// A plain round lasts a few milliseconds, a streamed one as long as the upstream's pauses.
const PLAIN_ROUNDS_FACTOR: usize = 4;

const COLD_BYTES: usize = 400_000;
const OVER_LIMIT: &str = "x-weir-max-input-tokens: 60000\r\n";

const fn small(name: &'static str, streamed: bool, connections: usize, requests: usize) -> Case {
    let (shape, headers, goal_cpu_ratio) = (Shape::Small, "", Some(1.5));
    Case { name, shape, streamed, connections, requests, headers, goal_cpu_ratio }
}

const fn growing(
    name: &'static str,
    streamed: bool,
    headers: &'static str,
    goal_cpu_ratio: Option<f64>,
) -> Case {
    let (shape, connections, requests) = (Shape::Growing, 1, GROWING_TURNS);
    Case { name, shape, streamed, connections, requests, headers, goal_cpu_ratio }
}

const CASES: [Case; 10] = [
    small("small plain", false, 1, 100),
    small("small streamed", true, 1, 20),
    growing("400 KB plain", false, "", Some(2.5)),
    growing("400 KB streamed", true, "", Some(2.5)),
    growing("400 KB over the limit", false, OVER_LIMIT, None),
    Case { shape: Shape::Cold, requests: 4, ..growing("400 KB cold", false, "", None) },
    small("small plain, 8 at once", false, 8, 30),
    small("small plain, 64 at once", false, 64, 6),
    small("small streamed, 8 at once", true, 8, 8),
    small("small streamed, 64 at once", true, 64, 3),
];

/// Cases of `--watched`, unless `--only` names others.
const WATCHED: [&str; 3] = ["small plain", "small plain, 8 at once", "400 KB plain"];

impl Case {
    /// Creates the bodies of one round: new text in each, so that caches contain only the
    /// repetition within the case.
    fn batch(&self, round: usize) -> Batch {
        let mut random = Random::new(SEED ^ (round as u64) << 32 ^ fingerprint(self.name));
        let (warm_up, requests) = match self.shape {
            Shape::Small => {
                let count = self.connections * self.requests;
                let mut body = || conversation::small(&mut random, self.streamed);
                (body(), (0..count).map(|_| body()).collect())
            }
            Shape::Growing => {
                let mut bodies = self.conversation(&mut random, GROWING_START_BYTES, self.requests);
                (bodies.remove(0), bodies)
            }
            Shape::Cold => {
                let mut body = || self.conversation(&mut random, COLD_BYTES, 0).remove(0);
                (body(), (0..self.requests).map(|_| body()).collect())
            }
        };
        let (headers, connections) = (self.headers, self.connections);
        Batch { warm_up, requests, headers, connections, path: load::CHAT }
    }

    fn conversation(&self, random: &mut Random, bytes: usize, turns: usize) -> Vec<Vec<u8>> {
        conversation::growing(random, self.streamed, bytes, turns)
    }
}

fn fingerprint(name: &str) -> u64 {
    name.bytes().fold(0, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)))
}

/// Target of a load: the upstream itself, or a process in front of it.
struct Target {
    name: String,
    address: SocketAddr,
    credential: String,
    /// `None` for the upstream, whose cost is not measured.
    process: Option<Process>,
}

impl Target {
    fn upstream(address: SocketAddr) -> Self {
        let (name, credential) = ("direct".to_owned(), CREDENTIAL.to_owned());
        Self { name, address, credential, process: None }
    }

    /// Starts `subject` with its log in the bench's folder.
    fn start(subject: Subject, upstream: SocketAddr, credential: &str) -> Result<Self, String> {
        let log = folder().join(format!("added_cost-{}.log", subject.name));
        let process = Process::start(&subject, upstream, &log).map_err(|error| {
            format!("{} did not start: {error}; see {}", subject.name, log.display())
        })?;
        Ok(Self {
            name: subject.name,
            address: process.address,
            credential: credential.to_owned(),
            process: Some(process),
        })
    }

    fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::pid)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let flags = Flags::parse();
    if flags.canned_upstream {
        return Ok(upstream::serve()?);
    }
    let upstream = Process::start_upstream()?;
    if flags.compaction {
        return first_compactions(&flags, upstream.address);
    }
    if flags.protocols {
        return compare_protocols(&flags, upstream.address);
    }
    if flags.service {
        return compactions_on_request(&flags, upstream.address);
    }
    if flags.watched {
        return watch(&flags, upstream.address);
    }
    let (targets, comparison) = if flags.ledger {
        (metered::start(upstream.address)?, metered::COMPARISON)
    } else if flags.budgets {
        (metered::start_budgets(upstream.address)?, metered::BUDGETS)
    } else {
        (start_targets(&flags, upstream.address)?, PROXIES)
    };
    let rounds = flags.rounds.unwrap_or(if flags.quick { 5 } else { 30 }).max(1);
    let wanted = |case: &&Case| {
        let is_told = flags.only.as_deref().is_none_or(|part| case.name.contains(part));
        let is_pair = flags.ledger || flags.budgets;
        is_told && (!is_pair || matches!(case.shape, Shape::Small))
    };
    let mut reports = Vec::new();
    for case in CASES.iter().filter(wanted) {
        eprintln!("measuring: {}", case.name);
        let factor = if case.streamed { 1 } else { PLAIN_ROUNDS_FACTOR };
        reports.push(measure(case, &targets, &comparison, rounds * factor));
    }
    if flags.json {
        println!("{}", serde_json::to_string_pretty(&reports)?);
    } else {
        report::print_table(&reports);
    }
    Ok(())
}

/// Measures the first compactions of long conversations.
fn first_compactions(flags: &Flags, upstream: SocketAddr) -> Result<(), Box<dyn Error>> {
    let subjects = subjects(flags)?;
    let mut targets = vec![Target::upstream(upstream)];
    for subject in &subjects {
        targets.push(Target::start(subject.clone(), upstream, CREDENTIAL)?);
    }
    let rounds = flags.rounds.unwrap_or(if flags.quick { 5 } else { 20 }).max(1);
    let only = flags.only.as_deref();
    let reports = compaction::measure(&targets, &subjects, upstream, rounds, only)?;
    if flags.json {
        println!("{}", serde_json::to_string_pretty(&reports)?);
    } else {
        compaction::print_table(&reports);
    }
    Ok(())
}

/// Measures the same conversations in each protocol.
fn compare_protocols(flags: &Flags, upstream: SocketAddr) -> Result<(), Box<dyn Error>> {
    let targets = start_targets(flags, upstream)?;
    let rounds = flags.rounds.unwrap_or(if flags.quick { 10 } else { 60 }).max(1);
    let reports = protocols::measure(&targets, rounds, flags.only.as_deref())?;
    if flags.json {
        println!("{}", serde_json::to_string_pretty(&reports)?);
    } else {
        protocols::print_table(&reports);
    }
    Ok(())
}

/// Measures compactions that a client asks for.
fn compactions_on_request(flags: &Flags, upstream: SocketAddr) -> Result<(), Box<dyn Error>> {
    let targets = start_targets(flags, upstream)?;
    let rounds = flags.rounds.unwrap_or(if flags.quick { 5 } else { 100 }).max(1);
    let reports = service::measure(&targets, rounds, flags.only.as_deref())?;
    if flags.json {
        println!("{}", serde_json::to_string_pretty(&reports)?);
    } else {
        service::print_table(&reports);
    }
    Ok(())
}

/// Measures weir with readers of its metrics and live requests.
fn watch(flags: &Flags, upstream: SocketAddr) -> Result<(), Box<dyn Error>> {
    let is_wanted = |case: &&Case| match &flags.only {
        Some(part) => case.name.contains(part),
        None => WATCHED.contains(&case.name),
    };
    let cases: Vec<&Case> = CASES.iter().filter(is_wanted).collect();
    let rounds = flags.rounds.unwrap_or(if flags.quick { 3 } else { 12 }).max(1);
    let reports = watched::measure(upstream, &cases, rounds)?;
    if flags.json {
        println!("{}", serde_json::to_string_pretty(&reports)?);
    } else {
        watched::print_table(&reports);
    }
    Ok(())
}

/// Returns both baselines and the programs compared with them.
fn subjects(flags: &Flags) -> Result<Vec<Subject>, Box<dyn Error>> {
    let baseline = match &flags.baseline {
        Some(path) => path.clone(),
        None => build_baseline()?,
    };
    let subject = match &flags.subject {
        Some(path) => subject("subject", path, &[], &[]),
        None => weir(compaction::OWN, Path::new(env!("CARGO_BIN_EXE_weir"))),
    };
    let other = flags.weir.as_ref().map(|path| weir(compaction::OTHER, path));
    let baselines = [
        self::subject("streaming", &baseline, &[], &[]),
        self::subject("buffering", &baseline, &[], &["--buffer"]),
    ];
    Ok(baselines.into_iter().chain([subject]).chain(other).collect())
}

/// Starts the upstream, both baselines, and the subject. If the subject fails to start, the
/// baselines are still measured.
fn start_targets(flags: &Flags, upstream: SocketAddr) -> Result<Vec<Target>, Box<dyn Error>> {
    let mut targets = vec![Target::upstream(upstream)];
    for subject in subjects(flags)? {
        match Target::start(subject, upstream, CREDENTIAL) {
            Ok(target) => targets.push(target),
            Err(error) if targets.len() < 3 => return Err(error.into()),
            Err(error) => eprintln!("{error}"),
        }
    }
    Ok(targets)
}

/// Returns the folder for logs and other files of a run.
fn folder() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

fn subject(name: &str, program: &Path, leading: &[&str], trailing: &[&str]) -> Subject {
    let owned = |list: &[&str]| list.iter().map(|&item| item.to_owned()).collect();
    Subject {
        name: name.to_owned(),
        program: program.to_owned(),
        leading: owned(leading),
        trailing: owned(trailing),
    }
}

/// Describes weir as an operator would start it. Cargo builds this package's own, optimised, before
/// this bench.
fn weir(name: &str, program: &Path) -> Subject {
    subject(name, program, &["serve"], &["--log-level", "info", "--store", ":memory:"])
}

/// Builds the baseline into the same target folder, since Cargo builds no examples for a bench.
fn build_baseline() -> Result<PathBuf, Box<dyn Error>> {
    let bench = std::env::current_exe()?;
    let release =
        bench.parent().and_then(Path::parent).ok_or("the bench is not in a target folder")?;
    let target = release.parent().ok_or("the bench is not in a target folder")?;
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let status = Command::new(cargo)
        .args(["build", "--quiet", "--release", "--example", "do_nothing_proxy", "--target-dir"])
        .arg(target)
        .arg("--manifest-path")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"))
        .status()?;
    if !status.success() {
        return Err("the do-nothing proxy could not be built".into());
    }
    Ok(target.join("release/examples/do_nothing_proxy"))
}

/// Measures all rounds of one case. The targets alternate within each round, in changing order.
fn measure(case: &Case, targets: &[Target], comparison: &Comparison, rounds: usize) -> CaseReport {
    for pid in targets.iter().filter_map(Target::pid) {
        process::reset_peak_memory(pid);
    }
    let mut measured: Vec<Vec<Round>> = targets.iter().map(|_| Vec::new()).collect();
    let mut middle = Vec::new();
    // The first round is discarded: the processes grow to the size of the case in it, and the
    // kernel's work for fresh pages would dominate.
    for round in 0..=rounds {
        let mut batch = case.batch(round);
        for turn in 0..targets.len() {
            // Every other round runs backwards, so that no target always follows the same one.
            let turn = if round % 2 == 0 { turn } else { targets.len() - 1 - turn };
            let index = (round / 2 + turn) % targets.len();
            let target = &targets[index];
            let kept = load::run(target.address, &target.credential, target.pid(), &batch);
            if round > 0 {
                measured[index].push(kept);
            }
        }
        middle = batch.requests.swap_remove(batch.requests.len() / 2);
    }
    let measured: Vec<Measured> = targets
        .iter()
        .zip(measured)
        .map(|(target, rounds)| Measured {
            name: target.name.clone(),
            rounds,
            peak_memory_kib: target.pid().and_then(process::peak_memory_kib),
        })
        .collect();
    CaseReport {
        case: case.name.to_owned(),
        connections: case.connections,
        body_bytes: middle.len(),
        body_tokens: tiktoken_rs::o200k_base_singleton()
            .count_ordinary(String::from_utf8_lossy(&middle).as_ref()),
        rounds,
        goal: comparison
            .goal
            .or_else(|| case.goal_cpu_ratio.map(|ratio| Goal { of: "CPU", ratio })),
        ratios: comparison.ratios,
        rows: report::rows(&measured, &comparison.ratios),
    }
}
