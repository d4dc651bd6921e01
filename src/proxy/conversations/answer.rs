//! Text of an answer of chat completions, collected while it is relayed: from one JSON body, or from
//! the events of a stream. Bounded; keeps nothing after the end.

use bytes::BytesMut;
use http::HeaderMap;
use http::header::CONTENT_ENCODING;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::config::words::worded;
use crate::proxy::upstreams::headers::is_event_stream;
use weir_engine::wire::chat::AnswerContent;
use weir_engine::wire::sse::Splitter;
use weir_store::ledger::RequestId;

/// Maximum size of an answer's body, or of one event, in relation to that of the text in it: a body has
/// more than the text.
const MAX_BODY_FACTOR: usize = 4;

worded! {
    /// Reason for which an exchange is not kept.
    NotKept {
        /// The request has no user message.
        NoUserMessage = "no_user_message",
        /// The answer ended early, or its caller left.
        Incomplete = "incomplete",
        /// The answer calls tools: the exchange goes on.
        Calls = "calls",
        /// The provider withheld some of the answer.
        Filtered = "filtered",
        /// The answer has no text.
        NoText = "no_text",
        /// The answer is compressed, or not in the form of chat completions.
        Unreadable = "unreadable",
        /// A message is larger than a quarter of `conversations.max_bytes.conversation`.
        TooLarge = "too_large",
        /// `server.max_bodies_in_flight_bytes` has no room for the answer.
        NoRoom = "no_room",
        /// The conversation was replaced, cleared or deleted meanwhile.
        Changed = "changed",
        /// The store cannot be written.
        StoreFailed = "store_failed",
        /// The store did not answer in time. It may still keep the exchange.
        Late = "late",
    }
}

impl NotKept {
    /// Logs that the exchange of the request `id` is not kept.
    pub(super) fn log(self, id: Option<RequestId>) {
        let id = id.map(tracing::field::display);
        let reason = self.word();
        match self {
            Self::Calls => tracing::debug!(
                target: "weir::conversations", reason, id, "an exchange goes on with calls"
            ),
            _ => tracing::info!(
                target: "weir::conversations", reason, id, "an exchange is not kept"
            ),
        }
    }
}

/// Collector of an answer's text.
pub struct Collector {
    form: AnswerForm,
    max_text_bytes: usize,
    text: String,
    /// Last reason for which the answer ended.
    reason: Option<String>,
    has_calls: bool,
    problem: Option<NotKept>,
}

enum AnswerForm {
    Whole(BytesMut),
    Events(Splitter),
}

#[derive(Deserialize)]
struct Chunk {
    choices: Option<Vec<AnswerChoice>>,
    error: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct AnswerChoice {
    #[serde(default)]
    index: u64,
    #[serde(alias = "message")]
    delta: Option<Said>,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Said {
    content: Option<AnswerContent>,
    tool_calls: Option<Vec<IgnoredAny>>,
    function_call: Option<IgnoredAny>,
}

impl Collector {
    /// Creates a collector for the answer with these headers, of texts up to `max_text_bytes`.
    pub fn new(headers: &HeaderMap, max_text_bytes: usize) -> Self {
        let form = match is_event_stream(headers) {
            true => {
                AnswerForm::Events(Splitter::new(max_text_bytes.saturating_mul(MAX_BODY_FACTOR)))
            }
            false => AnswerForm::Whole(BytesMut::new()),
        };
        let is_encoded = headers.contains_key(CONTENT_ENCODING);
        Self {
            form,
            max_text_bytes,
            text: String::new(),
            reason: None,
            has_calls: false,
            problem: is_encoded.then_some(NotKept::Unreadable),
        }
    }

    /// Takes the next bytes of the answer.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.problem.is_some() {
            return;
        }
        let mut form = std::mem::replace(&mut self.form, AnswerForm::Whole(BytesMut::new()));
        match &mut form {
            AnswerForm::Whole(held) => {
                held.extend_from_slice(bytes);
                if held.len() > self.max_text_bytes.saturating_mul(MAX_BODY_FACTOR) {
                    self.problem = Some(NotKept::TooLarge);
                }
            }
            AnswerForm::Events(events) => {
                events.feed(bytes, |event| self.take(event.data));
                if events.skipped_events() > 0 {
                    self.problem = Some(NotKept::TooLarge);
                }
            }
        }
        if self.problem.is_none() {
            self.form = form;
        }
    }

    /// Returns the memory that it holds.
    pub fn held_bytes(&self) -> usize {
        let held = match &self.form {
            AnswerForm::Whole(held) => held.len(),
            AnswerForm::Events(events) => events.held_bytes(),
        };
        held + self.text.len()
    }

    /// Whether further bytes matter.
    pub fn is_reading(&self) -> bool {
        self.problem.is_none()
    }

    /// Ends the collection; further bytes are ignored.
    pub fn give_up(&mut self, problem: NotKept) {
        self.problem.get_or_insert(problem);
        self.form = AnswerForm::Whole(BytesMut::new());
        self.text = String::new();
    }

    /// Returns the text of the answer, which has ended.
    pub fn finish(mut self) -> Result<String, NotKept> {
        if self.problem.is_none() {
            match std::mem::replace(&mut self.form, AnswerForm::Whole(BytesMut::new())) {
                AnswerForm::Whole(held) => self.take(&held),
                AnswerForm::Events(events) => {
                    events.finish(|event| self.take(event.data));
                }
            }
        }
        if let Some(problem) = self.problem {
            return Err(problem);
        }
        match self.reason.as_deref() {
            None => Err(NotKept::Incomplete),
            Some("content_filter") => Err(NotKept::Filtered),
            Some("tool_calls" | "function_call") => Err(NotKept::Calls),
            Some(_) if self.has_calls => Err(NotKept::Calls),
            Some(_) if self.text.is_empty() => Err(NotKept::NoText),
            Some(_) => Ok(self.text),
        }
    }

    /// Takes a whole body, or the data of one event.
    fn take(&mut self, data: &[u8]) {
        if data.is_empty() || data == b"[DONE]" || self.problem.is_some() {
            return;
        }
        let Ok(chunk) = serde_json::from_slice::<Chunk>(data) else {
            self.problem = Some(NotKept::Unreadable);
            return;
        };
        if chunk.error.is_some() {
            self.problem = Some(NotKept::Incomplete);
        }
        for choice in chunk.choices.into_iter().flatten().filter(|choice| choice.index == 0) {
            self.reason = choice.finish_reason.or(self.reason.take());
            let Some(said) = choice.delta else { continue };
            self.has_calls |= said.function_call.is_some()
                || said.tool_calls.is_some_and(|calls| !calls.is_empty());
            self.text.extend(said.content.and_then(AnswerContent::text));
        }
        if self.text.len() > self.max_text_bytes {
            self.problem = Some(NotKept::TooLarge);
            self.text = String::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use http::header::CONTENT_TYPE;

    fn collected(content_type: &'static str, parts: &[&[u8]]) -> Result<String, NotKept> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        let mut collector = Collector::new(&headers, 100);
        parts.iter().for_each(|part| collector.feed(part));
        collector.finish()
    }

    #[test]
    fn whole_answers_are_read() {
        let long = format!(
            r#"{{"choices":[{{"message":{{"content":"{}"}},"finish_reason":"stop"}}]}}"#,
            "a".repeat(101)
        );
        let longer = "a".repeat(401);
        for (body, expected) in [
            (
                r#"{"choices":[{"index":0,"message":{"role":"assistant","content":"h\u00ef\n"},"finish_reason":"stop"}]}"#,
                Ok("hï\n"),
            ),
            (
                r#"{"choices":[{"message":{"content":"cut","tool_calls":[],"function_call":null},"finish_reason":"length"}],"error":null}"#,
                Ok("cut"),
            ),
            (
                r#"{"choices":[{"index":1,"message":{"content":"b"},"finish_reason":"stop"},{"index":0,"message":{"content":"a"},"finish_reason":"stop"}]}"#,
                Ok("a"),
            ),
            (
                r#"{"choices":[{"message":{"content":[{"type":"thinking"},{"type":"text","text":"a"}]},"finish_reason":"stop"}]}"#,
                Ok("a"),
            ),
            (
                r#"{"choices":[{"message":{"content":"I look.","tool_calls":[{"id":"c"}]},"finish_reason":"stop"}]}"#,
                Err(NotKept::Calls),
            ),
            (
                r#"{"choices":[{"message":{"content":null},"finish_reason":"tool_calls"}]}"#,
                Err(NotKept::Calls),
            ),
            (
                r#"{"choices":[{"message":{"content":"a"},"finish_reason":"content_filter"}]}"#,
                Err(NotKept::Filtered),
            ),
            (
                r#"{"choices":[{"message":{"content":null,"refusal":"no"},"finish_reason":"stop"}]}"#,
                Err(NotKept::NoText),
            ),
            (
                r#"{"choices":[{"message":{"content":"a"},"finish_reason":null}]}"#,
                Err(NotKept::Incomplete),
            ),
            (r#"{"error":{"message":"no"}}"#, Err(NotKept::Incomplete)),
            (r#"{"choices":"#, Err(NotKept::Unreadable)),
            ("", Err(NotKept::Incomplete)),
            (&long, Err(NotKept::TooLarge)),
            (&longer, Err(NotKept::TooLarge)),
        ] {
            let expected = expected.map(str::to_owned);
            assert_eq!(collected("application/json", &[body.as_bytes()]), expected, "{body}");
            let halves = body.as_bytes().split_at(body.len() / 2);
            assert_eq!(collected("application/json", &[halves.0, halves.1]), expected, "{body}");
        }
    }

    #[test]
    fn streams_are_read_however_they_are_split() {
        let stream = "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n\
            : a comment\n\n\
            data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"h\\u00e9 \"}}]}\r\n\r\n\
            data: {\"choices\":[{\"index\":1,\"delta\":{\"content\":\"other\"},\"finish_reason\":\"length\"}]}\n\n\
            data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"you\"}}]}\n\n\
            data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n\
            data: {\"choices\":[],\"usage\":{}}\n\n\
            data: [DONE]\n\n";
        for at in 0..stream.len() {
            let (first, second) = stream.as_bytes().split_at(at);
            let found = collected("text/event-stream; charset=utf-8", &[first, second]);
            assert_eq!(found, Ok("hé you".to_owned()), "split at {at}");
        }
        let end = stream.find("data: {\"choices\":[{\"index\":0,\"delta\":{},").expect("an end");
        let cut = collected("text/event-stream", &[&stream.as_bytes()[..end]]);
        assert_eq!(cut, Err(NotKept::Incomplete));
        let failed = b"data: {\"error\":{\"message\":\"overloaded\"}}\n\n";
        let failed = collected("text/event-stream", &[&stream.as_bytes()[..end], failed]);
        assert_eq!(failed, Err(NotKept::Incomplete));
    }

    #[test]
    fn a_compressed_answer_is_not_read() {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        let mut collector = Collector::new(&headers, 100);
        collector.feed(b"{}");
        assert_eq!(collector.finish(), Err(NotKept::Unreadable));
    }
}
