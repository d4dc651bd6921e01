//! Plan reported instead of carried out. Plans as for sending, and describes the result; decides
//! nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;

use super::draft::{Drafted, Given, Step};
use super::planned::Job;
use super::planner::{self, Planner};
use super::question::Question;
use super::shared::Shared;
use crate::proxy::admit::request::RequestOptions;
use crate::proxy::error::{ErrorKind, Proxied, ProxyError};
use crate::proxy::upstreams::routes::{ModelOverride, Routes};
use weir_engine::compact::receipt::Receipt;
use weir_engine::compact::report::{self, Preflight, Report};
use weir_engine::wire::model::ModelField;
use weir_engine::wire::{Protocol, Request};
use weir_store::Tenant;

/// Explained plan of a request.
#[derive(Debug, Clone)]
pub struct Explained {
    pub report: Report,
    /// Forecast for content that may come next.
    pub preflight: Option<Preflight>,
    /// Body that would be sent; `None` if the request would be refused.
    pub body: Option<Bytes>,
    /// Conversation that would be sent or refused, as plain text, if requested.
    pub text: Option<String>,
    /// Receipt of the plan, if requested.
    pub receipt: Option<Receipt>,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    receipt: Option<&'a Receipt>,
}

impl Explained {
    /// Renders all of it as one JSON object.
    pub fn json(&self) -> String {
        let body = self.body.as_deref().filter(|_| self.wants_body);
        let answer = Answer {
            object: "weir.plan",
            report: &self.report,
            preflight: self.preflight.as_ref(),
            body: body.and_then(|body| serde_json::from_slice(body).ok()),
            text: self.text.as_deref(),
            receipt: self.receipt.as_ref(),
        };
        serde_json::to_string(&answer).expect("texts and numbers under fixed keys are JSON")
    }
}

impl Planner {
    /// Explains the plan of [`Self::plan`] for `body`, or for a request that contains only `body`
    /// if it is a list of messages. `question` holds additional questions; if it is absent, the
    /// body's member `weir` may ask. That member is not part of the plan.
    pub async fn explain(
        &self,
        tenant: Tenant,
        protocol: Protocol,
        body: Bytes,
        path_model: Option<&str>,
        options: RequestOptions,
        question: Option<Question>,
    ) -> Proxied<Explained> {
        let mut job = Job::new(tenant, protocol, body, options);
        job.path_model = path_model.map(str::to_owned);
        self.explain_job(routed(self.routes(), job), question).await
    }

    /// Explains the plan of a job.
    pub(crate) async fn explain_job(
        &self,
        mut job: Job,
        question: Option<Question>,
    ) -> Proxied<Explained> {
        job.body = with_messages(job.protocol, job.body);
        self.offloaded(job, |shared, mut job| {
            let (body, own) = Question::take(job.body.clone())?;
            job.body = body;
            let question = question.unwrap_or(own);
            let explained = explain(shared, &job, &question)?;
            // A request that is refused is planned again without the recall tool.
            match explained.body.is_none() && job.leave_out_recall() {
                true => explain(shared, &job, &question),
                false => Ok(explained),
            }
        })
        .await
    }
}

/// Completes a job that is only examined with the route of its model, and the model's name there.
pub(super) fn routed(routes: &Routes, mut job: Job) -> Job {
    if !routes.are_several() {
        return job;
    }
    let field = ModelField::of(&job.body);
    let path_model = job.path_model.take();
    let asked = path_model.as_deref().or(field.as_ref().and_then(ModelField::model));
    let route = routes.find(asked.unwrap_or_default());
    let sent = asked.map(|asked| route.sent(asked));
    job.route = Some(Arc::clone(route));
    job.alias_of = asked.filter(|asked| sent != Some(asked)).map(str::to_owned);
    match (&path_model, sent) {
        (None, Some(sent)) => {
            let renamed = ModelOverride::Replace(sent).apply(&job.body, field.as_ref());
            job.body = renamed.unwrap_or(job.body);
        }
        (_, sent) => job.path_model = sent.map(str::to_owned),
    }
    job
}

/// Completes a request's body from a bare list of messages or items.
pub fn with_messages(protocol: Protocol, body: Bytes) -> Bytes {
    let list = match protocol {
        Protocol::Responses => b"{\"input\":".as_slice(),
        Protocol::Chat | Protocol::Messages => b"{\"messages\":",
    };
    match body.trim_ascii_start().starts_with(b"[") {
        true => [list, &body, b"}"].concat().into(),
        false => body,
    }
}

fn explain(shared: &Shared, job: &Job, question: &Question) -> Proxied<Explained> {
    let (mut draft, request) = planner::read(shared, job, planner::look(shared, job))?;
    let drafted = match planner::plan(&mut draft, Given { shared, job, request: &request })? {
        Step::Done(drafted) => *drafted,
        Step::Long | Step::Again | Step::Waits(_) => return Err(fault()),
    };
    let Drafted { planned, plan } = drafted;
    let planned = match planned {
        Err(error) if error.kind != ErrorKind::ContextLengthExceeded => return Err(error),
        planned => planned,
    };
    let plan = plan.ok_or_else(fault)?;
    let described = || {
        let names = draft.names(shared, job, &planned);
        let body = planned.as_ref().ok();
        let body = body.map(|planned| planned.body.clone().unwrap_or(job.body.clone()));
        let content = question.content.as_ref();
        Explained {
            report: plan.report(&request, &names),
            preflight: content
                .map(|(category, content)| plan.preflight(&request, *category, content)),
            text: question.wants_text.then(|| dialogue(&request, body.as_deref())),
            receipt: body
                .as_deref()
                .filter(|_| question.wants_receipt)
                .map(|body| receipt(&request, job, body)),
            wants_body: question.wants_body,
            body,
        }
    };
    catch_unwind(AssertUnwindSafe(described)).map_err(|_| fault())
}

/// Creates the error for a plan that could not be made or described.
fn fault() -> ProxyError {
    tracing::error!(target: "weir::fault", "explaining a plan failed");
    let message = "the plan could not be explained because of a bug in weir";
    ProxyError::new(ErrorKind::Internal, message)
}

/// Makes the receipt of the body that would be sent.
fn receipt(request: &Request<'_>, job: &Job, body: &[u8]) -> Receipt {
    let protocol = request.protocol;
    let sent = protocol.read(body, usize::MAX).ok();
    let sent = sent.as_ref().map_or(&request.messages, |sent| &sent.messages);
    let client = job.without_recall.as_ref();
    let client = client.and_then(|plain| protocol.read(&plain.body, usize::MAX).ok());
    let client = client.as_ref().map_or(&request.messages, |client| &client.messages);
    Receipt::with_recalls(protocol, client, &request.messages, sent)
}

/// Returns the conversation of the body that would be sent, or of the received one if none would be.
fn dialogue(request: &Request<'_>, body: Option<&[u8]>) -> String {
    let protocol = request.protocol;
    let sent = body.and_then(|body| protocol.read(body, usize::MAX).ok());
    let messages = sent.as_ref().map_or(&request.messages, |sent| &sent.messages);
    report::plain::dialogue(protocol, messages)
}
