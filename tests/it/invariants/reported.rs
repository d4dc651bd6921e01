//! Reported: notes and headers count the removed messages.

use super::generate::{self, Case};
use super::harness::{STRICT_MODEL, Weir, check, steps};
use super::judge::{Body, compare};

/// Maximum size of a note.
const NOTE_TOKENS: u64 = 40;

pub fn is_reported(case: &Case) -> Result<(), String> {
    let weir = Weir::new();
    let (body, limit) = (case.transcript.body(), case.limit_tokens());
    let Ok(planned) = weir.plan(&body, limit) else { return Ok(()) };
    let received = Body::read(&body)?;
    let bytes = planned.body.as_deref().unwrap_or(body.as_bytes());
    let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    let sent = Body::read(text)?;
    let verdict = compare(&received, &sent)?;
    let action = match (verdict.gone > 0, verdict.any(|change| change.clipped)) {
        (false, false) => "pass",
        (true, false) => "evict",
        (false, true) => "fit",
        (true, true) => "evict+fit",
    };
    if steps(&planned) != action {
        return Err(format!("{action} was done, {} said", planned.action));
    }
    let edits = if verdict.any(|change| change.unmarked) { "pin" } else { "" };
    if planned.edits != edits {
        return Err(format!("edits: {edits:?} were done, {:?} said", planned.edits));
    }
    if verdict.told() > verdict.gone as u64 {
        return Err(format!("{} are gone, {} told of", verdict.gone, verdict.told()));
    }
    if verdict.told() < verdict.gone as u64 && could_be_told(&weir, case, limit)? {
        return Err(format!("{} are gone, {} told of", verdict.gone, verdict.told()));
    }
    Ok(())
}

/// Whether a note had a place when a compaction removed the last message: next to a user message that has
/// text and is not the last one, and within the limit. A result whose call is gone, which the provider
/// would refuse, goes without a compaction. Notes that were sent stay as they are until the next one.
fn could_be_told(weir: &Weir, case: &Case, limit: u64) -> Result<bool, String> {
    let (mut most_gone, mut compactions, mut could) = (0, 0, false);
    for end in 1..=case.transcript.messages.len() {
        let body = case.transcript.body_of(end);
        let received = Body::read(&body)?;
        if matches!(received.role(end - 1), "assistant" | "system" | "developer") {
            continue;
        }
        let Ok(planned) = weir.plan(&body, limit) else {
            // A refused request shows nothing; it may well have been compacted.
            could = false;
            continue;
        };
        let bytes = planned.body.as_deref().unwrap_or(body.as_bytes());
        let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
        let verdict = compare(&received, &Body::read(text)?)?;
        let is_compacted = planned.compactions > compactions;
        compactions = planned.compactions;
        if verdict.gone <= most_gone || !is_compacted {
            most_gone = verdict.gone.max(most_gone);
            continue;
        }
        most_gone = verdict.gone;
        let has_room = planned.sent_tokens + NOTE_TOKENS + limit.div_ceil(50) <= limit;
        // If a note must not be a message, it is in the first kept message or absent.
        let mut kept = verdict.kept.iter().filter(|(own, _)| !received.is_system(*own));
        let places = if case.transcript.model == STRICT_MODEL { 1 } else { usize::MAX };
        let has_place = kept.by_ref().take(places).any(|(own, _)| {
            let content = received.messages()[*own].get("content");
            received.role(*own) == "user"
                && *own + 1 < end
                && !is_among_results(&received, *own)
                && content.is_some_and(|own| own.text().is_some() || !own.items().is_empty())
        });
        could = has_room && has_place && verdict.told() < verdict.gone as u64;
    }
    Ok(could)
}

/// Whether a message lies between a call and its result, and so belongs to the call.
fn is_among_results(body: &Body<'_>, message: usize) -> bool {
    (message..body.messages().len())
        .take_while(|later| body.role(*later) != "assistant")
        .any(|later| body.is_result(later))
}

#[test]
fn what_is_gone_is_reported() {
    check("told, valid", 80, &generate::valid(), is_reported);
}

#[test]
fn what_is_gone_of_hostile_requests_is_reported() {
    check("told, hostile", 120, &generate::hostile(), is_reported);
}
