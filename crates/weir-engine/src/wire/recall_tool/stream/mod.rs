//! Streamed answers with calls of the tool: an incremental filter that passes text on at once, withholds
//! the tool's calls and the end before them, and continues with the next upstream stream as if it were
//! the same answer.

mod chat;
mod fragments;
mod messages;
mod responses;

use super::super::event_filter::{self, Filter, Judge, Verdict};
use super::super::json;
use super::calls::Tally;
use super::usage::summed_usage;
use super::{MAX_ASSISTANT_BYTES, Next, Protocol, Round};
use chat::Chat;
use messages::Messages;
use responses::Responses;

/// Maximum size of an event that is examined; a larger one passes as it is. The last event of Responses
/// holds the whole answer.
pub const MAX_EVENT_BYTES: usize = 32 << 20;
/// Maximum size of a signature or item that is held until the next event decides about it.
const MAX_QUEUE_BYTES: usize = 4 << 20;
/// Maximum number of bytes that one stream holds: an event, the last event, and the assistant's part as it
/// is collected and as it is written.
pub const MAX_HELD_BYTES: usize =
    2 * MAX_EVENT_BYTES + 4 * MAX_ASSISTANT_BYTES + 5 * MAX_QUEUE_BYTES;

/// Filter of the streams of one answer.
#[derive(Debug)]
pub struct RecallStream {
    /// `None` between two rounds.
    filter: Option<Filter<Rounds>>,
    /// `None` while a round is read.
    between: Option<Rounds>,
}

impl RecallStream {
    /// Creates a filter for the answer to a request that offers the tool called `name`.
    pub fn new(protocol: Protocol, name: &str) -> Self {
        let events = match protocol {
            Protocol::Chat => ProtocolEvents::Chat(Box::default()),
            Protocol::Responses => ProtocolEvents::Responses(Box::default()),
            Protocol::Messages => ProtocolEvents::Messages(Box::default()),
        };
        let shared = Shared { name: name.to_owned(), ..Shared::default() };
        let rounds = Rounds { shared, events, queue: Vec::new(), queue_bytes: 0 };
        Self { filter: Some(Filter::with(rounds, MAX_EVENT_BYTES)), between: None }
    }

    /// Takes the next bytes of the round's stream, and appends those for the client to `out`. Bytes behind
    /// the last event stay as they are; those of a round that goes on are dropped.
    pub fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        if let Some(filter) = &mut self.filter {
            out.extend_from_slice(&filter.feed(bytes));
        }
    }

    /// Whether the last event of the round's stream has been read.
    pub fn is_round_over(&self) -> bool {
        self.rounds().is_none_or(|rounds| rounds.shared.is_over)
    }

    /// Ends the round's stream, appends the bytes that were held back for an incomplete event, and
    /// returns the meaning of the answer.
    pub fn end_round(&mut self, out: &mut Vec<u8>) -> Round {
        let Some(filter) = self.filter.take() else { return Round::default() };
        let (last, mut rounds) = filter.into_judge();
        out.extend_from_slice(&last);
        let round = rounds.end(out);
        self.between = Some(rounds);
        round
    }

    /// Continues with the stream that the upstream sends next. The round before must be
    /// [`Next::Recall`].
    pub fn next_round(&mut self) {
        if let Some(mut rounds) = self.between.take() {
            rounds.next();
            self.filter = Some(Filter::with(rounds, MAX_EVENT_BYTES));
        }
    }

    /// Ends the client's stream in the ordinary way, if the end of the last round was withheld.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        if let Some(rounds) = &mut self.between {
            rounds.write_ends(out);
        }
    }

    /// Ends the client's stream with an error. `kind` is the protocol's type of errors; Responses have none
    /// in events.
    pub fn fail(&mut self, kind: &str, code: &str, message: &str, out: &mut Vec<u8>) {
        if let Some(rounds) = self.between.as_mut() {
            rounds.fail((kind, code), message, out);
        } else if let Some(filter) = self.filter.take() {
            let (last, mut rounds) = filter.into_judge();
            // A part of an event would make the error unreadable.
            if last.ends_with(b"\n\n") {
                out.extend_from_slice(&last);
            }
            rounds.fail((kind, code), message, out);
            self.between = Some(rounds);
        }
    }

    /// Returns the sum of the usage of all rounds so far, as JSON text.
    pub fn usage(&self) -> Option<String> {
        self.rounds()?.shared.summed()
    }

    /// Returns the memory used by the stream's content, in bytes.
    pub fn held_bytes(&self) -> usize {
        let filtered = self.filter.as_ref().map_or(0, Filter::held_bytes);
        let rounds = self.rounds().map_or(0, |rounds| {
            rounds.shared.collected_bytes + rounds.shared.ends_bytes() + rounds.queue_bytes
        });
        filtered + rounds
    }

    fn rounds(&self) -> Option<&Rounds> {
        self.filter.as_ref().map(Filter::judge).or(self.between.as_ref())
    }
}

/// State that is the same in each protocol.
#[derive(Debug, Default)]
struct Shared {
    /// Name of the tool.
    name: String,
    /// Usage of earlier rounds, as JSON texts.
    usages: Vec<String>,
    /// Number of earlier rounds.
    rounds: usize,
    /// Usage of this round.
    usage: Option<String>,
    tally: Tally,
    /// Bytes collected for the assistant's part, and of earlier parts that the last event repeats.
    collected_bytes: usize,
    /// Whether this round's last event was read.
    is_over: bool,
    /// Whether the upstream sent an error.
    has_failed: bool,
    /// Whether the round's end is withheld.
    is_withholding: bool,
    /// End events that are withheld: fields and data.
    ends: Vec<(String, String)>,
    /// Events behind them.
    rest: Vec<u8>,
}

impl Shared {
    /// Counts bytes to be collected; returns whether they may be.
    fn collect(&mut self, bytes: usize) -> bool {
        let is_within = !self.is_too_large() && self.collected_bytes + bytes <= MAX_ASSISTANT_BYTES;
        self.collected_bytes = match is_within {
            true => self.collected_bytes + bytes,
            false => MAX_ASSISTANT_BYTES + 1,
        };
        is_within
    }

    /// Whether the answer is larger than can be continued.
    fn is_too_large(&self) -> bool {
        self.collected_bytes > MAX_ASSISTANT_BYTES
    }

    fn is_first(&self) -> bool {
        self.rounds == 0
    }

    /// Returns the meaning of the round; `is_whole` if the model was not stopped.
    fn next(&self, is_whole: bool) -> Next {
        self.tally.next(is_whole && !self.is_too_large())
    }

    /// Returns the sum of usage over all rounds.
    fn summed(&self) -> Option<String> {
        let all = self.usages.iter().chain(&self.usage).map(String::as_str);
        summed_usage(&all.collect::<Vec<_>>())
    }

    fn ends_bytes(&self) -> usize {
        let ends = self.ends.iter().map(|(fields, data)| fields.len() + data.len());
        ends.sum::<usize>() + self.rest.len()
    }

    /// Decides on an event behind the last one. It follows those that are withheld.
    fn behind(&mut self, event: &[u8]) -> Verdict {
        if !self.is_withholding {
            return Verdict::Keep;
        }
        if self.rest.len() + event.len() <= MAX_QUEUE_BYTES {
            self.rest.extend_from_slice(event);
        }
        Verdict::Edit(Vec::new())
    }
}

/// Fate of an event.
#[derive(Debug, Default)]
struct Action {
    write: Write,
    /// Data of an end event to withhold.
    end: Option<String>,
    /// Whether the events in the queue go first, and whether with marks.
    release: Option<Marks>,
}

impl Action {
    fn write(write: Write) -> Self {
        Self { write, ..Self::default() }
    }

    /// Replaces the data if it has changed.
    fn data(old: &str, new: String) -> Self {
        Self::write(if old == new { Write::Keep } else { Write::Data(new) })
    }

    fn drop() -> Self {
        Self::write(Write::Drop)
    }

    /// Withholds an end event with this data.
    fn end(data: String) -> Self {
        Self { write: Write::Drop, end: Some(data), release: None }
    }

    fn releasing(mut self, marks: Marks) -> Self {
        self.release = Some(marks);
        self
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Marks {
    None,
    Set,
}

#[derive(Debug, Default)]
enum Write {
    /// The event as it is.
    #[default]
    Keep,
    /// The event with other data.
    Data(String),
    Drop,
    /// The event later, with this data, or with the second one if it is to be marked.
    Queue(String, Option<String>),
}

/// Event in the queue, as it is written with and without marks.
#[derive(Debug)]
struct Queued {
    plain: Vec<u8>,
    marked: Option<Vec<u8>>,
}

#[derive(Debug)]
enum ProtocolEvents {
    Chat(Box<Chat>),
    Responses(Box<Responses>),
    Messages(Box<Messages>),
}

/// Judge of the events of all rounds.
#[derive(Debug)]
struct Rounds {
    shared: Shared,
    events: ProtocolEvents,
    /// Events held until it is known whether the thinking in them leads to calls of the tool alone.
    queue: Vec<Queued>,
    queue_bytes: usize,
}

impl Judge for Rounds {
    fn judge(&mut self, event: &[u8], at_start: bool) -> Verdict {
        if self.shared.is_over {
            return self.shared.behind(event);
        }
        let Ok(text) = std::str::from_utf8(event) else { return Verdict::Keep };
        let lines = event_filter::lines(text, at_start);
        let Some(data) = event_filter::joined(text, &lines) else { return Verdict::Keep };
        let action = match &mut self.events {
            ProtocolEvents::Chat(own) => own.event(&mut self.shared, &data),
            ProtocolEvents::Responses(own) => own.event(&mut self.shared, &data),
            ProtocolEvents::Messages(own) => own.event(&mut self.shared, &data),
        };
        let mut out = Vec::new();
        if let Some(marks) = action.release {
            self.release(marks, &mut out);
        }
        let fields = || event_filter::fields(text, &lines);
        if let Some(end) = action.end {
            self.shared.ends.push((fields(), end));
        }
        match action.write {
            Write::Keep if self.queue.is_empty() && out.is_empty() => return Verdict::Keep,
            Write::Keep if self.queue.is_empty() => out.extend_from_slice(event),
            Write::Keep => self.hold(event.to_vec(), None, &mut out),
            Write::Drop => {}
            Write::Data(new) if self.queue.is_empty() => {
                out.extend(event_filter::event(&fields(), &new));
            }
            Write::Data(new) => {
                self.hold(event_filter::event(&fields(), &new), None, &mut out);
            }
            Write::Queue(plain, marked) => {
                let plain = match plain == *data {
                    true => event.to_vec(),
                    false => event_filter::event(&fields(), &plain),
                };
                let marked = marked.map(|data| event_filter::event(&fields(), &data));
                self.hold(plain, marked, &mut out);
            }
        }
        Verdict::Edit(out)
    }
}

impl Rounds {
    /// Holds an event in the queue, or writes all of it if that is too large.
    fn hold(&mut self, plain: Vec<u8>, marked: Option<Vec<u8>>, out: &mut Vec<u8>) {
        self.queue_bytes += plain.len() + marked.as_ref().map_or(0, Vec::len);
        self.queue.push(Queued { plain, marked });
        if self.queue_bytes > MAX_QUEUE_BYTES {
            self.release(Marks::None, out);
        }
    }

    /// Writes the events in the queue.
    fn release(&mut self, marks: Marks, out: &mut Vec<u8>) {
        for Queued { plain, marked } in self.queue.drain(..) {
            match marked {
                Some(marked) if marks == Marks::Set => out.extend(marked),
                _ => out.extend(plain),
            }
        }
        self.queue_bytes = 0;
    }

    /// Ends a round.
    fn end(&mut self, out: &mut Vec<u8>) -> Round {
        self.release(Marks::None, out);
        let shared = &mut self.shared;
        let (is_complete, is_whole) = match &mut self.events {
            ProtocolEvents::Chat(own) => own.ended(shared),
            ProtocolEvents::Responses(own) => own.ended(shared),
            ProtocolEvents::Messages(own) => own.ended(shared),
        };
        let next = match (shared.has_failed, is_complete) {
            (true, _) => Next::Final,
            (false, false) => Next::Cut,
            (false, true) => shared.next(is_whole),
        };
        let is_known = is_complete && !shared.has_failed && !shared.is_too_large();
        let is_continued = !shared.is_first() || shared.tally.own > 0;
        let assistant = match &self.events {
            _ if !is_known || !is_continued => String::new(),
            ProtocolEvents::Chat(own) => own.assistant(),
            ProtocolEvents::Responses(own) => own.assistant(),
            ProtocolEvents::Messages(own) => own.assistant(),
        };
        let next = next.sound(&assistant);
        let Tally { calls, others, .. } = shared.tally.clone();
        let round = Round { next, calls, others, assistant, usage: shared.usage.clone() };
        if next != Next::Recall {
            self.write_ends(out);
        }
        round
    }

    /// Prepares for the next round's stream.
    fn next(&mut self) {
        match &mut self.events {
            ProtocolEvents::Chat(own) => own.next_round(),
            ProtocolEvents::Responses(own) => own.next_round(),
            ProtocolEvents::Messages(own) => own.next_round(),
        }
        let kept_bytes = match &self.events {
            ProtocolEvents::Responses(own) => own.kept_bytes(),
            _ => 0,
        };
        let shared = &mut self.shared;
        shared.usages.extend(shared.usage.take());
        shared.rounds += 1;
        shared.tally = Tally::default();
        shared.collected_bytes = kept_bytes;
        shared.is_over = false;
        shared.is_withholding = false;
        shared.ends.clear();
        shared.rest.clear();
    }

    /// Writes the end events that are withheld.
    fn write_ends(&mut self, out: &mut Vec<u8>) {
        let sum = self.shared.summed();
        for (fields, data) in std::mem::take(&mut self.shared.ends) {
            let data = match (&self.events, &sum) {
                (ProtocolEvents::Chat(_), Some(sum)) => chat::with_usage(&data, sum),
                (ProtocolEvents::Messages(_), Some(sum)) => messages::with_usage(&data, sum),
                _ => data,
            };
            out.extend(event_filter::event(&fields, &data));
        }
        out.append(&mut self.shared.rest);
    }

    fn fail(&mut self, (kind, code): (&str, &str), message: &str, out: &mut Vec<u8>) {
        self.release(Marks::None, out);
        self.shared.ends.clear();
        self.shared.rest.clear();
        self.shared.has_failed = true;
        let (kind, code, message) = (json::quoted(kind), json::quoted(code), json::quoted(message));
        let (fields, data) = match &mut self.events {
            ProtocolEvents::Chat(_) => (
                "",
                format!(
                    r#"{{"error":{{"message":{message},"type":{kind},"param":null,"code":{code}}}}}"#
                ),
            ),
            ProtocolEvents::Messages(_) => (
                "event: error\n",
                format!(r#"{{"type":"error","error":{{"type":{kind},"message":{message}}}}}"#),
            ),
            ProtocolEvents::Responses(own) => {
                let number = own.next_number();
                let number = number
                    .map(|number| format!(r#""sequence_number":{number},"#))
                    .unwrap_or_default();
                (
                    "event: error\n",
                    format!(
                        r#"{{"type":"error",{number}"code":{code},"message":{message},"param":null}}"#
                    ),
                )
            }
        };
        out.extend(event_filter::event(fields, &data));
    }
}
