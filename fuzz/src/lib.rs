//! Properties that hold for any bytes, one module per fuzz target. Each has one function, `check`,
//! that takes a libFuzzer input and panics if a property is violated; `reading` has a property that
//! two of them share.
//!
//! `tests/it/seeds.rs` includes these files too, to run the seeds without a fuzzer; they refer to
//! the product as the crate `weir` and use only its dependencies.

pub mod body;
pub mod config;
pub mod decode;
pub mod protocols;
pub mod readers;
pub mod reading;
pub mod recall_tool;
pub mod sse;
pub mod strip_usage;
pub mod target;
