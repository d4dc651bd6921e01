//! Answers with calls of the tool `recall`: for any chunking, a client's stream of several rounds is the
//! same; memory is bounded; rounds that go on give JSON for a request; a first round without the tool's
//! name stays as it is.
//!
//! An input is two control bytes, which select the protocol and the chunks, and streams or answers
//! separated by the byte 0x1e.

use weir_engine::wire::Protocol;
use weir_engine::wire::recall_tool::{
    Arguments, MAX_HELD_BYTES, Next, RecallStream, Round, Withheld, appended, inserted, joined,
    read, without_marked,
};

use super::sse::cut;

const NAME: &str = "recall";
const MAX_ROUNDS: usize = 4;

pub fn check(input: &[u8]) {
    let Some(([protocol, cuts], rest)) = input.split_first_chunk::<2>() else { return };
    let protocol = Protocol::NAMES[usize::from(*protocol) % 3].1;
    let rounds: Vec<&[u8]> = rest.split(|byte| *byte == 0x1e).take(MAX_ROUNDS).collect();
    let whole = streamed(protocol, &rounds, |round| vec![round]);
    assert_eq!(whole, streamed(protocol, &rounds, |round| cut(round, 1, 0)), "cut after each byte");
    let by_seed = streamed(protocol, &rounds, |round| cut(round, 64, u32::from(*cuts)));
    assert_eq!(whole, by_seed, "cut by {cuts}");
    let has = |needle: &[u8]| rounds[0].windows(needle.len()).any(|part| part == needle);
    // Calls have names; signatures are held until the next event, and comments overtake them.
    let needles: [&[u8]; 5] = [b"\"name\"", b"\"tool_calls\"", b"thinking", b"reasoning", b"\\u"];
    if rounds.len() == 1 && !needles.into_iter().any(has) {
        assert_eq!(whole.0, rounds[0], "without the tool nothing changes");
    }
    for round in &whole.1 {
        goes_on(protocol, round);
    }
    for body in &rounds {
        let round = read(protocol, NAME, body);
        goes_on(protocol, &round);
        let Ok(text) = std::str::from_utf8(body) else { continue };
        let withheld = Withheld { calls: &round.calls, others: &round.others, results: &[] };
        for start in text.match_indices('{').map(|(start, _)| start).take(8) {
            inserted(protocol, text, start, &withheld);
        }
        without_marked(protocol, text);
        Arguments::read(text);
    }
    joined(protocol, NAME, &rounds);
}

/// A round with calls of the tool alone continues any request with a list.
fn goes_on(protocol: Protocol, round: &Round) {
    if round.next != Next::Recall {
        return;
    }
    assert!(!round.calls.is_empty() && round.others.is_empty());
    let made = appended(protocol, r#"{"messages":[],"input":[]}"#, &round.assistant, &[]);
    let made = made.expect("the request has a list");
    serde_json::from_str::<&serde_json::value::RawValue>(&made).expect("it stays JSON");
}

fn streamed<'r>(
    protocol: Protocol,
    rounds: &[&'r [u8]],
    pieces: impl Fn(&'r [u8]) -> Vec<&'r [u8]>,
) -> (Vec<u8>, Vec<Round>) {
    let mut stream = RecallStream::new(protocol, NAME);
    let mut out = Vec::new();
    let mut results = Vec::new();
    for (index, round) in rounds.iter().enumerate() {
        if index > 0 {
            stream.next_round();
        }
        for piece in pieces(round) {
            stream.feed(piece, &mut out);
            assert!(stream.held_bytes() <= MAX_HELD_BYTES);
        }
        let result = stream.end_round(&mut out);
        let next = result.next;
        results.push(result);
        if next != Next::Recall {
            break;
        }
    }
    stream.finish(&mut out);
    (out, results)
}
