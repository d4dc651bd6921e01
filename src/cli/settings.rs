//! Gathering of the configuration: the flags of `weir serve`, the environment and the file, read
//! and checked together. Each problem has its key, origin, line and fix. Opens no connection.

use std::ffi::OsString;
use std::path::Path;

use clap::Args;
use figment::Figment;

use super::config_files;
use super::lines;
use super::loop_check;
use super::provider_key;
use super::sources::{self, Document, Flag};
use super::store_path;
use super::tokenizer_file;
use crate::config::{self, Config, Problem, Warning, upstreams};
use crate::tls;
use crate::upstream::{Base, Client, ClientError};
use weir_store::Store;
use weir_store::redis::Redis;

/// Variable that names the upstream, also used by OpenAI's SDKs.
pub(super) const OPENAI_BASE_URL: &str = "OPENAI_BASE_URL";

/// Command line options of `weir serve`.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct Flags {
    /// Where to listen: a port on 127.0.0.1, or an IP address and a port [default: 127.0.0.1:8400]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// The port to listen on at 127.0.0.1; short for --listen PORT
    #[arg(long, value_name = "PORT", conflicts_with = "listen", value_parser = port)]
    port: Option<u16>,
    /// Where to forward requests, as an SDK's base URL [default: https://api.openai.com/v1]
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// A configuration file in TOML
    #[arg(long, value_name = "FILE", env = "WEIR_CONFIG")]
    pub config: Option<String>,
    /// The store's file, :memory: for none, or the URL of a PostgreSQL server [default:
    /// weir/weir.db in the user's state folder]
    #[arg(long, value_name = "FILE")]
    store: Option<String>,
    /// Format of the log on standard error: text or json
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
    /// Log level: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
}

fn port(text: &str) -> Result<u16, String> {
    text.parse().map_err(|_| "write a port from 1 to 65535, or 0 for any free one".to_owned())
}

/// Gathered settings, from files that were read once.
pub(super) struct Gathered {
    pub figment: Figment,
    /// Whether the file sets nothing.
    pub is_empty: bool,
    /// Whether the file's last line is complete.
    pub is_ended: bool,
    /// Whether `upstream.url` comes from the file.
    pub names_upstream: bool,
    /// Whether `upstream.url` is the default.
    pub has_default_upstream: bool,
}

impl Flags {
    /// Creates the flags for a free port of 127.0.0.1.
    pub(super) fn with_free_port(
        upstream: Option<String>,
        config: Option<String>,
        store: Option<String>,
    ) -> Self {
        let listen = Some("127.0.0.1:0".to_owned());
        Self { listen, upstream, config, store, ..Self::default() }
    }

    /// Gathers all settings from any kind of file.
    pub(super) fn gather(&self) -> Gathered {
        self.gathered(Document::file)
    }

    /// Gathers all settings again if the file is a regular one: a pipe would block.
    pub(super) fn gather_again(&self) -> Gathered {
        self.gathered(Document::regular_file)
    }

    fn gathered(&self, read: fn(&Path) -> Document) -> Gathered {
        let file = self.config.as_deref().map(|path| read(Path::new(path)));
        let is_empty = file.as_ref().is_some_and(Document::is_empty);
        let is_ended = file.as_ref().is_some_and(Document::is_ended);
        let figment = self.figment_with(file.as_ref());
        let names_upstream = sources::is_of_file(&figment, "upstream.url");
        let has_default_upstream = sources::is_default(&figment, "upstream.url");
        Gathered { figment, is_empty, is_ended, names_upstream, has_default_upstream }
    }

    /// Combines all settings; later sources take precedence over earlier ones.
    pub(super) fn figment_with(&self, file: Option<&Document>) -> Figment {
        let port = self.port.map(|port| port.to_string());
        let given = [
            ("--listen", "server.listen", &self.listen),
            ("--port", "server.listen", &port),
            ("--upstream", "upstream.url", &self.upstream),
            ("--log-format", "log.format", &self.log_format),
            ("--log-level", "log.level", &self.log_level),
        ];
        let given = given.into_iter().filter_map(|(name, key, value)| {
            Some(Flag { name: name.into(), key: key.into(), value: value.clone()? })
        });
        let given = given.chain(self.store.clone().map(store_path::given).into_iter().flatten());
        let openai_base_url = std::env::var(OPENAI_BASE_URL).ok();
        sources::figment_of(file, openai_base_url, std::env::vars_os(), given)
    }

    /// Builds the complete configuration from `figment`, with the contents of the files and
    /// variables that it names. Calls `look` before they are read.
    pub(super) fn configuration(
        &self,
        figment: &Figment,
        look: impl FnOnce(&Config),
    ) -> Result<(Config, Vec<Warning>), Vec<Problem>> {
        let (mut config, warnings) =
            config::load(figment.clone()).map_err(|problems| self.located(problems))?;
        look(&config);
        complete(&mut config, || std::env::vars_os().collect())
            .map_err(|problems| self.located_in(figment, problems))?;
        Ok((config, warnings))
    }

    /// Adds the variable, flag or line to problems found in `figment`.
    pub(super) fn located_in(&self, figment: &Figment, mut problems: Vec<Problem>) -> Vec<Problem> {
        sources::name_origins(figment, &mut problems);
        self.located(problems)
    }

    /// Adds the lines of the file to problems.
    pub(super) fn located(&self, problems: Vec<Problem>) -> Vec<Problem> {
        match &self.config {
            Some(path) => located_in(path, problems),
            None => problems,
        }
    }

    /// Returns the line of the file that sets `key`, if any.
    pub(super) fn line_of(&self, key: &str) -> Option<usize> {
        lines::line_of(&text(self.config.as_ref()?)?, key)
    }
}

/// Reads a file's text to find lines in it. A file that is not regular is not read twice.
fn text(path: impl AsRef<Path>) -> Option<String> {
    Some(path.as_ref())
        .filter(|path| path.is_file())
        .and_then(|path| std::fs::read_to_string(path).ok())
}

/// Adds the lines of the file at `path` to problems.
pub(super) fn located_in(path: impl AsRef<Path>, mut problems: Vec<Problem>) -> Vec<Problem> {
    let path = path.as_ref();
    let Some(text) = text(path) else { return problems };
    let shown = path.display().to_string();
    for problem in &mut problems {
        // Problems found in the contents of a named file have no origin yet.
        if problem.origin == shown || problem.origin.is_empty() {
            problem.line = lines::line_of(&text, &problem.key);
        }
        if problem.origin.is_empty() && problem.line.is_some() {
            problem.origin.clone_from(&shown);
        }
    }
    problems
}

/// Builds the complete configuration from `figment`.
pub(super) fn complete_from(figment: &Figment) -> Result<Config, Vec<Problem>> {
    let (mut config, _) = config::load(figment.clone())?;
    complete(&mut config, || std::env::vars_os().collect())?;
    Ok(config)
}

/// Loads the files that `config` names, and checks everything that can be checked without serving.
fn complete(
    config: &mut Config,
    env: impl Fn() -> Vec<(OsString, OsString)>,
) -> Result<(), Vec<Problem>> {
    let said = [provider_key::read_all(config, env), tokenizer_file::read_all(config)].concat();
    let mut problems: Vec<Problem> = said.iter().map(|said| split(said)).collect();
    problems.extend(config_files::read_all(config));
    if !problems.is_empty() {
        return Err(problems);
    }
    let listeners = [("server.tls", &config.server.tls), ("admin.tls", &config.admin.tls)];
    for (section, given) in listeners {
        if let Err(error) = tls::check(given) {
            problems.push(Problem::with(format!("{section}.{}", error.key), error.message));
        }
    }
    for (name, upstream) in config.all_upstreams() {
        let section = upstreams::section(name);
        if let Err(error @ (ClientError::Tls { .. } | ClientError::Base(_))) = Client::new(upstream)
        {
            problems.push(split(&error.said(&section)));
        }
    }
    problems.extend(unread_urls(config));
    problems.extend(loop_check::refuse(config, config.server.listen));
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// Reports URLs with an invalid path, parsed as for a request.
fn unread_urls(config: &Config) -> Vec<Problem> {
    let mut problems = Vec::new();
    if let Err(error) = Redis::configured(&config.redis.url, &config.redis.key_prefix) {
        problems.push(Problem::with("redis.url", error.to_string()));
    }
    if let Some(Err(error)) = config.store.url.as_ref().map(|url| Store::check_url(url.expose())) {
        problems.push(Problem::with("store.url", error.to_string()));
    }
    let summaries = Some(config.summaries.url.as_str()).filter(|url| !url.is_empty());
    if let Some(Err(error)) = summaries.map(Base::parse) {
        problems.push(Problem::with("summaries.upstream.url", error.to_string()));
    }
    problems
}

/// Splits a text that begins with its key into a problem.
fn split(said: &str) -> Problem {
    let (key, message) = said.split_once(": ").unwrap_or(("", said));
    Problem::with(key, message)
}
