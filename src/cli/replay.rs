//! `weir replay`: reads recorded conversations from files, replays them on all cores and prints
//! what came of it. Measures nothing itself; see `crate::replay`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{IsTerminal, Read, Write};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use flate2::read::MultiGzDecoder;

use super::sources;
use crate::config;
use crate::context::Policy;
use crate::replay::baseline::Baseline;
use crate::replay::conversation::Conversation;
use crate::replay::tally::{Row, Tally, rows};
use crate::replay::{Budget, Kind, Lost, Named, Outcome, replay, sent_at, table::table};

/// Replays recorded conversations and tells what compaction keeps of them, and what it costs
#[derive(Debug, clap::Args)]
pub struct ReplayArgs {
    /// JSON lines, plain or gzip: conversations `{id, source, messages}`, or recorded request
    /// bodies `{model, messages}`
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// What may be sent: a share of each conversation's last request, or tokens
    #[arg(long = "budget", value_name = "30%|8k", value_parser = Budget::read,
          default_values = ["30%", "50%", "70%", "8k"])]
    budgets: Vec<Budget>,
    /// `default` (weir's own, as configured), `none`, `drop_oldest`, `sticky_drop` or `mask_obs`
    #[arg(long = "policy", value_name = "NAME", default_values = ["default"])]
    policies: Vec<String>,
    /// A key of the configuration's [context] for the policy `default`, such as low=0.7
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    settings: Vec<(String, String)>,
    /// Only conversations whose source holds this
    #[arg(long, value_name = "TEXT")]
    source: Option<String>,
    /// Only conversations whose last request has so many tokens. In shorter ones a share of it may
    /// be little more than the system's text
    #[arg(long, value_name = "TOKENS", default_value_t = 0)]
    min_tokens: u64,
    /// At most so many conversations
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// A row for each source too
    #[arg(long)]
    by_source: bool,
    /// All figures as JSON
    #[arg(long)]
    json: bool,
    /// Prints so many of the values that were lost, in place of the table
    #[arg(long, value_name = "N")]
    lost: Option<usize>,
    /// Prints what is sent of this conversation, in place of the table
    #[arg(long, value_name = "ID")]
    show: Option<String>,
    /// With --show: the request of so many messages, in place of the last
    #[arg(long, value_name = "MESSAGES", requires = "show")]
    turn: Option<usize>,
    /// Prints no progress
    #[arg(long)]
    no_progress: bool,
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write KEY=VALUE, such as low=0.7")?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

/// Runs `weir replay …`.
pub fn run(args: &ReplayArgs) -> Result<(), String> {
    let policies = policies(args)?;
    let progress = Progress::new(!args.no_progress && std::io::stderr().is_terminal());
    let conversations = read_all(args, &progress)?;
    let text = if let Some(id) = &args.show {
        show(args, &conversations, id, &policies)?
    } else {
        let outcomes = replay_all(&conversations, &policies, &args.budgets, &progress);
        report(args, &conversations, &policies, &outcomes)
    };
    std::io::stdout()
        .write_all(text.as_bytes())
        .map_err(|error| format!("cannot write to standard output: {error}"))
}

fn policies(args: &ReplayArgs) -> Result<Vec<Named>, String> {
    let named = |name: &String| {
        let kind = match Baseline::from_name(name) {
            Some(baseline) => Kind::Baseline(baseline),
            None if name == "default" => Kind::Engine(policy(&args.settings)?),
            None => return Err(format!("--policy: there is no {name:?}")),
        };
        Ok(Named { name: name.clone(), kind })
    };
    args.policies.iter().map(named).collect()
}

/// The shipped policy with `settings` on top.
fn policy(settings: &[(String, String)]) -> Result<Policy, String> {
    let variable = |(key, value): &(String, String)| {
        let name = format!("WEIR_CONTEXT__{}", key.to_uppercase());
        (OsString::from(name), OsString::from(value))
    };
    let figment = sources::figment(None, None, settings.iter().map(variable), []);
    let lines = |problems: Vec<config::Problem>| {
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        format!("--set: {}", lines.join("; "))
    };
    config::load(figment).map(|(config, _)| config.context.policy).map_err(lines)
}

/// Reads all files' conversations, in order.
fn read_all(args: &ReplayArgs, progress: &Progress) -> Result<Vec<Conversation>, String> {
    let mut lines = Vec::new();
    for path in &args.files {
        let text = read_text(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let own = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        lines.extend(own.map(|(number, line)| (path, number + 1, line.to_owned())));
    }
    let read = on_all_cores(lines.len(), |place| {
        let (path, number, line) = &lines[place];
        progress.step("reading", place, lines.len());
        Conversation::read(line, *number)
            .map_err(|error| format!("{}, line {number}: {error}", path.display()))
    });
    let mut conversations = read.into_iter().collect::<Result<Vec<_>, _>>()?;
    if let Some(source) = &args.source {
        conversations.retain(|conversation| conversation.source.contains(source));
    }
    conversations.retain(|conversation| conversation.last_request_tokens() >= args.min_tokens);
    conversations.truncate(args.limit.unwrap_or(usize::MAX));
    if conversations.is_empty() {
        return Err("there is no such conversation".to_owned());
    }
    Ok(conversations)
}

fn read_text(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let mut text = String::new();
    match path.extension() {
        Some(extension) if extension == "gz" => MultiGzDecoder::new(file).read_to_string(&mut text),
        _ => file.read_to_string(&mut text),
    }?;
    Ok(text)
}

fn replay_all(
    conversations: &[Conversation],
    policies: &[Named],
    budgets: &[Budget],
    progress: &Progress,
) -> Vec<Vec<Option<Outcome>>> {
    // The longest first, so that no core is left with one at the end.
    let mut order: Vec<usize> = (0..conversations.len()).collect();
    order.sort_by_key(|place| std::cmp::Reverse(conversations[*place].last_request_tokens()));
    let outcomes = on_all_cores(order.len(), |place| {
        progress.step("replaying", place, order.len());
        replay(&conversations[order[place]], policies, budgets)
    });
    progress.end();
    let mut sorted: Vec<_> = order.into_iter().zip(outcomes).collect();
    sorted.sort_by_key(|(place, _)| *place);
    sorted.into_iter().map(|(_, outcome)| outcome).collect()
}

/// The results of `work` for the first `count` numbers, in order.
fn on_all_cores<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(count));
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    if place >= count {
                        break;
                    }
                    let result = work(place);
                    done.lock().expect("no thread panics with it").push((place, result));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("no thread panics with it");
    done.sort_by_key(|(place, _)| *place);
    done.into_iter().map(|(_, result)| result).collect()
}

fn report(
    args: &ReplayArgs,
    conversations: &[Conversation],
    policies: &[Named],
    outcomes: &[Vec<Option<Outcome>>],
) -> String {
    let mut all = Vec::new();
    let mut single = Vec::new();
    let mut lost = String::new();
    let mut run = 0;
    for policy in policies {
        for budget in &args.budgets {
            let mut by_source: BTreeMap<String, Tally> = BTreeMap::new();
            let mut own_lost = Vec::new();
            for (conversation, outcomes) in conversations.iter().zip(outcomes) {
                let Some(outcome) = &outcomes[run] else { continue };
                by_source.entry(conversation.source.clone()).or_default().merge(&outcome.tally);
                own_lost.extend(&outcome.lost);
                let own = BTreeMap::from([(conversation.source.clone(), outcome.tally.clone())]);
                let (_, row) = rows(&policy.name, &budget.to_string(), &own);
                single.extend(row.into_iter().map(|row| (conversation, row)));
            }
            let (total, sources) = rows(&policy.name, &budget.to_string(), &by_source);
            all.push(total);
            if args.by_source || args.json {
                all.extend(sources);
            }
            if let Some(count) = args.lost {
                lost.push_str(&sample(&policy.name, *budget, &own_lost, count));
            }
            run += 1;
        }
    }
    match (args.lost, args.json) {
        (Some(_), _) => lost,
        (None, true) => as_json(&all, &single),
        (None, false) => table(&all),
    }
}

/// The rows of the table, and one for each conversation.
fn as_json(rows: &[Row], single: &[(&Conversation, Row)]) -> String {
    let of_conversation = |(conversation, row): &(&Conversation, Row)| {
        serde_json::json!({
            "conversation": conversation.id,
            "last_request_tokens": conversation.last_request_tokens(),
            "figures": row,
        })
    };
    let single: Vec<_> = single.iter().map(of_conversation).collect();
    let json = serde_json::json!({ "rows": rows, "conversations": single });
    format!("{json:#}\n")
}

/// `count` of the lost values, evenly taken.
fn sample(policy: &str, budget: Budget, lost: &[&Lost], count: usize) -> String {
    let gone = lost.iter().filter(|own| !own.has_value).count();
    let mut text = format!(
        "{policy} {budget}: {gone} values gone, {} without their context\n",
        lost.len() - gone
    );
    let step = lost.len().div_ceil(count.max(1)).max(1);
    for own in lost.iter().step_by(step) {
        let fate = if own.has_value { "no context" } else { "gone" };
        text.push_str(&format!(
            "{} {} turn {}: {fate}: {:?}, last seen in #{} ({:?}, {} back): {}\n",
            own.source,
            own.conversation,
            own.turn,
            own.value,
            own.last_seen,
            own.last_seen_by,
            own.turn - own.last_seen,
            own.around,
        ));
    }
    text.push('\n');
    text
}

fn show(
    args: &ReplayArgs,
    conversations: &[Conversation],
    id: &str,
    policies: &[Named],
) -> Result<String, String> {
    let conversation = conversations
        .iter()
        .find(|conversation| conversation.id == id)
        .ok_or_else(|| format!("--show: there is no conversation {id:?}"))?;
    let mut text = String::new();
    for policy in policies {
        for budget in &args.budgets {
            let length = args.turn.unwrap_or(usize::MAX);
            let Some(sent) = sent_at(conversation, &policy.kind, *budget, length) else {
                continue;
            };
            text.push_str(&format!("==== {} {budget}\n", policy.name));
            for (index, raw) in sent {
                let place = index.map_or("(not as it was)".to_owned(), |index| format!("#{index}"));
                let value: serde_json::Value = serde_json::from_str(&raw).unwrap_or_default();
                let role = value["role"].as_str().unwrap_or_default();
                text.push_str(&format!("---- {place} {role}\n"));
                if let Some(content) = value["content"].as_str() {
                    text.push_str(content);
                    text.push('\n');
                } else if !value["content"].is_null() {
                    text.push_str(&format!("{}\n", value["content"]));
                }
                for call in value["tool_calls"].as_array().into_iter().flatten() {
                    let function = &call["function"];
                    let name = function["name"].as_str().unwrap_or_default();
                    let arguments = function["arguments"].as_str().unwrap_or_default();
                    text.push_str(&format!("→ {name}({arguments})\n"));
                }
            }
        }
    }
    Ok(text)
}

/// How far the work is, on standard error.
struct Progress {
    is_shown: bool,
}

impl Progress {
    fn new(is_shown: bool) -> Self {
        Self { is_shown }
    }

    fn step(&self, what: &str, place: usize, count: usize) {
        if self.is_shown {
            eprint!("\r{what} {} of {count}   ", place + 1);
        }
    }

    fn end(&self) {
        if self.is_shown {
            eprint!("\r{:40}\r", "");
        }
    }
}
