//! Budgets as callers meet them: what is refused and how, what is held and given back, and that nothing
//! is overspent, whoever races with whom and whatever is killed.

mod command;
mod enforced;
mod phantom;
pub mod race;
pub mod setting;
