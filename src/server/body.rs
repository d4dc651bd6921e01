//! Request bodies: how long they may take, how large they may be and how much of them is held at
//! once. Knows nothing of what is in them.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::time::{Instant, Sleep};

use crate::proxy::{Body, BoxError};

/// What is taken for a body at first, however long it says that it is.
const FIRST_CAPACITY_BYTES: usize = 1 << 20;
/// How long the rest of a refused body is read, so that the caller, still sending, gets to read
/// the refusal and not a reset connection.
const LINGER: Duration = Duration::from_secs(5);

/// Why a body is not taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// It is larger than one body may be.
    TooLarge,
    /// All bodies in flight together leave no room for it.
    NoRoom,
}

/// Why a body has not come.
#[derive(Debug)]
pub enum Failure {
    Refused(Refused),
    /// Nothing came for too long.
    Stalled,
    /// The caller left, or broke the protocol.
    Broken,
}

/// The bytes of request bodies held at once, over all requests.
#[derive(Debug, Clone)]
pub struct Bodies {
    held_bytes: Arc<AtomicUsize>,
    max_bytes: usize,
}

impl Bodies {
    pub fn new(max_bytes: usize) -> Self {
        Self { held_bytes: Arc::default(), max_bytes }
    }

    /// The same bytes, of which there may be so many from now on.
    pub fn limited(&self, max_bytes: usize) -> Self {
        Self { held_bytes: Arc::clone(&self.held_bytes), max_bytes }
    }

    /// A permit for nothing yet.
    pub fn permit(&self) -> Permit {
        Permit { bodies: self.clone(), bytes: 0 }
    }
}

/// A body's place in memory, given back on drop.
#[derive(Debug)]
pub struct Permit {
    bodies: Bodies,
    bytes: usize,
}

impl Permit {
    /// Asks for room for `bytes` more.
    pub fn grow(&mut self, bytes: usize) -> Result<(), Refused> {
        let max_bytes = self.bodies.max_bytes;
        self.bodies
            .held_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
                held.checked_add(bytes).filter(|sum| *sum <= max_bytes)
            })
            .map_err(|_| Refused::NoRoom)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Whether there is room for `bytes` more at the moment. Takes none of it.
    pub fn has_room_for(&self, bytes: usize) -> bool {
        let held_bytes = self.bodies.held_bytes.load(Ordering::Relaxed);
        held_bytes.checked_add(bytes).is_some_and(|sum| sum <= self.bodies.max_bytes)
    }

    /// Gives room for `bytes` back.
    pub fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bodies.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.bytes -= bytes;
    }

    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}

/// Reads `body` to its end. `declared_bytes` is its `content-length`, by which a body that will
/// not do is refused before any of it is read. Room is taken for what has come alone: callers that
/// announce much and send nothing must not keep others out.
pub async fn read_whole(
    body: &mut Body,
    declared_bytes: Option<u64>,
    max_bytes: usize,
    permit: &mut Permit,
) -> Result<Bytes, Failure> {
    let declared_bytes = match declared_bytes.map(usize::try_from) {
        Some(Ok(declared)) if declared <= max_bytes => declared,
        Some(_) => return Err(Failure::Refused(Refused::TooLarge)),
        None => 0,
    };
    if !permit.has_room_for(declared_bytes) {
        return Err(Failure::Refused(Refused::NoRoom));
    }
    let Some(first) = next_data(body).await? else {
        return Ok(Bytes::new());
    };
    count(first.len(), max_bytes, permit)?;
    let Some(mut chunk) = next_data(body).await? else {
        return Ok(first);
    };
    let capacity = declared_bytes.clamp(first.len(), FIRST_CAPACITY_BYTES.max(first.len()));
    let mut whole = BytesMut::with_capacity(capacity);
    whole.extend_from_slice(&first);
    drop(first);
    loop {
        count(whole.len() + chunk.len(), max_bytes, permit)?;
        whole.extend_from_slice(&chunk);
        match next_data(body).await? {
            Some(next) => chunk = next,
            None => return Ok(whole.freeze()),
        }
    }
}

/// Lets a body be `so_far_bytes` long, of which the permit may know already.
fn count(so_far_bytes: usize, max_bytes: usize, permit: &mut Permit) -> Result<(), Failure> {
    if so_far_bytes > max_bytes {
        return Err(Failure::Refused(Refused::TooLarge));
    }
    let new_bytes = so_far_bytes.saturating_sub(permit.bytes);
    permit.grow(new_bytes).map_err(Failure::Refused)
}

/// The next piece of data; trailers have no use here.
async fn next_data(body: &mut Body) -> Result<Option<Bytes>, Failure> {
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
            Err(error) if error.is::<Stalled>() => return Err(Failure::Stalled),
            Err(_) => return Err(Failure::Broken),
        }
    }
    Ok(None)
}

/// Reads what is left of a refused body for a moment and throws it away.
pub fn linger(mut body: Body) {
    let drained = async move { while let Ok(Some(_)) = next_data(&mut body).await {} };
    tokio::spawn(tokio::time::timeout(LINGER, drained));
}

/// Nothing of a body came for too long.
#[derive(Debug)]
pub struct Stalled;

impl std::fmt::Display for Stalled {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("the request's body stopped coming")
    }
}

impl std::error::Error for Stalled {}

/// A body that ends in `Stalled` when nothing of it comes for `idle`.
pub struct Patient<B> {
    inner: B,
    idle: Duration,
    /// Set while something is waited for.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<B> Patient<B> {
    pub fn new(inner: B, idle: Duration) -> Self {
        Self { inner, idle, deadline: None }
    }
}

impl<B> http_body::Body for Patient<B>
where
    B: http_body::Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.inner).poll_frame(context) {
            this.deadline = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let idle = this.idle;
        let deadline = this
            .deadline
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + idle)));
        ready!(deadline.as_mut().poll(context));
        Poll::Ready(Some(Err(Box::new(Stalled))))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_given_back() {
        let bodies = Bodies::new(10);
        let mut first = bodies.permit();
        let mut second = bodies.permit();
        assert_eq!(first.grow(6), Ok(()));
        assert_eq!(second.grow(5), Err(Refused::NoRoom));
        assert_eq!(second.grow(4), Ok(()));
        first.shrink(1);
        assert_eq!(second.grow(1), Ok(()));
        assert_eq!(second.grow(usize::MAX), Err(Refused::NoRoom));
        drop(first);
        drop(second);
        assert_eq!(bodies.permit().grow(10), Ok(()));
    }
}
