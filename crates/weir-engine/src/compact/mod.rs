//! Compaction of conversations. Pure: no I/O, no clock, no randomness.
//!
//! [`measure`] turns a message into a [`Fact`]. [`Compactor`] takes facts one by one and decides, at
//! each point where a request could have ended, whether a compaction is due. `edits` converts its
//! decisions to edits of the caller's bytes. A plan of a longer transcript extends that of a shorter
//! one, because the state equals that of a proxy that watched from the first message.

mod advance;
pub mod anchors;
pub mod calibration;
mod calls;
pub mod clip;
mod compaction;
mod compose;
mod condense;
mod edits;
mod ending;
mod evict;
mod excerpt;
mod extract;
pub mod fit;
pub mod history;
pub(crate) mod late_system;
pub mod learned;
mod leave;
pub mod limit;
mod marks;
pub mod mask;
pub mod measure;
mod messages;
mod note;
mod note_summary;
mod offer;
mod passages;
pub mod placeholder;
pub mod policy;
pub mod prefetch;
pub mod preset;
pub mod reading;
pub mod reasons;
pub mod recall;
pub mod reference;
pub mod report;
pub mod shares;
pub mod source;
mod speaker;
pub mod state;
mod subject;
pub mod summary;
mod terms;
mod tiers;
pub mod turn;
mod units;
mod values;
mod weight;
mod worth;

pub(crate) use edits::edits;
pub use fit::Floor;
pub use learned::{LearnedLimits, Lesson, MAX_RESENDS, Refused};
pub use limit::{Bound, Configured, Limits, Profile};
pub use marks::Zone;
pub use measure::{Fact, Measure};
pub use messages::Fate;
pub use policy::{Notes, Policy};
pub use prefetch::{Prefetch, PrefetchSettings};
pub use reference::{REFERENCE_LENGTH, is_reference, reference};
pub use report::{Report, Verbosity};
pub use source::{RequestSource, Source};
pub use state::Compactor;
pub use summary::Summary;
