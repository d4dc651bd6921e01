//! Several upstreams behind one weir: which one gets a request, under which model and credential,
//! and the result if one fails.

mod begun;
mod causes;
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
