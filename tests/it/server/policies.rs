//! Named policies: the one in force for a request, as callers see it.

use serde_json::{Value, json};
use weir_engine::compact::Policy;
use weir_engine::compact::preset::preset;

use super::harness::{FINE, Upstream, Wire, chat, start};

/// Builds a tool loop that fits unchanged, with enough results for `zones` to mask some.
fn body() -> String {
    let mut messages = vec![json!({"role": "user", "content": "Read all of it."})];
    for number in 0..8 {
        let id = format!("call_{number}");
        let function = json!({"name": "read", "arguments": format!("{{\"n\":{number}}}")});
        let call = json!({"id": id, "type": "function", "function": function});
        messages.push(json!({"role": "assistant", "content": null, "tool_calls": [call]}));
        let content = format!("line {number} says so\n").repeat(20);
        messages.push(json!({"role": "tool", "tool_call_id": id, "content": content}));
    }
    json!({"model": "gpt-4o", "messages": messages}).to_string()
}

#[tokio::test]
async fn a_policy_holds_by_header_then_model_then_default() {
    let zones = || preset("zones").expect("a preset");
    for (by_default, by_model, header, action) in [
        ("default", None, "", "pass"),
        ("zones", None, "", "mask"),
        ("zones", Some("default"), "", "pass"),
        ("default", Some("mine"), "", "mask"),
        ("zones", Some("mine"), "x-weir-policy: default\r\n", "pass"),
        ("default", None, "x-weir-policy: zones\r\n", "mask"),
    ] {
        let mut upstream = Upstream::start().await;
        let weir = start(&upstream.address, |config| {
            let settings = json!({"context": {
                "policy": by_default, "allowed_policies": ["default", "zones"],
            }, "policies": {"mine": {"preset": "zones"}}});
            let figment =
                figment::Figment::from(figment::providers::Serialized::defaults(settings));
            let (read, _) = weir::config::load(figment).expect("a configuration");
            config.context = read.context;
            assert_eq!(config.policy(Some("mine"), None), zones());
            assert_eq!(config.policy(None, Some("default")), Policy::default());
            let model = weir::config::ModelSettings {
                policy: by_model.map(str::to_owned),
                ..weir::config::ModelSettings::default()
            };
            config.model_settings.insert("gpt-4o".to_owned(), model);
        })
        .await;
        let mut wire = Wire::connect(weir.address).await;
        let body = body();
        wire.send(chat(&format!("x-weir-max-input-tokens: 1500\r\n{header}"), &body)).await;
        let seen = upstream.next().await;
        assert!(!seen.head.to_lowercase().contains("x-weir-policy"));
        let is_masked = String::from_utf8_lossy(&seen.body).contains("[weir: read result masked: ");
        seen.answer(FINE);
        let answer = wire.message().await.expect("an answer");
        assert_eq!(
            answer.header("x-weir-action"),
            Some(action),
            "{by_default} {by_model:?} {header}"
        );
        assert_eq!(is_masked, action == "mask");
    }
}

#[tokio::test]
async fn a_policy_that_is_not_allowed_is_refused_with_those_that_are() {
    let upstream = Upstream::always(FINE).await;
    let weir = start(&upstream, |config| {
        config.context.allowed_policies = vec!["zones".to_owned(), "tiers".to_owned()];
    })
    .await;
    let mut wire = Wire::connect(weir.address).await;
    wire.send(chat("x-weir-policy: scored\r\n", body())).await;
    let answer = wire.message().await.expect("an answer");
    assert_eq!(answer.status(), 400);
    let error: Value = serde_json::from_slice(&answer.body).expect("JSON");
    assert_eq!(error["error"]["param"], "x-weir-policy");
    let message = error["error"]["message"].as_str().expect("a message");
    assert!(message.contains("zones, tiers"), "{message}");
}
