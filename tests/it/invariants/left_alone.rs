//! Bytes: a request that needs no change is forwarded byte for byte; otherwise only reported
//! parts change.

use super::generate::{self, Case};
use super::harness::{Weir, check, steps};
use super::json::Node;
use super::judge::{Body, compare};

/// Distance below the limit at which a request with tools is certain to stay unchanged, in
/// thousandths: their size is rounded up to a fiftieth.
const ROUNDING_PERMILLE: u64 = 21;

/// Whether a message carries weir's own member, with any value.
fn has_mark(message: &Node) -> bool {
    message.members().iter().any(|(key, _)| key == "weir")
}

pub fn is_left_alone(case: &Case) -> Result<(), String> {
    let weir = Weir::new();
    let (body, limit) = (case.transcript.body(), case.limit_tokens());
    let Ok(planned) = weir.plan(&body, limit) else { return Ok(()) };
    let received = Body::read(&body)?;
    let is_marked = received.messages().iter().any(has_mark);
    let is_under = planned.received_tokens + limit * ROUNDING_PERMILLE / 1000 <= limit;
    let is_passed = steps(&planned) == "pass";
    if is_under && !is_passed {
        return Err(format!("{} of {limit}: {}", planned.received_tokens, planned.action));
    }
    if is_passed && !is_marked && planned.body.is_some() {
        return Err("passed, and yet another body".to_owned());
    }
    let Some(sent) = planned.body else {
        return if is_marked { Err("a mark was forwarded".to_owned()) } else { Ok(()) };
    };
    let text = std::str::from_utf8(&sent).map_err(|error| error.to_string())?;
    let verdict = compare(&received, &Body::read(text)?)?;
    if is_passed && verdict.any(|change| change.clipped || !change.notes.is_empty()) {
        return Err("passed, and yet changed".to_owned());
    }
    Ok(())
}

#[test]
fn valid_requests_change_only_where_they_may() {
    check("left alone, valid", 80, &generate::valid(), is_left_alone);
}

#[test]
fn hostile_requests_change_only_where_they_may() {
    check("left alone, hostile", 100, &generate::hostile(), is_left_alone);
}
