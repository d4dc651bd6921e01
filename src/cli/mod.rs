//! Command line: one file per command. This file only dispatches.

mod backup;
mod browser;
mod budgets;
mod check;
mod colours;
mod config_files;
mod connect;
mod conversations;
#[cfg(test)]
mod deployed;
mod explain;
mod focus;
mod greeting;
mod init;
mod keys;
mod learned;
mod lines;
mod log_fields;
mod log_lines;
mod log_writer;
mod loop_check;
mod manual;
mod model_show;
mod models;
mod moments;
mod on_all_cores;
mod opencode;
#[cfg(test)]
mod pages;
mod progress;
mod provider_key;
mod reconcile;
mod recordings;
mod reload;
mod replay;
mod run;
mod savings;
mod sealed;
mod serve;
mod settings;
pub mod sources;
mod start_error;
mod store_path;
mod table;
mod tokenizer_file;
mod tokens;
mod top;
mod tune;
mod usage;
mod verify;
mod watch;

use std::process::ExitCode;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{CommandFactory, Parser, Subcommand};
use tokio::time::{Interval, MissedTickBehavior, interval};

use self::colours::When;
use weir_engine::wire::Protocol;

const ABOUT: &str = "\
An OpenAI-compatible reverse proxy that keeps every conversation inside its model's context window.

Start `weir serve` and point your SDK's base URL at it; no other change is needed.";

const EXAMPLES: &str = "\
Examples:
  weir serve
      forwards to OpenAI, with the key that each caller sends
  OPENAI_BASE_URL=http://127.0.0.1:8400/v1 python app.py
      runs an application through it
  weir run -- claude
      runs one command through a weir of its own
  weir init
      asks three questions and writes a configuration
  weir check --config weir.toml --connect
      checks a configuration, and whether the upstream answers
  weir explain request.json
      shows the plan for a request, and why
  weir savings
      shows what your agents' conversations cost, and what weir would save
  weir keys create NAME
      creates a virtual key, for auth.mode = \"keys\"
  weir budgets set all --usd 20 --per day
      ends spending at 20 dollars a day
  weir usage --by day,model
      shows the usage and cost of requests
  weir top
      shows requests, conversations and budgets as they change

`weir help COMMAND` explains a command.";

#[derive(Debug, Parser)]
#[command(name = "weir", version, about = ABOUT, after_help = EXAMPLES)]
struct CommandLine {
    #[command(subcommand)]
    command: Option<Command>,
    /// Colours: auto (on a terminal, unless NO_COLOR is set), always or never
    #[arg(
        long,
        global = true,
        value_enum,
        value_name = "WHEN",
        default_value = "auto",
        hide_possible_values = true,
        hide_default_value = true,
        alias = "colour",
        display_order = 900
    )]
    color: When,
}

#[derive(Debug, Subcommand)]
enum Command {
    Init(init::InitArgs),
    Serve(serve::ServeArgs),
    Run(run::RunArgs),
    Check(check::CheckArgs),
    Explain(explain::ExplainArgs),
    Verify(verify::VerifyArgs),
    Tokens(tokens::TokensArgs),
    Top(top::TopArgs),
    Keys(keys::KeysArgs),
    Budgets(budgets::BudgetsArgs),
    Usage(usage::UsageArgs),
    Reconcile(reconcile::ReconcileArgs),
    Conversations(conversations::ConversationsArgs),
    Backup(backup::BackupArgs),
    /// Manages the catalogue of models and their windows
    Models(models::ModelsArgs),
    Replay(replay::ReplayArgs),
    Savings(savings::SavingsArgs),
    Tune(tune::TuneArgs),
    Completions(manual::CompletionsArgs),
    Man(manual::ManArgs),
}

/// Runs the command that the command line names.
pub fn run() -> ExitCode {
    let arguments = CommandLine::parse();
    arguments.color.decide();
    match arguments.command {
        Some(Command::Init(args)) => end(init::run(&args)),
        Some(Command::Serve(args)) => serve::run(&args),
        Some(Command::Run(args)) => run::run(&args),
        Some(Command::Check(args)) => check::run(&args),
        Some(Command::Explain(args)) => end(explain::run(&args)),
        Some(Command::Verify(args)) => verify::run(&args),
        Some(Command::Tokens(args)) => end(tokens::run(&args)),
        Some(Command::Top(args)) => end(top::run(&args)),
        Some(Command::Keys(args)) => end(keys::run(&args)),
        Some(Command::Budgets(args)) => end(budgets::run(&args)),
        Some(Command::Usage(args)) => end(usage::run(&args)),
        Some(Command::Reconcile(args)) => end(reconcile::run(&args)),
        Some(Command::Conversations(args)) => end(conversations::run(&args)),
        Some(Command::Backup(args)) => end(backup::run(&args)),
        Some(Command::Models(args)) => end(models::run(&args)),
        Some(Command::Replay(args)) => end(replay::run(&args)),
        Some(Command::Savings(args)) => end(savings::run(&args)),
        Some(Command::Tune(args)) => end(tune::run(&args)),
        Some(Command::Completions(args)) => end(manual::completions(&args, CommandLine::command())),
        Some(Command::Man(args)) => end(manual::man(&args, CommandLine::command())),
        None => match CommandLine::command().print_help() {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        },
    }
}

/// Returns the parser of flags that name a protocol.
fn protocol() -> impl TypedValueParser<Value = Protocol> {
    let names = PossibleValuesParser::new(Protocol::NAMES.map(|(name, _)| name));
    names.map(|name| Protocol::from_name(&name).unwrap_or_default())
}

/// Runs the work of a command that waits for a store.
fn block_on<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start: {error}"))?;
    runtime.block_on(work)
}

/// Returns ticks with this period, the first one at once.
fn every(period: Duration) -> Interval {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Prints `text`. A reader that closed its end, such as `head`, is no error.
fn print(text: &str) -> Result<(), String> {
    match std::io::Write::write_all(&mut std::io::stdout().lock(), text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(format!("cannot write: {error}"))
        }
        _ => Ok(()),
    }
}

/// Describes an error of the system in words, without its number.
fn reason(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "there is no such file or folder".to_owned(),
        std::io::ErrorKind::IsADirectory => "it is a folder, not a file".to_owned(),
        std::io::ErrorKind::PermissionDenied => "its permissions do not allow it".to_owned(),
        _ => {
            let text = error.to_string();
            text.split(" (os error").next().unwrap_or_default().to_owned()
        }
    }
}

/// Prints the error, if any, and returns the exit code.
fn end(outcome: Result<(), String>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("weir: {message}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        CommandLine::command().debug_assert();
    }
}
