//! Enumerations whose values are written as words: in the configuration, in answers, logs and metrics.

/// A type whose values are written as words.
pub(crate) trait Worded: Copy + 'static {
    /// Values by their words, in the order of the documentation.
    const WORDS: &'static [(&'static str, Self)];
}

/// Declares types with the words of their values.
macro_rules! worded {
    ($($(#[$of:meta])+ $type:ident { $($(#[$meta:meta])* $value:ident = $word:literal,)+ })+) => {
        $(
            $(#[$of])+
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
            pub enum $type { $($(#[$meta])* $value),+ }

            impl $type {
                /// Returns its word.
                pub fn word(self) -> &'static str {
                    match self { $(Self::$value => $word),+ }
                }
            }

            impl $crate::config::words::Worded for $type {
                const WORDS: &'static [(&'static str, Self)] = &[$(($word, Self::$value)),+];
            }
        )+
    };
}

pub(crate) use worded;
