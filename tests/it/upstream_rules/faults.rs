//! Scripted upstream: forwarded routes, deliberate faults, and its log.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{chat_with, connect, parse, raw, request, request_of, send, started, user};
use crate::scripted_upstream::Options;

#[tokio::test]
async fn passes_other_things_through_unharmed() {
    let server = started(Options { compress: true, ..Options::default() }).await;
    let large = send(&server, "GET", "/v1/large?bytes=200000&chunked=1", &[], b"").await;
    let expected: Vec<u8> = (0..200_000).map(|at| (at % 251) as u8).collect();
    assert!(large.body == expected, "the pattern comes whole");
    let head = send(&server, "HEAD", "/v1/large?bytes=7", &[], b"").await;
    assert!(head.head.contains("content-length: 7"));
    assert!(head.body.is_empty());

    let form = b"--B\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f.bin\"\r\n\r\n\x00\xff\r\n\x01\r\n--B--\r\n";
    let headers = [("content-type", "multipart/form-data; boundary=B")];
    let file = send(&server, "POST", "/v1/files", &headers, form).await.json();
    assert_eq!(file["filename"], "f.bin");
    let path = format!("/v1/files/{}/content", file["id"].as_str().expect("a file has an id"));
    assert_eq!(send(&server, "GET", &path, &[], b"").await.body, b"\x00\xff\r\n\x01");

    let body = request_of(json!([user("q")]));
    let packed = chat_with(&server, &[("accept-encoding", "gzip")], &body).await;
    assert!(packed.head.contains("content-encoding: gzip"));
    let mut plain = String::new();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&packed.body[..]), &mut plain)
        .expect("the answer unpacks");
    assert_eq!(plain.as_bytes(), chat_with(&server, &[], &body).await.body);

    let echoed =
        send(&server, "PUT", "/v1/echo/a%20b?x=1", &[("x-test", "1")], b"abc").await.json();
    assert_eq!(echoed["path"], "/v1/echo/a%20b?x=1");
    assert_eq!((&echoed["method"], &echoed["body_base64"]), (&json!("PUT"), &json!("YWJj")));
}

#[tokio::test]
async fn faults_come_as_told() {
    let server = started(Options::default()).await;
    let body = request_of(json!([user("q")])).to_string();
    let mut streamed = request_of(json!([user("q")]));
    streamed["stream"] = json!(true);
    let streamed = streamed.to_string();
    let path = "/v1/chat/completions";
    let with = async |fault: &str, body: &str| {
        raw(&server, "POST", path, &[("x-upstream-fault", fault)], body.as_bytes()).await
    };
    let limited = parse(&with("status:429:retry-after=2", &body).await);
    assert_eq!(limited.status, 429);
    assert!(limited.head.contains("retry-after: 2"));
    assert_eq!(parse(&with("status:503", &body).await).status, 503);
    assert!(with("reset", &body).await.is_empty());
    assert!(with("close", &body).await.is_empty());
    let empty = parse(&with("empty_200", &body).await);
    assert_eq!((empty.status, empty.body.len()), (200, 0));
    let wrong = parse(&with("wrong_content_type", &body).await);
    assert!(wrong.head.contains("content-type: text/html"));
    let garbage = parse(&with("garbage", &body).await);
    assert!(serde_json::from_slice::<Value>(&garbage.body).is_err());
    let foreign = parse(&with("overflow:anthropic", &body).await).json();
    assert!(foreign["error"]["message"].to_string().contains("prompt is too long"));
    assert_eq!(parse(&with("no_such_fault", &body).await).status, 400);

    let cut = with("truncate_after:2", &streamed).await;
    assert!(!cut.ends_with(b"0\r\n\r\n"), "the last chunk never comes");
    let text = String::from_utf8(parse(&cut).body).expect("it is text");
    assert_eq!(text.matches("\n\n").count(), 2, "two events whole and a half: {text}");
    assert!(!text.ends_with("\n\n"));
    let whole = parse(&with("truncate_after:1", &body).await);
    assert!(serde_json::from_slice::<Value>(&whole.body).is_err(), "cut inside the body");
    let split = parse(&with("half_utf8", &streamed).await);
    let said: String = split
        .events()
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(said, "naïve 日本語 🦀 1 × ∞");
    let log = server.requests();
    assert_eq!(log.iter().filter(|seen| seen.cut).count(), 4);
    assert!(log.iter().all(|seen| seen.ended() && !seen.client_left));
}

#[tokio::test]
async fn queued_faults_come_once_each() {
    let faults = vec!["status:500".to_owned(), "none".to_owned()];
    let server = started(Options { faults, ..Options::default() }).await;
    server.queue_faults(&["status:503"]).expect("the fault is known");
    for status in [500, 200, 503, 200] {
        assert_eq!(send(&server, "GET", "/v1/models", &[], b"").await.status, status);
    }
    assert!(server.queue_faults(&["no_such_fault"]).is_err());
}

#[tokio::test]
async fn a_stall_ends_when_the_client_leaves() {
    let server = started(Options::default()).await;
    let mut body = request_of(json!([user("q")]));
    body["stream"] = json!(true);
    for fault in ["stall_head", "stall_after:1"] {
        let mut stream = connect(&server).await;
        let headers = [("x-upstream-fault", fault)];
        let sent = request("POST", "/v1/chat/completions", &headers, body.to_string().as_bytes());
        stream.write_all(&sent).await.expect("the request is sent");
        if fault == "stall_after:1" {
            let mut some = [0; 16];
            stream.read_exact(&mut some).await.expect("the head comes");
        }
        server.wait_for(|log| log.last().is_some_and(|seen| seen.prompt_tokens.is_some())).await;
        drop(stream);
        server.wait_for(|log| log.last().is_some_and(|seen| seen.client_left)).await;
    }
    assert!(server.requests().iter().all(|seen| !seen.completed));
}

#[tokio::test]
async fn a_held_answer_waits_for_its_release() {
    let server = started(Options::default()).await;
    let body = request_of(json!([user("q")])).to_string();
    for (turn, fault) in ["hold_head", "hold_after:1"].into_iter().enumerate() {
        let headers = [("x-upstream-fault", fault)];
        let held = raw(&server, "POST", "/v1/chat/completions", &headers, body.as_bytes());
        let releasing = async {
            server.wait_for(|log| log.len() > turn && log[turn].prompt_tokens.is_some()).await;
            assert!(!server.requests()[turn].completed);
            server.release();
        };
        let (answered, ()) = tokio::join!(held, releasing);
        assert_eq!(parse(&answered).json()["object"], "chat.completion");
    }
}

#[tokio::test]
async fn an_idle_connection_closes_under_the_next_request() {
    let server = started(Options::default()).await;
    let mut stream = connect(&server).await;
    let body = request_of(json!([user("q")])).to_string();
    let headers = [("x-upstream-fault", "close_idle")];
    let first = request("POST", "/v1/chat/completions", &headers, body.as_bytes());
    stream.write_all(&first).await.expect("the request is sent");
    server.wait_for(|log| log.iter().any(|seen| seen.completed)).await;
    let second = request("GET", "/v1/models", &[], b"");
    stream.write_all(&second).await.expect("the connection is still open");
    let mut received = Vec::new();
    let _end = stream.read_to_end(&mut received).await;
    let text = String::from_utf8_lossy(&received);
    assert_eq!(text.matches("HTTP/1.1 200").count(), 1, "{text}");
    assert_eq!(server.connections(), 1);
    assert!(server.requests()[1].cut);
}

#[tokio::test]
async fn the_log_tells_what_came_and_keeps_its_bounds() {
    let server =
        started(Options { log_body_bytes: 150, log_entries: 3, ..Options::default() }).await;
    assert!(server.base_url().ends_with("/v1"));
    let body = request_of(json!([user("q")])).to_string();
    for _ in 0..5 {
        let headers = [("x-test", "1")];
        send(&server, "POST", "/v1/chat/completions", &headers, body.as_bytes()).await;
    }
    let log = server.requests();
    let numbers: Vec<u64> = log.iter().map(|seen| seen.number).collect();
    assert_eq!(numbers, [3, 4, 5]);
    assert!(log[0].body.is_empty(), "the oldest body goes first");
    assert_eq!(log[2].body, body.as_bytes());
    assert_eq!((log[0].body_bytes, log[2].connection), (body.len(), 5));
    assert_eq!(log[2].headers["x-test"], "1");
    assert_eq!((log[2].method.as_str(), log[2].path.as_str()), ("POST", "/v1/chat/completions"));

    let shown = send(&server, "GET", "/scripted/log?bodies=1", &[], b"").await.json();
    assert_eq!(shown["connections"], 6);
    assert_eq!(shown["requests"][2]["body_bytes"], body.len());
    assert!(shown["requests"][2]["body_base64"].is_string());
    assert_eq!(send(&server, "DELETE", "/scripted/log", &[], b"").await.status, 200);
    assert!(server.requests().is_empty());
    server.stop().await;
}
