//! Fixture: authorities, certificates signed by them, and callers that use TLS.

use std::net::SocketAddr;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use weir::config::{Secret, TlsFiles};

/// Authority that signs certificates.
pub struct Authority {
    pub pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// Certificate and its key, in PEM.
#[derive(Clone)]
pub struct Pair {
    pub cert: String,
    pub key: String,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// Issues a certificate for this machine's names, for servers and callers alike.
    pub fn issue(&self, name: &str) -> Pair {
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let mut params = CertificateParams::new(names).expect("names");
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().expect("a key");
        let cert = params.signed_by(&key, &self.issuer).expect("a certificate");
        Pair { cert: cert.pem(), key: key.serialize_pem() }
    }
}

impl Pair {
    pub fn chain(&self) -> Vec<CertificateDer<'static>> {
        vec![CertificateDer::from_pem_slice(self.cert.as_bytes()).expect("PEM")]
    }

    pub fn private(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_slice(self.key.as_bytes()).expect("PEM")
    }
}

/// Builds a listener's settings with this certificate.
pub fn shown(pair: &Pair, client_ca: Option<&Authority>) -> TlsFiles {
    TlsFiles {
        cert_file: "cert.pem".into(),
        key_file: "key.pem".into(),
        ca_file: client_ca.map_or_else(String::new, |_| "ca.pem".into()),
        cert: Some(Secret::new(&*pair.cert)),
        key: Some(Secret::new(&*pair.key)),
        ca: client_ca.map(|authority| Secret::new(&*authority.pem)),
    }
}

pub fn roots(authority: &Authority) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let authority = CertificateDer::from_pem_slice(authority.pem.as_bytes()).expect("PEM");
    roots.add(authority).expect("a certificate");
    roots
}

/// Creates a caller that trusts `authority` and presents `pair`, with these versions of TLS only.
pub fn caller(
    authority: &Authority,
    pair: Option<&Pair>,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> TlsConnector {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(versions)
        .expect("versions")
        .with_root_certificates(roots(authority));
    let config = match pair {
        Some(pair) => {
            builder.with_client_auth_cert(pair.chain(), pair.private()).expect("a certificate")
        }
        None => builder.with_no_client_auth(),
    };
    TlsConnector::from(Arc::new(config))
}

/// Opens a TLS connection to `address`, by the name `localhost`.
pub async fn connect(
    connector: &TlsConnector,
    address: SocketAddr,
) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address).await.expect("weir listens");
    connector.connect(ServerName::try_from("localhost").expect("a name"), stream).await
}

/// Sends a request on a connection and reads its answer to the end of the connection.
pub async fn ask_over(
    stream: &mut TlsStream<TcpStream>,
    request: impl AsRef<[u8]>,
) -> std::io::Result<String> {
    stream.write_all(request.as_ref()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Creates a client of HTTP/1.1 and HTTP/2 that trusts `authority` and presents `pair`.
pub fn client(authority: &Authority, pair: Option<&Pair>) -> reqwest::Client {
    client_builder(authority, pair).build().expect("a client")
}

/// Returns the builder of such a client.
pub fn client_builder(authority: &Authority, pair: Option<&Pair>) -> reqwest::ClientBuilder {
    weir::upstream::install_tls_provider();
    let root = reqwest::Certificate::from_pem(authority.pem.as_bytes()).expect("PEM");
    let mut builder = reqwest::Client::builder().no_proxy().tls_certs_only([root]);
    if let Some(pair) = pair {
        let both = format!("{}{}", pair.cert, pair.key);
        let identity = reqwest::Identity::from_pem(both.as_bytes()).expect("PEM");
        builder = builder.identity(identity);
    }
    builder
}
