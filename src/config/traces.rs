//! `[traces]`: traces of requests for a collector. Sends nothing.

use super::events::web_url;
use super::names::is_local_host;
use super::reader::settings;
use super::{Config, Secret};

/// Path of traces after a collector's base URL.
const PATH: &str = "/v1/traces";
/// Usual port of collectors for OTLP over gRPC.
const GRPC_PORT: u16 = 4317;

settings! {
    /// `[traces]`: traces of requests.
    #[derive(Debug, Clone, Default)]
    Traces from keys {
        /// URL of the collector, with the path of traces; empty for none.
        endpoint: String = keys.text("endpoint", endpoint),
        /// Headers for the collector, filled in at start.
        headers: Vec<(String, Secret)> = Vec::new(),
        /// Name of this service, filled in at start.
        service_name: String = "weir".to_owned(),
        /// Share of requests with a trace, in thousandths.
        sample_permille: u32 = keys.get("sample_ratio"),
    }
}

fn endpoint(text: &str) -> Result<String, String> {
    match text.trim() {
        text if text.contains('?') => {
            Err("has a query; put keys into `OTEL_EXPORTER_OTLP_HEADERS`".to_owned())
        }
        text => web_url(text).map(|url| with_path(&url)),
    }
}

/// Adds the path of traces to a collector's base URL.
fn with_path(url: &str) -> String {
    let url = url.trim_end_matches('/');
    if url.is_empty() || url.ends_with(PATH) { url.to_owned() } else { format!("{url}{PATH}") }
}

/// Parses headers in the form `name=value,name=value`, whose values are percent-encoded. `None` if
/// one is not a header.
pub fn headers(text: &str) -> Option<Vec<(String, Secret)>> {
    let pairs = text.split(',').map(str::trim).filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| {
        let (name, value) = pair.split_once('=')?;
        let (name, value) = (name.trim().to_ascii_lowercase(), decoded(value.trim())?);
        let is_header = http::HeaderName::try_from(name.as_str()).is_ok()
            && http::HeaderValue::from_str(&value).is_ok();
        is_header.then(|| (name, Secret::new(value)))
    });
    pairs.collect()
}

/// Decodes `%41` and the like.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).ok()
}

/// Returns settings that are probably not meant, by their keys.
pub(super) fn warnings(config: &Config) -> Vec<(&'static str, String)> {
    let (traces, mut found) = (&config.traces, Vec::new());
    if traces.endpoint.is_empty() {
        return found;
    }
    let uri = traces.endpoint.parse::<http::Uri>().ok();
    let host = uri.as_ref().and_then(http::Uri::host).unwrap_or_default();
    if uri.as_ref().and_then(http::Uri::port_u16) == Some(GRPC_PORT) {
        let message = "4317 is usually the port of OTLP over gRPC; weir sends OTLP over HTTP, usually \
                       to 4318";
        found.push(("traces.endpoint", message.to_owned()));
    }
    let is_plain = traces.endpoint.to_ascii_lowercase().starts_with("http://");
    if is_plain && !is_local_host(host) {
        let message =
            format!("traces and their headers go to {host} unencrypted; use https:// if it can");
        found.push(("traces.endpoint", message));
    }
    if traces.sample_permille == 0 {
        let message = "is 0: only requests that bring a sampled trace context have a trace";
        found.push(("traces.sample_ratio", message.to_owned()));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_as_the_variable_of_opentelemetry_has_them() {
        let read = |text: &str| {
            let pairs = headers(text)?.into_iter();
            let pairs = pairs.map(|(name, value)| (name, value.expose().to_owned()));
            Some(pairs.collect::<Vec<_>>())
        };
        let expected = [("x-key", "a=b"), ("authorization", "Basic YQ==")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let text = "X-Key=a=b, authorization=Basic%20YQ==,";
        assert_eq!(read(text).as_deref(), Some(expected.as_slice()));
        assert_eq!(read("").as_deref(), Some([].as_slice()));
        for wrong in ["key", "a b=c", "a=%0a", "a=%4", "a=%ff"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_path_of_traces_is_added_once() {
        for base in ["http://c:4318", "http://c:4318/", "http://c:4318/v1/traces"] {
            assert_eq!(with_path(base), "http://c:4318/v1/traces");
        }
        assert_eq!(with_path("https://c/otlp"), "https://c/otlp/v1/traces");
    }
}
