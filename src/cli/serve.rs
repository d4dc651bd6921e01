//! `weir serve`: reads the configuration, sets up the log, serves, and explains failures. Decides
//! nothing about requests.

use std::io::{self, IsTerminal as _, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::reload::Handle;

use super::browser;
use super::colours::Colours;
use super::greeting::{dashboard_url, greet, server_url};
use super::log_fields::PlainFields;
use super::log_lines::TerminalLines;
use super::log_writer::{LogEnd, log_writer};
use super::loop_check;
use super::reload::{self, Before, Reload};
use super::settings::{Flags, Gathered};
use super::start_error::{LogError, StartError};
use super::store_path;
use crate::admin::{self, Admin, AdminRenewal};
use crate::config::shown::shown;
use crate::config::{AuthMode, Config, Log, LogFormat, Secret, Warning};
use crate::proxy::{Proxy, events};
use crate::server::{
    BindError, Ending, Hangups, Phase, Renewal, Server, Signals, outlive_full_files,
    take_open_files,
};
use crate::upstream::Client;
use weir_engine::tokens::Encoding;
use weir_store::Store;

/// Ports that `--open` tries for the dashboard if the configuration names no address, before any
/// free one.
const DASHBOARD_PORTS: std::ops::Range<u16> = 8410..8420;

/// A second signal cut short requests in flight.
const CUT_SHORT: u8 = 130;

const LONG_ABOUT: &str = "\
Listens for requests and forwards them, each with its caller's own key.

A conversation that outgrows its model's context window is compacted; everything else is \
forwarded unchanged. Flags take precedence over the environment (WEIR_SECTION__KEY, such as \
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
  weir serve --open
      also starts the dashboard on 127.0.0.1:8410, and opens it in a browser
  weir serve --listen 0.0.0.0:8400 --config weir.toml
      serves other machines; server.allowed_hosts lists its host names

Then point an application at it:
  OPENAI_BASE_URL=http://127.0.0.1:8400/v1 python app.py

Signals: the first SIGTERM or Ctrl-C finishes requests in flight, the second ends at once. SIGHUP \
reads the configuration, keys and certificates again; weir also does so when their files change.

Exit codes: 0 shut down by a signal, 1 cannot serve (for example, the port is taken), 2 bad \
configuration, 130 ended at once.";

#[derive(Debug, Args)]
#[command(about = "Listens for requests and forwards them", long_about = LONG_ABOUT, after_long_help = EXAMPLES)]
pub(super) struct ServeArgs {
    #[command(flatten)]
    flags: Flags,
    /// Starts the dashboard on this machine if it is off, prints a link that logs in once, and opens
    /// it in a browser
    #[arg(long)]
    open: bool,
}

/// Serves until shutdown.
pub(super) fn run(args: &ServeArgs) -> ExitCode {
    match started(args) {
        Ok(Ending::Finished | Ending::Overdue(_)) => ExitCode::SUCCESS,
        Ok(Ending::Forced) => ExitCode::from(CUT_SHORT),
        Err(error) => {
            eprintln!("weir: {error}");
            error.code()
        }
    }
}

/// Reads the configuration, starts the log and serves.
fn started(args: &ServeArgs) -> Result<Ending, StartError> {
    // Before anything is read: a signal to reload must not end the process.
    let listening = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let listening = listening.and_then(|runtime| {
        let hangups = runtime.block_on(async {
            outlive_full_files()?;
            Hangups::listen()
        });
        Ok((runtime, hangups?))
    });
    let (runtime, hangups) = listening.map_err(StartError::Runtime)?;
    let mut before = Before::new(&args.flags);
    let gathered = args.flags.gather();
    let look = |config: &Config| before.look(config);
    let (config, warnings) =
        args.flags.configuration(&gathered.figment, look).map_err(StartError::Configuration)?;
    let is_terminal = io::stderr().is_terminal();
    let log = start_log(&config.log, (io::stderr(), is_terminal));
    let (level, log_end) = log.map_err(StartError::Log)?;
    prepare(warnings);
    take_open_files(config.server.max_connections);
    let flags = args.flags.clone();
    let startup = Startup { flags, gathered, before, level, hangups, open: args.open };
    let served = runtime.block_on(serve(Arc::new(config), startup));
    // Nobody waits any more for a count or a decoding that is still running.
    runtime.shutdown_background();
    drop(log_end);
    served
}

/// Logs panics and the configuration's warnings, and loads the most used encoding.
pub(super) fn prepare(warnings: Vec<Warning>) {
    std::panic::set_hook(Box::new(|panic| {
        // The place only: a panic's message may quote request content.
        let place = panic.location().map(ToString::to_string);
        tracing::error!(target: "weir::fault", place, "weir panicked; this is a bug");
    }));
    // The encoding of nearly all requests; others load their tables on first use.
    std::thread::spawn(|| Encoding::O200kBase.warm());
    for warning in warnings {
        tracing::warn!(target: "weir::config", "{warning}");
    }
}

/// Inputs that are read again when they change.
struct Startup {
    flags: Flags,
    gathered: Gathered,
    before: Before,
    level: LogLevel,
    hangups: Hangups,
    /// Whether to open the dashboard.
    open: bool,
}

impl Startup {
    /// Starts a task that reloads all of it on changes, until the runtime ends.
    fn watch(
        self,
        (server, listening): (Renewal, SocketAddr),
        admin: Option<AdminRenewal>,
        config: &Config,
    ) {
        let Self { flags, gathered, before, level, hangups, .. } = self;
        let vocabularies = reload::vocabularies(config);
        let files = before.files();
        let log = level;
        let reload = Reload { flags, gathered, files, vocabularies, server, listening, admin, log };
        tokio::spawn(reload.run(before, hangups));
    }
}

/// Changes the log level.
pub(super) type LogLevel = Box<dyn Fn(&str) + Send>;

async fn serve(config: Arc<Config>, startup: Startup) -> Result<Ending, StartError> {
    let mut signals = Signals::listen().map_err(StartError::Signals)?;
    let client = Client::new(&config.upstream).map_err(StartError::Client)?;
    let store = open_store(&config)?;
    let admin = admin(&config, &store, startup.open).await?;
    let proxy = proxy(&config, client, &store).await?;
    let server = bind(&config, proxy).await?;
    let address = server.address();
    let figment = &startup.gathered.figment;
    let dashboard = admin.as_ref().map(|admin| dashboard_url(&config, admin.address()));
    greet(&config, figment, &store, address, dashboard.as_deref());
    if let Some(admin) = &admin {
        let settings = Arc::new(shown(figment));
        admin.renewal().note(|in_force| {
            in_force.base_url = format!("{}/v1", server_url(&config, address));
            in_force.settings = settings;
        });
    }
    let link = match (&admin, &dashboard) {
        (Some(admin), Some(url)) if startup.open => Some(link(admin, url)?),
        _ => None,
    };
    let renewal = server.renewal();
    let in_force = renewal.clone();
    let journal = move || Arc::clone(in_force.proxy().journal());
    tokio::spawn(store_path::tend(journal.clone(), config.store.url.is_some()));
    let is_redis_failing = move || journal().budgets().is_redis_failing();
    let events = renewal.proxy().events().clone();
    tokio::spawn(events::watch_store(store.clone(), is_redis_failing, events));
    let admins = admin.as_ref().map(Admin::renewal);
    startup.watch((renewal.clone(), address), admins, &config);
    let shutdown = server.shutdown();
    if let Some(admin) = admin {
        tracing::info!(target: "weir", "the admin API listens on {}", admin.address());
        let in_force = renewal.clone();
        admin.show_metrics(move || in_force.proxy());
        let shutdown = shutdown.clone();
        tokio::spawn(async move { admin.run(shutdown.reached(Phase::Draining)).await });
    }
    if let Some(link) = link {
        browser::show(&link);
    }
    tokio::spawn(async move {
        signals.next().await;
        tracing::info!(target: "weir", "finishing requests in flight; a second signal ends at once");
        shutdown.drain();
        signals.next().await;
        shutdown.end();
    });
    let ending = server.run().await;
    // The proxy in force at the end shares the state of all earlier ones.
    finish(&renewal.proxy(), ending).await;
    log_ending(&ending, &config);
    Ok(ending)
}

/// Creates the proxy of `config`, and settles what earlier processes left open.
pub(super) async fn proxy(
    config: &Arc<Config>,
    client: Client,
    store: &Store,
) -> Result<Proxy, StartError> {
    let proxy = Proxy::new(config.clone(), client, store.clone()).map_err(StartError::Setup)?;
    refuse_forgetful_budgets(config, store).await?;
    // Before anything new is written, so that bills are complete as soon as weir answers.
    proxy.journal().tend().await;
    for store in [Some(proxy.store()), proxy.originals().store()].into_iter().flatten() {
        tokio::spawn(store_path::sweep(store.clone()));
    }
    Ok(proxy)
}

/// Refuses to enforce budgets without records of what was spent, if a setting demands to fail closed;
/// else warns: each start makes all budgets whole again.
async fn refuse_forgetful_budgets(config: &Config, store: &Store) -> Result<(), StartError> {
    let forgets = !config.ledger.enabled
        && store.budgets().await.is_ok_and(|(_, budgets)| !budgets.is_empty());
    if !forgets {
        return Ok(());
    }
    if config.fails_closed() {
        return Err(StartError::Forgetful);
    }
    tracing::warn!(target: "weir::budget", "{}", StartError::Forgetful);
    Ok(())
}

/// Binds a server to the configured address.
pub(super) async fn bind(config: &Arc<Config>, proxy: Proxy) -> Result<Server, StartError> {
    let server = Server::bind(config, proxy).await.map_err(|error| match error {
        BindError::Listen(source) => StartError::Listen { address: config.server.listen, source },
        BindError::Tls(error) => StartError::Tls(error),
    })?;
    refuse_loops(config, server.address()).await?;
    Ok(server)
}

/// Writes everything that a proxy still holds after its server ended.
pub(super) async fn finish(proxy: &Proxy, ending: Ending) {
    let summaries = proxy.summaries();
    if let Some(summaries) = summaries.filter(|_| ending != Ending::Forced) {
        summaries.finish().await;
    }
    proxy.journal().finish().await;
    if ending != Ending::Forced {
        // The originals and receipts of the last requests are saved before the process ends.
        proxy.originals().settle(|_| true).await;
        proxy.receipts().settle().await;
        proxy.flush().await;
    }
    if let Err(error) = proxy.store().sync().await {
        tracing::warn!(
            target: "weir::store",
            %error,
            "the last writes may not survive a power loss"
        );
    }
}

/// Refuses upstreams that are weir itself, if it listens elsewhere than configured, for example on
/// a port that the system chose.
async fn refuse_loops(config: &Arc<Config>, address: SocketAddr) -> Result<(), StartError> {
    if address == config.server.listen {
        return Ok(());
    }
    let config = Arc::clone(config);
    let looked = tokio::task::spawn_blocking(move || loop_check::refuse(&config, address));
    match looked.await.unwrap_or_default().into_iter().next() {
        Some(problem) => Err(StartError::Loop(problem)),
        None => Ok(()),
    }
}

/// Opens the store that `config` names.
pub(super) fn open_store(config: &Config) -> Result<Store, StartError> {
    match config.auth.mode {
        AuthMode::Open => store_path::open(config, std::env::vars_os()).map_err(StartError::Store),
        AuthMode::Keys => {
            store_path::open_or_say(config, std::env::vars_os()).map_err(StartError::Keys)
        }
    }
}

fn log_ending(ending: &Ending, config: &Config) {
    match ending {
        Ending::Finished => tracing::info!(target: "weir", "shut down cleanly"),
        Ending::Overdue(connections) => tracing::warn!(
            target: "weir",
            connections,
            drain_deadline_ms = config.server.drain_deadline_ms,
            "shut down at the drain deadline (server.timeouts_ms.drain) with unfinished connections"
        ),
        Ending::Forced => tracing::warn!(target: "weir", "shut down at once after a second signal"),
    }
}

/// Returns a link to the dashboard at `url` that logs in once. Browsers send no fragment to servers,
/// so the code is in no log.
fn link(admin: &Admin, url: &str) -> Result<String, StartError> {
    let code = admin.login_code().map_err(StartError::Runtime)?;
    Ok(format!("{url}#code={code}"))
}

/// Returns the addresses to try for the admin API, in order; none if it is off.
fn admin_addresses(config: &Config, open: bool) -> Vec<SocketAddr> {
    if let Some(address) = config.admin_listen() {
        return vec![address];
    }
    let ports = DASHBOARD_PORTS.filter(|port| *port != config.server.listen.port());
    let here = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    if open { ports.chain([0]).map(here).collect() } else { Vec::new() }
}

/// Binds the admin API, if it is configured or wanted. A new token is printed on a terminal, and nowhere
/// else: what is printed elsewhere ends in a log. It is in a file then.
async fn admin(config: &Config, store: &Store, open: bool) -> Result<Option<Admin>, StartError> {
    let addresses = admin_addresses(config, open);
    if addresses.is_empty() {
        return Ok(None);
    }
    let path = store_path::token_file(config);
    let shown = path.as_ref().map_or_else(String::new, |path| format!(" {}", path.display()));
    let made = admin::load_or_make(path.as_deref()).and_then(|(token, is_new)| {
        if is_new {
            say_token(&token, path.as_deref())?;
        }
        Ok(token)
    });
    let token = made.map_err(|source| StartError::Token { shown, source })?;
    // A mounted secret's folder cannot be written; scrapers have the admin token then.
    let _ = path.as_ref().map(|path| admin::keep_for_metrics(path, &token));
    let last = addresses.len() - 1;
    for (place, address) in addresses.into_iter().enumerate() {
        let token = admin::Token::new(&token);
        match Admin::bind(address, config, store.clone(), token).await {
            Ok(admin) => return Ok(Some(admin)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && place < last => {}
            Err(source) => return Err(StartError::AdminListen { address, source }),
        }
    }
    Ok(None)
}

/// Prints a new token on a terminal; elsewhere only the path of its file, which is made if there is none.
fn say_token(token: &Secret, path: Option<&Path>) -> io::Result<()> {
    if io::stderr().is_terminal() {
        let kept =
            path.map_or("not stored".to_owned(), |path| format!("kept in {}", path.display()));
        eprintln!("The admin API's token, shown this once and {kept}:\n\n  {}\n", token.expose());
        return Ok(());
    }
    let path = match path {
        Some(path) => path.to_owned(),
        None => admin::keep_apart(token)?,
    };
    eprintln!("The admin API's token is in {}\n", path.display());
    Ok(())
}

/// Starts the log to `out`, which lasts until the returned handle is dropped.
pub(super) fn start_log(
    log: &Log,
    (out, is_terminal): (impl Write + Send + 'static, bool),
) -> Result<(LogLevel, LogEnd), LogError> {
    let filter = EnvFilter::try_new(&log.level).map_err(LogError::Level)?;
    let (writer, end) = log_writer(out).map_err(LogError::Thread)?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer);
    let (level, started) = match log.format {
        LogFormat::Text if is_terminal => {
            let lines = TerminalLines::new(Colours::of_stderr());
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
    started.map(|()| (level, end)).map_err(LogError::Subscriber)
}

/// Returns the function that changes the log level. The configuration has checked that the level is
/// valid.
fn level<S: 'static>(handle: Handle<EnvFilter, S>) -> LogLevel {
    Box::new(move |level| {
        if let Ok(filter) = EnvFilter::try_new(level) {
            // An error means that the log has ended.
            let _ = handle.reload(filter);
        }
    })
}
