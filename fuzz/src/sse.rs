//! Server-sent events: splitting and metering give the same results for any chunking of the bytes,
//! compared with a second implementation here.
//!
//! An input is two control bytes, which select the limit and the chunks, and a stream.

use weir_engine::wire::sse::{Event, Splitter};
use weir_engine::wire::usage::{Meter, Metered, Usage};

/// Names and ids up to this length are accepted.
const MAX_FIELD_BYTES: usize = 256;
/// Maximum memory for name and id besides the event, including a vector's spare capacity.
const FIELDS_BYTES: usize = 2 * 2 * MAX_FIELD_BYTES;
/// More than any input holds.
const NO_LIMIT_BYTES: usize = 1 << 20;

const CONTENT_TYPES: [&str; 3] = ["text/event-stream", "application/json", "text/plain"];

/// An event's name, data and id.
type Owned = (Vec<u8>, Vec<u8>, Vec<u8>);

pub fn check(input: &[u8]) {
    let Some(([limit, cuts], stream)) = input.split_first_chunk::<2>() else { return };
    let max_event_bytes = usize::from(*limit) * usize::from(*limit) / 8;
    let seed = u32::from(*cuts);

    for limit in [max_event_bytes, NO_LIMIT_BYTES] {
        let whole = split(limit, &[stream]);
        assert_eq!(whole, split(limit, &cut(stream, 1, 0)), "cut after each byte");
        assert_eq!(whole, split(limit, &cut(stream, 64, seed)), "cut at places of seed {seed}");
        for (_, data, _) in &whole.0 {
            assert!(data.len() <= limit);
        }
        if limit == NO_LIMIT_BYTES {
            assert_eq!(whole, (by_the_book(stream), 0));
        }
    }
    for content_type in CONTENT_TYPES {
        let whole = meter(content_type, &[stream]);
        assert_eq!(whole, meter(content_type, &cut(stream, 1, 0)));
        assert_eq!(whole, meter(content_type, &cut(stream, 64, seed)));
        match content_type {
            "application/json" if whole.done => assert_eq!(whole.usage, Usage::of(stream)),
            "text/event-stream" => assert_eq!(whole.events, by_the_book(stream).len() as u64),
            _ => {}
        }
    }
}

/// Splits `stream` into chunks of up to `longest` bytes, with lengths derived from `seed`; some are
/// empty.
pub fn cut(stream: &[u8], longest: u32, seed: u32) -> Vec<&[u8]> {
    let mut state = seed;
    let mut pieces = Vec::new();
    let mut rest = stream;
    while !rest.is_empty() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let wanted = if longest == 1 { 1 } else { (state >> 16) % (longest + 1) };
        let (piece, after) = rest.split_at(rest.len().min(wanted as usize));
        pieces.push(piece);
        rest = after;
    }
    pieces
}

/// Returns the events of a stream, and the number of events that were too large.
fn split(max_event_bytes: usize, pieces: &[&[u8]]) -> (Vec<Owned>, u64) {
    let mut events = Vec::new();
    let mut on_event = |event: Event<'_>| {
        events.push((event.name.to_vec(), event.data.to_vec(), event.id.to_vec()));
    };
    let mut splitter = Splitter::new(max_event_bytes);
    for piece in pieces {
        splitter.feed(piece, &mut on_event);
        let held_bytes = splitter.held_bytes();
        assert!(held_bytes <= max_event_bytes + FIELDS_BYTES, "{held_bytes} bytes are held");
    }
    let skipped = splitter.finish(&mut on_event);
    (events, skipped)
}

fn meter(content_type: &str, pieces: &[&[u8]]) -> Metered {
    let mut meter = Meter::new(Some(content_type));
    for piece in pieces {
        meter.feed(piece);
    }
    meter.finish()
}

/// Parses the events of a whole stream by the WHATWG's rules, except that the end of the stream
/// also ends an event, and overlong names and ids are dropped.
fn by_the_book(stream: &[u8]) -> Vec<Owned> {
    let stream = stream.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(stream);
    let mut events = Vec::new();
    let mut id = Vec::new();
    let mut name = Vec::new();
    let mut data: Vec<&[u8]> = Vec::new();
    let mut lines = lines(stream);
    lines.push(b"");
    for line in lines {
        if line.is_empty() {
            let name = std::mem::take(&mut name);
            if !data.is_empty() {
                events.push((name, data.join(&b'\n'), id.clone()));
            }
            data.clear();
            continue;
        }
        let mut halves = line.splitn(2, |byte| *byte == b':');
        let field = halves.next().unwrap_or_default();
        let value = halves.next().unwrap_or_default();
        let value = value.strip_prefix(b" ").unwrap_or(value);
        let believed = if value.len() <= MAX_FIELD_BYTES { value } else { b"" };
        match field {
            b"data" => data.push(value),
            b"event" => name = believed.to_vec(),
            b"id" if !value.contains(&0) => id = believed.to_vec(),
            _ => {}
        }
    }
    events
}

/// Splits lines at a line feed, a carriage return or both.
fn lines(stream: &[u8]) -> Vec<&[u8]> {
    let mut lines = Vec::new();
    let mut start = 0;
    let mut at = 0;
    while at < stream.len() {
        if matches!(stream[at], b'\r' | b'\n') {
            lines.push(&stream[start..at]);
            at += usize::from(stream[at..].starts_with(b"\r\n"));
            start = at + 1;
        }
        at += 1;
    }
    lines.push(&stream[start..]);
    lines
}
