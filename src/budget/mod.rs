//! What may be used: how often, how much. Pure; counts nothing by itself.

pub mod rate;
