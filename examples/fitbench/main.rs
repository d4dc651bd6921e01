//! FitBench: a bench of compacting proxies over HTTP, without a model.
//!
//! This file holds only the command: flags, progress, output, signals and exit code.

#[path = "bench.rs"]
pub mod bench;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clap::Parser;
use serde_json::json;
use weir_bench::{Planted, bounds, page, scores};
use weir_eval::Budget;

use bench::{Event, Kind, Outcome, Plan, Proxy, cleanup};

/// Exit code of a panic, as Rust has it.
const PANICKED: i32 = 101;
/// Time in which a proxy has to answer a request.
const ANSWER: Duration = Duration::from_secs(60);

/// Plays conversations turn by turn through proxies to a recording upstream, and judges each request
/// that reaches it. Three bounds run first: nothing, oracle and drop-all. Prints Markdown. Exits with 1
/// if a proxy could not be judged or a bound does not hold.
///
/// Progress and each finished row go to standard error. If it is stopped, it ends the proxies that it
/// started and prints the rows that are done.
///
/// A command is started for each limit with {upstream}, {port}, {limit_tokens} and {instance} replaced;
/// UPSTREAM_URL, PORT, LIMIT_TOKENS and FITBENCH_INSTANCE have the same in its environment.
#[derive(Parser)]
#[command(name = "fitbench", verbatim_doc_comment)]
pub struct Flags {
    /// Proxy by the command that starts it. May be given several times.
    #[arg(long, value_name = "NAME=COMMAND", value_parser = pair)]
    start: Vec<(String, String)>,
    /// Proxy that runs already, by its base URL, and by the one of a second instance. Its upstream has to
    /// be the port of --upstream-port, and its limit the only one of --limits or in a header.
    #[arg(long, value_name = "NAME=URL[,URL]", value_parser = pair)]
    proxy: Vec<(String, String)>,
    /// Request header in which a proxy reads its limit in tokens: it is not started again for each.
    #[arg(long, value_name = "NAME=HEADER", value_parser = pair)]
    limit_header: Vec<(String, String)>,
    /// Conversations to add, as JSON lines {"id", "source", "messages", "tools"?}, plain or gzip.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    conversations: Vec<PathBuf>,
    /// Play only those, and the planted ones.
    #[arg(long)]
    no_built_in: bool,
    /// Maximum number of conversations from each file, evenly sampled.
    #[arg(long, value_name = "N")]
    limit_conversations: Option<usize>,
    /// Seed of the generated conversations and of all choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of generated agent runs, and of chats.
    #[arg(long, value_name = "N", default_value_t = 2)]
    generated: usize,
    /// Token limits: a share of each conversation's last request, or a number for those whose last
    /// request is a quarter larger.
    #[arg(long, value_name = "30%|8k", value_delimiter = ',', default_value = "30%,50%", value_parser = Budget::read)]
    limits: Vec<Budget>,
    /// Port of the upstream for proxies that run already.
    #[arg(long, value_name = "PORT", default_value_t = 8399)]
    upstream_port: u16,
    /// Price of a token that the provider writes into its cache, in uncached tokens.
    #[arg(long, value_name = "PRICE", default_value_t = 1.0)]
    write_price: f64,
    /// Write the results as JSON to a file too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => {
            Ok((name.to_owned(), value.to_owned()))
        }
        _ => Err("write NAME=VALUE".to_owned()),
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    command(Flags::parse()).await
}

/// Runs the command.
pub async fn command(flags: Flags) -> ExitCode {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        // First of all: writing may fail, and that may be the very reason.
        cleanup::end_all();
        hook(panic);
        std::process::exit(PANICKED);
    }));
    match run(flags).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("fitbench: {problem}");
            ExitCode::from(2)
        }
    }
}

/// Runs as the flags say, and returns whether every proxy was judged and all bounds hold.
async fn run(flags: Flags) -> Result<bool, String> {
    let plan = plan(&flags)?;
    if !flags.proxy.is_empty() {
        eprintln!("The upstream listens on http://127.0.0.1:{}/v1.", flags.upstream_port);
    }
    eprintln!("{} conversations, seed {}", plan.cases.len(), plan.seed);
    eprint!("{}", page::head());
    let session = Arc::new(Session::new(flags, &plan));
    tokio::spawn(end_if_stopped(session.clone()));
    let ended = bench::run(&plan, &|event| session.add(&event)).await;
    if session.outcome().is_stopped {
        // The signal's own task ends the program.
        std::future::pending::<()>().await;
    }
    ended?;
    session.print(None)
}

/// Waits for a signal to stop. Runs on a thread of its own, so that the work does not delay it.
async fn end_if_stopped(session: Arc<Session>) {
    let (name, code) = stopped().await;
    session.stop();
    cleanup::end_all();
    if let Err(problem) = session.print(Some(name)) {
        eprintln!("fitbench: {problem}");
    }
    std::process::exit(code);
}

/// Returns the signal that asks to stop, and the exit code that shells give it.
#[cfg(unix)]
async fn stopped() -> (&'static str, i32) {
    use tokio::signal::unix::{SignalKind, signal};
    let wait = async |kind| match signal(kind) {
        Ok(mut signals) => drop(signals.recv().await),
        Err(_) => std::future::pending().await,
    };
    tokio::select! {
        () = wait(SignalKind::terminate()) => ("SIGTERM", 143),
        () = wait(SignalKind::interrupt()) => ("SIGINT", 130),
        () = wait(SignalKind::hangup()) => ("SIGHUP", 129),
    }
}

#[cfg(not(unix))]
async fn stopped() -> (&'static str, i32) {
    match tokio::signal::ctrl_c().await {
        Ok(()) => ("Ctrl-C", 130),
        Err(_) => std::future::pending().await,
    }
}

/// Results so far, and the place that they go to.
struct Session {
    flags: Flags,
    /// Lines about the conversations, for the page.
    conversations: String,
    outcome: Mutex<Outcome>,
}

impl Session {
    fn new(flags: Flags, plan: &Plan) -> Self {
        Self { flags, conversations: conversations(plan), outcome: Mutex::default() }
    }

    fn outcome(&self) -> MutexGuard<'_, Outcome> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps nothing from here on: it would be about proxies that are being ended.
    fn stop(&self) {
        self.outcome().is_stopped = true;
    }

    /// Shows a part of the run and keeps it.
    fn add(&self, event: &Event<'_>) {
        let mut outcome = self.outcome();
        if outcome.is_stopped {
            return;
        }
        match event {
            Event::Line(line) => eprintln!("{line}"),
            Event::Row(row) => eprint!("{}", page::line_of(row)),
            Event::Decay(..) => {}
            Event::Failure(name, reason) => eprintln!("{name} was not judged: {reason}"),
        }
        outcome.add(event, &self.flags.limits);
    }

    /// Prints the page and writes the JSON file. Returns whether every proxy was judged and all bounds
    /// hold.
    fn print(&self, stopped_by: Option<&str>) -> Result<bool, String> {
        let (flags, outcome) = (&self.flags, self.outcome());
        if let Some(path) = &flags.json {
            let text = format!("{:#}\n", as_json(flags, &outcome, stopped_by));
            std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        println!("Seed {}; {}.\n", flags.seed, scores::bill_rules(flags.write_price));
        println!("{}", page::table(&outcome.rows));
        println!("Decay: planted facts and rules that can be read, by growth.\n");
        println!("{}", page::decay(&outcome.decay));
        println!("{}\n\n{}", self.conversations, page::LEGEND);
        let broken = bounds::broken(&outcome.rows, &outcome.decay);
        for line in &broken {
            println!("Bound: {line}");
        }
        for (name, reason) in &outcome.failures {
            println!("{name} was not judged: {reason}");
        }
        if let Some(signal) = stopped_by {
            println!("Stopped by {signal}: rows are missing.");
        }
        Ok(outcome.failures.is_empty() && broken.is_empty())
    }
}

/// Counts the conversations of a plan by the columns that they are in.
fn conversations(plan: &Plan) -> String {
    let count =
        |is: fn(&Planted) -> bool| plan.cases.iter().filter(|case| is(&case.planted)).count();
    format!(
        "Conversations: {}, and planted ones: {} in the column rules, {} in crowded, {} in decay.",
        count(|planted| matches!(planted, Planted::Nothing)),
        count(|planted| matches!(planted, Planted::Rules { is_crowded: false, .. })),
        count(|planted| matches!(planted, Planted::Rules { is_crowded: true, .. })),
        count(|planted| matches!(planted, Planted::Facts { .. })),
    )
}

fn plan(flags: &Flags) -> Result<Plan, String> {
    let mut cases = match flags.no_built_in {
        true => bench::planted(flags.seed).into(),
        false => bench::built_in(flags.seed, flags.generated)?,
    };
    for path in &flags.conversations {
        let read = bench::read(path)?;
        let step = flags.limit_conversations.map_or(1, |most| read.len().div_ceil(most.max(1)));
        cases.extend(read.into_iter().step_by(step.max(1)));
    }
    let limit_header = |name: &str| {
        let found = flags.limit_header.iter().find(|(own, _)| own == name);
        found.map(|(_, header)| header.clone())
    };
    let started = flags.start.iter().map(|(name, command)| (name, Kind::Command(command.clone())));
    let running = flags.proxy.iter().map(|(name, urls)| {
        let (first, second) = match urls.split_once(',') {
            Some((first, second)) => (first, Some(second.to_owned())),
            None => (urls.as_str(), None),
        };
        (name, Kind::Running(first.to_owned(), second))
    });
    let proxies = started.chain(running).map(|(name, kind)| Proxy {
        name: name.clone(),
        kind,
        limit_header: limit_header(name),
    });
    let proxies: Vec<Proxy> = proxies.collect();
    let is_one = matches!(flags.limits[..], [Budget::Tokens(_)]);
    for proxy in &proxies {
        if matches!(proxy.kind, Kind::Running(..)) && proxy.limit_header.is_none() && !is_one {
            return Err(format!(
                "{} runs already: give one limit in tokens, which it has too, or --limit-header",
                proxy.name
            ));
        }
    }
    Ok(Plan {
        proxies,
        cases: cases.into_iter().map(Arc::new).collect(),
        limits: flags.limits.clone(),
        seed: flags.seed,
        upstream_port: flags.upstream_port,
        write_price: flags.write_price,
        answer: ANSWER,
    })
}

fn as_json(flags: &Flags, outcome: &Outcome, stopped_by: Option<&str>) -> serde_json::Value {
    let decay = outcome.decay.iter().map(|(proxy, steps)| json!({"proxy": proxy, "steps": steps}));
    let failures =
        outcome.failures.iter().map(|(name, reason)| json!({"proxy": name, "reason": reason}));
    json!({
        "seed": flags.seed,
        "write_price": flags.write_price,
        "rows": outcome.rows,
        "decay": decay.collect::<Vec<_>>(),
        "failures": failures.collect::<Vec<_>>(),
        "stopped_by": stopped_by,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_run_keeps_nothing_that_comes_after() {
        let flags = Flags::parse_from(["fitbench", "--no-built-in"]);
        let plan = plan(&flags).expect("it is one");
        let session = Session::new(flags, &plan);
        let add = |name: &str| {
            session.add(&Event::Failure(name.to_owned(), "it ended".to_owned()));
            session.add(&Event::Decay(name, &[]));
        };
        add("before");
        session.stop();
        add("after");
        let outcome = session.outcome();
        assert_eq!((outcome.failures.len(), outcome.decay.len()), (1, 1));
        assert_eq!((&*outcome.failures[0].0, &*outcome.decay[0].0), ("before", "before"));
    }
}
