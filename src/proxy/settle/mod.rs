//! End of a request: its outcome, its cost and its log line.

pub mod outcome;
pub mod record;
pub mod settlement;
