//! Bits of the real next messages that a compressor needs under compacted contexts, more than under the full
//! one. Reads conversations from standard input, one a line: `docs/fitbench.md` explains it.

use std::io::{Read as _, Write as _};

use weir_bench::compressor::{Arm, Bits, extra, judged, primer};
use weir_eval::conversation::Conversation;
use weir_eval::questions::Questions;
use weir_eval::{Budget, Kind, each_request};

/// Size of the primer. One conversation in so many is part of it, and is not judged.
const PRIMER_BYTES: usize = 100_000;
const PRIMER_EVERY: usize = 8;
/// Answers judged of each conversation, spread evenly, and the largest conversation judged.
const MOST_ANSWERS: usize = 6;
const MOST_TOKENS: u64 = 150_000;

fn main() -> Result<(), String> {
    let budgets: Vec<String> = std::env::args().skip(1).collect();
    let budgets = if budgets.is_empty() { vec!["50%".into(), "30%".into()] } else { budgets };
    let budgets = budgets.iter().map(|text| Budget::read(text)).collect::<Result<Vec<_>, _>>()?;
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map_err(|error| error.to_string())?;
    let all = (1..).zip(text.lines()).map(|(number, line)| Conversation::read(line, number, None));
    let all = all.collect::<Result<Vec<_>, _>>()?;
    let is_primer = |(at, _): &(usize, &Conversation)| at % PRIMER_EVERY == 0;
    let of_primer: Vec<&Conversation> =
        all.iter().enumerate().filter(is_primer).map(|(_, own)| own).collect();
    let primer = primer(&of_primer, PRIMER_BYTES);
    let others: Vec<&Conversation> =
        all.iter().enumerate().filter(|own| !is_primer(own)).map(|(_, own)| own).collect();
    let mut out = String::from(
        "| limit | context | answers | whole message | its values | far values |\n|---|---|---:|---:|---:|---:|\n",
    );
    for budget in budgets {
        let bits = all_bits(&others, budget, &primer);
        let answers: usize = bits.iter().map(Vec::len).sum();
        for (arm, name) in
            [(Arm::Weir, "weir"), (Arm::Newest, "newest text"), (Arm::Masked, "mask oldest")]
        {
            let cell = |column: usize| {
                let [share, low, high] = extra(&bits, arm, column).map(|own| own * 100.0);
                format!("{share:+.1} % ({low:+.1} to {high:+.1})")
            };
            out += &format!(
                "| {budget} | {name} | {answers} | {} | {} | {} |\n",
                cell(0),
                cell(1),
                cell(2)
            );
        }
    }
    std::io::stdout().write_all(out.as_bytes()).map_err(|error| error.to_string())
}

/// Judges conversations on all cores, each into the bits of its answers.
fn all_bits(conversations: &[&Conversation], budget: Budget, primer: &str) -> Vec<Vec<Bits>> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut judged: Vec<(usize, Vec<Bits>)> = std::thread::scope(|scope| {
        let work = |core: usize| {
            let own = conversations.iter().enumerate().skip(core).step_by(cores);
            own.map(|(at, own)| (at, bits_of(own, budget, primer))).collect::<Vec<_>>()
        };
        let threads: Vec<_> = (0..cores).map(|core| scope.spawn(move || work(core))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no thread panics")).collect()
    });
    judged.sort_by_key(|(at, _)| *at);
    judged.into_iter().map(|(_, bits)| bits).filter(|bits| !bits.is_empty()).collect()
}

fn bits_of(conversation: &Conversation, budget: Budget, primer: &str) -> Vec<Bits> {
    let Some(budget_tokens) = budget.tokens(conversation) else { return Vec::new() };
    let judged_at = |place: &usize| {
        let length = conversation.turns[*place];
        conversation.full_tokens(length) > budget_tokens
            && conversation.least_tokens(length) <= budget_tokens
    };
    let turns: Vec<usize> = (0..conversation.turns.len()).filter(judged_at).collect();
    if turns.is_empty() || conversation.last_request_tokens() > MOST_TOKENS {
        return Vec::new();
    }
    let wanted: Vec<usize> = (1..=MOST_ANSWERS)
        .map(|nth| turns[(turns.len() * nth / MOST_ANSWERS).max(1) - 1])
        .collect();
    let questions = Questions::new(conversation);
    let mut bits = Vec::new();
    let policy = Kind::Engine(Box::default(), None);
    each_request(conversation, &policy, budget_tokens, |place, sent| {
        if wanted.contains(&place) {
            bits.push(judged(conversation, &questions, place, sent, primer));
        }
    });
    bits
}
