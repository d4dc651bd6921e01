//! Results that an agent asks for again because compaction has left them out: counted, flagged and priced.

use std::collections::HashMap;

use serde_json::{Value, json};
use weir_store::Store;
use weir_store::ledger::{Flags, RequestQuery};

use crate::ledger::{post, rows};
use crate::scripted_upstream::{Options, Server};
use crate::server::harness::{ask, bare, start_with};

const PATHS: [&str; 2] = ["/v1/chat/completions", "/v1/responses"];
const FILES: usize = 8;

/// Returns a call of `read` and its result, in the form of the protocol.
fn read(path: &str, step: usize, file: usize, text: &str) -> [Value; 2] {
    let (id, name) = (format!("call_{step}"), format!("src/file_{file}.rs"));
    let arguments = json!({"path": name});
    match path {
        "/v1/chat/completions" => [
            json!({"role": "assistant", "content": null, "tool_calls": [{"id": id, "type": "function",
                "function": {"name": "read", "arguments": arguments.to_string()}}]}),
            json!({"role": "tool", "tool_call_id": id, "content": text}),
        ],
        _ => [
            json!({"type": "function_call", "call_id": id, "name": "read", "arguments": arguments.to_string()}),
            json!({"type": "function_call_output", "call_id": id, "output": text}),
        ],
    }
}

/// An agent reads a file whenever it no longer sees all of it. Its sixth file is another one each time.
#[tokio::test]
async fn what_an_agent_reads_again_is_found_and_nothing_else() {
    for path in PATHS {
        let upstream = Server::start(Options::default()).await.expect("a free port");
        let store = Store::in_memory().expect("there is memory");
        let weir = start_with(store.clone(), &upstream.addr.to_string(), |_| {}).await;
        let list = if path == "/v1/responses" { "input" } else { "messages" };
        let mut messages = vec![json!({"role": "user", "content": "Compare the files."})];
        let (mut sent, mut asked, mut again) = (String::new(), 0, 0);
        let mut texts: HashMap<usize, String> = HashMap::new();
        for step in 0..60 {
            let file = step * 5 % FILES;
            if texts.get(&file).is_some_and(|text| sent.contains(text.as_str())) {
                continue;
            }
            let version = if file == 5 { step } else { 0 };
            let line = |line: usize| format!("let value_{file}_{line}_{version} = {};", line * 7);
            let text: Vec<String> = (0..30).map(line).collect();
            let text = text.join(" ");
            again += usize::from(texts.insert(file, text.clone()) == Some(text.clone()));
            asked += 1;
            messages.extend(read(path, step, file, &text));
            let body = json!({"model": "gpt-4o", "max_tokens": 50, list: messages}).to_string();
            let headers = "authorization: Bearer sk\r\nx-weir-max-input-tokens: 2500\r\n";
            let answer = ask(weir.address, post(path, headers, &body)).await;
            assert_eq!(answer.status(), 200, "{answer:?}");
            let seen = upstream.requests().pop().expect("it was sent");
            sent = String::from_utf8(seen.body.to_vec()).expect("text");
        }
        assert!(again > 10 && asked - again > FILES, "{again} of {asked}");
        let all = rows(&store, asked).await;
        let flagged = all.iter().filter(|row| row.settlement.flags.any(Flags::REREAD));
        assert_eq!(flagged.clone().count(), again, "{path}");
        for row in flagged {
            assert!(row.settlement.saved_nano_usd < Some(0), "the prompt of each is lost: {row:?}");
        }
        let only = RequestQuery { flags: Flags::REREAD, ..RequestQuery::default() };
        assert_eq!(store.requests(only).await.expect("it can be read").len(), again);
        let page = ask(weir.address, bare("GET", "/metrics", "")).await;
        let page = String::from_utf8(page.body).expect("text");
        assert!(page.contains(&format!("\nweir_rereads_total {again}\n")), "{path}");
    }
}
