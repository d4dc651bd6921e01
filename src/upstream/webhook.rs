//! Webhook client: posts small JSON texts to one address. Follows no redirect, tries a few times,
//! and reads no answer.

use std::time::Duration;

use http::header::{CONTENT_TYPE, HeaderValue};
use reqwest::redirect;

/// Timeout of one attempt.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Pauses before the further attempts.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];

/// Address of a webhook.
#[derive(Debug, Clone)]
pub struct Webhook {
    url: String,
    client: reqwest::Client,
}

impl Webhook {
    /// Creates a webhook for `url`; `None`, with a log line, if TLS cannot be set up.
    pub fn new(url: &str) -> Option<Self> {
        super::install_tls_provider();
        let client = reqwest::Client::builder()
            .redirect(redirect::Policy::none())
            .timeout(TIMEOUT)
            .pool_max_idle_per_host(1)
            .build();
        match client {
            Ok(client) => Some(Self { url: url.to_owned(), client }),
            Err(error) => {
                let error = error.without_url();
                tracing::warn!(target: "weir::budget", %error, "the webhook cannot be set up; budget notices are not sent");
                None
            }
        }
    }

    /// Posts `body`, with a few retries. The error names no address, since an address may hold a
    /// secret.
    pub async fn post(&self, body: Vec<u8>) -> Result<(), String> {
        let mut pauses = PAUSES.into_iter();
        loop {
            let request = self
                .client
                .post(&self.url)
                .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
                .body(body.clone());
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
}
