//! Replays recorded conversations through weir and judges the results.
//!
//! This file holds only the command: flags, progress bar and exit code.

#![expect(
    clippy::disallowed_methods,
    reason = "a command's own time is told to its reader, and decides nothing"
)]

#[path = "replay.rs"]
mod replay;
mod report;
#[path = "../scripted_upstream/server.rs"]
#[expect(dead_code, reason = "the judge steers no faults and reads a part of the log alone")]
mod scripted_upstream;
mod stress;

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use clap::Parser;
use serde_json::json;

use replay::conversation::{self, Conversation};
use replay::{Budget, Plan};

/// Replays conversations turn by turn through a weir process to a scripted upstream, and judges
/// each request by the upstream's own count and rules. Exits with 1 if a check fails.
///
/// Files hold one conversation per line, `{"id", "source", "messages", "tools"?}`, plain or gzip.
/// Each answer of the assistant to a user or a tool makes one request: everything before it.
#[derive(Parser)]
#[command(name = "replay_http", verbatim_doc_comment)]
struct Flags {
    /// Conversations to replay.
    files: Vec<PathBuf>,
    /// Token budget for messages: a share of the conversation's last request, or a number for those
    /// whose last request is a quarter larger. May be given several times.
    #[arg(long, value_name = "30%|8k", value_delimiter = ',', default_values = ["30%", "50%", "70%", "8k"])]
    budget: Vec<Budget>,
    /// Key of weir's configuration and its value. May be given several times.
    #[arg(long, value_name = "context.low=0.6", value_parser = setting)]
    policy: Vec<(String, String)>,
    /// Maximum number of conversations, evenly sampled from each file.
    #[arg(long, value_name = "N")]
    limit_conversations: Option<usize>,
    /// Number of conversations replayed at once.
    #[arg(long, value_name = "N", default_value_t = 4)]
    concurrency: usize,
    /// The weir to judge; by default the one built with this program.
    #[arg(long, value_name = "PATH")]
    weir: Option<PathBuf>,
    /// A conversation whose last message, a tool result, fits no window: sent as it is, and as a
    /// user message.
    #[arg(long, value_name = "FILE")]
    stress: Option<PathBuf>,
    /// Write one line per request to a file: budget, conversation, number of messages, and a hash of
    /// the body that reached the upstream, or the refusal. Equal files of two programs (`--weir`)
    /// prove that they send the same bytes.
    #[arg(long, value_name = "FILE")]
    lines: Option<PathBuf>,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
}

fn setting(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if key.contains('.') => Ok((key.to_owned(), value.to_owned())),
        _ => Err("a setting is written as section.key=value".to_owned()),
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Flags::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("replay_http: {problem}");
            ExitCode::from(2)
        }
    }
}

/// Runs as the flags say, and returns whether all checks passed.
async fn run(flags: Flags) -> Result<bool, String> {
    if flags.files.is_empty() && flags.stress.is_none() {
        return Err("name files of conversations, or one with --stress".to_owned());
    }
    let program = flags.weir.clone().map_or_else(built_weir, Ok)?;
    let mut passed = true;
    let mut told = json!({});
    if !flags.files.is_empty() {
        let conversations = Arc::new(conversations(&flags)?);
        let plan = Plan {
            program: program.clone(),
            settings: flags.policy.clone(),
            budgets: flags.budget.clone(),
            concurrency: flags.concurrency,
        };
        let begun = Instant::now();
        let bar = Bar::new(replay::request_count(&conversations, &plan.budgets));
        let outcome = replay::replay(conversations, &plan, move || bar.step()).await?;
        let elapsed = begun.elapsed();
        if let Some(file) = &flags.lines {
            let text = outcome.lines.join("\n") + "\n";
            std::fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))?;
        }
        passed &= report::passed(&outcome);
        told["replay"] = report::json(&outcome, elapsed);
        if !flags.json {
            report::print(&outcome, elapsed);
        }
    }
    if let Some(file) = &flags.stress {
        let stressed = stress::stress(file, &program, &flags.policy).await?;
        passed &= stressed.iter().all(stress::Stressed::passed);
        told["stress"] = stressed.iter().map(stress::Stressed::json).collect();
        if !flags.json {
            stressed.iter().for_each(stress::Stressed::print);
        }
    }
    if flags.json {
        told["passed"] = passed.into();
        println!("{told:#}");
    } else {
        println!("{}", if passed { "All checks passed." } else { "Some checks FAILED." });
    }
    Ok(passed)
}

/// Returns the binary of the same build, in the folder above that of the examples.
fn built_weir() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let name = format!("weir{}", std::env::consts::EXE_SUFFIX);
    let mut found = own.ancestors().skip(1).take(2).map(|folder| folder.join(&name));
    let found = found.find(|path| path.is_file());
    found.ok_or_else(|| "build weir with `cargo build --release`, or name it by --weir".to_owned())
}

fn conversations(flags: &Flags) -> Result<Vec<Conversation>, String> {
    let mut files = Vec::new();
    for path in &flags.files {
        files.push(conversation::read(path)?);
    }
    let Some(most) = flags.limit_conversations else {
        return Ok(files.into_iter().flatten().collect());
    };
    let mut columns: Vec<_> = files.into_iter().map(Vec::into_iter).collect();
    let mut taken = Vec::new();
    while taken.len() < most {
        let row: Vec<_> = columns.iter_mut().filter_map(Iterator::next).collect();
        if row.is_empty() {
            break;
        }
        taken.extend(row);
    }
    taken.truncate(most);
    Ok(taken)
}

/// Progress bar on a terminal.
struct Bar {
    done: AtomicUsize,
    total: usize,
    is_shown: bool,
}

const BAR_WIDTH: usize = 40;

impl Bar {
    fn new(total: usize) -> Self {
        Self { done: AtomicUsize::new(0), total, is_shown: std::io::stderr().is_terminal() }
    }

    fn step(&self) {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        let step = (self.total / 200).max(1);
        if !self.is_shown || (!done.is_multiple_of(step) && done != self.total) {
            return;
        }
        let filled = BAR_WIDTH * done / self.total;
        let (full, free) = ("#".repeat(filled), " ".repeat(BAR_WIDTH - filled));
        let mut stderr = std::io::stderr().lock();
        // A closed terminal needs no bar.
        write!(stderr, "\r[{full}{free}] {done} of {} requests", self.total).unwrap_or_default();
        if done == self.total {
            writeln!(stderr).unwrap_or_default();
        }
    }
}
