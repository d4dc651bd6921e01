//! Requests that the upstream refuses as too long: what the refusal teaches is kept, the request is
//! planned anew and sent again, a few times at most. What a caller sees is an ordinary answer or, where
//! it cannot be had, OpenAI's error with the upstream's own in it.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};
use tokio::time::timeout;

use super::error::UpstreamAnswer;
use super::learned::Learned;
use super::opening::{self, Opening};
use super::planner::{Job, Planned};
use super::probe::Probe;
use super::record::Record;
use super::shared::shown;
use super::upstreams::Upstream;
use super::{ErrorKind, Proxy, ProxyError, refusal};
use crate::config::{Mode, names};
use crate::context::{self, Lesson, MAX_RESENDS, Refused};
use crate::upstream::{Inbound, Outbound, OutboundBody};
use crate::wire::overflow::{self, MAX_REFUSAL_BYTES, Overflow};

/// How long the rest of a refusal is waited for, or a stream's first event; its caller waits as long for
/// the head.
const REFUSAL_DEADLINE: Duration = Duration::from_secs(2);
/// The longest successful answer that may be an error all the same.
const MAX_ERROR_AS_SUCCESS_BYTES: usize = 2 << 10;
/// The least that an empty answer or a stream's first event is taken for the refusal of, and the least
/// limit that is believed of a model without having been told: no model's window is smaller.
const MIN_SUSPECTED_TOKENS: u64 = 1024;

/// A refusal, as it came.
struct Refusal {
    overflow: Overflow,
    status: StatusCode,
    body: Bytes,
    /// Whether it is an empty answer that may be something else.
    is_suspicion: bool,
}

impl Proxy {
    /// Sends a planned request. Where the upstream refuses it as too long, sends it again as it fits.
    ///
    /// Each time is a row of its own in the journal: `record` has the account of the last.
    pub(super) async fn send_fitting(
        &self,
        upstream: &Upstream,
        outbound: Outbound,
        planned: &mut Planned,
        job: &mut Job,
        record: &mut Record,
    ) -> Result<Inbound, ProxyError> {
        let inbound = self.send_again(upstream, outbound, planned, job, record).await?;
        if inbound.status.is_success() {
            record.sample(upstream.taught.learned.sampling(job, planned));
            record.probe(job.probe.take().filter(|_| whole_length(&inbound.headers) != Some(0)));
        }
        Ok(inbound)
    }

    async fn send_again(
        &self,
        upstream: &Upstream,
        outbound: Outbound,
        planned: &mut Planned,
        job: &mut Job,
        record: &mut Record,
    ) -> Result<Inbound, ProxyError> {
        let learned = &upstream.taught.learned;
        let is_left = job.asked.bypass || self.config.context.mode == Mode::Observe;
        if is_left || !learned.heals() {
            let sent = self.send_asking(upstream, outbound, planned).await;
            return sent.map_err(|error| upstream.error(error));
        }
        let (method, target) = (outbound.method.clone(), outbound.target.clone());
        let mut headers = outbound.headers.clone();
        headers.remove(CONTENT_ENCODING);
        let mut inbound = self.ask(upstream, outbound, planned, job).await?;
        let mut before = None;
        for resends in 0..=MAX_RESENDS {
            let refused = look_for_refusal(upstream, &mut inbound, planned, resends).await;
            let Some(refused) = refused else { break };
            record.came_back();
            let probe = job.probe.take();
            let lesson = refused.lesson(planned, resends, before.as_ref());
            let lesson = probe.as_ref().map_or(lesson, |probe| refused.lesson_of(probe, lesson));
            let Some(lesson) = lesson else {
                if refused.is_suspicion {
                    break;
                }
                record.refused(refused.status).await;
                return Err(refusal::unhealed(planned, resends, refused.attached()));
            };
            job.asked.learned = Some(lesson.of_this);
            learn(planned, lesson, &refused);
            // What is only suspected, or found by stepping down from weir's own count, is held
            // against other requests when it has proved right, as what a probe fell back to has.
            if probe.is_some() || refused.teaches(&lesson) {
                self.keep(learned, job, planned, lesson).await;
            }
            match self.planner.plan_job(job).await {
                Ok(again) => planned.replace_refused(again),
                Err(_) if refused.is_suspicion => break,
                Err(error) => {
                    record.refused(refused.status).await;
                    return Err(refused.attach(error));
                }
            }
            record.refused(refused.status).await;
            let account = opening::account(record.caller());
            let holding = self.hold(&account, job, planned).await?;
            record.planned_again(planned);
            let (method, target) = (method.clone(), target.clone());
            let body = planned.body.clone().unwrap_or_else(|| job.body.clone());
            let (headers, body) = (headers.clone(), OutboundBody::Bytes(body));
            let again = Outbound { method, target, headers, body };
            let opening = Opening::planned(account, &again.target, planned, record.plan_ms());
            record.account(self.journal.open(opening, holding).await?);
            inbound = self.ask(upstream, again, planned, job).await?;
            before = Some((refused, lesson));
        }
        if let Some((_, lesson)) = before.filter(|(refused, lesson)| !refused.teaches(lesson))
            && inbound.status.is_success()
            && whole_length(&inbound.headers) != Some(0)
            && lesson.kept.least_tokens() >= MIN_SUSPECTED_TOKENS
        {
            self.keep(learned, job, planned, lesson).await;
        }
        Ok(inbound)
    }

    /// Keeps what a refusal teaches of the model.
    async fn keep(&self, learned: &Learned, job: &Job, planned: &Planned, lesson: Lesson) {
        let configured = self.configured(&planned.model);
        learned.keep_limits(job.tenant, &planned.model, lesson.kept, configured).await;
    }

    /// Sends what is planned, and notes whether the upstream would not be asked for its usage.
    async fn ask(
        &self,
        upstream: &Upstream,
        outbound: Outbound,
        planned: &mut Planned,
        job: &mut Job,
    ) -> Result<Inbound, ProxyError> {
        let was_asked = planned.usage_asked.is_some();
        let sent = self.send_asking(upstream, outbound, planned).await;
        let inbound = sent.map_err(|error| upstream.error(error))?;
        job.asked.is_usage_refused |= was_asked && planned.usage_asked.is_none();
        Ok(inbound)
    }
}

/// Logs what a refusal teaches.
fn learn(planned: &Planned, lesson: Lesson, refused: &Refusal) {
    let key = match lesson.kept.window_tokens {
        Some(_) => "window_tokens",
        None => "max_input_tokens",
    };
    tracing::warn!(
        target: "weir::learned",
        model = shown(&planned.model),
        status = refused.status.as_u16(),
        sent_tokens = planned.sent_tokens,
        limit_tokens = planned.limit_tokens,
        window_tokens = lesson.kept.window_tokens,
        max_input_tokens = lesson.kept.max_input_tokens,
        told = lesson.kept.is_told,
        "the upstream refused a request as too long; a lower limit then holds for the model. A {key} under [models.\"NAME\"] that is set or changed from now on goes \
         before it, `weir models forget NAME` lifts it, and in an hour the upstream is asked for more"
    );
}

/// The refusal that an answer is, if it is one.
async fn look_for_refusal(
    upstream: &Upstream,
    inbound: &mut Inbound,
    planned: &Planned,
    resends: usize,
) -> Option<Refusal> {
    let status = inbound.status;
    let most = match status {
        StatusCode::BAD_REQUEST
        | StatusCode::PAYLOAD_TOO_LARGE
        | StatusCode::UNPROCESSABLE_ENTITY => MAX_REFUSAL_BYTES,
        StatusCode::OK if is_stream(&inbound.headers) => {
            return refusal_within(inbound, planned).await;
        }
        StatusCode::OK => {
            let length = whole_length(&inbound.headers)?;
            if length == 0 && resends == 0 && suspects(upstream, planned) {
                return Some(Refusal {
                    overflow: Overflow::default(),
                    status,
                    body: Bytes::new(),
                    is_suspicion: true,
                });
            }
            (1..=MAX_ERROR_AS_SUCCESS_BYTES).contains(&length).then_some(length)?
        }
        _ => return None,
    };
    if inbound.headers.contains_key(CONTENT_ENCODING) {
        return None;
    }
    let seen = timeout(REFUSAL_DEADLINE, inbound.body.peek(most)).await.ok()?;
    let overflow = overflow::recognise(status.as_u16(), seen)?;
    let body = Bytes::copy_from_slice(seen);
    Some(Refusal { overflow, status, body, is_suspicion: false })
}

/// Whether an empty answer may stand for a refusal, as with some servers that run on people's own
/// machines: of a model that weir does not know, and a request that is no small one.
fn suspects(upstream: &Upstream, planned: &Planned) -> bool {
    names::is_local_host(upstream.client.base().host())
        && !planned.is_model_known
        && planned.sent_tokens >= MIN_SUSPECTED_TOKENS
}

/// The refusal that a stream's first event is. Nothing has been told to the caller then, and no more
/// than its head waits, for a large request alone; the stream is read from its beginning in any case.
async fn refusal_within(inbound: &mut Inbound, planned: &Planned) -> Option<Refusal> {
    if planned.sent_tokens < MIN_SUSPECTED_TOKENS || inbound.headers.contains_key(CONTENT_ENCODING)
    {
        return None;
    }
    let event = inbound.body.peek_until(MAX_REFUSAL_BYTES, overflow::has_event);
    let seen = timeout(REFUSAL_DEADLINE, event).await.ok()?;
    let (overflow, said) = overflow::recognise_event(seen)?;
    Some(Refusal { overflow, status: inbound.status, body: said.into(), is_suspicion: false })
}

fn is_stream(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    content_type.is_some_and(|name| name.starts_with("text/event-stream"))
}

/// How long an answer is in JSON that is told to be complete.
fn whole_length(headers: &HeaderMap) -> Option<usize> {
    let length: usize = headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()?;
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let is_json = content_type.is_none_or(|name| name.starts_with("application/json"));
    (is_json || length == 0).then_some(length)
}

impl Refusal {
    /// Whether what is learned of it holds for other requests at once.
    fn teaches(&self, lesson: &Lesson) -> bool {
        !self.is_suspicion && lesson.kept.is_told
    }

    /// What is to be learned from the refusal of what was planned; `None` where sending it again would
    /// be in vain, as after a refusal `before` it that told all numbers.
    fn lesson(
        &self,
        planned: &Planned,
        resends: usize,
        before: Option<&(Self, Lesson)>,
    ) -> Option<Lesson> {
        let told = |overflow: &Overflow| overflow.is_numbered() && overflow.is_exact;
        if before.is_some_and(|(before, _)| told(&before.overflow)) {
            return None;
        }
        let refused = Refused {
            sent_tokens: planned.sent_tokens,
            output_tokens: planned.max_output_tokens,
            limits: planned.limits,
            is_estimated: planned.is_calibrated,
        };
        let step = if self.is_suspicion { MAX_RESENDS - 1 } else { resends };
        context::learned::lesson(&self.overflow, &refused, step)
    }

    /// What is to be learned where a probe was refused: what the upstream tells, or that nothing has
    /// changed.
    fn lesson_of(&self, probe: &Probe, lesson: Option<Lesson>) -> Option<Lesson> {
        lesson.filter(|lesson| self.teaches(lesson)).or(Some(probe.in_vain()))
    }

    /// The answer, for the caller to see.
    fn attached(&self) -> UpstreamAnswer {
        UpstreamAnswer { status: self.status.as_u16(), body: self.body.clone() }
    }

    /// An error that came of planning anew, with the answer that was the reason to.
    fn attach(&self, error: ProxyError) -> ProxyError {
        match error.kind {
            ErrorKind::ContextLengthExceeded => {
                ProxyError { upstream: Some(Box::new(self.attached())), ..error }
            }
            _ => error,
        }
    }
}
