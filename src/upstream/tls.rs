//! TLS to an upstream: trusted authorities in addition to the system's, and the client certificate.
//! Reads no file.

use reqwest::tls::{Certificate, Identity};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::client::ClientError;
use crate::config::TlsFiles;

/// Applies the TLS settings to a client.
pub(super) fn apply(
    mut builder: reqwest::ClientBuilder,
    config: &TlsFiles,
) -> Result<reqwest::ClientBuilder, ClientError> {
    if let Some(text) = &config.ca {
        let authorities = authorities(text.expose()).ok_or(ClientError::Tls {
            key: "tls.ca_file",
            cause: "holds no certificate in PEM that can be read",
        })?;
        builder = builder.tls_certs_merge(authorities);
    }
    if let (Some(cert), Some(key)) = (&config.cert, &config.key) {
        let both = format!("{}\n{}", cert.expose(), key.expose());
        let identity = Identity::from_pem(both.as_bytes()).map_err(|_| ClientError::Tls {
            key: "tls.cert_file",
            cause: "and tls.key_file hold no certificate and private key in PEM",
        })?;
        builder = builder.identity(identity);
    }
    Ok(builder)
}

/// Parses the certificates in a text, at least one.
fn authorities(text: &str) -> Option<Vec<Certificate>> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    let found = found.ok().filter(|found| !found.is_empty())?;
    found.iter().map(|authority| Certificate::from_der(authority).ok()).collect()
}
