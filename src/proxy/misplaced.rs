//! A base URL under which the upstream has no API, found out when an upstream that has never answered
//! says that there is no such path. Sends no caller's request a second time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_ENCODING;
use http::{HeaderMap, StatusCode};
use tokio::sync::OnceCell;
use tokio::time::timeout;

use super::error::UpstreamAnswer;
use super::upstreams::Upstream;
use super::{ErrorKind, ProxyError};
use crate::config::{DEFAULT_UPSTREAM, upstreams};
use crate::upstream::{Endpoint, Inbound, Target, find_api};

/// The longest part of the upstream's answer that is shown.
const MAX_SHOWN_BYTES: usize = 4 << 10;
/// How long that is waited for.
const SHOWN_DEADLINE: Duration = Duration::from_secs(2);

/// What is known of an upstream's base URL.
#[derive(Default)]
pub(super) struct BaseUrl {
    /// Whether a request was answered with a success under it.
    has_answered: AtomicBool,
    /// The base URL that would be right, once somebody has looked for it.
    right: OnceCell<Option<String>>,
}

impl Upstream {
    /// Hands on what the upstream answered to a request to `target`, or an error with the cure where it
    /// says that there is no such path and serves its API under another one.
    pub(super) async fn well_placed(
        &self,
        target: &Target,
        mut inbound: Inbound,
    ) -> Result<Inbound, ProxyError> {
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
        // weir's own headers, and no caller's: a 401 tells as well as a list that the path is there.
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
            super::record::logged(target.path()),
            self.url_setting()
        );
        Some(right)
    }

    /// The key that says where the upstream is, with the other ways to set it.
    fn url_setting(&self) -> String {
        match &*self.name {
            DEFAULT_UPSTREAM => "upstream.url (--upstream, OPENAI_BASE_URL)".to_owned(),
            name => format!("{}.url", upstreams::section(name)),
        }
    }
}
