//! Detection of the path of an upstream's API through its list of models, which is free to request.
//! Sends no caller's request and no caller's credential.

use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use tokio::time::timeout;

use super::{Base, Client, Outbound, OutboundBody, SendError, Target};
use weir_engine::wire::models;

/// Maximum size of an answer that is read.
const MAX_ANSWER_BYTES: usize = 2 << 20;
/// Deadline for all paths together.
const DEADLINE: Duration = Duration::from_secs(10);
/// Common paths of OpenAI-compatible APIs, the most common first.
const API_PATHS: [&str; 5] = ["/v1", "/openai/v1", "/api/v1", "/v1beta/openai", ""];

/// Answer to `GET /models`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelsAnswer {
    /// Names of the models.
    List(Vec<String>),
    /// 401 or 403: the path exists and requires a credential, or another one.
    Denied { status: StatusCode, body: Vec<u8> },
    /// Any other answer.
    Other { status: StatusCode, body: Vec<u8> },
}

/// Requests the list of models under `base`, with these headers.
pub async fn ask_models(
    client: &Client,
    base: &Base,
    headers: &HeaderMap,
) -> Result<ModelsAnswer, SendError> {
    // Azure lists models next to deployments, not under them.
    let path = if base.names_deployment() { "/openai/models" } else { "/v1/models" };
    let target =
        Target::map(base, path).map_err(|error| SendError::Protocol { source: Arc::new(error) })?;
    let mut headers = headers.clone();
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    let outbound = Outbound { method: Method::GET, target, headers, body: OutboundBody::Empty };
    let mut inbound = client.send(outbound).await?;
    let is_plain = !inbound.headers.contains_key(CONTENT_ENCODING);
    let seen = inbound.body.peek(MAX_ANSWER_BYTES).await;
    let body = seen[..seen.len().min(MAX_ANSWER_BYTES)].to_vec();
    let status = inbound.status;
    if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
        return Ok(ModelsAnswer::Denied { status, body });
    }
    let list = (status.is_success() && is_plain).then(|| models::read(&body)).flatten();
    Ok(match list {
        Some(list) => {
            ModelsAnswer::List(list.entries.into_iter().map(|entry| entry.id.into()).collect())
        }
        None => ModelsAnswer::Other { status, body },
    })
}

/// Returns the base URL of the upstream's API if it differs from that of `client`. `None` if
/// nothing is found, or if the upstream fails for another reason than an unknown path.
pub async fn find_api(client: &Client, headers: &HeaderMap) -> Option<String> {
    let looking = async {
        let base = client.base();
        match ask_models(client, base, headers).await.ok()? {
            ModelsAnswer::Other { status, .. } if !status.is_server_error() => {}
            _ => return None,
        }
        for path in API_PATHS {
            let Some(other) = base.with_api_path(path).filter(|other| other.url() != base.url())
            else {
                continue;
            };
            let answer = ask_models(client, &other, headers).await.ok()?;
            if !matches!(answer, ModelsAnswer::Other { .. }) {
                return Some(other.url());
            }
        }
        None
    };
    timeout(DEADLINE, looking).await.ok().flatten()
}
