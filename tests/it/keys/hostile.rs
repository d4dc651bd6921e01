//! Invalid keys: long, broken, many.

use super::setting::{bearer, start};
use crate::server::harness::{FINE, Upstream, Wire, body_of, chat};

#[tokio::test]
async fn keys_of_any_bytes_are_refused_and_harm_nobody() {
    let upstream = Upstream::always(FINE).await;
    let setting = start(&upstream, |_| {}).await;
    let key = setting.key("a", "{}").await;
    let behind = |bytes: &[u8]| {
        let mut header = b"authorization: Bearer ".to_vec();
        header.extend_from_slice(bytes);
        header.extend_from_slice(b"\r\n");
        header
    };
    let mut nul = key.secret.clone().into_bytes();
    nul.push(0);
    let mut wide = "sk-weir-".to_owned();
    wide.push_str(&"\u{e9}".repeat(43));
    let mut high = b"sk-weir-".to_vec();
    high.extend([0xff; 43]);
    for (bytes, expected) in [
        (&b"sk-weir-"[..], 401),
        (&[b'a'; 50_000], 401),
        (format!("sk-weir-{}", "A".repeat(50_000)).as_bytes(), 401),
        (&high, 401),
        (wide.as_bytes(), 401),
        (b"sk-weir-' OR 1=1 --                               ", 401),
        (b"sk-weir-/../../../../../../../../../../../etc/pass", 401),
        (&nul, 400),
    ] {
        let header = behind(bytes);
        let body = body_of(100);
        let mut request = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n".to_vec();
        request.extend_from_slice(&header);
        request
            .extend_from_slice(format!("content-length: {}\r\n\r\n{body}", body.len()).as_bytes());
        let answer = setting.ask(request).await;
        assert_eq!(answer.status(), expected, "{}", String::from_utf8_lossy(bytes));
    }
    let answer = setting.ask(chat(&key.header(), body_of(100))).await;
    assert_eq!(answer.status(), 200);
}

#[tokio::test]
async fn thousands_of_wrong_keys_do_not_keep_a_right_one_out() {
    let upstream = Upstream::always(FINE).await;
    let setting = start(&upstream, |_| {}).await;
    let key = setting.key("a", "{}").await;
    let address = setting.weir.address;
    let guesses = (0..8).map(|guesser: usize| {
        tokio::spawn(async move {
            let mut wire = Wire::connect(address).await;
            for guess in 0..500 {
                let secret = format!("sk-weir-{guesser:021}{guess:022}");
                let answer = wire.ask(chat(&bearer(&secret), body_of(100))).await;
                assert_eq!(answer.status(), 401);
            }
        })
    });
    let guesses: Vec<_> = guesses.collect();
    let mut wire = Wire::connect(address).await;
    for _ in 0..200 {
        assert_eq!(wire.ask(chat(&key.header(), body_of(100))).await.status(), 200);
    }
    for guess in guesses {
        guess.await.expect("all were refused");
    }
}
