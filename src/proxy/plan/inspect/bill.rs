//! Sizes and costs of a conversation's requests: how much of each a provider's cache would hold, and its
//! price. The cache is assumed to hold the beginning that a request shares with the one before it; output is
//! not counted.

use serde::Serialize;

use weir_engine::compact::report::Report;
use weir_engine::plan::Plan;
use weir_engine::wire::Edit;
use weir_store::budget::{self, Billed, CACHE_FLOOR_TOKENS, NanoUsd, Price};
use weir_store::ledger::signed_usd;

/// Facts of a request that do not depend on the policy.
pub(super) struct TurnFacts {
    pub(super) received_tokens: u64,
    pub(super) max_input_tokens: u64,
    pub(super) price: Option<Price>,
    pub(super) model: String,
    pub(super) is_model_known: bool,
}

/// One request of a conversation.
#[derive(Debug, Clone, Serialize)]
pub(super) struct TurnRow {
    turn: usize,
    messages: usize,
    pub(super) received_tokens: u64,
    sent_tokens: u64,
    limit_tokens: u64,
    /// Size above which the next compaction is due, and the size that it reduces to.
    trigger_tokens: u64,
    low_tokens: u64,
    action: String,
    compactions: u32,
    /// Steps of the compactions made at this request; absent if there are none.
    steps: Option<String>,
    /// Whether the request is refused: the parts that must stay exceed the limit.
    is_refused: bool,
    /// Tokens at the start that the request before it began with, too.
    reused_tokens: u64,
    /// Tokens that were sent before and must be read again, since a compaction moved them.
    rewritten_tokens: u64,
    #[serde(flatten)]
    costs: Costs,
}

/// Costs, as far as the model has a price.
#[derive(Debug, Clone, Default, Serialize)]
struct Costs {
    cost_usd: Option<String>,
    /// Part of the cost that is due to the rewritten tokens.
    rewrite_usd: Option<String>,
    /// Difference to the cost of the request sent whole; negative if a compaction costs more here.
    saved_usd: Option<String>,
    #[serde(skip)]
    amounts: Option<Amounts>,
}

impl From<Amounts> for Costs {
    fn from(amounts: Amounts) -> Self {
        Self {
            cost_usd: Some(usd(amounts.cost_nano_usd)),
            rewrite_usd: Some(usd(amounts.rewrite_nano_usd)),
            saved_usd: Some(signed_usd(amounts.saved_nano_usd)),
            amounts: Some(amounts),
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Amounts {
    cost_nano_usd: u64,
    rewrite_nano_usd: u64,
    saved_nano_usd: i64,
}

/// All requests together.
#[derive(Debug, Default, Serialize)]
pub(super) struct Total {
    requests: usize,
    refused_requests: usize,
    compactions: u32,
    received_tokens: u64,
    sent_tokens: u64,
    largest_sent_tokens: u64,
    reused_tokens: u64,
    rewritten_tokens: u64,
    #[serde(flatten)]
    costs: Costs,
}

impl Total {
    /// Adds a request.
    pub(super) fn add(&mut self, row: &TurnRow) {
        self.requests += 1;
        self.refused_requests += usize::from(row.is_refused);
        self.compactions = row.compactions.max(self.compactions);
        self.received_tokens += row.received_tokens;
        if row.is_refused {
            return;
        }
        self.sent_tokens += row.sent_tokens;
        self.largest_sent_tokens = self.largest_sent_tokens.max(row.sent_tokens);
        self.reused_tokens += row.reused_tokens;
        self.rewritten_tokens += row.rewritten_tokens;
        if let Some(own) = row.costs.amounts {
            let Amounts { cost_nano_usd, rewrite_nano_usd, saved_nano_usd } =
                self.costs.amounts.unwrap_or_default();
            self.costs = Costs::from(Amounts {
                cost_nano_usd: cost_nano_usd.saturating_add(own.cost_nano_usd),
                rewrite_nano_usd: rewrite_nano_usd.saturating_add(own.rewrite_nano_usd),
                saved_nano_usd: saved_nano_usd.saturating_add(own.saved_nano_usd),
            });
        }
    }
}

/// The same requests sent whole.
#[derive(Debug, Default, Serialize)]
pub(super) struct Whole {
    sent_tokens: u64,
    reused_tokens: u64,
    /// Requests that exceed the model's own limit.
    refused_requests: usize,
    cost_usd: Option<String>,
}

/// Bill of the requests sent whole, so far.
#[derive(Default)]
pub(super) struct Bill {
    whole: Whole,
    cost_nano_usd: u64,
    before_tokens: u64,
    counted: usize,
}

impl Bill {
    /// Adds the request at this place, once for all policies.
    pub(super) fn whole(&mut self, place: usize, facts: &TurnFacts) {
        if place < self.counted {
            return;
        }
        self.counted = place + 1;
        let received_tokens = facts.received_tokens;
        let reused_tokens = cacheable(self.before_tokens.min(received_tokens));
        self.before_tokens = received_tokens;
        self.whole.sent_tokens += received_tokens;
        self.whole.reused_tokens += reused_tokens;
        self.whole.refused_requests += usize::from(received_tokens > facts.max_input_tokens);
        if let Some(price) = &facts.price {
            let cost = budget::cost(price, &billed(received_tokens, reused_tokens)).nano_usd;
            self.cost_nano_usd = self.cost_nano_usd.saturating_add(cost);
            self.whole.cost_usd = Some(usd(self.cost_nano_usd));
        }
    }

    pub(super) fn total(self) -> Whole {
        self.whole
    }
}

/// Last request that was sent before.
#[derive(Default)]
pub(super) struct Before {
    changes: Vec<(usize, Edit)>,
    messages: usize,
    received_tokens: u64,
    /// Without recall, which the next request does not begin with.
    sent_tokens: u64,
    compactions: u32,
}

impl Before {
    /// Describes a request after this one, and takes its place. Takes the plan's changes.
    pub(super) fn row(
        &mut self,
        turn: usize,
        plan: &mut Plan,
        is_refused: bool,
        price: Option<&Price>,
        report: impl Fn(&Plan) -> Report,
    ) -> TurnRow {
        let moved = self.first_moved(plan);
        let reused_tokens = cacheable(match moved {
            None => self.sent_tokens,
            Some(message) => self.sent_up_to(message, plan, &report(plan)),
        });
        let grown_tokens = plan.received_tokens.saturating_sub(self.received_tokens);
        let rewritten_tokens = match moved {
            Some(_) => plan.sent_tokens.saturating_sub(reused_tokens + grown_tokens),
            None => 0,
        };
        let is_cut = plan.compactions > self.compactions;
        let marks = plan.end.marks();
        let amounts =
            price.map(|price| self.amounts(price, plan, (reused_tokens, rewritten_tokens)));
        let row = TurnRow {
            turn,
            messages: plan.end.messages(),
            received_tokens: plan.received_tokens,
            sent_tokens: plan.sent_tokens,
            limit_tokens: plan.limit_tokens,
            trigger_tokens: marks.trigger_tokens,
            low_tokens: marks.low_tokens,
            action: plan.action.clone(),
            compactions: plan.compactions,
            steps: is_cut.then(|| plan.steps_after(self.compactions)),
            is_refused,
            reused_tokens,
            rewritten_tokens,
            costs: amounts.map(Costs::from).unwrap_or_default(),
        };
        if !is_refused {
            self.replace(plan);
        }
        row
    }

    fn replace(&mut self, plan: &mut Plan) {
        let mut changes = std::mem::take(&mut plan.changes);
        let recalled_tokens = plan.recall.as_ref().map_or(0, |recall| {
            changes.pop();
            recall.tokens
        });
        changes.retain(|(_, edit)| *edit != Edit::Breakpoint);
        *self = Self {
            changes,
            messages: plan.end.messages(),
            received_tokens: plan.received_tokens,
            sent_tokens: plan.sent_tokens.saturating_sub(recalled_tokens),
            compactions: plan.compactions,
        };
    }

    /// Returns the first message of the request before that is sent otherwise now.
    fn first_moved(&self, plan: &Plan) -> Option<usize> {
        let now = plan
            .changes
            .iter()
            .filter(|(message, edit)| *message < self.messages && *edit != Edit::Breakpoint);
        let (mut before, mut now) = (self.changes.iter().peekable(), now.peekable());
        loop {
            match (before.peek(), now.peek()) {
                (None, None) => return None,
                (Some(own), Some(other)) if own == other => {
                    before.next();
                    now.next();
                }
                (own, other) => {
                    return own.into_iter().chain(other).map(|(message, _)| *message).min();
                }
            }
        }
    }

    /// Tokens of the prompt up to the message that moved, and of that message if only a note behind it
    /// did.
    fn sent_up_to(&self, moved: usize, plan: &Plan, report: &Report) -> u64 {
        let own = |changes: &[(usize, Edit)]| -> Vec<Edit> {
            let own = changes.iter().filter(|(message, edit)| {
                *message == moved && !matches!(edit, Edit::InsertAfter(_) | Edit::Breakpoint)
            });
            own.map(|(_, edit)| edit.clone()).collect()
        };
        let end = moved + usize::from(own(&self.changes) == own(&plan.changes));
        let messages = report.messages[..end].iter().map(|row| row.sent_tokens);
        let notes = report.notes.iter().filter(|note| note.message < moved);
        let notes = notes.map(|note| note.sent_tokens);
        plan.overhead_tokens + messages.sum::<u64>() + notes.sum::<u64>()
    }

    fn amounts(
        &self,
        price: &Price,
        plan: &Plan,
        (reused_tokens, rewritten_tokens): (u64, u64),
    ) -> Amounts {
        let as_sent = billed(plan.sent_tokens, reused_tokens);
        let unmoved = billed(plan.sent_tokens, reused_tokens + rewritten_tokens);
        let cost_nano_usd = budget::cost(price, &as_sent).nano_usd;
        let in_cache_tokens = cacheable(self.received_tokens.min(plan.received_tokens));
        let whole_nano_usd =
            budget::cost(price, &billed(plan.received_tokens, in_cache_tokens)).nano_usd;
        Amounts {
            cost_nano_usd,
            rewrite_nano_usd: cost_nano_usd.saturating_sub(budget::cost(price, &unmoved).nano_usd),
            saved_nano_usd: difference(whole_nano_usd, cost_nano_usd),
        }
    }
}

fn difference(left: u64, right: u64) -> i64 {
    let difference = i128::from(left) - i128::from(right);
    i64::try_from(difference).unwrap_or(if difference < 0 { i64::MIN } else { i64::MAX })
}

/// Providers cache no prompt that is shorter.
fn cacheable(tokens: u64) -> u64 {
    if tokens < CACHE_FLOOR_TOKENS { 0 } else { tokens }
}

fn billed(prompt_tokens: u64, cached_tokens: u64) -> Billed {
    Billed {
        prompt_tokens: Some(prompt_tokens),
        completion_tokens: Some(0),
        cached_tokens: Some(cached_tokens.min(prompt_tokens)),
        ..Billed::default()
    }
}

fn usd(nano_usd: u64) -> String {
    NanoUsd(nano_usd).to_decimal()
}
