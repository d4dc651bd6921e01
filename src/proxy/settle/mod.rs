//! End of a request: its settlement, its cost, and the originals and the receipt that are kept of it.

mod account;
pub mod originals;
pub mod receipts;
pub mod recent;
pub mod settlement;
pub mod spend;
