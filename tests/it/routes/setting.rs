//! Fixture: upstreams that play raw answers and record requests, a weir in front of them with the
//! test's configuration, and the rows in its journal.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use figment::Figment;
use figment::providers::{Format, Toml};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use weir::config::{self, Secret};
use weir_store::Store;
use weir_store::ledger::{RequestQuery, RequestRow};

use crate::server::harness::{self, Message, Weir, ask, chat};

/// Reaction of an upstream to one request.
#[derive(Clone)]
pub enum Play {
    /// Answers with these bytes and continues.
    Answer(String),
    /// Answers with these bytes and closes the connection.
    Last(Vec<u8>),
    /// Closes the connection at once, by RST.
    Reset,
    /// Answers with these bytes and then stays silent until it is released.
    Silent(Vec<u8>),
}

/// Request as an upstream saw it.
#[derive(Debug, Clone)]
pub struct Seen {
    pub head: String,
    pub body: Vec<u8>,
}

impl Seen {
    /// Returns the first line without the protocol.
    pub fn line(&self) -> &str {
        self.head.lines().next().expect("a line").trim_end_matches(" HTTP/1.1")
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        let mut own = lines.filter(|(own, _)| own.eq_ignore_ascii_case(name));
        let value = own.next().map(|(_, value)| value);
        assert!(own.next().is_none(), "{name} is sent once");
        value
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("text")
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }
}

/// Upstream on loopback. Beyond its script it answers as a model would.
pub struct Up {
    pub address: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    script: Arc<Mutex<VecDeque<Play>>>,
}

impl Up {
    pub async fn start(name: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound").to_string();
        let up = Self { address, seen: Arc::default(), script: Arc::default() };
        let (seen, script) = (Arc::clone(&up.seen), Arc::clone(&up.script));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(play(name, stream, Arc::clone(&seen), Arc::clone(&script)));
            }
        });
        up
    }

    /// Appends reactions to the script.
    pub fn then(&self, plays: impl IntoIterator<Item = Play>) {
        self.script.lock().expect("nobody panics with it").extend(plays);
    }

    /// Removes what is left of the script.
    pub fn forget(&self) {
        self.script.lock().expect("nobody panics with it").clear();
    }

    /// Returns the requests seen since the last call.
    pub fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.seen.lock().expect("nobody panics with it"))
    }

    pub fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }
}

/// Starts upstreams with these names, and returns their URLs by name.
pub async fn ups<const COUNT: usize>(
    names: [&'static str; COUNT],
) -> (Vec<Up>, Vec<(&'static str, String)>) {
    let mut ups = Vec::new();
    for name in names {
        ups.push(Up::start(name).await);
    }
    let urls = names.into_iter().zip(&ups).map(|(name, up)| (name, up.url())).collect();
    (ups, urls)
}

/// Configures two upstreams, `{a}` with weir's own key, and models with these windows, followed by
/// `rest`.
pub fn windows(models: &[(&str, u64)], rest: &str) -> String {
    let row = |(name, tokens): &(&str, u64)| {
        format!("[models.{name:?}]\nwindow_tokens = {tokens}\nencoding = \"o200k_base\"\n")
    };
    let models: String = models.iter().map(row).collect();
    let upstreams =
        "[upstream]\nurl = \"{a}\"\napi_key = \"env:A\"\n[upstreams.b]\nurl = \"{b}\"\n";
    format!("{upstreams}{models}{rest}")
}

/// Returns the URL of a port without a listener.
pub async fn nowhere() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    format!("http://{}/v1", listener.local_addr().expect("it is bound"))
}

async fn play(
    name: &'static str,
    mut stream: TcpStream,
    seen: Arc<Mutex<Vec<Seen>>>,
    script: Arc<Mutex<VecDeque<Play>>>,
) {
    let mut buffer = Vec::new();
    while let Some(request) = read(&mut stream, &mut buffer).await {
        let usual = || Play::Answer(answer(name, &request));
        let next = script.lock().expect("nobody panics with it").pop_front();
        let next = next.unwrap_or_else(usual);
        seen.lock().expect("nobody panics with it").push(request);
        match next {
            Play::Answer(bytes) => {
                if stream.write_all(bytes.as_bytes()).await.is_err() {
                    return;
                }
            }
            Play::Last(bytes) => {
                let _ = stream.write_all(&bytes).await;
                return;
            }
            Play::Reset => {
                stream.set_zero_linger().expect("a TCP socket");
                return;
            }
            Play::Silent(bytes) => {
                let _ = stream.write_all(&bytes).await;
                let _ = stream.read(&mut [0; 1]).await;
                return;
            }
        }
    }
}

async fn read(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Seen> {
    let end = loop {
        if let Some(at) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(buffer.drain(..end).collect()).expect("a head in ASCII");
    let length = head.lines().find_map(|line| {
        line.to_ascii_lowercase().strip_prefix("content-length: ").map(str::to_owned)
    });
    let length = length.map_or(0, |length| length.parse().expect("a length"));
    while buffer.len() < length {
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
    Some(Seen { head, body: buffer.drain(..length).collect() })
}

/// Builds an answer with this status and additional header lines.
pub fn status(status: u16, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status} Said\r\ncontent-type: application/json\r\n{headers}content-length: \
         {length}\r\n\r\n{body}"
    )
}

/// Builds a failure that may be temporary.
pub fn failing(code: u16) -> Play {
    Play::Answer(status(code, "", &format!(r#"{{"error":{{"message":"no {code}"}}}}"#)))
}

/// Builds a model's answer.
pub fn completion(name: &str) -> Value {
    json!({
        "id": "c", "object": "chat.completion", "model": name,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": format!("from {name}")},
                     "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1000, "completion_tokens": 10, "total_tokens": 1010},
    })
}

/// Builds the same as events.
pub fn events(name: &str) -> String {
    let chunk = |more: Value| {
        let mut chunk = json!({"id": "c", "object": "chat.completion.chunk", "model": name});
        chunk.as_object_mut().expect("an object").extend(more.as_object().expect("one").clone());
        format!("data: {chunk}\n\n")
    };
    let said =
        chunk(json!({"choices": [{"index": 0, "delta": {"content": format!("from {name}")}}]}));
    let end = chunk(json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}));
    let usage = completion(name)["usage"].clone();
    format!("{said}{end}{}data: [DONE]\n\n", chunk(json!({"choices": [], "usage": usage})))
}

fn answer(name: &str, request: &Seen) -> String {
    if request.line().starts_with("GET ") {
        let list = json!({"object": "list", "data": [{"id": name, "object": "model"}]});
        return status(200, "", &list.to_string());
    }
    let is_stream = String::from_utf8_lossy(&request.body).contains("\"stream\":true");
    if !is_stream {
        return status(200, "", &completion(name).to_string());
    }
    let events = events(name);
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\r\n{events}",
        events.len()
    )
}

/// Starts a weir with this configuration, in which `{NAME}` stands for the URL of the upstream of
/// that name. A variable that it names holds `secret-of-` and its own name.
pub async fn weir(store: &Store, toml: &str, ups: &[(&str, String)]) -> Weir {
    let mut text = toml.to_owned();
    for (name, url) in ups {
        text = text.replace(&format!("{{{name}}}"), url);
    }
    let (mut own, _) =
        config::load(Figment::from(Toml::string(&text))).unwrap_or_else(|problems| {
            panic!("{problems:#?}");
        });
    own.server.listen = ([127, 0, 0, 1], 0).into();
    for upstream in own.upstreams.values_mut().chain([&mut own.upstream]) {
        let secret = |variable: &str| Secret::new(format!("secret-of-{variable}"));
        if let Some(variable) = upstream.api_key.variable() {
            upstream.provider_key = Some(secret(variable));
        }
        let secrets = upstream.header_envs.iter();
        upstream.secret_headers =
            secrets.map(|(name, variable)| (name.clone(), secret(variable))).collect();
    }
    harness::start_with(store.clone(), "127.0.0.1:1", |config| *config = own).await
}

pub fn memory() -> Store {
    Store::in_memory().expect("there is memory")
}

/// Builds a short question to a model.
pub fn question(model: &str) -> Value {
    json!({"model": model, "messages": [{"role": "user", "content": "What runs over the wall?"}]})
}

/// Builds a conversation of this many exchanges of about 200 tokens each.
pub fn conversation(model: &str, exchanges: usize) -> Value {
    let mut body = crate::overflow_retry::conversation(exchanges, &json!({}));
    body["model"] = json!(model);
    body
}

/// Sends a request with a caller's own credentials.
pub async fn send(weir: &Weir, body: &Value) -> Message {
    ask(weir.address, chat("authorization: Bearer callers-own\r\n", body.to_string())).await
}

/// Returns an answer's text.
pub fn said(answer: &Message) -> String {
    crate::overflow_retry::said(answer)
}

/// Returns the rows of the journal as `upstream model outcome status cost`, with upstreams by name,
/// sorted as text: several may have the same time.
pub async fn rows(store: &Store, ups: &[(&str, String)]) -> Vec<String> {
    let rows = store.requests(RequestQuery::default()).await.expect("the journal answers");
    let told = |row: &RequestRow| {
        let is_own = |(_, url): &&(&str, String)| url.starts_with(&row.upstream);
        let name = ups.iter().find(is_own).map_or("?", |(name, _)| name);
        let settlement = &row.settlement;
        let status = settlement.status.map_or("-".to_owned(), |status| status.to_string());
        let cost = settlement.cost_nano_usd.map_or("-".to_owned(), |cost| cost.to_string());
        format!("{name} {} {} {status} {cost}", row.model, settlement.outcome)
    };
    let mut rows: Vec<String> = rows.iter().map(told).collect();
    rows.sort();
    rows
}
