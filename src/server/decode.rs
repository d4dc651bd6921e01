//! Decoding of request bodies by `content-encoding`, with a bound on the output. Pure: bytes in,
//! bytes out. The work can be long, so it does not belong on the async threads.

use std::io::Read;

use bytes::Bytes;
use flate2::read::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use ruzstd::decoding::StreamingDecoder;

use super::body::{BodyRefused, Growing, Permit};
use crate::config::words::worded;

/// Supported encodings of a request body, as listed in `accept-encoding`.
pub const SUPPORTED_ENCODINGS: &str = "gzip, deflate, zstd";

/// Maximum number of encodings on one body; more is an attack.
const MAX_ENCODINGS: usize = 4;
/// Window that a decoder of zstd over HTTP must support (RFC 9659).
const ZSTD_WINDOW_BYTES: usize = 8 << 20;
/// Bytes decoded per step.
const STEP_BYTES: usize = 64 * 1024;

worded! {
    /// Encoding of a body, as `content-encoding` names it.
    Encoding {
        Gzip = "gzip",
        Deflate = "deflate",
        Zstd = "zstd",
    }
}

/// Reason why a list of encodings is unsupported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unsupported {
    Named(String),
    TooMany,
}

/// Reason why a body cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyFailure {
    /// The bytes do not match the declared encoding.
    Broken(Encoding),
    /// The decoded body is too large.
    Refused(BodyRefused),
}

/// Parses the values of `content-encoding`, in the order in which the encodings were applied.
pub fn encodings<'a>(values: impl Iterator<Item = &'a [u8]>) -> Result<Vec<Encoding>, Unsupported> {
    let mut found = Vec::new();
    let names = values.flat_map(|value| value.split(|byte| *byte == b','));
    for name in names.map(<[u8]>::trim_ascii) {
        let encoding = match name.to_ascii_lowercase().as_slice() {
            b"" | b"identity" => continue,
            b"gzip" | b"x-gzip" => Encoding::Gzip,
            b"deflate" => Encoding::Deflate,
            b"zstd" => Encoding::Zstd,
            _ => {
                let shown = String::from_utf8_lossy(name);
                return Err(Unsupported::Named(shown.chars().take(40).collect()));
            }
        };
        if found.len() == MAX_ENCODINGS {
            return Err(Unsupported::TooMany);
        }
        found.push(encoding);
    }
    Ok(found)
}

/// Decodes `encodings`, the last first. No step produces more than `max_bytes`, and `permit` grows
/// by the size of the result.
pub fn decode(
    received: &Bytes,
    encodings: &[Encoding],
    max_bytes: usize,
    permit: &mut Permit,
) -> Result<Bytes, BodyFailure> {
    let mut current = received.clone();
    let mut counted_bytes = 0;
    for encoding in encodings.iter().rev() {
        // A decoder of zstd keeps a window of its own.
        let mut windows = permit.sibling();
        let decoded = Growing::new(max_bytes, permit);
        let mut sink = Sink { decoded, max_bytes, encoding: *encoding, windows: &mut windows };
        match encoding {
            Encoding::Gzip => sink.fill(MultiGzDecoder::new(&current[..]))?,
            Encoding::Deflate if is_zlib(&current) => sink.fill(ZlibDecoder::new(&current[..]))?,
            Encoding::Deflate => sink.fill(DeflateDecoder::new(&current[..]))?,
            Encoding::Zstd => sink.fill_from_zstd(&current)?,
        }
        current = sink.decoded.finish();
        permit.shrink(counted_bytes);
        counted_bytes = current.len();
    }
    Ok(current)
}

/// `deflate` means a zlib stream, but some senders omit zlib's two-byte header.
fn is_zlib(bytes: &[u8]) -> bool {
    match bytes {
        [first, second, ..] => {
            first & 0x0f == 8 && u16::from_be_bytes([*first, *second]).is_multiple_of(31)
        }
        _ => false,
    }
}

/// Bounded output of a decoder.
struct Sink<'a> {
    decoded: Growing<'a>,
    max_bytes: usize,
    encoding: Encoding,
    windows: &'a mut Permit,
}

impl Sink<'_> {
    fn fill(&mut self, mut source: impl Read) -> Result<(), BodyFailure> {
        let mut step = vec![0; STEP_BYTES];
        loop {
            let read = source.read(&mut step).map_err(|_| BodyFailure::Broken(self.encoding))?;
            if read == 0 {
                return Ok(());
            }
            self.decoded.extend(&step[..read]).map_err(BodyFailure::Refused)?;
        }
    }

    /// Decodes a zstd body, a sequence of frames, some of them skippable.
    fn fill_from_zstd(&mut self, mut source: &[u8]) -> Result<(), BodyFailure> {
        let broken = BodyFailure::Broken(Encoding::Zstd);
        if source.is_empty() {
            return Err(broken);
        }
        while !source.is_empty() {
            match ZstdFrame::read(source).ok_or(broken)? {
                ZstdFrame::Skippable { length_bytes } => {
                    source = source.get(length_bytes..).ok_or(broken)?;
                }
                ZstdFrame::Content { window_bytes } => {
                    // The decoder retains a window's worth of output, however much was read from
                    // it.
                    let window_bytes = usize::try_from(window_bytes).unwrap_or(usize::MAX);
                    if window_bytes > self.max_bytes.max(ZSTD_WINDOW_BYTES) {
                        return Err(BodyFailure::Refused(BodyRefused::TooLarge));
                    }
                    let window_bytes = window_bytes.min(self.max_bytes);
                    self.windows.grow(window_bytes).map_err(BodyFailure::Refused)?;
                    let decoder = StreamingDecoder::new(&mut source).map_err(|_| broken)?;
                    let filled = self.fill(decoder);
                    self.windows.shrink(window_bytes);
                    filled?;
                }
            }
        }
        Ok(())
    }
}

/// Header of a zstd frame (RFC 8878, section 3.1).
#[derive(Debug, PartialEq, Eq)]
enum ZstdFrame {
    Skippable { length_bytes: usize },
    Content { window_bytes: u64 },
}

impl ZstdFrame {
    fn read(bytes: &[u8]) -> Option<Self> {
        let (magic, rest) = bytes.split_first_chunk::<4>()?;
        match u32::from_le_bytes(*magic) {
            0x184D_2A50..=0x184D_2A5F => {
                let (size, _) = rest.split_first_chunk::<4>()?;
                let size_bytes = usize::try_from(u32::from_le_bytes(*size)).ok()?;
                let length_bytes = size_bytes.checked_add(8)?;
                Some(Self::Skippable { length_bytes })
            }
            0xFD2F_B528 => {
                let (descriptor, rest) = rest.split_first()?;
                let window_bytes = if descriptor & 0x20 == 0 {
                    window_bytes(*rest.first()?)
                } else {
                    content_bytes(*descriptor, rest)?
                };
                Some(Self::Content { window_bytes })
            }
            _ => None,
        }
    }
}

/// Window size from a window descriptor: five bits of exponent, three of mantissa.
fn window_bytes(descriptor: u8) -> u64 {
    let base = 1u64 << (10 + (descriptor >> 3));
    base + base / 8 * u64::from(descriptor & 7)
}

/// Content size that follows the dictionary ID in the header of a frame without a window.
fn content_bytes(descriptor: u8, rest: &[u8]) -> Option<u64> {
    let id_bytes = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let rest = rest.get(id_bytes..)?;
    Some(match descriptor >> 6 {
        0 => u64::from(*rest.first()?),
        1 => u64::from(u16::from_le_bytes(*rest.first_chunk()?)) + 256,
        2 => u64::from(u32::from_le_bytes(*rest.first_chunk()?)),
        _ => u64::from_le_bytes(*rest.first_chunk()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::body::Bodies;
    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
    use std::io::Write;

    const MAX_BYTES: usize = 1 << 20;

    fn gzip(plain: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(plain).expect("a Vec takes all");
        encoder.finish().expect("a Vec takes all")
    }

    fn zstd(plain: &[u8]) -> Vec<u8> {
        ruzstd::encoding::compress_to_vec(plain, ruzstd::encoding::CompressionLevel::Fastest)
    }

    fn undo(
        received: &[u8],
        header: &str,
        held_at_most: usize,
    ) -> Result<(Bytes, usize), BodyFailure> {
        let encodings = encodings([header.as_bytes()].into_iter()).expect("supported");
        let bodies = Bodies::new(held_at_most);
        let mut permit = bodies.permit(weir_store::Tenant::ANONYMOUS);
        let received = Bytes::copy_from_slice(received);
        let decoded = decode(&received, &encodings, MAX_BYTES, &mut permit)?;
        Ok((decoded, permit.bytes()))
    }

    #[test]
    fn each_encoding_is_undone_and_counted() {
        let plain = br#"{"model":"gpt-4o","messages":[]}"#.repeat(50);
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::default());
        zlib.write_all(&plain).expect("a Vec takes all");
        let mut raw = DeflateEncoder::new(Vec::new(), Compression::default());
        raw.write_all(&plain).expect("a Vec takes all");
        let members = [gzip(&plain[..100]), gzip(&plain[100..])].concat();
        let frames =
            [zstd(&plain[..100]), b"\x50\x2A\x4D\x18\x03\0\0\0abc".to_vec(), zstd(&plain[100..])];
        let rows: [(&str, Vec<u8>); 8] = [
            ("gzip", gzip(&plain)),
            ("X-Gzip", members),
            ("deflate", zlib.finish().expect("a Vec takes all")),
            ("deflate", raw.finish().expect("a Vec takes all")),
            ("zstd", frames.concat()),
            ("gzip, zstd", zstd(&gzip(&plain))),
            ("zstd,identity , gzip", gzip(&zstd(&plain))),
            ("identity", plain.clone()),
        ];
        for (header, received) in rows {
            let (decoded, held) = undo(&received, header, usize::MAX).expect(header);
            assert_eq!(decoded, plain, "{header}");
            let expected = if header == "identity" { 0 } else { plain.len() };
            assert_eq!(held, expected, "{header}");
        }
    }

    #[test]
    fn a_bomb_is_stopped_at_the_limit() {
        for encode in [gzip, zstd] {
            let name = if encode(b"")[0] == 0x1f { "gzip" } else { "zstd" };
            let at = undo(&encode(&vec![b' '; MAX_BYTES]), name, usize::MAX);
            assert_eq!(at.map(|(decoded, _)| decoded.len()), Ok(MAX_BYTES));
            let past = undo(&encode(&vec![b' '; MAX_BYTES + 1]), name, usize::MAX);
            assert_eq!(past, Err(BodyFailure::Refused(BodyRefused::TooLarge)));
        }
    }

    #[test]
    fn a_frame_that_asks_for_a_huge_window_is_refused_before_it_is_decoded() {
        let mut frame = b"\x28\xB5\x2F\xFD\x00".to_vec();
        frame.push(31 << 3);
        // Runs of one byte, 128 KiB each, none of them the last.
        frame.extend([0x02, 0x00, 0x10, b' '].repeat(1000));
        assert_eq!(
            undo(&frame, "zstd", usize::MAX),
            Err(BodyFailure::Refused(BodyRefused::TooLarge))
        );
    }

    #[test]
    fn what_is_decoded_counts_among_the_bodies_in_flight() {
        let received = gzip(&[b' '; 1000]);
        assert!(undo(&received, "gzip", 1000).is_ok());
        assert_eq!(undo(&received, "gzip", 999), Err(BodyFailure::Refused(BodyRefused::NoRoom)));
    }

    #[test]
    fn broken_bodies_differ_from_large_ones() {
        let whole = gzip(b"hello");
        let rows: [(&str, &[u8], Encoding); 6] = [
            ("gzip", b"not gzip", Encoding::Gzip),
            ("gzip", &whole[..whole.len() - 1], Encoding::Gzip),
            ("gzip", b"", Encoding::Gzip),
            ("deflate", b"\xff\xff", Encoding::Deflate),
            ("zstd", b"", Encoding::Zstd),
            ("zstd", b"\x28\xB5\x2F\xFD\x00\x58", Encoding::Zstd),
        ];
        for (header, received, encoding) in rows {
            assert_eq!(
                undo(received, header, usize::MAX),
                Err(BodyFailure::Broken(encoding)),
                "{header} {received:?}"
            );
        }
    }

    #[test]
    fn unknown_and_excessive_encodings_are_named() {
        let named = |header: &'static str| encodings([header.as_bytes()].into_iter());
        assert_eq!(named("gzip, br"), Err(Unsupported::Named("br".into())));
        assert_eq!(named("gzip,gzip,gzip,gzip").map(|all| all.len()), Ok(4));
        assert_eq!(named("gzip,gzip,gzip,gzip,gzip"), Err(Unsupported::TooMany));
    }
}
