//! Contents that the journal must not hold: texts of conversations and callers' keys. Checks the
//! log at its most verbose, weir's own errors, and each of the store's files after a kill.

use std::path::Path;
use std::process::Command;

use weir_store::Store;
use weir_store::ledger::RequestQuery;

use super::post;
use crate::cli::{Serving, isolate, weir};
use crate::folder::Folder;
use crate::keys::setting::{OWN_KEY, bearer};
use crate::scripted_upstream::{Options, Seen, Server};
use crate::server::harness::{Message, Wire, ask, chat};
use crate::store::victim::logs;

const PROMPT: &str = "PROMPT-that-is-nobodys-business";
const ANSWER: &str = "ANSWER-that-is-nobodys-business";

fn serving(store: &Path, upstream: &Server) -> Serving {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--log-level", "trace", "--upstream"]);
    command.arg(upstream.base_url());
    isolate(&mut command);
    for (name, value) in [
        ("WEIR_AUTH__MODE", "keys"),
        ("WEIR_ADMIN__LISTEN", "127.0.0.1:0"),
        ("WEIR_LEDGER__ON_FAILURE", "closed"),
        ("WEIR_CONTEXT__ORIGINALS", "off"),
        ("WEIR_UPSTREAM__API_KEY", "env:OWN_KEY_OF_THIS_TEST"),
        ("OWN_KEY_OF_THIS_TEST", OWN_KEY),
    ] {
        command.env(name, value);
    }
    Serving::run(command.env("WEIR_STORE__PATH", store))
}

/// Creates a virtual key; returns its id and its secret.
fn key(store: &Path) -> (String, String) {
    let path = store.to_str().expect("a plain path");
    let made = weir(&["keys", "--store", path, "--json", "create", "a"]).output();
    let made: serde_json::Value =
        serde_json::from_slice(&made.expect("weir starts").stdout).expect("JSON");
    let text = |name: &str| made[name].as_str().expect("a text").to_owned();
    (text("id"), text("secret"))
}

fn body(more: &str) -> String {
    format!(
        r#"{{"model":"gpt-4o","messages":[{{"role":"user","content":"{PROMPT}"}}],"user":"someone"{more}}}"#
    )
}

/// Weir's own errors among all answers.
#[derive(Default)]
struct Errors(String, usize);

impl Errors {
    fn note(&mut self, answer: &Message) {
        if answer.header("x-weir-error").is_some() {
            self.0.push_str(&answer.head);
            self.0.push_str(&String::from_utf8_lossy(&answer.body));
            self.1 += 1;
        }
    }
}

/// Sends requests that end by themselves, with or without an error.
async fn ask_all(serving: &Serving, key: &str, errors: &mut Errors) {
    let script = format!("x-upstream-script: {{\"text\":\"{ANSWER}\"}}\r\n");
    let stream = r#","stream":true"#;
    let asked = r#","stream":true,"stream_options":{"include_usage":true}"#;
    let small = "x-weir-max-input-tokens: 1\r\n";
    for (headers, body) in [
        (script.clone(), body("")),
        (script.clone(), body(stream)),
        (script, body(asked)),
        ("x-upstream-fault: status:500\r\n".to_owned(), body("")),
        ("x-upstream-fault: close\r\n".to_owned(), body("")),
        ("x-upstream-fault: garbage\r\n".to_owned(), body("")),
        (small.to_owned(), body("")),
        (String::new(), format!("{{\"model\": {PROMPT}")),
    ] {
        let headers = format!("{}{headers}", bearer(key));
        errors.note(&ask(serving.address, chat(&headers, body)).await);
    }
    let input = format!(r#"{{"model":"gpt-4o","input":"{PROMPT}"}}"#);
    for path in ["/v1/embeddings", "/v1/responses", "/v1/batches"] {
        let request = post(path, &bearer(key), &input);
        errors.note(&ask(serving.address, request).await);
    }
}

/// Starts a stream that the upstream holds in the middle.
async fn held(serving: &Serving, key: &str) -> Wire {
    let script = format!("{{\"text\":\"{ANSWER} {ANSWER} {ANSWER}\"}}");
    let headers =
        format!("{}x-upstream-fault: hold_after:3\r\nx-upstream-script: {script}\r\n", bearer(key));
    let mut wire = Wire::connect(serving.address).await;
    wire.send(chat(&headers, body(r#","stream":true"#))).await;
    assert!(wire.head().await.expect("a head").contains(" 200 "));
    assert!(wire.chunk().await.is_some());
    wire
}

/// Returns the bytes of all the store's files.
fn files(store: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    for ending in ["", "-wal", "-shm"] {
        let mut name = store.as_os_str().to_owned();
        name.push(ending);
        // SQLite removes two of them when it closes.
        bytes.extend(std::fs::read(name).unwrap_or_default());
    }
    for log in logs(store) {
        // A write-ahead log that was checkpointed may be removed by now.
        bytes.extend(std::fs::read(log).unwrap_or_default());
    }
    bytes
}

fn contains(bytes: &[u8], wanted: &str) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted.as_bytes())
}

#[tokio::test]
async fn the_journal_holds_no_secret_and_no_content() {
    let folder = Folder::new();
    let store = folder.file("weir.db");
    let upstream = Server::start(Options::default()).await.expect("a free port");
    let first = serving(&store, &upstream);
    let (id, secret) = key(&store);
    let guessed = format!("sk-weir-{}", "G".repeat(43));
    let mut errors = Errors::default();
    // A file at the path of the logs' folder.
    let in_the_way = folder.file("weir.db.instances");
    std::fs::write(&in_the_way, "").expect("it can be written");
    let refused = ask(first.address, chat(&bearer(&secret), body(""))).await;
    refused.assert_error(503, "store_unavailable");
    errors.note(&refused);
    std::fs::remove_file(in_the_way).expect("it is there");
    ask_all(&first, &secret, &mut errors).await;
    ask_all(&first, &guessed, &mut errors).await;

    // One caller that leaves, and one that is connected when weir is killed.
    drop(held(&first, &secret).await);
    let in_flight = held(&first, &secret).await;
    first.signal("-KILL");
    let token = std::fs::read_to_string(folder.file("admin.token")).expect("beside the store");
    // The token is printed once, when it is created.
    let mut log = first.greeting.replace(token.trim(), "");
    log.push_str(&first.log());
    drop(in_flight);
    let after_kill = files(&store);
    upstream.wait_for(|log| log.iter().all(Seen::ended)).await;
    let second = serving(&store, &upstream);
    log.push_str(&second.greeting);
    log.push_str(&second.log());
    let at_end = files(&store);

    let handle = Store::open(&store).expect("it is sound");
    let rows = handle.requests(RequestQuery::default()).await.expect("it can be read");
    let killed = rows.iter().filter(|row| row.settlement.outcome == "killed").count();
    assert!(killed >= 1, "{rows:#?}");
    assert!(contains(log.as_bytes(), &id) && contains(log.as_bytes(), "TRACE"), "it is loud");
    assert!(contains(&after_kill, &id) && contains(&at_end, "gpt-4o"), "rows are in the files");
    assert!(errors.1 > 10, "{}", errors.1);
    let told = format!("{rows:?}");
    for secret in [&*secret, &guessed, OWN_KEY, token.trim(), PROMPT, ANSWER] {
        // The part after the prefix would be as bad.
        let tail = secret.strip_prefix("sk-weir-").unwrap_or(secret);
        for (place, bytes) in [
            ("the log", log.as_bytes()),
            ("errors", errors.0.as_bytes()),
            ("rows", told.as_bytes()),
            ("the files after the kill", &after_kill),
            ("the files in the end", &at_end),
        ] {
            assert!(!contains(bytes, tail), "{tail} in {place}");
        }
    }
}
