//! The tool's definition and arguments.

use super::*;

#[test]
fn definitions_are_json_in_each_protocol_s_form() {
    for (_, protocol) in Protocol::NAMES {
        let raw = definition(protocol, "recall");
        let value: serde_json::Value = serde_json::from_str(&raw).expect("JSON");
        let (function, schema) = match protocol {
            Protocol::Chat => (&value["function"], "parameters"),
            Protocol::Responses => (&value, "parameters"),
            Protocol::Messages => (&value, "input_schema"),
        };
        assert_eq!(function["name"], "recall");
        assert_eq!(function[schema]["properties"]["messages"]["type"], "array");
        let description = function["description"].as_str().expect("a text");
        assert_eq!(description.matches(". ").count(), 1, "two sentences: {description}");
        assert!(!description.contains("  "));
    }
}

#[test]
fn arguments_are_read_tolerantly() {
    let read = |text: &str| {
        let Arguments { messages, query, from, is_readable } = Arguments::read(text);
        (messages, query, from, is_readable)
    };
    for (text, messages, query, from) in [
        (r#"{"messages":[3,12],"query":"a \u00e9","from":40}"#, &[3, 12][..], "a é", 40),
        (r##" {"messages":["#3","4", 5.0, -1, "x", null],"from":"7"}"##, &[3, 4, 5], "", 7),
        (r##"{"messages":"#3, #12 and 5","query":null,"from":null}"##, &[3, 12, 5], "", 0),
        (r#"{"messages":9}"#, &[9], "", 0),
        (r#"{"messages":{},"query":["x"],"from":[]}"#, &[], "", 0),
        ("{}", &[], "", 0),
    ] {
        assert_eq!(read(text), (messages.to_vec(), query.to_owned(), from, true), "{text}");
    }
    for text in ["", "null", "[1]", "{", "nonsense", r#"{"messages":[1]"#] {
        assert_eq!(read(text), (Vec::new(), String::new(), 0, false), "{text}");
    }
    let long = format!(r#"{{"query":"{}","messages":[{}1]}}"#, "é".repeat(9000), "1,".repeat(99));
    let arguments = Arguments::read(&long);
    assert_eq!(arguments.query.len(), MAX_QUERY_BYTES);
    assert_eq!(arguments.messages.len(), MAX_NUMBERS);
}
