//! Current state on the metrics page: configuration, budgets, the store, upstreams with their learned
//! values, caches, events and traces. Lists a bounded number of each.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use super::{ByWord, Labels, MAX_MODELS, Metrics, is_plain};
use crate::config::{Config, DEFAULT_UPSTREAM};
use crate::proxy::cache::CacheFigures;
use crate::proxy::events::EventCounts;
use crate::proxy::hold::budgets::Budgets;
use crate::proxy::traces::TraceCounts;
use crate::proxy::upstreams::{Upstreams, learned, learned_store::Stored};
use weir_store::budget::Measure;
use weir_store::counters::BudgetStatus;
use weir_store::latency::{BOUNDS_MICROS, Latencies};
use weir_store::{Activity, State, Store};

/// Maximum number of budgets listed.
const MAX_BUDGETS: usize = 100;
/// Maximum number of upstreams listed.
const MAX_UPSTREAMS: usize = 100;
/// Maximum number of learned values read; each caller may have its own.
const MAX_LEARNED: usize = 1000;
/// Digits of the configuration's hash.
const HASH_DIGITS: usize = 16;

type Decimals<L> = Family<L, Gauge<f64, AtomicU64>>;

/// Adds the configuration in force and its reloads.
pub(super) fn configuration(registry: &mut Registry, metrics: &Metrics, hash: &str) {
    let info = Info::new([("hash", hash.to_owned())]);
    let help = "Hash of the configuration in force, without secrets; equal for equal ones";
    registry.register("weir_config", help, info);
    let help = "Reloads of the configuration";
    registry.register("weir_config_reloads", help, metrics.reloads.clone());
    let is_applied = !metrics.is_last_reload_refused.load(Ordering::Relaxed);
    let help = "1 if the newest configuration is in force, 0 if it was refused";
    amount(registry, "weir_config_last_reload_successful", help, u64::from(is_applied));
    let applied: Gauge<f64, AtomicU64> = Gauge::default();
    applied.set(metrics.last_reload_ms.load(Ordering::Relaxed) as f64 / 1000.0);
    let help = "Time since which the configuration is in force";
    registry.register_with_unit("weir_config_applied_timestamp", help, Unit::Seconds, applied);
}

/// Returns a hash of a configuration. Secrets print as stars, and the shipped catalogue as its size.
pub(super) fn hash(config: &Config) -> String {
    let mut hasher = Hasher(blake3::Hasher::new());
    // Writing to a hasher does not fail.
    let _ = fmt::write(&mut hasher, format_args!("{config:?}"));
    hasher.0.finalize().to_hex()[..HASH_DIGITS].to_owned()
}

struct Hasher(blake3::Hasher);

impl fmt::Write for Hasher {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.update(text.as_bytes());
        Ok(())
    }
}

/// Adds the first budgets.
pub(super) async fn budgets(registry: &mut Registry, budgets: &Budgets) {
    let Ok((statuses, omitted)) = budgets.all_statuses(MAX_BUDGETS).await else {
        return;
    };
    let gauges = || -> [Decimals<Labels<String>>; 3] { Default::default() };
    let (usd, tokens) = (gauges(), gauges());
    for status in &statuses {
        let (gauges, unit) = match status.budget.id.measure {
            Measure::NanoUsd => (&usd, 1e9),
            Measure::Tokens => (&tokens, 1.0),
        };
        let labels = [("budget", status.name())];
        for (gauge, amount) in gauges.iter().zip(amounts(status)) {
            if let Some(amount) = amount {
                gauge.get_or_create(&labels).set(amount as f64 / unit);
            }
        }
    }
    let names = ["limit", "spent", "held"];
    let help = ["Limit of each budget", "Spent of each budget", "Held of each budget"];
    for (unit, gauges) in [("usd", usd), ("tokens", tokens)] {
        for ((name, help), gauge) in names.iter().zip(help).zip(gauges) {
            registry.register(format!("weir_budget_{name}_{unit}"), help, gauge);
        }
    }
    let omitted = u64::try_from(omitted).unwrap_or(u64::MAX);
    amount(registry, "weir_budgets_omitted", "Budgets that are not listed here", omitted);
}

/// Returns limit, spent and held amounts. A budget that applies to each
/// member separately has only a limit.
fn amounts(status: &BudgetStatus) -> [Option<u64>; 3] {
    let is_one = !status.scope.is_each();
    let of_one = |amount: u64| is_one.then_some(amount);
    [Some(status.budget.limit), of_one(status.count.spent), of_one(status.count.held)]
}

/// Adds the state of the store, and its activity.
pub(super) fn store(registry: &mut Registry, state: State, activity: Activity) {
    let states: Family<Labels<&'static str>, Gauge> = Family::default();
    for (name, own) in State::WORDS {
        states.get_or_create(&[("state", name)]).set(i64::from(own == state));
    }
    registry.register("weir_store_state", "1 for the state that the store is in", states);
    let help = "Writes to the store that succeeded";
    count(registry, "weir_store_writes", help, activity.writes);
    let help = "Writes to the store that failed";
    count(registry, "weir_store_failed_writes", help, activity.failed_writes);
    let help = "Checkpoints that moved records from the log of requests into the tables";
    count(registry, "weir_store_checkpoints", help, activity.checkpoints);
    let help = "Pieces of work that wait to be written";
    amount(registry, "weir_store_queue_length", help, activity.queued);
    let help = "Bytes of the log of requests that wait to be moved into the tables";
    amount(registry, "weir_store_log_bytes", help, activity.log_bytes);
    let help = "Size of the store's file, with SQLite's own log";
    amount(registry, "weir_store_file_bytes", help, activity.file_bytes);
    let mut add = |name: &str, help: &str, latencies| {
        registry.register_with_unit(name, help, Unit::Seconds, Durations(latencies));
    };
    let help = "Transactions of the store; statements on a server";
    add("weir_store_write_duration", help, activity.transactions);
    let help = "Appends of a record to the log of requests";
    add("weir_store_append_duration", help, activity.appends);
}

/// Durations counted elsewhere, as a histogram.
#[derive(Debug)]
struct Durations(Latencies);

impl EncodeMetric for Durations {
    fn encode(&self, mut encoder: MetricEncoder) -> fmt::Result {
        let bounds = BOUNDS_MICROS.iter().map(|bound| *bound as f64 / 1e6).chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds.zip(self.0.counts).collect();
        let count = self.0.counts.iter().sum();
        let sum = self.0.sum_micros as f64 / 1e6;
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

/// Adds the state of each upstream's breaker.
pub(super) fn upstreams(registry: &mut Registry, upstreams: &Upstreams) {
    let open: Family<Labels<Arc<str>>, Gauge> = Family::default();
    for upstream in upstreams.all().take(MAX_UPSTREAMS) {
        let labels = [("upstream", Arc::clone(&upstream.name))];
        open.get_or_create(&labels).set(i64::from(upstream.is_skipped()));
    }
    let help = "1 while an upstream is skipped, since it failed several times in a row";
    registry.register("weir_upstream_breaker_open", help, open);
}

/// Values learned of a model; the lowest and newest over all callers.
#[derive(Default)]
struct Learned {
    window_tokens: Option<u64>,
    max_input_tokens: Option<u64>,
    /// With the time of its last change.
    ratio: Option<(u64, f64)>,
}

/// Adds learned windows and ratios of the first models.
pub(super) async fn learned(registry: &mut Registry, store: &Store) {
    let limits = learned::limits_rows(store, MAX_LEARNED).await.unwrap_or_default();
    let ratios = learned::ratio_rows(store, MAX_LEARNED).await.unwrap_or_default();
    let mut all: BTreeMap<(String, String), Learned> = BTreeMap::new();
    let least = |one: Option<u64>, other: Option<u64>| one.into_iter().chain(other).min();
    for row in limits {
        let Some(place) = place(&row) else { continue };
        let own = all.entry(place).or_default();
        own.window_tokens = least(own.window_tokens, row.value.limits.window_tokens);
        own.max_input_tokens = least(own.max_input_tokens, row.value.limits.max_input_tokens);
    }
    for row in ratios {
        let Some(place) = place(&row) else { continue };
        let own = all.entry(place).or_default();
        let learned_ms = row.value.learned_ms;
        if own.ratio.is_none_or(|(before_ms, _)| before_ms < learned_ms) {
            own.ratio = Some((learned_ms, f64::from(row.value.permille) / 1000.0));
        }
    }
    let [windows, inputs, factors]: [Decimals<Labels<String, 2>>; 3] = Default::default();
    for ((upstream, model), own) in all.into_iter().take(MAX_MODELS) {
        let labels = [("upstream", upstream), ("model", model)];
        let of_tokens = |tokens: Option<u64>| tokens.map(|tokens| tokens as f64);
        for (gauge, figure) in [
            (&windows, of_tokens(own.window_tokens)),
            (&inputs, of_tokens(own.max_input_tokens)),
            (&factors, own.ratio.map(|(_, ratio)| ratio)),
        ] {
            if let Some(figure) = figure {
                gauge.get_or_create(&labels).set(figure);
            }
        }
    }
    let help = "Window of a model that was learned from a refusal";
    registry.register("weir_learned_window_tokens", help, windows);
    let help = "Limit of a model's prompt that was learned from a refusal";
    registry.register("weir_learned_max_input_tokens", help, inputs);
    let help = "Learned ratio of a model's tokens to weir's count";
    registry.register("weir_learned_token_ratio", help, factors);
}

/// Returns the upstream and the model of a learned value; `None` if the model's name, which callers
/// choose, cannot be a label.
fn place<T>(row: &Stored<T>) -> Option<(String, String)> {
    // The default upstream is known by its address alone.
    let upstream = row.upstream.split_once(' ').map_or(DEFAULT_UPSTREAM, |(name, _)| name);
    is_plain(&row.model).then(|| (upstream.to_owned(), row.model.clone()))
}

/// Adds the figures of weir's own caches.
pub(super) fn caches(registry: &mut Registry, figures: impl Iterator<Item = CacheFigures>) {
    let lookups: Family<Labels<&'static str, 2>, Counter> = Family::default();
    let sizes: Family<Labels<&'static str>, Gauge> = Family::default();
    for CacheFigures { name: cache, lookups: own, bytes } in figures {
        sizes.get_or_create(&[("cache", cache)]).set(i64::try_from(bytes).unwrap_or(i64::MAX));
        let Some((hits, misses)) = own else { continue };
        for (result, number) in [("hit", hits), ("miss", misses)] {
            lookups.get_or_create(&[("cache", cache), ("result", result)]).inc_by(number);
        }
    }
    let help = "Lookups in weir's caches of compaction states, of read prefixes, and of messages that \
                compactions ask for";
    registry.register("weir_cache_lookups", help, lookups);
    registry.register("weir_cache_bytes", "Memory of weir's caches", sizes);
}

/// Adds the numbers of events and spans that were sent.
pub(super) fn sent(registry: &mut Registry, events: EventCounts, traces: TraceCounts) {
    let posts: ByWord = Family::default();
    for (result, number) in
        [("posted", events.posted), ("failed", events.failed), ("dropped", events.dropped)]
    {
        posts.get_or_create(&[("result", result)]).inc_by(number);
    }
    registry.register("weir_events", "Events for the webhook", posts);
    let spans: ByWord = Family::default();
    for (result, number) in [("exported", traces.exported_spans), ("failed", traces.failed_spans)] {
        spans.get_or_create(&[("result", result)]).inc_by(number);
    }
    registry.register("weir_trace_spans", "Spans sent to the collector", spans);
    let help = "Traces without room in the queue to the collector";
    count(registry, "weir_traces_dropped", help, traces.dropped_traces);
}

/// Adds a counter that is counted elsewhere.
pub(super) fn count(registry: &mut Registry, name: &str, help: &str, count: u64) {
    let counter: Counter = Counter::default();
    counter.inc_by(count);
    registry.register(name, help, counter);
}

/// Adds a gauge with an amount that is known elsewhere.
pub(super) fn amount(registry: &mut Registry, name: &str, help: &str, amount: u64) {
    let gauge: Gauge = Gauge::default();
    gauge.set(i64::try_from(amount).unwrap_or(i64::MAX));
    registry.register(name, help, gauge);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Secret;

    #[test]
    fn the_hash_is_that_of_the_settings_without_secrets() {
        let config = Config::default();
        assert_eq!(hash(&config), hash(&Config::default()));
        assert_eq!(hash(&config).len(), HASH_DIGITS);
        let mut other = config.clone();
        other.server.max_messages += 1;
        assert_ne!(hash(&config), hash(&other));
        let with_secret = |text: &str| {
            let mut config = Config::default();
            config.upstream.provider_key = Some(Secret::new(text));
            hash(&config)
        };
        assert_eq!(with_secret("one"), with_secret("other"));
        assert_ne!(with_secret("one"), hash(&config), "whether there is one matters");
    }
}
