//! Startup message of `weir serve`: where requests go, where data is kept, the sources of the
//! configuration, the limits in force, and how to use weir. Decides nothing.

use std::io::{IsTerminal, Write};
use std::net::{IpAddr, SocketAddr};

use figment::Figment;

use super::sources;
use crate::config::{AuthMode, Config, LogFormat, Mode, TlsFiles};
use weir_store::Store;

/// Maximum number of upstreams, limits and configuration sources that are listed.
const MAX_NAMED: usize = 16;
const MAX_LIMITS: usize = 4;
const MAX_SOURCES: usize = 8;
/// Width of the line labels.
const NAME_WIDTH: usize = 15;

/// Prints weir's address and setup, one line per item. On a terminal they are plain lines, in the
/// log each is a log line.
pub(super) fn greet(
    config: &Config,
    figment: &Figment,
    store: &Store,
    address: SocketAddr,
    dashboard: Option<&str>,
) {
    let mut lines = lines(config, figment, store).to_vec();
    lines.extend(dashboard.map(|url| ("dashboard", url.to_owned())));
    let local = server_url(config, address);
    let last = format!("listening on {address}, base_url = {local}/v1");
    let is_terminal = std::io::stderr().is_terminal() && config.log.format == LogFormat::Text;
    if is_terminal && tracing::enabled!(target: "weir", tracing::Level::INFO) {
        let lines: String = lines.iter().map(|(name, said)| line(name, said) + "\n").collect();
        // A closed terminal needs no message.
        let _ = writeln!(std::io::stderr().lock(), "{lines}{last}");
    } else {
        for (name, said) in lines {
            tracing::info!(target: "weir", "{}", line(name, &said));
        }
        tracing::info!(target: "weir", "{last}");
    }
    if config.auth.mode == AuthMode::Open && !address.ip().to_canonical().is_loopback() {
        let whose = match lends(config) {
            true => "and uses weir's own key for the provider (auth.allow_anonymous)",
            false => "each with a key of their own",
        };
        tracing::warn!(
            target: "weir",
            "anybody who reaches {address} can use it, {whose}; it accepts loopback's host names \
             and those in server.allowed_hosts"
        );
    }
}

fn line(name: &str, said: &str) -> String {
    format!("{name:<NAME_WIDTH$}{said}")
}

/// Builds the lines before the address, each with its label.
fn lines(config: &Config, figment: &Figment, store: &Store) -> [(&'static str, String); 5] {
    [
        ("forwarding to", format!("{}{}", shown_url(&config.upstream.url), others(config))),
        ("store", kept(config, store)),
        ("configuration", sources(figment)),
        ("limits", limits(config)),
        ("mode", mode(config)),
    ]
}

/// Removes the values of a URL's query, which may hold a credential.
fn shown_url(url: &str) -> String {
    url.split_once('?').map_or_else(|| url.to_owned(), |(before, _)| format!("{before}?…"))
}

/// Summarises the other upstreams.
fn others(config: &Config) -> String {
    if !config.is_routed() {
        return String::new();
    }
    let names = config.upstreams.keys().map(String::as_str);
    let names = named(names, MAX_NAMED).unwrap_or_else(|| "none".to_owned());
    format!(" (other upstreams: {names}; routes: {})", config.routes.rows.len())
}

/// Lists the first of these, and the number of others; `None` if there are none.
fn named<'a>(names: impl Iterator<Item = &'a str>, most: usize) -> Option<String> {
    let names: Vec<&str> = names.collect();
    let more = names.len().saturating_sub(most);
    let shown = names.iter().take(most).copied().collect::<Vec<_>>().join(", ");
    match (names.len(), more) {
        (0, _) => None,
        (_, 0) => Some(shown),
        (_, more) => Some(format!("{shown}, {more} more")),
    }
}

fn kept(config: &Config, store: &Store) -> String {
    let counted = match config.redis.url.expose().is_empty() {
        true => "",
        false => "; budgets and rate limits in Redis",
    };
    let place = match store.file() {
        Some(file) => file.display().to_string(),
        None if config.store.url.is_some() => "PostgreSQL (store.url)".to_owned(),
        None => "memory: lost when this process ends".to_owned(),
    };
    format!("{place}{counted}")
}

fn sources(figment: &Figment) -> String {
    let origins = sources::origins(figment);
    let origins = named(origins.iter().map(String::as_str), MAX_SOURCES);
    origins.unwrap_or_else(|| "defaults only (--config FILE names a file)".to_owned())
}

fn limits(config: &Config) -> String {
    let rows = config.limits.iter();
    let rows: Vec<String> =
        rows.map(|limit| format!("{} {} tokens", limit.model, limit.max_input_tokens)).collect();
    match named(rows.iter().map(String::as_str), MAX_LIMITS) {
        Some(rows) => format!("{rows}; otherwise each model's context window"),
        None => "each model's context window".to_owned(),
    }
}

fn mode(config: &Config) -> String {
    let callers = match (config.auth.mode, lends(config)) {
        (AuthMode::Keys, _) => "keys (callers need a virtual key)",
        (AuthMode::Open, true) => "open (weir's own key is used)",
        (AuthMode::Open, false) => "open (callers send their own keys)",
    };
    let conversations = match config.context.mode {
        Mode::Compact => "compact (conversations are made to fit)",
        Mode::Observe => "observe (nothing is compacted)",
    };
    format!("{callers}, {conversations}")
}

/// Whether callers may use one of weir's own keys.
fn lends(config: &Config) -> bool {
    config.all_upstreams().any(|(_, upstream)| upstream.lends())
}

/// Returns the URL of the API at `address`, without a path.
pub(super) fn server_url(config: &Config, address: SocketAddr) -> String {
    local_url(&config.server.tls, &config.server.allowed_hosts, address)
}

/// Returns the URL of the dashboard at `address`.
pub(super) fn dashboard_url(config: &Config, address: SocketAddr) -> String {
    local_url(&config.admin.tls, &config.server.allowed_hosts, address) + "/"
}

/// Returns a URL for a server that listens on `address`, reachable at least from this machine. A
/// certificate is issued for a name.
fn local_url(tls: &TlsFiles, allowed_hosts: &[String], address: SocketAddr) -> String {
    let (scheme, port) = (tls.scheme(), address.port());
    let host = match (address.ip(), allowed_hosts) {
        (_, [name, ..]) if tls.is_on() => name.clone(),
        (ip, _) if tls.is_on() && ip.is_loopback() => "localhost".to_owned(),
        (ip, _) if ip.is_unspecified() && ip.is_ipv4() => "127.0.0.1".to_owned(),
        (ip, _) if ip.is_unspecified() => "[::1]".to_owned(),
        (ip, [name, ..]) if !ip.is_loopback() => name.clone(),
        (ip, _) => url_ip(ip),
    };
    format!("{scheme}://{host}:{port}")
}

/// Formats an address for a URL.
pub(super) fn url_ip(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    }
}
