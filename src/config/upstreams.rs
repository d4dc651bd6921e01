//! `[upstream]` and `[upstreams.NAME]`: targets of requests and their credentials. Reads no
//! variable and no key file; it records their names.

use std::collections::BTreeMap;

use super::keys::{UPSTREAM, UPSTREAMS};
use super::reader::{Keys, Reader};
use super::tls::{self, TlsFiles};
use super::{AskUsage, CompactsBy, Config, Secret, SecretPlace, auth, checks};

/// Name of `[upstream]` among all upstreams.
pub const DEFAULT_UPSTREAM: &str = "default";

/// Query parameters in which providers and gateways accept a credential.
pub const CREDENTIAL_PARAMETERS: [&str; 8] = [
    "access_token",
    "api-key",
    "api_key",
    "apikey",
    "key",
    "password",
    "subscription-key",
    "token",
];
/// Headers in which they accept a credential.
const CREDENTIAL_HEADERS: [&str; 8] = [
    "api-key",
    "authorization",
    "cookie",
    "ocp-apim-subscription-key",
    "proxy-authorization",
    "x-api-key",
    "x-auth-token",
    "x-goog-api-key",
];

/// Returns the configuration section of the upstream `name`.
pub fn section(name: &str) -> String {
    match name {
        DEFAULT_UPSTREAM => "upstream".to_owned(),
        name => format!("upstreams.{name}"),
    }
}

/// Maximum length of an upstream's name, which appears in headers and in the log.
const MAX_NAME_BYTES: usize = 64;
/// Maximum number of upstreams besides the default.
const MAX_UPSTREAMS: usize = 256;
/// Maximum number of headers per upstream.
const MAX_HEADERS: usize = 64;
/// Headers that belong to the connection, the body or weir itself.
const KEPT_HEADERS: [&str; 10] = [
    "accept-encoding",
    "connection",
    "content-encoding",
    "content-length",
    "expect",
    "host",
    "te",
    "transfer-encoding",
    "upgrade",
    "via",
];

/// `[upstream]` or `[upstreams.NAME]`: a target of requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream {
    /// Base URL, as you would give it to an SDK.
    pub url: String,
    /// Place of weir's provider key.
    pub api_key: SecretPlace,
    /// The key itself, filled in at start; the configuration never contains it.
    pub provider_key: Option<Secret>,
    /// Whether callers' own credentials are forwarded if weir has no key.
    pub forward_caller_key: bool,
    /// Whether callers' `baggage` and `tracestate` are forwarded.
    pub forward_trace_headers: bool,
    /// Headers added to every request, by name.
    pub headers: Vec<(String, String)>,
    /// Secret headers added to every request: the variable with each value, by name.
    pub header_envs: Vec<(String, String)>,
    /// Values of those variables, filled in at start.
    pub secret_headers: Vec<(String, Secret)>,
    pub connect_timeout_ms: u64,
    pub first_byte_timeout_ms: u64,
    pub idle_timeout_ms: u64,
    /// Maximum number of retries after a transient failure.
    pub max_retries: u32,
    /// Maximum wait before a retry.
    pub retry_max_wait_ms: u64,
    pub ask_usage: AskUsage,
    /// Who compacts if a caller asks for it.
    pub compaction: CompactsBy,
    pub tls: TlsFiles,
}

impl Upstream {
    /// Creates an upstream at `url` with default values.
    pub fn new(url: impl Into<String>) -> Self {
        let default = Config::default().upstream;
        Self { url: url.into(), forward_caller_key: false, ..default }
    }

    /// Returns whether weir has a key for it.
    pub fn has_own_key(&self) -> bool {
        self.provider_key.is_some() || self.api_key.is_set()
    }

    /// Returns whether weir adds anything of value to requests that callers do not have themselves.
    pub fn lends(&self) -> bool {
        let query = self.url.split_once('?').map_or("", |(_, query)| query);
        let keys = query.split('&').filter_map(|pair| pair.split('=').next());
        let is_in_url = keys
            .map(str::to_ascii_lowercase)
            .any(|key| CREDENTIAL_PARAMETERS.iter().any(|name| **name == key));
        self.speaks_for_itself() || !self.header_envs.is_empty() || is_in_url
    }

    /// Returns whether weir sends a credential of its own, in any header.
    fn speaks_for_itself(&self) -> bool {
        let mut headers = self.headers.iter().chain(&self.header_envs);
        self.has_own_key() || headers.any(|(name, _)| CREDENTIAL_HEADERS.contains(&&**name))
    }

    /// Returns whether it receives callers' credentials.
    pub fn gets_callers_key(&self) -> bool {
        self.forward_caller_key && !self.speaks_for_itself()
    }
}

/// Reads `[upstream]`, which receives callers' credentials if weir has no key.
pub(super) fn read_default(reader: &mut Reader) -> Upstream {
    Upstream { forward_caller_key: true, ..read(&mut reader.section(&UPSTREAM)) }
}

/// Reads `[upstreams.NAME]`.
pub(super) fn read_named(reader: &mut Reader) -> BTreeMap<String, Upstream> {
    let mut upstreams = BTreeMap::new();
    let names = reader.names("upstreams");
    if names.len() > MAX_UPSTREAMS {
        let message = format!("has {} upstreams, more than {MAX_UPSTREAMS}", names.len());
        reader.refuse(&["upstreams"], message);
        return upstreams;
    }
    for name in names {
        let path = ["upstreams", name.as_str()];
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if name == DEFAULT_UPSTREAM {
            let message = "is the name of [upstream]; write its keys there, or choose another name";
            reader.refuse(&path, message);
        } else if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.bytes().all(plain) {
            let message = format!(
                "is not an upstream name; write at most {MAX_NAME_BYTES} letters, digits and -_."
            );
            reader.refuse(&path, message);
        }
        let mut keys = reader.at(&UPSTREAMS, &path);
        let mut upstream = read(&mut keys);
        upstream.forward_caller_key = keys.get("forward_caller_key");
        if upstream.forward_caller_key && upstream.has_own_key() {
            let message = "is true together with a key of weir's own (api_key), which \
                           replaces callers' keys; choose one";
            keys.refuse("forward_caller_key", message);
        }
        if keys.is_absent("url") {
            keys.refuse("url", "is missing: an upstream needs its base URL");
        }
        upstreams.insert(name, upstream);
    }
    upstreams
}

/// Reads the keys common to all upstreams.
fn read(keys: &mut Keys<'_, '_>) -> Upstream {
    let headers = keys.texts("headers", header).unwrap_or_default();
    let (secret, plain): (Vec<_>, Vec<_>) =
        headers.into_iter().partition(|(_, _, is_variable)| *is_variable);
    let pairs = |headers: Vec<(String, String, bool)>| {
        headers.into_iter().map(|(name, value, _)| (name, value)).collect()
    };
    let upstream = Upstream {
        url: keys.text("url", checks::base_url),
        api_key: keys.text("api_key", SecretPlace::parse),
        provider_key: None,
        forward_caller_key: false,
        forward_trace_headers: keys.get("forward_trace_headers"),
        connect_timeout_ms: keys.get("timeouts_ms.connect"),
        first_byte_timeout_ms: keys.get("timeouts_ms.first_byte"),
        idle_timeout_ms: keys.get("timeouts_ms.idle"),
        retry_max_wait_ms: keys.get("retries.max_wait_ms"),
        max_retries: keys.get("retries.max"),
        ask_usage: keys.get("request_usage"),
        compaction: keys.get("compaction"),
        tls: tls::read(keys, "tls.ca_file"),
        headers: pairs(plain),
        header_envs: pairs(secret),
        secret_headers: Vec::new(),
    };
    let headers = upstream.headers.iter().chain(&upstream.header_envs);
    let mut names: Vec<String> = headers.map(|(name, _)| name.clone()).collect();
    if names.len() > MAX_HEADERS {
        keys.refuse("headers", format!("are more than {MAX_HEADERS}"));
    }
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        keys.refuse("headers", format!("give {:?} twice", twice[0]));
    }
    upstream
}

/// Parses a header: its name, and its value or, if the last is true, the variable that holds it.
fn header(name: &str, value: &str) -> Result<(String, String, bool), String> {
    let name = header_name(name)?;
    if let Some(variable) = value.strip_prefix("env:") {
        return match variable {
            "" => Err("does not name a variable".to_owned()),
            variable => Ok((name, auth::variable(variable)?, true)),
        };
    }
    let is_plain = !value.is_empty() && value.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    // The value is not repeated in the error: it may be a key, written here by mistake.
    match is_plain {
        true => Ok((name, value.to_owned(), false)),
        false => Err("has a value that is empty or not printable ASCII".to_owned()),
    }
}

/// Parses the name of a header that may be set, in lower case.
fn header_name(text: &str) -> Result<String, String> {
    let name = text.to_ascii_lowercase();
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.bytes().all(token) {
        return Err(format!("{text:?} is not a header name, such as \"http-referer\""));
    }
    if KEPT_HEADERS.contains(&name.as_str())
        || name.starts_with("x-weir-")
        || name.starts_with("proxy-")
    {
        return Err(format!("{text:?} is a header that weir sets itself"));
    }
    Ok(name)
}
