//! Compressed request bodies.

use std::io::Write;

use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

use super::harness::{FINE, Upstream, Wire, ask, body_of, chat, start};

const MAX_BYTES: usize = 100_000;

fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(plain).expect("a Vec takes all");
    encoder.finish().expect("a Vec takes all")
}

fn zlib(plain: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(plain).expect("a Vec takes all");
    encoder.finish().expect("a Vec takes all")
}

fn zstd(plain: &[u8]) -> Vec<u8> {
    compress_to_vec(plain, CompressionLevel::Fastest)
}

fn gzip_and_zstd(plain: &[u8]) -> Vec<u8> {
    zstd(&gzip(plain))
}

type Encode = fn(&[u8]) -> Vec<u8>;

#[tokio::test]
async fn compressed_bodies_are_read_as_far_as_the_limit() {
    let upstream = Upstream::always(FINE).await;
    let weir = start(&upstream, |config| {
        config.server.max_body_bytes = MAX_BYTES;
    })
    .await;
    let at = body_of(MAX_BYTES).into_bytes();
    let past = body_of(MAX_BYTES + 1).into_bytes();
    let rows: [(&str, Encode); 4] =
        [("gzip", gzip), ("deflate", zlib), ("zstd", zstd), ("gzip, zstd", gzip_and_zstd)];
    for (name, encode) in rows {
        let header = format!("content-encoding: {name}\r\n");
        let answer = ask(weir.address, chat(&header, encode(&at))).await;
        assert_eq!(answer.status(), 200, "{name}");
        ask(weir.address, chat(&header, encode(&past))).await.assert_error(413, "body_too_large");
        let message = ask(weir.address, chat(&header, "not compressed"))
            .await
            .assert_error(400, "invalid_request");
        assert!(message.contains("not valid"), "{message}");
    }
}

#[tokio::test]
async fn a_compressed_body_that_needs_nothing_is_forwarded_as_it_came() {
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, |_| {}).await;
    let received = gzip(body_of(500).as_bytes());
    let mut wire = Wire::connect(weir.address).await;
    wire.send(chat("content-encoding: gzip\r\n", &received)).await;
    let seen = upstream.next().await;
    assert!(seen.head.contains("content-encoding: gzip"), "{}", seen.head);
    assert_eq!(seen.body, received);
    seen.answer(FINE);
    assert_eq!(wire.message().await.expect("an answer").status(), 200);
}

#[tokio::test]
async fn a_bomb_does_not_go_off() {
    let weir = start("127.0.0.1:1", |config| {
        config.server.max_body_bytes = MAX_BYTES;
    })
    .await;
    let plain = vec![b' '; 50 << 20];
    for (name, bomb) in [("gzip", gzip(&plain)), ("zstd", zstd(&plain))] {
        assert!(bomb.len() < MAX_BYTES, "{name}: {}", bomb.len());
        let header = format!("content-encoding: {name}\r\n");
        ask(weir.address, chat(&header, bomb)).await.assert_error(413, "body_too_large");
    }
}

#[tokio::test]
async fn what_is_decoded_counts_among_the_bodies_in_flight() {
    let upstream = Upstream::always(FINE).await;
    let plain = body_of(10_000);
    let received = gzip(plain.as_bytes());
    let both = plain.len() + received.len();
    for (max_bytes, expected) in [(both, 200), (both - 1, 503)] {
        let weir = start(&upstream, |config| {
            config.server.max_bodies_in_flight_bytes = max_bytes;
        })
        .await;
        let request = chat("content-encoding: gzip\r\n", &received);
        assert_eq!(ask(weir.address, request).await.status(), expected);
    }
}

#[tokio::test]
async fn an_unknown_encoding_is_refused_with_those_that_are_known() {
    let weir = start("127.0.0.1:1", |_| {}).await;
    for name in ["br", "gzip, br", "compress", "\"gzip\""] {
        let header = format!("content-encoding: {name}\r\n");
        let answer = ask(weir.address, chat(&header, body_of(100))).await;
        let message = answer.assert_error(415, "unsupported_encoding");
        assert!(message.contains("gzip, deflate, zstd"), "{message}");
        assert_eq!(answer.header("accept-encoding"), Some("gzip, deflate, zstd"));
    }
}
