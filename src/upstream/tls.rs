//! TLS to an upstream: whom weir trusts beside the system's authorities, and what it shows. Reads no file.

use reqwest::tls::{Certificate, Identity};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::client::ClientError;
use crate::config::ConnectTls;

/// Has a client go by `told`.
pub(super) fn apply(
    mut builder: reqwest::ClientBuilder,
    told: &ConnectTls,
) -> Result<reqwest::ClientBuilder, ClientError> {
    if let Some(text) = &told.ca {
        let authorities = authorities(text.expose()).ok_or(ClientError::Tls {
            key: "ca_file",
            cause: "holds no certificate in PEM that can be read",
        })?;
        builder = builder.tls_certs_merge(authorities);
    }
    if let (Some(cert), Some(key)) = (&told.client_cert, &told.client_key) {
        let both = format!("{}\n{}", cert.expose(), key.expose());
        let identity = Identity::from_pem(both.as_bytes()).map_err(|_| ClientError::Tls {
            key: "client_cert_file",
            cause: "and client_key_file hold no certificate and private key in PEM",
        })?;
        builder = builder.identity(identity);
    }
    Ok(builder)
}

/// The certificates in a text: one at least.
fn authorities(text: &str) -> Option<Vec<Certificate>> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    let found = found.ok().filter(|found| !found.is_empty())?;
    found.iter().map(|authority| Certificate::from_der(authority).ok()).collect()
}
