//! `weir keys`, and a `weir serve` on the same file.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::setting::{OWN_KEY, bearer};
use crate::cli::{Serving, isolate, weir};
use crate::folder::Folder;
use crate::server::harness::{FINE, Upstream, Wire, ask, bare, body_of, chat};

/// Runs `weir keys …` on a store; returns its output or its error text.
fn keys(store: &Path, arguments: &[&str]) -> Result<String, String> {
    let output =
        weir(&["keys"]).args(arguments).arg("--store").arg(store).output().expect("weir starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

fn json(store: &Path, arguments: &[&str]) -> Value {
    let printed = keys(store, &[arguments, &["--json"]].concat()).expect("it works");
    serde_json::from_str(&printed).expect("JSON")
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

/// Starts a `weir serve` in keys mode on a store.
pub fn serving(store: &Path, upstream: &str, more: &[&str]) -> Serving {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--upstream"]);
    command.arg(format!("http://{upstream}/v1")).args(more);
    isolate(&mut command);
    command.env("WEIR_STORE__PATH", store);
    command.env("WEIR_AUTH__MODE", "keys");
    command.env("WEIR_ADMIN__LISTEN", "127.0.0.1:0");
    command.env("WEIR_UPSTREAM__API_KEY", "env:OWN_KEY_OF_THIS_TEST");
    command.env("OWN_KEY_OF_THIS_TEST", OWN_KEY);
    Serving::run(&mut command)
}

#[tokio::test]
async fn another_process_makes_limits_and_revokes_a_servers_keys() {
    let folder = Folder::new();
    let store = folder.file("weir.db");
    let upstream = Upstream::always(FINE).await;
    let serving = serving(&store, &upstream, &[]);
    let made = json(&store, &["create", "ci", "--team", "search"]);
    let (id, secret) = (text(&made["id"]), text(&made["secret"]).to_owned());
    let mut wire = Wire::connect(serving.address).await;
    let request = chat(&bearer(&secret), body_of(100));
    for _ in 0..3 {
        assert_eq!(wire.ask(&request).await.status(), 200);
    }
    json(&store, &["limit", id, "--models", "o3"]);
    assert_eq!(wire.ask(&request).await.status(), 403);
    json(&store, &["limit", id, "--models", "any"]);
    assert_eq!(wire.ask(&request).await.status(), 200);
    let rotated = json(&store, &["rotate", id]);
    assert_eq!(wire.ask(&request).await.status(), 401);
    let request = chat(&bearer(text(&rotated["secret"])), body_of(100));
    assert_eq!(wire.ask(&request).await.status(), 200);
    json(&store, &["revoke", id]);
    assert_eq!(wire.ask(&request).await.status(), 401);
    serving.signal("-TERM");
    assert_eq!(serving.ended(), Some(0));
}

#[test]
fn keys_are_made_shown_and_listed() {
    let folder = Folder::new();
    let store = folder.file("weir.db");
    let made = keys(
        &store,
        &[
            "create",
            "ci",
            "--team",
            "search",
            "--user",
            "ann",
            "--models",
            "gpt-4o*, o3",
            "--policy",
            "zones",
            "--policies",
            "zones,tiers",
            "--requests-per-minute",
            "60",
            "--tokens-per-minute",
            "100_000",
            "--max-concurrent",
            "4",
            "--expires",
            "90d",
            "--passthrough",
        ],
    );
    let made = made.expect("it works");
    let secret = made.lines().find(|line| line.starts_with("sk-weir-")).expect("the secret");
    assert!(secret.len() == 51 && made.contains("shown once"), "{made}");
    let id = made.lines().find_map(|line| line.strip_prefix("id")).expect("an id").trim();

    let shown = json(&store, &["show", id]);
    let facts = ["models", "policy", "policies", "requests_per_minute", "tokens_per_minute"];
    let facts = facts.map(|name| shown[name].to_string()).join(" ");
    assert_eq!(facts, r#"["gpt-4o*","o3"] "zones" ["zones","tiers"] 60 100000"#);
    assert_eq!((&shown["max_concurrent"], &shown["passthrough"]), (&4.into(), &true.into()));
    let lifetime = shown["expires_ms"].as_u64().zip(shown["created_ms"].as_u64());
    assert_eq!(lifetime.map(|(end, start)| end - start), Some(90 * 24 * 60 * 60 * 1000));
    let hint = text(&shown["secrets"][0]["hint"]);
    assert!(hint.starts_with("sk-weir-…") && secret.ends_with(&hint["sk-weir-…".len()..]));

    let limited = keys(&store, &["limit", id, "--max-concurrent", "none", "--expires", "never"]);
    let limited = limited.expect("it works");
    assert!(
        limited.contains("requests at once   no limit") && limited.contains("live"),
        "{limited}"
    );
    let other = json(&store, &["create", "other"]);
    assert_eq!((&other["team"], &other["organisation"]), (&"default".into(), &"default".into()));
    json(&store, &["revoke", text(&other["id"])]);
    let table = keys(&store, &["list"]).expect("it works");
    assert_eq!(table.lines().count(), 2, "{table}");
    for said in ["ID", id, "ci", "search", "ann", "gpt-4o*,o3", "60 req/min", "live"] {
        assert!(table.contains(said), "{said}: {table}");
    }
    let all = keys(&store, &["list", "--all"]).expect("it works");
    assert!(all.lines().count() == 3 && all.contains("revoked"), "{all}");
    assert_eq!(json(&store, &["list", "--team", "nobodys"]), Value::Array(Vec::new()));
    for printed in [table, all, shown.to_string(), limited] {
        assert!(!printed.contains(secret), "it was shown once");
    }
}

#[test]
fn what_cannot_be_done_is_told_with_the_reason() {
    let folder = Folder::new();
    let store = folder.file("weir.db");
    let id = json(&store, &["create", "a"]);
    let id = text(&id["id"]);
    for (arguments, said) in [
        (&["show", "key_000000000000"][..], "no key has this id"),
        (&["revoke", "nobody"], "no key has this id"),
        (&["create", ""], "name is empty"),
        // As with an unset variable in a script.
        (&["create", "b", "--models", ""], "`any` opens every model"),
        (&["limit", id, "--models", " , "], "`any` opens every model"),
        (&["create", "b", "--organisation", "other"], "organisation \"default\""),
        (&["create", "b", "--policy", "mine"], "does not name a policy"),
        (&["create", "b", "--requests-per-minute", "0"], "requests_per_minute is not from 1"),
        (&["create", "b", "--expires", "soon"], "is not a duration"),
        (&["limit", id], "nothing to change"),
        (&["limit", id, "--tokens-per-minute", "many"], "write a number, or none"),
    ] {
        let problem = keys(&store, arguments).expect_err("it is refused");
        assert!(problem.contains(said), "{arguments:?}: {problem}");
    }
    let output = weir(&["keys", "list"]).output().expect("weir starts");
    let problem = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(problem.contains("--store"), "memory has no keys: {problem}");
    let help = weir(&["keys", "--help"]).output().expect("weir starts");
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    for said in ["create", "rotate", "Examples:", "--overlap 24h"] {
        assert!(help.contains(said), "{said}: {help}");
    }
}

#[test]
fn keys_mode_wants_a_key_of_its_own_and_a_store() {
    let folder = Folder::new();
    let run = |change: &dyn Fn(&mut Command)| {
        let mut command = weir(&["serve", "--listen", "127.0.0.1:0"]);
        command.env("WEIR_AUTH__MODE", "keys");
        command.env("WEIR_ADMIN__LISTEN", "127.0.0.1:0");
        change(&mut command);
        let output = command.output().expect("weir starts");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, said) = run(&|_| {});
    assert!(code == Some(2) && said.contains("upstream.api_key"), "{said}");
    let (code, said) = run(&|command| {
        command.env("WEIR_UPSTREAM__API_KEY", "env:OWN_KEY_THAT_IS_NOT_SET");
    });
    assert!(code == Some(2) && said.contains("OWN_KEY_THAT_IS_NOT_SET is not set"), "{said}");
    let file = folder.file("provider.key");
    let (code, said) = run(&|command| {
        command.env("WEIR_UPSTREAM__API_KEY", format!("file:{}", file.display()));
    });
    assert!(code == Some(2) && said.contains("upstream.api_key"), "{said}");
    std::fs::write(&file, "sk-in-a-file\n").expect("the folder can be written");
    let (code, said) = run(&|command| {
        command.env("WEIR_UPSTREAM__API_KEY", format!("file:{}", file.display()));
        // A folder is not a store file.
        command.env("WEIR_STORE__PATH", std::env::temp_dir());
    });
    assert!(code == Some(1) && said.contains("store.path"), "{said}");
    assert!(!said.contains("sk-in-a-file"), "{said}");
}

#[tokio::test]
async fn the_admin_token_is_in_a_file_and_in_no_log() {
    let folder = Folder::new();
    let store = folder.file("weir.db");
    let upstream = Upstream::always(FINE).await;
    let first = serving(&store, &upstream, &[]);
    let token = std::fs::read_to_string(folder.file("admin.token")).expect("beside the store");
    let token = token.trim();
    assert!(!first.greeting.contains(token), "no terminal: {}", first.greeting);
    let place = folder.path("admin.token");
    assert!(first.greeting.contains(&place), "{place} in {}", first.greeting);
    let log = first.log();
    let address = log
        .split("the admin API listens on ")
        .nth(1)
        .and_then(|rest| rest.split_whitespace().next())
        .expect("it says where")
        .to_owned();
    assert!(!log.contains(token), "{log}");
    let second = serving(&store, &upstream, &[]);
    assert!(!second.greeting.contains(token), "{}", second.greeting);
    let gone = Wire::connect(second.address).await.ask(bare("GET", "/admin/v1/keys", "")).await;
    gone.assert_error(404, "not_found");
    assert_ne!(address, second.address.to_string());
    let _ = ask(second.address, bare("GET", "/healthz", "")).await;
    assert!(!second.log().contains(token));
}

#[test]
fn a_key_that_nobody_checks_is_made_with_a_warning() {
    let folder = Folder::new();
    let store = folder.file("weir.db");
    let run = |arguments: &[&str], mode: Option<&str>| {
        let mut command = weir(&["keys"]);
        command.args(arguments).arg("--store").arg(&store);
        if let Some(mode) = mode {
            command.env("WEIR_AUTH__MODE", mode).env("OWN_KEY_OF_THIS_TEST", OWN_KEY);
            command.env("WEIR_UPSTREAM__API_KEY", "env:OWN_KEY_OF_THIS_TEST");
        }
        let output = command.output().expect("weir starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        (output.stdout, String::from_utf8(output.stderr).expect("text"))
    };
    let (printed, said) = run(&["create", "ci", "--json"], None);
    let made: Value = serde_json::from_slice(&printed).expect("JSON alone");
    assert!(said.contains("keys are not checked") && said.contains("[auth]"), "{said}");
    let (_, said) = run(&["rotate", text(&made["id"])], None);
    assert!(said.contains("keys are not checked"), "{said}");
    let (_, said) = run(&["create", "cd"], Some("keys"));
    assert_eq!(said, "");
}

#[test]
fn a_key_gets_a_profile_from_a_file_and_the_right_to_keep_conversations() {
    let folder = Folder::new();
    let store = folder.file("weir.db");
    let file = folder.file("profile.txt");
    std::fs::write(&file, "\nWrite metric units.\nBe brief.\n\n").expect("a file");
    let file = file.to_str().expect("a path");
    let flags = ["--profile-file", file, "--conversations", "true"];
    let made = json(&store, &[&["create", "ci"][..], &flags].concat());
    assert_eq!(text(&made["profile"]), "Write metric units.\nBe brief.");
    assert_eq!(made["conversations"], true);
    let id = text(&made["id"]);
    let shown = keys(&store, &["show", id]).expect("it works");
    assert!(shown.contains("conversations      yes"), "{shown}");
    assert!(shown.contains("profile            29 bytes"), "{shown}");
    let flags = ["--profile-file", "configured", "--conversations", "configured"];
    let limited = json(&store, &[&["limit", id][..], &flags].concat());
    assert!(limited.get("profile").is_none() && limited.get("conversations").is_none());
    std::fs::write(file, " \n").expect("a file");
    for path in [file, "/nowhere/at/all"] {
        let refused = keys(&store, &["limit", id, "--profile-file", path]);
        assert!(refused.expect_err("refused").contains("--profile-file"));
    }
    std::fs::write(file, "x".repeat(20_000)).expect("a file");
    let refused = keys(&store, &["limit", id, "--profile-file", file]).expect_err("too large");
    assert!(refused.contains("at most 16384"), "{refused}");
}
