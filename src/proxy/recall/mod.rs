//! The recall tool: with it a model asks for messages that a compaction left out. `offer` adds it to a
//! request. A call is answered here, from the request itself, and the conversation is sent on with the
//! call and its result behind it, so that the provider's cached prefix stays. `plain` and `stream` do so
//! for the two forms of answers. The caller sees one ordinary answer, and never the tool.
//!
//! Each round is an attempt of its own, with its own hold and its own row in the journal.

mod offer;
mod plain;
pub mod records;
mod said;
mod stream;

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use http::header::CONTENT_ENCODING;

pub(super) use self::offer::add;
use self::records::{Answered, Mixed, Recalled};
use self::said::Said;
pub(super) use self::stream::relay;
use super::admit::request::{ChatRequest, Offer};
use super::chain::Key;
use super::error::{ErrorKind, Proxied, ProxyError};
use super::plan::refusal;
use super::record::Record;
use super::runtime::Runtime;
use super::send;
use super::send::attempt::Attempt;
use super::send::chat::Chat;
use super::settings::Settings;
use super::upstreams::headers::is_event_stream;
use crate::upstream::Inbound;
use weir_engine::compact::recall::lookup::Lookup;
use weir_engine::wire::Protocol;
use weir_engine::wire::recall_tool::{Next, Round, appended};

/// Maximum number of rounds in which calls are answered. Those of the next one get a text that says so,
/// and those of the one after that nothing.
const MAX_ROUNDS: usize = 4;
/// Bytes of text per token assumed for the room of a result: few, so that a result takes no more tokens
/// than it has.
const BYTES_A_TOKEN: u64 = 3;
/// Part of the limit that the results of a round may take at most, and that they may take even if less is
/// left: the conversation is compacted then.
const MOST_OF_LIMIT: u64 = 4;
const LEAST_OF_LIMIT: u64 = 32;

/// Exchange whose request offers the tool, after its first attempt was accepted.
pub(super) struct RecallExchange {
    /// Name of the tool in this request.
    name: &'static str,
    protocol: Protocol,
    /// Request with all rounds so far.
    request: ChatRequest,
    /// The attempt that was accepted last, without its body.
    attempt: Attempt,
    /// Number of messages before the first round; `None` until they are read.
    messages: Option<usize>,
    /// Rounds whose calls were answered, and what the caller has got of them.
    recalled: Recalled,
    said: Box<Said>,
    runtime: Arc<Runtime>,
    key: Option<Key>,
}

impl RecallExchange {
    /// Creates the exchange of a request that was accepted; `None` if it has no such tool.
    pub(super) fn new(
        runtime: Arc<Runtime>,
        request: ChatRequest,
        mut attempt: Attempt,
    ) -> Option<Self> {
        let Offer { name, key, .. } = *request.recall.as_ref()?;
        attempt.job.without_recall.as_ref()?;
        attempt.planned.body = None;
        let protocol = request.protocol;
        Some(Self {
            name,
            protocol,
            request,
            attempt,
            messages: None,
            recalled: Recalled::default(),
            said: Box::default(),
            runtime,
            key,
        })
    }

    /// Whether the calls of another round get an answer.
    fn may_go_on(&self) -> bool {
        let is_offered = self.attempt.job.without_recall.is_some();
        is_offered && self.recalled.rounds.len() <= MAX_ROUNDS
    }

    /// Adds the growth of the request, or an answer that is held, to the memory for bodies.
    fn hold(&mut self, bytes: usize) -> Proxied<()> {
        match self.request.permit.grow(bytes) {
            true => Ok(()),
            false => Err(no_room()),
        }
    }

    /// Returns the room of each result of a round.
    fn room_bytes(&self, round: &Round) -> usize {
        let planned = &self.attempt.planned;
        room_bytes(planned.limit_tokens, planned.sent_tokens, round.calls.len())
    }

    /// Records the recalls before an answer that ends with this round, and those in it, for later requests
    /// of the conversation.
    async fn keep(mut self, round: &Round) {
        let Some(before) = self.key else { return };
        if round.next == Next::Mixed {
            let answered = Answered::of(round, Some(self.room_bytes(round)));
            self.recalled.mixed = Some(Mixed { answered, others: round.others.clone() });
        }
        if self.recalled != Recalled::default() {
            self.said.add_raw(self.protocol, self.name, &round.assistant);
            let tenant = self.request.caller.tenant;
            self.runtime.recalls.settle(tenant, (before, &self.said), self.recalled).await;
        }
    }

    /// Answers the calls of a round and sends the conversation on. Returns what came back; `None` if the
    /// caller has left before, for whom nothing more is paid.
    async fn go_on(
        mut self,
        settings: &Settings,
        round: Round,
        record: &mut Record,
        has_left: impl Fn() -> bool,
    ) -> Proxied<Option<(Self, Inbound)>> {
        let has_more = self.recalled.rounds.len() < MAX_ROUNDS;
        let answered = Answered::of(&round, has_more.then(|| self.room_bytes(&round)));
        self.said.add_raw(self.protocol, self.name, &round.assistant);
        let asking = Asking {
            protocol: self.protocol,
            name: self.name,
            body: self.request.decoded.clone(),
            max_messages: settings.config.server.max_messages,
            messages: self.messages,
            answered,
            assistant: round.assistant,
        };
        let Continued { body, messages, answered } = continued(asking).await?;
        self.messages = Some(messages);
        self.recalled.rounds.push(answered);
        self.hold(body.len().saturating_sub(self.request.decoded.len()))?;
        self.request.continue_with(body);
        // The model may have moved in the body.
        self.request.read(settings).await?;
        let mut chat = Chat::round(settings, self.request, &self.attempt, record).await?;
        if has_left() {
            return Ok(None);
        }
        let inbound = send::send(&mut chat, record).await?;
        (self.request, self.attempt) = chat.into_parts();
        if inbound.is_accepted() {
            record.taken(&self.attempt.planned);
            let of = (self.request.caller.tenant, record.id());
            self.runtime.keep(&settings.config, of, &mut self.attempt, Box::new(()));
        }
        self.attempt.planned.body = None;
        if self.attempt.job.without_recall.is_none() {
            // There was no room for the round: the model answers the request without the tool.
            self.key = None;
        }
        Ok(Some((self, inbound)))
    }
}

fn no_room() -> ProxyError {
    ProxyError::overloaded(
        "weir has no room to continue this answer with a recall at the moment \
             (`server.max_bodies_in_flight_bytes`). Try again shortly.",
    )
}

/// Whether the calls in an answer can be read.
fn is_readable(inbound: &Inbound) -> bool {
    inbound.is_accepted() && !inbound.headers.contains_key(CONTENT_ENCODING)
}

/// Returns the error for a round whose answer, with this status, cannot be read as the one before.
fn not_continued(status: StatusCode) -> ProxyError {
    let message = match status.is_success() {
        false => {
            format!("The upstream refused to continue this answer (status {}).", status.as_u16())
        }
        true => "The upstream continued this answer in another form.".to_owned(),
    };
    ProxyError::new(ErrorKind::UpstreamClosed, format!("{message} Send the request again."))
}

/// Answers the calls in an answer that comes whole, and returns the last round's answer with all that was
/// said before, and the number of rounds before it. An exchange whose answer is a stream is returned, to be
/// read while it is relayed.
pub(super) async fn whole(
    recall: Option<RecallExchange>,
    settings: &Settings,
    inbound: Inbound,
    record: &mut Record,
) -> Proxied<(Inbound, usize, Option<RecallExchange>)> {
    match recall.filter(|_| is_readable(&inbound)) {
        None => Ok((inbound, 0, None)),
        Some(recall) if is_event_stream(&inbound.headers) => Ok((inbound, 0, Some(recall))),
        Some(recall) => {
            // On the heap, since it is large and rare.
            let answered = Box::pin(plain::answered(recall, settings, inbound, record));
            let (inbound, rounds) = answered.await?;
            Ok((inbound, rounds, None))
        }
    }
}

/// Calls to answer.
struct Asking {
    protocol: Protocol,
    name: &'static str,
    /// The request so far, with all of its messages.
    body: Bytes,
    max_messages: usize,
    /// Number of messages that are searched; `None` for all.
    messages: Option<usize>,
    answered: Answered,
    /// The answer with the calls, as part of a request.
    assistant: String,
}

/// Request with answered calls.
struct Continued {
    body: Bytes,
    /// Number of messages that were searched.
    messages: usize,
    answered: Answered,
}

/// Answers calls, off the async threads: they may search the whole conversation.
async fn continued(asking: Asking) -> Proxied<Continued> {
    let failed = |_| ProxyError::new(ErrorKind::Internal, "a recall could not be answered");
    tokio::task::spawn_blocking(move || asking.continued()).await.map_err(failed)?
}

impl Asking {
    fn continued(self) -> Proxied<Continued> {
        let request = self.protocol.read(&self.body, self.max_messages);
        let request = request.map_err(refusal::body)?;
        let all = request.messages.len();
        let messages = self.messages.map_or(all, |own| own.min(all));
        let lookup = Lookup {
            protocol: self.protocol,
            messages: &request.messages[..messages],
            tool: self.name,
        };
        let texts = self.answered.texts(&lookup);
        let results = self.answered.results(&texts);
        let body = appended(self.protocol, request.text, &self.assistant, &results);
        let unread = || ProxyError::new(ErrorKind::Internal, "an answer could not be continued");
        let body = body.map(Bytes::from).ok_or_else(unread)?;
        Ok(Continued { body, messages, answered: self.answered })
    }
}

/// Returns the room of each result: half of what is left under the limit, within bounds.
fn room_bytes(limit_tokens: u64, sent_tokens: u64, calls: usize) -> usize {
    let half = limit_tokens.saturating_sub(sent_tokens) / 2;
    let room_tokens = half.clamp(limit_tokens / LEAST_OF_LIMIT, limit_tokens / MOST_OF_LIMIT);
    let each_bytes = room_tokens * BYTES_A_TOKEN / (calls.max(1) as u64);
    usize::try_from(each_bytes).unwrap_or(usize::MAX)
}
