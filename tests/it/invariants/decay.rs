//! Decay: facts of an agent's first rounds, looked for after each of five compactions in a row, while
//! every round brings as many new ones. `cargo test --test it decay -- --nocapture` prints the shares.

use std::fmt::Write as _;

use serde_json::json;
use weir_engine::compact::preset::preset;
use weir_engine::compact::summary::Space;
use weir_engine::compact::{Measure, Policy, Summary};
use weir_engine::plan::{NothingKnown, PlanOptions, plan_with};
use weir_engine::tokens::Encoding;
use weir_engine::tokens::media::ImageRule;
use weir_engine::wire::Protocol;

use super::planted::Dice;
use super::presets::weir;

const LIMIT_TOKENS: u64 = 8000;
const COMPACTIONS: usize = 5;
const SEEDS: u64 = 16;
/// First rounds, whose facts are looked for. Every later round brings new ones of the same kinds.
const PLANTED_ROUNDS: usize = 12;
/// More rounds than five compactions take.
const MAX_ROUNDS: usize = 400;

/// Kinds of facts: a line of a result that the assistant cites, one that it does not, a rule of the
/// user, the path of a call, and a decision of the assistant.
const KINDS: [&str; 5] = ["cited value", "other value", "user's rule", "path", "decision"];

/// Facts kept by kind, after each compaction.
type Kept = [[u64; KINDS.len()]; COMPACTIONS];

/// One round of the conversation: words of the user, a call with its result, and words about it.
struct Round {
    user: String,
    said: String,
    path: String,
    lines: Vec<String>,
    facts: [String; KINDS.len()],
}

fn round(dice: &mut Dice) -> Round {
    let part = format!("{:04x}", dice.below(0x1_0000));
    let reading = |dice: &mut Dice| {
        let (hour, level, flow) = (dice.below(24), dice.below(900), dice.below(700));
        format!("gauge {part} {hour:02}:00 level {level} cm, flow {flow} l/s")
    };
    let mut lines: Vec<String> = (0..16).map(|_| reading(dice)).collect();
    let (code, size) = (format!("{:05x}", dice.below(0x10_0000)), 100 + dice.below(900));
    let facts = [
        format!("valve K-{code} opens at {size} kPa"),
        format!("pump P-{code} was serviced {size} days ago"),
        format!("Never restart controller GC-{code} without asking me."),
        format!("src/gates/{code}/reader_{size}.rs"),
        format!("I keep the ring buffer of node N-{code} at {size} slots."),
    ];
    lines.insert(5, facts[0].clone());
    lines.insert(11, facts[1].clone());
    Round {
        user: format!("One thing before you go on. {}", facts[2]),
        said: format!("So {}, that is in order. {}", facts[0], facts[4]),
        path: facts[3].clone(),
        lines,
        facts,
    }
}

/// Adds a round to the conversation, after the assistant's words about the round before it.
fn add(messages: &mut String, round: &Round, number: usize, said: &str) {
    let mut push = |message: serde_json::Value| {
        let _ = write!(messages, ",{message}");
    };
    push(json!({"role": "assistant", "content": said}));
    push(json!({"role": "user", "content": round.user}));
    let id = format!("call_{number}");
    let arguments = json!({"path": round.path}).to_string();
    let call =
        json!({"id": id, "type": "function", "function": {"name": "read", "arguments": arguments}});
    push(json!({"role": "assistant", "content": "I read it.", "tool_calls": [call]}));
    push(json!({"role": "tool", "tool_call_id": id, "content": round.lines.join("\n")}));
}

/// Returns the facts that are still sent after each compaction.
fn kept(policy: &Policy, seed: u64) -> Kept {
    let (weir, mut dice) = (weir(policy), Dice::new(seed));
    let mut messages = [("system", "You read logs of a river."), ("user", "Which part leaks?")]
        .map(|(role, content)| json!({"role": role, "content": content}).to_string())
        .join(",");
    let (mut kept, mut facts, mut done) = (Kept::default(), Vec::new(), 0);
    let mut said = "I begin.".to_owned();
    for number in 0..MAX_ROUNDS {
        let round = round(&mut dice);
        add(&mut messages, &round, number, &said);
        said = round.said;
        if facts.len() < PLANTED_ROUNDS {
            facts.push(round.facts);
        }
        let body = format!(r#"{{"model":"gpt-4o","messages":[{messages}]}}"#);
        let planned = weir.plan(&body, LIMIT_TOKENS).expect("it fits");
        let sent = planned.body.as_deref().unwrap_or(body.as_bytes());
        let sent = std::str::from_utf8(sent).expect("text");
        while done < COMPACTIONS.min(planned.compactions as usize) {
            assert_eq!(facts.len(), PLANTED_ROUNDS, "all facts stand before the first compaction");
            for (kind, fact) in facts.iter().flat_map(|own| own.iter().enumerate()) {
                kept[done][kind] += u64::from(sent.contains(fact.as_str()));
            }
            done += 1;
        }
        if done == COMPACTIONS {
            return kept;
        }
    }
    panic!("{done} compactions in {MAX_ROUNDS} rounds");
}

/// Returns the facts kept in percent, by compaction and kind, over all seeds.
fn shares(policy: &Policy) -> Kept {
    let mut all = Kept::default();
    for seed in 0..SEEDS {
        for (sum, kinds) in all.iter_mut().zip(kept(policy, seed)) {
            sum.iter_mut().zip(kinds).for_each(|(sum, kept)| *sum += kept);
        }
    }
    all.map(|kinds| kinds.map(|kept| kept * 100 / (SEEDS * PLANTED_ROUNDS as u64)))
}

/// Bounds of the facts lost from the first compaction to the fifth, of all planted ones. The other
/// context managers that presets follow lose more: `tiers` and `scored` leave no note.
const MOST_LOST_PERCENT: [(&str, u64); 6] =
    [("default", 2), ("zones", 20), ("shares", 55), ("scored", 50), ("extract", 50), ("tiers", 75)];

/// Mean of all kinds, in percent.
fn mean(kinds: &[u64; KINDS.len()]) -> u64 {
    kinds.iter().sum::<u64>() / KINDS.len() as u64
}

#[test]
fn five_compactions_keep_planted_facts_as_one_does() {
    let row = |cells: &[String]| cells.iter().map(|cell| format!("{cell:>13}")).collect::<String>();
    println!("policy   n      all{}", row(&KINDS.map(str::to_owned)));
    for (name, most_lost_percent) in MOST_LOST_PERCENT {
        let shares = shares(&preset(name).expect("a preset"));
        for (place, kinds) in shares.iter().enumerate() {
            let cells = kinds.map(|share| format!("{share} %"));
            println!("{name:8} {} {:>6} %{}", place + 1, mean(kinds), row(&cells));
        }
        let (first, last) = (mean(&shares[0]), mean(&shares[COMPACTIONS - 1]));
        let lost = first.saturating_sub(last);
        assert!(lost <= most_lost_percent, "{name}: {first} % after one, {last} % after five");
    }
}

const MEASURE: Measure =
    Measure { encoding: Encoding::O200kBase, images: ImageRule::Tiles { base: 85, tile: 170 } };
/// Maximum size of a summary, as configured by default.
const SUMMARY_TOKENS: u64 = 800;
const SUMMARY_SEEDS: u64 = 4;
/// Cost at which no excerpt is worth its price.
const NO_EXCERPTS_PERMILLE: u32 = u32::MAX;

/// Summary by an ideal model: it repeats the facts of the messages word for word, in order, as far as
/// there is room.
fn ideal(said: &[&str], facts: &[[String; KINDS.len()]], space: Space) -> Option<Summary> {
    let most_tokens = SUMMARY_TOKENS.min(space.note_tokens.saturating_sub(80));
    let mut text = "## Facts".to_owned();
    for fact in facts.iter().flatten().filter(|fact| said.iter().any(|own| own.contains(*fact))) {
        let longer = format!("{text}\n- {fact}");
        if MEASURE.encoding.count(&longer) > most_tokens {
            break;
        }
        text = longer;
    }
    Some(Summary { covers: said.len(), text: text.into() })
}

/// Returns the facts kept after each compaction, with the summaries of an ideal model.
fn kept_with_summaries(policy: &Policy, seed: u64) -> Kept {
    let mut dice = Dice::new(seed);
    let mut messages = [("system", "You read logs of a river."), ("user", "Which part leaks?")]
        .map(|(role, content)| json!({"role": role, "content": content}).to_string())
        .join(",");
    let (mut kept, mut facts, mut done) = (Kept::default(), Vec::new(), 0);
    let mut said = "I begin.".to_owned();
    for number in 0..MAX_ROUNDS {
        let round = round(&mut dice);
        add(&mut messages, &round, number, &said);
        said = round.said;
        facts.push(round.facts);
        let body = format!(r#"{{"model":"gpt-4o","messages":[{messages}]}}"#);
        let request = Protocol::Chat.read(body.as_bytes(), usize::MAX).expect("a request");
        let options = PlanOptions::for_messages(LIMIT_TOKENS, policy.clone(), MEASURE);
        let summary = |gone: &[usize], space: Space| {
            let said: Vec<&str> = gone.iter().map(|message| request.messages[*message]).collect();
            ideal(&said, &facts, space)
        };
        let plan = plan_with(&request, &options, &summary, &NothingKnown).expect("it fits");
        let sent = plan.body.as_deref().unwrap_or(&body);
        while done < COMPACTIONS.min(plan.end.compactions() as usize) {
            let planted = &facts[..PLANTED_ROUNDS];
            for (kind, fact) in planted.iter().flat_map(|own| own.iter().enumerate()) {
                kept[done][kind] += u64::from(sent.contains(fact.as_str()));
            }
            done += 1;
        }
        if done == COMPACTIONS {
            return kept;
        }
    }
    panic!("{done} compactions in {MAX_ROUNDS} rounds");
}

/// Excerpts keep as much next to a summary as alone. A summary in their place keeps less, even if its
/// model forgets nothing that it has room for.
#[test]
fn a_summary_next_to_excerpts_keeps_what_one_in_their_place_loses() {
    let shares = |excerpt_cost_permille| {
        let policy = Policy { excerpt_cost_permille, ..Policy::default() };
        let mut all = Kept::default();
        for seed in 0..SUMMARY_SEEDS {
            for (sum, kinds) in all.iter_mut().zip(kept_with_summaries(&policy, seed)) {
                sum.iter_mut().zip(kinds).for_each(|(sum, kept)| *sum += kept);
            }
        }
        all.map(|kinds| kinds.map(|kept| kept * 100 / (SUMMARY_SEEDS * PLANTED_ROUNDS as u64)))
    };
    let (beside, in_place) = (shares(1000), shares(NO_EXCERPTS_PERMILLE));
    for (name, shares) in [("beside", &beside), ("in place", &in_place)] {
        for (place, kinds) in shares.iter().enumerate() {
            println!("summary {name:8} {} {:>3} % {kinds:?}", place + 1, mean(kinds));
        }
    }
    for place in 0..COMPACTIONS {
        assert!(mean(&beside[place]) >= mean(&in_place[place]), "{beside:?} {in_place:?}");
    }
}
