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
    pub client_cert_file: String,
    /// Private key of that certificate.
    pub client_key_file: String,
    /// Contents of the files, filled in at start; not part of the configuration.
    pub ca: Option<Secret>,
    pub client_cert: Option<Secret>,
    pub client_key: Option<Secret>,
}

/// Reads the TLS keys of a listener.
pub(super) fn read_listener(keys: &mut Keys<'_, '_>) -> ListenTls {
    let tls = ListenTls {
        cert_file: keys.text("cert_file", file),
        key_file: keys.text("key_file", file),
        client_ca_file: keys.text("client_ca_file", file),
        ..ListenTls::default()
    };
    pair(keys, ["cert_file", "key_file"], [&tls.cert_file, &tls.key_file]);
    if !tls.client_ca_file.is_empty() && !tls.is_on() {
        let message =
            "is set without cert_file: callers can present certificates only if weir presents one";
        keys.refuse("client_ca_file", message);
    }
    tls
}

/// Reads the TLS keys of an upstream.
pub(super) fn read(keys: &mut Keys<'_, '_>) -> ConnectTls {
    let tls = ConnectTls {
        ca_file: keys.text("ca_file", file),
        client_cert_file: keys.text("client_cert_file", file),
        client_key_file: keys.text("client_key_file", file),
        ..ConnectTls::default()
    };
    let names = ["client_cert_file", "client_key_file"];
    pair(keys, names, [&tls.client_cert_file, &tls.client_key_file]);
    tls
}

/// Rejects one of two files that only work together.
fn pair(keys: &mut Keys<'_, '_>, names: [&'static str; 2], files: [&String; 2]) {
    for (missing, other) in [(0, 1), (1, 0)] {
        if files[missing].is_empty() && !files[other].is_empty() {
            let message = format!("is missing: {} is set, and has no effect alone", names[other]);
            keys.refuse(names[missing], message);
        }
    }
}
