//! Files of the dashboard, compiled into the binary. They hold no data, so they need no login;
//! everything that they show comes from the admin API.

use std::sync::LazyLock;

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderName, HeaderValue,
    IF_NONE_MATCH, REFERRER_POLICY,
};
use http::{HeaderMap, Response, StatusCode};
use http_body_util::Full;

/// Only files of this listener run, and nothing of the page goes elsewhere.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";
const IMAGE: &str = "image/svg+xml";
const JSON: &str = "application/json";

/// Paths with their content types and bytes.
const ASSETS: &[(&str, &str, &[u8])] = &[
    ("/", HTML, include_bytes!("web/index.html")),
    ("/style.css", STYLE, include_bytes!("web/style.css")),
    ("/icon.svg", IMAGE, include_bytes!("web/icon.svg")),
    ("/theme.js", SCRIPT, include_bytes!("web/theme.js")),
    ("/app.js", SCRIPT, include_bytes!("web/app.js")),
    ("/api.js", SCRIPT, include_bytes!("web/api.js")),
    ("/dom.js", SCRIPT, include_bytes!("web/dom.js")),
    ("/format.js", SCRIPT, include_bytes!("web/format.js")),
    ("/chart.js", SCRIPT, include_bytes!("web/chart.js")),
    ("/range.js", SCRIPT, include_bytes!("web/range.js")),
    ("/pages/login.js", SCRIPT, include_bytes!("web/pages/login.js")),
    ("/pages/overview.js", SCRIPT, include_bytes!("web/pages/overview.js")),
    ("/inspector/inspector.css", STYLE, include_bytes!("web/inspector/inspector.css")),
    ("/inspector/detail.js", SCRIPT, include_bytes!("web/inspector/detail.js")),
    ("/inspector/fates.js", SCRIPT, include_bytes!("web/inspector/fates.js")),
    ("/inspector/highlight.js", SCRIPT, include_bytes!("web/inspector/highlight.js")),
    ("/inspector/inspector.js", SCRIPT, include_bytes!("web/inspector/inspector.js")),
    ("/inspector/items.js", SCRIPT, include_bytes!("web/inspector/items.js")),
    ("/inspector/list.js", SCRIPT, include_bytes!("web/inspector/list.js")),
    ("/inspector/picture.js", SCRIPT, include_bytes!("web/inspector/picture.js")),
    ("/inspector/source.js", SCRIPT, include_bytes!("web/inspector/source.js")),
    ("/inspector/summary.js", SCRIPT, include_bytes!("web/inspector/summary.js")),
    ("/inspector/timeline.js", SCRIPT, include_bytes!("web/inspector/timeline.js")),
    ("/inspector/sample.json", JSON, include_bytes!("web/inspector/sample.json")),
    ("/pages/usage.js", SCRIPT, include_bytes!("web/pages/usage.js")),
    ("/pages/budgets.js", SCRIPT, include_bytes!("web/pages/budgets.js")),
    ("/pages/keys.js", SCRIPT, include_bytes!("web/pages/keys.js")),
    ("/pages/upstreams.js", SCRIPT, include_bytes!("web/pages/upstreams.js")),
    ("/pages/live.js", SCRIPT, include_bytes!("web/pages/live.js")),
    ("/pages/configuration.js", SCRIPT, include_bytes!("web/pages/configuration.js")),
    ("/vendor/uplot.js", SCRIPT, include_bytes!("web/vendor/uplot-1.6.32.min.js")),
    ("/vendor/uplot-LICENSE.txt", TEXT, include_bytes!("web/vendor/uplot-LICENSE.txt")),
];

/// Entity tags of [`ASSETS`], in their order.
static TAGS: LazyLock<Vec<HeaderValue>> = LazyLock::new(|| {
    let tag = |bytes: &[u8]| format!("\"{}\"", &blake3::hash(bytes).to_hex()[..32]);
    let tags = ASSETS.iter().map(|(_, _, bytes)| HeaderValue::try_from(tag(bytes)));
    tags.map(|tag| tag.expect("quotes and hexadecimal digits are a header value")).collect()
});

/// Returns the file at `path`, or only its head if the client has it already; `None` if there is no
/// such file.
pub(super) fn asset(path: &str, headers: &HeaderMap) -> Option<Response<Full<Bytes>>> {
    let index = ASSETS.iter().position(|(own, _, _)| *own == path)?;
    let ((_, kind, bytes), tag) = (ASSETS[index], &TAGS[index]);
    let is_known = headers.get(IF_NONE_MATCH).is_some_and(|known| known == tag);
    let (status, body) = match is_known {
        true => (StatusCode::NOT_MODIFIED, Bytes::new()),
        false => (StatusCode::OK, Bytes::from_static(bytes)),
    };
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(ETAG, tag.clone());
    // Checked on each load, so that a page never mixes files of two versions.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    let opener = HeaderName::from_static("cross-origin-opener-policy");
    headers.insert(opener, HeaderValue::from_static("same-origin"));
    Some(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_file_is_not_sent_again() {
        for (path, _, _) in ASSETS {
            let first = asset(path, &HeaderMap::new()).expect("it exists");
            assert_eq!(first.status(), StatusCode::OK);
            let mut headers = HeaderMap::new();
            headers.insert(IF_NONE_MATCH, first.headers()[ETAG].clone());
            let second = asset(path, &headers).expect("it exists");
            assert_eq!(second.status(), StatusCode::NOT_MODIFIED, "{path}");
        }
        assert!(asset("/web/index.html", &HeaderMap::new()).is_none());
    }

    /// The policy forbids them, so they would have no effect.
    #[test]
    fn pages_have_no_inline_scripts_or_styles() {
        for (path, kind, bytes) in ASSETS {
            let text = std::str::from_utf8(bytes).expect("UTF-8");
            if *kind == HTML {
                assert!(!text.contains("<style") && !text.contains(" style="), "{path}");
                assert!(!text.contains("<script>") && !text.contains(" onclick="), "{path}");
            }
            if *kind == SCRIPT && !path.starts_with("/vendor/") {
                for forbidden in ["innerHTML", "outerHTML", "insertAdjacentHTML", "eval("] {
                    assert!(!text.contains(forbidden), "{path}: {forbidden}");
                }
            }
        }
    }
}
