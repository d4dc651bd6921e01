//! weir's promises as properties: random conversations in, and what is sent judged by code that
//! shares nothing with weir's own.

mod count;
mod fits;
mod frozen;
mod generate;
mod harness;
mod json;
mod judge;
mod left_alone;
mod regressions;
mod told;
mod transcript;
mod valid;
