//! What requests add up to, before it is written to any table: usage by day, and what models usually
//! write. Bounded in rows, whatever names callers choose, and in numbers, whatever upstreams report.
//! Reads and writes nothing.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::frame::{Ending, Facts};
use super::{DAY_MS, Flags, Tenant};

/// The model that requests count under which no upstream took: callers may have made up its name.
pub const FAILED: &str = "(failed)";
/// What is counted under where a day or a tenant has as many rows as it may.
pub const OTHER: &str = "(other)";
/// The most rows of one tenant a day, beside those that gather the rest: one for each key.
pub const MAX_ROWS_A_TENANT_DAY: u64 = 1000;
/// The most rows a day for callers without a virtual key; further callers are nobody in particular.
pub const MAX_ROWS_A_DAY: u64 = 100_000;
/// The most models whose output is learned.
pub const MAX_LEARNED_MODELS: u64 = 10_000;

/// The most tokens of an answer that are learned from: sums of them stay far from what SQLite's
/// numbers hold.
const MAX_LEARNED_TOKENS: u64 = 1 << 40;

/// Figures over requests. Those that were not known count as zero.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sums {
    pub requests: u64,
    /// Without an answer of a status from 200 to 299.
    pub failed: u64,
    /// Flagged [`Flags::ESTIMATED`].
    pub estimated: u64,
    pub partly_priced: u64,
    pub unpriced: u64,
    pub received_tokens: u64,
    pub sent_tokens: u64,
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    pub cached_tokens: u64,
    pub cache_write_tokens: u64,
    pub reasoning_tokens: u64,
    pub cost_nano_usd: u64,
    pub saved_nano_usd: i64,
}

impl Sums {
    pub fn add(&mut self, other: &Self) {
        for (sum, more) in self.figures_mut().into_iter().zip(other.figures()) {
            *sum = sum.saturating_add(more);
        }
        self.saved_nano_usd = self.saved_nano_usd.saturating_add(other.saved_nano_usd);
    }

    fn figures_mut(&mut self) -> [&mut u64; 13] {
        [
            &mut self.requests,
            &mut self.failed,
            &mut self.estimated,
            &mut self.partly_priced,
            &mut self.unpriced,
            &mut self.received_tokens,
            &mut self.sent_tokens,
            &mut self.prompt_tokens,
            &mut self.completion_tokens,
            &mut self.cached_tokens,
            &mut self.cache_write_tokens,
            &mut self.reasoning_tokens,
            &mut self.cost_nano_usd,
        ]
    }

    pub fn figures(mut self) -> [u64; 13] {
        self.figures_mut().map(|figure| *figure)
    }
}

/// Where a request is counted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place<'a> {
    pub day: i64,
    pub tenant: [u8; 16],
    /// Empty for callers without a virtual key.
    pub key: Cow<'a, str>,
    pub team: Cow<'a, str>,
    pub organisation: Cow<'a, str>,
    pub user: Cow<'a, str>,
    pub model: Cow<'a, str>,
}

impl Place<'_> {
    /// The same, with its names its own.
    pub fn owned(&self) -> Place<'static> {
        let owned = |name: &Cow<'_, str>| Cow::Owned(name.to_string());
        Place {
            day: self.day,
            tenant: self.tenant,
            key: owned(&self.key),
            team: owned(&self.team),
            organisation: owned(&self.organisation),
            user: owned(&self.user),
            model: owned(&self.model),
        }
    }

    /// Whether it is a caller's without a virtual key.
    pub fn is_open(&self) -> bool {
        self.key.is_empty()
    }

    /// Moves a place that has no row yet to one of those that gather, where its tenant has rows
    /// enough on that day.
    pub fn bound_by_tenant(&mut self, rows_of_tenant: u64) {
        if self.is_open() && rows_of_tenant == 0 && self.model == FAILED {
            // A credential that no upstream has taken yet may be made up.
            self.tenant = Tenant::ANONYMOUS.0;
        } else if rows_of_tenant >= MAX_ROWS_A_TENANT_DAY && self.model != FAILED {
            self.model = OTHER.into();
        }
    }

    /// The same where the day has rows enough, one more for this place included. Places of virtual
    /// keys are not many, and are left.
    pub fn bound_by_day(&mut self, rows_of_day: u64) {
        if self.is_open() && rows_of_day > MAX_ROWS_A_DAY {
            self.tenant = Tenant::ANONYMOUS.0;
            self.model = OTHER.into();
        }
    }
}

/// What several requests add, written to each place once.
#[derive(Default)]
pub struct Added<'a> {
    pub places: BTreeMap<Place<'a>, Sums>,
    /// Answers that were seen to their end, and their tokens, by model.
    pub outputs: BTreeMap<Cow<'a, str>, (u64, u64)>,
}

impl<'a> Added<'a> {
    /// Counts a request that has ended.
    pub fn note(&mut self, facts: &Facts<'a>, ending: &Ending<'a>) {
        let [key, team, organisation, user] = facts.key.unwrap_or_default().map(Cow::Borrowed);
        let place = Place {
            day: i64::try_from(facts.begun_ms / DAY_MS).unwrap_or(i64::MAX),
            tenant: facts.tenant,
            key,
            team,
            organisation,
            user,
            model: facts.model.into(),
        };
        let sums = Sums {
            received_tokens: facts.received_tokens.unwrap_or(0),
            sent_tokens: facts.sent_tokens.unwrap_or(0),
            prompt_tokens: ending.prompt_tokens.unwrap_or(0),
            cached_tokens: ending.cached_tokens.unwrap_or(0),
            cache_write_tokens: ending.cache_write_tokens.unwrap_or(0),
            reasoning_tokens: ending.reasoning_tokens.unwrap_or(0),
            cost_nano_usd: ending.cost_nano_usd.unwrap_or(0),
            saved_nano_usd: ending.saved_nano_usd.unwrap_or(0),
            ..Sums::default()
        };
        self.add(place, ending.status, ending.flags, ending.completion_tokens, sums);
    }

    pub fn add(
        &mut self,
        mut place: Place<'a>,
        status: Option<u16>,
        flags: Flags,
        completion_tokens: Option<u64>,
        figures: Sums,
    ) {
        let is_success = status.is_some_and(|status| (200..300).contains(&status));
        let is_estimated = flags.any(Flags::ESTIMATED);
        if let Some(tokens) = completion_tokens.filter(|_| is_success && !is_estimated) {
            let (answers, sum) = self.outputs.entry(place.model.clone()).or_default();
            *answers += 1;
            *sum += tokens.min(MAX_LEARNED_TOKENS);
        }
        // Where the end was not seen the upstream may have taken it.
        if !is_success && !is_estimated {
            place.model = FAILED.into();
        }
        let sums = Sums {
            requests: 1,
            failed: u64::from(!is_success),
            estimated: u64::from(is_estimated),
            partly_priced: u64::from(flags.any(Flags::PARTLY_PRICED)),
            unpriced: u64::from(flags.any(Flags::UNPRICED)),
            completion_tokens: completion_tokens.unwrap_or(0),
            ..figures
        };
        self.places.entry(place).or_default().add(&sums);
    }
}

/// The most that is added at once: with it the largest sum is still a number that tables keep.
pub const MAX_ADDED: i64 = 1 << 61;

pub fn stored_sum(sum: u64) -> i64 {
    i64::try_from(sum).unwrap_or(i64::MAX).min(MAX_ADDED)
}
