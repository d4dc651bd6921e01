//! One change at a time, through a running `weir serve`.

use std::net::SocketAddr;
use std::os::unix::fs::symlink;

use serde_json::Value;

use crate::cli::{Serving, weir};
use crate::folder::Folder;
use crate::server::harness::{FINE, Message, Upstream, ask, bare, body_of, chat};

const READ: &str = "the configuration was reloaded";

/// Starts a weir with configuration `text` in front of an upstream.
async fn serving(folder: &Folder, text: &str) -> (Serving, Upstream) {
    let upstream = Upstream::start().await;
    let config = folder.write("weir.toml", &told(&upstream.address, text));
    (serve(&config), upstream)
}

fn serve(config: &str) -> Serving {
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--config", config];
    Serving::run(&mut weir(&arguments))
}

fn told(upstream: &str, text: &str) -> String {
    format!("{text}\n[upstream]\nurl = \"http://{upstream}/v1\"\n")
}

fn limited(tokens: u64) -> String {
    format!("[[limits]]\nmodel = \"gpt-4o\"\nmax_input_tokens = {tokens}\n")
}

/// Sends a request, which `upstream` answers.
async fn answered(serving: &Serving, upstream: &mut Upstream) -> (Message, String) {
    let asked = ask(serving.address, chat("", body_of(100)));
    let given = async {
        let seen = upstream.next().await;
        let head = seen.head.clone();
        seen.answer(FINE);
        head
    };
    tokio::join!(asked, given)
}

async fn limit(serving: &Serving, upstream: &mut Upstream) -> String {
    let (answer, _) = answered(serving, upstream).await;
    answer.header("x-weir-limit-tokens").expect("it is told").to_owned()
}

async fn readiness(serving: &Serving) -> Value {
    let answer = ask(serving.address, bare("GET", "/readyz", "")).await;
    assert_eq!(answer.status(), 200);
    serde_json::from_slice(&answer.body).expect("JSON")
}

#[tokio::test]
async fn the_next_request_goes_by_what_the_file_says_now() {
    let folder = Folder::new();
    let (mut serving, mut upstream) = serving(&folder, &limited(5000)).await;
    assert_eq!(limit(&serving, &mut upstream).await, "5000");
    // Automatically, then on a signal; changed in place, and by a file that replaces another.
    folder.write("weir.toml", &told(&upstream.address, &limited(5001)));
    serving.wait_for(
        "limits[0].max_input_tokens: live conversations may be compacted at other points",
    );
    assert_eq!(limit(&serving, &mut upstream).await, "5001");
    folder.replace("weir.toml", &told(&upstream.address, &limited(5002)));
    serving.wait_for(READ);
    assert_eq!(limit(&serving, &mut upstream).await, "5002");
    folder.write("weir.toml", &told(&upstream.address, &limited(5003)));
    serving.signal("-HUP");
    serving.wait_for(READ);
    assert_eq!(limit(&serving, &mut upstream).await, "5003");
}

/// As Kubernetes updates a mount: a link to a folder is replaced by another.
#[tokio::test]
async fn a_link_that_is_swapped_is_seen() {
    let folder = Folder::new();
    let mut upstream = Upstream::start().await;
    for (name, tokens) in [("one", 5000), ("two", 5001)] {
        std::fs::create_dir(folder.path(name)).expect("it is ours");
        folder.write(&format!("{name}/weir.toml"), &told(&upstream.address, &limited(tokens)));
    }
    symlink("one", folder.path("data")).expect("a link");
    symlink("data/weir.toml", folder.path("weir.toml")).expect("a link");
    let mut serving = serve(&folder.path("weir.toml"));
    assert_eq!(limit(&serving, &mut upstream).await, "5000");
    symlink("two", folder.path("data.new")).expect("a link");
    std::fs::rename(folder.path("data.new"), folder.path("data")).expect("a swap");
    serving.wait_for(READ);
    assert_eq!(limit(&serving, &mut upstream).await, "5001");
}

#[tokio::test]
async fn what_is_wrong_is_said_and_changes_nothing() {
    let folder = Folder::new();
    let (mut serving, mut upstream) = serving(&folder, &limited(5000)).await;
    let good = told(&upstream.address, &limited(5001));
    let bad = format!("{good}[server]\nmax_messages = 0\n");
    let missing = format!("{good}api_key = \"file:{}\"\n", folder.path("missing"));
    for (text, said) in [
        ("[server\n", "weir.toml: line 1 is not valid TOML"),
        (bad.as_str(), "weir.toml:8): 0 is not a whole number"),
        (missing.as_str(), "cannot be read"),
    ] {
        folder.replace("weir.toml", text);
        serving.wait_for(said);
        serving.wait_for("the one before stays in force");
        assert_eq!(limit(&serving, &mut upstream).await, "5000", "{text}");
        assert_eq!(readiness(&serving).await["configuration"], "refused");
    }
    folder.replace("weir.toml", &good);
    serving.wait_for(READ);
    assert_eq!(limit(&serving, &mut upstream).await, "5001");
    assert_eq!(readiness(&serving).await["configuration"], Value::Null);
}

/// Includes a port that the system chose, and settings that only a restart changes.
#[tokio::test]
async fn what_serving_would_refuse_of_a_url_is_refused() {
    let folder = Folder::new();
    let (mut serving, mut upstream) = serving(&folder, &limited(5000)).await;
    let other = |section: &str, url: &str| {
        let text = format!("{}[{section}]\nurl = {url:?}\n", limited(5001));
        told(&upstream.address, &text)
    };
    let own = format!("http://localhost:{}/v1", serving.address.port());
    for (text, said) in [
        (told(&serving.address.to_string(), &limited(5001)), "weir's own address"),
        (other("upstreams.b", &own), "upstreams.b.url"),
        (other("redis", "redis://u:sesame@h:1/one"), "redis.url"),
    ] {
        folder.replace("weir.toml", &text);
        serving.wait_for(said);
        serving.wait_for("the one before stays in force");
        assert_eq!(limit(&serving, &mut upstream).await, "5000", "{text}");
    }
    folder.replace("weir.toml", &told(&upstream.address, &limited(5002)));
    serving.wait_for(READ);
    assert_eq!(limit(&serving, &mut upstream).await, "5002");
}

/// As a full disk or a crashed editor leaves a file.
#[tokio::test]
async fn a_file_that_was_cut_off_or_emptied_is_refused() {
    let folder = Folder::new();
    let (mut serving, mut upstream) = serving(&folder, &limited(5000)).await;
    let gone = "upstream.url: is missing from";
    for (text, said) in
        [("", "is empty"), ("# nothing\n[upstream]\n", "is empty"), (&limited(5001), gone)]
    {
        folder.replace("weir.toml", text);
        serving.wait_for(said);
        serving.wait_for("the one before stays in force");
        assert_eq!(limit(&serving, &mut upstream).await, "5000", "{text}");
        assert_eq!(readiness(&serving).await["configuration"], "refused");
    }
    // The shorter text is still complete, and ends in the middle of a line of the longer one.
    let shorter = told(&upstream.address, "").trim_end().to_owned();
    folder.replace("weir.toml", &shorter);
    serving.wait_for("ends in the middle of a line and may be truncated");
    assert_eq!(limit(&serving, &mut upstream).await, "5000");
    // A setting that needs a restart does not discard the others.
    let text = format!("{}[ledger]\nenabled = false\n", limited(5002));
    folder.replace("weir.toml", &told(&upstream.address, &text));
    serving.wait_for(READ);
    folder.replace("weir.toml", &text);
    serving.wait_for(gone);
    assert_eq!(limit(&serving, &mut upstream).await, "5002");
}

#[tokio::test]
async fn what_was_refused_is_tried_again_when_a_file_comes_that_it_names() {
    let folder = Folder::new();
    let (mut serving, mut upstream) = serving(&folder, "").await;
    let key = folder.path("provider.key");
    let text = format!("{}api_key = \"file:{key}\"\n", told(&upstream.address, ""));
    folder.replace("weir.toml", &text);
    serving.wait_for("cannot be read");
    serving.wait_for("the one before stays in force");
    folder.replace("provider.key", "sk-late");
    serving.wait_for(READ);
    let (_, head) = answered(&serving, &mut upstream).await;
    assert!(head.contains("authorization: Bearer sk-late"), "{head}");
}

fn pipe(path: &str) {
    let made = std::process::Command::new("mkfifo").arg(path).status().expect("mkfifo is there");
    assert!(made.success());
}

/// A pipe can be opened for writing as soon as weir reads it, which is before it serves.
#[tokio::test]
async fn a_pipe_is_read_once_and_a_signal_before_it_is_read_waits() {
    let folder = Folder::new();
    let mut upstream = Upstream::start().await;
    let path = folder.path("weir.toml");
    pipe(&path);
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--config", &path];
    let process = weir(&arguments).spawn().expect("weir starts");
    let mut end = std::fs::OpenOptions::new().write(true).open(&path).expect("it is read");
    let sent =
        std::process::Command::new("kill").args(["-HUP", &process.id().to_string()]).status();
    assert!(sent.expect("kill is there").success());
    let text = told(&upstream.address, &limited(5000));
    std::io::Write::write_all(&mut end, text.as_bytes()).expect("weir reads");
    drop(end);
    let mut serving = Serving::of(process);
    serving.wait_for("it was read once and is not watched");
    serving.wait_for(READ);
    serving.signal("-HUP");
    serving.wait_for(READ);
    assert_eq!(limit(&serving, &mut upstream).await, "5000");
}

#[tokio::test]
async fn a_pipe_in_the_place_of_a_file_is_waited_for_by_nobody() {
    let folder = Folder::new();
    let key = folder.path("provider.key");
    pipe(&key);
    let (mut serving, mut upstream) = serving(&folder, &limited(5000)).await;
    let with_key = format!("{}api_key = \"file:{key}\"\n", told(&upstream.address, ""));
    let config = folder.write("weir.toml", &with_key);
    serving.wait_for("it is not a regular file");
    serving.wait_for("the one before stays in force");
    let checked = weir(&["check", "--config", &config]).output().expect("weir starts");
    assert_eq!(checked.status.code(), Some(2));
    std::fs::remove_file(&config).expect("it is ours");
    pipe(&config);
    serving.wait_for("it is not a regular file");
    assert_eq!(limit(&serving, &mut upstream).await, "5000");
}

#[tokio::test]
async fn what_needs_a_restart_is_said_and_the_rest_holds() {
    let folder = Folder::new();
    let (mut serving, mut upstream) = serving(&folder, &limited(5000)).await;
    let text = format!(
        "{}[server]\nlisten = \"127.0.0.1:1\"\nmax_connections = 9\nmax_messages = 1\n\
         [ledger]\nenabled = false\n",
        limited(5001)
    );
    folder.replace("weir.toml", &told(&upstream.address, &text));
    serving.wait_for("ledger.enabled, server.max_connections: applies after a restart of weir");
    assert_eq!(limit(&serving, &mut upstream).await, "5001");
    let two = r#"{"model":"gpt-4o","messages":[{"role":"user","content":"a"},{"role":"user","content":"b"}]}"#;
    ask(serving.address, chat("", two)).await.assert_error(400, "too_many_messages");
    // The warning is repeated with the next change until the setting holds.
    folder.replace("weir.toml", &told(&upstream.address, &text.replace("= 1\n[", "= 2\n[")));
    serving.wait_for("ledger.enabled, server.max_connections: applies after a restart of weir");
}

#[tokio::test]
async fn requests_go_where_the_upstream_is_now_with_the_key_that_its_file_holds() {
    let folder = Folder::new();
    let key = folder.write("provider.key", "sk-first");
    let (mut serving, mut first) = serving(&folder, "").await;
    let with_key = |upstream: &str| {
        let before = told(upstream, "[log]\nlevel = \"debug\"\n");
        format!("{before}api_key = \"file:{key}\"\n")
    };
    let (_, head) = answered(&serving, &mut first).await;
    assert!(!head.contains("authorization"), "{head}");
    folder.replace("weir.toml", &with_key(&first.address));
    serving.wait_for(READ);
    let (_, head) = answered(&serving, &mut first).await;
    assert!(head.contains("authorization: Bearer sk-first"), "{head}");
    folder.replace("provider.key", "sk-second");
    serving.wait_for(READ);
    let (_, head) = answered(&serving, &mut first).await;
    assert!(head.contains("authorization: Bearer sk-second"), "{head}");

    // Requests in flight stay with their upstream.
    let mut second = Upstream::start().await;
    let held = tokio::spawn(ask(serving.address, chat("", body_of(100))));
    let seen = first.next().await;
    folder.replace("weir.toml", &with_key(&second.address));
    serving.wait_for(READ);
    let (answer, _) = answered(&serving, &mut second).await;
    assert_eq!(answer.status(), 200);
    seen.answer(FINE);
    assert_eq!(held.await.expect("no panic").status(), 200);
}

/// Routes that are added and removed at run time.
#[tokio::test]
async fn models_go_where_their_routes_lead_now() {
    let folder = Folder::new();
    let (mut serving, mut first) = serving(&folder, "").await;
    let mut other = Upstream::start().await;
    assert_eq!(answered(&serving, &mut first).await.0.status(), 200);
    let routed = format!(
        "[upstreams.other]\nurl = \"http://{}/v1\"\n\
         [[routes]]\nmodels = [\"gpt-4o*\"]\nupstream = \"other\"\nmax_input_tokens = 6000\n",
        other.address
    );
    folder.replace("weir.toml", &told(&first.address, &routed));
    serving.wait_for(READ);
    assert_eq!(limit(&serving, &mut other).await, "6000");
    folder.replace("weir.toml", &told(&first.address, ""));
    serving.wait_for(READ);
    assert_eq!(answered(&serving, &mut first).await.0.status(), 200);
}

/// A key and the usage of its requests are the same before and after.
#[tokio::test]
async fn what_is_counted_goes_on() {
    let folder = Folder::new();
    let store = folder.path("weir.db");
    let key = folder.write("provider.key", "sk-own");
    let mut upstream = Upstream::start().await;
    let text = |tokens| {
        let keys = format!("api_key = \"file:{key}\"\n");
        format!(
            "{}{keys}[auth]\nmode = \"keys\"\n[admin]\nlisten = \"off\"\n",
            told(&upstream.address, &limited(tokens))
        )
    };
    let config = folder.write("weir.toml", &text(5000));
    let new = text(5001);
    let mut command = weir(&["serve", "--listen", "127.0.0.1:0", "--config", &config]);
    let mut serving = Serving::run(command.env("WEIR_STORE__PATH", &store));
    let made = weir(&["keys", "create", "ci", "--requests-per-minute", "2"])
        .env("WEIR_STORE__PATH", &store)
        .output()
        .expect("weir starts");
    let said = String::from_utf8_lossy(&made.stdout).into_owned();
    let is_whole = |word: &&str| word.starts_with("sk-weir-") && !word.contains('…');
    let secret = said.split_whitespace().find(is_whole).expect(&said);
    let header = format!("authorization: Bearer {secret}\r\n");
    let address = serving.address;
    assert_eq!(held(address, &header, &mut upstream).await, 200);
    folder.replace("weir.toml", &new);
    serving.wait_for(READ);
    assert_eq!(held(address, &header, &mut upstream).await, 200);
    let third = ask(address, chat(&header, body_of(100))).await;
    assert_eq!(third.status(), 429, "two a minute, whatever was read between");
}

/// Sends a request that `upstream` answers, and returns its status.
async fn held(address: SocketAddr, header: &str, upstream: &mut Upstream) -> u16 {
    let asked = ask(address, chat(header, body_of(100)));
    let given = async { upstream.next().await.answer(FINE) };
    tokio::join!(asked, given).0.status()
}
