//! Holds after requests that end in any way: none remains, and requests with room are let in.

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use weir_store::Store;

use super::setting::{Budgeted, chat, nano_usd, set, sum};
use crate::cli::{Serving, weir};
use crate::eventually::{DEADLINE, eventually};
use crate::folder::Folder;
use crate::scripted_upstream::{Options, Server};
use crate::server::harness::{ask, bare};

#[tokio::test]
async fn errors_cuts_and_leavers_leave_nothing_held() {
    let budgeted = Budgeted::start(|config| {
        config.upstream.first_byte_timeout_ms = 200;
        config.ledger.drain_ms = 0;
    })
    .await;
    budgeted.set("all/usd/total", "1").await;
    for fault in ["status:500", "status:429", "reset", "truncate_after:3", "garbage", "stall_head"]
    {
        for stream in [false, true] {
            let headers = format!("{}x-upstream-fault: {fault}\r\n", budgeted.key.header());
            let request = chat(&headers, 50, json!({"stream": stream}));
            let mut connection =
                TcpStream::connect(budgeted.weir.weir.address).await.expect("weir listens");
            connection.write_all(request.as_bytes()).await.expect("weir reads");
            // Other tests check the answer; here it only has to end, or its caller leaves.
            let mut received = [0; 64];
            let _ = connection.read(&mut received).await;
        }
    }
    // A caller that leaves before an answer is noticed in time.
    let look = async || budgeted.statuses().await.remove(0);
    let status = eventually(DEADLINE, look, |status| status["held"] == "0.00").await;
    let (cost, _, _) = sum(&budgeted.weir.store).await;
    assert_eq!(nano_usd(&status["spent"]), cost);
    assert_eq!(budgeted.chat(5, json!({})).await.status(), 200);
}

#[tokio::test]
async fn a_kill_neither_frees_nor_blocks() {
    let upstream = Server::start(Options::default()).await.expect("a free port");
    let folder = Folder::new();
    let path = folder.file("weir.db");
    set(&Store::open(&path).expect("a new file"), "all/usd/total", "0.01").await;
    let serve = || {
        let mut command = weir(&["serve", "--listen", "127.0.0.1:0", "--upstream"]);
        command.arg(upstream.base_url()).env("WEIR_STORE__PATH", &path);
        Serving::run(&mut command)
    };
    let mut names = 0;
    for round in 0..4 {
        let serving = serve();
        let before = upstream.requests().len();
        let mut open = Vec::new();
        for _ in 0..10 {
            names += 1;
            let headers =
                format!("authorization: Bearer k\r\nx-upstream-fault: hold_after:{round}\r\n");
            let request = chat(&headers, 20, json!({"stream": true, "max_tokens": 30}));
            let mut stream = TcpStream::connect(serving.address).await.expect("weir listens");
            stream.write_all(request.as_bytes()).await.expect("weir reads");
            open.push(stream);
        }
        upstream.wait_for(|log| log.len() == before + 10).await;
        serving.signal("-KILL");
        assert_eq!(serving.ended(), None, "it was killed");
        upstream.release();
    }
    let serving = serve();
    // Requests that the killed processes left open are settled at start-up.
    let store = Store::open(&path).expect("the file");
    let rows = crate::ledger::rows(&store, names).await;
    let cost: u64 = rows.iter().filter_map(|row| row.settlement.cost_nano_usd).sum();
    let header = "authorization: Bearer k\r\n";
    let told = ask(serving.address, bare("GET", "/weir/v1/budgets", header)).await;
    let told: serde_json::Value = serde_json::from_slice(&told.body).expect("JSON");
    let status = &told["data"][0];
    assert_eq!((nano_usd(&status["spent"]), &status["held"]), (cost, &json!("0.00")));
    let answer = ask(serving.address, chat(header, 5, json!({}))).await;
    assert_eq!(answer.status(), 200, "{answer:?}");
}
