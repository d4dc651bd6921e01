//! Budgets: what is spent and held of them, wherever that is counted.

mod counting;
mod killed;
mod places;
mod rates;
mod redis;
pub mod server;
