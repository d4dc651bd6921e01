//! Costs of requests: held and recorded before they are sent.

pub mod account;
pub mod bound;
pub mod budgets;
pub mod deferred;
pub mod journal;
pub mod prices;
