//! Certificates that change at run time: new connections get the new one, open ones stay.

use std::net::SocketAddr;

use rustls::pki_types::CertificateDer;
use rustls::version::TLS13;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::setting::{Authority, Pair, caller, connect};
use crate::cli::{Serving, weir};
use crate::folder::Folder;
use crate::server::harness::bare;

const READ: &str = "the configuration was reloaded";

/// Starts a weir with the certificate in `folder`.
fn serving(folder: &Folder) -> Serving {
    let text = format!(
        "[server.tls]\ncert_file = {:?}\nkey_file = {:?}\n[upstream]\nurl = \"http://127.0.0.1:1/v1\"",
        folder.path("cert.pem"),
        folder.path("key.pem")
    );
    let config = folder.write("weir.toml", &text);
    Serving::run(&mut weir(&["serve", "--listen", "127.0.0.1:0", "--config", &config]))
}

/// Returns the certificate presented at `address`.
async fn shown(authority: &Authority, address: SocketAddr) -> CertificateDer<'static> {
    let stream = connect(&caller(authority, None, &[&TLS13]), address).await.expect("a handshake");
    let certificates = stream.get_ref().1.peer_certificates().expect("one is shown");
    certificates[0].clone().into_owned()
}

fn certificate(pair: &Pair) -> CertificateDer<'static> {
    pair.chain().remove(0)
}

#[tokio::test]
async fn new_connections_get_what_the_files_hold() {
    let authority = Authority::new("one");
    let folder = Folder::new();
    let pairs: Vec<Pair> = ["a", "b", "c"].map(|name| authority.issue(name)).to_vec();
    folder.write("cert.pem", &pairs[0].cert);
    folder.write("key.pem", &pairs[0].key);
    let mut serving = serving(&folder);
    let url = format!("base_url = https://localhost:{}/v1", serving.address.port());
    assert!(serving.greeting.contains(&url), "{}", serving.greeting);
    let address = serving.address;
    assert_eq!(shown(&authority, address).await, certificate(&pairs[0]));
    let connector = caller(&authority, None, &[&TLS13]);
    let mut open = connect(&connector, address).await.expect("a handshake");

    // Automatically, when the files have changed.
    folder.replace("cert.pem", &pairs[1].cert);
    folder.replace("key.pem", &pairs[1].key);
    serving.wait_for(READ);
    assert_eq!(shown(&authority, address).await, certificate(&pairs[1]));

    // A key and a certificate that do not match change nothing.
    folder.replace("cert.pem", &pairs[2].cert);
    serving.wait_for("weir.toml:3): is not the key of the certificate in cert_file");
    assert_eq!(shown(&authority, address).await, certificate(&pairs[1]));
    folder.replace("cert.pem", "half a certificate");
    serving.signal("-HUP");
    serving.wait_for("weir.toml:2): holds no certificate in PEM");
    assert_eq!(shown(&authority, address).await, certificate(&pairs[1]));
    std::fs::remove_file(folder.path("key.pem")).expect("it is there");
    serving.signal("-HUP");
    serving.wait_for("key.pem cannot be read");
    assert_eq!(shown(&authority, address).await, certificate(&pairs[1]));
    folder.write("cert.pem", &pairs[2].cert);
    folder.write("key.pem", &pairs[2].key);
    serving.signal("-HUP");
    serving.wait_for(READ);
    assert_eq!(shown(&authority, address).await, certificate(&pairs[2]));

    // A connection that was open all the time is still open.
    open.write_all(bare("GET", "/healthz", "connection: close\r\n").as_bytes())
        .await
        .expect("sent");
    let mut answer = String::new();
    open.read_to_string(&mut answer).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}
