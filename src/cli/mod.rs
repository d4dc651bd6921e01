//! Command line: one file per command. This file only dispatches.

mod backup;
mod budgets;
mod check;
mod config_files;
mod connect;
#[cfg(test)]
mod deployed;
mod explain;
mod greeting;
mod keys;
mod learned;
mod lines;
mod log_fields;
mod log_lines;
mod log_writer;
mod loop_check;
mod models;
mod moments;
#[cfg(test)]
mod pages;
mod provider_key;
mod reload;
mod replay;
mod run;
mod sealed;
mod serve;
mod settings;
pub mod sources;
mod start_error;
mod store_path;
mod tokenizer_file;
mod usage;
mod watch;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

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
  weir check --config weir.toml --connect
      checks a configuration, and whether the upstream answers
  weir explain request.json
      shows the plan for a request, and why
  weir keys create NAME
      creates a virtual key, for auth.mode = \"keys\"
  weir budgets set all --usd 20 --per day
      ends spending at 20 dollars a day
  weir usage --by day,model
      shows the usage and cost of requests

`weir help COMMAND` explains a command.";

#[derive(Debug, Parser)]
#[command(name = "weir", version, about = ABOUT, after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::ServeArgs),
    Run(run::RunArgs),
    Check(check::CheckArgs),
    Explain(explain::ExplainArgs),
    Keys(keys::KeysArgs),
    Budgets(budgets::BudgetsArgs),
    Usage(usage::UsageArgs),
    Backup(backup::BackupArgs),
    /// Manages the catalogue of models and their windows
    Models(models::ModelsArgs),
    Replay(replay::ReplayArgs),
}

/// Runs the command that the command line names.
pub fn run() -> ExitCode {
    match Arguments::parse().command {
        Some(Command::Serve(args)) => serve::run(&args),
        Some(Command::Run(args)) => run::run(&args),
        Some(Command::Check(args)) => check::run(&args),
        Some(Command::Explain(args)) => end(explain::run(&args)),
        Some(Command::Keys(args)) => end(keys::run(&args)),
        Some(Command::Budgets(args)) => end(budgets::run(&args)),
        Some(Command::Usage(args)) => end(usage::run(&args)),
        Some(Command::Backup(args)) => end(backup::run(&args)),
        Some(Command::Models(args)) => end(models::run(&args)),
        Some(Command::Replay(args)) => end(replay::run(&args)),
        None => match Arguments::command().print_help() {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        },
    }
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
        Arguments::command().debug_assert();
    }
}
