//! Invariants under every preset, and under one policy with all switches on. Sent requests are
//! within the limit, valid, depend on the received request alone, and extend the previous one
//! except after compactions.

use proptest::prelude::*;
use weir::proxy::ErrorKind;
use weir::proxy::plan::Planned;
use weir_engine::compact::Policy;
use weir_engine::compact::anchors::Anchors;
use weir_engine::compact::policy::{FileHints, Goal, Importance, Notes, Restart};
use weir_engine::compact::preset::{PRESETS, preset};

use super::fits::{floor_tokens, tools_tokens};
use super::generate::{self, Case};
use super::harness::{Weir, check};
use super::judge::Body;
use super::{frozen, valid};

/// Returns policies by name: the presets, and some with switches that no preset turns on.
pub fn policies() -> Vec<(String, Policy)> {
    let named = |name: &&str| ((*name).to_owned(), preset(name).expect("a listed name"));
    let mut policies: Vec<(String, Policy)> = PRESETS.iter().map(named).collect();
    let mut all = preset("zones").expect("a preset");
    all.recall_permille = 300;
    all.mask.repeats = true;
    all.mask.images = true;
    all.mask.arguments = true;
    all.mask.batch = 1;
    all.zones.restart = Restart::Exhausted;
    all.zones.notices.mask = Some("Old results were masked".into());
    all.zones.notices.restart = Some("This is a fresh start".into());
    all.shares.file_hints = FileHints::Full;
    all.shares.oversize_tokens = 500;
    all.anchors = Anchors::new(vec!["level below".into()]).expect("a pattern");
    policies.push(("all".to_owned(), all.clone()));
    all.zones.restart = Restart::Never;
    all.zones.goal = Goal::Tokens(2000);
    all.notes = Notes::Extract;
    all.eviction.importance = Importance::Reference;
    policies.push(("all, by reference".to_owned(), all.clone()));
    all.notes = Notes::Excerpts;
    policies.push(("all, with excerpts".to_owned(), all));
    policies
}

pub fn weir(policy: &Policy) -> Weir {
    Weir::with(|config| config.context.policy = policy.clone())
}

/// Index of the policy, and a conversation.
type Choice = (usize, Case);

fn cases(cases: impl Strategy<Value = Case>) -> impl Strategy<Value = Choice> {
    (0..policies().len(), cases)
}

/// Runs a test under the chosen policy; an error includes its name.
fn under<T>(
    (place, case): &Choice,
    test: impl Fn(&Policy, &Case) -> Result<T, String>,
) -> Result<T, String> {
    let (name, policy) = &policies()[*place];
    test(policy, case).map_err(|error| format!("{name}: {error}"))
}

fn text_of<'a>(planned: &'a Planned, received: &'a str) -> &'a str {
    let bytes = planned.body.as_deref().unwrap_or(received.as_bytes());
    std::str::from_utf8(bytes).expect("weir sends UTF-8")
}

pub fn fits(policy: &Policy, case: &Case, is_valid: bool) -> Result<(), String> {
    let weir = weir(policy);
    let (body, limit) = (case.transcript.body(), case.limit_tokens());
    let received = Body::read(&body)?;
    let tools = tools_tokens(&weir, case.transcript.tools);
    match weir.plan(&body, limit) {
        Ok(planned) => {
            let sent = Body::read(text_of(&planned, &body))?;
            let tokens = match policy.counting.is_estimated {
                true => planned.sent_tokens,
                false => sent.tokens() + tools + 3,
            };
            if planned.action.contains("fault") {
                return Err("a fault".to_owned());
            }
            if tokens > planned.limit_tokens || tokens > planned.sent_tokens {
                let (said, limit) = (planned.sent_tokens, planned.limit_tokens);
                return Err(format!("{tokens} tokens, said to be {said}, under {limit}"));
            }
            let fault = valid::fault(&sent).filter(|_| is_valid);
            fault.map_or(Ok(()), Err)
        }
        Err(error) if error.kind != ErrorKind::ContextLengthExceeded => {
            Err(format!("{:?}: {}", error.kind, error.message))
        }
        Err(error) if is_valid && !policy.counting.is_estimated => {
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

/// Returns the number of the received message for each sent one, as written by the style; weir's
/// notes have none.
fn numbers(sent: &Body<'_>) -> Vec<usize> {
    let number = |message: usize| {
        let node = sent.messages().get(message)?.get("x_number")?;
        node.raw(sent.text).trim().parse().ok()
    };
    (0..sent.messages().len()).filter_map(number).collect()
}

/// Checks that no two messages of one role become adjacent, and that the ends stay.
fn keeps_alternating(policy: &Policy, case: &Case) -> Result<(), String> {
    let body = case.transcript.body();
    let received = Body::read(&body)?;
    let Ok(planned) = weir(policy).plan(&body, case.limit_tokens()) else { return Ok(()) };
    let sent = Body::read(text_of(&planned, &body))?;
    let kept = numbers(&sent);
    // A separate message of excerpts may be adjacent to another user message; the tests of excerpts
    // check this.
    if kept.len() != sent.messages().len() && policy.notes != Notes::Excerpts {
        return Err("a message of weir's own".to_owned());
    }
    if kept.last() != Some(&(received.messages().len() - 1)) {
        return Err("the last message is gone".to_owned());
    }
    let all = 0..received.messages().len();
    if all.clone().any(|own| received.is_system(own) && !kept.contains(&own)) {
        return Err("a system message is gone".to_owned());
    }
    let says = |own: &usize| {
        !received.is_system(*own) && !received.is_result(*own) && received.calls(*own) == 0
    };
    for is_seen in [&(|own: &usize| !received.is_system(*own)) as &dyn Fn(&usize) -> bool, &says] {
        let before: Vec<usize> = all.clone().filter(is_seen).collect();
        let after: Vec<usize> = kept.iter().copied().filter(is_seen).collect();
        let meets = |pair: &&[usize]| {
            let role = received.role(pair[0]);
            role == received.role(pair[1])
                && matches!(role, "user" | "assistant")
                && !before.windows(2).any(|other| other == *pair)
        };
        if let Some(pair) = after.windows(2).find(meets) {
            return Err(format!("{} and {} meet", pair[0], pair[1]));
        }
    }
    Ok(())
}

#[test]
fn valid_requests_fit_and_stay_valid() {
    check("presets fit, valid", 120, &cases(generate::valid()), |choice| {
        under(choice, |policy, case| fits(policy, case, true))
    });
}

#[test]
fn hostile_requests_fit_or_are_refused() {
    check("presets fit, hostile", 80, &cases(generate::hostile()), |choice| {
        under(choice, |policy, case| fits(policy, case, false))
    });
}

#[test]
fn alternation_is_kept_where_the_model_needs_it() {
    check("presets alternate", 120, &cases(generate::alternating()), |choice| {
        under(choice, keeps_alternating)
    });
}

#[test]
fn what_is_sent_grows_by_its_end() {
    let all = prop_oneof![generate::valid().boxed(), generate::alternating().boxed()];
    check("presets, frozen", 80, &cases(all), |choice| {
        under(choice, |policy, case| frozen::is_frozen_by(&weir(policy), case))
    });
}

#[test]
fn what_was_planned_before_changes_nothing() {
    let all = prop_oneof![generate::valid().boxed(), generate::hostile().boxed()];
    check("presets, pure", 30, &cases(all), |choice| {
        under(choice, |policy, case| {
            frozen::is_pure_by(
                |cache_bytes| {
                    Weir::with(|config| {
                        config.context.policy = policy.clone();
                        if let Some(bytes) = cache_bytes {
                            (config.cache.counts_bytes, config.cache.folds_bytes) = (0, bytes);
                        }
                    })
                },
                case,
            )
        })
    });
}
