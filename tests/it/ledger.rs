//! Journal compared with the upstream's own log: the effect on callers' answers, and that no token
//! is missing however a request ends.

mod bills;
mod ends;
pub mod kill;
mod origin;
mod raw;
mod same;
mod secrets;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use weir::config::{AskUsage, Config};
use weir_store::Store;
use weir_store::ledger::{RequestQuery, RequestRow};

use crate::eventually::{DEADLINE, eventually};
use crate::server::harness::{self, Weir};

/// Starts a weir that keeps a journal in `store`.
pub async fn with_journal(store: &Store, upstream: &str) -> Weir {
    harness::start_with(store.clone(), upstream, |config| {
        config.ledger.enabled = true;
        config.upstream.ask_usage = AskUsage::Auto;
    })
    .await
}

/// Starts a weir without a journal, which requests no usage.
pub async fn without_journal(upstream: &str) -> Weir {
    harness::start(upstream, |config: &mut Config| {
        config.ledger.enabled = false;
        config.upstream.ask_usage = AskUsage::Never;
    })
    .await
}

/// Waits until this many requests have ended; returns their rows, oldest first.
pub async fn rows(store: &Store, count: usize) -> Vec<RequestRow> {
    let rows = at_least(store, count).await;
    assert_eq!(rows.len(), count, "{rows:#?}");
    rows
}

/// Waits until at least this many requests have ended; returns their rows, oldest first.
pub async fn at_least(store: &Store, count: usize) -> Vec<RequestRow> {
    let read = async || store.requests(RequestQuery::default()).await.expect("it can be read");
    let mut rows = eventually(DEADLINE, read, |rows| rows.len() >= count).await;
    rows.reverse();
    rows
}

/// Returns the tokens of a row: prompt, cached, completion.
pub fn tokens(row: &RequestRow) -> [Option<u64>; 3] {
    let settled = &row.settlement;
    [settled.prompt_tokens, settled.cached_tokens, settled.completion_tokens]
}

/// Builds a POST whose connection ends with its answer.
pub fn post(path: &str, headers: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Answer as received, perhaps incomplete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The status line and the headers sorted by name, without those that differ between requests
    /// or name an edit.
    pub head: Vec<String>,
    /// The body without the framing of its chunks.
    pub body: String,
    /// Whether it is complete by its framing.
    pub is_whole: bool,
}

/// Sends a request on its own connection and reads until the connection closes.
pub async fn whole(address: std::net::SocketAddr, request: &str) -> Answer {
    let mut stream = TcpStream::connect(address).await.expect("weir listens");
    stream.write_all(request.as_bytes()).await.expect("weir reads");
    let mut received = Vec::new();
    // A reset is also an end; the bytes before it count.
    let _ = stream.read_to_end(&mut received).await;
    parse(&received)
}

fn parse(received: &[u8]) -> Answer {
    let end = received.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
    let (head, rest) = (String::from_utf8_lossy(&received[..end]), &received[end + 4..]);
    let value = |name: &str| head.lines().find_map(|line| line.strip_prefix(name));
    let (body, is_whole) = match value("content-length: ") {
        Some(length) => (rest.to_owned(), length.parse() == Ok(rest.len())),
        None if value("transfer-encoding: chunked").is_some() => unchunked(rest),
        None => (rest.to_owned(), false),
    };
    let own = ["date:", "x-weir-edits:", "x-weir-request-id:"];
    let kept = |line: &&str| !own.iter().any(|name| line.starts_with(name));
    let mut head: Vec<String> = head.lines().filter(kept).map(str::to_owned).collect();
    head.sort_unstable();
    Answer { head, body: String::from_utf8_lossy(&body).into_owned(), is_whole }
}

fn unchunked(mut rest: &[u8]) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    while let Some(end) = rest.windows(2).position(|two| two == b"\r\n") {
        let size = std::str::from_utf8(&rest[..end]).expect("a chunk's size");
        let size = usize::from_str_radix(size, 16).expect("a chunk's size");
        if size == 0 {
            return (body, true);
        }
        rest = &rest[end + 2..];
        body.extend_from_slice(&rest[..size.min(rest.len())]);
        rest = rest.get(size + 2..).unwrap_or_default();
    }
    (body, false)
}
