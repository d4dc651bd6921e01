//! Planning of one request: finds its limits, looks up what is at hand, counts the rest, and has the
//! engine plan it. `options` derives the inputs of the plan from configuration and request, `at_hand` gives
//! the engine what earlier requests left, `kept` plans a conversation by the decisions that it keeps.
//! `planner.rs` decides where it runs and handles panics.

mod at_hand;
mod kept;
mod options;

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use self::at_hand::AtHand;
pub(super) use self::options::policy_name;
use self::options::{
    adapt, adapt_to_price, asks_usage, class, encoding, has_no_list, is_side, mode,
    most_output_tokens, of_model, operator_tokens, prefetch, provider_decides, requested_model,
    shortens, tighten,
};
use super::decisions::Found;
use super::effort;
use super::parallel;
use super::plan_cache::{Chain, LastSent, PlanCache, Remembered};
use super::planned::{Job, LeftOut, Planned, Progress, ShortenedItems, UNREAD};
use super::prefix_cache::Looked;
use super::read_ahead::ReadAhead;
use super::readings::ReadingKey;
use super::refusal::{self, Unfit};
use super::shared::Shared;
use crate::config::{self, LateSystem, ModelSettings, Originals};
use crate::proxy::admit::attribution::BodyLabels;
use crate::proxy::admit::class::RequestClass;
use crate::proxy::admit::request::AskedCompaction;
use crate::proxy::error::{OverLimit, Proxied, ProxyError};
use crate::proxy::summaries::{PrefetchSpan, Spans};
use crate::proxy::upstreams::routes::Route;
use weir_engine::compact::policy::clearing::Cleared;
use weir_engine::compact::reading::Reading;
use weir_engine::compact::report::Treatment;
use weir_engine::compact::source::count_and_search;
use weir_engine::compact::summary::Space;
use weir_engine::compact::{Bound, Compactor, Fact, Limits, Measure, Repeated, Zone};
use weir_engine::plan::{
    CannotFit, Decisions, Names, Plan, PlanError, PlanOptions, cost, extra_tokens,
    fits_as_received, plan_with,
};
use weir_engine::tokens::Encoding;
use weir_engine::tokens::media::ImageRule;
use weir_engine::wire::{Beginning, Prefix, Protocol, Request};
use weir_store::budget::{Compaction, Observed, Rereads};

/// Maximum bytes of new messages counted on the request's own task.
pub(super) const INLINE_BYTES: usize = 16 * 1024;
/// Of larger bodies, those of conversations that are not known are not even parsed there.
pub(super) const LONG_BODY_BYTES: usize = 64 * 1024;

/// Name of the edit that replaces the requested model by another.
const ALIAS: &str = "alias";
/// Action for a request that continues a conversation kept by the provider.
const PROVIDER_STATE: &str = "provider_state";

/// What a request is planned from.
#[derive(Clone, Copy)]
pub(super) struct Given<'a> {
    pub(super) shared: &'a Shared,
    pub(super) job: &'a Job,
    /// Its body as read.
    pub(super) request: &'a Request<'a>,
}

/// Request whose limits are known, with all that is at hand of its plan. Holds no part of the body, so
/// that another thread can continue with it.
pub(super) struct Draft {
    pub(super) model: String,
    pub(super) is_model_known: bool,
    is_calibrated: bool,
    settings: ModelSettings,
    /// Route of the request.
    route: Arc<Route>,
    options: PlanOptions,
    /// Whether the conversation does not continue after this request.
    is_side: bool,
    /// The options by configuration, while the conversation keeps other decisions.
    current: Option<Box<PlanOptions>>,
    /// The conversation's decisions as looked up, if it keeps any.
    found: Option<Found>,
    /// Whether kept decisions no longer serve, or it is unknown what the conversation was sent as.
    is_begun_again: bool,
    /// Lookup in the prefix cache; `None` for a short body.
    looked: Option<Looked>,
    /// Hashes of the messages; empty until they are needed.
    hashes: Vec<u128>,
    /// Positions in the body, for another thread.
    beginning: Option<Beginning>,
    /// Facts of the first messages if they are the system's, once they are counted.
    head: Vec<Fact>,
    /// Tokens of each item outside the messages, as far as they are counted.
    extras: Vec<Option<u64>>,
    /// `None` until all items outside the messages are counted.
    conversation: Option<Conversation>,
}

/// State and counts of a conversation, as far as they are at hand.
struct Conversation {
    chain: Chain,
    /// State to continue from, if any.
    state: Option<Arc<Compactor>>,
    /// Number of messages in the remembered state, even if that is not used.
    remembered_messages: Option<usize>,
    /// Whether the state is that of all messages.
    is_whole: bool,
    looked_at: Instant,
    last_sent: LastSent,
    readings: ReadingKey,
    /// Facts of the messages after those of the state.
    facts: Vec<Option<Fact>>,
}

impl Conversation {
    /// Number of messages that the state holds.
    fn start(&self) -> usize {
        self.state.as_ref().map_or(0, |state| state.messages())
    }
}

/// Result of planning.
pub(super) struct Drafted {
    pub(super) planned: Proxied<Planned>,
    /// The engine's plan; `None` if a message cannot be read, or after a fault.
    pub(super) plan: Option<Plan>,
}

/// Messages whose contents are parsed, by position; empty if there are none.
pub(super) type Parsed = Vec<Option<Arc<Reading>>>;

/// Result of a step towards a plan.
pub(super) enum Step {
    Done(Box<Drafted>),
    /// The rest is more than the request's own task may do.
    Long,
    /// The job must be planned again after [`Draft::begin_again`].
    Again,
    /// The job must be planned again, after the missing summary of its last compaction, if any, is
    /// ready.
    Waits(Option<Box<PrefetchSpan>>),
}

impl Draft {
    /// Finds limits, policy and counting of a request.
    pub(super) fn new(
        shared: &Shared,
        job: &Job,
        request: &Request<'_>,
        looked: Option<Looked>,
    ) -> Self {
        let config = &shared.config;
        let model = requested_model(job, request);
        let found = config.models.find(&model);
        let is_model_known = !matches!(found.known, config::Known::Unknown);
        (!is_model_known).then(|| shared.warn_once(&model, &found.entry));
        let route = Arc::clone(job.route.as_ref().unwrap_or_else(|| shared.routes.unmatched()));
        let settings = config.settings(found.name);
        let by_model = route.row.policy.as_deref().or(settings.policy.as_deref());
        let mut policy = config.policy(job.options.policy.as_deref(), by_model);
        policy.strict_alternation = is_strict(job, &found.entry, is_model_known);
        adapt(&mut policy, job, request, (&route, &model));
        policy.notes_apart = !policy.strict_alternation;
        adapt_to_price(&mut policy, config, &route, &model);
        let mut limits = Limits {
            operator_tokens: operator_tokens(config, job, &route, &model),
            header_tokens: job.options.max_input_tokens,
            asked_output_tokens: request.max_output_tokens,
            ..of_model(&found.entry, policy.counting)
        };
        let known = &route.knowledge.learned;
        let stored = || known.limits(job.tenant, &model, limits.configured());
        let learned = job.options.learned.unwrap_or_else(stored);
        learned.apply(&mut limits, is_model_known);
        tighten(job, &mut limits);
        let ratio = || known.ratio(job.tenant, &model);
        let (own, is_estimated) = (found.entry.encoding, policy.counting.is_estimated);
        let (encoding, is_calibrated) = encoding(own, is_estimated, settings.token_permille, ratio);
        let class = class(job, request);
        let options = PlanOptions {
            limits,
            policy,
            measure: Measure { encoding, images: ImageRule::of_model(&model) },
            mode: mode(job, request, config.context.mode),
            shortens: shortens(job, request),
            late_system_as_user: settings.late_system == LateSystem::User,
            cache_control: settings.cache_control,
            drops_thinking: job.options.is_thinking_refused,
            passes_whole: class == Some(RequestClass::Compaction),
            learned,
            max_output_tokens: most_output_tokens(job, request, limits.max_output_tokens),
            asks_usage: asks_usage(job, &route, &model),
            prefetch: prefetch(shared, job, class),
            provider_decides: provider_decides(config, job, &limits, found.name),
            ..PlanOptions::new(&model, encoding, limits.window_tokens)
        };
        Self {
            model: model.into_owned(),
            is_model_known,
            is_calibrated,
            settings,
            route,
            is_side: options.shortens || is_side(class),
            options,
            current: None,
            found: None,
            is_begun_again: false,
            looked,
            hashes: Vec::new(),
            beginning: None,
            head: Vec::new(),
            extras: vec![None; request.extras.len()],
            conversation: None,
        }
    }

    /// Number of messages in the state at hand of the conversation.
    #[cfg(test)]
    pub(super) fn remembered_messages(&self) -> Option<usize> {
        self.conversation.as_ref()?.remembered_messages
    }

    /// Prepares to be continued by another thread, which reads the body again by
    /// [`Self::read_again`].
    pub(super) fn leave(mut self, request: &Request<'_>) -> Self {
        self.beginning = Beginning::of(request);
        self
    }

    /// Reads the body of the draft's job again, without parsing its messages again.
    pub(super) fn read_again<'a>(&self, shared: &Shared, job: &'a Job) -> Proxied<Request<'a>> {
        read_body(shared, job, self.beginning.as_ref().map(Beginning::whole))
    }

    /// Looks up what is at hand, and counts the rest as long as it is no more than `most_bytes` at
    /// once. Continues where an earlier call stopped. Returns the messages that it parsed, too.
    pub(super) fn count(&mut self, given: Given<'_>, most_bytes: usize) -> Proxied<Parsed> {
        if !self.find_decisions(given, most_bytes > INLINE_BYTES) {
            return Ok(Parsed::new());
        }
        self.count_extras(given, most_bytes);
        let Some(extras_tokens) = self.extras.iter().copied().sum() else {
            return Ok(Parsed::new());
        };
        if self.conversation.is_none() {
            if !self.count_head(given, most_bytes) {
                return Ok(Parsed::new());
            }
            self.conversation = Some(self.look_up(given, extras_tokens));
            self.options.compacts_early = self.is_cold(given.request);
        }
        self.count_messages(given, most_bytes)
    }

    /// Returns the hashes of the messages.
    fn hashes(&mut self, shared: &Shared, request: &Request<'_>) -> &[u128] {
        if self.hashes.len() != request.messages.len() {
            let cache = &shared.state.cache;
            let known = |message| cache.prefixes.hash(self.looked.as_ref()?, request, message);
            self.hashes = cache.hashes(request, known);
        }
        &self.hashes
    }

    /// Counts the first messages if they are the system's: a state of the conversation is known by their form.
    /// Returns `false` if that is more than `most_bytes`.
    fn count_head(&mut self, Given { shared, job, request }: Given<'_>, most_bytes: usize) -> bool {
        let (cache, measure) = (&shared.state.cache, self.options.measure);
        let hashes = self.hashes(shared, request)[..request.head()].to_vec();
        self.head.clear();
        for (own, raw) in hashes.into_iter().zip(&request.messages) {
            let key = cache.content_key((job.tenant, request.protocol, measure), own);
            let known = cache.fact(key);
            if known.is_none() && raw.len() > most_bytes {
                return false;
            }
            let count = || Some(measure.fact(&request.protocol.read_message(raw).ok()?));
            // One that cannot be read is reported with the other messages.
            let Some(fact) = known.or_else(count) else { break };
            cache.keep_fact(key, fact);
            self.head.push(fact);
        }
        true
    }

    /// Counts the items outside the messages, once for each content.
    fn count_extras(&mut self, Given { shared, job, request }: Given<'_>, most_bytes: usize) {
        let (cache, measure) = (&shared.state.cache, self.options.measure);
        for (extra, counted) in request.extras.iter().zip(&mut self.extras) {
            if counted.is_some() {
                continue;
            }
            let key = cache.extra_key(job.tenant, measure, extra);
            *counted = cache.extra(key);
            if counted.is_none() && extra.raw.len() <= most_bytes {
                let tokens = extra_tokens(measure, extra);
                cache.keep_extra(key, tokens);
                *counted = Some(tokens);
            }
        }
    }

    /// Looks up the state that an earlier request of the conversation left, and counts of its
    /// messages.
    fn look_up(&mut self, given: Given<'_>, extras_tokens: u64) -> Conversation {
        let Given { shared, job, request } = given;
        // Only those that went on from a compaction after a pause have its state.
        let decisions = self.options.decisions(request, extras_tokens);
        let decisions = Decisions { compacted_at: Vec::new(), ..decisions };
        let (cache, messages) = (&shared.state.cache, &request.messages);
        let whose = (job.tenant, &decisions, shared.config.summaries.mode());
        let own = self.hashes(shared, request).to_vec();
        let chain = Chain::new(cache, whose, request.protocol, (own, self.head.len()));
        if let Some(looked) = &self.looked {
            cache.prefixes.keep(looked, request, chain.own());
        }
        let remembered = cache.longest_fold(&chain, &self.head);
        let remembered_messages = remembered.as_ref().map(|earlier| earlier.state.messages());
        // Compacting again looks up all records, which renews their lifetime in the store.
        let spans = self.spans(given);
        let is_stale = |earlier: &Remembered| {
            spans.as_ref().is_some_and(|spans| spans.is_stale(earlier.looked_at))
        };
        let readings = self.readings_of(cache, &chain, remembered.as_ref());
        let branched = remembered.as_ref().map(|earlier| earlier.last_sent.branch());
        let usable = remembered.filter(|earlier| !is_stale(earlier));
        let is_whole = usable.as_ref().is_some_and(|own| own.state.messages() == messages.len());
        let (state, last_sent, looked_at) = match usable {
            Some(own) if is_whole => (Some(own.state), own.last_sent, own.looked_at),
            Some(own) => (Some(own.state), branched.unwrap_or_default(), own.looked_at),
            None => (None, branched.unwrap_or_default(), Instant::now()),
        };
        let start = state.as_ref().map_or(0, |state| state.messages());
        let new = start..messages.len();
        let facts = new.map(|index| cache.fact(chain.content_key(index))).collect();
        Conversation {
            chain,
            state,
            remembered_messages,
            is_whole,
            looked_at,
            last_sent,
            readings,
            facts,
        }
    }

    /// Returns the key of the conversation's readings: that of the conversation it continues, unless another
    /// continues that otherwise.
    fn readings_of(
        &self,
        cache: &PlanCache,
        chain: &Chain,
        earlier: Option<&Remembered>,
    ) -> ReadingKey {
        let Some(earlier) = earlier.filter(|_| self.looked.is_some()) else {
            return ReadingKey::new(chain.end());
        };
        let table = cache.readings.look(&earlier.readings);
        let start = earlier.state.messages();
        let mut new = chain.own().iter().enumerate().skip(start.saturating_sub(1));
        match new.any(|(message, hash)| table.has_other(message, *hash)) {
            true => ReadingKey::new(chain.end()),
            false => earlier.readings.clone(),
        }
    }

    /// Counts the messages that no request has brought before. If a compaction will ask what they say,
    /// they are decoded once for both.
    fn count_messages(&mut self, given: Given<'_>, most_bytes: usize) -> Proxied<Parsed> {
        let Given { shared, job, request } = given;
        let cost = cost(request, &self.options, &AtHand::new(self, shared, job));
        let is_read = cost.is_read_likely && most_bytes > INLINE_BYTES;
        let Some(conversation) = &mut self.conversation else { return Ok(Parsed::new()) };
        if cost.uncounted_bytes > most_bytes || cost.uncounted_bytes == 0 {
            return Ok(Parsed::new());
        }
        let start = conversation.start();
        let facts = conversation.facts.iter().enumerate();
        let unknown = facts.filter(|(_, fact)| fact.is_none()).map(|(place, _)| start + place);
        let unknown: Vec<usize> = unknown.collect();
        let (protocol, measure) = (request.protocol, self.options.measure);
        let count = move |raw: &str| {
            let message = protocol.read_message(raw)?;
            if !is_read {
                return Ok((measure.fact(&message), None));
            }
            let (fact, reading) = count_and_search(&measure, &message);
            Ok((fact, Some(reading)))
        };
        let mut parsed = vec![None; request.messages.len()];
        for (index, counted) in unknown.iter().zip(map(given, &unknown, count)) {
            let (fact, reading): (Fact, _) = match counted {
                Ok(counted) => counted,
                Err(error) => {
                    return Err(self.about(refusal::message(request, *index, &error), None));
                }
            };
            shared.state.cache.keep_fact(conversation.chain.content_key(*index), fact);
            conversation.facts[*index - start] = Some(fact);
            parsed[*index] = reading.map(Arc::new);
        }
        Ok(parsed)
    }

    /// Whether the plan may take longer than the request's own task may.
    pub(super) fn is_long_work(&self, Given { shared, job, request }: Given<'_>) -> bool {
        let cost = cost(request, &self.options, &AtHand::new(self, shared, job));
        // A long body is known, but nothing of its conversation under these options.
        let conversation = self.conversation.as_ref();
        let is_new = conversation.is_none_or(|own| own.remembered_messages.is_none());
        let is_sought = self.has_decisions() && self.found.is_none();
        (is_new && job.body.len() >= LONG_BODY_BYTES)
            || (is_sought && !request.messages.is_empty())
            || self.options.compacts_early
            || self.other_measure().is_some()
            || cost.largest_uncounted_extra_bytes > INLINE_BYTES
            || cost.uncounted_bytes > INLINE_BYTES
            || cost.searched_bytes > INLINE_BYTES
            || cost.is_compaction_due
            || cost.is_recall_possible
    }

    /// Plans the request, which is counted completely.
    pub(super) fn plan(&self, given: Given<'_>, parsed: Parsed) -> Step {
        let Given { shared, job, request } = given;
        if let Some(error) = refusal::repeats(request, job.options.max_repeats) {
            let planned = Err(self.about(error, None));
            return Step::Done(Box::new(Drafted { planned, plan: None }));
        }
        let spans = self.spans(given);
        let status =
            |gone: &[usize], space: Space| spans.as_ref().and_then(|own| own.status(gone, space));
        let at_hand = AtHand::new(self, shared, job).with(parsed, spans.as_ref());
        let plan = plan_with(request, &self.options, &status, &at_hand);
        at_hand.keep_readings();
        if let Some(wanted) = spans.as_ref().and_then(Spans::take_open) {
            return Step::Waits(wanted);
        }
        let counted = plan.as_ref().ok().and_then(|plan| self.counted(given, plan));
        if self.must_begin_again(given, (&plan, counted)) {
            return Step::Again;
        }
        Step::Done(Box::new(match plan {
            Ok(mut plan) => {
                let mut planned = self.planned(given, &mut plan, spans.as_ref());
                if let (Some(counted), Some(measure)) = (counted, self.other_measure()) {
                    planned.received_tokens = counted.received_tokens;
                    planned.sent_tokens = counted.sent_tokens;
                    planned.encoding = measure.encoding;
                }
                planned.begun = self.begun(job, request, &plan);
                planned.read_ahead = at_hand.read_ahead(request, &plan);
                Drafted { planned: Ok(planned), plan: Some(plan) }
            }
            Err(PlanError::Message { index, error }) => {
                let error = self.about(refusal::message(request, index, &error), None);
                Drafted { planned: Err(error), plan: None }
            }
            Err(PlanError::Stopped { compactions }) => {
                let error = self.about(effort::too_long(compactions), None);
                Drafted { planned: Err(error), plan: None }
            }
            Err(PlanError::CannotFit(unfit)) => {
                let received_tokens = unfit.plan.received_tokens;
                let provider_state = request.provider_state.filter(|_| !job.options.bypass);
                let error = self.about(self.refused(&unfit, provider_state), Some(received_tokens));
                Drafted { planned: Err(error), plan: Some(unfit.plan) }
            }
        }))
    }

    /// Adds the conversation to an error.
    fn about(&self, mut error: ProxyError, received_tokens: Option<u64>) -> ProxyError {
        error.subject.get_or_insert_with(|| {
            let (model, limit_tokens) = (self.model.clone(), self.options.limits.input_tokens());
            Box::new(OverLimit { model, received_tokens, limit_tokens })
        });
        error
    }

    /// Creates the error for a request that exceeds its limit.
    fn refused(&self, unfit: &CannotFit, provider_state: Option<&str>) -> ProxyError {
        let (plan, learned) = (&unfit.plan, &self.options.learned);
        if unfit.is_bypassed() {
            return refusal::bypass(plan.received_tokens, unfit.limit_tokens, provider_state);
        }
        let is_learned = match plan.limits.bound() {
            Bound::Window => learned.window_tokens == Some(plan.limits.window_tokens),
            Bound::ModelInput => learned.max_input_tokens == plan.limits.max_input_tokens,
            Bound::Operator | Bound::Header => false,
        };
        refusal::cannot_fit(&Unfit {
            limits: plan.limits,
            floor: unfit.floor(),
            tools_tokens: plan.tools_tokens(),
            received_tokens: plan.received_tokens,
            least_tokens: plan.sent_tokens,
            is_learned,
            is_model_known: self.is_model_known,
        })
    }

    /// Returns the records for messages that compactions remove, if summaries are enabled.
    fn spans<'s>(&'s self, Given { shared, job, request }: Given<'s>) -> Option<Spans<'s>> {
        let summaries = shared.summaries.as_ref()?;
        let encoding = self.options.measure.encoding;
        let conversation = (request.messages.as_slice(), self.model.as_str(), encoding);
        let of = (job.tenant, job.wait_mode);
        Some(Spans::new(summaries, of, (job.protocol, &job.body), conversation))
    }

    /// Returns the names in a report on the plan.
    pub(super) fn names<'s>(
        &'s self,
        shared: &'s Shared,
        job: &'s Job,
        planned: &'s Proxied<Planned>,
    ) -> Names<'s> {
        Names {
            model: &self.model,
            policy: options::policy_name(&shared.config, job, &self.route, &self.settings),
            is_model_known: self.is_model_known,
            edits: planned.as_ref().map_or("", |planned| planned.edits.as_str()),
            refusal: planned.as_ref().err().map(|error| error.message.as_str()),
        }
    }

    /// Describes the engine's plan for the rest of the request. Takes its body.
    fn planned(
        &self,
        Given { shared, job, request }: Given<'_>,
        plan: &mut Plan,
        spans: Option<&Spans<'_>>,
    ) -> Planned {
        let is_unread = request.provider_state.is_none() && has_no_list(request);
        let action = match request.provider_state {
            Some(_) if !job.options.bypass => PROVIDER_STATE,
            None if is_unread => UNREAD,
            _ if job.options.is_tight && !job.options.bypass => &format!("{}+tight", plan.action),
            _ => &plan.action,
        };
        if is_unread {
            // The prompt is in a member that weir does not know.
            plan.received_tokens = Encoding::Estimate.count(request.text);
            plan.sent_tokens = plan.received_tokens;
        }
        let mut planned = Planned {
            body: plan.body.take().map(Bytes::from),
            sent_tokens: plan.sent_tokens,
            compactions: plan.compactions,
            is_compacted_here: plan.is_compacted_here,
            usage_request: plan.usage_request,
            zone: plan.zone,
            max_output_tokens: plan.max_output_tokens,
            is_clampable: plan.is_clampable,
            ..self.as_received(job, request, action, &plan.edits, plan.received_tokens)
        };
        planned.compaction.sent_tokens = plan.sent_tokens;
        if is_unread {
            planned.encoding = Encoding::Estimate;
        }
        if plan.treatment == Treatment::Compacted
            && shared.config.context.originals != Originals::Off
        {
            planned.left_out = LeftOut::of(&job.body, request, plan.fates());
        }
        planned.shortened = shortened(job, request, plan);
        planned.cleared = plan.cleared();
        self.compare(&mut planned, plan);
        if planned.compaction.is_new {
            shared.warn_of_waste(&self.model, plan);
        }
        if let Some(spans) = spans.filter(|_| plan.treatment != Treatment::Bypassed) {
            planned.summary = spans.outcome(plan.is_summary_unfit());
            let span = plan.prefetch.as_ref();
            planned.prefetch = span.and_then(|span| spans.prefetch(span, &plan.end));
        }
        planned
    }

    /// Determines the compactions that were not in the request of the conversation that an upstream
    /// last accepted.
    fn compare(&self, planned: &mut Planned, plan: &Plan) {
        let Some(conversation) = &self.conversation else { return };
        let is_compacted = plan.treatment == Treatment::Compacted;
        // In observe mode they are counted, and not made.
        let is_counted = is_compacted || plan.treatment == Treatment::Observed;
        let compactions = if is_counted { plan.compactions } else { 0 };
        let last_sent = &conversation.last_sent;
        let progress = Progress::new(last_sent, plan.state.received_tokens(), compactions);
        planned.progress = Some(progress);
        if plan.treatment == Treatment::Bypassed {
            return;
        }
        if is_compacted {
            let Repeated { tokens, new_tokens, is_all } = plan.state.repeated();
            planned.compaction.rereads = Rereads { tokens, new_tokens, is_all };
        }
        let before = last_sent.get();
        let compactions_before = before.map_or(0, |sent| sent.compactions);
        planned.compaction.earlier_tokens =
            before.map(|sent| sent.received_tokens + plan.overhead_tokens);
        planned.compaction.is_new = is_compacted && compactions > compactions_before;
        let is_new = compactions > compactions_before;
        planned.compaction.observed = plan.planned_tokens.map(|sent_tokens| Observed {
            sent_tokens,
            unchanged_tokens: is_new.then(|| plan.unchanged_tokens(compactions_before)),
        });
        if is_new {
            planned.compacted_by = plan.steps_after(compactions_before);
        }
    }

    /// Describes a request that is sent as received after a fault, if it provably fits.
    pub(super) fn after_fault(&self, job: &Job, request: &Request<'_>) -> Option<Planned> {
        let tokens = fits_as_received(request, &self.options)?;
        Some(self.as_received(job, request, "fault", &[], tokens))
    }

    /// Describes a request that is sent as received.
    fn as_received(
        &self,
        job: &Job,
        request: &Request<'_>,
        action: &str,
        edits: &[&str],
        received_tokens: u64,
    ) -> Planned {
        let limits = self.options.limits;
        let alias = job.alias_of.as_ref().map(|_| ALIAS);
        let before = alias.into_iter().chain(job.asked.edits.iter().copied());
        let edits: Vec<&str> = before.chain(edits.iter().copied()).collect();
        Planned {
            body: None,
            action: action.to_owned(),
            provider_state: request.provider_state,
            labels: BodyLabels::of(request),
            edits: edits.join(","),
            received_tokens,
            sent_tokens: received_tokens,
            limit_tokens: limits.input_tokens(),
            messages: request.messages.len() as u32,
            compactions: 0,
            is_compacted_here: false,
            left_out: LeftOut::default(),
            model: self.model.clone(),
            upstream: self.route.knowledge.origin.clone(),
            stream: request.stream,
            usage_request: None,
            zone: Zone::Continue,
            compaction: Compaction {
                received_tokens,
                sent_tokens: received_tokens,
                max_input_tokens: limits.max_input_tokens.unwrap_or(limits.window_tokens),
                ..Compaction::default()
            },
            max_output_tokens: request.max_output_tokens,
            is_clampable: false,
            limits,
            is_model_known: self.is_model_known,
            encoding: self.options.measure.encoding,
            // The provider's part of the prompt would distort the ratio.
            is_calibrated: self.is_calibrated && request.provider_state.is_none(),
            summary: None,
            prefetch: None,
            shortened: None,
            cleared: Cleared::default(),
            budget: None,
            planned_saved_nano_usd: None,
            compacted_by: String::new(),
            progress: None,
            begun: None,
            read_ahead: ReadAhead::default(),
            class: match self.options.passes_whole {
                true => Some(RequestClass::Compaction),
                false => job.options.class,
            },
        }
    }
}

/// Whether a template refuses two messages of one role in a row, or one that weir does not know may.
fn is_strict(job: &Job, entry: &config::ModelEntry, is_model_known: bool) -> bool {
    entry.strict_alternation || !is_model_known && job.protocol == Protocol::Chat
}

/// Returns the compacted conversation of a plan as items, if the caller asks for them.
fn shortened(job: &Job, request: &Request<'_>, plan: &Plan) -> Option<Box<ShortenedItems>> {
    let asked = job.asked.compaction.filter(|_| plan.treatment == Treatment::Compacted)?;
    if matches!(asked, AskedCompaction::Above(_)) && plan.compactions == 0 {
        return None;
    }
    let shortened = plan.shortened(request, asked != AskedCompaction::Now);
    Some(Box::new(ShortenedItems {
        kept: shortened.kept.join(","),
        rest: shortened.rest,
        open: shortened.open.join(","),
        rest_tokens: shortened.rest_tokens,
    }))
}

/// Reads a job's body, starting after its known beginning.
pub(super) fn read_body<'a>(
    shared: &Shared,
    job: &'a Job,
    beginning: Option<Prefix<'_>>,
) -> Proxied<Request<'a>> {
    let max_messages = shared.config.server.max_messages;
    let request = match beginning {
        Some(beginning) => job.protocol.read_on(&job.body, beginning, max_messages),
        None => job.protocol.read(&job.body, max_messages),
    };
    request.map_err(refusal::body)
}

/// Applies `work` to some of the messages, shared with other threads if they are large.
fn map<T: Send + 'static>(
    Given { shared, job, request }: Given<'_>,
    messages: &[usize],
    work: impl Fn(&str) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let raws: Vec<&str> = messages.iter().map(|index| request.messages[*index]).collect();
    parallel::map(&shared.state.heavy, &job.body, &raws, work)
}
