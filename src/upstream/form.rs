//! Form of an answer that was asked for as plain JSON or as a stream of events, by its bytes: servers
//! compress it anyway, or declare another type or none. Changes headers; reads no content.

use http::HeaderValue;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};

use super::Inbound;

/// Maximum size of a body's beginning that is examined.
const MAX_BLANK_BYTES: usize = 64 << 10;
/// Content type of a stream of events.
const EVENTS: &str = "text/event-stream";
/// Content type of a JSON text.
const JSON: &str = "application/json";
/// Beginnings of a line in a stream of events.
const FIELDS: [&[u8]; 5] = [b"data:", b"event:", b"id:", b"retry:", b":"];

impl Inbound {
    /// Decodes an answer that is gzip although no encoding was allowed.
    pub(super) fn unzip(&mut self) {
        let encoding = self.headers.get(CONTENT_ENCODING).map(HeaderValue::as_bytes);
        let is_gzip = |name: &[u8]| {
            name.eq_ignore_ascii_case(b"gzip") || name.eq_ignore_ascii_case(b"x-gzip")
        };
        if encoding.is_some_and(is_gzip) {
            self.headers.remove(CONTENT_ENCODING);
            self.headers.remove(CONTENT_LENGTH);
            self.body.unzip();
        }
    }

    /// Corrects the content type of an answer that is not of the expected one, if its bytes are JSON or
    /// events.
    pub async fn correct_type(&mut self, is_stream: bool) {
        let declared = self.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let media_type = declared.unwrap_or_default().split(';').next().unwrap_or_default();
        let media_type = media_type.trim().to_ascii_lowercase();
        let is_expected = match is_stream {
            true => media_type == EVENTS,
            false => media_type == JSON || media_type.ends_with("+json"),
        };
        if is_expected || !self.status.is_success() || self.headers.contains_key(CONTENT_ENCODING) {
            return;
        }
        let is_enough = |seen: &[u8]| form(seen).is_some();
        let seen = form(self.body.peek_until(MAX_BLANK_BYTES, is_enough).await).flatten();
        if let Some(found) = seen.filter(|found| *found != media_type) {
            self.headers.insert(CONTENT_TYPE, HeaderValue::from_static(found));
        }
    }
}

/// Returns the content type of a body with this beginning, `Some(None)` if it is neither, `None` if
/// more of it decides.
fn form(seen: &[u8]) -> Option<Option<&'static str>> {
    let mark = "\u{feff}".as_bytes();
    let seen = seen.strip_prefix(mark).unwrap_or(seen).trim_ascii_start();
    match seen.first() {
        None => None,
        Some(b'{' | b'[') => Some(Some(JSON)),
        Some(_) if FIELDS.iter().any(|field| seen.starts_with(field)) => Some(Some(EVENTS)),
        Some(_) if mark.starts_with(seen) => None,
        Some(_) if FIELDS.iter().any(|field| field.starts_with(seen)) => None,
        Some(_) => Some(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_s_form_is_certain_after_few_bytes() {
        for (seen, expected) in [
            ("", None),
            (" \r\n", None),
            ("\u{feff}", None),
            ("\u{feff} {", Some(Some(JSON))),
            ("\n[1", Some(Some(JSON))),
            ("dat", None),
            ("data: {", Some(Some(EVENTS))),
            ("\u{feff}event: x", Some(Some(EVENTS))),
            (": ping", Some(Some(EVENTS))),
            ("dear", Some(None)),
            ("<html>", Some(None)),
        ] {
            assert_eq!(form(seen.as_bytes()), expected, "{seen:?}");
        }
        assert_eq!(form(&"\u{feff}".as_bytes()[..2]), None);
    }
}
