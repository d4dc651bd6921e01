//! `GET /v1/models`: one list of all reachable models, with the limits of each.

use serde_json::{Value, json};

use super::setting::{Play, Up, failing, memory, status, weir};
use crate::server::harness::{Message, ask, bare};

async fn list(weir: &crate::server::harness::Weir) -> Message {
    ask(weir.address, bare("GET", "/v1/models?limit=9", "authorization: Bearer k\r\n")).await
}

fn plain(body: &str) -> Play {
    Play::Answer(status(200, "etag: \"1\"\r\n", body))
}

#[tokio::test]
async fn one_upstreams_list_is_told_what_it_lacks_and_keeps_its_bytes() {
    let (a, store) = (Up::start("a").await, memory());
    let weir = weir(&store, "[upstream]\nurl = \"{a}\"", &[("a", a.url())]).await;
    let lists = [
        (
            "{\"object\":\"list\", \"data\": [ {\"id\":\"gpt-4o\",\"x\":1.0} , {\"id\":\"whose\"}]\n}",
            "{\"object\":\"list\", \"data\": [ {\"id\":\"gpt-4o\",\"x\":1.0,\"context_window\":128000,\
             \"max_output_tokens\":16384} , {\"id\":\"whose\"}]\n}",
        ),
        ("{\"data\": [{\"id\":7}]}", "{\"data\": [{\"id\":7}]}"),
        ("no list", "no list"),
        ("", ""),
    ];
    for (body, expected) in lists {
        a.then([plain(body)]);
        let answer = list(&weir).await;
        assert_eq!(answer.status(), 200);
        assert_eq!(String::from_utf8_lossy(&answer.body), expected);
        assert_eq!(answer.header("etag").is_some(), body == expected);
        assert_eq!(a.seen()[0].line(), "GET /v1/models?limit=9");
    }
    a.then([failing(401)]);
    assert_eq!(list(&weir).await.body, b"{\"error\":{\"message\":\"no 401\"}}");
    // The second reset closes the connection that the client opens after the pooled one failed.
    a.then([Play::Reset, Play::Reset]);
    list(&weir).await.assert_error(502, "upstream_closed");
}

#[tokio::test]
async fn a_window_that_a_server_states_is_used_for_a_model_that_nobody_configured() {
    let (a, store) = (Up::start("a").await, memory());
    let weir = weir(&store, "[upstream]\nurl = \"{a}\"", &[("a", a.url())]).await;
    for (entry, window) in [
        (r#"{"id":"local-a","max_model_len":2048}"#, 2048),
        (r#"{"id":"local-b","loaded_context_length":4096,"max_context_length":131072}"#, 4096),
        (r#"{"id":"local-c","meta":{"n_ctx":8192}}"#, 8192),
    ] {
        a.then([plain(&format!(r#"{{"data":[{entry}]}}"#))]);
        assert_eq!(list(&weir).await.status(), 200);
        // An entry without a window shows the one that weir uses.
        let id = &entry[..entry.find(',').expect("a member")];
        a.then([plain(&format!(r#"{{"data":[{id}}}]}}"#))]);
        let answer = list(&weir).await;
        let told: Value = serde_json::from_slice(&answer.body).expect("JSON");
        assert_eq!(told["data"][0]["context_window"], window, "{entry}");
    }
}

const THREE: &str = r#"
    [upstream]
    url = "{a}"
    [upstreams.b]
    url = "{b}"
    [upstreams.c]
    url = "{c}"
    [[limits]]
    model = "gpt-4o"
    max_input_tokens = 1000
    [[routes]]
    models = ["b-*", "alias"]
    upstream = "b"
    [[routes]]
    models = ["gpt-4o-mini", "short"]
    upstream = "c"
    send_as = "gpt-4o"
"#;

#[tokio::test]
async fn all_lists_become_one_of_what_leads_there() {
    let (a, b, c) = (Up::start("a").await, Up::start("b").await, Up::start("c").await);
    let ups = [("a", a.url()), ("b", b.url()), ("c", c.url())];
    let weir = weir(&memory(), THREE, &ups).await;
    a.then([plain(r#"{"object":"list","data":[{"id":"plain","k": 1.0},{"id":"gpt-4o-mini"},{"id":"b-1"},{"id":"plain"}],"more":0}"#)]);
    b.then([plain(r#"{"data":[{"id":"b-1","context_length":5},{"id":"plain"},{"id":"b-2"}]}"#)]);
    c.then([plain(r#"{"data":[{"id":"gpt-4o"}]}"#)]);
    let answer = list(&weir).await;
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.header("x-weir-left-out"), None);
    let told: Value = serde_json::from_slice(&answer.body).expect("JSON");
    let own = |id: &str, more: Value| {
        let mut entry = json!({"id": id, "object": "model", "created": 0, "owned_by": "weir"});
        entry.as_object_mut().expect("one").extend(more.as_object().expect("one").clone());
        entry
    };
    let figures = json!({"context_window": 1000, "max_output_tokens": 16384});
    let expected = json!({
        "object": "list", "more": 0,
        "data": [
            {"id": "plain", "k": 1.0},
            {"id": "b-1", "context_length": 5},
            {"id": "b-2"},
            own("alias", json!({})),
            own("gpt-4o-mini", figures.clone()),
            own("short", figures),
        ],
    });
    assert_eq!(told, expected);
    assert!(String::from_utf8_lossy(&answer.body).contains(r#"{"id":"plain","k": 1.0}"#));
    for up in [&a, &b, &c] {
        assert_eq!(up.seen().len(), 1);
    }
}

#[tokio::test]
async fn upstreams_that_fail_are_left_out_and_named() {
    let (a, b, c) = (Up::start("a").await, Up::start("b").await, Up::start("c").await);
    let ups = [("a", a.url()), ("b", b.url()), ("c", c.url())];
    let weir = weir(&memory(), THREE, &ups).await;
    a.then([failing(500)]);
    b.then([plain(r#"{"data":[{"id":"b-1"}]}"#)]);
    c.then([plain("nonsense")]);
    let answer = list(&weir).await;
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.header("x-weir-left-out"), Some("default, c"));
    let told: Value = serde_json::from_slice(&answer.body).expect("JSON");
    let entries = told["data"].as_array().expect("a list");
    let ids: Vec<&str> = entries.iter().filter_map(|entry| entry["id"].as_str()).collect();
    assert_eq!(ids, ["b-1", "alias", "gpt-4o-mini", "short"]);
    a.then([Play::Answer(status(401, "x-kept: 1\r\n", "{\"kept\": 1.0}"))]);
    b.then([failing(503)]);
    c.then([Play::Reset, Play::Reset]);
    let answer = list(&weir).await;
    assert_eq!((answer.status(), answer.header("x-kept")), (401, Some("1")), "{answer:?}");
    assert_eq!(answer.body, b"{\"kept\": 1.0}");
}

#[tokio::test]
async fn one_model_is_told_what_the_list_tells() {
    let (a, b, c) = (Up::start("a").await, Up::start("b").await, Up::start("c").await);
    let ups = [("a", a.url()), ("b", b.url()), ("c", c.url())];
    let limits = "[[limits]]\nmodel = \"house-*\"\nmax_input_tokens = 7000\n";
    let weir = weir(&memory(), &(limits.to_owned() + THREE), &ups).await;
    let one = |name: &'static str| {
        ask(weir.address, bare("GET", &format!("/v1/models/{name}"), "authorization: Bearer k\r\n"))
    };
    for (name, body, expected) in [
        (
            "gpt-4o",
            " {\"id\":\"gpt-4o\",\"x\":1.0}\n",
            " {\"id\":\"gpt-4o\",\"x\":1.0,\"context_window\":1000,\"max_output_tokens\":16384}\n",
        ),
        // Known by its limit alone.
        ("house-7b", "{\"id\":\"house-7b\"}", "{\"id\":\"house-7b\",\"context_window\":7000}"),
        ("whose", "{\"id\":\"whose\"}", "{\"id\":\"whose\"}"),
        (
            "house-8b",
            "{\"id\":\"house-8b\",\"context_length\":5}",
            "{\"id\":\"house-8b\",\"context_length\":5}",
        ),
        ("house-9b", "no entry", "no entry"),
    ] {
        a.then([plain(body)]);
        let answer = one(name).await;
        assert_eq!(answer.status(), 200);
        assert_eq!(String::from_utf8_lossy(&answer.body), expected);
        assert_eq!(answer.header("etag").is_some(), body == expected);
        assert_eq!(a.seen()[0].line(), format!("GET /v1/models/{name}"));
        if body != "no entry" {
            a.then([plain(&format!("{{\"data\":[{body}]}}"))]);
            let listed = list(&weir).await;
            let listed = String::from_utf8_lossy(&listed.body).into_owned();
            assert!(listed.contains(expected.trim()), "{listed}");
        }
        a.seen();
    }
    // A name that only a route defines is also in the list.
    c.then([failing(404)]);
    let answer = one("short").await;
    let entry: Value = serde_json::from_slice(&answer.body).expect("JSON");
    assert_eq!((answer.status(), &entry["id"]), (200, &json!("short")), "{answer:?}");
    assert_eq!(entry["context_window"], 1000);
    a.then([failing(404)]);
    assert_eq!(one("nobody").await.status(), 404);
}
