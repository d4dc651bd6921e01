//! Requests that fall back to another model if the first one's upstream fails: the triggers, the
//! compaction for the new model, its price, and the upstreams that are skipped.

use serde_json::json;

use super::setting::{
    Play, Up, conversation, failing, memory, nowhere, question, rows, said, send, status, weir,
    windows,
};
use crate::server::harness::ask;
use weir_store::ledger::{SeriesQuery, UsageQuery};

const CHAIN: &str = r#"
    [upstream]
    url = "{a}"
    api_key = "env:A"
    timeouts_ms.first_byte = 200
    [upstreams.b]
    url = "{b}"
    [upstreams.c]
    url = "{c}"
    [[routes]]
    models = ["first"]
    send_as = "gpt-4o"
    fallback = ["second", "third"]
    [[routes]]
    models = ["second"]
    upstream = "b"
    send_as = "gpt-4.1"
    fallback = ["never"]
    [[routes]]
    models = ["third"]
    upstream = "c"
    send_as = "gpt-4o-mini"
    [routes.price]
    input_usd_per_mtok = "3"
    output_usd_per_mtok = "7"
"#;

#[tokio::test]
async fn each_failure_that_may_pass_goes_to_the_next_and_each_try_has_its_row() {
    for (play, first_row) in [
        (Play::Reset, "a gpt-4o upstream_closed -"),
        (Play::Last(b"no HTTP at all\r\n\r\n".to_vec()), "a gpt-4o upstream_closed -"),
        (Play::Silent(Vec::new()), "a gpt-4o upstream_timeout -"),
        (failing(408), "a gpt-4o retried 408"),
        (failing(409), "a gpt-4o retried 409"),
        (failing(429), "a gpt-4o retried 429"),
        (failing(500), "a gpt-4o retried 500"),
        (failing(503), "a gpt-4o retried 503"),
    ] {
        for stream in [false, true] {
            let ups = [Up::start("a").await, Up::start("b").await, Up::start("c").await];
            let urls = [("a", ups[0].url()), ("b", ups[1].url()), ("c", ups[2].url())];
            let store = memory();
            let weir = weir(&store, CHAIN, &urls).await;
            ups[0].then([play.clone()]);
            ups[1].then([failing(500)]);
            let mut body = question("first");
            body["stream"] = json!(stream);
            let answer = send(&weir, &body).await;
            assert_eq!((answer.status(), said(&answer).as_str()), (200, "from c"), "{first_row}");
            assert_eq!(answer.header("x-weir-upstream"), Some("c"));
            assert_eq!(answer.header("x-weir-model"), Some("gpt-4o-mini"));
            assert_eq!(answer.header("x-weir-attempts"), Some("3"));
            let sent = ups.each_ref().map(|up| up.seen());
            assert_eq!(sent.each_ref().map(Vec::len), [1, 1, 1]);
            let models = sent.map(|seen| seen[0].json()["model"].as_str().map(str::to_owned));
            assert_eq!(
                models.each_ref().map(Option::as_deref),
                [Some("gpt-4o"), Some("gpt-4.1"), Some("gpt-4o-mini")]
            );
            let rows = rows(&store, &urls).await;
            assert_eq!(rows.len(), 3, "{rows:?}");
            assert!(rows[0].starts_with(first_row), "{rows:?}");
            assert!(rows[1].starts_with("b gpt-4.1 retried 500 "), "{rows:?}");
            // The actual usage is billed: 1000 tokens in and 10 out, by the row's own price.
            assert_eq!(rows[2], "c gpt-4o-mini complete 200 3070000");
            // To its caller it is one request, and no failure.
            let usage = store.usage(UsageQuery::default()).await.expect("it can be read");
            assert_eq!((usage[0].totals.requests, usage[0].totals.failed), (1, 0), "{usage:?}");
            let span = SeriesQuery { until_ms: u64::MAX / 2, ..SeriesQuery::default() };
            let series = store.series(span).await.expect("it can be read");
            let totals = series[0].usage.totals;
            assert_eq!((totals.requests, totals.failed), (1, 0));
        }
    }
}

#[tokio::test]
async fn what_is_the_callers_own_fault_goes_nowhere_else() {
    for code in [400, 401, 403, 404, 422, 501] {
        let (a, b) = (Up::start("a").await, Up::start("b").await);
        let c = nowhere().await;
        let weir = weir(&memory(), CHAIN, &[("a", a.url()), ("b", b.url()), ("c", c)]).await;
        a.then([failing(code)]);
        assert_eq!(send(&weir, &question("first")).await.status(), code);
        assert_eq!((a.seen().len(), b.seen().len()), (1, 0));
    }
}

#[tokio::test]
async fn what_a_named_upstream_lacks_is_told_by_its_own_section() {
    let (a, b) = (Up::start("a").await, Up::start("b").await);
    let toml = r#"
        [upstream]
        url = "{a}"
        [upstreams.b]
        url = "{b}"
        timeouts_ms.first_byte = 50
        [[routes]]
        models = ["at-b"]
        upstream = "b"
    "#;
    let weir = weir(&memory(), toml, &[("a", a.url()), ("b", b.url())]).await;
    b.then([Play::Silent(Vec::new())]);
    let answer = send(&weir, &question("at-b")).await;
    let message = answer.assert_error(504, "upstream_timeout");
    assert!(message.contains("(upstreams.b.timeouts_ms.first_byte)"), "{message}");
}

#[tokio::test]
async fn where_all_fail_the_last_answer_passes_as_it_is() {
    let (a, b, c) = (Up::start("a").await, Up::start("b").await, Up::start("c").await);
    let weir = weir(&memory(), CHAIN, &[("a", a.url()), ("b", b.url()), ("c", c.url())]).await;
    a.then([failing(500)]);
    b.then([failing(502)]);
    c.then([Play::Answer(status(429, "retry-after: 7\r\n", "{\"z\": 1.0}"))]);
    let answer = send(&weir, &question("first")).await;
    assert_eq!(answer.status(), 429);
    assert_eq!(answer.header("retry-after"), Some("7"));
    assert_eq!(answer.body, b"{\"z\": 1.0}");
    // The second row has a fallback of its own, which applies only to its callers.
    a.then([failing(500)]);
    assert_eq!(said(&send(&weir, &question("first")).await), "from b");
}

#[tokio::test]
async fn other_routes_fall_back_too_where_their_body_is_there() {
    let (a, b, c) = (Up::start("a").await, Up::start("b").await, Up::start("c").await);
    let ups = [("a", a.url()), ("b", b.url()), ("c", c.url())];
    let store = memory();
    let weir = weir(&store, CHAIN, &ups).await;
    a.then([failing(503)]);
    let body = json!({"model": "first", "input": "x"}).to_string();
    let request = format!(
        "POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = ask(weir.address, request).await;
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.header("x-weir-upstream"), Some("b"));
    assert_eq!(answer.header("x-weir-attempts"), Some("2"));
    assert_eq!(b.seen()[0].text(), body.replace("first", "gpt-4.1"));
    assert_eq!(rows(&store, &ups).await.len(), 2);
}

/// weir would find no model, or another, in what the upstream may accept.
#[tokio::test]
async fn a_body_with_anything_behind_it_is_refused_on_every_route() {
    let (a, b, c) = (Up::start("a").await, Up::start("b").await, Up::start("c").await);
    let ups = [("a", a.url()), ("b", b.url()), ("c", c.url())];
    let weir = weir(&memory(), CHAIN, &ups).await;
    for path in ["embeddings", "moderations", "images/generations", "responses", "chat/completions"]
    {
        for body in [
            r#"{"model":"first","input":"x"} {"model":"second"}"#,
            r#"{"model":"first","input":"x"}trailing"#,
            r#"{"model":"first","model":"second","input":"x"}"#,
        ] {
            let request = format!(
                "POST /v1/{path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
            let answer = ask(weir.address, request).await;
            assert_eq!(answer.status(), 400, "{path} {body}");
        }
    }
    assert!([a, b, c].iter().all(|up| up.seen().is_empty()), "nothing was sent");
}

/// Routes with a first model, a smaller and a larger one.
const SMALLER: &str = r#"
    [[routes]]
    models = ["large"]
    fallback = ["tiny", "huge"]
    [[routes]]
    models = ["tiny"]
    upstream = "b"
    [[routes]]
    models = ["huge"]
    upstream = "b"
"#;

#[tokio::test]
async fn a_fallback_never_sends_less_than_the_first_would_have_had() {
    let (a, b) = (Up::start("a").await, Up::start("b").await);
    let toml = windows(&[("large", 100_000), ("tiny", 3000), ("huge", 200_000)], SMALLER);
    let weir = weir(&memory(), &toml, &[("a", a.url()), ("b", b.url())]).await;
    for (exchanges, model) in [(1, "tiny"), (20, "huge")] {
        a.then([failing(503)]);
        let body = conversation("large", exchanges);
        let answer = send(&weir, &body).await;
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.header("x-weir-model"), Some(model), "{exchanges}");
        let seen = b.seen();
        assert_eq!(seen.len(), 1);
        let expected = body.to_string().replace("\"large\"", &format!("\"{model}\""));
        assert_eq!(seen[0].text(), expected, "all of it, but for the model");
    }
}

#[tokio::test]
async fn an_upstream_that_fails_again_and_again_is_passed_over_while_there_is_another() {
    let (a, b, c) = (Up::start("a").await, Up::start("b").await, Up::start("c").await);
    let weir = weir(&memory(), CHAIN, &[("a", a.url()), ("b", b.url()), ("c", c.url())]).await;
    a.then(std::iter::repeat_n(failing(429), 6));
    for _ in 0..6 {
        assert_eq!(said(&send(&weir, &question("first")).await), "from b");
    }
    assert_eq!(a.seen().len(), 6, "limits are no failure");
    a.then(std::iter::repeat_n(failing(500), 5));
    for _ in 0..5 {
        assert_eq!(said(&send(&weir, &question("first")).await), "from b");
    }
    assert_eq!(a.seen().len(), 5);
    let answer = send(&weir, &question("first")).await;
    assert_eq!(said(&answer), "from b");
    assert_eq!(answer.header("x-weir-attempts"), None);
    assert_eq!(a.seen().len(), 0, "it is passed over");
    // A request without alternatives is still sent, and shows that the upstream answers again.
    assert_eq!(said(&send(&weir, &question("gpt-4o")).await), "from a");
    assert_eq!(said(&send(&weir, &question("first")).await), "from a");
    assert_eq!(a.seen().len(), 2);
}

/// The first upstream's refusal of a usage request says nothing about another upstream.
#[tokio::test]
async fn a_refused_usage_request_is_made_again_elsewhere() {
    let (a, b, c) = (Up::start("a").await, Up::start("b").await, Up::start("c").await);
    let weir = weir(&memory(), CHAIN, &[("a", a.url()), ("b", b.url()), ("c", c.url())]).await;
    let refusal = r#"{"error":{"message":"unknown parameter: stream_options"}}"#;
    a.then([Play::Answer(status(400, "", refusal)), failing(503)]);
    let mut body = question("first");
    body["stream"] = json!(true);
    assert_eq!(said(&send(&weir, &body).await), "from b");
    let usage_requests = |up: &Up| -> Vec<bool> {
        up.seen().iter().map(|seen| seen.text().contains("include_usage")).collect()
    };
    assert_eq!(usage_requests(&a), [true, false]);
    assert_eq!(usage_requests(&b), [true]);
}

#[tokio::test]
async fn where_all_are_passed_over_the_first_is_asked() {
    let (a, b, c) = (Up::start("a").await, Up::start("b").await, Up::start("c").await);
    let weir = weir(&memory(), CHAIN, &[("a", a.url()), ("b", b.url()), ("c", c.url())]).await;
    for up in [&a, &b, &c] {
        up.then(std::iter::repeat_n(failing(500), 5));
    }
    for _ in 0..5 {
        assert_eq!(send(&weir, &question("first")).await.status(), 500);
    }
    for up in [&a, &b, &c] {
        assert_eq!(up.seen().len(), 5);
    }
    assert_eq!(said(&send(&weir, &question("first")).await), "from a");
}

/// A caller's output limit is chosen for the model that it names.
#[tokio::test]
async fn another_model_gets_no_higher_output_limit_than_its_own() {
    let toml = windows(&[("large", 100_000), ("small", 100_000)], SMALL_OUTPUT);
    let toml = toml.replace("[models.\"small\"]", "[models.\"small\"]\nmax_output_tokens = 4096");
    for (asked, is_first_sent, expected) in [
        (json!(64_000), true, json!(4096)),
        (json!(4096), true, json!(4096)),
        (json!(-1), true, json!(-1)),
    ] {
        let (a, b) = (Up::start("a").await, Up::start("b").await);
        let weir = weir(&memory(), &toml, &[("a", a.url()), ("b", b.url())]).await;
        for stream in [false, true] {
            a.then([failing(503)]);
            let mut body = conversation("large", 1);
            body["max_tokens"] = asked.clone();
            body["stream"] = json!(stream);
            assert_eq!(send(&weir, &body).await.status(), 200);
            assert_eq!(a.seen()[0].json()["max_tokens"] == asked, is_first_sent);
            assert_eq!(b.seen()[0].json()["max_tokens"], expected);
        }
    }
}

const SMALL_OUTPUT: &str = r#"
    [[routes]]
    models = ["large"]
    fallback = ["small"]
    [[routes]]
    models = ["small"]
    upstream = "b"
"#;
