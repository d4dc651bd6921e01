//! Recognition of edits: the last successful one of each file, by its path and the beginning of the new
//! text. An edit is a call of a tool for it, or a shell command that writes a file. Pure.

use std::collections::HashSet;
use std::ops::Range;

use memchr::memmem;
use xxhash_rust::xxh3::xxh3_64;

use super::calls::{Called, Calls};
use super::outputs;
use super::parts::{marked, said, units_within};
use super::shell::{self, ShellEdit};
use crate::compact::actions::tools::Tool;
use crate::compact::actions::{self, outcome};
use crate::compact::excerpt::subject::Subject;
use crate::compact::excerpt::weight::Seeded;
use crate::compact::message::reading::{Argument, BlockKind, FileEdit, Reading};

/// Maximum number of files, and of units and bytes of the new text of each.
const MOST_FILES: usize = 16;
const TEXT_UNITS: usize = 6;
const TEXT_BYTES: usize = 200;
/// Maximum size of a shell command that is shown whole; else its path is.
const COMMAND_BYTES: usize = 400;
/// Returns the units of the last edit of each file, each with its message, the newest file first.
pub(super) fn of(subject: &Subject<'_>, calls: &Calls) -> Vec<(usize, usize)> {
    let is_gone = marked(subject.gone, subject.readings.len());
    let mut seen: HashSet<u64, Seeded> = HashSet::default();
    let mut wanted = Vec::new();
    for call in calls.list.iter().rev() {
        if seen.len() >= MOST_FILES {
            break;
        }
        let reading = &subject.readings[call.message];
        let all = reading.findings.edits.get_or_init(|| found(reading));
        let mut own = all.iter().filter(|edit| edit.block == call.block).peekable();
        if own.peek().is_none() || has_failed(subject, call) {
            continue;
        }
        for edit in own {
            if seen.insert(edit.path) && is_gone[call.message] {
                wanted.extend(edit.units.iter().map(|unit| (call.message, *unit)));
            }
        }
    }
    wanted
}

/// Returns the edits of a message: of its calls, and of a command in the text of an agent without tools.
fn found(reading: &Reading) -> Box<[FileEdit]> {
    let mut all = Vec::new();
    let mut take = |(block, span): (usize, &Range<usize>), tool: Tool| {
        if tool.edits_files {
            all.extend(edits(reading, block, span));
        } else if tool.runs_commands {
            all.extend(written(reading, block, span));
        }
    };
    for (block, own) in reading.blocks.iter().enumerate() {
        if let BlockKind::Call { name, .. } = &own.kind {
            take((block, &own.span), Tool::of_name(name));
        }
    }
    if let Some((block, span)) = outputs::command(reading) {
        take((block, &span), Tool::of_name(""));
    }
    all.into()
}

fn has_failed(subject: &Subject<'_>, call: &Called) -> bool {
    match call.tool.edits_files {
        true => call.result.is_some_and(|result| outcome::has_failed(&subject.readings[result])),
        false => has_failed_in_shell(subject, call),
    }
}

fn has_failed_in_shell(subject: &Subject<'_>, call: &Called) -> bool {
    let text = |result: usize| subject.readings[result].text.as_str();
    // What ran behind the edit may have failed, so the exit code says nothing.
    call.result.is_some_and(|result| shell::has_failed(output(text(result))))
}

/// Returns an output without the lines before it that say how the command ended.
fn output(text: &str) -> &str {
    let mark = b"<output>";
    memmem::find(text.as_bytes(), mark).map_or(text, |at| &text[at + mark.len()..])
}

/// Returns the edits of the shell commands in a span of the message. The last one of a file comes first.
fn written(reading: &Reading, block: usize, span: &Range<usize>) -> Vec<FileEdit> {
    let (start, commands) = (span.start, &reading.text[span.clone()]);
    let place = |span: &Range<usize>| start + span.start..start + span.end;
    let mut all = Vec::new();
    for edit in shell::edits(commands) {
        match edit {
            ShellEdit::Patch(span) => {
                all.extend(patched(reading, block, units_within(reading, &place(&span))));
            }
            ShellEdit::File { path, command, text } => {
                let head = if command.len() <= COMMAND_BYTES { &command } else { &path };
                let mut units: Vec<usize> = units_within(reading, &place(head)).collect();
                let text = text.map(|text| units_within(reading, &place(&text)));
                units.extend(text.into_iter().flat_map(|text| clipped(reading, text)));
                units.dedup();
                all.push(FileEdit { block, path: path_key(&commands[path]), units });
            }
        }
    }
    all.reverse();
    all
}

/// Returns the edits in a call's arguments: of a patch several, else at most one.
fn edits(reading: &Reading, block: usize, span: &Range<usize>) -> Vec<FileEdit> {
    let units = units_within(reading, span);
    let line = |unit: usize| said(reading, &reading.units[unit]);
    let is_patch = units.clone().take(4).any(|unit| {
        let text = line(unit);
        text.contains("*** Begin Patch") || text.starts_with("+++ ") || text.starts_with("--- ")
    });
    if is_patch {
        return patched(reading, block, units);
    }
    let BlockKind::Call { arguments, .. } = &reading.blocks[block].kind else {
        return Vec::new();
    };
    let Some(path) = actions::path(arguments) else { return Vec::new() };
    let of = |own: &Argument| units_within(reading, &(own.start..own.value.end));
    let text = actions::texts(arguments).next().map(of).or_else(|| {
        // A list of edits in JSON.
        let names = ["\"new_string\"", "\"new_str\"", "\"newText\""];
        let has_text = |unit: &usize| names.iter().any(|name| line(*unit).contains(name));
        units.clone().rev().find(has_text).map(|first| first..units.end)
    });
    let Some(text) = text else { return Vec::new() };
    let mut own: Vec<usize> = of(path).take(1).collect();
    own.extend(clipped(reading, text));
    own.dedup();
    vec![FileEdit { block, path: path_key(&reading.text[path.value.clone()]), units: own }]
}

/// Returns the edits of a patch: each file with its first added lines.
fn patched(reading: &Reading, block: usize, units: Range<usize>) -> Vec<FileEdit> {
    let line = |unit: usize| said(reading, &reading.units[unit]);
    let header = |unit: usize| {
        let text = line(unit);
        let heads = ["*** Update File: ", "*** Add File: ", "+++ b/", "+++ "];
        let path = heads.iter().find_map(|head| text.strip_prefix(head))?;
        // A date may follow. A file that is deleted has no new text.
        Some(path.split('\t').next()?.trim()).filter(|path| *path != "/dev/null")
    };
    let mut edits = Vec::new();
    let files: Vec<usize> = units.clone().filter(|unit| header(*unit).is_some()).collect();
    for (place, file) in files.iter().copied().enumerate().take(MOST_FILES) {
        let end = files.get(place + 1).copied().unwrap_or(units.end);
        let added = (file + 1..end).filter(|unit| line(*unit).starts_with('+'));
        let mut own = vec![file];
        own.extend(clipped(reading, added));
        edits.push(FileEdit {
            block,
            path: path_key(header(file).unwrap_or_default()),
            units: own,
        });
    }
    edits
}

/// Returns a key that equal paths share, however they are quoted.
fn path_key(path: &str) -> u64 {
    let path = path.trim().trim_matches(['\'', '"']);
    xxh3_64(path.strip_prefix("./").unwrap_or(path).as_bytes())
}

/// Returns the first units, within their maximum.
fn clipped(reading: &Reading, units: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut bytes = 0;
    units
        .take(TEXT_UNITS)
        .take_while(|unit| {
            let is_first = bytes == 0;
            bytes += reading.units[*unit].span.len();
            is_first || bytes <= TEXT_BYTES
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Protocol;

    /// Returns the texts of the units of each edit in the arguments of a call.
    fn found(arguments: &serde_json::Value) -> Vec<Vec<String>> {
        let arguments = serde_json::Value::String(arguments.to_string());
        let raw = format!(
            r#"{{"role":"assistant","content":null,"tool_calls":[{{"id":"a","type":"function","function":{{"name":"edit","arguments":{arguments}}}}}]}}"#
        );
        let reading = Reading::of(&Protocol::Chat.read_message(&raw).expect("a message"));
        let texts = |edit: &FileEdit| {
            let line = |unit: &usize| said(&reading, &reading.units[*unit]).to_owned();
            edit.units.iter().map(line).collect()
        };
        super::found(&reading).iter().map(texts).collect()
    }

    #[test]
    fn an_edit_is_its_path_and_the_beginning_of_the_new_text() {
        let replaced = serde_json::json!({"file_path": "src/a.rs", "old_string": "old()\nolder()",
            "new_string": "new()\nnewer()"});
        assert_eq!(found(&replaced), [["file_path: src/a.rs", "new_string: new()", "newer()"]]);
        let long: String = (0..99).map(|line| format!("line {line} of the file\n")).collect();
        let written = serde_json::json!({"path": "b.rs", "content": long});
        let own = &found(&written)[0];
        assert_eq!(own.len(), 1 + TEXT_UNITS, "{own:?}");
        let quoting = serde_json::json!({"new_string": "value: 1\ncommand: run\npath: /x", "file_path": "deploy/a.yaml",
            "old_string": "a: 1\npath: /srv/app"});
        let lines =
            ["file_path: deploy/a.yaml", "new_string: value: 1", "command: run", "path: /x"];
        assert_eq!(found(&quoting), [lines]);
        let viewed = serde_json::json!({"command": "view", "path": "b.rs"});
        assert_eq!(found(&viewed), Vec::<Vec<String>>::new());
    }

    #[test]
    fn a_patch_has_an_edit_for_each_file() {
        let patch = "*** Begin Patch\n*** Update File: a.rs\n@@\n-old\n+new\n*** Add File: b.rs\n+all\n*** End Patch";
        let found = found(&serde_json::json!({ "input": patch }));
        assert_eq!(found, [["*** Update File: a.rs", "+new"], ["*** Add File: b.rs", "+all"]]);
    }
}
