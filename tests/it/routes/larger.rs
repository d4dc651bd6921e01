//! Conversations that move to a model with a larger window, instead of a refusal or a compaction.

use serde_json::json;

use super::setting::{Play, Up, conversation, memory, rows, said, send, status, weir, windows};

const MODELS: [(&str, u64); 3] = [("small", 2000), ("large", 100_000), ("smaller", 1900)];

/// Routes with windows for these models.
const ROUTES: &str = r#"
    [[routes]]
    models = ["when-refused"]
    send_as = "small"
    larger = "large"
    [[routes]]
    models = ["when-cut"]
    send_as = "small"
    larger = "large"
    larger_when = "compacted"
    [[routes]]
    models = ["in-vain"]
    send_as = "small"
    larger = "smaller"
    larger_when = "compacted"
    [[routes]]
    models = ["large", "smaller"]
    upstream = "b"
"#;

#[tokio::test]
async fn a_conversation_goes_to_the_larger_model_where_it_needs_to() {
    let (a, b, store) = (Up::start("a").await, Up::start("b").await, memory());
    let ups = [("a", a.url()), ("b", b.url())];
    let weir = weir(&store, &windows(&MODELS, ROUTES), &ups).await;
    let long = |model: &str| conversation(model, 30);
    let unfit = |model: &str| {
        let system = "the river runs over the low wall ".repeat(600);
        json!({"model": model, "messages": [
            {"role": "system", "content": system}, {"role": "user", "content": "And now?"}]})
    };
    for (body, to, sent) in [
        (conversation("when-refused", 1), "a", "small"),
        (long("when-refused"), "a", "small"),
        (unfit("when-refused"), "b", "large"),
        (conversation("when-cut", 1), "a", "small"),
        (long("when-cut"), "b", "large"),
        (unfit("when-cut"), "b", "large"),
        (long("in-vain"), "a", "small"),
    ] {
        let asked = body["model"].as_str().expect("a name").to_owned();
        let answer = send(&weir, &body).await;
        assert_eq!(answer.status(), 200, "{asked}: {answer:?}");
        assert_eq!(said(&answer), format!("from {to}"), "{asked}");
        assert_eq!(answer.header("x-weir-model"), Some(sent), "{asked}");
        let seen = [a.seen(), b.seen()].concat();
        assert_eq!(seen.len(), 1);
        if to == "b" {
            let expected = body.to_string().replace(&format!("\"{asked}\""), "\"large\"");
            assert_eq!(seen[0].text(), expected, "all of it");
            assert_eq!(answer.header("x-weir-action"), Some("pass"));
        }
    }
    send(&weir, &unfit("in-vain")).await.assert_error(400, "context_length_exceeded");
    assert_eq!(rows(&store, &ups).await.len(), 7, "what is only planned has no row");
}

#[tokio::test]
async fn what_an_upstream_refuses_to_the_end_goes_to_the_larger_model() {
    let (a, b, store) = (Up::start("a").await, Up::start("b").await, memory());
    let ups = [("a", a.url()), ("b", b.url())];
    let weir = weir(&store, &windows(&MODELS, ROUTES), &ups).await;
    let refusal = r#"{"error":{"message":"Input is too long for requested model.","type":"invalid_request_error","code":"context_length_exceeded"}}"#;
    a.then(std::iter::repeat_n(Play::Answer(status(400, "", refusal)), 4));
    let body = json!({"model": "when-refused", "messages": [{"role": "user", "content": "x y z"}]});
    let answer = send(&weir, &body).await;
    assert_eq!((answer.status(), said(&answer).as_str()), (200, "from b"), "{answer:?}");
    let sends = a.seen().len() + b.seen().len();
    assert_eq!(rows(&store, &ups).await.len(), sends);
}
