//! `[upstream]` and `[upstreams.NAME]`: where requests may go, with what. Reads no variable and no key
//! file; it says where they are.

use std::collections::BTreeMap;

use super::reader::Reader;
use super::tls::{self, ConnectTls};
use super::{AskUsage, Secret, auth, checks, set};

/// The name of `[upstream]` among all upstreams.
pub const DEFAULT_UPSTREAM: &str = "default";

/// Parameters that providers and gateways take a credential by.
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
/// Headers that they take one by.
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

/// The section that the upstream called `name` is configured in.
pub fn section(name: &str) -> String {
    match name {
        DEFAULT_UPSTREAM => "upstream".to_owned(),
        name => format!("upstreams.{name}"),
    }
}

/// The longest name of an upstream; it stands in headers and in the log.
const MAX_NAME_BYTES: usize = 64;
/// The most upstreams beside the default.
const MAX_UPSTREAMS: usize = 256;
/// The most headers that an upstream may be given.
const MAX_HEADERS: usize = 64;
const MAX_RETRIES: u64 = 10;
const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// Headers that are the connection's, the body's or weir's own.
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

/// `[upstream]` or `[upstreams.NAME]`: where requests go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream {
    /// The base URL, as an SDK would be given it.
    pub url: String,
    /// The variable that holds weir's own key for the provider; empty for none.
    pub api_key_env: String,
    /// The file that holds it; empty for none.
    pub api_key_file: String,
    /// The key itself, which no configuration holds: whoever starts weir reads it.
    pub own_key: Option<Secret>,
    /// Whether callers' own credentials are sent there, where weir has no key.
    pub forward_caller_key: bool,
    /// Headers put on every request, by name.
    pub headers: Vec<(String, String)>,
    /// Headers put on every request that are secrets: the variable that holds each, by name.
    pub header_envs: Vec<(String, String)>,
    /// What those variables hold: whoever starts weir reads them.
    pub secret_headers: Vec<(String, Secret)>,
    pub connect_timeout_ms: u64,
    pub first_byte_timeout_ms: u64,
    pub idle_timeout_ms: u64,
    /// How often a request is sent again that failed in a way that may pass.
    pub max_retries: u32,
    /// The longest that is waited before a request is sent again.
    pub retry_max_wait_ms: u64,
    pub ask_usage: AskUsage,
    pub tls: ConnectTls,
}

impl Upstream {
    /// One at `url`, with the defaults of all keys.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            api_key_env: String::new(),
            api_key_file: String::new(),
            own_key: None,
            forward_caller_key: false,
            headers: Vec::new(),
            header_envs: Vec::new(),
            secret_headers: Vec::new(),
            connect_timeout_ms: 10_000,
            first_byte_timeout_ms: 600_000,
            idle_timeout_ms: 300_000,
            max_retries: 0,
            retry_max_wait_ms: 30_000,
            ask_usage: AskUsage::Auto,
            tls: ConnectTls::default(),
        }
    }

    /// Whether weir has a key of its own for it.
    pub fn has_own_key(&self) -> bool {
        self.own_key.is_some() || !self.api_key_env.is_empty() || !self.api_key_file.is_empty()
    }

    /// Whether what weir sends there is worth something that callers do not have.
    pub fn lends(&self) -> bool {
        let query = self.url.split_once('?').map_or("", |(_, query)| query);
        let keys = query.split('&').filter_map(|pair| pair.split('=').next());
        let is_in_url = keys
            .map(str::to_ascii_lowercase)
            .any(|key| CREDENTIAL_PARAMETERS.iter().any(|name| **name == key));
        self.speaks_for_itself() || !self.header_envs.is_empty() || is_in_url
    }

    /// Whether weir shows a credential of its own there, by whatever header.
    fn speaks_for_itself(&self) -> bool {
        let mut headers = self.headers.iter().chain(&self.header_envs);
        self.has_own_key() || headers.any(|(name, _)| CREDENTIAL_HEADERS.contains(&&**name))
    }

    /// Whether it gets the credentials that callers send.
    pub fn gets_callers_key(&self) -> bool {
        self.forward_caller_key && !self.speaks_for_itself()
    }
}

/// Reads `[upstream]`, which gets callers' credentials where weir has no key of its own.
pub(super) fn read_default(reader: &mut Reader, upstream: &mut Upstream) {
    read(reader, &["upstream"], upstream);
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
                "is no name for an upstream; write at most {MAX_NAME_BYTES} letters, digits and -_."
            );
            reader.refuse(&path, message);
        }
        let mut upstream = Upstream::new("");
        read(reader, &path, &mut upstream);
        let key = [path[0], path[1], "forward_caller_key"];
        set(&mut upstream.forward_caller_key, reader.switch(&key));
        if upstream.forward_caller_key && upstream.has_own_key() {
            let message = "is true beside a key of weir's own (api_key_env or api_key_file), which \
                           goes out in the place of callers'; choose one";
            reader.refuse(&key, message);
        }
        let url = [path[0], path[1], "url"];
        if reader.is_absent(&url) {
            reader.refuse(&url, "is missing: an upstream needs its base URL");
        }
        upstreams.insert(name, upstream);
    }
    upstreams
}

/// The keys that all upstreams have, under `path`.
fn read(reader: &mut Reader, path: &[&str], upstream: &mut Upstream) {
    let at = |key| [path, &[key]].concat();
    set(&mut upstream.url, reader.text(&at("url"), checks::base_url));
    set(&mut upstream.api_key_env, reader.text(&at("api_key_env"), auth::variable));
    set(&mut upstream.api_key_file, reader.text(&at("api_key_file"), auth::file));
    if !upstream.api_key_env.is_empty() && !upstream.api_key_file.is_empty() {
        let section = path.join(".");
        let message = format!("is given beside {section}.api_key_env; name one of them");
        reader.refuse(&at("api_key_file"), message);
    }
    let timeouts = [
        ("connect_timeout_ms", &mut upstream.connect_timeout_ms, 1),
        ("first_byte_timeout_ms", &mut upstream.first_byte_timeout_ms, 1),
        ("idle_timeout_ms", &mut upstream.idle_timeout_ms, 1),
        ("retry_max_wait_ms", &mut upstream.retry_max_wait_ms, 0),
    ];
    for (key, place, least) in timeouts {
        set(place, reader.whole(&at(key), least..=DAY_MS));
    }
    let retries = reader.whole(&at("max_retries"), 0..=MAX_RETRIES);
    set(&mut upstream.max_retries, retries.and_then(|retries| u32::try_from(retries).ok()));
    let asks = [("auto", AskUsage::Auto), ("always", AskUsage::Always), ("never", AskUsage::Never)];
    set(&mut upstream.ask_usage, reader.choice(&at("ask_usage"), &asks));
    tls::read(reader, path, &mut upstream.tls);
    set(&mut upstream.headers, reader.texts(&at("headers"), header));
    let secret = |name: &str, value: &str| {
        let name = header_name(name)?;
        match value {
            "" => Err("names no variable".to_owned()),
            value => Ok((name, auth::variable(value)?)),
        }
    };
    set(&mut upstream.header_envs, reader.texts(&at("header_envs"), secret));
    let headers = upstream.headers.iter().chain(&upstream.header_envs);
    let mut names: Vec<String> = headers.map(|(name, _)| name.clone()).collect();
    if names.len() > MAX_HEADERS {
        reader.refuse(&at("headers"), format!("are more than {MAX_HEADERS}, header_envs included"));
    }
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        reader.refuse(&at("headers"), format!("give {:?} twice, header_envs included", twice[0]));
    }
}

fn header(name: &str, value: &str) -> Result<(String, String), String> {
    let name = header_name(name)?;
    let is_plain = !value.is_empty() && value.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    // What is written here by mistake may be a key, so that it is not repeated.
    match is_plain {
        true => Ok((name, value.to_owned())),
        false => Err("has a value that is empty or holds other than plain characters".to_owned()),
    }
}

/// The name of a header that may be set, in lower case.
fn header_name(text: &str) -> Result<String, String> {
    let name = text.to_ascii_lowercase();
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.bytes().all(token) {
        return Err(format!("{text:?} is no name of a header, such as \"http-referer\""));
    }
    if KEPT_HEADERS.contains(&name.as_str())
        || name.starts_with("x-weir-")
        || name.starts_with("proxy-")
    {
        return Err(format!("{text:?} is a header that weir sets by itself"));
    }
    Ok(name)
}
