//! Conversation, agent, parent and class of a request, as its client states them: in rows and
//! reports, for all protocols.

use serde_json::{Value, json};
use weir_store::Store;
use weir_store::ledger::{MAX_TEXT_BYTES, RequestRow};

use super::{post, rows};
use crate::folder::Folder;
use crate::server::harness::{Upstream, Weir, ask, bare, start_with};

const KEY: &str = "authorization: Bearer sk-one\r\n";

/// Starts a weir in front of an upstream that answers each request alike.
async fn weir(store: &Store) -> Weir {
    let body = r#"{"object":"answer","usage":{"prompt_tokens":5,"input_tokens":5}}"#;
    let answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let upstream = Upstream::always(answer.leak()).await;
    start_with(store.clone(), &upstream, |config| config.ledger.enabled = true).await
}

fn labels(row: &RequestRow) -> [&str; 4] {
    row.attribution.labels().map(Option::unwrap_or_default)
}

fn message(text: &str) -> Value {
    json!([{"role": "user", "content": text}])
}

async fn send(weir: &Weir, path: &str, headers: &str, body: &Value) {
    let headers = format!("{KEY}{headers}");
    let answer = ask(weir.address, post(path, &headers, &body.to_string())).await;
    assert_eq!(answer.status(), 200, "{answer:?}");
}

#[tokio::test]
async fn rows_have_the_labels_of_each_client() {
    let store = Store::in_memory().expect("there is memory");
    let weir = weir(&store).await;
    let turn = r#"x-codex-turn-metadata: {"session_id":"s","request_kind":"compaction"}"#;
    let codex =
        format!("user-agent: codex_exec/0.169.0\r\nsession-id: s\r\nthread-id: s\r\n{turn}\r\n");
    let claude = "user-agent: claude-cli/2.1.280 (external, cli)\r\nx-claude-code-session-id: s\r\n\
                  x-claude-code-agent-id: a2\r\nx-claude-code-parent-agent-id: a1\r\n";
    let older = json!({"model": "claude-opus-4", "max_tokens": 9, "messages": message("x"),
        "metadata": {"user_id": "user_1_account_2_session_s"}});
    let long = "é".repeat(5000);
    let absurd = json!({"model": "gpt-4o", "messages": message("x"),
        "metadata": {"session_id": format!("\0\u{1b}[2J\n{long}")}});
    let cases = [
        ("/v1/responses", codex.as_str(), json!({"model": "gpt-4o", "input": "x"})),
        (
            "/v1/messages",
            claude,
            json!({"model": "claude-opus-4", "max_tokens": 9, "messages": message("x")}),
        ),
        ("/v1/messages", "user-agent: claude-cli/1\r\n", older),
        (
            "/v1/chat/completions",
            "user-agent: opencode/1.18\r\nx-session-id: s\r\n",
            json!({"model": "gpt-4o", "messages": message("x")}),
        ),
        (
            "/v1/embeddings",
            "x-session-id: s\r\n",
            json!({"model": "text-embedding-3-small", "input": "x"}),
        ),
        ("/v1/chat/completions", "", absurd),
    ];
    for (path, headers, body) in &cases {
        send(&weir, path, headers, body).await;
    }
    let rows = rows(&store, cases.len()).await;
    let found: Vec<[&str; 4]> = rows.iter().map(labels).collect();
    let expected = [
        ["s", "codex", "", "compaction"],
        ["s", "a2", "a1", "subagent"],
        ["s", "claude-code", "", ""],
        ["s", "opencode", "", ""],
        ["s", "", "", ""],
    ];
    assert_eq!(found[..5], expected);
    let stored = found[5][0];
    assert!(stored.starts_with("\u{fffd}\u{fffd}[2J\u{fffd}é"), "{stored:?}");
    assert!(stored.len() <= MAX_TEXT_BYTES && !stored.contains(char::is_control), "{stored:?}");
}

#[tokio::test]
async fn unnamed_conversations_are_known_by_their_first_messages() {
    let folder = Folder::new();
    let store = Store::open(&folder.file("weir.db")).expect("a file");
    let turn = |text: &str| {
        json!([{"role": "user", "content": text}, {"role": "assistant", "content": "a"},
            {"role": "user", "content": "more"}])
    };
    let mut sent = 0;
    for round in 0..2 {
        // The second weir on the store knows nothing of the first.
        let weir = weir(&store).await;
        for (path, list) in [
            ("/v1/chat/completions", "messages"),
            ("/v1/responses", "input"),
            ("/v1/messages", "messages"),
        ] {
            for messages in [message("one"), turn("one"), message("two")] {
                let mut body = json!({"model": "gpt-4o", "max_tokens": 9});
                body[list] = messages;
                send(&weir, path, "", &body).await;
                sent += 1;
            }
        }
        let rows = rows(&store, sent).await;
        for of_protocol in rows[round * 9..].chunks(3) {
            let [first, next, other] = [0, 1, 2].map(|at| labels(&of_protocol[at])[0]);
            assert_eq!((first, first.len()), (next, 16), "{round}");
            assert_ne!(first, other);
        }
        let same = |at: usize| rows[at].attribution == rows[sent - 9 + at].attribution;
        assert!((0..9).all(same), "it is the same in every process");
    }
    // A conversation kept by the provider does not begin here.
    let weir = weir(&store).await;
    let kept = json!({"model": "gpt-4o", "previous_response_id": "resp_1", "input": "x"});
    send(&weir, "/v1/responses", "", &kept).await;
    assert_eq!(
        rows(&store, sent + 1).await.pop().map(|row| row.attribution.conversation),
        Some(None)
    );
}

#[tokio::test]
async fn usage_is_grouped_by_labels_and_each_callers_own() {
    let store = Store::in_memory().expect("there is memory");
    let weir = weir(&store).await;
    let body = json!({"model": "gpt-4o", "messages": message("x")});
    for (key, conversation, agent) in [
        ("sk-one", "a", "codex"),
        ("sk-one", "a", "pi"),
        ("sk-one", "b", "pi"),
        ("sk-two", "a", "pi"),
    ] {
        let headers = format!(
            "authorization: Bearer {key}\r\nx-session-id: {conversation}\r\nuser-agent: {agent}/1\r\n"
        );
        let answer =
            ask(weir.address, post("/v1/chat/completions", &headers, &body.to_string())).await;
        assert_eq!(answer.status(), 200);
    }
    rows(&store, 4).await;
    let usage = async |key: &str, query: &str| -> Value {
        let headers = format!("authorization: Bearer {key}\r\n");
        let request = bare("GET", &format!("/weir/v1/usage?{query}"), &headers);
        let answer = ask(weir.address, request).await;
        assert_eq!(answer.status(), 200, "{answer:?}");
        serde_json::from_slice(&answer.body).expect("JSON")
    };
    let by_both = usage("sk-one", "by=conversation,agent").await;
    let mut found: Vec<(Value, Value, Value)> = by_both["data"]
        .as_array()
        .expect("rows")
        .iter()
        .map(|row| (row["conversation"].clone(), row["agent"].clone(), row["requests"].clone()))
        .collect();
    found.sort_by_key(|row| format!("{row:?}"));
    let row = |conversation: &str, agent: &str| (json!(conversation), json!(agent), json!(1));
    assert_eq!(found, [row("a", "codex"), row("a", "pi"), row("b", "pi")]);
    assert_eq!(by_both["total"]["requests"], 3);
    let filtered = usage("sk-one", "by=model&conversation=a&agent=pi").await;
    assert_eq!(filtered["total"]["requests"], 1, "{filtered}");
    let foreign = usage("sk-two", "by=conversation").await;
    assert_eq!(foreign["total"]["requests"], 1, "the label of another tenant: {foreign}");
    let none = usage("sk-one", "by=class&class=main").await;
    assert_eq!(none["data"], json!([]));
}
