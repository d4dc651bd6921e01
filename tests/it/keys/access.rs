//! Access by key to routes and models, and the credential that the provider receives.

use base64::Engine as _;
use serde_json::Value;
use weir::config::ModelSettings;
use weir_store::now_ms;

use super::setting::{OWN_KEY, bearer, post, start};
use crate::routes::setting::Up;
use crate::server::harness::{FINE, Upstream, ask, bare, body_of, chat};

/// Address without a listener: a request that is forwarded ends in a 502.
const NOWHERE: &str = "127.0.0.1:1";

#[tokio::test]
async fn only_holders_of_keys_are_let_in() {
    let setting = start(NOWHERE, |_| {}).await;
    let key = setting.key("a", "{}").await;
    let (secret, mut other) = (&key.secret, key.secret.clone());
    let last = other.pop().expect("it is not empty");
    other.push(if last == 'A' { 'Q' } else { 'A' });
    let short = &secret[..secret.len() - 1];
    for headers in [
        String::new(),
        "authorization: Bearer\r\n".to_owned(),
        "authorization: Basic dTpw\r\n".to_owned(),
        "cookie: key=a\r\n".to_owned(),
        bearer("sk-proj-somebodys"),
        bearer(OWN_KEY),
        bearer(&other),
        bearer(short),
        bearer(&format!("{secret}A")),
        bearer(&secret.to_uppercase()),
        bearer(&key.id),
        format!("{}{}", key.header(), "x-api-key: sk-other\r\n"),
        format!("{}{}", key.header(), bearer(&other)),
    ] {
        for request in [
            chat(&headers, body_of(100)),
            bare("GET", "/v1/models", &headers).into_bytes(),
            bare("GET", "/v1/files", &headers).into_bytes(),
            bare("GET", "/weir/v1/originals/abcdefghijkl", &headers).into_bytes(),
            post("/weir/v1/plan", &headers, body_of(100)).into_bytes(),
        ] {
            let refused = setting.ask(request).await;
            refused.assert_error(401, "invalid_api_key");
            assert_eq!(refused.header("www-authenticate"), Some("Bearer"));
        }
    }
    for headers in [
        key.header(),
        format!("authorization: bearer {secret}\r\n"),
        format!("authorization: {secret}\r\n"),
        format!("api-key: {secret}\r\n"),
        format!("x-api-key: {secret}\r\nauthorization: Bearer {secret}\r\n"),
    ] {
        let answer = setting.ask(chat(&headers, body_of(100))).await;
        assert_eq!(answer.header("x-weir-error"), Some("upstream_connect"), "{headers}");
    }
    assert_eq!(
        setting.ask(bare("GET", "/", "")).await.status(),
        200,
        "what weir is anybody may know"
    );
}

#[tokio::test]
async fn a_change_holds_from_the_next_request_on() {
    let upstream = Upstream::always(FINE).await;
    let setting = start(&upstream, |_| {}).await;
    let key = setting.key("a", "{}").await;
    let status = async |secret: &str| {
        let answer = setting.ask(chat(&bearer(secret), body_of(100))).await;
        if answer.status() == 401 {
            answer.assert_error(401, "invalid_api_key");
        }
        answer.status()
    };
    let store = &setting.store;
    assert_eq!(status(&key.secret).await, 200);
    let second = store.rotate_key(&key.id, 60_000, now_ms()).await.expect("a new secret");
    let second = second.secret.expose();
    assert_eq!((status(&key.secret).await, status(second).await), (200, 200), "both for a while");
    let third = store.rotate_key(&key.id, 60_000, now_ms()).await.expect("a new secret");
    let third = third.secret.expose();
    let all = (status(&key.secret).await, status(second).await, status(third).await);
    assert_eq!(all, (401, 200, 200), "never more than two");
    let last = store.rotate_key(&key.id, 0, now_ms()).await.expect("a new secret");
    let last = last.secret.expose();
    assert_eq!((status(third).await, status(last).await), (401, 200));

    let change = |text: &str| serde_json::from_str(text).expect("a change");
    store.change_key(&key.id, change(r#"{"expires_ms":1}"#)).await.expect("it is live");
    assert_eq!(status(last).await, 401);
    store.change_key(&key.id, change(r#"{"expires_ms":null}"#)).await.expect("it may come back");
    assert_eq!(status(last).await, 200);
    store.change_key(&key.id, change(r#"{"models":["o3"]}"#)).await.expect("it is live");
    assert_eq!(status(last).await, 403);
    store.revoke_key(&key.id, now_ms()).await.expect("it is live");
    assert_eq!(status(last).await, 401);
    let again = store.change_key(&key.id, change(r#"{"expires_ms":null}"#)).await;
    assert!(again.is_err(), "that was for good");
}

#[tokio::test]
async fn a_rotated_secret_ends_with_its_overlap() {
    let upstream = Upstream::always(FINE).await;
    let setting = start(&upstream, |_| {}).await;
    let key = setting.key("a", "{}").await;
    // As if the secret had been replaced an hour ago, with half an hour to go.
    let hour_ms = 60 * 60 * 1000;
    let then_ms = now_ms() - hour_ms;
    let new = setting.store.rotate_key(&key.id, hour_ms / 2, then_ms).await.expect("a new secret");
    let refused = setting.ask(chat(&key.header(), body_of(100))).await;
    let said = refused.assert_error(401, "invalid_api_key");
    assert!(said.contains("expired"), "{said}");
    let answer = setting.ask(chat(&bearer(new.secret.expose()), body_of(100))).await;
    assert_eq!(answer.status(), 200);
}

#[tokio::test]
async fn the_provider_sees_weirs_own_key_and_nothing_of_the_callers() {
    let mut upstream = Upstream::start().await;
    let setting = start(&upstream.address.clone(), |_| {}).await;
    let key = setting.key("a", r#"{"passthrough":true}"#).await;
    let headers = format!(
        "{}x-api-key: {secret}\r\napi-key: {secret}\r\nopenai-organization: org-1\r\n\
         openai-project: p-1\r\ncookie: session=1\r\nx-weir-policy-of-tomorrow: 1\r\n\
         x-request-note: kept\r\n",
        key.header(),
        secret = key.secret
    );
    for request in [
        chat(&headers, body_of(100)),
        post("/v1/embeddings", &headers, r#"{"model":"m","input":"x"}"#).into_bytes(),
        bare("GET", "/v1/models", &headers).into_bytes(),
        bare("GET", "/v1/files", &headers).into_bytes(),
    ] {
        let address = setting.weir.address;
        let asking =
            tokio::spawn(async move { crate::server::harness::ask(address, request).await });
        let seen = upstream.next().await;
        let head = seen.head.to_ascii_lowercase();
        assert!(head.contains(&format!("authorization: bearer {OWN_KEY}\r\n")), "{head}");
        assert_eq!(head.matches("authorization").count(), 1, "{head}");
        assert!(head.contains("x-request-note: kept"), "{head}");
        let gone = ["sk-weir-", "x-api-key", "\r\napi-key", "openai-", "cookie", "x-weir-"];
        for name in gone {
            assert!(!head.contains(name), "{name}: {head}");
        }
        seen.answer(
            "HTTP/1.1 200 OK\r\nset-cookie: provider=1\r\nopenai-organization: acme\r\n\
             x-request-id: r-1\r\ncontent-length: 2\r\n\r\n[]",
        );
        let answer = asking.await.expect("it is answered");
        assert_eq!(answer.header("x-request-id"), Some("r-1"));
        assert_eq!(answer.header("set-cookie"), None);
        assert_eq!(answer.header("openai-organization"), None);
    }
}

#[tokio::test]
async fn in_open_mode_an_own_key_takes_the_place_of_the_callers() {
    let mut upstream = Upstream::start().await;
    let address = upstream.address.clone();
    let weir = crate::server::harness::start(&address, |config| {
        config.upstream.provider_key = Some(weir::config::Secret::new(OWN_KEY));
    })
    .await;
    let request = chat("authorization: Bearer callers\r\ncookie: a=b\r\n", body_of(100));
    let asking =
        tokio::spawn(async move { crate::server::harness::ask(weir.address, request).await });
    let seen = upstream.next().await;
    assert!(seen.head.contains(OWN_KEY) && !seen.head.contains("callers"), "{}", seen.head);
    assert!(!seen.head.contains("cookie"), "{}", seen.head);
    seen.answer(FINE);
    assert_eq!(asking.await.expect("it is answered").status(), 200);
}

/// An upstream may use the model in the path or the one in the body: for a key with its own models,
/// both name the same model.
#[tokio::test]
async fn beside_a_deployment_a_key_with_models_of_its_own_names_no_other_model() {
    let up = Up::start("a").await;
    let root = format!("http://{}", up.address);
    let setting = start(&up.address, |config| config.upstream.url = root).await;
    let own = setting.key("a", r#"{"models":["gpt-4o"]}"#).await;
    let free = setting.key("a", "{}").await;
    let message = r#""messages":[{"role":"user","content":"hi"}]"#;
    for (rest, input) in [("chat/completions", message), ("embeddings", r#""input":"x""#)] {
        let named = |model: &str| format!("{{{input}, \"model\":{model}}}");
        let unnamed = format!("{{{input}}}");
        for (key, body, expected) in [
            (&own, named("\"o3\""), named("\"gpt-4o\"")),
            (&own, named("[\"o3\"]"), named("\"gpt-4o\"")),
            (&own, named("\"gpt-4\\u006f\""), named("\"gpt-4\\u006f\"")),
            (&own, unnamed.clone(), unnamed),
            (&free, named("\"o3\""), named("\"o3\"")),
        ] {
            let path = format!("/openai/deployments/gpt-4o/{rest}?api-version=1");
            let answer = setting.ask(post(&path, &key.header(), &body)).await;
            assert_eq!(answer.status(), 200, "{body}");
            let [seen] = up.seen().try_into().expect("it is sent once");
            assert_eq!((seen.line(), seen.text()), (format!("POST {path}").as_str(), expected));
        }
    }
}

/// A chat whose model is open to all keys of these tests.
const CHAT: &str = r#"{"model":"gpt-4o","messages":[{"role":"user","content":"hi"}]}"#;

#[tokio::test]
async fn a_key_may_use_its_models_under_all_their_names() {
    let upstream = Upstream::always(FINE).await;
    let setting = start(&upstream, |_| {}).await;
    let key = setting.key("a", r#"{"models":["gpt-4o*","text-embedding-3-small"]}"#).await;
    let message = r#""messages":[{"role":"user","content":"hi"}]"#;
    let input = r#""input":"x""#;
    for (path, model, rest, expected) in [
        ("/v1/chat/completions", "gpt-4o-mini", message, 200),
        ("/v1/chat/completions", "openai/GPT-4o", message, 200),
        ("/v1/chat/completions", "o3", message, 403),
        ("/openai/deployments/gpt-4o/chat/completions", "o3", message, 200),
        ("/openai/deployments/o3/chat/completions", "gpt-4o", message, 403),
        ("/v1/embeddings", "text-embedding-3-small", input, 200),
        ("/v1/embeddings", "text-embedding-3-large", input, 403),
        ("/v1/responses", "gpt-4o", input, 200),
        ("/v1/responses", "o3", input, 403),
        ("/v1/responses/", "o3", input, 403),
        ("/v1/Responses", "o3", input, 403),
        ("/v1/messages", "o3", message, 403),
        ("/v1/completions", "o3", "\"prompt\":\"x\"", 403),
        ("/v1/images/generations", "o3", input, 403),
        ("/v1/audio/speech", "o3", input, 403),
        ("/v1/moderations", "o3", input, 403),
        ("/v1/embeddings", "gpt-4o", r#""fallbacks":["o3"]"#, 403),
        ("/v1/chat/completions", "gpt-4o", r#""messages":[],"fallbacks":["o3"]"#, 403),
        ("/v1/embeddings", "gpt-4o", r#""models":["gpt-4o"],"fallbacks":null"#, 200),
        ("/v1/embeddings", "gpt-4o", r#""context_window_fallbacks":{"gpt-4o":["o3"]}"#, 403),
        ("/v1/embeddings", "gpt-4o", r#""providerOptions":{"gateway":{"models":["o3"]}}"#, 403),
        (
            "/v1/chat/completions",
            "gpt-4o",
            r#""messages":[],"tools":[{"type":"openrouter:image_generation","parameters":{"model":"o3"}}]"#,
            403,
        ),
        (
            "/v1/chat/completions",
            "gpt-4o",
            r#""messages":[],"plugins":[{"id":"web","models":["o3"]}]"#,
            403,
        ),
        (
            "/v1/chat/completions",
            "gpt-4o",
            r#""messages":[],"tools":[{"type":"openrouter:fusion","parameters":{"analysis_models":["o3"]}}]"#,
            403,
        ),
    ] {
        let body = format!(r#"{{"model":"{model}",{rest}}}"#);
        let answer = setting.ask(post(path, &key.header(), body)).await;
        assert_eq!(answer.status(), expected, "{path} {model}");
        if expected == 403 {
            let said = answer.assert_error(403, "model_not_found");
            assert!(said.contains("gpt-4o*") && !said.contains("o3"), "{said}");
        }
    }
    for (path, expected) in [("/v1/models/gpt-4o", 200), ("/v1/models/o3", 403)] {
        let answer = setting.ask(bare("GET", path, &key.header())).await;
        assert_eq!(answer.status(), expected, "{path}");
    }
    let in_text = r#"{"model":"gpt-4o","models":"o3","input":"x"}"#;
    let in_text = setting.ask(post("/v1/embeddings", &key.header(), in_text)).await;
    in_text.assert_error(403, "model_not_found");
    let unnamed = setting.ask(post("/v1/moderations", &key.header(), "{\"input\":\"x\"}")).await;
    unnamed.assert_error(403, "model_not_found");
    let trusted = r#"{"models":["gpt-4o"],"passthrough":true}"#;
    let trusted = setting.key("a", trusted).await;
    for (body, expected) in [
        (r#"{"metadata":{}}"#, 200),
        (r#"{"model":"gpt-4o","inputs":"hi"}"#, 200),
        (r#"{"model":"o3","inputs":"hi"}"#, 403),
        (r#"{"agent_id":"a","inputs":"hi"}"#, 403),
    ] {
        let answer = setting.ask(post("/v1/conversations", &trusted.header(), body)).await;
        assert_eq!(answer.status(), expected, "{body}");
    }
    let free = setting.key("a", "{}").await;
    let unnamed = setting.ask(post("/v1/moderations", &free.header(), "{\"input\":\"x\"}")).await;
    assert_eq!(unnamed.status(), 200);
}

/// Builds a form of these fields and a file.
fn form(path: &str, headers: &str, fields: &[(&str, &str)]) -> String {
    let part = |head: &str, value: &str| {
        format!("--b\r\ncontent-disposition: form-data; {head}\r\n\r\n{value}\r\n")
    };
    let mut body = part("name=\"file\"; filename=\"a.mp3\"", "sound");
    fields.iter().for_each(|(name, value)| body += &part(&format!("name=\"{name}\""), value));
    body += "--b--\r\n";
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\n{headers}content-type: multipart/form-data; \
         boundary=b\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[tokio::test]
async fn a_key_keeps_to_its_models_on_every_route_that_names_one() {
    let upstream = Upstream::always(FINE).await;
    let setting = start(&upstream, |_| {}).await;
    let own = setting.key("a", r#"{"models":["gpt-4o*"],"passthrough":true}"#).await;
    let metered = setting.key("a", r#"{"models":["gpt-4o*"]}"#).await;
    let free = setting.key("a", r#"{"passthrough":true}"#).await;
    let check = async |request: &dyn Fn(&str) -> String, expected: u16| {
        let asked = request("");
        let answer = setting.ask(request(&own.header())).await;
        match expected {
            403 => drop(answer.assert_error(403, "model_not_found")),
            _ => assert_eq!(answer.status(), expected, "{asked}"),
        }
        assert_eq!(setting.ask(request(&free.header())).await.status(), 200, "{asked}");
    };
    let batch = r#"{"requests":[{"params":{"model":"gpt-4o"}},{"params":{"model":"o3"}}]}"#;
    for (path, body, expected) in [
        ("/v1/fine_tuning/jobs", r#"{"model":"gpt-4o"}"#, 200),
        ("/v1/fine_tuning/jobs", r#"{"model":"o3"}"#, 403),
        ("/v1/fine_tuning/jobs", "{}", 403),
        ("/v1/fine_tuning/jobs/j/cancel", "{}", 200),
        ("/v1/messages/batches", &batch.replace("o3", "gpt-4o-mini"), 200),
        ("/v1/messages/batches", batch, 403),
        ("/v1/batches", r#"{"input_file_id":"file-1"}"#, 403),
        ("/v1/batches/b/cancel", "{}", 200),
        ("/v1/threads/t/runs", r#"{"assistant_id":"a"}"#, 403),
        ("/v1/threads/t/runs", r#"{"assistant_id":"a","model":"gpt-4o"}"#, 200),
        ("/v1/responses/resp_1/cancel", "{}", 200),
        ("/v1/engines/o3/chat/completions", CHAT, 403),
        ("/v1/embeddings?model=o3", r#"{"model":"gpt-4o"}"#, 403),
        ("/v1/embeddings?a=b&Mod%65l=o%33", r#"{"model":"gpt-4o"}"#, 403),
        ("/v1/embeddings?model=gpt-4o", r#"{"model":"gpt-4o"}"#, 200),
        ("/v1/messages/count_tokens", r#"{"model":"o3"}"#, 403),
        ("/v1/messages/count_tokens", r#"{"model":"gpt-4o"}"#, 200),
    ] {
        check(&|headers| post(path, headers, body), expected).await;
    }
    for (path, fields, expected) in [
        ("/v1/audio/transcriptions", &[("model", "gpt-4o-transcribe")][..], 200),
        ("/v1/audio/transcriptions", &[("model", "whisper-1")], 403),
        ("/v1/audio/transcriptions", &[("model", "gpt-4o"), ("model", "whisper-1")], 403),
        ("/v1/images/edits", &[("prompt", "model")], 403),
        ("/v1/files", &[("purpose", "batch")], 200),
        ("/openai/deployments/o3/audio/transcriptions", &[("model", "gpt-4o")], 403),
    ] {
        check(&|headers| form(path, headers, fields), expected).await;
    }
    for (path, expected) in [("/v1/realtime?model=o3", 403), ("/v1/files?model=gpt-4o", 200)] {
        check(&|headers| bare("GET", path, headers), expected).await;
    }
    for (model, expected) in [("gpt-4o", 200), ("o3", 403)] {
        for path in ["/v1/messages/count_tokens", "/v1/responses/input_tokens"] {
            let body = format!(r#"{{"model":"{model}"}}"#);
            let answer = setting.ask(post(path, &metered.header(), body)).await;
            assert_eq!(answer.status(), expected, "{path} {model}");
        }
    }
}

#[tokio::test]
async fn what_is_stored_at_the_provider_takes_a_right_of_its_own() {
    let upstream = Upstream::always(FINE).await;
    let setting = start(&upstream, |_| {}).await;
    let plain = setting.key("a", "{}").await;
    let trusted = setting.key("a", r#"{"passthrough":true}"#).await;
    let respond = |more: &str| format!(r#"{{"model":"gpt-4o","input":"x",{more}}}"#);
    let rows = [
        ("GET", "/v1/files", None),
        ("DELETE", "/v1/files/file-1", None),
        ("POST", "/v1/batches", Some("{}".to_owned())),
        ("GET", "/v1/batches/b", None),
        ("GET", "/v1/chat/completions", None),
        ("GET", "/v1/chat/completions/chatcmpl-1", None),
        ("GET", "/v1/responses/resp_1", None),
        ("POST", "/v1/responses/resp_1/cancel", Some("{}".to_owned())),
        ("DELETE", "/v1/models/ft:gpt-4o:a", None),
        ("POST", "/v1/audio/transcriptions", Some("--b".to_owned())),
        ("POST", "/v1/images/edits", Some("--b".to_owned())),
        ("POST", "/v1/fine_tuning/jobs", Some("{}".to_owned())),
        // Some routers take the model from the path segment before the route.
        ("POST", "/v1/engines/o3/chat/completions", Some(CHAT.to_owned())),
        ("POST", "/v1/deployments/o3/chat/completions", Some(CHAT.to_owned())),
        ("POST", "/v1/openai/deployments/o3/chat/completions", Some(CHAT.to_owned())),
        ("POST", "/api/v1/openai/deployments/o3/embeddings", Some("{}".to_owned())),
        ("GET", "/v1/organization/users", None),
        ("GET", "/openai/deployments/d/files", None),
        ("POST", "/v1/responses", Some(respond(r#""previous_response_id":"resp_1""#))),
        ("POST", "/v1/responses", Some(respond(r#""conversation":"conv_1""#))),
        ("POST", "/v1/responses", Some(respond(r#""background":true"#))),
        (
            "POST",
            "/v1/responses",
            Some(
                r#"{"model":"gpt-4o","input":[{"type":"item_reference","id":"msg_1"}]}"#.to_owned(),
            ),
        ),
    ];
    for (method, path, body) in rows {
        let request = |headers: &str| match &body {
            Some(body) => post(path, headers, body),
            None => bare(method, path, headers),
        };
        let refused = setting.ask(request(&plain.header())).await;
        let said = refused.assert_error(403, "passthrough_required");
        assert!(said.contains("passthrough"), "{said}");
        assert_eq!(setting.ask(request(&trusted.header())).await.status(), 200, "{method} {path}");
    }
    let stored = respond(r#""previous_response_id":null,"store":true"#);
    let answer = setting.ask(post("/v1/responses", &plain.header(), stored)).await;
    assert_eq!(answer.status(), 200);
}

#[tokio::test]
async fn a_body_arrives_as_it_was_sent() {
    let mut upstream = Upstream::start().await;
    let setting = start(&upstream.address.clone(), |_| {}).await;
    let key = setting.key("a", r#"{"models":["m"]}"#).await;
    let body = "{ \"input\" : \"\\u00fc\u{fc}\",\n\"model\":\"m\" }";
    let request = post("/v1/embeddings", &key.header(), body);
    let address = setting.weir.address;
    let asking = tokio::spawn(async move { crate::server::harness::ask(address, request).await });
    let seen = upstream.next().await;
    assert_eq!(seen.body, body.as_bytes());
    assert!(seen.head.contains(&format!("content-length: {}", body.len())), "{}", seen.head);
    seen.answer(FINE);
    assert_eq!(asking.await.expect("it is answered").status(), 200);
}

/// Paths of every kind: parsed, streamed through unread, and weir's own.
const PATHS: [(&str, &str); 7] = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/messages"),
    ("GET", "/v1/models"),
    ("DELETE", "/v1/files/file-1"),
    ("POST", "/weir/v1/plan"),
    ("GET", "/weir/v1/usage"),
];

fn to(method: &str, path: &str, headers: &str) -> String {
    match method {
        "POST" => {
            let body = r#"{"model":"gpt-4o","messages":[{"role":"user","content":"x"}]}"#;
            post(path, headers, body)
        }
        _ => bare(method, path, headers),
    }
}

#[tokio::test]
async fn a_virtual_key_is_not_forwarded_in_open_mode() {
    // A forwarded request ends in a 502.
    let weir = crate::server::harness::start(NOWHERE, |_| {}).await;
    let secret = format!("sk-weir-{}", "G".repeat(43));
    let basic = base64::engine::general_purpose::STANDARD.encode(format!("user:{secret}"));
    let escaped = secret.replace("sk-", "%73k%2D");
    for headers in [
        bearer(&secret),
        format!("authorization: {secret}\r\n"),
        format!("authorization: Basic {basic}\r\n"),
        format!("api-key: {secret}\r\n"),
        format!("x-api-key: {secret}\r\n"),
        format!("x-api-key: sk-other\r\nx-api-key: {secret}\r\n"),
        format!("x-goog-api-key: {secret}\r\nauthorization: Bearer sk-other\r\n"),
        format!("cookie: key={secret}\r\n"),
    ] {
        for (method, path) in PATHS {
            let answer = ask(weir.address, to(method, path, &headers)).await;
            let said = answer.assert_error(401, "invalid_api_key");
            assert!(said.contains("auth.mode") && !said.contains(&secret), "{said}");
        }
    }
    for query in [
        format!("key={secret}"),
        format!("a=b&api-key={secret}"),
        format!("subscription-key={escaped}"),
        format!("token=Bearer%20{secret}"),
    ] {
        for (method, path) in PATHS {
            let answer = ask(weir.address, to(method, &format!("{path}?{query}"), "")).await;
            answer.assert_error(401, "invalid_api_key");
        }
    }
    let answer = ask(weir.address, to("POST", PATHS[0].1, &bearer("sk-proj-mine"))).await;
    answer.assert_error(502, "upstream_connect");
}

#[tokio::test]
async fn a_virtual_key_is_read_where_it_belongs_and_forwarded_from_nowhere() {
    let setting = start(NOWHERE, |_| {}).await;
    let key = setting.key("a", r#"{"passthrough":true}"#).await;
    for (method, path) in PATHS {
        let headers = format!("{}x-goog-api-key: {}\r\n", key.header(), key.secret);
        let answer = setting.ask(to(method, path, &headers)).await;
        let said = answer.assert_error(401, "invalid_api_key");
        assert!(said.contains("Authorization: Bearer") && !said.contains(&key.secret), "{said}");
        let path = format!("{path}?mine={}", key.secret);
        setting.ask(to(method, &path, &key.header())).await.assert_error(401, "invalid_api_key");
    }
}

#[tokio::test]
async fn the_policy_is_the_headers_then_the_keys_then_the_models() {
    let setting = start(NOWHERE, |config| {
        config.context.allowed_policies = vec!["tiers".to_owned()];
        let by_model = ModelSettings { policy: Some("scored".to_owned()), ..Default::default() };
        config.model_settings.insert("gpt-4o".to_owned(), by_model);
    })
    .await;
    let keys = [
        setting.key("a", "{}").await,
        setting.key("a", r#"{"policy":"zones"}"#).await,
        setting.key("a", r#"{"policy":"zones","policies":["extract","gone"]}"#).await,
        setting.key("a", r#"{"policy":"gone"}"#).await,
    ];
    let rows = [
        (0, "gpt-4o", "", Ok("scored")),
        (0, "o3", "", Ok("default")),
        (0, "gpt-4o", "tiers", Ok("tiers")),
        (0, "gpt-4o", "extract", Err("tiers")),
        (1, "gpt-4o", "", Ok("zones")),
        (1, "gpt-4o", "tiers", Ok("tiers")),
        (2, "gpt-4o", "", Ok("zones")),
        (2, "gpt-4o", "extract", Ok("extract")),
        (2, "gpt-4o", "tiers", Err("extract")),
        (2, "gpt-4o", "gone", Err("extract")),
        (3, "gpt-4o", "", Ok("scored")),
    ];
    for (key, model, chosen, expected) in rows {
        let header = match chosen {
            "" => keys[key].header(),
            chosen => format!("{}x-weir-policy: {chosen}\r\n", keys[key].header()),
        };
        let body = format!(r#"{{"model":"{model}","messages":[{{"role":"user","content":"x"}}]}}"#);
        let answer = setting.ask(post("/weir/v1/plan", &header, body)).await;
        match expected {
            Ok(policy) => {
                let plan: Value = serde_json::from_slice(&answer.body).expect("JSON");
                assert_eq!(plan["policy"], policy, "{key} {model} {chosen}: {plan}");
            }
            Err(allowed) => {
                let said = answer.assert_error(400, "invalid_request");
                assert!(said.contains(allowed), "{said}");
            }
        }
    }
}
