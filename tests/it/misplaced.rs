//! Upstream whose base URL lacks its API's path: weir detects this at the first request, and sends
//! no request twice.

use serde_json::{Value, json};

use crate::cli::Serving;
use crate::keys::setting::post;
use crate::scripted_upstream::{Options, Server};
use crate::server::harness::{self, Weir, ask, bare, body_of, chat};

async fn only_v1() -> Server {
    let options = Options { only_v1: true, ..Options::default() };
    Server::start(options).await.expect("a free port")
}

/// Starts a weir whose upstream is this server, without a path.
async fn weir_at_root(server: &Server) -> Weir {
    let address = server.addr.to_string();
    harness::start(&address, |config| config.upstream.url = format!("http://{address}")).await
}

/// Returns the requests of a server as methods and paths.
fn seen(server: &Server) -> Vec<String> {
    server.requests().iter().map(|seen| format!("{} {}", seen.method, seen.path)).collect()
}

#[tokio::test]
async fn the_first_request_tells_the_right_base_url() {
    let server = only_v1().await;
    let weir = weir_at_root(&server).await;
    let posted = "POST /chat/completions".to_owned();
    let listed = ["GET /models", "GET /v1/models"].map(str::to_owned);
    for times in 1..=3 {
        let headers = "authorization: Bearer sk-callers\r\n";
        let answer = ask(weir.address, chat(headers, body_of(100))).await;
        let said = answer.assert_error(502, "upstream_path_not_found");
        let right = format!("http://{}/v1", server.addr);
        assert!(
            said.contains(&format!("set upstream.url (--upstream, OPENAI_BASE_URL) to {right}"))
        );
        assert_eq!(answer.header("x-should-retry"), Some("false"));
        let body: Value = serde_json::from_slice(&answer.body).expect("JSON");
        assert_eq!(body["error"]["upstream"]["status"], 404, "{body}");
        // Each request once, and the list of models once in total.
        let mut expected = vec![posted.clone()];
        expected.extend(listed.clone());
        expected.extend(vec![posted.clone(); times - 1]);
        assert_eq!(seen(&server), expected);
    }
    let asked = server.requests().into_iter().filter(|seen| seen.method == "GET");
    assert!(asked.clone().count() > 0);
    for asked in asked {
        assert_eq!(asked.headers.get("authorization"), None, "callers' keys stay out of it");
    }
}

#[tokio::test]
async fn other_routes_tell_it_too() {
    let input = json!({"model": "text-embedding-3-small", "input": "x"}).to_string();
    let embeddings = format!(
        "POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{input}",
        input.len()
    );
    for request in [embeddings, bare("GET", "/v1/models", ""), bare("GET", "/v1/models/a", "")] {
        let server = only_v1().await;
        let weir = weir_at_root(&server).await;
        let said = ask(weir.address, &request).await.assert_error(502, "upstream_path_not_found");
        assert!(said.contains(&format!("http://{}/v1", server.addr)), "{said}");
    }
}

#[tokio::test]
async fn a_base_url_that_is_right_is_left_alone() {
    // This server also serves its API at the root, and has no such model.
    let server = Server::start(Options::default()).await.expect("a free port");
    let weir = weir_at_root(&server).await;
    let body = json!({"model": "missing", "messages": [{"role": "user", "content": "x"}]});
    for _ in 0..2 {
        let answer = ask(weir.address, chat("", body.to_string())).await;
        assert_eq!((answer.status(), answer.header("x-weir-error")), (404, None), "{answer:?}");
    }
    let posted = "POST /chat/completions";
    assert_eq!(seen(&server), [posted, "GET /models", posted]);
    // No detection if the API has answered, or if the path is usual for APIs.
    let server = Server::start(Options::default()).await.expect("a free port");
    let weir = weir_at_root(&server).await;
    assert_eq!(ask(weir.address, chat("", body_of(100))).await.status(), 200);
    assert_eq!(ask(weir.address, chat("", body.to_string())).await.status(), 404);
    assert_eq!(seen(&server), [posted, posted]);
    let server = only_v1().await;
    let weir = harness::start(&server.addr.to_string(), |_| {}).await;
    assert_eq!(ask(weir.address, chat("", body.to_string())).await.status(), 404);
    assert_eq!(seen(&server), ["POST /v1/chat/completions"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_tells_the_right_base_url() {
    let server = only_v1().await;
    let base = format!("http://{}", server.addr);
    let mut serving = Serving::start(&["--upstream", &base]);
    ask(serving.address, chat("", body_of(100))).await.assert_error(502, "upstream_path_not_found");
    serving.wait_for(&format!(
        "the upstream answers 404 to /chat/completions: its API is under {base}/v1. Set upstream.url \
         (--upstream, OPENAI_BASE_URL) to {base}/v1"
    ));
}

/// OpenAI does not speak Anthropic's protocol: nothing is sent there, and the answer says what serves both.
#[tokio::test]
async fn messages_do_not_go_to_openai() {
    let weir = harness::start("", |config| {
        config.upstream.url = "https://api.openai.com/v1".to_owned();
    })
    .await;
    let headers = "x-api-key: sk-ant-callers\r\n";
    let body =
        json!({"model": "gpt-4o", "max_tokens": 9, "messages": [{"role": "user", "content": "a"}]});
    for path in ["/v1/messages", "/v1/messages/count_tokens"] {
        let answer = ask(weir.address, post(path, headers, body.to_string())).await;
        assert_eq!(answer.status(), 404, "{path}");
        let body: Value = serde_json::from_slice(&answer.body).expect("JSON");
        let said = body["error"]["message"].as_str().expect("a text");
        assert!(said.contains("upstreams.anthropic = { url"), "{path}: {said}");
    }
}
