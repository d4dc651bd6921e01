//! Upstream of the bench: answers with the recorded messages, plays a summariser for other calls and a
//! model that uses the recall tool, and records all that arrives. Judges nothing.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;
use weir_bench::{Case, Counts, MODEL, Missing};

const MAX_BODY_BYTES: usize = 256 << 20;
/// Maximum words of a summary.
const SUMMARY_WORDS: usize = 250;
/// Words of a summary that stand together in the text.
const RUN_WORDS: usize = 10;
/// Maximum calls of the recall tool in one answer, and rounds of them.
const MOST_CALLS: usize = 8;
const MOST_ROUNDS: usize = 3;
/// Opening of the identifiers of the bench's own calls.
const CALL_ID: &str = "call_fitbench_";

/// Turn that is being played.
#[derive(Clone)]
pub struct Turn {
    pub case: Arc<Case>,
    /// Number of messages in the client's request.
    pub length: usize,
    /// Values to ask the recall tool for, if one is offered.
    pub wanted: Vec<Missing>,
}

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The client's request, as the proxy sends it on.
    Client,
    /// The client's request with results of the recall tool.
    Recall,
    /// Call of the proxy's own.
    Extra,
}

/// Request that arrived.
pub struct Seen {
    pub kind: Kind,
    pub body: Bytes,
    pub at: Instant,
    pub input_tokens: u64,
    pub output_tokens: u64,
}

/// State of a turn.
#[derive(Default)]
struct Scene {
    turn: Option<Turn>,
    seen: Vec<Seen>,
    /// Whether each wanted value came back.
    found: Vec<bool>,
    rounds: usize,
    answers: u64,
    counts: Counts,
}

/// Running upstream. Dropping it closes every connection.
pub struct Upstream {
    address: SocketAddr,
    scene: Arc<Mutex<Scene>>,
    accepting: JoinHandle<()>,
}

impl Upstream {
    /// Listens on a port of loopback; 0 selects a free one.
    pub async fn start(port: u16) -> Result<Self, String> {
        let listener = TcpListener::bind(("127.0.0.1", port)).await;
        let listener = listener.map_err(|error| format!("port {port}: {error}"))?;
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        let scene = Arc::new(Mutex::new(Scene::default()));
        let accepting = tokio::spawn(accept(listener, scene.clone()));
        Ok(Self { address, scene, accepting })
    }

    /// Base URL for an SDK.
    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// Sets the turn whose request comes next.
    pub fn set(&self, turn: Turn) {
        let mut scene = locked(&self.scene);
        scene.found = vec![false; turn.wanted.len()];
        scene.rounds = 0;
        scene.turn = Some(turn);
    }

    /// Takes the requests that arrived since the last call.
    pub fn take(&self) -> Vec<Seen> {
        std::mem::take(&mut locked(&self.scene).seen)
    }

    /// Whether each value that the turn wanted came back.
    pub fn found(&self) -> Vec<bool> {
        locked(&self.scene).found.clone()
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

fn locked(scene: &Mutex<Scene>) -> MutexGuard<'_, Scene> {
    scene.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn accept(listener: TcpListener, scene: Arc<Mutex<Scene>>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else {
                    tokio::task::yield_now().await;
                    continue;
                };
                // If this fails, the peer is gone, and the first read will report it.
                stream.set_nodelay(true).unwrap_or_default();
                let scene = scene.clone();
                connections.spawn(async move {
                    let service = service_fn(move |request| answer(scene.clone(), request));
                    let builder = auto::Builder::new(TokioExecutor::new());
                    // The recorded requests show how a connection ended.
                    builder.serve_connection(TokioIo::new(stream), service).await.unwrap_or_default();
                });
            }
        }
    }
}

async fn answer(
    scene: Arc<Mutex<Scene>>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    if request.method() == Method::GET && path.ends_with("/models") {
        let models = json!({"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "fitbench"}]});
        return Ok(reply(StatusCode::OK, "application/json", models.to_string()));
    }
    if request.method() != Method::POST || !path.ends_with("/chat/completions") {
        let error = json!({"error": {"message": "not found", "type": "invalid_request_error", "code": "not_found"}});
        return Ok(reply(StatusCode::NOT_FOUND, "application/json", error.to_string()));
    }
    let Ok(body) = Limited::new(request.into_body(), MAX_BODY_BYTES).collect().await else {
        return Ok(reply(StatusCode::BAD_REQUEST, "application/json", "{}".to_owned()));
    };
    let (body, at) = (body.to_bytes(), Instant::now());
    let (message, input_tokens) = {
        let mut scene = locked(&scene);
        let input_tokens = scene.counts.request_tokens(&body);
        let (kind, message) = scene.answer(&body);
        let output_tokens = weir_bench::message_tokens(&message.to_string()).unwrap_or_default();
        scene.seen.push(Seen { kind, body: body.clone(), at, input_tokens, output_tokens });
        scene.answers += 1;
        ((message, scene.answers, output_tokens), input_tokens)
    };
    let is_streamed = serde_json::from_slice(&body).is_ok_and(|body: Value| body["stream"] == true);
    Ok(completion(message, input_tokens, is_streamed))
}

impl Scene {
    /// Returns the kind of a request, and the message that answers it.
    fn answer(&mut self, body: &[u8]) -> (Kind, Value) {
        let Some(turn) = self.turn.clone() else { return (Kind::Extra, summary(body)) };
        let (last, recorded) = turn.case.exchange(turn.length);
        let recorded = serde_json::from_str(&recorded.raw).unwrap_or_default();
        let results = recall_results(body);
        let kind = if !results.is_empty() {
            Kind::Recall
        } else if weir_bench::is_of_client(body, last) {
            Kind::Client
        } else {
            return (Kind::Extra, summary(body));
        };
        for result in &results {
            for (found, wanted) in self.found.iter_mut().zip(&turn.wanted) {
                *found |= wanted.is_in(result);
            }
        }
        let calls = match weir_bench::recall_tool(body, &turn.case) {
            Some(tool) if self.rounds < MOST_ROUNDS => self.calls(body, tool, &turn.wanted),
            _ => Vec::new(),
        };
        if calls.is_empty() {
            return (kind, recorded);
        }
        self.rounds += 1;
        (kind, json!({"role": "assistant", "content": null, "tool_calls": calls}))
    }

    /// Makes calls of the recall tool for the values that did not come back yet: by the number of their
    /// message first if the tool has a place for one, then by the value, then by the words around it.
    fn calls(&self, body: &[u8], tool: &str, wanted: &[Missing]) -> Vec<Value> {
        let (number, words) = places(body, tool);
        let mut asked: Vec<Value> = Vec::new();
        for (own, _) in wanted.iter().zip(&self.found).filter(|(_, found)| !**found) {
            let arguments = match (&number, &words) {
                (Some(Number::One(name)), _) if self.rounds == 0 => json!({name: own.message}),
                (Some(Number::List(name)), _) if self.rounds == 0 => json!({name: [own.message]}),
                (_, Some(name)) if self.rounds < 2 => json!({name: own.value}),
                (_, Some(name)) => json!({name: own.words()}),
                _ => continue,
            };
            if !asked.contains(&arguments) && asked.len() < MOST_CALLS {
                asked.push(arguments);
            }
        }
        let call = |(index, arguments): (usize, &Value)| {
            let id = format!("{CALL_ID}{}_{index}", self.rounds);
            json!({"id": id, "type": "function", "function": {"name": tool, "arguments": arguments.to_string()}})
        };
        asked.iter().enumerate().map(call).collect()
    }
}

/// Argument of a tool for the number of a message.
enum Number {
    One(String),
    List(String),
}

/// Returns a tool's arguments for the number of a message, and for words.
fn places(body: &[u8], tool: &str) -> (Option<Number>, Option<String>) {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let tools = body["tools"].as_array().cloned().unwrap_or_default();
    let Some(own) = tools.iter().find(|own| own["function"]["name"] == tool) else {
        return (None, None);
    };
    let properties = own["function"]["parameters"]["properties"].as_object().cloned();
    let properties = properties.unwrap_or_default();
    let of_type = |wanted: &[&str], preferred: &str| {
        let is_typed = |name: &&String| {
            properties[*name]["type"].as_str().is_some_and(|own| wanted.contains(&own))
        };
        let names: Vec<&String> = properties.keys().filter(is_typed).collect();
        let found = names.iter().find(|name| name.as_str() == preferred).or(names.first());
        found.map(|name| (*name).clone())
    };
    let is_list = |name: &&str| properties[*name]["items"]["type"] == "integer";
    let list = ["messages"].into_iter().filter(|name| properties.contains_key(*name)).find(is_list);
    let number = match list {
        Some(list) => Some(Number::List(list.to_owned())),
        None => of_type(&["integer", "number"], "message").map(Number::One),
    };
    (number, of_type(&["string"], "query"))
}

/// Returns the results of the bench's own calls at the end of a request.
fn recall_results(body: &[u8]) -> Vec<String> {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let messages = body["messages"].as_array().cloned().unwrap_or_default();
    let own = messages.iter().rev().take_while(|message| {
        message["tool_call_id"].as_str().is_some_and(|id| id.starts_with(CALL_ID))
    });
    own.map(text_of).collect()
}

/// Returns the text of a message's content, in either form.
fn text_of(message: &Value) -> String {
    match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let texts = parts.iter().filter_map(|part| part["text"].as_str());
            texts.collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}

/// Answers a call that is not the client's: short runs of words, spread evenly over the text of all
/// messages, however the text is divided among them.
fn summary(body: &[u8]) -> Value {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let texts: Vec<String> =
        body["messages"].as_array().into_iter().flatten().map(text_of).collect();
    let words: Vec<&str> = texts.iter().flat_map(|text| text.split_whitespace()).collect();
    let runs: Vec<&[&str]> = words.chunks(RUN_WORDS).collect();
    let most = runs.len().min(SUMMARY_WORDS / RUN_WORDS);
    let chosen = (0..most).map(|number| runs[number * runs.len() / most]);
    let said = chosen.map(|run| run.join(" ")).collect::<Vec<_>>().join(" ");
    json!({"role": "assistant", "content": format!("Summary: {said}")})
}

fn completion(
    (message, number, output_tokens): (Value, u64, u64),
    input_tokens: u64,
    is_streamed: bool,
) -> Response<Full<Bytes>> {
    let reason = if message["tool_calls"].is_array() { "tool_calls" } else { "stop" };
    let usage = json!({
        "prompt_tokens": input_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": input_tokens + output_tokens,
    });
    let mut whole = json!({
        "id": format!("chatcmpl-fitbench-{number}"),
        "object": "chat.completion",
        "created": 0,
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": usage,
    });
    if !is_streamed {
        return reply(StatusCode::OK, "application/json", whole.to_string());
    }
    let mut delta = whole["choices"][0]["message"].take();
    for (index, call) in delta["tool_calls"].as_array_mut().into_iter().flatten().enumerate() {
        call["index"] = index.into();
    }
    whole["object"] = "chat.completion.chunk".into();
    let mut events = String::new();
    for (delta, reason, usage) in
        [(delta, Value::Null, Value::Null), (json!({}), reason.into(), usage)]
    {
        whole["choices"] = json!([{"index": 0, "delta": delta, "finish_reason": reason}]);
        whole["usage"] = usage;
        events += &format!("data: {whole}\n\n");
    }
    events += "data: [DONE]\n\n";
    reply(StatusCode::OK, "text/event-stream", events)
}

fn reply(status: StatusCode, content_type: &str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let content_type = http::HeaderValue::from_str(content_type);
    let content_type = content_type.expect("the types above are header values");
    response.headers_mut().insert(http::header::CONTENT_TYPE, content_type);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_depends_on_the_text_and_not_on_its_form() {
        let words: Vec<String> = (0..1000).map(|number| format!("w{number}")).collect();
        let of = |messages: Value| summary(json!({"messages": messages}).to_string().as_bytes());
        let one = of(json!([{"role": "user", "content": words.join(" ")}]));
        let said = one["content"].as_str().expect("text").replace("Summary: ", "");
        let said: Vec<&str> = said.split(' ').collect();
        assert_eq!((said.len(), said[0], said[240]), (250, "w0", "w960"));
        let many: Vec<Value> =
            words.chunks(7).map(|own| json!({"role": "user", "content": own.join(" ")})).collect();
        assert_eq!(of(json!(many)), one);
        let parts: Vec<Value> =
            words.chunks(7).map(|own| json!({"type": "text", "text": own.join(" ")})).collect();
        assert_eq!(of(json!([{"role": "user", "content": parts}])), one);
        assert_eq!(of(json!([{"role": "user", "content": "a b"}]))["content"], "Summary: a b");
        assert_eq!(of(json!([]))["content"], "Summary: ");
    }
}
