//! Several upstreams behind one weir: which gets a request, as what, with which credential; and what
//! becomes of it where one fails.

mod credentials;
mod fallback;
mod faults;
mod keyed;
mod larger;
mod listed;
mod retried;
pub mod setting;
mod summed;
mod ways;
