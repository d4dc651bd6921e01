//! Routing: the upstream and the model of a request, by names, patterns, aliases, paths, and on
//! other routes.

use serde_json::json;

use super::setting::{Play, Up, events, failing, memory, question, rows, said, send, status, weir};
use crate::server::harness::{Message, Weir, ask, bare, chat};

const TWO: &str = r#"
    [upstream]
    url = "{a}"
    [upstreams.b]
    url = "{b}"
    api_key = "env:B"
    [[routes]]
    models = ["small", "llama*"]
    upstream = "b"
    send_as = "llama3.1:8b"
    [[routes]]
    models = ["*-exact", "gpt-4o"]
    upstream = "b"
"#;

#[tokio::test]
async fn names_and_patterns_lead_to_their_upstream_and_all_else_to_the_default() {
    let (a, b, store) = (Up::start("a").await, Up::start("b").await, memory());
    let ups = [("a", a.url()), ("b", b.url())];
    let weir = weir(&store, TWO, &ups).await;
    for (model, to, sent) in [
        ("small", "b", "llama3.1:8b"),
        ("SMALL", "b", "llama3.1:8b"),
        ("llama-7", "b", "llama3.1:8b"),
        ("vendor/llama-7", "b", "llama3.1:8b"),
        ("gpt-4o", "b", "gpt-4o"),
        ("openai/gpt-4o", "b", "openai/gpt-4o"),
        ("not-exact", "b", "not-exact"),
        ("gpt-4o-mini", "a", "gpt-4o-mini"),
        ("other", "a", "other"),
    ] {
        let body = question(model).to_string();
        let answer = send(&weir, &question(model)).await;
        assert_eq!(answer.status(), 200, "{model}: {answer:?}");
        assert_eq!(said(&answer), format!("from {to}"), "{model}");
        let name = if to == "a" { "default" } else { "b" };
        assert_eq!(answer.header("x-weir-upstream"), Some(name), "{model}");
        assert_eq!(answer.header("x-weir-model"), Some(sent), "{model}");
        assert_eq!(answer.header("x-weir-attempts"), None);
        let edits = (sent != model).then_some("alias");
        assert_eq!(answer.header("x-weir-edits"), edits, "{model}");
        let seen = [a.seen(), b.seen()].concat();
        assert_eq!(seen.len(), 1);
        let expected = body.replace(&format!("\"{model}\""), &format!("\"{sent}\""));
        assert_eq!(seen[0].text(), expected, "{model}: nothing else is changed");
    }
    let answer = send(&weir, &json!({"messages": [{"role": "user", "content": "x"}]})).await;
    assert_eq!(said(&answer), "from a", "what names no model goes to the default");
    let rows = rows(&store, &ups).await;
    assert_eq!(rows.len(), 10);
    assert_eq!(rows.iter().filter(|row| row.starts_with("b llama3.1:8b complete 200")).count(), 4);
}

#[tokio::test]
async fn without_routes_nothing_is_told_of_them() {
    let (a, store) = (Up::start("a").await, memory());
    let weir = weir(&store, "[upstream]\nurl = \"{a}\"", &[("a", a.url())]).await;
    let answer = send(&weir, &question("gpt-4o")).await;
    assert_eq!(said(&answer), "from a");
    for name in ["x-weir-upstream", "x-weir-model", "x-weir-attempts"] {
        assert_eq!(answer.header(name), None, "{name}");
    }
    assert_eq!(a.seen()[0].text(), question("gpt-4o").to_string());
}

#[tokio::test]
async fn an_alias_changes_the_model_alone_whatever_stands_around_it() {
    let (a, b, store) = (Up::start("a").await, Up::start("b").await, memory());
    let ups = [("a", a.url()), ("b", b.url())];
    let weir = weir(&store, TWO, &ups).await;
    let body = "{ \"stream\":true,\"stream_options\":{\"include_usage\":true}, \"messages\" : [{\"role\":\
                \"user\",\"content\":\"m\\u006fdel \\\"model\\\":\\\"small\\\" 1.50\"}], \"seed\":1e2 ,\
                \"mod\\u0065l\" :\n\"sm\\u0061ll\",\"x\":[ ] }";
    let answer = ask(weir.address, chat("authorization: Bearer k\r\n", body)).await;
    assert_eq!(said(&answer), "from b");
    assert_eq!(answer.header("x-weir-edits"), Some("alias"));
    assert_eq!(b.seen()[0].text(), body.replace("\"sm\\u0061ll\"", "\"llama3.1:8b\""));
    let body = body.replace("\"stream_options\":{\"include_usage\":true}, ", "");
    let answer = ask(weir.address, chat("authorization: Bearer k\r\n", &body)).await;
    assert_eq!(said(&answer), "from b");
    assert_eq!(answer.header("x-weir-edits"), Some("alias,usage"));
    assert_eq!(b.seen()[0].json()["model"], "llama3.1:8b");
}

#[tokio::test]
async fn other_routes_go_by_their_model_too() {
    let (a, b, store) = (Up::start("a").await, Up::start("b").await, memory());
    let ups = [("a", a.url()), ("b", b.url())];
    let weir = weir(&store, TWO, &ups).await;
    for path in ["embeddings", "completions", "moderations", "images/generations", "responses"] {
        for (model, to) in [("small", 1), ("other", 0)] {
            let body = json!({"input": "x", "model": model}).to_string();
            let request = format!(
                "POST /v1/{path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                 content-length: {}\r\n\r\n{body}",
                body.len()
            );
            let answer = ask(weir.address, request).await;
            assert_eq!(answer.status(), 200);
            let seen = [a.seen(), b.seen()];
            assert_eq!(seen.each_ref().map(Vec::len), [1 - to, to], "{path} {model}");
            let expected = body.replace("\"small\"", "\"llama3.1:8b\"");
            assert_eq!(seen[to][0].text(), expected);
            assert_eq!(seen[to][0].line(), format!("POST /v1/{path}"));
        }
    }
    let form = "POST /v1/audio/speech HTTP/1.1\r\nhost: localhost\r\ncontent-type: \
                multipart/form-data; boundary=B\r\ncontent-length: 17\r\n\r\n{\"model\":\"small\"}";
    ask(weir.address, form).await;
    assert_eq!([a.seen().len(), b.seen().len()], [1, 0], "a form is not read");
    ask(weir.address, bare("GET", "/v1/models/small", "")).await;
    assert_eq!(b.seen()[0].line(), "GET /v1/models/llama3.1:8b");
    ask(weir.address, bare("GET", "/v1/files", "")).await;
    assert_eq!(a.seen().len(), 1, "what names no model goes to the default");
}

#[tokio::test]
async fn a_deployment_in_the_path_is_a_model() {
    let (a, b, store) = (Up::start("a").await, Up::start("b").await, memory());
    let weir = weir(&store, TWO, &[("a", a.url()), ("b", b.url())]).await;
    let message = r#""messages":[{"role":"user","content":"x"}]"#;
    for (rest, input) in [("chat/completions", message), ("embeddings", r#""input":"x""#)] {
        for (deployment, to, sent) in
            [("sm%61ll", 1, "llama3.1:8b"), ("gpt-4o", 1, "gpt-4o"), ("o%20", 0, "o ")]
        {
            // Both upstreams serve /v1 and read the model from the body.
            let named = |model: &str| format!("{{\"model\":{model},{input}}}");
            let sent = named(&format!("{sent:?}"));
            for body in [format!("{{{input}}}"), named("\"other\""), named("null"), sent.clone()] {
                let answer = deployed(&weir, deployment, rest, &body).await;
                assert_eq!(answer.status(), 200);
                let seen = [a.seen(), b.seen()];
                assert_eq!(seen.each_ref().map(Vec::len), [1 - to, to], "{deployment}");
                assert_eq!(seen[to][0].line(), format!("POST /v1/{rest}"));
                assert_eq!(seen[to][0].text(), sent, "{body}");
                let is_edited = body != sent || deployment.starts_with("sm");
                let edits = answer.header("x-weir-edits").unwrap_or_default();
                assert!(rest == "embeddings" || (edits == "alias") == is_edited, "{body}: {edits}");
            }
        }
        for body in [r#"{"model":"a","model":"b","input":"x","messages":[]}"#, "[]", "no JSON"] {
            let refused = deployed(&weir, "gpt-4o", rest, body).await;
            assert_eq!(refused.status(), 400, "{rest} {body}");
        }
        assert_eq!([a.seen().len(), b.seen().len()], [0, 0], "nothing of that is sent");
    }
}

/// At an upstream with deployments, the path takes precedence over the body, which stays unchanged.
#[tokio::test]
async fn a_deployment_stays_one_where_the_upstream_has_them() {
    let (a, b, store) = (Up::start("a").await, Up::start("b").await, memory());
    let root = |up: &Up| format!("http://{}", up.address);
    let weir = weir(&store, TWO, &[("a", root(&a)), ("b", root(&b))]).await;
    let body = json!({"messages": [{"role": "user", "content": "x"}], "model": "kept"}).to_string();
    for (deployment, to, sent) in
        [("sm%61ll", 1, "llama3.1:8b"), ("gpt-4o", 1, "gpt-4o"), ("o%20", 0, "o%20")]
    {
        let answer = deployed(&weir, deployment, "chat/completions", &body).await;
        assert_eq!(answer.status(), 200);
        let seen = [a.seen(), b.seen()];
        assert_eq!(seen.each_ref().map(Vec::len), [1 - to, to], "{deployment}");
        let line = format!("POST /openai/deployments/{sent}/chat/completions?api-version=1");
        assert_eq!(seen[to][0].line(), line);
        assert_eq!(seen[to][0].text(), body);
    }
}

/// Sends a request to a deployment, in Azure's format.
async fn deployed(weir: &Weir, deployment: &str, rest: &str, body: &str) -> Message {
    let length = body.len();
    let request = format!(
        "POST /openai/deployments/{deployment}/{rest}?api-version=1 HTTP/1.1\r\nhost: \
         localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    ask(weir.address, request).await
}

#[tokio::test]
async fn a_row_has_limits_and_a_policy_and_plans_are_told_by_them() {
    let (a, b, store) = (Up::start("a").await, Up::start("b").await, memory());
    let toml = r#"
        [upstream]
        url = "{a}"
        [upstreams.b]
        url = "{b}"
        [[limits]]
        model = "named"
        max_input_tokens = 700
        [[limits]]
        model = "gpt-4o"
        max_input_tokens = 900
        [[routes]]
        models = ["named", "other"]
        upstream = "b"
        send_as = "gpt-4o"
        policy = "plain"
        [[routes]]
        models = ["gpt-4o-mini"]
        max_input_tokens = 600
        [policies.plain]
        notes = "count"
    "#;
    let weir = weir(&store, toml, &[("a", a.url()), ("b", b.url())]).await;
    for (model, limit, policy) in
        [("named", "700", "plain"), ("other", "900", "plain"), ("gpt-4o-mini", "600", "default")]
    {
        let answer = send(&weir, &question(model)).await;
        assert_eq!(answer.header("x-weir-limit-tokens"), Some(limit), "{model}");
        let body = question(model).to_string();
        let plan = format!(
            "POST /weir/v1/plan HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let plan = ask(weir.address, plan).await;
        let plan: serde_json::Value = serde_json::from_slice(&plan.body).expect("JSON");
        let text = plan.to_string();
        let sent = if model == "gpt-4o-mini" { model } else { "gpt-4o" };
        assert_eq!(plan["model"], sent, "{text}");
        assert_eq!(plan["policy"], policy, "{text}");
        assert!(text.contains(&format!(":{limit}")), "{text}");
    }
}

/// Builds the request and the answers, plain and streamed, of a path whose upstream names `model`.
fn answers(path: &str, model: &str) -> (serde_json::Value, String, String) {
    let message = json!({"role": "user", "content": "What runs over the wall?"});
    let usage = json!({"input_tokens": 9, "output_tokens": 2});
    match path {
        "/v1/responses" => {
            let response =
                json!({"object": "response", "model": model, "output": [], "usage": usage});
            let event = |kind: &str| {
                format!("event: {kind}\ndata: {}\n\n", json!({"type": kind, "response": response}))
            };
            let events = event("response.created") + &event("response.completed");
            (json!({"input": [message]}), response.to_string(), events)
        }
        "/v1/messages" => {
            let text = json!({"type": "text", "text": "Water."});
            let message_of = |content| json!({"type": "message", "model": model, "content": content, "usage": usage});
            let start = json!({"type": "message_start", "message": message_of(json!([]))});
            let delta = json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Water."}});
            let events = [start, delta, json!({"type": "message_stop"})];
            let events = events.map(|event| {
                format!("event: {}\ndata: {event}\n\n", event["type"].as_str().expect("text"))
            });
            (
                json!({"messages": [message], "max_tokens": 9}),
                message_of(json!([text])).to_string(),
                events.concat(),
            )
        }
        _ => (
            json!({"messages": [message]}),
            super::setting::completion(model).to_string(),
            events(model),
        ),
    }
}

#[tokio::test]
async fn an_answer_names_the_model_that_its_caller_asked_for() {
    let (a, b, store) = (Up::start("a").await, Up::start("b").await, memory());
    let toml = TWO.replacen(
        "models = [\"*-exact\", \"gpt-4o\"]",
        "models = [\"*-exact\", \"gpt-4o\"]\nfallback = [\"small\"]",
        1,
    );
    assert_ne!(toml, TWO);
    let weir = weir(&store, &toml, &[("a", a.url()), ("b", b.url())]).await;
    for path in ["/v1/chat/completions", "/v1/responses", "/v1/messages"] {
        for (asked, answered, fails) in [
            ("small", "llama-3.1-8b-instruct", false),
            ("gpt-4o", "gpt-4o-2024-08-06", false),
            ("gpt-4o", "llama-3.1-8b-instruct", true),
            ("other", "other-2026", false),
        ] {
            for stream in [false, true] {
                let (mut body, plain, events) = answers(path, answered);
                body["model"] = json!(asked);
                body["stream"] = json!(stream);
                let up = if asked == "other" { &a } else { &b };
                up.then(fails.then(|| failing(503)));
                up.then([Play::Answer(match stream {
                    false => status(200, "", &plain),
                    true => status(200, "", &events).replacen(
                        "application/json",
                        "text/event-stream",
                        1,
                    ),
                })]);
                let request = crate::keys::setting::post(
                    path,
                    "authorization: Bearer alice\r\n",
                    body.to_string(),
                );
                let answer = ask(weir.address, request).await;
                let is_alias = asked == "small" || fails;
                let shown = if is_alias { asked } else { answered };
                let [from, to] = [answered, shown].map(|name| format!("\"model\":\"{name}\""));
                let text = String::from_utf8(answer.body.clone()).expect("text");
                let wanted = if stream { events } else { plain }.replace(&from, &to);
                // The caller does not get the event with the usage that weir asked for.
                let is_for_caller = |event: &&str| !event.contains("\"choices\":[],");
                let wanted: String = wanted.split_inclusive("\n\n").filter(is_for_caller).collect();
                assert_eq!(text, wanted, "{path} {asked} {stream}");
            }
        }
    }
}
