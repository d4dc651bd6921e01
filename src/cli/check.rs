//! `weir check`: reports the problems that `weir serve` would find in a configuration, and the
//! effect of its changes on live conversations. Serves nothing and changes nothing.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use super::colours::{CYAN, Colours, GREEN, RED, YELLOW};
use super::connect::{self, TestOutcome, Tried};
use super::settings::{self, Flags};
use super::sources::Document;
use super::start_error::BAD_CONFIGURATION;
use crate::config::changes::{self, Change, Effect};
use crate::config::{self, Config, Problem, Warning};

const LONG_ABOUT: &str = "\
Reads the configuration as `weir serve` would, flags and environment included, and reports each \
problem with its key, file and line, and how to fix it. Keys of providers, certificates and \
other files that it names are read. Nothing is served, and without --connect nothing is sent.";

const EXAMPLES: &str = "\
Examples:
  weir check --config weir.toml
      reports all problems, or none
  weir check --connect --upstream http://127.0.0.1:8000/v1
      also tries the store, Redis and the upstream
  weir check --config new.toml --against weir.toml
      also reports which changes would rewrite live conversations in the
      provider's cache, and which need a restart
  weir check --config weir.toml --connect --json
      answers in JSON

--connect asks each upstream for its list of models. If weir has a key for it, one question of a \
few tokens is sent to its cheapest model, so that a bad key or an empty account shows here.

Exit codes: 0 no problem (warnings aside), 2 bad configuration, or a connection that was tried \
does not work.";

#[derive(Debug, Args)]
#[command(about = "Reports problems in a configuration", long_about = LONG_ABOUT, after_long_help = EXAMPLES)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    flags: Flags,
    /// The configuration file in force; also reports the effect of the changes since
    #[arg(long, value_name = "FILE")]
    against: Option<String>,
    /// Also tries the store, Redis and each upstream: requests its models and, if weir has a key
    /// for it, sends one question of a few tokens
    #[arg(long)]
    connect: bool,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// Results of the check.
struct Findings {
    problems: Vec<Problem>,
    warnings: Vec<Warning>,
    changes: Option<Vec<Change>>,
    /// Connections tried by `--connect`.
    tried: Vec<Tried>,
}

pub(super) fn run(args: &CheckArgs) -> ExitCode {
    let findings = look(args);
    let text = match args.json {
        true => in_json(args, &findings),
        false => in_words(args, &findings, Colours::of_stdout()),
    };
    if let Err(problem) = super::print(&text) {
        eprintln!("weir: {problem}");
        return ExitCode::FAILURE;
    }
    match findings.problems.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(BAD_CONFIGURATION),
    }
}

fn look(args: &CheckArgs) -> Findings {
    let mut findings =
        Findings { problems: Vec::new(), warnings: Vec::new(), changes: None, tried: Vec::new() };
    let figment = args.flags.gather().figment;
    match args.flags.configuration(&figment, |_| {}) {
        Ok((config, warnings)) => {
            findings.warnings = warnings;
            findings.warnings.extend(limits_on_unread_routes(&config));
            if args.connect {
                findings.tried = connect::connect(config);
                let failed = findings.tried.iter().filter(|own| own.outcome == TestOutcome::Fails);
                let failed = failed.map(|own| Problem::with(&own.key, &own.message)).collect();
                findings.problems = args.flags.located_in(&figment, failed);
            }
        }
        Err(problems) => findings.problems = problems,
    }
    if let Some(file) = &args.against {
        let old = args.flags.figment_with(Some(&Document::file(Path::new(file))));
        match config::load(old.clone()) {
            Ok(_) => findings.changes = Some(changes::changes(&old, &figment)),
            Err(problems) => findings.problems.extend(settings::located_in(file, problems)),
        }
    }
    findings
}

/// Warns of limits that apply to conversations only: weir does not read the prompts of other routes.
fn limits_on_unread_routes(config: &Config) -> Vec<Warning> {
    let has_limit = |row: &config::Route| row.max_input_tokens.is_some();
    let keys = [
        ("limits", !config.limits.is_empty()),
        ("routes", config.routes.rows.iter().any(has_limit)),
    ];
    let message = "max_input_tokens applies to conversations (/v1/chat/completions, /v1/responses and \
                   /v1/messages). weir does not read the prompts of /v1/completions: those requests are \
                   sent unchanged, with x-weir-action: unread";
    let warnings = keys.iter().filter(|(_, is_set)| *is_set);
    warnings
        .map(|(key, _)| Warning { key: (*key).to_owned(), message: message.to_owned() })
        .collect()
}

fn in_words(args: &CheckArgs, findings: &Findings, colours: Colours) -> String {
    let mut text = String::new();
    let mut line = |line: String| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{}", coloured(&line, colours));
    };
    for tried in findings.tried.iter().filter(|tried| tried.outcome == TestOutcome::Works) {
        line(format!("works: {}: {}", tried.key, tried.message));
    }
    for problem in &findings.problems {
        line(format!("problem: {problem}"));
    }
    for tried in findings.tried.iter().filter(|tried| tried.outcome == TestOutcome::Unclear) {
        line(format!("unclear: {}: {}", tried.key, tried.message));
    }
    for warning in &findings.warnings {
        let place = place(args, &warning.key).map_or(String::new(), |place| format!(" ({place})"));
        line(format!("warning: {}{place}: {}", warning.key, warning.message));
    }
    let kinds = [
        (
            Effect::MovesCompactions,
            "moves compactions in live conversations (one cache rewrite each)",
        ),
        (Effect::NextRequest, "applies from the next request on"),
        (Effect::Restart, "needs a restart"),
    ];
    for change in findings.changes.iter().flatten() {
        let said = kinds.iter().find(|(effect, _)| *effect == change.effect);
        let place = place(args, &change.key).map_or(String::new(), |place| format!(" ({place})"));
        line(format!("change: {}{place}: {}", change.key, said.map_or("", |(_, said)| said)));
    }
    if findings.changes.as_ref().is_some_and(Vec::is_empty) {
        line("no change".to_owned());
    }
    if findings.problems.is_empty() {
        line("the configuration is valid".to_owned());
    }
    text
}

/// Colours the first word of a line, or the verdict.
fn coloured(line: &str, colours: Colours) -> String {
    let colour = |word: &str| match word {
        "works" => GREEN,
        "problem" => RED,
        "unclear" | "warning" => YELLOW,
        _ => CYAN,
    };
    match line.split_once(": ") {
        Some((word, rest)) => format!("{}: {rest}", colours.paint(colour(word), word)),
        None => colours.paint(GREEN, line),
    }
}

fn in_json(args: &CheckArgs, findings: &Findings) -> String {
    let problem = |problem: &Problem| {
        json!({
            "key": problem.key,
            "file": problem.origin,
            "line": problem.line,
            "message": problem.message,
            "suggestion": problem.suggestion,
        })
    };
    let warning = |warning: &Warning| {
        json!({
            "key": warning.key,
            "line": args.flags.line_of(&warning.key),
            "message": warning.message,
        })
    };
    let change = |change: &Change| {
        json!({
            "key": change.key,
            "line": args.flags.line_of(&change.key),
            "effect": change.effect.word(),
        })
    };
    let list = |values: Vec<Value>| Value::Array(values);
    let mut answer = json!({
        "ok": findings.problems.is_empty(),
        "problems": list(findings.problems.iter().map(problem).collect()),
        "warnings": list(findings.warnings.iter().map(warning).collect()),
    });
    if args.connect {
        let tried =
            |own: &Tried| json!({ "key": own.key, "outcome": own.outcome, "message": own.message });
        answer["tried"] = list(findings.tried.iter().map(tried).collect());
    }
    if let Some(changes) = &findings.changes {
        answer["changes"] = list(changes.iter().map(change).collect());
    }
    format!("{answer:#}\n")
}

/// Returns the file and line of a key, if a file sets it.
fn place(args: &CheckArgs, key: &str) -> Option<String> {
    let line = args.flags.line_of(key)?;
    Some(format!("{}:{line}", args.flags.config.as_deref()?))
}
