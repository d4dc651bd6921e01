//! `weir tokens`: the sizes of requests from files, by section, role and file, and the room that is
//! left. Counts nothing itself; `weir_engine::compact::report` has the figures.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};

use super::colours::{Colours, DIM, YELLOW, of_percent};
use super::explain::{self, PlanFlags};
use super::progress::Progress;
use super::recordings;
use super::table::aligned;
use crate::proxy::Question;
use weir_engine::compact::report::shown::{counted, first_words, percent, safe_lines, tokens};
use weir_engine::compact::report::{Report, model};
use weir_engine::wire::Protocol;

/// Maximum width of a bar.
const MAX_BAR_WIDTH: usize = 72;
/// Width of the bars in a table.
const ROW_BAR_WIDTH: u64 = 20;
/// Maximum number of files in a table without --all.
const MAX_FILES: usize = 10;
/// Maximum length of names in a table.
const MAX_NAME_CHARS: usize = 60;
/// Warnings that speak of the request itself. The others speak of its plan.
const WARNINGS: [&str; 2] = ["no_messages", "unknown_model"];

const EXAMPLES: &str = "\
Examples:
  weir tokens request.json
  weir tokens request.json --model gpt-4o-mini --limit 32000
      for another model, and at most so many tokens
  weir tokens captured/*.json --compact
      one line a request
  pbpaste | weir tokens -
      a request, or only its list of messages, from standard input
  weir tokens request.json --json | jq .remaining_tokens

The sizes are those of the request as its caller sends it. `weir explain` shows the request that \
weir would send instead, if it is too large. The limit is the model's window without the part that \
is reserved for the answer, or a lower limit of the configuration.";

/// Counts the tokens of requests: by section, role and file, and what is left of the window
///
/// Nothing is sent. The configuration is the one that `weir serve` would use here: the file, the
/// environment, the defaults.
#[derive(Debug, Args)]
#[command(about = "Counts the tokens of requests: by section, role and file, and the room left",
          after_help = EXAMPLES, after_long_help = EXAMPLES)]
pub(super) struct TokensArgs {
    /// Bodies of requests (chat completions, Responses or Messages), or only their messages or
    /// items, as JSON; or transcripts, logs or exports as `weir savings` reads them; - for standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Which conversation of a transcript, log or export
    #[arg(long, value_name = "N", default_value_t = 1)]
    conversation: usize,
    /// The protocol of the requests [default: recognised by their shape]
    #[arg(long, value_name = "NAME", value_parser = super::protocol())]
    protocol: Option<Protocol>,
    /// The model to count for, instead of the one that a request names
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Lowers the limit on prompt tokens, as the header x-weir-max-input-tokens does
    #[arg(long, value_name = "N", alias = "max-input-tokens",
          value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Prints one line a request
    #[arg(long, conflicts_with = "json")]
    compact: bool,
    /// Prints one JSON object a request, each on its line
    #[arg(long)]
    json: bool,
    /// Lists all files that the requests contain, not only the largest
    #[arg(long, conflicts_with_all = ["compact", "json"])]
    all: bool,
    /// A configuration file in TOML
    #[arg(long, value_name = "FILE", env = "WEIR_CONFIG")]
    config: Option<PathBuf>,
}

/// Runs `weir tokens …`.
pub(super) fn run(args: &TokensArgs) -> Result<(), String> {
    if args.files.iter().filter(|file| file.as_os_str() == "-").count() > 1 {
        return Err("- stands for standard input, which can be read only once".to_owned());
    }
    let config = explain::configuration(args.config.as_deref())?;
    let max_bytes = config.server.max_body_bytes;
    let profile = explain::profile(&config);
    let planner = explain::planner(config);
    let asked = PlanFlags {
        protocol: args.protocol,
        model: args.model.as_deref(),
        max_input_tokens: args.limit,
        policy: None,
        profile,
    };
    // On a terminal the results themselves are the progress.
    let is_slow = args.files.len() > 1 && !std::io::stdout().is_terminal();
    let progress = Progress::new(is_slow, "counting", args.files.len() as u64);
    let (mut text, mut problems) = (String::new(), Vec::new());
    for file in &args.files {
        let read = explain::read(file, max_bytes);
        let read = read.and_then(|bytes| recordings::body(bytes, args.conversation, file));
        let explained = read.and_then(|body| {
            explain::explain(&planner, (file, body.into()), &asked, Question::default())
        });
        match explained {
            Ok(explained) => add(&mut text, args, file, &explained.report),
            Err(problem) => problems.push(problem),
        }
        progress.step();
    }
    drop(progress);
    super::print(&text)?;
    if problems.is_empty() { Ok(()) } else { Err(problems.join("\nweir: ")) }
}

/// Adds the sizes of one request in the form that the flags select.
fn add(text: &mut String, args: &TokensArgs, file: &Path, report: &Report) {
    let name = name(file);
    if args.json {
        text.push_str(&format!("{}\n", in_json(&name, report)));
        return;
    }
    let colours = Colours::of_stdout();
    if args.compact {
        text.push_str(&line(&name, report, colours));
        return;
    }
    if !text.is_empty() {
        text.push('\n');
    }
    let most_files = if args.all { usize::MAX } else { MAX_FILES };
    text.push_str(&page(&name, report, most_files, explain::width(None), colours));
}

/// Returns the file's name for people.
fn name(file: &Path) -> String {
    match file.as_os_str() == "-" {
        true => "standard input".to_owned(),
        false => safe_lines(&file.display().to_string()).replace('\n', " "),
    }
}

/// Part of a request: its name, number of messages or mentions, and tokens.
struct Part {
    name: String,
    count: Option<usize>,
    tokens: u64,
}

fn sections(report: &Report) -> Vec<Part> {
    let rows = report.sections.iter().filter(|row| row.received_tokens > 0);
    let part = |name: &str, tokens| Part { name: name.to_owned(), count: None, tokens };
    rows.map(|row| part(row.section.word(), row.received_tokens)).collect()
}

fn roles(report: &Report) -> Vec<Part> {
    let rows = report.roles.iter();
    rows.map(|row| Part {
        name: row.role.word().to_owned(),
        count: Some(row.received_messages),
        tokens: row.received_tokens,
    })
    .collect()
}

fn files(report: &Report) -> Vec<Part> {
    let rows = report.files.iter();
    rows.map(|row| Part {
        name: first_words(&row.path, MAX_NAME_CHARS),
        count: Some(row.mentions),
        tokens: row.received_tokens,
    })
    .collect()
}

/// Says how much of the limit is left, or by how much the request is above it.
fn left(report: &Report) -> String {
    let (used, limit) = (report.window.received_tokens, report.window.limit_tokens);
    match limit.checked_sub(used) {
        Some(left) => format!("{} left", tokens(left)),
        None => format!("{} too many", tokens(used - limit)),
    }
}

fn used_percent(report: &Report) -> u64 {
    percent(report.window.received_tokens, report.window.limit_tokens)
}

/// Formats a request as one line.
fn line(name: &str, report: &Report, colours: Colours) -> String {
    let window = &report.window;
    let used = used_percent(report);
    let parts =
        sections(report).into_iter().map(|part| format!("{} {}", part.name, tokens(part.tokens)));
    format!(
        "{name}: {}, {} of {} tokens ({}), {}; {}\n",
        model(report),
        tokens(window.received_tokens),
        tokens(window.limit_tokens),
        colours.paint(of_percent(used), &format!("{used} %")),
        left(report),
        parts.collect::<Vec<_>>().join(", ")
    )
}

/// Formats a request as a bar and tables.
fn page(name: &str, report: &Report, most_files: usize, width: usize, colours: Colours) -> String {
    let window = &report.window;
    let used = used_percent(report);
    let mut text = format!(
        "{name}: {}, {} in {}\n{} of {} tokens, {}; the window has {}\n",
        model(report),
        counted(window.messages, "message"),
        counted(window.turns, "turn"),
        tokens(window.received_tokens),
        tokens(window.limit_tokens),
        left(report),
        tokens(window.window_tokens),
    );
    let label = format!(" {used} %");
    let room = width.min(MAX_BAR_WIDTH).saturating_sub(label.len() + 2) as u64;
    let bar = format!("[{}]{label}", bar(window.received_tokens, window.limit_tokens, room));
    text.push_str(&format!("{}\n", colours.paint(of_percent(used), &bar)));
    let all_files = files(report);
    let more = all_files.len().saturating_sub(most_files);
    let tables = [
        ("section", "", sections(report)),
        ("role", "messages", roles(report)),
        ("file", "mentions", all_files.into_iter().take(most_files).collect()),
    ];
    for (head, counts, parts) in tables.iter().filter(|(_, _, parts)| !parts.is_empty()) {
        let rows = table((head, counts), parts, window.received_tokens);
        text.push_str(&format!("\n{}", colours.head(&rows)));
    }
    if more > 0 {
        let more = format!("{more} more; --all lists them");
        text.push_str(&format!("{}\n", colours.paint(DIM, &more)));
    }
    let mut notes: Vec<String> = report
        .warnings
        .iter()
        .filter(|warning| WARNINGS.contains(&warning.code))
        .map(|warning| warning.text.clone())
        .collect();
    notes.extend(shortened(report));
    if !notes.is_empty() {
        text.push('\n');
    }
    for note in notes {
        text.push_str(&format!("{}\n", colours.paint(YELLOW, &note)));
    }
    text
}

/// Says how weir treats a request that is too large.
fn shortened(report: &Report) -> Option<String> {
    let (received, sent) = (report.window.received_tokens, report.window.sent_tokens);
    match &report.refusal {
        Some(refusal) => Some(format!("weir would refuse it: {refusal}")),
        None if sent < received => {
            let sent = tokens(sent);
            Some(format!("weir would send {sent} tokens instead; `weir explain` shows how"))
        }
        None => None,
    }
}

/// Formats parts with their shares of `whole`.
fn table((head, counts): (&str, &str), parts: &[Part], whole: u64) -> String {
    let has_counts = !counts.is_empty();
    let cells = |name: &str, count: String, tokens: &str, share: &str, bar: String| {
        let mut cells = vec![name.to_owned()];
        cells.extend(has_counts.then_some(count));
        cells.extend([tokens.to_owned(), share.to_owned(), bar]);
        cells
    };
    let mut rows = vec![cells(head, counts.to_owned(), "tokens", "share", String::new())];
    rows.extend(parts.iter().map(|part| {
        let share = format!("{} %", percent(part.tokens, whole));
        let bar = bar(part.tokens, whole, ROW_BAR_WIDTH).replace('.', "");
        let count = part.count.map(|count| count.to_string()).unwrap_or_default();
        cells(&part.name, count, &tokens(part.tokens), &share, bar)
    }));
    aligned(&rows, 1)
}

/// Draws a bar of so many characters.
fn bar(part: u64, whole: u64, width: u64) -> String {
    let full = u128::from(part) * u128::from(width) / u128::from(whole.max(1));
    let full = full.min(u128::from(width)) as usize;
    "#".repeat(full) + &".".repeat(width as usize - full)
}

fn in_json(name: &str, report: &Report) -> Value {
    let window = &report.window;
    let sections = report.sections.iter();
    let sections =
        sections.map(|row| json!({ "section": row.section, "tokens": row.received_tokens }));
    let roles = report.roles.iter().map(|row| {
        let (messages, tokens) = (row.received_messages, row.received_tokens);
        json!({ "role": row.role, "messages": messages, "tokens": tokens })
    });
    let files = report.files.iter().map(|row| {
        let (mentions, tokens) = (row.mentions, row.received_tokens);
        json!({ "path": row.path, "mentions": mentions, "tokens": tokens })
    });
    json!({
        "object": "weir.tokens",
        "file": name,
        "model": report.model,
        "tokens": window.received_tokens,
        "limit_tokens": window.limit_tokens,
        "window_tokens": window.window_tokens,
        "remaining_tokens": window.limit_tokens.saturating_sub(window.received_tokens),
        "used_percent": used_percent(report),
        "messages": window.messages,
        "turns": window.turns,
        "sections": sections.collect::<Value>(),
        "roles": roles.collect::<Value>(),
        "files": files.collect::<Value>(),
        "sent_tokens": window.sent_tokens,
        "refusal": report.refusal,
        "warnings": report.warnings,
    })
}
