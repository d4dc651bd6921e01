//! Limits of the server, each exactly reached and exceeded by one; and the release of everything
//! reserved.

use super::harness::{FINE, Upstream, Wire, ask, ask_until, bare, body_of, chat, start};

const MAX_BYTES: usize = 1000;

/// Builds the head of a chat request that sends its body only after `100 Continue`.
fn expecting(length: usize) -> String {
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\n\
         content-length: {length}\r\n\r\n"
    )
}

fn chunked(body: &str, chunk_bytes: usize) -> String {
    let mut request = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n\
                       transfer-encoding: chunked\r\n\r\n"
        .to_owned();
    for chunk in body.as_bytes().chunks(chunk_bytes) {
        let text = std::str::from_utf8(chunk).expect("ASCII");
        request.push_str(&format!("{:x}\r\n{text}\r\n", chunk.len()));
    }
    request.push_str("0\r\n\r\n");
    request
}

#[tokio::test]
async fn a_body_may_be_as_large_as_the_limit() {
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, |config| {
        config.server.max_body_bytes = MAX_BYTES;
    })
    .await;
    let body = body_of(MAX_BYTES);
    let rows = [
        chat("", &body),
        chunked(&body, MAX_BYTES).into_bytes(),
        chunked(&body, 7).into_bytes(),
        chunked(&body, 1).into_bytes(),
    ];
    for request in rows {
        let mut wire = Wire::connect(weir.address).await;
        wire.send(request).await;
        let seen = upstream.next().await;
        assert_eq!(seen.body, body.as_bytes());
        seen.answer(FINE);
        assert_eq!(wire.message().await.expect("an answer").status(), 200);
    }
}

#[tokio::test]
async fn a_larger_body_is_refused() {
    let weir = start("127.0.0.1:1", |config| {
        config.server.max_body_bytes = MAX_BYTES;
    })
    .await;
    let body = body_of(MAX_BYTES + 1);
    // Refused by the declared length, before any of the body arrives.
    let head =
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1001\r\n\r\n";
    let message = ask(weir.address, head).await.assert_error(413, "body_too_large");
    assert!(message.contains("1000 bytes"), "{message}");
    // Refused by the received length, if none is declared.
    for chunk_bytes in [1, 7, MAX_BYTES + 1] {
        ask(weir.address, chunked(&body, chunk_bytes)).await.assert_error(413, "body_too_large");
    }
    let absurd = head.replace("1001", "9223372036854775807");
    ask(weir.address, absurd).await.assert_error(413, "body_too_large");
}

#[tokio::test]
async fn a_caller_that_goes_on_sending_still_reads_its_refusal() {
    let weir = start("127.0.0.1:1", |config| {
        config.server.max_body_bytes = 1 << 20;
    })
    .await;
    let mut wire = Wire::connect(weir.address).await;
    wire.send(chat("", body_of((1 << 20) + (1 << 19)))).await;
    let answer = wire.message().await.expect("an answer");
    answer.assert_error(413, "body_too_large");
    // The whole body was read, so that the connection serves the next request.
    assert_eq!(wire.ask(bare("GET", "/", "")).await.status(), 200);
}

#[tokio::test]
async fn a_caller_that_asks_first_is_told_to_go_on() {
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, |_| {}).await;
    let body = body_of(300);
    let mut wire = Wire::connect(weir.address).await;
    wire.send(expecting(300)).await;
    let interim = wire.head().await.expect("an interim answer");
    assert!(interim.starts_with("HTTP/1.1 100"), "{interim}");
    wire.send(&body).await;
    let seen = upstream.next().await;
    assert_eq!(seen.body, body.as_bytes());
    assert!(!seen.head.contains("expect"), "{}", seen.head);
    seen.answer(FINE);
    assert_eq!(wire.message().await.expect("an answer").status(), 200);
}

#[tokio::test]
async fn a_caller_that_asks_first_is_refused_before_it_sends() {
    let weir = start("127.0.0.1:1", |config| {
        config.server.max_body_bytes = MAX_BYTES;
    })
    .await;
    let rows = [
        (expecting(MAX_BYTES + 1), 413, "body_too_large"),
        (expecting(10).replace("host: localhost", "host: evil.example"), 403, "host_not_allowed"),
        (
            expecting(10).replace("expect:", "content-encoding: br\r\nexpect:"),
            415,
            "unsupported_encoding",
        ),
    ];
    for (request, status, code) in rows {
        let mut wire = Wire::connect(weir.address).await;
        wire.ask(request).await.assert_error(status, code);
        wire.assert_ends().await;
    }
}

#[tokio::test]
async fn bodies_in_flight_are_bounded_together() {
    let upstream = Upstream::always(FINE).await;
    let weir = start(&upstream, |config| {
        config.server.max_bodies_in_flight_bytes = MAX_BYTES;
    })
    .await;
    let body = body_of(801);
    let mut first = Wire::connect(weir.address).await;
    first.send(expecting(801)).await;
    assert!(first.head().await.expect("interim").contains("100"));
    first.send(&body[..800]).await;

    let second = chat("", body_of(201));
    // The first request's bytes are counted asynchronously.
    let answer = loop {
        let answer = ask(weir.address, &second).await;
        if answer.status() != 200 {
            break answer;
        }
    };
    answer.assert_error(503, "overloaded");
    assert_eq!(answer.header("retry-after"), Some("1"));
    let chunks = ask(weir.address, chunked(&body_of(201), 50)).await;
    chunks.assert_error(503, "overloaded");
    let fits = ask(weir.address, chat("", body_of(200))).await;
    assert_eq!(fits.status(), 200);

    first.send(&body[800..]).await;
    assert_eq!(first.message().await.expect("an answer").status(), 200);
    assert_eq!(ask(weir.address, &second).await.status(), 200);
}

#[tokio::test]
async fn bodies_that_are_announced_and_not_sent_take_no_room() {
    let upstream = Upstream::always(FINE).await;
    let weir = start(&upstream, |config| {
        config.server.max_body_bytes = MAX_BYTES;
        config.server.max_bodies_in_flight_bytes = MAX_BYTES;
    })
    .await;
    let mut idle = Vec::new();
    for _ in 0..20 {
        let mut wire = Wire::connect(weir.address).await;
        wire.send(expecting(MAX_BYTES)).await;
        assert!(wire.head().await.expect("an interim answer").contains("100"));
        idle.push(wire);
    }
    assert_eq!(ask(weir.address, chat("", body_of(200))).await.status(), 200);
    drop(idle);
}

#[tokio::test]
async fn a_body_that_finds_no_room_is_refused_before_it_is_sent() {
    let weir = start("127.0.0.1:1", |config| {
        config.server.max_bodies_in_flight_bytes = MAX_BYTES;
    })
    .await;
    let mut wire = Wire::connect(weir.address).await;
    wire.ask(expecting(MAX_BYTES + 1)).await.assert_error(503, "overloaded");
    wire.assert_ends().await;
}

#[tokio::test]
async fn a_caller_that_leaves_gives_its_room_back() {
    let upstream = Upstream::always(FINE).await;
    let weir = start(&upstream, |config| {
        config.server.max_bodies_in_flight_bytes = MAX_BYTES;
    })
    .await;
    let mut first = Wire::connect(weir.address).await;
    first.send(expecting(MAX_BYTES)).await;
    assert!(first.head().await.expect("interim").contains("100"));
    first.send(&body_of(MAX_BYTES)[..MAX_BYTES - 1]).await;
    let second = chat("", body_of(100));
    ask_until(weir.address, &second, 503).await;
    drop(first);
    // The server notices the end asynchronously.
    ask_until(weir.address, &second, 200).await;
}

#[tokio::test]
async fn one_caller_holds_at_most_half_of_the_bodies_while_others_hold_any() {
    let upstream = Upstream::always(FINE).await;
    let weir = start(&upstream, |config| {
        config.server.max_bodies_in_flight_bytes = 4 * MAX_BYTES;
    })
    .await;
    let one = "authorization: Bearer sk-one\r\n";
    // All of a body but its last byte.
    let held = async |headers: &str, bytes: usize| {
        let mut wire = Wire::connect(weir.address).await;
        let head = expecting(bytes).replace("expect:", &format!("{headers}expect:"));
        wire.send(head).await;
        assert!(wire.head().await.expect("interim").contains("100"));
        wire.send(&body_of(bytes)[..bytes - 1]).await;
        wire
    };
    let _own = held(one, 2 * MAX_BYTES).await;
    // Alone, it may hold more than half.
    ask_until(weir.address, chat(one, body_of(100)), 200).await;
    let other = held("authorization: Bearer sk-other\r\n", MAX_BYTES).await;
    ask_until(weir.address, chat(one, body_of(100)), 503).await;
    assert_eq!(ask(weir.address, chat("", body_of(100))).await.status(), 200);
    drop(other);
    ask_until(weir.address, chat(one, body_of(100)), 200).await;
}

#[tokio::test]
async fn the_head_of_a_request_is_bounded() {
    let weir = start("127.0.0.1:1", |config| {
        config.server.max_header_bytes = 8192;
    })
    .await;
    let rows = [
        (format!("x-filler: {}\r\n", "a".repeat(8000)), 200),
        (format!("x-filler: {}\r\n", "a".repeat(8192)), 431),
        ("x-one: 1\r\n".repeat(95), 200),
        ("x-one: 1\r\n".repeat(96), 431),
    ];
    for (headers, expected) in rows {
        let answer = ask(weir.address, bare("GET", "/", &headers)).await;
        assert_eq!(answer.status(), expected, "{} bytes", headers.len());
    }
}

#[tokio::test]
async fn a_connection_past_the_cap_is_told_so() {
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, |config| {
        config.server.max_connections = 1;
    })
    .await;
    let mut first = Wire::connect(weir.address).await;
    first.send(chat("", body_of(100))).await;
    let seen = upstream.next().await;

    let mut second = Wire::connect(weir.address).await;
    let answer = second.ask(chat("", body_of(100))).await;
    answer.assert_error(503, "overloaded");
    assert_eq!(answer.header("retry-after"), Some("1"));
    second.assert_ends().await;
    // Health checks are still answered.
    let health = ask(weir.address, bare("GET", "/healthz", "")).await;
    assert_eq!(health.status(), 200);

    seen.answer(FINE);
    assert_eq!(first.message().await.expect("an answer").status(), 200);
    drop(first);
    ask_until(weir.address, bare("GET", "/", ""), 200).await;
}

#[tokio::test]
async fn a_connection_between_requests_gives_way() {
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, |config| {
        config.server.max_connections = 2;
    })
    .await;
    let mut busy = Wire::connect(weir.address).await;
    busy.send(chat("", body_of(100))).await;
    let seen = upstream.next().await;
    let mut idle = Wire::connect(weir.address).await;
    assert_eq!(idle.ask(bare("GET", "/healthz", "")).await.status(), 200);
    // More than may wait to be turned away.
    for _ in 0..100 {
        let mut next = Wire::connect(weir.address).await;
        assert_eq!(next.ask(bare("GET", "/", "")).await.status(), 200);
        idle.assert_ends().await;
        idle = next;
    }
    seen.answer(FINE);
    assert_eq!(busy.message().await.expect("an answer").status(), 200);
}

#[tokio::test]
async fn connections_that_do_not_say_what_they_want_are_closed() {
    let weir = start("127.0.0.1:1", |config| {
        config.server.header_timeout_ms = 20;
    })
    .await;
    // Nothing; the beginning of HTTP/2's preface, and of POST; half a head; half a second head.
    for begun in ["", "P", "GET / HTTP/1.1\r\nhost: local"] {
        let mut wire = Wire::connect(weir.address).await;
        wire.send(begun).await;
        wire.assert_ends().await;
    }
    let mut wire = Wire::connect(weir.address).await;
    assert_eq!(wire.ask(bare("GET", "/", "")).await.status(), 200);
    wire.send("GET / HTT").await;
    wire.assert_ends().await;
}

#[tokio::test]
async fn a_body_that_stops_coming_is_given_up() {
    let weir = start("127.0.0.1:1", |config| {
        config.server.body_idle_timeout_ms = 20;
    })
    .await;
    let request = chat("", body_of(300));
    let answer = ask(weir.address, &request[..request.len() - 1]).await;
    let message = answer.assert_error(408, "body_timeout");
    assert!(message.contains("server.body_timeouts_ms.idle"), "{message}");
}

#[tokio::test]
async fn a_body_that_never_ends_is_given_up_however_it_comes() {
    let weir = start("127.0.0.1:1", |config| {
        config.server.body_timeout_ms = 20;
    })
    .await;
    let request = chat("", body_of(300));
    let answer = ask(weir.address, &request[..request.len() - 1]).await;
    let message = answer.assert_error(408, "body_timeout");
    assert!(message.contains("server.body_timeouts_ms.total"), "{message}");
}

#[tokio::test]
async fn the_most_headers_still_fit_with_those_that_weir_adds() {
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, |_| {}).await;
    // Host and length are headers, too.
    let request = chat(&"x-one: 1\r\n".repeat(94), body_of(100));
    let (answer, sent) = tokio::join!(ask(weir.address, request), async {
        let seen = upstream.next().await;
        let headers = seen.head.lines().filter(|line| line.contains(':')).count();
        seen.answer(FINE);
        headers
    });
    assert_eq!(answer.status(), 200);
    assert!((96..=100).contains(&sent), "{sent}");
}

#[tokio::test]
async fn a_malformed_chunk_or_trailer_is_named() {
    let weir = start("127.0.0.1:1", |_| {}).await;
    let whole = chunked(&body_of(100), 50);
    let begun = whole.strip_suffix("0\r\n\r\n").expect("its end");
    for end in ["zz\r\n", "1\r\naaa\r\n", "0\r\n: no name\r\n\r\n"] {
        let answer = ask(weir.address, format!("{begun}{end}")).await;
        let message = answer.assert_error(400, "invalid_request");
        assert!(message.contains("an invalid chunk or trailer"), "{end:?} {message}");
    }
}

#[tokio::test]
async fn headers_that_servers_read_differently_are_refused() {
    let weir = start("127.0.0.1:1", |_| {}).await;
    for path in ["/healthz", "/", "/v1/models"] {
        let answer = ask(weir.address, bare("GET", path, "host: localhost\r\n")).await;
        let message = answer.assert_error(400, "invalid_request");
        assert!(message.contains("more than one Host"), "{path} {message}");
    }
    for encoding in ["chunked, chunked", "gzip, chunked", "chunked\r\ntransfer-encoding: chunked"] {
        let request = chunked(&body_of(100), 50).replace(": chunked", &format!(": {encoding}"));
        let message = ask(weir.address, request).await.assert_error(400, "invalid_request");
        assert!(message.contains("Transfer-Encoding"), "{encoding} {message}");
    }
}
