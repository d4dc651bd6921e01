//! Failures after which a route's fallbacks are tried, as configured, and upstreams that ask not to be
//! asked again for a while.

use super::setting::{Play, Up, failing, memory, question, rows, said, send, status, weir};
use crate::server::harness::{Weir, ask};
use weir_store::budget::{Budget, BudgetId};
use weir_store::now_ms;

/// Configures a chain with these causes.
fn chain(causes: &str) -> String {
    format!(
        "[upstream]\nurl = \"{{a}}\"\napi_key = \"env:A\"\n[upstreams.b]\nurl = \"{{b}}\"\n\
         [[routes]]\nmodels = [\"gpt-4o\"]\nfallback = [\"gpt-4.1\"]\n{causes}\n\
         [[routes]]\nmodels = [\"gpt-4.1\"]\nupstream = \"b\"\n\
         [[routes]]\nmodels = [\"other\"]\nfallback = [\"gpt-4.1\"]"
    )
}

async fn start(toml: &str) -> (Up, Up, Weir) {
    let (a, b) = (Up::start("a").await, Up::start("b").await);
    let weir = weir(&memory(), toml, &[("a", a.url()), ("b", b.url())]).await;
    (a, b, weir)
}

fn refusal(code: u16, body: &str) -> Play {
    Play::Answer(status(code, "", body))
}

#[tokio::test]
async fn a_route_says_which_failures_lead_to_its_fallbacks() {
    let credit = r#"{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low to access the API."}}"#;
    let quota = r#"{"error":{"code":"insufficient_quota","message":"x"}}"#;
    let gone = r#"{"error":{"code":"model_not_found","message":"x"}}"#;
    let filter = r#"{"error":{"code":"content_filter","message":"x"}}"#;
    for (causes, play, is_replaced) in [
        ("", failing(402), false),
        ("", failing(503), true),
        ("", refusal(400, filter), false),
        (r#"fallback_on = ["transient"]"#, failing(503), true),
        (r#"fallback_on = ["transient"]"#, failing(401), false),
        (r#"fallback_on = ["402"]"#, failing(402), true),
        (r#"fallback_on = ["402"]"#, failing(503), false),
        (r#"fallback_on = ["401", "403", "404", "413", "transient"]"#, failing(401), true),
        (r#"fallback_on = ["401", "403", "404", "413", "transient"]"#, failing(403), true),
        (r#"fallback_on = ["401", "403", "404", "413", "transient"]"#, failing(404), true),
        (r#"fallback_on = ["401", "403", "404", "413", "transient"]"#, failing(413), true),
        (r#"fallback_on = ["401", "403", "404", "413", "transient"]"#, Play::Reset, true),
        (r#"fallback_on = ["no_credit"]"#, failing(402), true),
        (r#"fallback_on = ["no_credit"]"#, refusal(400, credit), true),
        (r#"fallback_on = ["no_credit"]"#, refusal(429, quota), true),
        (r#"fallback_on = ["no_credit"]"#, failing(429), false),
        (r#"fallback_on = ["no_credit"]"#, failing(400), false),
        (
            r#"fallback_on = ["no_credit"]"#,
            refusal(200, r#"{"error":{"code":402,"message":"x"}}"#),
            true,
        ),
        (r#"fallback_on = ["no_model"]"#, failing(404), true),
        (r#"fallback_on = ["no_model"]"#, refusal(400, gone), true),
        (r#"fallback_on = ["content_filter"]"#, refusal(400, filter), true),
        (r#"fallback_on = ["content_filter"]"#, refusal(400, gone), false),
        (r#"fallback_on = []"#, failing(503), false),
    ] {
        let (a, b, weir) = start(&chain(causes)).await;
        a.then([play]);
        let answer = send(&weir, &question("gpt-4o")).await;
        let asked = (a.seen().len(), b.seen().len());
        assert_eq!(asked, (1, usize::from(is_replaced)), "{causes}: {answer:?}");
        assert_eq!(said(&answer) == "from b", is_replaced, "{causes}: {answer:?}");
        // Routes that weir does not read follow the same list.
        let (a, b, weir) = start(&chain(causes)).await;
        a.then([failing(402)]);
        let body = r#"{"model":"gpt-4o","input":"x"}"#;
        let request = format!(
            "POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        ask(weir.address, request).await;
        let has_cause = causes.contains("402") || causes.contains("no_credit");
        assert_eq!((a.seen().len(), b.seen().len()), (1, usize::from(has_cause)), "{causes}");
    }
}

#[tokio::test]
async fn a_spent_budget_leads_to_a_fallback_if_the_route_says_so() {
    for (causes, is_replaced) in [
        ("", false),
        (r#"fallback_on = ["budget"]"#, true),
        (r#"fallback_on = ["transient", "budget"]"#, true),
    ] {
        let (a, b, store) = (Up::start("a").await, Up::start("b").await, memory());
        let id = BudgetId::parse("model:gpt-4o/usd/month").expect("a budget");
        let budget = Budget { id, limit: 1, warn_permille: None };
        store.set_budget(budget, now_ms()).await.expect("it can be set");
        let ups = [("a", a.url()), ("b", b.url())];
        let weir = weir(&store, &chain(causes), &ups).await;
        let answer = send(&weir, &question("gpt-4o")).await;
        let asked = (a.seen().len(), b.seen().len());
        assert_eq!(asked, (0, usize::from(is_replaced)), "{causes}: {answer:?}");
        match is_replaced {
            true => assert_eq!(rows(&store, &ups).await.len(), 1),
            false => assert_eq!(answer.status(), 429, "{causes}"),
        }
    }
}

#[tokio::test]
async fn a_refusal_that_leads_elsewhere_costs_nothing_and_counts_against_nobody() {
    let (a, b, store) = (Up::start("a").await, Up::start("b").await, memory());
    let ups = [("a", a.url()), ("b", b.url())];
    let weir = weir(&store, &chain(r#"fallback_on = ["402"]"#), &ups).await;
    a.then(std::iter::repeat_n(failing(402), 6));
    for _ in 0..6 {
        assert_eq!(said(&send(&weir, &question("gpt-4o")).await), "from b");
    }
    assert_eq!(a.seen().len(), 6);
    let rows = rows(&store, &ups).await;
    let free = rows.iter().filter(|row| *row == "a gpt-4o retried 402 0").count();
    assert_eq!(free, 6, "{rows:?}");
}

#[tokio::test]
async fn an_upstream_at_its_limit_is_not_asked_before_the_time_that_it_gave() {
    let limited = Play::Answer(status(429, "retry-after: 60\r\n", "{}"));
    let (a, b, weir) = start(&chain("")).await;
    a.then([limited.clone()]);
    for _ in 0..10 {
        assert_eq!(said(&send(&weir, &question("gpt-4o")).await), "from b");
    }
    assert_eq!((a.seen().len(), b.seen().len()), (1, 10), "it said when");
    // Its other models have limits of their own.
    assert_eq!(said(&send(&weir, &question("other")).await), "from a");
    // Without a time it is asked again.
    let (a, _, weir) = start(&chain("")).await;
    a.then(std::iter::repeat_n(failing(429), 3));
    for _ in 0..3 {
        assert_eq!(said(&send(&weir, &question("gpt-4o")).await), "from b");
    }
    assert_eq!(a.seen().len(), 3);
    // Without an alternative it is asked in any case.
    let (a, b, weir) = start("[upstream]\nurl = \"{a}\"").await;
    a.then([limited]);
    assert_eq!(send(&weir, &question("gpt-4o")).await.status(), 429);
    assert_eq!(said(&send(&weir, &question("gpt-4o")).await), "from a");
    assert_eq!(b.seen().len(), 0);
}
