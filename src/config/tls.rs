//! TLS by files in PEM: what a listener shows and whom it lets in, and what weir trusts and shows where it
//! connects. Reads no file: whoever starts weir puts what stands in them beside their names.

use super::auth::file;
use super::reader::Reader;
use super::{Secret, set};

/// What a listener speaks TLS by; plain HTTP where it names no certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListenTls {
    /// The certificate and those that lead from it to a known authority.
    pub cert_file: String,
    /// The certificate's private key.
    pub key_file: String,
    /// The authorities one of which must have signed each caller's certificate; empty asks for none.
    pub client_ca_file: String,
    /// What stands in the files, which no configuration holds.
    pub cert: Option<Secret>,
    pub key: Option<Secret>,
    pub client_ca: Option<Secret>,
}

impl ListenTls {
    /// Whether the listener speaks TLS.
    pub fn is_on(&self) -> bool {
        !self.cert_file.is_empty()
    }

    /// How URLs of the listener begin.
    pub fn scheme(&self) -> &'static str {
        if self.is_on() { "https" } else { "http" }
    }
}

/// What weir goes by where it connects to an upstream by TLS.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConnectTls {
    /// Authorities that are trusted beside the system's; empty for none.
    pub ca_file: String,
    /// The certificate that weir shows, and those that lead from it to an authority; empty for none.
    pub client_cert_file: String,
    /// That certificate's private key.
    pub client_key_file: String,
    /// What stands in the files, which no configuration holds.
    pub ca: Option<Secret>,
    pub client_cert: Option<Secret>,
    pub client_key: Option<Secret>,
}

/// Reads what stands under `section` of a listener.
pub(super) fn read_listener(reader: &mut Reader, section: &[&str], tls: &mut ListenTls) {
    let files = [
        ("cert_file", &mut tls.cert_file),
        ("key_file", &mut tls.key_file),
        ("client_ca_file", &mut tls.client_ca_file),
    ];
    for (key, place) in files {
        set(place, reader.text(&at(section, key), file));
    }
    pair(reader, section, ["cert_file", "key_file"], [&tls.cert_file, &tls.key_file]);
    if !tls.client_ca_file.is_empty() && !tls.is_on() {
        let message = "is given without cert_file: callers show certificates where weir shows one";
        reader.refuse(&at(section, "client_ca_file"), message);
    }
}

/// Reads the keys of TLS that stand under `section`, an upstream.
pub(super) fn read(reader: &mut Reader, section: &[&str], tls: &mut ConnectTls) {
    let files = [
        ("ca_file", &mut tls.ca_file),
        ("client_cert_file", &mut tls.client_cert_file),
        ("client_key_file", &mut tls.client_key_file),
    ];
    for (key, place) in files {
        set(place, reader.text(&at(section, key), file));
    }
    let keys = ["client_cert_file", "client_key_file"];
    pair(reader, section, keys, [&tls.client_cert_file, &tls.client_key_file]);
}

/// Refuses one of two files that have no use alone.
fn pair(reader: &mut Reader, section: &[&str], keys: [&str; 2], files: [&String; 2]) {
    for (missing, other) in [(0, 1), (1, 0)] {
        if files[missing].is_empty() && !files[other].is_empty() {
            let message = format!("is missing: {} is given, and has no use alone", keys[other]);
            reader.refuse(&at(section, keys[missing]), message);
        }
    }
}

fn at<'a>(section: &[&'a str], key: &'a str) -> Vec<&'a str> {
    [section, &[key]].concat()
}
