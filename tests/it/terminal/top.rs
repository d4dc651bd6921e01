//! `weir top`: one frame of a running weir, and errors with their cure.

use serde_json::{Value, json};
use tokio::task::spawn_blocking;

use super::ended;
use crate::cli::{Serving, free_port, weir};
use crate::eventually::{DEADLINE, eventually};
use crate::folder::Folder;
use crate::scripted_upstream::{Options, Server};
use crate::server::harness::{Upstream, ask, body_of, chat};

pub const TOKEN: &str = "weir-admin-of-this-test-0123456789abcdef";

fn live() -> Value {
    json!({
        "object": "live", "now_ms": 60_000, "started_ms": 0, "next": 3,
        "totals": {"requests": 1234, "observed": 0, "compactions": 7, "received_tokens": 3_000_000,
                   "sent_tokens": 1_200_000, "cost_usd": "12.5", "saved_usd": "3.25", "unpriced": 2},
        "running": [{"seq": 3, "begun_ms": 58_000, "route": "chat/completions",
                     "model": "gpt-4o", "key": null, "team": "search", "conversation": "c1",
                     "agent": null, "class": "main", "received_tokens": 100, "sent_tokens": 100}],
        "requests": [
            {"seq": 1, "ended_ms": 45_000, "route": "chat/completions", "model": "gpt-4o",
             "status": 200, "outcome": "complete", "action": "evict", "steps": null,
             "received_tokens": 1500, "sent_tokens": 720, "limit_tokens": 1000,
             "prompt_tokens": 1000, "cached_tokens": 830, "completion_tokens": 12,
             "cost_usd": "0.0123", "saved_usd": "0.0001", "duration_ms": 1849, "conversation": "c1",
             "class": "main", "error": null},
            {"seq": 2, "ended_ms": 50_000, "model": "\u{1b}]0;owned\u{7}\u{202e}m",
             "conversation": "\u{1b}[2Jc2", "status": 503, "outcome": "x\r\n", "error": "e\u{9b}5n"},
        ],
    })
}

fn page(status: &str, body: &Value) -> String {
    let body = body.to_string();
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

/// Runs `weir top` against a server that answers each path with the given page.
async fn shown(
    arguments: &[&str],
    answer: impl Fn(&str) -> String + Send + 'static,
) -> (Option<i32>, String, String) {
    let folder = Folder::new();
    let token = folder.write("token", &format!("{TOKEN}\n"));
    let mut server = Upstream::start().await;
    let mut command = weir(&["top", "--url", &server.address, "--token-file", &token]);
    command.args(arguments).env("COLUMNS", "150");
    let answering = tokio::spawn(async move {
        loop {
            let seen = server.next().await;
            assert!(
                seen.head.contains(&format!("authorization: Bearer {TOKEN}\r\n")),
                "{}",
                seen.head
            );
            let path = seen.head.split(' ').nth(1).expect("a path").to_owned();
            seen.answer(answer(&path));
        }
    });
    let result = spawn_blocking(move || ended(&mut command)).await.expect("it ends");
    answering.abort();
    result
}

/// Returns the answer for a path.
pub fn everything(path: &str) -> String {
    let budget = json!({"budget": "all/usd/month", "scope": "all", "measure": "usd", "per": "month",
                        "limit": "50.00", "warn_at": 0.8, "spent": "36.00", "held": "0.00",
                        "left": "14.00", "resets_at": "2026-12-01T00:00:00Z"});
    match path {
        "/admin/v1/live?after=0&limit=500" | "/admin/v1/live?after=3&limit=500" => {
            page("200 OK", &live())
        }
        "/admin/v1/budgets" => page("200 OK", &json!({"object": "list", "data": [budget]})),
        "/admin/v1/status" => page("200 OK", &json!({"version": "9.8.7"})),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn one_frame_is_plain_text() {
    let (code, out, said) = shown(&["--once"], everything).await;
    assert_eq!((code, said.as_str()), (Some(0), ""), "{out}");
    assert!(
        !out.chars().any(|own| own.is_control() && own != '\n' || own == '\u{202e}'),
        "{out:?}"
    );
    for expected in [
        "weir 9.8.7  http://127.0.0.1:",
        "up 1 min 0 s  00:01:00 UTC",
        "requests 1234 (0.0/s)   in flight 1   failed 1   refused 0 of the last 2   compactions 7",
        "tokens   received 3M   sent 1.2M   -60 %",
        "cache hits 83 %",
        "money    spent $12.50   saved $3.25   2 requests without a price",
        "########|.|.  72 %",
        "all/usd/month",
        "72 %  $50.00  $36.00  $0.0000  $14.00  2026-12-01T00:00:00Z",
    ] {
        assert!(out.contains(expected), "{expected}:\n{out}");
    }
    let rows: Vec<&str> = out.lines().filter(|line| line.contains("gpt-4o")).collect();
    assert!(rows[0].starts_with("running   …"), "{out}");
    assert!(rows[1].starts_with("00:00:45  200"), "{out}");
    let (_, out, _) = shown(&["--once", "--view", "budgets", "--filter", "week"], everything).await;
    assert!(!out.contains("gpt-4o") && !out.contains("all/usd"), "{out}");
    let (code, out, _) = shown(&["--json"], everything).await;
    assert_eq!(code, Some(0));
    let out: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(out["live"]["totals"]["compactions"], 7);
    assert_eq!(out["budgets"][0]["left"], "14.00");
}

#[tokio::test]
async fn a_problem_has_its_cure() {
    let refused = json!({"error": {"message": "no\u{1b}[2J", "code": "x"}});
    for (status, expected) in [
        ("401 Unauthorized", "refuses the token. Name the file"),
        ("404 Not Found", "has a port of its own (admin.listen)"),
        ("503 Service Unavailable", "answered 503 Service Unavailable: no [2J"),
        ("200 OK", "cannot be read: "),
    ] {
        let answer = match status {
            "200 OK" => page(status, &json!(7)),
            status => page(status, &refused),
        };
        let (code, out, said) = shown(&["--once"], move |_| answer.clone()).await;
        assert_eq!((code, out.as_str()), (Some(1), ""), "{status}");
        assert!(said.contains(expected) && !said.contains('\u{1b}'), "{status}: {said}");
    }
    let (code, _, said) = shown(&[], everything).await;
    assert_eq!(code, Some(1));
    assert!(said.contains("needs a terminal with a screen; --once"), "{said}");
}

#[test]
fn what_is_missing_is_named() {
    let folder = Folder::new();
    let token = folder.write("token", TOKEN);
    let (code, _, said) = ended(&mut weir(&["top", "--once"]));
    assert_eq!(code, Some(1));
    assert!(said.contains("--token-file"), "the store is in memory: {said}");
    let file = folder.path("weir.db");
    let (_, _, said) = ended(&mut weir(&["top", "--once", "--store", &file]));
    assert!(said.contains("admin.token") && said.contains("weir serve --open"), "{said}");
    let url = format!("127.0.0.1:{}", free_port());
    let arguments = ["top", "--once", "--url", &url, "--token-file", &token];
    let (code, _, said) = ended(&mut weir(&arguments));
    assert_eq!(code, Some(1));
    assert!(said.contains("does not answer") && said.contains("weir serve --open"), "{said}");
    let (code, _, said) = ended(&mut weir(&["top", "--interval", "0"]));
    assert_eq!(code, Some(2));
    assert!(said.contains("0.2 to 3600"), "{said}");
}

#[tokio::test]
async fn a_running_weir_is_found_by_its_configuration() {
    let folder = Folder::new();
    let upstream = Server::start(Options::default()).await.expect("a free port");
    let config = folder.write(
        "weir.toml",
        &format!(
            "[upstream]\nurl = \"{}\"\n[admin]\nlisten = \"127.0.0.1:{}\"\n[store]\npath = \"{}\"\n",
            upstream.base_url(),
            free_port(),
            folder.path("weir.db"),
        ),
    );
    let own = |arguments: &[&str]| {
        let mut command = weir(arguments);
        command.args(["--config", &config]).env_remove("WEIR_STORE__PATH").env("COLUMNS", "150");
        command
    };
    ended(&mut own(&["budgets", "set", "all", "--usd", "50", "--per", "month"]));
    let mut serve = own(&["serve", "--listen", "127.0.0.1:0"]);
    let serving = spawn_blocking(move || Serving::run(&mut serve)).await.expect("it starts");
    for _ in 0..2 {
        let headers = "authorization: Bearer sk-1\r\nx-conversation-id: conversation-1\r\n";
        let answer = ask(serving.address, chat(headers, body_of(2000))).await;
        assert_eq!(answer.status(), 200);
    }
    // A request is listed after its caller has the answer.
    let look = async || {
        let mut top = own(&["top", "--once"]);
        spawn_blocking(move || ended(&mut top)).await.expect("it ends")
    };
    let all = |(_, out, _): &(Option<i32>, String, String)| out.contains("requests 2 (");
    let (code, out, said) = eventually(DEADLINE, look, all).await;
    assert_eq!((code, said.as_str()), (Some(0), ""), "{out}");
    for expected in ["in flight 0", "conversation-1", "gpt-4o", "all/usd/month", "ready"] {
        assert!(out.contains(expected), "{expected}:\n{out}");
    }
    let mut json = own(&["top", "--json"]);
    let (_, out, _) = spawn_blocking(move || ended(&mut json)).await.expect("it ends");
    let out: Value = serde_json::from_str(&out).expect("JSON");
    let seen = upstream.requests();
    let rows = out["live"]["requests"].as_array().expect("rows");
    assert_eq!(rows.len(), 2, "{out:#}");
    for (row, seen) in rows.iter().zip(&seen) {
        assert_eq!(row["prompt_tokens"], json!(seen.prompt_tokens), "{row}");
        assert_eq!((&row["status"], &row["conversation"]), (&json!(200), &json!("conversation-1")));
    }
}
