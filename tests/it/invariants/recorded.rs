//! Fit, valid, pure and frozen on recorded conversations, under every preset and several limits, at
//! each point where a request could have ended. Without `WEIR_TRACES` these are the few that the
//! project carries; with it, some of all those in that folder.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use weir::config::Config;
use weir::proxy::plan::Planned;
use weir_engine::compact::preset::{PRESETS, preset};
use weir_engine::compact::recall::OPENS;
use weir_engine::compact::{Compactor, Fact, Fate, Limits, Measure, Notes, Policy, Profile};
use weir_engine::plan::{Known, NoSummaries, Plan, PlanError, PlanOptions, plan_with};
use weir_engine::tokens::Encoding;
use weir_engine::tokens::media::ImageRule;
use weir_engine::wire::{Protocol, Role};

use super::harness::{MODEL, Weir};
use super::judge::Body;
use super::valid;
use crate::replay::judged::rewritten::{self, Sizes};
use crate::traces;

/// Limits, in hundredths of the size of the whole conversation.
const SHARES: [u64; 3] = [15, 35, 70];
/// Of the recorded conversations of a large set one in so many is taken, and of each policy's limits
/// one: the rest takes about a minute.
const ONE_IN: usize = 5;
const MANY: usize = 50;
/// By how much rounding may move a border.
const SLACK_TOKENS: u64 = 8;
/// At one point in so many the plan is made from nothing as well, without caches.
const AFRESH_ONE_IN: usize = 9;

/// A recorded conversation in the bytes it is sent as.
struct Recorded {
    id: String,
    messages: Vec<String>,
    /// How many messages each request has.
    points: Vec<usize>,
}

impl Recorded {
    fn new(conversation: &traces::Conversation) -> Self {
        let role = |index: usize| conversation.messages.get(index).map(|own| own["role"].as_str());
        let role = |index: usize| role(index).flatten();
        let ends = |end: &usize| match role(end - 1) {
            Some("user") => true,
            Some("tool") => role(*end) != Some("tool"),
            _ => false,
        };
        let messages: Vec<String> = conversation.messages.iter().map(ToString::to_string).collect();
        Self {
            id: conversation.id.clone(),
            points: (1..=messages.len()).filter(ends).collect(),
            messages,
        }
    }

    fn facts(&self, measure: Measure) -> Vec<Fact> {
        let fact = |raw: &String| {
            measure.fact(&Protocol::Chat.read_message(raw).expect("a recorded message"))
        };
        self.messages.iter().map(fact).collect()
    }

    fn body(&self, messages: usize) -> String {
        let list = self.messages[..messages].join(",");
        format!(r#"{{"model":"{MODEL}","messages":[{list}]}}"#)
    }
}

fn measure() -> Measure {
    let found = Config::default().models.find(MODEL).entry.encoding;
    Measure { encoding: found, images: ImageRule::of_model(MODEL) }
}

/// The options that the planner has for a limit.
fn options(policy: &Policy, limit_tokens: u64) -> PlanOptions {
    let models = Config::default().models;
    let entry = models.find(MODEL).entry;
    let encoding =
        if policy.counting.is_estimated { Encoding::Estimate } else { measure().encoding };
    let options = PlanOptions::new(MODEL, encoding, entry.window_tokens);
    PlanOptions {
        limits: Limits {
            max_input_tokens: entry.max_input_tokens,
            max_output_tokens: entry.max_output_tokens,
            header_tokens: Some(limit_tokens),
            ..options.limits
        },
        policy: policy.clone(),
        ..options
    }
}

/// State of a conversation when one of its requests is planned.
struct AtHand<'a> {
    facts: &'a [Fact],
    state: RefCell<Option<Arc<Compactor>>>,
}

impl Known for AtHand<'_> {
    fn fact(&self, message: usize) -> Option<Fact> {
        Some(self.facts[message])
    }

    fn state(&self) -> Option<Arc<Compactor>> {
        self.state.take()
    }

    fn keep_state(&self, state: &Arc<Compactor>) {
        self.state.replace(Some(Arc::clone(state)));
    }
}

fn weir(policy: &Policy, caches: bool) -> Weir {
    Weir::with(|config| {
        config.context.policy = policy.clone();
        if !caches {
            (config.cache.counts_bytes, config.cache.folds_bytes) = (0, 0);
        }
    })
}

/// Plan at one point.
struct Sent {
    /// The body, or why there is none.
    outcome: Result<String, String>,
    /// The body without the recall for its question, which is for this request alone.
    lasting: Option<String>,
    cuts: u32,
    /// The notes of excerpts in messages of their own. Those that only count may give way to one.
    notes: Vec<String>,
    /// How many messages the conversation had at its last cut.
    cut_at: usize,
    /// Whether the first user message is sent.
    has_first_user: bool,
    /// Whether the last note was written next to an outsized turn.
    is_last_thin: Option<bool>,
}

/// One conversation under one policy and one limit.
struct Run<'a> {
    recorded: &'a Recorded,
    policy: &'a Policy,
    limit_tokens: u64,
    warm: Weir,
    options: PlanOptions,
    profile: Profile,
    /// By the policy's own way of counting.
    facts: Vec<Fact>,
}

impl Run<'_> {
    /// Checks each point in order; an error names its point.
    fn check(&self) -> Result<(), String> {
        let at_hand = self.at_hand();
        let mut earlier: Option<Sent> = None;
        let mut fates: Vec<Fate> = Vec::new();
        for (nth, point) in self.recorded.points.iter().copied().enumerate() {
            let at = |reason: String| format!("at {point} messages: {reason}");
            let body = self.recorded.body(point);
            let plan = self.plan(&body, &at_hand);
            let end = &plan.end;
            let mut sent = self.sent(&self.warm, &body, point);
            sent.cut_at = end.history().last().map_or(0, |cut| cut.messages);
            let first_user = self.facts[..point].iter().position(|fact| fact.role == Role::User);
            sent.has_first_user = first_user.is_some_and(|own| end.fates()[own] != Fate::Gone);
            let stood = |own: &usize| fates.get(*own).is_none_or(|fate| *fate != Fate::Gone);
            let sizes = self.sizes(point, stood, end.marks().low_tokens);
            self.check_sent(&body, &sent).map_err(at)?;
            if nth % AFRESH_ONE_IN == 0 || nth + 1 == self.recorded.points.len() {
                self.check_afresh(point, &body, &plan, &sent).map_err(at)?;
            }
            if let Some(earlier) = &earlier {
                self.check_grown(earlier, &sent).map_err(at)?;
            }
            let before = earlier.as_ref().map_or(&[][..], |earlier| &earlier.notes);
            if self.policy.notes == Notes::Excerpts && sent.outcome.is_ok() {
                let cuts = earlier.as_ref().map_or(0, |earlier| earlier.cuts);
                let is_known = sent.cuts == cuts + 1 && sent.cut_at == point;
                let had_first_user = earlier.as_ref().is_none_or(|earlier| earlier.has_first_user);
                let takes_first_user = had_first_user && !sent.has_first_user;
                if is_known && let Some(earlier) = &earlier {
                    self.check_notes(earlier, &sent, &sizes).map_err(at)?;
                }
                sent.is_last_thin = match sent.notes.last().filter(|last| !before.contains(last)) {
                    Some(_) if is_known => sizes.is_outsized().filter(|_| !takes_first_user),
                    Some(_) => None,
                    None => earlier.as_ref().and_then(|earlier| earlier.is_last_thin),
                };
            }
            let is_compacted = earlier.as_ref().is_none_or(|earlier| earlier.cuts != sent.cuts);
            if is_compacted || nth + 1 == self.recorded.points.len() {
                self.check_valid(&sent).map_err(at)?;
            }
            fates = end.fates().to_vec();
            if sent.outcome.is_ok() {
                earlier = Some(sent);
            }
        }
        Ok(())
    }

    fn at_hand(&self) -> AtHand<'_> {
        AtHand { facts: &self.facts, state: RefCell::default() }
    }

    /// The engine's own plan, or as near to one as it came.
    fn plan(&self, body: &str, at_hand: &AtHand<'_>) -> Plan {
        let request = Protocol::Chat.read(body.as_bytes(), usize::MAX).expect("a request");
        match plan_with(&request, &self.options, &NoSummaries, at_hand) {
            Ok(plan) => plan,
            Err(PlanError::CannotFit(unfit)) => unfit.plan,
            Err(error) => panic!("{error}"),
        }
    }

    fn sent(&self, weir: &Weir, body: &str, point: usize) -> Sent {
        let (outcome, cuts) = match weir.plan(body, self.limit_tokens) {
            Ok(planned) => (Ok(text_of(&planned, body)), planned.compactions),
            Err(error) => (Err(format!("{:?}: {}", error.kind, error.message)), 0),
        };
        let notes = outcome.as_ref().map_or(Vec::new(), |text| notes_of(text));
        let own = &self.recorded.messages[point - 1];
        let lasting = outcome.as_ref().ok().map(|text| without_tail(text, own));
        let (cut_at, has_first_user, is_last_thin) = (0, true, None);
        Sent { outcome, lasting, cuts, notes, cut_at, has_first_user, is_last_thin }
    }

    /// A request is planned, or refused because it cannot fit.
    fn check_sent(&self, body: &str, sent: &Sent) -> Result<(), String> {
        match &sent.outcome {
            Ok(_) => Ok(()),
            Err(error) if error.starts_with("ContextLengthExceeded") => Ok(()),
            Err(error) => Err(format!("{error} for {} bytes", body.len())),
        }
    }

    /// The same from nothing: a planner without caches, and an engine that never saw the later messages.
    fn check_afresh(
        &self,
        point: usize,
        body: &str,
        plan: &Plan,
        sent: &Sent,
    ) -> Result<(), String> {
        let afresh = self.plan(body, &self.at_hand());
        if afresh.changes != plan.changes || afresh.action != plan.action {
            return Err("from the start the engine decides otherwise".to_owned());
        }
        let cold = self.sent(&weir(self.policy, false), body, point);
        if cold.outcome != sent.outcome || cold.cuts != sent.cuts {
            return Err("without caches other bytes are sent".to_owned());
        }
        let is_same = match &sent.outcome {
            Ok(text) => text == afresh.body.as_deref().unwrap_or(body),
            Err(_) => afresh.action == "refuse",
        };
        if is_same {
            Ok(())
        } else {
            Err("the planner sends other bytes than the engine".to_owned())
        }
    }

    /// The earlier request opens the next one, except at a compaction.
    fn check_grown(&self, earlier: &Sent, sent: &Sent) -> Result<(), String> {
        let (Some(before), Some(now)) = (&earlier.lasting, &sent.lasting) else { return Ok(()) };
        if earlier.cuts == sent.cuts {
            let opening = before.strip_suffix("]}").expect("a body ends so");
            let grows = now.strip_prefix(opening).is_some_and(|rest| rest.starts_with([',', ']']));
            return if grows { Ok(()) } else { Err("sent messages changed".to_owned()) };
        }
        if sent.cuts < earlier.cuts { Err("a cut was taken back".to_owned()) } else { Ok(()) }
    }

    /// One cut leaves the notes before it as they are, but for thin and full ones.
    fn check_notes(&self, earlier: &Sent, sent: &Sent, sizes: &Sizes) -> Result<(), String> {
        let notes = rewritten::Notes {
            old: &earlier.notes,
            new: &sent.notes,
            is_last_thin: earlier.is_last_thin,
            takes_first_user: earlier.has_first_user && !sent.has_first_user,
        };
        let tokens = |note: &String| {
            let note = Protocol::Chat.read_message(note).expect("a note is a message");
            self.profile.measure.fact(&note).tokens
        };
        notes.check(sizes, |old, new| old == new, tokens)
    }

    /// Returns the sizes at a compaction of the first `point` messages; `stood` are those sent before it.
    fn sizes(&self, point: usize, stood: impl Fn(&usize) -> bool, low_tokens: u64) -> Sizes {
        let facts = &self.facts[..point];
        let is_system = |own: &usize| facts[*own].role == Role::System;
        let is_user = |own: &usize| facts[*own].role == Role::User;
        let tokens = |own: usize| facts[own].tokens;
        let newest_from = match facts[point - 1].role {
            Role::Tool => facts.iter().rposition(|fact| fact.role == Role::Assistant).unwrap_or(0),
            _ => point - 1,
        };
        let system_run = (0..point).take_while(is_system).count();
        let first_user = (0..newest_from).find(is_user).filter(&stood);
        let fixed_tokens = self.profile.overhead_tokens
            + (0..system_run).map(|own| facts[own].form_tokens).sum::<u64>()
            + first_user.map_or(0, tokens);
        let newest_turn_tokens =
            (newest_from..point).filter(|own| !is_system(own)).map(tokens).sum();
        let question = match is_user(&newest_from) {
            true => None,
            false => (0..newest_from).rfind(is_user).filter(&stood),
        };
        let question = question.filter(|own| Some(*own) != first_user);
        let late_systems = (system_run..point).filter(is_system);
        let staying_tokens = fixed_tokens
            + newest_turn_tokens
            + late_systems.chain(question).map(tokens).sum::<u64>();
        Sizes {
            limit_tokens: self.profile.limit_tokens,
            low_tokens,
            fixed_tokens,
            newest_turn_tokens,
            staying_tokens,
            slack_tokens: SLACK_TOKENS,
        }
    }

    fn check_valid(&self, sent: &Sent) -> Result<(), String> {
        let Ok(text) = &sent.outcome else { return Ok(()) };
        let body = Body::read(text)?;
        let tokens = body.tokens();
        if tokens > self.limit_tokens && !self.policy.counting.is_estimated {
            return Err(format!("{tokens} tokens under {}", self.limit_tokens));
        }
        valid::fault(&body).map_or(Ok(()), Err)
    }
}

/// The notes of excerpts that stand in messages of their own, in order.
fn notes_of(sent: &str) -> Vec<String> {
    const OPENS: &str = r#"{"role":"user","content":"[weir: "#;
    let request = Protocol::Chat.read(sent.as_bytes(), usize::MAX).expect("a request");
    let is_note = |raw: &&&str| raw.starts_with(OPENS) && raw.contains(", shortened to fit; ");
    request.messages.iter().filter(is_note).map(|raw| (*raw).to_owned()).collect()
}

/// `sent` with its last message as received, if only recall was added to it.
fn without_tail(sent: &str, own: &str) -> String {
    let request = Protocol::Chat.read(sent.as_bytes(), usize::MAX).expect("a request");
    let last = request.messages.last().expect("a request has a last message");
    let open = OPENS.replace('\n', "\\n");
    match last.find(&open) {
        Some(at) if own.starts_with(&last[..at]) && !own.contains(&open) => {
            let start = last.as_ptr() as usize - sent.as_ptr() as usize;
            format!("{}{own}{}", &sent[..start], &sent[start + last.len()..])
        }
        _ => sent.to_owned(),
    }
}

fn text_of(planned: &Planned, received: &str) -> String {
    let bytes = planned.body.as_deref().unwrap_or(received.as_bytes());
    std::str::from_utf8(bytes).expect("weir sends UTF-8").to_owned()
}

/// Every run: a conversation, a policy by name, a share.
fn runs(recorded: &[Recorded]) -> Vec<(&Recorded, &'static str, u64)> {
    let mut runs = Vec::new();
    for (nth, own) in recorded.iter().enumerate() {
        for (place, name) in PRESETS.iter().enumerate() {
            let is_asked = |index: &usize| {
                recorded.len() < MANY || (nth + place) % SHARES.len() == *index || place == 0
            };
            let shares = (0..SHARES.len()).filter(is_asked);
            runs.extend(shares.map(|index| (own, *name, SHARES[index])));
        }
    }
    runs
}

#[test]
fn recorded_conversations_keep_the_promises_under_every_preset() {
    let all = traces::all();
    let step = if all.len() < MANY { 1 } else { ONE_IN };
    let recorded: Vec<Recorded> = all.iter().step_by(step).map(Recorded::new).collect();
    let runs = runs(&recorded);
    let next = AtomicUsize::new(0);
    let points = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let work = || {
        let mut wrong = Vec::new();
        while let Some((recorded, name, share)) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let policy = preset(name).expect("a listed name");
            let facts = recorded.facts(measure());
            let tokens: u64 = facts.iter().map(|fact| fact.tokens).sum();
            let limit_tokens = (tokens * share / 100).max(1);
            let options = options(&policy, limit_tokens);
            let facts = match options.measure == measure() {
                true => facts,
                false => recorded.facts(options.measure),
            };
            let warm = weir(&policy, true);
            let body = recorded.body(1);
            let request = Protocol::Chat.read(body.as_bytes(), 1).expect("a request");
            let profile = options.profile(&request, 0);
            let run =
                Run { recorded, policy: &policy, limit_tokens, warm, options, profile, facts };
            points.fetch_add(recorded.points.len(), Ordering::Relaxed);
            if let Err(reason) = run.check() {
                wrong.push(format!("{}, {name}, {share} %, {reason}", recorded.id));
            }
        }
        wrong
    };
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("no panic")).collect()
    });
    println!("{} conversations, {} runs, {points:?} points", recorded.len(), runs.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(points.into_inner() > 0);
}
