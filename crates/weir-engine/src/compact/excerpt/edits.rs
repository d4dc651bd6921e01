//! Text that an assistant wrote into files: an agent goes on from it, and no other message has it.
//! Pure.

use std::collections::HashMap;
use std::ops::Range;

use memchr::{memchr, memmem, memrchr};

use super::subject::Subject;
use super::weight::Seeded;
use crate::compact::message::reading::{BlockKind, Reading, WrittenText};
use crate::wire::Role;

/// Arguments that hold the new text of an edit.
const NEW: [&str; 16] = [
    "new_str",
    "new_string",
    "new_text",
    "newText",
    "newString",
    "new_content",
    "new_source",
    "replacement",
    "replace",
    "insert_text",
    "file_text",
    "content",
    "contents",
    "code_edit",
    "patch",
    "diff",
];
/// Arguments that may follow it.
const OTHERS: [&str; 14] = [
    "old_str",
    "old_string",
    "old_text",
    "oldText",
    "oldString",
    "search",
    "path",
    "file_path",
    "filePath",
    "command",
    "insert_line",
    "view_range",
    "replace_all",
    "description",
];
/// Upper bound of the length of these names.
const MOST_NAME_BYTES: usize = 16;
const _: () = {
    let mut index = 0;
    while index < NEW.len() + OTHERS.len() {
        let name = if index < NEW.len() { NEW[index] } else { OTHERS[index - NEW.len()] };
        assert!(name.len() <= MOST_NAME_BYTES, "each name is within the bound");
        index += 1;
    }
};
/// Parts of the names of tools that write files.
const WRITERS: [&str; 8] =
    ["write", "edit", "create", "replace", "insert", "patch", "file", "update"];
/// Maximum number of inputs of shell commands that are looked for in a call.
const MOST_INPUTS: usize = 16;
/// Beginning of a result whose first line is searched for the words of a failure.
const FAILURE_BYTES: usize = 240;
/// Words of a result that say that an edit failed.
const FAILURES: [&str; 12] = [
    "error",
    "failed",
    "failure",
    "not found",
    "no match",
    "no replacement",
    "did not",
    "does not",
    "traceback",
    "cannot",
    "denied",
    "invalid",
];

/// Returns the texts that an assistant's message writes into files, each with the index of its block. The
/// block is a call, or text with a patch or a shell command. The search runs once.
pub(crate) fn written_texts(reading: &Reading) -> &[WrittenText] {
    reading.findings.written_texts.get_or_init(|| {
        let mut all = Vec::new();
        let mut spans = Vec::new();
        let is_author = reading.role == Role::Assistant;
        for (index, block) in reading.blocks.iter().enumerate().filter(|_| is_author) {
            if let BlockKind::Call { name, .. } = &block.kind {
                let name = name.to_ascii_lowercase();
                if WRITERS.iter().any(|own| name.contains(own)) {
                    arguments(&reading.text, &block.span, &mut spans);
                }
            }
            if spans.is_empty() {
                added(&reading.text, &block.span, &mut spans);
                inputs(&reading.text, &block.span, &mut spans);
                spans.sort_by_key(|span| span.start);
            }
            all.extend(spans.drain(..).map(|span| (index, span)));
        }
        all.into()
    })
}

/// Returns the spans of the texts that a message's edits wrote into files, without those of failed edits.
pub(crate) fn successful_texts(subject: &Subject<'_>, message: usize) -> Vec<Range<usize>> {
    let reading = &subject.readings[message];
    let texts = written_texts(reading);
    if texts.is_empty() {
        return Vec::new();
    }
    let after = &subject.readings[message + 1..];
    let results = after.iter().take_while(|reading| reading.role == Role::Tool);
    let mut by_id: HashMap<&str, &Reading, Seeded> = HashMap::default();
    for result in results {
        if let Some(id) = result.answers.as_deref() {
            by_id.entry(id).or_insert(result);
        }
    }
    let mut spans = Vec::new();
    for own in texts.chunk_by(|(block, _), (next, _)| block == next) {
        let result = match &reading.blocks[own[0].0].kind {
            BlockKind::Call { id, .. } => by_id.get(id.as_str()).copied(),
            BlockKind::Text | BlockKind::Output => None,
        };
        // Without a result of its own, the next message says whether it failed.
        let answer = result.or_else(|| after.first().map(|next| &**next));
        if !answer.is_some_and(is_failure) {
            spans.extend(own.iter().map(|(_, span)| span.clone()));
        }
    }
    spans
}

fn is_failure(answer: &Reading) -> bool {
    says_any(&answer.text, &FAILURES, FAILURE_BYTES)
}

/// Returns whether the first line of a text, as far as `most_bytes`, has one of these words, in any case.
/// Names of files and functions say nothing: an edit of `src/errors.rs` may well have succeeded.
pub(crate) fn says_any(text: &str, words: &[&str], most_bytes: usize) -> bool {
    let line = text.trim_start().lines().next().unwrap_or_default();
    let line = line[..line.floor_char_boundary(most_bytes)].to_lowercase();
    let is_word = |word: &&str| {
        let word = word.trim_end_matches(['.', ',', ';', ':', ')', '\'', '"']);
        !word.contains(['/', '\\', '_', '.'])
    };
    let said = line.split_whitespace().filter(is_word).collect::<Vec<&str>>().join(" ");
    words.iter().any(|own| said.contains(own))
}

/// Adds the arguments with new text: from their names to the next argument.
fn arguments(text: &str, block: &Range<usize>, spans: &mut Vec<Range<usize>>) {
    let mut open = None;
    let mut start = block.start;
    for line in text[block.clone()].split_inclusive('\n') {
        let colon = line.bytes().take(MOST_NAME_BYTES + 1).position(|byte| byte == b':');
        let colon = colon.filter(|at| line[at + 1..].starts_with(' '));
        let name = colon.map(|at| &line[..at]);
        let is_new = name.is_some_and(|name| NEW.contains(&name));
        let is_other = name.is_some_and(|name| OTHERS.contains(&name));
        if is_new || is_other {
            spans.extend(open.take().map(|open| open..start));
        }
        if is_new {
            open = Some(start);
        }
        start += line.len();
    }
    spans.extend(open.map(|open| open..block.end));
}

/// Adds the lines that a patch adds.
fn added(text: &str, block: &Range<usize>, spans: &mut Vec<Range<usize>>) {
    let own = &text[block.clone()];
    let has = |part: &str| memmem::find(own.as_bytes(), part.as_bytes()).is_some();
    if !has("\n@@") && !has("*** Begin Patch") {
        return;
    }
    let mut start = block.start;
    for line in own.split_inclusive('\n') {
        if line.starts_with('+') && !line.starts_with("+++") {
            spans.push(start..start + line.trim_end().len());
        }
        start += line.len();
    }
}

/// Adds the texts that a shell command writes to files: from `<<'EOF'` up to a line `EOF`.
fn inputs(text: &str, block: &Range<usize>, spans: &mut Vec<Range<usize>>) {
    let own = &text[block.clone()];
    let Some(first) = memmem::find(own.as_bytes(), b"<<") else { return };
    let mut start = memrchr(b'\n', &own.as_bytes()[..first]).map_or(0, |at| at + 1);
    let mut opened = 0;
    while let Some(end) = memchr(b'\n', &own.as_bytes()[start..]).map(|at| start + at) {
        let line = &own[start..end];
        start = end + 1;
        let Some(mark) = mark(line).filter(|_| opened < MOST_INPUTS) else { continue };
        opened += 1;
        let Some(last) = closing(own, start, mark) else { continue };
        if (line.contains('>') || line.contains("tee ")) && start < last {
            spans.push(block.start + start..block.start + last);
        }
        start = last;
    }
}

/// Returns the word that ends the input of the command in a line.
fn mark(line: &str) -> Option<&str> {
    let (_, after) = line.split_once("<<")?;
    let word = after.trim_start_matches(['-', ' ', '\'', '"', '\\']);
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let word = &word[..word.bytes().take_while(is_part).count()];
    (!word.is_empty()).then_some(word)
}

/// Returns where the line `mark` begins, at or behind `from`.
pub(crate) fn closing(own: &str, from: usize, mark: &str) -> Option<usize> {
    let mut start = from;
    for line in own[from..].split_inclusive('\n') {
        if line.trim() == mark {
            return Some(start);
        }
        start += line.len();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str, find: impl Fn(&str, &Range<usize>, &mut Vec<Range<usize>>)) -> Vec<&str> {
        let mut spans = Vec::new();
        find(text, &(0..text.len()), &mut spans);
        spans.into_iter().map(|span| text[span].trim_end()).collect()
    }

    #[test]
    fn what_an_edit_writes_is_found() {
        let edit =
            "path: a.rs\nold_str: let a = 1;\nnew_str: let a = 2;\nlet b = 3;\nreplace_all: true";
        assert_eq!(shown(edit, arguments), ["new_str: let a = 2;\nlet b = 3;"]);
        let patch = "*** Begin Patch\n@@\n-let a = 1;\n+let a = 2;\n let c = 0;\n+let b = 3;";
        assert_eq!(shown(patch, added), ["+let a = 2;", "+let b = 3;"]);
        let shell =
            "cat > a.py <<'EOF'\nprint(1)\nprint(2)\nEOF\npython a.py << X\n3\nX\ncout << a;";
        assert_eq!(shown(shell, inputs), ["print(1)\nprint(2)"]);
        assert_eq!(shown("cat > a <<EOF\nnever ends", inputs), [""; 0]);
        assert_eq!(shown("a << 1\n+b", added), [""; 0]);
    }

    #[test]
    fn texts_of_an_assistant_are_searched_as_calls_are() {
        let patch = "I change it:\n*** Begin Patch\n@@\n-let a = 1;\n+let a = 2;";
        let shell = "```bash\ncat > a.py <<'EOF'\nprint(1)\nEOF\n```";
        for (said, written) in [(patch, "+let a = 2;"), (shell, "print(1)")] {
            let reading = Reading::of_text(Role::Assistant, said);
            let found = written_texts(&reading).iter();
            let found: Vec<_> =
                found.map(|(block, span)| (*block, said[span.clone()].trim_end())).collect();
            assert_eq!(found, [(0, written)], "{said}");
            assert_eq!(written_texts(&Reading::of_text(Role::User, said)), []);
        }
    }

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
        ] {
            assert_eq!(is_failure(&Reading::of_text(Role::Tool, said)), fails, "{said}");
        }
    }
}
