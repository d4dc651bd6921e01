//! weir's invariants as properties: random conversations go in, and code that shares nothing with
//! weir's own judges the sent requests.

mod adversarial;
mod bursts;
mod clients;
mod count;
mod decay;
mod excerpts;
mod explained;
mod fits;
mod frozen;
pub mod generate;
mod golden;
pub mod harness;
mod json;
mod judge;
mod late;
mod late_questions;
mod left_alone;
mod planted;
mod presets;
mod process;
mod recall;
mod recorded;
mod regressions;
mod reported;
mod simulated;
mod summarised;
mod survival;
mod transcript;
mod valid;
