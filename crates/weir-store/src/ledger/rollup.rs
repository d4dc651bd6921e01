//! Rollups of requests before they are written to tables: daily usage, and typical output sizes of
//! models. Bounded in rows for any names that callers choose, and in values for any figures that
//! upstreams report. Pure: no I/O.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::{DAY_MS, Flags};
use crate::Tenant;
use crate::budget::ScopeKind;
use crate::sql::SqlValue;
use crate::wal::record::{IntentRecord, SettlementRecord};

/// Model name for requests that no upstream accepted: callers may have invented theirs.
pub const FAILED: &str = "(failed)";
/// Maximum rows of a tenant and day above which models with failures alone get no row: callers may invent
/// them.
const MAX_FAILED_ROWS_A_TENANT_DAY: u64 = 100;
/// Name for the remainder once a day or a tenant has its maximum number of rows.
pub const OTHER: &str = "(other)";
/// Maximum rows per tenant and day, besides one remainder row per key.
pub const MAX_ROWS_A_TENANT_DAY: u64 = 1000;
/// Maximum rows per day for callers without a virtual key; further callers are counted together.
pub const MAX_ROWS_A_DAY: u64 = 100_000;
/// Maximum number of models with learned output sizes.
pub const MAX_LEARNED_MODELS: u64 = 10_000;

/// Maximum tokens per answer used for learning; sums stay far below SQLite's integer limit.
const MAX_LEARNED_TOKENS: u64 = 1 << 40;

/// Totals over requests. Unknown figures count as zero.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    pub requests: u64,
    /// Requests without an answer of status 200 to 299.
    pub failed: u64,
    /// Requests with [`Flags::ESTIMATED`].
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
    /// What compactions that observe mode left out would have saved.
    pub planned_saved_nano_usd: i64,
}

impl Totals {
    pub fn add(&mut self, other: &Self) {
        for (sum, more) in self.figures_mut().into_iter().zip(other.figures()) {
            *sum = sum.saturating_add(more);
        }
        self.saved_nano_usd = self.saved_nano_usd.saturating_add(other.saved_nano_usd);
        self.planned_saved_nano_usd =
            self.planned_saved_nano_usd.saturating_add(other.planned_saved_nano_usd);
    }

    /// Returns the figures but the savings, in the order of their columns.
    pub(super) fn figures_mut(&mut self) -> [&mut u64; 13] {
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

    pub(super) fn figures(mut self) -> [u64; 13] {
        self.figures_mut().map(|figure| *figure)
    }

    /// Returns the values of its columns, in the order of [`COUNT_COLUMNS`](super::query::COUNT_COLUMNS) and
    /// [`SUM_COLUMNS`](super::query::SUM_COLUMNS): no larger than one addition may be.
    pub(crate) fn values(&self) -> [SqlValue<'static>; 15] {
        let whole = self.figures().map(stored_total);
        let signed = [self.saved_nano_usd, self.planned_saved_nano_usd];
        let signed = signed.map(|sum| sum.clamp(-MAX_ADDITION, MAX_ADDITION));
        std::array::from_fn(|place| {
            SqlValue::Number(
                whole.get(place).copied().unwrap_or_else(|| signed[place - whole.len()]),
            )
        })
    }
}

/// Row of daily usage in which a request counts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct UsageKey<'a> {
    pub day: i64,
    pub tenant: [u8; 16],
    /// Empty for callers without a virtual key.
    pub key: Cow<'a, str>,
    pub team: Cow<'a, str>,
    pub organisation: Cow<'a, str>,
    pub user: Cow<'a, str>,
    pub model: Cow<'a, str>,
}

impl UsageKey<'_> {
    /// Returns a copy that owns its names.
    pub(crate) fn owned(&self) -> UsageKey<'static> {
        let owned = |name: &Cow<'_, str>| Cow::Owned(name.to_string());
        UsageKey {
            day: self.day,
            tenant: self.tenant,
            key: owned(&self.key),
            team: owned(&self.team),
            organisation: owned(&self.organisation),
            user: owned(&self.user),
            model: owned(&self.model),
        }
    }

    /// Returns the values of its columns.
    pub(crate) fn values(&self) -> [SqlValue<'_>; 7] {
        let Self { key, team, organisation, user, model, .. } = self;
        let [key, team, organisation, user, model] =
            [key, team, organisation, user, model].map(|name| SqlValue::from(&**name));
        [self.day.into(), self.tenant[..].into(), key, team, organisation, user, model]
    }

    /// Returns whether the caller has no virtual key.
    pub(crate) fn is_open(&self) -> bool {
        self.key.is_empty()
    }

    /// Beginning of the names of budgets for its model. Rows of such a model stay apart: otherwise models that
    /// callers invent would make what is spent of the budget unknown.
    pub(crate) fn budgets_of_model(&self) -> String {
        format!("{}:{}/", ScopeKind::Model.word(), self.model)
    }

    /// Replaces a new row by the remainder row if its tenant has too many rows on that day.
    pub(crate) fn bound_by_tenant(&mut self, rows_of_tenant: u64, totals: &Totals) {
        // If the end was not seen, the upstream may have accepted it.
        // An attempt that another followed counts as none, but for its tokens.
        let has_failed = totals.failed == totals.requests
            && totals.estimated == 0
            && (totals.requests > 0 || totals.prompt_tokens == 0);
        if self.is_open() && rows_of_tenant == 0 && has_failed {
            // A credential that no upstream has accepted may be invented.
            self.tenant = Tenant::ANONYMOUS.0;
            self.model = FAILED.into();
        } else if rows_of_tenant >= MAX_FAILED_ROWS_A_TENANT_DAY && has_failed {
            self.model = FAILED.into();
        } else if rows_of_tenant >= MAX_ROWS_A_TENANT_DAY {
            self.model = OTHER.into();
        }
    }

    /// The same if the day has too many rows; `rows_of_day` includes this one. Rows of virtual keys
    /// are few and stay.
    pub(crate) fn bound_by_day(&mut self, rows_of_day: u64) {
        if self.is_open() && rows_of_day > MAX_ROWS_A_DAY {
            self.tenant = Tenant::ANONYMOUS.0;
            self.model = OTHER.into();
        }
    }
}

/// Rollup of several requests, written to each row once.
#[derive(Default)]
pub(crate) struct Rollup<'a> {
    pub usage: BTreeMap<UsageKey<'a>, Totals>,
    /// Number and tokens of completely read answers, by model.
    pub outputs: BTreeMap<Cow<'a, str>, (u64, u64)>,
}

impl<'a> Rollup<'a> {
    /// Adds an ended request.
    pub(crate) fn add_request(
        &mut self,
        intent: &IntentRecord<'a>,
        settlement: &SettlementRecord<'a>,
    ) {
        let names = intent.key.clone().unwrap_or_default();
        let key = UsageKey {
            day: i64::try_from(intent.begun_ms / DAY_MS).unwrap_or(i64::MAX),
            tenant: intent.tenant,
            key: names.key.into(),
            team: names.team.into(),
            organisation: names.organisation.into(),
            user: names.user.into(),
            model: intent.model.into(),
        };
        let totals = Totals {
            received_tokens: intent.received_tokens.unwrap_or(0),
            sent_tokens: intent.sent_tokens.unwrap_or(0),
            prompt_tokens: settlement.prompt_tokens.unwrap_or(0),
            cached_tokens: settlement.cached_tokens.unwrap_or(0),
            cache_write_tokens: settlement.cache_write_tokens.unwrap_or(0),
            reasoning_tokens: settlement.reasoning_tokens.unwrap_or(0),
            cost_nano_usd: settlement.cost_nano_usd.unwrap_or(0),
            saved_nano_usd: settlement.saved_nano_usd.unwrap_or(0),
            planned_saved_nano_usd: settlement.planned_saved_nano_usd.unwrap_or(0),
            ..Totals::default()
        };
        self.add_at(key, settlement.status, settlement.flags, settlement.completion_tokens, totals);
    }

    pub(crate) fn add_at(
        &mut self,
        key: UsageKey<'a>,
        status: Option<u16>,
        flags: Flags,
        completion_tokens: Option<u64>,
        figures: Totals,
    ) {
        let is_success = status.is_some_and(|status| (200..300).contains(&status));
        let is_estimated = flags.any(Flags::ESTIMATED);
        if let Some(tokens) = completion_tokens.filter(|_| is_success && !is_estimated) {
            let (answers, sum) = self.outputs.entry(key.model.clone()).or_default();
            *answers += 1;
            *sum += tokens.min(MAX_LEARNED_TOKENS);
        }
        let is_request = !flags.any(Flags::REPLACED);
        let totals = Totals {
            requests: u64::from(is_request),
            failed: u64::from(is_request && !is_success),
            estimated: u64::from(is_estimated),
            partly_priced: u64::from(flags.any(Flags::PARTLY_PRICED)),
            unpriced: u64::from(flags.any(Flags::UNPRICED)),
            completion_tokens: completion_tokens.unwrap_or(0),
            ..figures
        };
        self.usage.entry(key).or_default().add(&totals);
    }
}

/// Maximum single addition: with it, the largest sum still fits the tables' integers.
const MAX_ADDITION: i64 = 1 << 61;

pub(crate) fn stored_total(sum: u64) -> i64 {
    i64::try_from(sum).unwrap_or(i64::MAX).min(MAX_ADDITION)
}
