//! Plan of a request: the one place where it is assembled. Compacts the conversation to its limit,
//! checks that it fits, and splices the edits into the caller's bytes.
//!
//! Reads nothing but the request, the options, the summaries and what is at hand of earlier work. The
//! same request, options and summaries always give the same plan.

#![warn(unreachable_pub)]

mod cost;
mod decisions;
mod edits;
mod error;
mod known;
mod options;
mod report;
mod shortened;
#[cfg(test)]
mod tests;
mod texts;

use std::borrow::Cow;
use std::sync::Arc;

use crate::compact::history::SummaryUse;
use crate::compact::policy::clearing::Cleared;
use crate::compact::recall::{Recall, recall};
use crate::compact::report::Treatment;
use crate::compact::source::ReadOne;
use crate::compact::summary::Space;
use crate::compact::{Compactor, Fact, Fate, Limits, Prefetch, RequestSource, Source, Zone};
use crate::tokens::{Encoding, REPLY_PRIMING};
use crate::wire::usage_option::AddedUsageOption;
use crate::wire::{Edit, Request, clamp};

pub use cost::{PlanCost, cost};
pub use decisions::Decisions;
pub use edits::USAGE;
use edits::{Kind, OuterEdits};
pub use error::{CannotFit, PlanError};
pub use known::{Known, NoSummaries, NothingKnown, SummarySource, extra_tokens};
pub use options::{Mode, PlanOptions};
pub use report::Names;
pub use shortened::Shortened;

/// Plan of one request.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Body to send; `None` if the request is sent as received.
    pub body: Option<String>,
    /// Handling of the conversation.
    pub treatment: Treatment,
    /// Steps applied to the conversation, such as `pass` or `evict+fit`; `refuse` if it cannot be
    /// sent.
    pub action: String,
    /// Names of the edits in `body` that are not compaction.
    pub edits: Vec<&'static str>,
    /// Edits of messages in `body`, in order of message.
    pub changes: Vec<(usize, Edit)>,
    /// Excerpts of removed messages that bear on the last one, appended to it.
    pub recall: Option<Recall>,
    /// Limits of the request.
    pub limits: Limits,
    /// Maximum prompt tokens under these limits.
    pub limit_tokens: u64,
    /// Tokens of tools, schemas and reply priming. Priming belongs to the prompt, as in the usage that
    /// providers report, and counts against each limit. A request that is above its limit by priming alone
    /// is refused: clipping counts priming as well, so nothing is left to clip. Of 25,565 replayed requests,
    /// at limits of 30, 50 and 70 % and 8,000 tokens, 1,343 were refused, 6 of these for no more than that.
    pub overhead_tokens: u64,
    /// Prompt tokens as received, overhead included.
    pub received_tokens: u64,
    /// Prompt tokens as sent, overhead included.
    pub sent_tokens: u64,
    /// Prompt tokens that compaction would send, if the conversation is only observed and could be compacted.
    pub planned_tokens: Option<u64>,
    /// Number of compactions of the conversation.
    pub compactions: u32,
    /// Whether the last of them is made at this very request.
    pub is_compacted_here: bool,
    /// Whether that one was not due ([`PlanOptions::compacts_early`]).
    pub is_early: bool,
    /// How full the context is.
    pub zone: Zone,
    /// Usage request in `body`, if one was added.
    pub usage_request: Option<AddedUsageOption>,
    /// Output limit that the request is sent with.
    pub max_output_tokens: Option<u64>,
    /// Whether its output limit can be lowered or set.
    pub is_clampable: bool,
    /// Messages to summarise for the next compaction, if they are requested ahead.
    pub prefetch: Option<Prefetch>,
    /// State of the conversation after all messages.
    pub state: Arc<Compactor>,
    /// State that the request is sent by: a compaction may be due because it ends here.
    pub end: Arc<Compactor>,
}

/// Plans a request: which parts of its conversation are sent, and in which bytes.
///
/// # Errors
///
/// Fails if a message cannot be read, or if the parts that must stay exceed the limit.
pub fn plan(
    request: &Request<'_>,
    options: &PlanOptions,
    summaries: &dyn SummarySource,
) -> Result<Plan, PlanError> {
    plan_with(request, options, summaries, &NothingKnown)
}

/// Like [`plan()`], with the work at hand of earlier requests. The result is the same.
///
/// # Errors
///
/// Fails as [`plan()`] does.
pub fn plan_with(
    request: &Request<'_>,
    options: &PlanOptions,
    summaries: &dyn SummarySource,
    known: &dyn Known,
) -> Result<Plan, PlanError> {
    let summary = |gone: &[usize], space: Space| summaries.summary(gone, space);
    let read_many = |messages: &[usize], later: &[usize], read: ReadOne| {
        known.read_many(request, messages, later, read)
    };
    let source = RequestSource::new(request.protocol, &request.messages, options.measure.encoding)
        .with_readings(known.readings(), &read_many)
        .with_summaries(&summary);
    let extras_tokens = known::extras_tokens(request, options.measure, known);
    let mut state = state(request, options, extras_tokens, known, &source)?;
    let is_early = options.compacts_early && state.is_past_half_way();
    if is_early {
        state = Arc::new(state.compacted(&source));
    }
    known.keep_state(&state);
    let mut plan = Plan::new(request, options, options.overhead_tokens(extras_tokens), state);
    plan.is_early = is_early;
    plan.correct_head(request, options, known)?;
    if options.shortens {
        return plan.shorten(options, &source);
    }
    if options.mode == Mode::Bypass {
        return plan.bypass();
    }
    plan.finish(request, options, &source)
}

/// Returns the tokens of a request that is to be sent as received, if they are certainly within its
/// limit. For use after a fault: counts as little as possible and decides nothing.
pub fn fits_as_received(request: &Request<'_>, options: &PlanOptions) -> Option<u64> {
    let limit_tokens = options.input_tokens(request);
    let extras_tokens = known::extras_tokens(request, options.measure, &NothingKnown);
    let overhead_tokens = options.overhead_tokens(extras_tokens);
    // No text has more tokens than bytes; framing is counted separately.
    let most_tokens = request.text.len() as u64 + overhead_tokens;
    if most_tokens <= limit_tokens {
        return Some(most_tokens);
    }
    let counted =
        (0..request.messages.len()).map(|index| Some(fact(request, options, index).ok()?.tokens));
    let tokens = counted.sum::<Option<u64>>()? + overhead_tokens;
    (tokens <= limit_tokens).then_some(tokens)
}

/// Counts one message.
fn fact(request: &Request<'_>, options: &PlanOptions, index: usize) -> Result<Fact, PlanError> {
    let message = request.protocol.read_message(request.messages[index]);
    let message = message.map_err(|error| PlanError::Message { index, error })?;
    Ok(options.measure.fact(&message))
}

/// Continues from the state at hand, or from the start, to the state after all messages.
fn state(
    request: &Request<'_>,
    options: &PlanOptions,
    extras_tokens: u64,
    known: &dyn Known,
    source: &dyn Source,
) -> Result<Arc<Compactor>, PlanError> {
    let all = request.messages.len();
    let at_hand = known.state().filter(|state| state.messages() <= all);
    let decisions = options.decisions(request, extras_tokens);
    let (thinking_from, compacted_at) = (decisions.thinking_from, decisions.compacted_at);
    let mut state =
        at_hand.unwrap_or_else(|| Arc::new(Compactor::new(Arc::new(decisions.profile))));
    let is_compacted =
        |state: &Compactor| compacted_at.contains(&state.messages()) && !state.is_compacted_here();
    if is_compacted(&state) {
        state = Arc::new(state.compacted(source));
    }
    if state.messages() == all {
        return Ok(state);
    }
    let count = |index: usize| match known.is_over() {
        true => Err(PlanError::Stopped { compactions: 0 }),
        false => known.fact(index).map_or_else(|| fact(request, options, index), Ok),
    };
    // All are read before the first is taken: an error costs no compaction.
    let facts = (state.messages()..all).map(count).collect::<Result<Vec<Fact>, PlanError>>()?;
    let mut state = Arc::unwrap_or_clone(state);
    state.expect(facts.len());
    for fact in facts {
        if known.is_over() {
            return Err(PlanError::Stopped { compactions: state.compactions() });
        }
        state.push(fact, source);
        if state.messages() == thinking_from {
            state.drop_thinking_before(thinking_from);
        }
        if is_compacted(&state) {
            state = state.compacted(source);
        }
    }
    Ok(Arc::new(state))
}

impl Plan {
    /// Counts this request's own system messages at the front: the state may be that of an earlier request,
    /// whose had other numbers in them.
    fn correct_head(
        &mut self,
        request: &Request<'_>,
        options: &PlanOptions,
        known: &dyn Known,
    ) -> Result<(), PlanError> {
        if known.state().is_none() || self.state.spare_tokens() == 0 {
            return Ok(());
        }
        let count =
            |index: usize| known.fact(index).map_or_else(|| fact(request, options, index), Ok);
        let mut tokens = 0;
        for index in 0..self.state.system_run() {
            tokens += count(index)?.tokens;
        }
        self.overhead_tokens += tokens;
        self.overhead_tokens = self.overhead_tokens.saturating_sub(self.state.head_tokens());
        self.received_tokens = self.state.received_tokens() + self.overhead_tokens;
        self.sent_tokens = self.received_tokens;
        Ok(())
    }

    /// Creates the plan that sends the request as received.
    fn new(
        request: &Request<'_>,
        options: &PlanOptions,
        overhead_tokens: u64,
        state: Arc<Compactor>,
    ) -> Self {
        let received_tokens = state.received_tokens() + overhead_tokens;
        Self {
            body: None,
            treatment: Treatment::Bypassed,
            action: "bypass".to_owned(),
            edits: Vec::new(),
            changes: Vec::new(),
            recall: None,
            limits: options.limits_of(request),
            limit_tokens: options.input_tokens(request),
            overhead_tokens,
            received_tokens,
            sent_tokens: received_tokens,
            planned_tokens: None,
            compactions: 0,
            is_compacted_here: false,
            is_early: false,
            zone: Zone::Continue,
            usage_request: None,
            max_output_tokens: request.max_output_tokens,
            is_clampable: false,
            prefetch: None,
            end: Arc::clone(&state),
            state,
        }
    }

    /// Leaves the request as received, within the limits that the operator and the caller have set.
    fn bypass(self) -> Result<Self, PlanError> {
        let set = [self.limits.operator_tokens, self.limits.header_tokens];
        match set.into_iter().flatten().min() {
            Some(limit_tokens) if self.received_tokens > limit_tokens => {
                Err(CannotFit::of(self, limit_tokens))
            }
            _ => Ok(self),
        }
    }

    /// Compacts the conversation at its end, and checks the size. Writes no body.
    fn shorten(
        mut self,
        options: &PlanOptions,
        source: &RequestSource<'_>,
    ) -> Result<Self, PlanError> {
        self.end = Arc::new(self.state.shortened(source));
        self.treatment = Treatment::Compacted;
        self.zone = self.end.zone();
        self.compactions = self.end.compactions();
        self.is_compacted_here = self.end.is_compacted_here();
        self.sent_tokens = self.end.sent_tokens() + self.overhead_tokens;
        if self.cannot_fit(options, source) {
            let limit_tokens = self.limit_tokens;
            return Err(CannotFit::of(self, limit_tokens));
        }
        self.action = edits::action(&self.end, Kind::Compacted, false);
        Ok(self)
    }

    /// Makes the compaction that is due at the end. Returns the kind of plan, and the list of tools with those
    /// whose load it leaves out, with their tokens.
    fn decide(
        &mut self,
        request: &Request<'_>,
        options: &PlanOptions,
        source: &RequestSource<'_>,
    ) -> (Kind, Option<(String, u64)>) {
        self.end = match self.state.ended(source) {
            Cow::Borrowed(_) => Arc::clone(&self.state),
            Cow::Owned(end) => Arc::new(end),
        };
        let end = &self.end;
        let needs_nothing = match options.kept {
            // Requests that were sent by them have shown the compactions.
            Some(_) => end.is_untouched(),
            None if options.passes_whole => self.received_tokens <= self.limit_tokens,
            None => end.needs_nothing(self.limit_tokens, self.overhead_tokens),
        };
        let kind;
        (self.treatment, kind) = match (options.mode, needs_nothing) {
            (Mode::Observe, true) => (Treatment::LeftAlone, Kind::Observed),
            (Mode::Observe, false) => (Treatment::Observed, Kind::Observed),
            (_, true) => (Treatment::LeftAlone, Kind::LeftAlone),
            (_, false) => (Treatment::Compacted, Kind::Compacted),
        };
        let loaded = |end: &Compactor| edits::loaded(end, request, source, options);
        let needs = (kind == Kind::Compacted).then(|| loaded(end)).flatten();
        let Some((_, more_tokens)) = needs else {
            return (kind, None);
        };
        self.end = Arc::new(end.with_tools(more_tokens, source));
        (kind, loaded(&self.end))
    }

    /// Makes the compaction that is due at the end, checks the size, and writes the body.
    fn finish(
        mut self,
        request: &Request<'_>,
        options: &PlanOptions,
        source: &RequestSource<'_>,
    ) -> Result<Self, PlanError> {
        let (kind, tools) = self.decide(request, options, source);
        if self.treatment == Treatment::Observed {
            let options = PlanOptions { mode: Mode::Compact, ..options.clone() };
            let made = self.clone().finish(request, &options, source);
            self.planned_tokens = made.ok().map(|plan| plan.sent_tokens);
        }
        let end = Arc::clone(&self.end);
        let needs_nothing = self.treatment == Treatment::LeftAlone;
        self.zone = end.zone();
        self.compactions = if needs_nothing { 0 } else { end.compactions() };
        self.is_compacted_here = kind == Kind::Compacted && end.is_compacted_here();
        if kind == Kind::Compacted {
            self.sent_tokens = end.sent_tokens() + self.overhead_tokens;
        }
        (self.changes, self.edits) = edits::edits(&end, request, source, options, kind);
        let opening = edits::opening(&end, request, options, &self.changes);
        if let Some((edit, tokens)) = opening.filter(|_| kind == Kind::Compacted) {
            self.sent_tokens += tokens;
            let place = self.changes.partition_point(|(message, _)| *message < edit.0);
            self.changes.insert(place, edit);
        }
        self.sent_tokens += tools.as_ref().map_or(0, |(_, more_tokens)| *more_tokens);
        self.prefetch = options.prefetch.and_then(|settings| end.prefetch(settings, source));
        if kind != Kind::Observed && self.cannot_fit(options, source) {
            let limit_tokens = self.limit_tokens;
            return Err(CannotFit::of(self, limit_tokens));
        }
        self.action = edits::action(&end, kind, needs_nothing);
        self.recall = if kind == Kind::Compacted { self.recalled(source) } else { None };
        if let Some(recall) = &self.recall {
            self.sent_tokens += recall.tokens;
            // After all other edits, since it follows the last message.
            self.changes.push((recall.message, Edit::Append(recall.text.clone())));
        }
        let mut frame = OuterEdits::new(request, options, self.sent_tokens, kind);
        frame.tools = tools.map(|(tools, _)| tools);
        self.edits.extend(frame.names());
        if options.writes_body {
            (self.body, self.usage_request) =
                edits::body(request, &options.model, &self.changes, &frame);
        }
        self.is_clampable = kind != Kind::Observed && clamp::is_possible(request);
        self.max_output_tokens = frame.clamp.or(request.max_output_tokens);
        Ok(self)
    }

    /// Whether the size is above the limit, and not only by what the provider may count differently: tools,
    /// scaled texts, images that it fetches and pages.
    fn cannot_fit(&self, options: &PlanOptions, source: &dyn Source) -> bool {
        if self.sent_tokens <= self.limit_tokens || !options.provider_decides {
            return self.sent_tokens > self.limit_tokens;
        }
        let sent = self.fates().iter().enumerate().filter(|(_, fate)| **fate != Fate::Gone);
        let sent = sent.filter_map(|(message, _)| source.message(message));
        let unsure_tokens: u64 = sent.map(|message| options.measure.unsure_tokens(&message)).sum();
        let messages_tokens = self.sent_tokens.saturating_sub(self.tools_tokens() + unsure_tokens);
        let least_tokens = match options.measure.encoding {
            Encoding::Scaled { permille, .. } => {
                messages_tokens * 1000 / u64::from(permille.max(1000))
            }
            _ => messages_tokens,
        };
        least_tokens > self.limit_tokens
    }

    /// Finds what bears on the last message of what was removed, if there is room for it.
    fn recalled(&self, source: &dyn Source) -> Option<Recall> {
        let recall = recall(&self.end, source)?;
        (self.sent_tokens + recall.tokens <= self.limit_tokens).then_some(recall)
    }

    /// Tokens of tools and schemas.
    pub fn tools_tokens(&self) -> u64 {
        self.overhead_tokens.saturating_sub(REPLY_PRIMING)
    }

    /// What becomes of each message if the plan compacts.
    pub fn fates(&self) -> &[Fate] {
        self.end.fates()
    }

    /// Returns the amounts that the caller's own rules cleared in what is sent.
    pub fn cleared(&self) -> Cleared {
        match self.treatment {
            Treatment::Compacted => self.end.cleared(),
            _ => Cleared::default(),
        }
    }

    /// Prompt tokens before the first message that compactions after the first `before` ones change.
    pub fn unchanged_tokens(&self, before: u32) -> u64 {
        let (end, notes) = (&self.end, &self.end.notes.list);
        let is_changed = |message: &usize| end.history().changed_in(*message) > before;
        let new_notes = notes.iter().filter(|note| note.compaction > before);
        let new_notes = new_notes.map(|note| note.message);
        let first = (0..end.messages()).find(is_changed).into_iter().chain(new_notes).min();
        let first = first.unwrap_or(end.messages());
        let notes_tokens = notes.iter().filter(|note| note.message < first).map(|note| note.tokens);
        let messages_tokens = (0..first).map(|message| end.sent_size(message));
        self.overhead_tokens + messages_tokens.chain(notes_tokens).sum::<u64>()
    }

    /// Steps of the compactions after the first `before` ones, in the words of `action`.
    pub fn steps_after(&self, before: u32) -> String {
        edits::steps_after(&self.end, before)
    }

    /// Whether the note of the last compaction had no room for its summary.
    pub fn is_summary_unfit(&self) -> bool {
        self.end.history().last().is_some_and(|last| last.summary == SummaryUse::Unfit)
    }
}
