//! Detection of a wrong base URL: if an upstream that has never answered reports an unknown path,
//! looks for its API elsewhere. Sends no caller's request a second time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_ENCODING;
use http::{HeaderMap, StatusCode};
use tokio::sync::OnceCell;
use tokio::time::timeout;

use crate::config::{DEFAULT_UPSTREAM, upstreams};
use crate::proxy::error::{ErrorKind, Proxied, ProxyError, UpstreamAnswer};
use crate::proxy::logged::logged;
use crate::proxy::upstreams::Upstream;
use crate::upstream::{Endpoint, Inbound, Target, find_api};

/// Maximum part of the upstream's answer that is shown.
const MAX_SHOWN_BYTES: usize = 4 << 10;
/// Timeout for that part.
const SHOWN_DEADLINE: Duration = Duration::from_secs(2);

/// Knowledge of an upstream's base URL.
#[derive(Default)]
pub(crate) struct BaseUrl {
    /// Whether any request under it succeeded.
    has_answered: AtomicBool,
    /// Correct base URL, once searched for.
    right: OnceCell<Option<String>>,
}

impl Upstream {
    /// Passes on the upstream's answer to a request for `target`. Returns an error with the
    /// solution instead if the upstream reports an unknown path and has its API under another one, or if it
    /// redirects a caller that would take its virtual key along.
    pub(crate) async fn well_placed(
        &self,
        target: &Target,
        mut inbound: Inbound,
        has_virtual_key: bool,
    ) -> Proxied<Inbound> {
        if let Some(origin) = inbound.leads_away().filter(|_| has_virtual_key) {
            let (base, setting) = (self.client.base().url(), self.url_setting());
            let message = format!(
                "The upstream {base} redirects to {origin}. A client that follows may take its virtual key \
                 there, so the redirect is not passed on. Set {setting} in weir's configuration to the address \
                 that serves the API."
            );
            return Err(ProxyError::new(ErrorKind::UpstreamPath, message));
        }
        if inbound.status.is_success() {
            self.base_url.has_answered.store(true, Ordering::Relaxed);
        }
        let is_missing =
            matches!(inbound.status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED);
        let base = self.client.base();
        if !is_missing
            || base.has_api_path()
            || self.base_url.has_answered.load(Ordering::Relaxed)
            || !base.holds(target)
        {
            return Ok(inbound);
        }
        let status = inbound.status.as_u16();
        let right = self.base_url.right.get_or_init(|| self.look_for_api(status, target)).await;
        let Some(right) = right else { return Ok(inbound) };
        let (base, setting) = (base.url(), self.url_setting());
        let message = format!(
            "The upstream {base} answered {status} to {}. It serves its API under {right}: set \
             {setting} to {right} in weir's configuration.",
            target.path()
        );
        let is_plain = !inbound.headers.contains_key(CONTENT_ENCODING);
        let seen = timeout(SHOWN_DEADLINE, inbound.body.peek(MAX_SHOWN_BYTES)).await;
        let shown = seen.ok().filter(|_| is_plain).unwrap_or_default();
        let body = Bytes::copy_from_slice(&shown[..shown.len().min(MAX_SHOWN_BYTES)]);
        Err(ProxyError {
            upstream: Some(Box::new(UpstreamAnswer { status, body })),
            ..ProxyError::new(ErrorKind::UpstreamPath, message)
        })
    }

    async fn look_for_api(&self, status: u16, target: &Target) -> Option<String> {
        // weir's own headers, not the caller's: a 401 also proves that the path exists.
        let mut headers = HeaderMap::new();
        self.put_own(&mut headers, &Endpoint::Models);
        let right = find_api(&self.client, &headers).await?;
        tracing::warn!(
            target: "weir::upstream",
            event = "base_url",
            upstream = &*self.name,
            url = self.client.base().url(),
            right,
            "the upstream answers {status} to {}: its API is under {right}. Set {} to {right}",
            logged(target.path()),
            self.url_setting()
        );
        Some(right)
    }

    /// Names the configuration key of the upstream's URL, and the other ways to set it.
    fn url_setting(&self) -> String {
        match &*self.name {
            DEFAULT_UPSTREAM => "upstream.url (--upstream, OPENAI_BASE_URL)".to_owned(),
            name => format!("{}.url", upstreams::section(name)),
        }
    }
}
