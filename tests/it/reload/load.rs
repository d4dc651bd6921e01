//! Many requests in flight, streamed and not, with TLS and without, while configuration and
//! certificates change repeatedly: none is lost, and each change takes effect.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustls::version::TLS13;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::cli::{Serving, weir};
use crate::folder::Folder;
use crate::tls::setting::{Authority, Pair, caller, client, client_builder, connect};

/// Number of rounds; each changes everything.
const ROUNDS: u64 = 12;
/// Number of changes during each answer.
const CHANGES: u64 = 2;
/// Callers of each kind; each sends one request after another.
const CALLERS: usize = 6;

/// Final value of the change counter: answers wait no more.
const OVER: u64 = u64::MAX;

/// Upstream whose answers take as long as a few changes.
struct Upstream {
    address: SocketAddr,
    /// Number of answers that have begun and not ended.
    open: watch::Receiver<usize>,
}

impl Upstream {
    async fn start(changes: watch::Receiver<u64>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let (opened, open) = watch::channel(0);
        let opened = Arc::new(opened);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (changes, open) = (changes.clone(), Arc::clone(&opened));
                tokio::spawn(async move {
                    let service = service_fn(move |request: Request<Incoming>| {
                        answer(request, changes.clone(), Arc::clone(&open))
                    });
                    let builder = auto::Builder::new(TokioExecutor::new());
                    // The other end observes how it ends.
                    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { address, open }
    }
}

type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, Infallible>;

/// Body made of pieces as they arrive.
struct Pieces(mpsc::UnboundedReceiver<&'static str>);

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| Ok(Frame::data(piece.into()))))
    }
}

/// Answers after some changes, in one piece or with a piece for each.
async fn answer(
    request: Request<Incoming>,
    mut changes: watch::Receiver<u64>,
    open: Arc<watch::Sender<usize>>,
) -> Result<Response<Body>, Infallible> {
    let body = request.into_body().collect().await.expect("a whole body").to_bytes();
    let is_stream = body.windows(13).any(|part| part == b"\"stream\":true");
    open.send_modify(|open| *open += 1);
    let begun = *changes.borrow();
    if !is_stream {
        let until = begun.saturating_add(CHANGES);
        changes.wait_for(|now| *now >= until).await.expect("the test goes on");
        open.send_modify(|open| *open -= 1);
        let text = r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":5}}"#;
        return Ok(Response::new(Full::new(Bytes::from(text)).boxed_unsync()));
    }
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        for piece in 1..=CHANGES {
            // Another part of the test notices a caller that has left.
            let _ = sender.send("data: {\"choices\":[]}\n\n");
            let until = begun.saturating_add(piece);
            changes.wait_for(|now| *now >= until).await.expect("the test goes on");
        }
        open.send_modify(|open| *open -= 1);
        let _ = sender.send("data: [DONE]\n\n");
    });
    let mut response = Response::new(Pieces(receiver).boxed_unsync());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    Ok(response)
}

/// Returns weir's configuration in a round.
fn told(upstream: SocketAddr, folder: &Folder, round: u64, has_tls: bool) -> String {
    let tls = match has_tls {
        true => format!(
            "[server.tls]\ncert_file = {:?}\nkey_file = {:?}\n",
            folder.path("cert.pem"),
            folder.path("key.pem")
        ),
        false => String::new(),
    };
    // A limit identifies each round; the rest changes back and forth.
    let low = if round.is_multiple_of(2) { 0.5 } else { 0.6 };
    // The first log gives the address; after that, one line per request would be too much.
    let level = if round == 0 { "info" } else { "warn" };
    format!(
        "[upstream]\nurl = \"http://{upstream}/v1\"\n[log]\nlevel = {level:?}\n\
         [context]\nlow = {low}\n[server]\nmax_messages = {}\n{tls}\
         [[limits]]\nmodel = \"gpt-4o\"\nmax_input_tokens = {}\n",
        1000 + round,
        limit(round)
    )
}

fn limit(round: u64) -> u64 {
    5000 + round
}

/// Sends requests until the stop signal; returns the number of complete answers.
async fn asks(
    client: reqwest::Client,
    url: String,
    is_stream: bool,
    is_over: Arc<AtomicBool>,
) -> Result<usize, String> {
    let body = format!(
        r#"{{"model":"gpt-4o","stream":{is_stream},"messages":[{{"role":"user","content":"a"}}]}}"#
    );
    let mut whole = 0;
    while !is_over.load(Ordering::SeqCst) {
        let answer = client.post(&url).body(body.clone()).send().await;
        let answer = answer.map_err(|error| format!("{error:?}"))?;
        if answer.status() != 200 {
            return Err(format!("{}: {:?}", answer.status(), answer.text().await));
        }
        let text = answer.text().await.map_err(|error| format!("{error:?}"))?;
        let end = if is_stream { "[DONE]\n\n" } else { "}}" };
        if !text.ends_with(end) {
            return Err(format!("cut off: {text}"));
        }
        whole += 1;
    }
    Ok(whole)
}

/// One weir with its files.
struct Told {
    folder: Folder,
    serving: Serving,
    has_tls: bool,
}

impl Told {
    fn start(upstream: SocketAddr, pair: Option<&Pair>) -> Self {
        let folder = Folder::new();
        if let Some(pair) = pair {
            folder.write("cert.pem", &pair.cert);
            folder.write("key.pem", &pair.key);
        }
        let has_tls = pair.is_some();
        let config = folder.write("weir.toml", &told(upstream, &folder, 0, has_tls));
        let arguments = ["serve", "--listen", "127.0.0.1:0", "--config", &config];
        let serving = Serving::run(&mut weir(&arguments));
        Self { folder, serving, has_tls }
    }

    fn url(&self, path: &str) -> String {
        let scheme = if self.has_tls { "https" } else { "http" };
        format!("{scheme}://localhost:{}{path}", self.serving.address.port())
    }

    /// Changes everything, and waits until it takes effect.
    fn change(&mut self, upstream: SocketAddr, round: u64, pair: &Pair) {
        if self.has_tls {
            self.folder.replace("cert.pem", &pair.cert);
            self.folder.replace("key.pem", &pair.key);
        }
        self.folder.replace("weir.toml", &told(upstream, &self.folder, round, self.has_tls));
        self.serving.signal("-HUP");
        self.serving.wait_for("limits[0].max_input_tokens: live conversations may be compacted");
    }

    /// Asserts that a new request uses the round's configuration.
    async fn assert_in_force(&self, authority: &Authority, round: u64, pair: &Pair) {
        let body = r#"{"model":"gpt-4o","messages":[{"role":"user","content":"a"}]}"#;
        let request = client(authority, None).post(self.url("/weir/v1/plan")).body(body);
        let plan = request.send().await.expect("an answer").text().await.expect("a plan");
        let plan: serde_json::Value = serde_json::from_str(&plan).expect("JSON");
        assert_eq!(plan["budget"]["limit_tokens"], limit(round), "{plan}");
        if self.has_tls {
            let connector = caller(authority, None, &[&TLS13]);
            let stream = connect(&connector, self.serving.address).await.expect("a handshake");
            let shown = stream.get_ref().1.peer_certificates().expect("a certificate");
            assert_eq!(shown, pair.chain());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_is_lost_while_everything_changes() {
    let authority = Authority::new("one");
    let pairs = ["a", "b"].map(|name| authority.issue(name));
    let (changed, changes) = watch::channel(0);
    let mut upstream = Upstream::start(changes).await;
    let address = upstream.address;
    let mut weirs = [Told::start(address, Some(&pairs[0])), Told::start(address, None)];
    let is_over = Arc::<AtomicBool>::default();
    let mut callers = JoinSet::new();
    for told in &weirs {
        for number in 0..2 * CALLERS {
            // One half streams; one half opens a connection for each request.
            let pool = if number % 4 < 2 { usize::MAX } else { 0 };
            let builder = client_builder(&authority, None).pool_max_idle_per_host(pool);
            let client = builder.build().expect("a client");
            let url = told.url("/v1/chat/completions");
            callers.spawn(asks(client, url, number % 2 == 0, Arc::clone(&is_over)));
        }
    }
    let all = callers.len();
    for round in 1..=ROUNDS {
        // All are in flight when everything changes.
        tokio::select! {
            open = upstream.open.wait_for(|open| *open == all) => {
                open.expect("the upstream runs");
            }
            Some(ended) = callers.join_next() => panic!("round {round}: {ended:?}"),
        }
        let pair = pairs[usize::from(!round.is_multiple_of(2))].clone();
        let changing = tokio::task::spawn_blocking(move || {
            for told in &mut weirs {
                told.change(address, round, &pair);
            }
            (weirs, pair)
        });
        let (changed_weirs, pair) = changing.await.expect("no panic");
        weirs = changed_weirs;
        for told in &weirs {
            told.assert_in_force(&authority, round, &pair).await;
        }
        changed.send_replace(round);
    }
    is_over.store(true, Ordering::SeqCst);
    changed.send_replace(OVER);
    let mut whole = 0;
    while let Some(ended) = callers.join_next().await {
        whole += ended.expect("no panic").expect("no request is lost");
    }
    assert!(whole as u64 >= all as u64 * (ROUNDS / CHANGES), "{whole} answers of {all} callers");
    for told in weirs {
        told.serving.signal("-TERM");
        assert_eq!(told.serving.ended(), Some(0));
    }
}
