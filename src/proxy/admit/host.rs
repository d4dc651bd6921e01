//! Checks of the web pages and host names through which a request may come. Pure. A browser lets
//! any page post to a loopback address, and a name that a page controls may point there: `Origin`
//! identifies the page, `Host` the name.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::header::{HOST, HeaderName, ORIGIN, TRANSFER_ENCODING};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Uri, Version};

use crate::proxy::error::{ErrorKind, ProxyError};

/// Relation of a page to the address that it asks, as the browser sees it (Fetch Metadata, W3C).
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Refuses a request whose headers servers read differently: more than one `Host`, or a
/// `Transfer-Encoding` other than a single `chunked`.
pub fn check_framing(headers: &HeaderMap) -> Result<(), ProxyError> {
    if headers.get_all(HOST).iter().nth(1).is_some() {
        return Err(invalid("The request has more than one Host header."));
    }
    let mut encodings = headers.get_all(TRANSFER_ENCODING).iter();
    match (encodings.next(), encodings.next()) {
        (None, _) => Ok(()),
        (Some(only), None) if only.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked") => {
            Ok(())
        }
        _ => Err(invalid("Transfer-Encoding must be chunked, once.")),
    }
}

/// Names through which weir may be reached.
#[derive(Debug, Clone)]
pub struct Hosts {
    allowed: Vec<String>,
}

impl Hosts {
    /// Creates the set of loopback names and `allowed` names (`server.allowed_hosts`), on any port.
    pub fn new(allowed: &[String]) -> Self {
        let bare = |name: &String| match name.parse::<Authority>() {
            Ok(authority) => normal(authority.host()),
            Err(_) => normal(name),
        };
        Self { allowed: allowed.iter().map(bare).collect() }
    }

    /// Refuses a request with an unknown host name, or without one if HTTP requires it.
    pub fn check(
        &self,
        version: Version,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<(), ProxyError> {
        let mut hosts = headers.get_all(HOST).iter();
        let header = hosts.next();
        if hosts.next().is_some() {
            return Err(invalid("The request has more than one Host header."));
        }
        match (header, uri.authority()) {
            (None, None) if version <= Version::HTTP_10 => return Ok(()),
            (None, None) => return Err(invalid("The request has no Host header.")),
            _ => {}
        }
        if let Some(value) = header {
            let named = value.to_str().ok().and_then(|text| text.parse().ok());
            self.check_name(&named.ok_or_else(|| invalid("The Host header is not valid."))?)?;
        }
        uri.authority().map_or(Ok(()), |name| self.check_name(name))
    }

    fn check_name(&self, name: &Authority) -> Result<(), ProxyError> {
        if name.as_str().contains('@') {
            return Err(invalid("The Host header must not carry a user name."));
        }
        let host = normal(name.host());
        if is_loopback(&host) || self.allowed.contains(&host) {
            return Ok(());
        }
        let message = format!(
            "weir does not answer to the host name '{host}'. If that name is meant to reach it, \
             add it to `server.allowed_hosts` in weir's configuration."
        );
        Err(ProxyError::new(ErrorKind::HostNotAllowed, message))
    }
}

/// Web pages that may use weir.
#[derive(Debug, Clone)]
pub struct Origins {
    allowed: Vec<String>,
}

impl Origins {
    /// Creates the set of `allowed` origins (`cors.allow_origins`).
    pub fn new(allowed: &[String]) -> Self {
        let bare = |origin: &String| origin.trim_end_matches('/').to_ascii_lowercase();
        Self { allowed: allowed.iter().map(bare).collect() }
    }

    /// Returns the page that a request comes from; `None` if it comes from no page.
    pub fn check(&self, headers: &HeaderMap) -> Result<Option<HeaderValue>, ProxyError> {
        let mut origins = headers.get_all(ORIGIN).iter();
        let Some(origin) = origins.next() else {
            // A browser names no origin of an image, a script or a link, but says where it comes from.
            let is_foreign = headers.get_all(FETCH_SITE).iter().any(|site| site == "cross-site");
            return if is_foreign { Err(foreign()) } else { Ok(None) };
        };
        let named = origin.to_str().unwrap_or("").to_ascii_lowercase();
        if origins.next().is_none() && self.allowed.contains(&named) {
            return Ok(Some(origin.clone()));
        }
        Err(foreign())
    }
}

/// Refuses a web page.
fn foreign() -> ProxyError {
    let message = "weir does not serve web pages of this origin. If this page is meant to use it, add \
                   its origin to `cors.allow_origins` in weir's configuration.";
    ProxyError::new(ErrorKind::OriginNotAllowed, message)
}

fn invalid(message: &str) -> ProxyError {
    ProxyError::new(ErrorKind::InvalidRequest, message)
}

/// Normalises a name for comparison: lower case, no brackets, no trailing dot.
fn normal(host: &str) -> String {
    let bare = host.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')).unwrap_or(host);
    bare.strip_suffix('.').unwrap_or(bare).to_ascii_lowercase()
}

fn is_loopback(host: &str) -> bool {
    if let Ok(address) = host.parse::<Ipv4Addr>() {
        return address.is_loopback();
    }
    if let Ok(address) = host.parse::<Ipv6Addr>() {
        return IpAddr::V6(address).to_canonical().is_loopback();
    }
    host == "localhost" || host.ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_and_configured_names_are_answered_to() {
        let hosts = Hosts::new(&["Weir.Example.:8400".into(), "10.1.2.3".into(), "::5".into()]);
        let rows = [
            ("localhost", true),
            ("LocalHost:8400", true),
            ("localhost.", true),
            ("app.localhost:1", true),
            ("127.0.0.1", true),
            ("127.9.8.7:80", true),
            ("[::1]", true),
            ("[::1]:8400", true),
            ("[0:0:0:0:0:0:0:1]", true),
            ("[::ffff:127.0.0.1]", true),
            ("weir.example", true),
            ("WEIR.example.:9", true),
            ("10.1.2.3:8400", true),
            ("[::5]:1", true),
            ("evil.example", false),
            ("localhost.evil.example", false),
            ("notlocalhost", false),
            ("127.0.0.1.evil.example", false),
            ("127.1", false),
            ("0.0.0.0", false),
            ("[::]", false),
            ("128.0.0.1", false),
            ("sub.weir.example", false),
        ];
        for (name, expected) in rows {
            let authority = name.parse().expect(name);
            assert_eq!(hosts.check_name(&authority).is_ok(), expected, "{name}");
        }
    }

    #[test]
    fn only_configured_origins_are_served() {
        let origins = Origins::new(&["https://App.example/".into()]);
        let check = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(ORIGIN, HeaderValue::from_static(value));
            }
            origins.check(&headers).map(|found| found.is_some())
        };
        assert!(matches!(check(&[]), Ok(false)));
        assert!(matches!(check(&["https://app.example"]), Ok(true)));
        for refused in ["null", "", "http://app.example", "https://app.example:8443"] {
            assert!(check(&[refused]).is_err(), "{refused}");
        }
        assert!(check(&["https://app.example", "https://app.example"]).is_err());
        for (site, is_served) in
            [("cross-site", false), ("same-site", true), ("same-origin", true), ("none", true)]
        {
            let mut headers = HeaderMap::new();
            headers.insert(FETCH_SITE, HeaderValue::from_static(site));
            assert_eq!(origins.check(&headers).is_ok(), is_served, "{site}");
            headers.insert(ORIGIN, HeaderValue::from_static("https://app.example"));
            assert!(origins.check(&headers).is_ok(), "{site} from an allowed page");
        }
    }
}
