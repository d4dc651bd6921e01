//! The dashboard's side of the admin listener: files, logins, sessions, and the data that its pages
//! show. `tests/browser` drives the pages themselves.

use std::io::Read;
use std::net::SocketAddr;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use weir::admin::{Admin, AdminRenewal, Token};
use weir::config::{Config, Secret};
use weir_store::Store;
use weir_store::ledger::RequestQuery;

use crate::cli::{Serving, weir};
use crate::eventually::{DEADLINE, eventually};
use crate::folder::Folder;
use crate::keys::setting::{self, Setting, bearer};
use crate::scripted_upstream::{Options, Server};
use crate::server::harness::{Message, Upstream, ask, bare, chat};

const TOKEN: &str = "weir-admin-of-this-test-0123456789abcdef";
const CSRF: &str = "x-weir-csrf: 1\r\norigin: http://localhost\r\n";

/// A weir in keys mode with its admin listener.
struct Dashboard {
    address: SocketAddr,
    setting: Setting,
    _upstream: Option<Server>,
    admin: AdminRenewal,
    code: String,
    _running: oneshot::Sender<()>,
}

impl Dashboard {
    async fn start() -> Self {
        let upstream = Server::start(Options::default()).await.expect("a free port");
        let address = upstream.addr.to_string();
        let started = Self::over(&address).await;
        Self { _upstream: Some(upstream), ..started }
    }

    /// Starts one in front of the upstream at `address`.
    async fn over(address: &str) -> Self {
        let setting = setting::start(address, |_| {}).await;
        let (running, ended) = oneshot::channel::<()>();
        let token = Token::new(&Secret::new(TOKEN));
        let here = ([127, 0, 0, 1], 0).into();
        let store = setting.store.clone();
        let admin = Admin::bind(here, &Config::default(), store, token).await.expect("a free port");
        let renewal = setting.weir.renewal.clone();
        admin.show_metrics(move || renewal.proxy());
        let (address, code) = (admin.address(), admin.login_code().expect("random bytes"));
        let renewal = admin.renewal();
        tokio::spawn(admin.run(async move {
            // Ends on the signal, or when its sender is dropped.
            let _ = ended.await;
        }));
        let _upstream = None;
        Self { address, setting, _upstream, admin: renewal, code, _running: running }
    }

    async fn ask(&self, method: &str, path: &str, headers: &str) -> Message {
        ask(self.address, bare(method, path, headers)).await
    }

    async fn post(&self, path: &str, headers: &str, body: &Value) -> Message {
        ask(self.address, setting::post(path, headers, body.to_string())).await
    }

    /// Logs in with the token; returns the header with the session's cookie.
    async fn log_in(&self) -> String {
        let answer = self.post("/login", "", &json!({"token": TOKEN})).await;
        assert_eq!(answer.status(), 200, "{answer:?}");
        cookie(&answer)
    }

    /// Reads JSON with the token.
    async fn get(&self, path: &str) -> Value {
        let answer = self.ask("GET", path, &bearer(TOKEN)).await;
        assert_eq!(answer.status(), 200, "{answer:?}");
        serde_json::from_slice(&answer.body).expect("JSON")
    }

    /// Waits until this many requests have ended.
    async fn ended(&self, count: usize) -> Value {
        let look = async || self.get("/admin/v1/live").await;
        let is_there =
            |look: &Value| look["requests"].as_array().is_some_and(|rows| rows.len() >= count);
        eventually(DEADLINE, look, is_there).await
    }
}

fn cookie(answer: &Message) -> String {
    let set = answer.header("set-cookie").expect("a cookie");
    format!("cookie: a=b; {}\r\n", set.split(';').next().expect("a pair"))
}

fn code(answer: &Message) -> (u16, String) {
    let body: Value = serde_json::from_slice(&answer.body).expect("JSON");
    (answer.status(), body["error"]["code"].as_str().unwrap_or_default().to_owned())
}

fn refused(status: u16, code: &str) -> (u16, String) {
    (status, code.to_owned())
}

#[tokio::test]
async fn files_need_no_login_and_run_nothing_from_elsewhere() {
    let dashboard = Dashboard::start().await;
    let page = dashboard.ask("GET", "/", "").await;
    let text = String::from_utf8(page.body.clone()).expect("UTF-8");
    let mut paths = vec!["/".to_owned(), "/api.js".to_owned(), "/pages/keys.js".to_owned()];
    for part in text.split(['"']).filter(|part| part.starts_with('/')) {
        paths.push(part.to_owned());
    }
    assert!(paths.len() > 6, "{paths:?}");
    for path in paths {
        let answer = dashboard.ask("GET", &path, "").await;
        assert_eq!(answer.status(), 200, "{path}");
        let policy = answer.header("content-security-policy").expect("a policy");
        for part in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"] {
            assert!(policy.contains(part), "{path}: {policy}");
        }
        assert!(!policy.contains("unsafe"), "{path}: {policy}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}");
        assert_eq!(answer.header("referrer-policy"), Some("no-referrer"), "{path}");
        let tag = answer.header("etag").expect("a tag");
        let again = format!("if-none-match: {tag}\r\n");
        assert_eq!(dashboard.ask("GET", &path, &again).await.status(), 304, "{path}");
        let foreign = format!("GET {path} HTTP/1.1\r\nhost: evil.example\r\n\r\n");
        let answer = ask(dashboard.address, foreign).await;
        assert_eq!(code(&answer), refused(403, "host_not_allowed"), "{path}");
    }
    for path in ["/style.css/", "/../style.css", "/web/app.js", "/vendor/", "/pages"] {
        let answer = dashboard.ask("GET", path, "").await;
        assert_eq!(code(&answer), refused(401, "invalid_token"), "{path}");
    }
}

#[tokio::test]
async fn a_session_begins_with_the_token_and_ends_with_a_logout() {
    let dashboard = Dashboard::start().await;
    let answer = dashboard.post("/login", "", &json!({"token": TOKEN})).await;
    let set = answer.header("set-cookie").expect("a cookie").to_owned();
    for part in ["; HttpOnly", "; SameSite=Strict", "; Path=/", "; Max-Age=43200"] {
        assert!(set.contains(part), "{set}");
    }
    assert!(!set.contains("Secure"), "there is no TLS: {set}");
    let name = format!("weir_session_{}=", dashboard.address.port());
    let secret = set.strip_prefix(&name).and_then(|rest| rest.split(';').next());
    assert_eq!(secret.map(str::len), Some(43), "256 bits");
    let session = cookie(&answer);
    assert_eq!(dashboard.ask("GET", "/admin/v1/keys", &session).await.status(), 200);
    let shown = dashboard.ask("GET", "/login", &session).await;
    assert!(String::from_utf8_lossy(&shown.body).contains("\"signed_in\":true"));

    for wrong in [session.replace('=', "=x"), session.replace("weir_session", "weir")] {
        let answer = dashboard.ask("GET", "/admin/v1/keys", &wrong).await;
        assert_eq!(code(&answer), refused(401, "invalid_token"));
    }
    let out = dashboard.post("/logout", &session, &json!({})).await;
    assert_eq!(code(&out), refused(403, "csrf"));
    let out = dashboard.post("/logout", &format!("{session}{CSRF}"), &json!({})).await;
    assert_eq!(out.status(), 200);
    assert!(out.header("set-cookie").is_some_and(|set| set.contains("Max-Age=0")));
    let answer = dashboard.ask("GET", "/admin/v1/keys", &session).await;
    assert_eq!(code(&answer), refused(401, "invalid_token"));
    let shown = dashboard.ask("GET", "/login", &session).await;
    assert!(String::from_utf8_lossy(&shown.body).contains("\"signed_in\":false"));
}

/// A cookie alone changes nothing, and other pages' requests are refused with any credential.
#[tokio::test]
async fn other_pages_cannot_use_a_session() {
    let dashboard = Dashboard::start().await;
    let session = dashboard.log_in().await;
    let key = json!({"name": "made by a page"});
    for (headers, expected) in [
        ("", refused(403, "csrf")),
        ("x-weir-csrf: 1\r\n", refused(403, "csrf")),
        ("origin: http://localhost\r\n", refused(403, "csrf")),
        ("x-weir-csrf: 0\r\norigin: http://localhost\r\n", refused(403, "csrf")),
        ("x-weir-csrf: 1\r\norigin: http://localhost:3000\r\n", refused(403, "origin_not_allowed")),
        ("x-weir-csrf: 1\r\norigin: https://evil.example\r\n", refused(403, "origin_not_allowed")),
        ("x-weir-csrf: 1\r\norigin: null\r\n", refused(403, "origin_not_allowed")),
        (
            "x-weir-csrf: 1\r\norigin: http://localhost\r\norigin: http://evil.example\r\n",
            refused(403, "origin_not_allowed"),
        ),
        (
            "x-weir-csrf: 1\r\norigin: http://localhost\r\nsec-fetch-site: same-site\r\n",
            refused(403, "csrf"),
        ),
    ] {
        let answer = dashboard.post("/admin/v1/keys", &format!("{session}{headers}"), &key).await;
        assert_eq!(code(&answer), expected, "{headers}");
    }
    // Pages on other ports of the host send the cookie, too.
    for site in ["same-site", "cross-site"] {
        let headers = format!("{session}sec-fetch-site: {site}\r\n");
        let answer = dashboard.ask("GET", "/admin/v1/keys", &headers).await;
        assert_eq!(code(&answer), refused(403, "csrf"), "{site}");
    }
    let keys = dashboard.get("/admin/v1/keys").await;
    assert_eq!(keys["data"], json!([]), "none was made");
    let own = format!("{session}{CSRF}sec-fetch-site: same-origin\r\n");
    assert_eq!(dashboard.post("/admin/v1/keys", &own, &key).await.status(), 201);
    let foreign = "origin: https://evil.example\r\n";
    let answer = dashboard.post("/login", foreign, &json!({"token": TOKEN})).await;
    assert_eq!(code(&answer), refused(403, "origin_not_allowed"));
}

#[tokio::test]
async fn a_code_logs_in_once() {
    let dashboard = Dashboard::start().await;
    let login = json!({"code": dashboard.code});
    let answer = dashboard.post("/login", "", &login).await;
    assert_eq!(answer.status(), 200);
    let answer = dashboard.ask("GET", "/admin/v1/keys", &cookie(&answer)).await;
    assert_eq!(answer.status(), 200);
    let again = dashboard.post("/login", "", &login).await;
    assert_eq!(code(&again), refused(401, "invalid_code"));
    assert_eq!(again.header("set-cookie"), None);
    let both = json!({"code": dashboard.code, "token": TOKEN});
    for wrong in [json!({}), both, json!({"token": ""}), json!({"code": ""})] {
        let answer = dashboard.post("/login", "", &wrong).await;
        assert_eq!(answer.status(), 401, "{wrong}");
    }
    for wrong in [json!({"token": 1}), json!({"user": "x"}), json!([])] {
        let answer = dashboard.post("/login", "", &wrong).await;
        assert_eq!(code(&answer), refused(400, "invalid_request"), "{wrong}");
    }
}

#[tokio::test]
async fn failed_logins_are_limited() {
    let dashboard = Dashboard::start().await;
    let wrong = json!({"token": "wrong"});
    for _ in 0..10 {
        let answer = dashboard.post("/login", "", &wrong).await;
        assert_eq!(code(&answer), refused(401, "invalid_token"));
    }
    let answer = dashboard.post("/login", "", &wrong).await;
    assert_eq!(code(&answer), refused(429, "too_many_attempts"));
    let wait: u64 = answer.header("retry-after").and_then(|text| text.parse().ok()).expect("it");
    assert!((1..=61).contains(&wait), "{wait}");
    let answer = dashboard.post("/login", "", &json!({"token": TOKEN})).await;
    assert_eq!(answer.status(), 200, "who has the token shares the address and logs in");
    let answer = dashboard.ask("GET", "/admin/v1/keys", &bearer(TOKEN)).await;
    assert_eq!(answer.status(), 200, "programs are not affected");
}

/// Opens a connection, and asks for a page; returns it if there is an answer.
async fn answered(address: SocketAddr) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    stream.write_all(b"GET /icon.svg HTTP/1.1\r\nhost: localhost\r\n\r\n").await.ok()?;
    let count = stream.read(&mut [0; 12]).await.ok()?;
    (count > 0).then_some(stream)
}

#[tokio::test]
async fn an_address_has_a_share_of_the_connections() {
    let dashboard = Dashboard::start().await;
    let mut open = Vec::new();
    for _ in 0..32 {
        open.push(answered(dashboard.address).await.expect("there is a place"));
    }
    // Connections without a request lock nobody out: the oldest gives way.
    open.push(answered(dashboard.address).await.expect("there is a place"));
    let mut oldest = open.remove(0);
    let mut rest = Vec::new();
    oldest.read_to_end(&mut rest).await.expect("it was closed");
    for stream in &mut open {
        stream.write_all(b"GET /icon.svg HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("open");
        assert!(stream.read(&mut [0; 12]).await.expect("open") > 0, "the others stay");
    }
}

fn conversation(text: &str) -> String {
    json!({"model": "gpt-4o", "messages": [{"role": "user", "content": text}]}).to_string()
}

#[tokio::test]
async fn live_requests_carry_names_and_figures_and_no_content() {
    let mut upstream = Upstream::start().await;
    let dashboard = Dashboard::over(&upstream.address).await;
    let key = dashboard.setting.key("research", "{}").await;
    let empty = dashboard.get("/admin/v1/live").await;
    assert_eq!((&empty["next"], &empty["requests"]), (&json!(0), &json!([])));

    let hostile = "<img src=x onerror=alert(1)>";
    let headers = format!("{}x-session-id: {hostile}\r\n", key.header());
    let request = chat(&headers, conversation("a secret plan"));
    let address = dashboard.setting.weir.address;
    let asking = tokio::spawn(async move { ask(address, request).await });
    let seen = upstream.next().await;
    let look = async || dashboard.get("/admin/v1/live").await;
    let look = eventually(DEADLINE, look, |look| look["running"][0]["model"].is_string()).await;
    let running = &look["running"][0];
    assert_eq!(running["model"], "gpt-4o");
    assert_eq!((&running["key"], &running["team"]), (&json!(key.id), &json!("research")));
    assert_eq!(running["conversation"], hostile);
    assert!(running["received_tokens"].is_u64() && running["begun_ms"].is_u64(), "{running}");

    let body = r#"{"usage":{"prompt_tokens":50,"completion_tokens":5}}"#;
    let length = body.len();
    seen.answer(format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"));
    assert_eq!(asking.await.expect("it ran").status(), 200);
    let look = dashboard.ended(1).await;
    assert_eq!((&look["running"], &look["next"]), (&json!([]), &json!(1)));
    let ended = &look["requests"][0];
    for (name, value) in [
        ("seq", json!(1)),
        ("model", json!("gpt-4o")),
        ("status", json!(200)),
        ("outcome", json!("complete")),
        ("action", json!("pass")),
        ("prompt_tokens", json!(50)),
        ("completion_tokens", json!(5)),
        ("key", json!(key.id)),
        ("conversation", json!(hostile)),
        ("error", Value::Null),
        ("steps", Value::Null),
    ] {
        assert_eq!(ended[name], value, "{name}: {ended}");
    }
    assert!(ended["cost_usd"].is_string() && ended["plan_ms"].is_number(), "{ended}");
    assert!(!look.to_string().contains("secret plan"));
    let after = dashboard.get("/admin/v1/live?after=1").await;
    assert_eq!((&after["requests"], &after["next"]), (&json!([]), &json!(1)));
    for (limit, expected) in [(0, 0), (1, 1), (1000, 1)] {
        let newest = dashboard.get(&format!("/admin/v1/live?after=0&limit={limit}")).await;
        assert_eq!(newest["requests"].as_array().map(Vec::len), Some(expected), "{limit}");
    }
    let answer = dashboard.ask("GET", "/admin/v1/live?limit=-1", &bearer(TOKEN)).await;
    assert_eq!(code(&answer), refused(400, "invalid_request"));
    let answer = dashboard.ask("GET", "/admin/v1/live?after=x", &bearer(TOKEN)).await;
    assert_eq!(code(&answer), refused(400, "invalid_request"));
}

#[tokio::test]
async fn a_look_without_a_limit_has_as_many_requests_as_the_page_shows() {
    let dashboard = Dashboard::start().await;
    let key = dashboard.setting.key("research", "{}").await;
    // Without a body in JSON they end before an upstream is asked.
    for _ in 0..205 {
        let refused = ask(dashboard.setting.weir.address, chat(&key.header(), "no")).await;
        assert_eq!(refused.status(), 400, "{refused:?}");
    }
    let look = async || dashboard.get("/admin/v1/live").await;
    let look = eventually(DEADLINE, look, |look| look["next"] == json!(205)).await;
    let seqs = |look: &Value| {
        let rows = look["requests"].as_array().expect("a list");
        (rows.len(), rows[0]["seq"].clone(), rows[rows.len() - 1]["seq"].clone())
    };
    assert_eq!(seqs(&look), (200, json!(6), json!(205)), "the newest");
    let after = dashboard.get("/admin/v1/live?after=0").await;
    assert_eq!(seqs(&after), (200, json!(6), json!(205)));
    let all = dashboard.get("/admin/v1/live?after=0&limit=500").await;
    assert_eq!(seqs(&all), (205, json!(1), json!(205)));
    let script = dashboard.ask("GET", "/pages/live.js", "").await;
    let script = String::from_utf8(script.body).expect("UTF-8");
    assert!(script.contains("const MAX_ROWS = 200;"), "the page shows another number");
}

#[tokio::test]
async fn usage_is_equal_to_the_journal() {
    let dashboard = Dashboard::start().await;
    let (one, other) =
        (dashboard.setting.key("one", "{}").await, dashboard.setting.key("other", "{}").await);
    for (number, key) in [&one, &other, &one].into_iter().enumerate() {
        let headers = format!("{}x-session-id: c{number}\r\n", key.header());
        let request = chat(&headers, conversation(&"hello ".repeat(100 * (number + 1))));
        assert_eq!(dashboard.setting.ask(request).await.status(), 200);
    }
    let failing = format!("{}x-upstream-fault: status:500\r\n", other.header());
    dashboard.setting.ask(chat(&failing, conversation("no"))).await;
    dashboard.ended(4).await;

    let rows = dashboard.setting.store.requests(RequestQuery::default()).await.expect("readable");
    let sum = |of: fn(&weir_store::ledger::RequestRow) -> Option<u64>| -> u64 {
        rows.iter().filter_map(of).sum()
    };
    let prompt = sum(|row| row.settlement.prompt_tokens);
    assert!(rows.len() == 4 && prompt > 0);
    let day_ms = 24 * 60 * 60 * 1000;
    let midnight = rows[0].begun_ms / day_ms * day_ms;
    let paths = [
        "/admin/v1/usage".to_owned(),
        "/admin/v1/usage?every=hour".to_owned(),
        format!("/admin/v1/usage?since={midnight}&every=day"),
        format!("/admin/v1/usage?since={midnight}"),
        "/admin/v1/usage?by=key".to_owned(),
        "/admin/v1/usage?by=conversation,agent,class&every=4h".to_owned(),
    ];
    for path in paths {
        let found = dashboard.get(&path).await;
        let data = found["data"].as_array().expect("rows");
        let of = |name: &str| -> u64 { data.iter().filter_map(|row| row[name].as_u64()).sum() };
        assert_eq!((of("requests"), of("errors")), (4, 1), "{path}: {found}");
        assert_eq!(of("prompt_tokens"), prompt, "{path}");
        assert_eq!(of("received_tokens"), sum(|row| row.received_tokens), "{path}");
        let cost: f64 =
            data.iter().filter_map(|row| row["cost_usd"].as_str()?.parse::<f64>().ok()).sum();
        let expected = sum(|row| row.settlement.cost_nano_usd) as f64 / 1e9;
        assert!((cost - expected).abs() < 1e-9, "{path}: {cost} and {expected}");
    }
    let by_key =
        dashboard.get(&format!("/admin/v1/usage?by=model&key={}&detail=true", one.id)).await;
    assert_eq!(by_key["data"][0]["requests"], 2);
    assert!(by_key["data"][0]["first_byte_p50_ms"].is_u64(), "{by_key}");
    let none = dashboard.get("/admin/v1/usage?team=nobody").await;
    assert_eq!(none["data"], json!([]));
    let few = dashboard.get("/admin/v1/usage?by=key&limit=1").await;
    assert_eq!(
        (few["data"].as_array().map(Vec::len), &few["is_complete"]),
        (Some(1), &json!(false))
    );
    for wrong in ["every=week", "by=tenant", "since=x", "since=0&every=hour", "x=1"] {
        let path = format!("/admin/v1/usage?{wrong}");
        let answer = dashboard.ask("GET", &path, &bearer(TOKEN)).await;
        assert_eq!(code(&answer), refused(400, "invalid_request"), "{wrong}");
    }
}

#[tokio::test]
async fn the_status_shows_state_and_no_secret() {
    let dashboard = Dashboard::start().await;
    dashboard.admin.note(|in_force| in_force.base_url = "http://127.0.0.1:8400/v1".to_owned());
    let status = dashboard.get("/admin/v1/status").await;
    assert_eq!(status["base_url"], "http://127.0.0.1:8400/v1");
    assert_eq!(status["mode"], json!({"callers": "keys", "conversations": "compact"}));
    assert_eq!(status["upstreams"][0]["state"], "ready");
    assert_eq!(status["upstreams"][0]["has_own_key"], true);
    assert_eq!(status["learned"], json!({"limits": [], "ratios": []}));
    assert!(!status.to_string().contains(setting::OWN_KEY));
    for path in ["/admin/v1/status", "/admin/v1/live", "/admin/v1/usage"] {
        let answer = dashboard.post(path, &bearer(TOKEN), &json!({})).await;
        assert_eq!(code(&answer), refused(405, "method_not_allowed"));
        assert_eq!(answer.header("allow"), Some("GET"));
        let answer = dashboard.ask("GET", path, "").await;
        assert_eq!(code(&answer), refused(401, "invalid_token"), "{path}");
    }
    let store = Store::in_memory().expect("there is memory");
    let token = Token::new(&Secret::new(TOKEN));
    let here = ([127, 0, 0, 1], 0).into();
    let alone = Admin::bind(here, &Config::default(), store, token).await.expect("a free port");
    let address = alone.address();
    tokio::spawn(alone.run(std::future::pending()));
    let answer = ask(address, bare("GET", "/admin/v1/live", &bearer(TOKEN))).await;
    assert_eq!(code(&answer), refused(503, "not_ready"));
}

/// `--open` prints a link on standard output, and nothing of its code goes to the log.
#[tokio::test]
async fn an_opened_dashboard_has_a_link_that_logs_in_once() {
    let folder = Folder::new();
    let config =
        folder.write("weir.toml", "[store]\npath = \"weir.db\"\n[log]\nformat = \"json\"\n");
    let store = folder.file("weir.db").display().to_string();
    let mut command =
        weir(&["serve", "--open", "--port", "0", "--config", &config, "--store", &store]);
    command.env_remove("DISPLAY").env_remove("WAYLAND_DISPLAY");
    let mut process = command.spawn().expect("weir starts");
    let mut stdout = process.stdout.take().expect("it is piped");
    let serving = Serving::of(process);
    assert!(serving.greeting.contains("dashboard"), "{}", serving.greeting);
    let said = tokio::task::spawn_blocking(move || {
        let mut said = String::new();
        let mut byte = [0];
        while !(said.contains("#code=") && said.ends_with("\n\n")) {
            assert_eq!(stdout.read(&mut byte).expect("text"), 1, "weir ended: {said}");
            said.push(char::from(byte[0]));
        }
        said
    });
    let said = said.await.expect("it was read");
    let link = said.split_whitespace().find(|word| word.starts_with("http")).expect("a link");
    let (url, secret) = link.split_once("#code=").expect("a code");
    let address: SocketAddr =
        url.trim_start_matches("http://").trim_end_matches('/').parse().expect("an address");
    assert!(address.ip().is_loopback());
    let login = setting::post("/login", "", json!({"code": secret}).to_string());
    let answer = ask(address, &login).await;
    assert_eq!(answer.status(), 200);
    let status = ask(address, bare("GET", "/admin/v1/status", &cookie(&answer))).await;
    let status: Value = serde_json::from_slice(&status.body).expect("JSON");
    assert_eq!(status["base_url"], format!("http://{}/v1", serving.address));
    let settings = status["configuration"].as_array().expect("settings");
    let format = settings.iter().find(|row| row["key"] == "log.format").expect("it is set");
    assert_eq!((&format["value"], &format["source"]), (&json!("json"), &json!(config)));
    assert_eq!(code(&ask(address, &login).await), refused(401, "invalid_code"));
    let greeting = serving.greeting.clone();
    let log = greeting + &serving.log();
    assert!(!log.contains(secret), "the code is in the log");
}
