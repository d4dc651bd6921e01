//! Admin API: authentication, operations, and the listeners that must not serve it.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tokio::sync::oneshot;
use weir::admin::{Admin, Token, for_metrics, load_or_make};
use weir::config::{Config, Secret};
use weir_store::Store;

use super::setting::{Setting, bearer, post, start};
use crate::folder::Folder;
use crate::server::harness::{FINE, Message, Upstream, ask, bare, body_of, chat};

const TOKEN: &str = "weir-admin-of-this-test-0123456789abcdef";

/// An admin API that runs until this is dropped.
pub struct Api {
    pub address: SocketAddr,
    _running: oneshot::Sender<()>,
}

impl Api {
    pub async fn over(store: Store) -> Self {
        let (running, ended) = oneshot::channel::<()>();
        let token = Token::new(&Secret::new(TOKEN));
        let here = ([127, 0, 0, 1], 0).into();
        let admin = Admin::bind(here, &Config::default(), store, token).await.expect("a free port");
        let address = admin.address();
        tokio::spawn(admin.run(async move {
            // Ends on the signal, or when its sender is dropped.
            let _ = ended.await;
        }));
        Self { address, _running: running }
    }

    /// Sends a request with the token; returns the answer's status and JSON.
    pub async fn ask(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let header = bearer(TOKEN);
        let answer = match body {
            None => ask(self.address, bare(method, path, &header)).await,
            Some(body) => {
                let request = post(path, &header, body.to_string());
                ask(self.address, request.replacen("POST", method, 1)).await
            }
        };
        assert_eq!(answer.header("cache-control"), Some("no-store"));
        (answer.status(), serde_json::from_slice(&answer.body).expect("JSON"))
    }
}

async fn both() -> (Setting, Api) {
    let upstream = Upstream::always(FINE).await;
    let setting = start(&upstream, |_| {}).await;
    let api = Api::over(setting.store.clone()).await;
    (setting, api)
}

async fn chat_with(setting: &Setting, secret: &Value) -> u16 {
    let secret = secret.as_str().expect("a secret");
    setting.ask(chat(&bearer(secret), body_of(100))).await.status()
}

#[tokio::test]
async fn a_token_for_metrics_reads_them_and_nothing_else() {
    let (setting, api) = both().await;
    let scraper = bearer(for_metrics(&Secret::new(TOKEN)).expose());
    let status = async |method: &str, path: &str| {
        ask(api.address, bare(method, path, &scraper)).await.status()
    };
    // Let in: this listener has no proxy yet whose metrics it could show.
    assert_eq!(status("GET", "/metrics").await, 503);
    for (method, path) in [
        ("GET", "/admin/v1/keys"),
        ("GET", "/admin/v1/usage"),
        ("GET", "/admin/v1/status"),
        ("POST", "/metrics"),
        ("POST", "/admin/v1/keys"),
    ] {
        assert_eq!(status(method, path).await, 401, "{method} {path}");
    }
    drop(setting);
}

#[tokio::test]
async fn a_keys_life_over_the_api() {
    let (setting, api) = both().await;
    let new = json!({"name": "ci", "team": "search", "organisation": "acme", "user": "ann",
                     "models": ["gpt-4o*"], "requests_per_minute": 60});
    let (status, made) = api.ask("POST", "/admin/v1/keys", Some(new)).await;
    assert_eq!(status, 201, "{made}");
    for (name, value) in [
        ("name", json!("ci")),
        ("team", json!("search")),
        ("organisation", json!("acme")),
        ("user", json!("ann")),
        ("models", json!(["gpt-4o*"])),
        ("requests_per_minute", json!(60)),
        ("tokens_per_minute", Value::Null),
        ("passthrough", json!(false)),
        ("revoked_ms", Value::Null),
    ] {
        assert_eq!(made[name], value, "{name}");
    }
    let path = format!("/admin/v1/keys/{}", made["id"].as_str().expect("an id"));
    assert_eq!(chat_with(&setting, &made["secret"]).await, 200);

    let (status, shown) = api.ask("GET", &path, None).await;
    assert_eq!((status, &shown["id"], &shown["secret"]), (200, &made["id"], &Value::Null));
    let change = json!({"models": ["o3"], "requests_per_minute": null, "user": "bob"});
    let (status, changed) = api.ask("PATCH", &path, Some(change)).await;
    assert_eq!(
        (status, &changed["models"], &changed["user"]),
        (200, &json!(["o3"]), &json!("bob"))
    );
    assert_eq!((&changed["requests_per_minute"], &changed["name"]), (&Value::Null, &json!("ci")));
    assert_eq!(chat_with(&setting, &made["secret"]).await, 403);
    api.ask("PATCH", &path, Some(json!({"models": []}))).await;

    let overlap = json!({"overlap_ms": 60_000});
    let (status, rotated) = api.ask("POST", &format!("{path}/rotate"), Some(overlap)).await;
    assert_eq!((status, rotated["secrets"].as_array().map(Vec::len)), (200, Some(2)));
    for secret in [&made["secret"], &rotated["secret"]] {
        assert_eq!(chat_with(&setting, secret).await, 200);
    }
    let (status, revoked) = api.ask("POST", &format!("{path}/revoke"), Some(json!({}))).await;
    assert!(status == 200 && revoked["revoked_ms"].is_u64(), "{revoked}");
    for secret in [&made["secret"], &rotated["secret"]] {
        assert_eq!(chat_with(&setting, secret).await, 401);
    }
    assert_eq!(api.ask("DELETE", &path, None).await.0, 200, "once more changes nothing");
    for (method, path) in [("PATCH", path.clone()), ("POST", format!("{path}/rotate"))] {
        let (status, refused) = api.ask(method, &path, Some(json!({}))).await;
        assert_eq!((status, &refused["error"]["code"]), (409, &json!("revoked")));
    }
}

#[tokio::test]
async fn lists_have_pages_and_teams_have_an_organisation() {
    let (setting, api) = both().await;
    for number in 0..1001 {
        let team = if number % 500 == 0 { "few" } else { "many" };
        setting.key(team, "{}").await;
    }
    let (_, first) = api.ask("GET", "/admin/v1/keys", None).await;
    assert_eq!(first["data"].as_array().map(Vec::len), Some(1000));
    let next = first["next"].as_str().expect("there is more");
    let (_, last) = api.ask("GET", &format!("/admin/v1/keys?after={next}"), None).await;
    assert_eq!((last["data"].as_array().map(Vec::len), &last["next"]), (Some(1), &Value::Null));
    let (_, few) = api.ask("GET", "/admin/v1/keys?team=few", None).await;
    assert_eq!(few["data"].as_array().map(Vec::len), Some(3));
    assert!(!few.to_string().contains("sk-weir-A"), "only hints");
    let (_, teams) = api.ask("GET", "/admin/v1/teams", None).await;
    let row = |team: usize| (&teams["data"][team]["name"], &teams["data"][team]["keys"]);
    assert_eq!((row(0), row(1)), ((&json!("few"), &json!(3)), (&json!("many"), &json!(998))));

    let elsewhere = json!({"name": "a", "team": "few", "organisation": "other"});
    let (status, refused) = api.ask("POST", "/admin/v1/keys", Some(elsewhere)).await;
    assert_eq!((status, &refused["error"]["code"]), (409, &json!("team_elsewhere")));
}

#[tokio::test]
async fn what_cannot_be_is_refused_with_the_reason() {
    let (_setting, api) = both().await;
    for (method, path, body, status, said) in [
        ("POST", "/admin/v1/keys", json!({}), 400, "name is missing"),
        ("POST", "/admin/v1/keys", json!({"name": ""}), 400, "name is empty"),
        ("POST", "/admin/v1/keys", json!({"name": "a\u{1b}[2J"}), 400, "control characters"),
        ("POST", "/admin/v1/keys", json!({"name": "a", "team": 7}), 400, "team must be a string"),
        ("POST", "/admin/v1/keys", json!({"name": "a", "team": ""}), 400, "team is empty"),
        (
            "POST",
            "/admin/v1/keys",
            json!({"name": "a", "admin": true}),
            400,
            "unknown field `admin`, expected one of `team`, `organisation`, `name`",
        ),
        ("POST", "/admin/v1/keys", json!({"name": "a", "expires_ms": 1}), 400, "which has passed"),
        ("PATCH", "/admin/v1/keys/key_0", json!({"expires_ms": 1}), 400, "which has passed"),
        (
            "POST",
            "/admin/v1/keys",
            json!({"name": "a", "models": "b"}),
            400,
            "models: invalid type: string \"b\", expected a list",
        ),
        (
            "POST",
            "/admin/v1/keys",
            json!({"name": "a", "policy": "b"}),
            400,
            "does not name a policy",
        ),
        (
            "POST",
            "/admin/v1/keys",
            json!({"name": "a", "max_concurrent": -1}),
            400,
            "max_concurrent: invalid value: integer `-1`, expected a whole number from 0",
        ),
        ("POST", "/admin/v1/keys", json!([]), 400, "does not fit this request"),
        (
            "PUT",
            "/admin/v1/budgets",
            json!({"scope": "key:*", "per": "day", "usd": 1e30}),
            400,
            "it must be dollars from 0 to 18446744073",
        ),
        (
            "PUT",
            "/admin/v1/budgets",
            json!({"scope": "key:*", "per": "day", "usd": "0.0000000001"}),
            400,
            "usd is 0.0000000001; it must be dollars from 0 to 18446744073 with at most nine",
        ),
        ("PUT", "/admin/v1/budgets", json!([]), 400, "expected an object"),
        ("PATCH", "/admin/v1/keys/key_0", json!({}), 404, "no key has this id"),
        ("PATCH", "/admin/v1/keys/key_0", json!({"team": "b"}), 400, "unknown field"),
        ("POST", "/admin/v1/keys/key_0/rotate", json!({"overlap": 1}), 400, "unknown field"),
        ("POST", "/admin/v1/keys/key_0/revoke", json!({}), 404, "no key has this id"),
        ("PUT", "/admin/v1/keys", json!({}), 405, "it allows GET, POST"),
        ("PUT", "/admin/v1/keys/key_0", json!({}), 405, "it allows GET, PATCH, DELETE"),
        ("GET", "/admin/v1/keys/key_0/revoke", json!({}), 405, "it allows POST"),
        ("POST", "/admin/v1/teams", json!({}), 405, "it allows GET"),
        ("POST", "/admin/v1/budgets", json!({}), 405, "it allows GET, PUT, DELETE"),
        ("POST", "/metrics", json!({}), 405, "it allows GET"),
        ("GET", "/admin/v1/keys?tema=a", json!({}), 400, "team, after"),
        ("GET", "/admin/v1/", json!({}), 404, "/admin/v1/keys"),
        ("GET", "/v1/models", json!({}), 404, "/admin/v1/keys"),
        ("POST", "/admin/v1/keys", json!({"name": "a".repeat(70_000)}), 400, "at most 65536 bytes"),
    ] {
        let (found, refused) = api.ask(method, path, Some(body.clone())).await;
        let message = refused["error"]["message"].as_str().expect("a message");
        assert!(found == status && message.contains(said), "{method} {path} {body}: {refused}");
    }
}

#[tokio::test]
async fn nobody_gets_in_without_the_token() {
    let (setting, api) = both().await;
    let key = setting.key("a", r#"{"passthrough":true}"#).await;
    let right = bearer(TOKEN);
    let paths = ["/admin/v1/keys", "/admin/v1/keys/x", "/admin/v1/teams", "/metrics", "/nowhere"];
    for headers in [
        String::new(),
        key.header(),
        bearer(""),
        bearer(&TOKEN[..TOKEN.len() - 1]),
        bearer(&format!("{TOKEN}0")),
        format!("x-api-key: {TOKEN}\r\n"),
        format!("authorization: {TOKEN}\r\n"),
        format!("{right}{}", bearer("another")),
    ] {
        for path in paths {
            let answer = ask(api.address, bare("GET", path, &headers)).await;
            assert_refused(&answer, 401, "invalid_token");
            assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
        }
    }
    for origin in ["https://evil.example", "http://localhost:1", "null"] {
        let from_a_page = format!("{right}origin: {origin}\r\n");
        let answer = ask(api.address, bare("GET", "/admin/v1/keys", &from_a_page)).await;
        assert_refused(&answer, 403, "origin_not_allowed");
    }
    let rebound = format!("GET /admin/v1/keys HTTP/1.1\r\nhost: evil.example\r\n{right}\r\n");
    assert_refused(&ask(api.address, rebound).await, 403, "host_not_allowed");
    let answer = ask(api.address, bare("GET", "/admin/v1/keys", &right)).await;
    assert_eq!(answer.status(), 200);
}

fn assert_refused(answer: &Message, status: u16, code: &str) {
    let body: Value = serde_json::from_slice(&answer.body).expect("JSON");
    assert_eq!((answer.status(), &body["error"]["code"]), (status, &json!(code)), "{answer:?}");
}

#[tokio::test]
async fn callers_find_no_admin_api() {
    let upstream = Upstream::always(FINE).await;
    let setting = start(&upstream, |_| {}).await;
    let key = setting.key("a", r#"{"passthrough":true}"#).await;
    for headers in [bearer(TOKEN), key.header()] {
        for path in ["/admin/v1/keys", "/admin/v1/teams", "/admin", "/weir/admin/v1/keys"] {
            for request in [bare("GET", path, &headers), post(path, &headers, "{}")] {
                setting.ask(request).await.assert_error(404, "not_found");
            }
        }
    }
}

#[test]
fn the_token_is_made_once_and_kept_for_its_owner_alone() {
    let folder = Folder::new();
    let path = folder.file("admin.token");
    let (made, is_new) = load_or_make(Some(&path)).expect("the folder can be written");
    assert!(is_new);
    let random = made.expose().strip_prefix("weir-admin-").expect("it says what it opens");
    assert_eq!(random.len(), 43, "256 bits");
    let (again, is_new) = load_or_make(Some(&path)).expect("it was just made");
    assert!(!is_new && again == made);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = || std::fs::metadata(&path).expect("it is there").permissions().mode() & 0o777;
        assert_eq!(mode(), 0o600);
        let open = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(&path, open).expect("it is ours");
        load_or_make(Some(&path)).expect("it is a token");
        assert_eq!(mode(), 0o600);
    }
    for wrong in ["", "short", "thirty-two characters and a space"] {
        std::fs::write(&path, wrong).expect("it is ours");
        let error = load_or_make(Some(&path)).expect_err("no token");
        assert!(error.to_string().contains("remove the file"), "{error}");
    }
    let (one, _) = load_or_make(None).expect("random bytes");
    let (other, _) = load_or_make(None).expect("random bytes");
    assert!(one != other && one != made);
}

#[tokio::test]
async fn a_month_s_budget_has_its_end_before_anything_is_spent() {
    let (_setting, api) = both().await;
    for (per, has_end) in [("month", true), ("day", true), ("30d", false), ("total", false)] {
        let budget = json!({"scope": "all", "per": per, "usd": "10"});
        let (status, set) = api.ask("PUT", "/admin/v1/budgets", Some(budget)).await;
        assert_eq!(status, 200, "{set}");
        assert_eq!(set["data"][0]["resets_at"].is_string(), has_end, "{per}: {set}");
    }
}
