//! Summaries by each request's own model: they use the upstream and the credential of their
//! request.

use serde_json::json;

use super::setting::{Play, Up, completion, conversation, memory, rows, send, status, weir};

const TOML: &str = r#"
    [upstream]
    url = "{a}"
    [upstreams.b]
    url = "{b}"
    api_key = "env:B"
    [summaries]
    model = "same"
    summary_tokens = 100
    [context.advanced]
    keep.recent = 0.05
    [[limits]]
    model = "gpt-4o"
    max_input_tokens = 2500
    [[routes]]
    models = ["alias"]
    upstream = "b"
    send_as = "gpt-4o"
"#;

#[tokio::test]
async fn a_summary_is_asked_of_the_upstream_that_its_request_went_to() {
    let (a, b, store) = (Up::start("a").await, Up::start("b").await, memory());
    let ups = [("a", a.url()), ("b", b.url())];
    let weir = weir(&store, TOML, &ups).await;
    let summaries = weir.summaries.clone().expect("a model sums up");
    let mut said = completion("b");
    said["choices"][0]["message"]["content"] = json!("## Task\nCount what runs over the wall.");
    for exchanges in 9..=12 {
        let answer = send(&weir, &conversation("alias", exchanges)).await;
        assert_eq!(answer.status(), 200, "{answer:?}");
        b.then([Play::Answer(status(200, "", &said.to_string()))]);
        summaries.finish().await;
    }
    let seen = b.seen();
    assert!(seen.iter().all(|seen| seen.header("authorization") == Some("Bearer secret-of-B")));
    assert!(seen.iter().all(|seen| seen.json()["model"] == "gpt-4o"));
    assert_eq!(a.seen().len(), 0, "none goes to the default");
    assert!(seen.len() > 4, "one more than requests at least: {}", seen.len());
    let rows = rows(&store, &ups).await;
    assert_eq!(rows.len(), seen.len());
    assert!(rows.iter().all(|row| row.starts_with("b gpt-4o complete 200 ")), "{rows:?}");
}
