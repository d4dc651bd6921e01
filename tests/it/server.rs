//! Listening side, driven by raw bytes on loopback sockets.

mod by_bytes;
mod drain;
mod encoding;
mod ending;
pub mod harness;
mod limits;
mod policies;
mod surface;
mod usage;
