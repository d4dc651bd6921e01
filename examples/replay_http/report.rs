//! Results of a replay as tables for people and JSON for programs.

use std::time::Duration;

use serde_json::{Value, json};

use super::replay::tally::{Check, Tally};
use super::replay::{Budget, Found, Outcome};

/// Budget at which the pooled figures have bounds.
const BOUNDED: Budget = Budget::Percent(50);
const LEAST_CACHE_HIT: f64 = 0.85;
const MOST_CUTS: f64 = 1.0;
/// Number of failures listed for each check.
const SHOWN: usize = 5;

pub fn passed(outcome: &Outcome) -> bool {
    let holds = |found: &Found| {
        found.pooled.failed() == 0 && bounds(found).iter().all(|(_, _, holds)| *holds)
    };
    outcome.found.iter().all(holds)
}

/// Returns the bounds on the pooled figures: description, value, whether it holds.
fn bounds(found: &Found) -> Vec<(String, f64, bool)> {
    let pooled = &found.pooled;
    if found.budget != BOUNDED || pooled.requests == 0 {
        return Vec::new();
    }
    let (hit, cuts) = (pooled.cache_hit(), pooled.cuts_per_quarter());
    vec![
        (format!("pooled cache hit at least {LEAST_CACHE_HIT}"), hit, hit >= LEAST_CACHE_HIT),
        (format!("at most {MOST_CUTS} cut per .25 B of growth"), cuts, cuts <= MOST_CUTS),
    ]
}

pub fn print(outcome: &Outcome, elapsed: Duration) {
    for found in &outcome.found {
        print_table(found);
        print_checks(found);
    }
    let requests: u64 = outcome.found.iter().map(|found| found.pooled.requests).sum();
    let memory =
        outcome.peak_memory_kib.map_or("unknown".to_owned(), |kib| format!("{} MiB", kib / 1024));
    println!("{requests} requests in {:.1} s; weir's peak memory {memory}", elapsed.as_secs_f64());
    for complaint in &outcome.complaints {
        println!("weir said: {complaint}");
    }
}

const COLUMNS: [&str; 14] = [
    "conv", "requests", "above", "infeas", "border", "clipped", "cuts", "/.25 B", "hit",
    "upstream", "billed", "sent", "invalid", "failed",
];

fn print_table(found: &Found) {
    println!("\nBudget {}", found.budget);
    let width = found.sources.keys().map(String::len).max().unwrap_or(0).max(6);
    print!("{:width$}", "source");
    COLUMNS.iter().for_each(|column| print!(" {column:>8}"));
    println!();
    let pooled = [("pooled", &found.pooled)];
    let sources = found.sources.iter().map(|(name, tally)| (name.as_str(), tally));
    for (name, tally) in sources.chain(pooled) {
        print!("{name:width$}");
        cells(tally).iter().for_each(|cell| print!(" {cell:>8}"));
        println!();
    }
    println!();
}

fn cells(tally: &Tally) -> [String; COLUMNS.len()] {
    let share = |share: f64| format!("{share:.3}");
    [
        tally.conversations.to_string(),
        tally.requests.to_string(),
        tally.above.to_string(),
        tally.infeasible.to_string(),
        tally.borderline.to_string(),
        tally.clipped.to_string(),
        tally.cuts.to_string(),
        share(tally.cuts_per_quarter()),
        share(tally.cache_hit()),
        share(tally.upstream_cache_hit()),
        share(tally.billed()),
        share(tally.sent_share()),
        tally.of(Check::Valid).failed.to_string(),
        tally.failed().to_string(),
    ]
}

fn print_checks(found: &Found) {
    let word = |holds: bool| if holds { "PASS" } else { "FAIL" };
    for check in Check::ALL {
        let tally = found.pooled.of(check);
        let held = tally.made - tally.failed;
        println!("{} {}: {held} of {}", word(tally.failed == 0), check.title(), tally.made);
        for failure in tally.failures.iter().take(SHOWN) {
            let (conversation, turn) = (&failure.conversation, failure.turn);
            println!("       {conversation}, {turn} messages: {}", failure.reason);
        }
    }
    for (what, figure, holds) in bounds(found) {
        println!("{} {what}: {figure:.3}", word(holds));
    }
    let (near, refused) = (found.pooled.borderline, found.pooled.borderline_refused);
    println!("     {near} requests within 60 tokens of being infeasible, {refused} refused");
    let (refused, barely) = (found.pooled.refused, found.pooled.refused_by_priming);
    println!("     {refused} requests refused, {barely} of them for no more than reply priming");
}

pub fn json(outcome: &Outcome, elapsed: Duration) -> Value {
    let budgets: Vec<Value> = outcome.found.iter().map(json_of_budget).collect();
    json!({
        "budgets": budgets,
        "elapsed_ms": elapsed.as_millis() as u64,
        "peak_memory_kib": outcome.peak_memory_kib,
        "complaints": outcome.complaints,
    })
}

fn json_of_budget(found: &Found) -> Value {
    let sources = found.sources.iter().map(|(name, tally)| (name.clone(), json_of_tally(tally)));
    let checks: Vec<Value> = Check::ALL.iter().map(|check| json_of_check(found, *check)).collect();
    let bounds = bounds(found);
    let bounds = bounds
        .iter()
        .map(|(what, figure, holds)| json!({"check": what, "figure": figure, "passed": holds}));
    json!({
        "budget": found.budget.to_string(),
        "sources": sources.collect::<serde_json::Map<_, _>>(),
        "pooled": json_of_tally(&found.pooled),
        "checks": checks,
        "bounds": bounds.collect::<Vec<_>>(),
    })
}

fn json_of_check(found: &Found, check: Check) -> Value {
    let tally = found.pooled.of(check);
    let failures = tally.failures.iter().map(|failure| {
        json!({
            "conversation": failure.conversation,
            "messages": failure.turn,
            "reason": failure.reason,
        })
    });
    json!({
        "check": check.title(),
        "made": tally.made,
        "failed": tally.failed,
        "first_failures": failures.collect::<Vec<_>>(),
    })
}

fn json_of_tally(tally: &Tally) -> Value {
    json!({
        "conversations": tally.conversations,
        "requests": tally.requests,
        "above": tally.above,
        "infeasible": tally.infeasible,
        "borderline": tally.borderline,
        "borderline_refused": tally.borderline_refused,
        "refused": tally.refused,
        "refused_by_priming": tally.refused_by_priming,
        "clipped": tally.clipped,
        "cuts": tally.cuts,
        "growth_quarters": tally.growth_quarters,
        "cuts_per_quarter": tally.cuts_per_quarter(),
        "cache_hit": tally.cache_hit(),
        "upstream_cache_hit": tally.upstream_cache_hit(),
        "billed": tally.billed(),
        "sent_share": tally.sent_share(),
        "failed": tally.failed(),
    })
}
