//! Upstreams with certificates: the authorities that weir trusts, the certificate that it presents,
//! and the HTTP versions in use.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::server::WebPkiClientVerifier;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use weir::config::{Config, Secret};
use weir::proxy::Proxy;
use weir::server::Server;
use weir_store::Store;

use super::setting::{Authority, Pair, roots};
use crate::server::harness::{Message, ask, body_of, chat, start};

/// The upstream's view of a request: the version of HTTP, and whether a client certificate was
/// presented.
type Seen = (http::Version, bool);

/// Starts an upstream with a certificate of `authority` and these protocols, which requires client
/// certificates of `asks`.
async fn upstream(
    authority: &Authority,
    asks: Option<&Authority>,
    protocols: &[&str],
) -> (SocketAddr, mpsc::UnboundedReceiver<Seen>) {
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("versions");
    let builder = match asks {
        Some(asks) => {
            let roots = Arc::new(roots(asks));
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
            builder.with_client_cert_verifier(verifier.expect("an authority"))
        }
        None => builder.with_no_client_auth(),
    };
    let pair = authority.issue("upstream");
    let mut config = builder.with_single_cert(pair.chain(), pair.private()).expect("a certificate");
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let (sees, seen) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, sees) = (acceptor.clone(), sees.clone());
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let is_shown = stream.get_ref().1.peer_certificates().is_some();
                let service = service_fn(move |request: Request<Incoming>| {
                    let _ = sees.send((request.version(), is_shown));
                    async { Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("{}")))) }
                });
                let builder = auto::Builder::new(TokioExecutor::new());
                // The other end observes how it ends.
                let _ = builder.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    (address, seen)
}

/// Sends a request through a weir configured by `change` to the upstream at `address`.
async fn asked(address: SocketAddr, change: impl FnOnce(&mut Config)) -> Message {
    let weir = start("unused", |config| {
        config.upstream.url = format!("https://localhost:{}/v1", address.port());
        change(config);
    })
    .await;
    ask(weir.address, chat("", body_of(100))).await
}

fn trust(config: &mut Config, authority: &Authority) {
    config.upstream.tls.ca = Some(Secret::new(&*authority.pem));
}

fn show(config: &mut Config, pair: &Pair) {
    config.upstream.tls.cert = Some(Secret::new(&*pair.cert));
    config.upstream.tls.key = Some(Secret::new(&*pair.key));
}

#[tokio::test]
async fn an_authority_of_ones_own_is_trusted_where_it_is_told() {
    let (authority, other) = (Authority::new("one"), Authority::new("other"));
    let (address, mut seen) = upstream(&authority, None, &["h2", "http/1.1"]).await;
    asked(address, |_| ()).await.assert_error(502, "upstream_connect");
    asked(address, |config| trust(config, &other)).await.assert_error(502, "upstream_connect");
    assert!(seen.try_recv().is_err());
    assert_eq!(asked(address, |config| trust(config, &authority)).await.status(), 200);
    assert_eq!(seen.recv().await, Some((http::Version::HTTP_2, false)));
    let (address, mut seen) = upstream(&authority, None, &["http/1.1"]).await;
    assert_eq!(asked(address, |config| trust(config, &authority)).await.status(), 200);
    assert_eq!(seen.recv().await, Some((http::Version::HTTP_11, false)));
}

#[tokio::test]
async fn a_certificate_is_shown_where_one_is_asked_for() {
    let (authority, callers) = (Authority::new("one"), Authority::new("callers"));
    let (own, foreign) = (callers.issue("weir"), authority.issue("weir"));
    let (address, mut seen) = upstream(&authority, Some(&callers), &["h2"]).await;
    assert_eq!(asked(address, |config| trust(config, &authority)).await.status(), 502);
    let with = async |pair: &Pair| {
        let change = |config: &mut Config| {
            trust(config, &authority);
            show(config, pair);
        };
        asked(address, change).await.status()
    };
    assert_eq!(with(&foreign).await, 502);
    assert!(seen.try_recv().is_err());
    assert_eq!(with(&own).await, 200);
    assert_eq!(seen.recv().await, Some((http::Version::HTTP_2, true)));
}

/// weir's listener works as an upstream: certificates on both ends of both connections.
#[tokio::test]
async fn certificates_go_both_ways() {
    let (authority, callers) = (Authority::new("one"), Authority::new("callers"));
    let (far, _seen) = upstream(&authority, None, &["h2"]).await;
    let inner = start("unused", |config| {
        config.upstream.url = format!("https://localhost:{}/v1", far.port());
        trust(config, &authority);
        config.server.tls = super::setting::shown(&authority.issue("inner"), Some(&callers));
    })
    .await;
    let answer = asked(inner.address, |config| {
        trust(config, &authority);
        show(config, &callers.issue("outer"));
    })
    .await;
    assert_eq!(answer.status(), 200);
}

#[tokio::test]
async fn a_file_of_no_use_is_named() {
    let client = |change: &dyn Fn(&mut Config)| {
        let mut config = Config::default();
        change(&mut config);
        let client = weir::upstream::Client::new(&config.upstream);
        client.map(drop).expect_err("nothing of use").to_string()
    };
    let said = client(&|config| config.upstream.tls.ca = Some(Secret::new("no PEM")));
    assert!(said.starts_with("upstream.tls.ca_file: "), "{said}");
    let said = client(&|config| {
        config.upstream.tls.cert = Some(Secret::new("no PEM"));
        config.upstream.tls.key = Some(Secret::new("no PEM"));
    });
    assert!(said.starts_with("upstream.tls.cert_file: "), "{said}");
    let mut config = Config::default();
    config.server.listen = "127.0.0.1:0".parse().expect("an address");
    let (one, other) = (Authority::new("one").issue("a"), Authority::new("one").issue("b"));
    config.server.tls = super::setting::shown(&Pair { cert: one.cert, key: other.key }, None);
    let client = weir::upstream::Client::new(&config.upstream).expect("a client");
    let store = Store::in_memory().expect("there is memory");
    let proxy = Proxy::new(Config::default().into(), client, store).expect("there is memory");
    let said = Server::bind(&config, proxy).await.map(drop).expect_err("no pair").to_string();
    let expected = "server.tls.key_file is not the key of the certificate in cert_file";
    assert_eq!(said, expected);
}
