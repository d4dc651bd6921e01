//! Whether an action succeeded, by its result: the one judge of it. Pure.

use super::tools::Tool;
use crate::compact::message::placeholder::exit_code;
use crate::compact::message::reading::Reading;

/// Size of the beginning of a result that is read.
const MOST_BYTES: usize = 240;
/// Words of a result that say that an action failed, in lower case.
const FAILURES: [&str; 30] = [
    "error",
    "exception",
    "traceback",
    "failed",
    "failure",
    "fails ",
    "invalid",
    "denied",
    "rejected",
    "refused",
    "aborted",
    "cancelled by",
    "not found",
    "no such file",
    "no match",
    "no replacement",
    "no changes",
    "not exist",
    "n't exist",
    "did not",
    "does not",
    "cannot",
    "can't",
    "could not",
    "couldn't",
    "unable to",
    "not allowed",
    "not permitted",
    "is a directory",
    "read-only file",
];
/// Phrases with one of these words that say that nothing went wrong.
const FINE: [&str; 8] = [
    "no errors",
    "no error",
    "0 errors",
    "without errors",
    "without error",
    "\"error\":null",
    "\"errors\":[]",
    "\"is_error\":false",
];
/// Members of a result in JSON that say that an action failed.
const FLAGS: [&str; 4] =
    ["\"success\":false", "\"ok\":false", "\"status\":\"error\"", "\"is_error\":true"];

/// Beginnings of results that say of any action that it failed or was refused, in lower case.
const OPENINGS: [&str; 9] = [
    "error",
    "<tool_use_error>",
    "failed",
    "permission denied",
    "the user doesn't want",
    "user rejected",
    "user denied",
    "the user denied",
    "the user rejected",
];

/// Whether a result says so plainly that its action failed that the call may be marked: what a command or a search
/// prints may well be about errors.
pub(crate) fn shows_failure(result: &Reading, tool: Tool) -> bool {
    let exited = || exit_code(&result.text).is_some_and(|code| code != 0);
    let says = tool.edits_files && says_failure(&result.text);
    if result.is_error || says || (tool.runs_commands && exited()) {
        return true;
    }
    let line = result.text.trim_start().lines().next().unwrap_or_default();
    let line = line[..line.floor_char_boundary(MOST_BYTES)].to_lowercase();
    let dense: String = line.split_whitespace().collect();
    OPENINGS.iter().any(|own| line.starts_with(own))
        || line.starts_with('{') && FLAGS.iter().any(|flag| dense.contains(flag))
}

/// Whether a result says that its action failed: by its mark, or in its first line.
pub(crate) fn has_failed(result: &Reading) -> bool {
    result.is_error || says_failure(&result.text)
}

/// Whether the first line of a text says that an action failed. Names of files and functions say nothing:
/// an edit of `src/errors.rs` may well have succeeded.
fn says_failure(text: &str) -> bool {
    let line = text.trim_start().lines().next().unwrap_or_default();
    let line = line[..line.floor_char_boundary(MOST_BYTES)].to_lowercase();
    let is_word = |word: &&str| {
        let word = word.trim_end_matches(['.', ',', ';', ':', ')', '\'', '"']);
        !word.contains(['/', '\\', '_', '.'])
    };
    let joined = |separator: &str, is_meant: &dyn Fn(&&str) -> bool| {
        line.split_whitespace().filter(is_meant).collect::<Vec<&str>>().join(separator)
    };
    if line.starts_with("<tool_use_error>") {
        return true;
    }
    if line.starts_with(['{', '[']) {
        let dense = joined("", &|_| true);
        if FLAGS.iter().any(|flag| dense.contains(flag)) {
            return true;
        }
        if dense.contains("\"success\":true") || dense.contains("\"ok\":true") {
            return false;
        }
    }
    let mut said = joined(" ", &is_word);
    for fine in FINE {
        if said.contains(fine) {
            said = said.replace(fine, "");
        }
    }
    FAILURES.iter().any(|own| said.contains(own))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Protocol, Role};

    #[test]
    fn a_failure_shows_in_its_beginning() {
        for (said, fails) in [
            ("Error: no match for old_str", true),
            ("The file a.rs was edited.", false),
            ("Done.\n", false),
            ("The file /repo/src/errors.rs has been updated.\n 1 error();", false),
            ("Updated invalid_input.py and failed-jobs.rb", false),
            ("Error: /repo/a.rs has no match.", true),
            ("/repo/a.rs: FAILED", true),
            ("File not found: src/gate.rs", true),
            ("Permission denied", true),
            ("src/gate.rs does not exist", true),
            ("src/gate.rs doesn't exist", true),
            ("Cannot write to src/gate.rs: Read-only file system", true),
            ("Couldn't open it.", true),
            ("Unable to apply the hunk.", true),
            ("The user rejected this edit.", true),
            ("<tool_use_error>File has not been read yet", true),
            ("Edit applied. 0 errors, 2 warnings.", false),
            ("Saved without errors.", false),
            (r#"{"success": false, "message": "old text is there twice"}"#, true),
            (r#"{"success": true, "error": null}"#, false),
            (r#"{"ok": true, "note": "it cannot be undone"}"#, false),
            (r#"{"error": "gone"}"#, true),
        ] {
            assert_eq!(has_failed(&Reading::of_text(Role::Tool, said)), fails, "{said}");
        }
    }

    #[test]
    fn a_result_that_is_marked_as_an_error_is_one() {
        for (mark, fails) in
            [(r#","is_error":true"#, true), (r#","is_error":false"#, false), ("", false)]
        {
            let body = format!(
                r#"{{"messages":[{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"a","content":"Hm."{mark}}}]}}]}}"#
            );
            let request = Protocol::Messages.read(body.as_bytes(), 9).expect("readable");
            let message = Protocol::Messages.read_message(request.messages[0]).expect("readable");
            assert_eq!(has_failed(&Reading::of(&message)), fails, "{body}");
        }
    }
}
