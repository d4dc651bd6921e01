//! Ends of answers: of streams, whose last bytes are the upstream's, and of those whose next round cannot
//! be had or is no longer wanted.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use http::{HeaderMap, Method};
use http_body_util::BodyExt as _;
use hyper::body::Body as _;
use serde_json::{Value, json};
use weir::config::Config;
use weir::proxy::{Admission, Caller, ChatRequest, Proxy, RequestOptions, RequestedModel, Tenant};
use weir::upstream::{Client, Target};
use weir_engine::wire;
use weir_store::Store;

use super::answers::{Made, Protocol, call, said};
use super::{ALICE, NUMBER, Setting, conversation, offers, parsed};
use crate::keys::setting;
use crate::ledger::rows;
use crate::server::harness::{Message, Seen, Upstream, Wire};
use crate::upstream::{capture_log, log_line, log_lines};

/// Head of an answer in chunks.
const HEAD: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

fn chunk(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}

/// Returns the body of an answer.
fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").expect("a head").1
}

fn asks(protocol: Protocol, streams: bool) -> String {
    let own = call("r1", "recall", json!({"messages": [0]}));
    protocol.answer(&Made::calls(&[own], [700, 9]), streams)
}

/// Reads chunks until the text has all that is expected.
async fn read_until(wire: &mut Wire, text: &mut String, has_all: impl Fn(&str) -> bool) {
    while !has_all(text) {
        let chunk = wire.chunk().await.unwrap_or_else(|| panic!("{text} is not all"));
        *text += &String::from_utf8(chunk).expect("text");
    }
}

#[tokio::test]
async fn what_follows_the_last_event_reaches_the_caller_and_the_connection_stays() {
    for protocol in Protocol::ALL {
        for recalls in [false, true] {
            let name = format!("{protocol:?}, recalls: {recalls}");
            let mut setting = Setting::start(offers).await;
            let mut request = protocol.request(&[said("user", "hi")]);
            protocol.stream(&mut request, true);
            let mut wire = Wire::connect(setting.weir.address).await;
            let post = setting::post(protocol.path(), ALICE, request.to_string());
            wire.send(post.clone()).await;
            if recalls {
                setting.upstream.next().await.answer(asks(protocol, true));
            }
            let seen = setting.upstream.next().await;
            let made = protocol.answer(&Made::text("Well.", [700, 9]), true);
            seen.begin(format!("{HEAD}{}", chunk(body(&made))));
            assert!(wire.head().await.is_some_and(|head| head.starts_with("HTTP/1.1 200")));
            let is_over = |text: &str| match protocol {
                Protocol::Chat => text.ends_with("[DONE]\n\n"),
                Protocol::Messages => text.ends_with("\"message_stop\"}\n\n"),
                Protocol::Responses => text.contains("\"response.completed\""),
            };
            let mut text = String::new();
            read_until(&mut wire, &mut text, is_over).await;
            // It comes later, in pieces.
            let tail = "data: [DONE]\n\n: bye\n\nevent: x";
            for piece in ["data: [DO", "NE]\n\n: bye\n\neve", "nt: x"] {
                let before = text.len();
                seen.begin(chunk(piece));
                read_until(&mut wire, &mut text, |text| text.len() >= before + piece.len()).await;
                assert_eq!(&text[before..], piece, "{name}");
            }
            assert!(text.ends_with(tail), "{name}: {text}");
            if !recalls && protocol != Protocol::Responses {
                assert_eq!(text, format!("{}{tail}", body(&made)), "{name}");
            }
            // Its connection serves the next request.
            let connection = seen.connection;
            seen.answer("0\r\n\r\n");
            assert_eq!(wire.chunk().await, None, "{name}");
            wire.send(post).await;
            let seen = setting.upstream.next().await;
            assert_eq!(seen.connection, connection, "{name}");
        }
    }
}

/// Returns the error at the end of a stream.
fn error_of(protocol: Protocol, text: &str) -> Value {
    let (_, event) = text.trim_end().rsplit_once("\n\n").unwrap_or(("", text.trim_end()));
    let data = match protocol {
        Protocol::Chat => event,
        _ => event.strip_prefix("event: error\n").expect("an error"),
    };
    parsed(data.strip_prefix("data: ").expect("data"))
}

#[tokio::test]
async fn an_upstream_that_fails_in_a_later_round_is_reported() {
    for protocol in Protocol::ALL {
        for streams in [false, true] {
            let mut setting = Setting::start(|config| {
                offers(config);
                config.upstream.max_retries = 0;
            })
            .await;
            let mut body = conversation(protocol, &[]);
            protocol.stream(&mut body, streams);
            let refusal = "HTTP/1.1 403 Forbidden\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
            let answers = vec![asks(protocol, streams), refusal.to_owned()];
            let (answer, _) = setting.exchange(protocol, &body, answers).await;
            let text = String::from_utf8(answer.body.clone()).expect("text");
            let message = "The upstream refused to continue this answer (status 403). Send the \
                request again.";
            let (code, error) = ("upstream_closed", error_of);
            let expected = |number: &Value| match protocol {
                Protocol::Chat => json!({"error": {"message": message, "type": "server_error",
                    "param": null, "code": code}}),
                Protocol::Messages => json!({"type": "error",
                    "error": {"type": "api_error", "message": message}}),
                Protocol::Responses => json!({"type": "error", "sequence_number": number,
                    "code": code, "message": message, "param": null}),
            };
            match streams {
                false => assert_eq!((answer.status(), text.as_str()), (403, "{}")),
                true => {
                    let error = error(protocol, &text);
                    assert_eq!(error, expected(&error["sequence_number"]), "{protocol:?}");
                }
            }
            let rows = rows(&setting.store, 2).await;
            assert_eq!(rows[0].settlement.prompt_tokens, Some(700));
        }
    }
}

#[tokio::test]
async fn a_later_round_that_cannot_be_read_is_an_error() {
    let whole = |headers: &str, body: &str| {
        let length = body.len();
        format!("HTTP/1.1 200 OK\r\n{headers}content-length: {length}\r\n\r\n{body}")
    };
    let json = "content-type: application/json\r\n";
    for answer in [
        whole(&format!("{json}content-encoding: br\r\n"), "x"),
        whole("content-type: text/event-stream\r\n", "data: {}\n\n"),
        whole(json, &format!("{{\"a\":\"{}\"}}", "a".repeat(16 << 20))),
    ] {
        let mut setting = Setting::start(offers).await;
        let body = conversation(Protocol::Chat, &[]);
        let answers = vec![asks(Protocol::Chat, false), answer];
        let (answer, _) = setting.exchange(Protocol::Chat, &body, answers).await;
        let message = answer.assert_error(502, "upstream_closed");
        assert!(message.contains("in another form"), "{message}");
        let rows = rows(&setting.store, 2).await;
        let outcomes: Vec<&str> = rows.iter().map(|row| row.settlement.outcome.as_str()).collect();
        assert_eq!(outcomes, ["recalled", "upstream_closed"]);
    }
}

#[tokio::test]
async fn a_kept_conversation_logs_what_it_lacks() {
    capture_log();
    let mut setting = Setting::start(|config| {
        offers(config);
        config.upstream.max_retries = 0;
        config.conversations.enabled = true;
    })
    .await;
    let mut body = Protocol::Chat.request(&[said("user", "hi")]);
    Protocol::Chat.stream(&mut body, true);
    let headers = format!("{ALICE}x-weir-conversation: trip\r\n");
    let refusal = "HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\n{}".to_owned();
    let answers = vec![asks(Protocol::Chat, true), refusal];
    let (answer, _): (Message, _) =
        setting.exchange_with(Protocol::Chat, &headers, &body, answers).await;
    assert!(String::from_utf8_lossy(&answer.body).contains("upstream_closed"));
    let is_kept = |line: &Value| line["target"] == "weir::conversations";
    let lines: Vec<Value> = log_lines().into_iter().filter(is_kept).collect();
    let reasons: Vec<&Value> = lines.iter().map(|line| &line["reason"]).collect();
    assert_eq!(reasons, ["incomplete"], "{lines:?}");
}

/// Returns a request for a stream.
fn request(proxy: &Proxy) -> ChatRequest {
    let mut body = Protocol::Chat.request(&[said("user", "hi")]);
    Protocol::Chat.stream(&mut body, true);
    let body = body.to_string();
    ChatRequest {
        protocol: wire::Protocol::Chat,
        target: Target::map(proxy.base(), "/v1/chat/completions").expect("a known path"),
        method: Method::POST,
        headers: HeaderMap::new(),
        received: body.clone().into(),
        decoded: body.into(),
        caller: Caller::new(Tenant([0; 16]), None),
        admission: Admission::unlimited(),
        permit: Box::new(()),
        options: RequestOptions::default(),
        model: RequestedModel::default(),
        asked: Default::default(),
        recall: None,
    }
}

#[test]
fn no_round_begins_after_the_caller_has_left() {
    // One thread for blocking work, so that the answers to the calls can be held up.
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(1).build().expect("a runtime");
    runtime.block_on(leaving_between_two_rounds());
}

async fn leaving_between_two_rounds() {
    capture_log();
    let mut upstream = Upstream::start().await;
    let mut config = Config::default();
    config.upstream.url = format!("http://{}/v1", upstream.address);
    offers(&mut config);
    let client = Client::new(&config.upstream).expect("a client");
    let store = Store::in_memory().expect("there is memory");
    let proxy = Proxy::new(Arc::new(config), client, store.clone()).expect("there is memory");
    let first =
        "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"It\"}}]}\n\n";
    let begun = async {
        let seen = upstream.next().await;
        seen.begin(HEAD);
        seen.begin(chunk(first));
        seen
    };
    let (response, seen): (_, Seen) = tokio::join!(proxy.handle(request(&proxy)), begun);
    let mut body = Box::pin(response.expect("an answer").into_body());
    let frame = body.frame().await.expect("a frame").expect("a chunk");
    assert_eq!(frame.into_data().expect("data"), first);
    seen.answer(format!("{}0\r\n\r\n", chunk(self::body(&asks(Protocol::Chat, true)))));
    let (release, held) = std::sync::mpsc::channel::<()>();
    let holding = tokio::task::spawn_blocking(move || held.recv());
    // Step by step, until the round is being settled; the answers to its calls cannot follow yet.
    loop {
        let polled = poll_fn(|cx| Poll::Ready(body.as_mut().poll_frame(cx))).await;
        assert!(!matches!(polled, Poll::Ready(None)), "it goes on");
        if proxy.metrics_page().await.contains("weir_resends_total{reason=\"recall\"} 1") {
            break;
        }
        tokio::task::yield_now().await;
    }
    drop(body);
    drop(release);
    assert!(holding.await.expect("it ends").is_err());
    tokio::select! {
        () = proxy.drains().settled() => {}
        _ = upstream.next() => panic!("another round has begun"),
    }
    assert_eq!(rows(&store, 1).await[0].settlement.outcome, "recalled");
    let line = log_line();
    assert_eq!((&line["outcome"], &line["prompt_tokens"]), (&json!("caller_left"), &json!(700)));
}

#[tokio::test]
async fn upstreams_may_give_the_same_ids_again() {
    for protocol in Protocol::ALL {
        let mut setting = Setting::start(offers).await;
        let tools = protocol.tools(&["read"]);
        let own = call("call_0", "read", json!({"path": "a"}));
        let both = [own.clone(), call("call_1", "recall", json!({"messages": [NUMBER]}))];
        let first = vec![protocol.answer(&Made::calls(&both, [700, 9]), false)];
        let mut request = conversation(protocol, &[]);
        request["tools"] = tools.clone();
        setting.exchange(protocol, &request, first).await;
        let mut more = protocol.carried_out(&own, "empty");
        let mut seen = Vec::new();
        for said in ["One.", "Two."] {
            let mut request = conversation(protocol, &more);
            request["tools"] = tools.clone();
            let done = vec![protocol.answer(&Made::text(said, [950, 2]), false)];
            seen.extend(setting.exchange(protocol, &request, done).await.1);
            more.extend(protocol.carried_out(&own, "full"));
        }
        // The call stays in its answer, though the next one has the same IDs.
        super::assert_continues(protocol, &seen[0], &seen[1]);
        assert_eq!(seen[1].matches("\"call_1\"").count(), 2, "{protocol:?}");
    }
}
