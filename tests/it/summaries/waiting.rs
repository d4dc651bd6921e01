//! Requests that wait for the summary of their compaction, if the configuration says so.

use weir::config::SummaryMode;
use weir_store::Store;

use super::*;
use crate::keys::setting;

const PAST_CUT: usize = 17;

fn waits(config: &mut Config) {
    config.summaries.mode = SummaryMode::Wait;
    config.summaries.wait_ms = 3_600_000;
}

#[tokio::test]
async fn a_cut_whose_summary_is_not_ready_waits_for_it() {
    let place = place(&[], waits).await;
    // The conversation is new: there was no time for a prefetch.
    let answer = send(&place.weir, "north", PAST_CUT).await;
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.header("x-weir-summary"), Some("ready"));
    assert_eq!(place.summariser.requests().len(), 1);
    let sent = last_messages(&place.model);
    assert!(sent.iter().any(|message| message.to_string().contains(SAID_LINE)));
    assert_eq!(figure(&place.weir, "waited").await, 1);
    // Intermediate plans are not compactions.
    let cuts = [figure(&place.weir, "cuts_ready").await, figure(&place.weir, "cuts_late").await];
    assert_eq!(cuts, [1, 0]);
}

#[tokio::test]
async fn of_a_long_conversation_nobody_has_seen_only_the_last_cut_waits() {
    let store = Store::in_memory().expect("there is memory");
    let (model, summariser) = (model().await, summariser(&[]).await);
    let [first, second] = [
        weir(&store, &model, &summariser, waits).await,
        weir(&store, &model, &summariser, waits).await,
    ];
    let request = chat(&headers(2 * LIMIT_TOKENS), body(&conversation("north", 120)));
    let answer = ask(first.address, request.clone()).await;
    settle(&first).await;
    assert_eq!((answer.status(), answer.header("x-weir-summary")), (200, Some("ready")));
    assert_eq!(figure(&first, "waited").await, 1);
    let cuts = [figure(&first, "cuts_ready").await, figure(&first, "cuts_late").await];
    assert!(cuts[0] == 1 && cuts[1] > 3, "{cuts:?}");
    let asked = summariser.requests().len();
    assert!(asked <= 2, "{asked}: the cut waits for one, and the next one's is begun");
    // Earlier decisions stay.
    let sent = last_messages(&model);
    let answer = ask(second.address, request).await;
    settle(&second).await;
    assert_eq!(answer.header("x-weir-summary"), Some("kept"));
    assert_eq!(last_messages(&model), sent);
}

#[tokio::test]
async fn a_summary_that_does_not_come_is_waited_for_no_longer_than_may_be() {
    let place = place(&["stall_head"], |config| {
        waits(config);
        config.summaries.wait_ms = 50;
    })
    .await;
    let request = chat(HEADERS, body(&conversation("north", PAST_CUT)));
    let answer = ask(place.weir.address, request).await;
    assert_eq!((answer.status(), answer.header("x-weir-summary")), (200, Some("late")));
}

#[tokio::test]
async fn a_summary_that_fails_lets_the_request_go_on_at_once() {
    let place = place(&["status:500"], waits).await;
    let answer = send(&place.weir, "north", PAST_CUT).await;
    assert_eq!((answer.status(), answer.header("x-weir-summary")), (200, Some("late")));
}

#[tokio::test]
async fn nothing_is_spent_on_what_a_key_may_not_ask_for() {
    let (model, summariser) = (model().await, summariser(&[]).await);
    let url = summariser.base_url();
    let setting = setting::start(&model.addr.to_string(), |config| {
        waits(config);
        config.summaries.model = "gpt-4o-mini".to_owned();
        config.summaries.url = url;
    })
    .await;
    let body = String::from_utf8(body(&conversation("north", PAST_CUT))).expect("text");
    for (change, status) in [(r#"{"models": ["o3"]}"#, 403), (r#"{"models": ["gpt-4o"]}"#, 200)] {
        let key = setting.key("team", change).await;
        let headers = format!("{}x-weir-max-input-tokens: 2000\r\n", key.header());
        let answer = setting.ask(setting::post("/v1/chat/completions", &headers, &body)).await;
        assert_eq!(answer.status(), status, "{answer:?}");
        assert_eq!(summariser.requests().len(), usize::from(status == 200));
    }
}

#[tokio::test]
async fn nobody_spends_weirs_key_by_a_credential_that_was_never_taken() {
    let options = Options { require_key: Some("sk-good".to_owned()), ..Options::default() };
    let model = Server::start(options).await.expect("a free port");
    let (summariser, store) = (summariser(&[]).await, Store::in_memory().expect("there is memory"));
    let weir = weir(&store, &model, &summariser, |config| {
        waits(config);
        config.summaries.provider_key = Some(weir::config::Secret::new("sk-summaries"));
    })
    .await;
    for (credential, calls, status, look) in [
        ("sk-bad", PAST_CUT, 401, 0),
        ("sk-bad", PAST_CUT, 401, 0),
        ("sk-good", 1, 200, 0),
        ("sk-good", PAST_CUT, 200, 1),
    ] {
        let headers = HEADERS.replace("sk-caller", credential);
        let answer = ask(weir.address, chat(&headers, body(&conversation("north", calls)))).await;
        assert_eq!(answer.status(), status);
        assert_eq!(summariser.requests().len(), look, "{credential}");
    }
}

#[tokio::test]
async fn many_wait_for_one_call_though_the_first_leave() {
    let place = place(&["hold_head"], waits).await;
    let request = chat(HEADERS, body(&conversation("north", PAST_CUT)));
    let ask_once = || {
        let (address, request) = (place.weir.address, request.clone());
        tokio::spawn(async move { ask(address, request).await })
    };
    let leader = ask_once();
    place.summariser.wait_for(|seen| !seen.is_empty()).await;
    let others: Vec<_> = (0..20).map(|_| ask_once()).collect();
    leader.abort();
    let leader = leader.await;
    assert!(leader.is_err(), "it left");
    place.summariser.release();
    for other in others {
        let answer = other.await.expect("it is answered");
        assert_eq!(answer.status(), 200);
    }
    assert_eq!(place.summariser.requests().len(), 1);
}
