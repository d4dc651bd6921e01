//! `GET /admin/v1/status`: the state of this weir, its configuration in force without secrets, the
//! last reload, upstreams with their health, and learned values. Changes nothing.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};

use super::AdminState;
use super::api::{Answer, done};
use crate::config::Config;
use crate::config::changes::Change;
use crate::config::shown::Setting;
use crate::proxy::Proxy;
use crate::proxy::upstreams::{Upstream, learned};
use weir_store::now_ms;

/// Maximum number of learned values of each kind, and of problems of a reload, that are shown.
const MAX_LEARNED: usize = 1000;
const MAX_PROBLEMS: usize = 100;

/// The answer. The configuration has hundreds of keys, so it is written without a tree of values
/// between.
#[derive(Serialize)]
struct Page<'a> {
    object: &'static str,
    version: &'static str,
    instance: &'a str,
    now_ms: u64,
    started_ms: u64,
    uptime_ms: u64,
    base_url: &'a str,
    mode: Value,
    store: Value,
    configuration: &'a [Setting],
    reload: Option<&'a Reloaded>,
    upstreams: Vec<Value>,
    routes: Vec<Value>,
    learned: Value,
}

/// Facts about the serving process that the listener cannot find out itself.
#[derive(Debug, Clone, Default)]
pub struct InForce {
    /// URL for SDKs.
    pub base_url: String,
    pub settings: Arc<Vec<Setting>>,
    /// `None` until the configuration was reloaded.
    pub reload: Option<Reloaded>,
}

/// Last reload of the configuration.
#[derive(Debug, Clone, Serialize)]
pub struct Reloaded {
    at_ms: u64,
    is_applied: bool,
    changes: Vec<Value>,
    problems: Vec<String>,
}

impl Reloaded {
    /// Describes a reload that was applied, with its changes.
    pub fn applied(changes: &[Change]) -> Self {
        let change = |change: &Change| json!({"key": change.key, "effect": change.effect.word()});
        let changes = changes.iter().take(MAX_PROBLEMS).map(change).collect();
        Self { at_ms: now_ms(), is_applied: true, changes, problems: Vec::new() }
    }

    /// Describes a reload that was refused for `problems`.
    pub fn refused(problems: &[String]) -> Self {
        let problems = problems.iter().take(MAX_PROBLEMS).cloned().collect();
        Self { at_ms: now_ms(), is_applied: false, changes: Vec::new(), problems }
    }
}

impl AdminState {
    /// Shows the state of this weir.
    pub(super) async fn status(&self) -> Answer {
        let proxy = self.serving()?;
        let limits = learned::limits_rows(&self.store, MAX_LEARNED).await?;
        let ratios = learned::ratio_rows(&self.store, MAX_LEARNED).await?;
        let in_force = self.in_force.read().clone();
        let (now_ms, config) = (now_ms(), proxy.config());
        let started_ms = proxy.live().started_ms;
        done(&Page {
            object: "status",
            version: env!("CARGO_PKG_VERSION"),
            instance: proxy.instance(),
            now_ms,
            started_ms,
            uptime_ms: now_ms.saturating_sub(started_ms),
            base_url: &in_force.base_url,
            mode: mode(config),
            store: self.store_state(config),
            configuration: &in_force.settings,
            reload: in_force.reload.as_ref(),
            upstreams: proxy.upstreams().map(|upstream| of(upstream)).collect(),
            routes: routes(&proxy),
            learned: learned::rows_json(&limits, &ratios),
        })
    }

    fn store_state(&self, config: &Config) -> Value {
        let activity = self.store.activity();
        json!({
            "state": self.store.state().word(),
            "file": self.store.file().map(|file| file.display().to_string()),
            "counts_in_redis": !config.redis.url.expose().is_empty(),
            "writes": activity.writes,
            "failed_writes": activity.failed_writes,
            "queued": activity.queued,
            "log_bytes": activity.log_bytes,
            "is_recording": config.ledger.enabled,
            "requests_kept_days": config.ledger.retention_days,
        })
    }
}

fn mode(config: &Config) -> Value {
    json!({
        "callers": config.auth.mode.word(),
        "conversations": config.context.mode.word(),
    })
}

/// Describes an upstream.
fn of(upstream: &Upstream) -> Value {
    let health = upstream.health();
    json!({
        "name": *upstream.name,
        "origin": *upstream.origin,
        "state": if health.is_open { "skipped" } else if health.failures > 0 { "troubled" } else { "ready" },
        "failures_in_a_row": health.failures,
        "has_own_key": upstream.provider_key.is_some(),
        "gets_callers_key": upstream.gets_callers_key,
        "compacts": upstream.compacts,
    })
}

fn routes(proxy: &Proxy) -> Vec<Value> {
    let rows = proxy.routes().rows.iter();
    rows.map(|route| json!({"models": route.models, "upstream": route.upstream})).collect()
}
