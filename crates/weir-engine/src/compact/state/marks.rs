//! Marks: sizes above which a compaction is due, the size that it reduces to, and the zones between
//! them. The policy gives them as shares of the limit.

use serde::Serialize;

use super::Compactor;
use super::history::Mark;
use super::note::{Note, Place};
use super::turns::TurnKind;
use crate::compact::message::ending::Ending;
use crate::compact::message::measure::Fact;
use crate::compact::policy::{CachePrices, Goal, OPENING, Restart, share};
use crate::tokens::MESSAGE_FRAMING;
use crate::wire::Role;

/// A conversation is a dialogue if in its last messages prose takes this many times the tokens of
/// tool use.
const DIALOGUE_MESSAGES: usize = 40;
const DIALOGUE_SHARE: u64 = 2;
/// Share of a price step that must be left for the history: one part of so many.
const STEP_PARTS: u64 = 4;
/// Number of rounds whose size shows that of the next.
const ROUNDS: usize = 3;

/// Trigger sizes of compaction, including tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marks {
    /// Size above which a compaction is due.
    pub trigger_tokens: u64,
    /// Size that a compaction reduces to.
    pub low_tokens: u64,
}

/// Distance to the next compaction, or the kind of compaction that the last message triggered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Zone {
    /// Below all marks.
    Continue,
    /// Above the soft mark: old results are masked.
    Mask,
    /// Above the hard mark for the first time since the last restart, if the policy has restarts.
    WindDown,
    Restart,
    /// Above the hard mark, if the policy has no restarts.
    #[serde(rename = "cut")]
    Compaction,
}

impl Zone {
    /// Returns the label used in tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Continue => "continue",
            Self::Mask => "mask",
            Self::WindDown => "wind down",
            Self::Restart => "restart",
            Self::Compaction => "cut",
        }
    }
}

impl Compactor {
    /// Returns whether the size is above a mark.
    pub(crate) fn is_above_mark(&self) -> bool {
        self.due(self.sizes.request_tokens).is_some()
    }

    /// Returns whether a compaction may be due at one of the next messages, whose facts are `more`,
    /// or later with `uncounted_tokens` behind them. Each of them can lower the marks, so their total
    /// is compared with the lowest.
    pub(crate) fn may_compact(&self, more: &[Fact], uncounted_tokens: u64) -> bool {
        let more_tokens = more.iter().map(|fact| fact.tokens).sum::<u64>() + uncounted_tokens;
        // A result that is still missing makes a first user message behind its call part of that
        // turn, and the marks lose their base.
        let is_loose = self.turns.first_user.is_some_and(|turn| turn > self.turns.newest_from());
        let loose_tokens = if is_loose { self.base_tokens().1 } else { 0 };
        let reserved = if self.compactions() > 0 { self.most_reserve_tokens(more) } else { 0 };
        let size_tokens = self.sizes.request_tokens + more_tokens + loose_tokens;
        let may_begin_round =
            uncounted_tokens > 0 || more.iter().any(|fact| fact.role == Role::User);
        (may_begin_round && size_tokens > self.early_tokens())
            || self.due_with(size_tokens, reserved).is_some()
    }

    /// Returns whether a compaction is due because a round begins that may pass the hard mark: there it
    /// would leave out thinking that the model still needs.
    pub(crate) fn is_early_due(&self) -> bool {
        let size_tokens = self.sizes.request_tokens;
        size_tokens > self.early_tokens()
            && self.messages.has_thinking()
            && self.turns.begins_round(self.turns.list.len())
            && self.due(size_tokens + self.usual_round_tokens()).is_some()
    }

    /// Returns the size of the largest of the last complete rounds, as received.
    fn usual_round_tokens(&self) -> u64 {
        let (mut end, mut largest_tokens) = (self.turns.list.len().saturating_sub(1), 0);
        for _ in 0..ROUNDS {
            let Some(last) = end.checked_sub(1) else { break };
            let begins = (1..=last).rev().find(|turn| self.turns.begins_round(turn + 1));
            let turns = &self.turns.list[begins.unwrap_or(0)..=last];
            let messages = turns.iter().flat_map(|turn| turn.first..=turn.last);
            let tokens = messages.map(|message| self.messages.facts[message].tokens).sum();
            largest_tokens = largest_tokens.max(tokens);
            end = begins.unwrap_or(0);
        }
        largest_tokens
    }

    /// Returns the size above which a compaction may be due when a round begins; the maximum if none is.
    fn early_tokens(&self) -> u64 {
        let policy = &self.profile.policy;
        let has_restarts = policy.zones.restart != Restart::Never;
        if policy.early_permille == 0 || !policy.is_thinking_bound || has_restarts {
            return u64::MAX;
        }
        self.on_the_way(policy.early_permille)
    }

    /// Returns the size at a share of the way between the last compaction and the next one's mark.
    pub(crate) fn on_the_way(&self, permille: u32) -> u64 {
        let (_, hard_tokens) = self.due_above();
        let last = self.history.last().map_or(0, |compaction| compaction.after_tokens);
        let from = self.base_tokens().1.max(last).min(hard_tokens);
        from + share(hard_tokens - from, permille.min(1000))
    }

    /// Returns whether the conversation is more than half way between its last compaction and the next one.
    pub fn is_past_half_way(&self) -> bool {
        self.sizes.request_tokens > self.on_the_way(500)
    }

    /// Returns the mark that a size exceeds, if a compaction is due.
    pub(crate) fn due(&self, size_tokens: u64) -> Option<Mark> {
        self.due_with(size_tokens, self.reserved_tokens())
    }

    /// Returns the same, with `reserved_tokens` for recall.
    fn due_with(&self, size_tokens: u64, reserved_tokens: u64) -> Option<Mark> {
        let (soft_tokens, hard_tokens) = self.due_above_with(reserved_tokens);
        if size_tokens > hard_tokens {
            return Some(Mark::Hard);
        }
        soft_tokens.is_some_and(|soft| size_tokens > soft).then_some(Mark::Soft)
    }

    /// Returns the sizes above which a soft compaction, if the policy has one, and a hard one are
    /// due.
    pub(crate) fn due_above(&self) -> (Option<u64>, u64) {
        self.due_above_with(self.reserved_tokens())
    }

    fn due_above_with(&self, reserved_tokens: u64) -> (Option<u64>, u64) {
        let limit = self.profile.limit_tokens;
        let hard = self.hard_tokens().min(self.goal_tokens() - reserved_tokens);
        let is_own = |note: &Note| matches!(note.place, Place::Own | Place::OwnBefore);
        let is_opened = self.notes.list.iter().any(is_own);
        let opening_tokens = if is_opened { 0 } else { self.opening_tokens() };
        let hard = hard.max(self.rests.hard_tokens).min(limit.saturating_sub(opening_tokens));
        let soft = self.profile.policy.zones.soft_permille;
        let (base, fixed) = self.base_tokens();
        let soft_tokens = (fixed + share(base, soft)).max(self.rests.soft_tokens);
        ((soft > 0).then_some(soft_tokens), hard)
    }

    /// Returns the size of the user's message that the plan adds if an assistant's is the first left, unless a
    /// note in a message of its own stands before it.
    pub(crate) fn opening_tokens(&self) -> u64 {
        let is_assistants = |turn: &usize| self.turns.list[*turn].kind == TurnKind::Assistant;
        let needs_one = self.profile.policy.begins_with_user
            && self.turns.live.first().is_some_and(is_assistants)
            && !is_assistants(&0);
        match needs_one {
            true => MESSAGE_FRAMING + self.profile.measure.encoding.count(OPENING),
            false => 0,
        }
    }

    /// Returns the tokens that a compaction must free to be worthwhile, and the growth required
    /// after one that fell short.
    pub(crate) fn progress_tokens(&self) -> u64 {
        share(self.goal_tokens(), self.profile.policy.zones.min_progress_permille)
    }

    /// Returns the size that marks and shares use as the limit.
    pub(crate) fn goal_tokens(&self) -> u64 {
        self.goal_within(self.profile.limit_tokens)
    }

    fn goal_within(&self, limit_tokens: u64) -> u64 {
        match self.profile.policy.zones.goal {
            Goal::Limit => limit_tokens,
            Goal::Tokens(tokens) => tokens.min(limit_tokens),
            Goal::Step(tokens) => self.within_step(tokens).min(limit_tokens),
            Goal::Economic(prices) | Goal::Cold(prices) => {
                self.cheapest_tokens(prices).min(limit_tokens)
            }
        }
    }

    /// Returns the size above which a compaction is cheapest. It follows from the messages so far alone, so that
    /// equal beginnings have equal compactions.
    fn cheapest_tokens(&self, prices: CachePrices) -> u64 {
        let fixed_tokens = self.fixed_tokens();
        let grown_tokens = (self.profile.overhead_tokens + self.sizes.received_tokens)
            .saturating_sub(fixed_tokens);
        let growth_tokens = grown_tokens / u64::from(self.requests.ended.max(1));
        let last = self.history.last().map_or(0, |compaction| compaction.after_tokens);
        let kept_tokens = last.saturating_sub(fixed_tokens);
        let cheapest_tokens = prices.cheapest_tokens(kept_tokens, growth_tokens);
        let step_tokens = self.within_step(prices.step_tokens.unwrap_or(u64::MAX));
        fixed_tokens.saturating_add(cheapest_tokens).min(step_tokens)
    }

    /// Returns a price step; the maximum if what must stay leaves too little below it: then each request is
    /// above it, and compactions save nothing.
    fn within_step(&self, step_tokens: u64) -> u64 {
        let left_tokens = step_tokens.saturating_sub(self.fixed_tokens());
        if left_tokens < step_tokens / STEP_PARTS { u64::MAX } else { step_tokens }
    }

    /// Returns what stands before all that a compaction may take.
    fn fixed_tokens(&self) -> u64 {
        self.profile.overhead_tokens + self.sizes.system_run_tokens + self.first_user_tokens()
    }

    /// Returns the size of the first user message, if it is sent.
    fn first_user_tokens(&self) -> u64 {
        let turn = self.turns.first_user.map(|turn| &self.turns.list[turn]);
        turn.filter(|turn| !turn.is_gone).map_or(0, |turn| self.messages.facts[turn.first].tokens)
    }

    /// Returns the base of the marks, and the tokens below it. The base is the limit less overhead,
    /// system run and first user message.
    pub(crate) fn base_tokens(&self) -> (u64, u64) {
        let goal = self.goal_tokens();
        let fixed = self.fixed_tokens().min(goal);
        (goal - fixed, fixed)
    }

    /// Returns the size above which a hard compaction is due.
    fn hard_tokens(&self) -> u64 {
        let (base, fixed) = self.base_tokens();
        fixed + share(base, self.profile.policy.hard_permille)
    }

    /// Returns whether the messages as received stay at or under the first mark for the exact limit
    /// and overhead, without the profile's rounding.
    pub fn needs_nothing(&self, limit_tokens: u64, overhead_tokens: u64) -> bool {
        let policy = &self.profile.policy;
        let other_tokens = self.profile.overhead_tokens + self.spare_tokens();
        let messages_tokens = self.base_tokens().1.saturating_sub(other_tokens);
        let goal_tokens = self.goal_within(limit_tokens);
        let fixed = (overhead_tokens + messages_tokens).min(goal_tokens);
        let first_permille = match policy.zones.soft_permille {
            0 => policy.hard_permille,
            soft => soft.min(policy.hard_permille),
        };
        let mark = fixed + share(goal_tokens - fixed, first_permille);
        let is_cleared = self.masking.has_oversized || self.masking.cleared.tool_uses > 0;
        // A goal that rises later takes no compaction back.
        let goal = policy.zones.goal;
        let may_rise = goal.is_by_price() || matches!(goal, Goal::Step(_));
        let is_taken_back = may_rise && !self.is_untouched();
        let is_whole = !is_cleared && !is_taken_back && !self.has_dropped_thinking();
        is_whole && self.received_tokens() + overhead_tokens <= mark
    }

    /// Returns the size that a compaction reduces to.
    pub(crate) fn low_tokens(&self) -> u64 {
        let (base, fixed) = self.base_tokens();
        let policy = &self.profile.policy;
        let goal = self.goal_tokens();
        let low = fixed + share(base, policy.low_permille);
        let free = share(goal, policy.min_growth_permille.min(1000)) + self.recall_reserve_tokens();
        low.min(goal.saturating_sub(free))
    }

    /// Returns the tokens that a request ending here reserves for recall, once something is
    /// removed.
    fn reserved_tokens(&self) -> u64 {
        if self.compactions() > 0 { self.recall_reserve_tokens() } else { 0 }
    }

    /// Returns the room that later requests reserve for recall: its share of the limit in a
    /// dialogue, nothing during mostly tool use.
    pub(crate) fn recall_reserve_tokens(&self) -> u64 {
        self.most_reserve_tokens(&[])
    }

    /// Returns the largest such room after some of the messages `more` behind those of the state.
    fn most_reserve_tokens(&self, more: &[Fact]) -> u64 {
        let most = share(self.goal_tokens(), self.profile.policy.recalled_permille());
        let is_any = || (0..=more.len()).any(|new| is_dialogue(self.facts(), &more[..new]));
        if most > 0 && is_any() { most } else { 0 }
    }

    /// Returns the size above which the next compaction is due, and the size that it reduces to.
    pub fn marks(&self) -> Marks {
        let (soft_tokens, hard_tokens) = self.due_above();
        Marks {
            trigger_tokens: soft_tokens.map_or(hard_tokens, |soft| soft.min(hard_tokens)),
            low_tokens: self.low_tokens(),
        }
    }

    /// Returns the zone of the request that ends here.
    pub fn zone(&self) -> Zone {
        let last_compaction =
            self.history.last().filter(|compaction| compaction.messages == self.messages());
        if last_compaction.is_some_and(|compaction| compaction.is_restart) {
            return Zone::Restart;
        }
        let (soft_tokens, hard_tokens) = self.due_above();
        let by_size = match self.sizes.request_tokens {
            size if size > hard_tokens => Some(Mark::Hard),
            size if soft_tokens.is_some_and(|soft| size > soft) => Some(Mark::Soft),
            _ => None,
        };
        match last_compaction.map(|compaction| compaction.mark).or(by_size) {
            None => Zone::Continue,
            Some(Mark::Soft) => Zone::Mask,
            Some(Mark::Hard) if self.profile.policy.zones.restart == Restart::Never => {
                Zone::Compaction
            }
            Some(Mark::Hard) => Zone::WindDown,
        }
    }
}

/// Returns whether the last messages are mostly conversation between user and assistant, by tokens.
/// Calls, results, written actions and their output are not. Messages before the first answer may
/// be a task.
fn is_dialogue(facts: &[Fact], more: &[Fact]) -> bool {
    let from = (facts.len() + more.len()).saturating_sub(DIALOGUE_MESSAGES);
    let last = facts.iter().chain(more).skip(from);
    let (mut said, mut worked) = (0, 0);
    let mut is_working = false;
    for fact in last.skip_while(|fact| fact.role != Role::Assistant) {
        let own = match fact.role {
            Role::System | Role::Other => continue,
            Role::Tool => &mut worked,
            Role::User if is_working => &mut worked,
            Role::User => &mut said,
            Role::Assistant => {
                is_working = fact.ending == Ending::Action;
                if is_working || fact.calls > 0 { &mut worked } else { &mut said }
            }
        };
        *own += fact.tokens;
    }
    said >= DIALOGUE_SHARE * worked
}
