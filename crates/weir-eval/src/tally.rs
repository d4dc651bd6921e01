//! Figures of one policy at one budget: counted per source, then combined. Recall is the mean over
//! sources, cost is pooled.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use super::bill::CacheRules;
use super::summaries::Summaries;

/// Sources with fewer cases are not part of a mean.
pub const LEAST_CASES: u64 = 60;
/// Cost of a cached token, in uncached ones.
const CACHED_PRICE: f64 = 0.1;

/// Count of successes among cases.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Share {
    pub kept: u64,
    pub of: u64,
}

impl Share {
    /// Adds one case.
    pub fn add(&mut self, is_kept: bool) {
        self.kept += u64::from(is_kept);
        self.of += 1;
    }

    /// Adds the cases of another.
    pub fn merge(&mut self, other: Self) {
        self.kept += other.kept;
        self.of += other.of;
    }

    /// Returns the share from 0 to 1; `None` without cases.
    pub fn value(self) -> Option<f64> {
        (self.of > 0).then(|| self.kept as f64 / self.of as f64)
    }
}

/// Input tokens of a sequence of requests, and how many of them a cache would have held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct InputCost {
    pub tokens: u64,
    pub cached_tokens: u64,
}

impl InputCost {
    /// Adds a request that shares its first `common_tokens` with the previous one.
    pub fn add(&mut self, tokens: u64, common_tokens: u64) {
        self.tokens += tokens;
        self.cached_tokens += CacheRules::LASTING.read_tokens(common_tokens, None);
    }

    /// Cost in uncached tokens.
    pub fn billed(self) -> f64 {
        (self.tokens - self.cached_tokens) as f64 + CACHED_PRICE * self.cached_tokens as f64
    }

    fn merge(&mut self, other: Self) {
        self.tokens += other.tokens;
        self.cached_tokens += other.cached_tokens;
    }
}

/// Measures of recall, in the order of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recall {
    Ref,
    Deep,
    Far,
    Context,
    Line,
    Gram,
    Action,
    User,
    Evidence,
}

impl Recall {
    /// All measures, each at the index of its number.
    pub const ALL: [Self; 9] = {
        use Recall::*;
        [Ref, Deep, Far, Context, Line, Gram, Action, User, Evidence]
    };
}

/// The measures in the order of [`Recall`]: name in JSON, title of the column, and the measured share for
/// people.
pub const MEASURES: [(&str, &str, &str); Recall::ALL.len()] = [
    ("ref", "ref", "values that the real answer used and that occur only further back"),
    ("deep", "deep", "those that the first user message does not hold either"),
    ("far10", "far10", "those last seen more than ten messages back"),
    ("ctx", "ctx", "deep values with 30 characters of context on both sides"),
    ("ctx_line", "ctx/ln", "the same, with the context limited to the line"),
    ("gram5", "5gram", "runs of five words of the real answer that occur only further back"),
    ("action", "action", "earlier calls whose first argument can be read"),
    ("user", "user", "short messages of the user, but the first, kept whole"),
    ("evidence", "evid", "messages that hold the answer, kept or half readable"),
];

/// Faults of a sent request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Over,
    Unpaired,
    OpensWithResult,
    LastChanged,
}

impl Fault {
    /// All faults, each at the index of its number.
    pub const ALL: [Self; 4] =
        [Self::Over, Self::Unpaired, Self::OpensWithResult, Self::LastChanged];
    /// Their names in JSON.
    const NAMES: [&str; 4] = ["over", "unpaired", "opens_with_result", "last_changed"];
}

/// Figures of one source, or of all.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    pub conversations: u64,
    /// Conversations that exceeded the budget.
    pub compacted: u64,
    pub requests: u64,
    /// Requests above the budget that could be brought within it.
    pub turns: u64,
    /// Requests above the budget whose system messages and last turn alone exceed it.
    pub infeasible: u64,
    pub recall: [Share; MEASURES.len()],
    pub valid: Share,
    /// Number of requests with each fault.
    pub faults: [u64; Fault::ALL.len()],
    /// Tokens of the feasible requests above the budget, as sent and whole.
    pub sent_tokens: u64,
    pub full_tokens: u64,
    pub cost: InputCost,
    /// Cost of sending everything.
    pub full_cost: InputCost,
    /// Requests that do not begin with all of the previous one.
    pub cuts: u64,
    /// Growth since the budget was first exceeded, in quarters of the budget.
    pub growth_quarters: f64,
    pub summaries: Summaries,
}

impl Tally {
    /// Adds the figures of another source or conversation.
    pub fn merge(&mut self, other: &Self) {
        self.conversations += other.conversations;
        self.compacted += other.compacted;
        self.requests += other.requests;
        self.turns += other.turns;
        self.infeasible += other.infeasible;
        for (own, other) in self.recall.iter_mut().zip(other.recall) {
            own.merge(other);
        }
        self.valid.merge(other.valid);
        for (own, other) in self.faults.iter_mut().zip(other.faults) {
            *own += other;
        }
        self.sent_tokens += other.sent_tokens;
        self.full_tokens += other.full_tokens;
        self.cost.merge(other.cost);
        self.full_cost.merge(other.full_cost);
        self.cuts += other.cuts;
        self.growth_quarters += other.growth_quarters;
        self.summaries.merge(other.summaries);
    }

    /// Cost of the requests and their summaries, in uncached tokens.
    fn billed(&self) -> f64 {
        self.cost.billed() + self.summaries.billed_tokens
    }
}

/// Row of the table, with the figures as shown.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    pub policy: String,
    pub budget: String,
    /// `None` for all sources together.
    pub source: Option<String>,
    pub conversations: u64,
    pub compacted: u64,
    pub requests: u64,
    pub turns: u64,
    pub infeasible: u64,
    #[serde(flatten)]
    recall: Means,
    pub valid: Option<f64>,
    /// Share of requests above the budget as sent.
    pub over: Option<f64>,
    /// Number of requests with each fault.
    #[serde(serialize_with = "faults_by_name")]
    pub faults: [u64; Fault::ALL.len()],
    pub sent_per_full: Option<f64>,
    pub cache_hit: Option<f64>,
    pub billed_per_none: Option<f64>,
    pub cuts: u64,
    pub cuts_per_quarter: Option<f64>,
    pub sent_tokens: u64,
    pub full_tokens: u64,
    pub billed_tokens: f64,
    pub summaries: Summaries,
}

/// Share, and its number of cases.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Figure {
    pub value: Option<f64>,
    pub cases: u64,
}

/// Recall by each measure.
#[derive(Debug, Clone, Copy)]
struct Means([Figure; MEASURES.len()]);

impl Serialize for Means {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(MEASURES.iter().map(|(name, ..)| name).zip(&self.0))
    }
}

fn faults_by_name<S: Serializer>(
    faults: &[u64; Fault::ALL.len()],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(Fault::NAMES.iter().zip(faults))
}

impl Row {
    /// Recall in the order of [`MEASURES`].
    pub fn recall(&self) -> &[Figure; MEASURES.len()] {
        &self.recall.0
    }

    /// Computes the row of one source.
    pub fn of(policy: &str, budget: &str, source: &str, tally: &Tally) -> Self {
        let figure = |share: Share| Figure { value: share.value(), cases: share.of };
        Self::new(policy, budget, Some(source), tally, Means(tally.recall.map(figure)))
    }

    fn new(policy: &str, budget: &str, source: Option<&str>, all: &Tally, recall: Means) -> Self {
        let ratio = |part: f64, whole: f64| (whole > 0.0).then(|| part / whole);
        Self {
            policy: policy.to_owned(),
            budget: budget.to_owned(),
            source: source.map(str::to_owned),
            conversations: all.conversations,
            compacted: all.compacted,
            requests: all.requests,
            turns: all.turns,
            infeasible: all.infeasible,
            recall,
            valid: all.valid.value(),
            over: ratio(all.faults[Fault::Over as usize] as f64, all.turns as f64),
            faults: all.faults,
            sent_per_full: ratio(all.sent_tokens as f64, all.full_tokens as f64),
            cache_hit: ratio(all.cost.cached_tokens as f64, all.cost.tokens as f64),
            billed_per_none: ratio(all.billed(), all.full_cost.billed()),
            cuts: all.cuts,
            cuts_per_quarter: ratio(all.cuts as f64, all.growth_quarters),
            sent_tokens: all.sent_tokens,
            full_tokens: all.full_tokens,
            billed_tokens: all.billed(),
            summaries: all.summaries,
        }
    }
}

/// Computes the row over all sources, and one for each.
pub fn rows(policy: &str, budget: &str, by_source: &BTreeMap<String, Tally>) -> (Row, Vec<Row>) {
    let mut all = Tally::default();
    by_source.values().for_each(|tally| all.merge(tally));
    let mean = |place: usize| {
        let shares = by_source.values().map(|tally| tally.recall[place]);
        let counted: Vec<f64> =
            shares.filter(|share| share.of >= LEAST_CASES).filter_map(Share::value).collect();
        Figure {
            value: (!counted.is_empty())
                .then(|| counted.iter().sum::<f64>() / counted.len() as f64),
            cases: all.recall[place].of,
        }
    };
    let total = Row::new(policy, budget, None, &all, Means(std::array::from_fn(mean)));
    let own = by_source.iter().map(|(source, tally)| Row::of(policy, budget, source, tally));
    (total, own.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recall_is_the_mean_over_sources_with_cases_enough_and_cost_is_pooled() {
        let tally = |kept: u64, of: u64, tokens: u64, cached_tokens: u64| {
            let mut tally = Tally { turns: 1, conversations: 1, ..Tally::default() };
            tally.recall[Recall::Deep as usize] = Share { kept, of };
            tally.cost = InputCost { tokens, cached_tokens };
            tally.full_cost = InputCost { tokens: 1000, cached_tokens: 0 };
            tally
        };
        let by_source = BTreeMap::from([
            ("a".to_owned(), tally(60, 60, 1000, 0)),
            ("b".to_owned(), tally(500, 1000, 500, 500)),
            ("c".to_owned(), tally(0, 59, 0, 0)),
        ]);
        let (total, sources) = rows("p", "50%", &by_source);
        assert_eq!(
            (
                total.recall()[Recall::Deep as usize].value,
                total.recall()[Recall::Deep as usize].cases
            ),
            (Some(0.75), 1119)
        );
        assert_eq!(total.billed_per_none, Some(1050.0 / 3000.0));
        assert_eq!(
            (total.recall()[Recall::Context as usize].value, total.conversations, total.turns),
            (None, 3, 3)
        );
        let deep: Vec<_> =
            sources.iter().map(|row| row.recall()[Recall::Deep as usize].value).collect();
        assert_eq!(deep, [Some(1.0), Some(0.5), Some(0.0)]);
    }

    #[test]
    fn little_is_not_cached() {
        let mut cost = InputCost::default();
        cost.add(2000, CacheRules::LASTING.least_tokens - 1);
        cost.add(3000, CacheRules::LASTING.least_tokens);
        assert_eq!(
            cost,
            InputCost { tokens: 5000, cached_tokens: CacheRules::LASTING.least_tokens }
        );
        assert!((cost.billed() - 4078.4).abs() < 1e-9);
    }
}
