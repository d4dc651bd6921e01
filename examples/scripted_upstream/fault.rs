//! Names of deliberate faults.
//!
//! Parses them; `routes.rs` and `body.rs` apply them, and `overflow.rs` words refusals for size.

use hyper::StatusCode;
use serde_json::{Value, json};

/// Fault of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An error of this status instead of the answer, with `retry-after` if given.
    Status(u16, Option<String>),
    /// RST before any answer.
    Reset,
    /// FIN before any answer.
    Close,
    /// A good answer; the connection closes when the next request arrives on it.
    CloseIdle,
    /// Silence instead of the answer.
    StallHead,
    /// Silence after this many pieces.
    StallAfter(usize),
    /// Nothing until the test releases it.
    HoldHead,
    /// This many pieces, the others when the test releases them.
    HoldAfter(usize),
    /// This many pieces and half of the next, then the connection breaks off.
    TruncateAfter(usize),
    /// Bytes that are not JSON instead of JSON.
    Garbage,
    /// Pieces that end inside a character; valid once joined.
    HalfUtf8,
    /// A good body under `text/html`.
    WrongContentType,
    /// 200 and no body.
    Empty200,
    /// A refusal for size in the words of this vendor.
    Overflow(String),
}

impl Fault {
    /// Whether the request gets no answer from a model, so that none of it is worth caching.
    pub fn refuses(&self) -> bool {
        matches!(
            self,
            Self::Status(..) | Self::Reset | Self::Close | Self::StallHead | Self::Overflow(_)
        )
    }
}

/// Parses a list of faults; `none` is a request without one.
pub fn queue(names: &[impl AsRef<str>]) -> Result<Vec<Option<Fault>>, String> {
    names
        .iter()
        .map(|name| match name.as_ref() {
            "none" => Ok(None),
            name => parse(name).map(Some),
        })
        .collect()
}

/// Parses one fault, such as `status:429:retry-after=2` or `stall_after:3`.
pub fn parse(name: &str) -> Result<Fault, String> {
    let unknown = || format!("no such fault: {name}");
    let (kind, argument) = name.split_once(':').unwrap_or((name, ""));
    let count = || argument.parse::<usize>().map_err(|_| unknown());
    match kind {
        "status" => {
            let (code, rest) = argument.split_once(':').unwrap_or((argument, ""));
            let code = code.parse::<u16>().map_err(|_| unknown())?;
            if StatusCode::from_u16(code).is_err() || code < 200 {
                return Err(unknown());
            }
            let retry_after = rest.strip_prefix("retry-after=").map(str::to_owned);
            Ok(Fault::Status(code, retry_after))
        }
        "reset" => Ok(Fault::Reset),
        "close" => Ok(Fault::Close),
        "close_idle" => Ok(Fault::CloseIdle),
        "stall_head" => Ok(Fault::StallHead),
        "stall_after" => Ok(Fault::StallAfter(count()?)),
        "hold_head" => Ok(Fault::HoldHead),
        "hold_after" => Ok(Fault::HoldAfter(count()?)),
        "truncate_after" => Ok(Fault::TruncateAfter(count()?)),
        "garbage" => Ok(Fault::Garbage),
        "half_utf8" => Ok(Fault::HalfUtf8),
        "wrong_content_type" => Ok(Fault::WrongContentType),
        "empty_200" => Ok(Fault::Empty200),
        "overflow" => Ok(Fault::Overflow(argument.to_owned())),
        _ => Err(unknown()),
    }
}

/// Returns the body of an error of this status, in OpenAI's shape.
pub fn status_body(code: u16) -> Value {
    let (message, kind, error_code) = match code {
        401 => ("Incorrect API key provided.", "invalid_request_error", json!("invalid_api_key")),
        429 => (
            "Rate limit reached for requests. Please try again later.",
            "requests",
            json!("rate_limit_exceeded"),
        ),
        400..=499 => ("Refused by the script.", "invalid_request_error", json!(null)),
        _ => (
            "The server had an error while processing your request. Sorry about that!",
            "server_error",
            json!(null),
        ),
    };
    json!({"error": {"message": message, "type": kind, "param": null, "code": error_code}})
}
