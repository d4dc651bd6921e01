//! From a body to what is sent in its place: counts, fold and splice, with the caches that spare
//! doing it again. The caches never change a result.

use std::sync::Arc;

use bytes::Bytes;

use super::{ProxyError, Tenant};
use crate::config::Config;
use crate::wire::Protocol;

/// What the caller's headers ask of the plan.
#[derive(Debug, Clone, Copy, Default)]
pub struct Asked {
    /// `x-weir-max-input-tokens`: lowers this request's limit.
    pub max_input_tokens: Option<u64>,
    /// `x-weir-bypass`: forward untouched.
    pub bypass: bool,
}

/// What is sent, and what there is to tell about it.
#[derive(Debug, Clone)]
pub struct Planned {
    /// The body to send; `None` forwards it as received.
    pub body: Option<Bytes>,
    /// `x-weir-action`, such as `pass` or `evict+fit`.
    pub action: String,
    /// `x-weir-edits`; empty where there are none.
    pub edits: String,
    pub received_tokens: u64,
    pub sent_tokens: u64,
    pub limit_tokens: u64,
    pub messages: u32,
    pub model: String,
    pub stream: bool,
}

/// Plans requests for all tenants.
pub struct Planner {
    #[expect(dead_code, reason = "the stub plans nothing yet")]
    config: Arc<Config>,
}

impl Planner {
    pub fn new(config: Arc<Config>) -> Self {
        Self { config }
    }

    /// Decides what to send of `body`. `path_model` is the model named by the path (Azure's
    /// deployments), which then counts instead of the body's `model`.
    pub async fn plan(
        &self,
        _tenant: Tenant,
        _protocol: Protocol,
        _body: Bytes,
        _path_model: Option<&str>,
        _asked: Asked,
    ) -> Result<Planned, ProxyError> {
        Ok(Planned {
            body: None,
            action: "pass".into(),
            edits: String::new(),
            received_tokens: 0,
            sent_tokens: 0,
            limit_tokens: 0,
            messages: 0,
            model: String::new(),
            stream: false,
        })
    }
}
