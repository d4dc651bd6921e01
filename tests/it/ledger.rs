//! The journal beside the upstream's own log: what callers get while it is kept, and that no token
//! is missing from it, however a request ends.

mod ends;
pub mod kill;
mod raw;
mod same;
mod secrets;

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use weir::config::{AskUsage, Config};
use weir::store::Store;
use weir::store::ledger::{RequestQuery, RequestRow};

use crate::server::harness::{self, Weir};

/// A test that waits as long for something has hung.
const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// Starts a weir that keeps a journal in `store`.
pub async fn with_journal(store: &Store, upstream: &str) -> Weir {
    harness::start_with(store.clone(), upstream, |config| {
        config.ledger.enabled = true;
        config.upstream.ask_usage = AskUsage::Auto;
    })
    .await
}

/// Starts a weir that keeps none, and asks for nothing.
pub async fn without_journal(upstream: &str) -> Weir {
    harness::start(upstream, |config: &mut Config| {
        config.ledger.enabled = false;
        config.upstream.ask_usage = AskUsage::Never;
    })
    .await
}

/// Waits until so many requests have ended; their rows, oldest first.
pub async fn rows(store: &Store, count: usize) -> Vec<RequestRow> {
    let rows = at_least(store, count).await;
    assert_eq!(rows.len(), count, "{rows:#?}");
    rows
}

/// Waits until at least so many requests have ended; their rows, oldest first.
pub async fn at_least(store: &Store, count: usize) -> Vec<RequestRow> {
    let ended = async {
        loop {
            let mut rows = store.requests(RequestQuery::default()).await.expect("it can be read");
            if rows.len() >= count {
                rows.reverse();
                return rows;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(WAIT_LIMIT, ended).await.expect("they end")
}

/// The tokens of a row: prompt, cached, completion.
pub fn tokens(row: &RequestRow) -> [Option<u64>; 3] {
    let settled = &row.settlement;
    [settled.prompt_tokens, settled.cached_tokens, settled.completion_tokens]
}

/// A POST whose connection ends with its answer.
pub fn post(path: &str, headers: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// An answer as it came, perhaps not all of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The status line and the headers, in the order of their names, without those that differ
    /// from one request to the next or name an edit.
    pub head: Vec<String>,
    /// The body without the framing of its chunks.
    pub body: String,
    /// Whether the framing says that this was all.
    pub is_whole: bool,
}

/// Sends a request on a connection of its own and reads what comes until that is closed.
pub async fn whole(address: std::net::SocketAddr, request: &str) -> Answer {
    let mut stream = TcpStream::connect(address).await.expect("weir listens");
    stream.write_all(request.as_bytes()).await.expect("weir reads");
    let mut received = Vec::new();
    // A reset is an end as well; what came before it counts.
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
