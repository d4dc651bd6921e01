//! Answers that weir gives itself: a shorter conversation, and what an item stands for. Sends nothing.
//!
//! OpenAI's reference of `/v1/responses/compact` gives the form of the first.

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;

use super::open;
use super::seal::PREFIX;
use crate::proxy::admit::class::RequestClass;
use crate::proxy::admit::request::{AskedCompaction, ChatRequest};
use crate::proxy::error::{ErrorKind, Proxied, ProxyError};
use crate::proxy::hold::account::{self, JournalEntry, OWN_ANSWER};
use crate::proxy::plan::Planned;
use crate::proxy::random::new_id;
use crate::proxy::record::Record;
use crate::proxy::settings::Settings;
use weir_engine::compact::report::plain;
use weir_engine::wire::compaction::{self, Opened};
use weir_engine::wire::output_item::{self, AddItem};
use weir_engine::wire::{Protocol, json, returned};
use weir_store::{Tenant, now_ms};

/// Answer of weir's own.
pub struct OwnAnswer {
    pub body: Bytes,
    pub content_type: &'static str,
    pub planned: Planned,
    /// Body of the conversation, with the model of its upstream.
    pub asked: Bytes,
}

/// Answers a request for a shorter conversation: plans it, records it, and seals what the list loses.
pub async fn compacted(
    settings: &Settings,
    request: &ChatRequest,
    record: &mut Record,
) -> Proxied<OwnAnswer> {
    let (_, target, mut job) = request.job(settings, request.model.name.as_deref())?;
    let is_whole = job.asked.compaction == Some(AskedCompaction::Whole);
    if !is_whole {
        job.asked.compaction = Some(AskedCompaction::Now);
    }
    let mut planned = settings.planner.plan_job(&job).await?;
    let (stated, tenant) = (record.attribution(), request.caller.tenant);
    let mut origin = settings.journal.complete(&stated, tenant, &planned.labels);
    origin.class = Some(RequestClass::Compaction.word().to_owned());
    record.attributed(origin);
    record.planned(&planned);
    let model = request.model.name.as_deref().unwrap_or(&planned.model);
    request.caller.check_model(model, &settings.config.routes)?;
    request.caller.check_conversation(&request.decoded, &settings.config.routes)?;
    if planned.model.is_empty() {
        return Err(without_model());
    }
    if let Some(member) = planned.provider_state {
        return Err(kept_elsewhere(member));
    }
    let Some(shortened) = planned.shortened.take() else {
        let message = "compaction failed because of a bug in weir";
        return Err(ProxyError::new(ErrorKind::Internal, message));
    };
    record.take_tokens(planned.sent_tokens).await?;
    let (account, origin) = (account::account(&request.caller), record.attribution());
    let entry = JournalEntry {
        action: open::EDIT.to_owned(),
        upstream: Some(OWN_ANSWER.to_owned()),
        is_billed: false,
        ..JournalEntry::planned(account, &target, &planned, origin, 0)
    };
    let holding = settings.journal.budgets().note(entry.party())?;
    let entry = JournalEntry { is_billed: true, plan_ms: record.plan_ms(), ..entry };
    record.account(settings.journal.open(entry, holding).await?);
    let item = item(settings, request.caller.tenant, is_whole, &shortened.rest)?;
    let object = if is_whole { "response" } else { "response.compaction" };
    let head = format!(
        r#""id":"{}","object":"{object}","created_at":{},"model":{}"#,
        id("resp")?,
        now_ms() / 1000,
        serde_json::Value::from(model),
    );
    let usage = usage(planned.received_tokens, shortened.rest_tokens);
    let (body, content_type) = if is_whole && planned.stream {
        (events(&head, item, &usage), "text/event-stream")
    } else {
        let [kept, open] = [&shortened.kept, &shortened.open].map(|run| returned::items(run, id));
        let list = [kept?, item, open?];
        let list: Vec<&str> =
            list.iter().map(String::as_str).filter(|items| !items.is_empty()).collect();
        let (list, status) = (list.join(","), if is_whole { COMPLETED } else { "" });
        (format!("{{{head}{status},\"output\":[{list}],{usage}}}"), "application/json")
    };
    Ok(OwnAnswer { body: body.into(), content_type, planned, asked: job.body })
}

/// Member of an answer that is complete.
const COMPLETED: &str = r#","status":"completed""#;

fn usage(input: u64, output: u64) -> String {
    format!(
        concat!(
            r#""usage":{{"input_tokens":{},"input_tokens_details":{{"cached_tokens":0}},"#,
            r#""output_tokens":{},"output_tokens_details":{{"reasoning_tokens":0}},"#,
            r#""total_tokens":{}}}"#
        ),
        input,
        output,
        input.saturating_add(output),
    )
}

/// Returns the events of a streamed answer of one item.
fn events(head: &str, item: String, usage: &str) -> String {
    let event = |kind: &str, number: u64, rest: &str| {
        format!(
            "event: {kind}\ndata: {{\"type\":\"{kind}\",\"sequence_number\":{number},\
             \"response\":{{{head}{rest}}}}}\n\n"
        )
    };
    let begun = event("response.created", 0, r#","status":"in_progress","output":[]"#);
    let whole = format!(r#"{COMPLETED},"output":[{item}],{usage}"#);
    let ended = event("response.completed", FIRST_NUMBER + output_item::ADDED_EVENTS, &whole);
    begun + &AddItem::new(item).events(Some(FIRST_NUMBER)) + &ended
}

/// Number of the first event behind `response.created`.
const FIRST_NUMBER: u64 = 1;

/// Returns a compaction item that stands for these items; a whole one for all that a streamed or whole answer
/// was asked with.
pub fn item(settings: &Settings, tenant: Tenant, is_whole: bool, items: &str) -> Proxied<String> {
    let content = Opened { is_whole, items: items.to_owned() };
    let sealed = settings.sealer.seal(tenant, &content).map_err(|_| {
        let message = "the compaction item is too large, or the system provides no random bytes";
        ProxyError::new(ErrorKind::Internal, message)
    })?;
    Ok(compaction::item(&id("cmp")?, &sealed))
}

/// Returns a new ID with this prefix.
fn id(prefix: &str) -> Proxied<String> {
    Ok(format!("{prefix}_{}", new_id(now_ms())?))
}

/// Refuses a request that names no model: the specification requires one.
fn without_model() -> ProxyError {
    ProxyError::new(
        ErrorKind::InvalidRequest,
        "Name the model that the conversation is compacted for, in 'model'.",
    )
    .about("model")
}

fn kept_elsewhere(member: &'static str) -> ProxyError {
    let message = format!(
        "weir compacts the items that it sees in 'input', and '{member}' refers to a conversation that \
         the provider keeps. Send its items, with store: false."
    );
    ProxyError::new(ErrorKind::InvalidRequest, message).about(member)
}

/// Content of an item, for the caller that it was made for.
#[derive(Serialize)]
struct ShownContent<'a> {
    object: &'static str,
    /// Whether it stands for all items before it, or for its own place alone.
    is_whole: bool,
    items: &'a RawValue,
    text: String,
}

/// Shows what a compaction item stands for. `body` is the item.
pub fn shown(settings: &Settings, tenant: Tenant, body: &[u8]) -> Proxied<String> {
    let text = simdutf8::basic::from_utf8(body).ok();
    let content = text.and_then(compaction::contents).filter(|own| own.len() == 1);
    let content = content.and_then(|own| own.into_iter().next());
    let content = content.filter(|content| content.starts_with(PREFIX)).ok_or_else(|| {
        let message = "The body must be a compaction item of weir's: an object with the type \
                       'compaction' and 'encrypted_content', as received.";
        ProxyError::new(ErrorKind::InvalidRequest, message)
    })?;
    let opened = settings.sealer.open(tenant, &content).map_err(open::refused)?;
    let Opened { is_whole, items } =
        opened.unwrap_or(Opened { is_whole: false, items: String::new() });
    let list = format!("[{items}]");
    let messages: Vec<&str> = json::elements(&list).unwrap_or_default();
    let text = plain::dialogue(Protocol::Responses, &messages);
    let items =
        serde_json::from_str(&list).map_err(|_| open::refused(super::seal::SealError::Broken))?;
    let shown = ShownContent { object: "weir.compaction", is_whole, items, text };
    Ok(serde_json::to_string(&shown).expect("texts under fixed keys are JSON"))
}
