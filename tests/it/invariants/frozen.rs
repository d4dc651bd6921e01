//! Pure and frozen: a sent request depends on the received request alone, and extends the previous
//! one except after compactions.

use proptest::prelude::*;
use weir::proxy::plan::Planned;

use super::generate::{self, Case};
use super::harness::{Weir, check};
use super::judge::{Body, TAIL};
use super::valid;

/// Returns the points at which a client would have sent a request: all calls are answered, and it
/// is the model's turn.
pub fn requests(case: &Case) -> Vec<String> {
    let all = case.transcript.body();
    let Ok(body) = Body::read(&all) else { return Vec::new() };
    (1..=body.messages().len())
        .filter(|end| body.role(end - 1) == "user" || body.is_result(end - 1))
        .map(|end| case.transcript.body_of(end))
        .filter(|text| Body::read(text).is_ok_and(|body| valid::fault(&body).is_none()))
        .collect()
}

type Outcome = Result<Planned, String>;

fn outcome(weir: &Weir, body: &str, limit: u64) -> Outcome {
    weir.plan(body, limit).map_err(|error| format!("{:?} {}", error.kind, error.message))
}

fn messages_of<'a>(planned: &'a Planned, received: &'a str) -> Vec<&'a str> {
    let bytes = planned.body.as_deref().unwrap_or(received.as_bytes());
    let text = std::str::from_utf8(bytes).expect("weir sends UTF-8");
    let body = Body::read(text).expect("weir sends JSON");
    (0..body.messages().len()).map(|message| body.raw(message)).collect()
}

pub fn is_frozen(case: &Case) -> Result<(), String> {
    is_frozen_by(&Weir::new(), case)
}

pub fn is_frozen_by(weir: &Weir, case: &Case) -> Result<(), String> {
    let limit = case.limit_tokens();
    let bodies = requests(case);
    let mut earlier: Option<(&String, Planned)> = None;
    for body in &bodies {
        let Ok(planned) = outcome(weir, body, limit) else { continue };
        if let Some((earlier_body, earlier)) = &earlier
            && earlier.compactions == planned.compactions
        {
            let (before, now) = (messages_of(earlier, earlier_body), messages_of(&planned, body));
            if !goes_on(&before, &now) {
                let place = before.iter().zip(&now).take_while(|(own, other)| own == other).count();
                return Err(format!(
                    "sent message {place} changed without a cut, {} of {} messages under {limit}",
                    planned.messages,
                    bodies.len()
                ));
            }
        }
        earlier = Some((body, planned));
    }
    Ok(())
}

/// Whether a request begins with the previous one, except for recalled text in its last message.
pub fn goes_on(before: &[&str], now: &[&str]) -> bool {
    let Some((last, all)) = before.split_last() else { return true };
    now.starts_with(all) && now.get(all.len()).is_some_and(|own| own == last || has_tail(last, own))
}

/// Whether `raw` is the message `bare` with recalled text in it.
pub fn has_tail(raw: &str, bare: &str) -> bool {
    let marks = [format!("\\n\\n{TAIL}"), format!(",{{\"type\":\"text\",\"text\":\"\\n\\n{TAIL}")];
    let mut places = marks.iter().flat_map(|mark| raw.match_indices(mark));
    places.any(|(at, _)| {
        bare.get(..at) == Some(&raw[..at]) && bare.get(at..).is_some_and(|rest| raw.ends_with(rest))
    })
}

pub fn is_pure(case: &Case) -> Result<(), String> {
    let weir = |folds_bytes: Option<u64>| {
        Weir::with(|config| {
            if let Some(bytes) = folds_bytes {
                (config.cache.counts_bytes, config.cache.folds_bytes) = (0, bytes);
            }
        })
    };
    is_pure_by(weir, case)
}

/// Compares plans of instances that `weir` creates: each with its own caches, or with caches of
/// this many bytes.
pub fn is_pure_by(weir: impl Fn(Option<u64>) -> Weir, case: &Case) -> Result<(), String> {
    let limit = case.limit_tokens();
    let bodies: Vec<String> =
        (1..=case.transcript.messages.len()).map(|end| case.transcript.body_of(end)).collect();
    let afresh: Vec<Outcome> =
        bodies.iter().map(|body| outcome(&weir(None), body, limit)).collect();
    let warm = weir(None);
    let tiny = weir(Some(2000));
    let backwards = weir(None);
    for body in bodies.iter().rev() {
        let _ = outcome(&backwards, body, limit);
    }
    for (name, weir) in
        [("warm", &warm), ("tiny", &tiny), ("backwards", &backwards), ("again", &warm)]
    {
        for (index, (body, wanted)) in bodies.iter().zip(&afresh).enumerate() {
            let found = outcome(weir, body, limit);
            if found != *wanted {
                return Err(format!(
                    "{name}, request {index} under {limit}: {found:?} is not {wanted:?}"
                ));
            }
        }
    }
    Ok(())
}

#[test]
fn agent_loops_and_chats_grow_by_their_end() {
    check("frozen, valid", 60, &generate::valid(), is_frozen);
}

#[test]
fn alternating_conversations_grow_by_their_end() {
    check("frozen, alternating", 50, &generate::alternating(), is_frozen);
}

#[test]
fn what_was_planned_before_changes_nothing() {
    let cases = prop_oneof![generate::valid().boxed(), generate::hostile().boxed()];
    check("pure", 20, &cases, is_pure);
}
