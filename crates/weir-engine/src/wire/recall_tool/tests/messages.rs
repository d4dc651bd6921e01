//! Messages.

use serde_json::json as value;

use super::*;
use crate::wire::Protocol::Messages;

fn start(id: &str, input: u32, cache: [u32; 3]) -> String {
    let [read, five, hour] = cache;
    format!(
        r#"{{"type":"message_start","message":{{"id":"{id}","type":"message","role":"assistant","model":"m-{id}","content":[],"stop_reason":null,"stop_sequence":null,"usage":{{"input_tokens":{input},"cache_creation_input_tokens":{},"cache_read_input_tokens":{read},"cache_creation":{{"ephemeral_5m_input_tokens":{five},"ephemeral_1h_input_tokens":{hour}}},"output_tokens":1,"service_tier":"standard"}}}}}}"#,
        five + hour
    )
}

fn block(index: u32, block: &str, deltas: &[&str]) -> Vec<String> {
    let mut events = vec![format!(
        r#"{{"type":"content_block_start","index":{index},"content_block":{block}}}"#
    )];
    events.extend(deltas.iter().map(|delta| {
        format!(r#"{{"type":"content_block_delta","index":{index},"delta":{delta}}}"#)
    }));
    events.push(format!(r#"{{"type":"content_block_stop","index":{index}}}"#));
    events
}

fn text(index: u32, said: &str) -> Vec<String> {
    let delta = format!(r#"{{"type":"text_delta","text":"{said}"}}"#);
    block(index, r#"{"type":"text","text":""}"#, &[&delta])
}

fn thinking(index: u32, signature: &str) -> Vec<String> {
    let signature = format!(r#"{{"type":"signature_delta","signature":"{signature}"}}"#);
    block(
        index,
        r#"{"type":"thinking","thinking":"","signature":""}"#,
        &[r#"{"type":"thinking_delta","thinking":"hm\n"}"#, &signature],
    )
}

fn tool(index: u32, id: &str, name: &str) -> Vec<String> {
    block(
        index,
        &format!(r#"{{"type":"tool_use","id":"{id}","name":"{name}","input":{{}}}}"#),
        &[
            r#"{"type":"input_json_delta","partial_json":""}"#,
            r#"{"type":"input_json_delta","partial_json":"{\"messages\": "}"#,
            r#"{"type":"input_json_delta","partial_json":"[3]}"}"#,
        ],
    )
}

fn end(reason: &str, output: u32) -> Vec<String> {
    vec![
        format!(
            r#"{{"type":"message_delta","delta":{{"stop_reason":"{reason}","stop_sequence":null}},"usage":{{"output_tokens":{output}}}}}"#
        ),
        r#"{"type":"message_stop"}"#.to_owned(),
    ]
}

fn stream(start: String, blocks: &[Vec<String>], end: Vec<String>) -> String {
    let mut events = vec![start, r#"{"type": "ping"}"#.to_owned()];
    events.extend(blocks.iter().flatten().cloned());
    events.extend(end);
    named(&events.iter().map(String::as_str).collect::<Vec<_>>())
}

fn asking() -> String {
    let blocks = [text(0, "Let me look."), thinking(1, "sig"), tool(2, "toolu_r", NAME)];
    stream(start("a", 10, [100, 7, 1]), &blocks, end("tool_use", 30))
}

fn answering() -> String {
    let blocks = [thinking(0, "last"), text(1, "It is 5.")];
    stream(start("b", 3, [118, 2, 0]), &blocks, end("end_turn", 9))
}

#[test]
fn two_rounds_are_one_answer() {
    let (out, rounds) = streamed(Messages, &[&asking(), &answering()]);
    assert_eq!(nexts(&rounds), [Next::Recall, Next::Final]);
    let message = valid::messages(&out);
    assert_eq!(
        message,
        value!({
            "id": "a", "type": "message", "role": "assistant", "model": "m-a",
            "content": [
                {"type": "text", "text": "Let me look."},
                {"type": "thinking", "thinking": "hm\n", "signature": "weir-recall"},
                {"type": "thinking", "thinking": "hm\n", "signature": "last"},
                {"type": "text", "text": "It is 5."},
            ],
            "stop_reason": "end_turn", "stop_sequence": null,
            "usage": {"input_tokens": 13, "cache_creation_input_tokens": 10,
                "cache_read_input_tokens": 218, "output_tokens": 39, "service_tier": "standard",
                "cache_creation": {"ephemeral_5m_input_tokens": 9, "ephemeral_1h_input_tokens": 1}},
        })
    );
    assert!(!out.contains("toolu_r"));
    assert_eq!(
        json(&rounds[0].assistant),
        value!({"role": "assistant", "content": [
            {"type": "text", "text": "Let me look."},
            {"type": "thinking", "thinking": "hm\n", "signature": "sig"},
            {"type": "tool_use", "id": "toolu_r", "name": "recall", "input": {"messages": [3]}},
        ]})
    );
    assert_eq!(rounds[0].calls[0].arguments, r#"{"messages": [3]}"#);
}

#[test]
fn three_rounds_and_an_end_at_the_limit() {
    let rounds = [asking(), asking(), asking()];
    let rounds: Vec<&str> = rounds.iter().map(String::as_str).collect();
    let (out, results) = streamed(Messages, &rounds);
    assert_eq!(nexts(&results), [Next::Recall; 3]);
    let message = valid::messages(&out);
    assert_eq!(message["stop_reason"], "end_turn");
    assert_eq!(message["usage"]["output_tokens"], 90);
    assert_eq!(message["content"].as_array().expect("blocks").len(), 6);
}

#[test]
fn an_answer_without_the_tool_stays_byte_for_byte() {
    let own = [thinking(0, "s"), text(1, "x"), tool(2, "o", "recall_all")];
    let error = r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;
    for round in [
        answering(),
        stream(start("a", 1, [0; 3]), &own, end("tool_use", 1)),
        stream(start("a", 1, [0; 3]), &[thinking(0, "s")], vec![error.to_owned()]),
        stream(start("a", 1, [0; 3]), &[thinking(0, "s")], end("max_tokens", 1)),
    ] {
        let (out, rounds) = streamed(Messages, &[&round]);
        assert_eq!(out, round);
        assert_eq!(rounds[0].next, Next::Final);
    }
}

#[test]
fn thinking_and_text_pass_at_once() {
    let asking = asking();
    let mut stream = RecallStream::new(Messages, NAME);
    let mut out = Vec::new();
    let until = asking.find("event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":1,\"delta\":{\"type\":\"signature").expect("it is there");
    stream.feed(&asking.as_bytes()[..until], &mut out);
    assert_eq!(out, &asking.as_bytes()[..until]);
    stream.feed(&asking.as_bytes()[until..], &mut out);
    let out = String::from_utf8(out).expect("text");
    assert!(out.contains("weir-recall") && !out.contains("toolu_r"));
    assert!(out.ends_with("data: {\"type\":\"content_block_stop\",\"index\":1}\n\n"));
}

#[test]
fn calls_of_the_client_keep_their_order_and_thinking() {
    let blocks =
        [thinking(0, "sig"), tool(1, "o1", "read"), tool(2, "r", NAME), tool(3, "o2", "write")];
    let mixed = stream(start("b", 1, [0; 3]), &blocks, end("tool_use", 2));
    let (out, rounds) = streamed(Messages, &[&mixed]);
    assert_eq!(nexts(&rounds), [Next::Mixed]);
    let message = valid::messages(&out);
    let content = message["content"].as_array().expect("blocks");
    assert_eq!(content.len(), 3);
    assert_eq!(content[0]["signature"], "sig");
    assert_eq!((&content[1]["id"], &content[2]["id"]), (&value!("o1"), &value!("o2")));
    assert_eq!(rounds[0].others, ["o1", "o2"]);
    assert_eq!(rounds[0].calls[0].before.as_deref(), Some("o2"));
    let first = [thinking(0, "sig"), tool(1, "r", NAME), tool(2, "o", "read")];
    let first = stream(start("b", 1, [0; 3]), &first, end("tool_use", 2));
    let (out, rounds) = streamed(Messages, &[&asking(), &first]);
    assert_eq!(nexts(&rounds), [Next::Recall, Next::Mixed]);
    let message = valid::messages(&out);
    assert_eq!(message["content"].as_array().expect("blocks").len(), 4);
    assert_eq!(message["content"][2]["signature"], "sig");
    assert_eq!(message["usage"]["output_tokens"], 32);
}

#[test]
fn redacted_thinking_and_runs_of_it_are_marked() {
    let redacted = block(1, r#"{"type":"redacted_thinking","data":"abc"}"#, &[]);
    let blocks = [thinking(0, "one"), redacted, thinking(2, "two"), tool(3, "r", NAME)];
    let round = stream(start("a", 1, [0; 3]), &blocks, end("tool_use", 2));
    let (out, rounds) = streamed(Messages, &[&round, &answering()]);
    let content = &valid::messages(&out)["content"];
    assert_eq!(content[0]["signature"], "weir-recall");
    assert_eq!(content[1]["data"], "weir-recall");
    assert_eq!(content[2]["signature"], "weir-recall");
    assert_eq!(content[3]["signature"], "last");
    assert!(rounds[0].assistant.contains("abc") && rounds[0].assistant.contains("two"));
}

#[test]
fn what_cannot_be_answered_ends_without_the_call() {
    let blocks = [text(0, "x"), tool(1, "r", NAME)];
    let round = stream(start("a", 1, [0; 3]), &blocks, end("max_tokens", 2));
    let (out, rounds) = streamed(Messages, &[&round]);
    assert_eq!(nexts(&rounds), [Next::Ended]);
    assert_eq!(valid::messages(&out)["stop_reason"], "max_tokens");
    let mut stream = RecallStream::new(Messages, NAME);
    let mut out = Vec::new();
    stream.feed(&asking().as_bytes()[..500], &mut out);
    assert_eq!(stream.end_round(&mut out).next, Next::Cut);
    out.clear();
    stream.fail("api_error", "upstream_closed", "gone", &mut out);
    assert_eq!(
        String::from_utf8(out).expect("text"),
        "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"gone\"}}\n\n"
    );
}

#[test]
fn whole_answers_are_joined() {
    let first = r#"{"id":"a","content":[{"type":"text","text":""},{"type":"thinking","thinking":"t","signature":"s"},{"type":"tool_use","id":"r","name":"recall","input":{"query":"x"}}],"stop_reason":"tool_use","usage":{"input_tokens":5,"output_tokens":2,"cache_creation":{"ephemeral_5m_input_tokens":3}}}"#;
    let last = r#"{"id":"b", "content":[{"type":"thinking","thinking":"u","signature":"v"}, {"type":"text","text":"y"}],"stop_reason":"end_turn","usage":{"input_tokens":6,"output_tokens":3,"cache_creation":{"ephemeral_5m_input_tokens":4}}}"#;
    let round = read(Messages, NAME, first.as_bytes());
    assert_eq!(round.next, Next::Recall);
    assert_eq!(round.calls[0].arguments, r#"{"query":"x"}"#);
    assert_eq!(
        round.assistant,
        r#"{"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"s"},{"type":"tool_use","id":"r","name":"recall","input":{"query":"x"}}]}"#
    );
    let body = joined(Messages, NAME, &[first.as_bytes(), last.as_bytes()]).expect("an answer");
    assert_eq!(
        String::from_utf8(body).expect("text"),
        r#"{"id":"b", "content":[{"type":"text","text":""},{"type":"thinking","thinking":"t","signature":"weir-recall"},{"type":"thinking","thinking":"u","signature":"v"}, {"type":"text","text":"y"}],"stop_reason":"end_turn","usage":{"input_tokens":11,"output_tokens":5,"cache_creation":{"ephemeral_5m_input_tokens":7}}}"#
    );
    assert_eq!(joined(Messages, NAME, &[last.as_bytes()]), None);
    let alone = joined(Messages, NAME, &[first.as_bytes()]).expect("an answer");
    let alone = json(std::str::from_utf8(&alone).expect("text"));
    assert_eq!(alone["stop_reason"], "end_turn");
    assert_eq!(alone["content"].as_array().expect("blocks").len(), 2);
}

#[test]
fn a_signature_in_pieces_gets_one_mark() {
    let thinking = block(
        0,
        r#"{"type":"thinking","thinking":"","signature":""}"#,
        &[
            r#"{"type":"thinking_delta","thinking":"hm"}"#,
            r#"{"type":"signature_delta","signature":"one"}"#,
            r#"{"type":"signature_delta","signature":"two"}"#,
        ],
    );
    let ping = vec![r#"{"type":"ping"}"#.to_owned()];
    let round =
        stream(start("a", 1, [0; 3]), &[thinking, ping, tool(1, "r", NAME)], end("tool_use", 1));
    let (out, rounds) = streamed(Messages, &[&round, &answering()]);
    assert_eq!(valid::messages(&out)["content"][0]["signature"], "weir-recall");
    assert!(rounds[0].assistant.contains("onetwo"));
}
