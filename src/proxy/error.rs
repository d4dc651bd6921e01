//! What can go wrong with a request, as one type. Rendering it is `server::reply`'s.

/// What happened. Few and fixed: the metric's label and the wire's `code`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    InvalidRequest,
    ContextLengthExceeded,
    BodyTooLarge,
    TooManyMessages,
    UnsupportedEncoding,
    OriginNotAllowed,
    HostNotAllowed,
    BypassNotAllowed,
    NotFound,
    UpgradeNotSupported,
    LoopDetected,
    Overloaded,
    UpstreamConnect,
    UpstreamTimeout,
    UpstreamClosed,
    Internal,
}

/// Whose fault it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    Caller,
    Weir,
    Upstream,
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
}

impl ProxyError {
    /// An error of `kind` that says `message`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            param: None,
            retry_after_ms: None,
        }
    }
}
