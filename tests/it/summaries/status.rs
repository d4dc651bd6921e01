//! Replacement for the messages that a compaction removes: the summary that was ready, otherwise
//! the extract, and the same in all later requests.

use weir::config::SummaryMode;
use weir_store::Store;
use weir_store::budget::NanoUsd;
use weir_store::ledger::{RequestQuery, RequestRow};

use super::*;
use crate::folder::Folder;

/// More calls than before the first compaction of a conversation, and fewer than before the second.
const PAST_CUT: usize = 17;

fn tells_summary(messages: &[Value]) -> bool {
    messages
        .iter()
        .any(|message| message["content"].as_str().is_some_and(|text| text.contains(SAID_LINE)))
}

async fn rows_of(store: &Store, route: &str) -> Vec<RequestRow> {
    let query = RequestQuery { route: Some(route.to_owned()), ..RequestQuery::default() };
    store.requests(query).await.expect("it can be read")
}

#[tokio::test]
async fn the_summary_is_ready_when_the_cut_comes() {
    let store = Store::in_memory().expect("there is memory");
    let (model, summariser) = (model().await, summariser(&[]).await);
    let weir = weir(&store, &model, &summariser, |_| {}).await;
    let answers = run(&weir, "north", 1..=PAST_CUT).await;
    let summed: Vec<usize> = (0..answers.len())
        .filter(|index| answers[*index].header("x-weir-summary").is_some())
        .collect();
    assert_eq!(summed.len(), 1, "one cut was made");
    let cut = &answers[summed[0]];
    assert_eq!(cut.header("x-weir-summary"), Some("ready"));
    let edits = cut.header("x-weir-edits").expect("edits are named");
    assert!(edits.split(',').any(|edit| edit == "summary"), "{edits}");
    assert_eq!(summariser.requests().len(), 1, "one call for one cut");
    assert!(tells_summary(&last_messages(&model)));
    // The messages that the summary replaced are gone; a note next to it counts those that came
    // later.
    let sent: u64 = cut.header("x-weir-sent-tokens").expect("a size").parse().expect("a number");
    assert!(sent < LIMIT_TOKENS);

    let seen = &summariser.requests()[0];
    let row = &rows_of(&store, "summary").await[0];
    assert_eq!(row.settlement.prompt_tokens, seen.prompt_tokens);
    assert_eq!(row.settlement.completion_tokens, seen.completion_tokens);
    assert_eq!(row.upstream, format!("http://{}", summariser.addr));
    let chats = rows_of(&store, "chat/completions").await;
    assert_eq!(chats.len(), PAST_CUT);
    assert_eq!(row.caller, chats[0].caller, "the caller pays");
    assert!(row.settlement.cost_nano_usd > Some(0));
    assert_eq!(figure(&weir, "made").await, 1);
    assert_eq!(figure(&weir, "cuts_ready").await, 1);
}

#[tokio::test]
async fn what_stands_stands_after_a_restart_and_in_a_second_process() {
    let folder = Folder::new();
    let path = folder.file("weir.db");
    let open = || Store::open(&path).expect("the file can be written");
    let (model, summariser) = (model().await, summariser(&[]).await);
    let first = weir(&open(), &model, &summariser, |_| {}).await;
    run(&first, "north", 1..=PAST_CUT).await;
    let before = last_messages(&model);
    assert!(tells_summary(&before));
    // All are cold: a second instance, one that may call no model, and one whose summariser is
    // gone.
    let second = weir(&open(), &model, &summariser, |_| {}).await;
    let extract = weir(&open(), &model, &summariser, |config| {
        config.summaries.mode = SummaryMode::Extract;
    })
    .await;
    let gone = Server::start(Options::default()).await.expect("a free port");
    let third = weir(&open(), &model, &gone, |_| {}).await;
    gone.stop().await;
    for (weir, found) in [(&second, "in_store"), (&extract, "in_store"), (&third, "in_store")] {
        let answer = send(weir, "north", PAST_CUT).await;
        assert_eq!(answer.header("x-weir-summary"), Some("kept"));
        assert_eq!(last_messages(&model), before);
        assert_eq!(figure(weir, &format!("records_{found}")).await, 1);
    }
    // The next request extends it, through any instance.
    send(&third, "north", PAST_CUT + 1).await;
    let next = last_messages(&model);
    assert_eq!(next[..before.len()], before[..]);
    assert_eq!(summariser.requests().len(), 1);
}

#[tokio::test]
async fn a_conversation_in_use_asks_again_for_what_stands() {
    let store = Store::in_memory().expect("there is memory");
    let (model, summariser) = (model().await, summariser(&[]).await);
    // Each request outlasts a quarter of the lifetime.
    let weir = weir(&store, &model, &summariser, |config| config.summaries.lifetime_ms = 3).await;
    run(&weir, "north", 1..=PAST_CUT).await;
    let kept =
        || async { figure(&weir, "cuts_kept").await + figure(&weir, "cuts_kept_extract").await };
    let (before, sent) = (kept().await, last_messages(&model));
    for _ in 0..50 {
        send(&weir, "north", PAST_CUT).await;
        assert_eq!(last_messages(&model)[..2], sent[..2]);
    }
    let asked = figure(&weir, "cuts_ready").await + figure(&weir, "cuts_late").await;
    assert!(kept().await + asked > before + 1, "it looks again and again");
}

#[tokio::test]
async fn a_summary_that_comes_late_or_never_moves_nothing() {
    for faults in [["hold_head"], ["status:500"]] {
        let folder = Folder::new();
        let path = folder.file("weir.db");
        let open = || Store::open(&path).expect("the file can be written");
        let (model, summariser) = (model().await, summariser(&faults).await);
        let first = weir(&open(), &model, &summariser, |_| {}).await;
        let mut late = 0;
        for calls in 1..=PAST_CUT {
            let request = chat(HEADERS, body(&conversation("south", calls)));
            let answer = ask(first.address, request).await;
            assert_eq!(answer.status(), 200);
            late += usize::from(answer.header("x-weir-summary") == Some("late"));
        }
        assert_eq!(late, 1, "{faults:?}");
        let before = last_messages(&model);
        assert!(!tells_summary(&before));
        summariser.release();
        settle(&first).await;
        let second = weir(&open(), &model, &summariser, |_| {}).await;
        for weir in [&first, &second] {
            send(weir, "south", PAST_CUT).await;
            assert_eq!(last_messages(&model), before, "{faults:?}");
        }
    }
}

#[tokio::test]
async fn a_summary_that_another_process_made_is_found() {
    let folder = Folder::new();
    let path = folder.file("weir.db");
    let open = || Store::open(&path).expect("the file can be written");
    let (model, summariser) = (model().await, summariser(&[]).await);
    let first = weir(&open(), &model, &summariser, |_| {}).await;
    let mut calls = 1;
    while summariser.requests().is_empty() {
        assert!(calls < PAST_CUT, "a summary is made ahead of the cut");
        send(&first, "west", calls).await;
        calls += 1;
    }
    let second = weir(&open(), &model, &summariser, |_| {}).await;
    let answers = run(&second, "west", calls..=PAST_CUT).await;
    assert!(answers.iter().any(|answer| answer.header("x-weir-summary") == Some("ready")));
    assert_eq!(summariser.requests().len(), 1);
    assert_eq!(figure(&second, "ready_in_store").await, 1);
}

#[tokio::test]
async fn summaries_do_not_grow_by_summing_up_summaries() {
    let place = place(&[], |_| {}).await;
    // Each compaction removes enough to be worth a call.
    for calls in 1..=300 {
        let request = chat(&headers(2 * LIMIT_TOKENS), body(&conversation("east", calls)));
        assert_eq!(ask(place.weir.address, request).await.status(), 200);
        settle(&place.weir).await;
    }
    let calls = place.summariser.requests();
    assert!(calls.len() >= 10, "{} cuts", calls.len());
    for seen in &calls {
        let body = String::from_utf8(seen.body.to_vec()).expect("text");
        assert!(
            !body.contains(SAID_LINE),
            "a summary is made from what was said, not of summaries"
        );
    }
    // Every paid summary is used, except one for a compaction that is still to come.
    let ready = figure(&place.weir, "cuts_ready").await;
    assert!(ready + 1 >= calls.len() as u64, "{ready} of {}", calls.len());
    assert_eq!(figure(&place.weir, "cuts_unfit").await, 0);
    let sent = last_messages(&place.model);
    assert!(tells_summary(&sent));
}

#[tokio::test]
async fn nothing_is_settled_by_who_only_looks() {
    let place = place(&[], |config| config.context.mode = weir::config::Mode::Observe).await;
    let answers = run(&place.weir, "north", 1..=PAST_CUT).await;
    assert!(place.summariser.requests().is_empty());
    assert!(answers.iter().any(|answer| answer.header("x-weir-summary") == Some("late")));
    let plan = conversation("north", PAST_CUT);
    let request = chat(HEADERS, body(&plan)).to_vec();
    let request =
        String::from_utf8(request).expect("text").replace("/v1/chat/completions", "/weir/v1/plan");
    assert_eq!(ask(place.weir.address, request).await.status(), 200);
    assert_eq!(figure(&place.weir, "records_in_store").await, 0);
    assert_eq!(figure(&place.weir, "records_in_memory").await, 0);
}

/// More than the cost of one of these calls, and less than two.
const ONE_CALL: NanoUsd = NanoUsd(500_000);

#[tokio::test]
async fn a_callers_summaries_cost_no_more_than_they_may() {
    let place = place(&[], |config| config.summaries.max_day = ONE_CALL).await;
    run(&place.weir, "north", 1..=PAST_CUT).await;
    assert_eq!(place.summariser.requests().len(), 1, "the first is within");
    run(&place.weir, "south", 1..=PAST_CUT).await;
    assert_eq!(place.summariser.requests().len(), 1, "the next is not");
    assert_eq!(figure(&place.weir, "capped").await, 1);
    let other = HEADERS.replace("sk-caller", "sk-other");
    for calls in 1..=PAST_CUT {
        ask(place.weir.address, chat(&other, body(&conversation("west", calls)))).await;
        settle(&place.weir).await;
    }
    assert_eq!(place.summariser.requests().len(), 2, "another caller has a cap of its own");
}

#[tokio::test]
async fn calls_at_once_cost_no_more_together() {
    let place = place(&["hold_head"], |config| config.summaries.max_day = ONE_CALL).await;
    for name in ["north", "south"] {
        for calls in 1..=PAST_CUT {
            ask(place.weir.address, chat(HEADERS, body(&conversation(name, calls)))).await;
        }
        place.summariser.wait_for(|seen| !seen.is_empty()).await;
    }
    place.summariser.release();
    settle(&place.weir).await;
    assert_eq!(place.summariser.requests().len(), 1);
    assert_eq!(figure(&place.weir, "capped").await, 1);
}

#[tokio::test]
async fn nothing_is_asked_of_a_model_without_a_price_where_there_is_a_cap() {
    let (model, unused) = (model().await, summariser(&[]).await);
    let store = Store::in_memory().expect("there is memory");
    let weir = weir(&store, &model, &unused, |config| {
        config.summaries.model = "same".to_owned();
        config.summaries.url = String::new();
        config.summaries.max_day = NanoUsd(1_000_000_000_000);
    })
    .await;
    for calls in 1..=PAST_CUT {
        let messages = conversation("north", calls);
        let body = json!({"model": "nobody-knows", "messages": messages}).to_string().into_bytes();
        ask(weir.address, chat(HEADERS, body)).await;
        settle(&weir).await;
    }
    assert_eq!(figure(&weir, "calls").await, 0);
    assert!(figure(&weir, "capped").await > 0);
    assert_eq!(model.requests().len(), PAST_CUT);
}

#[tokio::test]
async fn a_clock_in_the_system_message_costs_no_more_calls() {
    let place = place(&[], |_| {}).await;
    let mut looks = Vec::new();
    for calls in 1..=PAST_CUT {
        let mut messages = conversation("north", calls);
        messages[0]["content"] =
            json!(format!("You tend lights. It is {:02} past nine.", calls + 10));
        let answer = ask(place.weir.address, chat(HEADERS, body(&messages))).await;
        settle(&place.weir).await;
        looks.extend(answer.header("x-weir-summary").map(str::to_owned));
    }
    assert_eq!(looks[0], "ready");
    assert!(looks[1..].iter().all(|look| look == "kept"), "{looks:?}");
    assert_eq!(place.summariser.requests().len(), 1);
}

/// Builds the same conversation as `name`'s up to its third call, and a different one from there
/// on.
fn branch(name: &str, calls: usize) -> Vec<Value> {
    let mut messages = conversation(name, calls);
    let other = conversation(&format!("{name} by night"), calls);
    messages.truncate(8);
    messages.extend(other.into_iter().skip(8));
    messages
}

#[tokio::test]
async fn branches_of_one_conversation_have_a_summary_each() {
    let folder = Folder::new();
    let path = folder.file("weir.db");
    let open = || Store::open(&path).expect("the file can be written");
    let (model, summariser) = (model().await, summariser(&[]).await);
    let weirs = [
        weir(&open(), &model, &summariser, |_| {}).await,
        weir(&open(), &model, &summariser, |_| {}).await,
    ];
    let mut looks = [Vec::new(), Vec::new()];
    for calls in 1..=PAST_CUT {
        // Through any instance.
        let weir = &weirs[calls % 2];
        let branches = [conversation("north", calls), branch("north", calls)];
        for (messages, looks) in branches.into_iter().zip(&mut looks) {
            let answer = ask(weir.address, chat(HEADERS, body(&messages))).await;
            settle(weir).await;
            looks.extend(answer.header("x-weir-summary").map(str::to_owned));
        }
    }
    for looks in looks {
        assert_eq!(looks[0], "ready");
    }
    assert_eq!(summariser.requests().len(), 2, "each branch is summed up once");
}

#[tokio::test]
async fn no_more_is_asked_for_than_the_note_has_room_for() {
    // The configured size of a summary, the limit, and whether a call happens: a summary may take a
    // sixth of the removed tokens, if that is worth a call.
    for (summary_tokens, limit_tokens, is_asked) in
        [(100, LIMIT_TOKENS, true), (1500, LIMIT_TOKENS, true), (1500, 900, false)]
    {
        let place = place(&[], |config| config.summaries.summary_tokens = summary_tokens).await;
        for calls in 1..=PAST_CUT {
            ask(
                place.weir.address,
                chat(&headers(limit_tokens), body(&conversation("north", calls))),
            )
            .await;
            settle(&place.weir).await;
        }
        let seen = place.summariser.requests();
        assert_eq!(!seen.is_empty(), is_asked, "{summary_tokens} of {limit_tokens}");
        for seen in seen {
            let body: Value = serde_json::from_slice(&seen.body).expect("JSON");
            let asked = body["max_tokens"].as_u64().expect("a number") / 2;
            assert!((100..=limit_tokens / 6).contains(&asked), "{asked}");
        }
    }
}

#[tokio::test]
async fn a_summary_that_there_is_no_room_for_is_said_to_be_none() {
    let long: String =
        (0..18).map(|line| format!("lantern {line} burns at pier {line}\n")).collect();
    let options = Options { say: Some(long), ..Options::default() };
    let (model, store) = (model().await, Store::in_memory().expect("there is memory"));
    let summariser = Server::start(options).await.expect("a free port");
    let weir =
        weir(&store, &model, &summariser, |config| config.summaries.summary_tokens = 1500).await;
    let mut calls = 1;
    while summariser.requests().is_empty() {
        assert!(calls < PAST_CUT, "a summary is made ahead of the cut");
        send(&weir, "north", calls).await;
        calls += 1;
    }
    // A result arrives that leaves almost no room for a note.
    let mut messages = conversation("north", calls);
    let last = messages.last_mut().expect("a result");
    last["content"] = json!("a lamp burns low\n".repeat(345));
    let cut = ask(weir.address, chat(HEADERS, body(&messages))).await;
    assert_eq!((cut.status(), cut.header("x-weir-summary")), (200, Some("unfit")));
    assert_eq!(cut.header("x-weir-edits"), None);
    assert_eq!((figure(&weir, "cuts_unfit").await, figure(&weir, "cuts_ready").await), (1, 0));
}
