//! Making of one summary: selects its messages, the form of the request and the number of rounds.
//! Stores nothing; the caller does.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::Summaries;
use super::call::{self, CallFailure, Line, SUMMARY, Said};
use super::request::{self, Output};
use crate::config::{Known, SAME_MODEL};
use crate::proxy::hold::account::{self, JournalEntry, believed};
use crate::proxy::summaries::{Requester, breakers::Permits, spans::PrefetchSpan};
use crate::upstream::Target;
use crate::upstream::breaker::Change;
use weir_engine::compact::Limits;
use weir_engine::compact::summary::{self, Round, Size, Summary, Unfit};
use weir_engine::tokens::{Encoding, REPLY_PRIMING};
use weir_store::budget::Compaction;

/// Maximum rounds of one summary: a longer span is not worth its price.
const MOST_ROUNDS: usize = 32;
/// Maximum bytes per token of text worth summarising; text above it is not even counted.
const MOST_BYTES_A_TOKEN: u64 = 16;

/// Summary to make.
pub(super) struct Work {
    pub requester: Arc<Requester>,
    pub wanted: PrefetchSpan,
    /// Messages of the span, as received.
    pub messages: Vec<Bytes>,
    /// The request as sent, with its size, if a question can be appended to it.
    pub sent: Option<Sent>,
    /// Its share of memory.
    pub _held: OwnedSemaphorePermit,
}

/// Request that was sent.
#[derive(Clone)]
pub struct Sent {
    pub body: Bytes,
    pub tokens: u64,
}

/// Reason why there is no summary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Missing {
    Call(CallFailure),
    Unfit(Unfit),
    /// The summariser's window is too small for a round.
    WindowTooSmall,
    /// It would take too many rounds.
    TooLong,
    /// The summariser's breaker is open.
    Paused,
    /// The caller's summaries have reached today's cap.
    Capped,
}

impl Missing {
    /// Returns its name in the log and in the counters.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Call(failure) => failure.word(),
            Self::Unfit(unfit) => unfit.word(),
            Self::WindowTooSmall => "window_too_small",
            Self::TooLong => "too_long",
            Self::Paused => "paused",
            Self::Capped => "capped",
        }
    }

    /// Returns the failed call, if one is the reason.
    pub(super) fn failure(&self) -> Option<&CallFailure> {
        match self {
            Self::Call(failure) => Some(failure),
            _ => None,
        }
    }

    /// Returns the breaker that it counts for.
    fn blame(&self) -> Blame {
        match self {
            Self::Call(CallFailure::Refused { status: 401 | 403 | 429 | 500.., .. }) => {
                Blame::Summariser
            }
            Self::Call(CallFailure::Unfinished { .. }) => Blame::Content,
            Self::Call(CallFailure::Refused { .. } | CallFailure::NotWritten) => Blame::Nobody,
            Self::Call(_) => Blame::Summariser,
            Self::Unfit(_) => Blame::Content,
            _ => Blame::Nobody,
        }
    }
}

/// Cause of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blame {
    Nobody,
    /// Affects all callers that use the summariser as this one does.
    Summariser,
    /// Possibly caused by a conversation's own content: nobody may lose summaries because of
    /// another's.
    Content,
}

/// Summary, and the effort of making it.
pub(super) struct Made {
    pub summary: Summary,
    pub calls: usize,
    pub tokens: u64,
    /// As far as the model has a price.
    pub cost_nano_usd: u64,
}

impl Made {
    fn count(&mut self, said: &Said) {
        let usage = believed(said.metered.usage.unwrap_or_default());
        let figures = [usage.prompt_tokens, usage.completion_tokens];
        let tokens = figures.into_iter().flatten().fold(0, u64::saturating_add);
        self.calls += 1;
        self.tokens = self.tokens.saturating_add(tokens);
        self.cost_nano_usd = self.cost_nano_usd.saturating_add(said.cost_nano_usd.unwrap_or(0));
    }
}

/// Prepares the rounds for a span, off the async threads.
async fn rounds(work: &Work, size: Size) -> Result<Vec<Round>, Missing> {
    let most_bytes = size.window_tokens.saturating_mul(MOST_BYTES_A_TOKEN * MOST_ROUNDS as u64);
    let bytes: usize = work.messages.iter().map(Bytes::len).sum();
    if bytes as u64 > most_bytes {
        return Err(Missing::TooLong);
    }
    let (messages, protocol) = (work.messages.clone(), work.requester.protocol);
    let read = move || {
        let texts: Vec<&str> =
            messages.iter().map(|raw| std::str::from_utf8(raw).unwrap_or("")).collect();
        let span: Vec<usize> = (0..texts.len()).collect();
        summary::rounds(protocol, &texts, &span, &size)
    };
    let rounds = tokio::task::spawn_blocking(read).await.map_err(|_| Missing::TooLong)?;
    let rounds = rounds.ok_or(Missing::WindowTooSmall)?;
    if rounds.len() > MOST_ROUNDS { Err(Missing::TooLong) } else { Ok(rounds) }
}

/// Writes and counts the request of one round, off the async threads.
async fn question(
    round: Round,
    before: Option<Arc<str>>,
    model: String,
    size: Size,
    output: Output,
) -> Result<SummaryQuestion, Missing> {
    let write = move || {
        let prompt = round.prompt(before.as_deref(), size.cap_tokens);
        let counted = [&prompt.system, &prompt.user].map(|text| size.encoding.count(text));
        let prompt_tokens = counted.iter().sum::<u64>() + REPLY_PRIMING;
        let body = request::separate(&model, &prompt.system, &prompt.user, &output);
        SummaryQuestion { body, prompt_tokens }
    };
    tokio::task::spawn_blocking(write).await.map_err(|_| Missing::TooLong)
}

/// One request to the summariser.
struct SummaryQuestion {
    body: String,
    prompt_tokens: u64,
}

impl Summaries {
    /// Makes a summary: appended to the request itself if its own model answers and there is room,
    /// else from the messages, in as many rounds as needed.
    pub(super) async fn make(&self, work: &Work) -> Result<Made, Missing> {
        let model = match self.lookup.settings.model.as_str() {
            SAME_MODEL => &work.wanted.model,
            model => model,
        };
        let mut made = Made {
            summary: Summary { covers: 0, text: "".into() },
            calls: 0,
            tokens: 0,
            cost_nano_usd: 0,
        };
        if let Some(question) = self.appended(work, model) {
            let (said, text) = self.ask(work, model, question).await?;
            made.count(&said);
            made.summary = Summary { covers: work.messages.len(), text: text.into() };
            return Ok(made);
        }
        let size = self.size(work, model);
        for round in rounds(work, size).await? {
            let covers = round.covers;
            let before = (made.calls > 0).then(|| Arc::clone(&made.summary.text));
            let output = self.output(model, size.cap_tokens);
            let question = question(round, before, model.to_owned(), size, output).await?;
            match self.ask(work, model, question).await {
                Ok((said, text)) => {
                    made.count(&said);
                    made.summary = Summary { covers, text: text.into() };
                }
                // The part summarised so far is worth keeping.
                Err(_) if made.summary.covers > 0 => break,
                Err(missing) => return Err(missing),
            }
        }
        match made.summary.covers {
            0 => Err(Missing::Unfit(Unfit::Empty)),
            _ => Ok(made),
        }
    }

    /// Appends the question to the request itself; `None` if another model or upstream answers, or
    /// there is no room.
    fn appended(&self, work: &Work, model: &str) -> Option<SummaryQuestion> {
        let sent = work.sent.as_ref()?;
        let found = self.config.models.find(model);
        let is_there = match self.line(&work.requester) {
            Line::Callers(upstream) => Arc::ptr_eq(&upstream, &work.requester.upstream),
            Line::Own(..) => false,
        };
        let is_own = is_there && model == work.wanted.model;
        if !is_own || !work.wanted.are_sent || found.entry.strict_alternation {
            return None;
        }
        let size = self.size(work, model);
        let instruction = summary::appended(size.cap_tokens);
        let prompt_tokens = sent.tokens + size.encoding.count(&instruction) + REPLY_PRIMING;
        let output = self.output(model, size.cap_tokens);
        if prompt_tokens + output.tokens > size.window_tokens {
            return None;
        }
        let sent = std::str::from_utf8(&sent.body).ok()?;
        let body = request::appended(sent, model, &instruction, &output)?;
        Some(SummaryQuestion { body, prompt_tokens })
    }

    /// Returns the limits of an answer of `cap_tokens`. A model's tokens differ from weir's; a longer
    /// summary is clipped.
    fn output(&self, model: &str, cap_tokens: u64) -> Output {
        let entry = self.config.models.find(model).entry;
        let reasoning_tokens = self.lookup.settings.reasoning_tokens.min(entry.window_tokens / 8);
        let tokens = 2 * cap_tokens + reasoning_tokens;
        Output {
            tokens: tokens.min(entry.max_output_tokens.unwrap_or(u64::MAX)),
            effort: self.lookup.settings.reasoning_effort.clone(),
            is_renamed: self.lookup.state.renamed_outputs.has(model),
        }
    }

    /// Returns the size of one request to the summariser, answer included. It follows from the
    /// known limits of the model, and the learned ones if summaries use the requests' upstream.
    fn size(&self, work: &Work, model: &str) -> Size {
        let found = self.config.models.find(model);
        let entry = found.entry;
        let cap_tokens = work.wanted.summary_tokens;
        let output_tokens = self.output(model, cap_tokens).tokens;
        let mut limits = Limits {
            window_tokens: entry.window_tokens,
            max_input_tokens: entry.max_input_tokens,
            max_output_tokens: entry.max_output_tokens,
            operator_tokens: self.config.configured_limit_tokens(model),
            header_tokens: None,
            asked_output_tokens: Some(output_tokens),
            counting: self.config.policy(None, None).counting,
        };
        let mut encoding = entry.encoding;
        if let Line::Callers(upstream) = self.line(&work.requester) {
            let (tenant, learned) = (work.requester.caller.tenant, &upstream.knowledge.learned);
            let is_known = !matches!(found.known, Known::Unknown);
            let of_model = learned.limits(tenant, model, limits.configured());
            of_model.apply(&mut limits, is_known);
            let ratio = learned.ratio(tenant, model);
            if let (Encoding::Estimate, Some((permille, digits))) = (encoding, ratio) {
                encoding = Encoding::Scaled { permille, digits };
            }
        }
        let input_tokens = [limits.max_input_tokens, limits.operator_tokens];
        let input_tokens = input_tokens.into_iter().flatten().fold(u64::MAX, u64::min);
        // The difference between the answer's limit and the part kept of it is not for input.
        let spare_tokens = output_tokens.saturating_sub(cap_tokens);
        let window_tokens = limits
            .window_tokens
            .saturating_sub(spare_tokens)
            .min(input_tokens.saturating_add(cap_tokens));
        // An estimate may be off by a tenth.
        let margin_tokens = if encoding == Encoding::Estimate { window_tokens / 10 } else { 0 };
        Size { encoding, window_tokens: window_tokens - margin_tokens, cap_tokens }
    }

    /// Makes one call, subject to the breaker and the cap, and returns the part of its answer to
    /// keep.
    async fn ask(
        &self,
        work: &Work,
        model: &str,
        question: SummaryQuestion,
    ) -> Result<(Said, String), Missing> {
        let tenant = work.requester.caller.tenant;
        let size = self.size(work, model);
        let output_tokens = self.output(model, size.cap_tokens).tokens;
        let most = [question.prompt_tokens, output_tokens];
        let _held = self.hold(tenant, model, most).await?;
        let breakers = self.breakers(&work.requester);
        let permits = breakers.permits(Instant::now()).ok_or(Missing::Paused)?;
        let target = self.target(&work.requester, model);
        let line = self.line(&work.requester);
        let headers = line.headers(&work.requester.headers, &target);
        let call = |body| {
            let (entry, sent) = (self.entry(work, model, most), (target.clone(), headers.clone()));
            let deadline = Duration::from_millis(self.lookup.settings.timeout_ms);
            call::call(&line, &self.journal, entry, sent, body, deadline)
        };
        let other = request::renamed(&question.body);
        let mut said = call(question.body).await;
        if let (Err(CallFailure::Refused { wants_renamed: true, .. }), Some(other)) = (&said, other)
        {
            said = call(other).await;
            if said.is_ok() {
                self.lookup.state.renamed_outputs.note(model);
            }
        }
        let said = said.map_err(Missing::Call);
        let said = said.and_then(|said| {
            let text = summary::check(&said.text, size.encoding, size.cap_tokens);
            let text = text.map_err(Missing::Unfit)?;
            // The note is counted as the request's own model counts.
            match summary::cap(&text, work.wanted.encoding, size.cap_tokens) {
                text if text.is_empty() => Err(Missing::Unfit(Unfit::Empty)),
                text => Ok((said, text)),
            }
        });
        self.report(permits, said.as_ref().err());
        said
    }

    /// Reports the end of a call to the breakers, and logs their changes.
    fn report(&self, permits: Permits<'_>, missing: Option<&Missing>) {
        let now = Instant::now();
        let (of_summariser, of_content) = match missing.map(Missing::blame) {
            None => (permits.summariser.report(true, now), permits.content.report(true, now)),
            Some(Blame::Nobody) => {
                permits.summariser.give_back();
                permits.content.give_back();
                return;
            }
            Some(Blame::Summariser) => {
                permits.content.give_back();
                (permits.summariser.report(false, now), Change::None)
            }
            // It did answer.
            Some(Blame::Content) => {
                (permits.summariser.report(true, now), permits.content.report(false, now))
            }
        };
        let why = missing.map(Missing::word);
        let pause_ms = self.lookup.settings.pause_ms;
        let paused = |change: Change, message: &str| {
            if change == Change::Opened {
                self.lookup.state.counts.paused();
                tracing::warn!(target: "weir::summaries", why, pause_ms, "{message}");
            }
        };
        paused(
            of_summariser,
            "summaries are paused: the last calls of the summariser failed. Requests go on with \
             extracts",
        );
        paused(
            of_content,
            "summaries are paused for one caller: its last ones could not be used. Its requests go \
             on with extracts",
        );
        if of_summariser == Change::Closed {
            tracing::info!(target: "weir::summaries", "the summariser answers again");
        }
    }

    fn target(&self, requester: &Requester, model: &str) -> Target {
        // The request's own route, if its model answers: a deployment's name is in the path.
        match &self.own_target {
            Some(target) if !self.line.is_callers() || self.lookup.settings.model == model => {
                target.clone()
            }
            _ => requester.target.clone(),
        }
    }

    fn entry(
        &self,
        work: &Work,
        model: &str,
        [prompt_tokens, output_tokens]: [u64; 2],
    ) -> JournalEntry {
        JournalEntry {
            caller: account::account(&work.requester.caller),
            route: SUMMARY.to_owned(),
            model: model.to_owned(),
            upstream: Some(self.line(&work.requester).client().base().origin().to_owned()),
            stream: false,
            action: SUMMARY.to_owned(),
            zone: "",
            attribution: Arc::default(),
            compaction: Some(Compaction {
                received_tokens: prompt_tokens,
                sent_tokens: prompt_tokens,
                max_input_tokens: u64::MAX,
                ..Compaction::default()
            }),
            counted_tokens: Some(prompt_tokens),
            max_output_tokens: Some(output_tokens),
            plan_ms: 0,
            is_billed: true,
        }
    }
}
