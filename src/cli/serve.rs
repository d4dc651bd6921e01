//! `weir serve`: reads what it is told, sets up the log, serves, and says in plain words what
//! went wrong. Decides nothing about requests.

use std::io::{self, IsTerminal as _};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::reload::Handle;

use super::greeting::{greet, url_ip};
use super::log_fields::PlainFields;
use super::log_lines::TerminalLines;
use super::log_writer::{LogEnd, log_writer};
use super::own_address;
use super::own_store;
use super::reload::{self, Before, Reload};
use super::told::{Flags, Gathered};
use crate::admin::{self, Admin, AdminRenewal};
use crate::config::{AuthMode, Config, Log, LogFormat, Problem};
use crate::proxy::Proxy;
use crate::server::{BindError, Ending, Hangups, Phase, Renewal, Server, Signals};
use crate::store::Store;
use crate::tokens::Encoding;
use crate::upstream::Client;

/// The configuration is at fault.
pub const BAD_CONFIGURATION: u8 = 2;
/// weir could not begin to serve.
const CANNOT_SERVE: u8 = 1;
/// A second signal cut short what was in flight.
const CUT_SHORT: u8 = 130;

const LONG_ABOUT: &str = "\
Listens for requests and forwards them, each with its caller's own key.

A conversation that outgrows its model's context window is made to fit; everything else is \
forwarded as it came. Flags take precedence over the environment (WEIR_SECTION__KEY, such as \
WEIR_UPSTREAM__URL), that over the file, the file over OPENAI_BASE_URL, and that over the \
defaults.";

const EXAMPLES: &str = "\
Examples:
  weir serve
      listens on 127.0.0.1:8400 and forwards to https://api.openai.com/v1
  weir serve --port 9000 --upstream http://127.0.0.1:11434/v1
      listens on another port, and forwards to a model server on this machine
  weir check --config weir.toml --connect
      checks a configuration and the upstream, without serving
  weir serve --listen 0.0.0.0:8400 --config weir.toml
      serves other machines; server.allowed_hosts names what they call it

Then point an application at it:
  OPENAI_BASE_URL=http://127.0.0.1:8400/v1 python app.py

Signals: the first SIGTERM or Ctrl-C finishes requests in flight, the second ends at once. SIGHUP \
reads the configuration, keys and certificates again; weir also does so when their files change.

Exit codes: 0 shut down by a signal, 1 cannot serve (for example, the port is taken), 2 bad \
configuration, 130 ended at once.";

#[derive(Debug, Args)]
#[command(about = "Listens for requests and forwards them", long_about = LONG_ABOUT, after_long_help = EXAMPLES)]
pub struct ServeArgs {
    #[command(flatten)]
    flags: Flags,
}

/// Serves until told to end.
pub fn run(args: &ServeArgs) -> ExitCode {
    // Before anything is read: who wants it read anew must not end it.
    let listening = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let listening = listening.and_then(|runtime| {
        let hangups = runtime.block_on(async { Hangups::listen() })?;
        Ok((runtime, hangups))
    });
    let (runtime, hangups) = match listening {
        Ok(listening) => listening,
        Err(error) => {
            eprintln!("weir: cannot start threads or listen for signals: {error}");
            return ExitCode::from(CANNOT_SERVE);
        }
    };
    let mut before = Before::new(&args.flags);
    let told = args.flags.gather();
    let look = |config: &Config| before.look(config);
    let (config, warnings) = match args.flags.configuration(&told.figment, look) {
        Ok(config) => config,
        Err(problems) => return refuse(&problems),
    };
    let (level, log_end) = match start_log(&config.log) {
        Ok(started) => started,
        Err(problem) => return refuse(&[Problem::with("", problem)]),
    };
    std::panic::set_hook(Box::new(|panic| {
        // Where, and never what: a panic's text may quote what it was about.
        let place = panic.location().map(ToString::to_string);
        tracing::error!(target: "weir::fault", place, "a fault in weir");
    }));
    // The encoding of nearly all requests; others load their tables when they are first asked for.
    std::thread::spawn(|| Encoding::O200kBase.warm());
    for warning in warnings {
        tracing::warn!(target: "weir::config", "{warning}");
    }
    let flags = args.flags.clone();
    let told = Told { flags, told, before, level, hangups };
    let served = runtime.block_on(serve(Arc::new(config), told));
    // A count or a decoding that is still under way is for nobody any more.
    runtime.shutdown_background();
    drop(log_end);
    match served {
        Ok(Ending::Finished | Ending::Overdue(_)) => ExitCode::SUCCESS,
        Ok(Ending::Forced) => ExitCode::from(CUT_SHORT),
        Err(failure) => {
            eprintln!("weir: {}", failure.message);
            ExitCode::from(failure.code)
        }
    }
}

/// Lists what is wrong with the configuration.
fn refuse(problems: &[Problem]) -> ExitCode {
    eprintln!("weir: the configuration cannot be used:");
    for problem in problems {
        eprintln!("  - {problem}");
    }
    eprintln!("`weir serve --help` tells what can be set.");
    ExitCode::from(BAD_CONFIGURATION)
}

/// What is read again when it changes.
struct Told {
    flags: Flags,
    told: Gathered,
    before: Before,
    level: LogLevel,
    hangups: Hangups,
}

impl Told {
    /// Has all of it read again when it changes, until the runtime ends.
    fn watch(
        self,
        (server, listening): (Renewal, SocketAddr),
        admin: Option<AdminRenewal>,
        config: &Config,
    ) {
        let Self { flags, told, before, level, hangups } = self;
        let vocabularies = reload::vocabularies(config);
        let files = before.files();
        let log = level;
        let reload = Reload { flags, told, files, vocabularies, server, listening, admin, log };
        tokio::spawn(reload.run(before, hangups));
    }
}

/// Has the log say more or less from now on.
pub type LogLevel = Box<dyn Fn(&str) + Send>;

/// Why serving did not begin.
struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    fn cannot_serve(message: String) -> Self {
        Self { code: CANNOT_SERVE, message }
    }

    fn bad_configuration(message: String) -> Self {
        Self { code: BAD_CONFIGURATION, message }
    }
}

async fn serve(config: Arc<Config>, told: Told) -> Result<Ending, Failure> {
    let deaf = |error| Failure::cannot_serve(format!("cannot listen for signals: {error}"));
    let mut signals = Signals::listen().map_err(deaf)?;
    let client = Client::new(&config.upstream)
        .map_err(|error| Failure::bad_configuration(error.to_string()))?;
    let store = open_store(&config)?;
    let admin = admin(&config, &store).await?;
    let proxy = Proxy::new(config.clone(), client, store.clone()).map_err(no_store)?;
    let originals = Arc::clone(proxy.originals());
    // Before anything new is written down, so that a bill is whole as soon as weir answers.
    proxy.journal().tend().await;
    for store in [Some(proxy.store()), originals.store()].into_iter().flatten() {
        tokio::spawn(own_store::sweep(store.clone()));
    }
    let server = Server::bind(&config, proxy).await.map_err(|error| match error {
        BindError::Listen(error) => cannot_bind(config.server.listen, &error),
        error @ BindError::Tls(_) => Failure::bad_configuration(error.to_string()),
    })?;
    let address = server.address();
    refuse_loops(&config, address).await?;
    greet(&config, &told.told.figment, &store, address);
    let renewal = server.renewal();
    let in_force = renewal.clone();
    let journal = move || Arc::clone(in_force.proxy().journal());
    tokio::spawn(own_store::tend(journal, config.store.url.is_some()));
    let admins = admin.as_ref().map(Admin::renewal);
    told.watch((renewal.clone(), address), admins, &config);
    let shutdown = server.shutdown();
    if let Some(admin) = admin {
        tracing::info!(target: "weir", "the admin API listens on {}", admin.address());
        let in_force = renewal.clone();
        admin.show_metrics(move || in_force.proxy());
        let shutdown = shutdown.clone();
        tokio::spawn(async move { admin.run(shutdown.reached(Phase::Draining)).await });
    }
    tokio::spawn(async move {
        signals.next().await;
        tracing::info!(target: "weir", "finishing what is in flight; a second signal ends at once");
        shutdown.drain();
        signals.next().await;
        shutdown.end();
    });
    let ending = server.run().await;
    // What is in force at the end knows of all that went before.
    let proxy = renewal.proxy();
    let summaries = proxy.summaries();
    if let Some(summaries) = summaries.filter(|_| ending != Ending::Forced) {
        summaries.finish().await;
    }
    proxy.journal().finish().await;
    if ending != Ending::Forced {
        // What the last requests left out is saved before the process ends.
        originals.settle(|_| true).await;
    }
    if let Err(error) = store.sync().await {
        tracing::warn!(
            target: "weir::store",
            %error,
            "what was written last may not survive a loss of power"
        );
    }
    tell_ending(&ending, &config);
    Ok(ending)
}

/// Refuses upstreams that are weir itself, where it listens elsewhere than the configuration says, as on
/// a port that the system chose.
async fn refuse_loops(config: &Arc<Config>, address: SocketAddr) -> Result<(), Failure> {
    if address == config.server.listen {
        return Ok(());
    }
    let config = Arc::clone(config);
    let looked = tokio::task::spawn_blocking(move || own_address::refuse(&config, address));
    match looked.await.unwrap_or_default().first() {
        Some(problem) => Err(Failure::bad_configuration(problem.to_string())),
        None => Ok(()),
    }
}

fn open_store(config: &Config) -> Result<Store, Failure> {
    match config.auth.mode {
        AuthMode::Open => own_store::open(config, std::env::vars_os()).map_err(no_store),
        // Without its keys weir would know nobody.
        AuthMode::Keys => own_store::open_or_say(config, std::env::vars_os())
            .map_err(|said| Failure::cannot_serve(no_keys(&said))),
    }
}

fn tell_ending(ending: &Ending, config: &Config) {
    match ending {
        Ending::Finished => tracing::info!(target: "weir", "ended, with everything finished"),
        Ending::Overdue(connections) => tracing::warn!(
            target: "weir",
            connections,
            drain_deadline_ms = config.server.drain_deadline_ms,
            "ended at the drain deadline (server.drain_deadline_ms) with connections unfinished"
        ),
        Ending::Forced => tracing::warn!(target: "weir", "ended at once, as told"),
    }
}

/// The admin API, bound where there is to be one. Its token is printed when it is made, and not
/// logged.
async fn admin(config: &Config, store: &Store) -> Result<Option<Admin>, Failure> {
    let Some(address) = config.admin_listen() else { return Ok(None) };
    let told = &config.admin.token_file;
    let path = match told.is_empty() {
        false => Some(told.into()),
        true => own_store::file(&config.store, std::env::vars_os())
            .map(|store| store.with_file_name("admin.token")),
    };
    let shown = path.as_ref().map_or_else(String::new, |path| format!(" {}", path.display()));
    let (token, is_new) = admin::load_or_make(path.as_deref()).map_err(|error| {
        Failure::cannot_serve(format!("admin.token_file:{shown} cannot be used: {error}"))
    })?;
    if is_new {
        let kept = if path.is_some() { format!("kept in{shown}") } else { "kept nowhere".into() };
        eprintln!("The admin API's token, shown this once and {kept}:\n\n  {}\n", token.expose());
    }
    let bound = Admin::bind(address, config, store.clone(), admin::Token::new(&token)).await;
    bound.map(Some).map_err(|error| {
        Failure::cannot_serve(format!(
            "the admin API cannot listen on {address}: {error}. Choose another address with \
             admin.listen, or \"off\" to look after keys with `weir keys` alone."
        ))
    })
}

fn no_store(said: impl std::fmt::Display) -> Failure {
    Failure::cannot_serve(format!("cannot keep anything: {said}"))
}

fn no_keys(said: &str) -> String {
    format!(
        "with auth.mode = \"keys\" the store must be there, since it holds the keys: {said}. Name a \
         file that can be written with --store FILE (store.path), or a PostgreSQL server (store.url)"
    )
}

fn cannot_bind(address: SocketAddr, error: &io::Error) -> Failure {
    let port = address.port();
    let cure = match error.kind() {
        io::ErrorKind::AddrInUse => format!(
            "Another program has the port, perhaps another weir (`ss -ltnp 'sport = :{port}'` or \
             `lsof -i :{port}` tells which). End it, or choose another port with `--listen \
             {ip}:PORT`.",
            ip = url_ip(address.ip())
        ),
        io::ErrorKind::PermissionDenied => {
            "Ports below 1024 want privileges. Choose another port with `--listen ADDRESS:PORT`."
                .to_owned()
        }
        io::ErrorKind::AddrNotAvailable => {
            "That is no address of this machine. Choose one with `--listen ADDRESS:PORT`."
                .to_owned()
        }
        _ => "Choose another address with `--listen ADDRESS:PORT`.".to_owned(),
    };
    Failure::cannot_serve(format!("cannot listen on {address}: {error}. {cure}"))
}

/// Starts the log; it lasts until what is given back is dropped.
fn start_log(log: &Log) -> Result<(LogLevel, LogEnd), String> {
    let filter = EnvFilter::try_new(&log.level).map_err(|error| format!("log.level: {error}"))?;
    let failed = |error: &dyn std::fmt::Display| format!("the log cannot be set up: {error}");
    let (writer, end) = log_writer(io::stderr()).map_err(|error| failed(&error))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer);
    let (level, started) = match log.format {
        LogFormat::Text if io::stderr().is_terminal() => {
            let lines = TerminalLines::new(|name| std::env::var_os(name));
            let builder = builder.event_format(lines).fmt_fields(PlainFields);
            let builder = builder.with_filter_reloading();
            (level(builder.reload_handle()), builder.try_init())
        }
        LogFormat::Text => {
            let builder = builder.fmt_fields(PlainFields).with_filter_reloading();
            (level(builder.reload_handle()), builder.try_init())
        }
        LogFormat::Json => {
            let builder = builder.json().flatten_event(true).with_filter_reloading();
            (level(builder.reload_handle()), builder.try_init())
        }
    };
    started.map(|()| (level, end)).map_err(|error| failed(&error))
}

/// What changes how much is logged. A level that the configuration has checked is one.
fn level<S: 'static>(handle: Handle<EnvFilter, S>) -> LogLevel {
    Box::new(move |level| {
        if let Ok(filter) = EnvFilter::try_new(level) {
            // An error says that there is no log any more.
            let _ = handle.reload(filter);
        }
    })
}
