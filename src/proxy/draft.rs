//! One request on its way to a plan: read, its limits found, folded and checked. Whether it may take its
//! time, and what is done about a fault, is `planner.rs`'s.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use super::beginnings::Looked;
use super::edited::{self, Beside, Kind};
use super::error::Subject;
use super::memory::{Chain, Remembered};
use super::planned::Folded;
use super::planner::{INLINE_BYTES, Job, Pace, Planned, Stop};
use super::refusal::{self, Unfit};
use super::several;
use super::shared::{Shared, shown};
use super::summaries::Spans;
use super::ways::Way;
use super::{ErrorKind, LeftOut, ProxyError};
use crate::budget::{Compaction, ServiceTier};
use crate::config::{Known, Mode, ModelSettings, Originals};
use crate::context::history::SummaryUse;
use crate::context::reading::Reading;
use crate::context::source::{ReadMany, Readings, read_one};
use crate::context::tail::Tail;
use crate::context::{
    self, Bound, Fact, Fold, LearnedLimits, Limits, Measure, Profile, RequestSource, Zone,
};
use crate::tokens::media::ImageRule;
use crate::tokens::{Digits, Encoding, REPLY_PRIMING};
use crate::wire::{Edit, Request, clamp};

/// A request whose body is read and whose limits are known.
pub(super) struct Draft<'a> {
    pub(super) shared: &'a Shared,
    pub(super) job: &'a Job,
    pace: Pace,
    pub(super) request: Request<'a>,
    /// What was known of the body before; `None` of a short one.
    looked: Option<Looked<'a>>,
    pub(super) model: Cow<'a, str>,
    pub(super) is_model_known: bool,
    /// The way that the request goes.
    pub(super) way: &'a Way,
    pub(super) limits: Limits,
    /// Tools, schemas and reply priming, as they are.
    pub(super) overhead_tokens: u64,
    profile: Arc<Profile>,
    pub(super) settings: ModelSettings,
    learned: LearnedLimits,
    is_calibrated: bool,
    /// What its messages say, as far as that was asked for.
    readings: Rc<Readings>,
}

/// Reads a body, from the end of what is known of it on.
fn read_body<'a>(
    job: &'a Job,
    looked: Option<&Looked<'_>>,
    max_messages: usize,
) -> Result<Request<'a>, Stop> {
    let request = match looked.and_then(|looked| looked.known.as_ref()) {
        Some(known) => job.protocol.read_on(&job.body, &known.read, max_messages),
        None => job.protocol.read(&job.body, max_messages),
    };
    Ok(request.map_err(refusal::body)?)
}

/// The encoding to count by: an estimate if the policy asks for one, else the learned or configured
/// ratio, else the model's own.
fn encoding(own: Encoding, is_estimated: bool, ratio: Option<(u32, Digits)>) -> Encoding {
    match (is_estimated, ratio) {
        (true, _) => Encoding::Estimate,
        (false, Some((permille, digits))) => Encoding::Scaled { permille, digits },
        (false, None) => own,
    }
}

impl<'a> Draft<'a> {
    pub(super) fn read(shared: &'a Shared, job: &'a Job, pace: Pace) -> Result<Self, Stop> {
        let config = &shared.config;
        let looked = shared.memory.beginnings.look(job.tenant, &job.body);
        if pace == Pace::Inline && looked.as_ref().is_some_and(|looked| looked.known.is_none()) {
            // A long conversation that nobody has seen: there is much to count.
            return Err(Stop::Heavy);
        }
        let request = read_body(job, looked.as_ref(), config.server.max_messages)?;
        let model = match &job.path_model {
            Some(model) => Cow::Borrowed(model.as_str()),
            None => request.model.clone().unwrap_or(Cow::Borrowed("")),
        };
        let found = config.models.find(&model);
        let is_model_known = !matches!(found.known, Known::Unknown);
        if !is_model_known {
            shared.warn_once(&model, &found.entry);
        }
        let way = job.way.as_ref().unwrap_or_else(|| shared.ways.unmatched());
        let settings = config.settings(found.name);
        let mut policy =
            config.policy(job.asked.policy.as_deref(), way.policy().or(settings.policy.as_deref()));
        policy.strict_alternation = found.entry.strict_alternation;
        policy.notes_apart = !found.entry.strict_alternation && is_model_known;
        // An alias is no way around a limit, be it on the one name or on the other.
        let by_name = [Some(model.as_ref()), job.alias_of.as_deref()];
        let by_name = by_name.into_iter().flatten();
        let operator_tokens = by_name.filter_map(|name| config.configured_limit_tokens(name));
        let mut limits = Limits {
            window_tokens: found.entry.window_tokens,
            max_input_tokens: found.entry.max_input_tokens,
            max_output_tokens: found.entry.max_output_tokens,
            operator_tokens: operator_tokens.chain(way.max_input_tokens()).min(),
            header_tokens: job.asked.max_input_tokens,
            asked_output_tokens: request.max_output_tokens,
            counting: policy.counting,
        };
        let learned = match job.asked.learned {
            Some(learned) => learned,
            None => way.taught.learned.limits(job.tenant, &model, limits.configured()),
        };
        learned.apply(&mut limits, is_model_known);
        let known = settings.token_permille;
        let is_estimate = found.entry.encoding == Encoding::Estimate;
        let is_calibrated = is_estimate && known.is_none() && !policy.counting.is_estimated;
        let set = known.map(|permille| (permille, Digits::Apart));
        let learned_ratio = || way.taught.learned.ratio(job.tenant, &model);
        let ratio = set.or_else(|| learned_ratio().filter(|_| is_calibrated));
        let encoding = encoding(found.entry.encoding, policy.counting.is_estimated, ratio);
        let measure = Measure { encoding, images: ImageRule::of_model(&model) };
        let extras_tokens = shared.extras_tokens(job.tenant, &request, measure, pace)?;
        let profile = Arc::new(limits.profile(extras_tokens, policy, measure));
        let overhead_tokens = extras_tokens + REPLY_PRIMING;
        Ok(Self {
            shared,
            job,
            pace,
            request,
            looked,
            model,
            is_model_known,
            way,
            limits,
            overhead_tokens,
            profile,
            settings,
            learned,
            is_calibrated,
            readings: Rc::default(),
        })
    }

    pub(super) fn fold_and_plan(
        &self,
        fold: impl FnOnce(&Self, Option<&Spans<'_>>) -> Result<Folded, Stop>,
    ) -> Result<Planned, Stop> {
        let spans = self.spans();
        let folded = fold(self, spans.as_ref()).map_err(|stop| self.about(stop, None))?;
        let received_tokens = folded.fold.received_tokens() + self.overhead_tokens;
        let planned = self.conclude(&folded, spans.as_ref());
        planned.map_err(|stop| self.about(stop, Some(received_tokens)))
    }

    /// `stop`, with the conversation that it is about if it is an error.
    fn about(&self, stop: Stop, received_tokens: Option<u64>) -> Stop {
        let Stop::Refused(mut error) = stop else { return stop };
        error.subject.get_or_insert_with(|| {
            let (model, limit_tokens) = (self.model.to_string(), self.limits.input_tokens());
            Box::new(Subject { model, received_tokens, limit_tokens })
        });
        Stop::Refused(error)
    }

    /// What stands for messages that cuts take, where a model sums up.
    pub(super) fn spans(&self) -> Option<Spans<'_>> {
        let (summaries, job) = (self.shared.summaries.as_ref()?, self.job);
        let conversation = (self.request.messages.as_slice(), self.model.as_ref(), self.encoding());
        Some(Spans::new(summaries, job, conversation))
    }

    /// Takes the transcript up where an earlier request of the conversation left it, or from the
    /// start, and remembers where it is now.
    pub(super) fn fold(&self, spans: Option<&Spans<'_>>) -> Result<Folded, Stop> {
        let memory = &self.shared.memory;
        let chain = self.chain();
        let remembered = memory.longest_fold(&chain);
        let earlier = remembered.as_ref();
        let last_sent = earlier.map(|earlier| earlier.last_sent.branch()).unwrap_or_default();
        let looked_at = earlier.map(|earlier| earlier.looked_at);
        // Folding anew asks for all that stands, which renews its life in the store.
        let is_stale = spans.zip(looked_at).is_some_and(|(spans, at)| spans.is_stale(at));
        let looked_at = looked_at.filter(|_| !is_stale).unwrap_or_else(Instant::now);
        let mut fold = match earlier.filter(|_| !is_stale) {
            Some(same) if same.fold.messages() == self.request.messages.len() => {
                let (fold, last_sent) = (Arc::clone(&same.fold), same.last_sent.clone());
                return Ok(Folded { fold, last_sent });
            }
            Some(earlier) => Fold::clone(&earlier.fold),
            None => Fold::new(Arc::clone(&self.profile)),
        };
        if self.pace == Pace::Inline && earlier.is_none() && self.looked.is_some() {
            return Err(Stop::Heavy);
        }
        let facts = self.facts_from(fold.messages(), &chain)?;
        let more_tokens = facts.iter().map(|fact| fact.tokens).sum();
        let is_heavy = || fold.is_above_mark(more_tokens) || self.is_slow_to_take(fold.messages());
        if self.pace == Pace::Inline && is_heavy() {
            return Err(Stop::Heavy);
        }
        let standing = |gone: &[usize], space| spans.and_then(|spans| spans.standing(gone, space));
        let read_many = |messages: &[usize]| self.read_many(messages);
        let source = self.source(&read_many).with_summaries(&standing);
        for fact in facts {
            fold.push(fact, &source);
        }
        let fold = Arc::new(fold);
        if spans.is_some_and(Spans::is_unsettled) {
            // What nobody has settled is not to be taken up by requests that are sent.
            return Ok(Folded { fold, last_sent });
        }
        let earlier_messages = earlier.map(|earlier| earlier.fold.messages());
        let kept = Remembered { fold: Arc::clone(&fold), looked_at, last_sent: last_sent.clone() };
        memory.keep_fold(&chain, kept, earlier_messages);
        Ok(Folded { fold, last_sent })
    }

    /// The keys of the conversation. What was hashed of it is remembered for its next request.
    fn chain(&self) -> Chain {
        let (memory, messages) = (&self.shared.memory, &self.request.messages);
        let known = self.looked.as_ref().and_then(|looked| looked.known.as_ref());
        // A beginning whose messages are too many is not read on from.
        let known = known.map(|known| &*known.hashes).filter(|known| known.len() <= messages.len());
        let known = known.unwrap_or_default();
        let chain = Chain::new(memory, self.job.tenant, &self.profile, messages, known);
        if let Some(looked) = &self.looked
            && let Some(read) = self.job.protocol.beginning(&self.request)
        {
            memory.beginnings.keep(looked, read, chain.own());
        }
        chain
    }

    /// Whether the policy has every message from `start` on searched, and these are many.
    fn is_slow_to_take(&self, start: usize) -> bool {
        let new = self.request.messages.iter().skip(start);
        !self.profile.policy.anchors.is_empty()
            && new.map(|raw| raw.len()).sum::<usize>() > INLINE_BYTES
    }

    /// The facts of the messages from `start` on, counted only where no request brought them yet.
    fn facts_from(&self, start: usize, chain: &Chain) -> Result<Vec<Fact>, Stop> {
        let memory = &self.shared.memory;
        let messages = &self.request.messages;
        let (mut new_bytes, mut unknown) = (0, Vec::new());
        let mut facts = Vec::with_capacity(messages.len() - start);
        for (index, raw) in messages.iter().enumerate().skip(start) {
            let fact = memory.fact(chain.content_key(index));
            if fact.is_none() {
                new_bytes += raw.len();
                if self.pace == Pace::Inline && new_bytes > INLINE_BYTES {
                    return Err(Stop::Heavy);
                }
                unknown.push(index);
            }
            facts.push(fact);
        }
        let (protocol, measure) = (self.job.protocol, self.profile.measure);
        let count = move |raw: &str| Ok(measure.fact(&protocol.read_message(raw)?));
        for (index, fact) in unknown.iter().copied().zip(self.map(&unknown, count)) {
            let fact = fact.map_err(|error| refusal::message(index, &error))?;
            memory.keep_fact(chain.content_key(index), fact);
            facts[index - start] = Some(fact);
        }
        Ok(facts.into_iter().flatten().collect())
    }

    /// What `work` makes of some of the messages, shared with other threads where it may take its time.
    fn map<T: Send + 'static>(
        &self,
        messages: &[usize],
        work: impl Fn(&str) -> T + Send + Sync + 'static,
    ) -> Vec<T> {
        let raws: Vec<&str> = messages.iter().map(|index| self.request.messages[*index]).collect();
        match self.pace {
            Pace::Inline => raws.into_iter().map(work).collect(),
            Pace::Unhurried => several::map(&self.shared.heavy, &self.job.body, &raws, work),
        }
    }

    /// Reads some of the messages for what they say.
    pub(super) fn read_many(&self, messages: &[usize]) -> Vec<Reading> {
        let protocol = self.job.protocol;
        self.map(messages, move |raw| read_one(protocol, raw))
    }

    /// The messages as cuts see them. `read_many` is [`Self::read_many`].
    pub(super) fn source<'s>(&'s self, read_many: &'s ReadMany<'s>) -> RequestSource<'s> {
        let encoding = self.encoding();
        RequestSource::new(self.job.protocol, &self.request.messages, encoding)
            .with_readings(Rc::clone(&self.readings), read_many)
    }

    /// Checks the size against the limit and writes the body.
    fn conclude(&self, folded: &Folded, spans: Option<&Spans<'_>>) -> Result<Planned, Stop> {
        let (config, fold) = (&self.shared.config, &*folded.fold);
        let limit_tokens = self.limits.input_tokens();
        let received_tokens = fold.received_tokens() + self.overhead_tokens;
        if self.job.asked.bypass {
            let mut planned = self.bypass(received_tokens)?;
            planned.progress = Some(folded.progress(0));
            return Ok(planned);
        }
        let standing = |gone: &[usize], space| spans.and_then(|spans| spans.standing(gone, space));
        let read_many = |messages: &[usize]| self.read_many(messages);
        let source = self.source(&read_many).with_summaries(&standing);
        if self.pace == Pace::Inline && fold.is_above_mark(0) {
            return Err(Stop::Heavy);
        }
        let end = fold.ended(&source);
        if let Some(wanted) = spans.and_then(Spans::take_open) {
            return Err(Stop::Waits(wanted));
        }
        let is_observed = config.context.mode == Mode::Observe;
        let needs_nothing = end.needs_nothing(limit_tokens, self.overhead_tokens);
        let is_left_alone = is_observed || needs_nothing;
        if self.pace == Pace::Inline && !is_left_alone && context::tail::is_possible(&end) {
            return Err(Stop::Heavy);
        }
        let mut sent_tokens = match is_left_alone {
            true => received_tokens,
            false => end.sent_tokens() + self.overhead_tokens,
        };
        if sent_tokens > self.limits.input_tokens() && !is_observed {
            let unfit = self.unfit(&end, received_tokens, sent_tokens);
            return Err(refusal::cannot_fit(&unfit).into());
        }
        let kind = match (is_observed, needs_nothing) {
            (true, _) => Kind::Observed,
            (false, true) => Kind::LeftAlone,
            (false, false) => Kind::Compacted,
        };
        let action = edited::action(&end, kind, needs_nothing);
        let (mut edits, mut named) =
            edited::edits(&end, &self.request, &source, &self.settings, kind);
        if let Some(tail) = self.tail(&end, &source).filter(|_| kind == Kind::Compacted) {
            sent_tokens += tail.tokens;
            // Behind all other edits, as it stands behind the last message.
            edits.push((tail.message, Edit::Append(tail.text)));
        }
        let beside = self.beside(sent_tokens, is_observed);
        named.extend(beside.question.map(|_| edited::USAGE));
        named.extend(beside.clamp.map(|_| edited::CLAMP));
        let lowered = beside.clamp;
        let (body, asked) =
            edited::body(self.job.protocol, &self.request, &self.model, &edits, beside);
        let cuts = if needs_nothing { 0 } else { end.cuts() };
        let named = named.join(",");
        let mut planned = self.planned(body, action, &named, received_tokens, sent_tokens, cuts);
        planned.usage_asked = asked;
        planned.is_clampable = !is_observed && clamp::is_possible(&self.request);
        planned.zone = end.zone();
        planned.is_cut_here = !is_left_alone && end.is_cut_here();
        planned.max_output_tokens = lowered.or(self.request.max_output_tokens);
        self.compare(&mut planned, folded, &end, kind);
        let is_unfit = end.history().last().is_some_and(|cut| cut.summary == SummaryUse::Unfit);
        planned.summary = spans.and_then(|spans| spans.told(is_unfit));
        planned.ahead = spans.and_then(|spans| spans.ahead(&end, &source));
        if !is_left_alone && config.context.originals != Originals::Off {
            planned.left_out = LeftOut::of(&self.job.body, &self.request, end.fates());
        }
        Ok(planned)
    }

    /// Notes which compactions the request of the conversation that an upstream took last had not.
    fn compare(&self, planned: &mut Planned, folded: &Folded, end: &Fold, kind: Kind) {
        let compactions = if kind == Kind::Compacted { end.cuts() } else { 0 };
        let before = folded.last_sent.get();
        let compactions_before = before.map_or(0, |sent| sent.compactions);
        planned.compaction.earlier_tokens =
            before.map(|sent| sent.received_tokens + self.overhead_tokens);
        planned.compaction.is_cut = compactions > compactions_before;
        if planned.compaction.is_cut {
            planned.compacted_by = edited::compacted_by(end, compactions_before);
        }
        planned.progress = Some(folded.progress(compactions));
    }

    /// What a refusal says of a request that cannot be made to fit.
    fn unfit(&self, end: &Fold, received_tokens: u64, sent_tokens: u64) -> Unfit {
        let learned = [self.learned.window_tokens, self.learned.max_input_tokens];
        let is_learned = match self.limits.bound() {
            Bound::Window => learned[0] == Some(self.limits.window_tokens),
            Bound::ModelInput => learned[1] == self.limits.max_input_tokens,
            Bound::Operator | Bound::Header => false,
        };
        Unfit {
            limits: self.limits,
            floor: end.floor(),
            tools_tokens: self.overhead_tokens - REPLY_PRIMING,
            received_tokens,
            least_tokens: sent_tokens,
            is_learned,
            is_model_known: self.is_model_known,
        }
    }

    /// What is changed beside the messages.
    fn beside(&self, sent_tokens: u64, is_observed: bool) -> Beside {
        let question = self.request.usage_question;
        // What is estimated may be a little more.
        let spare_tokens = if self.encoding().is_estimated() { sent_tokens / 32 } else { 0 };
        let most_tokens = sent_tokens + spare_tokens;
        let asked_output = self.request.max_output_tokens;
        let learned = self.learned.clamped(&self.limits, most_tokens, asked_output);
        let most = self.job.asked.max_output_tokens;
        let budgeted = most.filter(|most| asked_output.is_none_or(|asked| asked > *most));
        let clamp = learned.into_iter().chain(budgeted).min();
        Beside {
            question: question.filter(|_| self.may_ask_usage()),
            clamp: clamp.filter(|_| !is_observed),
        }
    }

    fn encoding(&self) -> Encoding {
        self.profile.measure.encoding
    }

    fn may_ask_usage(&self) -> bool {
        !self.job.asked.is_usage_refused && self.way.taught.refusers.may_be_asked(&self.model)
    }

    /// What is put after the last message of a request that ends in the state `end`.
    pub(super) fn tail(&self, end: &Fold, source: &RequestSource<'_>) -> Option<Tail> {
        let tail = context::tail(end, source)?;
        let sent_tokens = end.sent_tokens() + self.overhead_tokens + tail.tokens;
        (sent_tokens <= self.limits.input_tokens()).then_some(tail)
    }

    /// Forwards the request as received, within the operator's own limit.
    fn bypass(&self, received_tokens: u64) -> Result<Planned, Stop> {
        let operator = [self.limits.operator_tokens, self.limits.header_tokens];
        let limit_tokens = operator.into_iter().flatten().min();
        if let Some(limit_tokens) = limit_tokens.filter(|limit| received_tokens > *limit) {
            return Err(refusal::bypass(received_tokens, limit_tokens).into());
        }
        Ok(self.planned(None, "bypass".into(), "", received_tokens, received_tokens, 0))
    }

    /// After a fault inside compaction: the original, where it can be shown to fit.
    pub(super) fn forward_after_fault(&self) -> Result<Planned, Stop> {
        tracing::error!(target: "weir::fault", model = %shown(&self.model), "compaction failed");
        let limit_tokens = self.limits.input_tokens();
        // No text takes more tokens than bytes; framing is what is counted beside it.
        let most_tokens = self.job.body.len() as u64 + self.overhead_tokens;
        let counted = || {
            let facts = self.request.messages.iter().map(|raw| {
                let message = self.job.protocol.read_message(raw).ok()?;
                Some(self.profile.measure.fact(&message).tokens)
            });
            facts.sum::<Option<u64>>().map(|tokens| tokens + self.overhead_tokens)
        };
        let received = if most_tokens <= limit_tokens {
            Some(most_tokens)
        } else {
            catch_unwind(AssertUnwindSafe(counted)).ok().flatten()
        };
        match received {
            Some(tokens) if tokens <= limit_tokens => {
                Ok(self.planned(None, "fault".into(), "", tokens, tokens, 0))
            }
            _ => Err(ProxyError::new(
                ErrorKind::Internal,
                "compaction failed, and the request does not fit without it",
            )
            .into()),
        }
    }

    fn planned(
        &self,
        body: Option<Bytes>,
        action: String,
        edits: &str,
        received_tokens: u64,
        sent_tokens: u64,
        cuts: u32,
    ) -> Planned {
        Planned {
            body,
            action,
            edits: match (&self.job.alias_of, edits) {
                (None, edits) => edits.to_owned(),
                (Some(_), "") => edited::ALIAS.to_owned(),
                (Some(_), edits) => format!("{},{edits}", edited::ALIAS),
            },
            received_tokens,
            sent_tokens,
            limit_tokens: self.limits.input_tokens(),
            messages: self.request.messages.len() as u32,
            cuts,
            is_cut_here: false,
            left_out: LeftOut::default(),
            model: self.model.clone().into_owned(),
            upstream: self.way.taught.origin.clone(),
            stream: self.request.stream,
            usage_asked: None,
            zone: Zone::Continue,
            compaction: Compaction {
                received_tokens,
                sent_tokens,
                earlier_tokens: None,
                is_cut: cuts > 0,
                max_input_tokens: self.limits.max_input_tokens.unwrap_or(self.limits.window_tokens),
            },
            max_output_tokens: self.request.max_output_tokens,
            choices: self.request.choices,
            service_tier: self.request.service_tier.as_deref().map(ServiceTier::from_name),
            is_clampable: false,
            limits: self.limits,
            is_model_known: self.is_model_known,
            encoding: self.encoding(),
            is_calibrated: self.is_calibrated,
            summary: None,
            ahead: None,
            budget: None,
            compacted_by: String::new(),
            progress: None,
        }
    }
}
