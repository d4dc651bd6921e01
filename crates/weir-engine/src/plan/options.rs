//! Options of a plan: everything besides the request that decides what is sent.

use std::sync::Arc;

use super::Decisions;
use crate::compact::{LearnedLimits, Limits, Measure, Policy, PrefetchSettings, Profile};
use crate::tokens::media::ImageRule;
use crate::tokens::{Encoding, REPLY_PRIMING};
use crate::wire::{Protocol, Request};

/// Handling of a conversation above its mark.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// Compacts it below the limit.
    #[default]
    Compact,
    /// Plans and reports, but sends it unchanged.
    Observe,
    /// Sends it unchanged, within limits that the operator or the caller has set.
    Bypass,
}

/// Options of a plan. The same request and options give the same plan on every machine.
#[derive(Debug, Clone)]
pub struct PlanOptions {
    /// Model that the request is sent to. Decides which member limits the output.
    pub model: String,
    /// Limits of the model and the caller, in tokens. The request's own output limit and the
    /// policy's counting replace those given here, the latter unless decisions are kept.
    pub limits: Limits,
    pub policy: Policy,
    /// How tokens are counted.
    pub measure: Measure,
    pub mode: Mode,
    /// Whether the conversation is compacted at its end, however small it is: the caller asks for a
    /// shorter one ([`Plan::shortened`](super::Plan::shortened)). No body is written then.
    pub shortens: bool,
    /// Whether a system message after other messages becomes a user's.
    pub late_system_as_user: bool,
    /// Whether all thinking so far is left out, after the provider refused some of it.
    pub drops_thinking: bool,
    /// Whether the conversation is sent whole if it fits its limit, even above the policy's marks:
    /// the agent is about to compact it by itself. Kept decisions still hold.
    pub passes_whole: bool,
    /// Decisions that earlier requests of the conversation were sent by
    /// ([`keep`](Self::keep)); `None` if it has none yet.
    pub kept: Option<Arc<Decisions>>,
    /// Whether the provider accepts breakpoints of its prompt cache (`cache_control`).
    pub cache_control: bool,
    /// Limits learned from the upstream's refusals. They lower the request's output limit if the
    /// upstream counts it against the window.
    pub learned: LearnedLimits,
    /// Maximum output tokens of each answer that budgets have room for.
    pub max_output_tokens: Option<u64>,
    /// Whether a stream that does not report its usage is asked to.
    pub asks_usage: bool,
    /// Settings for summaries that are requested ahead of a compaction; `None` if none are.
    pub prefetch: Option<PrefetchSettings>,
    /// Whether the provider decides about a request that only an estimate puts above the limit, that of
    /// tools or a ratio between its counts and weir's: nobody set the limit, and the provider has not
    /// refused this request.
    pub provider_decides: bool,
    /// Whether the limit is for the messages alone.
    pub is_for_messages: bool,
    /// Whether the conversation is compacted at its end once half the way to the next compaction is done, since
    /// the provider's cache has dropped what was sent before.
    pub compacts_early: bool,
    /// Whether the plan has a body. A replay reads its changes alone.
    pub writes_body: bool,
}

impl PlanOptions {
    /// Creates the options for a model with a context window of `window_tokens`, input and output
    /// together, under the default policy.
    pub fn new(model: &str, encoding: Encoding, window_tokens: u64) -> Self {
        let (policy, images) = (Policy::default(), ImageRule::of_model(model));
        let limits = Limits {
            window_tokens,
            max_input_tokens: None,
            max_output_tokens: None,
            operator_tokens: None,
            header_tokens: None,
            asked_output_tokens: None,
            counting: policy.counting,
        };
        Self {
            model: model.to_owned(),
            limits,
            policy,
            measure: Measure { encoding, images },
            mode: Mode::Compact,
            shortens: false,
            late_system_as_user: false,
            drops_thinking: false,
            passes_whole: false,
            kept: None,
            cache_control: false,
            learned: LearnedLimits::default(),
            max_output_tokens: None,
            asks_usage: false,
            prefetch: None,
            provider_decides: false,
            is_for_messages: false,
            compacts_early: false,
            writes_body: true,
        }
    }

    /// Creates the options for messages that may take exactly `limit_tokens`, regardless of the
    /// rest of the request: for comparisons of policies.
    pub fn for_messages(limit_tokens: u64, policy: Policy, measure: Measure) -> Self {
        let mut options = Self::new("", measure.encoding, limit_tokens);
        options.measure = measure;
        options.policy = policy;
        options.is_for_messages = true;
        options
    }

    /// Limits of `request`. Kept decisions do not move them.
    pub(super) fn limits_of(&self, request: &Request<'_>) -> Limits {
        let counting = match self.kept {
            Some(_) => self.limits.counting,
            None => self.policy.counting,
        };
        Limits { asked_output_tokens: request.max_output_tokens, counting, ..self.limits }
    }

    /// Maximum prompt tokens of `request`.
    pub fn input_tokens(&self, request: &Request<'_>) -> u64 {
        match self.is_for_messages {
            true => self.limits.window_tokens,
            false => self.limits_of(request).input_tokens(),
        }
    }

    /// Tokens of everything besides the messages, if tools and schemas take `extras_tokens`.
    pub fn overhead_tokens(&self, extras_tokens: u64) -> u64 {
        if self.is_for_messages { 0 } else { extras_tokens + REPLY_PRIMING }
    }

    /// Profile by these options of a conversation whose tools and schemas take `extras_tokens`.
    pub fn profile(&self, request: &Request<'_>, extras_tokens: u64) -> Profile {
        let (mut policy, measure) = (self.policy.clone(), self.measure);
        policy.keeps_thinking = request.protocol == Protocol::Chat;
        policy.begins_with_user = request.protocol == Protocol::Messages;
        if self.is_for_messages {
            let limit_tokens = self.limits.window_tokens;
            return Profile { limit_tokens, overhead_tokens: 0, policy, measure };
        }
        self.limits_of(request).profile(extras_tokens, policy, measure)
    }
}
