//! cli

pub mod models;
pub mod sources;
