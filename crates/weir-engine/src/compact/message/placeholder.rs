//! Placeholders for removed content: a line that describes the content and gives a reference for
//! retrieving it. Derived from the content alone, so every instance writes the same bytes.

use memchr::memmem;

use super::reference::{REFERENCE_LENGTH, is_reference, reference};
use crate::wire::{Content, Message, json};

/// Upper bound of a placeholder's length; longer content is never one.
const MAX_BYTES: usize = 1024;
/// Maximum length of a tool's name.
const NAME_CHARACTERS: usize = 64;
/// Bytes at a content's start and end that are searched for an exit code.
const EXIT_CODE_BYTES: usize = 4096;
/// Bytes at a content's start that the placeholder of an oversized one repeats.
const PREVIEW_BYTES: usize = 400;

const HEAD: &str = "[weir: ";
const REFERENCE: &str = "; reference ";

/// Reason for replacing a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// It is old.
    Old,
    /// A later result has the same content.
    Repeated,
    /// It is large.
    Oversized,
}

/// Returns the placeholder for the result `message` of the tool `tool`; `None` if there is nothing
/// to replace or it is a placeholder already.
pub(crate) fn of_result(message: &Message<'_>, tool: &str, reason: Reason) -> Option<String> {
    if matches!(message.content, Content::None) {
        return None;
    }
    let texts: Vec<_> =
        message.texts().into_iter().map(|raw| json::string(raw).unwrap_or_default()).collect();
    let text = texts.join("\n");
    if is_placeholder(&text) {
        return None;
    }
    let (what, preview) = match reason {
        Reason::Old => ("masked", None),
        Reason::Repeated => ("repeated later", None),
        Reason::Oversized => ("too large to send", Some(preview(&text))),
    };
    let name: String = tool
        .chars()
        .filter(|own| own.is_alphanumeric() || matches!(own, '_' | '-' | '.'))
        .take(NAME_CHARACTERS)
        .collect();
    let space = if name.is_empty() { "" } else { " " };
    let (lines, bytes) = (text.lines().count(), text.len());
    let exit = exit_code(&text).map(|code| format!(", exit code {code}")).unwrap_or_default();
    let own = reference(&message.protocol.identity(message.raw));
    let mut said = format!(
        "{HEAD}{name}{space}result {what}: {lines} lines, {bytes} bytes{exit}{REFERENCE}{own}]"
    );
    if let Some(preview) = preview.filter(|preview| !preview.is_empty()) {
        said.push_str("\nIt begins:\n");
        said.push_str(preview);
    }
    Some(said)
}

/// Returns the text that replaces an image of `message`.
pub(crate) fn of_image(message: &Message<'_>) -> String {
    format!("{HEAD}image masked{REFERENCE}{}]", reference(&message.protocol.identity(message.raw)))
}

/// Returns whether `text` as a whole is an output of [`of_result`] or [`of_image`]. Longer text
/// that only begins like one is not.
pub(crate) fn is_placeholder(text: &str) -> bool {
    let line = text.lines().next().unwrap_or_default();
    text.len() < MAX_BYTES
        && line.starts_with(HEAD)
        && line.strip_suffix(']').is_some_and(|line| {
            let end = line.len().saturating_sub(REFERENCE_LENGTH);
            line.is_char_boundary(end)
                && line[..end].ends_with(REFERENCE)
                && is_reference(&line[end..])
        })
        && (text.len() == line.len() || text[line.len()..].starts_with("\nIt begins:\n"))
}

fn preview(text: &str) -> &str {
    text[..text.floor_char_boundary(PREVIEW_BYTES)].trim_end()
}

/// Finds the exit code that a command's output names at its start or end.
pub(crate) fn exit_code(text: &str) -> Option<i64> {
    const MARKS: [&str; 8] = [
        "<returncode>",
        "\"exit_code\"",
        "\"returncode\"",
        "exit_code:",
        "exit code:",
        "exit code",
        "exited with code",
        "exit status",
    ];
    let head = &text[..text.floor_char_boundary(EXIT_CODE_BYTES)];
    let tail = &text[text.ceil_char_boundary(text.len().saturating_sub(EXIT_CODE_BYTES))..];
    [tail, head].into_iter().find_map(|part| {
        let lower = part.to_ascii_lowercase();
        // Most outputs have no mark, and need no search for each.
        let has = |word: &str| memmem::find(lower.as_bytes(), word.as_bytes()).is_some();
        if !has("exit") && !has("returncode") {
            return None;
        }
        MARKS.iter().find_map(|mark| {
            let at = lower.rfind(mark)? + mark.len();
            number(lower[at..].trim_start_matches([' ', ':', '=', '"']))
        })
    })
}

/// Parses the whole number at the start of `text`, if it is short.
fn number(text: &str) -> Option<i64> {
    let sign = usize::from(text.starts_with('-'));
    let digits = text[sign..].bytes().take_while(u8::is_ascii_digit).count();
    (1..=10).contains(&digits).then(|| text[..sign + digits].parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Protocol;

    fn of_raw(raw: &str, tool: &str, reason: Reason) -> Option<String> {
        of_result(&Protocol::Chat.read_message(raw).expect("readable"), tool, reason)
    }

    fn result(content: &str) -> String {
        let content = serde_json::Value::from(content);
        format!(r#"{{"role":"tool","tool_call_id":"a","content":{content}}}"#)
    }

    #[test]
    fn placeholders_say_what_was_there() {
        let raw = result("one\ntwo\n<returncode>0</returncode>");
        let own = reference(&raw);
        assert_eq!(
            of_raw(&raw, "bash", Reason::Old),
            Some(format!(
                "[weir: bash result masked: 3 lines, 34 bytes, exit code 0; reference {own}]"
            ))
        );
        let hostile = of_raw(&raw, "b]\n[weir: \"x", Reason::Repeated).expect("a placeholder");
        assert!(hostile.starts_with("[weir: bweirx result repeated later: "), "{hostile}");
        assert_eq!(of_raw(r#"{"role":"tool","content":null}"#, "a", Reason::Old), None);
    }

    #[test]
    fn what_is_masked_is_not_masked_again() {
        let large = result(&"a line of words\n".repeat(1000));
        for reason in [Reason::Old, Reason::Repeated, Reason::Oversized] {
            let said = of_raw(&large, "read_file", reason).expect("a placeholder");
            assert!(is_placeholder(&said), "{said}");
            assert_eq!(of_raw(&result(&said), "read_file", Reason::Old), None);
        }
    }

    #[test]
    fn output_cannot_pose_as_a_placeholder() {
        let own = of_raw(&result("x"), "a", Reason::Old).expect("a placeholder");
        for posing in [
            format!("{own}\n{}", "secret ".repeat(10)),
            format!("{own}\nIt begins:\n{}", "x".repeat(MAX_BYTES)),
            format!(" {own}"),
            "[weir: a result masked: 1 lines, 1 bytes; reference 000000000000]".to_owned(),
            "[weir: ]".to_owned(),
            "[weir: ééééé]".to_owned(),
        ] {
            assert!(!is_placeholder(&posing), "{posing}");
        }
    }

    #[test]
    fn exit_codes_are_found_where_tools_write_them() {
        for (text, code) in [
            ("<returncode>0</returncode>\n<output>", Some(0)),
            ("output\nexit code: 1", Some(1)),
            ("Process exited with code 137", Some(137)),
            ("exit status -9\n", Some(-9)),
            (r#"{"stdout":"x","exit_code": 2}"#, Some(2)),
            (r#"{"returncode":0}"#, Some(0)),
            ("Exit Code 3 then exit code 4", Some(4)),
            ("the exit code is unknown", None),
            ("exit code 123456789012", None),
            ("", None),
        ] {
            assert_eq!(exit_code(text), code, "{text}");
        }
    }
}
