//! Paths mapped onto an upstream: none leaves the base's host and path, and none changes on the
//! way.
//!
//! An input is a base URL on a separate line, and a path with its query.

use reqwest::Url;
use weir::upstream::{Base, Target};

pub fn check(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Some((url, path)) = text.split_once('\n') else { return };
    let Ok(base) = Base::parse(url) else { return };
    let parsed = Url::parse(url.trim()).expect("it is the URL of a base");
    check_base(&base, &parsed);
    if let Ok(target) = Target::map(&base, path) {
        check_target(&base, &parsed, path, &target);
    }
}

fn check_base(base: &Base, parsed: &Url) {
    assert!(matches!(parsed.scheme(), "http" | "https"));
    assert_eq!(base.is_plain(), parsed.scheme() == "http");
    assert_eq!(Some(base.host()), parsed.host_str());
    assert_eq!(Some(base.port()), parsed.port_or_known_default());
    let _ = base.is_loopback();
}

fn check_target(base: &Base, parsed: &Url, path: &str, target: &Target) {
    let sent = &target.path_and_query;
    let whole = format!("{}{sent}", base.origin());
    let url = Url::parse(&whole).expect("the target is a URL");
    assert_eq!(url.as_str(), whole, "it is sent unchanged");
    assert_eq!(url.origin(), parsed.origin(), "it goes to the base's host");
    assert!(url.username().is_empty() && url.password().is_none());
    let uri: http::Uri = whole.parse().expect("the target is a URI for the HTTP library");
    assert_eq!(uri.path_and_query().map(|both| both.as_str()), Some(sent.as_str()));

    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let (sent_path, sent_query) = sent.split_once('?').unwrap_or((sent, ""));
    assert_eq!(target.path(), sent_path);
    // An upstream that is not Azure's gets no version of Azure's paths.
    let kept: Vec<&str> = query.split('&').filter(|pair| !is_version(pair)).collect();
    let is_kept = sent_query.starts_with(query)
        || (path.starts_with("/openai/") && sent_query.starts_with(&kept.join("&")));
    assert!(is_kept, "the caller's query keeps its bytes");
    assert!(!has_dot_segment(sent_path), "{sent_path} has a dot segment");

    let base_path = parsed.path().trim_end_matches('/');
    let is_under_base = sent_path.strip_prefix(base_path).is_some_and(|rest| {
        // Without a base path, an empty path stands for the root.
        path.ends_with(rest) || (rest == "/" && base_path.is_empty())
    });
    // Azure's paths are appended next to the part of the base that leads to OpenAI's endpoints.
    let is_under_root = path.starts_with("/openai/")
        && sent_path.strip_suffix(path).is_some_and(|root| base_path.starts_with(root));
    assert!(is_under_base || is_under_root, "{path} became {sent_path} on {base_path}");
    let _ = target.protocol();
}

/// Returns whether a parameter is the version of Azure's paths, plain or encoded.
fn is_version(pair: &str) -> bool {
    let url = Url::parse(&format!("http://localhost/?{pair}"));
    url.is_ok_and(|url| url.query_pairs().any(|(name, _)| name == "api-version"))
}

/// Returns whether a segment between slashes or backslashes, plain or encoded, is one or two dots,
/// plain or encoded.
fn has_dot_segment(path: &str) -> bool {
    let mut plain = path.to_ascii_lowercase();
    for (encoded, character) in [("%2e", "."), ("%2f", "/"), ("%5c", "/"), ("\\", "/")] {
        plain = plain.replace(encoded, character);
    }
    plain.split('/').any(|segment| matches!(segment, "." | ".."))
}
