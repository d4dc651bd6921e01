//! Server and admin API with certificates.

use rustls::version::{TLS12, TLS13};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use weir::admin::{Admin, Token};
use weir::config::{Config, Secret};
use weir_store::Store;

use super::setting::{Authority, ask_over, caller, client, connect, shown};
use crate::eventually::{DEADLINE, eventually};
use crate::server::harness::{FINE, Upstream, bare, body_of, chat, start};

const CLOSE: &str = "connection: close\r\n";

#[tokio::test]
async fn callers_speak_either_http_over_either_tls() {
    let authority = Authority::new("one");
    let upstream = Upstream::always(FINE).await;
    let weir = start(&upstream, |config| {
        config.server.tls = shown(&authority.issue("weir"), None);
    })
    .await;
    let url = format!("https://localhost:{}/v1/chat/completions", weir.address.port());
    let request = client(&authority, None).post(url).body(body_of(100));
    let answer = request.send().await.expect("an answer");
    assert_eq!(answer.version(), http::Version::HTTP_2);
    assert_eq!(answer.status(), 200);
    for version in [&TLS12, &TLS13] {
        let connector = caller(&authority, None, &[version]);
        let mut stream = connect(&connector, weir.address).await.expect("a handshake");
        let answer = ask_over(&mut stream, chat(CLOSE, body_of(100))).await.expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{version:?}: {answer}");
    }
}

#[tokio::test]
async fn callers_without_the_right_certificate_are_not_served() {
    let (authority, other) = (Authority::new("one"), Authority::new("other"));
    let upstream = Upstream::always(FINE).await;
    let weir = start(&upstream, |config| {
        config.server.tls = shown(&authority.issue("weir"), Some(&authority));
    })
    .await;
    let ask = async |pair| {
        let connector = caller(&authority, pair, &[&TLS13, &TLS12]);
        let mut stream = connect(&connector, weir.address).await?;
        ask_over(&mut stream, bare("GET", "/healthz", CLOSE)).await
    };
    let (own, foreign) = (authority.issue("app"), other.issue("app"));
    for (pair, is_served) in [(None, false), (Some(&foreign), false), (Some(&own), true)] {
        let answer = ask(pair).await;
        let served = answer.as_ref().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"));
        assert_eq!(served, is_served, "{answer:?}");
    }
}

/// An invalid handshake ends its own connection, and no other.
#[tokio::test]
async fn what_is_no_handshake_disturbs_nobody() {
    let authority = Authority::new("one");
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, |config| {
        config.server.tls = shown(&authority.issue("weir"), None);
    })
    .await;
    let connector = caller(&authority, None, &[&TLS13]);
    let mut stream = connect(&connector, weir.address).await.expect("a handshake");
    stream.write_all(&chat(CLOSE, body_of(100))).await.expect("sent");
    let seen = upstream.next().await;
    for bytes in [&bare("GET", "/healthz", "").into_bytes()[..], &[0x16, 3, 1, 0, 5, 1, 9, 9, 9, 9]]
    {
        let mut plain = TcpStream::connect(weir.address).await.expect("weir listens");
        plain.write_all(bytes).await.expect("sent");
        let mut rest = Vec::new();
        // A reset is also an end.
        let _ = plain.read_to_end(&mut rest).await;
        assert!(!String::from_utf8_lossy(&rest).contains("HTTP"), "{rest:?}");
    }
    seen.answer(FINE);
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("an answer");
    assert!(answer.starts_with(b"HTTP/1.1 200"));
}

/// A caller that does not begin its handshake occupies one connection slot, and only for a while.
#[tokio::test]
async fn a_handshake_takes_a_place_and_has_an_end() {
    let authority = Authority::new("one");
    let upstream = Upstream::always(FINE).await;
    let weir = start(&upstream, |config| {
        config.server.tls = shown(&authority.issue("weir"), None);
        config.server.max_connections = 1;
        config.server.header_timeout_ms = 2000;
    })
    .await;
    let mut silent = TcpStream::connect(weir.address).await.expect("weir listens");
    let connector = caller(&authority, None, &[&TLS13]);
    let ask = async || {
        let mut stream = connect(&connector, weir.address).await.expect("a handshake");
        ask_over(&mut stream, chat(CLOSE, body_of(100))).await.expect("an answer")
    };
    assert!(ask().await.starts_with("HTTP/1.1 503"));
    assert_eq!(silent.read(&mut [0; 1]).await.unwrap_or(0), 0, "it is closed");
    // Its slot is released a moment after the caller sees the end.
    eventually(DEADLINE, ask, |answer| answer.starts_with("HTTP/1.1 200")).await;
}

#[tokio::test]
async fn the_admin_api_has_a_certificate_of_its_own() {
    let authority = Authority::new("one");
    let mut config = Config::default();
    config.admin.tls = shown(&authority.issue("weir"), None);
    let secret = Secret::new("weir-admin-0123456789012345678901234567890");
    let store = Store::in_memory().expect("there is memory");
    let here = "127.0.0.1:0".parse().expect("an address");
    let admin = Admin::bind(here, &config, store, Token::new(&secret)).await.expect("a free port");
    let address = admin.address();
    tokio::spawn(admin.run(std::future::pending()));
    let url = format!("https://localhost:{}/admin/v1/keys", address.port());
    let request = client(&authority, None).get(url).bearer_auth(secret.expose());
    assert_eq!(request.send().await.expect("an answer").status(), 200);
    let mut plain = TcpStream::connect(address).await.expect("it listens");
    plain.write_all(bare("GET", "/admin/v1/keys", "").as_bytes()).await.expect("sent");
    let mut rest = Vec::new();
    let _ = plain.read_to_end(&mut rest).await;
    assert!(!String::from_utf8_lossy(&rest).contains("HTTP"), "{rest:?}");
}
