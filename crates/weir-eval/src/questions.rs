//! Items that each real answer took from its conversation, to be searched for in the requests of a
//! policy. Computed once per conversation, independent of the policy.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::conversation::{Conversation, Message};
use super::grams;
use super::text::{self, Text};
use super::values;
use weir_engine::wire::Role;

/// Number of messages before an answer whose values do not count as remembered.
const NEAR_MESSAGES: usize = 4;
/// A value is far if it was last seen more messages back than this.
const FAR_MESSAGES: usize = 10;
/// A user message is short up to this many tokens.
const SHORT_USER_TOKENS: u64 = 120;
/// Number of characters of a call's first argument that are searched for.
const ACTION_CHARACTERS: usize = 120;

/// Items to search for in the requests of one conversation.
pub struct Questions {
    pub needles: Vec<Needle>,
    /// Five-token sequences in answers.
    pub grams: Vec<Gram>,
    /// One entry for each turn of the conversation.
    pub turns: Vec<Turn>,
    /// Calls, each as its message and the needle of its first argument.
    pub actions: Vec<(usize, u32)>,
    /// Short user messages, each with its needle.
    pub users: Vec<(usize, u32)>,
}

/// Text to search for by whole words.
pub struct Needle {
    pub text: String,
    /// Its occurrences in the conversation, in order.
    pub places: Vec<Place>,
}

/// Five-token sequence, with the messages that contain it.
pub struct Gram {
    pub run: u64,
    pub messages: Vec<u32>,
}

/// Occurrence of a needle.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    pub message: u32,
    /// Index of the message's text, and the byte offset in it.
    pub text: u32,
    pub start: u32,
}

/// Items that the answer to one request took from further back.
#[derive(Default)]
pub struct Turn {
    pub references: Vec<Reference>,
    /// Indices into [`Questions::grams`].
    pub grams: Vec<u32>,
}

/// Value that the answer uses and that appears only before the last messages of the conversation.
pub struct Reference {
    pub needle: u32,
    /// The first user message does not contain it either.
    pub is_deep: bool,
    /// It was last seen far back.
    pub is_far: bool,
    /// Message in which it was last seen.
    pub last_seen: usize,
}

/// Numbers of texts in order of appearance.
#[derive(Default)]
struct Numbers {
    of: BTreeMap<String, u32>,
    texts: Vec<String>,
}

impl Numbers {
    fn of(&mut self, text: &str) -> u32 {
        if let Some(number) = self.of.get(text) {
            return *number;
        }
        let number = self.texts.len() as u32;
        self.of.insert(text.to_owned(), number);
        self.texts.push(text.to_owned());
        number
    }
}

impl Questions {
    /// Finds all items in a conversation.
    pub fn new(conversation: &Conversation) -> Self {
        let messages = &conversation.messages;
        let mut numbers = Numbers::default();
        let mut used: Vec<Vec<u32>> = Vec::with_capacity(conversation.turns.len());
        for length in &conversation.turns {
            let mut found = BTreeSet::new();
            // The answer to a conversation's last request may not be there.
            let answer = messages.get(*length);
            for line in answer.iter().flat_map(|own| &own.texts).flat_map(Text::lines) {
                values::of_line(line, &mut found);
            }
            used.push(found.iter().map(|value| numbers.of(value)).collect());
        }
        let by_code_block = is_by_code_block(messages);
        let actions = actions(messages, by_code_block, &mut numbers);
        let users = short_users(messages, by_code_block, &mut numbers);
        let needles = places(numbers.texts, messages);
        let (grams, used_grams) = used_grams(conversation);
        let scene = Scene::new(conversation);
        let turn = |(place, length): (usize, &usize)| Turn {
            references: scene.references(*length, &used[place], &needles),
            grams: scene.far_grams(*length, &used_grams[place], &grams),
        };
        let turns = conversation.turns.iter().enumerate().map(turn).collect();
        Self { needles, grams, turns, actions, users }
    }
}

/// Messages that do not count as the conversation's middle.
struct Scene {
    is_system: Vec<bool>,
    first_user: Option<usize>,
}

impl Scene {
    fn new(conversation: &Conversation) -> Self {
        let is_system = |message: &Message| message.role == Role::System;
        Self {
            is_system: conversation.messages.iter().map(is_system).collect(),
            first_user: conversation.first_user(),
        }
    }

    fn references(&self, length: usize, used: &[u32], needles: &[Needle]) -> Vec<Reference> {
        let near = length.saturating_sub(NEAR_MESSAGES);
        let reference = |needle: &u32| {
            let places = &needles[*needle as usize].places;
            let before =
                &places[..places.partition_point(|place| (place.message as usize) < length)];
            let last_seen = before.last()?.message as usize;
            let is_known = last_seen >= near
                || before.iter().any(|place| self.is_system[place.message as usize]);
            let in_first = |place: &Place| Some(place.message as usize) == self.first_user;
            (!is_known).then(|| Reference {
                needle: *needle,
                is_deep: !before.iter().any(in_first),
                is_far: length - last_seen > FAR_MESSAGES,
                last_seen,
            })
        };
        used.iter().filter_map(reference).collect()
    }

    fn far_grams(&self, length: usize, used: &[u32], grams: &[Gram]) -> Vec<u32> {
        let near = length.saturating_sub(NEAR_MESSAGES);
        let is_far = |gram: &&u32| {
            let messages = &grams[**gram as usize].messages;
            let before = &messages[..messages.partition_point(|own| (*own as usize) < length)];
            before.last().is_some_and(|last| (*last as usize) < near)
                && !before.iter().any(|own| {
                    self.is_system[*own as usize] || Some(*own as usize) == self.first_user
                })
        };
        used.iter().filter(is_far).copied().collect()
    }
}

/// Finds all occurrences of each text in the messages, by its longest word.
fn places(texts: Vec<String>, messages: &[Message]) -> Vec<Needle> {
    let mut by_word: HashMap<&str, Vec<(u32, usize)>> = HashMap::new();
    for (number, text) in texts.iter().enumerate() {
        let longest =
            text::words(text).max_by_key(|(start, word)| (word.len(), usize::MAX - start));
        if let Some((offset, word)) = longest {
            by_word.entry(word).or_default().push((number as u32, offset));
        }
    }
    let mut found: Vec<Vec<Place>> = vec![Vec::new(); texts.len()];
    for (message, own) in messages.iter().enumerate() {
        for (index, text) in own.texts.iter().enumerate() {
            for (at, word) in text::words(&text.text) {
                for (number, offset) in by_word.get(word).into_iter().flatten() {
                    let Some(start) = at.checked_sub(*offset) else { continue };
                    let needle = &texts[*number as usize];
                    let stands =
                        text.text.get(start..).is_some_and(|rest| rest.starts_with(needle))
                            && text::is_bounded(&text.text, start, start + needle.len());
                    if stands {
                        found[*number as usize].push(Place {
                            message: message as u32,
                            text: index as u32,
                            start: start as u32,
                        });
                    }
                }
            }
        }
    }
    texts.into_iter().zip(found).map(|(text, places)| Needle { text, places }).collect()
}

/// Returns the five-token sequences that answers use, with the messages that contain them, and the
/// sequences used by each turn's answer.
fn used_grams(conversation: &Conversation) -> (Vec<Gram>, Vec<Vec<u32>>) {
    let of_message =
        |message: &Message| message.texts.iter().flat_map(|text| grams::of(&text.text)).collect();
    let by_message: Vec<Vec<u64>> = conversation.messages.iter().map(of_message).collect();
    let mut numbers: HashMap<u64, u32> = HashMap::new();
    let mut grams = Vec::new();
    let mut used = Vec::new();
    for length in &conversation.turns {
        let mut own: Vec<u32> = Vec::new();
        for gram in by_message.get(*length).into_iter().flatten() {
            own.push(*numbers.entry(*gram).or_insert_with(|| {
                grams.push(Gram { run: *gram, messages: Vec::new() });
                grams.len() as u32 - 1
            }));
        }
        own.sort_unstable();
        own.dedup();
        used.push(own);
    }
    for (message, own) in by_message.iter().enumerate() {
        for gram in own {
            let Some(number) = numbers.get(gram) else { continue };
            let messages: &mut Vec<u32> = &mut grams[*number as usize].messages;
            if messages.last() != Some(&(message as u32)) {
                messages.push(message as u32);
            }
        }
    }
    (grams, used)
}

/// Whether the assistant of a conversation writes its commands as code blocks at the end of its
/// messages.
fn is_by_code_block(messages: &[Message]) -> bool {
    let spoken = messages.iter().filter(|message| message.role == Role::Assistant);
    let (mut all, mut with_block) = (0, 0);
    for message in spoken {
        all += 1;
        with_block += usize::from(command(&message.content).is_some());
    }
    all > 0 && with_block * 2 > all && !messages.iter().any(|message| message.role == Role::Tool)
}

/// Returns the command in the code block at the end of a message.
fn command(content: &str) -> Option<&str> {
    let body = content.trim_end().strip_suffix("```")?;
    let (_, block) = body.rsplit_once("```")?;
    let (language, command) = block.split_once('\n')?;
    let is_shell = ["", "bash", "sh", "shell"].contains(&language.trim());
    (is_shell && !command.contains("<<<<<<< SEARCH") && !command.trim().is_empty())
        .then_some(command)
}

/// Returns the text that represents a call: the first non-blank line of its first argument, or as
/// many whole words of it as there is room for, since half a word is never found as one.
fn action(argument: &str) -> Option<String> {
    let line = argument.lines().find(|line| !line.trim().is_empty())?;
    let line = Text::new(line).text;
    let end = line.char_indices().nth(ACTION_CHARACTERS).map_or(line.len(), |(at, _)| at);
    let mut ends = (1..=end).rev().filter(|at| line.is_char_boundary(*at));
    let end = ends.find(|at| text::is_bounded(&line, 0, *at)).unwrap_or(line.len());
    Some(line[..end].trim_end().to_owned())
}

fn actions(messages: &[Message], by_code_block: bool, numbers: &mut Numbers) -> Vec<(usize, u32)> {
    let mut actions = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        let arguments = message.first_arguments.iter().map(String::as_str);
        let is_spoken = by_code_block && message.role == Role::Assistant;
        let block = is_spoken.then(|| command(&message.content)).flatten();
        let own = arguments.chain(block).filter_map(action);
        actions.extend(own.map(|text| (index, numbers.of(&text))));
    }
    actions
}

/// Returns the user's short messages, except the first and those that are tool output.
fn short_users(
    messages: &[Message],
    by_code_block: bool,
    numbers: &mut Numbers,
) -> Vec<(usize, u32)> {
    let users = messages.iter().enumerate().filter(|(_, message)| message.role == Role::User);
    let mut short = Vec::new();
    for (index, message) in users.skip(1) {
        let before = &messages[index - 1];
        let is_output = message.content.starts_with("<returncode>")
            || (by_code_block
                && before.role == Role::Assistant
                && command(&before.content).is_some());
        let text = Text::new(&message.content).text;
        if message.fact.text_tokens <= SHORT_USER_TOKENS && !is_output && !text.is_empty() {
            short.push((index, numbers.of(&text)));
        }
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conversation(messages: &[(&str, &str)]) -> Conversation {
        let message = |(role, content): &(&str, &str)| {
            serde_json::json!({"role": role, "content": content}).to_string()
        };
        let messages: Vec<String> = messages.iter().map(message).collect();
        let line = format!(r#"{{"messages":[{}]}}"#, messages.join(","));
        Conversation::read(&line, 1, None).expect("it is one")
    }

    #[test]
    fn only_what_the_middle_knew_is_asked_for() {
        let mut messages = vec![
            ("system", "in_system"),
            ("user", "in_first"),
            ("assistant", "far_one and later_two"),
            ("user", "far_one"),
        ];
        messages.extend([("assistant", "ok"), ("user", "ok")].repeat(4));
        messages.extend([("assistant", "later_two"), ("user", "a"), ("assistant", "near_by")]);
        messages.extend([("user", "b"), ("assistant", "c"), ("user", "d")]);
        messages.push(("assistant", "in_system in_first far_one later_two near_by new_one"));
        let questions = Questions::new(&conversation(&messages));
        let last = questions.turns.last().expect("a turn");
        let asked: Vec<(&str, bool, bool, usize)> = last
            .references
            .iter()
            .map(|own| {
                let text = questions.needles[own.needle as usize].text.as_str();
                (text, own.is_deep, own.is_far, own.last_seen)
            })
            .collect();
        let wanted = [
            ("far_one", true, true, 3),
            ("in_first", false, true, 1),
            ("later_two", true, false, 12),
        ];
        assert_eq!(asked, wanted);
    }

    #[test]
    fn commands_in_code_blocks_are_calls_and_what_follows_is_output() {
        let block = "THOUGHT: look\n\n```bash\n\n  ls  -l\npwd\n```";
        let patch = "```\n<<<<<<< SEARCH\n=======\n>>>>>>> REPLACE\n```";
        for (messages, actions, users) in [
            (&[("user", "u"), ("assistant", block), ("user", "out")][..], &["ls -l"][..], &[][..]),
            (
                &[
                    ("user", "u"),
                    ("assistant", block),
                    ("user", "o"),
                    ("assistant", "so?"),
                    ("user", "yes"),
                    ("assistant", block),
                ],
                &["ls -l", "ls -l"],
                &["yes"],
            ),
            (&[("user", "u"), ("assistant", patch), ("user", "good")], &[], &["good"]),
            (
                &[("user", "u"), ("assistant", "a"), ("user", "<returncode>0</returncode>")],
                &[],
                &[],
            ),
        ] {
            let questions = Questions::new(&conversation(messages));
            let texts = |asked: &[(usize, u32)]| -> Vec<String> {
                asked.iter().map(|(_, n)| questions.needles[*n as usize].text.clone()).collect()
            };
            assert_eq!(texts(&questions.actions), actions, "{messages:?}");
            assert_eq!(texts(&questions.users), users, "{messages:?}");
        }
    }

    #[test]
    fn a_call_stands_for_its_first_line() {
        let (long, cut) = ("x".repeat(130), format!("{} {}", "x".repeat(100), "y".repeat(30)));
        for (argument, line) in [
            ("ls", Some("ls")),
            ("\n\n  cd a  &&\tb\nrest", Some("cd a && b")),
            (" \n ", None),
            (long.as_str(), Some(&*long)),
            (cut.as_str(), Some(&cut[..100])),
        ] {
            assert_eq!(action(argument).as_deref(), line);
        }
    }
}
