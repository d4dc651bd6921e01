//! Scripted upstream: refusals, counts and streaming.

use serde_json::{Value, json};

use super::{chat_with, request_of, send, started, user};
use crate::scripted_upstream::{Options, Server};

fn call(id: &str) -> Value {
    json!({"id": id, "type": "function", "function": {"name": "look", "arguments": "{}"}})
}

fn calls(ids: &[&str]) -> Value {
    let calls: Vec<Value> = ids.iter().map(|id| call(id)).collect();
    json!({"role": "assistant", "content": null, "tool_calls": calls})
}

fn result(id: &str) -> Value {
    json!({"role": "tool", "tool_call_id": id, "content": "seen"})
}

/// Each row: the position of the piece, the piece, and the text of the refusal.
const REFUSED: &str = r#"
body | { | could not parse
body | [] | a JSON object
body | {"messages":[{"role":"user","content":"hi"}]} | you must provide a model
body | {"model":1,"messages":[]} | Invalid type for 'model'
body | {"model":"gpt-4o"} | Missing required parameter: 'messages'
body | {"model":"gpt-4o","messages":"hi"} | array of objects
body | {"model":"missing-1","messages":[{"role":"user","content":"hi"}]} | `missing-1` does not exist
message |  | empty array
message | 1 | expected an object, but got an integer
message | {"content":"hi"} | 'messages[0].role'
message | {"role":"robot","content":"hi"} | Supported values are: 'system'
message | {"role":"user","content":7} | string or array of objects, but got an integer
message | {"role":"user","content":null} | expected a string, got null
message | {"role":"assistant","content":null} | expected a string, got null
message | {"role":"user","content":[{"type":"text"}]} | content[0].text
message | {"role":"user","content":[{"type":"hologram"}]} | 'hologram'
message | {"role":"user","content":"hi","weir":{"pin":true}} | messages[0].weir
message | {"role":"user","content":"hi","name":"a b"} | does not match pattern
message | {"role":"user","role":"user","content":"hi"} | stands twice
message | {"role":"assistant","content":"x","tool_calls":[]} | empty array
message | {"role":"assistant","tool_calls":[{"id":"a"}]} | tool_calls[0].type
message | {"role":"tool","content":"x"} | tool_call_id
member | "model":"gpt-4o" | stands twice
member | "messages":[] | stands twice
member | "weir":1 | Unrecognized request argument supplied: weir
member | "stream":"yes" | Invalid type for 'stream'
member | "stream_options":{"include_usage":true} | only allowed when 'stream'
member | "max_tokens":0 | below minimum
member | "max_tokens":-1 | below minimum
member | "max_tokens":1.5 | Invalid type for 'max_tokens'
member | "max_tokens":1,"max_completion_tokens":1 | at the same time
member | "max_completion_tokens":99999 | at most 16384 completion tokens
member | "temperature":2.5 | above maximum
member | "n":0 | below minimum
member | "tools":{} | Invalid type for 'tools'
member | "tools":[{"type":"function","function":{"name":"a b"}}] | does not match
"#;

#[tokio::test]
async fn refuses_what_the_api_refuses() {
    let options = Options { max_output_tokens: Some(16_384), ..Options::default() };
    let server = started(options).await;
    for row in REFUSED.trim().lines() {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [place, piece, says] = cells[..] else {
            panic!("a row has three cells: {row}");
        };
        let hi = r#"{"role":"user","content":"hi"}"#;
        let body = match place {
            "message" => format!(r#"{{"model":"gpt-4o","messages":[{piece}]}}"#),
            "member" => format!(r#"{{"model":"gpt-4o","messages":[{hi}],{piece}}}"#),
            _ => piece.to_owned(),
        };
        let path = "/v1/chat/completions";
        let answered = send(&server, "POST", path, &[], body.as_bytes()).await;
        let status = if body.contains("missing-1") { 404 } else { 400 };
        assert_eq!(answered.status, status, "{row}");
        let error = &answered.json()["error"];
        assert_eq!(error["type"], "invalid_request_error", "{row}");
        let message = error["message"].as_str().expect("an error says why");
        assert!(message.contains(says), "{row}\n{message}");
    }
}

/// Builds a conversation from shorthand: `s`, `u` and `a` speak, `c:x,y` calls, `r:x` answers a
/// call.
fn conversation(short: &str) -> Value {
    let message = |word: &str| match word.split_once(':') {
        Some(("c", ids)) => calls(&ids.split(',').collect::<Vec<_>>()),
        Some((_, id)) => result(id),
        None if word == "s" => json!({"role": "system", "content": "s"}),
        None if word == "a" => json!({"role": "assistant", "content": "a"}),
        None => user(word),
    };
    request_of(short.split(' ').map(message).collect())
}

#[tokio::test]
async fn pairs_calls_with_results() {
    let server = started(Options::default()).await;
    let orphan = "must be a response to a preceeding message with 'tool_calls'";
    for (short, says) in [
        ("u c:x r:x", ""),
        ("u c:x,y r:y r:x u", ""),
        ("u c:x,x r:x r:x", ""),
        ("u c: r:", ""),
        ("u c:x r:x c:x r:x", ""),
        ("r:x", orphan),
        ("u r:x", orphan),
        ("u c:x r:y", orphan),
        ("u c:x r:x r:x", orphan),
        ("u c:x r:x u r:x", orphan),
        ("u c:x,y", "did not have response messages: x, y"),
        ("u c:x,y r:x", "did not have response messages: y"),
        ("u c:x u r:x", "did not have response messages: x"),
    ] {
        let answered = chat_with(&server, &[], &conversation(short)).await;
        assert_eq!(answered.status == 200, says.is_empty(), "{short}");
        let message = answered.json()["error"]["message"].to_string();
        assert!(message.contains(says), "{short}: {message}");
    }
}

#[tokio::test]
async fn alternation_is_an_option() {
    let options = Options { strict_alternation: true, ..Options::default() };
    let strict = started(options).await;
    let lenient = started(Options::default()).await;
    for (short, status) in [
        ("s u a u", 200),
        ("s s u c:x r:x a u", 200),
        ("u c:x r:x u", 200),
        ("u u", 400),
        ("u a a", 400),
        ("u s a", 400),
    ] {
        let body = conversation(short);
        assert_eq!(chat_with(&strict, &[], &body).await.status, status, "{short}");
        assert_eq!(chat_with(&lenient, &[], &body).await.status, 200, "{short}");
    }
}

async fn prompt_tokens(server: &Server, body: &Value) -> u64 {
    let answered = chat_with(server, &[], body).await.json();
    answered["usage"]["prompt_tokens"].as_u64().expect("usage is told")
}

#[tokio::test]
async fn counts_by_the_published_rules() {
    let server = started(Options::default()).await;
    // Per message 3 and the role's 1; "hello world" is 2; the reply's frame is 3.
    let plain = json!([user("hello world")]);
    // A name costs 1 in addition to its own token.
    let named = json!([{"role": "user", "name": "bob", "content": "hello world"}]);
    let parts = json!([{"role": "user", "content": [
        {"type": "text", "text": "hello world"},
        {"type": "image_url", "image_url": {"url": "https://example.invalid/a.png", "detail": "low"}},
    ]}]);
    // The call: 7, its name 1, "{}" 1. The result: 3, "tool" 1, "seen" 1.
    let called = json!([user("hello world"), calls(&["a"]), result("a")]);
    for (messages, expected) in [(plain, 9), (named, 11), (parts, 9 + 85), (called, 9 + 4 + 9 + 5)]
    {
        let body = request_of(messages);
        assert_eq!(prompt_tokens(&server, &body).await, expected, "{body}");
        assert_eq!(prompt_tokens(&server, &body).await, expected, "again: {body}");
    }
    let special = request_of(json!([user("<|endoftext|>")]));
    assert_eq!(prompt_tokens(&server, &special).await, 7 + 7, "special tokens are text");
}

#[tokio::test]
async fn counts_tools_as_a_namespace() {
    let server = started(Options::default()).await;
    let mut body = request_of(json!([user("hello world")]));
    body["tools"] = json!([{"type": "function", "function": {
        "name": "look",
        "description": "Looks.",
        "parameters": {"type": "object", "required": ["at"], "properties": {
            "at": {"type": "string", "description": "Where"},
            "how": {"enum": ["near", "far"]},
        }},
    }}]);
    let source = "namespace functions {\n\n// Looks.\ntype look = (_: {\n// Where\nat: string,\nhow?: \"near\" | \"far\",\n}) => any;\n\n} // namespace functions";
    let bpe = tiktoken_rs::o200k_base_singleton();
    let tools = bpe.encode_ordinary(source).len() as u64 + 9;
    assert_eq!(prompt_tokens(&server, &body).await, 9 + tools);
    body["messages"] = json!([{"role": "system", "content": "be brief"}, user("hello world")]);
    let system = bpe.encode_ordinary("be brief\n").len() as u64 + 4;
    assert_eq!(prompt_tokens(&server, &body).await, 9 + tools + system - 4);
}

#[tokio::test]
async fn refuses_what_exceeds_its_context() {
    let server = started(Options { context_tokens: 9, ..Options::default() }).await;
    let mut body = request_of(json!([user("hello world")]));
    assert_eq!(chat_with(&server, &[], &body).await.status, 200);
    let over = chat_with(&server, &[("x-upstream-context-tokens", "8")], &body).await;
    assert_eq!(over.status, 400);
    assert_eq!(over.json()["error"]["code"], "context_length_exceeded");
    assert_eq!(
        over.json()["error"]["message"],
        "This model's maximum context length is 8 tokens. However, your messages resulted in 9 tokens. Please reduce the length of the messages."
    );
    body["max_tokens"] = json!(1);
    let over = chat_with(&server, &[], &body).await;
    let message = over.json()["error"]["message"].to_string();
    assert!(message.contains("you requested 10 tokens (9 in the messages, 1 in the completion)"));
    let seen = server.requests();
    assert_eq!(seen[1].prompt_tokens, Some(9));
    assert_eq!((seen[1].cached_tokens, seen[1].status), (None, 400));
}

#[tokio::test]
async fn caches_exact_prefixes_above_the_floor() {
    let server = started(Options::default()).await;
    let cached = async |key: &str, messages: Value| {
        let headers = [("authorization", key)];
        let answered = chat_with(&server, &headers, &request_of(messages)).await.json();
        answered["usage"]["prompt_tokens_details"]["cached_tokens"].clone()
    };
    let long = user(&"word ".repeat(1500));
    let tokens = prompt_tokens(&server, &request_of(json!([long]))).await - 3;
    assert_eq!(cached("Bearer a", json!([long])).await, 0, "nothing came before");
    assert_eq!(cached("Bearer a", json!([long, user("more")])).await, tokens);
    assert_eq!(cached("Bearer b", json!([long, user("more")])).await, 0, "another key");
    assert_eq!(cached("Bearer a", json!([user("x"), long])).await, 0, "another front");
    let inside = user(&format!("{}other", "word ".repeat(1200)));
    assert_eq!(cached("Bearer a", json!([inside])).await, 1 + 1200, "a prefix within a message");
    assert!(server.requests().iter().all(|seen| seen.cached_tokens <= seen.prompt_tokens));
    let short = user(&"word ".repeat(900));
    assert_eq!(cached("Bearer a", json!([short, user("more")])).await, 0, "under the floor");
}

#[tokio::test]
async fn streams_with_usage_only_when_asked() {
    let server = started(Options::default()).await;
    let script =
        r#"{"words":3,"tool_calls":[{"name":"look","arguments":{"where":"over the wall"}}]}"#;
    let headers = [("x-upstream-script", script)];
    let mut body = request_of(json!([user("q")]));
    let whole = chat_with(&server, &headers, &body).await.json();
    body["stream"] = json!(true);
    let bare = chat_with(&server, &headers, &body).await;
    assert!(bare.head.contains("content-type: text/event-stream"));
    assert!(bare.body.ends_with(b"data: [DONE]\n\n"));
    assert!(bare.events().iter().all(|chunk| chunk.get("usage").is_none()));

    body["stream_options"] = json!({"include_usage": true});
    let events = chat_with(&server, &headers, &body).await.events();
    let (last, chunks) = events.split_last().expect("there are events");
    assert!(chunks.iter().all(|chunk| chunk["usage"].is_null() && chunk.get("usage").is_some()));
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"], whole["usage"]);

    let deltas: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]).collect();
    let text: String = deltas.iter().filter_map(|delta| delta["content"].as_str()).collect();
    let arguments: String = deltas
        .iter()
        .filter_map(|delta| delta["tool_calls"][0]["function"]["arguments"].as_str())
        .collect();
    let message = &whole["choices"][0]["message"];
    assert_eq!(message["content"], json!(text));
    assert_eq!(message["tool_calls"][0]["function"]["arguments"], json!(arguments));
    let finish = &chunks.last().expect("there are chunks")["choices"][0]["finish_reason"];
    assert_eq!(finish, "tool_calls");
    assert_eq!(whole["choices"][0]["finish_reason"], "tool_calls");
}

#[tokio::test]
async fn answers_several_choices_and_stops_at_the_output_limit() {
    let server = started(Options::default()).await;
    let mut body = request_of(json!([user("x-upstream-script: {\"words\": 50}")]));
    body["n"] = json!(2);
    body["max_tokens"] = json!(5);
    let answered = chat_with(&server, &[], &body).await.json();
    assert_eq!(answered["choices"].as_array().map(Vec::len), Some(2));
    assert_eq!(answered["choices"][1]["finish_reason"], "length");
    assert_eq!(answered["usage"]["completion_tokens"], 10);
}

#[tokio::test]
async fn serves_every_base_path() {
    let server = started(Options::default()).await;
    let body = request_of(json!([user("q")])).to_string();
    let without_model = r#"{"messages":[{"role":"user","content":"q"}]}"#;
    for (path, body) in [
        ("/v1/chat/completions", body.as_str()),
        ("/openai/v1/chat/completions", &body),
        ("/api/v1/chat/completions", &body),
        ("/v1beta/openai/chat/completions", &body),
        ("/chat/completions", &body),
        ("/openai/deployments/mine/chat/completions?api-version=1", without_model),
    ] {
        let answered = send(&server, "POST", path, &[], body.as_bytes()).await;
        assert_eq!(answered.status, 200, "{path}");
    }
    assert_eq!(send(&server, "GET", "/v1/chat/completions", &[], b"").await.status, 405);
    assert_eq!(send(&server, "GET", "/v1/nowhere", &[], b"").await.status, 404);
}

#[tokio::test]
async fn wants_the_key_it_was_given() {
    let options = Options { require_key: Some("good".to_owned()), ..Options::default() };
    let server = started(options).await;
    for (headers, status) in [
        (&[][..], 401),
        (&[("authorization", "Bearer bad")][..], 401),
        (&[("authorization", "Bearer good")][..], 200),
        (&[("api-key", "good")][..], 200),
    ] {
        assert_eq!(send(&server, "GET", "/v1/models", headers, b"").await.status, status);
    }
}
