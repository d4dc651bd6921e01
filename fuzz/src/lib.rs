//! What must hold of any bytes at all, one module for each fuzz target. Each has one function,
//! `check`, that takes an input of libFuzzer's and panics where a property does not hold.
//!
//! `tests/it/seeds.rs` reads these files too, so that the seeds are tried without a fuzzer; they
//! name the product as the crate `weir` and use no dependency that it lacks.

pub mod body;
pub mod config;
pub mod decode;
pub mod sse;
pub mod target;
pub mod unasked;
