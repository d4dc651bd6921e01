//! Properties of any chunking, and of streams with changed bytes.

use proptest::prelude::*;

use super::*;

/// Streams with calls of the tool, of the client's, and of both, with errors and without ends.
const ROUNDS: [(Protocol, [&str; 3]); 3] = [
    (
        Protocol::Chat,
        [
            "data: {\"id\":\"a\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"ü€😀\"},\"finish_reason\":null}]}\n\ndata: {\"id\":\"a\",\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"r\",\"function\":{\"name\":\"re\"}}]}}]}\n\ndata: {\"id\":\"a\",\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"name\":\"call\",\"arguments\":\"{}\"}}]}}]}\n\ndata: {\"id\":\"a\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"tool_calls\"}],\"usage\":{\"prompt_tokens\":3}}\n\ndata: [DONE]\n\n",
            "data: {\"id\":\"b\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"x\",\"tool_calls\":[{\"index\":0,\"id\":\"r\",\"function\":{\"name\":\"recall\",\"arguments\":\"{}\"}},{\"index\":1,\"id\":\"o\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},\"finish_reason\":\"tool_calls\"}]}\n\ndata: {\"id\":\"b\",\"choices\":[],\"usage\":{\"prompt_tokens\":4}}\n\ndata: [DONE]\n\n",
            "data: {\"id\":\"b\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"},\"finish_reason\":\"stop\"}]}\r\n\r\n: ping\n\ndata: {\"error\":{\"message\":\"x\"}}\n\n",
        ],
    ),
    (
        Protocol::Responses,
        [
            "event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0,\"response\":{\"id\":\"a\",\"tools\":[{\"type\":\"function\",\"name\":\"recall\"}],\"output\":[]}}\n\ndata: {\"type\":\"response.output_item.added\",\"sequence_number\":1,\"output_index\":0,\"item\":{\"type\":\"reasoning\"}}\n\ndata: {\"type\":\"response.output_item.done\",\"sequence_number\":2,\"output_index\":0,\"item\":{\"type\":\"reasoning\",\"encrypted_content\":\"s\"}}\n\ndata: {\"type\":\"response.output_item.added\",\"sequence_number\":3,\"output_index\":1,\"item\":{\"type\":\"function_call\",\"name\":\"recall\"}}\n\ndata: {\"type\":\"response.output_item.done\",\"sequence_number\":4,\"output_index\":1,\"item\":{\"type\":\"function_call\",\"name\":\"recall\",\"call_id\":\"r\",\"arguments\":\"{}\"}}\n\ndata: {\"type\":\"response.completed\",\"sequence_number\":5,\"response\":{\"id\":\"a\",\"output\":[],\"usage\":{\"input_tokens\":3}}}\n\n",
            "data: {\"type\":\"response.output_item.added\",\"sequence_number\":9,\"output_index\":0,\"item\":{\"type\":\"function_call\",\"name\":\"recall\",\"call_id\":\"r\"}}\n\ndata: {\"type\":\"response.completed\",\"sequence_number\":10,\"response\":{\"id\":\"b\",\"output\":[{\"type\":\"function_call\",\"name\":\"recall\",\"call_id\":\"r\",\"arguments\":\"{}\"},{\"type\":\"function_call\",\"name\":\"f\",\"call_id\":\"o\"}],\"usage\":{\"input_tokens\":3}}}\n\n",
            "data: {\"type\":\"response.created\",\"sequence_number\":0,\"response\":{\"id\":\"c\"}}\n\ndata: {\"type\":\"response.output_text.delta\",\"sequence_number\":1,\"output_index\":0,\"delta\":\"ü\"}\n\ndata: {\"type\":\"error\",\"sequence_number\":2}\n\n",
        ],
    ),
    (
        Protocol::Messages,
        [
            "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"a\",\"usage\":{\"input_tokens\":3}}}\n\nevent: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"thinking\",\"thinking\":\"\"}}\n\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"signature_delta\",\"signature\":\"s\"}}\n\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\ndata: {\"type\":\"content_block_start\",\"index\":1,\"content_block\":{\"type\":\"tool_use\",\"id\":\"r\",\"name\":\"recall\",\"input\":{}}}\n\ndata: {\"type\":\"content_block_delta\",\"index\":1,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"{}\"}}\n\ndata: {\"type\":\"content_block_stop\",\"index\":1}\n\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"tool_use\"},\"usage\":{\"output_tokens\":3}}\n\ndata: {\"type\":\"message_stop\"}\n\n",
            "data: {\"type\":\"message_start\",\"message\":{\"id\":\"b\"}}\n\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"tool_use\",\"id\":\"o\",\"name\":\"f\"}}\n\ndata: {\"type\":\"content_block_start\",\"index\":1,\"content_block\":{\"type\":\"tool_use\",\"id\":\"r\",\"name\":\"recall\"}}\n\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"tool_use\"}}\n\ndata: {\"type\":\"message_stop\"}\n\n",
            "data: {\"type\":\"message_start\",\"message\":{\"id\":\"b\"}}\n\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"ü\"}}\n\ndata: {\"type\":\"error\",\"error\":{}}\n\n",
        ],
    ),
];

/// Feeds two rounds in pieces cut at `cuts`; the second one follows in any case.
fn fed(
    protocol: Protocol,
    rounds: [&[u8]; 2],
    cuts: &[prop::sample::Index],
) -> (Vec<u8>, Vec<Round>) {
    let mut stream = RecallStream::new(protocol, NAME);
    let mut out = Vec::new();
    let mut results = Vec::new();
    for round in rounds {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(round.len() + 1)).collect();
        cuts.extend([0, round.len()]);
        cuts.sort_unstable();
        for pair in cuts.windows(2) {
            stream.feed(&round[pair[0]..pair[1]], &mut out);
            assert!(stream.held_bytes() <= MAX_HELD_BYTES);
        }
        results.push(stream.end_round(&mut out));
        stream.next_round();
    }
    stream.end_round(&mut out);
    stream.finish(&mut out);
    (out, results)
}

fn rounds() -> impl Strategy<Value = (Protocol, Vec<u8>, Vec<u8>)> {
    (0..3_usize, 0..3_usize, 0..3_usize).prop_map(|(protocol, first, second)| {
        let (protocol, rounds) = ROUNDS[protocol];
        (protocol, rounds[first].as_bytes().to_vec(), rounds[second].as_bytes().to_vec())
    })
}

/// Bytes that matter to JSON and to events.
fn byte() -> impl Strategy<Value = u8> {
    prop_oneof![any::<u8>(), prop::sample::select(b"\n\r:,{}[]\"\\0".to_vec())]
}

proptest! {
    #[test]
    fn any_chunking_gives_the_same(
        (protocol, first, second) in rounds(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        changes in prop::collection::vec((any::<prop::sample::Index>(), byte()), 0..4),
    ) {
        let mut first = first;
        for (at, byte) in changes {
            let at = at.index(first.len());
            first[at] = byte;
        }
        let whole = fed(protocol, [&first, &second], &[]);
        prop_assert_eq!(&whole, &fed(protocol, [&first, &second], &cuts));
        // A round that goes on has calls, and can be put into a request.
        for round in &whole.1 {
            if round.next == Next::Recall {
                prop_assert!(!round.calls.is_empty() && round.others.is_empty());
                let body = r#"{"messages":[],"input":[]}"#;
                let made = appended(protocol, body, &round.assistant, &[]).expect("a list");
                prop_assert!(serde_json::from_str::<serde_json::Value>(&made).is_ok(), "{}", made);
            }
        }
    }

    #[test]
    fn cut_and_spliced_rounds_are_read_without_panic(
        (protocol, first, second) in rounds(),
        at in any::<prop::sample::Index>(),
        other in any::<prop::sample::Index>(),
        other_protocol in prop::sample::select(vec![Protocol::Chat, Protocol::Responses, Protocol::Messages]),
    ) {
        let spliced = [&first[..at.index(first.len())], &second[other.index(second.len())..]].concat();
        fed(protocol, [&spliced, &second], &[]);
        fed(other_protocol, [&first, &spliced], &[]);
    }

    #[test]
    fn any_body_is_read_without_panic(
        protocol in prop::sample::select(vec![Protocol::Chat, Protocol::Responses, Protocol::Messages]),
        bytes in prop::collection::vec(byte(), 0..60),
        change in (any::<prop::sample::Index>(), byte()),
        body in prop::sample::select(BODIES.to_vec()),
    ) {
        let mut body = body.as_bytes().to_vec();
        let at = change.0.index(body.len());
        body[at] = change.1;
        for bytes in [&bytes, &body] {
            let round = read(protocol, NAME, bytes);
            joined(protocol, NAME, &[bytes, bytes]);
            joined(protocol, NAME, &[bytes]);
            let Ok(text) = std::str::from_utf8(bytes) else { continue };
            let withheld = Withheld { calls: &round.calls, others: &round.others, results: &[] };
            for start in text.match_indices('{').map(|(start, _)| start).take(8) {
                inserted(protocol, text, start, &withheld);
            }
            without_marked(protocol, text);
            appended(protocol, text, text, &[]);
            Arguments::read(text);
        }
    }
}

const BODIES: [&str; 4] = [
    r#"{"choices":[{"message":{"content":"a","tool_calls":[{"id":"r","function":{"name":"recall","arguments":"{}"}},{"id":"o","function":{"name":"f"}}]},"finish_reason":"tool_calls"}],"usage":{"a":1}}"#,
    r#"{"status":"completed","output":[{"type":"reasoning"},{"type":"function_call","name":"recall","call_id":"r","arguments":"{}"}],"usage":{"a":1.5}}"#,
    r#"{"content":[{"type":"thinking","signature":"s"},{"type":"tool_use","id":"r","name":"recall","input":{}}],"stop_reason":"tool_use","usage":{"a":[1]}}"#,
    r#"{"messages":[{"role":"assistant","content":[{"type":"thinking","signature":"weir-recall"},{"type":"tool_use","id":"o"}]},{"role":"user","content":"x"}]}"#,
];
