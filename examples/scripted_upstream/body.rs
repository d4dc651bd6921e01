//! Answers as bytes on a connection: steps that send, hold, stall or cut, and gzip around them.
//!
//! Knows no JSON and no route.

use std::collections::VecDeque;
use std::io::Write as _;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::body::{Body, Frame, SizeHint};

use super::log::Ticket;

const PATTERN_FRAME_BYTES: usize = 64 * 1024;
/// Byte `i` of the large download is `i % 251`: a prime, so that any shift is detected.
const PATTERN_PERIOD: usize = 251;

/// Step of an answer.
pub enum Step {
    Send(Bytes),
    /// Sends this many bytes of the pattern.
    Pattern(u64),
    /// Lets the connection flush its data before the next step.
    Breathe(u8),
    /// Waits until this future ends.
    Hold(Pin<Box<dyn Future<Output = ()> + Send>>),
    /// Silence for as long as the caller stays.
    Stall,
    /// Breaks off.
    Cut,
}

/// Reason why a connection broke off.
#[derive(Debug)]
pub struct Dropped;

impl std::fmt::Display for Dropped {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("broken off by the script")
    }
}

impl std::error::Error for Dropped {}

/// Body of an answer, and the log entry that is closed at its end.
pub struct Reply {
    steps: VecDeque<Step>,
    /// Set if the length is declared up front; the steps then have exactly this length.
    length: Option<u64>,
    pattern_at: u64,
    ticket: Ticket,
}

impl Reply {
    pub fn new(steps: impl Into<VecDeque<Step>>, length: Option<u64>, mut ticket: Ticket) -> Self {
        let steps = steps.into();
        if steps.is_empty() {
            ticket.complete();
        }
        Self { steps, length, pattern_at: 0, ticket }
    }

    fn sent(&mut self, bytes: Bytes) -> Poll<Option<Result<Frame<Bytes>, Dropped>>> {
        self.length = self.length.map(|left| left - bytes.len() as u64);
        if self.steps.is_empty() {
            self.ticket.complete();
        }
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = Dropped;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Dropped>>> {
        let reply = self.get_mut();
        loop {
            match reply.steps.pop_front() {
                None => {
                    reply.ticket.complete();
                    return Poll::Ready(None);
                }
                Some(Step::Send(bytes)) => return reply.sent(bytes),
                Some(Step::Pattern(left)) => {
                    let bytes = pattern(reply.pattern_at, left);
                    let sent = bytes.len() as u64;
                    reply.pattern_at += sent;
                    if left > sent {
                        reply.steps.push_front(Step::Pattern(left - sent));
                    }
                    return reply.sent(bytes);
                }
                Some(Step::Breathe(0)) => {}
                Some(Step::Breathe(rounds)) => {
                    reply.steps.push_front(Step::Breathe(rounds - 1));
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Some(Step::Hold(mut released)) => {
                    if released.as_mut().poll(context).is_pending() {
                        reply.steps.push_front(Step::Hold(released));
                        return Poll::Pending;
                    }
                }
                Some(Step::Stall) => {
                    reply.steps.push_front(Step::Stall);
                    return Poll::Pending;
                }
                Some(Step::Cut) => {
                    reply.ticket.cut();
                    return Poll::Ready(Some(Err(Dropped)));
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.steps.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        self.length.map_or_else(SizeHint::new, SizeHint::with_exact)
    }
}

fn pattern(at: u64, left: u64) -> Bytes {
    static PERIODS: [u8; PATTERN_FRAME_BYTES + PATTERN_PERIOD] = {
        let mut bytes = [0; PATTERN_FRAME_BYTES + PATTERN_PERIOD];
        let mut index = 0;
        while index < bytes.len() {
            bytes[index] = (index % PATTERN_PERIOD) as u8;
            index += 1;
        }
        bytes
    };
    let start = (at % PATTERN_PERIOD as u64) as usize;
    let length =
        usize::try_from(left).map_or(PATTERN_FRAME_BYTES, |left| left.min(PATTERN_FRAME_BYTES));
    Bytes::from_static(&PERIODS[start..start + length])
}

/// Compresses pieces so that each can be read on arrival.
pub fn gzip(pieces: &[Bytes]) -> Vec<Bytes> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    let mut compressed = Vec::with_capacity(pieces.len() + 1);
    let in_memory = "writing to memory does not fail";
    for piece in pieces {
        encoder.write_all(piece).expect(in_memory);
        encoder.flush().expect(in_memory);
        compressed.push(Bytes::from(std::mem::take(encoder.get_mut())));
    }
    compressed.push(Bytes::from(encoder.finish().expect(in_memory)));
    compressed
}
