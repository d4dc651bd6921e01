//! The way to the model: clients, targets, retries. Knows nothing of conversations.

/// Where a request goes on the upstream: the base's path joined with the caller's, bytes kept.
#[derive(Debug, Clone)]
pub struct Target {
    /// Path and query, ready to send.
    pub path_and_query: String,
    /// The model that the path names (Azure's deployments), percent-decoded.
    pub path_model: Option<String>,
}

/// Sends requests.
#[derive(Debug, Clone)]
pub struct Client {}
