//! A run of FitBench: plays each case turn by turn through each proxy at each limit, and adds up what
//! `weir_bench` finds.
//!
//! Root of one module tree: the example's `main.rs` runs it as a command and the integration tests include
//! it in their own. It knows proxies by their HTTP interface alone.

mod built_in;
pub mod cleanup;
mod play;
mod process;
mod progress;
mod upstream;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use weir_bench::bounds::Bound;
use weir_bench::scores::{Decay, Results, Row};
use weir_bench::{Case, Planted, Scores, generated};
use weir_eval::Budget;

use play::{Player, Times};
use progress::Progress;

/// Limit at which planted facts are followed: four limits of growth.
const DECAY_LIMIT: Budget = Budget::Percent(25);

/// Proxy to judge.
#[derive(Clone, Debug)]
pub struct Proxy {
    pub name: String,
    pub kind: Kind,
    /// Request header in which it reads its limit in tokens.
    pub limit_header: Option<String>,
}

/// How a proxy is reached.
#[derive(Clone, Debug)]
pub enum Kind {
    Bound(Bound),
    /// Shell command that starts it.
    Command(String),
    /// Base URLs of a running instance, and of a second one.
    Running(String, Option<String>),
}

/// Work of a run.
pub struct Plan {
    pub proxies: Vec<Proxy>,
    pub cases: Vec<Arc<Case>>,
    pub limits: Vec<Budget>,
    pub seed: u64,
    /// Port of the upstream; 0 selects a free one.
    pub upstream_port: u16,
    /// Price of a token written to the cache, in uncached ones.
    pub write_price: f64,
    /// Time in which a proxy has to answer a request.
    pub answer: Duration,
}

/// Results of a run, as far as it is.
#[derive(Clone, Default)]
pub struct Outcome {
    pub rows: Vec<Row>,
    pub decay: Vec<(String, Vec<Decay>)>,
    /// Proxies that could not be judged to the end, with the reason.
    pub failures: Vec<(String, String)>,
    /// Whether the run was stopped: what comes after it does not count.
    pub is_stopped: bool,
}

/// Returns the built-in cases of a seed.
pub fn built_in(seed: u64, generated_count: usize) -> Result<Vec<Case>, String> {
    let mut cases = built_in::samples()?;
    cases.extend(generated::conversations(seed, generated_count));
    cases.extend(planted(seed));
    Ok(cases)
}

/// Returns the cases with planted rules and facts.
pub fn planted(seed: u64) -> [Case; 3] {
    [generated::ruled(seed, false), generated::ruled(seed, true), generated::decaying(seed)]
}

/// Reads the conversations of a file.
pub fn read(path: &Path) -> Result<Vec<Case>, String> {
    built_in::read_file(path)
}

/// Part of a run, reported when it begins or is done.
pub enum Event<'a> {
    /// Line about the progress.
    Line(String),
    Row(&'a Row),
    Decay(&'a str, &'a [Decay]),
    /// Name and reason.
    Failure(String, String),
}

/// Work of one run and how far it is.
struct Run<'a> {
    plan: &'a Plan,
    report: &'a dyn Fn(Event<'_>),
    progress: Progress,
    times: Times,
}

/// Runs the plan, the bounds first, and calls `report` with each part.
pub async fn run(plan: &Plan, report: &dyn Fn(Event<'_>)) -> Result<(), String> {
    let bounds = Bound::ALL.map(|bound| Proxy {
        name: bound.name().to_owned(),
        kind: Kind::Bound(bound),
        limit_header: None,
    });
    let mut run = Run { plan, report, progress: Progress::new(plan), times: Times::new() };
    for proxy in bounds.iter().chain(&plan.proxies) {
        run.judge(proxy).await?;
    }
    Ok(())
}

impl Run<'_> {
    /// Judges one proxy at all limits.
    async fn judge(&mut self, proxy: &Proxy) -> Result<(), String> {
        let mut player = Player::new(proxy, self.plan).await?;
        self.progress.start(proxy);
        for limit in &self.plan.limits {
            let name = format!("{} at {limit}", proxy.name);
            match self.at_limit(&mut player, &name, *limit).await {
                Ok(results) => {
                    let limit = limit.to_string();
                    let row = Row::new(&proxy.name, &limit, &results, self.plan.write_price);
                    (self.report)(Event::Row(&row));
                }
                Err(reason) => (self.report)(Event::Failure(name, reason)),
            }
        }
        let name = format!("{}, decay", proxy.name);
        match self.decay(&mut player, &name).await {
            Ok(Some(steps)) => (self.report)(Event::Decay(&proxy.name, &steps)),
            Ok(None) => {}
            Err(reason) => (self.report)(Event::Failure(name, reason)),
        }
        player.end().await;
        Ok(())
    }

    /// Plays all cases but the one for decay at one limit.
    async fn at_limit(
        &mut self,
        player: &mut Player<'_>,
        name: &str,
        limit: Budget,
    ) -> Result<Results, String> {
        player.begin();
        let mut results = Results::default();
        let count = self.plan.cases_at(limit).count();
        for (number, (index, case, limit_tokens)) in self.plan.cases_at(limit).enumerate() {
            let scores =
                self.play(player, (name, number, count), index, case, limit_tokens).await?;
            let into = match &case.planted {
                Planted::Rules { .. } | Planted::Facts { .. } => &mut results.planted,
                Planted::Nothing => {
                    results.sources.entry(case.conversation.source.clone()).or_default()
                }
            };
            into.merge(&scores);
        }
        Ok(results)
    }

    /// Plays the cases with planted facts.
    async fn decay(
        &mut self,
        player: &mut Player<'_>,
        name: &str,
    ) -> Result<Option<Vec<Decay>>, String> {
        player.begin();
        let mut all: Option<Scores> = None;
        let count = self.plan.decay_cases().count();
        for (number, (index, case, limit_tokens)) in self.plan.decay_cases().enumerate() {
            if !player.has_any_limit() {
                continue;
            }
            let scores =
                self.play(player, (name, number, count), index, case, limit_tokens).await?;
            all.get_or_insert_default().merge(&scores);
        }
        Ok(all.map(|scores| scores.decay.to_vec()))
    }

    /// Plays one case, `number` of `count`.
    async fn play(
        &mut self,
        player: &mut Player<'_>,
        (name, number, count): (&str, usize, usize),
        index: usize,
        case: &Arc<Case>,
        limit_tokens: u64,
    ) -> Result<Scores, String> {
        if let Some(line) = self.progress.line(name, number + 1, count) {
            (self.report)(Event::Line(line));
        }
        let scores = player.play(index, case, limit_tokens, &mut self.times).await?;
        self.progress.add(case);
        Ok(scores)
    }
}

impl Outcome {
    /// Adds a part of the run. Rows stand in the order of the limits, with the bounds first in each.
    pub fn add(&mut self, event: &Event<'_>, limits: &[Budget]) {
        match event {
            Event::Line(_) => {}
            Event::Row(row) => {
                self.rows.push((*row).clone());
                let order =
                    |row: &Row| limits.iter().position(|limit| limit.to_string() == row.limit);
                self.rows.sort_by_key(order);
            }
            Event::Decay(proxy, steps) => {
                self.decay.push(((*proxy).to_owned(), steps.to_vec()));
            }
            Event::Failure(name, reason) => self.failures.push((name.clone(), reason.clone())),
        }
    }
}
