//! Compressed request bodies: whatever they claim to be, no more comes out than is allowed, and
//! all memory that was asked for is given back.
//!
//! An input is a `content-encoding` on a line of its own, and a body.

use bytes::Bytes;
use weir::server::Bodies;
use weir::server::decode::{decode, encodings};

/// Small, so that inputs reach it.
const MAX_BYTES: usize = 16 * 1024;
/// Holds a decoded body and what it was decoded from, but not much more.
const MAX_HELD_BYTES: usize = 3 * MAX_BYTES;

pub fn check(input: &[u8]) {
    let mut halves = input.splitn(2, |byte| *byte == b'\n');
    let header = halves.next().unwrap_or_default();
    let body = Bytes::copy_from_slice(halves.next().unwrap_or_default());
    let Ok(encodings) = encodings([header].into_iter()) else { return };
    let bodies = Bodies::new(MAX_HELD_BYTES);
    let mut permit = bodies.permit();
    if let Ok(decoded) = decode(&body, &encodings, MAX_BYTES, &mut permit) {
        if encodings.is_empty() {
            assert_eq!(decoded, body);
        } else {
            assert!(decoded.len() <= MAX_BYTES, "{} bytes came out", decoded.len());
            // What is returned is counted, and nothing else is any more.
            let room_bytes = MAX_HELD_BYTES - decoded.len();
            assert!(permit.grow(room_bytes).is_ok() && permit.grow(1).is_err());
        }
        let again = decode(&body, &encodings, MAX_BYTES, &mut Bodies::new(usize::MAX).permit());
        assert_eq!(again, Ok(decoded), "the same bytes come out each time");
    }
    drop(permit);
    assert!(bodies.permit().grow(MAX_HELD_BYTES).is_ok(), "all that was held is given back");
}
