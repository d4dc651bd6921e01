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
/// Maximum size of a line that says no more than an exit code.
const EXIT_BYTES: usize = 64;
/// Beginnings of lines that report an error, in lower case.
const OPENINGS: [&str; 27] = [
    "error",
    "fatal",
    "failed",
    "fail:",
    "fail ",
    "--- fail",
    "not ok ",
    "e   ",
    "panic",
    "thread '",
    "command failed",
    "assertionerror",
    "npm err",
    "make: ***",
    "ld: ",
    "uncaught ",
    "unhandled ",
    "● ",
    "✕ ",
    "✗ ",
    "<tool_use_error>",
    "[error]",
    "fehler",
    "erreur",
    "errore",
    "erro:",
    "ошибка",
];
/// Other words of such lines.
static INSIDE: LazyLock<Regex> = LazyLock::new(|| {
    any_of(&[
        "error[",
        "exception: ",
        "exception in ",
        "error:",
        ": error ",
        "  error  ",
        "error ts",
        "panicked at",
        "command not found",
        "is not recognized as ",
        "cannot find ",
        "no such file or directory",
        "undefined reference to ",
        "segmentation fault",
        "core dumped",
        "exit status ",
        "exited with code ",
        "timed out after ",
        "test result: failed",
        "错误：",
        "错误:",
        "エラー:",
        "エラー：",
        "오류:",
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
        let lines = match exit_code(&reading.text) {
            Some(0) => Vec::new(),
            code => error_lines(reading, reading.is_error || code.is_some() || traces(reading)),
        };
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

/// Whether a result is the trace of an exception, which ends with it.
fn traces(reading: &Reading) -> bool {
    reading.text.contains("Traceback (most recent call last)")
}

/// Returns the last units that report an error, the last first; of a result that `has_failed` those before its end,
/// too.
fn error_lines(reading: &Reading, has_failed: bool) -> Vec<usize> {
    let last = reading.units.len().saturating_sub(SEARCHED_UNITS)..reading.units.len();
    let units = |is_wanted: &dyn Fn(&str) -> bool| -> Vec<usize> {
        let is_wanted = |unit: &usize| is_wanted(said(reading, &reading.units[*unit]));
        last.clone().rev().filter(is_wanted).take(MOST_LINES).collect()
    };
    let reported = reading
        .findings
        .reports
        .get_or_init(|| units(&reports).into_iter().map(|unit| unit as u32).collect());
    let mut lines: Vec<usize> = reported.iter().map(|unit| *unit as usize).collect();
    let says = |unit: &usize| !is_exit(said(reading, &reading.units[*unit]));
    if has_failed && !lines.iter().any(says) {
        lines = units(&|line| line.contains(char::is_alphabetic) && !is_exit(line));
    }
    lines
}

/// Whether a line says with which code a program ended, and no more.
fn is_exit(line: &str) -> bool {
    line.len() <= EXIT_BYTES && exit_code(line).is_some()
}

/// Returns whether a line reports an error.
pub(crate) fn reports(line: &str) -> bool {
    let start = &line[..line.floor_char_boundary(240)];
    let lower = in_lower_case(start.trim_start());
    // A heading such as "errors:" says nothing of its own, and "Errors: 0 found" reports none.
    lower.contains(' ')
        && (OPENINGS.iter().any(|opening| lower.starts_with(opening)) || INSIDE.is_match(&lower))
        && !counts_none(&lower)
        && exit_code(start) != Some(0)
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
            ("src/app.ts(12,5): error TS2322: Type 'string' is not assignable.", true),
            ("npm ERR! code ELIFECYCLE", true),
            ("  ● sums › adds two numbers", true),
            ("<tool_use_error>File has not been read yet.</tool_use_error>", true),
            ("Segmentation fault (core dumped)", true),
            ("main.o: undefined reference to `open_gate'", true),
            ("collect2: error: ld returned 1 exit status", true),
            ("Get-Item : Cannot find path 'C:\\gate' because it does not exist.", true),
            ("--- FAIL: TestGate (0.00s)", true),
            ("Exception in thread \"main\" java.lang.NullPointerException", true),
            ("make: *** [all] Error 2", true),
            ("  3:5  error  'gate' is not defined  no-undef", true),
            ("Fehler: Datei nicht gefunden", true),
            ("Command timed out after 120 s", true),
            ("The gate opens without error.", false),
            ("Process exited with code 1 after 3 s", true),
            ("Process exited with code 0 after 3 s", false),
            ("exit status 0 of make", false),
            ("fn fail_gate() {", false),
        ] {
            assert_eq!(reports(line), expected, "{line}");
        }
    }

    /// The last lines of a command that failed count in any language.
    #[test]
    fn a_failed_result_shows_its_end() {
        let text = "Das Tor wird gebaut\nDie Datei gate.c fehlt\n\nAbbruch\nexit code: 2";
        let reading = Reading::of_text(crate::wire::Role::Tool, text);
        let shown = |has_failed: bool| -> Vec<&str> {
            let lines = error_lines(&reading, has_failed);
            lines.into_iter().map(|unit| said(&reading, &reading.units[unit])).collect()
        };
        assert_eq!(shown(true), ["Abbruch", "Die Datei gate.c fehlt", "Das Tor wird gebaut"]);
        assert!(shown(false).is_empty());
    }
}
