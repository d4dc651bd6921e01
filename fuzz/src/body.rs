//! Request bodies: read, measured, folded and spliced as the planner does it, without its caches.
//!
//! An input is three bytes of control, by which limit, counting and policy vary, and a body.

use std::sync::Arc;

use serde_json::value::RawValue;
use weir::context::preset::{PRESETS, preset};
use weir::context::{
    self, Fact, Fate, Fold, Limits, Measure, Notes, Policy, Profile, RequestSource,
};
use weir::tokens::media::ImageRule;
use weir::tokens::{Encoding, REPLY_PRIMING, tools};
use weir::wire::{Edit, ExtraKind, Message, Protocol, Request, splice};

const PROTOCOL: Protocol = Protocol::Chat;
const MAX_MESSAGES: usize = 256;
/// What each `~` of an input stands for where its control says so: long texts, which clipping
/// needs, would take a fuzzer long to find and longer to vary.
const LONG_TEXT: &str = "2024-05-01 12:00:00 INFO worker-7 wrote 512 rows to \\\"t\\\" in 12 ms\\n\
    caf\u{e9} \\u00e9 \u{6f22}\u{5b57} \u{1f600}\\ud83d\\ude00 [======>   ] 0xdeadbeef \\t}{)(*&^%$";
/// How often [`LONG_TEXT`] stands in the place of one `~`.
const REPEATS: usize = 24;
/// How many `~` are replaced.
const MAX_LONG_TEXTS: usize = 8;

/// What the control bytes choose.
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
            // One of the policies by name, as it is but for what depends on the model.
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

    let model = request.model.as_deref().unwrap_or_default();
    let measure = Measure { encoding: control.encoding, images: ImageRule::of_model(model) };
    let Some(facts) = facts(&request, measure) else { return };
    let extras_tokens = request.extras.iter().map(|extra| match extra.kind {
        ExtraKind::Tools | ExtraKind::Functions => tools::count_list(measure.encoding, extra.raw),
        ExtraKind::ResponseFormat => tools::count_response_format(measure.encoding, extra.raw),
        ExtraKind::Prediction => measure.encoding.count(extra.raw),
    });
    let extras_tokens = extras_tokens.sum();
    let limits = Limits {
        window_tokens: control.limit_tokens.max(1000) * 2,
        max_input_tokens: None,
        max_output_tokens: None,
        operator_tokens: None,
        header_tokens: Some(control.limit_tokens),
        asked_output_tokens: request.max_output_tokens,
        counting: control.policy.counting,
    };
    let profile = Arc::new(limits.profile(extras_tokens, control.policy.clone(), measure));
    let source = RequestSource::new(PROTOCOL, &request.messages, measure.encoding);
    let fold = fold(&facts, &profile, &source);
    check_fold(&fold, &profile);

    let mut edits = context::edits(&fold);
    let mut planned_tokens = fold.sent_tokens();
    let left = profile.limit_tokens.saturating_sub(planned_tokens + profile.overhead_tokens);
    if let Some(tail) = context::tail(&fold, &source).filter(|tail| tail.tokens <= left) {
        planned_tokens += tail.tokens;
        edits.push((tail.message, Edit::Append(tail.text)));
    }
    let spliced = splice::apply(PROTOCOL, &request, &edits);
    let counted_tokens = check_spliced(&request, &fold, &edits, &spliced, measure);
    let sent_tokens = fold.sent_tokens() + extras_tokens + REPLY_PRIMING;
    if sent_tokens <= limits.input_tokens() {
        // The limit holds for what is sent, counted afresh, and not just for what was planned.
        assert!(
            counted_tokens <= planned_tokens,
            "{counted_tokens} tokens are sent, {planned_tokens} were planned: {spliced}"
        );
    }
}

/// What the engine knows of each message; `None` where one cannot be read.
fn facts(request: &Request<'_>, measure: Measure) -> Option<Vec<Fact>> {
    let read = request.messages.iter().map(|raw| {
        let message = PROTOCOL.read_message(raw).ok()?;
        assert_eq!(message.raw, *raw);
        let fact = measure.fact(&message);
        assert!(fact.text_tokens <= fact.tokens);
        Some(fact)
    });
    read.collect()
}

fn fold(facts: &[Fact], profile: &Arc<Profile>, source: &RequestSource<'_>) -> Fold {
    let mut fold = Fold::new(Arc::clone(profile));
    for fact in facts {
        fold.push(*fact, source);
    }
    fold.ended(source).into_owned()
}

fn check_fold(fold: &Fold, profile: &Profile) {
    let received_tokens = fold.facts().iter().map(|fact| fact.tokens).sum::<u64>();
    assert_eq!(fold.received_tokens(), received_tokens);
    let is_within = received_tokens + profile.overhead_tokens <= profile.limit_tokens;
    if is_within && profile.policy.hard_permille == 1000 {
        assert!(fold.is_untouched(), "what fits is left alone");
    }
    assert_ne!(fold.fates().last(), Some(&Fate::Gone), "the last message stays");
    for (fate, fact) in fold.fates().iter().zip(fold.facts()) {
        let is_system = fact.role == weir::wire::Role::System;
        assert!(!is_system || *fate == Fate::Kept, "system messages stay whole");
    }
}

/// Holds the spliced body against the one received, and counts its messages afresh.
fn check_spliced(
    request: &Request<'_>,
    fold: &Fold,
    edits: &[(usize, Edit)],
    spliced: &str,
    measure: Measure,
) -> u64 {
    assert_json(spliced);
    let sent = PROTOCOL.read(spliced.as_bytes(), MAX_MESSAGES).expect("what is sent can be read");
    assert_eq!(sent.model, request.model);
    assert_eq!(sent.stream, request.stream);
    assert_eq!(sent.max_output_tokens, request.max_output_tokens);
    assert_eq!(sent.extras, request.extras);
    assert_eq!(outside(&sent), outside(request), "what is beside the messages keeps its bytes");

    let fates = fold.fates().iter().enumerate();
    let kept: Vec<usize> =
        fates.filter(|(_, fate)| **fate != Fate::Gone).map(|(index, _)| index).collect();
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
    assert_eq!(sent.messages.len(), expected.len(), "what is sent is what was kept, and notes");
    let mut counted_tokens = 0;
    for (raw, index) in sent.messages.iter().zip(expected) {
        let Some(index) = index else {
            let note = PROTOCOL.read_message(raw).expect("a note is a message");
            assert_eq!(note.role, weir::wire::Role::User);
            counted_tokens += measure.fact(&note).tokens;
            continue;
        };
        let received = request.messages[index];
        let message = PROTOCOL.read_message(raw).expect("what is sent can be read");
        assert!(message.weir.is_none(), "the product's own member is never forwarded");
        let is_own = |edit: &Edit| !matches!(edit, Edit::InsertBefore(_) | Edit::InsertAfter(_));
        if !edits.iter().any(|(edited, edit)| *edited == index && is_own(edit)) {
            assert_eq!(*raw, received, "a message without edit keeps its bytes");
        } else {
            assert_same_beside_texts(&message, received);
        }
        counted_tokens += measure.fact(&message).tokens;
    }
    counted_tokens
}

/// All of the body before the first message and after the last one.
fn outside<'a>(request: &Request<'a>) -> (&'a str, &'a str) {
    let (Some(first), Some(last)) = (request.messages.first(), request.messages.last()) else {
        return (request.text, "");
    };
    let offset = |raw: &str| raw.as_ptr() as usize - request.text.as_ptr() as usize;
    (&request.text[..offset(first)], &request.text[offset(last) + last.len()..])
}

fn assert_same_beside_texts(sent: &Message<'_>, received: &str) {
    let received = PROTOCOL.read_message(received).expect("it was read before");
    assert_eq!(sent.role, received.role);
    assert_eq!(sent.name, received.name);
    assert_eq!(sent.side_texts, received.side_texts);
    assert_eq!(sent.opaque_members, received.opaque_members);
    let calls = |message: &Message<'_>| {
        let calls = message.calls.iter();
        calls.map(|call| format!("{}({})", call.name, call.arguments)).collect::<Vec<_>>()
    };
    assert_eq!(calls(sent), calls(&received));
}

#[track_caller]
fn assert_json(text: &str) {
    let parsed = serde_json::from_str::<&RawValue>(text);
    assert!(parsed.is_ok(), "{parsed:?} in {text}");
}
