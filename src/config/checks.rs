//! Texts of the configuration that must have a form: what is right, and what to write instead. Knows
//! nothing of the keys that they stand under.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use super::Secret;

/// An address to listen on: an IP address and a port, or a port alone, which is one of 127.0.0.1's, as
/// is that of `localhost`. `example` is shown where it is neither.
pub(super) fn listen_address(text: &str, example: &str) -> Result<SocketAddr, String> {
    let text = text.trim();
    let port = text.strip_prefix("localhost:").unwrap_or(text);
    let local = port.bytes().all(|byte| byte.is_ascii_digit()).then(|| port.parse::<u16>());
    match local {
        Some(Ok(port)) => return Ok(SocketAddr::from(([127, 0, 0, 1], port))),
        Some(Err(_)) if !port.is_empty() => {
            return Err(format!("{port} is no port; ports are from 1 to 65535, such as 8400"));
        }
        _ => {}
    }
    text.parse().map_err(|_| {
        format!(
            "{text:?} is no address to listen on; write a port, such as {example}, or an IP address and a \
             port, such as 127.0.0.1:{example} (0.0.0.0:{example} for all of this machine's addresses)"
        )
    })
}

/// [`listen_address`] of the server.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    listen_address(text, "8400")
}

/// A name as a `Host` header carries it, without its port.
pub(super) fn host_name(text: &str) -> Result<String, String> {
    let name = text.trim().to_ascii_lowercase();
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    let is_ipv6 = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'))
        .is_some_and(|name| name.parse::<std::net::Ipv6Addr>().is_ok());
    if !name.is_empty() && (is_ipv6 || name.chars().all(plain)) {
        Ok(name)
    } else {
        let example = "such as \"weir.example.com\"";
        Err(format!("{text:?} is no host name; write it without scheme, port and path, {example}"))
    }
}

/// Addresses that begin alike, or one.
pub(super) fn network(text: &str) -> Result<IpNet, String> {
    let text = text.trim();
    let one = || text.parse::<IpAddr>().map(IpNet::from);
    text.parse().or_else(|_| one()).map_err(|_| {
        format!("{text:?} is no network; write an address and how many bits of it count, such as 10.0.0.0/8")
    })
}

/// A web page's origin, as browsers send it.
pub(super) fn origin(text: &str) -> Result<String, String> {
    let origin = text.trim().trim_end_matches('/').to_ascii_lowercase();
    let rest = origin.split_once("://").map(|(_, rest)| rest);
    let parses = origin.parse::<http::Uri>().is_ok_and(|uri| uri.host().is_some());
    if parses && rest.is_some_and(|rest| !rest.contains(['/', '?', '#', '@', '*'])) {
        Ok(origin)
    } else {
        let example = "such as \"https://chat.example.com\"";
        Err(format!(
            "{text:?} is no origin; write scheme and host, with the port if it has one, {example}"
        ))
    }
}

/// The path of a file; a shell's shorthand would become a folder of that name.
pub(super) fn store_path(text: &str) -> Result<String, String> {
    if text.starts_with('~') {
        Err(format!("{text:?} begins with ~, which only shells know; write the whole path"))
    } else if is_database_url(text) {
        // Its password may be in it, so that it is not repeated.
        Err("is the URL of a database server; write it as store.url".to_owned())
    } else if text.contains('\0') || text.ends_with('/') {
        Err(format!("{text:?} is no path of a file, such as \"/var/lib/weir/weir.db\""))
    } else {
        Ok(text.to_owned())
    }
}

/// Whether a text is the URL of a database server and no path of a file.
pub fn is_database_url(text: &str) -> bool {
    let text = text.trim_start().to_ascii_lowercase();
    ["postgres://", "postgresql://"].iter().any(|scheme| text.starts_with(scheme))
}

/// The URL of a database server; empty for none. It is never repeated in the message, since a
/// password may be in it.
pub(super) fn store_url(text: &str) -> Result<Option<Secret>, String> {
    let text = text.trim();
    if text.is_empty() {
        Ok(None)
    } else if is_database_url(text) {
        Ok(Some(Secret::new(text)))
    } else {
        Err("is no URL of a PostgreSQL server, such as \"postgres://user:password@host:5432/weir\""
            .to_owned())
    }
}

/// A provider's base URL. One that carries a credential is not repeated in the message.
pub(super) fn base_url(text: &str) -> Result<String, String> {
    let text = text.trim();
    let example = "write it as an SDK would be given it, such as https://api.openai.com/v1";
    let lower = text.to_ascii_lowercase();
    let Some(rest) = lower.strip_prefix("https://").or(lower.strip_prefix("http://")) else {
        return Err(format!("does not begin with https:// or http://; {example}"));
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('@') {
        return Err("carries a user name or password; leave them out, weir forwards the caller's \
                    own Authorization header"
            .to_owned());
    }
    if text.contains('#') {
        return Err(format!("{text:?} has a fragment (from # on), which is never sent; {example}"));
    }
    let uri: http::Uri = text.parse().map_err(|_| format!("{text:?} is no URL; {example}"))?;
    let has_port = authority.rsplit(']').next().is_some_and(|end| end.contains(':'));
    if uri.host().is_none_or(str::is_empty) {
        Err(format!("{text:?} names no host; {example}"))
    } else if has_port && uri.port_u16().is_none_or(|port| port == 0) {
        Err(format!("{text:?} has a port that is not from 1 to 65535; {example}"))
    } else {
        Ok(text.to_owned())
    }
}

/// How many characters are to be inserted, deleted or replaced to turn `a` into `b`.
pub(super) fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
