//! Choices of the configuration: their words, with the values that they stand for.

use super::words::{Worded, worded};
use weir_engine::compact::policy::{FileHints, Fill, Importance, Notes, Restart};

/// Returns the words of `T`.
pub(super) fn words<T: Worded>() -> Vec<&'static str> {
    T::WORDS.iter().map(|(word, _)| *word).collect()
}

/// Declares the words of a type of the engine.
macro_rules! words_of {
    ($type:ident: $($word:literal = $value:ident),+) => {
        impl Worded for $type {
            const WORDS: &'static [(&'static str, Self)] = &[$(($word, Self::$value)),+];
        }
    };
}

words_of!(FileHints: "off" = Off, "minimal" = Minimal, "normal" = Normal, "full" = Full);
words_of!(Fill: "low_mark" = LowMark, "greedy" = Greedy);
words_of!(Importance: "role" = Role, "reference" = Reference);
words_of!(Notes: "off" = Nothing, "count" = Count, "extract" = Extract, "excerpts" = Excerpts);
words_of!(Restart: "off" = Never, "second_hard" = SecondHard, "exhausted" = Exhausted);

worded! {
    /// When weir requests usage for a streamed chat whose caller did not.
    AskUsage {
        /// Always, except for models for which the upstream refused it.
        Auto = "auto",
        /// Always; an upstream that has refused it is asked again with each request.
        Always = "always",
        Never = "never",
    }

    /// Who may call.
    #[derive(Default)]
    AuthMode {
        /// Anyone, with their own provider key.
        #[default]
        Open = "open",
        /// Holders of virtual keys.
        Keys = "keys",
    }

    /// What weir lowers in requests so that their budgets last.
    Clamp {
        Off = "off",
        /// The output limit, to what is left.
        Output = "output",
        /// Also the limit of conversations, to half of it, once most of a budget is spent.
        Context = "context",
    }

    /// Who compacts a conversation if its caller asks for it.
    CompactsBy {
        /// The upstream if it is OpenAI's or Anthropic's own, else weir.
        Auto = "auto",
        Weir = "weir",
        Upstream = "upstream",
    }

    /// When a conversation moves to the larger model.
    #[derive(Default)]
    LargerWhen {
        /// If it would be refused.
        #[default]
        Refused = "refused",
        /// Also if it would be compacted.
        Cut = "compacted",
    }

    /// Handling of a system message after other messages.
    #[derive(Default)]
    LateSystem {
        /// It stays unchanged.
        #[default]
        Keep = "keep",
        /// It becomes a user message, for chat templates that refuse it.
        User = "user",
    }

    /// Form of the log.
    LogFormat {
        Text = "text",
        Json = "json",
    }

    /// Handling of a conversation above its high mark.
    Mode {
        /// Compacts it below the limit.
        Compact = "compact",
        /// Plans and reports, but forwards it unchanged.
        Observe = "observe",
    }

    /// Handling of a request that cannot be recorded before it is sent.
    OnFailure {
        /// It is sent anyway.
        Open = "open",
        /// It is refused.
        Closed = "closed",
    }

    /// Where the full text of shortened or removed messages is kept for later retrieval.
    Originals {
        /// Nowhere.
        Off = "off",
        /// In this process only.
        Memory = "memory",
        /// In the store.
        Store = "store",
    }

    /// When a model writes summaries.
    SummaryMode {
        /// In the background if a model is configured, otherwise never.
        Auto = "auto",
        /// Never; stored summaries are not used either.
        Off = "off",
        /// Never; summaries already in conversations' frozen parts stay.
        Extract = "extract",
        /// In the background, before the compaction that needs it; no request waits.
        Background = "background",
        /// As `Background`, but a compaction whose summary is not ready waits for it.
        Wait = "wait",
    }

    /// Cost of a request whose model has no known price.
    UnknownPrice {
        /// Zero; its record is marked as unpriced.
        Zero = "zero",
        /// The request is refused.
        Reject = "reject",
        /// The default price applies.
        Default = "default",
    }
}
