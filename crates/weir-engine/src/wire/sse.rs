//! Server-sent events parsed from bytes split anywhere, by the rules of the WHATWG event stream
//! format. Holds at most one event, up to a limit; decodes no text and no JSON.

/// Longer names and IDs are treated as absent: no event of any provider comes near.
const MAX_FIELD_BYTES: usize = 256;

/// One event, as bytes. The data's lines are joined by `\n`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event<'a> {
    /// The `event:` field; empty if absent.
    pub name: &'a [u8],
    pub data: &'a [u8],
    /// The last `id:` so far in the stream; empty if absent.
    pub id: &'a [u8],
}

/// Part of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part<'a> {
    Event(Event<'a>),
    /// Next bytes of the data of an event that is too large to be held.
    Large(&'a [u8]),
    /// The end of that event.
    LargeEnd,
}

/// Splits a stream into events. Time is linear in the bytes fed.
#[derive(Debug)]
pub struct Splitter {
    max_event_bytes: usize,
    /// The event's data so far, each line with its `\n`, then the current line.
    held: Vec<u8>,
    /// Start of the current line in `held`.
    line_start: usize,
    name: Vec<u8>,
    id: Vec<u8>,
    /// Whether the event so far has a `data` field, even an empty one.
    has_data: bool,
    /// Whether the stream's first line is still to come: it may begin with a byte order mark.
    at_start: bool,
    /// Whether the last byte was a carriage return, so that a line feed now ends no line.
    after_return: bool,
    skip: Skip,
    /// Whether the line that is skipped belongs to the data, which was one line so far.
    is_data: bool,
    skipped_events: u64,
}

/// Handling of the lines of an event that is too large.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Skip {
    /// The event is not too large: lines are read.
    No,
    /// Lines are skipped; the current one is empty so far.
    LineEmpty,
    /// Lines are skipped; the current one is not empty.
    LineBegun,
}

impl Splitter {
    /// Creates a splitter that skips events of more than `max_event_bytes`: their data and the
    /// longest line together.
    pub fn new(max_event_bytes: usize) -> Self {
        Self {
            max_event_bytes,
            held: Vec::new(),
            line_start: 0,
            name: Vec::new(),
            id: Vec::new(),
            has_data: false,
            at_start: true,
            after_return: false,
            skip: Skip::No,
            is_data: false,
            skipped_events: 0,
        }
    }

    /// Takes the next bytes of the stream and passes on each event that they complete.
    pub fn feed(&mut self, bytes: &[u8], mut on_event: impl FnMut(Event<'_>)) {
        self.feed_parts(bytes, |part| {
            if let Part::Event(event) = part {
                on_event(event);
            }
        });
    }

    /// Like [`Self::feed`], and passes on the data of events that are too large in pieces, as far as it is
    /// in one line.
    pub fn feed_parts(&mut self, bytes: &[u8], mut on_part: impl FnMut(Part<'_>)) {
        let mut rest = bytes;
        while let Some((&first, after)) = rest.split_first() {
            if self.after_return {
                self.after_return = false;
                if first == b'\n' {
                    rest = after;
                    continue;
                }
            }
            let end = line_end(rest);
            self.extend_line(&rest[..end.unwrap_or(rest.len())], &mut on_part);
            let Some(end) = end else { return };
            self.after_return = rest[end] == b'\r';
            self.end_line(&mut on_part);
            rest = &rest[end + 1..];
        }
    }

    /// Ends the stream. An event without its closing blank line still counts, since providers omit
    /// it.
    pub fn finish(self, mut on_event: impl FnMut(Event<'_>)) -> u64 {
        self.finish_parts(|part| {
            if let Part::Event(event) = part {
                on_event(event);
            }
        })
    }

    /// Like [`Self::finish`], for [`Self::feed_parts`].
    pub fn finish_parts(mut self, mut on_part: impl FnMut(Part<'_>)) -> u64 {
        let line_begun = match self.skip {
            Skip::No => self.held.len() > self.line_start,
            Skip::LineEmpty => false,
            Skip::LineBegun => true,
        };
        if line_begun {
            self.end_line(&mut on_part);
        }
        self.end_event(&mut on_part);
        self.skipped_events
    }

    /// Returns the number of events that were too large so far.
    pub fn skipped_events(&self) -> u64 {
        self.skipped_events
    }

    /// Returns the memory used by the stream's content, in bytes.
    pub fn held_bytes(&self) -> usize {
        self.held.capacity() + self.name.capacity() + self.id.capacity()
    }

    fn extend_line(&mut self, bytes: &[u8], on_part: &mut impl FnMut(Part<'_>)) {
        if bytes.is_empty() {
            return;
        }
        if self.skip != Skip::No {
            self.is_data &= self.skip == Skip::LineBegun;
            if self.is_data {
                on_part(Part::Large(bytes));
            }
            self.skip = Skip::LineBegun;
            return;
        }
        let needed = self.held.len().saturating_add(bytes.len());
        if needed > self.max_event_bytes {
            self.begin_large(bytes, on_part);
            self.clear();
            self.skip = Skip::LineBegun;
            return;
        }
        if needed > self.held.capacity() {
            // Doubles as a vector would, but never past the limit.
            let capacity = (self.held.capacity() * 2).clamp(needed, self.max_event_bytes);
            self.held.reserve_exact(capacity - self.held.len());
        }
        self.held.extend_from_slice(bytes);
    }

    /// Passes on the data of an event that becomes too large with these bytes.
    fn begin_large(&mut self, bytes: &[u8], on_part: &mut impl FnMut(Part<'_>)) {
        let is_first = self.line_start == 0;
        let line = [&self.held, bytes].concat();
        let line = line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(&line);
        let data = line.strip_prefix(b"data:").filter(|_| is_first);
        self.is_data = data.is_some();
        if let Some(data) = data {
            on_part(Part::Large(data));
        }
    }

    fn end_line(&mut self, on_part: &mut impl FnMut(Part<'_>)) {
        let at_start = std::mem::take(&mut self.at_start);
        match self.skip {
            Skip::LineBegun => self.skip = Skip::LineEmpty,
            Skip::LineEmpty => self.end_event(on_part),
            Skip::No => {
                if at_start && self.held.starts_with(b"\xEF\xBB\xBF") {
                    self.held.drain(..3);
                }
                if self.held.len() == self.line_start {
                    self.end_event(on_part);
                } else {
                    self.read_line();
                }
            }
        }
    }

    /// Reads the line at `held[line_start..]` and leaves only the data in `held`.
    fn read_line(&mut self) {
        let line = &self.held[self.line_start..];
        let (field, value) = match line.iter().position(|&byte| byte == b':') {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &[][..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"data" => {
                let (length, from) = (value.len(), self.held.len() - value.len());
                self.has_data = true;
                self.held.copy_within(from.., self.line_start);
                self.held.truncate(self.line_start + length);
                // Within the capacity: the field's own name was longer than this.
                self.held.push(b'\n');
                self.line_start = self.held.len();
                return;
            }
            b"event" => keep(&mut self.name, value),
            b"id" if !value.contains(&0) => keep(&mut self.id, value),
            _ => {}
        }
        self.held.truncate(self.line_start);
    }

    fn end_event(&mut self, on_part: &mut impl FnMut(Part<'_>)) {
        if self.skip != Skip::No {
            self.skipped_events += 1;
            on_part(Part::LargeEnd);
        } else if self.has_data {
            let data = &self.held[..self.line_start];
            on_part(Part::Event(Event {
                name: &self.name,
                data: data.strip_suffix(b"\n").unwrap_or(data),
                id: &self.id,
            }));
        }
        self.skip = Skip::No;
        self.clear();
    }

    fn clear(&mut self) {
        self.held.clear();
        self.line_start = 0;
        self.name.clear();
        self.has_data = false;
    }
}

/// Returns the position of the first line feed or carriage return.
pub(super) fn line_end(bytes: &[u8]) -> Option<usize> {
    // Whole blocks are scanned without branches, which compilers turn into wide instructions.
    const BLOCK_BYTES: usize = 32;
    let ends_line = |byte: &u8| matches!(byte, b'\n' | b'\r');
    let blocks = bytes.chunks_exact(BLOCK_BYTES);
    let without =
        blocks.take_while(|block| !block.iter().fold(false, |found, byte| found | ends_line(byte)));
    let start = without.count() * BLOCK_BYTES;
    bytes[start..].iter().position(ends_line).map(|at| start + at)
}

/// Sets `field` to `value`, or clears it if that is too long.
fn keep(field: &mut Vec<u8>, value: &[u8]) {
    field.clear();
    if value.len() <= MAX_FIELD_BYTES {
        field.extend_from_slice(value);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Owned = (String, Vec<u8>, String);

    /// Splits `parts`, fed one by one, into events, and counts those that were too large.
    fn split<'a>(limit: usize, parts: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Owned>, u64) {
        let mut events = Vec::new();
        let mut on_event = |event: Event<'_>| {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            events.push((text(event.name), event.data.to_vec(), text(event.id)));
        };
        let mut splitter = Splitter::new(limit);
        for part in parts {
            splitter.feed(part, &mut on_event);
            assert!(splitter.held_bytes() <= limit + 4 * MAX_FIELD_BYTES);
        }
        let skipped = splitter.finish(&mut on_event);
        (events, skipped)
    }

    fn check(stream: &str, expected: &[(&str, &str, &str)]) {
        let (events, skipped) = split(1000, [stream.as_bytes()]);
        let events: Vec<_> = events
            .iter()
            .map(|(name, data, id)| (&**name, std::str::from_utf8(data).expect("text"), &**id))
            .collect();
        assert_eq!(events, expected, "{stream:?}");
        assert_eq!(skipped, 0);
    }

    #[test]
    fn streams_are_read_by_the_rules() {
        check("data: a\n\ndata: b\n\n", &[("", "a", ""), ("", "b", "")]);
        check(
            "data: a\r\n\r\ndata: b\r\rdata:c\n\n",
            &[("", "a", ""), ("", "b", ""), ("", "c", "")],
        );
        check("data: a\r\n\ndata: b\n\r\n", &[("", "a", ""), ("", "b", "")]);
        check("\u{feff}data: a\n\n\u{feff}data: b\n\n", &[("", "a", "")]);
        check("\u{feff}\ndata: a\n\n", &[("", "a", "")]);
        check(": ping\n\n: ping\n\ndata: a\n: in between\n\n", &[("", "a", "")]);
        check("data: one\ndata: two\ndata:\ndata:  three\n\n", &[("", "one\ntwo\n\n three", "")]);
        check("data\n\ndata\ndata\n\n", &[("", "", ""), ("", "\n", "")]);
        check("event: e\ndata: a\n\ndata: b\n\n", &[("e", "a", ""), ("", "b", "")]);
        check("event: lost\n\ndata: b\n\n", &[("", "b", "")]);
        check("id: 1\ndata: a\n\ndata: b\nid\n\n", &[("", "a", "1"), ("", "b", "")]);
        check("id: a\0b\ndata: a\n\n", &[("", "a", "")]);
        check("retry: 10\nDATA: no\ndata : no\ndata: a:b\n\n", &[("", "a:b", "")]);
    }

    #[test]
    fn the_last_event_may_lack_its_blank_line() {
        check("data: a\n\ndata: b", &[("", "a", ""), ("", "b", "")]);
        check("data: a\r", &[("", "a", "")]);
        check("data: a\n\n\n\n", &[("", "a", "")]);
        check("", &[]);
        check("event: e", &[]);
    }

    #[test]
    fn the_data_of_an_event_past_the_limit_is_passed_on_in_pieces() {
        let data = "x".repeat(50);
        let stream = format!("event: e\ndata: {data}\nid: 1\n\ndata: b\n\ndata:{data}");
        for size in [1, 7, 1000] {
            let mut parts = String::new();
            let mut on_part = |part: Part<'_>| match part {
                Part::Event(event) => {
                    parts += &format!("[{}]", String::from_utf8_lossy(event.data))
                }
                Part::Large(piece) => parts += &String::from_utf8_lossy(piece),
                Part::LargeEnd => parts += ".",
            };
            let mut splitter = Splitter::new(20);
            stream.as_bytes().chunks(size).for_each(|part| splitter.feed_parts(part, &mut on_part));
            assert_eq!(splitter.finish_parts(&mut on_part), 2);
            assert_eq!(parts, format!(" {data}.[b]{data}."), "{size}");
        }
    }

    #[test]
    fn an_event_past_the_limit_is_passed_over_and_counted() {
        let exact = "x".repeat(14);
        let stream = format!("data: {exact}\n\ndata: {exact}x\nevent: e\n\ndata: b\n\n");
        let (events, skipped) = split(20, [stream.as_bytes()]);
        let data: Vec<_> = events.iter().map(|(_, data, _)| data.as_slice()).collect();
        assert_eq!(data, [exact.as_bytes(), b"b"]);
        assert_eq!(skipped, 1);

        // Many short lines that are too large together, then the end in the middle of another.
        let stream = "data: 12345\n".repeat(4) + "\ndata: " + &"y".repeat(50);
        let (events, skipped) = split(20, [stream.as_bytes()]);
        assert!(events.is_empty());
        assert_eq!(skipped, 2);
    }

    /// Bytes typical of streams, and some that are not.
    fn stream() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            4 => prop::sample::select(vec![
                &b"data: "[..], b"data:", b"event: e", b"id: 7", b"\n", b"\r", b"\r\n", b"\n\n",
                b":", b" ", b"\xEF\xBB\xBF", "ü€😀".as_bytes(), b"{\"a\":1}", b"\0",
            ]).prop_map(<[u8]>::to_vec),
            1 => prop::collection::vec(any::<u8>(), 0..20),
        ];
        prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
    }

    #[test]
    fn lines_end_wherever_they_do() {
        for length in 0..100 {
            for at in 0..=length {
                let mut bytes = vec![b'x'; length];
                bytes[at..].fill(b'\r');
                assert_eq!(line_end(&bytes), (at < length).then_some(at), "{at} of {length}");
            }
        }
    }

    proptest! {
        #[test]
        fn cuts_change_nothing(
            stream in stream(),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
            limit in 1_usize..100,
        ) {
            let whole = split(limit, [stream.as_slice()]);
            let bytewise = split(limit, stream.chunks(1));
            prop_assert_eq!(&whole, &bytewise);
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
            cuts.extend([0, stream.len()]);
            cuts.sort_unstable();
            let parts = cuts.windows(2).map(|pair| &stream[pair[0]..pair[1]]);
            prop_assert_eq!(&whole, &split(limit, parts));
        }
    }
}
