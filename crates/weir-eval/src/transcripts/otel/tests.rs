//! Traces and logs of OpenTelemetry, as collectors and SDKs write them.

use crate::recorded::{ReadText, TextForm, read};
use weir_engine::wire::{Protocol, Role};

const MESSAGES: &str = r#"[{"role":"user","parts":[{"type":"text","content":"Weather in Paris?"}]},{"role":"assistant","parts":[{"type":"reasoning","content":"Hm."},{"type":"tool_call","id":"c","name":"get_weather","arguments":{"location":"Paris"}}]},{"role":"tool","parts":[{"type":"tool_call_response","id":"c","response":"rainy"}]}]"#;
const SYSTEM: &str = r#"[{"type":"text","content":"Be brief."}]"#;

/// Attribute of OTLP with a text.
fn text(key: &str, value: &str) -> String {
    let value = crate::transcripts::quoted(value);
    format!(r#"{{"key":"{key}","value":{{"stringValue":{value}}}}}"#)
}

fn number(key: &str, value: u32) -> String {
    format!(r#"{{"key":"{key}","value":{{"intValue":"{value}"}}}}"#)
}

fn facts() -> Vec<String> {
    vec![
        text("gen_ai.operation.name", "chat"),
        text("gen_ai.request.model", "gpt-4o"),
        text("gen_ai.response.model", "gpt-4o-2024-08-06"),
        text("gen_ai.response.id", "r"),
        number("gen_ai.usage.input_tokens", 5000),
        number("gen_ai.usage.cache_read.input_tokens", 4000),
        number("gen_ai.usage.output_tokens", 100),
    ]
}

fn content() -> Vec<String> {
    vec![text("gen_ai.input.messages", MESSAGES), text("gen_ai.system_instructions", SYSTEM)]
}

fn span(attributes: &[String], rest: &str) -> String {
    let attributes = attributes.join(",");
    format!(
        r#"{{"traceId":"4b","spanId":"0a","name":"chat gpt-4o","startTimeUnixNano":"60000000000","endTimeUnixNano":"61000000000","attributes":[{attributes}]{rest}}}"#
    )
}

fn traces(spans: &str) -> String {
    format!(
        r#"{{"resourceSpans":[{{"resource":{{"attributes":[]}},"scopeSpans":[{{"scope":{{"name":"s"}},"spans":[{spans}]}}]}}]}}"#
    )
}

#[test]
fn each_call_of_a_model_is_a_request() {
    let all = [facts(), content()].concat();
    let agent = span(&[text("gen_ai.operation.name", "invoke_agent")], "");
    let details = |attributes: &[String]| {
        let attributes = attributes.join(",");
        format!(
            r#""name":"gen_ai.client.inference.operation.details","timeUnixNano":"61","attributes":[{attributes}]"#
        )
    };
    let in_event = span(&facts(), &format!(r#","events":[{{{}}}]"#, details(&content())));
    let record = format!(
        r#"{{"resourceLogs":[{{"scopeLogs":[{{"logRecords":[{{"timeUnixNano":"60000000000","eventName":"gen_ai.client.inference.operation.details","body":{{}},"attributes":[{}]}}]}}]}}]}}"#,
        all.join(",")
    );
    let printed = format!(
        r#"{{"name":"chat gpt-4o","context":{{"span_id":"0x0a"}},"start_time":"1970-01-01T00:01:00.000000Z","attributes":{{"gen_ai.operation.name":"chat","gen_ai.response.model":"gpt-4o-2024-08-06","gen_ai.usage.input_tokens":5000,"gen_ai.usage.cache_read.input_tokens":4000,"gen_ai.usage.output_tokens":100,"gen_ai.input.messages":{},"gen_ai.system_instructions":{}}}}}"#,
        crate::transcripts::quoted(MESSAGES),
        crate::transcripts::quoted(SYSTEM)
    );
    let one = traces(&format!("{agent},{}", span(&all, "")));
    for text in
        [one.clone(), format!("{one}\n{}\n", traces(&agent)), traces(&in_event), record, printed]
    {
        let ReadText { form, recorded: found, left_out } =
            read(&text, None).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!((form, found.len(), left_out), (TextForm::OpenTelemetry, 1, None), "{text}");
        let request = found[0].protocol.read(found[0].body.as_bytes(), 9).expect("readable");
        assert_eq!(request.model.as_deref(), Some("gpt-4o-2024-08-06"), "{text}");
        let roles = request.messages.iter().map(|raw| {
            let message = Protocol::Chat.read_message(raw).expect("readable");
            (message.role, message.calls.len())
        });
        let expected = [(Role::System, 0), (Role::User, 0), (Role::Assistant, 1), (Role::Tool, 0)];
        assert_eq!(roles.collect::<Vec<_>>(), expected, "{text}");
        let exchange = &found[0].exchanges[0];
        let usage = exchange.reported.usage.expect("it has one");
        let tokens = (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens);
        assert_eq!(exchange.at_ms, Some(60_000), "{text}");
        assert_eq!(tokens, (Some(5000), Some(4000), Some(100)), "{text}");
    }
}

#[test]
fn older_programs_write_an_event_for_each_message() {
    let event = |name: &str, rest: &str| {
        format!(
            r#"{{"name":"gen_ai.{name}.message","attributes":[{}{rest}]}}"#,
            text("content", "x")
        )
    };
    let call = r#"[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]"#;
    let events = [
        event("system", ""),
        event("user", ""),
        event("assistant", &format!(",{}", text("tool_calls", call))),
        event("tool", &format!(",{}", text("id", "c"))),
        r#"{"name":"gen_ai.choice","attributes":[]}"#.to_owned(),
    ];
    let own = span(&facts(), &format!(r#","events":[{}]"#, events.join(",")));
    let found = read(&traces(&own), None).expect("a request").recorded;
    let request = Protocol::Chat.read(found[0].body.as_bytes(), 9).expect("readable");
    let last = Protocol::Chat.read_message(request.messages[3]).expect("readable");
    assert_eq!((request.messages.len(), last.role, last.answers), (4, Role::Tool, Some("\"c\"")));
}

#[test]
fn openllmetry_writes_attributes_for_each_part() {
    let prompt = |rest: &str, value: &str| text(&format!("gen_ai.prompt.{rest}"), value);
    let mut own = vec![
        text("gen_ai.request.model", "gpt-4o"),
        text("llm.request.type", "chat"),
        number("gen_ai.usage.prompt_tokens", 5000),
        number("gen_ai.usage.completion_tokens", 100),
        number("gen_ai.usage.cache_read_input_tokens", 4000),
        // Not in the order of their numbers.
        prompt("10.role", "user"),
        prompt("10.content", r#"[{"type":"text","text":"x"}]"#),
        prompt("0.role", "system"),
        prompt("0.content", "[1]"),
        prompt("1.role", "assistant"),
        prompt("1.tool_calls.0.id", "c"),
        prompt("1.tool_calls.0.name", "f"),
        prompt("1.tool_calls.0.arguments", r#"{"a":1}"#),
        prompt("2.role", "tool"),
        prompt("2.tool_call_id", "c"),
        prompt("2.content", "rainy"),
        text("gen_ai.completion.0.role", "assistant"),
    ];
    let found = read(&traces(&span(&own, "")), None).expect("a request").recorded;
    let expected = r#"{"model":"gpt-4o","messages":[{"role":"system","content":"[1]"},{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]},{"role":"tool","content":"rainy","tool_call_id":"c"},{"role":"user","content":[{"type":"text","text":"x"}]}]}"#;
    assert_eq!(found[0].body, expected);
    let usage = found[0].exchanges[0].reported.usage.expect("it has one");
    assert_eq!((usage.prompt_tokens, usage.cached_tokens), (Some(5000), Some(4000)));
    own[1] = text("llm.request.type", "embedding");
    assert!(read(&traces(&span(&own, "")), None).is_err(), "embeddings are no conversation");
}

#[test]
fn a_trace_without_content_is_named() {
    let error = read(&traces(&span(&facts(), "")), None).expect_err("it has no messages");
    assert!(error.starts_with("Line 1 has no messages: what is sent is left out"), "{error}");
    // Some count what was cached apart.
    let mut apart = [facts(), content()].concat();
    apart[4] = number("gen_ai.usage.input_tokens", 1000);
    let found = read(&traces(&span(&apart, "")), None).expect("a request").recorded;
    assert_eq!(found[0].exchanges[0].prompt_tokens(), Some(5000));
}
