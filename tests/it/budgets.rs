//! Budgets: amounts spent and held, in each place that counts them.

mod counting;
mod killed;
mod places;
mod rates;
mod redis;
pub mod server;
mod takeover;
