//! Pages of kept conversations: reads requests and renders results. The proxy does the work.

use http::Response;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::request::Parts;

use super::accept::{Acceptor, Received};
use super::reply::{self, Shape};
use super::routes::ServedRoutes;
use crate::proxy::{Body, Caller, ErrorKind, ProxyError};
use crate::upstream::query;

/// Action on a conversation.
enum Action<'a> {
    List,
    Show(&'a str),
    Replace(&'a str),
    Clear(&'a str),
    Delete(&'a str),
    Export(&'a str),
    /// The path allows only these methods.
    NotAllowed(&'static str),
    Unknown,
}

impl<'a> Action<'a> {
    /// Finds the action of a method on a path below that of all conversations.
    fn of(method: &str, below: &'a str) -> Self {
        let names: Vec<&str> = below.split('/').skip(1).collect();
        match (method, names.as_slice()) {
            ("GET" | "HEAD", []) => Self::List,
            ("GET" | "HEAD", [name]) => Self::Show(name),
            ("GET" | "HEAD", [name, "export"]) => Self::Export(name),
            ("PUT", [name]) => Self::Replace(name),
            ("POST", [name, "clear"]) => Self::Clear(name),
            ("DELETE", [name]) => Self::Delete(name),
            (_, [] | [_, "export"]) => Self::NotAllowed("GET, HEAD"),
            (_, [_]) => Self::NotAllowed("GET, HEAD, PUT, DELETE"),
            (_, [_, "clear"]) => Self::NotAllowed("POST"),
            _ => Self::Unknown,
        }
    }
}

impl ServedRoutes {
    /// Carries out a request on `caller`'s conversations; `below` is the path after theirs.
    pub(super) async fn conversations(
        &self,
        parts: Parts,
        body: Body,
        below: &str,
        caller: &Caller,
    ) -> Response<Body> {
        let action = Action::of(parts.method.as_str(), below);
        if let Action::NotAllowed(allowed) = action {
            return self.refuse_method(&parts, body, allowed);
        }
        let is_export = matches!(action, Action::Export(_));
        match self.acted(&parts, body, action, caller).await {
            Ok(text) => {
                let mut response = reply::private(text);
                if is_export {
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
        action: Action<'_>,
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
        if let Action::Replace(name) = action {
            let Received { received, decoded, permit } =
                self.acceptor.body(&parts.headers, body).await?;
            let _permit = permit;
            return pages.replace(name, decoded.as_ref().unwrap_or(&received)).await;
        }
        Acceptor::refuse_body(&parts.headers, body);
        match action {
            Action::List => pages.list(&after(parts.uri.query().unwrap_or_default())?).await,
            Action::Show(name) => pages.show(name).await,
            Action::Export(name) => pages.export(name).await,
            Action::Clear(name) => pages.clear(name).await,
            Action::Delete(name) => pages.delete(name).await,
            Action::Replace(_) | Action::NotAllowed(_) | Action::Unknown => {
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
