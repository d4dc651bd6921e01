//! Requests that weir admits, and those that it answers itself.

use std::net::SocketAddr;

use http_body_util::BodyExt;

use super::harness::{FINE, Upstream, Wire, ask, bare, body_of, chat, start};

#[tokio::test]
async fn only_known_host_names_are_answered_to() {
    let upstream = Upstream::always(FINE).await;
    let weir = start(&upstream, |config| {
        config.server.allowed_hosts = vec!["Weir.Example".into()];
    })
    .await;
    let rows = [
        ("localhost", 200),
        ("LOCALHOST:1", 200),
        ("localhost.:8400", 200),
        ("app.localhost", 200),
        ("127.0.0.1:8400", 200),
        ("127.3.2.1", 200),
        ("[::1]:8400", 200),
        ("weir.example.", 200),
        ("WEIR.example:80", 200),
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("10.0.0.1", 403),
        ("0.0.0.0", 403),
        ("[::2]", 403),
        ("user@localhost", 400),
        ("", 400),
        ("a b", 400),
    ];
    for (host, expected) in rows {
        for path in ["/", "/v1/models"] {
            let request = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n");
            let answer = ask(weir.address, request).await;
            assert_eq!(answer.status(), expected, "{host} {path}");
            if expected == 403 {
                let message = answer.assert_error(403, "host_not_allowed");
                assert!(message.contains("server.allowed_hosts"), "{message}");
            }
        }
    }
}

#[tokio::test]
async fn a_request_has_one_host() {
    let upstream = Upstream::always(FINE).await;
    let weir = start(&upstream, |_| {}).await;
    let rows = [
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n\r\n", 400),
        ("GET / HTTP/1.0\r\n\r\n", 200),
        ("GET / HTTP/1.0\r\nhost: evil.example\r\n\r\n", 403),
        ("GET http://localhost/ HTTP/1.1\r\nhost: localhost\r\n\r\n", 200),
        ("GET http://evil.example/ HTTP/1.1\r\nhost: localhost\r\n\r\n", 403),
        ("GET http://localhost/ HTTP/1.1\r\nhost: evil.example\r\n\r\n", 403),
    ];
    for (request, expected) in rows {
        assert_eq!(ask(weir.address, request).await.status(), expected, "{request}");
    }
}

#[tokio::test]
async fn web_pages_are_served_only_if_allowed() {
    let upstream = Upstream::always(FINE).await;
    let weir = start(&upstream, |config| {
        config.cors.allow_origins = vec!["https://app.example".into()];
    })
    .await;
    for origin in ["https://evil.example", "null", "http://app.example", "http://localhost"] {
        let request = chat(&format!("origin: {origin}\r\n"), body_of(100));
        let answer = ask(weir.address, request).await;
        answer.assert_error(403, "origin_not_allowed");
        assert_eq!(answer.header("access-control-allow-origin"), None);
    }

    let allowed = "origin: https://app.example\r\n";
    let answer = ask(weir.address, chat(allowed, body_of(100))).await;
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.header("access-control-allow-origin"), Some("https://app.example"));
    assert_eq!(answer.header("access-control-expose-headers"), Some("*"));
    assert_eq!(answer.header("vary"), Some("origin"));

    let lost = ask(weir.address, bare("GET", "/nowhere", allowed)).await;
    lost.assert_error(404, "not_found");
    assert_eq!(lost.header("access-control-allow-origin"), Some("https://app.example"));
}

#[tokio::test]
async fn a_preflight_is_answered_without_the_upstream() {
    let weir = start("127.0.0.1:1", |config| {
        config.cors.allow_origins = vec!["https://app.example".into()];
    })
    .await;
    let asked = "access-control-request-method: POST\r\n\
                 access-control-request-headers: authorization,content-type\r\n\
                 access-control-request-private-network: true\r\n";
    let allowed = format!("origin: https://app.example\r\n{asked}");
    let answer = ask(weir.address, bare("OPTIONS", "/v1/chat/completions", &allowed)).await;
    assert_eq!(answer.status(), 204);
    let expected = [
        ("access-control-allow-origin", "https://app.example"),
        ("access-control-allow-methods", "POST"),
        ("access-control-allow-headers", "authorization,content-type"),
        ("access-control-allow-private-network", "true"),
        ("vary", "origin"),
    ];
    for (name, value) in expected {
        assert_eq!(answer.header(name), Some(value), "{name}");
    }

    let refused = format!("origin: https://evil.example\r\n{asked}");
    ask(weir.address, bare("OPTIONS", "/v1/chat/completions", &refused))
        .await
        .assert_error(403, "origin_not_allowed");
}

#[tokio::test]
async fn health_is_told_under_any_name() {
    let weir = start("127.0.0.1:1", |_| {}).await;
    for path in ["/healthz", "/readyz"] {
        for method in ["GET", "HEAD"] {
            let request = format!("{method} {path} HTTP/1.1\r\nhost: pod-7.cluster\r\n\r\n");
            let mut wire = Wire::connect(weir.address).await;
            wire.send(request).await;
            let head = wire.head().await.expect("an answer");
            assert!(head.starts_with("HTTP/1.1 200"), "{method} {path}");
        }
    }
}

#[tokio::test]
async fn weir_says_what_it_is_and_what_it_is_not() {
    let weir = start("127.0.0.1:1", |_| {}).await;
    let about = ask(weir.address, bare("GET", "/", "")).await;
    assert_eq!(about.status(), 200);
    assert!(String::from_utf8_lossy(&about.body).contains("base_url"));
    let mut wire = Wire::connect(weir.address).await;
    wire.send(bare("HEAD", "/", "")).await;
    let head = wire.head().await.expect("an answer");
    assert!(head.starts_with("HTTP/1.1 200"));

    for path in ["/weir", "/weir/stats", "/nowhere", "/favicon.ico"] {
        let message = ask(weir.address, bare("GET", path, "")).await.assert_error(404, "not_found");
        assert!(message.contains("/v1/"), "{message}");
    }
    ask(weir.address, bare("POST", "/", "content-length: 0\r\n"))
        .await
        .assert_error(404, "not_found");
}

#[tokio::test]
async fn upgrades_are_refused_but_for_offers_of_http2() {
    let upstream = Upstream::always(FINE).await;
    let weir = start(&upstream, |_| {}).await;
    let websocket = "connection: upgrade\r\nupgrade: websocket\r\n\
                     sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n";
    let message = ask(weir.address, bare("GET", "/v1/realtime?model=m", websocket))
        .await
        .assert_error(426, "upgrade_not_supported");
    assert!(message.contains("WebSockets"), "{message}");

    let tunnel = "CONNECT localhost:443 HTTP/1.1\r\nhost: localhost:443\r\n\r\n";
    ask(weir.address, tunnel).await.assert_error(405, "method_not_allowed");

    let offer =
        "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n";
    let answer = ask(weir.address, chat(offer, body_of(100))).await;
    assert_eq!(answer.status(), 200);
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, |_| {}).await;
    let mut wire = Wire::connect(weir.address).await;
    let requests = [
        chat("", body_of(200)),
        bare("GET", "/healthz", "").into_bytes(),
        bare("GET", "/nowhere", "").into_bytes(),
    ];
    wire.send(requests.concat()).await;
    let seen = upstream.next().await;
    assert_eq!(seen.body, body_of(200).as_bytes());
    seen.answer(FINE);
    let statuses = [
        wire.message().await.expect("the first").status(),
        wire.message().await.expect("the second").status(),
        wire.message().await.expect("the third").status(),
    ];
    assert_eq!(statuses, [200, 200, 404]);
}

#[tokio::test]
async fn other_routes_pass_through() {
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, |_| {}).await;
    for (method, path) in [
        ("GET", "/v1/chat/completions"),
        ("DELETE", "/v1/files/file-1"),
        ("OPTIONS", "/v1/models"),
        ("PUT", "/v1/anything%20at?all=1"),
    ] {
        let mut wire = Wire::connect(weir.address).await;
        wire.send(bare(method, path, "")).await;
        let seen = upstream.next().await;
        assert!(seen.head.starts_with(&format!("{method} {path} HTTP/1.1\r\n")), "{}", seen.head);
        seen.answer("HTTP/1.1 418 Odd\r\nx-own: 1\r\ncontent-length: 4\r\n\r\nodd!");
        let answer = wire.message().await.expect("an answer");
        assert_eq!(answer.status(), 418);
        assert_eq!(answer.header("x-own"), Some("1"));
        assert_eq!(answer.header("x-weir-error"), None);
        assert_eq!(answer.body, b"odd!");
    }
}

/// TRACE and its like return the request's headers, with the provider key that weir adds.
#[tokio::test]
async fn methods_that_echo_are_refused() {
    let upstream = Upstream::always(FINE).await;
    let weir = start(&upstream, |_| {}).await;
    for method in ["TRACE", "TRACK", "DEBUG", "PURGE", "get"] {
        for path in ["/v1/models", "/v1/chat/completions"] {
            let answer = ask(weir.address, bare(method, path, "")).await;
            assert_eq!(answer.status(), 405, "{method} {path}");
        }
    }
}

#[tokio::test]
async fn nothing_of_an_upstream_passes_for_weirs_own() {
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, |_| {}).await;
    for (method, path) in [("GET", "/v1/files"), ("POST", "/v1/chat/completions")] {
        let mut wire = Wire::connect(weir.address).await;
        let request = match method {
            "GET" => bare(method, path, "").into_bytes(),
            _ => chat("", body_of(100)),
        };
        wire.send(request).await;
        upstream.next().await.answer(
            "HTTP/1.1 200 OK\r\nx-weir-error: budget_exhausted\r\nx-weir-other: 1\r\n\
             set-cookie: weir_session_8410=stolen; Path=/\r\nset-cookie: a=1\r\n\
             set-cookie:  WEIR_x=2\r\nset-cookie: b=weir_2\r\ncontent-length: 2\r\n\r\n[]",
        );
        let answer = wire.message().await.expect("an answer");
        assert_eq!(answer.status(), 200, "{path}");
        for name in ["x-weir-error", "x-weir-other"] {
            assert_eq!(answer.header(name), None, "{path} {name}");
        }
        let head = answer.head.to_lowercase();
        assert!(!head.contains("weir_session") && !head.contains("weir_x"), "{head}");
        assert!(
            head.contains("set-cookie: a=1") && head.contains("set-cookie: b=weir_2"),
            "{head}"
        );
    }
}

#[tokio::test]
async fn an_answer_that_switches_protocols_is_none() {
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, |_| {}).await;
    for path in ["/v1/files", "/v1/models/x"] {
        let mut wire = Wire::connect(weir.address).await;
        wire.send(bare("GET", path, "")).await;
        upstream.next().await.answer(
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\nforeign",
        );
        assert_eq!(wire.message().await.expect("an answer").status(), 502, "{path}");
    }
}

/// They may name users and accounts.
#[tokio::test]
async fn baggage_and_trace_state_go_to_upstreams_that_are_to_get_them() {
    for is_wanted in [false, true] {
        let mut upstream = Upstream::start().await;
        let weir = start(&upstream.address, |config| {
            config.upstream.forward_trace_headers = is_wanted;
        })
        .await;
        let headers = "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n\
                       tracestate: vendor=1\r\nbaggage: user=ann\r\n";
        for request in [bare("GET", "/v1/files", headers).into_bytes(), chat(headers, body_of(100))]
        {
            let mut wire = Wire::connect(weir.address).await;
            wire.send(request).await;
            let seen = upstream.next().await;
            let head = seen.head.to_lowercase();
            assert!(head.contains("traceparent:"), "{head}");
            for name in ["tracestate:", "baggage:"] {
                assert_eq!(head.contains(name), is_wanted, "{name} in {head}");
            }
            seen.answer(FINE);
            wire.message().await.expect("an answer");
        }
    }
}

/// A link, an image or a script of another site has no origin.
#[tokio::test]
async fn what_a_browser_fetches_for_another_site_is_refused() {
    let upstream = Upstream::always(FINE).await;
    let weir = start(&upstream, |_| {}).await;
    for (site, expected) in [("cross-site", 403), ("same-origin", 200), ("none", 200)] {
        for request in [
            bare("GET", "/v1/files", &format!("sec-fetch-site: {site}\r\n")).into_bytes(),
            chat(&format!("sec-fetch-site: {site}\r\n"), body_of(100)),
        ] {
            let answer = ask(weir.address, request).await;
            assert_eq!(answer.status(), expected, "{site}");
        }
    }
}

#[tokio::test]
async fn cleartext_http2_is_spoken_with_the_same_checks() {
    let upstream = Upstream::always(FINE).await;
    let weir = start(&upstream, |config| {
        config.server.max_body_bytes = 1000;
    })
    .await;
    let client = http2_client(weir.address);
    let base = format!("http://localhost:{}", weir.address.port());

    let health = client.get(format!("{base}/healthz")).send().await;
    let health = health.expect("an answer");
    assert_eq!(health.version(), http::Version::HTTP_2);
    assert_eq!(health.status(), 200);

    let chat = |bytes: usize| {
        client.post(format!("{base}/v1/chat/completions")).body(body_of(bytes)).send()
    };
    assert_eq!(chat(1000).await.expect("an answer").status(), 200);
    assert_eq!(chat(1001).await.expect("an answer").status(), 413);

    let elsewhere = format!("http://evil.example:{}/v1/models", weir.address.port());
    let refused = client.get(elsewhere).send().await.expect("an answer");
    assert_eq!(refused.status(), 403);
    assert_eq!(refused.headers()["x-weir-error"], "host_not_allowed");
}

#[tokio::test]
async fn trailers_of_an_upstream_go_to_nobody() {
    let upstream = Upstream::always(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n\
         2\r\n{}\r\n0\r\nx-weir-error: forged\r\nx-sum: 1\r\n\r\n",
    )
    .await;
    let weir = start(&upstream, |_| {}).await;
    let client = http2_client(weir.address);
    let base = format!("http://localhost:{}/v1", weir.address.port());
    for path in ["chat/completions", "files"] {
        let asked = client.post(format!("{base}/{path}")).body(body_of(100)).send().await;
        let answer: http::Response<reqwest::Body> = asked.expect("an answer").into();
        let whole = answer.into_body().collect().await.expect("a whole answer");
        assert_eq!(whole.trailers(), None, "{path}");
        assert_eq!(&whole.to_bytes()[..], b"{}", "{path}");
    }
}

fn http2_client(address: SocketAddr) -> reqwest::Client {
    weir::upstream::install_tls_provider();
    reqwest::Client::builder()
        .no_proxy()
        .http2_prior_knowledge()
        .resolve("localhost", address)
        .resolve("evil.example", address)
        .build()
        .expect("a client")
}

#[tokio::test]
async fn what_weir_itself_reads_is_refused_with_the_value_and_what_is_allowed() {
    let weir = start("127.0.0.1:1", |_| {}).await;
    for value in ["some", "0", "99999999999999999999", "+5"] {
        let header = format!("x-weir-max-input-tokens: {value}\r\n");
        let answer = ask(weir.address, chat(&header, body_of(100))).await;
        let message = answer.assert_error(400, "invalid_request");
        let whole = format!("is \"{value}\", but must be a whole number from 1 to ");
        assert!(message.contains(&whole), "{message}");
    }
    for (body, said) in [
        ("[1,2]", "cannot be read as a JSON object: it is an array."),
        (r#"{"messages":{}}"#, "'messages' has the wrong type"),
    ] {
        let message = ask(weir.address, chat("", body)).await.assert_error(400, "invalid_request");
        assert!(message.contains(said), "{message}");
    }
}

#[tokio::test]
async fn a_pin_that_pins_nothing_is_refused() {
    let upstream = Upstream::always(FINE).await;
    let weir = start(&upstream, |_| {}).await;
    let text = r#"{"type":"text","text":"a"}"#;
    let result = r#"{"type":"tool_result","tool_use_id":"t","content":"a"}"#;
    let bodies = [
        ("chat/completions", r#"{"messages":[{"role":"user","content":"a"WEIR}]}"#.to_owned()),
        ("responses", r#"{"input":[{"role":"user","content":"a"WEIR}]}"#.to_owned()),
        ("messages", r#"{"messages":[{"role":"user","content":"a"WEIR}]}"#.to_owned()),
        (
            "messages",
            format!(
                r#"{{"messages":[{{"role":"user","content":[{}WEIR}},{text}]}}]}}"#,
                &result[..result.len() - 1]
            ),
        ),
    ];
    for (path, body) in bodies {
        for (pin, is_allowed) in [
            ("5", false),
            (r#"{"pin":"yes"}"#, false),
            (r#"{"pim":true}"#, false),
            (r#"{"pin":true,"pin":false}"#, false),
            ("[]", false),
            (r#"{"pin":true}"#, true),
            (r#"{"pin":false}"#, true),
            ("null", true),
        ] {
            let body = body.replace("WEIR", &format!(r#","weir":{pin}"#));
            let request = chat("", &body);
            let request =
                String::from_utf8(request).expect("text").replace("chat/completions", path);
            let answer = ask(weir.address, request).await;
            assert_eq!(answer.status() == 200, is_allowed, "{path} {body}: {answer:?}");
            if !is_allowed {
                let said = String::from_utf8_lossy(&answer.body);
                assert!(said.contains(r#"{\"pin\": true} or {\"pin\": false}"#), "{said}");
            }
        }
    }
}
