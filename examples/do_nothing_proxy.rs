//! Baseline of the benches: the cost of any proxy on weir's stack before it does anything. hyper in
//! front, reqwest with rustls behind, with the crates, features and socket options that weir uses.
//! Method, path, headers and body are streamed both ways. With `--buffer` the request's body is
//! read whole first, as in every program that needs to read it. Must not look at a body, and must
//! not be used for anything but measuring.

use std::convert::Infallible;
use std::io::Write;
use std::sync::Arc;

use clap::Parser;
use http::header::{CONNECTION, HOST, HeaderMap, TRANSFER_ENCODING};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::TcpListener;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Any error here ends in a message or a 502.
type Fault = Box<dyn std::error::Error + Send + Sync>;

/// Forward every request to one upstream and do nothing else.
#[derive(Parser)]
struct Flags {
    /// Address to listen on; port 0 selects a free one.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: String,
    /// Base URL of the upstream; it replaces a leading `/v1` of the caller's path.
    #[arg(long)]
    upstream: String,
    /// Read each request's body whole before forwarding it.
    #[arg(long)]
    buffer: bool,
}

/// State needed to forward a request.
struct Proxy {
    client: reqwest::Client,
    upstream: String,
    buffer: bool,
}

impl Proxy {
    async fn forward(&self, request: Request<Incoming>) -> Result<Response<reqwest::Body>, Fault> {
        let (mut head, body) = request.into_parts();
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let rest = path.strip_prefix("/v1").unwrap_or(path);
        let url = format!("{}{rest}", self.upstream);
        remove_hop_headers(&mut head.headers);
        head.headers.remove(HOST);
        let body = if self.buffer {
            reqwest::Body::from(body.collect().await?.to_bytes())
        } else {
            reqwest::Body::wrap(body)
        };
        let request = self.client.request(head.method, url).headers(head.headers).body(body);
        let mut response = Response::from(request.send().await?);
        remove_hop_headers(response.headers_mut());
        Ok(response)
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<reqwest::Body> {
        self.forward(request).await.unwrap_or_else(|fault| {
            let mut response = Response::new(reqwest::Body::from(fault.to_string()));
            *response.status_mut() = StatusCode::BAD_GATEWAY;
            response
        })
    }
}

/// Removes headers about framing, which belongs to one connection; both ends of the stack write
/// their own.
fn remove_hop_headers(headers: &mut HeaderMap) {
    headers.remove(CONNECTION);
    headers.remove(TRANSFER_ENCODING);
}

#[tokio::main]
async fn main() -> Result<(), Fault> {
    let flags = Flags::parse();
    // A second provider in the process would be a bug in this file; there is nothing to recover.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder()
        .tcp_nodelay(true)
        .redirect(reqwest::redirect::Policy::none())
        .build()?;
    let upstream = flags.upstream.trim_end_matches('/').to_owned();
    let proxy = Arc::new(Proxy { client, upstream, buffer: flags.buffer });

    let listener = TcpListener::bind(&flags.listen).await?;
    println!("listening on http://{}", listener.local_addr()?);
    std::io::stdout().flush()?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let proxy = Arc::clone(&proxy);
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let proxy = Arc::clone(&proxy);
                async move { Ok::<_, Infallible>(proxy.answer(request).await) }
            });
            let mut server = auto::Builder::new(TokioExecutor::new());
            server.http1().timer(TokioTimer::new());
            // A caller that disconnects does not matter to a baseline.
            let _ = server.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}
