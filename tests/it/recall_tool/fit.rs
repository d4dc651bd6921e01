//! Room: a request is never refused because weir adds its tool. At each limit a weir with the tool accepts
//! the requests that one without it accepts, and sends the same bytes if there is no room for the tool.

use serde_json::{Value, json};

use super::answers::{Made, Protocol, call, said};
use super::{offers, parsed};
use crate::keys::setting::post;
use crate::routes::setting::{Play, Seen, Up, memory, status};
use crate::server::harness::{Message, Weir, ask, start_with};

/// Limits around the size of the request, with and without the tool.
fn limits() -> impl Iterator<Item = u64> {
    (560..1700).step_by(12)
}

/// Upstream, a weir that offers the tool, and one that does not.
struct Pair {
    up: Up,
    with: Weir,
    without: Weir,
}

impl Pair {
    async fn start() -> Self {
        let up = Up::start("up").await;
        let with = start_with(memory(), &up.address, offers).await;
        let without = start_with(memory(), &up.address, |_| {}).await;
        Self { up, with, without }
    }

    /// Sends a request that the upstream answers so. Returns the answer, and the requests that arrived.
    async fn send(
        &self,
        weir: &Weir,
        protocol: Protocol,
        (body, limit): (&Value, u64),
        answers: &[String],
    ) -> (Message, Vec<Seen>) {
        self.up.then(answers.iter().cloned().map(Play::Answer));
        let headers =
            format!("authorization: Bearer alice\r\nx-weir-max-input-tokens: {limit}\r\n");
        let answer = ask(weir.address, post(protocol.path(), &headers, body.to_string())).await;
        // One that was refused has used no answer.
        self.up.forget();
        (answer, self.up.seen())
    }
}

/// Returns a request that consists of its system text almost alone: nothing of it can be left out.
fn long(protocol: Protocol, streams: bool) -> Value {
    let mut body = protocol.request(&[said("user", "Go on.")]);
    let text = json!("word ".repeat(600));
    match protocol {
        Protocol::Chat => body["messages"][0]["content"] = text,
        Protocol::Responses => body["instructions"] = text,
        Protocol::Messages => body["system"] = text,
    }
    protocol.stream(&mut body, streams);
    body
}

#[tokio::test]
async fn no_request_is_refused_for_the_tool() {
    for protocol in Protocol::ALL {
        let pair = Pair::start().await;
        let body = long(protocol, false);
        let done = [protocol.answer(&Made::text("It is done.", [900, 5]), false)];
        let (mut refused, mut left_out, mut offered) = (0, 0, 0);
        for limit in limits() {
            let (plain, sent) = pair.send(&pair.without, protocol, (&body, limit), &done).await;
            let (answer, seen) = pair.send(&pair.with, protocol, (&body, limit), &done).await;
            let name = format!("{protocol:?} at {limit}");
            assert_eq!(answer.status(), plain.status(), "{name}");
            if plain.status() != 200 {
                assert_eq!(answer.body, plain.body, "{name}: the caller's own numbers");
                refused += 1;
                continue;
            }
            let names = answer.header("x-weir-edits").unwrap_or_default().to_owned();
            if parsed(&seen[0].text()).get("tools").is_some() {
                assert!(names.contains("recall"), "{name}");
                offered += 1;
                continue;
            }
            assert_eq!(seen[0].text(), sent[0].text(), "{name}");
            assert!(!names.contains("recall"), "{name}");
            left_out += 1;
        }
        assert!(refused > 0 && left_out > 0 && offered > 0, "{refused} {left_out} {offered}");
    }
}

#[tokio::test]
async fn a_round_without_room_is_answered_without_the_tool() {
    for protocol in Protocol::ALL {
        for streams in [false, true] {
            let pair = Pair::start().await;
            let body = long(protocol, streams);
            let asks = Made::calls(&[call("r1", "recall", json!({"messages": [1]}))], [700, 9]);
            let rounds = [asks, Made::text("It is done.", [900, 5])];
            let rounds = rounds.map(|made| protocol.answer(&made, streams));
            let done = [protocol.answer(&Made::text("It is done.", [900, 5]), streams)];
            let (mut continued, mut plain) = (0, 0);
            for limit in limits() {
                let (_, seen) = pair.send(&pair.with, protocol, (&body, limit), &done).await;
                if seen.first().is_none_or(|own| parsed(&own.text()).get("tools").is_none()) {
                    continue;
                }
                let (_, sent) = pair.send(&pair.without, protocol, (&body, limit), &done).await;
                let (answer, seen) = pair.send(&pair.with, protocol, (&body, limit), &rounds).await;
                let name = format!("{protocol:?} at {limit}, streamed: {streams}");
                assert_eq!((answer.status(), seen.len()), (200, 2), "{name}");
                let read = protocol.read(&String::from_utf8_lossy(&answer.body), streams);
                assert_eq!((read.text.as_str(), read.is_stopped), ("It is done.", true), "{name}");
                assert_eq!(read.usage, Some([1600, 14]), "{name}");
                let second = seen[1].text();
                if protocol.results(&parsed(&second)).is_empty() {
                    assert_eq!(second, sent[0].text(), "{name}");
                    plain += 1;
                } else {
                    continued += 1;
                }
            }
            assert!(continued > 0 && plain > 0, "{protocol:?}: {continued} {plain}");
        }
    }
}

#[tokio::test]
async fn a_smaller_window_that_the_upstream_reports_takes_the_tool_out() {
    let protocol = Protocol::Chat;
    let mut body = long(protocol, false);
    body["max_tokens"] = json!(16);
    let done = protocol.answer(&Made::text("It is done.", [900, 5]), false);
    for window in [660, 700, 740] {
        let said = format!(
            "This model's maximum context length is {window} tokens. However, your messages resulted in \
             770 tokens. Please reduce the length of the messages."
        );
        let error = json!({"error": {"message": said, "type": "invalid_request_error",
            "param": "messages", "code": "context_length_exceeded"}});
        let answers = [status(400, "", &error.to_string()), done.clone()];
        let pair = Pair::start().await;
        let (answer, seen) = pair.send(&pair.with, protocol, (&body, 1500), &answers).await;
        assert_eq!((answer.status(), seen.len()), (200, 2), "{window}");
        let tools = seen.iter().map(|own| parsed(&own.text()).get("tools").is_some());
        assert_eq!(tools.collect::<Vec<_>>(), [true, false], "{window}");
    }
}
