//! Progress of a run: how much is done and how long the rest may take. Prints nothing.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use weir_bench::{Case, Planted};
use weir_eval::Budget;

use super::{DECAY_LIMIT, Kind, Plan, Proxy};

/// Interval of the lines about one proxy at one limit.
const INTERVAL: Duration = Duration::from_secs(1);

/// Counts the tokens that the client has sent, by all proxies but the bounds, which take next to no time.
pub struct Progress {
    total_tokens: u64,
    done_tokens: u64,
    since: Option<Instant>,
    last_line: Option<Instant>,
    is_timed: bool,
}

impl Progress {
    pub fn new(plan: &Plan) -> Self {
        let of_limit =
            |limit: &Budget| plan.cases_at(*limit).map(|(_, case, _)| tokens(case)).sum::<u64>();
        let of_limits: u64 = plan.limits.iter().map(of_limit).sum::<u64>();
        let of_decay: u64 = plan.decay_cases().map(|(_, case, _)| tokens(case)).sum::<u64>();
        Self {
            total_tokens: (of_limits + of_decay) * plan.proxies.len() as u64,
            done_tokens: 0,
            since: None,
            last_line: None,
            is_timed: false,
        }
    }

    /// Starts a proxy.
    pub fn start(&mut self, proxy: &Proxy) {
        self.is_timed = !matches!(proxy.kind, Kind::Bound(_));
        self.last_line = None;
        if self.is_timed {
            self.since.get_or_insert_with(Instant::now);
        }
    }

    /// Starts conversation `number` of `count`. Returns a line to show, if one is due.
    pub fn line(&mut self, name: &str, number: usize, count: usize) -> Option<String> {
        let is_due = self.last_line.is_none_or(|last| last.elapsed() >= INTERVAL);
        if !is_due && number > 1 {
            return None;
        }
        self.last_line = Some(Instant::now());
        let left = self.left().map_or(String::new(), |left| format!(", {}", in_words(left)));
        Some(format!("{name}: conversation {number} of {count}{left}"))
    }

    /// Ends a conversation.
    pub fn add(&mut self, case: &Case) {
        if self.is_timed {
            self.done_tokens += tokens(case);
        }
    }

    /// Time left if the rest takes as long per token.
    fn left(&self) -> Option<Duration> {
        let since = self.since.filter(|_| self.done_tokens > 0)?;
        let rest = self.total_tokens.saturating_sub(self.done_tokens) as f64;
        Some(since.elapsed().mul_f64(rest / self.done_tokens as f64))
    }
}

fn in_words(left: Duration) -> String {
    match left.as_secs() {
        seconds @ 0..=90 => format!("about {seconds} s left"),
        seconds => format!("about {} min left", seconds.div_ceil(60)),
    }
}

/// Tokens of all requests of a case.
fn tokens(case: &Case) -> u64 {
    let turns = &case.conversation.turns;
    turns.iter().map(|length| case.conversation.full_tokens(*length) + case.tools_tokens).sum()
}

impl Plan {
    /// Cases to play at a limit: their numbers, and the limit of each in tokens.
    pub fn cases_at(&self, limit: Budget) -> impl Iterator<Item = (usize, &Arc<Case>, u64)> {
        self.limited(limit).filter(|(_, case, _)| !matches!(case.planted, Planted::Facts { .. }))
    }

    /// Cases with planted facts, at their own limit.
    pub fn decay_cases(&self) -> impl Iterator<Item = (usize, &Arc<Case>, u64)> {
        self.limited(DECAY_LIMIT)
            .filter(|(_, case, _)| matches!(case.planted, Planted::Facts { .. }))
    }

    fn limited(&self, limit: Budget) -> impl Iterator<Item = (usize, &Arc<Case>, u64)> {
        let cases = self.cases.iter().enumerate();
        cases.filter_map(move |(index, case)| Some((index, case, case.limit_tokens(limit)?)))
    }
}
