//! Text that an assistant wrote into files: an agent goes on from it, and no other message has it.
//! Pure.

use std::collections::HashMap;
use std::ops::Range;

use memchr::{memchr, memmem, memrchr};

use super::subject::Subject;
use super::weight::Seeded;
use crate::compact::actions::tools::Tool;
use crate::compact::actions::{self, outcome};
use crate::compact::message::reading::{BlockKind, Reading, WrittenText};
use crate::wire::Role;

/// Maximum number of inputs of shell commands that are looked for in a call.
const MOST_INPUTS: usize = 16;
/// Returns the texts that an assistant's message writes into files, each with the index of its block. The
/// block is a call, or text with a patch or a shell command. The search runs once.
pub(crate) fn written_texts(reading: &Reading) -> &[WrittenText] {
    reading.findings.written_texts.get_or_init(|| {
        let mut all = Vec::new();
        let mut spans = Vec::new();
        let is_author = reading.role == Role::Assistant;
        for (index, block) in reading.blocks.iter().enumerate().filter(|_| is_author) {
            if let BlockKind::Call { name, arguments, .. } = &block.kind
                && arguments.len() > 1
                && Tool::of_name(name).edits_files
            {
                spans.extend(actions::texts(arguments).map(|own| own.start..own.value.end));
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
        if !answer.is_some_and(outcome::has_failed) {
            spans.extend(own.iter().map(|(_, span)| span.clone()));
        }
    }
    spans
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
    use crate::wire::Protocol;

    fn shown(text: &str, find: impl Fn(&str, &Range<usize>, &mut Vec<Range<usize>>)) -> Vec<&str> {
        let mut spans = Vec::new();
        find(text, &(0..text.len()), &mut spans);
        spans.into_iter().map(|span| text[span].trim_end()).collect()
    }

    #[test]
    fn what_an_edit_writes_is_found() {
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
    fn an_edit_writes_the_text_of_its_argument() {
        let arguments = serde_json::json!({"new_str": "let a = 2;\npath: b", "old_str": "let a = 1;", "path": "a.rs"});
        for (tool, wanted) in
            [("str_replace_editor", &["new_str: let a = 2;\npath: b"][..]), ("find", &[])]
        {
            let raw = serde_json::json!({"role": "assistant", "tool_calls": [{"id": "a", "type": "function",
                "function": {"name": tool, "arguments": arguments.to_string()}}]});
            let raw = raw.to_string();
            let reading = Reading::of(&Protocol::Chat.read_message(&raw).expect("readable"));
            let found = written_texts(&reading).iter().map(|(_, span)| &reading.text[span.clone()]);
            assert_eq!(found.collect::<Vec<_>>(), wanted, "{tool}");
        }
    }
}
