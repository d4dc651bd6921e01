//! Whether an upstream is weir itself, as when an application's `OPENAI_BASE_URL` is inherited.
//! The decision is pure; looking a name up is not, and stands apart.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::mpsc;
use std::time::Duration;

use super::told::OPENAI_BASE_URL;
use crate::config::{Config, DEFAULT_UPSTREAM, Problem, upstreams};
use crate::upstream::Base;

/// A name that takes longer to look up is hardly this machine's.
const LOOKUP: Duration = Duration::from_secs(3);

/// Refuses the upstreams of `config` whose requests would come back to a server that listens on
/// `listening`. Looks up the names of those alone that have its port, and blocks meanwhile.
pub fn refuse(config: &Config, listening: SocketAddr) -> Vec<Problem> {
    let bases = config.all_upstreams().filter_map(|(name, upstream)| {
        // What is no URL is told elsewhere.
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

/// The addresses of hosts. What cannot be looked up is for the first request to find out.
fn looked_up(hosts: BTreeSet<String>, port: u16) -> BTreeMap<String, Vec<SocketAddr>> {
    let (told, heard) = mpsc::channel();
    for host in hosts {
        let told = told.clone();
        // The system's own lookup cannot be given up: it ends when it ends.
        std::thread::spawn(move || {
            let addresses = (host.as_str(), port).to_socket_addrs().map(Iterator::collect);
            // Nobody may wait for it any more.
            let _ = told.send((host, addresses.unwrap_or_default()));
        });
    }
    drop(told);
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
             applications, and weir inherited it. Tell weir where the models are with `weir serve \
             --upstream https://api.openai.com/v1`, or start it without OPENAI_BASE_URL"
        )
    } else if name == DEFAULT_UPSTREAM {
        format!(
            "{url} is weir's own address ({address}), so that every request would come back to it. \
             Tell weir where the models are, such as `weir serve --upstream \
             https://api.openai.com/v1`, or listen elsewhere with `--listen`"
        )
    } else {
        format!(
            "{url} is weir's own address ({address}), so that every request would come back to it"
        )
    };
    Problem::with(format!("{}.url", upstreams::section(name)), message)
}

/// Whether a connection to `upstream` reaches what listens on `listening`.
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
    // Listening on all of IPv6 takes IPv4 in as well, unless the system says otherwise.
    let same_family = here.is_ipv4() == there.is_ipv4();
    let covered = here.is_unspecified() && (same_family || here.is_ipv6());
    if there.is_unspecified() {
        // Connecting to no address in particular means loopback.
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
