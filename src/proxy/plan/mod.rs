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
mod readings;
pub mod refusal;
pub mod shared;

pub use self::explain::{Explained, with_messages};
pub use self::plan_cache::CacheFigures;
pub use self::planned::{Job, Planned, RequestOptions, WithoutRecall};
pub use self::planner::{Planner, PlannerParts};
pub use self::question::Question;
pub use self::readings::ReadAhead;
pub use self::shared::PlanState;
