//! Originals of shortened messages, requested by their references: over sockets, across restarts
//! and between processes.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use weir::config::{Config, Originals};
use weir_engine::compact::reference;
use weir_store::{Store, now_ms};

use crate::cli::{Serving, isolate, weir};
use crate::folder::Folder;
use crate::server::harness::{FINE, Message, Upstream, ask, bare, chat, start, start_with};

pub const ALICE: &str = "authorization: Bearer alice\r\n";
const BOB: &str = "authorization: Bearer bob\r\n";
const REFUSED: &str = "HTTP/1.1 401 Unauthorized\r\ncontent-length: 2\r\n\r\n{}";

/// Returns the raw messages of a conversation whose large ones have about this many words.
pub fn conversation(words: usize) -> Vec<String> {
    let text = |name: String| format!("{name} {}", "said \\u00fcnd dônë ".repeat(words / 3 + 1));
    let mut messages = vec![r#"{"role":"system","content":"be brief"}"#.to_owned()];
    for turn in 0..10 {
        let (question, answer) = (text(format!("q{turn}")), text(format!("a{turn}")));
        messages.push(format!(r#"{{ "role": "user", "content": "{question}" }}"#));
        messages.push(format!(r#"{{"content":"{answer}","role":"assistant"}}"#));
    }
    messages.push(r#"{"role":"user","content":"and now?"}"#.to_owned());
    messages
}

/// Builds a request with these messages and a limit that removes many of them.
pub fn limited(credential: &str, messages: &[String]) -> Vec<u8> {
    let bytes: usize = messages.iter().map(String::len).sum();
    let headers = format!("{credential}x-weir-max-input-tokens: {}\r\n", bytes / 8);
    chat(&headers, format!(r#"{{"model":"gpt-4o","messages":[{}]}}"#, messages.join(",")))
}

/// Sends a conversation; returns the messages that did not arrive whole, and those that did.
pub async fn cut<'a>(
    address: SocketAddr,
    upstream: &mut Upstream,
    request: Vec<u8>,
    messages: &'a [String],
    answer: &str,
) -> (Vec<&'a String>, Vec<&'a String>) {
    let asking = tokio::spawn(async move { ask(address, request).await });
    let seen = upstream.next().await;
    let sent = String::from_utf8(seen.body.clone()).expect("text");
    seen.answer(answer);
    let answered = asking.await.expect("it is answered");
    let action = answered.header("x-weir-action").expect("it was read");
    assert!(action.contains("evict"), "{action}");
    // A note may be appended to a kept message, so the search is for its text.
    let text = |message: &str| message.split('"').max_by_key(|part| part.len()).map(str::to_owned);
    let (whole, left_out): (Vec<_>, Vec<_>) =
        messages.iter().partition(|message| text(message).is_some_and(|text| sent.contains(&text)));
    assert!(left_out.len() > 5 && whole.len() >= 2, "{} of {}", left_out.len(), messages.len());
    (left_out, whole)
}

/// Runs [`cut`] with `credential` and an upstream that accepts the request.
pub async fn accepted<'a>(
    address: SocketAddr,
    upstream: &mut Upstream,
    credential: &str,
    messages: &'a [String],
) -> (Vec<&'a String>, Vec<&'a String>) {
    cut(address, upstream, limited(credential, messages), messages, FINE).await
}

async fn original(address: SocketAddr, credential: &str, raw_message: &str) -> Message {
    let path = format!("/weir/v1/originals/{}", reference(raw_message));
    ask(address, bare("GET", &path, credential)).await
}

fn in_memory(config: &mut Config) {
    config.context.originals = Originals::Memory;
}

#[tokio::test]
async fn a_caller_gets_what_was_left_out_and_nobody_else_does() {
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, in_memory).await;
    let messages = conversation(60);
    let (left_out, whole) = accepted(weir.address, &mut upstream, ALICE, &messages).await;
    for message in left_out {
        let found = original(weir.address, ALICE, message).await;
        assert_eq!(found.status(), 200, "{message}");
        assert_eq!(found.header("content-type"), Some("application/json"));
        assert_eq!(found.header("cache-control"), Some("no-store"));
        assert_eq!(found.body, message.as_bytes(), "byte for byte");
        for other in [BOB, "api-key: Bearer alice\r\n", "authorization: Bearer alic\r\n"] {
            original(weir.address, other, message).await.assert_error(404, "not_found");
        }
        for nobody in ["", "authorization: Bearer \r\n", "cookie: a=b\r\n"] {
            let refused = original(weir.address, nobody, message).await;
            let said = refused.assert_error(403, "credential_required");
            assert!(said.contains("authorization"), "{said}");
        }
    }
    for message in whole {
        original(weir.address, ALICE, message).await.assert_error(404, "not_found");
    }
}

#[tokio::test]
async fn a_clipped_message_is_kept_whole() {
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, in_memory).await;
    let call = r#"{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"read","arguments":"{}"}}]}"#;
    let result =
        format!(r#"{{"role":"tool","tool_call_id":"c1","content":"{}"}}"#, "line ".repeat(9000));
    let body = format!(
        r#"{{"model":"gpt-4o","messages":[{{"role":"user","content":"read it"}},{call},{result}]}}"#
    );
    let headers = format!("{ALICE}x-weir-max-input-tokens: 6000\r\n");
    let address = weir.address;
    let asking = tokio::spawn(async move { ask(address, chat(&headers, body)).await });
    upstream.next().await.answer(FINE);
    let answered = asking.await.expect("it is answered");
    assert_eq!(answered.header("x-weir-action"), Some("fit"));
    assert_eq!(original(weir.address, ALICE, &result).await.body, result.as_bytes());
    original(weir.address, ALICE, call).await.assert_error(404, "not_found");
}

#[tokio::test]
async fn only_references_are_looked_up() {
    let weir = start("127.0.0.1:1", in_memory).await;
    let known = reference("{}");
    let rows = [
        ("GET", format!("/weir/v1/originals/{known}"), 404),
        ("HEAD", format!("/weir/v1/originals/{known}"), 404),
        ("GET", "/weir/v1/originals/".to_owned(), 404),
        ("GET", "/weir/v1/originals".to_owned(), 404),
        ("GET", format!("/weir/v1/originals/{known}/"), 404),
        ("GET", format!("/weir/v1/originals/{}", known.to_uppercase()), 404),
        ("GET", format!("/weir/v1/originals/{}", "a".repeat(10_000)), 404),
        ("GET", "/weir/v1/originals/%00%ff'--".to_owned(), 404),
        ("DELETE", format!("/weir/v1/originals/{known}"), 405),
        ("POST", format!("/weir/v1/originals/{known}"), 405),
    ];
    for (method, path, expected) in rows {
        let mut wire = crate::server::harness::Wire::connect(weir.address).await;
        wire.send(bare(method, &path, ALICE)).await;
        let head = wire.head().await.expect("an answer");
        assert!(head.starts_with(&format!("HTTP/1.1 {expected}")), "{method} {path}: {head}");
        assert_eq!(
            head.contains("\nallow: GET, HEAD\r"),
            expected == 405,
            "{method} {path}: {head}"
        );
    }
    for (name, value, code) in [
        ("host", "evil.example", "host_not_allowed"),
        ("origin", "https://evil.example", "origin_not_allowed"),
    ] {
        let host = if name == "host" { "" } else { "host: localhost\r\n" };
        let path = format!("/weir/v1/originals/{known}");
        let request = format!("GET {path} HTTP/1.1\r\n{host}{name}: {value}\r\n{ALICE}\r\n");
        ask(weir.address, request).await.assert_error(403, code);
    }
}

#[tokio::test]
async fn nothing_is_kept_unless_asked_and_accepted() {
    let mut upstream = Upstream::start().await;
    let messages = conversation(60);
    let off = start(&upstream.address, |_| {}).await;
    let (left_out, _) = accepted(off.address, &mut upstream, ALICE, &messages).await;
    let said = original(off.address, ALICE, left_out[0]).await.assert_error(404, "not_found");
    assert!(said.contains("context.originals"), "{said}");
    original(off.address, "", left_out[0]).await.assert_error(403, "credential_required");

    let on = start(&upstream.address, in_memory).await;
    let request = limited(ALICE, &messages);
    let (left_out, _) = cut(on.address, &mut upstream, request, &messages, REFUSED).await;
    for message in &left_out {
        original(on.address, ALICE, message).await.assert_error(404, "not_found");
    }
    // A message that was not saved with one request is saved with the next.
    accepted(on.address, &mut upstream, ALICE, &messages).await;
    assert_eq!(original(on.address, ALICE, left_out[0]).await.status(), 200);
}

#[tokio::test]
async fn originals_have_a_limit() {
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, |config| {
        config.context.originals = Originals::Memory;
        config.context.originals_max_bytes = 10_000;
    })
    .await;
    let (small, large) = (conversation(100), conversation(2000));
    let (left_out, _) = accepted(weir.address, &mut upstream, ALICE, &small).await;
    let mut kept_bytes = 0;
    for message in &left_out {
        let found = original(weir.address, ALICE, message).await;
        kept_bytes += if found.status() == 200 { found.body.len() } else { 0 };
    }
    assert!((5_000..=10_000).contains(&kept_bytes), "{kept_bytes} of 10000 bytes");
    // None of these fits, and none takes the room of those that do.
    let (too_large, _) = accepted(weir.address, &mut upstream, ALICE, &large).await;
    original(weir.address, ALICE, too_large[0]).await.assert_error(404, "not_found");
    let last = left_out.last().expect("many were left out");
    assert_eq!(original(weir.address, ALICE, last).await.status(), 200);
}

#[tokio::test]
async fn what_is_written_has_an_end_and_no_credential() {
    const LIFETIME_MS: u64 = 5_000_000;
    let mut upstream = Upstream::start().await;
    let folder = Folder::new();
    let file = folder.file("weir.db");
    let store = Store::open(&file).expect("it is made");
    let weir = start_with(store, &upstream.address, |config| {
        config.context.originals = Originals::Store;
        config.context.originals_lifetime_ms = LIFETIME_MS;
    })
    .await;
    let messages = conversation(60);
    let began_ms = now_ms();
    let (left_out, _) = accepted(weir.address, &mut upstream, ALICE, &messages).await;
    assert_eq!(original(weir.address, ALICE, left_out[0]).await.status(), 200);
    let database = rusqlite::Connection::open(&file).expect("it was just made");
    let ends = "SELECT count(*), min(expires_ms), max(expires_ms) FROM entry";
    let [entries, first_ms, last_ms]: [i64; 3] = database
        .query_row(ends, [], |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?]))
        .expect("a row");
    assert_eq!(entries, left_out.len() as i64);
    let ends = (began_ms + LIFETIME_MS) as i64..=(now_ms() + LIFETIME_MS) as i64;
    assert!(ends.contains(&first_ms) && ends.contains(&last_ms), "{first_ms} {last_ms} {ends:?}");
    for name in ["weir.db", "weir.db-wal"] {
        let content = std::fs::read(folder.file(name)).expect("it is there");
        assert!(!content.windows(5).any(|window| window == b"alice"), "{name}");
    }
}

/// Starts a weir process in front of `upstream`, on this file.
fn process(upstream: &Upstream, file: &Path, originals: &str) -> Serving {
    let url = format!("http://{}/v1", upstream.address);
    let mut command = weir(&["serve", "--listen", "127.0.0.1:0", "--upstream", &url, "--store"]);
    Serving::run(command.arg(file).env("WEIR_CONTEXT__ORIGINALS", originals))
}

#[tokio::test]
async fn the_store_outlives_the_process_and_memory_does_not() {
    let mut upstream = Upstream::start().await;
    let folder = Folder::new();
    let messages = conversation(60);
    for (originals, signal, expected) in
        [("store", "-TERM", 200), ("store", "-KILL", 200), ("memory", "-TERM", 404)]
    {
        let file = folder.file(&format!("{originals}{signal}.db"));
        let first = process(&upstream, &file, originals);
        let (left_out, _) = accepted(first.address, &mut upstream, ALICE, &messages).await;
        if signal == "-KILL" {
            // A killed process keeps the originals that it has already returned.
            assert_eq!(original(first.address, ALICE, left_out[0]).await.status(), 200);
        }
        first.signal(signal);
        first.ended();
        let second = process(&upstream, &file, originals);
        for message in left_out {
            let found = original(second.address, ALICE, message).await;
            assert_eq!(found.status(), expected, "{originals} {signal}");
            original(second.address, BOB, message).await.assert_error(404, "not_found");
        }
    }
}

#[tokio::test]
async fn two_processes_share_a_file() {
    let mut upstream = Upstream::start().await;
    let folder = Folder::new();
    let file = folder.file("weir.db");
    let both = [process(&upstream, &file, "store"), process(&upstream, &file, "store")];
    for (writer, reader) in [(0, 1), (1, 0)] {
        let messages = conversation(60 + writer);
        let address = both[writer].address;
        let (left_out, _) = accepted(address, &mut upstream, ALICE, &messages).await;
        for message in left_out {
            assert_eq!(original(address, ALICE, message).await.status(), 200);
            let found = original(both[reader].address, ALICE, message).await;
            assert_eq!(found.body, message.as_bytes());
        }
    }
}

/// A start that ends: its exit code and what it printed.
fn ended_start(command: &mut Command) -> (Option<i32>, String) {
    let output = command.output().expect("weir can be started");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Makes files that exist and cannot be used: the name of each, and words of its cause and its cure.
fn unusable_files(folder: &Folder) -> Vec<(PathBuf, [&'static str; 2])> {
    std::fs::create_dir(folder.file("folder")).expect("the folder can be written");
    std::fs::write(folder.file("file"), "").expect("the folder can be written");
    let sound = folder.file("sound.db");
    drop(Store::open(&sound).expect("the file can be written"));
    let whole = std::fs::read(&sound).expect("it is there");
    let changed = |name: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = whole.clone();
        change(&mut bytes);
        std::fs::write(folder.file(name), bytes).expect("the folder can be written");
        folder.file(name)
    };
    // `user_version` in the header of a SQLite file.
    let later =
        changed("later.db", &|bytes| bytes[60..64].copy_from_slice(&9999_u32.to_be_bytes()));
    let foreign = changed("foreign.db", &|bytes| bytes[..16].fill(b'x'));
    let torn = changed("torn.db", &|bytes| bytes[100..4096].fill(0xff));
    vec![
        (later, ["a later version of weir", "Start the version of weir that wrote it"]),
        (foreign, ["not weir's", "restore a backup"]),
        (torn, ["malformed", "restore a backup"]),
        (folder.file("folder"), ["it is not a file", "--store"]),
        (folder.file("file/weir.db"), ["cannot be used", "--store"]),
        ("/proc/weir/weir.db".into(), ["cannot be used", "--store"]),
    ]
}

#[test]
fn a_store_that_cannot_be_used_ends_the_start_with_cause_and_cure() {
    let folder = Folder::new();
    for (path, words) in unusable_files(&folder) {
        let mut command = weir(&["serve", "--listen", "127.0.0.1:0", "--store"]);
        let (code, said) = ended_start(command.arg(&path));
        assert_eq!(code, Some(1), "{path:?}: {said}");
        assert!(words.iter().all(|word| said.contains(word)), "{words:?} in {said}");
    }
    // The file that nobody configured, if it exists.
    let (folder, state) = (Folder::new(), Folder::new());
    let (later, words) = unusable_files(&folder).swap_remove(0);
    std::fs::create_dir(state.file("weir")).expect("the folder can be written");
    std::fs::copy(later, state.file("weir/weir.db")).expect("it can be copied");
    let mut command = weir(&["serve", "--listen", "127.0.0.1:0"]);
    command.env_remove("WEIR_STORE__PATH").env("XDG_STATE_HOME", state.file(""));
    let (code, said) = ended_start(&mut command);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(words[0]), "{said}");
}

#[tokio::test]
async fn a_store_that_nobody_configured_and_that_is_missing_gives_way_to_memory() {
    let mut upstream = Upstream::start().await;
    let url = format!("http://{}/v1", upstream.address);
    let start = || {
        let mut command = weir(&["serve", "--listen", "127.0.0.1:0", "--upstream", &url]);
        command
            .env_remove("WEIR_STORE__PATH")
            .env("XDG_STATE_HOME", "/proc")
            .env("WEIR_CONTEXT__ORIGINALS", "store");
        command
    };
    let serving = Serving::run(&mut start());
    let said = &serving.greeting;
    assert!(said.contains("keeping the store in memory"), "{said}");
    assert!(said.contains("--store"), "{said}");
    let ready = ask(serving.address, bare("GET", "/readyz", "")).await;
    assert_eq!(ready.body, br#"{"status":"ready","store":"memory"}"#);
    let messages = conversation(60);
    let (left_out, _) = accepted(serving.address, &mut upstream, ALICE, &messages).await;
    assert_eq!(original(serving.address, ALICE, left_out[0]).await.status(), 200);
    for key in ["WEIR_LEDGER__ON_FAILURE", "WEIR_BUDGETS__ON_FAILURE"] {
        let (code, said) = ended_start(start().env(key, "closed"));
        assert_eq!(code, Some(1), "{key}: {said}");
    }
}

#[test]
fn budgets_without_records_are_said_or_refused() {
    let folder = Folder::new();
    let store = folder.path("weir.db");
    let set = ["budgets", "set", "all", "--usd", "1", "--per", "total", "--store", &store];
    assert!(weir(&set).output().expect("weir can be started").status.success());
    let start = || {
        let mut command = weir(&["serve", "--listen", "127.0.0.1:0", "--store", &store]);
        command.env("WEIR_LEDGER__ENABLED", "false");
        command
    };
    let serving = Serving::run(&mut start());
    assert!(serving.greeting.contains("makes all budgets whole again"), "{}", serving.greeting);
    drop(serving);
    let (code, said) = ended_start(start().env("WEIR_BUDGETS__ON_FAILURE", "closed"));
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("weir budgets remove"), "{said}");
}

#[tokio::test]
async fn the_file_is_in_the_state_folder_unless_told() {
    let upstream = Upstream::start().await;
    let folder = Folder::new();
    let url = format!("http://{}/v1", upstream.address);
    let mut command = weir(&["serve", "--listen", "127.0.0.1:0", "--upstream", &url]);
    command.env_remove("WEIR_STORE__PATH").env("XDG_STATE_HOME", folder.file("state"));
    let serving = Serving::run(&mut command);
    let ready = ask(serving.address, bare("GET", "/readyz", "")).await;
    assert_eq!(ready.body, br#"{"status":"ready","store":"file"}"#);
    assert!(folder.file("state/weir/weir.db").is_file());
}

/// Shell that limits the size of a process's files to this many kilobytes: to the process, this is
/// a full disk.
#[cfg(unix)]
pub fn on_a_small_disk(kilobytes: usize, arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    let blocks = kilobytes * 2;
    let script = format!("ulimit -f {blocks}; exec \"$0\" \"$@\"");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_weir")]).args(arguments);
    isolate(&mut command);
    command
}

#[cfg(unix)]
#[tokio::test]
async fn a_full_disk_costs_the_originals_and_no_request() {
    let mut upstream = Upstream::start().await;
    let folder = Folder::new();
    let url = format!("http://{}/v1", upstream.address);
    let file = folder.file("weir.db");
    let file = file.to_str().expect("text");
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--upstream", &url, "--store", file];
    let mut command = on_a_small_disk(1000, &arguments);
    // The journal's small writes may still fit, and the store would then work again.
    command.env("WEIR_CONTEXT__ORIGINALS", "store").env("WEIR_LEDGER__ENABLED", "false");
    let mut serving = Serving::run(&mut command);
    let (small, large) = (conversation(60), conversation(20_000));
    let (left_out, _) = accepted(serving.address, &mut upstream, ALICE, &small).await;
    assert_eq!(original(serving.address, ALICE, left_out[0]).await.status(), 200);
    let (lost, _) = accepted(serving.address, &mut upstream, ALICE, &large).await;
    serving.wait_for("the store cannot be written");
    original(serving.address, ALICE, lost[0]).await.assert_error(404, "not_found");
    let ready = ask(serving.address, bare("GET", "/readyz", "")).await;
    assert_eq!(ready.body, br#"{"status":"ready","store":"failing"}"#);
    assert_eq!(original(serving.address, ALICE, left_out[0]).await.status(), 200);
}
