//! Recognition of errors not yet resolved: the newest failing result of a command that has not succeeded
//! since. The command may be a call, or stand in the text of an agent without tools. Pure.

use std::collections::HashMap;
use std::sync::LazyLock;

use regex::Regex;
use xxhash_rust::xxh3::xxh3_64;

use super::calls::{Called, Calls};
use super::parts::{marked, said};
use crate::compact::excerpt::conclusions::any_of;
use crate::compact::excerpt::subject::Subject;
use crate::compact::excerpt::weight::Seeded;
use crate::compact::message::placeholder::exit_code;
use crate::compact::message::reading::Reading;
use crate::tokens::letters::in_lower_case;

/// Maximum number of errors, and of lines of each.
const MOST_ERRORS: usize = 3;
const MOST_LINES: usize = 3;
/// Last units of a result that are searched for the error.
const SEARCHED_UNITS: usize = 200;
/// Calls back from the newest one within which an error still matters.
const RECENT_CALLS: usize = 40;
/// Beginnings of lines that report an error, in lower case.
const OPENINGS: [&str; 9] = [
    "error",
    "fatal",
    "failed",
    "fail:",
    "e   ",
    "panic",
    "thread '",
    "command failed",
    "assertionerror",
];
/// Other words of such lines.
static INSIDE: LazyLock<Regex> = LazyLock::new(|| {
    any_of(&[
        "error[",
        "exception: ",
        "error:",
        "panicked at",
        "command not found",
        "no such file or directory",
        "test result: failed",
    ])
});

/// Returns the units of unresolved errors, each with its message: the head of the call, then the error.
pub(super) fn of(subject: &Subject<'_>, calls: &Calls) -> Vec<(usize, usize)> {
    let is_gone = marked(subject.gone, subject.readings.len());
    let mut newest: HashMap<u64, bool, Seeded> = HashMap::default();
    let mut wanted = Vec::new();
    let mut errors = 0;
    for call in calls.list.iter().rev().take(RECENT_CALLS) {
        let Some(result) = call.result else { continue };
        let (name, arguments) = call.parts(subject.readings);
        let command = xxh3_64(format!("{name}\n{}", arguments.trim()).as_bytes());
        if newest.contains_key(&command) {
            continue;
        }
        let reading = &subject.readings[result];
        let code = exit_code(&reading.text);
        let lines = if code == Some(0) { Vec::new() } else { error_lines(reading) };
        newest.insert(command, lines.is_empty());
        if lines.is_empty() || errors == MOST_ERRORS || !is_gone[result] {
            continue;
        }
        errors += 1;
        wanted.extend(head(subject, call, &is_gone));
        wanted.extend(lines.into_iter().map(|unit| (result, unit)));
    }
    wanted
}

/// Returns the first unit of a call's arguments.
fn head(subject: &Subject<'_>, call: &Called, is_gone: &[bool]) -> Option<(usize, usize)> {
    let units = call.units(&subject.readings[call.message]);
    is_gone[call.message]
        .then_some(units.start)
        .filter(|unit| *unit < units.end)
        .map(|unit| (call.message, unit))
}

/// Returns the last units that report an error.
fn error_lines(reading: &Reading) -> Vec<usize> {
    let from = reading.units.len().saturating_sub(SEARCHED_UNITS);
    let mut lines: Vec<usize> = (from..reading.units.len())
        .rev()
        .filter(|unit| reports(said(reading, &reading.units[*unit])))
        .take(MOST_LINES)
        .collect();
    lines.reverse();
    lines
}

/// Returns whether a line reports an error.
pub(crate) fn reports(line: &str) -> bool {
    let start = &line[..line.floor_char_boundary(240)];
    let lower = in_lower_case(start.trim_start());
    // A heading such as "errors:" says nothing of its own, and "Errors: 0 found" reports none.
    lower.contains(' ')
        && (OPENINGS.iter().any(|opening| lower.starts_with(opening)) || INSIDE.is_match(&lower))
        && !counts_none(&lower)
}

/// Returns whether a line says that the number of errors is 0.
fn counts_none(lower: &str) -> bool {
    let rest = lower.trim_start_matches(|own: char| own.is_alphabetic());
    let number = rest.trim_start_matches([':', ' ', '=']);
    number.len() < rest.len()
        && number.strip_prefix('0').is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_report_an_error_are_found() {
        for (line, expected) in [
            ("error[E0432]: unresolved import", true),
            ("ModuleNotFoundError: No module named 'x'", true),
            ("bash: foo: command not found", true),
            ("FAILED tests/test_a.py::test_b", true),
            ("fatal: not a git repository", true),
            ("0 errors, 3 warnings", false),
            ("Errors: 0 found", false),
            ("Failed: 0, passed: 12", false),
            ("Failed: 2, passed: 10", true),
            ("error 0x80004005 in gate", true),
            ("failures:", false),
            ("error:", false),
            ("def error_page(request):", false),
            ("all tests passed", false),
        ] {
            assert_eq!(reports(line), expected, "{line}");
        }
    }
}
