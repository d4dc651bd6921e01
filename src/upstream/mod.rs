//! The way to the model: clients, targets, retries. Knows nothing of conversations.

use crate::config::Upstream;
use crate::wire::Protocol;

/// Any error.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Where a request goes on the upstream: the base's path joined with the caller's, bytes kept.
#[derive(Debug, Clone)]
pub struct Target {
    /// Path and query, ready to send.
    pub path_and_query: String,
    /// The model that the path names (Azure's deployments), percent-decoded.
    pub path_model: Option<String>,
}

impl Target {
    /// Where `path_and_query` goes on the upstream at `base`; `None` for a path that no API has.
    pub fn map(base: &str, path_and_query: &str) -> Option<Self> {
        let _ = base;
        let known = ["/v1/", "/chat/completions", "/openai/deployments/"];
        known
            .iter()
            .any(|start| path_and_query.starts_with(start))
            .then(|| Self {
                path_and_query: path_and_query.to_owned(),
                path_model: None,
            })
    }

    /// The protocol of the body, where weir reads it.
    pub fn protocol(&self) -> Option<Protocol> {
        let path = self.path_and_query.split('?').next().unwrap_or("");
        path.ends_with("/chat/completions").then_some(Protocol::Chat)
    }
}

/// Sends requests.
#[derive(Debug, Clone)]
pub struct Client {}

impl Client {
    /// A client that sends as `upstream` says.
    pub fn new(_upstream: &Upstream) -> Result<Self, BoxError> {
        Ok(Self {})
    }
}
