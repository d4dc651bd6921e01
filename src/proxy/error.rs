//! What can go wrong with a request, as one type. Rendering it is `server::reply`'s.

use bytes::Bytes;
use http::StatusCode;

use crate::upstream::{SendError, TargetError};

/// What happened. Few and fixed: the metric's label and the wire's `code`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    InvalidRequest,
    ContextLengthExceeded,
    /// The caller's body stopped coming.
    BodyTimeout,
    BodyTooLarge,
    TooManyMessages,
    UnsupportedEncoding,
    OriginNotAllowed,
    HostNotAllowed,
    BypassNotAllowed,
    /// Something stored was asked for by somebody unknown.
    CredentialRequired,
    /// No virtual key, or none that is good.
    InvalidApiKey,
    /// A key may not use the model.
    ModelNotAllowed,
    /// A key may not use the route.
    PassthroughRequired,
    /// A key has more requests, at once or in the minute, than it may.
    RequestRate,
    /// A key has used more tokens in the minute than it may.
    TokenRate,
    /// A budget has not enough left.
    BudgetExhausted,
    /// What a budget has left is held by others.
    BudgetHeld,
    /// The model has no known price, and such are not served.
    ModelNotPriced,
    NotFound,
    /// A page of weir's own was asked for in a way that it does not take.
    MethodNotAllowed,
    UpgradeNotSupported,
    LoopDetected,
    Overloaded,
    StoreUnavailable,
    UpstreamConnect,
    /// The upstream has no API under the base URL that is configured.
    UpstreamPath,
    UpstreamTimeout,
    UpstreamClosed,
    Internal,
}

impl ErrorKind {
    /// The word for it in answers, logs and metrics.
    pub fn code(self) -> &'static str {
        match self {
            Self::InvalidRequest => "invalid_request",
            Self::ContextLengthExceeded => "context_length_exceeded",
            Self::BodyTimeout => "body_timeout",
            Self::BodyTooLarge => "body_too_large",
            Self::TooManyMessages => "too_many_messages",
            Self::UnsupportedEncoding => "unsupported_encoding",
            Self::OriginNotAllowed => "origin_not_allowed",
            Self::HostNotAllowed => "host_not_allowed",
            Self::BypassNotAllowed => "bypass_not_allowed",
            Self::CredentialRequired => "credential_required",
            Self::InvalidApiKey => "invalid_api_key",
            // OpenAI's word for both, so that nobody learns which models there are.
            Self::ModelNotAllowed => "model_not_found",
            Self::PassthroughRequired => "passthrough_required",
            Self::RequestRate | Self::TokenRate | Self::BudgetHeld => "rate_limit_exceeded",
            Self::BudgetExhausted => "insufficient_quota",
            Self::ModelNotPriced => "model_not_priced",
            Self::NotFound => "not_found",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::UpgradeNotSupported => "upgrade_not_supported",
            Self::LoopDetected => "loop_detected",
            Self::Overloaded => "overloaded",
            Self::StoreUnavailable => "store_unavailable",
            Self::UpstreamConnect => "upstream_connect",
            Self::UpstreamPath => "upstream_path_not_found",
            Self::UpstreamTimeout => "upstream_timeout",
            Self::UpstreamClosed => "upstream_closed",
            Self::Internal => "internal",
        }
    }
}

impl ErrorKind {
    /// The status of an answer that reports it.
    pub fn status(self) -> StatusCode {
        match self {
            Self::InvalidRequest
            | Self::ContextLengthExceeded
            | Self::ModelNotPriced
            | Self::TooManyMessages => StatusCode::BAD_REQUEST,
            Self::OriginNotAllowed
            | Self::HostNotAllowed
            | Self::BypassNotAllowed
            | Self::CredentialRequired
            | Self::ModelNotAllowed
            | Self::PassthroughRequired => StatusCode::FORBIDDEN,
            Self::InvalidApiKey => StatusCode::UNAUTHORIZED,
            Self::RequestRate | Self::TokenRate | Self::BudgetExhausted | Self::BudgetHeld => {
                StatusCode::TOO_MANY_REQUESTS
            }
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UnsupportedEncoding => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::UpgradeNotSupported => StatusCode::NOT_IMPLEMENTED,
            Self::UpstreamConnect | Self::UpstreamClosed | Self::UpstreamPath => {
                StatusCode::BAD_GATEWAY
            }
            Self::Overloaded | Self::StoreUnavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::UpstreamTimeout => StatusCode::GATEWAY_TIMEOUT,
            Self::LoopDetected => StatusCode::LOOP_DETECTED,
        }
    }
}

/// Why a request has no answer from the model.
#[derive(Debug, Clone)]
pub struct ProxyError {
    pub kind: ErrorKind,
    /// For the caller: what is wrong and what to do. Never content, never a credential.
    pub message: String,
    /// The request field at fault, as OpenAI's `param`.
    pub param: Option<String>,
    /// When it is worth trying again.
    pub retry_after_ms: Option<u64>,
    /// What the upstream had said, where that is the reason.
    pub upstream: Option<Box<UpstreamAnswer>>,
    /// The conversation that could not be sent, for the log.
    pub subject: Option<Box<Subject>>,
}

/// A conversation that an error is about, as far as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    pub model: String,
    pub received_tokens: Option<u64>,
    pub limit_tokens: u64,
}

/// An answer of the upstream's, complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamAnswer {
    pub status: u16,
    pub body: Bytes,
}

impl ProxyError {
    /// An error of `kind` that says `message`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { kind, message, param: None, retry_after_ms: None, upstream: None, subject: None }
    }
}

impl From<TargetError> for ProxyError {
    fn from(error: TargetError) -> Self {
        let kind = match error {
            TargetError::Unknown => ErrorKind::NotFound,
            TargetError::DotSegment | TargetError::Altered | TargetError::Deployment => {
                ErrorKind::InvalidRequest
            }
        };
        Self::new(kind, error.to_string())
    }
}

impl From<SendError> for ProxyError {
    fn from(error: SendError) -> Self {
        let kind = match error {
            SendError::Connect { .. } | SendError::ConnectTimeout { .. } => {
                ErrorKind::UpstreamConnect
            }
            SendError::FirstByteTimeout { .. } => ErrorKind::UpstreamTimeout,
            SendError::Closed | SendError::Protocol { .. } => ErrorKind::UpstreamClosed,
            SendError::Upload => ErrorKind::InvalidRequest,
        };
        Self::new(kind, error.to_string())
    }
}
