//! What the row of an intent holds, and the intent that it is read as. Knows no table.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::frame::{self, Ending, Facts, Said};
use super::text::{figure, signed_figure};
use super::{Caller, Intent, KeyNames, RequestId, Tenant};

/// What an intent's column `facts` holds, as JSON.
#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
struct Told {
    tenant: [u8; 16],
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<KeyFacts>,
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
}

#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
struct KeyFacts {
    key: String,
    team: String,
    organisation: String,
    user: String,
}

/// The figures of a request's row, in the order of its columns: tokens received and sent, what was
/// reported, and money.
pub fn figures(facts: &Facts<'_>, ending: &Ending<'_>) -> [Option<i64>; 9] {
    let figure = |number: Option<u64>| number.map(moment);
    [
        figure(facts.received_tokens),
        figure(facts.sent_tokens),
        figure(ending.prompt_tokens),
        figure(ending.completion_tokens),
        figure(ending.cached_tokens),
        figure(ending.cache_write_tokens),
        figure(ending.reasoning_tokens),
        figure(ending.cost_nano_usd),
        signed_figure(ending.saved_nano_usd),
    ]
}

/// When the request that the frame with this content has opened began, and its facts as JSON. Of one
/// that cannot be read there is the id.
pub fn of_frame(id: RequestId, content: &[u8]) -> (i64, String) {
    let (begun_ms, told) = match frame::read(content) {
        Some(Said::Opened(facts)) => (facts.begun_ms, Told::new(&facts)),
        _ => (id.begun_ms(), Told::default()),
    };
    // Texts, numbers and flags: there is nothing that JSON could not hold.
    (moment(begun_ms), serde_json::to_string(&told).unwrap_or_default())
}

impl Told {
    fn new(facts: &Facts<'_>) -> Self {
        Self {
            tenant: facts.tenant,
            key: facts.key.map(|names| {
                let [key, team, organisation, user] = names.map(str::to_owned);
                KeyFacts { key, team, organisation, user }
            }),
            route: facts.route.to_owned(),
            model: facts.model.to_owned(),
            upstream: facts.upstream.to_owned(),
            stream: facts.stream,
            action: facts.action.to_owned(),
            zone: facts.zone.to_owned(),
            received_tokens: facts.received_tokens,
            sent_tokens: facts.sent_tokens,
            max_output_tokens: facts.max_output_tokens,
            plan_ms: facts.plan_ms,
            held_nano_usd: facts.held_nano_usd,
            held_tokens: facts.held_tokens,
        }
    }
}

/// A moment as it is stored.
pub fn moment(moment_ms: u64) -> i64 {
    figure(Some(moment_ms)).unwrap_or(0)
}

/// The intent that a row holds. One that cannot be read is settled all the same, so that it does
/// not stand in the way of others.
pub fn intent(id: [u8; 16], begun_ms: i64, facts: &[u8]) -> Intent {
    let facts: Told = serde_json::from_slice(facts).unwrap_or_default();
    let key = facts.key.map(|names| {
        let KeyFacts { key, team, organisation, user } = names;
        Arc::new(KeyNames { key, team, organisation, user })
    });
    Intent {
        id: RequestId(id),
        begun_ms: u64::try_from(begun_ms).unwrap_or(0),
        caller: Caller { tenant: Tenant(facts.tenant), key },
        route: facts.route,
        model: facts.model,
        upstream: facts.upstream,
        stream: facts.stream,
        action: facts.action,
        zone: facts.zone,
        received_tokens: facts.received_tokens,
        sent_tokens: facts.sent_tokens,
        max_output_tokens: facts.max_output_tokens,
        plan_ms: facts.plan_ms,
        held_nano_usd: facts.held_nano_usd,
        held_tokens: facts.held_tokens,
    }
}
