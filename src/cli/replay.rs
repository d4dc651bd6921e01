//! `weir replay`: reads recorded conversations from files, replays them on all cores and prints the
//! results. `weir_eval` does the measuring.

use std::io::Write;
use std::path::{Path, PathBuf};

use super::colours::Colours;
use super::on_all_cores::on_all_cores;
use super::recordings;
use super::sealed::Opener;
use super::sources::{self, Flag};
use super::store_path;
use crate::config::{Config, SAME_MODEL};
use weir_engine::compact::Policy;
use weir_engine::wire::Protocol;
use weir_eval::baseline::Baseline;
use weir_eval::conversation::Conversation;
use weir_eval::recorded::{self, Recorded, TextForm};
use weir_eval::report::Report;
use weir_eval::savings::{Folded, fold};
use weir_eval::summaries::{Price, Stub};
use weir_eval::{Budget, Kind, Named, Outcome, html, replay, show, table};

const HELP: &str = "\
Examples:
  weir replay recorded.jsonl.gz --policy default --policy drop_oldest
  weir replay recorded.jsonl --budget 32k --set low=0.5 --by-source
  weir replay recorded.jsonl --budget 30% --lost 40
  weir replay recorded.jsonl --budget 30% --show ID --turn 60

Budgets and sizes are those of messages. Tool definitions come on top of them; a
limit of weir's has them in it, as in `weir savings`.

Columns of --all (retention is the mean over sources with at least 60 cases;
the bill is pooled; of these, the short table has turns, ref, ctx, sent/full,
billed and rewrites):
  conv, turns   conversations and requests above the budget
  infeas        requests whose system text and last turn alone exceed it; they
                count for the bill alone
  ref           share still sent of the values (paths, ids, names, numbers,
                quoted strings) that the real answer used, that earlier messages
                held and that the last four did not
  deep          of those, the values that the first user message did not hold
  far10         of those, the values last seen more than ten messages back
  ctx           deep values sent with 30 characters around them unchanged
  ctx/ln        the same, or as far as the ends of their line
  5gram         runs of five words of the real answer that come from messages
                further back
  action        earlier calls, by their first argument
  user          the user's short messages, except the first
  evid          messages that hold the answer, if a conversation names them as
                `evidence`
  valid, over   requests that keep every rule; requests above the budget
  sent/full     tokens sent, of the requests above the budget
  cache         tokens that a provider's prefix cache holds
  billed        all input, cached tokens at a tenth, relative to sending all
  rewrites      requests that rewrite what was sent
  rewr/¼B       the same for each quarter of the budget that the conversation
                grows";

/// Name of weir's own policy.
const OWN: &str = "default";

/// Replays recorded conversations: how much compaction keeps of them, and its cost
///
/// Each conversation is replayed request by request, as an agent or a chat would have sent it,
/// under each policy at each budget. No model is called: the real answers show which parts were
/// needed.
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub(super) struct ReplayArgs {
    /// JSON lines, plain or gzip: conversations `{id, source, messages}`, or recorded request
    /// bodies of chat completions, Responses or Messages; or transcripts, logs and exports as
    /// `weir savings` reads them. Requests that extend one another are one conversation
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The protocol of all lines [default: recognised by the shape of each]. Responses and Messages
    /// are retold as chat completions, with the same texts, calls and results
    #[arg(long, value_name = "NAME", value_parser = super::protocol())]
    protocol: Option<Protocol>,
    /// Token budget for messages, without tool definitions: a share of each conversation's last
    /// request, or tokens, for conversations that grow to at least a quarter more
    #[arg(long = "budget", value_name = "30%|8k", value_parser = Budget::read,
          default_values = ["30%", "50%", "70%", "8k"])]
    budgets: Vec<Budget>,
    /// A policy of weir's: `default` as configured, `scored`, `zones`, `extract`, `shares`, `tiers`
    /// or one of [policies]; or one in common use: `none`, `drop_oldest`, `sticky_drop`, `mask_obs`
    #[arg(long = "policy", value_name = "NAME", default_values = [OWN])]
    policies: Vec<String>,
    /// The configuration whose [context] the policy `default` follows; the shipped one if none
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A key of [context] for the policy `default`, such as low=0.7
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    settings: Vec<(String, String)>,
    /// Adds a row for each policy of weir's, with empty summaries of at most so many tokens. They
    /// cover the messages of the next compaction, and are requested at 80 % of the way there, if
    /// weir would request them
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    summaries: Option<u64>,
    /// With --summaries: the summariser's price as a share of the conversation's own model's; or
    /// `same` for that model, which reads the conversation from its cache
    #[arg(long, value_name = "SHARE|same", default_value = "1", value_parser = price, requires = "summaries")]
    summary_price: Price,
    /// Only conversations whose source holds this text
    #[arg(long, value_name = "TEXT")]
    source: Option<String>,
    /// Only conversations whose last request has so many tokens. In shorter ones a share of it may
    /// be little more than the system prompt
    #[arg(long, value_name = "TOKENS", default_value_t = 0)]
    min_tokens: u64,
    /// At most so many conversations
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Also prints a row for each source
    #[arg(long)]
    by_source: bool,
    /// Prints all figures of each row, in a table as wide as they need
    #[arg(long, conflicts_with_all = ["json", "lost", "show"])]
    all: bool,
    /// Prints all figures, for each source and conversation, as JSON
    #[arg(long)]
    json: bool,
    /// Writes a page with charts and all rows to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Prints so many of the deep values that each run lost, instead of the table
    #[arg(long, value_name = "N", conflicts_with = "json")]
    lost: Option<usize>,
    /// Prints the messages sent for this conversation's last request, instead of the table
    #[arg(long, value_name = "ID", conflicts_with_all = ["json", "lost", "html"])]
    show: Option<String>,
    /// With --show: the request of so many messages, or the one before, instead of the last
    #[arg(long, value_name = "MESSAGES", requires = "show")]
    turn: Option<usize>,
    /// Environment variable with the API key that sent the requests: opens the compaction items that
    /// weir made for it, with the secret of the configured store
    #[arg(long, value_name = "NAME")]
    key_env: Option<String>,
    /// Hides progress
    #[arg(long)]
    no_progress: bool,
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write KEY=VALUE, such as low=0.7")?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

/// Parses a share in thousandths, or the same model.
fn price(text: &str) -> Result<Price, String> {
    if text == SAME_MODEL {
        return Ok(Price::Same);
    }
    let share = text.parse().ok().filter(|share: &f64| (0.0..=100.0).contains(share));
    share
        .map(|share| Price::Permille((share * 1000.0).round() as u32))
        .ok_or_else(|| "write a share, such as 0.1, or same".to_owned())
}

/// Runs `weir replay …`.
pub(super) fn run(args: &ReplayArgs) -> Result<(), String> {
    let policies = policies(args)?;
    let is_shown = !args.no_progress;
    let opener = Opener::new(args.key_env.as_deref(), || {
        store_path::configuration(args.config.as_deref(), None)
    })?;
    let conversations = read_all(args, &opener, is_shown)?;
    if let Some(warning) = opener.warning() {
        // If it cannot be shown, the figures still can.
        let _ = std::io::stderr().write_all(warning.as_bytes());
    }
    let text = match &args.show {
        Some(id) => shown(args, &conversations, id, &policies)?,
        None => {
            let outcomes = replay_all(&conversations, &policies, &args.budgets, is_shown);
            rendered(args, &Report::new(&conversations, &policies, &args.budgets, outcomes))?
        }
    };
    let is_table = !args.json && args.show.is_none() && args.lost.is_none();
    super::print(&if is_table { Colours::of_stdout().head(&text) } else { text })
}

fn policies(args: &ReplayArgs) -> Result<Vec<Named>, String> {
    let config = config(args)?;
    let named = |name: &String| {
        let kind = match Baseline::from_name(name) {
            Some(baseline) => Kind::Baseline(baseline),
            None => Kind::Engine(Box::new(policy(&config, name)?), None),
        };
        Ok(Named { name: name.clone(), kind })
    };
    let policies = args.policies.iter().map(named).collect::<Result<Vec<Named>, String>>()?;
    let stub = args.summaries.map(|cap_tokens| Stub { cap_tokens, price: args.summary_price });
    let with_summaries = |named: Named| {
        let summarised = match &named.kind {
            Kind::Engine(policy, None) if stub.is_some() => Some(Named {
                name: format!("{}+summaries", named.name),
                kind: Kind::Engine(policy.clone(), stub),
            }),
            _ => None,
        };
        [Some(named), summarised].into_iter().flatten()
    };
    Ok(policies.into_iter().flat_map(with_summaries).collect())
}

fn policy(config: &Config, name: &str) -> Result<Policy, String> {
    config.context.policies.read_name(name).map_err(|said| {
        let baselines: Vec<&str> = Baseline::NAMES.iter().map(|(name, _)| *name).collect();
        format!("--policy: {said}; and to compare with {}", baselines.join(", "))
    })?;
    Ok(config.policy(Some(name), None))
}

/// Loads the configuration, and applies the settings of the command line to the policy `default`.
fn config(args: &ReplayArgs) -> Result<Config, String> {
    let flag = |(key, value): &(String, String)| Flag {
        name: "--set".into(),
        key: format!("context.{key}").into(),
        value: value.clone(),
    };
    let figment =
        sources::figment(args.config.as_deref(), None, [], args.settings.iter().map(flag));
    sources::config_of(figment)
}

/// Formats the output, after it writes the page if one is requested.
fn rendered(args: &ReplayArgs, report: &Report) -> Result<String, String> {
    if let Some(path) = &args.html {
        std::fs::write(path, html::page(report))
            .map_err(|error| format!("{}: {}", path.display(), super::reason(&error)))?;
    }
    Ok(match args.lost {
        Some(count) => report.lost(count) + &report.unused_budgets(),
        None if args.json => report.json(),
        None => {
            let rows = report.rows(args.by_source);
            let table = if args.all { table::table(&rows) } else { table::short(&rows) };
            table + &report.summaries() + &report.unused_budgets()
        }
    })
}

fn shown(
    args: &ReplayArgs,
    conversations: &[Conversation],
    id: &str,
    policies: &[Named],
) -> Result<String, String> {
    let own = conversations.iter().find(|conversation| conversation.id == id);
    let own = own.ok_or_else(|| format!("--show: there is no conversation {id:?}"))?;
    let length = args.turn.unwrap_or(usize::MAX);
    let runs = policies.iter().flat_map(|policy| {
        args.budgets.iter().filter_map(move |budget| show::sent(own, policy, *budget, length))
    });
    let text: Vec<String> = runs.collect();
    match text.is_empty() {
        true => Err(format!("--show: {id} has no such request, or is too short for these budgets")),
        false => Ok(text.join("\n")),
    }
}

/// Reads the conversations of all files, in order.
fn read_all(
    args: &ReplayArgs,
    opener: &Opener,
    is_shown: bool,
) -> Result<Vec<Conversation>, String> {
    let mut conversations = Vec::new();
    for path in &args.files {
        let named = |error| format!("{}: {error}", path.display());
        let text = recordings::text(path).map_err(named)?;
        let opened: Vec<_> = text.lines().map(|line| opener.opened(line)).collect();
        let text = opened.join("\n");
        conversations.extend(match recorded::read(&text, None) {
            // What is written as one conversation a line is read line by line.
            Ok(read) if !matches!(read.form, TextForm::Request | TextForm::Trace) => {
                retold(read.recorded).map_err(named)?
            }
            Ok(read) if read.recorded.iter().filter(|own| own.is_request).count() > 1 => {
                let (count, joined) = (read.recorded.len(), retold(read.recorded).map_err(named)?);
                match joined.len() < count {
                    true => joined,
                    false => by_line(args, path, &text, is_shown)?,
                }
            }
            _ => by_line(args, path, &text, is_shown)?,
        });
    }
    if let Some(source) = &args.source {
        conversations.retain(|conversation| conversation.source.contains(source));
    }
    conversations.retain(|conversation| conversation.last_request_tokens() >= args.min_tokens);
    conversations.truncate(args.limit.unwrap_or(usize::MAX));
    match conversations.is_empty() {
        true => Err("no conversation in the files matches".to_owned()),
        false => Ok(conversations),
    }
}

/// Returns what was recorded as conversations: requests that extend one another are one.
fn retold(all: Vec<Recorded>) -> Result<Vec<Conversation>, String> {
    let (folded, refused) = fold(all);
    match refused.into_iter().next() {
        Some(error) => Err(error),
        None => folded.iter().map(Folded::conversation).collect(),
    }
}

fn by_line(
    args: &ReplayArgs,
    path: &Path,
    text: &str,
    is_shown: bool,
) -> Result<Vec<Conversation>, String> {
    let lines = text.lines().enumerate().map(|(place, line)| (place + 1, line));
    let lines: Vec<_> = lines.filter(|(_, line)| !line.trim().is_empty()).collect();
    let read = on_all_cores("reading", is_shown, &lines, |(number, line)| {
        let read = Conversation::read(line, *number, args.protocol);
        read.map_err(|error| format!("{}, line {number}: {error}", path.display()))
    });
    read.into_iter().collect()
}

fn replay_all(
    conversations: &[Conversation],
    policies: &[Named],
    budgets: &[Budget],
    is_shown: bool,
) -> Vec<Vec<Option<Outcome>>> {
    // The longest first, so that no core is left with a long one at the end.
    let mut order: Vec<usize> = (0..conversations.len()).collect();
    order.sort_by_key(|place| std::cmp::Reverse(conversations[*place].last_request_tokens()));
    let replayed = |place: &usize| replay(&conversations[*place], policies, budgets);
    let outcomes = on_all_cores("replaying", is_shown, &order, replayed);
    let mut sorted: Vec<_> = order.into_iter().zip(outcomes).collect();
    sorted.sort_by_key(|(place, _)| *place);
    sorted.into_iter().map(|(_, outcome)| outcome).collect()
}
