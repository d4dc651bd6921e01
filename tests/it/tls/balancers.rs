//! Load balancers that report the client's address: weir trusts the configured ones only.

use std::net::SocketAddr;

use rustls::pki_types::ServerName;
use rustls::version::TLS13;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::setting::{Authority, ask_over, caller, shown};
use crate::server::harness::{FINE, Upstream, Weir, bare, body_of, chat, start};
use crate::upstream::{capture_log, log_line};

const CLOSE: &str = "connection: close\r\n";
const FIRST: &[u8] = b"PROXY TCP4 192.0.2.7 10.0.0.1 8080 443\r\n";
/// Header of version 2 for the same connection.
const SECOND: &[u8] =
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x07\x0a\0\0\x01\x1f\x90\x01\xbb";
/// The balancer's own connection: a health check.
const LOCAL: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";

/// Starts a weir that trusts `balancers`.
async fn behind(balancers: &str, tls: Option<&Authority>) -> Weir {
    capture_log();
    let upstream = Upstream::always(FINE).await;
    let pair = tls.map(|authority| authority.issue("weir"));
    start(&upstream, |config| {
        config.server.proxy_protocol_from = vec![balancers.parse().expect("a network")];
        config.server.header_timeout_ms = 2000;
        if let Some(pair) = &pair {
            config.server.tls = shown(pair, None);
        }
    })
    .await
}

/// Sends `pieces` one by one on a connection, and returns the answer.
async fn sent(address: SocketAddr, pieces: &[&[u8]]) -> String {
    let mut stream = TcpStream::connect(address).await.expect("weir listens");
    stream.set_nodelay(true).expect("a TCP socket");
    for piece in pieces {
        stream.write_all(piece).await.expect("sent");
        tokio::task::yield_now().await;
    }
    let mut answer = Vec::new();
    // A reset is also an end.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn the_log_tells_whose_connection_it_was() {
    let weir = behind("127.0.0.0/8", None).await;
    let request = chat(CLOSE, body_of(100));
    for (header, expected) in [(FIRST, "192.0.2.7"), (SECOND, "192.0.2.7"), (LOCAL, "127.0.0.1")] {
        let answer = sent(weir.address, &[header, &request]).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert_eq!(log_line()["address"], expected);
        // Split at any point.
        let both = [header, &request].concat();
        for at in [1, 5, 13, 17, header.len() - 1, header.len() + 1] {
            let answer = sent(weir.address, &[&both[..at], &both[at..]]).await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{at}: {answer}");
            assert_eq!(log_line()["address"], expected, "{at}");
        }
    }
}

#[tokio::test]
async fn a_balancer_has_to_say_it() {
    let weir = behind("127.0.0.1/32", None).await;
    let health = bare("GET", "/healthz", CLOSE);
    assert_eq!(sent(weir.address, &[health.as_bytes()]).await, "");
    assert_eq!(sent(weir.address, &[&[b'\r'; 5000]]).await, "");
    let endless = [SECOND[..14].to_vec(), vec![0xff, 0xff], vec![0; 5000]].concat();
    assert_eq!(sent(weir.address, &[&endless]).await, "", "too long");
    assert_eq!(sent(weir.address, &[b"PROXY TCP4 192"]).await, "", "too late");
    let answer = sent(weir.address, &[LOCAL, health.as_bytes()]).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// A request that is refused before it is forwarded is also logged with its address.
#[tokio::test]
async fn the_log_tells_whose_request_was_refused() {
    let weir = behind("127.0.0.0/8", None).await;
    for (request, status) in [
        (bare("GET", "/weir/unknown", CLOSE), "404"),
        (bare("PATCH", "/weir/v1/plan", CLOSE), "405"),
        (bare("POST", "/v1/chat/completions", &format!("{CLOSE}content-encoding: x\r\n")), "415"),
    ] {
        let answer = sent(weir.address, &[FIRST, request.as_bytes()]).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
        assert_eq!(log_line()["address"], "192.0.2.7", "{request}");
    }
}

/// From any other address it is invalid HTTP.
#[tokio::test]
async fn nobody_else_is_believed() {
    let weir = behind("10.0.0.0/8", None).await;
    for header in [FIRST, SECOND] {
        let answer = sent(weir.address, &[header]).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    }
    let answer = sent(weir.address, &[&chat(CLOSE, body_of(100))]).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(log_line()["address"], "127.0.0.1");
}

#[tokio::test]
async fn the_header_stands_before_the_handshake() {
    let authority = Authority::new("one");
    let weir = behind("127.0.0.1/32", Some(&authority)).await;
    let mut stream = TcpStream::connect(weir.address).await.expect("weir listens");
    stream.write_all(SECOND).await.expect("sent");
    let name = ServerName::try_from("localhost").expect("a name");
    let connector = caller(&authority, None, &[&TLS13]);
    let mut stream = connector.connect(name, stream).await.expect("a handshake");
    let answer = ask_over(&mut stream, chat(CLOSE, body_of(100))).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(log_line()["address"], "192.0.2.7");
}
