//! Words of the configuration's choices, with the values that they stand for.

use super::keys::Choice;
use super::{
    AskUsage, AuthMode, CompactsBy, LargerWhen, LateSystem, LogFormat, Mode, OnFailure, Originals,
    SummaryMode, UnknownPrice,
};
use weir_engine::compact::policy::{FileHints, Fill, Importance, Notes, Restart};

/// Declares the words of a type.
macro_rules! choice {
    ($type:ident: $($word:literal = $value:ident),+) => {
        impl Choice for $type {
            const WORDS: &'static [(&'static str, Self)] = &[$(($word, Self::$value)),+];
        }
    };
}

choice!(AskUsage: "auto" = Auto, "always" = Always, "never" = Never);
choice!(AuthMode: "open" = Open, "keys" = Keys);
choice!(CompactsBy: "auto" = Auto, "weir" = Weir, "upstream" = Upstream);
choice!(FileHints: "off" = Off, "minimal" = Minimal, "normal" = Normal, "full" = Full);
choice!(Fill: "low_mark" = LowMark, "greedy" = Greedy);
choice!(Importance: "role" = Role, "reference" = Reference);
choice!(LargerWhen: "refused" = Refused, "compacted" = Cut);
choice!(LateSystem: "keep" = Keep, "user" = User);
choice!(LogFormat: "text" = Text, "json" = Json);
choice!(Mode: "compact" = Compact, "observe" = Observe);
choice!(Notes: "off" = Nothing, "count" = Count, "extract" = Extract, "excerpts" = Excerpts);
choice!(OnFailure: "open" = Open, "closed" = Closed);
choice!(Originals: "off" = Off, "memory" = Memory, "store" = Store);
choice!(Restart: "off" = Never, "second_hard" = SecondHard, "exhausted" = Exhausted);
choice!(
    SummaryMode: "auto" = Auto, "off" = Off, "extract" = Extract, "background" = Background,
    "wait" = Wait
);
choice!(UnknownPrice: "zero" = Zero, "reject" = Reject, "default" = Default);
