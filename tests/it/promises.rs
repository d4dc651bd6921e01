//! weir's promises as properties: random conversations in, and what is sent judged by code that
//! shares nothing with weir's own.

mod adversarial;
mod bursts;
mod clients;
mod count;
mod excerpts;
mod explained;
mod fits;
mod frozen;
mod generate;
mod golden;
pub mod harness;
mod json;
mod judge;
mod late_questions;
mod left_alone;
mod planted;
mod presets;
mod process;
mod recorded;
mod regressions;
mod simulated;
mod summarised;
mod tail;
mod told;
mod transcript;
mod valid;
