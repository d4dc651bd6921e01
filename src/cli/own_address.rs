//! Whether the upstream is weir itself, as when an application's `OPENAI_BASE_URL` is inherited.
//! The decision is pure; looking a name up is not, and stands apart.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use crate::upstream::Base;

/// A name that takes longer to look up is hardly this machine's.
const LOOKUP: Duration = Duration::from_secs(3);

/// Whether requests sent to `base` would come back to a server that listens on `listening`.
pub async fn leads_back(base: &Base, listening: SocketAddr) -> bool {
    if base.port() != listening.port() {
        return false;
    }
    let name = base.host().trim_start_matches('[').trim_end_matches(']');
    let lookup = tokio::net::lookup_host((name, base.port()));
    match tokio::time::timeout(LOOKUP, lookup).await {
        Ok(Ok(mut addresses)) => {
            addresses.any(|address| is_own(listening, address, is_of_this_machine))
        }
        // What cannot be looked up is for the first request to find out.
        Ok(Err(_)) | Err(_) => false,
    }
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
