//! Parts of a user's message that somebody pasted for the model to read: documents of a retrieval, attachments. What
//! they say must be done is no rule of the user's. Pure.

use std::ops::Range;

use memchr::{memchr_iter, memmem};

use super::reading::Reading;
use crate::wire::Role;

/// Tags around pasted texts, as frameworks for retrieval and editors write them.
const TAGS: [&str; 13] = [
    "context",
    "contexts",
    "attachment",
    "attachments",
    "document",
    "documents",
    "source",
    "sources",
    "search_results",
    "retrieved_context",
    "knowledge",
    "file_contents",
    "files",
];
/// Beginnings of lines before such texts, and of lines behind them, in lower case.
const OPENINGS: [&str; 7] = [
    "context:",
    "contexts:",
    "documents:",
    "sources:",
    "search results:",
    "retrieved documents:",
    "knowledge base:",
];
const CLOSINGS: [&str; 7] = [
    "question:",
    "query:",
    "user question:",
    "user query:",
    "user's question:",
    "my question:",
    "user:",
];
/// Words in the line before a text between two rules of dashes.
const INTRODUCTIONS: [&str; 6] =
    ["context", "document", "source", "passage", "excerpt", "search result"];
/// Bytes that are searched, and maximum number of parts.
const MOST_BYTES: usize = 256 << 10;
const MOST_PARTS: usize = 64;
/// Minimum length of a rule of dashes.
const DASHES: usize = 5;

/// Returns the pasted parts of a user's message, in order and apart; they are searched for once.
pub(crate) fn pasted(reading: &Reading) -> &[Range<usize>] {
    if reading.role != Role::User {
        return &[];
    }
    reading.findings.pasted.get_or_init(|| search(&reading.text).into())
}

fn search(text: &str) -> Vec<Range<usize>> {
    let text = &text[..text.floor_char_boundary(MOST_BYTES)];
    let mut parts = tagged(text);
    parts.extend(between_lines(text));
    parts.sort_unstable_by_key(|part| part.start);
    let mut apart: Vec<Range<usize>> = Vec::new();
    for part in parts {
        match apart.last_mut() {
            Some(last) if part.start < last.end => last.end = last.end.max(part.end),
            _ => apart.push(part),
        }
    }
    apart.truncate(MOST_PARTS);
    apart
}

/// Returns the texts in known tags, each up to the end of the outermost.
fn tagged(text: &str) -> Vec<Range<usize>> {
    let mut parts: Vec<Range<usize>> = Vec::new();
    // Tags that end nowhere later: each is searched for once.
    let mut is_open = [false; TAGS.len()];
    for at in memchr_iter(b'<', text.as_bytes()) {
        if parts.len() == MOST_PARTS {
            break;
        }
        if parts.last().is_some_and(|last| at < last.end) {
            continue;
        }
        let rest = &text[at + 1..];
        let opens =
            |tag: &str| rest.strip_prefix(tag).is_some_and(|rest| rest.starts_with(['>', ' ']));
        let Some(nth) = TAGS.iter().position(|tag| opens(tag)).filter(|nth| !is_open[*nth]) else {
            continue;
        };
        let close = format!("</{}>", TAGS[nth]);
        // Without its end it is no tag.
        match memmem::find(rest.as_bytes(), close.as_bytes()) {
            Some(length) => parts.push(at..at + 1 + length + close.len()),
            None => is_open[nth] = true,
        }
    }
    parts
}

/// Returns the texts behind a line that opens them, up to one that closes them, and those between two rules of dashes.
fn between_lines(text: &str) -> Vec<Range<usize>> {
    let mut parts = Vec::new();
    let (mut opened, mut ruled): (Option<usize>, Option<usize>) = (None, None);
    let (mut at, mut is_introduced) = (0, false);
    for line in text.split_inclusive('\n') {
        let (start, own) = (at, line.trim());
        at += line.len();
        if own.is_empty() {
            continue;
        }
        let lower = own[..own.floor_char_boundary(80)].to_lowercase();
        if own.len() >= DASHES && own.bytes().all(|byte| matches!(byte, b'-' | b'=')) {
            ruled = match ruled.take() {
                Some(from) => {
                    parts.push(from..start);
                    None
                }
                None => is_introduced.then_some(at),
            };
        } else if opened.is_none()
            && (OPENINGS.iter().any(|own| lower.starts_with(own))
                || (introduces(&lower) && lower.contains("following")))
        {
            opened = Some(at);
        } else if CLOSINGS.iter().any(|own| lower.starts_with(own)) {
            parts.extend(opened.take().map(|from| from..start));
        }
        is_introduced = introduces(&lower);
    }
    parts
}

/// Whether a line, in lower case, speaks of texts that somebody found.
fn introduces(lower: &str) -> bool {
    INTRODUCTIONS.iter().any(|word| lower.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_of_retrieval_have_a_pasted_part() {
        for (template, own) in [
            ("Use the context.\n\nContext:\nPASTED\n\nQuestion: Why?\n", "Why?"),
            ("<context>\nPASTED\n</context>\n\n<user_query>Why?</user_query>", "Why?"),
            (
                "<attachments>\n<attachment id=\"a\">PASTED</attachment>\n</attachments>\nWhy?",
                "Why?",
            ),
            ("Context information is below.\n-------\nPASTED\n-------\nQuery: Why?", "Why?"),
            ("Use the following pieces of context.\n\nPASTED\n\nQuestion: Why?\nAnswer:", "Why?"),
            ("Why?\n<document index=\"1\">PASTED</document>", "Why?"),
        ] {
            let reading = Reading::of_text(Role::User, template);
            let is_pasted = |word: &str| {
                let at = reading.text.find(word).expect("it has the word");
                pasted(&reading).iter().any(|part| part.contains(&at))
            };
            assert!(is_pasted("PASTED") && !is_pasted(own), "{template}");
        }
    }

    #[test]
    fn nothing_else_is_pasted() {
        for text in [
            "Context: we ship on Friday. Never ship on Saturday.",
            "Never write <context> tags.",
            "<context> and <context>\n",
            "One\n-----\nAlways two.\n-----\n",
            "Question: must it be red?",
        ] {
            assert!(pasted(&Reading::of_text(Role::User, text)).is_empty(), "{text}");
        }
        let result = Reading::of_text(Role::Tool, "<context>a</context>");
        assert!(pasted(&result).is_empty());
    }
}
