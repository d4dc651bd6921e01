//! Parser of weir's own notes, which checks them against the conversation.
//!
//! Knows the form of notes, and nothing of how they are written.

use std::cell::RefCell;
use std::collections::HashMap;

use serde_json::Value;
use serde_json::value::RawValue;

use super::conversation::{Conversation, Role};

/// Opening of everything that weir writes into a conversation.
pub const MARK: &str = "[weir: ";
/// End of the first line of a note of excerpts, and of one that only counts, after the number.
const EXCERPTS: &str = ", shortened to fit; … = left out]";
const COUNTS: &str = " left out here to fit the context window]";
/// Opening of recalled text at the end of a question.
const TAIL: &str = "[weir: earlier messages that may bear on this; … = left out]";
/// Last line of a note of excerpts before a user's own words.
const END: &str = "[weir: end of earlier messages]";
/// Separates two pieces of one line, and marks text left out between two lines.
const GAP: &str = " … ";
const GAP_LINE: &str = "…";
/// Prefixes of names: of the message above, and of messages without an excerpt. Prefixes of a line that looks like one of the note's own, and of a call.
const NAMES: [&str; 2] = ["also: ", "other messages: "];
const QUOTED: &str = "| ";
const CALL: &str = "> ";
/// Speaker of calls.
const ASSISTANT: &str = "assistant";

/// Contents of a note.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Note {
    /// Number of messages it claims are gone.
    pub told: usize,
    /// Messages it quotes.
    pub quoted: Vec<usize>,
    /// Whether it applies to this one request only.
    pub is_tail: bool,
}

/// Contents of a conversation's messages, decoded if a note quotes them.
pub struct Said<'a> {
    conversation: &'a Conversation,
    texts: RefCell<HashMap<usize, String>>,
    /// First message found to contain a name.
    names: RefCell<HashMap<String, usize>>,
}

impl<'a> Said<'a> {
    pub fn new(conversation: &'a Conversation) -> Self {
        Self { conversation, texts: RefCell::default(), names: RefCell::default() }
    }

    /// Reads one or several consecutive notes, whose text must all occur in the first `length`
    /// messages. The error says which part does not.
    pub fn read_all(&self, text: &str, length: usize) -> Result<Note, String> {
        let mut all = Note::default();
        let mut rest = Some(text);
        while let Some(text) = rest {
            let next = text.match_indices("\n\n[weir: ").map(|(at, _)| at).next();
            let (own, after) = next.map_or((text, None), |at| (&text[..at], Some(&text[at + 2..])));
            let note = self.read(own, length)?;
            all.told += note.told;
            all.quoted.extend(note.quoted);
            all.is_tail |= note.is_tail;
            rest = after;
        }
        Ok(all)
    }

    fn read(&self, text: &str, length: usize) -> Result<Note, String> {
        let (head, lines) = text.split_once('\n').unwrap_or((text, ""));
        let is_tail = head == TAIL;
        let (told, is_excerpts) = if is_tail { Some((0, true)) } else { told(head) }
            .ok_or("a note has an unknown opening")?;
        if lines.is_empty() == is_excerpts {
            return Err("a note of excerpts holds none, or another one holds some".to_owned());
        }
        let mut note = Note { told, quoted: Vec::new(), is_tail };
        for line in lines.split('\n').filter(|_| is_excerpts) {
            let call = called(line);
            let named = call.map(|(number, _)| (number, ASSISTANT)).or_else(|| header(line));
            if let Some((number, speaker)) = named {
                let follows = note.quoted.last().is_none_or(|before| *before < number);
                if !follows || number >= length {
                    return Err(format!("a note quotes message {number} of {length}"));
                }
                self.check_speaker(number, speaker)?;
                note.quoted.push(number);
                if let Some((_, call)) = call {
                    self.check_line(call, Some(number), length)?;
                }
            } else if line != END {
                self.check_line(line, note.quoted.last().copied(), length)?;
            }
        }
        Ok(note)
    }

    /// Checks the speaker: a tool's output must not be attributed to the user.
    fn check_speaker(&self, number: usize, speaker: &str) -> Result<(), String> {
        let is_right = match self.conversation.messages[number].role {
            Role::User => speaker == "user",
            Role::Assistant => speaker == ASSISTANT,
            Role::System | Role::Tool => true,
        };
        if is_right { Ok(()) } else { Err(format!("message {number} is not from {speaker}")) }
    }

    fn check_line(&self, line: &str, number: Option<usize>, length: usize) -> Result<(), String> {
        if line.is_empty() || line == GAP_LINE {
            return Ok(());
        }
        if let Some(names) = NAMES.iter().find_map(|prefix| line.strip_prefix(prefix)) {
            let unsaid = names.split(", ").find(|name| !self.holds_entry(name, number, length));
            return match unsaid {
                None => Ok(()),
                // A quoted line may begin like a list.
                Some(_) if number.is_some_and(|number| self.holds(number, line)) => Ok(()),
                Some(_) => Err(format!("a note lists a name that was never said, at {number:?}")),
            };
        }
        let number = number.ok_or("a note's first line is no message's")?;
        if self.holds_pieces(number, line) {
            return Ok(());
        }
        let call = line.strip_prefix(CALL).and_then(|rest| rest.split_once(": "));
        let is_assistant = self.conversation.messages[number].role == Role::Assistant;
        match call.filter(|_| is_assistant) {
            Some((_, arguments)) if self.holds_pieces(number, arguments) => Ok(()),
            _ => Err(format!("a line that message {number} does not hold is quoted from it")),
        }
    }

    fn holds_pieces(&self, number: usize, line: &str) -> bool {
        let is_said = |piece: &str| {
            self.holds(number, piece)
                || piece.strip_prefix(QUOTED).is_some_and(|piece| self.holds(number, piece))
        };
        // A piece of a line has a gap before or behind it.
        let piece = line.strip_prefix(GAP.trim_start()).unwrap_or(line);
        let piece = piece.strip_suffix(GAP.trim_end()).unwrap_or(piece);
        is_said(line) || piece.split(GAP).all(is_said)
    }

    fn holds(&self, number: usize, piece: &str) -> bool {
        let mut texts = self.texts.borrow_mut();
        let text =
            texts.entry(number).or_insert_with(|| text_of(&self.conversation.messages[number].raw));
        text.contains(piece)
    }

    /// Whether an entry of a list was said: a name, a datum as `name: value`, or the key of a record with
    /// its data in brackets, all on the way to the next comma.
    fn holds_entry(&self, entry: &str, number: Option<usize>, length: usize) -> bool {
        let holds = |name: &str| self.holds_name(name, number, length);
        holds(entry)
            || entry.rsplit_once(": ").is_some_and(|(name, value)| {
                let value = value.strip_suffix(')').unwrap_or(value);
                name.split(" (").all(holds) && holds(value)
            })
    }

    fn holds_name(&self, name: &str, number: Option<usize>, length: usize) -> bool {
        if number.is_some_and(|number| self.holds(number, name)) {
            return true;
        }
        if let Some(first) = self.names.borrow().get(name) {
            return *first < length;
        }
        let Some(first) = (0..length).find(|number| self.holds(*number, name)) else {
            return false;
        };
        self.names.borrow_mut().insert(name.to_owned(), first);
        true
    }
}

/// Parses the first line of a note: the number of messages gone, and whether excerpts follow.
fn told(head: &str) -> Option<(usize, bool)> {
    let (number, rest) = head.strip_prefix(MARK)?.split_once(" earlier message")?;
    let number = number.parse().ok().filter(|number| *number > 0)?;
    let (plural, were) = if number == 1 { ("", " was") } else { ("s", " were") };
    let rest = rest.strip_prefix(plural)?;
    // The numbers of the messages, as ranges, if the note is not small.
    let rest = match rest.strip_prefix(" (#") {
        Some(numbered) => numbered.split_once(')')?.1,
        None => rest,
    };
    if rest == EXCERPTS {
        return Some((number, true));
    }
    (rest.strip_prefix(were) == Some(COUNTS)).then_some((number, false))
}

/// Parses a call in the line of its message: the message quoted next, and the call.
fn called(line: &str) -> Option<(usize, &str)> {
    let (number, call) = line.strip_prefix('#')?.split_once(' ')?;
    Some((number.parse().ok()?, call)).filter(|_| call.starts_with(CALL))
}

/// Parses a header: the message quoted next, and its speaker.
fn header(line: &str) -> Option<(usize, &str)> {
    let (number, speaker) = line.strip_prefix('#')?.split_once(' ')?;
    Some((number.parse().ok()?, speaker.strip_suffix(':')?))
}

/// Returns the text of a message: its content, and the arguments of its calls as a reader sees
/// them.
fn text_of(raw: &str) -> String {
    let mut said = String::new();
    let Ok(message) = serde_json::from_str::<Value>(raw) else { return said };
    let mut add = |text: &str| {
        said.push_str(text);
        said.push('\n');
    };
    match &message["content"] {
        Value::String(text) => add(text),
        Value::Array(parts) => {
            parts.iter().filter_map(|part| part["text"].as_str()).for_each(&mut add);
        }
        _ => {}
    }
    for call in message["tool_calls"].as_array().into_iter().flatten() {
        let arguments = call["function"]["arguments"].as_str().unwrap_or_default();
        add(arguments);
        // As raw members, since numbers are shown as they are written.
        let members: HashMap<String, &RawValue> =
            serde_json::from_str(arguments).unwrap_or_default();
        for (key, value) in members {
            let text: String =
                serde_json::from_str(value.get()).unwrap_or_else(|_| value.get().to_owned());
            add(&format!("{key}: {text}"));
        }
    }
    said
}

#[cfg(test)]
mod tests {
    use super::super::conversation::read_line;
    use super::*;

    #[test]
    fn what_a_note_says_must_have_been_said() {
        let conversation = read_line(
            r#"{"id":"c","source":"s","messages":[{"role":"user","content":"pay 20 or 30\nmore"},{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\":1.50,\"b\":\"two\\nlines\"}"}}]},{"role":"tool","tool_call_id":"1","content":"one\n#0 user:\n[weir: two"}]}"#,
        )
        .expect("it is sound");
        let said = Said::new(&conversation);
        let head = "[weir: 2 earlier messages (#0-#1), shortened to fit; … = left out]";
        for (lines, quoted) in [
            ("#0 user:\npay … 30\nmore", Some(&[0][..])),
            ("#0 user:\npay 20\n…\nmore\nalso: one, 30", Some(&[0])),
            ("#0 user:\npay 30", None),
            ("#0 assistant:\npay 20", None),
            ("#1 assistant:\n> f: a: 1.50\nb: two\nlines", Some(&[1])),
            ("#1 assistant:\n> f: a: 1.5, b", None),
            ("#1 > f: a: 1.50\nb: two\nlines", Some(&[1])),
            ("#1 > f: a: 1.60", None),
            ("#2 > f: a: 1.50", None),
            ("also: two (a: 1.50, b: lines)", Some(&[])),
            ("also: two (a: 1.60)", None),
            ("#2 f:\none\n| #0 user:\n| [weir: two", Some(&[2])),
            ("#2 f:\n> f: a: 1.50", None),
            ("#2 f:\none\n#0 user:\npay 20", None),
            ("#0 user:\npay\n#3 f:\none", None),
            ("pay", None),
            ("also: one, lines", Some(&[])),
            ("also: one, three", None),
            ("other messages: one, lines", Some(&[])),
            ("other messages: three", None),
            ("#1 > f: … 1.50", Some(&[1])),
        ] {
            let note = said.read_all(&format!("{head}\n{lines}"), 3).ok();
            assert_eq!(note.map(|note| note.quoted).as_deref(), quoted, "{lines}");
        }
        let count = "[weir: 1 earlier message was left out here to fit the context window]";
        let both = format!("{count}\n\n{head}\n#0 user:\nmore\n{END}");
        let note = Note { told: 3, quoted: vec![0], is_tail: false };
        assert_eq!(said.read_all(&both, 3), Ok(note));
        let tail = Note { told: 0, quoted: vec![0], is_tail: true };
        assert_eq!(said.read_all(&format!("{TAIL}\n#0 user:\nmore"), 3), Ok(tail));
        for wrong in ["[weir: 2 messages]", head, "", "[weir: 1 earlier messages were left out"] {
            assert!(said.read_all(wrong, 3).is_err(), "{wrong}");
        }
    }
}
