//! Access to upstreams: clients, targets, retries. Knows nothing of conversations.

mod answer;
mod base_path;
pub mod breaker;
mod client;
mod collector;
mod credential;
mod endpoint;
mod form;
mod opening;
pub mod query;
pub mod retry;
mod target;
mod tls;
mod upload;
mod webhook;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;

pub use answer::{AnswerBody, AnswerError};
pub use base_path::{ModelsAnswer, ask_models, find_api};
pub use client::{
    Client, ClientError, Inbound, Outbound, OutboundBody, SendError, install_tls_provider,
};
pub use collector::Collector;
pub use credential::ProviderKey;
pub use endpoint::{Endpoint, Naming, Route};
pub use target::{Base, BaseError, Target, TargetError};
pub use webhook::Webhook;

/// Any error that can end a body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// Streaming body.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;
