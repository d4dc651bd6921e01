//! Errors of a request, as one type. `server::reply` renders them.

use std::borrow::Cow;

use bytes::Bytes;
use http::StatusCode;

use crate::config::words::worded;
use crate::upstream::retry::Tried;
use crate::upstream::{ClientError, SendError, TargetError};
use weir_store::{OpenError, StoreError};

worded! {
    /// Kind of error. Few and fixed: the metric's label and the wire's `code`.
    ErrorKind {
        InvalidRequest = "invalid_request",
        ContextLengthExceeded = "context_length_exceeded",
        /// The caller's body stopped arriving.
        BodyTimeout = "body_timeout",
        BodyTooLarge = "body_too_large",
        TooManyMessages = "too_many_messages",
        UnsupportedEncoding = "unsupported_encoding",
        OriginNotAllowed = "origin_not_allowed",
        HostNotAllowed = "host_not_allowed",
        BypassNotAllowed = "bypass_not_allowed",
        /// The caller may not keep conversations.
        ConversationsNotAllowed = "conversations_not_allowed",
        /// A caller without credential asked for something stored.
        CredentialRequired = "credential_required",
        /// No virtual key, or an invalid one.
        InvalidApiKey = "invalid_api_key",
        /// A key may not use the model.
        /// OpenAI's code for both, so that nobody learns which models exist.
        ModelNotAllowed = "model_not_found",
        /// A key may not use the route.
        PassthroughRequired = "passthrough_required",
        /// A key exceeded its limit on requests, simultaneous or per minute.
        RequestRate = "rate_limit_exceeded",
        /// A key exceeded its limit on tokens per minute.
        TokenRate = "rate_limit_exceeded",
        /// The same call was made too often with the same result.
        RepeatedCall = "repeated_call",
        /// A budget has too little left.
        BudgetExhausted = "insufficient_quota",
        /// Other requests hold the rest of a budget.
        BudgetHeld = "rate_limit_exceeded",
        /// The model has no known price, and such models are refused.
        ModelNotPriced = "model_not_priced",
        NotFound = "not_found",
        /// One of weir's own pages does not support the method.
        MethodNotAllowed = "method_not_allowed",
        UpgradeNotSupported = "upgrade_not_supported",
        LoopDetected = "loop_detected",
        Overloaded = "overloaded",
        StoreUnavailable = "store_unavailable",
        UpstreamConnect = "upstream_connect",
        /// The upstream has no API under the configured base URL.
        UpstreamPath = "upstream_path_not_found",
        UpstreamTimeout = "upstream_timeout",
        UpstreamClosed = "upstream_closed",
        /// The upstream's answer failed before its first content.
        UpstreamFailed = "upstream_failed",
        Internal = "internal",
    }
}

/// Party to which an error is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorSide {
    Caller,
    /// weir itself, its configuration or its store.
    Weir,
    Upstream,
}

impl ErrorKind {
    /// Returns the party that it is due to.
    pub fn side(self) -> ErrorSide {
        match self {
            Self::LoopDetected | Self::Overloaded | Self::StoreUnavailable | Self::Internal => {
                ErrorSide::Weir
            }
            Self::UpstreamConnect
            | Self::UpstreamPath
            | Self::UpstreamTimeout
            | Self::UpstreamClosed
            | Self::UpstreamFailed => ErrorSide::Upstream,
            _ => ErrorSide::Caller,
        }
    }

    /// Whether the same request may succeed later.
    fn may_pass(self) -> bool {
        match self {
            Self::BodyTimeout | Self::BudgetHeld => true,
            Self::LoopDetected | Self::UpstreamPath => false,
            _ => self.side() != ErrorSide::Caller,
        }
    }

    /// HTTP status of an answer with this error.
    pub fn status(self) -> StatusCode {
        match self {
            Self::InvalidRequest
            | Self::ContextLengthExceeded
            | Self::ModelNotPriced
            | Self::TooManyMessages => StatusCode::BAD_REQUEST,
            Self::OriginNotAllowed
            | Self::HostNotAllowed
            | Self::BypassNotAllowed
            | Self::ConversationsNotAllowed
            | Self::CredentialRequired
            | Self::ModelNotAllowed
            | Self::PassthroughRequired => StatusCode::FORBIDDEN,
            Self::InvalidApiKey => StatusCode::UNAUTHORIZED,
            Self::RequestRate
            | Self::TokenRate
            | Self::RepeatedCall
            | Self::BudgetExhausted
            | Self::BudgetHeld => StatusCode::TOO_MANY_REQUESTS,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UnsupportedEncoding => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::UpgradeNotSupported => StatusCode::UPGRADE_REQUIRED,
            Self::UpstreamConnect
            | Self::UpstreamClosed
            | Self::UpstreamFailed
            | Self::UpstreamPath => StatusCode::BAD_GATEWAY,
            Self::Overloaded | Self::StoreUnavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::UpstreamTimeout => StatusCode::GATEWAY_TIMEOUT,
            Self::LoopDetected => StatusCode::LOOP_DETECTED,
        }
    }

    /// OpenAI's `type` for errors of this kind.
    pub fn openai_type(self) -> &'static str {
        match self {
            Self::RequestRate => "requests",
            Self::TokenRate | Self::BudgetHeld => "tokens",
            Self::BudgetExhausted => "insufficient_quota",
            kind if kind.side() == ErrorSide::Caller => "invalid_request_error",
            _ => "server_error",
        }
    }

    /// Anthropic's `type` for errors of this kind, which its SDKs map by status.
    pub fn anthropic_type(self) -> &'static str {
        match self.status() {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::GATEWAY_TIMEOUT => "timeout_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            status if status.is_client_error() => "invalid_request_error",
            _ => "api_error",
        }
    }
}

/// Result of a step towards an answer.
pub type Proxied<T> = Result<T, ProxyError>;

/// Error of a request without an answer from the model.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct ProxyError {
    pub kind: ErrorKind,
    /// For the caller: the problem and its solution. Never content, never a credential.
    pub message: String,
    /// Request field at fault, as OpenAI's `param`.
    pub param: Option<String>,
    /// Delay after which a retry is worthwhile.
    pub retry_after_ms: Option<u64>,
    /// The upstream's answer, if it is the reason.
    pub upstream: Option<Box<UpstreamAnswer>>,
    /// Conversation that could not be sent, for the log.
    pub subject: Option<Box<OverLimit>>,
    /// Error of a lower layer that it follows from.
    #[source]
    pub reason: Option<Box<ErrorSource>>,
}

/// Error of a lower layer.
#[derive(Debug, Clone, thiserror::Error)]
#[error(transparent)]
pub enum ErrorSource {
    Target(TargetError),
    Send(SendError),
    Store(StoreError),
}

/// Reason why no proxy can be made of a configuration.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A store in memory, or random bytes, are not available.
    #[error(transparent)]
    Store(#[from] OpenError),
    #[error("redis.url: {0}")]
    Redis(#[source] StoreError),
    /// The client of the upstream with this section cannot be made.
    #[error("{}", source.said(section))]
    Client { section: String, source: ClientError },
    #[error("summaries.upstream.url: {0}")]
    Summaries(#[source] ClientError),
    #[error("weir's own key for the provider contains characters that are not allowed in a header")]
    ProviderKey,
    #[error("a header of the upstream {upstream} is invalid: {header:?}")]
    Header { upstream: String, header: String },
}

/// Conversation that an error is about, as far as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverLimit {
    pub model: String,
    pub received_tokens: Option<u64>,
    pub limit_tokens: u64,
}

/// Complete answer of the upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamAnswer {
    pub status: u16,
    pub body: Bytes,
}

impl ProxyError {
    /// Creates an error of `kind` with this message.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            param: None,
            retry_after_ms: None,
            upstream: None,
            subject: None,
            reason: None,
        }
    }

    /// Creates the error of a shortage, which usually passes in a second.
    pub fn overloaded(message: impl Into<String>) -> Self {
        Self { retry_after_ms: Some(1000), ..Self::new(ErrorKind::Overloaded, message) }
    }

    /// Names the request field at fault.
    #[must_use]
    pub fn about(self, param: &str) -> Self {
        Self { param: Some(param.to_owned()), ..self }
    }

    /// Whether the same request may succeed later.
    pub fn may_retry(&self) -> bool {
        self.retry_after_ms.is_some() || self.kind.may_pass()
    }

    /// Returns the message in the words that Anthropic's clients look for before they compact.
    pub fn anthropic_message(&self) -> Cow<'_, str> {
        let sizes = self
            .subject
            .as_deref()
            .and_then(|subject| Some((subject.received_tokens?, subject.limit_tokens)));
        match (self.kind, sizes) {
            (ErrorKind::ContextLengthExceeded, Some((tokens, limit_tokens))) => {
                Cow::Owned(format!(
                    "prompt is too long: {tokens} tokens > {limit_tokens} maximum. {}",
                    self.message
                ))
            }
            _ => Cow::Borrowed(&self.message),
        }
    }

    /// Returns how the request came back from an upstream, if it reached one.
    pub fn tried(&self) -> Option<Tried> {
        match self.reason.as_deref() {
            Some(ErrorSource::Send(error)) => error.tried(),
            _ => None,
        }
    }
}

impl From<TargetError> for ProxyError {
    fn from(error: TargetError) -> Self {
        let kind = match error {
            TargetError::Unknown => ErrorKind::NotFound,
            TargetError::DotSegment
            | TargetError::Altered
            | TargetError::Deployment
            | TargetError::NoDeployment => ErrorKind::InvalidRequest,
        };
        Self {
            reason: Some(ErrorSource::Target(error).into()),
            ..Self::new(kind, error.to_string())
        }
    }
}

impl From<SendError> for ProxyError {
    fn from(error: SendError) -> Self {
        let kind = match error {
            SendError::Connect { .. } | SendError::ConnectTimeout { .. } => {
                ErrorKind::UpstreamConnect
            }
            SendError::FirstByteTimeout { .. } | SendError::Idle { .. } => {
                ErrorKind::UpstreamTimeout
            }
            SendError::Empty => ErrorKind::UpstreamFailed,
            SendError::Closed | SendError::Protocol { .. } => ErrorKind::UpstreamClosed,
            SendError::Upload => ErrorKind::InvalidRequest,
        };
        let message = error.to_string();
        Self { reason: Some(ErrorSource::Send(error).into()), ..Self::new(kind, message) }
    }
}
