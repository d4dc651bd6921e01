//! Random bytes of the system, and the IDs of requests made of them.

use super::error::{ErrorKind, ProxyError};
use parking_lot::Mutex;
use weir_store::ledger::RequestId;

/// Creates the ID of a request that starts at `begun_ms`.
pub(super) fn new_id(begun_ms: u64) -> Result<RequestId, ProxyError> {
    let random = random()
        .map_err(|_| ProxyError::new(ErrorKind::Internal, "the system provides no random bytes"))?;
    Ok(RequestId::new(begun_ms, random))
}

/// Returns random bytes.
pub(super) fn random<const N: usize>() -> Result<[u8; N], getrandom::Error> {
    RANDOM.lock().take()
}

/// Number of random bytes fetched at once, so that not every request costs a system call.
const RANDOM_BYTES: usize = 1000;

static RANDOM: Mutex<Random> = Mutex::new(Random { bytes: [0; RANDOM_BYTES], used: RANDOM_BYTES });

/// Random bytes of the system, each used once.
struct Random {
    bytes: [u8; RANDOM_BYTES],
    used: usize,
}

impl Random {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], getrandom::Error> {
        if self.used + N > RANDOM_BYTES {
            // If it fails, the bytes in place were already used.
            self.used = RANDOM_BYTES;
            getrandom::fill(&mut self.bytes)?;
            self.used = 0;
        }
        let mut taken = [0; N];
        taken.copy_from_slice(&self.bytes[self.used..self.used + N]);
        self.used += N;
        Ok(taken)
    }
}
