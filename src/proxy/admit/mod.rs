//! Admission: the caller, its rates, and the hosts and origins it may come through.

pub mod admission;
pub mod attribution;
pub mod caller;
pub mod class;
pub mod host;
pub mod request;
