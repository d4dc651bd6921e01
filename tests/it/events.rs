//! Events, as a webhook receives them: signed, in order, repeated after a failure, each once, and
//! bounded.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use serde_json::{Value, json};
use weir::config::{Config, EventKind, Secret};
use weir_store::Store;
use weir_store::now_ms;

use crate::budgeted::setting::Budgeted;
use crate::cli::{Serving, weir};
use crate::eventually::{DEADLINE, eventually};
use crate::folder::Folder;
use crate::server::harness::{self, FINE, Seen, Upstream, ask, bare, body_of, chat};

const KEY: [u8; 32] = [9; 32];
const ACCEPTED: &str = "HTTP/1.1 204 Done\r\ncontent-length: 0\r\n\r\n";
const FAILED: &str = "HTTP/1.1 500 Failed\r\ncontent-length: 0\r\n\r\n";

fn secret() -> String {
    format!("whsec_{}", STANDARD.encode(KEY))
}

fn header<'a>(seen: &'a Seen, name: &str) -> &'a str {
    let mut lines = seen.head.lines().filter_map(|line| line.split_once(": "));
    let found = lines.find(|(own, _)| own.eq_ignore_ascii_case(name));
    found.unwrap_or_else(|| panic!("no {name}: {}", seen.head)).1
}

/// Receives the next post, verifies its signature as a receiver does, and returns its ID and event.
async fn next(hook: &mut Upstream) -> (Seen, String, Value) {
    let seen = tokio::time::timeout(DEADLINE, hook.next()).await.expect("an event");
    let (id, timestamp) = (header(&seen, "webhook-id"), header(&seen, "webhook-timestamp"));
    let seconds: u64 = timestamp.parse().expect("a time");
    assert!(seconds.abs_diff(now_ms() / 1000) < 300, "{seconds}");
    let signature = header(&seen, "webhook-signature").strip_prefix("v1,").expect("a version");
    let mut signed = format!("{id}.{timestamp}.").into_bytes();
    signed.extend_from_slice(&seen.body);
    let key = hmac::Key::new(hmac::HMAC_SHA256, &KEY);
    let signature = STANDARD.decode(signature).expect("base64");
    hmac::verify(&key, &signed, &signature).expect("it is weir's");
    let event: Value = serde_json::from_slice(&seen.body).expect("JSON");
    assert!(event["at"].as_str().is_some_and(|at| at.contains('T')), "{event}");
    let id = id.to_owned();
    (seen, id, event)
}

fn posting(url: String) -> impl FnOnce(&mut Config) {
    move |config| {
        config.events.webhook_url = url;
        config.events.secret = Some(Secret::new(secret()));
    }
}

#[tokio::test]
async fn a_post_that_failed_is_repeated_before_the_next_and_budgets_are_reported_once() {
    let mut hook = Upstream::start().await;
    let url = format!("http://{}/hook", hook.address);
    let budgeted = Budgeted::start(posting(url)).await;
    budgeted.set("all/tokens/total", "1000").await;
    budgeted.chat(900, json!({})).await;
    budgeted.chat(1, json!({})).await;
    budgeted.chat(1, json!({})).await;
    let (seen, id, warning) = next(&mut hook).await;
    assert_eq!(
        (&warning["event"], &warning["budget"]),
        (&json!("budget_warning"), &json!("all/tokens/total"))
    );
    crate::budgeted::setting::set(&budgeted.weir.store, "all/tokens/total", "10").await;
    assert_eq!(budgeted.chat(1, json!({})).await.status(), 429);
    seen.answer(FAILED);
    let (seen, again, repeated) = next(&mut hook).await;
    assert_eq!((again, repeated), (id.clone(), warning), "the same event, by its ID");
    seen.answer(ACCEPTED);
    let (seen, other, exhausted) = next(&mut hook).await;
    assert_eq!(exhausted["event"], "budget_exhausted");
    assert_ne!(other, id);
    seen.answer(ACCEPTED);
    let look = async || {
        let page = ask(budgeted.weir.weir.address, bare("GET", "/readyz", "")).await;
        assert_eq!(page.status(), 200);
        budgeted.weir.weir.renewal.proxy().events().counts()
    };
    let counts = eventually(DEADLINE, look, |counts| counts.posted == 2).await;
    assert_eq!((counts.failed, counts.dropped), (0, 0));
}

#[tokio::test]
async fn an_upstream_that_fails_and_recovers_is_reported_in_order() {
    let (mut hook, mut upstream) = (Upstream::start().await, Upstream::start().await);
    let url = format!("http://{}/hook", hook.address);
    let weir = harness::start(&upstream.address, |config| {
        config.upstream.max_retries = 0;
        posting(url)(config);
    })
    .await;
    for status in ["500 No", "500 No", "500 No", "500 No", "500 No", "500 No", "200 OK", "200 OK"] {
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\n[]");
        let answered = async { upstream.next().await.answer(&answer) };
        tokio::join!(ask(weir.address, chat("", body_of(100))), answered);
    }
    for expected in ["breaker_opened", "breaker_closed"] {
        let (seen, _, event) = next(&mut hook).await;
        assert_eq!((&event["event"], &event["upstream"]), (&json!(expected), &json!("default")));
        seen.answer(ACCEPTED);
    }
}

#[tokio::test]
async fn a_learned_limit_is_reported_and_other_kinds_are_not_if_only_it_is_asked_for() {
    use crate::overflow_retry::{WINDOW, conversation, upstream};

    let upstream = upstream("openai", WINDOW).await;
    let mut hook = Upstream::start().await;
    let url = format!("http://{}/hook", hook.address);
    let store = Store::in_memory().expect("there is memory");
    let weir = harness::start_with(store, &upstream.addr.to_string(), |config| {
        posting(url)(config);
        config.events.kinds = vec![EventKind::LimitLearned];
    })
    .await;
    weir.renewal.note_reload(Some(&["server.listen".to_owned()]));
    let body = conversation(20, &json!({})).to_string();
    let answer = ask(weir.address, chat("authorization: Bearer sk-a\r\n", body)).await;
    assert_eq!(answer.status(), 200);
    let (seen, _, event) = next(&mut hook).await;
    assert_eq!((&event["event"], &event["model"]), (&json!("limit_learned"), &json!("gpt-4o")));
    assert_eq!(event["limit_tokens"], WINDOW);
    let text = event.to_string();
    assert!(!text.contains("Question") && !text.contains("sk-a"), "{text}");
    seen.answer(ACCEPTED);
}

#[tokio::test]
async fn a_refused_configuration_is_reported_once_by_its_keys() {
    let (folder, mut hook) = (Folder::new(), Upstream::start().await);
    let upstream = Upstream::always(FINE).await;
    let sound = format!(
        "[upstream]\nurl = \"http://{upstream}/v1\"\n[events]\n\
         webhook_url = \"http://{}/hook\"\nsecret = \"env:EVENTS_SECRET\"\n",
        hook.address
    );
    let config = folder.write("weir.toml", &sound);
    let mut command = weir(&["serve", "--listen", "127.0.0.1:0", "--config", &config]);
    command.env("EVENTS_SECRET", secret());
    let mut serving = Serving::run(&mut command);
    let broken = format!("{sound}[server]\nmax_connections = \"sk-not-for-events\"\n");
    folder.replace("weir.toml", &broken);
    serving.wait_for("the configuration was refused");
    let (seen, first, event) = next(&mut hook).await;
    assert_eq!(event["event"], "reload_refused");
    assert_eq!(event["keys"], json!(["server.max_connections"]));
    assert!(!event.to_string().contains("sk-not"), "{event}");
    seen.answer(ACCEPTED);
    // The same refusal is no news, a new one after a sound configuration is.
    serving.signal("-HUP");
    serving.wait_for("the configuration was refused");
    folder.replace("weir.toml", &sound);
    serving.wait_for("the configuration was reloaded");
    folder.replace("weir.toml", &format!("{broken}\n"));
    serving.wait_for("the configuration was refused");
    let (seen, other, event) = next(&mut hook).await;
    assert_eq!(event["event"], "reload_refused");
    assert_ne!(other, first);
    seen.answer(ACCEPTED);
    let log = tokio::task::spawn_blocking(move || serving.log()).await.expect("it ends");
    assert!(!log.contains(&secret()), "the secret is not logged");
}

#[cfg(unix)]
#[tokio::test]
async fn a_store_that_fails_is_reported() {
    use crate::store::originals::{ALICE, accepted, conversation, on_a_small_disk};

    let (folder, mut hook) = (Folder::new(), Upstream::start().await);
    let mut upstream = Upstream::start().await;
    let (store, url) = (folder.path("weir.db"), format!("http://{}/v1", upstream.address));
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--upstream", &url, "--store", &store];
    let mut command = on_a_small_disk(1000, &arguments);
    command
        // The journal's small writes may still fit, and the store would then work again.
        .env("WEIR_CONTEXT__ORIGINALS", "store")
        .env("WEIR_LEDGER__ENABLED", "false")
        .env("WEIR_EVENTS__WEBHOOK_URL", format!("http://{}/hook", hook.address))
        .env("WEIR_EVENTS__SECRET", "env:EVENTS_SECRET")
        .env("EVENTS_SECRET", secret());
    let serving = Serving::run(&mut command);
    accepted(serving.address, &mut upstream, ALICE, &conversation(20_000)).await;
    let (seen, _, event) = next(&mut hook).await;
    seen.answer(ACCEPTED);
    assert_eq!((&event["event"], &event["part"]), (&json!("store_failing"), &json!("store")));
}

#[tokio::test]
async fn a_receiver_that_is_slow_or_gone_costs_no_request_and_bounded_memory() {
    // It accepts a connection and never answers.
    let hook = Upstream::start().await;
    let url = format!("http://{}/hook", hook.address);
    let upstream = Upstream::always(FINE).await;
    let weir = harness::start(&upstream, posting(url)).await;
    let proxy = weir.renewal.proxy();
    for number in 0..1000 {
        let keys = [format!("limits[{number}].model")];
        weir.renewal.note_reload(Some(&keys));
    }
    let counts = proxy.events().counts();
    assert!(counts.dropped >= 1000 - 256 - 1 && counts.dropped < 1000, "{counts:?}");
    assert_eq!(ask(weir.address, chat("", body_of(100))).await.status(), 200);
}
