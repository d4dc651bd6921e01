//! Responses and Messages: conversations of chat completions retold in the other two protocols get the
//! same plans, and what is sent is valid by a checker that shares no code with weir.

mod agents;
mod clearing;
mod kinds;
mod managed;
mod notices;
mod retold;
mod same_plans;
pub mod service;
mod thinking;
pub mod through;
pub mod validity;
