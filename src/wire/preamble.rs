//! What a load balancer writes before a connection's first byte, to tell whose connection it passes on:
//! the PROXY protocol, version 1 and 2. Reads bytes; whose may be believed is for others to say.

use std::net::SocketAddr;

use proxy_header::{Error, ParseConfig, ProxyHeader};

/// The most that one may take. Version 1 has 107 at most; 2 has addresses and a few facts that weir does
/// not look at.
pub const MAX_BYTES: usize = 4096;

/// How far a preamble has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preamble {
    /// There is more to come, and all so far belongs to it.
    Incomplete,
    Whole {
        /// What follows belongs to the connection itself.
        length_bytes: usize,
        /// Where the connection comes from; `None` where the balancer itself has opened it, or does not
        /// say.
        source: Option<SocketAddr>,
    },
    Invalid,
}

/// Reads what has come of a preamble.
pub fn read(bytes: &[u8]) -> Preamble {
    let config = ParseConfig { include_tlvs: false, ..ParseConfig::default() };
    match ProxyHeader::parse(bytes, config) {
        Ok((header, length_bytes)) if length_bytes <= MAX_BYTES => Preamble::Whole {
            length_bytes,
            source: header.proxied_address().map(|told| told.source),
        },
        Err(Error::BufferTooShort) if bytes.len() < MAX_BYTES => Preamble::Incomplete,
        _ => Preamble::Invalid,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

    /// A header of version 2.
    fn second(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        let length = u16::try_from(body.len()).expect("a short body").to_be_bytes();
        [SIGNATURE, &[command, family], &length, body].concat()
    }

    fn whole(bytes: &[u8], source: Option<&str>) {
        let source = source.map(|source| source.parse().expect("an address"));
        let expected = Preamble::Whole { length_bytes: bytes.len(), source };
        assert_eq!(read(bytes), expected, "{bytes:?}");
        assert_eq!(read(&[bytes, b"GET / HTTP/1.1\r\n"].concat()), expected, "{bytes:?}");
        for end in 0..bytes.len() {
            assert_eq!(read(&bytes[..end]), Preamble::Incomplete, "{:?}", &bytes[..end]);
        }
    }

    #[test]
    fn both_versions_tell_where_a_connection_comes_from() {
        let v4 = [192, 0, 2, 7, 10, 0, 0, 1, 0x1f, 0x90, 1, 187];
        let v6 = [&[0; 15][..], &[9], &[0; 16], &[0, 80, 1, 187]].concat();
        let with_facts = [&v4[..], &[4, 0, 3, 1, 2, 3]].concat();
        whole(b"PROXY TCP4 192.0.2.7 10.0.0.1 8080 443\r\n", Some("192.0.2.7:8080"));
        whole(b"PROXY TCP6 2001:db8::7 ::1 8080 443\r\n", Some("[2001:db8::7]:8080"));
        whole(b"PROXY UNKNOWN\r\n", None);
        whole(&second(0x21, 0x11, &v4), Some("192.0.2.7:8080"));
        whole(&second(0x21, 0x11, &with_facts), Some("192.0.2.7:8080"));
        whole(&second(0x21, 0x21, &v6), Some("[::9]:80"));
        whole(&second(0x20, 0x00, &[]), None);
        whole(&second(0x20, 0x11, &v4), None);
        whole(&second(0x21, 0x31, &[0; 216]), None);
    }

    #[test]
    fn what_is_none_is_told_at_once() {
        for bytes in [
            &b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"[..],
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a handshake",
            b"PROXY TCP4 192.0.2.7 10.0.0.1 8080 99999\r\n",
            b"PROXY TCP4 192.0.2.7 10.0.0.1 8080 443\rx",
            b"PROXY TCP5 192.0.2.7 10.0.0.1 8080 443\r\n",
            b"PROXY TCP4 2001:db8::7 ::1 8080 443\r\n",
            b"\r\n\r\n\0\r\nQUIT?1234",
        ] {
            assert_eq!(read(bytes), Preamble::Invalid, "{bytes:?}");
        }
        assert_eq!(read(&second(0x31, 0x11, &[0; 12])), Preamble::Invalid, "another version");
        assert_eq!(read(&second(0x21, 0x99, &[0; 12])), Preamble::Invalid, "another family");
    }

    #[test]
    fn its_length_has_an_end() {
        let room = MAX_BYTES - SIGNATURE.len() - 4;
        let fitting = second(0x21, 0x11, &vec![0; room]);
        whole(&fitting, Some("0.0.0.0:0"));
        let longer = second(0x21, 0x11, &vec![0; room + 1]);
        assert_eq!(read(&longer), Preamble::Invalid);
        assert_eq!(read(&longer[..MAX_BYTES]), Preamble::Invalid);
        assert_eq!(read(&[b"PROXY UNKNOWN ", &[b'a'; 200][..]].concat()), Preamble::Invalid);
    }

    proptest! {
        /// Whatever comes, there is an answer, and it never claims more than came.
        #[test]
        fn any_bytes_are_read(
            start in prop::sample::select(vec![&b""[..], b"PROXY ", b"PROXY TCP4 ", SIGNATURE]),
            rest in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let bytes = [start, &rest].concat();
            if let Preamble::Whole { length_bytes, .. } = read(&bytes) {
                prop_assert!(length_bytes <= bytes.len());
                let again = read(&bytes[..length_bytes]);
                prop_assert_eq!(again, read(&bytes));
            }
        }
    }
}
