//! Request bodies: read and planned as in the proxy, without its caches.
//!
//! An input is three control bytes, which select limit, counting and policy, and a body.

use serde_json::value::RawValue;
use weir_engine::compact::preset::{PRESETS, preset};
use weir_engine::compact::report::Treatment;
use weir_engine::compact::{Compactor, Fate, Limits, Measure, Notes, Policy, Profile};
use weir_engine::plan::{NoSummaries, Plan, PlanError, PlanOptions, plan};
use weir_engine::tokens::Encoding;
use weir_engine::wire::{Edit, Message, Protocol, Request, Role, splice};

use super::reading;

const PROTOCOL: Protocol = Protocol::Chat;
const MAX_MESSAGES: usize = 256;
/// Replacement of each `~` in an input, if its control asks for it: a fuzzer would take long to
/// find and vary the long texts that clipping needs.
const LONG_TEXT: &str = "2024-05-01 12:00:00 INFO worker-7 wrote 512 rows to \\\"t\\\" in 12 ms\\n\
    caf\u{e9} \\u00e9 \u{6f22}\u{5b57} \u{1f600}\\ud83d\\ude00 [======>   ] 0xdeadbeef \\t}{)(*&^%$";
/// Number of copies of [`LONG_TEXT`] per `~`.
const REPEATS: usize = 24;
/// Maximum number of `~` replaced.
const MAX_LONG_TEXTS: usize = 8;

/// Choices of the control bytes.
struct Control {
    limit_tokens: u64,
    encoding: Encoding,
    policy: Policy,
    is_expanded: bool,
}

impl Control {
    fn new([limit, switches, policy]: [u8; 3]) -> Self {
        let switch = |bit: u8| switches >> bit & 1 == 1;
        let hard_permille = if switch(4) { 800 } else { 1000 };
        if switches & 3 == 3 {
            // One of the named policies, unchanged except for model-dependent values.
            let name = PRESETS[usize::from(policy) % PRESETS.len()];
            let policy = Policy {
                notes_apart: !switch(2) && !switch(7),
                strict_alternation: switch(2),
                ..preset(name).expect("a listed name")
            };
            let is_estimated = policy.counting.is_estimated;
            return Self {
                limit_tokens: u64::from(limit) * u64::from(limit) / 4 + 8,
                encoding: if is_estimated { Encoding::Estimate } else { Encoding::O200kBase },
                policy,
                is_expanded: switch(5),
            };
        }
        Self {
            limit_tokens: u64::from(limit) * u64::from(limit) / 4 + 8,
            encoding: match switches & 3 {
                0 => Encoding::O200kBase,
                1 => Encoding::Cl100kBase,
                _ => Encoding::Estimate,
            },
            policy: Policy {
                hard_permille,
                low_permille: [600, 100, 400, 799][usize::from(policy >> 3 & 3)],
                min_growth_permille: [250, 0, 500, 1000][usize::from(policy >> 5 & 3)],
                recent_messages: u32::from(policy & 7),
                notes: match (switch(3), switch(6)) {
                    (false, false) => Notes::Excerpts,
                    (false, true) => Notes::Count,
                    (true, _) => Notes::Nothing,
                },
                notes_apart: !switch(2) && !switch(7),
                strict_alternation: switch(2),
                ..Policy::default()
            },
            is_expanded: switch(5),
        }
    }
}

pub fn check(input: &[u8]) {
    let Some((control, body)) = input.split_first_chunk::<3>() else { return };
    let control = Control::new(*control);
    match std::str::from_utf8(body) {
        Ok(text) if control.is_expanded => {
            let expanded = text.replacen('~', &LONG_TEXT.repeat(REPEATS), MAX_LONG_TEXTS);
            check_body(expanded.as_bytes(), &control);
        }
        _ => check_body(body, &control),
    }
}

fn check_body(body: &[u8], control: &Control) {
    let Ok(request) = PROTOCOL.read(body, MAX_MESSAGES) else { return };
    assert_json(request.text);
    assert!(request.messages.len() <= MAX_MESSAGES);
    assert_eq!(splice::apply(PROTOCOL, &request, &[]).as_bytes(), body, "no edit, no changed byte");
    reading::check(PROTOCOL, &request);

    let model = request.model.as_deref().unwrap_or_default();
    let window_tokens = control.limit_tokens.max(1000) * 2;
    let options = PlanOptions::new(model, control.encoding, window_tokens);
    let options = PlanOptions {
        limits: Limits { header_tokens: Some(control.limit_tokens), ..options.limits },
        policy: control.policy.clone(),
        ..options
    };
    if !are_readable(&request, options.measure) {
        return;
    }
    let plan = match plan(&request, &options, &NoSummaries) {
        Ok(plan) => plan,
        Err(PlanError::CannotFit(unfit)) => {
            let profile = options.profile(&request, unfit.plan.tools_tokens());
            return check_state(&unfit.plan.end, &profile);
        }
        Err(error) => panic!("each message was read before: {error}"),
    };
    check_state(&plan.end, &options.profile(&request, plan.tools_tokens()));
    let counted_tokens = check_spliced(&request, &plan, options.measure);
    // The limit holds for the forwarded body, counted again, not only for the plan.
    let planned_tokens = plan.sent_tokens - plan.overhead_tokens;
    assert!(plan.sent_tokens <= plan.limit_tokens);
    assert!(
        counted_tokens <= planned_tokens,
        "{counted_tokens} tokens are sent, {planned_tokens} were planned: {:?}",
        plan.body
    );
}

/// Returns whether the engine can read each message.
fn are_readable(request: &Request<'_>, measure: Measure) -> bool {
    request.messages.iter().all(|raw| {
        let Ok(message) = PROTOCOL.read_message(raw) else { return false };
        assert_eq!(message.raw, *raw);
        let fact = measure.fact(&message);
        assert!(fact.text_tokens <= fact.tokens);
        true
    })
}

fn check_state(state: &Compactor, profile: &Profile) {
    let received_tokens = state.facts().iter().map(|fact| fact.tokens).sum::<u64>();
    assert_eq!(state.received_tokens(), received_tokens);
    let is_within = received_tokens + profile.overhead_tokens <= profile.limit_tokens;
    if is_within && profile.policy.hard_permille == 1000 {
        assert!(state.is_untouched(), "a request that fits is unchanged");
    }
    // A result goes if its call went long before, or never was.
    let is_gone = state.fates().last() == Some(&Fate::Gone);
    let is_result = state.facts().last().is_some_and(|fact| fact.role == Role::Tool);
    assert!(!is_gone || is_result, "the last message stays");
    for (fate, fact) in state.fates().iter().zip(state.facts()) {
        let is_system = fact.role == Role::System;
        assert!(!is_system || *fate == Fate::Kept, "system messages stay whole");
    }
}

/// Compares the spliced body with the received one, and counts its messages again.
fn check_spliced(request: &Request<'_>, plan: &Plan, measure: Measure) -> u64 {
    let (edits, spliced) = (&plan.changes, plan.body.as_deref().unwrap_or(request.text));
    assert_json(spliced);
    let sent =
        PROTOCOL.read(spliced.as_bytes(), MAX_MESSAGES).expect("the forwarded body is valid");
    assert_eq!(sent.model, request.model);
    assert_eq!(sent.stream, request.stream);
    assert_eq!(sent.max_output_tokens, request.max_output_tokens);
    assert_eq!(sent.extras, request.extras);
    assert_eq!(outside(&sent), outside(request), "bytes outside the messages are unchanged");

    let is_compacted = plan.treatment == Treatment::Compacted;
    let is_sent = |index: &usize| !is_compacted || plan.fates()[*index] != Fate::Gone;
    let kept: Vec<usize> = (0..request.messages.len()).filter(is_sent).collect();
    let inserted = |index: usize, side: fn(&Edit) -> bool| {
        let own = edits.iter().filter(move |(edited, edit)| *edited == index && side(edit));
        own.map(|_| None)
    };
    let expected: Vec<Option<usize>> = kept
        .into_iter()
        .flat_map(|index| {
            inserted(index, |edit| matches!(edit, Edit::InsertBefore(_)))
                .chain([Some(index)])
                .chain(inserted(index, |edit| matches!(edit, Edit::InsertAfter(_))))
        })
        .collect();
    assert_eq!(
        sent.messages.len(),
        expected.len(),
        "the forwarded messages are the kept ones and summary blocks"
    );
    let mut counted_tokens = 0;
    for (raw, index) in sent.messages.iter().zip(expected) {
        let Some(index) = index else {
            let note = PROTOCOL.read_message(raw).expect("a summary block is a message");
            assert_eq!(note.role, Role::User);
            counted_tokens += measure.fact(&note).tokens;
            continue;
        };
        let received = request.messages[index];
        let message = PROTOCOL.read_message(raw).expect("the forwarded body is valid");
        assert!(message.weir.is_none(), "the product's own member is never forwarded");
        let is_own = |edit: &Edit| !matches!(edit, Edit::InsertBefore(_) | Edit::InsertAfter(_));
        if !edits.iter().any(|(edited, edit)| *edited == index && is_own(edit)) {
            assert_eq!(*raw, received, "a message without an edit is unchanged");
        } else {
            let is_clip = |edit: &Edit| matches!(edit, Edit::Arguments(_));
            let has_clips = edits.iter().any(|(edited, edit)| *edited == index && is_clip(edit));
            assert_same_beside_texts(&message, received, has_clips);
        }
        counted_tokens += measure.fact(&message).tokens;
    }
    counted_tokens
}

/// Returns the body before the first message and after the last one.
fn outside<'a>(request: &Request<'a>) -> (&'a str, &'a str) {
    let (Some(first), Some(last)) = (request.messages.first(), request.messages.last()) else {
        return (request.text, "");
    };
    let offset = |raw: &str| raw.as_ptr() as usize - request.text.as_ptr() as usize;
    (&request.text[..offset(first)], &request.text[offset(last) + last.len()..])
}

fn assert_same_beside_texts(sent: &Message<'_>, received: &str, has_clipped_calls: bool) {
    let received = PROTOCOL.read_message(received).expect("it was read before");
    assert_eq!(sent.role, received.role);
    assert_eq!(sent.name, received.name);
    assert_eq!(sent.side_texts, received.side_texts);
    assert_eq!(sent.opaque_members, received.opaque_members);
    let calls = |message: &Message<'_>| {
        let calls = message.calls.iter();
        calls.map(|call| format!("{}({})", call.name, call.arguments)).collect::<Vec<_>>()
    };
    if !has_clipped_calls {
        assert_eq!(calls(sent), calls(&received));
    }
}

#[track_caller]
fn assert_json(text: &str) {
    let parsed = serde_json::from_str::<&RawValue>(text);
    assert!(parsed.is_ok(), "{parsed:?} in {text}");
}
