//! Hardest single request: a conversation whose last message alone is larger than any window.
//!
//! As a tool result it must be clipped and answered; as a user message it must be refused.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::replay::conversation::{self, Conversation, Role};
use super::replay::weir::{self, Answer, Asked};
use super::replay::{Stage, body};

/// Result of one such request.
pub struct Stressed {
    name: &'static str,
    body_bytes: usize,
    last_tokens: u64,
    answer: Answer,
    sent_tokens: Option<u64>,
    elapsed: Duration,
    idle_memory_kib: Option<u64>,
    peak_memory_kib: Option<u64>,
    is_refusal_due: bool,
}

/// Sends the request of the first conversation in `file` up to its largest message, unchanged and
/// with that message as the user's, each to its own weir.
pub async fn stress(
    file: &Path,
    program: &Path,
    settings: &[(String, String)],
) -> Result<[Stressed; 2], String> {
    let conversations = conversation::read(file)?;
    let conversation = conversations.first().ok_or("the file holds no conversation")?;
    let messages = conversation.messages.iter().enumerate();
    let largest = messages.max_by_key(|(_, message)| message.tokens).map(|(index, _)| index);
    let index = largest.ok_or("the conversation has no messages")?;
    let message = &conversation.messages[index];
    if message.role != Role::Tool {
        return Err("the largest message of the conversation is not a tool result".to_owned());
    }
    let tools = conversation.tools.as_deref();
    let as_result = body(conversation, index + 1, tools);
    let as_user = as_user(conversation, index)?;
    Ok([
        one("huge tool result", as_result, message.tokens, false, program, settings).await?,
        one("huge user message", as_user, message.tokens, true, program, settings).await?,
    ])
}

/// Returns the request with message `index`, a tool result, as a user message; the call that it
/// answers is removed.
fn as_user(conversation: &Conversation, index: usize) -> Result<Vec<u8>, String> {
    let before = conversation.messages[..index].iter();
    let call = before.clone().rposition(|message| message.role == Role::Assistant);
    let opened = body(conversation, call.unwrap_or(index), conversation.tools.as_deref());
    let mut request: Value = serde_json::from_slice(&opened).map_err(|error| error.to_string())?;
    let own: Value = serde_json::from_str(&conversation.messages[index].raw)
        .map_err(|error| error.to_string())?;
    let messages = request["messages"].as_array_mut().ok_or("a request has messages")?;
    messages.push(json!({"role": "user", "content": own["content"]}));
    Ok(request.to_string().into_bytes())
}

async fn one(
    name: &'static str,
    body: Vec<u8>,
    last_tokens: u64,
    is_refusal_due: bool,
    program: &Path,
    settings: &[(String, String)],
) -> Result<Stressed, String> {
    let stage = Stage::set(program, settings).await?;
    let caller = weir::caller()?;
    let base_url = stage.weir.base_url();
    let idle_memory_kib = stage.weir.peak_memory_kib();
    let body_bytes = body.len();
    let request = "stress";
    let asked = Asked { base_url: &base_url, key: "stress", request, limit_tokens: None, body };
    let begun = Instant::now();
    let answer = weir::ask(&caller, asked).await?;
    let elapsed = begun.elapsed();
    let seen = stage.seen(request).await;
    Ok(Stressed {
        name,
        body_bytes,
        last_tokens,
        answer,
        sent_tokens: seen.and_then(|seen| seen.prompt_tokens),
        elapsed,
        idle_memory_kib,
        peak_memory_kib: stage.weir.peak_memory_kib(),
        is_refusal_due,
    })
}

impl Stressed {
    pub fn passed(&self) -> bool {
        if self.is_refusal_due {
            let is_own = self.answer.own_error.as_deref() == Some("context_length_exceeded");
            self.answer.status == 400 && is_own && self.sent_tokens.is_none()
        } else {
            self.answer.status == 200 && self.answer.action.contains("fit")
        }
    }

    pub fn print(&self) {
        let memory = |kib: Option<u64>| kib.map_or(0, |kib| kib / 1024);
        println!(
            "{} {}: {} tokens in its last message, {} bytes: {} {}, {:?} tokens sent, {:.0} ms \
             with the upstream's own, peak memory {} MiB (idle {} MiB)",
            if self.passed() { "PASS" } else { "FAIL" },
            self.name,
            self.last_tokens,
            self.body_bytes,
            self.answer.status,
            self.answer.action,
            self.sent_tokens,
            self.elapsed.as_secs_f64() * 1e3,
            memory(self.peak_memory_kib),
            memory(self.idle_memory_kib),
        );
        if !self.answer.message.is_empty() {
            println!("       {}", self.answer.message);
        }
    }

    pub fn json(&self) -> Value {
        json!({
            "case": self.name,
            "passed": self.passed(),
            "last_message_tokens": self.last_tokens,
            "body_bytes": self.body_bytes,
            "status": self.answer.status,
            "action": self.answer.action,
            "message": self.answer.message,
            "sent_tokens": self.sent_tokens,
            "elapsed_ms": self.elapsed.as_millis() as u64,
            "idle_memory_kib": self.idle_memory_kib,
            "peak_memory_kib": self.peak_memory_kib,
        })
    }
}
