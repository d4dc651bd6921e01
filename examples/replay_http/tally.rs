//! Totals of a replay: figures for each source, and for each check the number of passes and
//! failures.

use super::conversation::Conversation;

/// Minimum number of tokens that a provider caches.
const CACHE_FLOOR_TOKENS: u64 = 1024;
/// Cost of a cached token relative to an uncached one.
const CACHED_PRICE: f64 = 0.1;
/// Failures kept for each check, for the JSON report; all are counted.
const MAX_KEPT: usize = 1000;

/// Rule that each request must satisfy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Check {
    Answered,
    Refused,
    Valid,
    Fits,
    PassIdentical,
    PassBelowLimit,
    LastVerbatim,
    Opening,
    SystemKept,
    OnlyKnownChanges,
    PrefixHeld,
    NotesHeld,
}

impl Check {
    pub const ALL: [Self; 12] = [
        Self::Answered,
        Self::Refused,
        Self::Valid,
        Self::Fits,
        Self::PassIdentical,
        Self::PassBelowLimit,
        Self::LastVerbatim,
        Self::Opening,
        Self::SystemKept,
        Self::OnlyKnownChanges,
        Self::PrefixHeld,
        Self::NotesHeld,
    ];

    pub fn title(self) -> &'static str {
        match self {
            Self::Answered => "a feasible request is answered",
            Self::Refused => {
                "an infeasible request is clipped further, or gets 400 context_length_exceeded"
            }
            Self::Valid => "the upstream finds the request valid",
            Self::Fits => "the upstream counts no more than the budget",
            Self::PassIdentical => "`pass` means byte for byte as received",
            Self::PassBelowLimit => "at or under the first mark the action is `pass`",
            Self::LastVerbatim => "the last message is verbatim, or clipped and said to be",
            Self::Opening => "no tool result opens the conversation",
            Self::SystemKept => "every system message is kept",
            Self::OnlyKnownChanges => "all else is the caller's bytes, a note or a clipped result",
            Self::PrefixHeld => "what was sent before opens what is sent, but for cuts",
            Self::NotesHeld => "only a compaction changes notes: thin or full ones, or for rules",
        }
    }
}

/// Failure of a check. It names places and numbers, never content.
#[derive(Clone, Debug)]
pub struct Failure {
    pub conversation: String,
    /// Number of messages in the request.
    pub turn: usize,
    pub reason: String,
}

#[derive(Clone, Debug, Default)]
pub struct CheckTally {
    pub made: u64,
    pub failed: u64,
    /// The first failures.
    pub failures: Vec<Failure>,
}

/// Figures of one source at one budget, or of all.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub conversations: u64,
    pub requests: u64,
    /// Requests above the budget.
    pub above: u64,
    pub infeasible: u64,
    /// Requests so close to the feasibility limit that either answer is right.
    pub borderline: u64,
    pub borderline_refused: u64,
    pub refused: u64,
    /// Refused requests whose excess is at most the reply priming.
    pub refused_by_priming: u64,
    pub cuts: u64,
    pub clipped: u64,
    /// Growth since the budget was first exceeded, in quarters of the budget.
    pub growth_quarters: f64,
    /// Tokens of the sent requests above the budget, whole and as sent.
    pub above_full_tokens: u64,
    pub above_sent_tokens: u64,
    pub sent: Cost,
    pub full: Cost,
    pub upstream_prompt_tokens: u64,
    pub upstream_cached_tokens: u64,
    pub checks: [CheckTally; Check::ALL.len()],
}

/// Input tokens by the cache model: whole messages shared with the beginning of the previous
/// request are cached, unless they are too few.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    pub tokens: u64,
    pub cached_tokens: u64,
}

impl Cost {
    pub fn add(&mut self, tokens: u64, shared_tokens: u64) {
        self.tokens += tokens;
        if shared_tokens >= CACHE_FLOOR_TOKENS {
            self.cached_tokens += shared_tokens;
        }
    }

    fn billed(&self) -> f64 {
        (self.tokens - self.cached_tokens) as f64 + CACHED_PRICE * self.cached_tokens as f64
    }
}

impl Tally {
    /// Records a check, and the reason if it failed.
    pub fn check(
        &mut self,
        check: Check,
        conversation: &Conversation,
        turn: usize,
        outcome: Result<(), String>,
    ) {
        let tally = &mut self.checks[check as usize];
        tally.made += 1;
        if let Err(reason) = outcome {
            tally.failed += 1;
            if tally.failures.len() < MAX_KEPT {
                let conversation = conversation.id.clone();
                tally.failures.push(Failure { conversation, turn, reason });
            }
        }
    }

    pub fn of(&self, check: Check) -> &CheckTally {
        &self.checks[check as usize]
    }

    pub fn failed(&self) -> u64 {
        self.checks.iter().map(|check| check.failed).sum()
    }

    /// Compactions for each quarter of the budget that the conversations grew beyond it.
    pub fn cuts_per_quarter(&self) -> f64 {
        ratio(self.cuts as f64, self.growth_quarters)
    }

    pub fn cache_hit(&self) -> f64 {
        ratio(self.sent.cached_tokens as f64, self.sent.tokens as f64)
    }

    pub fn upstream_cache_hit(&self) -> f64 {
        ratio(self.upstream_cached_tokens as f64, self.upstream_prompt_tokens as f64)
    }

    /// Bill relative to sending everything.
    pub fn billed(&self) -> f64 {
        ratio(self.sent.billed(), self.full.billed())
    }

    /// Share of the requests above the budget that was sent.
    pub fn sent_share(&self) -> f64 {
        ratio(self.above_sent_tokens as f64, self.above_full_tokens as f64)
    }

    pub fn merge(&mut self, other: &Self) {
        self.conversations += other.conversations;
        self.requests += other.requests;
        self.above += other.above;
        self.infeasible += other.infeasible;
        self.borderline += other.borderline;
        self.borderline_refused += other.borderline_refused;
        self.refused += other.refused;
        self.refused_by_priming += other.refused_by_priming;
        self.cuts += other.cuts;
        self.clipped += other.clipped;
        self.growth_quarters += other.growth_quarters;
        self.above_full_tokens += other.above_full_tokens;
        self.above_sent_tokens += other.above_sent_tokens;
        for (own, others) in [(&mut self.sent, other.sent), (&mut self.full, other.full)] {
            own.tokens += others.tokens;
            own.cached_tokens += others.cached_tokens;
        }
        self.upstream_prompt_tokens += other.upstream_prompt_tokens;
        self.upstream_cached_tokens += other.upstream_cached_tokens;
        for (own, others) in self.checks.iter_mut().zip(&other.checks) {
            own.made += others.made;
            own.failed += others.failed;
            let room = MAX_KEPT - own.failures.len();
            own.failures.extend(others.failures.iter().take(room).cloned());
        }
    }
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}
