//! Inputs of a plan that follow from configuration, headers and body. Nothing here looks anything up or
//! counts.

use std::borrow::Cow;

use memchr::memmem;

use crate::config::{self, Config, Priced};
use crate::proxy::admit::class::RequestClass;
use crate::proxy::admit::request::AskedCompaction;
use crate::proxy::plan::planned::Job;
use crate::proxy::plan::shared::Shared;
use crate::proxy::summaries::WaitMode;
use crate::proxy::upstreams::routes::Route;
use weir_engine::compact::policy::{Counting, Goal, USUAL_CACHED_PERMILLE};
use weir_engine::compact::{Limits, Policy, PrefetchSettings};
use weir_engine::plan::Mode;
use weir_engine::tokens::{Digits, Encoding};
use weir_engine::wire::messages::{binds_thinking, strips_thinking};
use weir_engine::wire::{Protocol, Request, agents, json};
use weir_store::budget::Kind;

/// Selects the encoding to count with: an estimate if the policy asks for one, else the configured or
/// the `learned` ratio, else the model's `own`. Says also whether answers correct the ratio.
pub(super) fn encoding(
    own: Encoding,
    is_estimated: bool,
    configured_permille: Option<u32>,
    learned: impl FnOnce() -> Option<(u32, Digits)>,
) -> (Encoding, bool) {
    let is_calibrated = own == Encoding::Estimate && configured_permille.is_none() && !is_estimated;
    let ratio = configured_permille.map(|permille| (permille, Digits::Apart));
    let encoding = match ratio.or_else(|| is_calibrated.then(learned).flatten()) {
        _ if is_estimated => Encoding::Estimate,
        Some((permille, digits)) => Encoding::Scaled { permille, digits },
        None => own,
    };
    (encoding, is_calibrated)
}

/// Limits of a model, with none of the operator's or the caller's.
pub(super) fn of_model(entry: &config::ModelEntry, counting: Counting) -> Limits {
    Limits {
        window_tokens: entry.window_tokens,
        max_input_tokens: entry.max_input_tokens,
        max_output_tokens: entry.max_output_tokens,
        operator_tokens: None,
        header_tokens: None,
        asked_output_tokens: None,
        counting,
    }
}

/// Returns the name of the policy of a request: its own, that of its route or model, or the default.
pub(in crate::proxy::plan) fn policy_name<'s>(
    config: &'s Config,
    job: &'s Job,
    route: &'s Route,
    settings: &'s config::ModelSettings,
) -> &'s str {
    let by_model = route.row.policy.as_deref().or(settings.policy.as_deref());
    job.options.policy.as_deref().or(by_model).unwrap_or(&config.context.default_policy)
}

/// Handling of a request's conversation.
pub(super) fn mode(job: &Job, request: &Request<'_>, configured: config::Mode) -> Mode {
    match configured {
        // The provider holds the conversation, so there is nothing to compact.
        _ if job.options.bypass || request.provider_state.is_some() => Mode::Bypass,
        config::Mode::Observe => Mode::Observe,
        config::Mode::Compact => Mode::Compact,
    }
}

/// Adapts the policy to the model and to what the caller asks for.
pub(super) fn adapt(
    policy: &mut Policy,
    job: &Job,
    request: &Request<'_>,
    (route, model): (&Route, &str),
) {
    policy.is_thinking_bound = binds(job, request, route, model);
    // A caller may ask for all thinking to stay.
    let asks = |raw: &str| raw.contains("\"clear_thinking_");
    policy.strips_thinking = request.protocol == Protocol::Messages
        && strips_thinking(model)
        && !json::member(request.text, "context_management").is_some_and(asks);
    if let Some(AskedCompaction::Above(Some(tokens))) = job.asked.compaction {
        policy.zones.goal = Goal::Tokens(match policy.zones.goal {
            Goal::Tokens(own) => own.min(tokens),
            Goal::Limit | Goal::Step(_) | Goal::Economic(_) | Goal::Cold(_) => tokens,
        });
    }
    policy.clearing.clone_from(&job.asked.clearing);
}

/// Adapts the policy to the prices of `route` or `model`, as far as they are known.
pub(super) fn adapt_to_price(policy: &mut Policy, config: &Config, route: &Route, model: &str) {
    let price = route.row.price.as_ref().or(match config.price(model) {
        Priced::Known(price) | Priced::Default(price) => Some(price),
        Priced::Unpriced | Priced::Refused => None,
    });
    policy.cached_permille = USUAL_CACHED_PERMILLE;
    if let Some(price) = price {
        let [read, write] =
            [Kind::CachedInput, Kind::CacheWrite].map(|kind| price.permille_of_input(kind));
        policy.cached_permille = read.unwrap_or(USUAL_CACHED_PERMILLE);
        policy.zones.goal = policy.zones.goal.priced([read, write], price.step_tokens());
    } else if policy.zones.goal.is_by_price() {
        // Without a price nobody knows what is cheapest.
        policy.zones.goal = Goal::Limit;
    }
}

/// Whether the caller asks for a shorter conversation that weir sees.
pub(super) fn shortens(job: &Job, request: &Request<'_>) -> bool {
    let is_now = job.asked.compaction.is_some_and(|own| !matches!(own, AskedCompaction::Above(_)));
    is_now && request.provider_state.is_none()
}

/// Whether the model refuses thinking that follows other messages than it was written after. In chat
/// completions the request must have some.
pub(super) fn binds(job: &Job, request: &Request<'_>, route: &Route, model: &str) -> bool {
    let is_known = || {
        binds_thinking(model)
            || job.options.is_thinking_refused
            || route.knowledge.bound_thinking.has(job.tenant, model)
    };
    let has = |name: &str| memmem::find(request.text.as_bytes(), name.as_bytes()).is_some();
    match request.protocol {
        Protocol::Messages => is_known(),
        Protocol::Chat => is_known() && (has("reasoning_details") || has("thinking_blocks")),
        Protocol::Responses => false,
    }
}

/// Class of a request, by its client's headers or by the prompt of an agent.
pub(super) fn class(job: &Job, request: &Request<'_>) -> Option<RequestClass> {
    let is_compaction = || agents::is_compaction(request);
    match job.options.class {
        Some(class @ (RequestClass::Compaction | RequestClass::Auxiliary)) => Some(class),
        stated => is_compaction().then_some(RequestClass::Compaction).or(stated),
    }
}

/// Lowest of the operator's limits for a request. An alias does not bypass one, whether it is set for
/// the one name or the other.
pub(super) fn operator_tokens(
    config: &Config,
    job: &Job,
    route: &Route,
    model: &str,
) -> Option<u64> {
    let by_name = [Some(model), job.alias_of.as_deref()].into_iter().flatten();
    let by_name = by_name.filter_map(|name| config.configured_limit_tokens(name));
    by_name.chain(route.row.max_input_tokens).min()
}

/// Halves the limit of a caller whose budgets are nearly spent.
pub(super) fn tighten(job: &Job, limits: &mut Limits) {
    if job.options.is_tight {
        limits.operator_tokens = Some(limits.input_tokens() / 2);
    }
}

/// Whether nobody set the limit of the model, known as `name`, and the upstream has not refused the request.
pub(super) fn provider_decides(
    config: &Config,
    job: &Job,
    limits: &Limits,
    name: Option<&str>,
) -> bool {
    limits.operator_tokens.or(limits.header_tokens).is_none()
        && name.is_none_or(|name| !config.models.is_own(name))
        && job.options.learned.is_none()
}

/// Highest output limit to send: what the budgets have room for, and the most of a model that the caller
/// did not name. A limit chosen for another model is refused by a model that writes less.
pub(super) fn most_output_tokens(
    job: &Job,
    request: &Request<'_>,
    of_model: Option<u64>,
) -> Option<u64> {
    let of_model = of_model.filter(|most| {
        job.alias_of.is_some() && request.max_output_tokens.is_some_and(|asked| asked > *most)
    });
    job.options.max_output_tokens.into_iter().chain(of_model).min()
}

/// Whether a stream is asked for its usage.
pub(super) fn asks_usage(job: &Job, route: &Route, model: &str) -> bool {
    !job.options.is_usage_refused && route.knowledge.usage_refusals.may_request(model)
}

/// Settings for summaries that a request asks for ahead. A side request is no reason to summarise the
/// conversation that it branches off.
pub(super) fn prefetch(
    shared: &Shared,
    job: &Job,
    class: Option<RequestClass>,
) -> Option<PrefetchSettings> {
    let is_asked = job.wait_mode != WaitMode::LookOnly && !is_side(class);
    shared.summaries.as_ref().filter(|_| is_asked)?.prefetch_settings()
}

/// Whether the conversation does not continue after a request of this class.
pub(super) fn is_side(class: Option<RequestClass>) -> bool {
    matches!(class, Some(RequestClass::Compaction | RequestClass::Auxiliary))
}

/// Whether a body has no list of messages, so that its prompt is elsewhere.
pub(super) fn has_no_list(request: &Request<'_>) -> bool {
    let list = if request.protocol == Protocol::Responses { "input" } else { "messages" };
    request.messages.is_empty() && json::member(request.text, list).is_none()
}

/// Model that the path or the body names; empty if neither does.
pub(super) fn requested_model<'a>(job: &'a Job, request: &Request<'a>) -> Cow<'a, str> {
    match &job.path_model {
        Some(model) => Cow::Borrowed(model.as_str()),
        None => request.model.clone().unwrap_or(Cow::Borrowed("")),
    }
}
