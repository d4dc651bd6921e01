//! Records of recalls: which calls were answered before an answer, found by the conversation up to it.
//! Later requests get the calls and their results again at the same place, so that what was sent stays a
//! prefix and the model still knows what it asked for. A record holds the calls and the room of their
//! results, never a result: that is made again from the request. Without its record a request is sent
//! without the recall, which is valid and colder.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use memchr::memmem;
use moka::sync::Cache;
use serde::{Deserialize, Serialize};

use weir_engine::compact::recall::lookup::{Lookup, NO_MORE};
use weir_engine::wire::recall_tool::{Call, Round, ToolResult, Withheld, appended, inserted};
use weir_engine::wire::splice::without_member;
use weir_engine::wire::{Protocol, Role, json};
use weir_store::{Entry, Kind, Life, Store, Tenant, now_ms};

/// Keyed hash of a conversation up to an answer, the same for all processes of a store.
pub(super) type Key = [u8; 32];

/// Records in the store.
const KIND: Kind = Kind { name: "recalls", max_bytes: 64 << 20 };
/// Lifetime of a record that nobody reads. Each use renews it.
const LIFETIME_MS: u64 = 30 * 24 * 60 * 60 * 1000;
/// Format version of the values; others are not read.
const FORM: u8 = 1;
/// Maximum size of a value; a larger one is not kept.
const MAX_VALUE_BYTES: usize = 256 << 10;
/// Maximum number of answers whose records are looked for in the store at once, the newest first.
const MAX_KEYS: usize = 4096;
/// Maximum number of records that are put back into one request, the oldest first.
const MAX_RECORDS: usize = 64;
/// Maximum time that a request or the end of an answer waits for the store.
const STORE_TIMEOUT: Duration = Duration::from_secs(2);
/// Memory for records in front of the store, and an estimate of what each takes.
const CACHE_BYTES: u64 = 32 << 20;
const RECORD_BYTES: u32 = 64 << 10;
const NOTHING_BYTES: u32 = 128;

/// Recalls before an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Recalled {
    /// Rounds that were answered, in order.
    pub rounds: Vec<Answered>,
    /// Calls in the answer itself, next to the client's own.
    pub mixed: Option<Mixed>,
}

/// Calls of a round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Answered {
    pub calls: Vec<Kept>,
    /// Room of each result; `None` if the result says that there are no more recalls.
    pub room_bytes: Option<usize>,
}

/// Calls next to the client's own, which have the IDs `others`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mixed {
    pub answered: Answered,
    pub others: Vec<String>,
}

/// Call of the tool, as the model wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Kept {
    id: String,
    arguments: String,
    raw: String,
    before: Option<String>,
}

impl Answered {
    pub(super) fn of(round: &Round, room_bytes: Option<usize>) -> Self {
        // An item of Responses that follows reasoning is refused by its ID without it.
        let has_reasoning = has(&round.assistant, "\"reasoning\"");
        let kept = |call: &Call| {
            let Call { id, arguments, mut raw, before } = call.clone();
            if let Some(own) = json::member(&raw, "id").filter(|_| has_reasoning) {
                raw = without_member(&raw, own);
            }
            Kept { id, arguments, raw, before }
        };
        Self { calls: round.calls.iter().map(kept).collect(), room_bytes }
    }

    /// Returns the results of the calls, of the same conversation the same ones.
    pub(super) fn texts(&self, lookup: &Lookup<'_>) -> Vec<String> {
        let text = |call: &Kept| match self.room_bytes {
            Some(room_bytes) => lookup.answer(&call.arguments, room_bytes),
            None => NO_MORE.to_owned(),
        };
        self.calls.iter().map(text).collect()
    }

    /// Returns the results with these texts.
    pub(super) fn results<'a>(&'a self, texts: &'a [String]) -> Vec<ToolResult<'a>> {
        let all = self.calls.iter().zip(texts);
        all.map(|(call, text)| ToolResult { id: &call.id, text }).collect()
    }

    /// Returns the calls as an answer of their own.
    fn assistant(&self, protocol: Protocol) -> String {
        let calls: Vec<&str> = self.calls.iter().map(|call| call.raw.as_str()).collect();
        let calls = calls.join(",");
        match protocol {
            Protocol::Chat => {
                format!(r#"{{"role":"assistant","content":null,"tool_calls":[{calls}]}}"#)
            }
            Protocol::Responses => calls,
            Protocol::Messages => format!(r#"{{"role":"assistant","content":[{calls}]}}"#),
        }
    }
}

impl Kept {
    fn call(&self) -> Call {
        let Self { id, arguments, raw, before } = self.clone();
        Call { id, arguments, raw, before }
    }
}

/// Record at hand, with the results once they were made.
#[derive(Debug)]
struct Known {
    recalled: Recalled,
    texts: OnceLock<Vec<Vec<String>>>,
}

/// Records of recalls.
pub struct RecallRecords {
    store: Store,
    secret: [u8; 32],
    /// Records by conversation, and conversations that have none: those whose answer was seen in a
    /// request get none later.
    known: Cache<Key, Option<Arc<Known>>>,
}

/// Answers of a request, and the records before them.
#[derive(Default)]
pub(super) struct Looked {
    /// Key of the answer to this request; `None` if it continues an answer that was begun.
    pub key: Option<Key>,
    /// Answers whose records are not at hand: position and key.
    unknown: Vec<(usize, Key)>,
    found: Vec<(usize, Arc<Known>)>,
}

impl Looked {
    /// Whether there is anything to put back.
    pub(super) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }
}

impl RecallRecords {
    /// Creates the records in `store`.
    pub fn new(store: Store) -> Self {
        let secret = blake3::derive_key("weir 2026-11 recalls", &store.secret());
        let weigh = |_: &Key, known: &Option<Arc<Known>>| match known {
            Some(_) => RECORD_BYTES,
            None => NOTHING_BYTES,
        };
        let known = Cache::builder()
            .weigher(weigh)
            .max_capacity(CACHE_BYTES)
            // Shorter than in the store, so that its entries are renewed in time.
            .time_to_live(Duration::from_millis(LIFETIME_MS / 4))
            .build();
        Self { store, secret, known }
    }

    /// Finds the answers in a conversation, and the records at hand.
    pub(super) fn look(&self, tenant: Tenant, protocol: Protocol, messages: &[&str]) -> Looked {
        let mut looked = Looked::default();
        let mut key = self.start(tenant, protocol);
        for (position, raw) in messages.iter().enumerate() {
            match self.known.get(&key) {
                Some(known) => looked.found.extend(known.map(|known| (position, known))),
                None if is_answer(protocol, raw) => looked.unknown.push((position, key)),
                None => self.known.insert(key, None),
            }
            key = self.next(&key, &protocol.identity(raw));
        }
        looked.key = messages.last().filter(|raw| !is_answer(protocol, raw)).map(|_| key);
        looked
    }

    /// Reads the records that are not at hand. A store that cannot be read has none.
    pub(super) async fn fetch(&self, tenant: Tenant, looked: &mut Looked) {
        let unknown: Vec<(usize, Key)> =
            looked.unknown.iter().rev().take(MAX_KEYS).copied().collect();
        if unknown.is_empty() {
            return;
        }
        let keys = unknown.iter().map(|(_, key)| Bytes::copy_from_slice(key)).collect();
        let life = Life::Renewed { lifetime_ms: LIFETIME_MS };
        let fetched = self.store.fetch(tenant, KIND, keys, now_ms(), life);
        let Ok(Ok(values)) = tokio::time::timeout(STORE_TIMEOUT, fetched).await else { return };
        for ((position, key), value) in unknown.into_iter().zip(values) {
            let known = value.and_then(|value| read(&value)).map(known);
            looked.found.extend(known.clone().map(|known| (position, known)));
            self.known.insert(key, known);
        }
        looked.found.sort_unstable_by_key(|(position, _)| *position);
    }

    /// Records the recalls before an answer, before its caller sees its end. The first writer wins. A
    /// failing store fails no answer.
    pub(super) async fn settle(&self, tenant: Tenant, key: Key, recalled: Recalled) {
        let Some(value) = value(&recalled) else { return };
        let now_ms = now_ms();
        let expires_ms = now_ms.saturating_add(LIFETIME_MS);
        let entry = Entry { key: Bytes::copy_from_slice(&key), value, expires_ms };
        let put = self.store.put_if_absent(tenant, KIND, vec![entry], now_ms);
        let first = match tokio::time::timeout(STORE_TIMEOUT, put).await {
            Ok(Ok(mut first)) => first.pop().and_then(|first| read(&first)),
            _ => None,
        };
        self.known.insert(key, Some(known(first.unwrap_or(recalled))));
    }

    /// Returns the key of a conversation before its first message.
    fn start(&self, tenant: Tenant, protocol: Protocol) -> Key {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        hasher.update(&tenant.0);
        hasher.update(&[protocol as u8]);
        *hasher.finalize().as_bytes()
    }

    /// Returns the key of a conversation after one more message.
    fn next(&self, before: &Key, message: &str) -> Key {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        hasher.update(before);
        hasher.update(message.as_bytes());
        *hasher.finalize().as_bytes()
    }
}

/// Whether JSON text has a name or a value, as it is written.
fn has(raw: &str, quoted: &str) -> bool {
    memmem::find(raw.as_bytes(), quoted.as_bytes()).is_some()
}

/// Whether a message is the model's.
fn is_answer(protocol: Protocol, raw: &str) -> bool {
    protocol.read_message(raw).is_ok_and(|message| message.role == Role::Assistant)
}

fn known(recalled: Recalled) -> Arc<Known> {
    Arc::new(Known { recalled, texts: OnceLock::new() })
}

fn value(recalled: &Recalled) -> Option<Bytes> {
    let mut value = vec![FORM];
    serde_json::to_writer(&mut value, recalled).ok()?;
    (value.len() <= MAX_VALUE_BYTES).then(|| value.into())
}

fn read(value: &[u8]) -> Option<Recalled> {
    serde_json::from_slice(value.strip_prefix(&[FORM])?).ok()
}

/// Returns a body with the recalls put back that were made before its answers; `None` if it cannot be read.
pub(super) fn restored(
    protocol: Protocol,
    tool: &str,
    body: &[u8],
    looked: &Looked,
    max_messages: usize,
) -> Option<String> {
    let mut body = std::str::from_utf8(body).ok()?.to_owned();
    let received = protocol.read(body.as_bytes(), max_messages).ok()?.messages.len();
    for (position, known) in looked.found.iter().take(MAX_RECORDS) {
        let request = protocol.read(body.as_bytes(), max_messages).ok()?;
        // Earlier records have added messages before it.
        let place = position + request.messages.len().checked_sub(received)?;
        body = with_record(protocol, tool, &request.messages, request.text, (place, known))?;
    }
    Some(body)
}

/// Puts one record back before and into the answer at `place`.
fn with_record(
    protocol: Protocol,
    tool: &str,
    messages: &[&str],
    text: &str,
    (place, known): (usize, &Known),
) -> Option<String> {
    let lookup = Lookup { protocol, messages: messages.get(..place)?, tool };
    let Recalled { rounds, mixed } = &known.recalled;
    let all = rounds.iter().chain(mixed.as_ref().map(|mixed| &mixed.answered));
    let texts = known.texts.get_or_init(|| all.map(|own| own.texts(&lookup)).collect());
    let answer = messages.get(place)?;
    // Providers of such models want the reasoning of each call back, which no record holds.
    let is_reasoned = protocol == Protocol::Chat
        && (has(answer, "\"reasoning_") || has(answer, "\"thinking_blocks\""));
    let mut before = String::new();
    for (own, texts) in rounds.iter().zip(texts).filter(|_| !is_reasoned) {
        before.push_str(&elements(protocol, &own.assistant(protocol), &own.results(texts))?);
        before.push(',');
    }
    let start = (answer.as_ptr() as usize).checked_sub(text.as_ptr() as usize)?;
    // Nothing before the answer changes. If the client has left its calls out, there is no place for the
    // others.
    let mixed = mixed.as_ref().zip(texts.last()).and_then(|(mixed, texts)| {
        let calls: Vec<Call> = mixed.answered.calls.iter().map(Kept::call).collect();
        let results = mixed.answered.results(texts);
        let withheld = Withheld { calls: &calls, others: &mixed.others, results: &results };
        inserted(protocol, text, start, &withheld)
    });
    let text = mixed.as_deref().unwrap_or(text);
    Some([text.get(..start)?, &before, text.get(start..)?].concat())
}

/// Returns an answer and the results of its calls as elements of a request's list.
fn elements(protocol: Protocol, assistant: &str, results: &[ToolResult<'_>]) -> Option<String> {
    let empty = match protocol {
        Protocol::Chat | Protocol::Messages => r#"{"messages":[]}"#,
        Protocol::Responses => r#"{"input":[]}"#,
    };
    let body = appended(protocol, empty, assistant, results)?;
    let start = empty.find('[')? + 1;
    Some(body.get(start..body.len() - 2)?.to_owned())
}
