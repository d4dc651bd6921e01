//! What to send of a conversation. Pure: no I/O, no clock, no randomness.

pub mod policy;

pub use policy::Policy;
