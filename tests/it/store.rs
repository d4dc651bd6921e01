//! What outlives a request: the seam, its implementations, and what weir keeps by it.

mod conformance;
mod file;
pub mod originals;
pub mod places;
