//! One summary: of which messages, by which form of question, in how many rounds. Keeps nothing; what
//! it makes is kept by whoever had it made.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use tokio::time::Instant;

use super::Summaries;
use super::breaker::Change;
use super::call::{self, Failure, SUMMARY, Said};
use super::request;
use super::spans::Wanted;
use crate::budget::Compaction;
use crate::config::SAME_MODEL;
use crate::context::summary::{self, Size, Summary, Unfit};
use crate::proxy::Caller;
use crate::proxy::journal::{self, Opening};
use crate::tokens::{Encoding, REPLY_PRIMING};
use crate::upstream::Target;
use crate::wire::Protocol;

/// The most rounds of one summary: a span that needs more is not worth its price.
const MOST_ROUNDS: usize = 32;

/// Whose request a summary is made for, and how it was sent.
#[derive(Clone)]
pub struct Behalf {
    pub caller: Caller,
    /// The headers that the request came with.
    pub headers: HeaderMap,
    pub target: Target,
    pub protocol: Protocol,
}

/// A summary to make.
pub struct Work {
    pub behalf: Arc<Behalf>,
    pub wanted: Wanted,
    /// The span's messages, as they came.
    pub messages: Vec<Bytes>,
    /// The request as it was sent, with what it takes, where it can be continued by a question.
    pub sent: Option<Sent>,
}

/// A request that was sent.
#[derive(Clone)]
pub struct Sent {
    pub body: Bytes,
    pub tokens: u64,
}

/// Why there is no summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    Call(Failure),
    Unfit(Unfit),
    /// The summariser's window holds no round.
    WindowTooSmall,
    /// It would take too many rounds.
    TooLong,
    /// The summariser is left alone for now.
    Paused,
    /// The caller's summaries have cost what they may today.
    Capped,
}

impl Missing {
    /// The word for it in the log and among the counts.
    pub fn word(self) -> &'static str {
        match self {
            Self::Call(failure) => failure.word(),
            Self::Unfit(unfit) => unfit.word(),
            Self::WindowTooSmall => "window_too_small",
            Self::TooLong => "too_long",
            Self::Paused => "paused",
            Self::Capped => "capped",
        }
    }

    /// Whether the summariser is to blame, which leaves it alone after a few times.
    fn is_summarisers(self) -> bool {
        matches!(self, Self::Call(_) | Self::Unfit(_)) && self != Self::Call(Failure::NotWritten)
    }
}

/// A summary, and what making it took.
pub struct Made {
    pub summary: Summary,
    pub calls: usize,
    pub tokens: u64,
    /// As far as the model has a price.
    pub cost_nano_usd: u64,
}

impl Made {
    fn count(&mut self, said: &Said) {
        let usage = said.metered.usage.unwrap_or_default();
        let figures = [usage.prompt_tokens, usage.completion_tokens];
        let tokens = figures.into_iter().flatten().fold(0, u64::saturating_add);
        self.calls += 1;
        self.tokens = self.tokens.saturating_add(tokens);
        self.cost_nano_usd = self.cost_nano_usd.saturating_add(said.cost_nano_usd.unwrap_or(0));
    }
}

/// One question.
struct Question {
    body: String,
    prompt_tokens: u64,
}

impl Summaries {
    /// Makes a summary: behind the request itself where that is its own model's and there is room,
    /// else from the messages, in as many rounds as they need.
    pub(super) async fn make(&self, work: &Work) -> Result<Made, Missing> {
        let model = match self.settings.model.as_str() {
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
        let texts: Vec<&str> =
            work.messages.iter().map(|raw| std::str::from_utf8(raw).unwrap_or("")).collect();
        let span: Vec<usize> = (0..texts.len()).collect();
        let size = self.size(model);
        let rounds = summary::rounds(work.behalf.protocol, &texts, &span, &size)
            .map_err(|_| Missing::WindowTooSmall)?;
        if rounds.len() > MOST_ROUNDS {
            return Err(Missing::TooLong);
        }
        for round in rounds {
            let before = (made.calls > 0).then_some(&*made.summary.text);
            let prompt = round.prompt(before, size.cap_tokens);
            let body = request::separate(model, &prompt.system, &prompt.user, size.cap_tokens);
            let prompt_tokens = size.encoding.count(&prompt.system)
                + size.encoding.count(&prompt.user)
                + REPLY_PRIMING;
            match self.ask(work, model, Question { body, prompt_tokens }).await {
                Ok((said, text)) => {
                    made.count(&said);
                    made.summary = Summary { covers: round.covers, text: text.into() };
                }
                // What was summed up so far is worth having.
                Err(_) if made.summary.covers > 0 => break,
                Err(missing) => return Err(missing),
            }
        }
        match made.summary.covers {
            0 => Err(Missing::Unfit(Unfit::Empty)),
            _ => Ok(made),
        }
    }

    /// The question behind the request itself; `None` where another model answers, it goes
    /// elsewhere, or there is no room behind it.
    fn appended(&self, work: &Work, model: &str) -> Option<Question> {
        let sent = work.sent.as_ref()?;
        let found = self.config.models.find(model);
        if !self.line.is_callers || model != work.wanted.model || found.entry.strict_alternation {
            return None;
        }
        let size = self.size(model);
        let instruction = summary::appended(size.cap_tokens);
        let prompt_tokens = sent.tokens + size.encoding.count(&instruction) + REPLY_PRIMING;
        let output_tokens = request::max_output_tokens(model, size.cap_tokens);
        if prompt_tokens + output_tokens > size.window_tokens {
            return None;
        }
        let sent = std::str::from_utf8(&sent.body).ok()?;
        let body = request::appended(sent, model, &instruction, size.cap_tokens)?;
        Some(Question { body, prompt_tokens })
    }

    /// What the summariser takes in one question, answer included.
    fn size(&self, model: &str) -> Size {
        let entry = self.config.models.find(model).entry;
        let operators = self.config.configured_limit_tokens(model).unwrap_or(u64::MAX);
        let cap_tokens = self.settings.max_tokens;
        let output_tokens = request::max_output_tokens(model, cap_tokens);
        let input_tokens = entry.max_input_tokens.unwrap_or(u64::MAX).min(operators);
        // The room between what is allowed for the answer and what is kept of it is not for input.
        let spare_tokens = output_tokens.saturating_sub(cap_tokens);
        let window_tokens = entry
            .window_tokens
            .saturating_sub(spare_tokens)
            .min(input_tokens.saturating_add(cap_tokens));
        // An estimate may be off by a tenth.
        let is_estimate = entry.encoding == Encoding::Estimate;
        let margin_tokens = if is_estimate { window_tokens / 10 } else { 0 };
        Size { encoding: entry.encoding, window_tokens: window_tokens - margin_tokens, cap_tokens }
    }

    /// One call, under the breaker and the cap, and what is kept of its answer.
    async fn ask(
        &self,
        work: &Work,
        model: &str,
        question: Question,
    ) -> Result<(Said, String), Missing> {
        let tenant = work.behalf.caller.tenant;
        self.check_cap(tenant).await?;
        let breaker = self.breaker(tenant);
        let leave = breaker.leave(Instant::now()).ok_or(Missing::Paused)?;
        let target = self.target(&work.behalf, model);
        let headers = self.line.headers(&work.behalf.headers, &target);
        let said = call::call(
            &self.line,
            &self.journal,
            self.opening(work, model, question.prompt_tokens),
            (target, headers),
            question.body,
            Duration::from_millis(self.settings.timeout_ms),
        )
        .await
        .map_err(Missing::Call);
        let size = self.size(model);
        let said = said.and_then(|said| {
            let text = summary::check(&said.text, size.encoding, size.cap_tokens);
            text.map(|text| (said, text)).map_err(Missing::Unfit)
        });
        let is_success = said.as_ref().err().is_none_or(|missing| !missing.is_summarisers());
        self.tell(leave.tell(is_success, Instant::now()), said.as_ref().err());
        said
    }

    fn tell(&self, change: Change, missing: Option<&Missing>) {
        match change {
            Change::None => {}
            Change::Opened => {
                self.counts.paused();
                tracing::warn!(
                    target: "weir::summaries",
                    why = missing.map(|missing| missing.word()),
                    pause_ms = self.settings.pause_ms,
                    "no summaries are asked for: the last calls of the summariser failed. Requests \
                     go on with extracts"
                );
            }
            Change::Closed => tracing::info!(
                target: "weir::summaries",
                "the summariser answers again"
            ),
        }
    }

    fn target(&self, behalf: &Behalf, model: &str) -> Target {
        // The request's own way, where its model answers: a deployment's name is in the path.
        match &self.own_target {
            Some(target) if !self.line.is_callers || self.settings.model == model => target.clone(),
            _ => behalf.target.clone(),
        }
    }

    fn opening(&self, work: &Work, model: &str, prompt_tokens: u64) -> Opening {
        Opening {
            caller: journal::account(&work.behalf.caller),
            route: SUMMARY.to_owned(),
            model: model.to_owned(),
            upstream: Some(self.line.client.base().origin().to_owned()),
            stream: false,
            action: SUMMARY.to_owned(),
            zone: "",
            compaction: Some(Compaction {
                received_tokens: prompt_tokens,
                sent_tokens: prompt_tokens,
                earlier_tokens: None,
                is_cut: false,
                max_input_tokens: u64::MAX,
            }),
            max_output_tokens: Some(request::max_output_tokens(model, self.settings.max_tokens)),
            plan_ms: 0,
            is_billed: true,
        }
    }
}
