//! Checks of text values: each error names the problem and the expected form. Knows no keys.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use super::Secret;

/// Parses a listen address: an IP address and port, or a port alone, which means 127.0.0.1, as does
/// `localhost`. `example` appears in the error.
pub(super) fn listen_address(text: &str, example: &str) -> Result<SocketAddr, String> {
    let text = text.trim();
    let port = text.strip_prefix("localhost:").unwrap_or(text);
    let local = port.bytes().all(|byte| byte.is_ascii_digit()).then(|| port.parse::<u16>());
    match local {
        Some(Ok(port)) => return Ok(SocketAddr::from(([127, 0, 0, 1], port))),
        Some(Err(_)) if !port.is_empty() => {
            return Err(format!("{port} is not a port; ports are from 1 to 65535, such as 8400"));
        }
        _ => {}
    }
    text.parse().map_err(|_| {
        format!(
            "{text:?} is not a listen address; write a port, such as {example}, or an IP address \
             and a port, such as 127.0.0.1:{example} (0.0.0.0:{example} for all of this machine's \
             addresses)"
        )
    })
}

/// Parses the server's listen address; see [`listen_address`].
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    listen_address(text, "8400")
}

/// Parses a host name as in a `Host` header, without a port.
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
        Err(format!(
            "{text:?} is not a host name; write it without scheme, port and path, {example}"
        ))
    }
}

/// Parses a network or a single address.
pub(super) fn network(text: &str) -> Result<IpNet, String> {
    let text = text.trim();
    let one = || text.parse::<IpAddr>().map(IpNet::from);
    text.parse().or_else(|_| one()).map_err(|_| {
        format!(
            "{text:?} is not a network; write an address and its prefix length, such as 10.0.0.0/8"
        )
    })
}

/// Parses the origin of a web page, as browsers send it.
pub(super) fn origin(text: &str) -> Result<String, String> {
    let origin = text.trim().trim_end_matches('/').to_ascii_lowercase();
    let rest = origin.split_once("://").map(|(_, rest)| rest);
    let parses = origin.parse::<http::Uri>().is_ok_and(|uri| uri.host().is_some());
    if parses && rest.is_some_and(|rest| !rest.contains(['/', '?', '#', '@', '*'])) {
        Ok(origin)
    } else {
        let example = "such as \"https://chat.example.com\"";
        Err(format!(
            "{text:?} is not an origin; write scheme and host, with the port if it has one, \
             {example}"
        ))
    }
}

/// Parses a file path. `~` is refused: it would create a folder of that name.
pub(super) fn store_path(text: &str) -> Result<String, String> {
    if text.starts_with('~') {
        Err(format!("{text:?} begins with ~, which only shells expand; write the full path"))
    } else if is_database_url(text) {
        // The text is not repeated: it may contain a password.
        Err("is the URL of a database server; write it as store.url".to_owned())
    } else if text.contains('\0') || text.ends_with('/') {
        Err(format!("{text:?} is not a file path, such as \"/var/lib/weir/weir.db\""))
    } else {
        Ok(text.to_owned())
    }
}

/// Returns whether a text is a database server's URL instead of a file path.
pub fn is_database_url(text: &str) -> bool {
    let text = text.trim_start().to_ascii_lowercase();
    ["postgres://", "postgresql://"].iter().any(|scheme| text.starts_with(scheme))
}

/// Parses the URL of a database server; empty for none. Errors do not repeat it, since it may
/// contain a password.
pub(super) fn store_url(text: &str) -> Result<Option<Secret>, String> {
    let text = text.trim();
    if text.is_empty() {
        Ok(None)
    } else if is_database_url(text) {
        Ok(Some(Secret::new(text)))
    } else {
        Err("is not the URL of a PostgreSQL server, such as \
             \"postgres://user:password@host:5432/weir\""
            .to_owned())
    }
}

/// Ends of paths that callers add to a base URL.
const ROUTES_AFTER: [&str; 3] = ["/chat/completions", "/responses", "/messages"];

/// Parses a provider's base URL. If it contains a credential, the error does not repeat it.
pub(super) fn base_url(text: &str) -> Result<String, String> {
    let text = text.trim();
    let example = "write it as you would for an SDK, such as https://api.openai.com/v1";
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
    let path = rest[authority.len()..].split('?').next().unwrap_or_default().trim_end_matches('/');
    if let Some(route) = ROUTES_AFTER.iter().find(|route| path.ends_with(**route)) {
        return Err(format!(
            "{text:?} ends with a route; leave out {route}, which callers put behind the base URL"
        ));
    }
    let uri: http::Uri = text.parse().map_err(|_| format!("{text:?} is not a URL; {example}"))?;
    let has_port = authority.rsplit(']').next().is_some_and(|end| end.contains(':'));
    if uri.host().is_none_or(str::is_empty) {
        Err(format!("{text:?} has no host; {example}"))
    } else if has_port && uri.port_u16().is_none_or(|port| port == 0) {
        Err(format!("{text:?} has a port that is not from 1 to 65535; {example}"))
    } else {
        Ok(text.to_owned())
    }
}

/// Returns the number of characters to insert, delete or replace to turn `a` into `b`.
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
