//! What weir is told: the flags of `weir serve`, the environment and the file, read and checked as a whole.
//! Each problem with its key, its place, its line and its cure. Opens no connection.

use std::ffi::OsString;
use std::path::Path;

use clap::Args;
use figment::Figment;

use super::lines;
use super::own_address;
use super::own_files;
use super::own_key;
use super::own_store;
use super::own_tokenizer;
use super::sources::{self, Document, Flag};
use crate::config::{self, Config, Problem, Warning, upstreams};
use crate::store::Store;
use crate::store::redis::Redis;
use crate::tls;
use crate::upstream::{Base, Client, ClientError};

/// The environment's name for the upstream that OpenAI's SDKs use as well.
pub const OPENAI_BASE_URL: &str = "OPENAI_BASE_URL";

/// What `weir serve` can be told on the command line.
#[derive(Debug, Clone, Default, Args)]
pub struct Flags {
    /// Where to listen: a port on 127.0.0.1, or an IP address and a port [default: 127.0.0.1:8400]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// The port to listen on, at 127.0.0.1: short for --listen PORT
    #[arg(long, value_name = "PORT", conflicts_with = "listen")]
    port: Option<u16>,
    /// Where to forward, as an SDK's base URL [default: https://api.openai.com/v1]
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// A configuration file in TOML
    #[arg(long, value_name = "FILE", env = "WEIR_CONFIG")]
    pub config: Option<String>,
    /// The file for what outlives the process, :memory: for none, or the URL of a PostgreSQL server
    /// [default: weir/weir.db in the user's state folder]
    #[arg(long, value_name = "FILE")]
    store: Option<String>,
    /// How the log on standard error is written: text or json
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
    /// How much is logged: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
}

/// What is told, from files that were read once.
pub struct Gathered {
    pub figment: Figment,
    /// Whether the file says nothing.
    pub is_empty: bool,
    /// Whether the file's last line has an end.
    pub is_ended: bool,
    /// Whether `upstream.url` is what the file says.
    pub names_upstream: bool,
    /// Whether nobody says what `upstream.url` is.
    pub has_default_upstream: bool,
}

impl Flags {
    /// All that is told now, whatever the file is.
    pub fn gather(&self) -> Gathered {
        self.gathered(Document::file)
    }

    /// All that is told now, where the file is a regular one: nobody waits for a pipe's other end.
    pub fn gather_again(&self) -> Gathered {
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

    /// All that is told, gathered; what is told later goes before what is told earlier.
    pub fn figment_with(&self, file: Option<&Document>) -> Figment {
        let port = self.port.map(|port| port.to_string());
        let told = [
            ("--listen", "server.listen", &self.listen),
            ("--port", "server.listen", &port),
            ("--upstream", "upstream.url", &self.upstream),
            ("--log-format", "log.format", &self.log_format),
            ("--log-level", "log.level", &self.log_level),
        ];
        let told = told.into_iter().filter_map(|(name, key, value)| {
            Some(Flag { name: name.into(), key: key.into(), value: value.clone()? })
        });
        let told = told.chain(self.store.clone().map(own_store::told).into_iter().flatten());
        let openai_base_url = std::env::var(OPENAI_BASE_URL).ok();
        sources::figment_of(file, openai_base_url, std::env::vars_os(), told)
    }

    /// What `figment` says, complete, with all that stands in the files and variables that it names.
    /// `look` sees it before they are read.
    pub fn configuration(
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

    /// Problems found in what `figment` says, each with the variable, the flag or the line that it is from.
    pub fn located_in(&self, figment: &Figment, mut problems: Vec<Problem>) -> Vec<Problem> {
        sources::name_origins(figment, &mut problems);
        self.located(problems)
    }

    /// Problems with the lines of the file that they are on.
    pub fn located(&self, problems: Vec<Problem>) -> Vec<Problem> {
        match &self.config {
            Some(path) => located_in(path, problems),
            None => problems,
        }
    }

    /// The line of the file on which `key` stands, if it does.
    pub fn line_of(&self, key: &str) -> Option<usize> {
        lines::line_of(&text(self.config.as_ref()?)?, key)
    }
}

/// The text of a file, for the lines in it. What is no regular file is not read twice.
fn text(path: impl AsRef<Path>) -> Option<String> {
    Some(path.as_ref())
        .filter(|path| path.is_file())
        .and_then(|path| std::fs::read_to_string(path).ok())
}

/// Problems with the lines of the file at `path` that they are on.
pub fn located_in(path: impl AsRef<Path>, mut problems: Vec<Problem>) -> Vec<Problem> {
    let path = path.as_ref();
    let Some(text) = text(path) else { return problems };
    let shown = path.display().to_string();
    for problem in &mut problems {
        // What weir found wrong only when it looked at what a key names has no origin yet.
        if problem.origin == shown || problem.origin.is_empty() {
            problem.line = lines::line_of(&text, &problem.key);
        }
        if problem.origin.is_empty() && problem.line.is_some() {
            problem.origin.clone_from(&shown);
        }
    }
    problems
}

/// What `figment` says, complete.
pub fn complete_from(figment: &Figment) -> Result<Config, Vec<Problem>> {
    let (mut config, _) = config::load(figment.clone())?;
    complete(&mut config, || std::env::vars_os().collect())?;
    Ok(config)
}

/// Reads what `config` names, and tries what can be tried without serving.
fn complete(
    config: &mut Config,
    env: impl Fn() -> Vec<(OsString, OsString)>,
) -> Result<(), Vec<Problem>> {
    let mut problems = Vec::new();
    if let Err(said) = own_key::read_all(config, env) {
        problems.extend(said.iter().map(|said| split(said)));
    }
    if let Err(said) = own_tokenizer::read_all(config) {
        problems.extend(said.iter().map(|said| split(said)));
    }
    if let Err(found) = own_files::read_all(config) {
        problems.extend(found);
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    let listeners = [("server.tls", &config.server.tls), ("admin.tls", &config.admin.tls)];
    for (section, told) in listeners {
        if let Err(error) = tls::check(told) {
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
    problems.extend(own_address::refuse(config, config.server.listen));
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// URLs that what they lead to cannot be asked by, read as it is asked.
fn unread_urls(config: &Config) -> Vec<Problem> {
    let mut problems = Vec::new();
    if let Err(error) = Redis::configured(&config.redis) {
        problems.push(Problem::with("redis.url", error.to_string()));
    }
    if let Some(Err(error)) = config.store.url.as_ref().map(|url| Store::check_url(url.expose())) {
        problems.push(Problem::with("store.url", error.to_string()));
    }
    if let Some(Err(error)) = named(&config.summaries.url).map(Base::parse) {
        problems.push(Problem::with("summaries.url", error.to_string()));
    }
    problems
}

fn named(url: &str) -> Option<&str> {
    Some(url).filter(|url| !url.is_empty())
}

/// A problem out of a text that begins with its key.
fn split(said: &str) -> Problem {
    let (key, message) = said.split_once(": ").unwrap_or(("", said));
    Problem::with(key, message)
}
