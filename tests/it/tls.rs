//! TLS in and out, and the client address that a load balancer reports.

mod balancers;
mod listening;
mod renewed;
pub mod setting;
mod upstreams;
