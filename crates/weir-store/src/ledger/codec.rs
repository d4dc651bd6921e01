//! Codec of an intent's row. Independent of the tables.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::text::{figure, signed_figure};
use super::{Attribution, Caller, Intent, KeyNames, RequestId};
use crate::Tenant;
use crate::wal::record::{self, IntentRecord, Record, SettlementRecord};

/// Content of an intent's column `facts`, as JSON.
#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
struct IntentJson {
    tenant: [u8; 16],
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<KeyJson>,
    route: String,
    model: String,
    upstream: String,
    stream: bool,
    action: String,
    zone: String,
    received_tokens: Option<u64>,
    sent_tokens: Option<u64>,
    max_output_tokens: Option<u64>,
    plan_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    held_nano_usd: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    held_tokens: Option<u64>,
    /// Conversation, agent, parent and class.
    #[serde(skip_serializing_if = "is_unlabelled")]
    labels: [Option<String>; 4],
}

fn is_unlabelled(labels: &[Option<String>; 4]) -> bool {
    labels.iter().all(Option::is_none)
}

#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
struct KeyJson {
    key: String,
    team: String,
    organisation: String,
    user: String,
}

/// Returns the figures of a request's row, in column order: tokens received and sent, reported
/// usage, and money.
pub(crate) fn figures(
    intent: &IntentRecord<'_>,
    settlement: &SettlementRecord<'_>,
) -> [Option<i64>; 9] {
    let figure = |number: Option<u64>| number.map(stored_ms);
    [
        figure(intent.received_tokens),
        figure(intent.sent_tokens),
        figure(settlement.prompt_tokens),
        figure(settlement.completion_tokens),
        figure(settlement.cached_tokens),
        figure(settlement.cache_write_tokens),
        figure(settlement.reasoning_tokens),
        figure(settlement.cost_nano_usd),
        signed_figure(settlement.saved_nano_usd),
    ]
}

/// Returns the start time and the JSON facts of the request that this record opened. For an
/// unreadable record, derives the time from the id.
pub(crate) fn from_record(id: RequestId, content: &[u8]) -> (i64, String) {
    let (begun_ms, json) = match record::decode(content) {
        Some(Record::Opened(intent)) => (intent.begun_ms, IntentJson::new(&intent)),
        _ => (id.begun_ms(), IntentJson::default()),
    };
    // Texts, numbers and flags always serialize.
    (stored_ms(begun_ms), serde_json::to_string(&json).unwrap_or_default())
}

impl IntentJson {
    fn new(intent: &IntentRecord<'_>) -> Self {
        Self {
            tenant: intent.tenant,
            key: intent.key.map(|names| {
                let [key, team, organisation, user] = names.map(str::to_owned);
                KeyJson { key, team, organisation, user }
            }),
            route: intent.route.to_owned(),
            model: intent.model.to_owned(),
            upstream: intent.upstream.to_owned(),
            stream: intent.stream,
            action: intent.action.to_owned(),
            zone: intent.zone.to_owned(),
            received_tokens: intent.received_tokens,
            sent_tokens: intent.sent_tokens,
            max_output_tokens: intent.max_output_tokens,
            plan_ms: intent.plan_ms,
            held_nano_usd: intent.held_nano_usd,
            held_tokens: intent.held_tokens,
            labels: intent.labels.map(|label| label.map(str::to_owned)),
        }
    }
}

/// Converts a time to its stored form.
pub(crate) fn stored_ms(moment_ms: u64) -> i64 {
    figure(Some(moment_ms)).unwrap_or(0)
}

/// Reads the intent of a row. An unreadable one is settled anyway, so that it does not block
/// others.
pub(crate) fn intent(id: [u8; 16], begun_ms: i64, json: &[u8]) -> Intent {
    let intent: IntentJson = serde_json::from_slice(json).unwrap_or_default();
    let key = intent.key.map(|names| {
        let KeyJson { key, team, organisation, user } = names;
        Arc::new(KeyNames { key, team, organisation, user })
    });
    Intent {
        id: RequestId(id),
        begun_ms: u64::try_from(begun_ms).unwrap_or(0),
        caller: Caller { tenant: Tenant(intent.tenant), key },
        route: intent.route,
        model: intent.model,
        upstream: intent.upstream,
        stream: intent.stream,
        action: intent.action,
        zone: intent.zone,
        attribution: Attribution::from_labels(intent.labels),
        received_tokens: intent.received_tokens,
        sent_tokens: intent.sent_tokens,
        max_output_tokens: intent.max_output_tokens,
        plan_ms: intent.plan_ms,
        held_nano_usd: intent.held_nano_usd,
        held_tokens: intent.held_tokens,
    }
}
