//! Chat completions.

use serde_json::json as value;

use super::*;
use crate::wire::Protocol::Chat;

const TOOLS: &str = r#""tool_calls""#;

/// Returns a chunk with this delta and finish reason.
fn chunk(id: &str, delta: &str, reason: &str) -> String {
    format!(
        r#"{{"id":"{id}","object":"chat.completion.chunk","created":1,"model":"m-{id}","choices":[{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":{reason}}}],"usage":null}}"#
    )
}

fn usage(id: &str, figures: [u32; 4]) -> String {
    let [prompt, cached, completion, reasoning] = figures;
    format!(
        r#"{{"id":"{id}","object":"chat.completion.chunk","created":1,"model":"m-{id}","choices":[],"usage":{{"prompt_tokens":{prompt},"completion_tokens":{completion},"total_tokens":{},"prompt_tokens_details":{{"cached_tokens":{cached}}},"completion_tokens_details":{{"reasoning_tokens":{reasoning}}}}}}}"#,
        prompt + completion
    )
}

/// Returns a stream of deltas, ended by `reason`, with usage.
fn stream(id: &str, deltas: &[&str], reason: &str, figures: [u32; 4]) -> String {
    let mut all: Vec<String> = deltas.iter().map(|delta| chunk(id, delta, "null")).collect();
    all.push(chunk(id, "{}", reason));
    all.push(usage(id, figures));
    chunks(&all.iter().map(String::as_str).collect::<Vec<_>>())
}

const ROLE: &str = r#"{"role":"assistant","content":""}"#;
const ARGUMENTS: &str =
    r#"{"tool_calls":[{"index":0,"function":{"arguments":"{\"messages\":[3]}"}}]}"#;

fn call(index: u32, id: &str, name: &str) -> String {
    format!(
        r#"{{"tool_calls":[{{"index":{index},"id":"{id}","type":"function","function":{{"name":"{name}","arguments":""}}}}]}}"#
    )
}

fn asking(id: &str) -> String {
    let call = call(0, "call_r", NAME);
    stream(
        id,
        &[ROLE, r#"{"content":"Let me"}"#, r#"{"content":" look."}"#, &call, ARGUMENTS],
        TOOLS,
        [100, 80, 20, 5],
    )
}

fn answering(id: &str) -> String {
    stream(id, &[ROLE, r#"{"content":"It is 5."}"#], r#""stop""#, [130, 100, 7, 2])
}

#[test]
fn two_rounds_are_one_answer() {
    let (out, rounds) = streamed(Chat, &[&asking("a"), &answering("b")]);
    assert_eq!(nexts(&rounds), [Next::Recall, Next::Final]);
    let answer = valid::chat(&out);
    assert_eq!(
        answer,
        value!({
            "message": {"role": "assistant", "content": "Let me look.\n\nIt is 5."},
            "finish_reason": "stop",
            "usage": {"prompt_tokens": 230, "completion_tokens": 27, "total_tokens": 257,
                "prompt_tokens_details": {"cached_tokens": 180},
                "completion_tokens_details": {"reasoning_tokens": 7}},
        })
    );
    assert!(!out.contains("recall") && !out.contains("call_r") && !out.contains("m-b"));
    let [call] = &rounds[0].calls[..] else { panic!("one call") };
    assert_eq!((&*call.id, &*call.arguments), ("call_r", r#"{"messages":[3]}"#));
    assert_eq!(
        rounds[0].assistant,
        r#"{"role":"assistant","content":"Let me look.","tool_calls":[{"id":"call_r","type":"function","function":{"name":"recall","arguments":"{\"messages\":[3]}"}}]}"#
    );
    assert_eq!(json(rounds[0].usage.as_deref().expect("usage"))["prompt_tokens"], 100);
}

#[test]
fn text_passes_before_the_call_is_known() {
    let mut stream = RecallStream::new(Chat, NAME);
    let asking = asking("a");
    let first = asking.find("call_r").expect("it is there");
    let start = asking[..first].rfind("data: ").expect("an event");
    let mut out = Vec::new();
    stream.feed(&asking.as_bytes()[..start], &mut out);
    assert_eq!(out, &asking.as_bytes()[..start], "at once, and unchanged");
    stream.feed(&asking.as_bytes()[start..], &mut out);
    assert_eq!(out.len(), start, "nothing of the call and the end");
    assert!(stream.is_round_over());
    assert_eq!(stream.end_round(&mut out).next, Next::Recall);
    assert_eq!(out.len(), start);
    stream.fail("server_error", "upstream_closed", "No \"answer\".", &mut out);
    let error = String::from_utf8(out[start..].to_vec()).expect("text");
    assert_eq!(
        error,
        "data: {\"error\":{\"message\":\"No \\\"answer\\\".\",\"type\":\"server_error\",\"param\":null,\"code\":\"upstream_closed\"}}\n\n"
    );
}

#[test]
fn an_answer_without_the_tool_stays_byte_for_byte() {
    let own = call(0, "call_o", "recall_all");
    for round in [
        answering("a"),
        stream("a", &[ROLE, &own, ARGUMENTS], TOOLS, [1, 0, 1, 0]),
        format!(": hi\r\n\r\n{}", answering("a").replace('\n', "\r\n")),
        answering("a").replace("data: [DONE]\n\n", ""),
        "data: {\"error\":{\"message\":\"x\"}}\n\n".to_owned(),
        "data: text\n\nevent: x\n\n: comment".to_owned(),
    ] {
        let (out, rounds) = streamed(Chat, &[&round]);
        assert_eq!(out, round);
        assert!(matches!(rounds[0].next, Next::Final | Next::Cut), "{:?}", rounds[0]);
    }
}

#[test]
fn calls_of_the_client_keep_consecutive_indexes() {
    let second = ARGUMENTS.replace("\"index\":0", "\"index\":1");
    let third = r#"{"tool_calls":[{"index":2,"id":"call_z","type":"function","function":{"name":"read","arguments":"{}"}},{"index":1,"function":{"arguments":""}}]}"#;
    let round = stream(
        "a",
        &[ROLE, &call(0, "call_o", "write"), ARGUMENTS, &call(1, "call_r", NAME), &second, third],
        TOOLS,
        [1, 0, 1, 0],
    );
    let (out, rounds) = streamed(Chat, &[&round]);
    assert_eq!(nexts(&rounds), [Next::Mixed]);
    let answer = valid::chat(&out);
    let calls = &answer["message"]["tool_calls"];
    assert_eq!(calls[0]["id"], "call_o");
    assert_eq!(calls[1], value!({"id": "call_z", "name": "read", "arguments": "{}"}));
    assert_eq!(rounds[0].others, ["call_o", "call_z"]);
    assert_eq!(rounds[0].calls[0].before.as_deref(), Some("call_z"));
    assert!(!out.contains("recall"));
}

#[test]
fn names_in_pieces_and_missing_indexes_are_understood() {
    let piece = |name: &str| {
        format!(r#"{{"tool_calls":[{{"index":0,"id":"c","function":{{"name":"{name}"}}}}]}}"#)
    };
    let split = |last: &str| {
        stream(
            "a",
            &[ROLE, &piece("re"), &piece("ca"), &piece(last), ARGUMENTS],
            TOOLS,
            [1, 0, 1, 0],
        )
    };
    let (_, rounds) = streamed(Chat, &[&split("ll"), &answering("b")]);
    assert_eq!(nexts(&rounds), [Next::Recall, Next::Final]);
    for last in ["lm", "l"] {
        let (out, rounds) = streamed(Chat, &[&split(last)]);
        assert_eq!(nexts(&rounds), [Next::Final]);
        let name = &valid::chat(&out)["message"]["tool_calls"][0]["name"];
        assert_eq!(*name, format!("reca{last}"));
    }
    // Every call whole, all with the same index, or none.
    for index in ["\"index\":0,", ""] {
        let whole = |id: &str, name: &str| {
            format!(
                r#"{{"tool_calls":[{{{index}"id":"{id}","type":"function","function":{{"name":"{name}","arguments":"{{}}"}},"extra_content":{{"s":1}}}}]}}"#
            )
        };
        let round = stream("a", &[&whole("r", NAME), &whole("s", NAME)], TOOLS, [1, 0, 1, 0]);
        let (_, rounds) = streamed(Chat, &[&round, &answering("b")]);
        assert_eq!(nexts(&rounds), [Next::Recall, Next::Final]);
        assert_eq!(rounds[0].calls.len(), 2);
        assert!(rounds[0].calls[1].raw.ends_with(r#","extra_content":{"s":1}}"#));
    }
}

#[test]
fn reasoning_is_echoed_and_answers_may_end_after_the_limit_of_rounds() {
    let round = stream(
        "a",
        &[
            r#"{"role":"assistant","content":null,"reasoning_content":"hm"}"#,
            r#"{"reasoning_details":[{"type":"reasoning.text","text":"h","index":0}]}"#,
            r#"{"reasoning_details":[{"type":"reasoning.text","text":"m","index":0,"signature":"s"}]}"#,
            &call(0, "r", NAME),
            r#"{"tool_calls":[{"index":0,"function":{"arguments":"nonsense"}}]}"#,
        ],
        TOOLS,
        [10, 0, 1, 0],
    );
    let (out, rounds) = streamed(Chat, &[&round]);
    assert_eq!(nexts(&rounds), [Next::Recall]);
    let answer = valid::chat(&out);
    assert_eq!(answer["finish_reason"], "stop");
    assert_eq!(answer["usage"]["prompt_tokens"], 10);
    assert_eq!(rounds[0].calls[0].arguments, "nonsense");
    assert_eq!(
        json(&rounds[0].assistant),
        value!({"role": "assistant", "content": null, "reasoning_content": "hm",
            "reasoning_details": [{"type": "reasoning.text", "text": "hm", "index": 0, "signature": "s"}],
            "tool_calls": [{"id": "r", "type": "function",
                "function": {"name": "recall", "arguments": "{}"}}]})
    );
}

#[test]
fn what_cannot_be_answered_ends_without_the_call() {
    let limit = stream("a", &[ROLE, &call(0, "r", NAME)], r#""length""#, [1, 0, 1, 0]);
    let (out, rounds) = streamed(Chat, &[&limit]);
    assert_eq!(nexts(&rounds), [Next::Ended]);
    assert_eq!(valid::chat(&out)["finish_reason"], "length");
    let many: Vec<String> = (0..20).map(|index| call(index, &format!("r{index}"), NAME)).collect();
    let mut deltas = vec![ROLE];
    deltas.extend(many.iter().map(String::as_str));
    let (out, rounds) = streamed(Chat, &[&stream("a", &deltas, TOOLS, [1, 0, 1, 0])]);
    assert_eq!(nexts(&rounds), [Next::Ended]);
    assert_eq!(valid::chat(&out)["finish_reason"], "stop");
    assert_eq!(rounds[0].calls.len(), MAX_CALLS);
    let large = "x".repeat(MAX_ARGUMENTS_BYTES + 1);
    let large = format!(r#"{{"tool_calls":[{{"index":0,"function":{{"arguments":"{large}"}}}}]}}"#);
    let asked = stream("a", &[ROLE, &call(0, "r", NAME), &large], TOOLS, [1, 0, 1, 0]);
    let (out, rounds) = streamed(Chat, &[&asked]);
    assert_eq!(nexts(&rounds), [Next::Ended]);
    assert_eq!(valid::chat(&out)["finish_reason"], "stop");
    let cut =
        asking("a").split_once(r#""finish_reason":"tool_calls""#).expect("an end").0.to_owned();
    let (_, rounds) = streamed(Chat, &[&cut[..cut.rfind("data: ").expect("an event")]]);
    assert_eq!(nexts(&rounds), [Next::Cut]);
}

#[test]
fn usage_in_the_last_chunk_and_no_last_line() {
    let end = |id: &str, reason: &str| {
        chunk(id, "{}", reason)
            .replace(r#""usage":null"#, r#""usage":{"prompt_tokens":4,"completion_tokens":2}"#)
    };
    let call = call(0, "r", NAME);
    let first = [chunk("a", ROLE, "null"), chunk("a", &call, "null"), end("a", TOOLS)];
    let second = [chunk("b", r#"{"content":"x"}"#, "null"), end("b", r#""stop""#)];
    let stream = |all: &[String]| {
        let all = chunks(&all.iter().map(String::as_str).collect::<Vec<_>>());
        all.replace("data: [DONE]\n\n", "")
    };
    let (out, rounds) = streamed(Chat, &[&stream(&first), &stream(&second)]);
    assert_eq!(nexts(&rounds), [Next::Recall, Next::Final]);
    let answer = valid::chat(&(out + "data: [DONE]\n\n"));
    assert_eq!(answer["usage"], value!({"prompt_tokens": 8, "completion_tokens": 4}));
}

fn plain(id: &str, message: &str, reason: &str, prompt: u32) -> String {
    format!(
        r#"{{"id":"{id}", "choices":[{{"index":0,"message":{message},"finish_reason":"{reason}"}}],"usage":{{"prompt_tokens":{prompt},"completion_tokens":1}}}}"#
    )
}

#[test]
fn whole_answers_are_joined() {
    let own = r#"{"id":"o","type":"function","function":{"name":"f","arguments":"{}"}}"#;
    let tool = r#"{"id":"r","type":"function","function":{"name":"recall","arguments":"{\"query\":\"x\"}"}}"#;
    let first = plain(
        "a",
        &format!(
            r#"{{"role":"assistant","content":"One.","refusal":null,"annotations":[],"tool_calls":[{tool}]}}"#
        ),
        "tool_calls",
        10,
    );
    let last = plain("b", r#"{"role":"assistant", "content":"Two."}"#, "stop", 20);
    let mixed = plain(
        "c",
        &format!(r#"{{"role":"assistant","content":null,"tool_calls":[{tool},{own}]}}"#),
        "tool_calls",
        5,
    );
    let round = read(Chat, NAME, first.as_bytes());
    assert_eq!((round.next, &*round.calls[0].id), (Next::Recall, "r"));
    assert_eq!(round.calls[0].arguments, r#"{"query":"x"}"#);
    assert_eq!(
        round.assistant,
        format!(r#"{{"role":"assistant","content":"One.","tool_calls":[{tool}]}}"#)
    );
    let bodies = |all: &[&str]| {
        let all: Vec<&[u8]> = all.iter().map(|body| body.as_bytes()).collect();
        joined(Chat, NAME, &all).map(|body| String::from_utf8(body).expect("text"))
    };
    assert_eq!(bodies(&[&last]), None);
    assert_eq!(
        bodies(&[&first, &last]).expect("an answer"),
        r#"{"id":"b", "choices":[{"index":0,"message":{"role":"assistant", "content":"One.\n\nTwo."},"finish_reason":"stop"}],"usage":{"prompt_tokens":30,"completion_tokens":2}}"#
    );
    let alone = bodies(&[&first]).expect("an answer");
    assert_eq!(json(&alone)["choices"][0]["finish_reason"], "stop");
    assert!(json(&alone)["choices"][0]["message"].get("tool_calls").is_none());
    let round = read(Chat, NAME, mixed.as_bytes());
    assert_eq!((round.next, round.others), (Next::Mixed, vec!["o".to_owned()]));
    assert_eq!(round.calls[0].before.as_deref(), Some("o"));
    let both = json(&bodies(&[&first, &mixed]).expect("an answer"));
    assert_eq!(both["choices"][0]["message"]["content"], "One.");
    assert_eq!(both["choices"][0]["message"]["tool_calls"], value!([json(own)]));
    assert_eq!(both["choices"][0]["finish_reason"], "tool_calls");
    assert_eq!(read(Chat, NAME, b"{").next, Next::Cut);
    assert_eq!(read(Chat, NAME, br#"{"error":{"message":"x"}}"#).next, Next::Final);
}

#[test]
fn several_choices_lose_the_tool_s_calls_alone() {
    let second = |raw: String| raw.replace(r#""choices":[{"index":0"#, r#""choices":[{"index":1"#);
    let round = chunks(&[
        &chunk("a", ROLE, "null"),
        &second(chunk("a", ROLE, "null")),
        &second(chunk("a", &call(0, "r", NAME), "null")),
        &chunk("a", r#"{"content":"x"}"#, "null"),
        &chunk("a", "{}", r#""stop""#),
        &second(chunk("a", "{}", TOOLS)),
    ]);
    let (out, rounds) = streamed(Chat, &[&round]);
    assert_eq!(nexts(&rounds), [Next::Ended]);
    assert!(!out.contains("tool_calls"), "{out}");
    assert_eq!(out.matches(r#""finish_reason":"stop""#).count(), 2);
    assert!(out.ends_with("data: [DONE]\n\n"));
}
