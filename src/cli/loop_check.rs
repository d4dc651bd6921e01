//! Detection of an upstream that is weir itself, for example through an application's inherited
//! `OPENAI_BASE_URL`. The decision is pure; the name lookup is separate.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::mpsc;
use std::time::Duration;

use super::settings::OPENAI_BASE_URL;
use crate::config::{Config, DEFAULT_UPSTREAM, Problem, upstreams};
use crate::upstream::Base;

/// A name that takes longer to look up is unlikely to be this machine's.
const LOOKUP: Duration = Duration::from_secs(3);

/// Refuses the upstreams of `config` whose requests would return to a server that listens on
/// `listening`. Looks up only the names with the same port, and blocks meanwhile.
pub(super) fn refuse(config: &Config, listening: SocketAddr) -> Vec<Problem> {
    let bases = config.all_upstreams().filter_map(|(name, upstream)| {
        // Another check reports invalid URLs.
        let base = Base::parse(&upstream.url).ok()?;
        (base.port() == listening.port()).then(|| (name, upstream.url.as_str(), plain_host(&base)))
    });
    let bases: Vec<_> = bases.collect();
    let found =
        looked_up(bases.iter().map(|(_, _, host)| host.clone()).collect(), listening.port());
    let is_own = |host: &String| {
        let addresses = found.get(host).into_iter().flatten();
        addresses.into_iter().any(|address| is_own(listening, *address, is_of_this_machine))
    };
    let own = bases.iter().filter(|(_, _, host)| is_own(host));
    own.map(|(name, url, _)| leads_back(name, url, listening)).collect()
}

fn plain_host(base: &Base) -> String {
    base.host().trim_start_matches('[').trim_end_matches(']').to_owned()
}

/// Resolves hosts. If a lookup fails, the first request will report it.
fn looked_up(hosts: BTreeSet<String>, port: u16) -> BTreeMap<String, Vec<SocketAddr>> {
    let (sender, heard) = mpsc::channel();
    for host in hosts {
        let sender = sender.clone();
        // The system's lookup cannot be cancelled: it ends by itself.
        std::thread::spawn(move || {
            let addresses = (host.as_str(), port).to_socket_addrs().map(Iterator::collect);
            // The receiver may be gone.
            let _ = sender.send((host, addresses.unwrap_or_default()));
        });
    }
    drop(sender);
    std::iter::from_fn(|| heard.recv_timeout(LOOKUP).ok()).collect()
}

fn leads_back(name: &str, url: &str, address: SocketAddr) -> Problem {
    let inherited = name == DEFAULT_UPSTREAM
        && std::env::var(OPENAI_BASE_URL).is_ok_and(|inherited| {
            inherited.trim().trim_end_matches('/') == url.trim_end_matches('/')
        });
    let message = if inherited {
        format!(
            "OPENAI_BASE_URL is {url}, which is weir's own address ({address}): it was set for \
             applications, and weir inherited it. Set the upstream of the models with `weir serve \
             --upstream https://api.openai.com/v1`, or start it without OPENAI_BASE_URL"
        )
    } else if name == DEFAULT_UPSTREAM {
        format!(
            "{url} is weir's own address ({address}), so every request would return to it. \
             Set the upstream of the models, such as `weir serve --upstream \
             https://api.openai.com/v1`, or listen elsewhere with `--listen`"
        )
    } else {
        format!("{url} is weir's own address ({address}), so every request would return to it")
    };
    Problem::with(format!("{}.url", upstreams::section(name)), message)
}

/// Whether a connection to `upstream` reaches the listener on `listening`.
fn is_own(
    listening: SocketAddr,
    upstream: SocketAddr,
    is_of_this_machine: impl Fn(IpAddr) -> bool,
) -> bool {
    if listening.port() != upstream.port() {
        return false;
    }
    let (here, there) = (listening.ip().to_canonical(), upstream.ip().to_canonical());
    if here == there {
        return true;
    }
    // A listener on all of IPv6 accepts IPv4, too, unless the system is configured otherwise.
    let same_family = here.is_ipv4() == there.is_ipv4();
    let covered = here.is_unspecified() && (same_family || here.is_ipv6());
    if there.is_unspecified() {
        // A connection to the unspecified address goes to loopback.
        return covered || (here.is_loopback() && same_family);
    }
    covered && (there.is_loopback() || is_of_this_machine(there))
}

/// Only addresses of this machine can be bound to.
fn is_of_this_machine(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_upstream_that_leads_back_is_own() {
        let machine = |address: IpAddr| address.to_string() == "10.0.0.5";
        let rows = [
            ("127.0.0.1:8400", "127.0.0.1:8400", true),
            ("127.0.0.1:8400", "127.0.0.1:8401", false),
            ("127.0.0.1:8400", "127.0.0.2:8400", false),
            ("127.0.0.1:8400", "[::1]:8400", false),
            ("127.0.0.1:8400", "[::ffff:127.0.0.1]:8400", true),
            ("127.0.0.1:8400", "0.0.0.0:8400", true),
            ("127.0.0.1:8400", "[::]:8400", false),
            ("127.0.0.1:8400", "10.0.0.5:8400", false),
            ("10.0.0.5:8400", "10.0.0.5:8400", true),
            ("0.0.0.0:8400", "127.0.0.1:8400", true),
            ("0.0.0.0:8400", "127.3.4.5:8400", true),
            ("0.0.0.0:8400", "10.0.0.5:8400", true),
            ("0.0.0.0:8400", "10.0.0.6:8400", false),
            ("0.0.0.0:8400", "0.0.0.0:8400", true),
            ("0.0.0.0:8400", "[::1]:8400", false),
            ("[::]:8400", "[::1]:8400", true),
            ("[::]:8400", "127.0.0.1:8400", true),
            ("[::]:8400", "10.0.0.5:8400", true),
            ("[::]:8400", "0.0.0.0:8400", true),
            ("[::1]:8400", "[::]:8400", true),
            ("[::1]:8400", "127.0.0.1:8400", false),
        ];
        for (listening, upstream, expected) in rows {
            let (here, there) =
                (listening.parse().expect(listening), upstream.parse().expect(upstream));
            assert_eq!(is_own(here, there, machine), expected, "{listening} {upstream}");
        }
    }
}
