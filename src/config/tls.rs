//! TLS files in PEM: certificates of listeners, accepted client authorities, and trust and client
//! certificates for upstreams. Reads no file: start-up code fills in their contents.

use super::Secret;
use super::auth::file;
use super::reader::Keys;

/// TLS settings of a listener, which uses plain HTTP without a certificate, or of connections to an upstream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificate chain that weir presents; empty for none.
    pub cert_file: String,
    /// Private key of the certificate.
    pub key_file: String,
    /// Authorities; empty for none. Of a listener: every caller needs a certificate signed by one of them. Of an
    /// upstream: trusted in addition to the system's.
    pub ca_file: String,
    /// Contents of the files, filled in at start; not part of the configuration.
    pub cert: Option<Secret>,
    pub key: Option<Secret>,
    pub ca: Option<Secret>,
}

impl TlsFiles {
    /// Returns whether a listener uses TLS.
    pub fn is_on(&self) -> bool {
        !self.cert_file.is_empty()
    }

    /// Returns the scheme of a listener's URLs.
    pub fn scheme(&self) -> &'static str {
        if self.is_on() { "https" } else { "http" }
    }
}

/// Reads the TLS keys of a listener.
pub(super) fn read_listener(keys: &mut Keys<'_, '_>) -> TlsFiles {
    let tls = read(keys, "tls.client_ca_file");
    if !tls.ca_file.is_empty() && !tls.is_on() {
        let message = "is set without tls.cert_file: callers can present certificates only if weir presents one";
        keys.refuse("tls.client_ca_file", message);
    }
    tls
}

/// Reads TLS keys, with that of the authorities.
pub(super) fn read(keys: &mut Keys<'_, '_>, authorities: &'static str) -> TlsFiles {
    let tls = TlsFiles {
        cert_file: keys.text("tls.cert_file", file),
        key_file: keys.text("tls.key_file", file),
        ca_file: keys.text(authorities, file),
        ..TlsFiles::default()
    };
    pair(keys, [&tls.cert_file, &tls.key_file]);
    tls
}

/// Rejects a certificate without its private key, and the reverse.
fn pair(keys: &mut Keys<'_, '_>, files: [&String; 2]) {
    let names = ["tls.cert_file", "tls.key_file"];
    for (missing, other) in [(0, 1), (1, 0)] {
        if files[missing].is_empty() && !files[other].is_empty() {
            let message = format!("is missing: {} is set, and has no effect alone", names[other]);
            keys.refuse(names[missing], message);
        }
    }
}
