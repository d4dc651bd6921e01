//! Compaction items of weir in requests: opened and replaced by the items that they stand for, so that no
//! upstream sees them. Items of providers stay.

use std::borrow::Cow;

use bytes::Bytes;
use memchr::memmem;

use super::seal::{MAX_SEALED_BYTES, PREFIX, SealError, Sealer};
use crate::proxy::admit::request::ChatRequest;
use crate::proxy::error::{ErrorKind, Proxied, ProxyError};
use crate::proxy::settings::Settings;
use weir_engine::wire::compaction;
use weir_store::Tenant;

/// Name of the edit.
pub const EDIT: &str = "compaction";
/// Maximum number of weir's items in one request: a client needs the last one alone.
const MAX_ITEMS: usize = 64;
/// Larger bodies are not searched on the request's own task.
const INLINE_BODY_BYTES: usize = 256 * 1024;

/// Returns the body of a request with weir's items opened; `None` if it has none.
pub async fn opened(settings: &Settings, request: &ChatRequest) -> Proxied<Option<Bytes>> {
    if !is_in(&request.decoded) {
        return Ok(None);
    }
    let (sealer, tenant) = (settings.sealer.clone(), request.caller.tenant);
    let body = request.decoded.clone();
    if body.len() <= INLINE_BODY_BYTES {
        return open(&sealer, tenant, &body);
    }
    let opened = tokio::task::spawn_blocking(move || open(&sealer, tenant, &body)).await;
    opened.map_err(|_| ProxyError::new(ErrorKind::Internal, "a body could not be read"))?
}

/// Whether a body may hold an item of weir's.
pub fn is_in(body: &[u8]) -> bool {
    memmem::find(body, PREFIX.as_bytes()).is_some()
}

/// Whether a body has items of weir's in its list.
pub fn has_items(text: &str) -> bool {
    let is_own = |contents: &[Cow<'_, str>]| contents.iter().any(|own| own.starts_with(PREFIX));
    let found = |contents: &[Cow<'_, str>]| if is_own(contents) { Err(()) } else { Ok(None) };
    compaction::replace(text, found).is_err()
}

/// Opens weir's items in a body; `None` if it has none.
pub fn open(sealer: &Sealer, tenant: Tenant, body: &[u8]) -> Proxied<Option<Bytes>> {
    // A body that is not text is refused later.
    let Ok(text) = simdutf8::basic::from_utf8(body) else { return Ok(None) };
    let mut items = 0;
    let opened = compaction::replace(text, |contents| {
        let is_own = contents.iter().any(|own| own.starts_with(PREFIX));
        let [content] = contents else {
            return if is_own { Err(refused(SealError::Broken)) } else { Ok(None) };
        };
        items += usize::from(is_own);
        if items > MAX_ITEMS {
            let message = format!(
                "'input' has more than {MAX_ITEMS} of weir's compaction items. Send the last one \
                 alone: it stands for those before."
            );
            return Err(of_input(message));
        }
        sealer.open(tenant, content).map_err(refused)
    });
    Ok(opened?.map(Bytes::from))
}

/// Creates the error for an item that cannot be opened.
pub fn refused(error: SealError) -> ProxyError {
    of_input(match error {
        SealError::Broken => {
            "weir cannot open a compaction item in 'input': it was changed or cut short, or it was \
             made for another API key or by a weir with another secret. Send it as received, with the \
             key that it was made for, or send the items that it stands for."
                .to_owned()
        }
        SealError::TooLarge => format!(
            "A compaction item in 'input' is larger than {MAX_SEALED_BYTES} bytes, which none of \
             weir's is. Send the items that it stands for."
        ),
    })
}

fn of_input(message: String) -> ProxyError {
    ProxyError::new(ErrorKind::InvalidRequest, message).about("input")
}
