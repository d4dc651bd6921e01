//! Posts small JSON texts to one address. It follows no redirect, tries a few times, and reads no
//! answer.

use std::time::Duration;

use http::header::{CONTENT_TYPE, HeaderValue};
use reqwest::redirect;

/// How long one try takes at most.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long is waited before each further try.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];

/// An address that is posted to.
#[derive(Debug, Clone)]
pub struct Webhook {
    url: String,
    client: reqwest::Client,
}

impl Webhook {
    /// Posts to `url`; `None` where TLS cannot be set up, which the log tells.
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
                tracing::warn!(target: "weir::budget", %error, "no webhook can be posted to");
                None
            }
        }
    }

    /// Posts `body` until it is taken, a few times at most. What is told of a failure names no
    /// address: it may hold a secret.
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
