//! Target of a request: the caller's path joined to the base, byte for byte. Pure. Never normalises
//! a path; refuses one that would not arrive unchanged.

use std::ops::Deref;
use std::sync::Arc;

use reqwest::Url;

use super::endpoint::{Endpoint, Naming};
use super::query::{self, decoded_text, percent_decoded, percent_encoded};
use weir_engine::wire::Protocol;

/// Path prefixes that callers may use; all stand for the base's own path. A longer one precedes the
/// one that it contains.
const PREFIXES: [&str; 4] = ["/v1beta/openai", "/openai/v1", "/api/v1", "/v1"];

/// First segments of OpenAI's endpoints and of Anthropic's, recognised without `/v1` before them: the AI
/// SDK's Anthropic provider appends `/messages` to a base as it is.
const ENDPOINTS: [&str; 21] = [
    "assistants",
    "audio",
    "batches",
    "chat",
    "completions",
    "containers",
    "conversations",
    "embeddings",
    "evals",
    "files",
    "fine_tuning",
    "images",
    "messages",
    "models",
    "moderations",
    "realtime",
    "responses",
    "threads",
    "uploads",
    "vector_stores",
    "videos",
];

/// Domains under which Azure serves models and its gateways run.
const AZURE_DOMAINS: [&str; 4] = ["azure.com", "azure.us", "azure.cn", "azure-api.net"];

/// Start of Azure's paths that name a deployment.
const DEPLOYMENTS: &str = "/openai/deployments/";

/// Parsed base URL of the upstream.
#[derive(Debug, Clone)]
pub struct Base {
    /// Scheme, host and port, with an empty path.
    at_origin: Url,
    host: String,
    port: u16,
    /// The base's path without a trailing slash; endpoints are appended to it.
    path: String,
    /// Length of the part of `path` to which Azure's paths are appended.
    root_bytes: usize,
    /// Parameters sent with every request, such as Azure's `api-version`.
    query: Option<String>,
    /// Deployment that the base names.
    model: Option<String>,
    /// Whether Azure's paths are valid here: not if the base is an API that reads the model from
    /// the body.
    takes_deployments: bool,
}

/// Reason why a base URL cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BaseError {
    #[error("not a URL: {cause}")]
    NotAUrl { cause: String },
    #[error("the scheme must be http or https, not {scheme}")]
    Scheme { scheme: String },
    #[error("a URL with a user or password is refused: callers send their own credential")]
    Credentials,
    #[error("a URL with a fragment (#…) is refused")]
    Fragment,
    #[error("the deployment's name is not UTF-8")]
    Deployment,
}

impl Base {
    /// Parses a base URL in the form that SDKs take.
    pub fn parse(url: &str) -> Result<Self, BaseError> {
        let url = Url::parse(url.trim())
            .map_err(|error| BaseError::NotAUrl { cause: error.to_string() })?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(BaseError::Scheme { scheme: url.scheme().to_owned() });
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(BaseError::Credentials);
        }
        if url.fragment().is_some() {
            return Err(BaseError::Fragment);
        }
        if url.as_str().parse::<http::Uri>().is_err() {
            // Some URLs have hosts that the HTTP library refuses: better to find out here than at
            // each request.
            let cause = "its host cannot be used in a request".to_owned();
            return Err(BaseError::NotAUrl { cause });
        }
        let path = url.path().trim_end_matches('/');
        if refuse_dot_segments(path).is_err() {
            let cause = "its path holds encoded . or .. segments".to_owned();
            return Err(BaseError::NotAUrl { cause });
        }
        let model = match deployment(path) {
            Some(name) => Some(decoded_text(name).ok_or(BaseError::Deployment)?),
            None => None,
        };
        let mut at_origin = url.clone();
        at_origin.set_path("");
        at_origin.set_query(None);
        Ok(Self {
            at_origin,
            host: url.host_str().unwrap_or_default().to_owned(),
            port: url.port_or_known_default().unwrap_or_default(),
            root_bytes: root(path).len(),
            path: path.to_owned(),
            takes_deployments: takes_deployments(url.host_str().unwrap_or_default(), path),
            query: url.query().filter(|query| !query.is_empty()).map(str::to_owned),
            model,
        })
    }

    /// Scheme, host and port, without a trailing slash.
    pub fn origin(&self) -> &str {
        self.at_origin.as_str().trim_end_matches('/')
    }

    /// The host; IPv6 addresses in brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether the upstream is reached without TLS.
    pub fn is_plain(&self) -> bool {
        self.origin().starts_with("http://")
    }

    /// Whether the upstream's host names this machine.
    pub fn is_loopback(&self) -> bool {
        let name = self.host.trim_end_matches('.');
        let address = name.trim_start_matches('[').trim_end_matches(']');
        name == "localhost"
            || name.ends_with(".localhost")
            || address
                .parse::<std::net::IpAddr>()
                .is_ok_and(|address| address.to_canonical().is_loopback())
    }

    /// The URL without its query, which may hold a credential.
    pub fn url(&self) -> String {
        format!("{}{}", self.origin(), self.path)
    }

    /// Whether the path is a common API path or that of a deployment.
    pub fn has_api_path(&self) -> bool {
        self.root_bytes < self.path.len()
    }

    /// Whether the path names an Azure deployment.
    pub fn names_deployment(&self) -> bool {
        self.model.is_some()
    }

    /// Replaces the base's API path, or appends one if there is none.
    pub fn with_api_path(&self, path: &str) -> Option<Self> {
        let root = &self.path[..self.root_bytes];
        let query = self.query.as_deref().map(|query| format!("?{query}")).unwrap_or_default();
        Self::parse(&format!("{}{root}{path}{query}", self.origin())).ok()
    }

    /// Whether a request to `target` goes to a path under this base, rather than to one of Azure's.
    pub fn holds(&self, target: &Target) -> bool {
        let path = target.path().strip_prefix(&self.path);
        path.is_some_and(|path| !path.starts_with("/openai/"))
    }

    /// Builds the URL of a path and query under this base's origin, if they remain unchanged in it.
    fn joined(&self, path_and_query: &str) -> Result<Url, TargetError> {
        // The host is not parsed again for each request.
        let mut url = self.at_origin.clone();
        let (path, query) = match path_and_query.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (path_and_query, None),
        };
        url.set_path(path);
        url.set_query(query);
        let kept = url.as_str().strip_prefix(self.origin());
        if kept == Some(path_and_query) { Ok(url) } else { Err(TargetError::Altered) }
    }
}

/// Address of a request on the upstream: the base's path joined with the caller's, bytes kept.
#[derive(Debug, Clone)]
pub struct Target(Arc<Mapped>);

/// Contents of a [`Target`], shared by its copies.
#[derive(Debug)]
pub struct Mapped {
    /// Path and query, ready to send.
    pub path_and_query: String,
    /// Model that the path names (Azure's deployments), percent-decoded.
    pub path_model: Option<String>,
    /// Whether the upstream reads that model from the body: only the caller's path names it.
    pub is_model_in_body: bool,
    protocol: Option<Protocol>,
    endpoint: Endpoint,
    /// Path and query as the caller wrote them.
    asked: Arc<str>,
    pub(super) url: Url,
}

/// Reason why a path has no target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// No endpoint begins with these segments.
    #[error(
        "no such path here: weir forwards /v1/… (as well as /openai/v1/…, /api/v1/…, \
         /v1beta/openai/…), OpenAI's endpoints without /v1 such as /chat/completions or \
         /models, and Azure's /openai/deployments/NAME/…"
    )]
    Unknown,
    /// The path contains `.` or `..` segments, plain or encoded.
    #[error("the path holds . or .. segments: send it without them")]
    DotSegment,
    /// Some character would not be sent unchanged.
    #[error("the path or query holds characters that must be percent-encoded in a URL")]
    Altered,
    /// The deployment's name is not UTF-8.
    #[error("the deployment's name in the path is not UTF-8")]
    Deployment,
    /// The path has the form of a deployment's, without its name.
    #[error("the path names no deployment: send /openai/deployments/NAME/…")]
    NoDeployment,
}

impl Deref for Target {
    type Target = Mapped;

    fn deref(&self) -> &Mapped {
        &self.0
    }
}

impl Target {
    /// Maps a caller's path and query onto `base`.
    pub fn map(base: &Base, path_and_query: &str) -> Result<Self, TargetError> {
        let (path, query) = match path_and_query.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (path_and_query, None),
        };
        let mut place = Place::of(path).ok_or(TargetError::Unknown)?;
        refuse_dot_segments(path)?;
        if path.strip_prefix(DEPLOYMENTS).is_some_and(|rest| rest.starts_with('/')) {
            return Err(TargetError::NoDeployment);
        }
        let own_query = query.map(query::without_version);
        let (mut query, mut is_model_in_body) = (query, false);
        let named = deployment(path).filter(|_| matches!(place, Place::UnderRoot));
        if let Place::UnderRoot = place
            && !base.takes_deployments
            && let Some(rest) = behind_azure(path)
        {
            (place, is_model_in_body) = (Place::UnderBase(rest), named.is_some());
            query = own_query.as_deref().filter(|query| !query.is_empty());
        }
        let (before, after) = match place {
            Place::UnderBase(rest) => (base.path.as_str(), rest),
            Place::UnderRoot => (&base.path[..base.root_bytes], path),
        };
        let path_model = match (named, place) {
            (Some(name), _) => Some(decoded_text(name).ok_or(TargetError::Deployment)?),
            (None, Place::UnderBase(_)) => base.model.clone(),
            (None, Place::UnderRoot) => None,
        };
        let mut joined = format!("{before}{after}");
        if joined.is_empty() {
            joined.push('/');
        }
        query::append(&mut joined, query, base.query.as_deref());
        let url = base.joined(&joined)?;
        let protocol = protocol(path_alone(&joined));
        let endpoint = endpoint(after, matches!(place, Place::UnderRoot));
        let asked = path_and_query.into();
        let path_and_query = joined;
        let mapped =
            Mapped { path_and_query, path_model, is_model_in_body, protocol, endpoint, asked, url };
        Ok(Self(Arc::new(mapped)))
    }

    /// Maps the same request onto another base, with `model` if the caller's path names one. Query
    /// parameters that may hold a credential are removed unless the upstream `gets_callers_key`.
    pub fn onto(
        &self,
        base: &Base,
        model: &str,
        gets_callers_key: bool,
    ) -> Result<Self, TargetError> {
        let (path, query) = match self.asked.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (&*self.asked, None),
        };
        let named = match &self.endpoint {
            Endpoint::Model(own) if own != model => path
                .rsplit_once("/models/")
                .map(|(before, _)| format!("{before}/models/{}", percent_encoded(model, b"/"))),
            _ => path.strip_prefix(DEPLOYMENTS).and_then(|rest| {
                let own = first_segment(rest);
                let is_same = decoded_text(own).is_some_and(|own| own == model);
                let rest = &rest[own.len()..];
                let named = || format!("{DEPLOYMENTS}{}{rest}", percent_encoded(model, b""));
                (!is_same).then(named)
            }),
        };
        let mut asked = named.unwrap_or_else(|| path.to_owned());
        let query = query.map(|query| match gets_callers_key {
            true => query.to_owned(),
            false => query::without_credentials(query),
        });
        if let Some(query) = query.filter(|query| gets_callers_key || !query.is_empty()) {
            asked = asked + "?" + &query;
        }
        Self::map(base, &asked)
    }

    /// Whether the caller's query may hold a credential.
    pub fn has_credentials(&self) -> bool {
        let query = self.asked.split_once('?').map(|(_, query)| query);
        query.is_some_and(|query| query.split('&').any(query::is_credential))
    }

    /// The model that the caller's own path names, independent of the base.
    pub fn asked_model(&self) -> Option<String> {
        match &self.endpoint {
            Endpoint::Model(model) => Some(model.clone()),
            _ => deployment(self.asked.strip_prefix(DEPLOYMENTS).map(|_| &*self.asked)?)
                .and_then(decoded_text),
        }
    }

    /// The models that the caller's query names; empty for a name that is not UTF-8.
    pub fn query_models(&self) -> impl Iterator<Item = String> {
        let query = self.asked.split_once('?').map_or("", |(_, query)| query);
        query.split('&').filter_map(query::model)
    }

    /// The path without its query.
    pub fn path(&self) -> &str {
        path_alone(&self.path_and_query)
    }

    /// The resource that the path addresses, independent of the method.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The protocol of bodies posted to this path, if weir reads it.
    pub fn protocol(&self) -> Option<Protocol> {
        self.protocol
    }
}

fn path_alone(path_and_query: &str) -> &str {
    path_and_query.split_once('?').map_or(path_and_query, |(path, _)| path)
}

/// Determines the protocol of a path. Spellings that a lenient upstream would accept for the same
/// path count as that path, so no spelling leads a conversation past its limit.
fn protocol(path: &str) -> Option<Protocol> {
    let path = percent_decoded(path).to_ascii_lowercase();
    // A router may match up to a line's end, or trim; so only visible characters count.
    let mut names = segment_names(&path).map(visible).filter(|name| !name.is_empty()).rev();
    // Azure's legacy completions of a deployment called "chat" match, too: they have no messages,
    // so they are forwarded unchanged.
    match (names.next()?, names.next(), names.next()) {
        // Perplexity's jobs hold the conversation in another object.
        (b"completions", Some(b"chat"), before) => {
            let is_job = before.into_iter().chain(names).any(|name| name == b"async");
            (!is_job).then_some(Protocol::Chat)
        }
        (b"responses", ..) => Some(Protocol::Responses),
        // Messages of the provider's own threads are another resource.
        (b"messages", _, Some(b"threads")) => None,
        (b"messages", ..) => Some(Protocol::Messages),
        _ => None,
    }
}

/// Classifies a path after the base, as leniently as [`protocol`]. A deployment may precede it only
/// if `is_azures`: otherwise nothing would name the model.
fn endpoint(path: &str, is_azures: bool) -> Endpoint {
    let behind_deployment = path.strip_prefix(DEPLOYMENTS).and_then(|rest| rest.split_once('/'));
    let own = behind_deployment.map(|(_, rest)| rest).or(path.strip_prefix("/openai/"));
    let decoded = percent_decoded(own.filter(|_| is_azures).unwrap_or(path));
    let names = segment_names(&decoded).map(visible).filter(|name| !name.is_empty());
    let names: Option<Vec<&str>> = names.map(|name| std::str::from_utf8(name).ok()).collect();
    names.map_or(Endpoint::Other(Naming::Unseen), |names| Endpoint::of(&names))
}

/// Trims everything before and after a name's visible characters.
fn visible(name: &[u8]) -> &[u8] {
    let is_visible = |byte: &u8| byte.is_ascii_graphic() || !byte.is_ascii();
    let start = name.iter().position(is_visible).unwrap_or(name.len());
    let end = name.iter().rposition(is_visible).map_or(start, |last| last + 1);
    &name[start..end]
}

/// Part of the base to which a caller's path is appended.
#[derive(Clone, Copy)]
enum Place<'a> {
    /// The rest is appended to the base's path.
    UnderBase(&'a str),
    /// The whole path is appended to the base's root.
    UnderRoot,
}

impl<'a> Place<'a> {
    fn of(path: &'a str) -> Option<Self> {
        for prefix in PREFIXES {
            if let Some(rest) = path.strip_prefix(prefix)
                && (rest.is_empty() || rest.starts_with('/'))
            {
                return Some(Self::UnderBase(rest));
            }
        }
        if let Some(rest) = path.strip_prefix("/openai/") {
            let first = first_segment(rest);
            return (first == "deployments" || ENDPOINTS.contains(&first))
                .then_some(Self::UnderRoot);
        }
        let first = first_segment(path.strip_prefix('/')?);
        ENDPOINTS.contains(&first).then_some(Self::UnderBase(path))
    }
}

fn first_segment(path: &str) -> &str {
    path.split('/').next().unwrap_or_default()
}

/// Returns the deployment named by `path`, still encoded.
fn deployment(path: &str) -> Option<&str> {
    let (_, rest) = path.split_once(DEPLOYMENTS)?;
    Some(first_segment(rest)).filter(|name| !name.is_empty())
}

/// Returns an Azure path after its deployment, if any; `None` if only Azure knows its meaning.
fn behind_azure(path: &str) -> Option<&str> {
    let rest = match path.strip_prefix(DEPLOYMENTS) {
        Some(named) => &named[deployment(path)?.len()..],
        None => path.strip_prefix("/openai")?,
    };
    ENDPOINTS.contains(&first_segment(rest.strip_prefix('/')?)).then_some(rest)
}

/// Whether Azure's paths are valid on a base: at Azure itself, and if the path is not that of
/// another API.
fn takes_deployments(host: &str, path: &str) -> bool {
    let host = host.trim_end_matches('.');
    let is_of = |domain: &&str| {
        host.strip_suffix(*domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    AZURE_DOMAINS.iter().any(is_of)
        || path.contains(DEPLOYMENTS)
        || !PREFIXES.iter().any(|prefix| path.ends_with(prefix))
}

/// Removes from a base's path the part that leads to OpenAI's endpoints.
fn root(path: &str) -> &str {
    if let Some((root, _)) = path.split_once(DEPLOYMENTS) {
        return root;
    }
    PREFIXES.iter().chain(&["/openai"]).find_map(|suffix| path.strip_suffix(suffix)).unwrap_or(path)
}

fn refuse_dot_segments(path: &str) -> Result<(), TargetError> {
    if !path.contains(['.', '%']) {
        return Ok(());
    }
    let decoded = percent_decoded(path);
    if segment_names(&decoded).any(|name| matches!(name, b"." | b"..")) {
        return Err(TargetError::DotSegment);
    }
    Ok(())
}

/// Splits a decoded path as the most lenient upstream would: encoded slashes and backslashes
/// separate, too, and parameters after a semicolon do not count.
fn segment_names(decoded: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    decoded
        .split(|byte| matches!(byte, b'/' | b'\\'))
        .map(|segment| segment.split(|byte| *byte == b';').next().unwrap_or_default())
}

#[cfg(test)]
mod tests;
