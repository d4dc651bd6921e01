//! Extract of removed turns, written without a model: one line per request and action, and the
//! files that calls named. Reads messages; decides nothing.

use crate::wire::message::Call;
use crate::wire::{Message, Role, json};

/// Maximum length of a call's target in a line.
const TARGET_CHARACTERS: usize = 80;
/// Maximum length of a tool's name.
const NAME_CHARACTERS: usize = 64;
/// Maximum length of a path.
const PATH_BYTES: usize = 200;
/// Argument names that identify a call's target, in order of preference.
const TARGETS: [&str; 12] = [
    "path",
    "file_path",
    "file",
    "filename",
    "filepath",
    "command",
    "cmd",
    "query",
    "url",
    "pattern",
    "name",
    "id",
];

/// Returns the lines of an extract for a message.
pub(crate) fn lines(message: &Message<'_>, request_characters: u32) -> Vec<String> {
    match message.role {
        Role::User => {
            let said = one_line(&said(message), request_characters as usize);
            if said.is_empty() { Vec::new() } else { vec![format!("- user: {said}")] }
        }
        Role::Assistant => message.all_calls().map(action).collect(),
        _ => Vec::new(),
    }
}

fn said(message: &Message<'_>) -> String {
    let texts = message.texts().into_iter().filter_map(json::string);
    texts.collect::<Vec<_>>().join(" ")
}

fn action(call: &Call<'_>) -> String {
    let name = one_line(&json::string(call.name).unwrap_or_default(), NAME_CHARACTERS);
    let text = call.text();
    let target = match json::members(&text) {
        None => Some(one_line(&text, TARGET_CHARACTERS)),
        Some(members) => {
            let named = |key: &&str| members.iter().find(|(own, _)| own == *key);
            let known = TARGETS.iter().filter_map(named);
            let mut strings = known.chain(&members).filter_map(|(_, raw)| json::string(raw));
            strings.next().map(|value| one_line(&value, TARGET_CHARACTERS))
        }
    };
    format!("- {name} {}", target.unwrap_or_default()).trim_end().to_owned()
}

/// Returns `text` on one line, at most so many characters.
fn one_line(text: &str, most_characters: usize) -> String {
    let mut line = String::new();
    let mut left = most_characters;
    for word in text.split_whitespace() {
        if left == 0 {
            break;
        }
        if !line.is_empty() {
            line.push(' ');
            left -= 1;
        }
        let characters = word.chars().count();
        line.extend(word.chars().take(left));
        left = left.saturating_sub(characters);
    }
    line.trim_end().to_owned()
}

/// Returns the files that a message's calls name, in order.
pub(crate) fn paths(message: &Message<'_>) -> Vec<String> {
    message.all_calls().flat_map(paths_of).collect()
}

/// Returns the files that a call names, in order.
pub(crate) fn paths_of(call: &Call<'_>) -> Vec<String> {
    let text = call.text();
    let Some(members) = json::members(&text) else { return Vec::new() };
    let values = members.into_iter().filter_map(|(_, raw)| json::string(raw));
    values.filter(|value| is_path(value)).map(std::borrow::Cow::into_owned).collect()
}

/// Returns whether a text is a path: one word, with a slash or with an extension.
pub(crate) fn is_path(text: &str) -> bool {
    let plain = |own: char| own.is_alphanumeric() || "/._-+@~\\:".contains(own);
    let name = text.rsplit(['/', '\\']).next().unwrap_or_default();
    let has_ending = name.rsplit_once('.').is_some_and(|(stem, ending)| {
        !stem.is_empty()
            && (1..=8).contains(&ending.len())
            && ending.bytes().all(|byte| byte.is_ascii_alphanumeric())
            && ending.bytes().any(|byte| byte.is_ascii_alphabetic())
    });
    text.len() <= PATH_BYTES
        && text.chars().all(plain)
        && !text.contains("://")
        && text.chars().any(char::is_alphabetic)
        && (text.contains('/') || has_ending)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Protocol;

    #[test]
    fn requests_and_actions_are_a_line_each() {
        for (raw, expected) in [
            (
                r#"{"role":"user","content":"fix  the\n bug, please, it is urgent"}"#,
                &["- user: fix the bug, please,"][..],
            ),
            (
                r#"{"role":"assistant","content":"I look","tool_calls":[
                    {"function":{"name":"read_file","arguments":"{\"limit\":3,\"mode\":\"r\",\"path\":\"src/a.rs\"}"}},
                    {"function":{"name":"bash","arguments":"{\"how\":\"cargo\\n test\"}"}},
                    {"function":{"name":"done","arguments":"{}"}},
                    {"custom":{"name":"raw","input":"some text"}}]}"#,
                &["- read_file src/a.rs", "- bash cargo test", "- done", "- raw some text"],
            ),
            (r#"{"role":"tool","content":"x"}"#, &[]),
            (r#"{"role":"user","content":""}"#, &[]),
        ] {
            let message = Protocol::Chat.read_message(raw).expect("readable");
            assert_eq!(lines(&message, 20), expected, "{raw}");
        }
    }

    #[test]
    fn paths_are_told_from_other_arguments() {
        for (text, expected) in [
            ("src/a.rs", true),
            ("/testbed", true),
            ("Cargo.toml", true),
            (r"C:\a\b.txt", true),
            ("a b.txt", false),
            ("1.5", false),
            ("https://example.com/a", false),
            ("word", false),
            ("/", false),
            ("", false),
        ] {
            assert_eq!(is_path(text), expected, "{text}");
        }
    }
}
