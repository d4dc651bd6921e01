//! Routes other than chat: models, embeddings, speech, downloads and the echo.
//!
//! Simple on purpose: they exist to be forwarded.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::Method;
use serde_json::{Value, json};

use super::State;
use super::answer::{Answer, CREATED, Content};
use super::chat::{known_model, unreadable};
use super::count::Encoding;
use super::responses;
use super::routes::Call;
use super::strict;
use super::validate::Refusal;

const DEFAULT_MODELS: [&str; 6] =
    ["gpt-4o", "gpt-4o-mini", "gpt-4.1", "gpt-4", "o4-mini", "text-embedding-3-small"];
const DEFAULT_DIMENSIONS: u64 = 8;
const MAX_DIMENSIONS: u64 = 4096;
const SPEECH_BYTES: u64 = 8192;
const METHODS: &str = "GET, HEAD, POST, DELETE, OPTIONS";

pub fn answer(state: &State, call: &Call, route: &[&str]) -> Result<Answer, Refusal> {
    let method = &call.head.method;
    match (method, route) {
        (_, ["echo", ..]) => Ok(echo(call)),
        (&Method::OPTIONS, _) => {
            let mut answer = Answer::whole(204, "text/plain", "");
            answer.headers.push(("allow", METHODS.to_owned()));
            Ok(answer)
        }
        (&Method::HEAD, []) => Ok(Answer::whole(200, "text/plain", "")),
        (&Method::GET | &Method::HEAD, ["models"]) => Ok(models(state)),
        (&Method::GET | &Method::HEAD, ["models", id @ ..]) => model(state, &id.join("/")),
        (&Method::POST, ["embeddings"]) => embeddings(state, call),
        (&Method::POST, ["responses"]) => responses::answer(state, call),
        (&Method::POST, ["audio", "speech"]) => Ok(pattern("audio/mpeg", SPEECH_BYTES, false)),
        (&Method::GET | &Method::HEAD, ["large"]) => {
            let bytes = call.query("bytes").and_then(|bytes| bytes.parse().ok());
            let bytes = bytes.ok_or_else(|| Refusal::invalid("bytes=N is missing"))?;
            let chunked = call.query("chunked") == Some("1");
            Ok(pattern("application/octet-stream", bytes, chunked))
        }
        (_, ["chat", "completions"] | ["models" | "embeddings" | "responses" | "files"]) => {
            let message = format!("Not allowed to {method} on {}.", call.head.uri.path());
            Err(Refusal::new(405, message).code("method_not_supported"))
        }
        _ => {
            let message = format!("Invalid URL ({method} {})", call.head.uri.path());
            Err(Refusal::new(404, message))
        }
    }
}

fn pattern(content_type: &'static str, bytes: u64, chunked: bool) -> Answer {
    Answer {
        status: 200,
        content_type,
        headers: Vec::new(),
        content: Content::Pattern { bytes, chunked },
    }
}

/// Returns the received request, so that a test sees the proxy's changes to it.
fn echo(call: &Call) -> Answer {
    let headers: Vec<Value> = call
        .head
        .headers
        .iter()
        .map(|(name, value)| json!([name.as_str(), String::from_utf8_lossy(value.as_bytes())]))
        .collect();
    let path = call.head.uri.path_and_query().map_or("", |path| path.as_str());
    let body = json!({
        "method": call.head.method.as_str(),
        "path": path,
        "version": format!("{:?}", call.head.version),
        "headers": headers,
        "body_bytes": call.body.len(),
        "body_base64": STANDARD.encode(&call.body),
    });
    Answer::json(200, &body)
}

fn describe(id: &str) -> Value {
    json!({"id": id, "object": "model", "created": CREATED, "owned_by": "scripted"})
}

fn models(state: &State) -> Answer {
    let named = &state.options.models;
    let data: Vec<Value> = if named.is_empty() {
        DEFAULT_MODELS.into_iter().map(describe).collect()
    } else {
        named.iter().map(|id| describe(id)).collect()
    };
    Answer::json(200, &json!({"object": "list", "data": data}))
}

fn model(state: &State, id: &str) -> Result<Answer, Refusal> {
    known_model(state, id)?;
    Ok(Answer::json(200, &describe(id)))
}

pub fn body_of(state: &State, call: &Call) -> Result<(Value, String), Refusal> {
    let text = std::str::from_utf8(&call.body);
    let text = text.map_err(|_| Refusal::invalid("The body is not valid UTF-8."))?;
    let body = strict::value(text).map_err(|error| unreadable(&error))?;
    let model = body["model"].as_str().or(call.deployment.as_deref());
    let missing = || Refusal::invalid("you must provide a model parameter");
    let model = model.ok_or_else(missing)?.to_owned();
    known_model(state, &model)?;
    Ok((body, model))
}

fn embeddings(state: &State, call: &Call) -> Result<Answer, Refusal> {
    let (body, model) = body_of(state, call)?;
    let inputs = match &body["input"] {
        Value::String(_) => vec![body["input"].clone()],
        Value::Array(list) if list.iter().all(Value::is_number) && !list.is_empty() => {
            vec![body["input"].clone()]
        }
        Value::Array(list) if !list.is_empty() => list.clone(),
        _ => return Err(Refusal::invalid("'$.input' is invalid.").param("input")),
    };
    let dimensions = body["dimensions"].as_u64().unwrap_or(DEFAULT_DIMENSIONS);
    if !(1..=MAX_DIMENSIONS).contains(&dimensions) {
        return Err(Refusal::invalid("'dimensions' is out of range.").param("dimensions"));
    }
    let mut tokens = 0;
    let mut data = Vec::with_capacity(inputs.len());
    for (index, input) in inputs.iter().enumerate() {
        tokens += match input {
            Value::String(text) => Encoding::Cl100k.count(text),
            other => other.as_array().map_or(0, Vec::len) as u64,
        };
        // Simple fractions, which survive any notation.
        let vector = (0..dimensions).map(|at| (at as f32 + index as f32) / 16.0);
        let embedding = if body["encoding_format"] == "base64" {
            let bytes: Vec<u8> = vector.flat_map(f32::to_le_bytes).collect();
            Value::from(STANDARD.encode(bytes))
        } else {
            vector.map(Value::from).collect()
        };
        data.push(json!({"object": "embedding", "index": index, "embedding": embedding}));
    }
    let usage = json!({"prompt_tokens": tokens, "total_tokens": tokens});
    let body = json!({"object": "list", "data": data, "model": model, "usage": usage});
    Ok(Answer::json(200, &body))
}
