//! Budgets as callers see them: refusals, holds and their release. No budget is overspent under
//! concurrent requests or killed processes.

mod bounds;
mod command;
mod enforced;
mod left;
mod phantom;
pub mod race;
pub mod setting;
mod takeover;
