//! Statistics of rounds, and their output as a table or JSON. It does not judge: each goal is
//! printed next to its figure for the reader to compare.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::load::{Round, Sample};

/// Rounds of one subject in one case, and the peak memory of its process.
pub struct Measured {
    pub name: String,
    pub rounds: Vec<Round>,
    pub peak_memory_kib: Option<u64>,
}

#[derive(Serialize)]
pub struct CaseReport {
    pub case: String,
    pub connections: usize,
    pub body_bytes: usize,
    pub body_tokens: usize,
    pub rounds: usize,
    /// Goal of the last row.
    pub goal: Option<Goal>,
    pub ratios: [Ratio; 2],
    pub rows: Vec<Row>,
}

/// Ratio to another subject in the same round.
#[derive(Clone, Copy, Serialize)]
pub struct Ratio {
    pub name: &'static str,
    pub figure: Figure,
    /// Index of the row to divide by.
    pub base: usize,
}

#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    CpuPerRequest,
    TotalP50,
}

/// Upper limit for a ratio.
#[derive(Clone, Copy, Serialize)]
pub struct Goal {
    pub of: &'static str,
    pub ratio: f64,
}

#[derive(Serialize)]
pub struct Row {
    pub subject: String,
    pub requests: usize,
    /// Over the rounds.
    pub cpu_us_per_request: Option<Spread>,
    /// Over the ratios of each round, in the order of [`CaseReport::ratios`].
    pub ratios: [Option<Spread>; 2],
    pub total_us: Quantiles,
    pub first_byte_us: Quantiles,
    /// Relative to the same load sent directly to the upstream.
    pub added_total_us: Quantiles,
    pub added_first_byte_us: Quantiles,
    pub peak_memory_mib: Option<f64>,
    pub actions: BTreeMap<String, usize>,
    pub failures: usize,
    pub first_failure: Option<String>,
}

#[derive(Clone, Copy, Serialize)]
pub struct Quantiles {
    pub p50: f64,
    pub p99: f64,
}

impl Quantiles {
    fn of(samples: impl Iterator<Item = Duration>) -> Self {
        let mut values: Vec<f64> = samples.map(|value| value.as_secs_f64() * 1e6).collect();
        values.sort_by(f64::total_cmp);
        Self { p50: quantile(&values, 0.50), p99: quantile(&values, 0.99) }
    }

    fn over(self, base: Self) -> Self {
        Self { p50: self.p50 - base.p50, p99: self.p99 - base.p99 }
    }
}

/// Returns the nearest rank in sorted values; NaN if there are none.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

/// Median and quartiles of per-round figures.
#[derive(Clone, Copy, Serialize)]
pub struct Spread {
    pub median: f64,
    pub lower_quartile: f64,
    pub upper_quartile: f64,
}

impl Spread {
    pub fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        (!values.is_empty()).then(|| Self {
            median: quantile(&values, 0.5),
            lower_quartile: quantile(&values, 0.25),
            upper_quartile: quantile(&values, 0.75),
        })
    }
}

/// Returns the rows in the order of `measured`, whose first goes directly to the upstream.
pub fn rows(measured: &[Measured], ratios: &[Ratio; 2]) -> Vec<Row> {
    measured.iter().map(|one| row(one, measured, ratios)).collect()
}

fn row(one: &Measured, all: &[Measured], ratios: &[Ratio; 2]) -> Row {
    let samples = |of: &Measured| -> Vec<Sample> {
        of.rounds.iter().flat_map(|round| round.samples.clone()).collect()
    };
    let (own, direct) = (samples(one), samples(&all[0]));
    let total_us = Quantiles::of(own.iter().map(|sample| sample.total));
    let first_byte_us = Quantiles::of(own.iter().map(|sample| sample.first_byte));
    let direct_total = Quantiles::of(direct.iter().map(|sample| sample.total));
    let direct_first = Quantiles::of(direct.iter().map(|sample| sample.first_byte));
    let mut actions = BTreeMap::new();
    for action in one.rounds.iter().flat_map(|round| &round.actions) {
        *actions.entry(action.clone()).or_insert(0) += 1;
    }
    let mut failures = one.rounds.iter().flat_map(|round| &round.failures);
    let first_failure = failures.next().cloned();
    Row {
        subject: one.name.clone(),
        requests: own.len(),
        cpu_us_per_request: Spread::of(one.rounds.iter().filter_map(cpu_us)),
        ratios: ratios.map(|ratio| ratio.between(one, &all[ratio.base])),
        total_us,
        first_byte_us,
        added_total_us: total_us.over(direct_total),
        added_first_byte_us: first_byte_us.over(direct_first),
        peak_memory_mib: one.peak_memory_kib.map(|kib| kib as f64 / 1024.0),
        actions,
        failures: failures.count() + usize::from(first_failure.is_some()),
        first_failure,
    }
}

fn cpu_us(round: &Round) -> Option<f64> {
    round.cpu_ns_per_request.map(|ns| ns / 1e3)
}

impl Ratio {
    /// Compares per round: slow moments of the machine affect both sides.
    fn between(self, one: &Measured, base: &Measured) -> Option<Spread> {
        let figure = |round: &Round| match self.figure {
            Figure::CpuPerRequest => cpu_us(round),
            Figure::TotalP50 => {
                let p50 = Quantiles::of(round.samples.iter().map(|sample| sample.total)).p50;
                p50.is_finite().then_some(p50)
            }
        };
        let pairs = one.rounds.iter().zip(&base.rounds);
        Spread::of(pairs.filter_map(|(own, base)| Some(figure(own)? / figure(base)?)))
    }
}

/// Prints the table, one block of lines per case.
pub fn print_table(cases: &[CaseReport]) {
    let names = cases.first().map_or(["", ""], |case| case.ratios.map(|ratio| ratio.name));
    println!(
        "{:<11} {:>6} {:>8} {:>17} {:>17} | {:>15} {:>15} {:>15} | {:>6}  answers",
        "times in µs",
        "reqs",
        "CPU/req",
        names[0],
        names[1],
        "total p50/p99",
        "added p50/p99",
        "1st byte added",
        "MiB"
    );
    for case in cases {
        let goal = case
            .goal
            .map_or("no goal".to_owned(), |Goal { of, ratio }| format!("goal: {of} ≤ {ratio} ×"));
        println!(
            "\n{} · {} at once · {:.1} KB, {} tokens · {} rounds · {goal}",
            case.case,
            case.connections,
            case.body_bytes as f64 / 1e3,
            case.body_tokens,
            case.rounds
        );
        for row in &case.rows {
            print_row(row);
        }
    }
}

/// Formats a median with its quartiles.
pub fn print_spread(value: Option<Spread>) -> String {
    value.map_or("-".to_owned(), |value| {
        let Spread { median, lower_quartile, upper_quartile } = value;
        format!("{median:.2} ({lower_quartile:.2}–{upper_quartile:.2})")
    })
}

fn print_row(row: &Row) {
    let pair = |value: Quantiles| format!("{:.0} / {:.0}", value.p50, value.p99);
    let mut answers: Vec<String> =
        row.actions.iter().map(|(action, count)| format!("{action} {count}")).collect();
    if row.failures > 0 {
        answers.push(format!("FAILED {}", row.failures));
    }
    println!(
        "{:<11} {:>6} {:>8} {:>17} {:>17} | {:>15} {:>15} {:>15} | {:>6}  {}",
        row.subject,
        row.requests,
        row.cpu_us_per_request.map_or("-".to_owned(), |value| format!("{:.0}", value.median)),
        print_spread(row.ratios[0]),
        print_spread(row.ratios[1]),
        pair(row.total_us),
        pair(row.added_total_us),
        pair(row.added_first_byte_us),
        row.peak_memory_mib.map_or("-".to_owned(), |value| format!("{value:.1}")),
        answers.join(", ")
    );
    if let Some(failure) = &row.first_failure {
        let words: Vec<&str> = failure.split_whitespace().collect();
        println!("           first failure: {}", words.join(" "));
    }
}
