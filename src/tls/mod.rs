//! TLS for listeners: builds handshake settings from certificate text and replaces them while weir
//! serves. Knows which connections are open. Reads no file and accepts no connection.

mod open;
mod stream;

use std::io;
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

pub use open::{Entered, GivesWay, OpenConnections};
pub use stream::Stream;

use crate::config::{Secret, TlsFiles};

/// Protocols of the API listener, in order of preference.
pub const HTTP: &[&str] = &["h2", "http/1.1"];
/// Protocols of listeners that support HTTP/1.1 only.
pub const HTTP1: &[&str] = &["http/1.1"];

/// Handshake settings, shared by all connections on one address.
#[derive(Clone)]
pub struct Tls {
    current: Arc<RwLock<Arc<ServerConfig>>>,
    protocols: &'static [&'static str],
}

/// Reason why TLS cannot be set up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} {message}")]
pub struct TlsError {
    /// Configuration key of the faulty file, within its section.
    pub key: &'static str,
    pub message: String,
}

impl Tls {
    /// Builds TLS from the listener's settings; `None` if they name no certificate.
    pub fn new(
        listener: &TlsFiles,
        protocols: &'static [&'static str],
    ) -> Result<Option<Self>, TlsError> {
        if !listener.is_on() {
            return Ok(None);
        }
        let current = Arc::new(RwLock::new(server_config(listener, protocols)?));
        Ok(Some(Self { current, protocols }))
    }

    /// Builds settings for future handshakes. Nothing changes until `replace`.
    pub fn prepare(&self, listener: &TlsFiles) -> Result<Arc<ServerConfig>, TlsError> {
        server_config(listener, self.protocols)
    }

    /// Uses the prepared settings for all new handshakes. Open connections stay as they are; no
    /// earlier session is resumed.
    pub fn replace(&self, prepared: Arc<ServerConfig>) {
        *self.current.write() = prepared;
    }

    /// Performs the handshake on a connection.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<Stream> {
        let current = Arc::clone(&self.current.read());
        let accepted = TlsAcceptor::from(current).accept(stream).await?;
        Ok(Stream::Tls(Box::new(accepted)))
    }
}

/// Checks the contents of a listener's certificate files.
pub fn check(listener: &TlsFiles) -> Result<(), TlsError> {
    Tls::new(listener, HTTP1).map(drop)
}

fn server_config(listener: &TlsFiles, protocols: &[&str]) -> Result<Arc<ServerConfig>, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let shown = certified(listener, &provider)?;
    let verifier = verifier(listener, &provider)?;
    let failed = |error: rustls::Error| TlsError {
        key: "cert_file",
        message: format!("cannot be used: {error}"),
    };
    let builder = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13, &TLS12])
        .map_err(failed)?;
    let builder = match verifier {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(shown)));
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    Ok(Arc::new(config))
}

/// Loads the certificate and its key, and checks that they match.
fn certified(listener: &TlsFiles, provider: &CryptoProvider) -> Result<CertifiedKey, TlsError> {
    let chain = certificates("cert_file", listener.cert.as_ref())?;
    let of_key = |message: String| TlsError { key: "key_file", message };
    let text = listener.key.as_ref().ok_or_else(|| of_key("was not read".to_owned()))?;
    let key = PrivateKeyDer::from_pem_slice(text.expose().as_bytes())
        .map_err(|_| of_key("holds no private key in PEM".to_owned()))?;
    CertifiedKey::from_der(chain, key, provider).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            of_key("is not the key of the certificate in cert_file".to_owned())
        }
        rustls::Error::InvalidCertificate(cause) => TlsError {
            key: "cert_file",
            message: format!("holds no certificate that can be read ({cause:?})"),
        },
        error => of_key(format!("holds a key that weir cannot use ({error})")),
    })
}

/// Builds the verifier of client certificates, if the listener requires them.
fn verifier(
    listener: &TlsFiles,
    provider: &Arc<CryptoProvider>,
) -> Result<Option<Arc<dyn ClientCertVerifier>>, TlsError> {
    if listener.ca_file.is_empty() {
        return Ok(None);
    }
    let failed = |message: String| TlsError { key: "client_ca_file", message };
    let mut roots = RootCertStore::empty();
    for authority in certificates("client_ca_file", listener.ca.as_ref())? {
        roots.add(authority).map_err(|error| {
            failed(format!("holds a certificate that weir cannot use ({error})"))
        })?;
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
        .build()
        .map(Some)
        .map_err(|error| failed(format!("cannot be used: {error}")))
}

/// Parses the certificates in a file's text, at least one.
fn certificates(
    key: &'static str,
    text: Option<&Secret>,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let failed = |message: &str| TlsError { key, message: message.to_owned() };
    let text = text.ok_or_else(|| failed("was not read"))?;
    let certificates: Result<Vec<_>, _> =
        CertificateDer::pem_slice_iter(text.expose().as_bytes()).collect();
    match certificates {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        _ => Err(failed("holds no certificate in PEM")),
    }
}
