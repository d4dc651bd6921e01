//! TLS files in PEM: certificates of listeners, accepted client authorities, and trust and client
//! certificates for upstreams. Reads no file: start-up code fills in their contents.

use super::Secret;
use super::auth::file;
use super::reader::Keys;

/// TLS settings of a listener; plain HTTP if no certificate is set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListenTls {
    /// Certificate chain.
    pub cert_file: String,
    /// Private key of the certificate.
    pub key_file: String,
    /// Authorities: every caller needs a certificate signed by one of them. Empty requests none.
    pub client_ca_file: String,
    /// Contents of the files, filled in at start; not part of the configuration.
    pub cert: Option<Secret>,
    pub key: Option<Secret>,
    pub client_ca: Option<Secret>,
}

impl ListenTls {
    /// Returns whether the listener uses TLS.
    pub fn is_on(&self) -> bool {
        !self.cert_file.is_empty()
    }

    /// Returns the scheme of the listener's URLs.
    pub fn scheme(&self) -> &'static str {
        if self.is_on() { "https" } else { "http" }
    }
}

/// TLS settings of connections to an upstream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConnectTls {
    /// Trusted authorities in addition to the system's; empty for none.
    pub ca_file: String,
    /// Client certificate chain that weir presents; empty for none.
    pub cert_file: String,
    /// Private key of that certificate.
    pub key_file: String,
    /// Contents of the files, filled in at start; not part of the configuration.
    pub ca: Option<Secret>,
    pub cert: Option<Secret>,
    pub key: Option<Secret>,
}

/// Reads the TLS keys of a listener.
pub(super) fn read_listener(keys: &mut Keys<'_, '_>) -> ListenTls {
    let tls = ListenTls {
        cert_file: keys.text("tls.cert_file", file),
        key_file: keys.text("tls.key_file", file),
        client_ca_file: keys.text("tls.client_ca_file", file),
        ..ListenTls::default()
    };
    pair(keys, [&tls.cert_file, &tls.key_file]);
    if !tls.client_ca_file.is_empty() && !tls.is_on() {
        let message = "is set without tls.cert_file: callers can present certificates only if weir presents one";
        keys.refuse("tls.client_ca_file", message);
    }
    tls
}

/// Reads the TLS keys of an upstream.
pub(super) fn read(keys: &mut Keys<'_, '_>) -> ConnectTls {
    let tls = ConnectTls {
        ca_file: keys.text("tls.ca_file", file),
        cert_file: keys.text("tls.cert_file", file),
        key_file: keys.text("tls.key_file", file),
        ..ConnectTls::default()
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
