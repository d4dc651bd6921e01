//! Conversations that weir keeps for its callers: put before a request that names one, and extended by
//! the exchange once its answer is complete. The engine plans the whole like a transcript that the
//! caller sent.
//!
//! An exchange adds exactly two messages: the caller's newest user message, and the text of the answer.
//! Answers with calls add nothing: the caller sends calls and results itself until the model answers in
//! text. So no call is ever kept without its results.

mod answer;
pub mod pages;

use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;

pub use self::answer::Collector;
use self::answer::NotKept;
use super::admit::caller::Caller;
use super::admit::request::{ChatRequest, Room, on_time};
use super::error::{ErrorKind, Proxied, ProxyError};
use super::headers::{self, OpenedConversation};
use super::settings::Settings;
use crate::config::Conversations;
use weir_engine::wire::{Protocol, insert, json};
use weir_store::conversations::{
    Added, Addition, Conversation, ConversationId, ConversationLimits, KeptMessage, MAX_NAME_BYTES,
};
use weir_store::ledger::RequestId;
use weir_store::{Store, StoreError, Tenant, now_ms};

/// Name of the edit that puts kept messages before a request's own.
const EDIT: &str = "conversation";
/// Maximum time that the end of an answer waits for the store.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// Exchange that extends a conversation once its answer is complete.
pub struct Exchange {
    store: Store,
    tenant: Tenant,
    name: String,
    continues: Option<ConversationId>,
    /// Latest change of that name when it was read.
    change: u64,
    /// Share of memory for the answer.
    room: Box<dyn Room>,
    /// The caller's newest user message, if it may be kept.
    question: Result<Bytes, NotKept>,
    limits: ConversationLimits,
}

/// Puts the conversation that a request names before its messages. Returns its state, and the exchange
/// that is to be kept; `None` if the request names none.
pub async fn open(
    settings: &Settings,
    store: &Store,
    request: &mut ChatRequest,
) -> Proxied<Option<(OpenedConversation, Option<Exchange>)>> {
    let Some(name) = headers::conversation_name(&request.headers)? else { return Ok(None) };
    let name = name.to_owned();
    check(request, &settings.config.conversations, &name)?;
    let tenant = request.caller.tenant;
    // Its size is known only after it is read.
    let most_bytes = settings.config.conversations.limits.max_conversation_bytes;
    let most_bytes = usize::try_from(most_bytes).unwrap_or(usize::MAX);
    if !request.permit.grow(most_bytes) {
        return Err(no_room());
    }
    let read = || store.conversation(tenant, &name, now_ms());
    let change = store.conversation_change(tenant, &name);
    let (found, change) = match found(read(), change, read()).await {
        Ok(both) => both,
        Err(error) => {
            tracing::warn!(
                target: "weir::conversations",
                %error,
                "a kept conversation cannot be read; the request is sent without it"
            );
            request.permit.shrink(most_bytes);
            return Ok(Some((OpenedConversation::Unavailable, None)));
        }
    };
    let Conversations { max_messages, limits, .. } = settings.config.conversations;
    let continues = found.as_ref().map(|found| found.id);
    let kept = found.as_ref().map_or(&[][..], |found| found.newest(max_messages));
    let count = kept.len();
    let kept: Vec<Bytes> = kept.iter().map(|(_, message)| message.text.clone()).collect();
    let Composed { question, body } = compose(request.decoded.clone(), kept, limits).await?;
    let added_bytes = body.as_ref().map_or(0, Bytes::len);
    request.permit.shrink(most_bytes.saturating_sub(added_bytes));
    if let Some(body) = body {
        request.replace(body, EDIT);
        // The model has moved in the body.
        request.read(settings).await?;
    }
    let (store, room) = (store.clone(), request.permit.another());
    let exchange = Exchange { store, tenant, name, continues, change, room, question, limits };
    Ok(Some((OpenedConversation::Messages(count), Some(exchange))))
}

/// Reads a conversation; if there is none, also the latest change of its name. Then it is read `again`: one
/// that began before that change was read would otherwise get an exchange that does not continue it.
async fn found(
    first: impl Future<Output = Result<Option<Conversation>, StoreError>>,
    change: impl Future<Output = Result<u64, StoreError>>,
    again: impl Future<Output = Result<Option<Conversation>, StoreError>>,
) -> Result<(Option<Conversation>, u64), StoreError> {
    if let Some(found) = first.await? {
        return Ok((Some(found), 0));
    }
    let change = change.await?;
    Ok((again.await?, change))
}

fn no_room() -> ProxyError {
    ProxyError::overloaded(
        "weir has no room for more kept conversations at the moment \
             (`server.max_bodies_in_flight_bytes`). Try again shortly.",
    )
}

/// Refuses a request that cannot be part of a kept conversation.
fn check(request: &ChatRequest, config: &Conversations, name: &str) -> Proxied<()> {
    check_name(name)?;
    let refused = |message: &str| {
        ProxyError::new(ErrorKind::InvalidRequest, message).about(headers::CONVERSATION.as_str())
    };
    if request.protocol != Protocol::Chat {
        return Err(refused(
            "x-weir-conversation works with chat completions alone. Leave it out, or send the \
             request to /v1/chat/completions.",
        ));
    }
    if request.options.bypass {
        return Err(refused(
            "x-weir-bypass forwards a request untouched, and x-weir-conversation adds messages to \
             it. Send one of the two headers.",
        ));
    }
    check_caller(&request.caller)?;
    match request.caller.keeps_conversations(config.enabled) {
        true => Ok(()),
        false => Err(not_allowed()),
    }
}

/// Refuses names that a path, a header or a file could not show unchanged.
pub fn check_name(name: &str) -> Proxied<()> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:@".contains(&byte);
    let begins = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if begins && name.len() <= MAX_NAME_BYTES && name.bytes().all(is_plain) {
        return Ok(());
    }
    let message = format!(
        "A conversation's name has 1 to {MAX_NAME_BYTES} letters, digits and -_.:@, and begins with \
         a letter or a digit."
    );
    Err(ProxyError::new(ErrorKind::InvalidRequest, message))
}

/// Refuses callers without a credential: they cannot be distinguished.
fn check_caller(caller: &Caller) -> Proxied<()> {
    if caller.tenant != Tenant::ANONYMOUS {
        return Ok(());
    }
    Err(ProxyError::new(
        ErrorKind::CredentialRequired,
        "Conversations are kept per caller. Send a credential (authorization, api-key or \
         x-api-key). weir keeps nothing for callers without one.",
    ))
}

fn not_allowed() -> ProxyError {
    ProxyError::new(
        ErrorKind::ConversationsNotAllowed,
        "weir keeps no conversations for this caller. The operator can enable them with \
         conversations.enabled = true, or for one key with `weir keys limit ID --conversations true`.",
    )
}

/// Request with the kept messages of its conversation.
struct Composed {
    question: Result<Bytes, NotKept>,
    /// Body with the kept messages; `None` if there are none.
    body: Option<Bytes>,
}

/// Composes a body with kept messages, off the async threads if they are large.
async fn compose(body: Bytes, kept: Vec<Bytes>, limits: ConversationLimits) -> Proxied<Composed> {
    let bytes = body.len() + kept.iter().map(Bytes::len).sum::<usize>();
    on_time(bytes, move || {
        // A body that is no text is refused when it is read.
        let body = simdutf8::basic::from_utf8(&body).unwrap_or_default();
        Composed { question: question(body, limits), body: composed(body, &kept) }
    })
    .await
}

/// Returns the message of a body that an exchange adds, if it may be kept.
fn question(body: &str, limits: ConversationLimits) -> Result<Bytes, NotKept> {
    let question = insert::newest_user_message(body).ok_or(NotKept::NoUserMessage)?;
    match question.len() as u64 <= max_message_bytes(limits) {
        true => Ok(Bytes::copy_from_slice(question.as_bytes())),
        false => Err(NotKept::TooLarge),
    }
}

/// Returns the body with kept messages before its own; `None` if there are none.
fn composed(body: &str, kept: &[Bytes]) -> Option<Bytes> {
    let texts = kept.iter().map(|text| std::str::from_utf8(text));
    let texts: Vec<&str> = texts.collect::<Result<_, _>>().ok()?;
    if texts.is_empty() {
        return None;
    }
    insert::earlier_messages(body, &texts.join(",")).map(Bytes::from)
}

/// Returns the message that is kept of an answer.
fn answer_message(text: &str) -> Bytes {
    format!(r#"{{"role":"assistant","content":{}}}"#, json::quoted(text)).into()
}

impl Exchange {
    /// Prepares to collect the answer with these headers.
    pub fn answered(mut self, headers: &HeaderMap) -> Keeping {
        let max_bytes = max_message_bytes(self.limits);
        let max_bytes = usize::try_from(max_bytes).unwrap_or(usize::MAX);
        let room = std::mem::replace(&mut self.room, Box::new(()));
        let collector = Collector::new(headers, max_bytes);
        Keeping { exchange: self, collector, room, held_bytes: 0 }
    }

    /// Adds the exchange to its conversation.
    async fn add(self, text: &str) -> Result<(), NotKept> {
        let question = KeptMessage { text: self.question?, opens: true };
        let answer = KeptMessage { text: answer_message(text), opens: false };
        // Escapes may make it larger than its text.
        if answer.text.len() as u64 > max_message_bytes(self.limits) {
            return Err(NotKept::TooLarge);
        }
        let (tenant, limits) = (self.tenant, self.limits);
        let Self { continues, change, .. } = self;
        let addition = Addition { continues, change, messages: vec![question, answer] };
        let added = self.store.add_to_conversation(tenant, &self.name, addition, limits, now_ms());
        match tokio::time::timeout(WRITE_TIMEOUT, added).await {
            Ok(Ok(Added::Whole)) => Ok(()),
            Ok(Ok(Added::Changed)) => Err(NotKept::Changed),
            Ok(Err(error)) => {
                tracing::warn!(target: "weir::store", %error, "the store cannot be written");
                Err(NotKept::StoreFailed)
            }
            Err(_) => Err(NotKept::Late),
        }
    }
}

/// Returns the maximum size of a message that is kept: the two of an exchange take half of a
/// conversation at most.
fn max_message_bytes(limits: ConversationLimits) -> u64 {
    limits.max_conversation_bytes / 4
}

/// Exchange whose answer is being collected.
pub struct Keeping {
    exchange: Exchange,
    collector: Collector,
    /// Share of the memory for bodies, of `held_bytes`; released after the exchange is kept.
    room: Box<dyn Room>,
    held_bytes: usize,
}

impl Keeping {
    /// Takes the next bytes of the answer.
    pub fn feed(&mut self, bytes: &[u8]) {
        match self.collector.is_reading() && self.room.grow(bytes.len()) {
            true => self.held_bytes += bytes.len(),
            false => self.collector.give_up(NotKept::NoRoom),
        }
        self.collector.feed(bytes);
        // Of an event only its text stays.
        let free_bytes = self.held_bytes.saturating_sub(self.collector.held_bytes());
        self.room.shrink(free_bytes);
        self.held_bytes -= free_bytes;
    }

    /// Adds the exchange to its conversation, if the caller has the whole answer. A failure is logged,
    /// and nothing else: the caller has its answer.
    pub async fn end(self, is_complete: bool, id: Option<RequestId>) {
        let collected = match is_complete {
            true => self.collector.finish(),
            false => Err(NotKept::Incomplete),
        };
        let added = match collected {
            Ok(text) => self.exchange.add(&text).await,
            Err(reason) => Err(reason),
        };
        if let Err(reason) = added {
            reason.log(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::HeaderValue;
    use http::header::CONTENT_TYPE;

    use super::*;
    use crate::config::Config;

    /// Room for `most` bytes.
    struct Counted {
        held: Arc<AtomicUsize>,
        most: usize,
    }

    impl Room for Counted {
        fn grow(&mut self, bytes: usize) -> bool {
            let has_room = self.held.load(Ordering::Relaxed) + bytes <= self.most;
            if has_room {
                self.held.fetch_add(bytes, Ordering::Relaxed);
            }
            has_room
        }

        fn shrink(&mut self, bytes: usize) {
            self.held.fetch_sub(bytes, Ordering::Relaxed);
        }

        fn another(&self) -> Box<dyn Room> {
            Box::new(Self { held: Arc::clone(&self.held), most: self.most })
        }
    }

    fn keeping(content_type: &'static str, most: usize) -> (Keeping, Arc<AtomicUsize>) {
        let held = Arc::new(AtomicUsize::new(0));
        let exchange = Exchange {
            store: Store::in_memory().expect("there is memory"),
            tenant: Tenant([1; 16]),
            name: "a".to_owned(),
            continues: None,
            change: 0,
            room: Box::new(Counted { held: Arc::clone(&held), most }),
            question: Ok(Bytes::from_static(br#"{"role":"user","content":"q"}"#)),
            limits: Config::default().conversations.limits,
        };
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        (exchange.answered(&headers), held)
    }

    async fn is_kept(store: &Store) -> bool {
        let found = store.conversation(Tenant([1; 16]), "a", now_ms()).await;
        found.expect("it can be read").is_some()
    }

    #[tokio::test]
    async fn a_conversation_that_is_put_while_it_is_read_is_found_or_not_extended() {
        let limits = Config::default().conversations.limits;
        let tenant = Tenant([1; 16]);
        let message = |opens| KeptMessage { text: Bytes::from_static(b"{}"), opens };
        // The put comes before the read of the change, after it, or after all reads.
        for place in 0..3 {
            let store = Store::in_memory().expect("there is memory");
            let put_at = async |at: usize| {
                if at == place {
                    let messages = vec![message(true)];
                    let put = store.replace_conversation(tenant, "a", messages, limits, now_ms());
                    put.await.expect("it can be written");
                }
            };
            let read = || store.conversation(tenant, "a", now_ms());
            let first = read();
            let change = async {
                put_at(0).await;
                let change = store.conversation_change(tenant, "a").await;
                put_at(1).await;
                change
            };
            let (found, change) = found(first, change, read()).await.expect("it can be read");
            assert_eq!(found.is_some(), place < 2, "{place}");
            put_at(2).await;
            let continues = found.map(|found| found.id);
            let messages = vec![message(true), message(false)];
            let addition = Addition { continues, change, messages };
            let added = store.add_to_conversation(tenant, "a", addition, limits, now_ms()).await;
            let expected = if place < 2 { Added::Whole } else { Added::Changed };
            assert_eq!(added, Ok(expected), "{place}");
        }
    }

    #[tokio::test]
    async fn a_collected_answer_takes_room_until_it_is_kept() {
        let body = br#"{"choices":[{"message":{"content":"yes"},"finish_reason":"stop"}]}"#;
        for most in [body.len(), body.len() - 1] {
            let (mut keeping, held) = keeping("application/json", most);
            let store = keeping.exchange.store.clone();
            let (first, rest) = body.split_at(20);
            keeping.feed(first);
            assert_eq!(held.load(Ordering::Relaxed), 20);
            keeping.feed(rest);
            let has_room = most == body.len();
            assert_eq!(held.load(Ordering::Relaxed), if has_room { body.len() } else { 0 });
            keeping.end(true, None).await;
            assert_eq!(is_kept(&store).await, has_room);
        }
    }

    #[test]
    fn of_a_stream_only_the_text_and_the_last_event_take_room() {
        let (mut keeping, held) = keeping("text/event-stream", 1000);
        let event = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"word \"}}]}\n\n";
        for _ in 0..10 {
            keeping.feed(event.as_bytes());
        }
        let held = held.load(Ordering::Relaxed);
        assert!((50..=50 + event.len()).contains(&held), "{held} bytes");
    }
}
