//! Metrics page: the counters, and the current state of everything else by `gauges` and `process`.
//! Counts nothing itself.

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry, Unit};

use super::gauges::{self, amount, count};
use super::{Metrics, Totals, process};
use crate::proxy::runtime::Runtime;
use crate::proxy::settings::Settings;

/// Media type of the page.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Renders the metrics of a proxy in the OpenMetrics text format. Lists budgets by name: it is for
/// operators.
pub async fn render(settings: &Settings, runtime: &Runtime) -> String {
    let mut registry = Registry::default();
    let metrics = settings.journal.metrics();
    metrics.register(&mut registry);
    metrics.register_times(&mut registry);
    metrics.register_connections(&mut registry);
    let hash = settings.config_hash.get_or_init(|| gauges::hash(&settings.config));
    gauges::configuration(&mut registry, metrics, hash);
    gauges::budgets(&mut registry, settings.journal.budgets()).await;
    gauges::store(&mut registry, runtime.store.state(), runtime.store.activity());
    gauges::upstreams(&mut registry, &settings.upstreams);
    gauges::learned(&mut registry, &runtime.store).await;
    gauges::caches(&mut registry, runtime.plans.figures());
    gauges::sent(&mut registry, runtime.events.counts(), runtime.tracer.counts());
    let help = "Receipts that were not made, since too many were in progress";
    count(&mut registry, "weir_receipts_skipped", help, runtime.receipts.skipped());
    for (name, figure) in settings.summaries.iter().flat_map(|summaries| summaries.figures()) {
        let help = format!("Summaries: {}", name.replace('_', " "));
        count(&mut registry, &format!("weir_summaries_{name}"), &help, figure);
    }
    process::register(&mut registry);
    let mut page = String::new();
    // Writing to a string does not fail.
    let _ = encode(&mut page, &registry);
    page
}

impl Metrics {
    fn register(&self, registry: &mut Registry) {
        let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("weir_build", "The version that runs", version);
        let help = "Requests by route, model, outcome and class of the caller's status";
        registry.register("weir_requests", help, self.requests.clone());
        let help = "Requests whose answers have not ended";
        registry.register("weir_requests_in_flight", help, self.in_flight.clone());
        let help = "Requests that ended in an error of weir's own, by its code";
        registry.register("weir_errors", help, self.errors.clone());
        let help = "Requests that weir refused, by the rule or the shortage behind it";
        registry.register("weir_refusals", help, self.refusals.clone());
        let help = "Requests by the action on their conversation, in the words of x-weir-action";
        registry.register("weir_actions", help, self.actions.clone());
        let help = "Compactions that an upstream accepted, each counted once, by their steps";
        registry.register("weir_compactions", help, self.compactions.clone());
        let help = "Requests sent again after an overflow refusal or a transient failure";
        registry.register("weir_resends", help, self.resends.clone());
        let help = "Attempts at upstreams, by how they came back";
        registry.register("weir_upstream_attempts", help, self.attempts.clone());
        let help = "Tokens by model and kind, as providers report them or as settled by rule";
        registry.register("weir_tokens", help, self.tokens.clone());
        let help = "Requests with a prompt, by whether the provider read some of it from its cache";
        registry.register("weir_prompt_cache_requests", help, self.prompt_cache.clone());
        let help = "Prompt tokens of conversations as received and as sent, by weir's count";
        registry.register("weir_conversation_tokens", help, self.conversation_tokens.clone());
        registry.register("weir_cost_usd", "Cost in dollars", self.cost_usd.clone());
        let help = "Dollars that compaction saved since the start; negative if it cost more";
        registry.register("weir_saved_usd", help, self.saved_usd.clone());
        let Totals { unpriced, rereads, .. } = self.totals();
        count(registry, "weir_unpriced_requests", "Requests settled without a price", unpriced);
        let help = "Requests with results that agents asked for again because compaction had left them out";
        count(registry, "weir_rereads", help, rereads);
        let help = "Holds of requests to which budgets apply, by their result";
        registry.register("weir_budget_holds", help, self.holds.clone());
    }

    fn register_times(&self, registry: &mut Registry) {
        fn add(registry: &mut Registry, name: &str, help: &str, times: impl Metric) {
            registry.register_with_unit(name, help, Unit::Seconds, times);
        }
        let help = "From a request to the end of its answer";
        add(registry, "weir_request_duration", help, self.durations.clone());
        let help = "From sending a request to the head of the upstream's answer";
        add(registry, "weir_first_byte_duration", help, self.first_bytes.clone());
        let help = "From the head of an answer in events to its end";
        add(registry, "weir_stream_duration", help, self.streams.clone());
        let help = "From a conversation to its plan";
        add(registry, "weir_plan_duration", help, self.plans.clone());
        let help = "Waits for a core to plan on and for budgets";
        add(registry, "weir_queue_duration", help, self.queues.clone());
        let help = "From sending an attempt to the head of its answer, or to its failure";
        add(registry, "weir_upstream_attempt_duration", help, self.attempt_times.clone());
    }

    fn register_connections(&self, registry: &mut Registry) {
        let own = &self.connections;
        let help = "Open connections of callers";
        registry.register("weir_connections_open", help, own.open.clone());
        let help = "Connections of callers that were accepted";
        registry.register("weir_connections", help, own.accepted.clone());
        let help = "Connections that got 503 at once, since too many were open";
        registry.register("weir_connections_turned_away", help, own.turned_away.clone());
        let help = "Bytes read from callers' connections, after TLS";
        registry.register("weir_received_bytes", help, own.received_bytes.clone());
        let help = "Bytes written to callers' connections, before TLS";
        registry.register("weir_sent_bytes", help, own.sent_bytes.clone());
        let held = u64::try_from(self.bodies_bytes()).unwrap_or(u64::MAX);
        let help = "Bytes of request bodies held at once";
        amount(registry, "weir_bodies_in_flight_bytes", help, held);
    }
}
