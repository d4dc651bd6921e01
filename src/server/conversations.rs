//! Pages of kept conversations: reads requests and renders results. The proxy does the work.

use http::Response;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::request::Parts;

use super::accept::Acceptor;
use super::reply::{self, Shape};
use super::routes::{ServedRoutes, allows};
use crate::proxy::{Body, Caller, ErrorKind, ProxyError};
use crate::upstream::query;

impl ServedRoutes {
    /// Carries out a request on `caller`'s conversations; `below` is the path after theirs.
    pub(super) async fn conversations(
        &self,
        parts: Parts,
        body: Body,
        below: &str,
        caller: &Caller,
    ) -> Response<Body> {
        let names: Vec<&str> = below.split('/').skip(1).collect();
        let allowed = match names[..] {
            [] | [_, "export"] => Some("GET, HEAD"),
            [_] => Some("GET, HEAD, PUT, DELETE"),
            [_, "clear"] => Some("POST"),
            _ => None,
        };
        if let Some(allowed) = allowed.filter(|allowed| !allows(allowed, &parts.method)) {
            return self.refuse_method(&parts, body, allowed);
        }
        match self.acted(&parts, body, &names, caller).await {
            Ok(text) => {
                let mut response = reply::private(text);
                if let [_, "export"] = names[..] {
                    let lines = HeaderValue::from_static("application/jsonl");
                    response.headers_mut().insert(CONTENT_TYPE, lines);
                }
                response
            }
            Err(problem) => {
                self.note_refusal(&parts.method, parts.uri.path(), caller.address, &problem);
                reply::error(&problem, Shape::OpenAi)
            }
        }
    }

    async fn acted(
        &self,
        parts: &Parts,
        body: Body,
        names: &[&str],
        caller: &Caller,
    ) -> Result<String, ProxyError> {
        let pages = match self.proxy.conversations(caller) {
            Ok(pages) => pages,
            Err(problem) => {
                Acceptor::refuse_body(&parts.headers, body);
                return Err(problem);
            }
        };
        // Each action counts towards the limits of the caller's key: all of them use the store.
        let (_admission, body) = self.admitted(parts, body, caller).await?;
        let method = parts.method.as_str();
        if let ("PUT", [name]) = (method, names) {
            let whole = self.acceptor.body(caller.tenant, &parts.headers, body).await?;
            return pages.replace(name, whole.readable()).await;
        }
        Acceptor::refuse_body(&parts.headers, body);
        match (method, names) {
            (_, []) => pages.list(&after(parts.uri.query().unwrap_or_default())?).await,
            ("DELETE", [name]) => pages.delete(name).await,
            (_, [name]) => pages.show(name).await,
            (_, [name, "export"]) => pages.export(name).await,
            (_, [name, "clear"]) => pages.clear(name).await,
            _ => {
                let message = "weir has /weir/v1/conversations and, below it, NAME, NAME/clear and \
                               NAME/export.";
                Err(ProxyError::new(ErrorKind::NotFound, message))
            }
        }
    }
}

/// Returns the name after which a list goes on.
fn after(query: &str) -> Result<String, ProxyError> {
    let mut after = String::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let Some(name) = pair.strip_prefix("after=") else {
            let message = "The list of conversations takes 'after' alone: the 'next' of a page.";
            return Err(ProxyError::new(ErrorKind::InvalidRequest, message));
        };
        after = String::from_utf8_lossy(&query::percent_decoded(name)).into_owned();
    }
    Ok(after)
}
