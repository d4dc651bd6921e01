//! How the fold reaches what messages say. It does so only when it cuts; facts are all it needs
//! otherwise. Pure.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use super::clip::{Clipped, clip_arguments, clip_texts};
use super::measure::Measure;
use super::reading::Reading;
use super::summary::{Space, Summaries, Summary};
use super::weight::Lexicon;
use crate::tokens::Encoding;
use crate::wire::message::Call;
use crate::wire::{Edit, Message, Protocol, Role, json, splice};

/// What a cut asks of the request's messages.
pub trait Source {
    /// Clips the texts of `message` to at most `level_tokens` together.
    fn clip(&self, message: usize, level_tokens: u64) -> Clipped;

    /// Clips the arguments of the calls of `message` to about `level_tokens` each; `None` if none
    /// becomes shorter.
    fn clip_arguments(&self, _message: usize, _level_tokens: u64) -> Option<Edit> {
        None
    }

    /// Reads `message` for what it says.
    fn reading(&self, message: usize) -> Rc<Reading>;

    /// Says that these messages will be asked for, so that they can be read together.
    fn expect(&self, _messages: &[usize]) {}

    /// Reads a note of an earlier cut for what it says.
    fn note_reading(&self, note: &Arc<str>) -> Rc<Reading> {
        Rc::new(Reading::of_text(Role::User, note))
    }

    /// The values of the first `messages` messages.
    fn lexicon(&self, messages: usize) -> Rc<Lexicon> {
        let mut lexicon = Lexicon::default();
        lexicon.take_up_to(messages, |message| self.reading(message));
        Rc::new(lexicon)
    }

    /// `message` as received; `None` where it cannot be read.
    fn message(&self, _message: usize) -> Option<Message<'_>> {
        None
    }

    /// What stands for the messages `gone` (indexes in order: all that the note of this cut will
    /// speak of): the summary that the cut record names, or `None` for the extract. The same for
    /// ever for the same messages, whatever `space` says of what there is room for. Asked at most once
    /// a cut.
    fn summary(&self, _gone: &[usize], _space: Space) -> Option<Summary> {
        None
    }

    /// What `message` takes after `edit`, framing included.
    fn tokens_after(&self, _message: usize, _edit: &Edit, _measure: &Measure) -> Option<u64> {
        None
    }
}

/// The readings of a request's messages, each made at most once.
pub type Readings = RefCell<Vec<Option<Rc<Reading>>>>;

/// Reads many messages of a request, in order.
pub type ReadMany<'a> = dyn Fn(&[usize]) -> Vec<Reading> + 'a;

/// Reads one message as the request has it.
pub fn read_one(protocol: Protocol, raw: &str) -> Reading {
    match protocol.read_message(raw) {
        Ok(message) => Reading::of(&message),
        Err(_) => Reading::of_text(Role::Other, ""),
    }
}

/// The messages of a request as received. Reads each at most once, however many cuts are made.
pub struct RequestSource<'a> {
    protocol: Protocol,
    messages: &'a [&'a str],
    encoding: Encoding,
    readings: Rc<Readings>,
    read_many: Option<&'a ReadMany<'a>>,
    lexicon: RefCell<Rc<Lexicon>>,
    notes: RefCell<VecDeque<(Arc<str>, Rc<Reading>)>>,
    summaries: Option<Summaries<'a>>,
}

/// As many notes are kept as read.
const NOTES: usize = 64;

impl<'a> RequestSource<'a> {
    pub fn new(protocol: Protocol, messages: &'a [&'a str], encoding: Encoding) -> Self {
        Self {
            protocol,
            messages,
            encoding,
            readings: Rc::default(),
            read_many: None,
            lexicon: RefCell::default(),
            notes: RefCell::default(),
            summaries: None,
        }
    }

    /// The same messages, whose readings are kept in `readings` and made many at once by `read_many`,
    /// which must read as [`read_one`] does.
    pub fn with_readings(self, readings: Rc<Readings>, read_many: &'a ReadMany<'a>) -> Self {
        Self { readings, read_many: Some(read_many), ..self }
    }

    /// The same messages, with what cut records say of them.
    pub fn with_summaries(self, summaries: Summaries<'a>) -> Self {
        Self { summaries: Some(summaries), ..self }
    }
}

impl Source for RequestSource<'_> {
    fn clip(&self, message: usize, level_tokens: u64) -> Clipped {
        let Ok(message) = self.protocol.read_message(self.messages[message]) else {
            return Clipped { cuts: Vec::new(), text_tokens: 0 };
        };
        let texts: Vec<_> =
            message.texts().into_iter().map(|raw| json::string(raw).unwrap_or_default()).collect();
        clip_texts(self.encoding, &texts, level_tokens)
    }

    fn clip_arguments(&self, message: usize, level_tokens: u64) -> Option<Edit> {
        let message = self.message(message)?;
        let clipped = |call: &Call<'_>| clip_arguments(self.encoding, call.arguments, level_tokens);
        let texts: Vec<Option<String>> = message.calls.iter().map(clipped).collect();
        texts.iter().any(Option::is_some).then_some(Edit::Arguments(texts))
    }

    fn reading(&self, message: usize) -> Rc<Reading> {
        let mut readings = self.readings.borrow_mut();
        if readings.len() <= message {
            readings.resize(self.messages.len(), None);
        }
        let read = || Rc::new(read_one(self.protocol, self.messages[message]));
        Rc::clone(readings[message].get_or_insert_with(read))
    }

    fn expect(&self, messages: &[usize]) {
        let Some(read_many) = self.read_many else { return };
        let mut readings = self.readings.borrow_mut();
        readings.resize(self.messages.len(), None);
        let unread = messages.iter().copied().filter(|message| readings[*message].is_none());
        let unread: Vec<usize> = unread.collect();
        for (message, reading) in unread.iter().zip(read_many(&unread)) {
            readings[*message] = Some(Rc::new(reading));
        }
    }

    fn note_reading(&self, note: &Arc<str>) -> Rc<Reading> {
        let mut notes = self.notes.borrow_mut();
        if let Some((_, known)) = notes.iter().find(|(known, _)| Arc::ptr_eq(known, note)) {
            return Rc::clone(known);
        }
        if notes.len() == NOTES {
            notes.pop_front();
        }
        let reading = Rc::new(Reading::of_text(Role::User, note));
        notes.push_back((Arc::clone(note), Rc::clone(&reading)));
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
