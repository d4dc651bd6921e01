//! What to send of a conversation. Pure: no I/O, no clock, no randomness.
//!
//! [`measure`] turns a message into a [`Fact`]; [`Fold`] takes facts one by one and decides, at
//! each point where a request could have ended, whether a cut is due; [`edits()`] tells what the
//! decisions mean for the caller's bytes. A plan of a longer transcript extends that of a shorter
//! one, because the fold is what a proxy would have done that had watched from the first message.

pub mod ahead;
pub mod anchors;
pub mod calibration;
mod calls;
pub mod clip;
mod compose;
mod condense;
mod cut;
pub mod edits;
mod ending;
mod evict;
mod excerpt;
mod extract;
pub mod fit;
pub mod fold;
pub mod history;
pub mod late_system;
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
pub use edits::edits;
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
pub use tail::tail;
