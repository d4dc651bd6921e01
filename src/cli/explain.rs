//! `weir explain`: prints the plan for a request from a file. Plans nothing itself and sends
//! nothing; `crate::proxy` makes the plan and `weir_engine::compact::report` describes it.

use std::borrow::Cow;
use std::fs::File;
use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use clap::builder::PossibleValuesParser;

use super::sealed::Opener;
use super::{sources, tokenizer_file};
use crate::config::{self, Config};
use crate::proxy::plan::{Planner, PlannerParts, RequestOptions};
use crate::proxy::{Explained, Question, Tenant};
use weir_engine::compact::report::{self, Category};
use weir_engine::wire::Protocol;

/// Table width on a terminal that does not report its own.
const WIDTH: usize = 80;
/// Table width in a file, wide enough to keep the first words.
const WIDTH_IN_FILES: usize = 160;

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
    /// items, as JSON; - for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The request's protocol [default: recognised by its shape]
    #[arg(long, value_name = "NAME",
          value_parser = PossibleValuesParser::new(Protocol::NAMES.map(|(name, _)| name)))]
    protocol: Option<String>,
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
    /// Width of the table [default: the terminal's, or 160]
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
    let config = configuration(args)?;
    let body = read(&args.file, config.server.max_body_bytes)?;
    let opener = Opener::new(args.key_env.as_deref(), || Ok(config.clone()))?;
    let body = match std::str::from_utf8(&body).map(|text| opener.opened(text)) {
        Ok(Cow::Owned(opened)) => opened.into(),
        _ => body.into(),
    };
    if let Some(name) = &args.policy {
        config.context.policies.read_name(name).map_err(|error| format!("--policy: {error}"))?;
    }
    let question = question(args, config.server.max_body_bytes)?;
    let explained = explain(args, config, body, question)?;
    if let Some(warning) = opener.warning() {
        // If it cannot be shown, the plan still can.
        let _ = std::io::stderr().write_all(warning.as_bytes());
    }
    std::io::stdout()
        .write_all(rendered(args, &explained).as_bytes())
        .map_err(|error| format!("cannot write to standard output: {error}"))
}

fn configuration(args: &ExplainArgs) -> Result<Config, String> {
    let figment = sources::figment(args.config.as_deref(), None, std::env::vars_os(), []);
    let lines = |problems: Vec<config::Problem>| {
        problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\nweir: ")
    };
    let (mut config, _) = config::load(figment).map_err(lines)?;
    tokenizer_file::read_all(&mut config).map_err(|problems| problems.join("\nweir: "))?;
    Ok(config)
}

/// Reads a file or standard input, up to the maximum size of a request.
fn read(path: &Path, max_bytes: usize) -> Result<Vec<u8>, String> {
    let shown = path.display();
    let mut bytes = Vec::new();
    let most = max_bytes as u64 + 1;
    let read = match path.as_os_str() == "-" {
        true => std::io::stdin().take(most).read_to_end(&mut bytes),
        false => File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes)),
    };
    read.map_err(|error| format!("{shown}: {error}"))?;
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
    Ok(Question { content, wants_body: args.json, wants_text: args.text })
}

fn explain(
    args: &ExplainArgs,
    config: Config,
    body: Bytes,
    question: Question,
) -> Result<Explained, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .map_err(|error| format!("cannot start threads: {error}"))?;
    let options = RequestOptions {
        max_input_tokens: args.max_input_tokens,
        policy: args.policy.clone(),
        ..RequestOptions::default()
    };
    let planner = Planner::new(Arc::new(config), PlannerParts::default());
    let model = args.model.as_deref();
    let named = args.protocol.as_deref().and_then(Protocol::from_name);
    let recognised = || std::str::from_utf8(&body).map(Protocol::recognise).unwrap_or_default();
    let (tenant, protocol) = (Tenant::ANONYMOUS, named.unwrap_or_else(recognised));
    runtime
        .block_on(planner.explain(tenant, protocol, body, model, options, Some(question)))
        .map_err(|error| format!("{}: {}", args.file.display(), error.message))
}

/// Formats the output.
fn rendered(args: &ExplainArgs, explained: &Explained) -> String {
    if args.json {
        return explained.json() + "\n";
    }
    if let Some(text) = &explained.text {
        return format!("{text}\n");
    }
    let mut text = match args.compact {
        true => report::compact(&explained.report),
        false if args.all => report::table(&explained.report, width(args)),
        false => report::brief(&explained.report, width(args)),
    };
    if let Some(preflight) = &explained.preflight {
        text.push_str(&report::judged(preflight));
    }
    text
}

fn width(args: &ExplainArgs) -> usize {
    let columns = || std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let size = || terminal_size::terminal_size_of(std::io::stdout());
    let terminal = || size().map(|(width, _)| usize::from(width.0));
    let is_terminal = std::io::stdout().is_terminal();
    let other = if is_terminal { WIDTH } else { WIDTH_IN_FILES };
    args.width.or_else(terminal).or_else(columns).unwrap_or(other)
}
