//! Two weir processes on one PostgreSQL server: one service, whichever of them answers or ends.

use std::process::Command;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use weir_store::Store;
use weir_store::ledger::{Flags, RequestQuery, RequestRow};

use super::places::{Place as _, Postgres};
use super::postgres::server;
use crate::cli::{Serving, weir};
use crate::eventually::{DEADLINE, eventually};
use crate::ledger::{post, whole};
use crate::scripted_upstream::{Options, Server};

/// The test servers do not require it, and it must not be readable anywhere.
const PASSWORD: &str = "sesame-of-the-database";

/// Returns the place's URL with a password in it.
fn url(place: &Postgres) -> String {
    let server = server();
    let (scheme, rest) = server.split_once("://").expect("a URL");
    let (user, host) = rest.split_once('@').expect("a user");
    if user.contains(':') {
        return place.url();
    }
    place.url_at(&format!("{scheme}://{user}:{PASSWORD}@{host}"))
}

fn serve(url: &str, upstream: &Server) -> Serving {
    let mut command = weir(&["serve", "--listen", "127.0.0.1:0", "--log-level", "trace"]);
    command.args(["--upstream", &upstream.base_url()]);
    command.env_remove("WEIR_STORE__PATH").env("WEIR_STORE__URL", url);
    command.env("WEIR_AUTH__MODE", "keys").env("WEIR_ADMIN__LISTEN", "off");
    command.env("WEIR_UPSTREAM__API_KEY", "env:OWN_KEY").env("OWN_KEY", "sk-the-providers");
    Serving::run(&mut command)
}

/// Runs a weir command and parses its JSON output.
fn json(command: &mut Command) -> Value {
    let output = command.output().expect("weir starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !said.contains(PASSWORD), "{said}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn request(secret: &str, more: &str, stream: bool) -> String {
    let headers = format!("authorization: Bearer {secret}\r\n{more}");
    let body = format!(
        r#"{{"model":"gpt-4o","stream":{stream},"messages":[{{"role":"user","content":"river"}}]}}"#
    );
    post("/v1/chat/completions", &headers, &body)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL"]
async fn they_are_one_service() {
    let place = Postgres::new();
    let url = url(&place);
    let upstream = Server::start(Options::default()).await.expect("a free port");
    let (first, second) = (serve(&url, &upstream), serve(&url, &upstream));
    let made = json(weir(&["keys", "create", "ci", "--json", "--store"]).arg(&url));
    let (id, secret) = (made["id"].as_str().expect("an id"), made["secret"].as_str());
    let secret = secret.expect("a secret").to_owned();
    for weir in [&first, &second] {
        let answer = whole(weir.address, &request(&secret, "", false)).await;
        assert!(answer.head.iter().any(|line| line.contains(" 200 ")), "{answer:?}");
    }
    let used = json(weir(&["usage", "--json", "--by", "key", "--store"]).arg(&url));
    assert_eq!((&used["key"], &used["requests"]), (&Value::from(id), &Value::from(2)));

    // One is killed in the middle of an answer, and the other settles its open request.
    let mut held = TcpStream::connect(first.address).await.expect("weir listens");
    let fault = "x-upstream-fault: hold_after:2\r\n";
    held.write_all(request(&secret, fault, true).as_bytes()).await.expect("weir reads");
    let mut received = Vec::new();
    while !String::from_utf8_lossy(&received).contains("data: ") {
        assert!(held.read_buf(&mut received).await.expect("it answers") > 0, "{received:?}");
    }
    assert_eq!(place.number("SELECT count(*) FROM weir_intent"), 1, "before it was sent");
    drop(first);
    // Simulates elapsed time: the server has not heard from the killed one for long.
    place.run(
        "UPDATE weir_instance SET since = since - interval '1 hour';
         UPDATE weir_instance SET seen = seen - interval '1 hour'
         WHERE id = (SELECT instance FROM weir_intent)",
    );
    let store = Store::connect(&url).expect("it is there");
    let is_killed = |row: &RequestRow| row.settlement.outcome == "killed";
    let read = async || store.requests(RequestQuery::default()).await.expect("it can be read");
    let rows = eventually(DEADLINE, read, |rows| rows.iter().any(is_killed)).await;
    assert_eq!(rows.len(), 3);
    let row = rows.into_iter().find(is_killed).expect("it was seen");
    assert!(row.settlement.flags.any(Flags::ESTIMATED), "{row:?}");

    let revoked = json(weir(&["keys", "revoke", id, "--json", "--store"]).arg(&url));
    assert!(revoked["revoked_ms"].is_u64(), "{revoked}");
    let ask = async || whole(second.address, &request(&secret, "", false)).await;
    eventually(DEADLINE, ask, |answer| answer.head[0].contains(" 401 ")).await;
    let said = format!("{}{}", second.greeting.clone(), second.log());
    assert!(said.contains("settled requests by rule") && !said.contains(PASSWORD), "{said}");
}

#[tokio::test]
async fn without_the_server_it_does_not_begin_and_says_so() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("it has one");
    drop(listener);
    let url = format!("postgres://weir:{PASSWORD}@{address}/weir");
    for arguments in [&["serve", "--listen", "127.0.0.1:0"][..], &["usage"], &["keys", "list"]] {
        let output = weir(arguments).args(["--store", &url]).output().expect("weir starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(&address.to_string()) && !said.contains(PASSWORD), "{said}");
    }
}
