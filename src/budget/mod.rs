//! What requests cost, what compaction saved and what may be used: arithmetic on reported figures and
//! known prices.
//! Knows no clock, no store and no configuration; whoever asks brings the figures.

pub mod calendar;
pub mod money;
pub mod price;
pub mod rate;
pub mod saved;

pub use money::NanoUsd;
pub use price::{Billed, Cost, Price, Rates, ServiceTier, Tier, cost};
pub use saved::{Compaction, saved_nano_usd};
