//! Planning of requests: limits, counts and compaction by the engine, with caches that save repeated
//! work. Sends nothing.

pub mod decisions;
mod draft;
mod effort;
mod explain;
pub mod inspect;
mod parallel;
mod plan_cache;
pub mod planned;
mod planner;
mod prefix_cache;
mod question;
mod read_ahead;
mod readings;
pub mod refusal;
pub mod shared;

pub use self::explain::{Explained, with_messages};
pub use self::planned::{
    BudgetReport, Job, LeftOut, Planned, ShortenedItems, UNREAD, WithoutRecall,
};
pub use self::planner::{Planner, PlannerParts};
pub use self::question::Question;
pub use self::read_ahead::ReadAhead;
pub use self::shared::PlanState;
pub use super::admit::request::RequestOptions;
