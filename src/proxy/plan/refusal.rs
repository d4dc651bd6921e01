//! Errors for requests that cannot be planned, with advice that a caller can follow.

use super::planned::Planned;
use crate::proxy::error::{ErrorKind, ProxyError, UpstreamAnswer};
use crate::proxy::logged::shown;
use weir_engine::compact::{Bound, Floor, Limits};
use weir_engine::tokens::REPLY_PRIMING;
use weir_engine::wire::{BodyError, FieldError, Request, json, repeats};

/// Request that cannot be made to fit.
#[derive(Debug, Clone, Copy)]
pub struct Unfit {
    pub limits: Limits,
    /// Parts of its messages that must stay, clipped as far as possible.
    pub floor: Floor,
    /// Tokens of tools and schemas.
    pub tools_tokens: u64,
    pub received_tokens: u64,
    /// Minimum tokens that it can be sent in.
    pub least_tokens: u64,
    /// Whether the limit was learned from an upstream's refusal.
    pub is_learned: bool,
    pub is_model_known: bool,
}

/// Creates the error for a request that cannot be made to fit, in the words agents look for.
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
    parts.push(format!("the start of the answer {REPLY_PRIMING}"));
    let mut error = ProxyError::new(
        ErrorKind::ContextLengthExceeded,
        format!(
            "This model's maximum context length is {}. However, your messages resulted in {}; the \
             parts that must stay still take {least_tokens}, which is {over} too many: {}. {} Please \
             reduce the length of the messages: {}.",
            shown_tokens(limit_tokens),
            shown_tokens(*received_tokens),
            parts.join(", "),
            unfit.reserved(),
            unfit.cures().join("; "),
        ),
    );
    error.param = Some("messages".into());
    error
}

/// Creates the error for a request whose last calls were made `most` times in a row with the same results; at
/// least twice, since every call is made once.
pub fn repeats(request: &Request<'_>, most: Option<u64>) -> Option<ProxyError> {
    let most = usize::try_from(most?.max(2)).unwrap_or(usize::MAX);
    let (count, name) = repeats::repeats(request, most);
    let message = format!(
        "The call of '{}' was made {count} times in a row with the same arguments and the same result. This key \
         ends such loops (max_repeats = {most}): do something else, or let a user decide how to go on.",
        shown(&name)
    );
    (count >= most).then(|| ProxyError {
        param: Some("messages".into()),
        ..ProxyError::new(ErrorKind::RepeatedCall, message)
    })
}

/// Formats a number of tokens.
fn shown_tokens(tokens: u64) -> String {
    format!("{tokens} token{}", if tokens == 1 { "" } else { "s" })
}

impl Unfit {
    /// Describes the source of the limit, and the reserved part of the window.
    fn reserved(&self) -> String {
        let limits = &self.limits;
        let (window, reserve) = (limits.window_tokens, limits.reserve_tokens());
        let asked = match limits.asked_output_tokens {
            Some(asked) => format!(" (the request asks for {asked})"),
            None => String::new(),
        };
        let learned =
            if self.is_learned { ", as learned from a refusal of the upstream" } else { "" };
        let source = match limits.bound() {
            Bound::Window => format!(
                "The model's window is {window} tokens{learned}, with {reserve} reserved for the \
                 answer{asked}"
            ),
            Bound::ModelInput => format!(
                "The model accepts {} input tokens{learned}, regardless of the room that its \
                 window of {window} leaves next to the answer",
                limits.max_input_tokens.unwrap_or(window)
            ),
            Bound::Operator => format!(
                "The limit is set in weir's configuration (max_input_tokens); the model's window is \
                 {window} tokens, with {reserve} reserved for the answer{asked}"
            ),
            Bound::Header => format!(
                "The limit is set by the header x-weir-max-input-tokens; the model's window is \
                 {window} tokens, with {reserve} reserved for the answer{asked}"
            ),
        };
        match limits.counting.margin_permille {
            0 => format!("{source}."),
            permille => format!(
                "{source}; the policy keeps {} % of the limit free.",
                f64::from(permille) / 10.0
            ),
        }
    }

    /// Lists the ways to make room, the most effective first.
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
                    "shorten the newest turn; its tool results and its calls' arguments are already \
                          clipped"
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
            Bound::Operator => cures.push("ask the operator to raise the limit".to_owned()),
            Bound::Window | Bound::ModelInput => {
                cures.push("use a model with a larger window".to_owned());
            }
        }
        if self.is_learned {
            cures.push(
                "ask the operator to run `weir models forget` if the upstream accepts more"
                    .to_owned(),
            );
        } else if !self.is_model_known {
            cures.push(
                "ask the operator to set the window, which weir does not know, under [models.\"NAME\"]"
                    .to_owned(),
            );
        }
        cures
    }
}

/// Creates the error for a request that the upstream refused each time, in the words agents look
/// for.
pub fn still_too_long(planned: &Planned, resends: usize, answer: UpstreamAnswer) -> ProxyError {
    let Planned { received_tokens, sent_tokens, .. } = planned;
    let again = match resends {
        0 => "nothing more can be removed from it".to_owned(),
        times => format!("{times} times more after it was shortened"),
    };
    ProxyError {
        param: Some("messages".into()),
        upstream: Some(Box::new(answer)),
        ..ProxyError::new(
            ErrorKind::ContextLengthExceeded,
            format!(
                "This model's maximum context length is exceeded, and the upstream gave no limit \
                 that weir could meet. Your messages resulted in {}, and the upstream \
                 refused {sent_tokens} of them as too long ({again}); its own answer is in \
                 'upstream'. Please reduce the length of the messages.",
                shown_tokens(*received_tokens),
            ),
        )
    }
}

/// Creates the error for a request above a configured limit that weir must not compact: for a
/// bypass, or because its member `provider_state` names what the provider keeps.
pub fn bypass(received_tokens: u64, limit_tokens: u64, provider_state: Option<&str>) -> ProxyError {
    let over = received_tokens.saturating_sub(limit_tokens);
    let reason = match provider_state {
        None => "and a bypass does not lift it".to_owned(),
        Some(member) => format!(
            "and weir cannot compact a conversation that the provider keeps ({member}); send it \
             whole instead, with store: false"
        ),
    };
    let mut error = ProxyError::new(
        ErrorKind::ContextLengthExceeded,
        format!(
            "The limit for this model is {} here, {reason}. Your messages resulted in {}, {over} too \
             many.",
            shown_tokens(limit_tokens),
            shown_tokens(received_tokens),
        ),
    );
    error.param = Some("messages".into());
    error
}

/// Creates the error for an unreadable body: the problem and its position.
pub fn body(error: BodyError) -> ProxyError {
    let (message, param) = match error {
        BodyError::NotUtf8 { valid_up_to_bytes } => (
            format!("The body is not UTF-8: byte {valid_up_to_bytes} is the first invalid one."),
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

/// Creates the error for an unreadable message.
pub fn message(request: &Request<'_>, index: usize, error: &FieldError) -> ProxyError {
    let message = request.place(index);
    let place = |key: &str| match key {
        "" => message.clone(),
        // A member of the body is the message.
        key if message == key => message.clone(),
        key => format!("{message}.{key}"),
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
