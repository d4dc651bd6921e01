//! Overflow retry: if the upstream refuses a request as too long, learns from the refusal, plans
//! the request again and resends it, a few times at most. The caller sees an ordinary answer or, if
//! all attempts fail, OpenAI's error with the upstream's own in it.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};
use tokio::time::timeout;

use super::attempt::Attempt;
use crate::config::names;
use crate::proxy::admit::request::on_time;
use crate::proxy::error::{ErrorKind, ProxyError, UpstreamAnswer};
use crate::proxy::logged::shown;
use crate::proxy::plan::{Planned, refusal};
use crate::proxy::record::Record;
use crate::proxy::settings::Settings;
use crate::proxy::upstreams::{Upstream, probe::Probe};
use crate::upstream::Inbound;
use weir_engine::compact::{self, Lesson, MAX_RESENDS, Refused};
use weir_engine::tokens::Encoding;
use weir_engine::wire::overflow::{self, MAX_REFUSAL_BYTES, Overflow, Sent};
use weir_store::Tenant;

/// Timeout for the rest of a refusal, or a stream's first event; its caller waits as long for the
/// head.
const REFUSAL_DEADLINE: Duration = Duration::from_secs(2);
/// Maximum size of a successful answer that may be an error.
const MAX_ERROR_AS_SUCCESS_BYTES: usize = 2 << 10;
/// Minimum size of a request for which an empty answer or a stream's first event counts as a
/// refusal, and the minimum guessed limit of a model. No model's window is smaller.
const MIN_SUSPECTED_TOKENS: u64 = 1024;

/// Refusal as received.
struct ReceivedRefusal {
    overflow: Overflow,
    status: StatusCode,
    body: Bytes,
    /// Whether it is an empty answer that may have another cause.
    is_suspicion: bool,
}

/// Resends of one attempt.
#[derive(Default)]
pub(super) struct OverflowRetry {
    resends: usize,
    /// The last refusal, and the lesson drawn from it.
    before: Option<(ReceivedRefusal, Lesson)>,
}

impl OverflowRetry {
    /// Plans the request again, shorter, if the answer refuses it as too long, and returns whether
    /// to send it again. Each resend has its own journal entry: `record` holds the account of the
    /// last.
    pub(super) async fn shorten(
        &mut self,
        settings: &Settings,
        current: &mut Attempt,
        inbound: &mut Inbound,
        record: &mut Record,
    ) -> Result<bool, ProxyError> {
        let is_left = current.job.options.bypass || settings.is_observed();
        if !is_left && current.upstream.knowledge.learned.retries_overflow() {
            if self.is_planned_again(settings, current, inbound, record).await? {
                return Ok(true);
            }
            self.confirm(settings, current, inbound).await;
        }
        if inbound.status.is_success() {
            let Attempt { upstream, job, planned, .. } = current;
            let configured = settings.configured(&planned.model);
            let body = planned.body.as_ref().unwrap_or(&job.body);
            let of = (job.tenant, job.protocol, planned.model.as_str());
            let prompt = (body, planned.sent_tokens, planned.encoding);
            // An open model's count is exact: it shows whether its server truncates prompts in silence.
            let is_open = matches!(planned.encoding, Encoding::Open(_));
            let is_comparable = (planned.is_calibrated
                || is_open && planned.provider_state.is_none())
                && planned.action != "fault";
            let sampling = || upstream.knowledge.learned.sampling(of, prompt, configured);
            record.sample(is_comparable.then(sampling).flatten());
            let probe = job.probe.take();
            record.probe(probe.filter(|_| whole_length(&inbound.headers) != Some(0)));
        }
        Ok(false)
    }

    async fn is_planned_again(
        &mut self,
        settings: &Settings,
        current: &mut Attempt,
        inbound: &mut Inbound,
        record: &mut Record,
    ) -> Result<bool, ProxyError> {
        let Attempt { upstream, job, planned, .. } = current;
        if self.resends > MAX_RESENDS {
            return Ok(false);
        }
        let refused = look_for_refusal(upstream, inbound, planned, self.resends).await;
        let Some(refused) = refused else { return Ok(false) };
        record.came_back();
        let probe = job.probe.take();
        let body = planned.body.as_ref().unwrap_or(&job.body).clone();
        let protocol = job.protocol;
        let is_text = move || protocol.read(&body, usize::MAX).is_ok_and(|own| own.is_text());
        let is_text = on_time(job.body.len(), is_text).await?;
        let lesson = refused.lesson(planned, self.resends, is_text);
        let lesson = probe.as_ref().map_or(lesson, |probe| refused.lesson_of(probe, lesson));
        let Some(lesson) = lesson else {
            if refused.is_suspicion {
                return Ok(false);
            }
            record.refused(refused.status, false).await;
            return Err(refusal::still_too_long(planned, self.resends, refused.attached()));
        };
        job.options.learned = Some(lesson.of_this);
        learn(planned, lesson, &refused);
        // A guessed limit, or one found by stepping down from weir's own count, applies to
        // other requests only once it is confirmed. The fallback of a probe already is.
        if probe.is_some() || refused.teaches(&lesson) {
            keep(settings, upstream, job.tenant, planned, lesson).await;
        }
        match settings.planner.plan_fitting(job).await {
            Ok(again) => planned.replace_refused(again),
            Err(_) if refused.is_suspicion => return Ok(false),
            Err(error) => {
                record.refused(refused.status, false).await;
                return Err(refused.attach(error));
            }
        }
        record.refused(refused.status, true).await;
        self.resends += 1;
        self.before = Some((refused, lesson));
        Ok(true)
    }

    /// Stores a guessed limit if the request was accepted under it.
    async fn confirm(&mut self, settings: &Settings, current: &Attempt, inbound: &Inbound) {
        let Attempt { upstream, job, planned, .. } = current;
        let guessed = self.before.take().filter(|(refused, lesson)| !refused.teaches(lesson));
        if let Some((_, lesson)) = guessed
            && inbound.status.is_success()
            && whole_length(&inbound.headers) != Some(0)
            && lesson.kept.least_tokens() >= MIN_SUSPECTED_TOKENS
        {
            keep(settings, upstream, job.tenant, planned, lesson).await;
        }
    }
}

/// Stores the model's limits learned from a refusal.
async fn keep(
    settings: &Settings,
    upstream: &Upstream,
    tenant: Tenant,
    planned: &Planned,
    lesson: Lesson,
) {
    let configured = settings.configured(&planned.model);
    let learned = &upstream.knowledge.learned;
    learned.keep_limits(tenant, &planned.model, lesson.kept, configured).await;
    upstream.report_limits(&shown(&planned.model), lesson.kept);
}

/// Logs the limits learned from a refusal.
fn learn(planned: &Planned, lesson: Lesson, refused: &ReceivedRefusal) {
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
        told = lesson.kept.is_reported,
        "the upstream refused a request as too long, so a lower limit applies to the model. A {key} under [models.\"NAME\"] that is set or changed later takes \
         precedence, `weir models forget NAME` removes it, and in an hour weir probes the upstream for more"
    );
}

/// Checks whether an answer is a refusal.
async fn look_for_refusal(
    upstream: &Upstream,
    inbound: &mut Inbound,
    planned: &Planned,
    resends: usize,
) -> Option<ReceivedRefusal> {
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
                return Some(ReceivedRefusal {
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
    let overflow = overflow::recognise(status.as_u16(), seen, Some(sent(planned)))?;
    let body = Bytes::copy_from_slice(seen);
    Some(ReceivedRefusal { overflow, status, body, is_suspicion: false })
}

/// Sizes of a request that a refusal may repeat.
fn sent(planned: &Planned) -> Sent {
    let output_tokens = planned.max_output_tokens.unwrap_or(0);
    Sent { prompt_tokens: planned.sent_tokens, output_tokens }
}

/// Whether an empty answer may be a refusal, as with some local servers: for an unknown model, and
/// a request that is not small.
fn suspects(upstream: &Upstream, planned: &Planned) -> bool {
    names::is_local_host(upstream.client.base().host())
        && !planned.is_model_known
        && planned.sent_tokens >= MIN_SUSPECTED_TOKENS
}

/// Checks whether a stream's first event is a refusal. The caller has received nothing by then;
/// only the head of a large request waits, and the stream is read from its beginning in any case.
async fn refusal_within(inbound: &mut Inbound, planned: &Planned) -> Option<ReceivedRefusal> {
    if planned.sent_tokens < MIN_SUSPECTED_TOKENS || inbound.headers.contains_key(CONTENT_ENCODING)
    {
        return None;
    }
    let event = inbound.body.peek_until(MAX_REFUSAL_BYTES, overflow::has_event);
    let seen = timeout(REFUSAL_DEADLINE, event).await.ok()?;
    let (overflow, said) = overflow::recognise_event(seen, Some(sent(planned)))?;
    Some(ReceivedRefusal {
        overflow,
        status: inbound.status,
        body: said.into(),
        is_suspicion: false,
    })
}

fn is_stream(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    content_type.is_some_and(|name| name.starts_with("text/event-stream"))
}

/// Returns the declared length of a complete JSON answer.
fn whole_length(headers: &HeaderMap) -> Option<usize> {
    let length: usize = headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()?;
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let is_json = content_type.is_none_or(|name| name.starts_with("application/json"));
    (is_json || length == 0).then_some(length)
}

impl ReceivedRefusal {
    /// Whether the learned limits apply to other requests at once.
    fn teaches(&self, lesson: &Lesson) -> bool {
        !self.is_suspicion && lesson.kept.is_reported
    }

    /// Determines the limits to learn from the refusal of a plan. `None` if another attempt is
    /// pointless.
    fn lesson(&self, planned: &Planned, resends: usize, is_text: bool) -> Option<Lesson> {
        let refused = Refused {
            sent_tokens: planned.sent_tokens,
            output_tokens: planned.max_output_tokens,
            limits: planned.limits,
            is_estimated: planned.is_calibrated,
            is_text,
        };
        let step = if self.is_suspicion { MAX_RESENDS - 1 } else { resends };
        compact::learned::lesson(&self.overflow, &refused, step)
    }

    /// Determines the lesson from a refused probe: the upstream's numbers, or no change.
    fn lesson_of(&self, probe: &Probe, lesson: Option<Lesson>) -> Option<Lesson> {
        lesson.filter(|lesson| self.teaches(lesson)).or(Some(probe.in_vain()))
    }

    /// Returns the answer for the caller to see.
    fn attached(&self) -> UpstreamAnswer {
        UpstreamAnswer { status: self.status.as_u16(), body: self.body.clone() }
    }

    /// Attaches the upstream's answer to an error from planning again.
    fn attach(&self, error: ProxyError) -> ProxyError {
        match error.kind {
            ErrorKind::ContextLengthExceeded => {
                ProxyError { upstream: Some(Box::new(self.attached())), ..error }
            }
            _ => error,
        }
    }
}
