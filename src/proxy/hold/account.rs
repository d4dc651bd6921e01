//! Contents of a journal entry: before the request is sent, and how it ended. Decides nothing and
//! writes nothing.

use std::sync::Arc;

use http::Method;

use crate::proxy::admit::caller::Caller;
use crate::proxy::hold::budgets::Party;
use crate::proxy::logged::logged;
use crate::proxy::plan::{Planned, UNREAD};
use crate::upstream::{Endpoint, Outbound, Target};
use weir_engine::wire::allowance::Allowance;
use weir_engine::wire::usage::{Metered, Usage};
use weir_store::budget::Compaction;
use weir_store::ledger::{self, Attribution, KeyNames};

/// Upstream of the requests that weir answers itself. They cost nothing.
pub const OWN_ANSWER: &str = "weir";

/// Maximum plausible tokens in one report: many times the maximum of any model.
const MAX_BELIEVED_TOKENS: u64 = 100_000_000;

/// Contents of a journal entry before the request is sent.
pub struct JournalEntry {
    pub caller: ledger::Caller,
    pub route: String,
    pub model: String,
    /// Name of its upstream, if not that of conversations.
    pub upstream: Option<String>,
    pub stream: bool,
    pub action: String,
    pub zone: &'static str,
    pub attribution: Arc<Attribution>,
    pub compaction: Option<Compaction>,
    /// Prompt by weir's count, or by the size of a body that it does not read.
    pub counted_tokens: Option<u64>,
    pub max_output_tokens: Option<u64>,
    pub plan_ms: u64,
    /// Whether the route is billed. Others are kept only if they report usage.
    pub is_billed: bool,
}

/// What a request asks for that changes its price. A provider may not report it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Terms {
    has_long_writes: bool,
    service_tier: Option<String>,
    is_fast: bool,
    region: Option<String>,
    /// Whether it may search the web.
    pub may_search: bool,
}

impl Terms {
    /// Returns what an allowance asks for beyond the standard; `None` if that is nothing.
    pub fn of(allowance: &Allowance) -> Option<Self> {
        let own = allowance.service_tier.as_deref();
        // Of two different ones the provider may read either.
        let service_tier = own.map(|own| if own.is_empty() { "priority" } else { own });
        let is_standard = |own: &&str| ["auto", "default", "standard_only"].contains(own);
        let region = allowance.region.as_deref().filter(|own| !own.eq_ignore_ascii_case("global"));
        let terms = Self {
            has_long_writes: allowance.has_long_writes,
            service_tier: service_tier.filter(|own| !is_standard(own)).map(str::to_owned),
            is_fast: allowance.is_fast,
            region: region.map(str::to_owned),
            may_search: allowance.searches > 0,
        };
        (terms != Self::default()).then_some(terms)
    }

    /// Returns the usage with writes for an hour, if it does not say for how long they were.
    pub fn written(&self, usage: Usage) -> Usage {
        let all = usage.cache_write_tokens.filter(|_| self.has_long_writes);
        Usage { cache_write_1h_tokens: usage.cache_write_1h_tokens.or(all), ..usage }
    }

    /// Returns the facts of an answer with all that they leave open as it was wanted.
    pub fn completed(&self, metered: &Metered) -> Metered {
        let mut metered = metered.clone();
        metered.service_tier = metered.service_tier.or_else(|| self.service_tier.clone());
        metered.speed = metered.speed.or_else(|| self.is_fast.then(|| "fast".to_owned()));
        metered.region = metered.region.or_else(|| self.region.clone());
        metered.apart.iter_mut().for_each(|inner| inner.usage = self.written(inner.usage));
        metered
    }
}

/// How much was seen of a request's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The upstream received none of it.
    NotSent,
    /// The upstream refused it, with any status.
    Refused,
    /// The whole answer arrived.
    Seen,
    /// It was sent, and it is unknown whether the provider bills more.
    Unseen,
}

/// How a request ended.
pub struct Ended {
    pub end: End,
    /// Name of the outcome.
    pub outcome: &'static str,
    /// Status of the answer.
    pub status: Option<u16>,
    /// Facts from the answer.
    pub metered: Metered,
    pub first_byte_ms: Option<u64>,
    pub total_ms: Option<u64>,
    /// Whether another attempt follows for the same request of the caller.
    pub is_replaced: bool,
}

impl Ended {
    /// Whether the whole answer came, and was none of a failure.
    pub fn is_seen_success(&self) -> bool {
        let is_success = self.status.is_some_and(|status| (200..300).contains(&status));
        is_success && self.end == End::Seen && self.metered.done
    }

    /// Describes a request whose process ended before it did.
    pub fn killed() -> Self {
        Self {
            end: End::Unseen,
            outcome: "killed",
            status: None,
            metered: Metered::default(),
            first_byte_ms: None,
            total_ms: None,
            is_replaced: false,
        }
    }
}

impl JournalEntry {
    /// Returns the caller and the origin of the request.
    pub fn party(&self) -> Party<'_> {
        (&self.caller, &self.attribution)
    }

    /// Describes a conversation that is sent as `planned`.
    pub fn planned(
        caller: ledger::Caller,
        target: &Target,
        planned: &Planned,
        attribution: Arc<Attribution>,
        plan_ms: u64,
    ) -> Self {
        Self {
            caller,
            route: route(target),
            model: planned.model.clone(),
            upstream: planned.upstream.as_deref().map(str::to_owned),
            stream: planned.stream,
            action: planned.action.clone(),
            zone: planned.zone.word(),
            attribution,
            compaction: Some(planned.compaction),
            counted_tokens: Some(planned.compaction.sent_tokens),
            max_output_tokens: planned.max_output_tokens,
            plan_ms,
            is_billed: true,
        }
    }

    /// Describes a request that is forwarded unread; `None` if such a request uses nothing.
    ///
    /// `model` is the name in its body, empty if that was not read: then the answer names it.
    pub fn passed(
        caller: &Caller,
        outbound: &Outbound,
        model: String,
        attribution: Arc<Attribution>,
        plan_ms: u64,
    ) -> Option<Self> {
        let is_read = [Method::GET, Method::HEAD, Method::DELETE, Method::OPTIONS];
        (!is_read.contains(&outbound.method)).then(|| Self {
            caller: account(caller),
            route: route(&outbound.target),
            model,
            upstream: None,
            stream: false,
            action: match outbound.target.endpoint() {
                Endpoint::Route(route) if route.is_unread_conversation() => UNREAD,
                _ => "stream",
            }
            .to_owned(),
            zone: "",
            attribution,
            compaction: None,
            counted_tokens: None,
            max_output_tokens: None,
            plan_ms,
            is_billed: matches!(outbound.target.endpoint(), Endpoint::Route(_)),
        })
    }
}

/// Drops figures that no request can have used: a typing error must not become a bill.
pub fn believed(reported: Usage) -> Usage {
    let believed = |tokens: Option<u64>| tokens.filter(|tokens| *tokens <= MAX_BELIEVED_TOKENS);
    Usage {
        prompt_tokens: believed(reported.prompt_tokens),
        completion_tokens: believed(reported.completion_tokens),
        cached_tokens: believed(reported.cached_tokens),
        cache_write_tokens: believed(reported.cache_write_tokens),
        reasoning_tokens: believed(reported.reasoning_tokens),
        audio_input_tokens: believed(reported.audio_input_tokens),
        audio_output_tokens: believed(reported.audio_output_tokens),
        image_input_tokens: believed(reported.image_input_tokens),
        image_output_tokens: believed(reported.image_output_tokens),
        cache_write_1h_tokens: believed(reported.cache_write_1h_tokens),
        web_searches: believed(reported.web_searches),
        tool_calls: believed(reported.tool_calls),
        ..reported
    }
}

/// Returns the identity that a request is counted for.
pub(crate) fn account(caller: &Caller) -> ledger::Caller {
    let key = caller.key.as_ref().map(|key| {
        Arc::new(KeyNames {
            key: key.id.clone(),
            team: key.team.clone(),
            organisation: key.organisation.clone(),
            user: key.user.clone(),
        })
    });
    ledger::Caller { tenant: caller.tenant, key }
}

/// Formats a path's endpoint for display.
fn route(target: &Target) -> String {
    match target.endpoint() {
        Endpoint::Route(route) => route.name().to_owned(),
        _ => logged(target.path().trim_start_matches('/')),
    }
}
