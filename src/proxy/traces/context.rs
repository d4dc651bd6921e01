//! Trace context of a request in the header `traceparent`, by the W3C's recommendation.

use http::{HeaderMap, HeaderName, HeaderValue};
use weir_store::hex;

/// Header with the context.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// Header with values that callers attach for all services of a request, such as a user's name.
pub const BAGGAGE: HeaderName = HeaderName::from_static("baggage");
/// Header with vendors' state of that trace.
pub const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
/// Flag of a sampled trace.
const SAMPLED: u8 = 1;

/// Trace, and the span in it that is the parent of the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    pub trace_id: [u8; 16],
    pub span_id: [u8; 8],
    pub is_sampled: bool,
}

impl TraceContext {
    /// Reads the context of a request; `None` if it has none, or an invalid one.
    pub fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(TRACEPARENT).iter();
        let (value, None) = (values.next()?, values.next()) else { return None };
        let parts: Vec<&str> = value.to_str().ok()?.trim().split('-').collect();
        let [version, trace_id, span_id, flags, more @ ..] = parts.as_slice() else { return None };
        // A later version may have more parts, the first one has not.
        let [version] = bytes(version)?;
        if version == 0xff || (version == 0 && !more.is_empty()) {
            return None;
        }
        let [flags] = bytes(flags)?;
        let (trace_id, span_id) = (bytes(trace_id)?, bytes(span_id)?);
        let is_zero = trace_id == [0; 16] || span_id == [0; 8];
        (!is_zero).then_some(Self { trace_id, span_id, is_sampled: flags & SAMPLED != 0 })
    }

    /// Returns the header's value.
    pub fn header(&self) -> HeaderValue {
        let flags = u8::from(self.is_sampled);
        let text = format!("00-{}-{}-{flags:02x}", hex(&self.trace_id), hex(&self.span_id));
        HeaderValue::try_from(text).expect("hexadecimal digits make a header value")
    }
}

/// Parses exactly `N` bytes in lower-case hexadecimal digits.
fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if text.len() != 2 * N || !text.bytes().all(is_digit) {
        return None;
    }
    let mut bytes = [0; N];
    for (place, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * place..2 * place + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(values: &[&str]) -> Option<TraceContext> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(TRACEPARENT, HeaderValue::from_str(value).expect("a value"));
        }
        TraceContext::from_headers(&headers)
    }

    const SOUND: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_context_is_read_and_written_alike() {
        let context = read(&[SOUND]).expect("it is sound");
        assert!(context.is_sampled);
        assert_eq!(context.header(), SOUND);
        let unsampled = SOUND.replace("-01", "-00");
        assert!(!read(&[&unsampled]).expect("it is sound").is_sampled);
        let later = SOUND.replacen("00", "01", 1) + "-more";
        assert!(read(&[&later]).is_some(), "a later version");
    }

    #[test]
    fn a_broken_context_is_none() {
        let zero = "00-00000000000000000000000000000000-00f067aa0ba902b7-01";
        for wrong in [
            "",
            "00",
            zero,
            &SOUND.to_uppercase(),
            &SOUND.replacen("00", "ff", 1),
            &format!("{SOUND}-more"),
            &SOUND[..54],
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        ] {
            assert_eq!(read(&[wrong]), None, "{wrong}");
        }
        assert_eq!(read(&[SOUND, SOUND]), None, "given twice");
    }
}
