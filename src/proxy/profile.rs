//! Profile text of the operator, put after the caller's own system text: that of the caller's key, or the
//! configured one. Constant between requests, so that the prompt cache stays warm.

use bytes::Bytes;

use super::admit::request::{ChatRequest, on_time};
use super::error::ProxyError;
use super::settings::Settings;
use weir_engine::wire::{Protocol, insert};

/// Name of the edit.
const EDIT: &str = "profile";

/// Puts the profile text of a request's caller into its body, if there is one. A request that is bypassed
/// or observed stays untouched.
pub(super) async fn add(settings: &Settings, request: &mut ChatRequest) -> Result<(), ProxyError> {
    let configured = settings.config.context.profile.as_str();
    let text = request.caller.profile().unwrap_or(configured);
    if text.is_empty() || request.options.bypass || settings.is_observed() {
        return Ok(());
    }
    let (protocol, body) = (request.protocol, request.decoded.clone());
    let text = text.to_owned();
    let added = on_time(body.len(), move || with_text(protocol, &body, &text)).await?;
    // A body without a place for it is refused when it is read.
    let Some(added) = added else { return Ok(()) };
    request.replace(added, EDIT);
    // The model has moved in the body.
    request.read(settings).await
}

fn with_text(protocol: Protocol, body: &[u8], text: &str) -> Option<Bytes> {
    let body = simdutf8::basic::from_utf8(body).ok()?;
    insert::system_text(protocol, body, text).map(Bytes::from)
}
