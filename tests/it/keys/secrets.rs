//! Contents that nobody may see after any failure: keys, prompts and answers, in the log at its
//! most verbose, in errors and in the store's file.

use serde_json::json;

use super::command::serving;
use super::setting::{self, OWN_KEY, bearer, post};
use crate::cli::weir;
use crate::folder::Folder;
use crate::server::harness::{Upstream, ask, bare, body_of, start};

const PROMPT: &str = "PROMPT-that-is-nobodys-business";
/// Model name, chosen by callers. It is logged as a model name, and appears nowhere else.
const MODEL: &str = "MODEL-that-is-nobodys-business";
const ANSWER: &str = "ANSWER-that-is-nobodys-business";

/// Builds an upstream's answer of this status that repeats the caller's question.
fn answer(status: &str) -> String {
    let body = json!({
        "choices": [{"message": {"content": format!("{ANSWER} {PROMPT}")}}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
    });
    let body = body.to_string();
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[tokio::test]
async fn no_secret_and_no_content_is_in_logs_errors_or_the_file() {
    let folder = Folder::new();
    let store = folder.file("weir.db");
    let mut upstream = Upstream::start().await;
    let address = upstream.address.clone();
    tokio::spawn(async move {
        for number in 0_usize.. {
            let status = if number % 3 == 2 { "500 Oh" } else { "200 OK" };
            upstream.next().await.answer(answer(status));
        }
    });
    let serving = serving(&store, &address, &["--log-level", "trace"]);
    let path = store.to_str().expect("a plain path");
    let run = |arguments: &[&str]| {
        let mut command = weir(&["keys", "--store", path, "--json"]);
        command.args(arguments).output().expect("weir starts").stdout
    };
    let issue = |arguments: &[&str]| -> (String, String) {
        let made: serde_json::Value = serde_json::from_slice(&run(arguments)).expect("JSON");
        let text = |name: &str| made[name].as_str().expect("a text").to_owned();
        (text("id"), text("secret"))
    };
    let (id, first) = issue(&["create", "a", "--models", "gpt-4o", "--tokens-per-minute", "9000"]);
    let chat = |model: &str, more: &str| {
        format!(
            r#"{{"model":"{model}","messages":[{{"role":"user","content":"{PROMPT}"}}]{more}}}"#
        )
    };
    let guessed = format!("sk-weir-{}", "G".repeat(43));
    let mut errors = Vec::new();
    let mut ask_all = async |secret: &str| {
        let header = bearer(secret);
        for request in [
            post("/v1/chat/completions", &header, chat("gpt-4o", "")),
            post("/v1/chat/completions", &header, chat("gpt-4o", r#","stream":true"#)),
            post("/v1/chat/completions", &header, chat("o3", "")),
            post("/v1/chat/completions", &header, chat(MODEL, "")),
            post("/v1/chat/completions", &header, format!("{{\"model\": {PROMPT}")),
            post("/v1/embeddings", &header, format!(r#"{{"model":"gpt-4o","input":"{PROMPT}"}}"#)),
            post("/v1/embeddings", &header, format!(r#"{{"model":"{MODEL}"}}"#)),
            post("/v1/batches", &header, format!("\"{PROMPT}\"")),
            post("/weir/v1/plan", &header, format!("\"{PROMPT}\"")),
            bare("GET", "/v1/models", &header),
            bare("GET", "/weir/v1/originals/abcdefghijkl", &header),
        ] {
            let answer = ask(serving.address, request).await;
            if answer.header("x-weir-error").is_some() {
                errors.push(format!("{}{}", answer.head, String::from_utf8_lossy(&answer.body)));
            }
        }
    };
    ask_all(&first).await;
    ask_all(&guessed).await;
    let (_, second) = issue(&["rotate", &id, "--overlap", "1h"]);
    ask_all(&first).await;
    ask_all(&second).await;
    let shown = [run(&["list", "--all"]), run(&["show", &id]), run(&["revoke", &id])].concat();
    ask_all(&second).await;
    assert!(errors.len() > 20, "{}", errors.len());

    let token = std::fs::read_to_string(folder.file("admin.token")).expect("beside the store");
    let printed = serving.greeting.replace(token.trim(), "");
    let log = format!("{printed}{}", serving.log());
    assert!(log.contains("gpt-4o") && log.contains(&id), "requests are logged");
    let errors = errors.concat();
    let shown = String::from_utf8_lossy(&shown).into_owned();
    let mut file = Vec::new();
    for name in ["weir.db", "weir.db-wal", "weir.db-shm"] {
        // SQLite may have removed some of these files when it closed.
        file.extend(std::fs::read(folder.file(name)).unwrap_or_default());
    }
    assert!(contains(&file, id.as_bytes()), "keys are in the file");
    let secrets = [first.as_str(), &second, &guessed, OWN_KEY, token.trim(), PROMPT, ANSWER];
    for secret in secrets {
        // The part after the prefix would be as bad.
        let tail = secret.strip_prefix("sk-weir-").unwrap_or(secret);
        for (place, bytes) in
            [("log", log.as_bytes()), ("errors", errors.as_bytes()), ("keys", shown.as_bytes())]
        {
            assert!(!contains(bytes, tail.as_bytes()), "{tail} in {place}");
        }
        assert!(!contains(&file, tail.as_bytes()), "{tail} in the file");
    }
    assert!(!errors.contains(MODEL), "{errors}");
}

fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted)
}

#[tokio::test]
async fn no_redirect_leads_a_virtual_key_to_another_origin() {
    let mut upstream = Upstream::start().await;
    let keyed = setting::start(&upstream.address, |_| {}).await;
    let open = start(&upstream.address, |_| {}).await;
    let key = keyed.key("research", r#"{"passthrough":true}"#).await;
    let chat = post("/v1/chat/completions", &key.header(), body_of(100));
    let requests = [
        (chat, bearer("sk-own")),
        (bare("GET", "/v1/models", &key.header()), bearer("sk-own")),
        (bare("GET", "/v1/files/a", &key.header()), bearer("sk-own")),
    ];
    for (request, own) in requests {
        for (location, shown) in [
            ("https://other.example:8443/v1/x?token=hidden", Some("https://other.example:8443")),
            ("//other.example/v1", Some("http://other.example")),
            ("/\\other.example", Some("http://other.example")),
            ("http://[", Some("an address that cannot be read")),
            ("/v1/elsewhere", None),
        ] {
            let redirect = format!(
                "HTTP/1.1 307 Elsewhere\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n"
            );
            let (answer, ()) = tokio::join!(keyed.ask(&request), async {
                upstream.next().await.answer(&redirect);
            });
            if let Some(shown) = shown {
                let said = answer.assert_error(502, "upstream_path_not_found");
                assert!(said.contains(&format!("redirects to {shown}. ")), "{said}");
                assert!(said.contains("Set upstream.url") && !said.contains("hidden"), "{said}");
                assert_eq!(answer.header("location"), None);
            } else {
                assert_eq!((answer.status(), answer.header("location")), (307, Some(location)));
            }
            // A caller's own credential is its own matter.
            let request = request.replace(&key.header(), &own);
            let (answer, ()) = tokio::join!(ask(open.address, request), async {
                upstream.next().await.answer(&redirect);
            });
            assert_eq!((answer.status(), answer.header("location")), (307, Some(location)));
        }
    }
}
