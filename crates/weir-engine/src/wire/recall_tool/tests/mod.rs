//! Streams and answers of each protocol with calls of the tool: golden cases, and properties of any
//! chunking and any bytes.

mod any_bytes;
mod chat;
mod messages;
mod requests;
mod responses;
mod tool;
mod valid;

use super::*;

/// Name of the tool.
const NAME: &str = "recall";

/// Returns a stream of these events.
fn named(events: &[&str]) -> String {
    let event = |data: &&str| {
        let value: serde_json::Value = serde_json::from_str(data).expect("JSON");
        format!("event: {}\ndata: {data}\n\n", value["type"].as_str().expect("a type"))
    };
    events.iter().map(event).collect()
}

/// Returns a stream of chunks, with its last line.
fn chunks(chunks: &[&str]) -> String {
    let chunks: String = chunks.iter().map(|data| format!("data: {data}\n\n")).collect();
    chunks + "data: [DONE]\n\n"
}

/// Feeds the rounds' streams in pieces of `step` bytes, goes on as long as the answers ask for it, and
/// finishes the stream if they ask for more than there is. Returns what the client gets.
fn run(protocol: Protocol, rounds: &[&str], step: usize) -> (String, Vec<Round>) {
    let mut stream = RecallStream::new(protocol, NAME);
    let mut out = Vec::new();
    let mut results = Vec::new();
    for (index, round) in rounds.iter().enumerate() {
        if index > 0 {
            stream.next_round();
        }
        for piece in round.as_bytes().chunks(step.max(1)) {
            stream.feed(piece, &mut out);
            assert!(stream.held_bytes() <= MAX_HELD_BYTES);
        }
        let result = stream.end_round(&mut out);
        let goes_on = result.next == Next::Recall;
        results.push(result);
        if !goes_on {
            break;
        }
    }
    stream.finish(&mut out);
    (String::from_utf8(out).expect("text went in"), results)
}

/// Runs the rounds in several chunkings, whose results must be equal.
fn streamed(protocol: Protocol, rounds: &[&str]) -> (String, Vec<Round>) {
    let whole = run(protocol, rounds, usize::MAX);
    for step in [1, 2, 3, 7, 64, 1000] {
        assert_eq!(run(protocol, rounds, step), whole, "pieces of {step} bytes");
    }
    whole
}

/// Returns the meanings of rounds.
fn nexts(rounds: &[Round]) -> Vec<Next> {
    rounds.iter().map(|round| round.next).collect()
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}
