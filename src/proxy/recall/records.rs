//! Records of recalls: which calls were answered before an answer, found by the conversation up to it and
//! by what its caller saw of it: a request may be sent twice and get two answers. Later requests get the calls and their results again at the same place, so that what was sent stays a
//! prefix and the model still knows what it asked for. A record holds the calls and the room of their
//! results, never a result: that is made again from the request. Without its record a request is sent
//! without the recall, which is valid and colder.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use memchr::memmem;
use serde::{Deserialize, Serialize};

use super::said::Said;
use crate::proxy::cache::Cache;
use crate::proxy::chain::{Key, KeyChain};
use weir_engine::compact::recall::lookup::{LEAST_ANSWER_BYTES, Lookup, MAX_ANSWER_BYTES, NO_MORE};
use weir_engine::wire::json::without_member;
use weir_engine::wire::recall_tool::{Call, Next, Round, ToolResult, Withheld, appended, inserted};
use weir_engine::wire::{self, Message, Protocol, Role, json};
use weir_store::{Entry, Kind, Life, Store, Tenant, now_ms};

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
/// Maximum number of records that are put back into one request, and of their calls together, the oldest
/// first: each call is a search.
const MAX_RECORDS: usize = 64;
const MAX_PUT_BACK: usize = 256;
/// Maximum time that a request or the end of an answer waits for the store.
const STORE_TIMEOUT: Duration = Duration::from_secs(2);
/// Memory for records in front of the store, and what each takes without its calls and results.
const CACHE_BYTES: u64 = 32 << 20;
const ENTRY_BYTES: usize = 128;

/// Recalls before an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Recalled {
    /// Rounds that were answered, in order.
    pub rounds: Vec<Answered>,
    /// Calls in the answer itself, next to the client's own.
    pub mixed: Option<Mixed>,
}

impl Recalled {
    /// Returns the rounds, with the calls in the answer itself as the last one.
    fn all(&self) -> impl Iterator<Item = &Answered> {
        self.rounds.iter().chain(self.mixed.as_ref().map(|mixed| &mixed.answered))
    }

    /// Returns the number of calls.
    fn calls(&self) -> usize {
        self.all().map(|own| own.calls.len()).sum()
    }
}

/// Calls of a round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Answered {
    pub calls: Vec<Call>,
    /// Room of each result; `None` if the result says that there are no more recalls.
    pub room_bytes: Option<usize>,
}

/// Calls next to the client's own, which have the IDs `others`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mixed {
    pub answered: Answered,
    pub others: Vec<String>,
}

impl Answered {
    pub(super) fn of(round: &Round, room_bytes: Option<usize>) -> Self {
        // An item of Responses that follows reasoning is refused by its ID without it.
        let has_reasoning = has(&round.assistant, "\"reasoning\"");
        let mut reasoning = has_reasoning.then(|| reasoning(round)).flatten().unwrap_or_default();
        let kept = |call: &Call| {
            let mut call = call.clone();
            match reasoning.remove(&call.id) {
                Some(own) => call.raw = own + &call.raw,
                None if has_reasoning && round.next == Next::Recall => {
                    call.raw = without_id(call.raw);
                }
                // The client's answer has the reasoning, if it was kept there.
                None => {}
            }
            call
        };
        Self { calls: round.calls.iter().map(kept).collect(), room_bytes }
    }

    /// Returns the results of the calls, of the same conversation the same ones.
    pub(super) fn texts(&self, lookup: &Lookup<'_>) -> Vec<String> {
        let text = |call: &Call| match self.room_bytes {
            Some(room_bytes) => lookup.answer(&call.arguments, room_bytes),
            None => NO_MORE.to_owned(),
        };
        self.calls.iter().map(text).collect()
    }

    /// Returns the memory that the calls and their results take at most.
    fn most_bytes(&self) -> usize {
        let most_bytes = match self.room_bytes {
            Some(room_bytes) => room_bytes.clamp(LEAST_ANSWER_BYTES, MAX_ANSWER_BYTES),
            None => NO_MORE.len(),
        };
        let bytes = |call: &Call| {
            let before = call.before.as_ref().map_or(0, String::len);
            ENTRY_BYTES
                + call.id.len()
                + call.arguments.len()
                + call.raw.len()
                + before
                + most_bytes
        };
        self.calls.iter().map(bytes).sum()
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

/// Returns an item without its ID.
fn without_id(raw: String) -> String {
    match json::member(&raw, "id") {
        Some(own) => without_member(&raw, own),
        None => raw,
    }
}

/// Returns the items of reasoning in front of each call of a round, each with a comma behind it, by the
/// ID of the call. `None` unless they can be sent back: all of them stand directly in front of the
/// tool's calls, where the client's answer has none, and their content is sealed in them.
fn reasoning(round: &Round) -> Option<HashMap<String, String>> {
    let mut found = HashMap::new();
    let mut before = String::new();
    for item in json::run(&round.assistant)? {
        let text = |name: &str| json::member(item, name).and_then(json::string);
        if text("type").as_deref() == Some("reasoning") {
            text("encrypted_content").filter(|sealed| !sealed.is_empty())?;
            before.push_str(item);
            before.push(',');
            continue;
        }
        let id = text("call_id").filter(|id| round.calls.iter().any(|call| call.id == **id));
        match id {
            Some(id) => drop(found.insert(id.into_owned(), std::mem::take(&mut before))),
            None if !before.is_empty() => return None,
            None => {}
        }
    }
    (round.next == Next::Recall && before.is_empty()).then_some(found)
}

/// Record at hand, with the results once they were made.
#[derive(Debug)]
struct Known {
    recalled: Recalled,
    texts: OnceLock<Vec<Vec<String>>>,
}

impl Known {
    /// Returns the memory that the record takes once its results are made.
    fn most_bytes(&self) -> usize {
        let others = self.recalled.mixed.iter().flat_map(|mixed| &mixed.others);
        let others_bytes = others.map(|id| ENTRY_BYTES + id.len()).sum::<usize>();
        self.recalled.all().map(Answered::most_bytes).sum::<usize>() + others_bytes
    }
}

/// Records of recalls.
pub struct RecallRecords {
    store: Store,
    keys: KeyChain,
    /// Records by answer, and answers that have none: those that were seen in a request get none later.
    known: Cache<Key, Option<Arc<Known>>>,
}

/// Answers of a request, and the records before them.
#[derive(Default)]
pub(super) struct Looked {
    /// Key of the conversation, whose answer may get a record; `None` if it continues an answer that was
    /// begun.
    pub key: Option<Key>,
    /// Answers whose records are not at hand.
    unknown: Vec<(Place, Key)>,
    /// Records by place, at most one for each answer.
    found: Vec<(Place, Arc<Known>)>,
}

/// Place of an answer among the messages of a request: the first one of the model's, and the number of
/// them in a row that may be the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    first: usize,
    length: usize,
}

impl Looked {
    /// Whether there is anything to put back.
    pub(super) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Adds records. Of those for one answer the longest counts: later requests may have more behind it.
    fn add(&mut self, found: impl IntoIterator<Item = (Place, Arc<Known>)>) {
        self.found.extend(found);
        self.found.sort_unstable_by_key(|(place, _)| (place.first, Reverse(place.length)));
        self.found.dedup_by_key(|(place, _)| place.first);
    }
}

impl RecallRecords {
    /// Creates the records in `store`.
    pub fn new(store: Store) -> Self {
        let keys = KeyChain::new("weir 2026-11 recalls", &store.secret());
        let weigh = |known: &Option<Arc<Known>>| {
            let bytes = ENTRY_BYTES + known.as_ref().map_or(0, |known| known.most_bytes());
            u32::try_from(bytes).unwrap_or(u32::MAX)
        };
        let known = Cache::builder(CACHE_BYTES)
            .weigh(weigh)
            // Shorter than in the store, so that its entries are renewed in time.
            .time_to_live(Duration::from_millis(LIFETIME_MS / 4))
            .build();
        Self { store, keys, known }
    }

    /// Finds the answers in a conversation, and the records at hand. `tool` is the name of weir's tool.
    pub(super) fn look(
        &self,
        (tenant, protocol): (Tenant, Protocol),
        tool: &str,
        messages: &[&str],
    ) -> Looked {
        let (mut looked, mut found) = (Looked::default(), Vec::new());
        let (mut key, head) = (self.keys.start(tenant, protocol), wire::head(messages));
        // The answer that is read: its first message, the key of the conversation before, and its text.
        let mut answer: Option<(usize, Key, Said)> = None;
        for (position, raw) in messages.iter().enumerate() {
            match answer_in(protocol, raw) {
                None => answer = None,
                Some(message) => {
                    let (first, before, said) =
                        answer.get_or_insert_with(|| (position, key, Said::default()));
                    let place = Place { first: *first, length: position + 1 - *first };
                    let is_more = said.add(tool, &message);
                    if let Some(own) = said.key(&self.keys.secret, before).filter(|_| is_more) {
                        match self.known.get(&own) {
                            Some(known) => found.extend(known.map(|known| (place, known))),
                            None => looked.unknown.push((place, own)),
                        }
                    }
                }
            }
            if position >= head {
                key = self.keys.next(&key, &protocol.identity(raw));
            }
        }
        looked.add(found);
        looked.key = (answer.is_none() && !messages.is_empty()).then_some(key);
        looked
    }

    /// Reads the records that are not at hand. A store that cannot be read has none.
    pub(super) async fn fetch(&self, tenant: Tenant, looked: &mut Looked) {
        let unknown: Vec<(Place, Key)> =
            looked.unknown.iter().rev().take(MAX_KEYS).copied().collect();
        if unknown.is_empty() {
            return;
        }
        let keys = unknown.iter().map(|(_, key)| Bytes::copy_from_slice(key)).collect();
        let life = Life::Renewed { lifetime_ms: LIFETIME_MS };
        let fetched = self.store.fetch(tenant, KIND, keys, now_ms(), life);
        let Ok(Ok(values)) = tokio::time::timeout(STORE_TIMEOUT, fetched).await else { return };
        let mut found = Vec::new();
        for ((place, key), value) in unknown.into_iter().zip(values) {
            let known = value.and_then(|value| read(&value)).map(known);
            found.extend(known.clone().map(|known| (place, known)));
            self.known.insert(&key, known);
        }
        looked.add(found);
    }

    /// Records the recalls before an answer that says this behind the conversation `before`, before its
    /// caller sees its end. The first writer wins. A failing store fails no answer.
    pub(super) async fn settle(
        &self,
        tenant: Tenant,
        (before, said): (Key, &Said),
        recalled: Recalled,
    ) {
        let Some(key) = said.key(&self.keys.secret, &before) else { return };
        let Some(value) = value(&recalled) else { return };
        let now_ms = now_ms();
        let expires_ms = now_ms.saturating_add(LIFETIME_MS);
        let entry = Entry { key: Bytes::copy_from_slice(&key), value, expires_ms };
        let put = self.store.put_if_absent(tenant, KIND, vec![entry], now_ms);
        let first = match tokio::time::timeout(STORE_TIMEOUT, put).await {
            Ok(Ok(mut first)) => first.pop().and_then(|first| read(&first)),
            _ => None,
        };
        self.known.insert(&key, Some(known(first.unwrap_or(recalled))));
    }
}

/// Whether JSON text has a name or a value, as it is written.
fn has(raw: &str, quoted: &str) -> bool {
    memmem::find(raw.as_bytes(), quoted.as_bytes()).is_some()
}

/// Returns a message if it is the model's.
fn answer_in(protocol: Protocol, raw: &str) -> Option<Message<'_>> {
    // Most messages need not be read; items of Responses have no role.
    let may_be = protocol == Protocol::Responses || has(raw, "\"assistant\"");
    let message = may_be.then(|| protocol.read_message(raw).ok()).flatten()?;
    (message.role == Role::Assistant).then_some(message)
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
    let mut calls = 0;
    for (Place { first, .. }, known) in looked.found.iter().take(MAX_RECORDS) {
        calls += known.recalled.calls();
        if calls > MAX_PUT_BACK {
            break;
        }
        let request = protocol.read(body.as_bytes(), max_messages).ok()?;
        // Earlier records have added messages before it.
        let place = first + request.messages.len().checked_sub(received)?;
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
    let all = known.recalled.all();
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
        let mut calls = mixed.answered.calls.clone();
        if protocol == Protocol::Responses && !has(answer, "\"reasoning\"") {
            calls.iter_mut().for_each(|call| call.raw = without_id(std::mem::take(&mut call.raw)));
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_weighs_as_much_as_its_results_may_take() {
        let text = "level ".repeat(20_000);
        let raw = format!(r#"{{"role":"user","content":"{text}"}}"#);
        let lookup = Lookup { protocol: Protocol::Chat, messages: &[&raw], tool: "recall" };
        let call = |nth: usize| Call {
            id: format!("r{nth}"),
            arguments: r#"{"messages":[0]}"#.to_owned(),
            raw: String::new(),
            before: None,
        };
        for room_bytes in [Some(0), Some(10_000), Some(usize::MAX), None] {
            let answered = Answered { calls: (0..16).map(call).collect(), room_bytes };
            let made_bytes: usize = answered.texts(&lookup).iter().map(String::len).sum();
            let recalled = Recalled { rounds: vec![answered], mixed: None };
            let weight = known(recalled).most_bytes();
            assert!(made_bytes <= weight, "{room_bytes:?}: {made_bytes} above {weight}");
        }
    }

    #[test]
    fn no_more_calls_are_put_back_than_may_be_searched() {
        let answers = MAX_PUT_BACK / 16 + 2;
        let mut list = Vec::new();
        let mut found = Vec::new();
        for nth in 0..answers {
            list.push(r#"{"role":"user","content":"Go on."}"#.to_owned());
            list.push(format!(r#"{{"role":"assistant","content":"Step {nth}."}}"#));
            let call = |own: usize| {
                let id = format!("r{nth}_{own}");
                let raw = format!(
                    r#"{{"id":"{id}","type":"function","function":{{"name":"recall","arguments":"{{}}"}}}}"#
                );
                Call { id, arguments: "{}".to_owned(), raw, before: None }
            };
            let answered = Answered { calls: (0..16).map(call).collect(), room_bytes: Some(0) };
            let recalled = Recalled { rounds: vec![answered], mixed: None };
            found.push((Place { first: 2 * nth + 1, length: 1 }, known(recalled)));
        }
        let mut looked = Looked::default();
        looked.add(found);
        let body = format!(r#"{{"messages":[{}]}}"#, list.join(","));
        let body = restored(Protocol::Chat, "recall", body.as_bytes(), &looked, usize::MAX);
        let body = body.expect("it can be read");
        let last = (MAX_PUT_BACK / 16) - 1;
        assert!(body.contains(&format!("\"r{last}_15\"")));
        assert!(!body.contains(&format!("\"r{}_0\"", last + 1)), "the oldest alone");
    }
}
