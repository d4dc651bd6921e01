//! Webhook client: posts small JSON texts to one address, signed by the scheme of Standard Webhooks.
//! Follows no redirect, tries a few times, and reads no answer.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, HeaderName};
use reqwest::redirect;
use ring::hmac;

use crate::config::names::is_local_host;
use weir_store::now_ms;

/// Timeout of one attempt.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Pauses before the further attempts.
const PAUSES: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_secs(5), Duration::from_secs(30)];

const ID: HeaderName = HeaderName::from_static("webhook-id");
const TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// Address of a webhook, and the key that signs its posts.
#[derive(Debug, Clone)]
pub struct Webhook {
    url: String,
    client: reqwest::Client,
    /// `None` if posts are not signed.
    key: Option<hmac::Key>,
}

/// Creates a client for small posts to `url` in the background; `None`, with a log line about their
/// purpose, if TLS cannot be set up.
pub(super) fn posting_client(
    url: &str,
    timeout: Duration,
    purpose: &str,
) -> Option<reqwest::Client> {
    super::install_tls_provider();
    let mut builder = reqwest::Client::builder()
        .redirect(redirect::Policy::none())
        .timeout(timeout)
        .pool_max_idle_per_host(1);
    let uri = url.parse::<http::Uri>().ok();
    if uri.as_ref().and_then(http::Uri::host).is_some_and(is_local_host) {
        // A proxy from the environment is meant for other hosts.
        builder = builder.no_proxy();
    }
    if uri.as_ref().and_then(http::Uri::scheme_str) == Some("http") {
        // Without TLS there is nothing to verify, so a machine without certificates works, too.
        builder = builder.tls_certs_only([]);
    }
    let client = builder.build();
    match client {
        Ok(client) => Some(client),
        Err(error) => {
            let error = error.without_url();
            tracing::warn!(target: "weir::events", %error, purpose, "a client cannot be set up; nothing is sent");
            None
        }
    }
}

impl Webhook {
    /// Creates a webhook for `url`, whose posts are signed with `key`, if any. `None`, with a log
    /// line, if TLS cannot be set up.
    pub fn new(url: &str, key: Option<&[u8]>) -> Option<Self> {
        let client = posting_client(url, TIMEOUT, "events")?;
        let key = key.map(|key| hmac::Key::new(hmac::HMAC_SHA256, key));
        Some(Self { url: url.to_owned(), client, key })
    }

    /// Posts `body` as the event `id`, with a few retries. The error names no address, since an
    /// address may hold a secret.
    pub async fn post(&self, id: &str, body: Vec<u8>) -> Result<(), String> {
        let mut pauses = PAUSES.into_iter();
        loop {
            let headers = self.headers(id, now_ms() / 1000, &body);
            let request = self.client.post(&self.url).headers(headers).body(body.clone());
            let failure = match request.send().await {
                Ok(answer) if answer.status().is_success() => return Ok(()),
                Ok(answer) => format!("it answered {}", answer.status()),
                Err(error) => error.without_url().to_string(),
            };
            match pauses.next() {
                Some(pause) => tokio::time::sleep(pause).await,
                None => return Err(failure),
            }
        }
    }

    /// Returns the headers of one attempt. Retries keep the ID, so that a receiver can recognise
    /// them, and have a time of their own.
    fn headers(&self, id: &str, timestamp_s: u64, body: &[u8]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(TIMESTAMP, timestamp_s.into());
        let mut insert = |name, text: &str| {
            if let Ok(value) = HeaderValue::from_str(text) {
                headers.insert(name, value);
            }
        };
        insert(ID, id);
        if let Some(key) = &self.key {
            let mut signed = format!("{id}.{timestamp_s}.").into_bytes();
            signed.extend_from_slice(body);
            let signature = STANDARD.encode(hmac::sign(key, &signed));
            insert(SIGNATURE, &format!("v1,{signature}"));
        }
        headers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::events::signing_key;

    /// A secret, and the signature that Python's `hmac` makes with it.
    #[test]
    fn a_post_is_signed_by_the_scheme() {
        let key = signing_key("whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=");
        let webhook = Webhook::new("http://127.0.0.1:1/", key.as_deref()).expect("a client");
        let headers = webhook.headers("evt_1", 1_700_000_000, br#"{"event":"store_failing"}"#);
        assert_eq!(headers[ID], "evt_1");
        assert_eq!(headers[TIMESTAMP], "1700000000");
        assert_eq!(headers[SIGNATURE], "v1,X577jfqwm4TtCxbWGptkdFRDAcRXolyx4jMGaOenjjM=");
        let unsigned = Webhook::new("http://127.0.0.1:1/", None).expect("a client");
        assert!(!unsigned.headers("evt_1", 1, b"{}").contains_key(SIGNATURE));
    }
}
