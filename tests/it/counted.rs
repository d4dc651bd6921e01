//! What counts toward a limit, and where a limit comes from, through sockets in each protocol.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use weir::config::{Config, Limit, ModelEntry};
use weir_engine::tokens::Encoding;

use crate::keys::setting;
use crate::server::harness::{FINE, Message, Upstream, Weir, ask, start};

const MODEL: &str = "gpt-4o";
const PATHS: [&str; 3] = ["/v1/chat/completions", "/v1/responses", "/v1/messages"];

/// Sends a request; returns the answer and the body that the upstream received.
async fn sent(
    weir: &Weir,
    upstream: &mut Upstream,
    path: &'static str,
    headers: &str,
    body: &Value,
) -> (Message, String) {
    let headers = format!("authorization: Bearer alice\r\n{headers}");
    let (address, request) = (weir.address, setting::post(path, &headers, body.to_string()));
    let asking = tokio::spawn(async move { ask(address, request).await });
    let seen = upstream.next().await;
    let received = String::from_utf8(seen.body.clone()).expect("text");
    seen.answer(FINE);
    (asking.await.expect("it is answered"), received)
}

fn tokens(answer: &Message, name: &str) -> u64 {
    answer.header(name).and_then(|tokens| tokens.parse().ok()).expect("a number of tokens")
}

fn limited(max_input_tokens: u64) -> impl Fn(&mut Config) {
    move |config| config.limits = vec![Limit { model: "*".to_owned(), max_input_tokens }]
}

fn of_model(max_input_tokens: u64) -> impl Fn(&mut Config) {
    move |config| {
        let entry = ModelEntry {
            window_tokens: 1_050_000,
            max_input_tokens: Some(max_input_tokens),
            max_output_tokens: Some(128_000),
            encoding: Encoding::O200kBase,
            strict_alternation: false,
        };
        config.models.insert(MODEL, entry);
    }
}

/// Builds a body of `path` with these tools and user's parts, in the protocol's own form.
fn body(path: &str, messages: &[Value], tools: &[Value], stream: bool) -> Value {
    let list = if path == "/v1/responses" { "input" } else { "messages" };
    json!({"model": MODEL, "max_tokens": 100, "stream": stream, list: messages, "tools": tools})
}

fn conversation(exchanges: usize) -> Vec<Value> {
    let mut messages = Vec::new();
    for number in 0..exchanges {
        let text =
            |own: &str| format!("{own} {number}: {}", "what runs over the wall? ".repeat(80));
        messages.push(json!({"role": "user", "content": text("Question")}));
        messages.push(json!({"role": "assistant", "content": text("Answer")}));
    }
    messages.push(json!({"role": "user", "content": "And now?"}));
    messages
}

fn tool(path: &str, name: &str, description: &str, more: &Value) -> Value {
    let schema = json!({"type": "object", "properties": {"a": {"type": "string", "description": description}}});
    let mut tool = match path {
        "/v1/chat/completions" => {
            json!({"type": "function", "function": {"name": name, "description": description, "parameters": schema}})
        }
        "/v1/responses" => {
            json!({"type": "function", "name": name, "description": "Short.", "parameters": schema})
        }
        _ => json!({"name": name, "description": description, "input_schema": schema}),
    };
    if let (Value::Object(tool), Value::Object(more)) = (&mut tool, more) {
        tool.extend(more.clone());
    }
    tool
}

#[tokio::test]
async fn a_limit_is_the_same_from_every_source() {
    const LIMIT: u64 = 14_000;
    let mut upstream = Upstream::start().await;
    let of_model = start(&upstream.address, of_model(LIMIT)).await;
    let of_operator = start(&upstream.address, limited(LIMIT)).await;
    let header = format!("x-weir-max-input-tokens: {LIMIT}\r\n");
    let open = start(&upstream.address, |_| {}).await;
    for path in PATHS {
        let tools = [tool(path, "read", "Reads a part.", &json!({}))];
        let body = body(path, &conversation(20), &tools, false);
        let (answer, expected) = sent(&of_operator, &mut upstream, path, "", &body).await;
        assert!(tokens(&answer, "x-weir-sent-tokens") > LIMIT / 2, "{path}");
        for (weir, headers) in [(&of_model, ""), (&open, header.as_str())] {
            let (answer, received) = sent(weir, &mut upstream, path, headers, &body).await;
            assert_eq!(tokens(&answer, "x-weir-limit-tokens"), LIMIT, "{path} {headers}");
            assert_eq!(received, expected, "{path} {headers}");
        }
    }
}

#[tokio::test]
async fn deferred_tools_are_no_part_of_the_prompt() {
    let mut upstream = Upstream::start().await;
    let small = start(&upstream.address, limited(8000)).await;
    let open = start(&upstream.address, |_| {}).await;
    let description = "Reads the gauge of one gate and returns its level. ".repeat(20);
    for path in PATHS {
        for (weir, count) in [(&small, 60), (&open, 1000)] {
            for stream in [false, true] {
                let deferred = json!({"defer_loading": true});
                let tools: Vec<Value> = (0..count)
                    .map(|own| tool(path, &format!("f{own}"), &description, &deferred))
                    .collect();
                let body = body(path, &conversation(2), &tools, stream);
                let (answer, received) = sent(weir, &mut upstream, path, "", &body).await;
                assert!(tokens(&answer, "x-weir-received-tokens") < 30_000, "{path} {count}");
                let received: Value = serde_json::from_str(&received).expect("JSON");
                assert_eq!(received["tools"], body["tools"], "{path} {count}");
            }
        }
    }
}

#[tokio::test]
async fn opaque_content_counts_as_what_it_is() {
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, |_| {}).await;
    let media: Vec<u8> = (0..170_000_u32).map(|at| (at * 7 % 251) as u8).collect();
    let media = STANDARD.encode(media);
    let mut pdf = b"%PDF-1.7\n".to_vec();
    (0..20).for_each(|page| pdf.extend(format!("{page} 0 obj <</Type /Page>> endobj\n").bytes()));
    let pdf = STANDARD.encode(pdf);
    let url = format!("data:application/pdf;base64,{pdf}");
    let source = json!({"type": "base64", "media_type": "application/pdf", "data": pdf});
    let sealed = json!([{"type": "web_search_result", "url": "u", "title": "t", "encrypted_content": media}]);
    let result =
        json!({"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": sealed});
    for (path, part, range) in [
        (PATHS[0], json!({"type": "file", "file": {"file_data": url}}), 30_000..60_100),
        (PATHS[1], json!({"type": "input_file", "file_data": url}), 30_000..60_100),
        (PATHS[2], json!({"type": "document", "source": source}), 30_000..60_100),
        (PATHS[0], json!({"type": "video", "video": {"bytes": media}}), 1000..20_000),
        (PATHS[1], json!({"type": "input_video", "bytes": [media]}), 1000..20_000),
        (PATHS[2], json!({"type": "blob", "source": {"data": media}}), 1000..20_000),
        (PATHS[2], result, 30_000..60_000),
    ] {
        let role = if part["tool_use_id"].is_null() { "user" } else { "assistant" };
        let messages = [
            json!({"role": "user", "content": "Look."}),
            json!({"role": role, "content": [part]}),
            json!({"role": "user", "content": "And?"}),
        ];
        let body = body(path, &messages, &[], false);
        let (answer, _) = sent(&weir, &mut upstream, path, "", &body).await;
        let counted = tokens(&answer, "x-weir-received-tokens");
        assert!(range.contains(&counted), "{path} {} {counted}", part["type"]);
        // A limit that is set holds for it.
        let headers = "authorization: Bearer alice\r\nx-weir-max-input-tokens: 500\r\n";
        let messages = [json!({"role": "user", "content": [part]})];
        let body = self::body(path, &messages, &[], false);
        if role == "user" {
            let request = setting::post(path, headers, body.to_string());
            assert_eq!(ask(weir.address, request).await.status(), 400, "{path}");
        }
    }
}

/// The size of tools is an estimate: alone it is no reason for a refusal, unless somebody set the limit.
#[tokio::test]
async fn tools_alone_refuse_nothing_that_the_provider_may_take() {
    let mut upstream = Upstream::start().await;
    let open = start(&upstream.address, |_| {}).await;
    let set = start(&upstream.address, limited(8_000)).await;
    for path in PATHS {
        let tools: Vec<Value> = (0..60)
            .map(|number| {
                tool(path, &format!("t{number}"), &"Opens a gate. ".repeat(50), &json!({}))
            })
            .collect();
        for stream in [false, true] {
            let mut body = body(path, &[json!({"role": "user", "content": "Hi"})], &tools, stream);
            body["model"] = "gpt-4".into();
            let (answer, received) = sent(&open, &mut upstream, path, "", &body).await;
            assert_eq!(answer.status(), 200, "{path}");
            assert!(tokens(&answer, "x-weir-sent-tokens") > 8_192, "{path}");
            assert!(received.contains("\"Hi\""), "{path}");
            for (weir, headers) in [(&set, ""), (&open, "x-weir-max-input-tokens: 8000\r\n")] {
                let headers = format!("authorization: Bearer alice\r\n{headers}");
                let request = setting::post(path, &headers, body.to_string());
                assert_eq!(ask(weir.address, request).await.status(), 400, "{path}");
            }
        }
    }
}

#[tokio::test]
async fn a_body_without_messages_is_sent_unread() {
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, limited(100)).await;
    let prompt = "what runs over the wall? ".repeat(400);
    for (path, member) in [
        ("/v1/chat/completions", json!({"prompt": prompt})),
        ("/v1/chat/completions", json!({"input": [{"role": "user", "content": prompt}]})),
    ] {
        for stream in [false, true] {
            let mut body = member.clone();
            body["model"] = json!(MODEL);
            body["stream"] = json!(stream);
            let (answer, received) = sent(&weir, &mut upstream, path, "", &body).await;
            assert_eq!(answer.header("x-weir-action"), Some("unread"), "{body}");
            assert!(tokens(&answer, "x-weir-received-tokens") > 2000, "{body}");
            let received: Value = serde_json::from_str(&received).expect("JSON");
            assert!(
                member
                    .as_object()
                    .expect("members")
                    .iter()
                    .all(|(name, own)| received[name] == *own)
            );
        }
    }
}

/// Names of deferred tools.
const DEFERRED: [&str; 10] = ["f0", "f1", "f2", "f3", "f4", "f5", "f6", "f7", "f8", "f9"];

/// Builds a search that loads them, an agent's work far beyond a small limit, and a call of `f0` at its end.
fn late_call(path: &str) -> Vec<Value> {
    let text = "what runs over the wall? ".repeat(120);
    let mut list = vec![json!({"role": "user", "content": "Read the gauges."})];
    let is_messages = path == "/v1/messages";
    let mut step = |number: usize, name: &str| {
        let (id, question) = (format!("t{number}"), format!("Go on with {number}. {text}"));
        list.extend(match is_messages {
            true => vec![
                json!({"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": name, "input": {}}]}),
                json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": "Done."}, {"type": "text", "text": question}]}),
            ],
            false => vec![
                json!({"type": "function_call", "call_id": id, "name": name, "arguments": "{}"}),
                json!({"type": "function_call_output", "call_id": id, "output": "Done."}),
                json!({"role": "user", "content": question}),
            ],
        });
    };
    (0..20).for_each(|number| step(number, "read"));
    step(20, "f0");
    // The newest message is the result, so that its call stays.
    match is_messages {
        true => list[42]["content"].as_array_mut().map(Vec::pop).map(drop),
        false => list.pop().map(drop),
    };
    let references = DEFERRED.map(|name| json!({"type": "tool_reference", "tool_name": name}));
    let search = match is_messages {
        true => vec![
            json!({"role": "assistant", "content": [
                {"type": "server_tool_use", "id": "s1", "name": "tool_search_tool_regex", "input": {"query": "f"}},
                {"type": "tool_search_tool_result", "tool_use_id": "s1", "content": {"type": "tool_search_tool_search_result",
                    "tool_references": references}},
                {"type": "text", "text": "Found."}]}),
            json!({"role": "user", "content": "Go on."}),
        ],
        false => vec![
            json!({"type": "tool_search_call", "call_id": "s1", "execution": "client", "arguments": {"query": "f"}, "status": "completed"}),
            json!({"type": "tool_search_output", "call_id": "s1", "execution": "client", "status": "completed",
                "tools": deferred_tools(path)}),
            json!({"role": "user", "content": "Go on."}),
        ],
    };
    list.splice(1..1, search);
    list
}

fn deferred_tools(path: &str) -> Vec<Value> {
    let description = "Reads the gauge of one gate and returns its level. ".repeat(20);
    DEFERRED.map(|name| tool(path, name, &description, &json!({"defer_loading": true}))).to_vec()
}

#[tokio::test]
async fn a_call_whose_load_is_left_out_is_sent_with_its_definition() {
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, limited(3000)).await;
    for path in ["/v1/responses", "/v1/messages"] {
        for stream in [false, true] {
            let mut tools = deferred_tools(path);
            tools.push(tool(path, "read", "Reads a part.", &json!({})));
            let body = body(path, &late_call(path), &tools, stream);
            let (answer, received) = sent(&weir, &mut upstream, path, "", &body).await;
            assert!(
                answer.header("x-weir-edits").is_some_and(|edits| edits.contains("tools")),
                "{path}: {received}"
            );
            assert!(
                !received.contains("\"s1\"") && received.contains("\"t20\""),
                "{path}: {received}"
            );
            let received: Value = serde_json::from_str(&received).expect("JSON");
            let is_deferred = |at: usize| received["tools"][at].get("defer_loading").is_some();
            assert_eq!([is_deferred(0), is_deferred(1)], [false, true], "{path}");
            assert!(tokens(&answer, "x-weir-sent-tokens") <= 3000, "{path}");
        }
    }
}
