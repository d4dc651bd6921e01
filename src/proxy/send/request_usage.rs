//! Answers that refuse the request for a stream's usage. Writes and reads no answer that a caller
//! sees.

use std::time::Duration;

use http::StatusCode;
use http::header::CONTENT_ENCODING;
use tokio::time::timeout;

use crate::upstream::Inbound;

/// Maximum size of a refusal that is examined.
const MAX_REFUSAL_BYTES: usize = 64 << 10;
/// Timeout for the rest of a refusal; its caller waits as long for the refusal's head.
const REFUSAL_DEADLINE: Duration = Duration::from_secs(2);
/// Names in a refusal of the usage request.
const NAMES: [&[u8]; 2] = [b"stream_options", b"include_usage"];
/// Whether an answer refuses the usage request.
pub(in crate::proxy) async fn is_refusal(inbound: &mut Inbound) -> bool {
    let may_be =
        matches!(inbound.status, StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY);
    if !may_be || inbound.headers.contains_key(CONTENT_ENCODING) {
        return false;
    }
    let seen = timeout(REFUSAL_DEADLINE, inbound.body.peek(MAX_REFUSAL_BYTES)).await;
    let Ok(seen) = seen else { return false };
    let names = |name: &&[u8]| seen.windows(name.len()).any(|part| part == *name);
    seen.len() <= MAX_REFUSAL_BYTES && NAMES.iter().any(names)
}
