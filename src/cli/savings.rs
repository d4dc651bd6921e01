//! `weir savings`: finds transcripts and logs on this machine, and prints what their conversations cost and what
//! weir would save. `weir_eval` reads, bills and replays them. Sends nothing.

use std::fmt::Write as _;
use std::path::PathBuf;

use super::colours::Colours;
use super::explain;
use super::on_all_cores::on_all_cores;
use super::recordings::{self, FoundFile, shown};
use crate::config::{Config, Known, Priced};
use weir_engine::compact::policy::Goal;
use weir_eval::recorded::{ReadText, Recorded};
use weir_eval::savings::{Folded, Models, Savings, TrialLimit, examine, fold, limits_below};
use weir_store::budget::Price;

/// Number of files that are named if they cannot be read.
const MOST_NOTES: usize = 5;

const HELP: &str = "\
Examples:
  weir savings
      reads what coding agents left in your home folder
  weir savings --find
      lists these files, and bills nothing
  weir savings requests.jsonl --model claude-sonnet-4-5
      reads a log with one request a line
  weir savings ~/.codex/sessions/2026 --limit 48k --limit 96k
      asks for two limits

Files it understands, plain or gzip:
  transcripts   Claude Code, codex, opencode (files and database), pi, qwen-code
                and gemini-cli, with times and usage
  logs          one request a line: request bodies, OpenAI batch files, LiteLLM's
                logs, records with the body in `body` or `request`; and HAR
  exports       Langfuse, Helicone (JSON, lines or CSV, with bodies), and traces
                of OpenTelemetry in JSON with recorded content
  traces        {id, messages}: one request for each answer
Requests of a log that extend one another are one conversation.

How it bills: usage that a file has is billed as it is. Without usage the
provider's rules decide: what the request before began with is read from the
cache, if it is large enough and the pause was short enough; the rest is new.
Prices are those of `weir models`, with their steps above a size.

Under a limit the same requests are planned by weir's engine. The answers are
those that were given: an agent that has lost something may read it again, and
that is not counted. So look at the values that stay: those that an answer used
and that were last seen more than four messages before it. The best limit is
the cheapest that keeps 95 % of them and refuses no request.

To try a limit, write it in weir.toml as [[limits]] with model = \"*\" and
max_input_tokens, or send the header x-weir-max-input-tokens.";

/// Shows what conversations cost, what weir would save, and what would be lost
///
/// Reads transcripts and logs of this machine, before weir is switched on. Nothing is sent, and no
/// model is called.
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub(super) struct SavingsArgs {
    /// Transcripts, logs, or folders with them [default: those of agents in your home folder]
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Lists the files that would be read, with format, conversations and size
    #[arg(long)]
    find: bool,
    /// The model of conversations that name none
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Limit on prompt tokens to try, such as 64k, or one with a name: "window", "step", "economic",
    /// "cold" (economic, and after pauses) or "optimum" (an estimate by sizes alone); may be given
    /// several times [default: three below the largest prompt, and economic]
    #[arg(long = "limit", value_name = "TOKENS", value_parser = limit)]
    limits: Vec<TrialLimit>,
    /// Tries all limits with a name
    #[arg(long, conflicts_with = "limits")]
    compare: bool,
    /// Gives requests without times pauses, the same each time: one of 27 is longer than caches live
    #[arg(long)]
    draw_pauses: bool,
    /// Prints all figures as JSON, costs in nano-dollars
    #[arg(long)]
    json: bool,
    /// A configuration file in TOML, whose prices and [context] count
    #[arg(long, value_name = "FILE", env = "WEIR_CONFIG")]
    config: Option<PathBuf>,
    /// Hides progress
    #[arg(long)]
    no_progress: bool,
}

fn limit(text: &str) -> Result<TrialLimit, String> {
    if let Some((_, tried)) = TrialLimit::WORDS.iter().find(|(word, _)| *word == text) {
        return Ok(*tried);
    }
    let (digits, factor) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1000),
        None => (text, 1),
    };
    let number: Option<u64> = digits.parse().ok().filter(|number| *number > 0);
    let tokens = number.and_then(|number| number.checked_mul(factor));
    let tokens = tokens.map(|tokens| TrialLimit::Goal(Goal::Tokens(tokens)));
    let words = TrialLimit::WORDS.map(|(word, _)| word).join(", ");
    tokens.ok_or_else(|| format!("write tokens, such as 64k or 64000, or one of {words}"))
}

/// Runs `weir savings …`.
pub(super) fn run(args: &SavingsArgs) -> Result<(), String> {
    let config = explain::configuration(args.config.as_deref())?;
    if let Some(model) = args.model.as_deref().filter(|model| price(&config, model).is_none()) {
        return Err(format!(
            "--model: the price of {model:?} is not known; write it in [models.{model:?}] of --config"
        ));
    }
    let mut notes = Vec::new();
    if args.find {
        let found = recordings::find(&args.files, &mut notes)?;
        let contents = recordings::read_all(&found, !args.no_progress, &mut notes)?;
        print_notes(&notes);
        return super::print(&listed(&contents));
    }
    let drafts = folded(&args.files, !args.no_progress, &mut notes)?;
    let savings = bill(args, &config, &drafts);
    notes.extend(savings.broken.iter().cloned());
    print_notes(&notes);
    let left_out = savings.left_out();
    match (args.json, savings.conversations) {
        (true, _) => super::print(&savings.json()),
        (false, 0) if left_out.is_empty() => Err("no file has a conversation".to_owned()),
        (false, 0) => Err(format!("no conversation can be billed. {}", left_out.trim_end())),
        (false, _) => super::print(&(coloured(&savings.text()) + &left_out)),
    }
}

/// Returns the conversations of files, or of those of agents, the largest first.
pub(super) fn folded(
    files: &[PathBuf],
    is_shown: bool,
    notes: &mut Vec<String>,
) -> Result<Vec<Folded>, String> {
    let found = recordings::find(files, notes)?;
    let contents = recordings::read_all(&found, is_shown, notes)?;
    let all = contents.into_iter().flat_map(|(found, contents)| {
        let file = found.path.file_name().map(|name| name.to_string_lossy().into_owned());
        contents
            .recorded
            .into_iter()
            .map(move |own| Recorded { project: own.project.or_else(|| file.clone()), ..own })
    });
    let (mut drafts, refused) = fold(all.collect());
    notes.extend(refused);
    drafts.sort_by_key(|draft| std::cmp::Reverse(draft.about_tokens()));
    Ok(drafts)
}

/// Makes the head of each part stand out.
fn coloured(text: &str) -> String {
    let colours = Colours::of_stdout();
    let parts = text.split("\n\n").map(|part| colours.head(part).trim_end().to_owned());
    parts.collect::<Vec<_>>().join("\n\n") + "\n"
}

pub(super) fn price<'c>(config: &'c Config, model: &str) -> Option<&'c Price> {
    match config.price(model) {
        Priced::Known(price) | Priced::Default(price) => Some(price),
        Priced::Refused | Priced::Unpriced => None,
    }
}

/// Returns the most prompt tokens that a model takes, if it is known.
pub(super) fn window_tokens(config: &Config, model: &str) -> Option<u64> {
    let found = config.models.find(model);
    let most_tokens = found.entry.max_input_tokens.unwrap_or(found.entry.window_tokens);
    Some(most_tokens).filter(|_| found.known != Known::Unknown)
}

/// Bills and replays all conversations, the longest first, so that no core is left with a long one at the end.
fn bill(args: &SavingsArgs, config: &Config, drafts: &[Folded]) -> Savings {
    let policy = config.policy(None, None);
    let is_search = args.limits.is_empty() && !args.compare;
    let limits: Vec<TrialLimit> = match is_search {
        true => {
            let largest_tokens = drafts.first().map_or(0, Folded::about_tokens);
            let below = limits_below(largest_tokens).into_iter();
            let below = below.map(|tokens| TrialLimit::Goal(Goal::Tokens(tokens)));
            below.chain([TrialLimit::ECONOMIC]).collect()
        }
        false if args.compare => TrialLimit::WORDS.map(|(_, tried)| tried).to_vec(),
        false => args.limits.clone(),
    };
    let models = Models {
        price: &|model| price(config, model),
        window_tokens: &|model| window_tokens(config, model),
        default_model: args.model.as_deref(),
        draws_pauses: args.draw_pauses,
    };
    let examined = |draft: &Folded| examine(draft, &models, &policy, &limits);
    let findings = on_all_cores("replaying", !args.no_progress, drafts, examined);
    Savings::new(findings, &limits, is_search)
}

pub(super) fn print_notes(notes: &[String]) {
    for note in notes.iter().take(MOST_NOTES) {
        eprintln!("weir: {note}");
    }
    if let Some(more) = notes.len().checked_sub(MOST_NOTES).filter(|more| *more > 0) {
        eprintln!("weir: and {more} more like these");
    }
}

fn listed(contents: &[(&FoundFile, ReadText)]) -> String {
    let mut text = format!("{:12}{:>14}{:>12}  file\n", "format", "conversations", "kB");
    for (found, own) in contents {
        let _ = writeln!(
            text,
            "{:12}{:>14}{:>12}  {}",
            own.form.name(),
            own.recorded.len(),
            found.bytes.div_ceil(1000),
            shown(&found.path)
        );
    }
    text
}
