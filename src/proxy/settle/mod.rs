//! End of a request: its outcome, its cost, its log line, and the originals and the receipt
//! that are kept of it.

pub mod originals;
pub mod outcome;
pub mod receipts;
pub mod recent;
pub mod record;
pub mod settlement;
mod spans;
pub mod spend;
