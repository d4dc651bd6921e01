//! Progress of long work on standard error, if that is a terminal; removed at the end.

use std::io::{IsTerminal, Write, stderr};
use std::sync::Mutex;

use weir_engine::compact::report::shown::percent;

/// Width of the bar.
const WIDTH: u64 = 30;
/// Width that is cleared at the end.
const LINE_WIDTH: usize = 70;

/// Progress bar; drop removes it.
pub(super) struct Progress {
    is_shown: bool,
    label: &'static str,
    total: u64,
    state: Mutex<State>,
}

struct State {
    done: u64,
    /// Percent last drawn.
    drawn: Option<u64>,
}

impl Progress {
    /// Starts a bar for `total` steps. It is invisible without a terminal, or if `is_wanted` is false.
    pub(super) fn new(is_wanted: bool, label: &'static str, total: u64) -> Self {
        let is_shown = is_wanted && stderr().is_terminal();
        Self { is_shown, label, total, state: Mutex::new(State { done: 0, drawn: None }) }
    }

    /// Counts one more step as done.
    pub(super) fn step(&self) {
        self.update(|done| done + 1);
    }

    /// Sets the number of steps that are done.
    pub(super) fn set(&self, done: u64) {
        self.update(|_| done);
    }

    fn update(&self, change: impl FnOnce(u64) -> u64) {
        if !self.is_shown {
            return;
        }
        let mut state = self.state.lock().expect("nothing panics while it is held");
        state.done = change(state.done).min(self.total);
        let percent = percent(state.done, self.total);
        if state.drawn != Some(percent) {
            state.drawn = Some(percent);
            // If the bar cannot be shown, the work continues.
            let _ = write!(stderr(), "\r{}", line(self.label, state.done, self.total));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_shown {
            let _ = write!(stderr(), "\r{:LINE_WIDTH$}\r", "");
        }
    }
}

fn line(label: &str, done: u64, total: u64) -> String {
    let full = u128::from(done) * u128::from(WIDTH) / u128::from(total.max(1));
    let full = usize::try_from(full).unwrap_or(0).min(WIDTH as usize);
    let bar = "#".repeat(full) + &".".repeat(WIDTH as usize - full);
    format!("{label:10} [{bar}] {:3} % ({done}/{total})", percent(done, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_shows_the_share_that_is_done() {
        let full = "#".repeat(30);
        for (done, total, expected) in [
            (0, 10, format!("reading    [{}]   0 % (0/10)", ".".repeat(30))),
            (5, 10, format!("reading    [{}{}]  50 % (5/10)", "#".repeat(15), ".".repeat(15))),
            (10, 10, format!("reading    [{full}] 100 % (10/10)")),
            (0, 0, format!("reading    [{}]   0 % (0/0)", ".".repeat(30))),
        ] {
            assert_eq!(line("reading", done, total), expected);
        }
    }
}
