//! `weir run`: serves on free ports of 127.0.0.1 while a command runs whose environment leads there,
//! and returns the command's exit code. Decides nothing about requests.

mod command;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use figment::Figment;
use figment::providers::Serialized;
use figment::value::{Dict, Value};

use self::command::{Addresses, RunningCommand};
use super::log_writer::LogEnd;
use super::provider_key::OTEL_HEADERS;
use super::serve;
use super::settings::Flags;
use super::start_error::{LogError, StartError};
use super::store_path;
use crate::admin;
use crate::config::{Config, Problem, Server as Listener, Upstream};
use crate::proxy::Proxy;
use crate::proxy::error::ErrorKind;
use crate::proxy::metrics::Totals;
use crate::server::{Ending, Server};
use crate::upstream::{Base, Client};
use weir_engine::compact::report::shown;
use weir_store::budget::NanoUsd;
use weir_store::budget::money::grouped;
use weir_store::files;

/// Default upstream of `ANTHROPIC_BASE_URL`.
const ANTHROPIC: &str = "https://api.anthropic.com";
/// Variable that names the Anthropic upstream, also used by Anthropic's SDKs.
const ANTHROPIC_BASE_URL: &str = "ANTHROPIC_BASE_URL";
/// Name of the configured upstream that takes precedence over that variable.
const ANTHROPIC_UPSTREAM: &str = "anthropic";
/// Time for requests in flight to finish after the command ended.
const DRAIN_DEADLINE_MS: u64 = 5000;
/// A longer log file is begun again.
const MAX_LOG_BYTES: u64 = 16 << 20;

const LONG_ABOUT: &str = "\
Runs a command, such as a coding agent, through a weir of its own.

weir listens on free ports of 127.0.0.1, sets OPENAI_BASE_URL, OPENAI_API_BASE and \
ANTHROPIC_BASE_URL for the command alone, and ends with it. Each address holds a secret \
of the run, without which weir refuses. The command keeps its own API \
keys, terminal and exit code; variables from which weir reads the operator's keys are hidden from \
it. Requests to OPENAI_BASE_URL go to OpenAI, requests to ANTHROPIC_BASE_URL \
to Anthropic. Keys, budgets and usage are those of `weir serve`.";

const EXAMPLES: &str = "\
Examples:
  weir run -- claude
      runs Claude Code; conversations stay inside the model's context window
  weir run --max-input-tokens 64000 -- codex
      sends at most 64,000 tokens a request; codex gets the address as -c openai_base_url=…
  weir run --observe -- opencode
      changes no request; the summary at the end counts the compactions left out
  weir run --openai http://127.0.0.1:11434/v1 -- python agent.py
      sends requests to a model server on this machine
  weir usage --by day,model
      shows the usage and cost of all runs

Signals: SIGTERM and SIGHUP are forwarded to the command. So is Ctrl-C, unless the terminal has \
sent it to the command already.

Exit codes: that of the command, 128 and the signal's number if a signal ended it, 127 if the \
command is not found, 126 if it cannot be run, 1 if weir cannot serve, 2 for a bad configuration.";

#[derive(Debug, Args)]
#[command(about = "Runs a command, such as a coding agent, through a weir of its own", long_about = LONG_ABOUT, after_long_help = EXAMPLES)]
pub(super) struct RunArgs {
    /// Plans compactions and reports them, but forwards every request unchanged
    #[arg(long)]
    observe: bool,
    /// Sends at most this many tokens of input a request, also to models with a larger window
    #[arg(long, value_name = "TOKENS")]
    max_input_tokens: Option<u64>,
    /// Where requests to OPENAI_BASE_URL go [default: that variable, or https://api.openai.com/v1]
    #[arg(long, value_name = "URL")]
    openai: Option<String>,
    /// Where requests to ANTHROPIC_BASE_URL go [default: that variable, or
    /// https://api.anthropic.com]
    #[arg(long, value_name = "URL")]
    anthropic: Option<String>,
    /// Lets the command inherit the variables from which weir reads keys; else they are hidden from it
    #[arg(long)]
    pass_keys: bool,
    /// A configuration file in TOML; [server] and [admin] do not apply
    #[arg(long, value_name = "FILE", env = "WEIR_CONFIG")]
    config: Option<String>,
    /// The store's file, :memory: for none, or the URL of a PostgreSQL server [default:
    /// weir/weir.db in the user's state folder]
    #[arg(long, value_name = "FILE")]
    store: Option<String>,
    /// The log's file [default: run.log next to the store's file]
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// The command and its arguments; all that follows its name is its own
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    command: Vec<OsString>,
}

/// Runs the command to its end, and returns its exit code.
pub(super) fn run(args: &RunArgs) -> ExitCode {
    match started(args) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("weir: {error}");
            error.code()
        }
    }
}

fn started(args: &RunArgs) -> Result<u8, StartError> {
    let flags = Flags::with_free_port(args.openai.clone(), args.config.clone(), args.store.clone());
    let figment = args.adjusted(flags.gather().figment);
    let (mut openai, warnings) =
        flags.configuration(&figment, |_| ()).map_err(StartError::Configuration)?;
    openai.server = Listener {
        listen: openai.server.listen,
        drain_deadline_ms: DRAIN_DEADLINE_MS,
        ..Config::default().server
    };
    let entrance = admin::random_secret().map_err(StartError::Runtime)?;
    openai.auth.entrance = Some(entrance.clone());
    let anthropic = args.anthropic(&openai)?;
    let log_end = args.start_log(&mut openai).map_err(StartError::Log)?;
    serve::prepare(warnings);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(StartError::Runtime)?;
    let ran = runtime.block_on(serve_while(args, Arc::new(openai), Arc::new(anthropic)));
    runtime.shutdown_background();
    drop(log_end);
    ran
}

impl RunArgs {
    /// Adds the settings that `weir serve` has no flag for.
    fn adjusted(&self, mut figment: Figment) -> Figment {
        if self.observe {
            figment = figment.merge(Serialized::default("context.mode", "observe"));
        }
        if let Some(tokens) = self.max_input_tokens {
            let row = Dict::from([
                ("model".to_owned(), Value::from("*")),
                ("max_input_tokens".to_owned(), Value::from(tokens)),
            ]);
            figment = figment.admerge(Serialized::default("limits", [row]));
        }
        figment
    }

    /// Returns the configuration for callers of Anthropic's API: another default upstream, and no
    /// routes, whose upstreams speak OpenAI's.
    fn anthropic(&self, openai: &Config) -> Result<Config, StartError> {
        let mut config = openai.clone();
        config.routes = Default::default();
        let given = self.anthropic.clone();
        let named = config.upstreams.remove(ANTHROPIC_UPSTREAM);
        config.upstreams.clear();
        let inherited = std::env::var(ANTHROPIC_BASE_URL).ok().filter(|url| !url.is_empty());
        config.upstream = match (given, named) {
            (None, Some(named)) => named,
            (given, _) => {
                let url = given.or(inherited).unwrap_or_else(|| ANTHROPIC.to_owned());
                let url = api_url(&url).map_err(|message| {
                    StartError::Configuration(vec![Problem::with("--anthropic", message)])
                })?;
                Upstream { forward_caller_key: true, ..Upstream::new(url) }
            }
        };
        Ok(config)
    }

    /// Starts the log in its file; in memory there is none, and warnings go to standard error.
    fn start_log(&self, config: &mut Config) -> Result<LogEnd, LogError> {
        let beside = store_path::file(&config.store, std::env::vars_os());
        let path = self.log.clone().or_else(|| Some(beside?.with_file_name("run.log")));
        let file = path.as_deref().map(opened).transpose();
        let (_, end) = match (file, &self.log) {
            (Ok(Some(file)), _) => serve::start_log(&config.log, (file, false))?,
            (Err(error), Some(_)) => return Err(LogError::Thread(error)),
            _ => {
                "warn".clone_into(&mut config.log.level);
                serve::start_log(&config.log, (io::stderr(), false))?
            }
        };
        Ok(end)
    }
}

/// Returns the names of the variables from which weir reads keys and secrets of its own; all that hold a
/// setting count, since URLs of a store or of a webhook have passwords.
fn secret_variables(config: &Config) -> Vec<String> {
    let upstreams = config.all_upstreams().flat_map(|(_, own)| {
        let headers = own.header_envs.iter().map(|(_, variable)| variable.as_str());
        own.api_key.variable().into_iter().chain(headers)
    });
    let others =
        [&config.summaries.api_key, &config.auth.secret_place, &config.events.secret_place];
    let others = others.into_iter().filter_map(|place| place.variable());
    let named = upstreams.chain(others).map(str::to_owned);
    let settings = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let settings = settings.filter(|name| name.starts_with("WEIR_") && name.contains("__"));
    named.chain(settings).chain([OTEL_HEADERS.to_owned()]).collect()
}

/// Opens a log file to append to it, for its user alone; a long one is begun again.
fn opened(path: &Path) -> io::Result<File> {
    if let Some(folder) = path.parent() {
        files::create_folder(folder)?;
    }
    let file = files::private().create(true).append(true).open(path)?;
    if file.metadata()?.len() > MAX_LOG_BYTES {
        file.set_len(0)?;
    }
    Ok(file)
}

/// Returns the base of an API's endpoints. Anthropic's SDKs append `/v1` to their base URLs.
fn api_url(url: &str) -> Result<String, String> {
    let base = Base::parse(url).map_err(|error| error.to_string())?;
    if base.url().ends_with("/v1") {
        return Ok(url.to_owned());
    }
    Ok(format!("{}/v1", url.trim_end_matches('/')))
}

/// Serves both APIs until the command has ended.
async fn serve_while(
    args: &RunArgs,
    openai: Arc<Config>,
    anthropic: Arc<Config>,
) -> Result<u8, StartError> {
    let client = Client::new(&openai.upstream).map_err(StartError::Client)?;
    Client::new(&anthropic.upstream).map_err(StartError::Client)?;
    let store = serve::open_store(&openai)?;
    let proxy = serve::proxy(&openai, client, &store).await?;
    // Both share the journal and the budgets.
    let anthropics = proxy.reconfigured(Arc::clone(&anthropic)).map_err(StartError::Setup)?;
    let servers = [serve::bind(&openai, proxy).await?, serve::bind(&anthropic, anthropics).await?];
    let [openai_address, anthropic_address] = servers.each_ref().map(Server::address);
    let shutdowns = servers.each_ref().map(Server::shutdown);
    let [renewal, anthropics] = servers.each_ref().map(Server::renewal);
    let in_force = renewal.clone();
    let journal = move || Arc::clone(in_force.proxy().journal());
    tokio::spawn(store_path::tend(journal, openai.store.url.is_some()));
    let [first, second] = servers;
    let serving = tokio::spawn(async move { tokio::join!(first.run(), second.run()) });

    let mut has_started = true;
    let entrance = openai.auth.entrance.clone();
    let addresses = Addresses { openai: openai_address, anthropic: anthropic_address, entrance };
    let hidden = if args.pass_keys { Vec::new() } else { secret_variables(&openai) };
    let code = match RunningCommand::start(&args.command, &addresses, &hidden) {
        Ok(mut running) => {
            let code = running.ended().await;
            let ending = shutdowns.clone();
            tokio::spawn(async move {
                running.signal().await;
                ending.iter().for_each(crate::server::Shutdown::end);
            });
            code
        }
        Err(error) => {
            let shown = args.command[0].display();
            // A closed terminal needs no message.
            let said = match error.kind() {
                io::ErrorKind::NotFound => "there is no such command".to_owned(),
                _ => super::reason(&error),
            };
            let _ = writeln!(io::stderr(), "weir: cannot run {shown}: {said}");
            has_started = false;
            if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 }
        }
    };
    shutdowns.iter().for_each(crate::server::Shutdown::drain);
    let ending = match serving.await {
        Ok((Ending::Forced, _) | (_, Ending::Forced)) | Err(_) => Ending::Forced,
        Ok((ending, _)) => ending,
    };
    let proxy: Arc<Proxy> = renewal.proxy();
    if let Some(summaries) = anthropics.proxy().summaries().filter(|_| ending != Ending::Forced) {
        summaries.finish().await;
    }
    serve::finish(&proxy, ending).await;
    if has_started {
        let summary = summary(&proxy.journal().metrics().totals(), args.observe);
        // A closed terminal needs no message.
        let _ = writeln!(io::stderr(), "weir: {summary}");
    }
    Ok(code)
}

/// Formats a count with its noun.
fn counted(count: u64, noun: &str) -> String {
    shown::counted(usize::try_from(count).unwrap_or(usize::MAX), noun)
}

/// Formats the number of requests that weir answered with an error, and why the last one failed.
fn failures(failed: u64, last: ErrorKind) -> String {
    let word = last.word();
    format!("{} failed, the last one with {word} (the log says why)", counted(failed, "request"))
}

/// Formats the line at the end of a run.
fn summary(totals: &Totals, is_observed: bool) -> String {
    let Totals { requests, observed, compactions, received_tokens, sent_tokens, .. } = *totals;
    if requests == 0 {
        return match (totals.last_error, totals.others) {
            (None, 0) => "no request arrived; does the command read OPENAI_BASE_URL or \
                          ANTHROPIC_BASE_URL?"
                .to_owned(),
            (None, others) => {
                format!("{} went through, no conversation", counted(others, "request"))
            }
            (Some(kind), _) => failures(totals.failed, kind),
        };
    }
    let saved = received_tokens.saturating_sub(sent_tokens);
    let percent = saved * 100 / received_tokens.max(1);
    let received = grouped(received_tokens);
    let tokens = match is_observed {
        true => format!(
            "{} left out), {received} tokens received and sent",
            counted(observed, "compaction")
        ),
        false => format!(
            "{}), {received} tokens received, {} sent, {} saved ({percent} %)",
            counted(compactions, "compaction"),
            grouped(sent_tokens),
            grouped(saved)
        ),
    };
    let dollars = |nano_usd: u64| format!("${:.4}", NanoUsd(nano_usd).0 as f64 / 1e9);
    let planned = match (is_observed, totals.planned_saved_nano_usd) {
        (false, _) => String::new(),
        (true, saved) => {
            let sign = if saved < 0 { "-" } else { "" };
            let (sent, saved) = (grouped(totals.planned_tokens), dollars(saved.unsigned_abs()));
            format!("; without --observe {sent} tokens sent, {sign}{saved} saved")
        }
    };
    let money = match (totals.cost_nano_usd, totals.unpriced) {
        (0, 1..) => "spend unknown (no price for the model)".to_owned(),
        (cost, unpriced) => {
            let unknown = match unpriced {
                0 => String::new(),
                unpriced => format!(" and {unpriced} requests without a price"),
            };
            format!("{} spent{unknown}", dollars(cost))
        }
    };
    let failed = totals.last_error.map(|kind| format!("; {}", failures(totals.failed, kind)));
    let failed = failed.unwrap_or_default();
    format!("{} ({tokens}, {money}{planned}{failed}", counted(requests, "request"))
}
