//! PROXY protocol, version 1 and 2: the header with which a load balancer names the client of a
//! connection. Reads bytes; others decide whose header to trust.

use std::net::SocketAddr;

use proxy_header::{Error, ParseConfig, ProxyHeader};

/// Maximum length of a header. Version 1 has at most 107 bytes; version 2 has addresses and a few
/// fields that weir ignores.
pub(super) const MAX_BYTES: usize = 4096;

/// State of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Header {
    /// More bytes follow, and all so far belong to it.
    Incomplete,
    Whole {
        /// Length; the bytes after it belong to the connection itself.
        length_bytes: usize,
        /// Address of the client; `None` if the load balancer opened the connection itself, or does
        /// not say.
        source: Option<SocketAddr>,
    },
    Invalid,
}

/// Reads the bytes of a header received so far.
pub(super) fn read(bytes: &[u8]) -> Header {
    let config = ParseConfig { include_tlvs: false, ..ParseConfig::default() };
    match ProxyHeader::parse(bytes, config) {
        Ok((header, length_bytes)) if length_bytes <= MAX_BYTES => Header::Whole {
            length_bytes,
            source: header.proxied_address().map(|addresses| addresses.source),
        },
        Err(Error::BufferTooShort) if bytes.len() < MAX_BYTES => Header::Incomplete,
        _ => Header::Invalid,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

    /// Builds a header of version 2.
    fn second(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        let length = u16::try_from(body.len()).expect("a short body").to_be_bytes();
        [SIGNATURE, &[command, family], &length, body].concat()
    }

    fn whole(bytes: &[u8], source: Option<&str>) {
        let source = source.map(|source| source.parse().expect("an address"));
        let expected = Header::Whole { length_bytes: bytes.len(), source };
        assert_eq!(read(bytes), expected, "{bytes:?}");
        assert_eq!(read(&[bytes, b"GET / HTTP/1.1\r\n"].concat()), expected, "{bytes:?}");
        for end in 0..bytes.len() {
            assert_eq!(read(&bytes[..end]), Header::Incomplete, "{:?}", &bytes[..end]);
        }
    }

    #[test]
    fn both_versions_give_the_source_of_a_connection() {
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
    fn another_protocol_is_refused_at_once() {
        for bytes in [
            &b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"[..],
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a handshake",
            b"PROXY TCP4 192.0.2.7 10.0.0.1 8080 99999\r\n",
            b"PROXY TCP4 192.0.2.7 10.0.0.1 8080 443\rx",
            b"PROXY TCP5 192.0.2.7 10.0.0.1 8080 443\r\n",
            b"PROXY TCP4 2001:db8::7 ::1 8080 443\r\n",
            b"\r\n\r\n\0\r\nQUIT?1234",
        ] {
            assert_eq!(read(bytes), Header::Invalid, "{bytes:?}");
        }
        assert_eq!(read(&second(0x31, 0x11, &[0; 12])), Header::Invalid, "another version");
        assert_eq!(read(&second(0x21, 0x99, &[0; 12])), Header::Invalid, "another family");
    }

    #[test]
    fn its_length_has_an_end() {
        let room = MAX_BYTES - SIGNATURE.len() - 4;
        let fitting = second(0x21, 0x11, &vec![0; room]);
        whole(&fitting, Some("0.0.0.0:0"));
        let longer = second(0x21, 0x11, &vec![0; room + 1]);
        assert_eq!(read(&longer), Header::Invalid);
        assert_eq!(read(&longer[..MAX_BYTES]), Header::Invalid);
        assert_eq!(read(&[b"PROXY UNKNOWN ", &[b'a'; 200][..]].concat()), Header::Invalid);
    }

    proptest! {
        /// Any bytes have a result, which never claims more than arrived.
        #[test]
        fn any_bytes_are_read(
            start in prop::sample::select(vec![&b""[..], b"PROXY ", b"PROXY TCP4 ", SIGNATURE]),
            rest in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let bytes = [start, &rest].concat();
            if let Header::Whole { length_bytes, .. } = read(&bytes) {
                prop_assert!(length_bytes <= bytes.len());
                let again = read(&bytes[..length_bytes]);
                prop_assert_eq!(again, read(&bytes));
            }
        }
    }
}
