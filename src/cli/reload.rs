//! Reload of the configuration while weir serves: when its file or a file that it names changes,
//! and on SIGHUP. An invalid configuration is logged and changes nothing. Changes that need a
//! restart are logged, and the rest applies.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use figment::{Figment, Provider};

use super::settings::{self, Flags, Gathered};
use super::watch::Watch;
use super::{config_files, loop_check, serve};
use crate::admin::{AdminRenewal, Reloaded};
use crate::config::changes::{self, Change, Effect};
use crate::config::{Config, Problem, shown};
use crate::server::{Hangups, Renewal};
use weir_engine::tokens::Encoding;

/// Interval at which files are checked. They are few and small.
const INTERVAL: Duration = Duration::from_millis(500);

/// Reloads the configuration, and the parts that a reload updates.
pub(super) struct Reload {
    pub flags: Flags,
    /// Gathered configuration in force.
    pub gathered: Gathered,
    /// Files that it was read from.
    pub files: Vec<PathBuf>,
    /// Tokenizers loaded from the files that it names.
    pub vocabularies: Vocabularies,
    pub server: Renewal,
    /// Address that weir listens on.
    pub listening: SocketAddr,
    pub admin: Option<AdminRenewal>,
    pub log: serve::LogLevel,
}

/// Tokenizers loaded from files, by model name.
pub(super) type Vocabularies = BTreeMap<String, Encoding>;

/// Collects the tokenizers in `config`.
pub(super) fn vocabularies(config: &Config) -> Vocabularies {
    let own = config.model_settings.iter().filter(|(_, settings)| settings.tokenizer.is_some());
    own.map(|(name, _)| (name.clone(), config.models.find(name).entry.encoding)).collect()
}

/// Watched files, from before their first read.
pub(super) struct Before {
    watch: Watch,
    /// Whether the configuration's file can be read only once, such as a pipe.
    is_read_once: bool,
}

impl Before {
    pub(super) fn new(flags: &Flags) -> Self {
        let path = flags.config.as_deref().map(Path::new);
        let is_read_once = path.is_some_and(|path| path.exists() && !path.is_file());
        let mut watch = Watch::default();
        watch.follow(path.filter(|_| !is_read_once).map(Path::to_owned));
        Self { watch, is_read_once }
    }

    /// Returns the watched files.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        self.watch.paths()
    }

    /// Also watches the files that `config` names, which are read next.
    pub(super) fn look(&mut self, config: &Config) {
        let named = config_files::named(config).into_iter().map(PathBuf::from);
        self.watch.follow(self.watch.paths().into_iter().chain(named).collect::<Vec<_>>());
    }
}

impl Reload {
    /// Watches the files until the runtime ends.
    pub(super) async fn run(mut self, mut before: Before, mut hangups: Hangups) {
        if before.is_read_once {
            tracing::warn!(
                target: "weir::reload",
                "the configuration's file is not a regular file: it was read once and is not watched"
            );
        }
        let mut interval = super::every(INTERVAL);
        loop {
            let is_signalled = tokio::select! {
                () = hangups.next() => true,
                _ = interval.tick() => false,
            };
            // Reading files would block an async thread.
            let done = tokio::task::spawn_blocking(move || {
                if is_signalled {
                    before.watch.note();
                }
                if is_signalled || before.watch.has_changed() {
                    self.renew(&mut before);
                }
                (self, before)
            });
            let Ok(done) = done.await else { return };
            (self, before) = done;
        }
    }

    /// Reads everything again and applies it.
    fn renew(&mut self, before: &mut Before) {
        let gathered = match before.is_read_once {
            true => Gathered { figment: self.gathered.figment.clone(), ..self.gathered },
            false => self.flags.gather_again(),
        };
        if let Err(problems) = self.changed(gathered, before) {
            self.refuse(&problems);
        }
    }

    /// Applies the gathered configuration, if possible.
    fn changed(&mut self, mut gathered: Gathered, before: &mut Before) -> Result<(), Vec<Problem>> {
        self.not_lost(&gathered)?;
        let (config, figment, mut changes) = self.complete(&gathered.figment, before)?;
        if config.server.listen != self.listening {
            let own = loop_check::refuse(&config, self.listening);
            if !own.is_empty() {
                return Err(self.flags.located_in(&figment, own));
            }
        }
        let vocabularies = vocabularies(&config);
        changes.extend(self.changed_files(&vocabularies));
        let level = config.log.level.clone();
        let files = self.files(&config, before);
        self.go_by(config).map_err(|said| vec![Problem::with("", said)])?;
        (self.log)(&level);
        self.server.note_reload(None);
        gathered.figment = figment;
        (self.gathered, self.vocabularies, self.files) = (gathered, vocabularies, files);
        before.watch.follow(self.files.clone());
        log_changes(&changes);
        if let Some(admin) = &self.admin {
            let settings = shown::shown(&self.gathered.figment).into();
            admin.note(|in_force| {
                in_force.settings = settings;
                in_force.reload = Some(Reloaded::applied(&changes));
            });
        }
        Ok(())
    }

    /// Refuses a file that looks truncated or emptied, since all requests would go to an upstream
    /// that nobody configured.
    fn not_lost(&self, gathered: &Gathered) -> Result<(), Vec<Problem>> {
        let Some(file) = &self.flags.config else { return Ok(()) };
        if gathered.is_empty && !self.gathered.is_empty {
            return Err(vec![Problem::with("", format!("{file} is empty"))]);
        }
        if self.gathered.is_ended && !gathered.is_ended && gathered.figment.data().is_ok() {
            let said = format!(
                "{file} ends in the middle of a line and may be truncated; end it with a newline"
            );
            return Err(vec![Problem::with("", said)]);
        }
        if self.gathered.names_upstream && gathered.has_default_upstream {
            let said = format!(
                "is missing from {file}; set it there, even if it is https://api.openai.com/v1"
            );
            return Err(vec![Problem::with("upstream.url", said)]);
        }
        Ok(())
    }

    /// Returns the file itself and those that it names.
    fn files(&self, config: &Config, before: &Before) -> Vec<PathBuf> {
        let own = self.flags.config.clone().filter(|_| !before.is_read_once);
        own.into_iter().chain(config_files::named(config)).map(PathBuf::from).collect()
    }

    /// Builds the configuration from all values that can change without a restart, and lists the
    /// changes. The files that it names are watched in addition to the current ones, even if it is
    /// refused.
    fn complete(
        &self,
        figment: &Figment,
        before: &mut Before,
    ) -> Result<(Config, Figment, Vec<Change>), Vec<Problem>> {
        let look = |config: &Config| {
            let named = self.files(config, before);
            before.watch.follow(self.files.iter().cloned().chain(named).collect::<Vec<_>>());
        };
        let (config, warnings) = self.flags.configuration(figment, look)?;
        for warning in warnings {
            tracing::warn!(target: "weir::config", "{warning}");
        }
        let changes = changes::changes(&self.gathered.figment, figment);
        if changes.iter().all(|change| change.effect != Effect::Restart) {
            return Ok((config, figment.clone(), changes));
        }
        let figment = changes::without_restarts(&self.gathered.figment, figment);
        let config = settings::complete_from(&figment).map_err(|problems| {
            let keys = keys(&changes, Effect::Restart);
            let with =
                Problem::with("", format!("this cannot apply without a restart for {keys}:"));
            [vec![with], problems].concat()
        })?;
        Ok((config, figment, changes))
    }

    /// Lists the tokenizers that changed under the same name.
    fn changed_files(&self, now: &Vocabularies) -> Vec<Change> {
        let is_other = |(name, encoding): &(&String, &Encoding)| {
            self.vocabularies.get(*name).is_some_and(|before| before != *encoding)
        };
        let others = now.iter().filter(is_other);
        let key = |name: &String| format!("models.{name:?}.tokenizer (its file)");
        others
            .map(|(name, _)| Change { key: key(name), effect: Effect::MovesCompactions })
            .collect()
    }

    /// Prepares everything first, so that all of it applies or none.
    fn go_by(&self, config: Config) -> Result<(), String> {
        let admin = self.admin.as_ref().map(|admin| admin.prepare(&config)).transpose();
        let admin = admin.map_err(|error| format!("admin.tls.{error}"))?;
        let server = self.server.prepare(config)?;
        // Nothing can fail from here on.
        if let Some(admin) = admin {
            admin();
        }
        server();
        Ok(())
    }

    fn refuse(&self, problems: &[Problem]) {
        // Messages may quote values, which stay in the log.
        let key = |problem: &Problem| match problem.key.as_str() {
            "" => "configuration".to_owned(),
            key => key.to_owned(),
        };
        let keys: Vec<String> = problems.iter().map(key).collect();
        self.server.note_reload(Some(&keys));
        if let Some(admin) = &self.admin {
            let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
            admin.note(|in_force| in_force.reload = Some(Reloaded::refused(&lines)));
        }
        for problem in problems {
            tracing::error!(target: "weir::reload", "{problem}");
        }
        tracing::error!(
            target: "weir::reload",
            problems = problems.len(),
            "the configuration was refused; the one before stays in force"
        );
    }
}

/// Logs the changes that apply now, and those that do not yet.
fn log_changes(changes: &[Change]) {
    let said = |effect| Some(keys(changes, effect)).filter(|keys| !keys.is_empty());
    tracing::info!(
        target: "weir::reload",
        moves_cuts = said(Effect::MovesCompactions),
        next_request = said(Effect::NextRequest),
        needs_restart = said(Effect::Restart),
        "the configuration was reloaded, with its keys and certificates"
    );
    if let Some(keys) = said(Effect::MovesCompactions) {
        tracing::warn!(
            target: "weir::reload",
            "{keys}: live conversations may be compacted at other points, which costs each one rewrite \
             of the provider's cache"
        );
    }
    if let Some(keys) = said(Effect::Restart) {
        tracing::warn!(target: "weir::reload", "{keys}: applies after a restart of weir");
    }
}

/// Returns the keys of changes with this effect.
fn keys(changes: &[Change], effect: Effect) -> String {
    let keys = changes.iter().filter(|change| change.effect == effect);
    keys.map(|change| change.key.as_str()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;
    use crate::admin::{self, Admin};
    use crate::config::{Secret, Upstream};
    use crate::proxy::Proxy;
    use crate::server::Server;
    use crate::upstream::Client;
    use weir_store::Store;

    /// Returns the first line that the admin API at `address` sends to a client that calls it
    /// `host`.
    async fn said(address: SocketAddr, host: &str) -> String {
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        let request =
            format!("GET /weir/v1/keys HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        answer.lines().next().expect("a line").to_owned()
    }

    /// Creates a configuration of a server with TLS.
    fn configured() -> Config {
        let pair = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]);
        let pair = pair.expect("a certificate");
        let mut config = Config::default();
        config.server.listen = ([127, 0, 0, 1], 0).into();
        config.server.tls.cert_file = "cert.pem".to_owned();
        config.server.tls.cert = Some(Secret::new(pair.cert.pem()));
        config.server.tls.key = Some(Secret::new(pair.signing_key.serialize_pem()));
        config
    }

    #[tokio::test]
    async fn where_one_part_cannot_change_none_does() {
        let config = configured();
        let store = Store::in_memory().expect("there is memory");
        let client = Client::new(&config.upstream).expect("the defaults are valid");
        let proxy = Proxy::new(Arc::new(config.clone()), client, store.clone()).expect("a proxy");
        let server = Server::bind(&config, proxy).await.expect("a free port");
        let (token, _) = admin::load_or_make(None).expect("a token");
        let listen = ([127, 0, 0, 1], 0).into();
        let bound = Admin::bind(listen, &config, store, admin::Token::new(&token)).await;
        let bound = bound.expect("a free port");
        let (address, flags) = (bound.address(), Flags::default());
        let reload = Reload {
            gathered: flags.gather(),
            flags,
            files: Vec::new(),
            vocabularies: Vocabularies::new(),
            listening: server.address(),
            server: server.renewal(),
            admin: Some(bound.renewal()),
            log: Box::new(|_| {}),
        };
        tokio::spawn(bound.run(std::future::pending()));
        let foreign = said(address, "new.example").await;
        let before = reload.server.proxy();

        let mut good = config;
        good.server.allowed_hosts = vec!["new.example".to_owned()];
        // One failure after the admin API is prepared, and one in the last step.
        let mut no_upstream = good.clone();
        let mut upstream = Upstream::new("https://other.example/v1");
        upstream.tls.ca_file = "ca.pem".to_owned();
        upstream.tls.ca = Some(Secret::new("nothing"));
        no_upstream.upstreams.insert("other".to_owned(), upstream);
        let mut no_certificate = good.clone();
        no_certificate.server.tls.cert = Some(Secret::new("nothing"));
        for (config, expected) in
            [(no_upstream, "upstreams.other.tls.ca_file"), (no_certificate, "server.tls.cert_file")]
        {
            let problem = reload.go_by(config).expect_err("it is of no use");
            assert!(problem.contains(expected), "{problem}");
            assert!(Arc::ptr_eq(&before, &reload.server.proxy()), "{expected}");
            assert_eq!(said(address, "new.example").await, foreign, "{expected}");
        }
        reload.go_by(good).expect("it is right");
        assert!(!Arc::ptr_eq(&before, &reload.server.proxy()));
        assert_ne!(said(address, "new.example").await, foreign);
    }
}
