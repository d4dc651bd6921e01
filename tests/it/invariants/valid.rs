//! Valid: a valid conversation stays valid.

use super::fits;
use super::generate::{self, Case};
use super::harness::{Weir, check};
use super::judge::{Body, Verdict, compare};

/// Returns the reason for which a provider would refuse the conversation.
pub fn fault(body: &Body<'_>) -> Option<String> {
    let mut waiting: Vec<&str> = Vec::new();
    let mut waits_for_function = false;
    let first = (0..body.messages().len()).find(|message| !body.is_system(*message));
    if first.is_some_and(|message| body.is_result(message)) {
        return Some("the first message is a result".to_owned());
    }
    for (index, message) in body.messages().iter().enumerate() {
        match body.role(index) {
            "tool" => {
                let id = message.text_of("tool_call_id");
                let Some(place) = waiting.iter().position(|own| *own == id) else {
                    return Some(format!("message {index} answers no call"));
                };
                waiting.remove(place);
                continue;
            }
            "function" if !waits_for_function => {
                return Some(format!("message {index} answers no function call"));
            }
            "function" => {
                waits_for_function = false;
                continue;
            }
            _ if waits_for_function || !waiting.is_empty() => {
                return Some(format!("message {index} stands where results are due"));
            }
            _ => {}
        }
        if let Some(calls) = message.get("tool_calls") {
            waiting = calls.items().iter().map(|call| call.text_of("id")).collect();
        }
        waits_for_function = message.get("function_call").is_some();
    }
    (waits_for_function || !waiting.is_empty()).then(|| "results are missing at the end".to_owned())
}

/// Whether two messages of one role become adjacent that were not before. `is_seen` selects the
/// messages that a model's template reads.
fn meeting(
    received: &Body<'_>,
    verdict: &Verdict,
    is_seen: impl Fn(usize) -> bool,
) -> Option<(usize, usize)> {
    let before: Vec<usize> = (0..received.messages().len()).filter(|own| is_seen(*own)).collect();
    let after: Vec<usize> =
        verdict.kept.iter().map(|(own, _)| *own).filter(|own| is_seen(*own)).collect();
    let met_before = |pair: &[usize]| before.windows(2).any(|other| other == pair);
    after
        .windows(2)
        .find(|pair| {
            let role = received.role(pair[0]);
            role == received.role(pair[1])
                && matches!(role, "user" | "assistant")
                && !met_before(pair)
        })
        .map(|pair| (pair[0], pair[1]))
}

pub fn stays_valid(case: &Case) -> Result<(), String> {
    let weir = Weir::new();
    let (body, limit) = (case.transcript.body(), case.limit_tokens());
    let received = Body::read(&body)?;
    assert_eq!(fault(&received), None, "the generator makes valid conversations");
    let Ok(planned) = weir.plan(&body, limit) else { return Ok(()) };
    let Some(sent) = planned.body else { return Ok(()) };
    let text = std::str::from_utf8(&sent).map_err(|error| error.to_string())?;
    let sent = Body::read(text)?;
    if let Some(fault) = fault(&sent) {
        return Err(format!("{fault} under {limit}: {text:.3000}"));
    }
    let verdict = compare(&received, &sent)?;
    let last = verdict.kept.last().map(|(own, _)| *own);
    if last != Some(received.messages().len() - 1) {
        return Err(format!("the last message is gone under {limit}"));
    }
    let run = received.system_run();
    let newest = fits::newest_from(&received);
    let stays = |own: usize| own < run || (own >= newest && received.is_system(own));
    let mut staying = (0..received.messages().len()).filter(|own| stays(*own));
    if let Some(own) = staying.find(|own| !verdict.kept.iter().any(|(kept, _)| kept == own)) {
        return Err(format!("the system message {own} is gone under {limit}"));
    }
    Ok(())
}

pub fn keeps_alternating(case: &Case) -> Result<(), String> {
    let weir = Weir::new();
    let (body, limit) = (case.transcript.body(), case.limit_tokens());
    let received = Body::read(&body)?;
    let Ok(planned) = weir.plan(&body, limit) else { return Ok(()) };
    let Some(sent) = planned.body else { return Ok(()) };
    let text = std::str::from_utf8(&sent).map_err(|error| error.to_string())?;
    let verdict = compare(&received, &Body::read(text)?)?;
    let speaks = |own: usize| !received.is_system(own);
    // Some templates read all messages, some skip calls and results.
    let says = |own: usize| speaks(own) && !received.is_result(own) && received.calls(own) == 0;
    let asks = |own: usize| received.role(own) == "user" || received.role(own) == "assistant";
    for (template, met) in [
        ("all", meeting(&received, &verdict, speaks)),
        ("without calls and results", meeting(&received, &verdict, says)),
        (
            "without results",
            meeting(&received, &verdict, asks).filter(|(left, _)| received.role(*left) == "user"),
        ),
    ] {
        if let Some((left, right)) = met {
            let roles: Vec<&str> =
                verdict.kept.iter().map(|(own, _)| received.role(*own)).collect();
            return Err(format!("{left} and {right} meet ({template}) under {limit}: {roles:?}"));
        }
    }
    Ok(())
}

#[test]
fn valid_requests_stay_valid() {
    check("valid", 100, &generate::valid(), stays_valid);
}

#[test]
fn alternation_is_kept_where_the_model_needs_it() {
    check("alternating", 100, &generate::alternating(), keeps_alternating);
}
