//! What is read anew while weir serves: when its files change, and on SIGHUP. What cannot be used is said
//! and changes nothing.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::own_files;
use super::watch::Watch;
use crate::config::Config;
use crate::server::Hangups;
use crate::tls::Tls;

/// How often files are looked at. They are few and small.
const INTERVAL: Duration = Duration::from_millis(500);

/// What is renewed.
pub struct Reload {
    pub config: Arc<Config>,
    /// What handshakes go by; `None` where there are none.
    pub server: Option<Tls>,
    pub admin: Option<Tls>,
}

impl Reload {
    /// Watches until the runtime ends.
    pub async fn run(self, mut hangups: Hangups) {
        let paths = own_files::named(&self.config).into_iter().map(PathBuf::from).collect();
        let mut watch = Watch::new(paths);
        let mut interval = tokio::time::interval(INTERVAL);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let is_told = tokio::select! {
                () = hangups.next() => true,
                _ = interval.tick() => false,
            };
            let looked = tokio::task::spawn_blocking(move || {
                let has_changed = watch.has_changed();
                (watch, has_changed)
            });
            let Ok((looked, has_changed)) = looked.await else { return };
            watch = looked;
            if is_told || has_changed {
                self.renew();
            }
        }
    }

    /// Reads certificates anew.
    fn renew(&self) {
        let mut config = Config::clone(&self.config);
        if let Err(problems) = own_files::read_all(&mut config) {
            for problem in problems {
                refused(&problem.to_string());
            }
            return;
        }
        let listeners = [
            ("server.tls", &self.server, &config.server.tls),
            ("admin.tls", &self.admin, &config.admin.tls),
        ];
        for (section, tls, told) in listeners {
            let Some(tls) = tls else { continue };
            match tls.replace(told) {
                Ok(()) => {
                    tracing::info!(target: "weir::reload", "{section}: new connections get the certificate that its files hold now");
                }
                Err(error) => refused(&format!("{section}.{error}")),
            }
        }
    }
}

fn refused(said: &str) {
    tracing::error!(target: "weir::reload", "{said}: what was in force stays in force");
}
