//! Access to message contents for the compaction state. Only compactions use it; otherwise facts
//! suffice. Pure.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use super::summary::{Space, Summaries, Summary};
use crate::compact::excerpt;
use crate::compact::excerpt::lines::Asked;
use crate::compact::excerpt::weight::Lexicon;
use crate::compact::message::clip::{Arguments, Clipped, Lines};
use crate::compact::message::measure::{Fact, Measure};
use crate::compact::message::reading::Reading;
use crate::compact::survival;
use crate::tokens::Encoding;
use crate::wire::{self, Edit, Message, Protocol, Role, json, splice};

/// Queries of a compaction to the request's messages.
pub trait Source {
    /// Clips the texts of `message` to at most `level_tokens` in total. Lines with words of the
    /// messages in `askers` are among the last to go.
    fn clip(&self, message: usize, level_tokens: u64, askers: &[usize]) -> Clipped;

    /// Clips the arguments of the calls of `message` to about `level_tokens` each; `None` if none
    /// becomes shorter.
    fn clip_arguments(&self, _message: usize, _level_tokens: u64) -> Option<Edit> {
        None
    }

    /// Reads the content of `message`.
    fn reading(&self, message: usize) -> Arc<Reading>;

    /// Announces that these messages will be read, so that they can be read together.
    fn expect(&self, _messages: &[usize]) {}

    /// Announces that a compaction will read the first `messages` messages, and the others perhaps later.
    fn expect_first(&self, _messages: usize) {}

    /// Reads the content of an earlier compaction's note.
    fn note_reading(&self, note: &Arc<str>) -> Arc<Reading> {
        Arc::new(Reading::of_text(Role::User, note))
    }

    /// Returns the values of the first `messages` messages.
    fn lexicon(&self, messages: usize) -> Rc<Lexicon> {
        let mut lexicon = Lexicon::default();
        lexicon.take_up_to(messages, |message| self.reading(message));
        Rc::new(lexicon)
    }

    /// Returns `message` as received; `None` if it cannot be read.
    fn message(&self, _message: usize) -> Option<Message<'_>> {
        None
    }

    /// Returns the summary that the compaction record names for the messages `gone`, or `None` for
    /// the extract. `gone` lists all messages that the note of this compaction will cover, by index
    /// in order. The result never changes for the same messages, regardless of the room in `space`.
    /// Called at most once per compaction.
    fn summary(&self, _gone: &[usize], _space: Space) -> Option<Summary> {
        None
    }

    /// Returns the size of `message` after `edit`, including framing.
    fn tokens_after(&self, _message: usize, _edit: &Edit, _measure: &Measure) -> Option<u64> {
        None
    }
}

/// Readings of a request's messages, each made at most once.
pub type Readings = RefCell<Vec<Option<Arc<Reading>>>>;

/// Function that returns the readings of many messages of a request, in order: each as the function given third
/// makes it, or as it did for an earlier request. It may begin to read those given second, which follow them and
/// are perhaps wanted later.
pub type ReadMany<'a> = dyn Fn(&[usize], &[usize], ReadOne) -> Vec<Arc<Reading>> + 'a;

/// Function that reads one message of a request.
pub type ReadOne = fn(Protocol, &str) -> Reading;

/// Reads one message of a request.
pub fn read_one(protocol: Protocol, raw: &str) -> Reading {
    match protocol.read_message(raw) {
        Ok(message) => Reading::of(&message),
        Err(_) => Reading::of_text(Role::Other, ""),
    }
}

/// Reads one message of a request for a compaction, and searches it. The compaction would do so itself, on
/// one thread.
pub fn read_and_search(protocol: Protocol, raw: &str) -> Reading {
    searched(read_one(protocol, raw))
}

/// Counts a message and reads it for a compaction; both share one decoding.
pub fn count_and_search(measure: &Measure, message: &Message<'_>) -> (Fact, Reading) {
    let (fact, reading) = measure.read(message);
    (fact, searched(reading))
}

fn searched(reading: Reading) -> Reading {
    excerpt::search(&reading);
    survival::search(&reading);
    reading
}

/// Messages of a request as received. Reads each at most once, however many compactions there are.
pub struct RequestSource<'a> {
    protocol: Protocol,
    messages: &'a [&'a str],
    /// Number of first messages that are the system's.
    head: usize,
    encoding: Encoding,
    readings: Rc<Readings>,
    read_many: Option<&'a ReadMany<'a>>,
    lexicon: RefCell<Rc<Lexicon>>,
    notes: RefCell<VecDeque<(Arc<str>, Arc<Reading>)>>,
    /// Lines of texts, by message and those that ask for it; the oldest first.
    lines: RefCell<VecDeque<(Clipping, Rc<Lines<'a>>)>>,
    /// Arguments of calls by message; the oldest first.
    arguments: RefCell<VecDeque<(usize, CallArguments)>>,
    summaries: Option<Summaries<'a>>,
}

/// A message whose texts are clipped, and those that ask for it.
type Clipping = (usize, Vec<usize>);

/// Arguments of a message's calls, in order; `None` for those that are not clipped.
type CallArguments = Rc<[Option<Arguments>]>;

/// Number of note readings kept.
const NOTES: usize = 64;
/// Maximum number of lines kept, of all texts together, except those of the last text; and number of
/// messages whose arguments are kept. A compaction clips a message to one size after the other.
const MOST_LINES: usize = 1 << 18;
const MOST_ARGUMENTS: usize = 256;

impl<'a> RequestSource<'a> {
    pub fn new(protocol: Protocol, messages: &'a [&'a str], encoding: Encoding) -> Self {
        Self {
            protocol,
            messages,
            head: wire::head(messages),
            encoding,
            readings: Rc::default(),
            read_many: None,
            lexicon: RefCell::default(),
            notes: RefCell::default(),
            lines: RefCell::default(),
            arguments: RefCell::default(),
            summaries: None,
        }
    }

    /// Uses `readings` as storage and `read_many` to read many messages at once; it must return
    /// the readings that the given function returns.
    pub fn with_readings(self, readings: Rc<Readings>, read_many: &'a ReadMany<'a>) -> Self {
        Self { readings, read_many: Some(read_many), ..self }
    }

    /// Adds the summaries that compaction records name.
    pub fn with_summaries(self, summaries: Summaries<'a>) -> Self {
        Self { summaries: Some(summaries), ..self }
    }

    /// Reads those of `messages` that are not read yet. Those of `later` are perhaps wanted later.
    fn read_many(&self, mut messages: Vec<usize>, mut later: Vec<usize>, read: ReadOne) {
        let Some(read_many) = self.read_many else { return };
        let mut readings = self.readings.borrow_mut();
        readings.resize(self.messages.len(), None);
        messages.retain(|message| readings[*message].is_none());
        later.retain(|message| readings[*message].is_none());
        if messages.is_empty() {
            return;
        }
        for (message, reading) in messages.iter().zip(read_many(&messages, &later, read)) {
            readings[*message] = Some(reading);
        }
    }

    /// Returns the lines of a message's texts, counted once for all sizes that they are clipped to; `None`
    /// if it cannot be read.
    fn lines(&self, message: usize, askers: &[usize]) -> Option<Rc<Lines<'a>>> {
        let mut kept = self.lines.borrow_mut();
        if let Some((_, lines)) = kept.iter().find(|(own, _)| own.0 == message && own.1 == askers) {
            return Some(Rc::clone(lines));
        }
        let raw: &'a str = self.messages[message];
        let read = self.protocol.read_message(raw).ok()?;
        let texts = read.texts().into_iter().map(|raw| json::string(raw).unwrap_or_default());
        let texts = texts.collect();
        let mut asked = Asked::default();
        askers.iter().for_each(|asker| asked.add(&self.reading(*asker).text));
        let lines = Rc::new(Lines::of(self.encoding, texts, &asked));
        let mut count = lines.count() + kept.iter().map(|(_, lines)| lines.count()).sum::<usize>();
        while count > MOST_LINES
            && let Some((_, oldest)) = kept.pop_front()
        {
            count -= oldest.count();
        }
        kept.push_back(((message, askers.to_vec()), Rc::clone(&lines)));
        Some(lines)
    }

    /// Returns the arguments of a message's calls, likewise.
    fn arguments(&self, message: usize) -> Option<CallArguments> {
        let mut kept = self.arguments.borrow_mut();
        if let Some((_, arguments)) = kept.iter().find(|(own, _)| *own == message) {
            return Some(Rc::clone(arguments));
        }
        let read = self.message(message)?;
        let arguments = read.arguments().map(|raw| Arguments::of(self.encoding, raw));
        let arguments: CallArguments = arguments.collect();
        if kept.len() == MOST_ARGUMENTS {
            kept.pop_front();
        }
        kept.push_back((message, Rc::clone(&arguments)));
        Some(arguments)
    }

    fn whole_reading(&self, message: usize) -> Arc<Reading> {
        if let Some(Some(known)) = self.readings.borrow().get(message) {
            return Arc::clone(known);
        }
        self.read_many(vec![message], Vec::new(), read_one);
        let mut readings = self.readings.borrow_mut();
        readings.resize(self.messages.len(), None);
        let read = || Arc::new(read_one(self.protocol, self.messages[message]));
        Arc::clone(readings[message].get_or_insert_with(read))
    }
}

impl Source for RequestSource<'_> {
    fn clip(&self, message: usize, level_tokens: u64, askers: &[usize]) -> Clipped {
        match self.lines(message, askers) {
            Some(lines) => lines.clip(level_tokens),
            None => Clipped { cuts: Vec::new(), text_tokens: 0 },
        }
    }

    fn clip_arguments(&self, message: usize, level_tokens: u64) -> Option<Edit> {
        let arguments = self.arguments(message)?;
        let clipped = |own: &Option<Arguments>| own.as_ref()?.clip(level_tokens);
        let texts: Vec<Option<String>> = arguments.iter().map(clipped).collect();
        texts.iter().any(Option::is_some).then_some(Edit::Arguments(texts))
    }

    fn reading(&self, message: usize) -> Arc<Reading> {
        let reading = self.whole_reading(message);
        match message < self.head && reading.values.iter().any(|value| value.has_digit) {
            // A clock or a counter in the head changes no note.
            true => Arc::new(reading.without_numbers()),
            false => reading,
        }
    }

    fn expect(&self, messages: &[usize]) {
        self.read_many(messages.to_vec(), Vec::new(), read_one);
    }

    fn expect_first(&self, messages: usize) {
        let (own, later) = ((0..messages).collect(), (messages..self.messages.len()).collect());
        self.read_many(own, later, read_and_search);
    }

    fn note_reading(&self, note: &Arc<str>) -> Arc<Reading> {
        let mut notes = self.notes.borrow_mut();
        if let Some((_, known)) = notes.iter().find(|(known, _)| Arc::ptr_eq(known, note)) {
            return Arc::clone(known);
        }
        if notes.len() == NOTES {
            notes.pop_front();
        }
        let reading = Arc::new(Reading::of_text(Role::User, note));
        notes.push_back((Arc::clone(note), Arc::clone(&reading)));
        reading
    }

    fn lexicon(&self, messages: usize) -> Rc<Lexicon> {
        let mut lexicon = self.lexicon.borrow_mut();
        if lexicon.messages() > messages {
            *lexicon = Rc::default();
        }
        Rc::make_mut(&mut lexicon).take_up_to(messages, |message| self.reading(message));
        Rc::clone(&lexicon)
    }

    fn message(&self, message: usize) -> Option<Message<'_>> {
        self.protocol.read_message(self.messages.get(message)?).ok()
    }

    fn summary(&self, gone: &[usize], space: Space) -> Option<Summary> {
        self.summaries.and_then(|summaries| summaries(gone, space))
    }

    fn tokens_after(&self, message: usize, edit: &Edit, measure: &Measure) -> Option<u64> {
        let raw = splice::rewrite(self.protocol, self.messages.get(message)?, &[edit]);
        Some(measure.fact(&self.protocol.read_message(&raw).ok()?).tokens)
    }
}
