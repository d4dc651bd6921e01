//! Requests that cannot be planned, as errors a caller can act on.

use super::error::UpstreamAnswer;
use super::planner::Planned;
use super::{ErrorKind, ProxyError};
use crate::wire::{BodyError, FieldError, json};

/// The refusal of what cannot be made to fit, in the words agents look for.
pub fn cannot_fit(received_tokens: u64, least_tokens: u64, limit_tokens: u64) -> ProxyError {
    let over = least_tokens.saturating_sub(limit_tokens);
    let mut error = ProxyError::new(
        ErrorKind::ContextLengthExceeded,
        format!(
            "This model's maximum context length is {limit_tokens} tokens. However, your messages \
             resulted in {received_tokens} tokens; what has to stay of them (system messages and \
             the newest turn) still takes {least_tokens}, which is {over} too many. Please reduce \
             the length of the messages."
        ),
    );
    error.param = Some("messages".into());
    error
}

/// The refusal of what the upstream refused each time, in the words agents look for.
pub fn unhealed(planned: &Planned, resends: usize, answer: UpstreamAnswer) -> ProxyError {
    let Planned { limit_tokens, received_tokens, sent_tokens, .. } = planned;
    let again = match resends {
        0 => "nothing is left that could be taken from it".to_owned(),
        times => format!("{times} times more after it was made shorter"),
    };
    ProxyError {
        param: Some("messages".into()),
        upstream: Some(Box::new(answer)),
        ..ProxyError::new(
            ErrorKind::ContextLengthExceeded,
            format!(
                "This model's maximum context length is {limit_tokens} tokens by what is known of \
                 it. However, your messages resulted in {received_tokens} tokens, and the upstream \
                 refused {sent_tokens} of them as too long ({again}); its own answer is in \
                 'upstream'. Please reduce the length of the messages."
            ),
        )
    }
}

/// The refusal of a bypass that a configured limit forbids.
pub fn bypass(received_tokens: u64, limit_tokens: u64) -> ProxyError {
    let over = received_tokens.saturating_sub(limit_tokens);
    let mut error = ProxyError::new(
        ErrorKind::ContextLengthExceeded,
        format!(
            "The limit for this model is {limit_tokens} tokens here, and a bypass does not lift it. \
             Your messages resulted in {received_tokens} tokens, {over} too many."
        ),
    );
    error.param = Some("messages".into());
    error
}

/// The refusal of a body that cannot be read: what is wrong, and where.
pub fn body(error: BodyError) -> ProxyError {
    let (message, param) = match error {
        BodyError::NotUtf8 { valid_up_to_bytes } => (
            format!("The body is not UTF-8: byte {valid_up_to_bytes} is the first that is not."),
            None,
        ),
        BodyError::NotJson { detail } => {
            (format!("The body cannot be read as a JSON object: {detail}."), None)
        }
        BodyError::DuplicateKey { key } => (format!("'{key}' is given twice."), Some(key)),
        BodyError::OtherCase { key, known } => (json::other_case_message(&key, known), Some(key)),
        BodyError::WrongType { key, expected } => {
            (format!("'{key}' has the wrong type: expected {expected}."), Some(key))
        }
        BodyError::TooManyMessages { limit } => {
            let mut error = ProxyError::new(
                ErrorKind::TooManyMessages,
                format!("The request has more than {limit} messages (server.max_messages)."),
            );
            error.param = Some("messages".into());
            return error;
        }
    };
    let mut error = ProxyError::new(ErrorKind::InvalidRequest, message);
    error.param = param;
    error
}

/// The refusal of a message that cannot be read.
pub fn message(index: usize, error: &FieldError) -> ProxyError {
    let place = |key: &str| {
        if key.is_empty() {
            format!("messages[{index}]")
        } else {
            format!("messages[{index}].{key}")
        }
    };
    let (message, param) = match error {
        FieldError::DuplicateKey { key } => {
            (format!("'{}' is given twice.", place(key)), place(key))
        }
        FieldError::WrongType { key, expected } => {
            (format!("'{}' has the wrong type: expected {expected}.", place(key)), place(key))
        }
    };
    let mut error = ProxyError::new(ErrorKind::InvalidRequest, message);
    error.param = Some(param);
    error
}
