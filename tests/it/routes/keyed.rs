//! Routes with virtual keys: the models that a key may use and see, and that the key reaches no
//! upstream.

use serde_json::Value;
use weir::config::{Config, Secret, Upstream};

use super::setting::{Play, Up, failing, question, said};
use crate::keys::setting::{Key, OWN_KEY, Setting, bearer, post, start};
use crate::server::harness::{Message, bare};

/// Starts a weir whose model `alias` is `hidden` at `b`, which falls back to `other` there.
async fn place(a: &Up, b: &Up) -> Setting {
    place_with(a, b, |_| {}).await
}

async fn place_with(a: &Up, b: &Up, change: impl FnOnce(&mut Config)) -> Setting {
    let url = b.url();
    start(&a.address, |config| {
        let text = format!(
            "[auth]\nmode = \"keys\"\n[upstream]\napi_key = \"env:A\"\n[upstreams.b]\nurl = \"{url}\"\n\
             api_key = \"env:B\"\n[[routes]]\nmodels = [\"alias\"]\nupstream = \"b\"\nsend_as = \
             \"hidden\"\nfallback = [\"other\"]\n[[routes]]\nmodels = [\"other\"]\nupstream = \"b\"",
        );
        let figment = figment::Figment::from(<figment::providers::Toml as figment::providers::Format>::string(&text));
        let (told, _) = weir::config::load(figment).expect("it is right");
        config.routes = told.routes;
        config.upstreams = told.upstreams;
        let b: &mut Upstream = config.upstreams.get_mut("b").expect("it was named");
        b.provider_key = Some(Secret::new("sk-of-b"));
        change(config);
    })
    .await
}

async fn chat(setting: &Setting, key: &Key, model: &str) -> Message {
    let body = question(model).to_string();
    setting.ask(post("/v1/chat/completions", &key.header(), body)).await
}

#[tokio::test]
async fn a_key_opens_what_is_asked_for_and_so_what_stands_behind_it() {
    let (a, b) = (Up::start("a").await, Up::start("b").await);
    let setting = place(&a, &b).await;
    let key = setting.key("team", r#"{"models":["alias"]}"#).await;
    assert_eq!(said(&chat(&setting, &key, "alias").await), "from b");
    b.then([failing(503)]);
    assert_eq!(
        said(&chat(&setting, &key, "alias").await),
        "from b",
        "the fallback is behind it too"
    );
    for model in ["hidden", "other", "gpt-4o", ""] {
        chat(&setting, &key, model).await.assert_error(403, "model_not_found");
    }
    let body = r#"{"model":"alias","input":"x"}"#;
    let answer = setting.ask(post("/v1/embeddings", &key.header(), body)).await;
    assert_eq!(answer.status(), 200);
    let body = r#"{"model":"hidden","input":"x"}"#;
    let answer = setting.ask(post("/v1/embeddings", &key.header(), body)).await;
    answer.assert_error(403, "model_not_found");
    let seen = b.seen();
    let models: Vec<Value> = seen.iter().map(|seen| seen.json()["model"].clone()).collect();
    assert_eq!(models, ["hidden", "hidden", "other", "hidden"]);
    for seen in seen {
        assert_eq!(seen.header("authorization"), Some("Bearer sk-of-b"));
        assert!(!seen.head.contains(&key.secret) && !seen.head.contains(OWN_KEY));
    }
    assert_eq!(a.seen().len(), 0);
}

#[tokio::test]
async fn a_key_is_shown_its_own_models() {
    let (a, b) = (Up::start("a").await, Up::start("b").await);
    let setting = place(&a, &b).await;
    for (models, expected) in [
        (r#"{"models":["alias"]}"#, vec!["alias"]),
        (r#"{"models":["a*"]}"#, vec!["a", "alias"]),
        ("{}", vec!["a", "alias", "other"]),
    ] {
        let key = setting.key("team", models).await;
        let answer = setting.ask(bare("GET", "/v1/models", &bearer(&key.secret))).await;
        let told: Value = serde_json::from_slice(&answer.body).expect("JSON");
        let entries = told["data"].as_array().expect("a list");
        let ids: Vec<&str> = entries.iter().filter_map(|entry| entry["id"].as_str()).collect();
        assert_eq!(ids, expected, "{models}");
    }
    for seen in a.seen() {
        assert_eq!(seen.header("authorization"), Some(format!("Bearer {OWN_KEY}").as_str()));
    }
}

#[tokio::test]
async fn a_key_opens_no_other_model_where_the_default_upstream_is_a_deployment() {
    let (a, b) = (Up::start("a").await, Up::start("b").await);
    let deployment = format!("http://{}/openai/deployments/gpt-4o", a.address);
    let setting = place_with(&a, &b, |config| config.upstream.url = deployment).await;
    let key = setting.key("team", r#"{"models":["gpt-4o"]}"#).await;
    for path in ["/v1/chat/completions", "/v1/embeddings", "/v1/completions"] {
        let body = r#"{"model":"alias","input":"x","prompt":"x","messages":[{"role":"user","content":"x"}]}"#;
        let answer = setting.ask(post(path, &key.header(), body)).await;
        answer.assert_error(403, "model_not_found");
    }
    assert_eq!((a.seen().len(), b.seen().len()), (0, 0));
    let answer = setting.ask(post("/v1/embeddings", &key.header(), r#"{"input":"x"}"#)).await;
    assert_eq!(answer.status(), 200, "the deployment's own");
    assert_eq!(a.seen().len(), 1);
}

#[tokio::test]
async fn a_providers_prefix_that_leads_another_way_is_another_model_to_a_key() {
    let (a, b) = (Up::start("a").await, Up::start("b").await);
    let setting = place_with(&a, &b, |config| {
        let mut row = config.routes.rows[1].clone();
        row.models = vec!["router/*".to_owned()];
        config.routes.rows.push(row);
    })
    .await;
    let key = setting.key("team", r#"{"models":["gpt-4o"]}"#).await;
    chat(&setting, &key, "router/gpt-4o").await.assert_error(403, "model_not_found");
    assert_eq!(said(&chat(&setting, &key, "openai/gpt-4o").await), "from a", "the same way");
    assert_eq!(b.seen().len(), 0);
}

#[tokio::test]
async fn a_list_that_cannot_be_read_is_not_shown_to_a_key_with_models_of_its_own() {
    let (a, b) = (Up::start("a").await, Up::start("b").await);
    let setting = place(&a, &b).await;
    let key = setting.key("team", r#"{"models":["alias"]}"#).await;
    let list =
        crate::routes::setting::status(200, "", r#"{"list":[{"id":"gpt-4o"},{"id":"alias"}]}"#);
    for up in [&a, &b] {
        up.then([Play::Answer(list.clone())]);
    }
    let answer = setting.ask(bare("GET", "/v1/models", &bearer(&key.secret))).await;
    answer.assert_error(502, "upstream_closed");
}
