//! Compaction of conversations. Pure: no I/O, no clock, no randomness.
//!
//! [`measure`] turns a message into a [`Fact`]. [`Fold`], the compaction state, takes facts one by
//! one and decides, at each point where a request could have ended, whether a compaction is due.
//! `edits` converts its decisions to edits of the caller's bytes. A plan of a longer transcript
//! extends that of a shorter one, because the state equals that of a proxy that watched from the
//! first message.

pub mod ahead;
pub mod anchors;
pub mod calibration;
mod calls;
pub mod clip;
mod compose;
mod condense;
mod cut;
mod edits;
mod ending;
mod evict;
mod excerpt;
mod extract;
pub mod fit;
pub mod fold;
pub mod history;
pub(crate) mod late_system;
pub mod learned;
mod leave;
pub mod limit;
pub mod mask;
pub mod measure;
mod note;
mod offer;
mod passages;
pub mod placeholder;
pub mod policy;
pub mod preset;
pub mod reading;
pub mod reasons;
pub mod reference;
pub mod report;
pub mod shares;
pub mod source;
mod speaker;
pub mod summary;
pub mod tail;
mod terms;
mod tiers;
mod told;
pub mod turn;
mod units;
mod values;
mod weight;
mod worth;

pub use ahead::{Ahead, Asking};
pub(crate) use edits::edits;
pub use fit::Floor;
pub use fold::{Fate, Fold};
pub use learned::{Configured, LearnedLimits, Lesson, MAX_RESENDS, Refused};
pub use limit::{Bound, Limits, Profile};
pub use measure::{Fact, Measure};
pub use policy::{Notes, Policy};
pub use reasons::Zone;
pub use reference::{REFERENCE_LENGTH, is_reference, reference};
pub use report::{Report, Verbosity};
pub use source::{RequestSource, Source};
pub use summary::Summary;
