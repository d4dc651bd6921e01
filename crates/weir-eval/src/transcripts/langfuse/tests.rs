//! Observations of Langfuse, as its interface and its API export them.

use crate::recorded::{ReadText, TextForm, read};

fn observation(rest: &str) -> String {
    format!(
        r#"{{"id":"o","traceId":"t","type":"GENERATION","name":"n","startTime":"1970-01-01T00:01:00.000Z","endTime":"1970-01-01T00:01:02.000Z","model":"gpt-4o",{rest}}}"#
    )
}

#[test]
fn each_generation_is_a_request() {
    let list = r#"[{"role":"system","content":"s"},{"role":"user","content":"x"}]"#;
    let quoted = crate::transcripts::quoted(list);
    let parted = r#"[{"role":"user","parts":[{"type":"text","content":"x"}]}]"#;
    // All that has input or a cache in its name is a part of input.
    let openai = r#"{"input":1000,"input_cached_tokens":4000,"output":90,"output_reasoning_tokens":10,"total":5100}"#;
    let anthropic = r#"{"input":10,"cache_read_input_tokens":4000,"cache_creation_input_tokens":990,"output":100,"total":5100}"#;
    let inclusive = r#"{"input":5000,"output":100,"total":5100,"cache_read_input_tokens":4000}"#;
    for (rest, messages, written) in [
        (format!(r#""input":{list},"usageDetails":{openai}"#), 2, 0),
        (format!(r#""input":{quoted},"usageDetails":{anthropic}"#), 2, 990),
        (format!(r#""input":{{"messages":{list},"tools":[]}},"usageDetails":{inclusive}"#), 2, 0),
        (format!(r#""input":{parted},"usageDetails":{openai}"#), 1, 0),
        (format!(r#""input":"Say x.","usageDetails":{openai}"#), 1, 0),
    ] {
        let own = observation(&rest);
        let span = r#"{"id":"s","traceId":"t","type":"SPAN","startTime":"1970-01-01T00:01:00Z","input":"x"}"#;
        for text in [
            own.clone(),
            format!("{own}\n{span}\n"),
            format!("[{own},{span}]"),
            format!(r#"{{"data":[{span},{own}],"meta":{{"page":1}}}}"#),
            format!(r#"{{"id":"t","timestamp":"t","observations":[{span},{own}]}}"#),
            format!(r#"[{{"id":"t","observations":[{own}]}}]"#),
        ] {
            let ReadText { form, recorded: found, left_out } =
                read(&text, None).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!((form, found.len(), left_out), (TextForm::Langfuse, 1, None), "{text}");
            let read = found[0].protocol.read(found[0].body.as_bytes(), 9).expect("readable");
            assert_eq!((read.messages.len(), read.model.as_deref()), (messages, Some("gpt-4o")));
            let exchange = &found[0].exchanges[0];
            let usage = exchange.reported.usage.expect("it has one");
            assert_eq!((exchange.at_ms, usage.prompt_tokens), (Some(60_000), Some(5000)), "{text}");
            assert_eq!(
                (usage.cached_tokens, usage.cache_write_tokens),
                (Some(4000), Some(written))
            );
            assert_eq!(usage.completion_tokens, Some(100), "{text}");
        }
    }
}

#[test]
fn what_has_no_messages_is_named() {
    for (rest, reason) in [
        (r#""input":null"#, "has no input"),
        (r#""input":{"question":"x"}"#, "has an input without messages"),
    ] {
        let text = observation(rest);
        let error = read(&format!("[{text}]"), None).expect_err("it has none");
        assert_eq!(error, format!("Line 1 {reason}; it is left out"));
    }
    let failed = observation(r#""input":"x","level":"ERROR""#);
    let found = read(&failed, None).expect("a request").recorded;
    assert!(found[0].exchanges[0].is_free);
}
