//! Headers of forwarded requests and answers: those for one connection, or for weir, go no further.

use http::header::{
    CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, Entry, HOST, HeaderName,
    SET_COOKIE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, VIA,
};
use http::{HeaderMap, HeaderValue};

/// Beginning of the names of weir's own cookies.
const OWN_COOKIES: &[u8] = b"weir_";

/// Name of this instance in `via`.
#[derive(Clone)]
pub struct Via {
    name: String,
    value: HeaderValue,
}

impl Via {
    /// Generates a unique name.
    pub fn random() -> Self {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).expect("the operating system gives random bytes at start");
        let name = format!("weir-{:016x}", u64::from_be_bytes(bytes));
        let value = HeaderValue::try_from(format!("1.1 {name}"))
            .expect("hexadecimal digits make a header value");
        Self { name, value }
    }

    /// Returns the name of this instance.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether this instance is among those that forwarded a request.
    pub fn is_in(&self, headers: &HeaderMap) -> bool {
        headers
            .get_all(VIA)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .any(|hop| hop.split_whitespace().nth(1) == Some(&self.name))
    }
}

/// Prepares a caller's headers for the upstream; the client adds `host` and `content-length`.
pub(super) fn outbound(mut headers: HeaderMap, via: &Via) -> HeaderMap {
    remove_hop_by_hop(&mut headers);
    remove_where(&mut headers, |name| name.starts_with("x-weir-"));
    for name in [HOST, CONTENT_LENGTH, EXPECT] {
        headers.remove(name);
    }
    headers.append(VIA, via.value.clone());
    headers
}

/// Prepares the upstream's headers for the caller. `content-length` stays: the body is the same.
/// Nothing passes for weir's own: no `x-weir-…`, and no cookie with a name of weir's, which a browser
/// would send to the dashboard on another port.
pub(super) fn inbound(mut headers: HeaderMap) -> HeaderMap {
    remove_hop_by_hop(&mut headers);
    remove_where(&mut headers, |name| name.starts_with("x-weir-"));
    let is_weirs = |value: &HeaderValue| {
        value
            .as_bytes()
            .trim_ascii_start()
            .get(..5)
            .is_some_and(|name| name.eq_ignore_ascii_case(OWN_COOKIES))
    };
    if let Entry::Occupied(cookies) = headers.entry(SET_COOKIE)
        && cookies.iter().any(is_weirs)
    {
        let (_, cookies) = cookies.remove_entry_mult();
        let others: Vec<HeaderValue> = cookies.filter(|value| !is_weirs(value)).collect();
        others.into_iter().for_each(|value| {
            headers.append(SET_COOKIE, value);
        });
    }
    headers
}

/// Whether an answer with these headers is a plain stream of events.
pub fn is_event_stream(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media_type = content_type.unwrap_or_default().split(';').next().unwrap_or_default();
    let is_stream = media_type.trim().eq_ignore_ascii_case("text/event-stream");
    is_stream && !headers.contains_key(CONTENT_ENCODING)
}

fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in [CONNECTION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE] {
        headers.remove(name);
    }
    remove_where(headers, |name| name == "keep-alive" || name.starts_with("proxy-"));
}

fn remove_where(headers: &mut HeaderMap, unwanted: impl Fn(&str) -> bool) {
    let names: Vec<HeaderName> =
        headers.keys().filter(|name| unwanted(name.as_str())).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(rows: &[(&'static str, &'static str)]) -> HeaderMap {
        rows.iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    #[test]
    fn only_what_concerns_the_upstream_goes_out() {
        let callers = headers(&[
            ("authorization", "Bearer k"),
            ("connection", "close, x-private"),
            ("connection", "x-other"),
            ("x-private", "1"),
            ("x-other", "1"),
            ("keep-alive", "timeout=5"),
            ("proxy-authorization", "Basic x"),
            ("proxy-connection", "keep-alive"),
            ("te", "trailers"),
            ("trailer", "x-sum"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("host", "127.0.0.1:8400"),
            ("content-length", "3"),
            ("expect", "100-continue"),
            ("x-weir-bypass", "1"),
            ("x-weir-unheard-of", "1"),
            ("accept-encoding", "gzip"),
            ("x-kept", "1"),
            ("x-kept", "2"),
            ("via", "1.1 other"),
        ]);
        let via = Via::random();
        let sent = outbound(callers, &via);
        let mut expected = headers(&[
            ("authorization", "Bearer k"),
            ("accept-encoding", "gzip"),
            ("x-kept", "1"),
            ("x-kept", "2"),
            ("via", "1.1 other"),
        ]);
        expected.append(VIA, via.value.clone());
        assert_eq!(sent, expected);
        assert!(via.is_in(&sent));
        assert!(!Via::random().is_in(&sent), "another instance is no loop");
    }

    #[test]
    fn a_loop_is_seen_in_a_list_of_hops() {
        let via = Via::random();
        let mut headers = HeaderMap::new();
        let hops = format!("1.0 a, 1.1 {} (comment), 2 b", via.name);
        headers.insert(VIA, HeaderValue::try_from(hops).expect("plain text"));
        assert!(via.is_in(&headers));
    }
}
