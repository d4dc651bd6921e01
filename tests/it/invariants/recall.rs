//! Recalled text after a late question keeps every invariant: it occurs in the conversation, it
//! fits, it is in the last message only, and the next request continues as if it were absent.

use std::cell::Cell;

use weir::proxy::plan::Planned;

use super::excerpts;
use super::generate::{self, Case};
use super::harness::{Weir, check};
use super::judge::{Body, TAIL, compare};
use super::transcript::{Content, Message, Text, TextKind};
use super::{fits, frozen, reported, valid};

/// Returns whether a request has recalled text, or the invariant that it breaks.
fn is_right(case: &Case) -> Result<bool, String> {
    let (body, limit) = (case.transcript.body(), case.limit_tokens());
    let (with, without) =
        (Weir::new(), Weir::with(|config| config.context.policy.recall_permille = 0));
    let planned = match (with.plan(&body, limit), without.plan(&body, limit)) {
        (Ok(planned), Ok(_)) => planned,
        (Err(_), Err(_)) => return Ok(false),
        _ => return Err("a tail decides what is refused".to_owned()),
    };
    let sent = text(&planned, &body)?;
    let (received, own) = (Body::read(&body)?, Body::read(&sent)?);
    let verdict = compare(&received, &own)?;
    excerpts::are_said(&received, &own, &verdict)?;
    if !verdict.any(|change| change.has_tail) {
        return Ok(false);
    }
    if verdict.gone == 0 {
        return Err("a tail, and nothing is gone".to_owned());
    }
    // The next request continues as if there had been no recalled text.
    let mut answered = case.transcript.clone();
    let answer = Text { kind: TextKind::Words, tokens: 1 };
    answered.messages.push(Message::new("assistant", Content::Text(answer)));
    let next_body = answered.body();
    let Ok(next) = with.plan(&next_body, limit) else { return Ok(true) };
    if next.compactions != planned.compactions {
        return Ok(true);
    }
    let next_sent = text(&next, &next_body)?;
    let other = Body::read(&next_sent)?;
    let last = own.messages().len() - 1;
    let is_all = (0..last).all(|message| own.raw(message) == other.raw(message));
    if other.messages().len() != last + 2
        || !is_all
        || !frozen::has_tail(own.raw(last), other.raw(last))
    {
        return Err("more than the last message differs".to_owned());
    }
    let tokens = own.sizes[last].all() - other.sizes[last].all();
    if tokens > limit / 10 {
        return Err(format!("{tokens} tokens come back"));
    }
    no_message_comes_back_twice(own.raw(last), other.raw(last))
}

fn text(planned: &Planned, received: &str) -> Result<String, String> {
    let bytes = planned.body.as_deref().unwrap_or(received.as_bytes());
    String::from_utf8(bytes.to_vec()).map_err(|error| error.to_string())
}

/// Checks that all recalled text of one message is in one place, in order.
fn no_message_comes_back_twice(raw: &str, bare: &str) -> Result<bool, String> {
    // The user's text and recalled text may quote the mark.
    let own = bare.matches(TAIL).count();
    let (at, _) = raw.match_indices(TAIL).nth(own).ok_or("there is no tail")?;
    let tail = &raw[at..];
    let mut numbers: Vec<u64> = Vec::new();
    for header in tail.split("\\n#").skip(1) {
        let number: String = header.chars().take_while(char::is_ascii_digit).collect();
        numbers.extend(number.parse::<u64>());
    }
    let is_in_order = numbers.windows(2).all(|pair| pair[0] < pair[1]);
    if is_in_order && !numbers.is_empty() { Ok(true) } else { Err(format!("{numbers:?}")) }
}

#[test]
fn what_comes_back_is_right() {
    let (all, tails) = (Cell::new(0_u32), Cell::new(0_u32));
    check("tail", 150, &generate::dialogues(), |case| {
        all.set(all.get() + 1);
        tails.set(tails.get() + u32::from(is_right(case)?));
        Ok(())
    });
    let (all, tails) = (all.get(), tails.get());
    println!("{tails} tails in {all} dialogues");
    assert!(all < 100 || tails * 20 > all, "{tails} tails in {all} dialogues");
}

#[test]
fn dialogues_fit() {
    check("tail, fits", 60, &generate::dialogues(), fits::valid_fits);
}

#[test]
fn dialogues_stay_valid_and_are_told() {
    check("tail, valid", 60, &generate::dialogues(), |case| {
        valid::stays_valid(case)?;
        reported::is_reported(case)
    });
}

#[test]
fn dialogues_grow_by_their_end() {
    check("tail, frozen", 40, &generate::dialogues(), frozen::is_frozen);
}

#[test]
fn what_comes_back_depends_on_the_request_alone() {
    check("tail, pure", 15, &generate::dialogues(), frozen::is_pure);
}
