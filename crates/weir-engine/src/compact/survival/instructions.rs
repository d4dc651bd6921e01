//! Instruction files: which files have instructions for agents, and whether a tool of the agent has read one
//! from its own disk. Pages, searches and other people's repositories are none, however their addresses end:
//! anybody may have written them. Pure.

use std::borrow::Cow;
use std::ops::Range;

use super::calls::Called;
use crate::compact::message::reading::{Argument, BlockKind, Reading};
use crate::wire::json;

/// Bytes of a call's arguments that are searched for the name of an instruction file.
const NAMED_BYTES: usize = 4096;
/// Agents that have such files of their own, by their names.
const AGENTS: [&str; 7] = ["claude", "agents", "agent", "gemini", "qwen", "crush", "warp"];
/// Words in the names of texts with instructions.
const TOPICS: [&str; 10] = [
    "contributing",
    "conventions",
    "convention",
    "guidelines",
    "guideline",
    "instructions",
    "standards",
    "rules",
    "skill",
    "style-guide",
];
/// Endings of such names.
const ENDINGS: [&str; 3] = [".instructions.md", ".mdc", ".rules"];
/// Arguments of tools that look elsewhere than on the agent's own disk, or that search.
const ELSEWHERE: [&str; 16] = [
    "url", "urls", "uri", "href", "link", "host", "domain", "site", "owner", "project", "query",
    "search", "regex", "pattern", "glob", "q",
];
/// Words in the names of such tools.
const SEEKERS: [&str; 17] = [
    "fetch", "web", "browser", "browse", "http", "url", "download", "search", "grep", "find",
    "glob", "navigate", "crawl", "scrape", "github", "gitlab", "list",
];
/// Programs that print files and nothing else.
const PRINTERS: [&str; 14] = [
    "cat", "head", "tail", "sed", "less", "more", "bat", "batcat", "nl", "tac", "type", "content",
    "gc", "view",
];
/// Other programs, which print nothing of others.
const SILENT: [&str; 11] =
    ["cd", "echo", "printf", "pwd", "wc", "test", "[", "true", "set", "export", "pushd"];

/// Whether a path, or a word of a text, names an instruction file.
pub(super) fn is_named(path: &str) -> bool {
    let lower = path.trim_end_matches(['.', ',', ':', ')']).to_ascii_lowercase().replace('\\', "/");
    let (folders, name) = lower.rsplit_once('/').unwrap_or(("", &lower));
    let is_text = name.ends_with(".md") || name == "contributing";
    let stem = name.trim_end_matches(".md");
    let is_topic = |topic: &&str| {
        stem.strip_suffix(*topic).is_some_and(|rest| rest.is_empty() || rest.ends_with(['-', '_']))
    };
    // An agent's own folder has rules in a folder for them.
    let is_rules = |folder: &str| folder.starts_with("rules") || folder == "steering";
    let mut parents = folders.split('/').skip_while(|folder| !folder.starts_with('.')).peekable();
    let is_in_rules = parents.peek().is_some_and(|own| own.ends_with("rules"))
        || parents.nth(1).is_some_and(is_rules);
    (name.ends_with(".md") && AGENTS.iter().any(|own| stem.split('.').next() == Some(own)))
        || (is_text && TOPICS.iter().any(is_topic))
        || (name.starts_with('.') && (name.ends_with("rules") || name.ends_with("hints")))
        || ENDINGS.iter().any(|ending| name.len() > ending.len() && name.ends_with(ending))
        || (is_in_rules && !name.is_empty())
}

/// Whether the result of a call is an instruction file of the agent's own disk.
pub(super) fn is_read_by(call: &Called, reading: &Reading) -> bool {
    let text = &reading.text[call.span.clone()];
    if !may_name(text) {
        return false;
    }
    match &reading.blocks[call.block].kind {
        BlockKind::Call { arguments, .. } if call.tool.runs_commands => {
            // The command is the longest argument: others are folders, times and reasons.
            let longest = arguments.iter().max_by_key(|own| own.value.len());
            prints(&command(longest.map_or(text, |own| &reading.text[own.value.clone()])))
        }
        BlockKind::Call { name, arguments, .. } => {
            !is_seeker(name) && names_file(reading, arguments, call.span.clone())
        }
        BlockKind::Text | BlockKind::Output => prints(text),
    }
}

/// Whether a text may name such a file. Most name none, and need no look at each word.
fn may_name(text: &str) -> bool {
    let start = text[..text.floor_char_boundary(NAMED_BYTES)].to_ascii_lowercase();
    [".md", "rules", "contributing", "hints", "steering"].iter().any(|part| start.contains(part))
}

/// Whether a tool looks elsewhere or searches, by the words of its name.
fn is_seeker(name: &str) -> bool {
    let lower = name.to_lowercase();
    SEEKERS.iter().any(|word| lower.contains(word))
}

/// Whether the arguments of a tool name such a file of the disk.
fn names_file(reading: &Reading, arguments: &[Argument], all: Range<usize>) -> bool {
    let is_elsewhere = |name: &str| name.starts_with("repo") || ELSEWHERE.contains(&name);
    if arguments.iter().any(|own| is_elsewhere(&own.name)) {
        return false;
    }
    let start = &reading.text[all];
    let start = &start[..start.floor_char_boundary(NAMED_BYTES)];
    let mut words = start.split([' ', '\n', '\t', '"', '\'', '`', '=', '(', ')', ',']);
    words.any(|word| is_of_disk(word) && is_named(word))
}

/// Whether a path is one of the disk, and no address.
fn is_of_disk(path: &str) -> bool {
    !path.contains("://")
        && !path.starts_with("//")
        && !path.starts_with("\\\\")
        && !path.contains('@')
}

/// Returns the command in an argument: a text, or a list of words, whose last one a shell may run.
fn command(argument: &str) -> Cow<'_, str> {
    let Some(words) = json::elements(argument) else { return Cow::Borrowed(argument) };
    let words: Vec<Cow<'_, str>> = words.into_iter().filter_map(json::string).collect();
    match words.as_slice() {
        [shell, flags, script] if shell.ends_with("sh") && flags.starts_with('-') => script.clone(),
        words => Cow::Owned(words.join(" ")),
    }
}

/// Whether a command prints such a file, and nothing that comes from elsewhere.
fn prints(command: &str) -> bool {
    let command = &command[..command.floor_char_boundary(NAMED_BYTES)];
    let mut is_printed = false;
    let parts = command.split(['\n', ';', '|', '&']).map(str::trim).filter(|part| !part.is_empty());
    for part in parts {
        if part.contains(['$', '`', '<']) {
            return false;
        }
        let mut words = part.split([' ', '\t']).map(|word| word.trim_matches(['"', '\'']));
        let program = words.next().unwrap_or_default().rsplit('/').next().unwrap_or_default();
        let program = program.to_ascii_lowercase();
        if PRINTERS.contains(&program.trim_start_matches("get-")) {
            is_printed |= words.any(|word| is_of_disk(word) && is_named(word));
        } else if !SILENT.contains(&program.as_str()) {
            return false;
        }
    }
    is_printed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compact::survival::calls::Calls;
    use crate::wire::Protocol;
    use serde_json::{Value, json};
    use std::sync::Arc;

    #[test]
    fn instruction_files_are_known_by_what_they_are() {
        for (path, expected) in [
            ("/home/app/CLAUDE.md", true),
            ("AGENTS.md", true),
            ("docs/CONTRIBUTING.md", true),
            ("CONVENTIONS.md", true),
            (".cursor/rules/style.mdc", true),
            (".github/instructions/rust.instructions.md", true),
            (".clinerules", true),
            (".clinerules/01-style.md", true),
            (".windsurfrules", true),
            ("skills/pdf/SKILL.md", true),
            ("QWEN.md", true),
            (".junie/guidelines.md", true),
            ("docs/coding-guidelines.md", true),
            (".amazonq/rules/gates.md", true),
            (".goosehints", true),
            ("docs/CODING_STANDARDS.md", true),
            ("CLAUDE.local.md", true),
            ("/home/app/.cache/log.md", false),
            ("docs/claude-desktop.md", false),
            ("bin/rules", false),
            ("C:\\app\\GEMINI.md", true),
            ("README.md", false),
            ("src/rules.rs", false),
            ("notes.md", false),
            (".rules", true),
        ] {
            assert_eq!(is_named(path), expected, "{path}");
        }
    }

    fn is_read(name: &str, arguments: &Value) -> bool {
        let call = json!({"role": "assistant", "tool_calls": [{"id": "a", "type": "function",
            "function": {"name": name, "arguments": arguments.to_string()}}]});
        let raw = call.to_string();
        let reading = Reading::of(&Protocol::Chat.read_message(&raw).expect("readable"));
        let readings = [Arc::new(reading)];
        let calls = Calls::of(&readings);
        is_read_by(&calls.list[0], &readings[0])
    }

    #[test]
    fn what_others_may_have_written_is_no_instruction_file() {
        for (name, arguments, expected) in [
            ("read_file", json!({"path": "/home/app/CLAUDE.md"}), true),
            ("Read", json!({"file_path": "AGENTS.md", "limit": 20}), true),
            ("read_many_files", json!({"paths": ["a.rs", ".cursorrules"]}), true),
            ("bash", json!({"command": "cat 'AGENTS.md' | head"}), true),
            ("bash", json!({"command": "cd app && sed -n 1,80p CLAUDE.md"}), true),
            ("shell", json!({"command": ["bash", "-lc", "cat AGENTS.md"], "workdir": "/a"}), true),
            ("shell", json!({"command": ["cat", "AGENTS.md"]}), true),
            ("shell", json!({"command": ["bash", "-lc", "curl -s evil.example/AGENTS.md"]}), false),
            ("exec_command", json!({"cmd": "cat AGENTS.md", "yield_time_ms": 1000}), true),
            ("bash", json!({"command": "curl -s evil.example/AGENTS.md"}), false),
            ("bash", json!({"command": "curl https://evil.example/a > AGENTS.md"}), false),
            ("bash", json!({"command": "curl evil.example -o AGENTS.md; cat AGENTS.md"}), false),
            ("bash", json!({"command": "cat //evil.example/share/CLAUDE.md"}), false),
            ("bash", json!({"command": "grep -rn . --include=AGENTS.md"}), false),
            ("bash", json!({"command": "git show origin/main:AGENTS.md"}), false),
            ("bash", json!({"command": "cat AGENTS.md $(curl evil.example)"}), false),
            ("read_file", json!({"path": "//evil.example/CLAUDE.md"}), false),
            ("read_file", json!({"path": "https://evil.example/CLAUDE.md"}), false),
            ("get", json!({"url": "evil.example", "path": "/CLAUDE.md"}), false),
            ("WebFetch", json!({"address": "evil.example/CLAUDE.md"}), false),
            ("Grep", json!({"path": "AGENTS.md"}), false),
            ("read", json!({"query": "AGENTS.md"}), false),
            ("mcp__github__get_file_contents", json!({"path": "CLAUDE.md"}), false),
            ("get_file", json!({"owner": "evil", "path": "CLAUDE.md"}), false),
            ("read_file", json!({"path": "src/main.rs"}), false),
        ] {
            assert_eq!(is_read(name, &arguments), expected, "{name} {arguments}");
        }
    }
}
