//! Client of an OpenTelemetry collector: posts batches of traces as OTLP over HTTP, in JSON. Follows
//! no redirect, and repeats a post only if the collector asks for it.

use std::time::Duration;

use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, HeaderName, StatusCode};

use super::webhook::posting_client;
use crate::config::Secret;

/// Timeout of one attempt.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Pauses before the further attempts.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];

/// Address of a collector.
#[derive(Debug, Clone)]
pub struct Collector {
    url: String,
    headers: HeaderMap,
    client: reqwest::Client,
}

impl Collector {
    /// Creates a client for the collector at `url` that sends these headers; `None`, with a log line,
    /// if TLS cannot be set up.
    pub fn new(url: &str, given: &[(String, Secret)]) -> Option<Self> {
        let client = posting_client(url, TIMEOUT, "traces")?;
        let mut headers = HeaderMap::new();
        for (name, value) in given {
            let name = HeaderName::try_from(name.as_str()).ok();
            let pair = name.zip(HeaderValue::from_str(value.expose()).ok());
            let Some((name, mut value)) = pair else { continue };
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Some(Self { url: url.to_owned(), headers, client })
    }

    /// Posts a batch. The error names no address, since an address may hold a secret.
    pub async fn post(&self, body: Vec<u8>) -> Result<(), String> {
        let mut pauses = PAUSES.into_iter();
        loop {
            let headers = self.headers.clone();
            let request = self.client.post(&self.url).headers(headers).body(body.clone());
            let failure = match request.send().await {
                Ok(answer) if answer.status().is_success() => return Ok(()),
                Ok(answer) if !may_pass(answer.status()) => {
                    return Err(format!("it answered {}", answer.status()));
                }
                Ok(answer) => format!("it answered {}", answer.status()),
                Err(error) => error.without_url().to_string(),
            };
            match pauses.next() {
                Some(pause) => tokio::time::sleep(pause).await,
                None => return Err(failure),
            }
        }
    }
}

/// Whether the protocol allows another attempt after this status.
fn may_pass(status: StatusCode) -> bool {
    matches!(status.as_u16(), 429 | 502 | 503 | 504)
}
