//! Promises 2 to 5 on recorded conversations, under every preset and several limits, at each point
//! where a request could have ended. Without `WEIR_TRACES` these are the few that the project
//! carries; with it, some of all those in that folder.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use weir::config::Config;
use weir::context::preset::{PRESETS, preset};
use weir::context::tail::OPENS;
use weir::context::{self, Fact, Fold, Limits, Measure, Notes, Policy, Profile, RequestSource};
use weir::proxy::planner::Planned;
use weir::tokens::media::ImageRule;
use weir::wire::{Edit, Protocol, splice};

use super::harness::{MODEL, Weir};
use super::judge::Body;
use super::valid;
use crate::traces;

/// Limits, in hundredths of what the whole conversation takes.
const SHARES: [u64; 3] = [15, 35, 70];
/// Of the recorded conversations of a large set one in so many is taken, and of each policy's limits
/// one: what is left takes about a minute.
const ONE_IN: usize = 5;
const MANY: usize = 50;
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

    fn raws(&self, messages: usize) -> Vec<&str> {
        self.messages[..messages].iter().map(String::as_str).collect()
    }
}

fn measure() -> Measure {
    let found = Config::default().models.find(MODEL).entry.encoding;
    Measure { encoding: found, images: ImageRule::of_model(MODEL) }
}

/// The profile that the planner makes of a limit.
fn profile(policy: &Policy, limit_tokens: u64) -> Arc<Profile> {
    let models = Config::default().models;
    let entry = models.find(MODEL).entry;
    let limits = Limits {
        window_tokens: entry.window_tokens,
        max_input_tokens: entry.max_input_tokens,
        max_output_tokens: entry.max_output_tokens,
        operator_tokens: None,
        header_tokens: Some(limit_tokens),
        asked_output_tokens: None,
        counting: policy.counting,
    };
    let mut measure = measure();
    if policy.counting.is_estimated {
        measure.encoding = weir::tokens::Encoding::Estimate;
    }
    Arc::new(limits.profile(0, policy.clone(), measure))
}

fn weir(policy: &Policy, caches: bool) -> Weir {
    Weir::with(|config| {
        config.context.policy = policy.clone();
        if !caches {
            (config.cache.counts_bytes, config.cache.folds_bytes) = (0, 0);
        }
    })
}

/// What was planned at one point.
struct Sent {
    /// The body, or why there is none.
    outcome: Result<String, String>,
    /// The body without what bears on its question, which is for the one request.
    lasting: Option<String>,
    cuts: u32,
    /// The notes of excerpts in messages of their own. Those that only count may give way to one.
    notes: Vec<String>,
}

/// One conversation under one policy and one limit.
struct Run<'a> {
    recorded: &'a Recorded,
    policy: &'a Policy,
    limit_tokens: u64,
    warm: Weir,
    profile: Arc<Profile>,
    /// By the policy's own way of counting.
    facts: Vec<Fact>,
}

impl Run<'_> {
    /// Looks at each point in order; what is wrong is said with the point.
    fn check(&self) -> Result<(), String> {
        let raws = self.recorded.raws(self.recorded.messages.len());
        let source = RequestSource::new(Protocol::Chat, &raws, self.profile.measure.encoding);
        let mut fold = Fold::new(Arc::clone(&self.profile));
        let mut earlier: Option<Sent> = None;
        for (nth, point) in self.recorded.points.iter().copied().enumerate() {
            let at = |reason: String| format!("at {point} messages: {reason}");
            for fact in &self.facts[fold.messages()..point] {
                fold.push(*fact, &source);
            }
            let edits = context::edits(&fold.ended(&source));
            let body = self.recorded.body(point);
            let sent = self.sent(&self.warm, &body, point);
            self.check_sent(&body, &sent).map_err(at)?;
            if nth % AFRESH_ONE_IN == 0 || nth + 1 == self.recorded.points.len() {
                self.check_afresh(point, &body, &edits, &sent).map_err(at)?;
            }
            if let Some(earlier) = &earlier {
                self.check_grown(earlier, &sent).map_err(at)?;
            }
            let is_cut = earlier.as_ref().is_none_or(|earlier| earlier.cuts != sent.cuts);
            if is_cut || nth + 1 == self.recorded.points.len() {
                self.check_valid(&sent).map_err(at)?;
            }
            if sent.outcome.is_ok() {
                earlier = Some(sent);
            }
        }
        Ok(())
    }

    fn sent(&self, weir: &Weir, body: &str, point: usize) -> Sent {
        let (outcome, cuts) = match weir.plan(body, self.limit_tokens) {
            Ok(planned) => (Ok(text_of(&planned, body)), planned.cuts),
            Err(error) => (Err(format!("{:?}: {}", error.kind, error.message)), 0),
        };
        let notes = outcome.as_ref().map_or(Vec::new(), |text| notes_of(text));
        let own = &self.recorded.messages[point - 1];
        let lasting = outcome.as_ref().ok().map(|text| without_tail(text, own));
        Sent { outcome, lasting, cuts, notes }
    }

    /// The planner sends what the fold says.
    fn check_sent(&self, body: &str, sent: &Sent) -> Result<(), String> {
        match &sent.outcome {
            Ok(_) => Ok(()),
            Err(error) if error.starts_with("ContextLengthExceeded") => Ok(()),
            Err(error) => Err(format!("{error} for {} bytes", body.len())),
        }
    }

    /// The same from nothing: a planner without caches, and a fold that never saw what follows.
    fn check_afresh(
        &self,
        point: usize,
        body: &str,
        edits: &[(usize, Edit)],
        sent: &Sent,
    ) -> Result<(), String> {
        let raws = self.recorded.raws(point);
        let source = RequestSource::new(Protocol::Chat, &raws, self.profile.measure.encoding);
        let mut fold = Fold::new(Arc::clone(&self.profile));
        for fact in &self.facts[..point] {
            fold.push(*fact, &source);
        }
        if context::edits(&fold.ended(&source)) != edits {
            return Err("a fold from the start decides otherwise".to_owned());
        }
        let cold = self.sent(&weir(self.policy, false), body, point);
        if cold.outcome != sent.outcome || cold.cuts != sent.cuts {
            return Err("without caches other bytes are sent".to_owned());
        }
        let request = Protocol::Chat.read(body.as_bytes(), usize::MAX).expect("a request");
        let spliced = splice::apply(Protocol::Chat, &request, edits);
        match &sent.lasting {
            Some(text) if sent.cuts > 0 && *text != spliced => {
                Err("the planner sends what the fold does not say".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// What was sent before opens what is sent now, but where a cut happened; and one leaves notes
    /// of excerpts as they are, or writes all anew, or the last alone where it was provisional.
    fn check_grown(&self, earlier: &Sent, sent: &Sent) -> Result<(), String> {
        let (Some(before), Some(now)) = (&earlier.lasting, &sent.lasting) else { return Ok(()) };
        if earlier.cuts == sent.cuts {
            let opening = before.strip_suffix("]}").expect("a body ends so");
            let grows = now.strip_prefix(opening).is_some_and(|rest| rest.starts_with([',', ']']));
            return if grows { Ok(()) } else { Err("what was sent changed".to_owned()) };
        }
        let lasting = &earlier.notes[..earlier.notes.len().saturating_sub(1)];
        let is_same = sent.notes.starts_with(lasting);
        let is_anew = !sent.notes.iter().any(|note| earlier.notes.contains(note));
        if self.policy.notes == Notes::Excerpts && !is_same && !is_anew {
            return Err("some notes of earlier cuts changed".to_owned());
        }
        if sent.cuts < earlier.cuts { Err("a cut was taken back".to_owned()) } else { Ok(()) }
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

/// `sent` with its last message as it was received, where that is so but for what bears on it.
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
            let profile = profile(&policy, limit_tokens);
            let facts = match profile.measure == measure() {
                true => facts,
                false => recorded.facts(profile.measure),
            };
            let warm = weir(&policy, true);
            let run = Run { recorded, policy: &policy, limit_tokens, warm, profile, facts };
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
