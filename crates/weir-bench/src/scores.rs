//! Figures of one proxy at one limit: counted per case, added up, then shown as a row.

use std::collections::BTreeMap;

use serde::Serialize;

use weir_eval::bill::CacheRules;
use weir_eval::tally::{self, Recall, Share, Tally};

/// Steps of growth past the limit at which planted facts are looked for.
pub const MOST_DECAY: usize = 5;
/// Cost of an output token, in input tokens.
const OUTPUT_PRICE: f64 = 4.0;
/// Cost of a cached token, in uncached ones.
const CACHED_PRICE: f64 = 0.1;

/// Planted facts and rules after one more half limit of growth.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Decay {
    /// Facts whose value can be read, with or without the sentence.
    pub values: Share,
    /// Facts whose sentence can be read.
    pub facts: Share,
    pub rules: Share,
    /// Compactions seen until then, by conversation.
    pub compactions: Vec<u64>,
}

/// Calls of the model that a proxy made on its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ExtraCalls {
    pub calls: u64,
    pub input_tokens: u64,
    pub output_tokens: u64,
}

impl ExtraCalls {
    /// Cost in uncached input tokens of the conversation's model.
    pub fn billed(self) -> f64 {
        self.input_tokens as f64 + OUTPUT_PRICE * self.output_tokens as f64
    }
}

/// Figures of a case, or of several.
#[derive(Debug, Clone, Default)]
pub struct Scores {
    pub tally: Tally,
    /// Requests that reached the upstream, of those that can be brought within the limit.
    pub answered: Share,
    /// Requests whose whole body reached it byte for byte.
    pub same_bytes: Share,
    /// Requests within the limit whose messages passed unchanged.
    pub unchanged: Share,
    /// Of the requests above the limit that arrived: those that keep the rules, and those within the limit.
    pub valid: Share,
    pub fits: Share,
    /// Of the requests above the limit that arrived: those that begin with all of the request before.
    pub prefix: Share,
    /// Number of requests by the first rule that they break.
    pub problems: BTreeMap<String, u64>,
    /// Files edited, with a line of the last edit.
    pub edits: Share,
    /// Planted rules, without and with crowding text.
    pub rules: [Share; 2],
    pub rules_by_depth: [BTreeMap<usize, Share>; 2],
    pub decay: [Decay; MOST_DECAY],
    /// Missing values of requests that offer a recall tool, of all missing ones.
    pub offered: Share,
    /// Missing values that the recall tool gave back, of those asked for.
    pub recalled: Share,
    /// Requests that a second instance, or the same after a restart, sent with the same bytes.
    pub second: Share,
    pub restarted: Share,
    /// Milliseconds above the proxy that does nothing, of requests above the limit.
    pub added_ms: Vec<f64>,
    /// The same, of those that do not begin with all of the request before.
    pub compaction_ms: Vec<f64>,
    pub extra: ExtraCalls,
}

impl Scores {
    /// Adds the figures of another case.
    pub fn merge(&mut self, other: &Self) {
        self.tally.merge(&other.tally);
        for (own, other) in [
            (&mut self.answered, other.answered),
            (&mut self.same_bytes, other.same_bytes),
            (&mut self.unchanged, other.unchanged),
            (&mut self.valid, other.valid),
            (&mut self.fits, other.fits),
            (&mut self.prefix, other.prefix),
            (&mut self.edits, other.edits),
            (&mut self.offered, other.offered),
            (&mut self.recalled, other.recalled),
            (&mut self.second, other.second),
            (&mut self.restarted, other.restarted),
        ] {
            own.merge(other);
        }
        for (problem, count) in &other.problems {
            *self.problems.entry(problem.clone()).or_default() += count;
        }
        for crowded in 0..2 {
            self.rules[crowded].merge(other.rules[crowded]);
            for (depth, share) in &other.rules_by_depth[crowded] {
                self.rules_by_depth[crowded].entry(*depth).or_default().merge(*share);
            }
        }
        for (own, other) in self.decay.iter_mut().zip(&other.decay) {
            own.values.merge(other.values);
            own.facts.merge(other.facts);
            own.rules.merge(other.rules);
            own.compactions.extend(&other.compactions);
        }
        self.added_ms.extend(&other.added_ms);
        self.compaction_ms.extend(&other.compaction_ms);
        self.extra.calls += other.extra.calls;
        self.extra.input_tokens += other.extra.input_tokens;
        self.extra.output_tokens += other.extra.output_tokens;
    }

    /// Cost of the requests without extra calls, with a price for writing the cache.
    fn billed(&self, write_price: f64) -> f64 {
        billed(&self.tally.cost, write_price)
    }
}

fn billed(cost: &tally::InputCost, write_price: f64) -> f64 {
    let uncached = (cost.tokens - cost.cached_tokens) as f64;
    write_price * uncached + CACHED_PRICE * cost.cached_tokens as f64
}

/// Results of one proxy at one limit, by the source of the cases.
#[derive(Debug, Clone, Default)]
pub struct Results {
    pub sources: BTreeMap<String, Scores>,
    /// Cases with planted texts: they count in no column of retention, cache and bill.
    pub planted: Scores,
}

/// Row of the table.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    pub proxy: String,
    pub limit: String,
    pub conversations: u64,
    pub requests: u64,
    /// Requests above the limit that can be brought within it.
    pub turns: u64,
    pub answered: Option<f64>,
    pub unchanged: Option<f64>,
    pub same_bytes: Option<f64>,
    pub valid: Option<f64>,
    /// Share of the requests above the limit that arrive above it.
    pub over: Option<f64>,
    pub problems: BTreeMap<String, u64>,
    pub sent_per_full: Option<f64>,
    /// Share of the requests above the limit that begin with all of the request before.
    pub prefix: Option<f64>,
    pub cache_hit: Option<f64>,
    /// Bill relative to sending everything, extra calls included.
    pub billed: Option<f64>,
    pub deep: Option<f64>,
    pub ctx: Option<f64>,
    pub gram5: Option<f64>,
    pub action: Option<f64>,
    pub user: Option<f64>,
    pub edits: Option<f64>,
    /// Values in context that are present, or that a recall tool may return.
    pub reach: Option<f64>,
    /// Missing values of requests that offer the tool.
    pub offered: Share,
    /// Missing values asked for by recall, and those that came back.
    pub recalled: Share,
    pub rules: Option<f64>,
    pub rules_crowded: Option<f64>,
    pub rules_by_depth: [BTreeMap<usize, Share>; 2],
    pub second: Option<f64>,
    pub restarted: Option<f64>,
    pub added_ms_p50: Option<f64>,
    pub compaction_ms_p50: Option<f64>,
    pub extra: ExtraCalls,
    /// Part of `billed` that extra calls cost.
    pub extra_billed: Option<f64>,
}

impl Row {
    /// Computes the row of a proxy. `write_price` is the cost of a token that the provider writes into its
    /// cache, in uncached tokens.
    pub fn new(proxy: &str, limit: &str, results: &Results, write_price: f64) -> Self {
        let mut all = Scores::default();
        results.sources.values().for_each(|scores| all.merge(scores));
        let tallies: BTreeMap<String, Tally> = results
            .sources
            .iter()
            .map(|(source, scores)| (source.clone(), scores.tally.clone()))
            .collect();
        let (total, _) = tally::rows(proxy, limit, &tallies);
        // A mean over sources, or of all cases together if no source has enough.
        let recall = |recall: Recall| {
            let mean = total.recall()[recall as usize].value;
            mean.or_else(|| all.tally.recall[recall as usize].value())
        };
        let ratio = |part: f64, whole: f64| (whole > 0.0).then(|| part / whole);
        let full = billed(&all.tally.full_cost, write_price);
        let mut both = all.clone();
        both.merge(&results.planted);
        let ctx = recall(Recall::Context);
        let found = all.offered.value().unwrap_or(0.0) * all.recalled.value().unwrap_or(0.0);
        let reach = ctx.map(|ctx| ctx + (1.0 - ctx) * found);
        Self {
            proxy: proxy.to_owned(),
            limit: limit.to_owned(),
            conversations: all.tally.compacted,
            requests: both.same_bytes.of,
            turns: both.tally.turns,
            answered: both.answered.value(),
            unchanged: both.unchanged.value(),
            same_bytes: both.same_bytes.value(),
            valid: both.valid.value(),
            over: both.fits.value().map(|share| 1.0 - share),
            problems: both.problems,
            sent_per_full: ratio(all.tally.sent_tokens as f64, all.tally.full_tokens as f64),
            prefix: all.prefix.value(),
            cache_hit: ratio(all.tally.cost.cached_tokens as f64, all.tally.cost.tokens as f64),
            billed: ratio(all.billed(write_price) + all.extra.billed(), full),
            deep: recall(Recall::Deep),
            ctx,
            gram5: recall(Recall::Gram),
            action: recall(Recall::Action),
            user: recall(Recall::User),
            edits: all.edits.value(),
            reach,
            offered: all.offered,
            recalled: all.recalled,
            rules: results.planted.rules[0].value(),
            rules_crowded: results.planted.rules[1].value(),
            rules_by_depth: results.planted.rules_by_depth.clone(),
            second: both.second.value(),
            restarted: both.restarted.value(),
            added_ms_p50: median(&both.added_ms),
            compaction_ms_p50: median(&both.compaction_ms),
            extra: all.extra,
            extra_billed: ratio(all.extra.billed(), full),
        }
    }
}

impl Row {
    /// Columns of retention, by their names.
    pub fn retention(&self) -> [(&'static str, Option<f64>); 9] {
        [
            ("deep", self.deep),
            ("ctx", self.ctx),
            ("5-gram", self.gram5),
            ("action", self.action),
            ("user", self.user),
            ("edits", self.edits),
            ("reach", self.reach),
            ("rules", self.rules),
            ("crowded", self.rules_crowded),
        ]
    }
}

/// Returns the value in the middle.
fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

/// Prices of a provider, for the head of the page.
pub fn bill_rules(write_price: f64) -> String {
    let least_tokens = CacheRules::LASTING.least_tokens;
    format!(
        "cached input {CACHED_PRICE}, uncached {write_price}, output {OUTPUT_PRICE}, prefixes from \
         {least_tokens} tokens"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_bills_extra_calls_and_adds_recall() {
        let mut scores = Scores::default();
        scores.tally.cost = tally::InputCost { tokens: 2000, cached_tokens: 1000 };
        scores.tally.full_cost = tally::InputCost { tokens: 4000, cached_tokens: 2000 };
        scores.tally.recall[Recall::Context as usize] = Share { kept: 30, of: 40 };
        scores.extra = ExtraCalls { calls: 1, input_tokens: 100, output_tokens: 250 };
        scores.offered = Share { kept: 3, of: 4 };
        scores.recalled = Share { kept: 4, of: 5 };
        scores.added_ms = vec![3.0, 1.0, 2.0];
        scores.compaction_ms = vec![3.0];
        scores.prefix = Share { kept: 2, of: 3 };
        let results = Results {
            sources: BTreeMap::from([("a".to_owned(), scores)]),
            planted: Scores {
                rules: [Share { kept: 1, of: 2 }, Share::default()],
                ..Scores::default()
            },
        };
        let row = Row::new("p", "50%", &results, 1.0);
        assert_eq!(row.billed, Some(2200.0 / 2200.0));
        assert_eq!(row.extra_billed, Some(1100.0 / 2200.0));
        assert_eq!((row.ctx, row.reach), (Some(0.75), Some(0.75 + 0.25 * (0.75 * 0.8))));
        assert_eq!((row.rules, row.rules_crowded), (Some(0.5), None));
        assert_eq!((row.added_ms_p50, row.compaction_ms_p50), (Some(2.0), Some(3.0)));
        assert_eq!((row.prefix, row.extra.calls), (Some(2.0 / 3.0), 1));
        let dearer = Row::new("p", "50%", &results, 1.25);
        assert_eq!(dearer.billed, Some((1350.0 + 1100.0) / 2700.0));
    }
}
