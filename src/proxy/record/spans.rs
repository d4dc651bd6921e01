//! Names and attributes of a request's spans. Everything in them is also in the log or the journal; no
//! content and no credential is.

use http::StatusCode;

use crate::proxy::admit::caller::Caller;
use crate::proxy::plan::Planned;
use crate::proxy::record::outcome::Outcome;
use crate::proxy::traces::Attributes;
use crate::proxy::traces::names::{self, operation, provider};
use crate::proxy::upstreams::Upstream;
use weir_engine::wire::usage::Metered;
use weir_store::ledger::{Attribution, RequestId};

/// Returns the name of a request's own span.
pub(super) fn name(method: &str, route: &str) -> String {
    format!("{method} /v1/{route}")
}

/// Returns the attributes of a request's own span.
pub(super) fn request(
    (method, route): (&str, &'static str),
    status: Option<u16>,
    outcome: Outcome,
    action: Option<&str>,
) -> Attributes {
    let mut attributes = vec![
        (names::METHOD, method.into()),
        (names::ROUTE, format!("/v1/{route}").into()),
        (names::OUTCOME, outcome.name().into()),
    ];
    let status = status.map(|status| (names::STATUS, u64::from(status).into()));
    let action = action.map(|action| (names::ACTION, action.into()));
    attributes.extend(status.into_iter().chain(action));
    if let Outcome::Failed(kind) = outcome {
        attributes.push((names::ERROR_TYPE, kind.word().into()));
    }
    attributes
}

/// Returns the attributes of a plan.
pub(super) fn planned(planned: &Planned) -> Attributes {
    vec![
        (names::RECEIVED_TOKENS, planned.received_tokens.into()),
        (names::SENT_TOKENS, planned.sent_tokens.into()),
        (names::LIMIT_TOKENS, planned.limit_tokens.into()),
        (names::COMPACTIONS, u64::from(planned.compactions).into()),
        (names::COMPACTED, planned.is_compacted_here.into()),
    ]
}

/// Returns the attributes of who sent a request.
pub(super) fn caller(caller: &Caller, attribution: &Attribution) -> Attributes {
    let key = caller.key.as_ref();
    let [conversation, agent, _, class] = attribution.labels();
    let given = [
        (names::KEY, key.map(|key| key.id.as_str())),
        (names::TEAM, key.map(|key| key.team.as_str())),
        (names::CONVERSATION, conversation),
        (names::AGENT, agent),
        (names::CLASS, class),
    ];
    given.into_iter().filter_map(|(name, value)| Some((name, value?.into()))).collect()
}

/// Returns the attributes of a request's account.
pub(super) fn costs(
    id: Option<RequestId>,
    cost_nano_usd: Option<u64>,
    attempts: u64,
) -> Attributes {
    let mut attributes = vec![(names::ATTEMPTS, attempts.into())];
    attributes.extend(id.map(|id| (names::REQUEST_ID, id.to_string().into())));
    let usd = cost_nano_usd.map(|nano_usd| nano_usd as f64 / 1e9);
    attributes.extend(usd.map(|usd| (names::COST_USD, usd.into())));
    attributes
}

/// Returns the name and the attributes of an attempt at `upstream`.
pub(super) fn attempt(
    upstream: &Upstream,
    (route, method): (&'static str, &str),
    model: Option<&str>,
    max_output_tokens: Option<u64>,
) -> (String, Attributes) {
    let base = upstream.client.base();
    let mut attributes = vec![
        (names::METHOD, method.into()),
        (names::SERVER_ADDRESS, base.host().into()),
        (names::SERVER_PORT, u64::from(base.port()).into()),
        (names::UPSTREAM, (&*upstream.name).into()),
    ];
    let Some(operation) = operation(route) else { return (name(method, route), attributes) };
    attributes.push((names::OPERATION, operation.into()));
    attributes.push((names::PROVIDER, provider(base.host(), route).into()));
    let model = model.filter(|model| !model.is_empty());
    attributes.extend(model.map(|model| (names::REQUEST_MODEL, model.into())));
    attributes.extend(max_output_tokens.map(|most| (names::REQUEST_MAX_TOKENS, most.into())));
    let name = match model {
        Some(model) => format!("{operation} {model}"),
        None => operation.to_owned(),
    };
    (name, attributes)
}

/// Returns the attributes of how an attempt came back.
pub(super) fn came_back(outcome: Outcome, status: Option<StatusCode>) -> Attributes {
    let mut attributes = Attributes::new();
    if let Some(status) = status {
        attributes.push((names::STATUS, u64::from(status.as_u16()).into()));
        if !status.is_success() {
            attributes.push((names::ERROR_TYPE, status.as_str().into()));
            return attributes;
        }
    }
    if let Outcome::Failed(_) | Outcome::UpstreamCut | Outcome::IdleTimeout = outcome {
        attributes.push((names::ERROR_TYPE, outcome.name().into()));
    }
    attributes
}

/// Returns the attributes of an answer.
pub(super) fn answer(metered: &Metered) -> Attributes {
    let usage = metered.usage.unwrap_or_default();
    let figures = [
        (names::INPUT_TOKENS, usage.prompt_tokens),
        (names::OUTPUT_TOKENS, usage.completion_tokens),
        (names::CACHE_READ_TOKENS, usage.cached_tokens),
        (names::CACHE_WRITE_TOKENS, usage.cache_write_tokens),
        (names::REASONING_TOKENS, usage.reasoning_tokens),
    ];
    let figures = figures.into_iter().filter_map(|(name, figure)| Some((name, figure?.into())));
    let mut attributes: Attributes = figures.collect();
    attributes.extend(metered.model.as_deref().map(|model| (names::RESPONSE_MODEL, model.into())));
    let reasons = metered.finish_reason.as_deref().map(|reason| vec![reason]);
    attributes.extend(reasons.map(|reasons| (names::FINISH_REASONS, reasons.into())));
    attributes
}
