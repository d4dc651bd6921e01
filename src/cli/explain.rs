//! `weir explain`: prints the plan for a request from a file. Plans nothing itself and sends
//! nothing; `crate::proxy` makes the plan and `weir_engine::compact::report` describes it.

use std::borrow::Cow;
use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use clap::builder::PossibleValuesParser;

use super::colours::{CYAN, Colours, DIM, RED, YELLOW, of_percent};
use super::sealed::Opener;
use super::{recordings, sources, tokenizer_file};
use crate::config::{Config, Mode};
use crate::proxy::plan::{Planner, PlannerParts, RequestOptions, with_messages};
use crate::proxy::{Explained, Question, Tenant};
use weir_engine::compact::report::{self, Category};
use weir_engine::wire::{Protocol, insert};

/// Table width on a terminal that does not report its own.
const WIDTH: usize = 80;
/// Table width in a file.
const WIDTH_IN_FILES: usize = 100;

const HELP: &str = "\
Examples:
  weir explain request.json --max-input-tokens 8000
  weir explain request.json --config weir.toml --all
  weir explain request.json --json
  weir explain request.json --text
  weir explain request.json --protocol messages
  weir explain request.json --policy zones --compact
  weir explain request.json --content big.log --category tool_result
  curl -s http://127.0.0.1:8400/weir/v1/plan -d @request.json
      asks a running weir, with its configuration

Columns of the table:
  before, after  tokens as received and as sent
  fate           kept; masked: replaced by a placeholder; clipped: its middle
                 left out; gone: not sent
  why            the reason, or the compaction and note that replaced it
  note rows      notes that compactions wrote for removed messages

Without --all the messages of a run that were treated alike share a row. With it the window, \
budget, tokens by role, section and file, and shares stand under the table.

--content and --category judge content that may come next: whether it would fit, whether older \
content would be removed for it, and what to do with it.";

/// Shows what weir would send for a request, and why
///
/// Nothing is sent. The configuration is the one that `weir serve` would use here: the file, the
/// environment, the defaults.
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub(super) struct ExplainArgs {
    /// The body of a request (chat completions, Responses or Messages), or only its messages or
    /// items, as JSON; or a transcript, log or export as `weir savings` reads them; - for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Which conversation of a transcript, log or export
    #[arg(long, value_name = "N", default_value_t = 1)]
    conversation: usize,
    /// The request's protocol [default: recognised by its shape]
    #[arg(long, value_name = "NAME", value_parser = super::protocol())]
    protocol: Option<Protocol>,
    /// The model to plan for, instead of the one that the request names
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Lowers the limit on prompt tokens, as the header x-weir-max-input-tokens does
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_input_tokens: Option<u64>,
    /// The policy to plan with, instead of the configured one
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// Prints everything as JSON, like POST /weir/v1/plan
    #[arg(long, conflicts_with_all = ["text", "compact"])]
    json: bool,
    /// Prints the conversation that would be sent, as "User: … / Assistant: …"
    #[arg(long, conflicts_with = "compact")]
    text: bool,
    /// Prints one line
    #[arg(long)]
    compact: bool,
    /// Prints each message in its own row, and tokens by role, section, share and file
    #[arg(long, visible_alias = "verbose", conflicts_with_all = ["json", "text", "compact"])]
    all: bool,
    /// Prints the receipt as JSON: the treatment of each message, by digest. `weir verify` checks it
    #[arg(long, conflicts_with_all = ["json", "text", "compact", "all"])]
    receipt: bool,
    /// Width of the table [default: the terminal's, or 100]
    #[arg(long, value_name = "CHARACTERS")]
    width: Option<usize>,
    /// Content that may come next: would it fit?
    #[arg(long, value_name = "FILE", requires = "category")]
    content: Option<PathBuf>,
    /// The category of that content
    #[arg(long, value_name = "CATEGORY", requires = "content",
          value_parser = PossibleValuesParser::new(Category::NAMES.map(|(name, _)| name)))]
    category: Option<String>,
    /// Environment variable with the API key that sent the request: opens the compaction items that
    /// weir made for it, with the secret of the configured store
    #[arg(long, value_name = "NAME")]
    key_env: Option<String>,
    /// A configuration file in TOML
    #[arg(long, value_name = "FILE", env = "WEIR_CONFIG")]
    config: Option<PathBuf>,
}

/// Runs `weir explain …`.
pub(super) fn run(args: &ExplainArgs) -> Result<(), String> {
    let config = configuration(args.config.as_deref())?;
    let max_bytes = config.server.max_body_bytes;
    let body = recordings::body(read(&args.file, max_bytes)?, args.conversation, &args.file)?;
    let opener = Opener::new(args.key_env.as_deref(), || Ok(config.clone()))?;
    let body = match std::str::from_utf8(&body).map(|text| opener.opened(text)) {
        Ok(Cow::Owned(opened)) => opened.into(),
        _ => body.into(),
    };
    if let Some(name) = &args.policy {
        config.context.policies.read_name(name).map_err(|error| format!("--policy: {error}"))?;
    }
    let asked = PlanFlags {
        protocol: args.protocol,
        model: args.model.as_deref(),
        max_input_tokens: args.max_input_tokens,
        policy: args.policy.as_deref(),
        profile: profile(&config),
    };
    let question = question(args, max_bytes)?;
    let explained = explain(&planner(config), (&args.file, body), &asked, question)?;
    if let Some(warning) = opener.warning() {
        // If it cannot be shown, the plan still can.
        let _ = std::io::stderr().write_all(warning.as_bytes());
    }
    if let (true, None, Some(refusal)) =
        (args.receipt, &explained.receipt, &explained.report.refusal)
    {
        return Err(format!("nothing would be sent, so there is no receipt: {refusal}"));
    }
    super::print(&rendered(args, &explained))
}

/// Loads the configuration that `weir serve` would use with this file.
pub(super) fn configuration(file: Option<&Path>) -> Result<Config, String> {
    let figment = sources::figment(file, None, std::env::vars_os(), []);
    let mut config = sources::config_of(figment)?;
    let problems = tokenizer_file::read_all(&mut config);
    if problems.is_empty() { Ok(config) } else { Err(problems.join("\nweir: ")) }
}

/// Reads a file or standard input, up to the maximum size of a request.
pub(super) fn read(path: &Path, max_bytes: usize) -> Result<Vec<u8>, String> {
    let shown = path.display();
    let mut bytes = Vec::new();
    let most = max_bytes as u64 + 1;
    let read = match path.as_os_str() == "-" {
        true => std::io::stdin().take(most).read_to_end(&mut bytes),
        false => {
            let (file, _) = recordings::open(path).map_err(|error| format!("{shown}: {error}"))?;
            file.take(most).read_to_end(&mut bytes)
        }
    };
    read.map_err(|error| format!("{shown}: {}", super::reason(&error)))?;
    if bytes.len() > max_bytes {
        return Err(format!("{shown} is larger than {max_bytes} bytes (server.max_body_bytes)"));
    }
    Ok(bytes)
}

fn question(args: &ExplainArgs, max_bytes: usize) -> Result<Question, String> {
    let category = args.category.as_deref().and_then(Category::from_name);
    let content = match (&args.content, category) {
        (Some(path), Some(category)) => {
            let bytes = read(path, max_bytes)?;
            Some((category, String::from_utf8_lossy(&bytes).into_owned()))
        }
        _ => None,
    };
    let wants_receipt = args.receipt;
    Ok(Question { content, wants_body: args.json, wants_text: args.text, wants_receipt })
}

/// Flags that change the plan.
#[derive(Debug, Default)]
pub(super) struct PlanFlags<'a> {
    pub protocol: Option<Protocol>,
    pub model: Option<&'a str>,
    pub max_input_tokens: Option<u64>,
    pub policy: Option<&'a str>,
    pub profile: Option<String>,
}

/// Returns the profile text that requests without a virtual key get.
pub(super) fn profile(config: &Config) -> Option<String> {
    let context = &config.context;
    Some(context.profile.clone()).filter(|text| !text.is_empty() && context.mode != Mode::Observe)
}

/// Returns a body with a profile text in it, as weir puts it in; `None` if it has no place for it.
pub(super) fn with_profile(protocol: Protocol, body: &[u8], profile: &str) -> Option<Bytes> {
    let body = std::str::from_utf8(body).ok()?;
    insert::system_text(protocol, body, profile).map(Bytes::from)
}

/// Creates the planner of a configuration.
pub(super) fn planner(config: Config) -> Planner {
    Planner::new(Arc::new(config), PlannerParts::default())
}

/// Explains the plan for the body that was read from `path`.
pub(super) fn explain(
    planner: &Planner,
    (path, body): (&Path, Bytes),
    asked: &PlanFlags<'_>,
    question: Question,
) -> Result<Explained, String> {
    let options = RequestOptions {
        max_input_tokens: asked.max_input_tokens,
        policy: asked.policy.map(str::to_owned),
        ..RequestOptions::default()
    };
    let recognised = || std::str::from_utf8(&body).map(Protocol::recognise).unwrap_or_default();
    let (tenant, protocol) = (Tenant::ANONYMOUS, asked.protocol.unwrap_or_else(recognised));
    let body = with_messages(protocol, body);
    let added = asked.profile.as_deref().and_then(|text| with_profile(protocol, &body, text));
    let body = added.unwrap_or(body);
    super::block_on(async {
        let explained =
            planner.explain(tenant, protocol, body, asked.model, options, Some(question)).await;
        explained.map_err(|error| format!("{}: {}", path.display(), error.message))
    })
}

/// Formats the output.
fn rendered(args: &ExplainArgs, explained: &Explained) -> String {
    if args.json {
        return explained.json() + "\n";
    }
    if let Some(receipt) = &explained.receipt {
        return serde_json::to_string(receipt).unwrap_or_default() + "\n";
    }
    if let Some(text) = &explained.text {
        return format!("{text}\n");
    }
    let report = &explained.report;
    let mut text = match args.compact {
        true => report::compact(report),
        false if args.all => report::table(report, width(args.width)),
        false => report::brief(report, width(args.width)),
    };
    if let Some(preflight) = &explained.preflight {
        text.push_str(&report::judged(preflight));
    }
    match args.compact {
        true => text,
        false => coloured(&text, report.window.used_percent, Colours::of_stdout()),
    }
}

/// Colours the bar, the fates in the table and the warnings of a report.
fn coloured(text: &str, used_percent: u64, colours: Colours) -> String {
    if !colours.0 {
        return text.to_owned();
    }
    let mut fate_column = None;
    let mut shown = String::with_capacity(text.len());
    for line in text.lines() {
        if line.starts_with('#') && line.contains(" fate ") {
            fate_column = line.find(" fate ").map(|at| at + 1);
            shown.push_str(&colours.head(&format!("{line}\n")));
            continue;
        }
        if line.is_empty() {
            // The table ends.
            fate_column = None;
        }
        let own = match fate_column {
            Some(column) => fate_coloured(line, column, colours),
            None if line.starts_with("[#") || line.starts_with("[.") => {
                Some(colours.paint(of_percent(used_percent), line))
            }
            None if line.starts_with("warning ") || line.starts_with("nothing is sent") => {
                Some(colours.paint(YELLOW, line))
            }
            None => None,
        };
        shown.push_str(own.as_deref().unwrap_or(line));
        shown.push('\n');
    }
    shown
}

/// Colours the fate in a row of a table; `None` if the row has none.
fn fate_coloured(line: &str, column: usize, colours: Colours) -> Option<String> {
    let (at, _) = line.char_indices().nth(column)?;
    let (before, rest) = line.split_at(at);
    let fate = rest.split(' ').next()?;
    let colour = match fate {
        "kept" => DIM,
        "masked" | "clipped" => YELLOW,
        "gone" => RED,
        "added" => CYAN,
        _ => return None,
    };
    Some(format!("{before}{}{}", colours.paint(colour, fate), &rest[fate.len()..]))
}

/// Returns the width of tables on standard output.
pub(super) fn width(given: Option<usize>) -> usize {
    let columns = || std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let size = || terminal_size::terminal_size_of(std::io::stdout());
    let terminal = || size().map(|(width, _)| usize::from(width.0));
    let is_terminal = std::io::stdout().is_terminal();
    let other = if is_terminal { WIDTH } else { WIDTH_IN_FILES };
    given.or_else(terminal).or_else(columns).unwrap_or(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fates_bars_and_warnings_have_colours() {
        let report = "m: evict\n[##..] 50 %\n\n#  role  fate  why\n0  …     kept  system\n\
                      1  user  gone  cut\n\nwarning   near\n";
        let expected = "m: evict\n\u{1b}[32m[##..] 50 %\u{1b}[0m\n\n\
                        \u{1b}[1m#  role  fate  why\u{1b}[0m\n\
                        0  …     \u{1b}[2mkept\u{1b}[0m  system\n\
                        1  user  \u{1b}[31mgone\u{1b}[0m  cut\n\n\
                        \u{1b}[33mwarning   near\u{1b}[0m\n";
        assert_eq!(coloured(report, 50, Colours(true)), expected);
        assert_eq!(coloured(report, 50, Colours(false)), report);
    }
}
