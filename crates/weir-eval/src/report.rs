//! Results of a whole replay in order: rows for the table, figures as JSON, lost values.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde::Serialize;

use super::conversation::Conversation;
use super::judge::Lost;
use super::tally::{Row, Tally, rows};
use super::{Budget, Named, Outcome};

/// Results of a replay, one run for each policy and budget.
#[derive(Debug, Serialize)]
pub struct Report {
    pub runs: Vec<Run>,
    /// Tokens of the last request of the longest conversation.
    #[serde(skip)]
    longest_tokens: u64,
}

/// Results of one policy at one budget over all conversations.
#[derive(Debug, Serialize)]
pub struct Run {
    /// All sources together.
    pub total: Row,
    pub sources: Vec<Row>,
    pub conversations: Vec<Single>,
    #[serde(skip)]
    lost: Vec<Lost>,
}

/// Results of one conversation in a run.
#[derive(Debug, Serialize)]
pub struct Single {
    pub id: String,
    pub last_request_tokens: u64,
    pub figures: Row,
    /// Tokens of each request, whole and as sent.
    pub sizes: Vec<(u64, u64)>,
}

impl Report {
    /// Sorts the `outcomes` of each conversation, policies first, into runs.
    pub fn new(
        conversations: &[Conversation],
        policies: &[Named],
        budgets: &[Budget],
        mut outcomes: Vec<Vec<Option<Outcome>>>,
    ) -> Self {
        let mut runs = Vec::with_capacity(policies.len() * budgets.len());
        for policy in policies {
            for budget in budgets {
                let place = runs.len();
                let own = outcomes.iter_mut().map(|own| own[place].take());
                runs.push(Run::new(policy, *budget, conversations, own));
            }
        }
        let last = conversations.iter().map(Conversation::last_request_tokens);
        Self { runs, longest_tokens: last.max().unwrap_or_default() }
    }

    /// Returns a line for each budget that exceeds every conversation, so that its runs have no
    /// figures.
    pub fn unused_budgets(&self) -> String {
        let runs = self.runs.iter().filter(|run| run.conversations.is_empty());
        let unused: BTreeSet<&str> = runs.map(|run| run.total.budget.as_str()).collect();
        let longest = self.longest_tokens;
        let line = |budget| {
            format!(
                "no figures at {budget}: a conversation's last request must have a quarter more, \
                 and the longest has {longest} tokens; give a lower --budget\n"
            )
        };
        unused.into_iter().map(line).collect()
    }

    /// Returns the rows of the table: one per run, followed by one per source if `by_source`.
    pub fn rows(&self, by_source: bool) -> Vec<&Row> {
        let own = |run: &'_ Run| if by_source { run.sources.len() } else { 0 };
        let rows = self
            .runs
            .iter()
            .flat_map(|run| [&run.total].into_iter().chain(&run.sources[..own(run)]));
        rows.collect()
    }

    /// Returns a line of summary totals for each run with summaries.
    pub fn summaries(&self) -> String {
        let runs = self.runs.iter().filter(|run| run.total.summaries.calls > 0);
        let line = |run: &Run| {
            let Row { policy, budget, summaries, billed_tokens, .. } = &run.total;
            let share = summaries.billed_tokens / billed_tokens;
            format!(
                "{policy} at {budget}: {} summaries asked for, used in {} of {} compactions; {} tokens \
                 read and {} written for them, {share:.3} of the bill\n",
                summaries.calls,
                summaries.used,
                summaries.cuts,
                summaries.prompt_tokens,
                summaries.answer_tokens,
            )
        };
        runs.map(line).collect()
    }

    /// Renders all figures as JSON on one line.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("names and numbers alone") + "\n"
    }

    /// Returns `count` of the deep values that each run lost, evenly sampled, with the place where
    /// they were last seen.
    pub fn lost(&self, count: usize) -> String {
        let mut text = String::new();
        for run in &self.runs {
            run.write_lost(count, &mut text);
        }
        text
    }
}

impl Run {
    fn new(
        policy: &Named,
        budget: Budget,
        conversations: &[Conversation],
        outcomes: impl Iterator<Item = Option<Outcome>>,
    ) -> Self {
        let budget = budget.to_string();
        let mut by_source: BTreeMap<String, Tally> = BTreeMap::new();
        let mut single = Vec::new();
        let mut lost = Vec::new();
        for (conversation, outcome) in conversations.iter().zip(outcomes) {
            let Some(outcome) = outcome else { continue };
            let source = &conversation.source;
            by_source.entry(source.clone()).or_default().merge(&outcome.tally);
            single.push(Single {
                id: conversation.id.clone(),
                last_request_tokens: conversation.last_request_tokens(),
                figures: Row::of(&policy.name, &budget, source, &outcome.tally),
                sizes: outcome.sizes,
            });
            lost.extend(outcome.lost);
        }
        let (total, sources) = rows(&policy.name, &budget, &by_source);
        Self { total, sources, conversations: single, lost }
    }

    fn write_lost(&self, count: usize, text: &mut String) {
        let gone = self.lost.iter().filter(|own| !own.has_value).count();
        let (policy, budget) = (&self.total.policy, &self.total.budget);
        let bare = self.lost.len() - gone;
        let _ = writeln!(text, "{policy} at {budget}: {gone} values gone, {bare} without context");
        let step = self.lost.len().div_ceil(count.max(1)).max(1);
        for own in self.lost.iter().step_by(step).take(count) {
            let fate = if own.has_value { "bare" } else { "gone" };
            let Lost { conversation, turn, value, last_seen, around, .. } = own;
            let _ = writeln!(
                text,
                "  {fate} {value:?}  {conversation} turn {turn}, last seen in #{last_seen} \
                 ({:?}, {} back): {around}",
                own.last_seen_by,
                turn - last_seen,
            );
        }
    }
}
