//! Link to the dashboard: printed, and opened in a browser where there is one. Never fails: the
//! printed link suffices.

use std::io::Write as _;
use std::process::Stdio;

use tokio::process::Command;

/// Prints the link on standard output, which is no log, and opens it.
pub(super) fn show(link: &str) {
    let is_opened = open(link);
    let said = if is_opened { "opened in a browser" } else { "open this link in a browser" };
    // A closed terminal needs no message.
    let _ = writeln!(
        std::io::stdout().lock(),
        "dashboard, {said} (it logs in once, within two minutes):\n\n  {link}\n"
    );
}

/// Opens `link` in the user's browser; returns whether one was started.
fn open(link: &str) -> bool {
    let Some(program) = program() else { return false };
    let mut command = Command::new(program);
    command.arg(link).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // The runtime collects the process when it ends.
    command.spawn().is_ok()
}

/// Returns the program that opens links; `None` without a screen, where one could take over the
/// terminal.
fn program() -> Option<&'static str> {
    if cfg!(target_os = "macos") {
        return Some("open");
    }
    if cfg!(windows) {
        return Some("explorer");
    }
    let has_screen = ["DISPLAY", "WAYLAND_DISPLAY"]
        .iter()
        .any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()));
    has_screen.then_some("xdg-open")
}
