//! Answers that refuse a model's thinking because it was written in another conversation: what stands
//! before it has changed. Source: Anthropic's guide to extended thinking.

use std::time::Duration;

use http::StatusCode;
use http::header::CONTENT_ENCODING;
use tokio::time::timeout;

use crate::upstream::Inbound;

/// Maximum size of a refusal that is examined.
const MAX_REFUSAL_BYTES: usize = 64 << 10;
/// Timeout for the rest of a refusal; its caller waits as long for the refusal's head.
const REFUSAL_DEADLINE: Duration = Duration::from_secs(2);
/// Words of such a refusal.
const WORDS: &[u8] = b"bound to a different conversation";

/// Whether an answer refuses the thinking in a request.
pub(super) async fn is_refusal(inbound: &mut Inbound) -> bool {
    if inbound.status != StatusCode::BAD_REQUEST || inbound.headers.contains_key(CONTENT_ENCODING) {
        return false;
    }
    let seen = timeout(REFUSAL_DEADLINE, inbound.body.peek(MAX_REFUSAL_BYTES)).await;
    seen.is_ok_and(|seen| {
        seen.len() <= MAX_REFUSAL_BYTES && memchr::memmem::find(seen, WORDS).is_some()
    })
}
