//! Usage in the words of many providers, in whole answers and in events.

use proptest::prelude::*;

use super::figures::MAX_COUNT;
use super::*;

fn usage(figures: [Option<u64>; 5]) -> Usage {
    let [prompt, completion, cached, cache_write, reasoning] = figures;
    Usage {
        prompt_tokens: prompt,
        completion_tokens: completion,
        cached_tokens: cached,
        cache_write_tokens: cache_write,
        reasoning_tokens: reasoning,
        ..Usage::default()
    }
}

#[test]
fn usage_is_read_under_every_provider_s_names() {
    for (json, expected) in [
        (
            r#"{"prompt_tokens":20,"completion_tokens":5,"total_tokens":25,
                "prompt_tokens_details":{"cached_tokens":16,"text_tokens":4},
                "completion_tokens_details":{"reasoning_tokens":3}}"#,
            [Some(20), Some(5), Some(16), None, Some(3)],
        ),
        (
            r#"{"prompt_tokens":20,"completion_tokens":5,"prompt_cache_hit_tokens":12,
                "prompt_cache_miss_tokens":8}"#,
            [Some(20), Some(5), Some(12), None, None],
        ),
        (
            r#"{"input_tokens":10,"cache_read_input_tokens":100,"cache_creation_input_tokens":7,
                "output_tokens":4}"#,
            [Some(117), Some(4), Some(100), Some(7), None],
        ),
        (
            r#"{"input_tokens":10,"input_tokens_details":{"cached_tokens":8},"output_tokens":4,
                "output_tokens_details":{"reasoning_tokens":2}}"#,
            [Some(10), Some(4), Some(8), None, Some(2)],
        ),
        (
            r#"{"prompt_tokens":9,"cached_tokens":5,"prompt_tokens_details":null}"#,
            [Some(9), None, Some(5), None, None],
        ),
        (
            r#"{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":0,
                "cache_write_tokens":6},"cached_tokens":5}"#,
            [Some(9), None, Some(0), Some(6), None],
        ),
        (r#"{"prompt_tokens":0,"completion_tokens":0}"#, [Some(0), Some(0), None, None, None]),
        (
            r#"{"prompt_tokens":0,"completion_tokens":0,"input_tokens":1000,"output_tokens":100}"#,
            [Some(1000), Some(100), None, None, None],
        ),
        (
            r#"{"prompt_tokens":9,"prompt_tokens_details":{"cache_write_tokens":0},
                "cache_creation_input_tokens":5}"#,
            [Some(9), None, None, Some(5), None],
        ),
        ("{}", [None; 5]),
    ] {
        let body = format!(r#"{{"id":"x","usage":{json},"choices":[]}}"#);
        assert_eq!(Usage::of(body.as_bytes()), Some(usage(expected)), "{json}");
    }
}

#[test]
fn what_is_no_usage_is_none() {
    for body in [
        "",
        "[]",
        "null",
        "{",
        r#"{"id":1}"#,
        r#"{"usage":null}"#,
        r#"{"usage":5}"#,
        r#"{"usage":"5"}"#,
        r#"{"usage":[{"prompt_tokens":1}]}"#,
        r#"{"nested":{"usage":{"prompt_tokens":1}}}"#,
        r#"{"usage":{"prompt_tokens":1}"#,
        r#"{"usage":{"prompt_tokens":1}} x"#,
    ] {
        assert_eq!(Usage::of(body.as_bytes()), None, "{body}");
    }
}

#[test]
fn an_absurd_figure_is_missing_and_spoils_no_other() {
    for figure in [
        "-1",
        "1e999",
        "\"\"",
        "\"7 tokens\"",
        "9007199254740993",
        "99999999999999999999999",
        "null",
        "\"x\"",
        "true",
        "[1]",
        "{}",
    ] {
        let body = format!(r#"{{"usage":{{"prompt_tokens":{figure},"completion_tokens":3}}}}"#);
        let expected = usage([None, Some(3), None, None, None]);
        assert_eq!(Usage::of(body.as_bytes()), Some(expected), "{figure}");
    }
    for (figure, expected) in
        [("100.0", 100), ("1e3", 1000), ("\"7\"", 7), ("999.5", 1000), ("\"1,000\"", 1000)]
    {
        let body = format!(r#"{{"usage":{{"prompt_tokens":{figure}}}}}"#);
        let usage = Usage::of(body.as_bytes()).expect("usage");
        assert_eq!(usage.prompt_tokens, Some(expected), "{figure}");
    }
    let body = r#"{"usage":{"prompt_tokens":9007199254740992}}"#;
    assert_eq!(Usage::of(body.as_bytes()).and_then(|u| u.prompt_tokens), Some(MAX_COUNT));
    let huge = r#"{"usage":{"input_tokens":9007199254740992,
        "cache_read_input_tokens":9007199254740992,"cache_creation_input_tokens":9007199254740992}}"#;
    assert_eq!(Usage::of(huge.as_bytes()).and_then(|u| u.prompt_tokens), Some(3 * MAX_COUNT));
}

#[test]
fn figures_count_however_they_are_written_and_a_mark_before_them_does_not() {
    for figure in ["7", "7.0", "70e-1", "\"7\"", "\"7.0\""] {
        for mark in ["", "\u{feff}"] {
            let body = format!(r#"{mark}{{"usage":{{"prompt_tokens":{figure}}}}}"#);
            let expected = usage([Some(7), None, None, None, None]);
            assert_eq!(Usage::of(body.as_bytes()), Some(expected), "{body}");
            let event = format!("{mark}data: {}\n\n", body.trim_start_matches('\u{feff}'));
            let metered = metered("text/event-stream", &[event.as_bytes()]);
            assert_eq!(metered.usage, Some(expected), "{event}");
        }
    }
}

#[test]
fn the_last_of_equal_keys_counts_and_escapes_are_read() {
    let body = r#"{"usage":{"prompt_tokens":1},"us\u0061ge":{"prompt_tokens":2}}"#;
    assert_eq!(Usage::of(body.as_bytes()).and_then(|u| u.prompt_tokens), Some(2));
}

#[test]
fn fees_are_read_wherever_they_are_reported() {
    type Row = (&'static str, fn(&Usage) -> Option<u64>, u64);
    let rows: [Row; 8] = [
        (
            r#"{"cache_creation_input_tokens":10,"cache_creation":{"ephemeral_5m_input_tokens":3,
                "ephemeral_1h_input_tokens":5}}"#,
            |usage| usage.cache_write_1h_tokens,
            5,
        ),
        (
            r#"{"input_tokens":1,"cache_creation":{"ephemeral_5m_input_tokens":3,
                "ephemeral_1h_input_tokens":5}}"#,
            |usage| usage.prompt_tokens,
            9,
        ),
        (
            r#"{"server_tool_use":{"web_search_requests":3,"web_fetch_requests":2}}"#,
            |usage| usage.web_searches,
            3,
        ),
        (r#"{"server_tool_use":{"code_execution_requests":2}}"#, |usage| usage.tool_calls, 2),
        (r#"{"cost":0.0012345}"#, |usage| usage.stated_nano_usd, 1_234_500),
        (
            r#"{"output_tokens_details":{"image_tokens":700}}"#,
            |usage| usage.image_output_tokens,
            700,
        ),
        (r#"{"type":"duration","seconds":90}"#, |usage| usage.audio_ms, 90_000),
        (
            r#"{"prompt_tokens":7,"prompt_tokens_details":{"cached_tokens":0}}"#,
            |usage| usage.cached_tokens,
            0,
        ),
    ];
    for (json, figure, expected) in rows {
        let body = format!(r#"{{"usage":{json}}}"#);
        let usage = Usage::of(body.as_bytes()).expect("usage");
        assert_eq!(figure(&usage), Some(expected), "{json}");
        assert!(!usage.has_unknown, "{json}");
    }
    let calls = r#"{"object":"response","output":[{"type":"web_search_call","id":"a"},
        {"type":"message","content":[]},{"type":"file_search_call"},{"type":"web_search_call"}],
        "usage":{"input_tokens":1,"output_tokens":1}}"#;
    let usage = Usage::of(calls.as_bytes()).expect("usage");
    assert_eq!((usage.web_searches, usage.tool_calls), (Some(2), Some(1)));
}

#[test]
fn a_transcription_has_its_length() {
    for (json, expected) in [
        (r#""text":"hm","duration":8.5,"segments":[]"#, Some(Some(8500))),
        (r#""duration":"8.5","text":"hm""#, Some(Some(8500))),
        (r#""text":"hm","duration":8.5,"usage":{"seconds":9}"#, Some(Some(9000))),
        (r#""text":"hm""#, None),
        (r#""duration":8.5"#, None),
    ] {
        let usage = Usage::of(format!("{{{json}}}").as_bytes());
        assert_eq!(usage.map(|usage| usage.audio_ms), expected, "{json}");
    }
}

#[test]
fn a_member_above_zero_that_is_not_known_is_noticed() {
    for (json, has_unknown) in [
        (r#"{"prompt_tokens":1,"video_tokens":3}"#, true),
        (r#"{"prompt_tokens":1,"video_tokens":0,"note":"5","flag":true,"none":null}"#, false),
        (r#"{"prompt_tokens_details":{"video_tokens":3}}"#, true),
        (r#"{"maps":{"grounded":{"queries":2}}}"#, true),
        (r#"{"maps":{"grounded":0},"list":[0,0]}"#, false),
        (r#"{"list":[0,1]}"#, true),
        (r#"{"completion_tokens_details":{"accepted_prediction_tokens":9}}"#, false),
        (r#"{"prompt_time":0.5,"total_tokens":9,"num_cached_tokens":4}"#, false),
    ] {
        let body = format!(r#"{{"usage":{json}}}"#);
        let usage = Usage::of(body.as_bytes()).expect("usage");
        assert_eq!(usage.has_unknown, has_unknown, "{json}");
    }
}

#[test]
fn of_two_reports_the_larger_counts_and_inner_inferences_are_billed_apart() {
    let stream = b"data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":5000,\"cache_read_input_tokens\":1000,\"output_tokens\":1}}}\n\ndata: {\"type\":\"message_delta\",\"delta\":{},\"usage\":{\"input_tokens\":0,\"cache_read_input_tokens\":0,\"output_tokens\":7,\"speed\":\"fast\",\"iterations\":[{\"type\":\"compaction\",\"input_tokens\":50,\"output_tokens\":2},{\"type\":\"message\",\"input_tokens\":5000,\"output_tokens\":7}]}}\n\ndata: {\"type\":\"message_stop\"}\n\n";
    let found = metered("text/event-stream", &[stream]);
    assert_eq!(found.usage, Some(usage([Some(6000), Some(7), Some(1000), None, None])));
    let inner = usage([Some(50), Some(2), None, None, None]);
    let inner = InnerUsage { usage: inner, model: None };
    assert_eq!((found.apart, found.speed.as_deref()), (vec![inner], Some("fast")));
}

fn metered(content_type: &str, parts: &[&[u8]]) -> Metered {
    let mut meter = Meter::new(Some(content_type));
    for part in parts {
        meter.feed(part);
    }
    meter.finish()
}

const STREAM: &str = "data: {\"choices\":[],\"usage\":null}\n\n\
    : heartbeat\n\n\
    data: {\"choices\":[{\"delta\":{\"content\":\"\\\"usage\\\" grüße\"},\"finish_reason\":null}],\"usage\":null}\n\n\
    data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"tool_calls\"}],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":1}}\n\n\
    data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2}}\n\n\
    data: [DONE]\n\n";

#[test]
fn a_stream_is_metered_whatever_its_cuts() {
    let expected = Metered {
        usage: Some(usage([Some(7), Some(2), None, None, None])),
        finish_reason: Some("tool_calls".to_owned()),
        said_bytes: 15,
        has_content: true,
        done: true,
        events: 5,
        ..Metered::default()
    };
    let bytes = STREAM.as_bytes();
    assert_eq!(metered("text/event-stream; charset=utf-8", &[bytes]), expected);
    let bytewise: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(metered("Text/Event-Stream", &bytewise), expected);
}

#[test]
fn a_report_before_content_without_text_is_no_report_of_its_output() {
    let begun =
        r#"{"type":"message_start","message":{"usage":{"input_tokens":9,"output_tokens":1}}}"#;
    let thinking = r#"{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":""}}"#;
    let signed = r#"{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"c2ln"}}"#;
    let call = r#"{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"t","name":"n","input":{}}}"#;
    let chat = r#"{"choices":[{"delta":{"role":"assistant"}}],"usage":{"prompt_tokens":9,"completion_tokens":1}}"#;
    let hidden = r#"{"choices":[{"delta":{"reasoning_details":[{"type":"reasoning.encrypted","data":"c2ln"}]}}]}"#;
    let error = r#"{"type":"error","error":{"type":"overloaded_error","message":"busy"}}"#;
    let found = |events: &[&str]| {
        let events = events.iter().map(|data| format!("data: {data}\n\n"));
        let found = metered("text/event-stream", &[events.collect::<String>().as_bytes()]);
        (found.usage.and_then(|usage| usage.completion_tokens), found.has_content)
    };
    for (events, expected) in [
        (&[begun][..], (Some(1), false)),
        (&[begun, thinking], (Some(1), false)),
        (&[begun, thinking, error], (Some(1), false)),
        (&[begun, thinking, signed], (None, true)),
        (&[begun, call, error], (None, true)),
        (&[chat], (Some(1), false)),
        (&[chat, hidden, error], (None, true)),
    ] {
        assert_eq!(found(events), expected, "{events:?}");
    }
}

#[test]
fn a_cut_stream_is_not_done() {
    let end = STREAM.find("data: [DONE]").expect("it is there");
    let cut = metered("text/event-stream", &[&STREAM.as_bytes()[..end]]);
    assert!(!cut.done);
    assert_eq!(cut.usage.and_then(|usage| usage.completion_tokens), Some(2));
    let nothing = metered("text/event-stream", &[b"data: oops\n\ndata: {\"choices\":7}\n\n"]);
    let other = Metered { events: 2, has_content: true, ..Metered::default() };
    assert_eq!(nothing, other);
}

#[test]
fn an_event_that_reports_a_failure_is_noticed() {
    for (event, failed, done) in [
        (r#"{"type":"response.failed","response":{"error":{"code":"server_error"}}}"#, true, true),
        (r#"{"type":"error","error":{"type":"overloaded_error","message":"x"}}"#, true, false),
        (r#"{"type":"error","code":"server_error","message":"x"}"#, true, false),
        (r#"{"error":{"message":"x","code":502}}"#, true, false),
        (r#"{"error":"x","error_type":"generation"}"#, true, false),
        (r#"{"id":"c","choices":[],"error":{"code":502}}"#, true, false),
        (r#"{"id":"c","choices":[],"error":null}"#, false, false),
        (r#"{"type":"response.completed","response":{"error":null}}"#, false, true),
        (r#"{"type":"response.incomplete","response":{"error":null}}"#, false, true),
        (r#"{"choices":[{"delta":{"content":"error"},"finish_reason":null}]}"#, false, false),
    ] {
        let stream = format!("data: {event}\n\n");
        let metered = metered("text/event-stream", &[stream.as_bytes()]);
        assert_eq!((metered.failed, metered.done), (failed, done), "{event}");
    }
    for (body, failed) in [
        (r#"{"error":{"message":"x"}}"#, true),
        (r#"{"choices":[{"message":{"content":"error"}}],"error":null}"#, false),
    ] {
        assert_eq!(metered("application/json", &[body.as_bytes()]).failed, failed, "{body}");
    }
}

#[test]
fn a_complete_answer_is_read_at_its_end() {
    let body = br#"{"choices":[{"finish_reason":"stop"},{"finish_reason":"length"}],
        "usage":{"prompt_tokens":3}}"#;
    let expected = Metered {
        usage: Some(usage([Some(3), None, None, None, None])),
        finish_reason: Some("stop".to_owned()),
        done: true,
        ..Metered::default()
    };
    assert_eq!(metered("application/json", &[&body[..20], &body[20..]]), expected);
    assert_eq!(metered("application/problem+json;v=1", &[body]), expected);
    assert_eq!(metered("text/plain", &[body]), Metered::default());
    assert!(!metered("application/json", &[&body[..20]]).done);
}

#[test]
fn an_overlong_answer_is_reported_as_such() {
    let piece = vec![b' '; MAX_ANSWER_BYTES / 2];
    let body = br#"{"usage":{"prompt_tokens":3}}"#;
    let fits: &[&[u8]] = &[&piece, &piece[body.len()..], body];
    assert!(metered("application/json", fits).usage.is_some());
    let past = metered("application/json", &[&piece, &piece, body]);
    assert_eq!(past, metered("application/json", fits));
    let past = metered("application/json", &[&piece, &piece, &body[1..]]);
    assert_eq!(past, Metered { overlong: true, ..Metered::default() });
    let event = [b"data: ".to_vec(), vec![b'x'; MAX_EVENT_BYTES], b"\n\ndata: [DONE]".to_vec()];
    let past = metered("text/event-stream", &[&event.concat()]);
    assert_eq!(past, Metered { overlong: true, done: true, events: 2, ..Metered::default() });
}

#[test]
fn the_usage_of_large_answers_and_events_is_found() {
    let picture = "A".repeat(MAX_EVENT_BYTES);
    let usage = r#""usage":{"input_tokens":7,"output_tokens":3}"#;
    for body in [
        format!(r#"{{"created":1,"data":[{{"b64_json":"{picture}"}}],{usage}}}"#),
        format!(r#"{{{usage},"data":[{}1]}}"#, "0.5,".repeat(MAX_ANSWER_BYTES / 4)),
    ] {
        let pieces: Vec<&[u8]> = body.as_bytes().chunks(8000).collect();
        let metered = metered("application/json", &pieces);
        assert_eq!(metered.usage.map(|usage| usage.prompt_tokens), Some(Some(7)));
        assert!(metered.done && !metered.overlong);
    }
    let event = format!(
        r#"{{"type":"response.completed","response":{{"model":"m","output":[{{"type":"image_generation_call","result":"{picture}"}},{{"type":"web_search_call"}}],{usage}}}}}"#
    );
    let chunk = format!(r#"{{"choices":[{{"delta":{{"content":"{picture}"}}}}],{usage}}}"#);
    let chunk = metered("text/event-stream", &[b"data: ", chunk.as_bytes(), b"\n\n"]);
    assert_eq!(chunk.usage.and_then(|usage| usage.completion_tokens), Some(3));
    let stream = format!("event: response.completed\r\ndata: {event}\r\n\r\n");
    let pieces: Vec<&[u8]> = stream.as_bytes().chunks(8000).collect();
    let metered = metered("text/event-stream", &pieces);
    assert_eq!(metered.model.as_deref(), Some("m"));
    let usage = metered.usage.expect("usage");
    assert_eq!((usage.prompt_tokens, usage.completion_tokens), (Some(7), Some(3)));
    assert_eq!((usage.web_searches, metered.events), (Some(1), 1));
    assert!(metered.done && !metered.overlong);
}

#[test]
fn figures_next_to_the_common_ones_are_read() {
    let of = |json: &str| Usage::of(format!(r#"{{"usage":{json}}}"#).as_bytes());
    let common = |prompt, completion| usage([prompt, completion, None, None, None]);
    for (json, expected) in [
        // OpenAI's audio models, in chat and in transcriptions.
        (
            r#"{"prompt_tokens":30,"completion_tokens":40,"total_tokens":70,
                "prompt_tokens_details":{"audio_tokens":20},
                "completion_tokens_details":{"audio_tokens":35,"reasoning_tokens":0}}"#,
            Usage {
                reasoning_tokens: Some(0),
                audio_input_tokens: Some(20),
                audio_output_tokens: Some(35),
                ..common(Some(30), Some(40))
            },
        ),
        (
            r#"{"type":"tokens","input_tokens":14,"output_tokens":101,"total_tokens":115,
                "input_token_details":{"text_tokens":0,"audio_tokens":14}}"#,
            Usage { audio_input_tokens: Some(14), ..common(Some(14), Some(101)) },
        ),
        (
            r#"{"type":"duration","seconds":9.5}"#,
            Usage { audio_ms: Some(9500), ..Usage::default() },
        ),
        (r#"{"type":"duration","seconds":-1}"#, Usage::default()),
        // Pictures, embeddings.
        (
            r#"{"total_tokens":100,"input_tokens":50,"output_tokens":50,
                "input_tokens_details":{"text_tokens":10,"image_tokens":40}}"#,
            Usage { image_input_tokens: Some(40), ..common(Some(50), Some(50)) },
        ),
        (r#"{"prompt_tokens":8,"total_tokens":8}"#, common(Some(8), None)),
    ] {
        assert_eq!(of(json), Some(expected), "{json}");
    }
}

#[test]
fn a_total_above_its_parts_raises_the_bill() {
    let of = |json: &str| Usage::of(format!(r#"{{"usage":{json}}}"#).as_bytes());
    for (json, expected) in [
        // Gemini behind OpenAI's names, xAI: reasoning is in the total alone.
        (
            r#"{"prompt_tokens":7,"completion_tokens":2,"total_tokens":109}"#,
            usage([Some(7), Some(102), None, None, Some(100)]),
        ),
        (
            r#"{"prompt_tokens":7,"completion_tokens":2,"total_tokens":109,
                "completion_tokens_details":{"reasoning_tokens":100}}"#,
            usage([Some(7), Some(102), None, None, Some(100)]),
        ),
        (
            r#"{"prompt_tokens":7,"completion_tokens":2,"total_tokens":109,
                "completion_tokens_details":{"reasoning_tokens":1}}"#,
            Usage { has_unknown: true, ..usage([Some(7), Some(102), None, None, Some(1)]) },
        ),
        (
            r#"{"prompt_tokens":7,"completion_tokens":2,"total_tokens":109,
                "completion_tokens_details":{"reasoning_tokens":0}}"#,
            usage([Some(7), Some(102), None, None, Some(100)]),
        ),
        // The difference may come from the cache, too.
        (
            r#"{"prompt_tokens":7,"completion_tokens":2,"total_tokens":109,
                "cache_read_input_tokens":40}"#,
            Usage { has_unknown: true, ..usage([Some(7), Some(102), Some(40), None, Some(100)]) },
        ),
        (
            r#"{"prompt_tokens":7,"completion_tokens":2,"total_tokens":109,
                "cache_read_input_tokens":100}"#,
            usage([Some(107), Some(2), Some(100), None, None]),
        ),
    ] {
        assert_eq!(of(json), Some(expected), "{json}");
    }
}

#[test]
fn geminis_own_figures_are_read() {
    let common = |prompt, completion| usage([prompt, completion, None, None, None]);
    let gemini = r#"{"usageMetadata":{"promptTokenCount":9,"candidatesTokenCount":3,
        "thoughtsTokenCount":40,"cachedContentTokenCount":4,"totalTokenCount":52}}"#;
    let expected = usage([Some(9), Some(43), Some(4), None, Some(40)]);
    assert_eq!(Usage::of(gemini.as_bytes()), Some(expected));
    let gemini = r#"{"usageMetadata":{"promptTokenCount":9,"candidatesTokenCount":3,
        "promptTokensDetails":[{"modality":"TEXT","tokenCount":2},{"modality":"AUDIO","tokenCount":7}],
        "candidatesTokensDetails":[{"modality":"IMAGE","tokenCount":3}]}}"#;
    let expected = Usage {
        audio_input_tokens: Some(7),
        image_output_tokens: Some(3),
        ..common(Some(9), Some(3))
    };
    assert_eq!(Usage::of(gemini.as_bytes()), Some(expected));
}

#[test]
fn searches_and_tools_in_a_chat_are_counted_once() {
    let search = |place: &str| {
        format!(
            r#"{{{place}"type":"builtin_function","function":{{"name":"$web_search","arguments":"{{}}"}}}}"#
        )
    };
    let (first, second) = (search(r#""index":0,"id":"a","#), search(r#""index":1,"id":"b","#));
    let own = r#"{"index":2,"id":"c","function":{"name":"web_search","arguments":"{}"}}"#;
    let tools = r#"{"index":0,"type":"browser.search"},{"index":1,"type":"python"}"#;
    let usage = r#""usage":{"prompt_tokens":9,"completion_tokens":3}"#;
    let choice = |name: &str, members: &str| {
        format!(r#""choices":[{{"index":0,"{name}":{{"role":"assistant",{members}}}}}]"#)
    };
    let calls = format!(r#""tool_calls":[{first},{second},{own}]"#);
    let bare = format!(r#""tool_calls":[{},{}]"#, search(""), search(""));
    let executed = format!(r#""executed_tools":[{tools}]"#);
    let grounded = r#"{"index":0,"groundingMetadata":{"webSearchQueries":["a"]}}"#;
    for (members, expected) in [
        (choice("message", &calls), (Some(2), None)),
        (choice("message", &bare), (Some(2), None)),
        (choice("message", &executed), (Some(1), Some(1))),
        (format!(r#""choices":[{grounded}]"#), (Some(1), None)),
        (format!(r#""candidates":[{grounded}]"#), (Some(1), None)),
        (r#""choices":[{"grounding_metadata":{}}]"#.to_owned(), (None, None)),
        (r#""choices":[],"web_search":[{"title":"a"},{"title":"b"}]"#.to_owned(), (Some(1), None)),
        (r#""choices":[],"web_search":[]"#.to_owned(), (None, None)),
    ] {
        let whole = Usage::of(format!("{{{members},{usage}}}").as_bytes()).expect("usage");
        assert_eq!((whole.web_searches, whole.tool_calls), expected, "{members}");
        // A stream may repeat what it has said.
        let part = format!("{{{}}}", members.replace("\"message\"", "\"delta\""));
        let last = format!(r#"{{"choices":[],{usage}}}"#);
        let streamed = stream(&[("x", &part), ("x", &part), ("x", &last)]).usage.expect("usage");
        assert_eq!((streamed.web_searches, streamed.tool_calls), expected, "{members}");
    }
}

#[test]
fn a_shell_in_a_container_is_a_session() {
    let shell =
        |environment: &str| format!(r#"{{"type":"shell_call","environment":{environment}}}"#);
    let own = shell(r#"{"type":"container_reference","container_id":"cntr_1"}"#);
    let other = shell(r#"{"type":"container_reference","container_id":"cntr_2"}"#);
    for (items, calls) in [
        (vec![shell(r#"{"type":"local"}"#), shell("null")], None),
        (vec![own.clone(), own.clone()], Some(SESSION_CALLS)),
        (vec![own, other, shell(r#"{"type":"container_auto"}"#)], Some(3 * SESSION_CALLS)),
    ] {
        let body = format!(
            r#"{{"output":[{}],"usage":{{"input_tokens":9,"output_tokens":3}}}}"#,
            items.join(",")
        );
        let usage = Usage::of(body.as_bytes()).expect("usage");
        assert_eq!(usage.tool_calls, calls, "{body}");
    }
}

/// Meters a stream of these events, given by name and data.
fn stream(events: &[(&str, &str)]) -> Metered {
    let text: String =
        events.iter().map(|(name, data)| format!("event: {name}\ndata: {data}\n\n")).collect();
    let whole = metered("text/event-stream", &[text.as_bytes()]);
    let bytewise: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
    assert_eq!(metered("text/event-stream", &bytewise), whole);
    whole
}

#[test]
fn a_stream_of_messages_is_read() {
    let anthropic = stream(&[
        (
            "message_start",
            r#"{"type":"message_start","message":{"id":"m","type":"message","role":"assistant",
                "model":"claude-x","content":[],"usage":{"input_tokens":10,
                "cache_creation_input_tokens":7,"cache_read_input_tokens":100,"output_tokens":1,
                "service_tier":"standard"}}}"#
                .replace('\n', "")
                .as_str(),
        ),
        ("ping", r#"{"type": "ping"}"#),
        (
            "content_block_delta",
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"four"}}"#,
        ),
        (
            "content_block_delta",
            r#"{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"a"}}"#,
        ),
        (
            "message_delta",
            r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":0}}"#,
        ),
        (
            "message_delta",
            r#"{"type":"message_delta","delta":{},"usage":{"output_tokens":15,"input_tokens":12}}"#,
        ),
        ("message_stop", r#"{"type":"message_stop"}"#),
    ]);
    let expected = Metered {
        usage: Some(usage([Some(119), Some(15), Some(100), Some(7), None])),
        model: Some("claude-x".to_owned()),
        service_tier: Some("standard".to_owned()),
        finish_reason: Some("end_turn".to_owned()),
        said_bytes: 7,
        has_content: true,
        done: true,
        events: 7,
        ..Metered::default()
    };
    assert_eq!(anthropic, expected);
}

#[test]
fn a_stream_of_responses_is_read() {
    for last in ["completed", "incomplete", "failed"] {
        let created = r#"{"type":"response.created","response":{"model":"gpt-x","usage":null}}"#;
        let delta = r#"{"type":"response.output_text.delta","delta":"grün","item_id":"i"}"#;
        let end = format!(
            r#"{{"type":"response.{last}","response":{{"model":"gpt-x","service_tier":"flex",
               "output":[{{"usage":{{"input_tokens":999}}}}],"usage":{{"input_tokens":10,
               "input_tokens_details":{{"cached_tokens":0}},"output_tokens":4,
               "output_tokens_details":{{"reasoning_tokens":2}},"total_tokens":14}}}}}}"#
        )
        .replace('\n', "");
        let name = format!("response.{last}");
        let events = [("response.created", created), ("delta", delta), (&name, &end)];
        let expected = Metered {
            usage: Some(usage([Some(10), Some(4), Some(0), None, Some(2)])),
            model: Some("gpt-x".to_owned()),
            service_tier: Some("flex".to_owned()),
            said_bytes: 5,
            has_content: true,
            done: true,
            failed: last == "failed",
            events: 3,
            ..Metered::default()
        };
        assert_eq!(stream(&events), expected, "{last}");
    }

    let groq = stream(&[("x", r#"{"choices":[],"x_groq":{"usage":{"prompt_tokens":3}}}"#)]);
    assert_eq!(groq.usage.and_then(|usage| usage.prompt_tokens), Some(3));
}

/// Each report of a stream has all calls; items of a response have theirs in events of their own.
#[test]
fn calls_of_tools_are_counted_once() {
    let tools = |calls: u32| {
        format!(
            r#"{{"type":"message_delta","usage":{{"output_tokens":5,"server_tool_use":{{"code_execution_requests":{calls}}}}}}}"#
        )
    };
    let (one, two) = (tools(1), tools(2));
    let metered = stream(&[("message_delta", &one), ("message_delta", &two)]);
    assert_eq!(metered.usage.and_then(|usage| usage.tool_calls), Some(2));
    let found = r#"{"type":"content_block_start","content_block":{"type":"web_search_tool_result","content":[]}}"#;
    let bare = r#"{"type":"message_delta","usage":{"output_tokens":5}}"#;
    let metered = stream(&[("x", found), ("x", found), ("x", bare)]);
    assert_eq!(metered.usage.and_then(|usage| usage.web_searches), Some(2));
    for (usage, searches) in
        [("", Some(1)), (r#","server_tool_use":{"web_search_requests":0}"#, Some(0))]
    {
        let body = format!(
            r#"{{"content":[{{"type":"text","text":"a"}},{{"type":"web_search_tool_result"}}],"usage":{{"output_tokens":5{usage}}}}}"#
        );
        assert_eq!(Usage::of(body.as_bytes()).and_then(|usage| usage.web_searches), searches);
    }
    let item = r#"{"type":"response.output_item.done","item":{"type":"web_search_call","id":"w"}}"#;
    let image = r#"{"type":"response.output_item.done","item":{"type":"image_generation_call"}}"#;
    let end = r#"{"type":"response.completed","response":{"output":[],"usage":{"input_tokens":9,"output_tokens":4}}}"#;
    let metered = stream(&[("x", item), ("x", item), ("x", image), ("x", end)]);
    let usage = metered.usage.expect("it is reported");
    assert_eq!((usage.web_searches, usage.pictures, usage.has_unknown), (Some(2), 1, true));
}

#[test]
fn each_attempt_with_output_is_billed_after_a_fallback() {
    let one = |kind: &str, model: &str, input: u32, output: u32| {
        format!(
            r#"{{"type":"{kind}","model":"{model}","input_tokens":{input},"output_tokens":{output}}}"#
        )
    };
    let read = |iterations: &[String]| {
        let body = format!(
            r#"{{"model":"first","usage":{{"input_tokens":12,"output_tokens":26,"iterations":[{}]}}}}"#,
            iterations.join(",")
        );
        metered("application/json", &[body.as_bytes()])
    };
    let last = one("fallback_message", "other", 12, 26);
    let refused = read(&[one("message", "first", 35, 0), last.clone()]);
    assert_eq!((refused.apart.len(), refused.model.as_deref()), (0, Some("other")));
    let cut = read(&[one("message", "first", 35, 900), last.clone()]);
    assert_eq!(cut.apart[0].model.as_deref(), Some("first"));
    assert_eq!(cut.apart[0].usage.completion_tokens, Some(900));
    let own = cut.usage.expect("usage");
    assert_eq!((own.prompt_tokens, own.completion_tokens), (Some(12), Some(26)));
    let twice = read(&[one("message", "first", 35, 0), last.clone(), last]);
    let own = twice.usage.expect("usage");
    assert_eq!((own.prompt_tokens, own.completion_tokens), (Some(24), Some(52)));
    let plain = read(&[one("message", "first", 12, 26), one("compaction", "first", 50, 2)]);
    assert_eq!((plain.apart.len(), plain.model.as_deref()), (1, Some("first")));
}

#[test]
fn a_report_that_content_follows_is_not_the_last() {
    let start =
        r#"{"type":"message_start","message":{"usage":{"input_tokens":5000,"output_tokens":1}}}"#;
    let text = r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":"much"}}"#;
    let (bare, end) = (
        r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"}}"#,
        r#"{"type":"message_delta","usage":{"output_tokens":70}}"#,
    );
    for (last, output) in [(bare, None), (end, Some(70))] {
        let metered = stream(&[("x", start), ("x", text), ("x", last)]);
        let usage = metered.usage.expect("it is reported");
        assert_eq!((usage.prompt_tokens, usage.completion_tokens), (Some(5000), output));
    }
    let moonshot = r#"{"choices":[{"delta":{},"finish_reason":"stop","usage":{"prompt_tokens":9,"completion_tokens":3}}]}"#;
    let usage = stream(&[("x", moonshot)]).usage.expect("it is reported");
    assert_eq!((usage.prompt_tokens, usage.completion_tokens), (Some(9), Some(3)));
}

#[test]
fn what_is_said_is_measured() {
    for (delta, bytes) in [
        (r#"{"content":"four"}"#, 4),
        (r#"{"role":"assistant","content":null,"refusal":"no"}"#, 2),
        (r#"{"content":"a\n\"\u00e9\u20ac\ud83d\ude00"}"#, 1 + 1 + 1 + 2 + 3 + 4),
        (r#"{"content":"half \ud83d"}"#, 7),
        (r#"{"reasoning_content":"abc","reasoning":"abc","content":"d"}"#, 4),
        (r#"{"content":[{"type":"text","text":"ab"},{"type":"x","y":"no"},"z"]}"#, 2),
        (
            r#"{"tool_calls":[{"index":0,"id":"i","function":{"name":"f","arguments":"{}"}},
                {"custom":{"input":"abc"}}]}"#,
            6,
        ),
        (r#"{"function_call":{"name":"f","arguments":"{\"a\":1}"}}"#, 8),
        (r#"{"audio":{"id":"i","data":"AAAA","transcript":"hm"}}"#, 2),
        (r#"{"content":5,"tool_calls":{},"audio":null,"other":"x"}"#, 0),
    ] {
        let chunk = format!(
            r#"{{"choices":[{{"delta":{delta},"finish_reason":"stop"}},{{"text":"x","finish_reason":"no"}}]}}"#
        );
        let chunk = chunk.replace('\n', "");
        let metered = metered("text/event-stream", &[b"data: ", chunk.as_bytes(), b"\n\n"]);
        assert_eq!(metered.said_bytes, bytes + 1, "{delta}");
        assert_eq!(metered.finish_reason.as_deref(), Some("stop"), "{delta}");
    }
    let whole = br#"{"choices":[{"message":{"content":"four"}}]}"#;
    assert_eq!(metered("application/json", &[whole]).said_bytes, 4);
}

#[test]
fn a_model_s_name_is_believed_up_to_a_length() {
    let model = |name: &str| {
        let body = format!(r#"{{"model":"{name}"}}"#);
        metered("application/json", &[body.as_bytes()]).model
    };
    let longest = "m".repeat(MAX_MODEL_BYTES);
    assert_eq!(model(&longest), Some(longest.clone()));
    assert_eq!(model(&(longest + "m")), None);
    assert_eq!(model(r"a\u002db").as_deref(), Some("a-b"));
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Usage::of(&bytes);
        metered("application/json", &[&bytes]);
        metered("text/event-stream", &[b"data: ", &bytes, b"\n\n"]);
    }

    #[test]
    fn any_cut_of_a_stream_is_read_without_panic(cut in 0..STREAM.len()) {
        let part = &STREAM.as_bytes()[cut..];
        metered("text/event-stream", &[part]);
        let _ = Usage::of(part);
    }
}
