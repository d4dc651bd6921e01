//! TLS in and out, and whose connection a load balancer says that it passes on.

mod balancers;
mod listening;
pub mod setting;
mod renewed;
mod upstreams;
