//! Costs of requests, savings of compaction, and budgets: arithmetic on reported usage and known
//! prices. Has no clock, store or configuration; callers pass the figures.

pub mod calendar;
pub mod counter;
pub mod hold;
pub mod limit;
pub mod money;
pub mod outputs;
pub mod price;
pub mod rate;
pub mod saved;
pub mod scope;
pub mod window;

pub use hold::{Ask, HoldVerdict, Measure, Room};
pub use limit::{Budget, BudgetId};
pub use money::NanoUsd;
pub use price::{
    Billed, Cost, Kind, Most, OutputBound, Pieces, Price, Rates, ServiceTier, Tier, cost,
    cost_of_all,
};
pub use saved::{
    CACHE_FLOOR_TOKENS, Compaction, Observed, Rereads, part, planned_nano_usd, saved_nano_usd,
};
pub use scope::{Scope, ScopeKind, Scopes};
pub use window::{Span, Window};
