//! Files of a conversation: those named by calls, with the size of their results, and those in
//! messages as blocks. Reads texts; opens no file.

use std::collections::BTreeMap;

use serde::Serialize;

use super::shown;
use super::verbosity::Verbosity;
use crate::compact::message::extract::is_path;

/// Maximum number of files recorded; further ones do not count.
const MAX_FILES: usize = 1000;
/// Maximum number of files in a report.
const MAX_LISTED: usize = 50;
/// Maximum number of blocks found in one message.
const MAX_BLOCKS: usize = 200;

/// Use of one file in a conversation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct FileUse {
    pub path: String,
    /// Number of calls and blocks that name it.
    pub mentions: usize,
    /// Index of the last message that names it.
    pub last_message: usize,
    /// Size of the results and blocks that contain it.
    pub received_tokens: u64,
    /// Approximate size of their sent form.
    pub sent_tokens: u64,
}

/// Collector of files, message by message.
#[derive(Debug, Default)]
pub struct Files {
    by_path: BTreeMap<String, FileUse>,
}

impl Files {
    /// Records that a call or a block of `message` names `path`.
    pub fn mention(&mut self, path: &str, message: usize) {
        if let Some(file) = self.file(path) {
            file.mentions += 1;
            file.last_message = message;
        }
    }

    /// Records received and sent tokens of `path`.
    pub fn hold(&mut self, path: &str, received_tokens: u64, sent_tokens: u64) {
        if let Some(file) = self.file(path) {
            file.received_tokens += received_tokens;
            file.sent_tokens += sent_tokens;
        }
    }

    fn file(&mut self, path: &str) -> Option<&mut FileUse> {
        if self.by_path.len() >= MAX_FILES && !self.by_path.contains_key(path) {
            return None;
        }
        let new = || FileUse { path: path.to_owned(), ..FileUse::default() };
        Some(self.by_path.entry(path.to_owned()).or_insert_with(new))
    }

    /// Returns the files that take most, the largest first.
    pub fn listed(self) -> Vec<FileUse> {
        let mut files: Vec<FileUse> = self.by_path.into_values().collect();
        files.sort_by(|one, other| {
            let key = |file: &FileUse| (file.received_tokens, file.last_message);
            key(other).cmp(&key(one)).then_with(|| one.path.cmp(&other.path))
        });
        files.truncate(MAX_LISTED);
        files
    }
}

/// Returns the hint for a model or a tool about files that are no longer sent whole, the last used
/// first; empty if there are none.
pub fn restoration_hint(files: &[FileUse], verbosity: Verbosity) -> String {
    let mut lost: Vec<&FileUse> =
        files.iter().filter(|file| file.sent_tokens < file.received_tokens).collect();
    lost.sort_by_key(|file| std::cmp::Reverse(file.last_message));
    let most = match verbosity {
        Verbosity::Full => 20,
        Verbosity::Normal => 10,
        Verbosity::Minimal => 5,
    };
    lost.truncate(most);
    if lost.is_empty() {
        return String::new();
    }
    let listed = |one: &dyn Fn(&FileUse) -> String| {
        lost.iter().map(|file| one(file)).collect::<Vec<_>>().join(", ")
    };
    match verbosity {
        Verbosity::Full => {
            let one = |file: &FileUse| {
                let lost_tokens = shown::tokens(file.received_tokens - file.sent_tokens);
                format!(
                    "{} ({lost_tokens} tokens, last at message {})",
                    file.path, file.last_message
                )
            };
            format!(
                "These files were read before and are no longer in the context as a whole: {}. Read \
                 them again where their content matters.",
                listed(&one)
            )
        }
        Verbosity::Normal => {
            format!("No longer in the context as a whole: {}.", listed(&|file| file.path.clone()))
        }
        Verbosity::Minimal => {
            format!("Read again if needed: {}", listed(&|file| file.path.clone()))
        }
    }
}

/// File inside a text.
#[derive(Debug, PartialEq, Eq)]
pub struct FileBlock<'a> {
    pub path: &'a str,
    pub content: &'a str,
}

/// Finds the files in `text`: between tags that name them, or in fences named in their first line
/// or in the line before.
pub fn blocks(text: &str) -> Vec<FileBlock<'_>> {
    let mut blocks = Vec::new();
    let mut open: Option<OpenBlock<'_>> = None;
    let mut before = "";
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let (start, end) = (at, at + line.len());
        at = end;
        match open {
            Some(own) if own.is_closed_by(line) => {
                // A closing tag may follow the content's last words.
                let last = closing_tag(line, own.closer).unwrap_or(0);
                own.close(text, start + last, &mut blocks);
                (open, before) = (None, "");
            }
            Some(_) => {}
            None if blocks.len() >= MAX_BLOCKS => break,
            None => {
                open = opened(line, before, start);
                if let Some(own) = open
                    && let Some(length) = own.closed_on_its_line(text, end)
                {
                    own.close(text, own.start + length, &mut blocks);
                    open = None;
                }
                if !line.trim().is_empty() {
                    before = line;
                }
            }
        }
    }
    if let Some(own) = open {
        own.close(text, text.len(), &mut blocks);
    }
    blocks
}

/// Block whose end is not found yet.
#[derive(Clone, Copy)]
struct OpenBlock<'a> {
    /// `None` for a fence that names no file.
    path: Option<&'a str>,
    /// Run of backticks, or the tag's name.
    closer: &'a str,
    /// Start of its content.
    start: usize,
}

impl<'a> OpenBlock<'a> {
    fn is_fence(&self) -> bool {
        self.closer.starts_with('`')
    }

    fn is_closed_by(&self, line: &str) -> bool {
        let line = line.trim();
        match self.is_fence() {
            true => line.starts_with(self.closer) && line.bytes().all(|byte| byte == b'`'),
            false => closing_tag(line, self.closer).is_some(),
        }
    }

    /// Returns the length of the content on the line, if a tag is closed on the line that opens it.
    fn closed_on_its_line(&self, text: &str, end: usize) -> Option<usize> {
        if self.is_fence() {
            return None;
        }
        closing_tag(&text[self.start..end], self.closer)
    }

    fn close(self, text: &'a str, end: usize, blocks: &mut Vec<FileBlock<'a>>) {
        if let Some(path) = self.path {
            blocks.push(FileBlock { path, content: text[self.start..end].trim_matches('\n') });
        }
    }
}

/// Finds the position in `line` that closes the tag `name`.
fn closing_tag(line: &str, name: &str) -> Option<usize> {
    // A run of backticks is no tag's name, so it never matches.
    let at = line.rfind("</")?;
    let rest = line[at + 2..].strip_prefix(name)?;
    rest.starts_with('>').then_some(at)
}

/// Returns the block that `line`, which begins at `start`, opens.
fn opened<'a>(line: &'a str, before: &'a str, start: usize) -> Option<OpenBlock<'a>> {
    let own = line.trim_start();
    let ticks = own.bytes().take_while(|byte| *byte == b'`').count();
    if ticks >= 3 {
        let (closer, info) = own.split_at(ticks);
        let mut parts = info.split(|own: char| own.is_whitespace() || "=\"':,{}".contains(own));
        let path = parts.rfind(|part| is_path(part)).or_else(|| heading(before));
        return Some(OpenBlock { path, closer, start: start + line.len() });
    }
    let inside = own.strip_prefix('<')?;
    let name_length = inside
        .bytes()
        .take_while(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(byte))
        .count();
    let (name, rest) = inside.split_at(name_length);
    let (attributes, _) = rest.split_once('>')?;
    let path = attributes.split(['"', '\'']).skip(1).step_by(2).find(|value| is_path(value))?;
    let offset = line.len() - own.len() + 1 + name_length + attributes.len() + 1;
    (!name.is_empty()).then_some(OpenBlock {
        path: Some(path),
        closer: name,
        start: start + offset,
    })
}

/// Returns the file that a line above a fence consists of.
fn heading(line: &str) -> Option<&str> {
    let marks = |own: char| own.is_whitespace() || "#*`:".contains(own);
    let own = line.trim_matches(marks).trim_start_matches("//").trim_matches(marks);
    let name = ["File:", "file:", "Path:", "path:"].iter().find_map(|word| own.strip_prefix(word));
    let name = name.unwrap_or(own).trim_matches(marks);
    is_path(name).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(&str, &str)> {
        blocks(text).into_iter().map(|block| (block.path, block.content)).collect()
    }

    #[test]
    fn blocks_are_recognised_as_agents_write_them() {
        for (text, expected) in [
            ("see\n```rust src/a.rs\nfn a() {}\n```\nend", &[("src/a.rs", "fn a() {}")][..]),
            ("```py:b.py\nx\ny\n```", &[("b.py", "x\ny")]),
            ("```js title=\"c/d.js\"\n1\n```", &[("c/d.js", "1")]),
            (
                "src/a.rs\n```rust\n1\n```\n\n### `b.rs`\n\n```\n2\n```\n",
                &[("src/a.rs", "1"), ("b.rs", "2")],
            ),
            ("File: a/b.txt\n````\n```\ninner\n```\n````", &[("a/b.txt", "```\ninner\n```")]),
            ("<file path=\"a.txt\">\none\ntwo\n</file>", &[("a.txt", "one\ntwo")]),
            (
                "<document name='x/y' n=\"1\">z</document>\n<file_content path=\"q.c\">\nr</file_content>",
                &[("x/y", "z"), ("q.c", "r")],
            ),
            ("```\nno name\n```\na.rs\n```\n1", &[("a.rs", "1")]),
            ("some words\n```sh\nls\n```", &[]),
            ("<b>bold</b> and <file path=\"nothing here\">", &[]),
            ("<", &[]),
            ("", &[]),
        ] {
            assert_eq!(found(text), expected, "{text}");
        }
    }

    #[test]
    fn hostile_text_has_few_blocks() {
        assert_eq!(blocks(&"```a.rs\n```\n".repeat(10_000)).len(), MAX_BLOCKS);
        assert_eq!(blocks(&"<a path=\"b.c\">\n".repeat(10_000)).len(), 1);
        assert!(blocks(&"`".repeat(100_000)).is_empty());
    }

    #[test]
    fn files_are_limited_and_listed_by_size() {
        let mut files = Files::default();
        for number in 0..2 * MAX_FILES {
            let path = format!("{number}.rs");
            files.mention(&path, number);
            files.hold(&path, number as u64, 0);
        }
        let listed = files.listed();
        assert_eq!(listed.len(), MAX_LISTED);
        assert_eq!(listed[0].path, format!("{}.rs", MAX_FILES - 1));
    }

    #[test]
    fn hints_are_worded_by_verbosity() {
        let file = |path: &str, last_message, sent_tokens| FileUse {
            path: path.to_owned(),
            mentions: 1,
            last_message,
            received_tokens: 1500,
            sent_tokens,
        };
        let files = [file("a.rs", 3, 0), file("b.rs", 9, 1000), file("c.rs", 5, 1500)];
        for (verbosity, expected) in [
            (
                Verbosity::Full,
                "These files were read before and are no longer in the context as a whole: b.rs (500 \
                 tokens, last at message 9), a.rs (1.5K tokens, last at message 3). Read them again \
                 where their content matters.",
            ),
            (Verbosity::Normal, "No longer in the context as a whole: b.rs, a.rs."),
            (Verbosity::Minimal, "Read again if needed: b.rs, a.rs"),
        ] {
            assert_eq!(restoration_hint(&files, verbosity), expected);
        }
        assert_eq!(restoration_hint(&files[2..], Verbosity::Full), "");
    }
}
