//! Codec of a request's rows: an intent as JSON, and the values of an ended request. Independent of the
//! tables.

use std::sync::Arc;

use super::text::{figure, signed_figure};
use super::{Attribution, Caller, Intent, KeyNames, RequestId};
use crate::Tenant;
use crate::sql::SqlValue;
use crate::wal::record::{self, IntentFacts, IntentRecord, Record, SettlementRecord};

/// Returns the row of an ended request, in the order of [`REQUEST_COLUMNS`](super::query::REQUEST_COLUMNS).
pub(crate) fn request_values<'a>(
    intent: &'a IntentRecord<'_>,
    settlement: &'a SettlementRecord<'_>,
) -> [SqlValue<'a>; 34] {
    let count = |number: Option<u64>| SqlValue::from(figure(number));
    let key = intent.key.as_ref();
    let name = |name: fn(&KeyNames<&'a str>) -> &'a str| SqlValue::from(key.map(name));
    let [conversation, agent, parent, class] = intent.labels.map(SqlValue::from);
    [
        intent.id.0[..].into(),
        stored_ms(intent.begun_ms).into(),
        intent.tenant[..].into(),
        name(|key| key.key),
        name(|key| key.team),
        name(|key| key.organisation),
        name(|key| key.user),
        intent.route.into(),
        intent.model.into(),
        intent.upstream.into(),
        intent.stream.into(),
        settlement.status.map(u64::from).into(),
        settlement.outcome.into(),
        intent.action.into(),
        intent.zone.into(),
        count(intent.received_tokens),
        count(intent.sent_tokens),
        count(settlement.prompt_tokens),
        count(settlement.completion_tokens),
        count(settlement.cached_tokens),
        count(settlement.cache_write_tokens),
        count(settlement.reasoning_tokens),
        count(settlement.cost_nano_usd),
        signed_figure(settlement.saved_nano_usd).into(),
        i64::from(settlement.flags.0).into(),
        count(intent.plan_ms),
        count(settlement.first_byte_ms),
        count(settlement.total_ms),
        conversation,
        agent,
        parent,
        class,
        signed_figure(settlement.planned_saved_nano_usd).into(),
        intent.tag.into(),
    ]
}

/// Returns the start time and the JSON facts of the request that this record opened. For an
/// unreadable record, derives the time from the id.
pub(crate) fn from_record(id: RequestId, content: &[u8]) -> (i64, String) {
    let (begun_ms, facts) = match record::decode(content) {
        Some(Record::Opened(intent)) => (intent.begun_ms, intent),
        _ => (id.begun_ms(), IntentRecord::default()),
    };
    // Texts, numbers and flags always serialize.
    (stored_ms(begun_ms), serde_json::to_string(&facts).unwrap_or_default())
}

/// Converts a time to its stored form.
pub(crate) fn stored_ms(moment_ms: u64) -> i64 {
    figure(Some(moment_ms)).unwrap_or(0)
}

/// Reads the intent of a row. An unreadable one is settled anyway, so that it does not block
/// others.
pub(crate) fn intent(id: [u8; 16], begun_ms: i64, json: &[u8]) -> Intent {
    let facts: IntentFacts<String> = serde_json::from_slice(json).unwrap_or_default();
    Intent {
        id: RequestId(id),
        begun_ms: u64::try_from(begun_ms).unwrap_or(0),
        caller: Caller { tenant: Tenant(facts.tenant), key: facts.key.map(Arc::new) },
        route: facts.route,
        model: facts.model,
        upstream: facts.upstream,
        stream: facts.stream,
        action: facts.action,
        zone: facts.zone,
        attribution: Attribution::from_labels(facts.labels, facts.tag),
        received_tokens: facts.received_tokens,
        sent_tokens: facts.sent_tokens,
        max_output_tokens: facts.max_output_tokens,
        plan_ms: facts.plan_ms,
        held_nano_usd: facts.held_nano_usd,
        held_tokens: facts.held_tokens,
    }
}
