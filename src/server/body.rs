//! Request bodies: limits on duration, size, and memory held at once. Does not look at their
//! contents.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::error::Error;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep};

use crate::proxy::{Body, BoxError, Room};
use weir_store::Tenant;

/// Initial buffer capacity, regardless of the declared length.
const FIRST_CAPACITY_BYTES: usize = 1 << 20;
/// How long the rest of a refused body is read. A caller that is still sending can then read the
/// refusal instead of seeing a reset connection.
const LINGER: Duration = Duration::from_secs(5);

/// Reason why a body is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyRefused {
    /// Larger than one body may be.
    TooLarge,
    /// All bodies in flight together leave no room for it.
    NoRoom,
}

/// Reason why a body did not arrive.
#[derive(Debug)]
pub(super) enum BodyFailure {
    Refused(BodyRefused),
    /// It took too long.
    Late(Late),
    /// The caller left.
    Ended,
    /// The caller violated the protocol.
    Malformed,
}

/// Counter of request body bytes held at once, over all requests. While others hold any, one tenant holds at
/// most half of the limit.
#[derive(Debug, Clone)]
pub struct Bodies {
    held_bytes: Arc<AtomicUsize>,
    /// Bytes of each tenant that holds any. All changes are made under its lock.
    by_tenant: Arc<Mutex<HashMap<Tenant, usize>>>,
    max_bytes: usize,
}

impl Bodies {
    pub fn new(max_bytes: usize) -> Self {
        Self { held_bytes: Arc::default(), by_tenant: Arc::default(), max_bytes }
    }

    /// Shares the same counter with another limit.
    pub fn limited(&self, max_bytes: usize) -> Self {
        Self { max_bytes, ..self.clone() }
    }

    /// Returns the counter itself.
    pub fn held_bytes(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.held_bytes)
    }

    /// Returns a permit of `tenant` for zero bytes.
    pub fn permit(&self, tenant: Tenant) -> Permit {
        Permit { bodies: self.clone(), tenant, bytes: 0 }
    }

    /// Whether a tenant that holds `own_bytes` may hold `bytes` more.
    fn have_room(&self, own_bytes: usize, bytes: usize) -> bool {
        let held_bytes = self.held_bytes.load(Ordering::Relaxed);
        let share_bytes = if held_bytes > own_bytes { self.max_bytes / 2 } else { self.max_bytes };
        let is_within = |held: usize, most| held.checked_add(bytes).is_some_and(|sum| sum <= most);
        is_within(held_bytes, self.max_bytes) && is_within(own_bytes, share_bytes)
    }
}

/// A body's share of memory, released on drop.
#[derive(Debug)]
pub struct Permit {
    bodies: Bodies,
    tenant: Tenant,
    bytes: usize,
}

impl Permit {
    /// Acquires room for `bytes` more.
    pub fn grow(&mut self, bytes: usize) -> Result<(), BodyRefused> {
        let mut by_tenant = self.bodies.by_tenant.lock();
        let own_bytes = by_tenant.get(&self.tenant).copied().unwrap_or_default();
        if !self.bodies.have_room(own_bytes, bytes) {
            return Err(BodyRefused::NoRoom);
        }
        if bytes > 0 {
            by_tenant.insert(self.tenant, own_bytes + bytes);
        }
        self.bodies.held_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
        Ok(())
    }

    /// Returns a permit for zero bytes of the same room.
    pub fn sibling(&self) -> Self {
        self.bodies.permit(self.tenant)
    }

    /// Whether there is currently room for `bytes` more. Acquires nothing.
    pub fn has_room_for(&self, bytes: usize) -> bool {
        let by_tenant = self.bodies.by_tenant.lock();
        let own_bytes = by_tenant.get(&self.tenant).copied().unwrap_or_default();
        self.bodies.have_room(own_bytes, bytes)
    }

    /// Releases room for `bytes`.
    pub fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        let mut by_tenant = self.bodies.by_tenant.lock();
        if let Entry::Occupied(mut own) = by_tenant.entry(self.tenant) {
            *own.get_mut() -= bytes;
            if *own.get() == 0 {
                own.remove();
            }
        }
        self.bodies.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.bytes -= bytes;
    }

    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Room for Permit {
    fn grow(&mut self, bytes: usize) -> bool {
        Self::grow(self, bytes).is_ok()
    }

    fn shrink(&mut self, bytes: usize) {
        Self::shrink(self, bytes);
    }

    fn another(&self) -> Box<dyn Room> {
        Box::new(self.sibling())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}

/// Bytes of a body within a permit: all that is reserved for them counts, not their length alone.
pub(super) struct Growing<'a> {
    bytes: Vec<u8>,
    max_bytes: usize,
    permit: &'a mut Permit,
}

impl<'a> Growing<'a> {
    /// Starts without any byte.
    pub(super) fn new(max_bytes: usize, permit: &'a mut Permit) -> Self {
        Self { bytes: Vec::new(), max_bytes, permit }
    }

    /// Appends `more`; some of what is needed next is reserved with it, if there is room.
    pub(super) fn extend(&mut self, more: &[u8]) -> Result<(), BodyRefused> {
        let needed_bytes = self.bytes.len() + more.len();
        if needed_bytes > self.max_bytes {
            return Err(BodyRefused::TooLarge);
        }
        let reserved_bytes = self.bytes.capacity();
        if needed_bytes > reserved_bytes {
            let generous_bytes = (reserved_bytes + reserved_bytes / 2).min(self.max_bytes);
            if self.reserve(generous_bytes.max(needed_bytes)).is_err() {
                self.reserve(needed_bytes)?;
            }
        }
        self.bytes.extend_from_slice(more);
        Ok(())
    }

    /// Reserves `all_bytes` in total.
    fn reserve(&mut self, all_bytes: usize) -> Result<(), BodyRefused> {
        self.permit.grow(all_bytes.saturating_sub(self.bytes.capacity()))?;
        self.bytes.reserve_exact(all_bytes.saturating_sub(self.bytes.len()));
        Ok(())
    }

    /// Returns the bytes; what was reserved and is not needed is free again.
    pub(super) fn finish(mut self) -> Bytes {
        let spare_bytes = self.bytes.capacity() - self.bytes.len();
        self.bytes.shrink_to_fit();
        self.permit.shrink(spare_bytes);
        Bytes::from(self.bytes)
    }
}

/// Reads `body` to its end. If `declared_bytes` (its `content-length`) is too large, the body is
/// refused before any of it is read. Only bytes that arrived take room: callers that declare much
/// and send nothing must not block others.
pub(super) async fn read_whole(
    body: &mut Body,
    declared_bytes: Option<u64>,
    max_bytes: usize,
    permit: &mut Permit,
) -> Result<Bytes, BodyFailure> {
    let declared_bytes = match declared_bytes.map(usize::try_from) {
        Some(Ok(declared)) if declared <= max_bytes => declared,
        Some(_) => return Err(BodyFailure::Refused(BodyRefused::TooLarge)),
        None => 0,
    };
    if !permit.has_room_for(declared_bytes) {
        return Err(BodyFailure::Refused(BodyRefused::NoRoom));
    }
    let Some(first) = next_data(body).await? else {
        return Ok(Bytes::new());
    };
    if first.len() > max_bytes {
        return Err(BodyFailure::Refused(BodyRefused::TooLarge));
    }
    permit.grow(first.len()).map_err(BodyFailure::Refused)?;
    let Some(mut chunk) = next_data(body).await? else {
        return Ok(first);
    };
    permit.shrink(first.len());
    let most_bytes = if declared_bytes > 0 { declared_bytes } else { max_bytes };
    let mut whole = Growing::new(most_bytes, permit);
    let early_bytes = declared_bytes.min(FIRST_CAPACITY_BYTES).max(first.len());
    whole.reserve(early_bytes).and_then(|()| whole.extend(&first)).map_err(BodyFailure::Refused)?;
    drop(first);
    loop {
        whole.extend(&chunk).map_err(BodyFailure::Refused)?;
        match next_data(body).await? {
            Some(next) => chunk = next,
            None => return Ok(whole.finish()),
        }
    }
}

/// Returns the next piece of data; trailers are ignored.
async fn next_data(body: &mut Body) -> Result<Option<Bytes>, BodyFailure> {
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
            Err(error) => return Err(failure(&*error)),
        }
    }
    Ok(None)
}

/// Classifies an error of a body.
fn failure(error: &(dyn Error + Send + Sync + 'static)) -> BodyFailure {
    if let Some(late) = error.downcast_ref() {
        return BodyFailure::Late(*late);
    }
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            let is_malformed =
                matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::InvalidData);
            return if is_malformed { BodyFailure::Malformed } else { BodyFailure::Ended };
        }
        cause = error.source();
    }
    BodyFailure::Ended
}

/// Reads the rest of a refused body for a moment and discards it.
pub(super) fn linger(mut body: Body) {
    let drained = async move { while let Ok(Some(_)) = next_data(&mut body).await {} };
    tokio::spawn(tokio::time::timeout(LINGER, drained));
}

/// Time limits of a body.
#[derive(Debug, Clone, Copy)]
pub(super) struct BodyTimes {
    /// Maximum pause.
    pub(super) idle: Duration,
    /// Maximum time from the head to the body's end.
    pub(super) total: Duration,
}

/// Error: a body took too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Late {
    #[error("The request's body stopped coming (`server.body_timeouts_ms.idle`).")]
    Idle,
    #[error("The request's body took too long (`server.body_timeouts_ms.total`).")]
    Total,
}

/// Body that fails with [`Late`] if it exceeds its time limits.
pub(super) struct Patient<B> {
    inner: B,
    idle: Duration,
    end: Instant,
    /// Set while a read is pending.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<B> Patient<B> {
    pub(super) fn new(inner: B, times: BodyTimes) -> Self {
        Self { inner, idle: times.idle, end: Instant::now() + times.total, deadline: None }
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
        let (idle, end) = (this.idle, this.end);
        let deadline = this.deadline.get_or_insert_with(|| {
            Box::pin(tokio::time::sleep_until(end.min(Instant::now() + idle)))
        });
        let is_total = deadline.deadline() == end;
        ready!(deadline.as_mut().poll(context));
        Poll::Ready(Some(Err(Box::new(if is_total { Late::Total } else { Late::Idle }))))
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

    const TENANT: Tenant = Tenant([1; 16]);

    #[test]
    fn room_is_given_back() {
        let bodies = Bodies::new(10);
        let [mut first, mut second] = [(); 2].map(|()| bodies.permit(TENANT));
        assert_eq!(first.grow(6), Ok(()));
        assert_eq!(second.grow(5), Err(BodyRefused::NoRoom));
        assert_eq!(second.grow(4), Ok(()));
        first.shrink(1);
        assert_eq!(second.grow(1), Ok(()));
        assert_eq!(second.grow(usize::MAX), Err(BodyRefused::NoRoom));
        drop(first);
        drop(second);
        assert_eq!(bodies.permit(TENANT).grow(10), Ok(()));
    }

    #[test]
    fn a_tenant_holds_at_most_half_while_others_hold_any() {
        let bodies = Bodies::new(10);
        let mut own = bodies.permit(TENANT);
        assert_eq!(own.grow(8), Ok(()), "it is alone");
        let mut other = bodies.permit(Tenant([2; 16]));
        assert_eq!(other.grow(1), Ok(()));
        assert!(own.grow(1).is_err() && own.sibling().grow(1).is_err() && !own.has_room_for(1));
        own.shrink(4);
        assert_eq!(own.sibling().grow(1), Ok(()));
        assert_eq!(own.grow(2), Err(BodyRefused::NoRoom));
        assert_eq!(other.grow(4), Ok(()));
        drop(other);
        assert_eq!(own.grow(6), Ok(()), "it is alone again");
        drop(own);
        assert!(
            bodies.by_tenant.lock().is_empty() && bodies.held_bytes().load(Ordering::Relaxed) == 0
        );
    }
}
