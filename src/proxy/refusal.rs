//! Requests that cannot be planned, as errors a caller can act on.

use super::error::UpstreamAnswer;
use super::planner::Planned;
use super::{ErrorKind, ProxyError};
use crate::context::{Bound, Floor, Limits};
use crate::wire::{BodyError, FieldError, json};

/// A request that cannot be made to fit.
#[derive(Debug, Clone, Copy)]
pub struct Unfit {
    pub limits: Limits,
    /// What stays of its messages, as far as that is clipped.
    pub floor: Floor,
    /// Tokens of tools and schemas.
    pub tools_tokens: u64,
    pub received_tokens: u64,
    /// The fewest tokens that it can be sent in.
    pub least_tokens: u64,
    /// Whether a refusal of the upstream's has taught the limit.
    pub is_learned: bool,
    pub is_model_known: bool,
}

/// The refusal of what cannot be made to fit, in the words agents look for.
pub fn cannot_fit(unfit: &Unfit) -> ProxyError {
    let Unfit { limits, floor, received_tokens, least_tokens, .. } = unfit;
    let limit_tokens = limits.input_tokens();
    let over = least_tokens.saturating_sub(limit_tokens);
    let mut parts = vec![
        format!("system messages {}", floor.system_tokens),
        format!("the newest turn {}", floor.newest_tokens),
    ];
    if unfit.tools_tokens > 0 {
        parts.push(format!("tools and schemas {}", unfit.tools_tokens));
    }
    let mut error = ProxyError::new(
        ErrorKind::ContextLengthExceeded,
        format!(
            "This model's maximum context length is {limit_tokens} tokens. However, your messages \
             resulted in {received_tokens} tokens; what has to stay of them still takes \
             {least_tokens}, which is {over} too many: {}. {} Please reduce the length of the \
             messages: {}.",
            parts.join(", "),
            unfit.reserved(),
            unfit.cures().join("; "),
        ),
    );
    error.param = Some("messages".into());
    error
}

impl Unfit {
    /// Where the limit comes from, and what is kept free of the window.
    fn reserved(&self) -> String {
        let limits = &self.limits;
        let (window, reserve) = (limits.window_tokens, limits.reserve_tokens());
        let asked = match limits.asked_output_tokens {
            Some(asked) => format!(" (the request asks for {asked})"),
            None => String::new(),
        };
        let learned =
            if self.is_learned { ", as a refusal of the upstream's has taught" } else { "" };
        let source = match limits.bound() {
            Bound::Window => format!(
                "The model's window is {window} tokens{learned}, of which {reserve} are reserved for \
                 the answer{asked}"
            ),
            Bound::ModelInput => format!(
                "The model takes {} tokens of input{learned}, whatever its window of {window} leaves \
                 beside the answer",
                limits.max_input_tokens.unwrap_or(window)
            ),
            Bound::Operator => format!(
                "The limit is set in weir's configuration (max_input_tokens); the model's window is \
                 {window} tokens, of which {reserve} are reserved for the answer{asked}"
            ),
            Bound::Header => format!(
                "The limit is set by the header x-weir-max-input-tokens; the model's window is \
                 {window} tokens, of which {reserve} are reserved for the answer{asked}"
            ),
        };
        match limits.counting.margin_permille {
            0 => format!("{source}."),
            permille => format!(
                "{source}; {} % of the limit stay free by the policy.",
                f64::from(permille) / 10.0
            ),
        }
    }

    /// What would make room, the most telling first.
    fn cures(&self) -> Vec<String> {
        let limits = &self.limits;
        let over = self.least_tokens.saturating_sub(limits.input_tokens());
        let mut cures = Vec::new();
        if self.floor.newest_tokens > over {
            cures.push(match self.floor.is_newest_user {
                true => {
                    "shorten the last message, or send it in parts (a user's text is never clipped)"
                }
                false => {
                    "let the newest turn say less; its tool results and its calls' arguments are \
                          clipped already"
                }
            });
        }
        if self.floor.system_tokens > over {
            cures.push("shorten system messages");
        }
        if self.tools_tokens > over {
            cures.push("send fewer or shorter tools");
        }
        let mut cures: Vec<String> = cures.into_iter().map(str::to_owned).collect();
        match limits.bound() {
            Bound::Window
                if limits.asked_output_tokens.is_some() && limits.reserve_tokens() > over =>
            {
                cures.push(
                    "ask for a shorter answer (max_tokens, max_completion_tokens)".to_owned(),
                );
            }
            Bound::Header => cures.push("raise x-weir-max-input-tokens".to_owned()),
            Bound::Operator => cures.push("have the operator raise the limit".to_owned()),
            Bound::Window | Bound::ModelInput => {
                cures.push("use a model with a larger window".to_owned());
            }
        }
        if self.is_learned {
            cures.push(
                "have the operator run `weir models forget` if the upstream takes more".to_owned(),
            );
        } else if !self.is_model_known {
            cures.push(
                "have the operator set the window, which weir does not know, under [models.\"NAME\"]"
                    .to_owned(),
            );
        }
        cures
    }
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
