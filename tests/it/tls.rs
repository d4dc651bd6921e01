//! TLS in and out, and whose connection a load balancer says that it passes on.

mod balancers;
mod listening;
mod renewed;
pub mod setting;
mod upstreams;
