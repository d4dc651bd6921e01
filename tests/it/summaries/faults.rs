//! Failures of a summariser or of the store: requests continue, and the failures are reported.

use weir_store::Store;

use super::*;
use crate::upstream::{capture_log, log_lines};

const PAST_CUT: usize = 17;

#[tokio::test]
async fn whatever_the_summariser_does_requests_go_on() {
    for (fault, is_made) in [
        ("none", true),
        ("status:401", false),
        ("status:429:retry-after=1", false),
        ("status:500", false),
        ("reset", false),
        ("close", false),
        ("garbage", false),
        ("empty_200", false),
        ("truncate_after:0", false),
        ("stall_head", false),
        // A good answer with the content type of HTML.
        ("wrong_content_type", true),
        ("half_utf8", true),
    ] {
        let place = place(&[fault], |config| config.summaries.timeout_ms = 300).await;
        let answers = run(&place.weir, "north", 1..=PAST_CUT).await;
        let word = if is_made { "ready" } else { "late" };
        let looks: Vec<_> =
            answers.iter().filter_map(|answer| answer.header("x-weir-summary")).collect();
        assert_eq!(looks, [word], "{fault}");
        assert_eq!(figure(&place.weir, "missed").await, u64::from(!is_made), "{fault}");
        assert_eq!(place.model.requests().len(), PAST_CUT, "{fault}");
    }
}

#[tokio::test]
async fn a_stream_in_place_of_an_answer_is_none() {
    let mut upstream = harness::Upstream::start().await;
    let url = format!("http://{}/v1", upstream.address);
    let place = place(&[], |config| config.summaries.url = url).await;
    tokio::spawn(async move {
        let seen = upstream.next().await;
        let body =
            "data: {\"choices\":[{\"delta\":{\"content\":\"lanterns\"}}]}\n\ndata: [DONE]\n\n";
        seen.answer(format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ));
    });
    run(&place.weir, "north", 1..=PAST_CUT).await;
    assert_eq!(figure(&place.weir, "missed").await, 1);
    assert_eq!(figure(&place.weir, "cuts_late").await, 1);
}

#[tokio::test]
async fn an_endless_answer_is_given_up() {
    let mut upstream = harness::Upstream::start().await;
    let url = format!("http://{}/v1", upstream.address);
    let place = place(&[], |config| config.summaries.url = url).await;
    tokio::spawn(async move {
        let mut seen = upstream.next().await;
        seen.begin("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n");
        for _ in 0..40 {
            seen.begin("x".repeat(64 << 10));
        }
        seen.left().await;
    });
    run(&place.weir, "north", 1..=PAST_CUT).await;
    assert_eq!(figure(&place.weir, "missed").await, 1);
}

#[tokio::test]
async fn a_summariser_that_fails_again_and_again_is_left_alone() {
    let place = place(&["status:500", "garbage", "empty_200"], |config| {
        config.summaries.pause_ms = 3_600_000;
    })
    .await;
    for name in ["a", "b", "c", "d", "e"] {
        run(&place.weir, name, 1..=PAST_CUT).await;
    }
    assert_eq!(place.summariser.requests().len(), 3);
    assert_eq!(figure(&place.weir, "paused").await, 1);
    assert_eq!(figure(&place.weir, "cuts_late").await, 5);
}

#[tokio::test]
async fn after_a_pause_it_is_asked_once_and_then_by_all() {
    let place = place(&["status:500", "status:500", "status:500"], |config| {
        config.summaries.pause_ms = 1;
    })
    .await;
    for name in ["a", "b", "c", "d", "e"] {
        run(&place.weir, name, 1..=PAST_CUT).await;
    }
    assert_eq!(place.summariser.requests().len(), 5);
    assert_eq!(figure(&place.weir, "cuts_ready").await, 2);
}

#[tokio::test]
async fn one_callers_bad_credential_pauses_nobody_else() {
    let options = Options {
        say: Some(SAID.to_owned()),
        require_key: Some("sk-good".to_owned()),
        ..Options::default()
    };
    let model = Server::start(options).await.expect("a free port");
    let unused = summariser(&[]).await;
    let store = Store::in_memory().expect("there is memory");
    let weir = weir(&store, &model, &unused, |config| {
        config.summaries.url = String::new();
        config.summaries.pause_ms = 3_600_000;
    })
    .await;
    for (credential, name, word) in [("sk-bad", "a", None), ("sk-good", "b", Some("ready"))] {
        let headers = HEADERS.replace("sk-caller", credential);
        let mut looks = Vec::new();
        for calls in 1..=PAST_CUT {
            let answer = ask(weir.address, chat(&headers, body(&conversation(name, calls)))).await;
            settle(&weir).await;
            if answer.status() == 200 {
                looks.extend(answer.header("x-weir-summary").map(str::to_owned));
            }
        }
        assert_eq!(looks.last().map(String::as_str), word, "{credential}");
    }
}

#[tokio::test]
async fn one_callers_content_pauses_nobody_else() {
    let mut upstream = harness::Upstream::start().await;
    let url = format!("http://{}/v1", upstream.address);
    let place = place(&[], |config| {
        config.summaries.url = url;
        config.summaries.pause_ms = 3_600_000;
    })
    .await;
    // Refusals by a filter and answers that are far too long are failures of that content only.
    let kept_back = json!({"choices": [{"message": {"content": null, "refusal": "no"}}]});
    let endless: String = (0..2000).map(|line| format!("lantern {line}\n")).collect();
    let answers =
        [kept_back.clone(), json!({"choices": [{"message": {"content": endless}}]}), kept_back];
    let good = json!({"choices": [{"message": {"content": SAID}}]});
    tokio::spawn(async move {
        for answer in answers.into_iter().chain([good]) {
            let answer = answer.to_string();
            upstream.next().await.answer(format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{answer}",
                answer.len()
            ));
        }
    });
    let mut looks = Vec::new();
    for (credential, name) in
        [("sk-one", "a"), ("sk-one", "b"), ("sk-one", "c"), ("sk-one", "d"), ("sk-other", "e")]
    {
        let headers = HEADERS.replace("sk-caller", credential);
        for calls in 1..=PAST_CUT {
            let answer =
                ask(place.weir.address, chat(&headers, body(&conversation(name, calls)))).await;
            settle(&place.weir).await;
            looks.extend(answer.header("x-weir-summary").map(str::to_owned));
        }
    }
    assert_eq!(looks, ["late", "late", "late", "late", "ready"]);
    assert_eq!(figure(&place.weir, "missed").await, 3, "the fourth was not asked for");
    assert_eq!(figure(&place.weir, "paused").await, 1);
}

#[tokio::test]
async fn with_the_store_away_requests_go_on() {
    let folder = crate::folder::Folder::new();
    let path = folder.file("weir.db");
    let store = Store::open(&path).expect("the file can be written");
    let (model, summariser) = (model().await, summariser(&[]).await);
    let weir = weir(&store, &model, &summariser, |config| config.ledger.enabled = false).await;
    run(&weir, "north", 1..=10).await;
    // Another process holds the file and blocks writers.
    let held = rusqlite::Connection::open(&path).expect("it is a file of SQLite's");
    held.execute_batch("BEGIN EXCLUSIVE").expect("nobody writes");
    let answers = run(&weir, "north", 11..=PAST_CUT).await;
    assert!(answers.iter().all(|answer| answer.status() == 200));
    let failed = figure(&weir, "records_failed").await + figure(&weir, "ready_failed").await;
    assert!(failed > 0);
    held.execute_batch("ROLLBACK").expect("it is held");
}

/// Answers of a summariser, and whether each is a summary; otherwise its cause in the log.
#[tokio::test]
async fn only_an_answer_that_ended_by_itself_is_a_summary() {
    for (status, answer, why) in [
        (200, json!({"choices": [{"message": {"content": SAID}, "finish_reason": "stop"}]}), None),
        (
            200,
            json!({"choices": [{"message": {"content": SAID}, "finish_reason": "end_turn"}]}),
            None,
        ),
        (
            200,
            json!({"choices": [{"message": {"content": SAID}, "finish_reason": "length"}]}),
            Some(json!(["unfinished", null, "length"])),
        ),
        (
            200,
            json!({"choices": [{"message": {"content": SAID}, "finish_reason": "content_filter"}]}),
            Some(json!(["unfinished", null, "content_filter"])),
        ),
        (
            200,
            json!({"choices": [{"message": {"content": SAID, "tool_calls": [{}]}, "finish_reason": "tool_calls"}]}),
            Some(json!(["unfinished", null, "tool_calls"])),
        ),
        (
            200,
            json!({"choices": [{"message": {"content": SAID, "refusal": "no"}, "finish_reason": "stop"}]}),
            Some(json!(["unfinished", null, "refusal"])),
        ),
        (
            404,
            json!({"error": {"message": SAID, "code": "model_not_found"}}),
            Some(json!(["refused", 404, "model_not_found"])),
        ),
    ] {
        capture_log();
        let mut upstream = harness::Upstream::start().await;
        let url = format!("http://{}/v1", upstream.address);
        let place = place(&[], |config| config.summaries.url = url).await;
        let said = answer.to_string();
        tokio::spawn(async move {
            upstream.next().await.answer(whole(status, &said));
        });
        let answers = run(&place.weir, "north", 1..=PAST_CUT).await;
        let word = if why.is_none() { "ready" } else { "late" };
        let looks: Vec<_> =
            answers.iter().filter_map(|answer| answer.header("x-weir-summary")).collect();
        assert_eq!(looks, [word], "{answer}");
        let mut lines = log_lines();
        lines.retain(|line| line["event"] == "summary_missing");
        let logged = lines.first().map(|line| json!([line["why"], line["status"], line["cause"]]));
        assert_eq!(logged, why, "{answer}");
    }
}

fn whole(status: u16, body: &str) -> String {
    format!(
        "HTTP/1.1 {status} Said\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[tokio::test]
async fn the_name_of_the_output_limit_is_learned_from_a_refusal() {
    let mut upstream = harness::Upstream::start().await;
    let url = format!("http://{}/v1", upstream.address);
    let place = place(&[], |config| {
        config.summaries.url = url;
        config.summaries.model = "some-model".to_owned();
        config.summaries.reasoning_tokens = 500;
        config.summaries.reasoning_effort = "low".to_owned();
    })
    .await;
    let refusal = r#"{"error":{"message":"Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."}}"#;
    let good = json!({"choices": [{"message": {"content": SAID}}]}).to_string();
    let (sender, mut bodies) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        for answer in [whole(400, refusal), whole(200, &good), whole(200, &good)] {
            let seen = upstream.next().await;
            let _ = sender.send(seen.body.clone());
            seen.answer(&answer);
        }
    });
    for name in ["north", "south"] {
        run(&place.weir, name, 1..=PAST_CUT).await;
    }
    assert_eq!(figure(&place.weir, "missed").await, 0);
    for names in [
        ["max_tokens", "max_completion_tokens"],
        ["max_completion_tokens", "max_tokens"],
        ["max_completion_tokens", "max_tokens"],
    ] {
        let body: Value =
            serde_json::from_slice(&bodies.recv().await.expect("a call")).expect("JSON");
        assert!(
            body[names[0]].as_u64().is_some_and(|tokens| (600..=1200).contains(&tokens)),
            "{body}"
        );
        assert_eq!(body.get(names[1]), None, "{body}");
        assert_eq!(body["reasoning_effort"], "low");
    }
}
