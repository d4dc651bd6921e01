//! `weir savings`: finds transcripts and logs on this machine, and prints what their conversations cost and what
//! weir would save. `weir_eval` reads, bills and replays them. Sends nothing.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

use super::colours::Colours;
use super::explain;
use super::on_all_cores::on_all_cores;
use super::progress::Progress;
use crate::config::{Config, Priced};
use weir_engine::compact::policy::Goal;
use weir_eval::recorded::{self, KNOWN_FORMS, Recorded};
use weir_eval::savings::{Folded, Savings, examine, fold, limits_below};
use weir_store::budget::Price;

/// Maximum size of a file, unpacked.
const MAX_FILE_BYTES: u64 = 1 << 30;
/// Maximum size of all files together, as they are on the disk.
const MAX_ALL_BYTES: u64 = 2 << 30;
/// Maximum number of files, and of folders in one another.
const MAX_FILES: usize = 100_000;
const MAX_DEPTH: usize = 16;
/// Number of files that are named if they cannot be read.
const MOST_NOTES: usize = 5;
/// Characters of a file that is not understood that are shown.
const SEEN_CHARACTERS: usize = 60;
/// Endings of files that are read in folders.
const ENDINGS: [&str; 5] = [".jsonl", ".json", ".har", ".jsonl.gz", ".json.gz"];
/// Places of transcripts: a variable that moves the folder of an agent, that folder in the home folder, and the
/// folder in it.
const HOMES: [(&str, &str, &str); 3] = [
    ("CLAUDE_CONFIG_DIR", ".claude", "projects"),
    ("CODEX_HOME", ".codex", "sessions"),
    ("PI_CODING_AGENT_DIR", ".pi/agent", "sessions"),
];

const HELP: &str = "\
Examples:
  weir savings
      reads what Claude Code, codex and pi left in your home folder
  weir savings --find
      lists these files, and bills nothing
  weir savings requests.jsonl --model claude-sonnet-4-5
      reads a log with one request a line
  weir savings ~/.codex/sessions/2026 --limit 48k --limit 96k
      asks for two limits

Files it understands, plain or gzip:
  transcripts   Claude Code, codex and pi, with times and usage
  logs          one request a line: request bodies, OpenAI batch files, LiteLLM's
                logs, records with the body in `body` or `request`; and HAR
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
    /// Limit on prompt tokens to try, such as 64k, or one by price, "step" or "economic"; may be given
    /// several times [default: three below the largest prompt]
    #[arg(long = "limit", value_name = "TOKENS", value_parser = limit)]
    limits: Vec<Goal>,
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

fn limit(text: &str) -> Result<Goal, String> {
    if let Some((_, goal)) = Goal::WORDS.iter().find(|(word, _)| *word == text) {
        return Ok(*goal);
    }
    let (digits, factor) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1000),
        None => (text, 1),
    };
    let number: Option<u64> = digits.parse().ok().filter(|number| *number > 0);
    let tokens = number.and_then(|number| number.checked_mul(factor));
    let tokens = tokens.map(Goal::Tokens);
    tokens.ok_or_else(|| "write tokens, such as 64k or 64000, \"step\" or \"economic\"".to_owned())
}

/// File that was found.
struct FoundFile {
    path: PathBuf,
    bytes: u64,
    /// Whether the command line names it, rather than a folder.
    is_named: bool,
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
    let found = find(&args.files, &mut notes)?;
    let contents = read_all(&found, !args.no_progress, &mut notes)?;
    if args.find {
        print_notes(&notes);
        return super::print(&listed(&contents));
    }
    let all = contents.into_iter().flat_map(|(found, contents)| {
        let file = found.path.file_name().map(|name| name.to_string_lossy().into_owned());
        contents
            .recorded
            .into_iter()
            .map(move |own| Recorded { project: own.project.or_else(|| file.clone()), ..own })
    });
    let (drafts, refused) = fold(all.collect());
    notes.extend(refused);
    let savings = bill(args, &config, drafts);
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

/// Makes the head of each part stand out.
fn coloured(text: &str) -> String {
    let colours = Colours::of_stdout();
    let parts = text.split("\n\n").map(|part| colours.head(part).trim_end().to_owned());
    parts.collect::<Vec<_>>().join("\n\n") + "\n"
}

fn price<'c>(config: &'c Config, model: &str) -> Option<&'c Price> {
    match config.price(model) {
        Priced::Known(price) | Priced::Default(price) => Some(price),
        Priced::Refused | Priced::Unpriced => None,
    }
}

/// Bills and replays all conversations, the longest first, so that no core is left with a long one at the end.
fn bill(args: &SavingsArgs, config: &Config, mut drafts: Vec<Folded>) -> Savings {
    drafts.sort_by_key(|draft| std::cmp::Reverse(draft.about_tokens()));
    let policy = config.policy(None, None);
    let is_search = args.limits.is_empty();
    let limits = match is_search {
        true => {
            let largest_tokens = drafts.first().map_or(0, Folded::about_tokens);
            limits_below(largest_tokens).into_iter().map(Goal::Tokens).collect()
        }
        false => args.limits.clone(),
    };
    let progress = Progress::new(!args.no_progress, "replaying", drafts.len() as u64);
    let prices = |model: &str| price(config, model);
    let findings = on_all_cores(drafts.len(), |place| {
        let finding = examine(&drafts[place], args.model.as_deref(), &prices, &policy, &limits);
        progress.step();
        finding
    });
    Savings::new(findings, &limits, is_search)
}

fn print_notes(notes: &[String]) {
    for note in notes.iter().take(MOST_NOTES) {
        eprintln!("weir: {note}");
    }
    if let Some(more) = notes.len().checked_sub(MOST_NOTES).filter(|more| *more > 0) {
        eprintln!("weir: and {more} more like these");
    }
}

fn listed(contents: &[(&FoundFile, recorded::ReadText)]) -> String {
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

/// Returns the name of a file for a terminal, which would obey control characters in it.
fn shown(path: &Path) -> String {
    path.display().to_string().replace(char::is_control, "?")
}

/// Returns the files to read: those named, those in named folders, or those of agents.
fn find(named: &[PathBuf], notes: &mut Vec<String>) -> Result<Vec<FoundFile>, String> {
    let mut found = Vec::new();
    if named.is_empty() {
        let homes = homes();
        for folder in &homes {
            search(folder, 0, &mut found);
        }
        if found.is_empty() {
            let homes: Vec<String> = homes.iter().map(|own| own.display().to_string()).collect();
            return Err(format!(
                "no transcripts are in {}; name files or folders",
                homes.join(", ")
            ));
        }
    }
    for path in named {
        let metadata = std::fs::metadata(path)
            .map_err(|error| format!("{}: {}", shown(path), super::reason(&error)))?;
        match metadata.is_dir() {
            true => search(path, 0, &mut found),
            false => {
                found.push(FoundFile { path: path.clone(), bytes: metadata.len(), is_named: true });
            }
        }
    }
    if found.len() >= MAX_FILES {
        notes.push(format!("more than {MAX_FILES} files were found; the rest is left out"));
    }
    let mut all_bytes = 0_u64;
    let before = found.len();
    found.retain(|own| {
        all_bytes = all_bytes.saturating_add(own.bytes);
        all_bytes <= MAX_ALL_BYTES
    });
    if found.len() < before {
        let left = before - found.len();
        notes.push(format!("{left} files above 2 GiB in all are left out; name folders to choose"));
    }
    Ok(found)
}

/// Returns the folders of agents.
fn homes() -> Vec<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let home = variable("HOME").or_else(|| variable("USERPROFILE")).map(PathBuf::from);
    let folder = |(name, own, inner): &(&str, &str, &str)| {
        let moved = variable(name).map(PathBuf::from);
        Some(moved.or_else(|| Some(home.as_ref()?.join(own)))?.join(inner))
    };
    HOMES.iter().filter_map(folder).collect()
}

/// Collects the files in a folder and those below it, by name. Follows no links, and passes over what cannot be
/// listed.
fn search(folder: &Path, depth: usize, found: &mut Vec<FoundFile>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let mut entries: Vec<_> = entries.filter_map(Result::ok).collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let Ok(metadata) = entry.metadata() else { continue };
        let name = entry.file_name();
        let is_wanted = ENDINGS.iter().any(|ending| name.to_string_lossy().ends_with(ending));
        if metadata.is_dir() && depth < MAX_DEPTH {
            search(&entry.path(), depth + 1, found);
        } else if metadata.is_file() && is_wanted && found.len() < MAX_FILES {
            found.push(FoundFile { path: entry.path(), bytes: metadata.len(), is_named: false });
        }
    }
}

/// Reads all files. One that is named must be understood; others are noted and left out.
fn read_all<'f>(
    found: &'f [FoundFile],
    is_shown: bool,
    notes: &mut Vec<String>,
) -> Result<Vec<(&'f FoundFile, recorded::ReadText)>, String> {
    let progress = Progress::new(is_shown, "reading", found.len() as u64);
    let read = on_all_cores(found.len(), |place| {
        let contents = read(&found[place].path);
        progress.step();
        contents
    });
    drop(progress);
    let mut all = Vec::new();
    for (own, read) in found.iter().zip(read) {
        let name = shown(&own.path);
        match read {
            Ok(contents) => {
                notes.extend(contents.left_out.iter().map(|own| format!("{name}: {own}")));
                all.push((own, contents));
            }
            Err(error) if own.is_named => return Err(format!("{name}: {error}")),
            Err(error) => notes.push(format!("{name} is left out: {error}")),
        }
    }
    Ok(all)
}

fn read(path: &Path) -> Result<recorded::ReadText, String> {
    let text = read_text(path)?;
    recorded::read(&text, None).map_err(|error| refusal(&text, &error))
}

/// Says why a text is not understood, and what was seen.
fn refusal(text: &str, error: &str) -> String {
    let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let seen: String = first.trim().chars().take(SEEN_CHARACTERS).collect();
    format!("{error} It begins with {seen:?}. Known are {KNOWN_FORMS}.")
}

fn read_text(path: &Path) -> Result<String, String> {
    let reason = |error: std::io::Error| super::reason(&error);
    let file = File::open(path).map_err(reason)?;
    let mut bytes = Vec::new();
    let most = MAX_FILE_BYTES + 1;
    match path.extension() {
        Some(extension) if extension == "gz" => {
            MultiGzDecoder::new(file).take(most).read_to_end(&mut bytes)
        }
        _ => file.take(most).read_to_end(&mut bytes),
    }
    .map_err(reason)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(format!("it is larger than {MAX_FILE_BYTES} bytes"));
    }
    String::from_utf8(bytes).map_err(|_| "it is not text in UTF-8".to_owned())
}
