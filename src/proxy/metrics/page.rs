//! Metrics page: the counters, and the current state of budgets and the store. Counts nothing
//! itself.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use super::{Metrics, OfRoute};
use crate::proxy::hold::budgets::Budgets;
use crate::proxy::hold::journal::Journal;
use crate::proxy::summaries::Summaries;
use weir_store::budget::Measure;
use weir_store::counters::BudgetStatus;
use weir_store::{Activity, State, Store};

/// Media type of the page.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Maximum number of budgets listed.
const MAX_BUDGETS: usize = 100;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfBudget {
    budget: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfState {
    state: &'static str,
}

impl Metrics {
    fn register(&self, registry: &mut Registry) {
        let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("weir_build", "The version that runs", version);
        registry.register(
            "weir_requests",
            "Requests by route, model, outcome and class of the caller's status",
            self.requests.clone(),
        );
        registry.register(
            "weir_requests_in_flight",
            "Requests whose answers have not ended",
            self.in_flight.clone(),
        );
        registry.register(
            "weir_errors",
            "Requests that ended in an error of weir's own, by its code",
            self.errors.clone(),
        );
        registry.register(
            "weir_actions",
            "Requests by the action on their conversation, in the words of x-weir-action",
            self.actions.clone(),
        );
        registry.register(
            "weir_compactions",
            "Compactions that an upstream accepted, each counted once, by their steps",
            self.compactions.clone(),
        );
        registry.register(
            "weir_resends",
            "Requests sent again after an overflow refusal or a transient failure",
            self.resends.clone(),
        );
        registry.register(
            "weir_tokens",
            "Tokens by model and kind, as providers report them or as settled by rule",
            self.tokens.clone(),
        );
        registry.register(
            "weir_conversation_tokens",
            "Prompt tokens of conversations as received and as sent, by weir's count",
            self.conversation_tokens.clone(),
        );
        registry.register("weir_cost_usd", "Cost in dollars", self.cost_usd.clone());
        registry.register(
            "weir_saved_usd",
            "Dollars that compaction saved since the start; negative if it cost more",
            self.saved_usd.clone(),
        );
        self.register_times(registry);
    }

    fn register_times(&self, registry: &mut Registry) {
        let mut add = |name: &str, help: &str, metric: Family<OfRoute, Histogram, _>| {
            registry.register_with_unit(name, help, Unit::Seconds, metric);
        };
        add(
            "weir_request_duration",
            "From a request to the end of its answer",
            self.durations.clone(),
        );
        add(
            "weir_first_byte_duration",
            "From sending a request to the head of the upstream's answer",
            self.first_bytes.clone(),
        );
        registry.register_with_unit(
            "weir_plan_duration",
            "From a conversation to its plan",
            Unit::Seconds,
            self.plans.clone(),
        );
        registry.register_with_unit(
            "weir_queue_duration",
            "Waits for a core to plan on and for budgets",
            Unit::Seconds,
            self.queues.clone(),
        );
    }
}

/// Renders all metrics in the OpenMetrics text format. Lists budgets by name: it is for
/// operators.
pub async fn render(
    journal: &Journal,
    store: &Store,
    summaries: Option<&Arc<Summaries>>,
) -> String {
    let mut registry = Registry::default();
    journal.metrics().register(&mut registry);
    register_budgets(journal.budgets(), &mut registry).await;
    register_store(&mut registry, store.state(), store.activity());
    for (name, figure) in summaries.iter().flat_map(|summaries| summaries.figures()) {
        let counter: Counter = Counter::default();
        counter.inc_by(figure);
        let help = format!("Summaries: {}", name.replace('_', " "));
        registry.register(format!("weir_summaries_{name}"), help, counter);
    }
    let mut page = String::new();
    // Writing to a string does not fail.
    let _ = encode(&mut page, &registry);
    page
}

async fn register_budgets(budgets: &Budgets, registry: &mut Registry) {
    let Ok((statuses, omitted)) = budgets.all_statuses(MAX_BUDGETS).await else {
        return;
    };
    let gauges = || -> [Family<OfBudget, Gauge<f64, AtomicU64>>; 3] { Default::default() };
    let (usd, tokens) = (gauges(), gauges());
    for status in &statuses {
        let (gauges, unit) = match status.budget.id.measure {
            Measure::NanoUsd => (&usd, 1e9),
            Measure::Tokens => (&tokens, 1.0),
        };
        let labels = OfBudget { budget: status.name() };
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
    let missing: Gauge = Gauge::default();
    missing.set(i64::try_from(omitted).unwrap_or(i64::MAX));
    registry.register("weir_budgets_omitted", "Budgets that are not listed here", missing);
}

/// Returns limit, spent and held amounts. A budget that applies to each
/// member separately has only a limit.
fn amounts(status: &BudgetStatus) -> [Option<u64>; 3] {
    let is_one = !status.scope.is_each();
    let of_one = |amount: u64| is_one.then_some(amount);
    [Some(status.budget.limit), of_one(status.count.spent), of_one(status.count.held)]
}

fn register_store(registry: &mut Registry, state: State, activity: Activity) {
    let states: Family<OfState, Gauge> = Family::default();
    for (name, own) in [
        ("file", State::File),
        ("server", State::Server),
        ("memory", State::Memory),
        ("failing", State::Failing),
    ] {
        states.get_or_create(&OfState { state: name }).set(i64::from(own == state));
    }
    registry.register("weir_store_state", "1 for the state that the store is in", states);
    let counters = [
        ("weir_store_writes", "Writes to the store that succeeded", activity.writes),
        ("weir_store_failed_writes", "Writes to the store that failed", activity.failed_writes),
    ];
    for (name, help, count) in counters {
        let counter: Counter = Counter::default();
        counter.inc_by(count);
        registry.register(name, help, counter);
    }
    let gauges = [
        ("weir_store_queue_length", "Pieces of work that wait to be written", activity.queued),
        (
            "weir_store_log_bytes",
            "Bytes of the log of requests that wait to be moved into the tables",
            activity.log_bytes,
        ),
    ];
    for (name, help, amount) in gauges {
        let gauge: Gauge = Gauge::default();
        gauge.set(i64::try_from(amount).unwrap_or(i64::MAX));
        registry.register(name, help, gauge);
    }
}
