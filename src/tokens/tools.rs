//! Tool definitions and schemas. OpenAI does not publish how they are written into the prompt;
//! its cookbook gives constants for flat functions, which this module extends to nested schemas
//! on the careful side.

use serde_json::Value;

use super::encoding::Encoding;

/// Once a request that has tools at all: the frame around the list.
const LIST: u64 = 12;
/// For each function: its opening and end (the cookbook's `func_init` 7 and `func_end` 12).
const FUNCTION: u64 = 19;
/// For each property of a schema: name, type and punctuation around them.
const PROPERTY: u64 = 7;
/// For each value of an `enum`, and each other item of a list.
const ITEM: u64 = 3;

/// Tokens of `raw`, the JSON text of a list of tools or legacy functions.
pub fn count_list(encoding: Encoding, raw: &str) -> u64 {
    match serde_json::from_str(raw) {
        Ok(Value::Array(tools)) if tools.is_empty() => 0,
        Ok(Value::Array(tools)) => {
            LIST + tools.iter().map(|tool| count_tool(encoding, tool)).sum::<u64>()
        }
        // No list, or one nested too deeply to read: the whole text counts.
        _ => encoding.count(raw),
    }
}

/// Tokens of `raw`, the JSON text of a `response_format`; nothing where it carries no schema.
pub fn count_response_format(encoding: Encoding, raw: &str) -> u64 {
    match serde_json::from_str::<Value>(raw) {
        Ok(Value::Object(format)) => match format.get("json_schema").or(format.get("schema")) {
            Some(schema) => FUNCTION + count_value(encoding, schema),
            None => 0,
        },
        _ => encoding.count(raw),
    }
}

fn count_tool(encoding: Encoding, tool: &Value) -> u64 {
    let definition = tool.get("function").or(tool.get("custom")).unwrap_or(tool);
    let Some(members) = definition.as_object() else {
        return FUNCTION + encoding.count(&definition.to_string());
    };
    let mut tokens = FUNCTION;
    for (key, value) in members {
        tokens += match key.as_str() {
            "type" | "strict" => 0,
            _ => count_value(encoding, value),
        };
    }
    tokens
}

/// Walks a schema. Every string in it counts, every key that names something of the caller's, and
/// a frame for each; the schema language's own words are written shorter than JSON writes them.
fn count_value(encoding: Encoding, value: &Value) -> u64 {
    match value {
        Value::Null => 1,
        Value::Bool(_) => 1,
        Value::Number(number) => 1 + encoding.count(&number.to_string()),
        Value::String(text) => ITEM + encoding.count(text),
        Value::Array(items) => items.iter().map(|item| count_value(encoding, item)).sum(),
        Value::Object(members) => members
            .iter()
            .map(|(key, value)| match key.as_str() {
                "properties" | "$defs" | "definitions" => count_properties(encoding, value),
                "type" if value.is_string() => 1,
                "required" | "additionalProperties" | "$schema" => 0,
                _ => 2 + encoding.count(key) + count_value(encoding, value),
            })
            .sum(),
    }
}

fn count_properties(encoding: Encoding, properties: &Value) -> u64 {
    let Some(properties) = properties.as_object() else {
        return count_value(encoding, properties);
    };
    let own = |(name, schema): (&String, &Value)| {
        PROPERTY + encoding.count(name) + count_value(encoding, schema)
    };
    properties.iter().map(own).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_definition_never_takes_fewer_tokens() {
        let encoding = Encoding::O200kBase;
        let mut last = 0;
        for raw in [
            "[]",
            r#"[{"type":"function","function":{"name":"f"}}]"#,
            r#"[{"type":"function","function":{"name":"f","description":"does it"}}]"#,
            r#"[{"type":"function","function":{"name":"f","description":"does it","parameters":{"type":"object","properties":{"a":{"type":"string"}}}}}]"#,
            r#"[{"type":"function","function":{"name":"f","description":"does it","parameters":{"type":"object","properties":{"a":{"type":"string","enum":["x","y"]},"b":{"type":"array","items":{"type":"object","properties":{"c":{"type":"number"}}}}}}}}]"#,
        ] {
            let tokens = count_list(encoding, raw);
            assert!(tokens >= last, "{raw}");
            last = tokens;
        }
        assert!(last > 50);
    }

    #[test]
    fn hostile_definitions_count_as_text() {
        let deep = format!("[{}1{}]", "[".repeat(5000), "]".repeat(5000));
        assert!(count_list(Encoding::O200kBase, &deep) > 100);
        assert!(count_list(Encoding::O200kBase, "\"x\"") > 0);
        assert!(count_list(Encoding::O200kBase, r#"[1, null, "x", {"function": []}]"#) > 0);
    }

    #[test]
    fn a_format_without_schema_is_free() {
        let encoding = Encoding::O200kBase;
        assert_eq!(count_response_format(encoding, r#"{"type":"json_object"}"#), 0);
        let schema = r#"{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"object","properties":{"a":{"type":"string"}}}}}"#;
        assert!(count_response_format(encoding, schema) > 20);
    }
}
