//! Answers that refuse a part of the request that weir can leave out. Writes and reads no answer that a
//! caller sees.

use std::time::Duration;

use http::StatusCode;
use http::header::CONTENT_ENCODING;
use tokio::time::timeout;

use crate::upstream::Inbound;

/// Maximum size of a refusal that is examined.
const MAX_REFUSAL_BYTES: usize = 64 << 10;
/// Timeout for the rest of a refusal; its caller waits as long for the refusal's head.
const REFUSAL_DEADLINE: Duration = Duration::from_secs(2);

/// Words in a refusal of the request for a stream's usage.
pub(super) const USAGE: &[&str] = &["stream_options", "include_usage"];
/// Words in a refusal of thinking behind other messages than it was written after. Source:
/// Anthropic's guide to extended thinking.
pub(super) const THINKING: &[&str] = &["bound to a different conversation"];

/// Words in a refusal because the account has no credit. Sources: the lists of errors of OpenAI,
/// Anthropic, OpenRouter and DeepSeek.
pub(super) const NO_CREDIT: &[&str] = &[
    "insufficient_quota",
    "billing_hard_limit_reached",
    "billing_error",
    "credit balance is too low",
    "nsufficient credits",
    "nsufficient Balance",
];
/// Words in a refusal because the provider does not have the model.
pub(super) const NO_MODEL: &[&str] = &[
    "model_not_found",
    "model_not_available",
    "DeploymentNotFound",
    "No endpoints found",
    "has been deprecated",
    "decommissioned",
];
/// Words in a refusal by a provider's filter of content. Sources: the lists of errors of OpenAI, Azure
/// and DashScope.
pub(super) const CONTENT_FILTER: &[&str] = &[
    "content_filter",
    "content_policy_violation",
    "ResponsibleAIPolicyViolation",
    "data_inspection_failed",
    "moderation_blocked",
];

/// Whether an answer refuses the request in any of these words.
pub(super) async fn is_named(inbound: &mut Inbound, words: &[&str]) -> bool {
    matches!(inbound.status, StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY)
        && is_said(inbound, words).await
}

/// Whether an answer that is no success has any of these words.
pub(super) async fn is_said(inbound: &mut Inbound, words: &[&str]) -> bool {
    if inbound.is_accepted() || inbound.headers.contains_key(CONTENT_ENCODING) {
        return false;
    }
    let seen = timeout(REFUSAL_DEADLINE, inbound.body.peek(MAX_REFUSAL_BYTES)).await;
    let Ok(seen) = seen else { return false };
    let has = |word: &&str| memchr::memmem::find(seen, word.as_bytes()).is_some();
    seen.len() <= MAX_REFUSAL_BYTES && words.iter().any(has)
}
