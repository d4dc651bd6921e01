//! Compressed request bodies: for any claimed encoding, the output never exceeds the limit, and all
//! reserved memory is released.
//!
//! An input is a `content-encoding` on a separate line, and a body.

use bytes::Bytes;
use weir::server::Bodies;
use weir::server::decode::{decode, encodings};
use weir_store::Tenant;

/// Small, so that inputs reach it.
const MAX_BYTES: usize = 16 * 1024;
/// Holds a decoded body and its input, but not much more.
const MAX_HELD_BYTES: usize = 3 * MAX_BYTES;

pub fn check(input: &[u8]) {
    let mut halves = input.splitn(2, |byte| *byte == b'\n');
    let header = halves.next().unwrap_or_default();
    let body = Bytes::copy_from_slice(halves.next().unwrap_or_default());
    let Ok(encodings) = encodings([header].into_iter()) else { return };
    let bodies = Bodies::new(MAX_HELD_BYTES);
    let mut permit = bodies.permit(Tenant::ANONYMOUS);
    if let Ok(decoded) = decode(&body, &encodings, MAX_BYTES, &mut permit) {
        if encodings.is_empty() {
            assert_eq!(decoded, body);
        } else {
            assert!(decoded.len() <= MAX_BYTES, "{} bytes of output", decoded.len());
            // Only the returned body is still counted.
            let room_bytes = MAX_HELD_BYTES - decoded.len();
            assert!(permit.grow(room_bytes).is_ok() && permit.grow(1).is_err());
        }
        let mut unbounded = Bodies::new(usize::MAX).permit(Tenant::ANONYMOUS);
        let again = decode(&body, &encodings, MAX_BYTES, &mut unbounded);
        assert_eq!(again, Ok(decoded), "decoding is deterministic");
    }
    drop(permit);
    let mut whole = bodies.permit(Tenant::ANONYMOUS);
    assert!(whole.grow(MAX_HELD_BYTES).is_ok(), "all memory is released");
}
