//! Streams in providers' formats, with and without requested usage: the caller gets the stream
//! without it, and the journal the usage of the other.

use weir_store::Store;
use weir_store::ledger::Flags;

use super::{post, rows, tokens, whole, with_journal, without_journal};
use crate::server::harness::Upstream;

const USAGE: &str = r#""usage":{"prompt_tokens":70,"completion_tokens":3,"total_tokens":73,"prompt_tokens_details":{"cached_tokens":64}}"#;
const EXACT: [Option<u64>; 3] = [Some(70), Some(64), Some(3)];
const DONE: &str = "data: [DONE]\n\n";

/// Stream of one provider.
struct Stream {
    name: &'static str,
    asked: String,
    unasked: String,
    /// Stream that the caller receives, if it differs from the original.
    left: Option<String>,
    tokens: Option<[Option<u64>; 3]>,
}

/// Builds a frame with the text `hi` and these members at its end.
fn said(more: &str) -> String {
    format!(
        "data: {{\"id\":\"c\",\"model\":\"gpt-4o\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"hi\"}},\"finish_reason\":null}}]{more}}}\n\n"
    )
}

/// Builds the frame that ends the choice.
fn stop(more: &str) -> String {
    format!(
        "data: {{\"id\":\"c\",\"model\":\"gpt-4o\",\"choices\":[{{\"index\":0,\"delta\":{{}},\"finish_reason\":\"stop\"}}]{more}}}\n\n"
    )
}

fn bill(usage: &str) -> String {
    format!("data: {{\"id\":\"c\",\"model\":\"gpt-4o\",\"choices\":[],{usage}}}\n\n")
}

fn stream(name: &'static str, asked: String, unasked: String) -> Stream {
    Stream { name, asked, unasked, left: None, tokens: Some(EXACT) }
}

fn openai() -> [String; 2] {
    let null = r#","usage":null"#;
    [
        [said(null), said(null), stop(null), bill(USAGE), DONE.to_owned()].concat(),
        [said(""), said(""), stop(""), DONE.to_owned()].concat(),
    ]
}

fn streams() -> Vec<Stream> {
    let [asked, unasked] = openai();
    let ended = format!(",{USAGE}");
    let so_far = |tokens: u32| {
        format!(
            r#","usage":{{"prompt_tokens":70,"completion_tokens":{tokens},"prompt_tokens_details":{{"cached_tokens":64}}}}"#
        )
    };
    let azure = |more: &str| {
        let filter = r#""prompt_filter_results":[{"prompt_index":0,"content_filter_results":{}}]"#;
        format!(
            "data: {{\"choices\":[],\"created\":0,\"id\":\"\",\"model\":\"\",\"object\":\"\",{filter}{more}}}\n\n"
        )
    };
    let in_every_frame =
        [said(&so_far(1)), said(&so_far(2)), stop(&so_far(3)), DONE.to_owned()].concat();
    let groq = format!(r#","x_groq":{{"id":"r",{USAGE}}}"#);
    // One heartbeat between any two frames with content.
    let beats = |stream: &str| {
        let beats = stream.replace("data: ", ": ping\n\ndata: ");
        beats.replace(&format!(": ping\n\n{}", bill(USAGE)), &bill(USAGE))
    };
    let zero = USAGE.replace("64", "0").replace(":3,", ":0,").replace(":73", ":70");
    let volunteered = [said(""), stop(&ended), DONE.to_owned()].concat();
    vec![
        stream("openai", asked.clone(), unasked.clone()),
        stream("crlf", asked.replace('\n', "\r\n"), unasked.replace('\n', "\r\n")),
        stream("cr", asked.replace('\n', "\r"), unasked.replace('\n', "\r")),
        stream("heartbeats", beats(&asked), beats(&unasked)),
        stream("no end", asked.replace(DONE, ""), unasked.replace(DONE, "")),
        // A frame with a choice is not the one that the usage option adds.
        Stream {
            left: Some([said(""), stop(&ended), DONE.to_owned()].concat()),
            ..stream(
                "in the last frame with a choice",
                [said(""), stop(&ended), DONE.to_owned()].concat(),
                [said(""), stop(""), DONE.to_owned()].concat(),
            )
        },
        Stream {
            left: Some(in_every_frame.clone()),
            ..stream("in every frame", in_every_frame, unasked.clone())
        },
        stream("azure", azure(r#","usage":null"#) + &asked, azure("") + &unasked),
        stream(
            "groq",
            [said(""), stop(&groq), bill(USAGE), DONE.to_owned()].concat(),
            [said(""), stop(&groq), DONE.to_owned()].concat(),
        ),
        Stream { tokens: None, ..stream("zero", asked.replace(USAGE, &zero), unasked.clone()) },
        Stream { tokens: None, ..stream("who does not tell", unasked.clone(), unasked) },
        stream("who always tells", volunteered.clone(), volunteered),
    ]
}

/// Splits a stream into chunks of this size.
fn chunked(events: &str, size: usize) -> String {
    let mut answer = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
        transfer-encoding: chunked\r\n\r\n"
        .to_owned();
    for chunk in events.as_bytes().chunks(size) {
        let text = std::str::from_utf8(chunk).expect("ASCII");
        answer.push_str(&format!("{:x}\r\n{text}\r\n", chunk.len()));
    }
    answer + "0\r\n\r\n"
}

/// Starts an upstream that sends one stream if usage is requested, and the other if not.
async fn provider(asked: String, unasked: String) -> String {
    let mut upstream = Upstream::start().await;
    let address = upstream.address.clone();
    tokio::spawn(async move {
        loop {
            let seen = upstream.next().await;
            let is_asked = String::from_utf8_lossy(&seen.body).contains(r#""include_usage":true"#);
            seen.answer(if is_asked { &asked } else { &unasked });
        }
    });
    address
}

#[tokio::test]
async fn a_provider_s_stream_is_as_it_would_have_been_and_its_usage_is_kept() {
    for size in [7, 1 << 20] {
        for Stream { name, asked, unasked, left, tokens: expected } in streams() {
            let upstream = provider(chunked(&asked, size), chunked(&unasked, size)).await;
            let store = Store::in_memory().expect("there is memory");
            let metered = with_journal(&store, &upstream).await;
            let plain = without_journal(&upstream).await;
            for (options, is_asked) in [
                ("", false),
                (r#","stream_options":{"include_usage":false}"#, false),
                (r#","stream_options":{"include_usage":true}"#, true),
            ] {
                let body = format!(
                    r#"{{"model":"gpt-4o","messages":[{{"role":"user","content":"a"}}],"stream":true{options}}}"#
                );
                let request = post("/v1/chat/completions", "", &body);
                let with = whole(metered.address, &request).await;
                let without = whole(plain.address, &request).await;
                assert_eq!(with.head, without.head, "{name}");
                assert!(with.is_whole && without.is_whole, "{name}");
                match &left {
                    Some(left) if !is_asked => assert_eq!(&with.body, left, "{name}"),
                    _ => assert_eq!(with.body, without.body, "{name} {options}"),
                }
                assert_eq!(without.body, if is_asked { &*asked } else { &*unasked }, "{name}");
            }
            for row in rows(&store, 3).await {
                let flags = row.settlement.flags;
                assert_eq!(row.settlement.outcome, "complete", "{name}");
                match expected {
                    Some(expected) => {
                        assert_eq!(tokens(&row), expected, "{name}");
                        assert!(!flags.any(Flags::ESTIMATED | Flags::USAGE_MISSING), "{name}");
                    }
                    None => assert!(flags.any(Flags::ESTIMATED), "{name}"),
                }
            }
        }
    }
}
