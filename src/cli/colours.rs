//! Colours of output: whether a stream gets them, and the few that weir uses. Prints nothing.

use std::io::{stderr, stdout};

use anstream::{AutoStream, ColorChoice};
use clap::ValueEnum;

pub(super) const BOLD: &str = "1";
pub(super) const DIM: &str = "2";
pub(super) const RED: &str = "31";
pub(super) const GREEN: &str = "32";
pub(super) const YELLOW: &str = "33";
pub(super) const CYAN: &str = "36";

/// Shares of a limit, in percent, from which a bar is yellow and red.
pub(super) const NEAR_PERCENT: u64 = 70;
pub(super) const FULL_PERCENT: u64 = 90;

/// Value of `--color`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum When {
    #[default]
    Auto,
    Always,
    Never,
}

impl When {
    /// Decides for this process. `auto` follows `NO_COLOR`, `CLICOLOR_FORCE`, `TERM` and whether the
    /// stream is a terminal.
    pub(super) fn decide(self) {
        let choice = match self {
            Self::Auto => ColorChoice::Auto,
            Self::Always => ColorChoice::Always,
            Self::Never => ColorChoice::Never,
        };
        choice.write_global();
    }
}

/// Whether a stream gets colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Colours(pub bool);

impl Colours {
    pub(super) fn of_stdout() -> Self {
        Self(AutoStream::choice(&stdout()) != ColorChoice::Never)
    }

    pub(super) fn of_stderr() -> Self {
        Self(AutoStream::choice(&stderr()) != ColorChoice::Never)
    }

    /// Returns `text` in a colour.
    pub(super) fn paint(self, colour: &str, text: &str) -> String {
        match self.0 && !text.is_empty() {
            true => format!("\u{1b}[{colour}m{text}\u{1b}[0m"),
            false => text.to_owned(),
        }
    }

    /// Returns the first line of a table in bold.
    pub(super) fn head(self, table: &str) -> String {
        match table.split_once('\n') {
            Some((head, rows)) if self.0 => format!("{}\n{rows}", self.paint(BOLD, head)),
            _ => table.to_owned(),
        }
    }
}

/// Returns the colour of a share of a limit.
pub(super) fn of_percent(percent: u64) -> &'static str {
    match percent {
        FULL_PERCENT.. => RED,
        NEAR_PERCENT.. => YELLOW,
        _ => GREEN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_painted_only_if_the_stream_gets_colours() {
        assert_eq!(Colours(true).paint(RED, "a"), "\u{1b}[31ma\u{1b}[0m");
        assert_eq!(Colours(true).paint(RED, ""), "");
        assert_eq!(Colours(false).paint(RED, "a"), "a");
        assert_eq!(Colours(true).head("a b\nc\n"), "\u{1b}[1ma b\u{1b}[0m\nc\n");
        assert_eq!(Colours(false).head("a b\nc\n"), "a b\nc\n");
    }

    #[test]
    fn a_share_is_green_yellow_or_red() {
        for (percent, expected) in
            [(0, GREEN), (69, GREEN), (70, YELLOW), (89, YELLOW), (90, RED), (200, RED)]
        {
            assert_eq!(of_percent(percent), expected, "{percent}");
        }
    }
}
