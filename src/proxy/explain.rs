//! A plan told instead of carried out. What would be sent comes from the very function that plans
//! requests; this reads the fold behind it and adds words.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;

use super::draft::Draft;
use super::planner::{self, Asked, Job, Pace, Planned, Planner, Stop};
use super::question::Question;
use super::shared::Shared;
use super::ways::Put;
use super::{ErrorKind, ProxyError, Tenant};
use crate::config::Mode;
use crate::context::report::{self, Base, Preflight, Report, Subject, Treatment};
use crate::wire::Protocol;
use crate::wire::model::Spot;

/// What would be sent in place of a request, and why.
#[derive(Debug, Clone)]
pub struct Explained {
    pub report: Report,
    /// What would become of a content that may come next.
    pub preflight: Option<Preflight>,
    /// The body that would be sent; `None` where the request would be refused.
    pub body: Option<Bytes>,
    /// The conversation that would be sent, or would be refused, as plain text, where asked for.
    pub text: Option<String>,
    wants_body: bool,
}

/// The answer as JSON.
#[derive(Serialize)]
struct Answer<'a> {
    object: &'static str,
    #[serde(flatten)]
    report: &'a Report,
    preflight: Option<&'a Preflight>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
}

impl Explained {
    /// All of it as one JSON object.
    pub fn json(&self) -> String {
        let body = self.body.as_deref().filter(|_| self.wants_body);
        let answer = Answer {
            object: "weir.plan",
            report: &self.report,
            preflight: self.preflight.as_ref(),
            body: body.and_then(|body| serde_json::from_slice(body).ok()),
            text: self.text.as_deref(),
        };
        serde_json::to_string(&answer).expect("texts and numbers under fixed keys are JSON")
    }
}

impl Planner {
    /// Tells what [`Self::plan`] would send of `body`, or of a request that holds nothing but it
    /// where it is a list of messages, and why. `question` is what is asked beside
    /// that; where none is given, the body's member `weir` may ask. That member is no part of what
    /// is planned.
    pub async fn explain(
        &self,
        tenant: Tenant,
        protocol: Protocol,
        body: Bytes,
        path_model: Option<&str>,
        asked: Asked,
        question: Option<Question>,
    ) -> Result<Explained, ProxyError> {
        let mut job = Job::new(tenant, protocol, body, asked);
        job.path_model = path_model.map(str::to_owned);
        let ways = self.ways();
        if ways.are_several() {
            let spot = Spot::of(&job.body);
            let asked = path_model.or(spot.as_ref().and_then(Spot::model));
            let way = ways.find(asked.unwrap_or_default());
            let sent = asked.map(|asked| way.sent(asked));
            job.way = Some(Arc::clone(way));
            job.alias_of = asked.filter(|asked| sent != Some(asked)).map(str::to_owned);
            match (path_model, sent) {
                (None, Some(sent)) => {
                    let renamed = Put::InPlace(sent).into(&job.body, spot.as_ref());
                    job.body = renamed.unwrap_or(job.body);
                }
                (_, sent) => job.path_model = sent.map(str::to_owned),
            }
        }
        self.explain_job(job, question).await
    }

    /// The same of a job.
    pub(super) async fn explain_job(
        &self,
        mut job: Job,
        question: Option<Question>,
    ) -> Result<Explained, ProxyError> {
        job.body = with_messages(job.body);
        self.unhurried(job, |shared, mut job| {
            let (body, own) = Question::take(job.body.clone())?;
            job.body = body;
            explain(shared, &job, &question.unwrap_or(own))
        })
        .await
    }
}

/// A request's body. Messages alone become one.
fn with_messages(body: Bytes) -> Bytes {
    match body.trim_ascii_start().starts_with(b"[") {
        true => [b"{\"messages\":".as_slice(), &body, b"}"].concat().into(),
        false => body,
    }
}

fn explain(shared: &Shared, job: &Job, question: &Question) -> Result<Explained, Stop> {
    let planned = match planner::guarded(shared, job, Pace::Unhurried) {
        Ok(planned) => Ok(planned),
        Err(Stop::Refused(error)) if error.kind == ErrorKind::ContextLengthExceeded => Err(error),
        Err(stop) => return Err(stop),
    };
    let told = || {
        let draft = Draft::read(shared, job, Pace::Unhurried)?;
        draft.tell(&planned, question)
    };
    catch_unwind(AssertUnwindSafe(told)).unwrap_or_else(|_| {
        tracing::error!(target: "weir::fault", "explaining a plan failed");
        let message = "the plan could not be explained, through a fault of weir's";
        Err(ProxyError::new(ErrorKind::Internal, message).into())
    })
}

impl Draft<'_> {
    /// Tells of what was planned.
    fn tell(
        &self,
        planned: &Result<Planned, ProxyError>,
        question: &Question,
    ) -> Result<Explained, Stop> {
        // The fold that the plan was made by: it was remembered, or comes out the same again.
        let spans = self.spans();
        let fold = self.fold(spans.as_ref())?.fold;
        let standing =
            |gone: &[usize], space| spans.as_ref().and_then(|spans| spans.standing(gone, space));
        let read_many = |messages: &[usize]| self.read_many(messages);
        let source = self.source(&read_many).with_summaries(&standing);
        let end = fold.ended(&source);
        let limit_tokens = self.limits.input_tokens();
        let received_tokens = end.received_tokens() + self.overhead_tokens;
        let needs_nothing = end.needs_nothing(limit_tokens, self.overhead_tokens);
        let treatment = match self.shared.config.context.mode {
            _ if self.job.asked.bypass => Treatment::Bypassed,
            _ if needs_nothing => Treatment::LeftAlone,
            Mode::Observe => Treatment::Observed,
            Mode::Compact => Treatment::Compacted,
        };
        let is_compacted = treatment == Treatment::Compacted && planned.is_ok();
        let tail = is_compacted.then(|| self.tail(&end, &source)).flatten();
        let refused_tokens = match treatment {
            Treatment::Compacted => end.sent_tokens() + self.overhead_tokens,
            _ => received_tokens,
        };
        let protocol = self.job.protocol;
        let messages = self.request.messages.as_slice();
        let report = Report::new(&Subject {
            fold: &end,
            tail: tail.as_ref(),
            protocol,
            messages,
            model: &self.model,
            policy: self.policy_name(),
            is_model_known: self.is_model_known,
            limits: &self.limits,
            overhead_tokens: self.overhead_tokens,
            treatment,
            action: planned.as_ref().map_or("refuse", |planned| planned.action.as_str()),
            edits: planned.as_ref().map_or("", |planned| planned.edits.as_str()),
            refusal: planned.as_ref().err().map(|error| error.message.as_str()),
            sent_tokens: planned.as_ref().map_or(refused_tokens, |planned| planned.sent_tokens),
        });
        let base = Base {
            fold: &fold,
            protocol,
            messages,
            limit_tokens,
            overhead_tokens: self.overhead_tokens,
        };
        let preflight = question.content.as_ref();
        let body = planned.as_ref().ok();
        let body = body.map(|planned| planned.body.clone().unwrap_or(self.job.body.clone()));
        Ok(Explained {
            report,
            preflight: preflight
                .map(|(category, content)| report::preflight(&base, *category, content)),
            text: question.wants_text.then(|| self.dialogue(body.as_deref())),
            wants_body: question.wants_body,
            body,
        })
    }

    fn policy_name(&self) -> &str {
        let asked = self.job.asked.policy.as_deref();
        let by_model = self.way.policy().or(self.settings.policy.as_deref());
        asked.or(by_model).unwrap_or(&self.shared.config.context.default_policy)
    }

    /// The conversation of a body that would be sent; as received where none would be.
    fn dialogue(&self, body: Option<&[u8]>) -> String {
        let protocol = self.job.protocol;
        let sent = body.and_then(|body| protocol.read(body, usize::MAX).ok());
        let messages = sent.as_ref().map_or(&self.request.messages, |sent| &sent.messages);
        report::plain::dialogue(protocol, messages)
    }
}
