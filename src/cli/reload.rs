//! The configuration read anew while weir serves: when its file changes or one that it names, and on
//! SIGHUP. One that cannot be used is said and changes nothing; what only a restart can change is said,
//! and the rest holds.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use figment::Figment;

use super::told::{self, Flags};
use super::watch::Watch;
use super::{own_files, serve};
use crate::admin::AdminRenewal;
use crate::config::changes::{self, Change, Effect};
use crate::config::{Config, Problem};
use crate::server::{Hangups, Renewal};
use crate::tokens::Encoding;

/// How often files are looked at. They are few and small.
const INTERVAL: Duration = Duration::from_millis(500);

/// What is renewed, and by what.
pub struct Reload {
    pub flags: Flags,
    /// What is in force, as it was gathered.
    pub figment: Figment,
    /// What the vocabularies are that it names files of.
    pub vocabularies: Vocabularies,
    pub server: Renewal,
    pub admin: Option<AdminRenewal>,
    pub log: serve::LogLevel,
}

/// Vocabularies of models that are read from files, by the models' names.
pub type Vocabularies = BTreeMap<String, Encoding>;

/// Those of `config`.
pub fn vocabularies(config: &Config) -> Vocabularies {
    let own = config.model_settings.iter().filter(|(_, settings)| settings.tokenizer.is_some());
    own.map(|(name, _)| (name.clone(), config.models.find(name).entry.encoding)).collect()
}

impl Reload {
    /// Looks after `config`'s files until the runtime ends.
    pub async fn run(mut self, config: &Config, mut hangups: Hangups) {
        let mut watch = Watch::new(self.files(config));
        let mut interval = tokio::time::interval(INTERVAL);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let is_told = tokio::select! {
                () = hangups.next() => true,
                _ = interval.tick() => false,
            };
            // Reading files is no work for an async thread.
            let done = tokio::task::spawn_blocking(move || {
                if is_told {
                    watch.note();
                }
                if is_told || watch.has_changed() {
                    self.renew(&mut watch);
                }
                (self, watch)
            });
            let Ok(done) = done.await else { return };
            (self, watch) = done;
        }
    }

    /// The file itself and those that it names.
    fn files(&self, config: &Config) -> Vec<PathBuf> {
        let named = own_files::named(config).into_iter();
        self.flags.config.clone().into_iter().chain(named).map(PathBuf::from).collect()
    }

    /// Reads all anew and goes by it.
    fn renew(&mut self, watch: &mut Watch) {
        match self.told() {
            Ok((config, figment, mut changes)) => {
                let files = self.files(&config);
                let vocabularies = vocabularies(&config);
                changes.extend(self.changed_files(&vocabularies));
                let level = config.log.level.clone();
                if let Err(said) = self.go_by(config) {
                    return self.refuse(&[said]);
                }
                (self.log)(&level);
                self.server.note_refused(false);
                (self.figment, self.vocabularies) = (figment, vocabularies);
                watch.follow(files);
                tell(&changes);
            }
            Err(problems) => {
                let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
                self.refuse(&lines);
            }
        }
    }

    /// What is told now, as far as it can hold without a restart, and what is other than it was.
    fn told(&self) -> Result<(Config, Figment, Vec<Change>), Vec<Problem>> {
        let (config, warnings) = self.flags.configuration()?;
        for warning in warnings {
            tracing::warn!(target: "weir::config", "{warning}");
        }
        let figment = self.flags.figment();
        let changes = changes::changes(&self.figment, &figment);
        if changes.iter().all(|change| change.effect != Effect::Restart) {
            return Ok((config, figment, changes));
        }
        let figment = changes::without_restarts(&self.figment, &figment);
        let config = told::complete_from(&figment).map_err(|problems| {
            let keys = keys(&changes, Effect::Restart);
            let with = Problem::with("", format!("without a restart for {keys} this cannot hold:"));
            [vec![with], problems].concat()
        })?;
        Ok((config, figment, changes))
    }

    /// The vocabularies that are others under the same name.
    fn changed_files(&self, now: &Vocabularies) -> Vec<Change> {
        let is_other = |(name, encoding): &(&String, &Encoding)| {
            self.vocabularies.get(*name).is_some_and(|before| before != *encoding)
        };
        let others = now.iter().filter(is_other);
        let key = |name: &String| format!("models.{name:?}.tokenizer (its file)");
        others.map(|(name, _)| Change { key: key(name), effect: Effect::MovesCuts }).collect()
    }

    fn go_by(&self, config: Config) -> Result<(), String> {
        if let Some(admin) = &self.admin {
            admin.renew(&config).map_err(|error| format!("admin.tls.{error}"))?;
        }
        self.server.renew(config).map_err(|error| error.to_string())
    }

    fn refuse(&self, lines: &[String]) {
        self.server.note_refused(true);
        for line in lines {
            tracing::error!(target: "weir::reload", "{line}");
        }
        tracing::error!(
            target: "weir::reload",
            problems = lines.len(),
            "the configuration was refused; the one before stays in force"
        );
    }
}

/// Says what holds from now on, and what does not yet.
fn tell(changes: &[Change]) {
    let said = |effect| Some(keys(changes, effect)).filter(|keys| !keys.is_empty());
    tracing::info!(
        target: "weir::reload",
        moves_cuts = said(Effect::MovesCuts),
        next_request = said(Effect::NextRequest),
        needs_restart = said(Effect::Restart),
        "the configuration was read anew, with its keys and certificates"
    );
    if let Some(keys) = said(Effect::MovesCuts) {
        tracing::warn!(
            target: "weir::reload",
            "{keys}: live conversations may be cut elsewhere than before, which costs each one rewrite \
             of the provider's cache"
        );
    }
    if let Some(keys) = said(Effect::Restart) {
        tracing::warn!(target: "weir::reload", "{keys}: holds once weir is started anew");
    }
}

/// The keys of changes with this effect.
fn keys(changes: &[Change], effect: Effect) -> String {
    let keys = changes.iter().filter(|change| change.effect == effect);
    keys.map(|change| change.key.as_str()).collect::<Vec<_>>().join(", ")
}
