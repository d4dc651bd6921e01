//! Answers to calls of the recall tool: messages of the conversation by number, word for word, and
//! passages by words, exact matches first. Pure: the same messages, arguments and room give the same
//! bytes, so an answer can be made again for a later request.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt::Write as _;
use std::ops::Range;

use memchr::memmem;

use super::passages::{OF_LINES, Passage, Question, ranked_lines};
use crate::compact::message::reading::Reading;
use crate::wire::message::Call;
use crate::wire::recall_tool::Arguments;
use crate::wire::{Message, Protocol, Role, json};

/// Result of a call after the last round: the model has to answer with what it has.
pub const NO_MORE: &str =
    "[weir: no more recalls before this answer is given. Answer with what you have.]";

/// Maximum size of an answer with any room.
pub const MAX_ANSWER_BYTES: usize = 32 << 10;
/// Minimum size of an answer, so that it can say something.
pub const LEAST_ANSWER_BYTES: usize = 512;
/// Maximum number of messages in one answer.
const MAX_MESSAGES: usize = 16;
/// Amount of text that is searched, the newest messages first.
const SEARCHED_BYTES: usize = 4 << 20;
/// Maximum number of messages that are searched.
const SEARCHED_MESSAGES: usize = 10_000;
/// Maximum number of passages in one answer.
const MAX_PASSAGES: usize = 128;
/// Maximum number of exact matches that are shown, and of those in one message as long as other messages
/// have some.
const MAX_MATCHES: usize = 12;
const MATCHES_A_MESSAGE: usize = 2;
/// Text around an exact match, to each side: as much as half of the room allows, within these bounds.
const LEAST_AROUND_BYTES: usize = 240;
const MOST_AROUND_BYTES: usize = 1200;
/// Text around a passage that ranks well, to each side.
const AROUND_PASSAGE_BYTES: usize = 40;
/// Bytes between two parts of a message that are shown as one.
const JOINED_BYTES: usize = 5;
/// Mark between two parts of a message.
const GAP: &str = "\n…\n";
/// Words of a query among which the longest run is searched, the minimum size of a run, and the maximum
/// number of times that it occurs: a more frequent one says little.
const RUN_WORDS: usize = 64;
const RUN_BYTES: usize = 10;
const RUN_MATCHES: usize = 3;
/// Bytes of a line in front of a text.
const HEADER_BYTES: usize = 120;
/// Bytes of text per token assumed for ranking.
const BYTES_A_TOKEN: u64 = 4;

/// Conversation that calls of the recall tool ask about.
#[derive(Debug, Clone, Copy)]
pub struct Lookup<'a> {
    /// Protocol of the messages.
    pub protocol: Protocol,
    /// JSON text of each message, numbered as in notes.
    pub messages: &'a [&'a str],
    /// Name of the tool. Its own calls and results are not searched.
    pub tool: &'a str,
}

/// Part of a message's text that bears on a query.
struct FoundPart {
    message: usize,
    span: Range<usize>,
}

impl Lookup<'_> {
    /// Returns the result of a call with these `arguments`, in at most about `room_bytes`. Arguments
    /// that say nothing give a text that explains how to ask.
    pub fn answer(&self, arguments: &str, room_bytes: usize) -> String {
        let room_bytes = room_bytes.clamp(LEAST_ANSWER_BYTES, MAX_ANSWER_BYTES);
        let asked = Arguments::read(arguments);
        let words = asked.query.trim();
        match (asked.is_readable, asked.messages.is_empty(), words.is_empty()) {
            (false, ..) => self.usage("the arguments are not a JSON object"),
            (_, true, true) => self.usage("the call names neither messages nor words"),
            (_, true, false) => self.by_words(words, room_bytes),
            (_, false, false) if asked.from == 0 => self.by_both(&asked, words, room_bytes),
            (_, false, _) => self.by_number(&asked, room_bytes),
        }
    }

    /// Says what is wrong with a call, and how to ask.
    fn usage(&self, problem: &str) -> String {
        format!(
            "[weir: {problem}. Call {} with {{\"messages\": [12]}} for messages by the numbers that notes \
             give (#12), or with {{\"query\": \"words\"}} to search. \
             Messages are numbered from 0 to {}.]",
            self.tool,
            self.messages.len().saturating_sub(1)
        )
    }

    /// Returns messages word for word, the first ones whole as long as there is room.
    fn by_number(&self, asked: &Arguments, room_bytes: usize) -> String {
        let numbers = &asked.messages[..asked.messages.len().min(MAX_MESSAGES)];
        let from = usize::try_from(asked.from).unwrap_or(usize::MAX);
        let mut out = String::new();
        for (nth, number) in numbers.iter().enumerate() {
            if !out.is_empty() {
                out.push_str("\n\n");
            }
            let left = room_bytes.saturating_sub(out.len() + HEADER_BYTES);
            if nth > 0 && left < LEAST_AROUND_BYTES {
                let rest: Vec<String> =
                    numbers[nth..].iter().map(|own| format!("#{own}")).collect();
                let _ = write!(out, "[weir: no room for {}; ask again]", rest.join(", "));
                break;
            }
            let place = usize::try_from(*number).unwrap_or(usize::MAX);
            let Some(raw) = self.messages.get(place) else {
                let _ = write!(
                    out,
                    "[weir: there is no message #{number}; they are numbered from 0 to {}]",
                    self.messages.len().saturating_sub(1)
                );
                continue;
            };
            let (role, text) = text_of(self.protocol, raw);
            let from = if numbers.len() == 1 { from } else { 0 };
            write_piece(place, role, &text, from..from.saturating_add(left), &mut out);
        }
        out
    }

    /// Returns the named messages whole if there is room, else their passages that bear on `words`.
    /// Exact matches elsewhere follow if they have none.
    fn by_both(&self, asked: &Arguments, words: &str, room_bytes: usize) -> String {
        let all = asked.messages.iter().filter_map(|number| usize::try_from(*number).ok());
        let mut named: Vec<usize> = all.filter(|number| *number < self.messages.len()).collect();
        named.sort_unstable();
        named.dedup();
        named.truncate(MAX_MESSAGES);
        let own = Searched::of(self, named);
        let found = own.matches(words);
        let elsewhere = || {
            let others = Searched::of(self, self.searched());
            let found = others.matches(words);
            (others, found)
        };
        let whole_bytes: usize = own.texts.iter().map(|text| text.len() + HEADER_BYTES).sum();
        if own.numbers.is_empty() || whole_bytes <= room_bytes {
            let mut out = self.by_number(asked, room_bytes);
            if found.is_empty() {
                let (others, found) = elsewhere();
                others.write(&others.widened(&found, room_bytes), room_bytes, &mut out);
            }
            return out;
        }
        let mut out = String::new();
        let mut shown = own.widened(&found, room_bytes);
        if shown.is_empty() {
            let (others, found) = elsewhere();
            others.write(&others.widened(&found, room_bytes), room_bytes / 2, &mut out);
        }
        own.add_relevant(words, &mut shown);
        own.write(&shown, room_bytes, &mut out);
        match out.is_empty() {
            true => self.by_number(asked, room_bytes),
            false => out,
        }
    }

    /// Returns the passages that bear on `words`.
    fn by_words(&self, words: &str, room_bytes: usize) -> String {
        let searched = Searched::of(self, self.searched());
        let mut shown = searched.widened(&searched.matches(words), room_bytes);
        searched.add_relevant(words, &mut shown);
        let mut out = String::new();
        searched.write(&shown, room_bytes, &mut out);
        match out.is_empty() {
            true => self.usage("nothing that was said bears on these words"),
            false => out,
        }
    }

    /// Returns the numbers of the messages to search, in order.
    fn searched(&self) -> Vec<usize> {
        let mut left_bytes = SEARCHED_BYTES;
        let mut searched = Vec::new();
        let mut own_calls: HashSet<String> = HashSet::new();
        // Results of the tool itself would only repeat what it found.
        for raw in self.messages {
            let Ok(message) = self.protocol.read_message(raw) else { continue };
            let own = message.calls.iter().filter(|call| self.is_own(call));
            own_calls.extend(own.filter_map(|call| json::string(call.id)).map(Into::into));
        }
        for (number, raw) in self.messages.iter().enumerate().rev().take(SEARCHED_MESSAGES) {
            let Ok(message) = self.protocol.read_message(raw) else { continue };
            let is_result =
                message.answers.and_then(json::string).is_some_and(|id| own_calls.contains(&*id));
            let is_call = message.calls.iter().any(|call| self.is_own(call));
            if message.role == Role::System || is_result || is_call {
                continue;
            }
            let Some(left) = left_bytes.checked_sub(raw.len()) else { break };
            left_bytes = left;
            searched.push(number);
        }
        searched.reverse();
        searched
    }

    fn is_own(&self, call: &Call<'_>) -> bool {
        json::string(call.name).is_some_and(|name| name == self.tool)
    }
}

/// Returns the role of a message and its text as it was said: its texts unescaped, line by line, and
/// its calls with their arguments unchanged.
fn text_of(protocol: Protocol, raw: &str) -> (Role, String) {
    let Ok(message) = protocol.read_message(raw) else {
        return (Role::Other, json::string(raw).map_or_else(String::new, Into::into));
    };
    (message.role, said(&message))
}

fn said(message: &Message<'_>) -> String {
    let texts = message.texts().into_iter().filter_map(json::string).map(String::from);
    let calls = message.all_calls().map(|call| {
        let name = json::string(call.name).unwrap_or_default();
        format!("> {name}: {}", call.text())
    });
    let outputs = message.inner_outputs.iter().copied().filter_map(json::string).map(String::from);
    texts.chain(calls).chain(outputs).collect::<Vec<String>>().join("\n")
}

/// Writes a part of a message's text under a line that says which.
fn write_piece(number: usize, role: Role, text: &str, span: Range<usize>, out: &mut String) {
    let start = text.floor_char_boundary(span.start);
    let end = text.floor_char_boundary(span.end).max(start);
    let speaker = match role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "result",
        Role::Other => "message",
    };
    let _ = match (start, end == text.len()) {
        (0, true) => writeln!(out, "#{number} {speaker}, whole:"),
        (_, true) => writeln!(out, "#{number} {speaker}, bytes {start} to {end}, the end:"),
        (_, false) => writeln!(
            out,
            "#{number} {speaker}, bytes {start} to {end} of {}; {{\"messages\": [{number}], \"from\": {end}}} \
             reads on:",
            text.len()
        ),
    };
    out.push_str(&text[start..end]);
}

impl FoundPart {
    /// Whether it shares text of a message with a span.
    fn meets(&self, message: usize, span: &Range<usize>) -> bool {
        self.message == message && self.span.start < span.end && span.start < self.span.end
    }
}

/// Widens a span of a text by so much to each side, to whole lines if that leaves most of it.
fn around(text: &str, span: &Range<usize>, around_bytes: usize) -> Range<usize> {
    let least = text.floor_char_boundary(span.start.saturating_sub(around_bytes));
    let most = text.ceil_char_boundary((span.end + around_bytes).min(text.len()));
    let (before, behind) = (&text[least..span.start], &text[span.end..most]);
    let start = match before.find('\n').filter(|at| *at < before.len() / 2) {
        Some(at) if least > 0 => least + at + 1,
        _ => least,
    };
    let end = match behind.rfind('\n').filter(|at| *at > behind.len() / 2) {
        Some(at) if most < text.len() => span.end + at,
        _ => most,
    };
    start..end
}

/// Returns a text for its words and lines: escapes of line ends and quotes, as arguments of calls have them,
/// are replaced by as many spaces and line ends.
fn unescaped(text: &str) -> Cow<'_, str> {
    if !text.contains('\\') {
        return text.into();
    }
    text.replace("\\n", " \n").replace("\\t", "  ").replace("\\\"", "  ").into()
}

/// Messages that a query is about, with their texts.
struct Searched {
    numbers: Vec<usize>,
    roles: Vec<Role>,
    texts: Vec<String>,
    /// The texts in lower case, with the same offsets.
    folded: Vec<String>,
}

impl Searched {
    /// Reads the messages with these `numbers`, which are in order.
    fn of(lookup: &Lookup<'_>, numbers: Vec<usize>) -> Self {
        let read = numbers.iter().map(|own| text_of(lookup.protocol, lookup.messages[*own]));
        let (roles, texts): (Vec<Role>, Vec<String>) = read.unzip();
        let folded = texts.iter().map(|text| text.to_ascii_lowercase()).collect();
        Self { numbers, roles, texts, folded }
    }

    /// Finds `words` as they are, else the longest run of them that is rare: the same case first, then the
    /// newest.
    fn matches(&self, words: &str) -> Vec<FoundPart> {
        let quoted = words.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        let words = quoted.unwrap_or(words).trim();
        // A single letter is everywhere.
        if words.chars().nth(1).is_none() {
            return Vec::new();
        }
        let found = self.occurrences(words);
        if !found.is_empty() {
            return found;
        }
        // Arguments of calls are shown as they were written.
        let escaped = json::escaped(words);
        let found = if escaped == words { found } else { self.occurrences(&escaped) };
        if !found.is_empty() {
            return found;
        }
        let found = self.longest_run(words).map(|run| self.occurrences(run)).unwrap_or_default();
        if found.len() <= RUN_MATCHES { found } else { Vec::new() }
    }

    /// Finds a text.
    fn occurrences(&self, needle: &str) -> Vec<FoundPart> {
        let lower = needle.to_ascii_lowercase();
        // To make a searcher takes longer than to search a short text.
        let [own, folded] = [needle, &lower].map(|words| memmem::Finder::new(words.as_bytes()));
        let (mut first, mut more) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        for (place, text) in self.texts.iter().enumerate().rev() {
            let mut all = folded.find_iter(self.folded[place].as_bytes()).peekable();
            let is_other_case = all.peek().is_some() && own.find(text.as_bytes()).is_none();
            for (nth, at) in all.take(MAX_MATCHES).enumerate() {
                let span = at..at + lower.len();
                let found = FoundPart { message: self.numbers[place], span };
                let list = if nth < MATCHES_A_MESSAGE { &mut first } else { &mut more };
                list[usize::from(is_other_case)].push(found);
            }
        }
        first.into_iter().chain(more).flatten().take(MAX_MATCHES).collect()
    }

    /// Returns the longest run of at least two of the words that occurs somewhere.
    fn longest_run<'w>(&self, words: &'w str) -> Option<&'w str> {
        let start_of = |word: &str| word.as_ptr() as usize - words.as_ptr() as usize;
        let spans: Vec<Range<usize>> = words
            .split_whitespace()
            .map(|word| start_of(word)..start_of(word) + word.len())
            .take(RUN_WORDS)
            .collect();
        let occurs = |run: &str| {
            let lower = run.to_ascii_lowercase();
            let finder = memmem::Finder::new(lower.as_bytes());
            self.folded.iter().any(|text| finder.find(text.as_bytes()).is_some())
        };
        let mut longest: Option<Range<usize>> = None;
        for (nth, first) in spans.iter().enumerate() {
            for last in spans.iter().skip(nth + 1) {
                let run = first.start..last.end;
                let is_longer = longest.as_ref().is_none_or(|longest| run.len() > longest.len());
                if run.len() < RUN_BYTES || !is_longer {
                    continue;
                }
                if !occurs(&words[run.clone()]) {
                    break;
                }
                longest = Some(run);
            }
        }
        longest.map(|run| &words[run])
    }

    /// Returns exact matches with the text around them, joined where they meet. Together they take at most
    /// half of the room, so in a small room only the first.
    fn widened(&self, found: &[FoundPart], room_bytes: usize) -> Vec<FoundPart> {
        let most = (room_bytes / 4 / LEAST_AROUND_BYTES).max(1);
        let found = &found[..found.len().min(most)];
        let around_bytes = room_bytes / 4 / found.len().max(1);
        let around_bytes = around_bytes.clamp(LEAST_AROUND_BYTES, MOST_AROUND_BYTES);
        let mut shown: Vec<FoundPart> = Vec::new();
        for FoundPart { message, span } in found {
            let Ok(place) = self.numbers.binary_search(message) else { continue };
            let span = around(&self.texts[place], span, around_bytes);
            match shown.iter_mut().find(|own| own.meets(*message, &span)) {
                Some(own) => {
                    own.span = own.span.start.min(span.start)..own.span.end.max(span.end);
                }
                None => shown.push(FoundPart { message: *message, span }),
            }
        }
        shown
    }

    /// Adds the passages that rank best by `words`, unless an exact match shows them.
    fn add_relevant(&self, words: &str, found: &mut Vec<FoundPart>) {
        let Some(question) = Question::of(words) else { return };
        let texts = self.roles.iter().zip(&self.texts);
        let readings: Vec<Reading> =
            texts.map(|(role, text)| Reading::of_text(*role, &unescaped(text))).collect();
        let mut passages = Vec::new();
        for (number, reading) in self.numbers.iter().zip(&readings) {
            let tokens = (reading.text.len() as u64).div_ceil(BYTES_A_TOKEN);
            Passage::add_of(*number, reading, tokens, &question, OF_LINES, &mut passages);
        }
        for nth in ranked_lines(&passages, &question) {
            if found.len() >= MAX_PASSAGES {
                return;
            }
            let Passage { message, units, .. } = &passages[nth];
            let Ok(place) = self.numbers.binary_search(message) else { continue };
            let Some((first, last)) = units.first().zip(units.last()) else { continue };
            let units = &readings[place].units;
            let span = units[*first].span.start..units[*last].span.end;
            if !found.iter().any(|own| own.meets(*message, &span)) {
                let span = around(&self.texts[place], &span, AROUND_PASSAGE_BYTES);
                found.push(FoundPart { message: *message, span });
            }
        }
    }

    /// Writes passages, as far as there is room: the best ones, those of one message together.
    fn write(&self, found: &[FoundPart], room_bytes: usize, out: &mut String) {
        let mut shown: Vec<(usize, Vec<Range<usize>>)> = Vec::new();
        let mut left = room_bytes.saturating_sub(out.len());
        for FoundPart { message, span } in found {
            let Ok(place) = self.numbers.binary_search(message) else { continue };
            let known = shown.iter().position(|(own, _)| *own == place);
            let header = if known.is_some() { GAP.len() } else { HEADER_BYTES };
            let room = left.saturating_sub(header);
            let is_first = shown.is_empty() && out.is_empty();
            if room < span.len() && (room < LEAST_AROUND_BYTES && !is_first || known.is_some()) {
                continue;
            }
            let span = span.start..span.end.min(span.start.saturating_add(room));
            left = room - span.len();
            match known {
                Some(known) => shown[known].1.push(span),
                None => shown.push((place, vec![span])),
            }
        }
        for (place, spans) in shown {
            if !out.is_empty() {
                out.push_str("\n\n");
            }
            self.write_message(place, spans, out);
        }
    }

    /// Writes parts of a message, in order.
    fn write_message(&self, place: usize, mut spans: Vec<Range<usize>>, out: &mut String) {
        let (number, text) = (self.numbers[place], &self.texts[place]);
        spans.sort_by_key(|span| span.start);
        let mut joined: Vec<Range<usize>> = Vec::new();
        for span in spans {
            match joined.last_mut().filter(|last| span.start <= last.end + JOINED_BYTES) {
                Some(last) => last.end = last.end.max(span.end),
                None => joined.push(span),
            }
        }
        let rest = joined.split_off(1);
        write_piece(number, self.roles[place], text, joined[0].clone(), out);
        for span in rest {
            out.push_str(GAP);
            let start = text.floor_char_boundary(span.start);
            out.push_str(&text[start..text.floor_char_boundary(span.end).max(start)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat() -> Vec<String> {
        let long = "The level rose again. ".repeat(400);
        vec![
            r#"{"role":"system","content":"Be brief. port 5433"}"#.to_owned(),
            r#"{"role":"user","content":"The database listens on port 5433.\nSay \"yes\"."}"#.to_owned(),
            r#"{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"read","arguments":"{\"path\": \"a/b.rs\"}"}}]}"#.to_owned(),
            format!(r#"{{"role":"tool","tool_call_id":"c1","content":"fn main() {{}}\n{long}\nend é"}}"#),
            r#"{"role":"assistant","content":"It is done, PORT 5433 is set."}"#.to_owned(),
            r#"{"role":"assistant","content":null,"tool_calls":[{"id":"r1","type":"function","function":{"name":"recall","arguments":"{\"query\":\"port 5433\"}"}}]}"#.to_owned(),
            r#"{"role":"tool","tool_call_id":"r1","content":"port 5433"}"#.to_owned(),
        ]
    }

    fn literal(text: &str) -> String {
        let mut raw = String::new();
        json::escape_into(text, &mut raw);
        format!("\"{raw}\"")
    }

    fn answer(arguments: &str, room_bytes: usize) -> String {
        let messages = chat();
        let messages: Vec<&str> = messages.iter().map(String::as_str).collect();
        let lookup = Lookup { protocol: Protocol::Chat, messages: &messages, tool: "recall" };
        lookup.answer(arguments, room_bytes)
    }

    #[test]
    fn a_number_returns_the_message_word_for_word() {
        for arguments in [r#"{"messages":1}"#, r##"{"messages":"#1"}"##, r#"{"messages":[1]}"#] {
            assert_eq!(
                answer(arguments, 4000),
                "#1 user, whole:\nThe database listens on port 5433.\nSay \"yes\"."
            );
        }
        assert_eq!(
            answer(r#"{"messages":2}"#, 4000),
            "#2 assistant, whole:\n> read: {\"path\": \"a/b.rs\"}"
        );
    }

    #[test]
    fn a_long_message_is_read_on_from_where_it_ended() {
        let messages = chat();
        let (_, whole) = text_of(Protocol::Chat, &messages[3]);
        let (mut read, mut from) = (String::new(), 0);
        while from < whole.len() {
            let said = answer(&format!(r#"{{"messages":[3],"from":{from}}}"#), 1000);
            assert!(said.len() <= 1000, "{}", said.len());
            let (_, text) = said.split_once('\n').expect("a line in front");
            read.push_str(text);
            from += text.len();
        }
        assert_eq!(read, whole);
    }

    #[test]
    fn several_messages_share_the_room() {
        let said = answer(r#"{"messages":[1,3,4,99]}"#, 900);
        assert!(said.starts_with("#1 user, whole:\n") && said.contains("#3 result, bytes 0 to "));
        assert!(said.ends_with("[weir: no room for #4, #99; ask again]"), "{said}");
        assert!(answer(r#"{"messages":[99]}"#, 900).contains("no message #99"));
    }

    #[test]
    fn exact_matches_come_first_and_repetitions_never() {
        let said = answer(r#"{"query":"port 5433"}"#, 4000);
        assert!(said.starts_with("#1 user, whole:"), "{said}");
        assert!(said.contains("#4 assistant") && !said.contains("#6") && !said.contains("#0"));
        let said = answer(r#"{"query":"where the database listens"}"#, 4000);
        assert!(said.starts_with("#1 user"), "{said}");
    }

    /// Returns a conversation with one long message and a value deep in it.
    fn deep(role: &str) -> Vec<String> {
        let lines = |from: usize| -> String {
            (from..from + 400).map(|nth| format!("line {nth}: the level rose again\\n")).collect()
        };
        let text =
            format!("{}  the gate code\\nis 84-31-07\\nuntil Friday\\n{}", lines(0), lines(400));
        vec![
            r#"{"role":"user","content":"Read the log."}"#.to_owned(),
            match role {
                "assistant" => {
                    let arguments = literal(&format!("{{\"log\":\"{text}\"}}"));
                    format!(
                        r#"{{"role":"assistant","content":null,"tool_calls":[{{"id":"c1","type":"function","function":{{"name":"write","arguments":{arguments}}}}}]}}"#
                    )
                }
                _ => format!(r#"{{"role":"{role}","content":"{text}"}}"#),
            },
            r#"{"role":"user","content":"The code is 11-11-11 elsewhere."}"#.to_owned(),
        ]
    }

    #[test]
    fn a_place_deep_in_a_long_message_is_found_by_its_number_and_words() {
        for role in ["user", "assistant"] {
            let messages = deep(role);
            let messages: Vec<&str> = messages.iter().map(String::as_str).collect();
            let lookup = Lookup { protocol: Protocol::Chat, messages: &messages, tool: "recall" };
            for arguments in [
                r#"{"messages":[1],"query":"84-31-07"}"#,
                r#"{"messages":[1],"query":"the gate code"}"#,
                r#"{"messages":[1],"query":"What is the gate code until Friday?"}"#,
                r#"{"query":"the gate code until Friday"}"#,
                r#"{"messages":[2],"query":"until Friday"}"#,
            ] {
                let said = lookup.answer(arguments, 2000);
                assert!(said.len() <= 2000, "{}", said.len());
                assert!(said.contains("84-31-07") && said.contains("#1 "), "{arguments}: {said}");
            }
            // The whole message is given if it has room, and a second call reads on.
            assert!(
                lookup
                    .answer(r#"{"messages":[2],"query":"code"}"#, 2000)
                    .starts_with("#2 user, whole:")
            );
            let on = lookup.answer(r#"{"messages":[1],"query":"gate","from":500}"#, 2000);
            assert!(on.contains("bytes 500 to "), "{on}");
        }
    }

    #[test]
    fn exact_matches_leave_room_for_ranked_passages() {
        // Twelve messages have the words as they are; one that has them apart only ranks.
        let exact = r#"{"role":"user","content":"The blue gate is shut."}"#;
        let said = "far from here and long ago ".repeat(60);
        let padded = format!(r#"{{"role":"user","content":"{said} The blue gate. {said}"}}"#);
        let apart =
            r#"{"role":"assistant","content":"A gate was painted: blue gate paint, the blue."}"#;
        let mut messages = vec![padded.as_str(); 11];
        messages.extend([exact, apart]);
        let lookup = Lookup { protocol: Protocol::Chat, messages: &messages, tool: "recall" };
        let said = lookup.answer(r#"{"query":"the blue gate"}"#, 4000);
        assert!(said.len() <= 4000 && said.starts_with("#11 user, whole:"), "{said}");
        assert!(said.contains("#12 assistant, whole:"), "{said}");
    }

    #[test]
    fn nonsense_is_answered_with_how_to_ask() {
        for arguments in [
            "",
            "{",
            "[]",
            "{}",
            r#"{"query":7}"#,
            r#"{"messages":-1}"#,
            r#"{"messages":[]}"#,
            r#"{"query":" "}"#,
        ] {
            let said = answer(arguments, 4000);
            assert!(said.starts_with("[weir: ") && said.contains("{\"messages\": [12]}"), "{said}");
        }
        assert!(answer(r#"{"query":"zebra"}"#, 4000).contains("nothing that was said"));
    }
}
