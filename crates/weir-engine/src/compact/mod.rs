//! Compaction of conversations. Pure: no I/O, no clock, no randomness.
//!
//! [`Measure`] turns a message into a [`Fact`]. [`Compactor`] takes facts one by one (`advance`) and
//! decides, at each point where a request could have ended, whether a compaction is due (`passes`).
//! `edits` converts its decisions to edits of the caller's bytes. A plan of a longer transcript
//! extends that of a shorter one, because the state equals that of a proxy that watched from the
//! first message.

#![warn(unreachable_pub)]

mod actions;
mod advance;
mod edits;
mod excerpt;
mod limits;
mod message;
mod passes;
pub mod policy;
mod prefetch;
pub mod recall;
pub mod receipt;
pub mod report;
pub mod source;
mod state;
pub mod summary;
mod survival;

pub(crate) use edits::edits;
pub(crate) use edits::late_system;
pub use limits::learned::{LearnedLimits, Lesson, MAX_RESENDS, Refused};
pub use limits::{Bound, Configured, Limits, Profile, calibration, learned};
pub use message::measure::{Fact, Measure};
pub use message::reading;
pub use message::reference::{REFERENCE_LENGTH, is_reference, reference};
pub use passes::fit::Floor;
pub use policy::{Notes, Policy, anchors, preset};
pub use prefetch::{Prefetch, PrefetchSettings};
pub use report::{Report, Verbosity, reasons};
pub use source::{RequestSource, Source};
pub use state::marks::Zone;
pub use state::messages::Fate;
pub use state::{Compactor, Repeated, history};
pub use summary::Summary;
