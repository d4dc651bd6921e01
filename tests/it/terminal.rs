//! The terminal: sizes of requests, a first configuration, the live view, completions, manual pages,
//! and colours.

mod colours;
mod init;
#[cfg(unix)]
mod screen;
mod shells;
mod tokens;
mod top;

use std::process::Command;

/// Runs a command; returns its exit code, standard output and standard error.
fn ended(command: &mut Command) -> (Option<i32>, String, String) {
    let output = command.output().expect("weir starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}
