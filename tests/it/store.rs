//! What outlives a request: the seam, its implementations, and what weir keeps by it.

mod conformance;
mod file;
mod originals;
mod places;
