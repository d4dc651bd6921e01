//! Fit: sent requests are within the limit by an independent count, and a request that can
//! fit is not refused.

use weir::proxy::ErrorKind;

use super::generate::{self, Case};
use super::harness::{MODEL, Weir, check};
use super::judge::Body;
use super::transcript::{TOOLS, Transcript};

/// Tokens of the tools by weir's count: no public count is exact.
pub fn tools_tokens(weir: &Weir, tools: usize) -> u64 {
    let tools = TOOLS[tools].unwrap_or("null");
    let body = format!(
        r#"{{"model":"{MODEL}","messages":[{{"role":"user","content":""}}],"tools":{tools}}}"#
    );
    let planned = weir.plan(&body, 100_000).expect("a few tools fit");
    planned.received_tokens - 4 - 3
}

/// Returns the first message of the newest turn of a valid conversation.
pub fn newest_from(body: &Body<'_>) -> usize {
    let last = body.messages().len() - 1;
    let call = (0..=last).rev().find(|message| body.role(*message) == "assistant");
    if body.is_result(last) { call.unwrap_or(last) } else { last }
}

/// Returns the minimum size of a conversation under any limit.
pub fn floor_tokens(body: &Body<'_>) -> u64 {
    if body.messages().is_empty() {
        return 0;
    }
    let (newest, run) = (newest_from(body), body.system_run());
    let own = |message: usize| match body.sizes[message] {
        size if message >= newest && body.is_result(message) => size.at_floor(),
        size if message >= newest || message < run => size.all(),
        _ => 0,
    };
    (0..body.messages().len()).map(own).sum()
}

pub fn fits(case: &Case, is_valid: bool) -> Result<(), String> {
    let weir = Weir::new();
    let (body, limit) = (case.transcript.body(), case.limit_tokens());
    let received = Body::read(&body)?;
    let tools = tools_tokens(&weir, case.transcript.tools);
    match weir.plan(&body, limit) {
        Ok(planned) => {
            if planned.action.contains("fault") {
                return Err("a fault".to_owned());
            }
            let bytes = planned.body.as_deref().unwrap_or(body.as_bytes());
            let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
            let tokens = Body::read(text)?.tokens() + tools + 3;
            if tokens > limit || tokens > planned.sent_tokens {
                let said = planned.sent_tokens;
                return Err(format!("{tokens} tokens, said to be {said}, under {limit}"));
            }
            if is_valid && planned.received_tokens != received.tokens() + tools + 3 {
                let (said, counted) = (planned.received_tokens, received.tokens() + tools + 3);
                return Err(format!("received {counted} tokens, said to be {said}"));
            }
            Ok(())
        }
        Err(error) if error.kind != ErrorKind::ContextLengthExceeded => {
            Err(format!("{:?}: {}", error.kind, error.message))
        }
        Err(error) if is_valid => {
            let rounding = if tools > 0 { limit.div_ceil(50) } else { 0 };
            let floor = floor_tokens(&received) + tools + rounding + 3;
            if floor + 64 <= limit {
                return Err(format!("{floor} tokens have to stay: {}", error.message));
            }
            Ok(())
        }
        Err(_) => Ok(()),
    }
}

pub fn valid_fits(case: &Case) -> Result<(), String> {
    fits(case, true)
}

/// Checks that a limit under which a request fits is no lower than one under which it is refused. Tools
/// are left out: their size is rounded by the limit.
fn fits_from_some_limit_on(case: &Case) -> Result<(), String> {
    let transcript = Transcript { tools: 0, ..case.transcript.clone() };
    let (weir, body) = (Weir::new(), transcript.body());
    let received = Body::read(&body)?;
    let most = received.tokens().min(1500);
    let mut fitted = None;
    for limit in (100..most).step_by(8) {
        match (weir.plan(&body, limit), fitted) {
            (Ok(_), _) => fitted = fitted.or(Some(limit)),
            (Err(error), Some(fitted)) => {
                return Err(format!("fits {fitted}, and not {limit}: {}", error.message));
            }
            (Err(_), None) => {}
        }
    }
    Ok(())
}

#[test]
fn a_request_that_fits_a_limit_fits_higher_ones() {
    check("fits from some limit on", 10, &generate::valid(), fits_from_some_limit_on);
}

#[test]
fn valid_requests_fit_or_cannot() {
    check("fits, valid", 90, &generate::valid(), valid_fits);
}

#[test]
fn alternating_requests_fit_or_cannot() {
    check("fits, alternating", 80, &generate::alternating(), valid_fits);
}

#[test]
fn hostile_requests_fit_or_are_refused() {
    check("fits, hostile", 100, &generate::hostile(), |case| fits(case, false));
}
