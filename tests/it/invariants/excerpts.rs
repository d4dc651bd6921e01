//! Notes of excerpts, and recalled text: every piece of one occurs in one place of the received
//! request.

use super::json::Node;
use super::judge::{Body, SUMMARY, TAIL, Verdict};

/// Opening of a note of excerpts, after its number.
const OPENS: &str = ", shortened to fit; … = left out]";

/// Checks each piece of each note of excerpts and of recalled text.
pub fn are_said(received: &Body<'_>, sent: &Body<'_>, verdict: &Verdict) -> Result<(), String> {
    if verdict.told() == 0 && !verdict.any(|change| change.has_tail) {
        return Ok(());
    }
    let mut said = String::new();
    for message in received.messages() {
        collect(message, &mut said);
        // Notes name what a message without a text has instead.
        let parts = message.get("content").map(Node::items).unwrap_or_default();
        let names = parts.iter().filter_map(|part| match part.text_of("type") {
            "image_url" => Some("(image)"),
            "input_audio" => Some("(audio)"),
            "file" => Some("(file)"),
            _ => None,
        });
        said.push_str(&names.collect::<Vec<_>>().join(" "));
        said.push('\n');
    }
    let said = one_for_lone_surrogates(&said);
    for message in sent.messages().iter().filter(|message| message.text_of("role") == "user") {
        let mut texts = Vec::new();
        match message.get("content") {
            Some(content) if content.text().is_some() => texts.extend(content.text()),
            Some(content) => texts.extend(content.items().iter().map(|part| part.text_of("text"))),
            None => {}
        }
        for text in texts.into_iter().filter(|text| text.contains(OPENS) || text.contains(TAIL)) {
            // The user's own text next to the note is in the received request, too.
            let mut is_summary = false;
            for line in text.lines() {
                if line.starts_with("[weir: ") {
                    is_summary = line.starts_with(SUMMARY);
                }
                if is_summary {
                    // A summary is in the model's words.
                    continue;
                }
                for piece in pieces(line) {
                    if !said.contains(&*one_for_lone_surrogates(piece)) {
                        return Err(format!("{piece:?} was never said so"));
                    }
                }
            }
        }
    }
    Ok(())
}

/// Unifies lone surrogates: JSON readers replace one by different numbers of replacement
/// characters.
fn one_for_lone_surrogates(text: &str) -> String {
    let mut before = ' ';
    let is_first = |letter: &char| {
        let is_again = *letter == '\u{fffd}' && before == '\u{fffd}';
        before = *letter;
        !is_again
    };
    text.chars().filter(is_first).collect()
}

/// Collects all strings of a message; the arguments of calls are parsed as JSON.
fn collect(node: &Node, said: &mut String) {
    if let Some(text) = node.text() {
        said.push_str(text);
        said.push('\n');
        if let Ok(inner) = Node::read(text) {
            collect(&inner, said);
            // Numbers, lists and objects in arguments appear as written.
            for (key, value) in inner.members() {
                said.push_str(&format!("{key}: {}\n", value.text().unwrap_or(value.raw(text))));
            }
        }
    }
    for (_, member) in node.members() {
        collect(member, said);
    }
    for item in node.items() {
        collect(item, said);
    }
}

/// Returns the pieces of a note's line that must occur in the conversation, without the note's own
/// words.
fn pieces(line: &str) -> Vec<&str> {
    let line = line.trim();
    let number =
        line.strip_prefix('#').map(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit()));
    // A call stands in the line of its message.
    let headed =
        number.and_then(|rest| rest.strip_prefix(' ')).filter(|rest| rest.starts_with("> "));
    let line = headed.unwrap_or(line);
    let is_header =
        headed.is_none() && number.is_some_and(|rest| rest.starts_with(' ') && rest.ends_with(':'));
    if is_header || line.starts_with("[weir: ") || line == "…" {
        return Vec::new();
    }
    let names = line.strip_prefix("also: ").or_else(|| line.strip_prefix("other messages: "));
    if let Some(names) = names {
        return names.split(", ").flat_map(listed).collect();
    }
    let call = line.strip_prefix("> ").and_then(|rest| rest.split_once(": "));
    // A piece of a line has a gap before or behind it.
    let line = call.map_or(line, |(_, arguments)| arguments);
    let line = line.trim_start_matches("… ").trim_end_matches(" …");
    fn unquoted(piece: &str) -> &str {
        let piece = piece.trim();
        piece.strip_prefix("| ").unwrap_or(piece).trim()
    }
    line.split(" … ").map(unquoted).filter(|piece| !piece.is_empty()).collect()
}

/// Returns the parts of an entry in a list of names: a name, or a datum as `name: value`, or the key of
/// a record with its data in brackets.
fn listed(entry: &str) -> Vec<&str> {
    let Some((name, value)) = entry.rsplit_once(": ") else { return vec![entry] };
    let key = name.split_once(" (").map_or(name, |(key, _)| key);
    vec![key, value.trim_end_matches(')')]
}

mod tests {
    use super::super::judge::compare;
    use super::*;

    #[test]
    fn what_was_never_said_is_found() {
        let received = r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"pay 20 or 30"},{"role":"user","content":"b"}]}"#;
        for (piece, is_right) in [
            (r"#1 assistant:\npay 20", true),
            (r"#1 assistant:\npay … 30", true),
            (r"#1 assistant:\n… 20 or …", true),
            (r"#1 assistant:\n… 40 …", false),
            (r"also: 20, 30", true),
            (r"#1 assistant:\npay 30", false),
            (r"also: 40", false),
            (r"also: pay (or: 30, or: 20)", true),
            (r"also: pay (or: 40)", false),
            (r"other messages: 20, 30", true),
            (r"other messages: 40", false),
            (r"#1 > pay: … 20 or 30", true),
            (r"#1 > pay: 20 or 30", true),
            (r"#1 > pay: 40", false),
        ] {
            let sent = format!(
                r#"{{"messages":[{{"role":"user","content":"a"}},{{"role":"user","content":"[weir: 1 earlier message (#1){OPENS}\n{piece}"}},{{"role":"user","content":"b"}}]}}"#
            );
            let read = |text| Body::read(text).expect("a body");
            let verdict = compare(&read(received), &read(&sent));
            assert_eq!(verdict.is_ok(), is_right, "{piece}: {verdict:?}");
        }
    }
}
