//! Rules of the scripted upstream itself: refusals, counts, streaming and faults.
//!
//! Uses raw HTTP/1.1, so that tests see the exact bytes.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::scripted_upstream::{Options, Server};

mod faults;
mod judging;

struct Answered {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Answered {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("the answer is JSON")
    }

    fn events(&self) -> Vec<Value> {
        let text = String::from_utf8(self.body.clone()).expect("events are UTF-8");
        let data = text.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
        data.filter(|data| *data != "[DONE]")
            .map(|data| serde_json::from_str(data).expect("an event is JSON"))
            .collect()
    }
}

async fn connect(server: &Server) -> TcpStream {
    TcpStream::connect(server.addr).await.expect("the server listens")
}

fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("{method} {path} HTTP/1.1\r\nhost: upstream\r\n");
    for (name, value) in headers {
        bytes.push_str(&format!("{name}: {value}\r\n"));
    }
    bytes.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
    [bytes.as_bytes(), body].concat()
}

/// Returns everything that the server sends for one request on a connection that closes after it.
async fn raw(
    server: &Server,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Vec<u8> {
    let mut stream = connect(server).await;
    let headers = [headers, &[("connection", "close")]].concat();
    let sent = request(method, path, &headers, body);
    stream.write_all(&sent).await.expect("the request is sent");
    let mut received = Vec::new();
    // A reset is an end like any other; the bytes before it count.
    let _end = stream.read_to_end(&mut received).await;
    received
}

fn parse(received: &[u8]) -> Answered {
    let split = received.windows(4).position(|window| window == b"\r\n\r\n");
    let split = split.expect("the answer has a head");
    let head = String::from_utf8(received[..split].to_vec()).expect("the head is ASCII");
    let mut body = received[split + 4..].to_vec();
    if head.contains("transfer-encoding: chunked") {
        body = dechunk(&body);
    }
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    Answered { status: status.expect("the answer has a status"), head, body }
}

/// Decodes the content of all complete chunks.
fn dechunk(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(line) = rest.windows(2).position(|window| window == b"\r\n") {
        let size = std::str::from_utf8(&rest[..line]).expect("a chunk's size is ASCII");
        let size = usize::from_str_radix(size, 16).expect("a chunk's size is a number");
        let chunk = rest.get(line + 2..line + 2 + size).unwrap_or_default();
        body.extend_from_slice(chunk);
        rest = rest.get(line + 4 + size..).unwrap_or_default();
    }
    body
}

async fn send(
    server: &Server,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Answered {
    parse(&raw(server, method, path, headers, body).await)
}

async fn chat_with(server: &Server, headers: &[(&str, &str)], body: &Value) -> Answered {
    send(server, "POST", "/v1/chat/completions", headers, body.to_string().as_bytes()).await
}

async fn started(options: Options) -> Server {
    Server::start(options).await.expect("a free port is found")
}

fn request_of(messages: Value) -> Value {
    json!({"model": "gpt-4o", "messages": messages})
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}
