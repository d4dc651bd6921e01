//! Tool definitions and schemas. OpenAI does not publish their form in the prompt; models are known
//! to read them as TypeScript declarations in a namespace, so that form is counted. The minimum is
//! the count of all texts in a definition, at any position, so that nothing the model may read goes
//! uncounted. Open models read JSON: for their encodings the JSON is the minimum. Each schema is
//! written once: the work is linear.

use serde_json::{Map, Value};

use super::encoding::Encoding;
use super::visible;

/// Tokens of a list of tools in addition to the declarations, once per request.
const LIST: u64 = 9;
/// Maximum nesting of schemas; deeper ones count as text.
const MAX_DEPTH: usize = 64;

/// Counts the tokens of `raw`, the JSON text of a list of tools or legacy functions.
pub fn count_list(encoding: Encoding, raw: &str) -> u64 {
    let in_prompt = raw.contains("defer_loading").then(|| without_deferred(raw)).flatten();
    let raw = in_prompt.as_deref().unwrap_or(raw);
    match serde_json::from_str(raw) {
        Ok(Value::Array(tools)) if tools.is_empty() => 0,
        Ok(Value::Array(tools)) => {
            let mut writer = DeclarationWriter::default();
            writer.line(0, "namespace functions {\n");
            tools.iter().for_each(|tool| writer.tool(tool, 0));
            writer.line(0, "} // namespace functions");
            LIST + writer.count(encoding).max(least(encoding, raw)).max(as_json(encoding, raw))
        }
        // No list, or one nested too deeply to read: the whole text counts.
        _ => encoding.count(raw),
    }
}

/// Returns the list without the definitions that enter the prompt only if a search of the model loads
/// them; `None` if `raw` is no list.
fn without_deferred(raw: &str) -> Option<String> {
    let tools: Vec<Value> = serde_json::from_str(raw).ok()?;
    let shown: Vec<Value> = tools.into_iter().filter_map(|tool| shown(tool, false)).collect();
    serde_json::to_string(&shown).ok()
}

/// Returns what the prompt has of `tool` before a search. By OpenAI's guide to tool search that is the name
/// and the description of a function, namespace or MCP server, and nothing of a function in a
/// namespace (`is_inner`); by Anthropic's it is nothing. In a toolset of Messages each tool may
/// override the default.
fn shown(mut tool: Value, is_inner: bool) -> Option<Value> {
    let is_deferred = |value: &Value| Some(value.get("defer_loading")?.as_bool() == Some(true));
    let own = is_deferred(&tool).or(tool.get("function").and_then(is_deferred));
    let default = tool.get("default_config").and_then(is_deferred).unwrap_or(false);
    let Some(members) = tool.as_object_mut() else { return Some(tool) };
    if let Some(Value::Array(tools)) = members.get_mut("tools") {
        let inner = std::mem::take(tools).into_iter();
        tools.extend(inner.filter_map(|tool| shown(tool, true)));
    }
    if (members.remove("default_config").is_some() || members.contains_key("mcp_server_name"))
        && let Some(configs) = members.get_mut("configs").and_then(Value::as_object_mut)
    {
        configs.retain(|_, config| !is_deferred(config).unwrap_or(default));
    }
    if own != Some(true) {
        return Some(tool);
    }
    let is_of_responses = ["parameters", "format", "tools", "server_label"]
        .iter()
        .any(|name| members.contains_key(*name));
    let kept = ["type", "name", "description", "server_label", "server_description"];
    members.retain(|name, _| kept.contains(&name.as_str()));
    (is_of_responses && !is_inner).then_some(tool)
}

/// Counts the tokens of a definition as JSON, the form in templates of open models; 0 for others.
fn as_json(encoding: Encoding, raw: &str) -> u64 {
    match encoding {
        Encoding::Open(_) | Encoding::Own(_) => encoding.count(raw),
        _ => 0,
    }
}

/// Counts the texts in a definition, without the schema language's own words.
fn least(encoding: Encoding, raw: &str) -> u64 {
    let text = visible::text(raw, &[], |said| SCHEMA_WORDS.contains(&said));
    encoding.count(text.as_deref().unwrap_or(raw))
}

/// Words of the schema language, which declarations write in fewer tokens.
const SCHEMA_WORDS: [&str; 28] = [
    "type",
    "function",
    "custom",
    "name",
    "description",
    "parameters",
    "properties",
    "items",
    "required",
    "enum",
    "anyOf",
    "oneOf",
    "allOf",
    "additionalProperties",
    "strict",
    "object",
    "array",
    "string",
    "number",
    "integer",
    "boolean",
    "null",
    "schema",
    "json_schema",
    "json_object",
    "text",
    "namespace",
    "tools",
];

/// Counts the tokens of `raw`, the JSON text of a `response_format`; 0 if it only names a type.
pub fn count_response_format(encoding: Encoding, raw: &str) -> u64 {
    let Ok(Value::Object(format)) = serde_json::from_str::<Value>(raw) else {
        return encoding.count(raw);
    };
    let mut writer = DeclarationWriter::default();
    if let Some(schema) = format.get("json_schema").or(format.get("schema")) {
        writer.tool(schema, 0);
    }
    let tokens = match writer.count(encoding).max(least(encoding, raw)) {
        0 => 0,
        tokens => tokens.max(as_json(encoding, raw)),
    };
    if tokens > 0 { LIST + tokens } else { 0 }
}

/// Declarations, and separately the content that does not belong in one.
#[derive(Default)]
struct DeclarationWriter {
    declarations: String,
    beside: String,
}

impl DeclarationWriter {
    fn count(&self, encoding: Encoding) -> u64 {
        encoding.count(&self.declarations) + encoding.count(&self.beside)
    }

    fn line(&mut self, depth: usize, text: &str) {
        self.declarations.extend(std::iter::repeat_n(' ', 2 * depth.saturating_sub(1)));
        self.declarations.push_str(text);
        self.declarations.push('\n');
    }

    fn comment(&mut self, depth: usize, members: &Map<String, Value>) {
        if let Some(text) = members.get("description").and_then(Value::as_str) {
            self.line(depth, &format!("// {text}"));
        }
    }

    /// Writes the declaration of a tool that stands in `depth` namespaces.
    fn tool(&mut self, tool: &Value, depth: usize) {
        let definition = tool.get("function").or(tool.get("custom")).unwrap_or(tool);
        let Some(members) = definition.as_object() else {
            self.beside.push_str(&definition.to_string());
            return;
        };
        self.comment(0, members);
        let name = members.get("name").and_then(Value::as_str).unwrap_or_default();
        let schema = members.get("parameters").or(members.get("schema"));
        let properties = schema.and_then(|schema| schema.get("properties")?.as_object());
        if properties.is_some_and(|properties| !properties.is_empty()) {
            let kind = schema.map(|schema| self.kind(schema, 1)).unwrap_or_default();
            self.line(0, &format!("type {name} = (_: {kind}) => any;\n"));
        } else {
            self.line(0, &format!("type {name} = () => any;\n"));
            schema.and_then(Value::as_object).into_iter().for_each(|schema| self.rest_of(schema));
        }
        for (key, value) in members {
            let known = ["name", "description", "parameters", "schema", "type", "strict"];
            match value {
                // A namespace of Responses declares tools of its own.
                Value::Array(tools) if key == "tools" && depth < MAX_DEPTH => {
                    self.line(0, "{");
                    tools.iter().for_each(|tool| self.tool(tool, depth + 1));
                    self.line(0, "}");
                }
                _ if known.contains(&key.as_str()) => {}
                _ => self.aside(key, value),
            }
        }
    }

    /// Returns the type that a schema stands for.
    fn kind(&mut self, schema: &Value, depth: usize) -> String {
        let Some(members) = schema.as_object().filter(|_| depth < MAX_DEPTH) else {
            return schema.to_string();
        };
        self.rest_of(members);
        if let Some(values) = members.get("enum").and_then(Value::as_array) {
            return union(values.iter().map(Value::to_string));
        }
        for key in ["anyOf", "oneOf", "allOf"] {
            if let Some(kinds) = members.get(key).and_then(Value::as_array) {
                return union(kinds.iter().map(|kind| self.kind(kind, depth + 1)));
            }
        }
        match members.get("type") {
            Some(Value::String(kind)) => self.named(kind, members, depth),
            Some(Value::Array(kinds)) => {
                let mut names: Vec<&str> = kinds.iter().filter_map(Value::as_str).collect();
                names.sort_unstable();
                names.dedup();
                union(names.into_iter().map(|kind| self.named(kind, members, depth)))
            }
            _ if members.contains_key("properties") => self.object(members, depth),
            _ => members.get("$ref").and_then(Value::as_str).unwrap_or("any").to_owned(),
        }
    }

    fn named(&mut self, kind: &str, members: &Map<String, Value>, depth: usize) -> String {
        match kind {
            "integer" | "number" => "number".to_owned(),
            "array" => match members.get("items") {
                Some(items) => format!("{}[]", self.kind(items, depth)),
                None => "any[]".to_owned(),
            },
            "object" => self.object(members, depth),
            other => other.to_owned(),
        }
    }

    fn object(&mut self, members: &Map<String, Value>, depth: usize) -> String {
        let Some(properties) = members.get("properties").and_then(Value::as_object) else {
            return "object".to_owned();
        };
        let required: Vec<&str> = members
            .get("required")
            .and_then(Value::as_array)
            .map(|names| names.iter().filter_map(Value::as_str).collect())
            .unwrap_or_default();
        let outer = std::mem::take(&mut self.declarations);
        self.line(0, "{");
        for (name, schema) in properties {
            if let Some(members) = schema.as_object() {
                self.comment(depth, members);
            }
            let kind = self.kind(schema, depth + 1);
            let mark = if required.contains(&name.as_str()) { "" } else { "?" };
            self.line(depth, &format!("{name}{mark}: {kind},"));
        }
        let mut inner = std::mem::replace(&mut self.declarations, outer);
        inner.extend(std::iter::repeat_n(' ', 2 * depth.saturating_sub(2)));
        inner.push('}');
        inner
    }

    /// Collects the other content of a schema: defaults, bounds, patterns, definitions.
    fn rest_of(&mut self, members: &Map<String, Value>) {
        for (key, value) in members {
            match key.as_str() {
                "type"
                | "properties"
                | "items"
                | "required"
                | "enum"
                | "description"
                | "anyOf"
                | "oneOf"
                | "allOf"
                | "$ref"
                | "additionalProperties"
                | "$schema"
                | "strict" => {}
                _ => self.aside(key, value),
            }
        }
    }

    fn aside(&mut self, key: &str, value: &Value) {
        self.beside.push_str(key);
        self.beside.push_str(": ");
        self.beside.push_str(&value.to_string());
        self.beside.push('\n');
    }
}

fn union(kinds: impl Iterator<Item = String>) -> String {
    kinds.collect::<Vec<_>>().join(" | ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_read_as_declarations() {
        let raw = r#"{"type":"function","function":{"name":"book","description":"Books a room.","parameters":{"type":"object",
            "properties":{"who":{"type":"string","description":"Name."},"nights":{"type":"integer","minimum":1},
            "kind":{"enum":["a","b"]},"extras":{"type":"array","items":{"type":"object","properties":{"id":{"type":["string","null"]}}}}},
            "required":["who"]}}}"#;
        let mut writer = DeclarationWriter::default();
        writer.tool(&serde_json::from_str(raw).expect("JSON"), 0);
        let expected = "// Books a room.\ntype book = (_: {\nextras?: {\n  id?: null | string,\n}[],\nkind?: \"a\" | \"b\",\n\
             nights?: number,\n// Name.\nwho: string,\n}) => any;\n\n";
        assert_eq!(writer.declarations, expected);
        assert_eq!(writer.beside, "minimum: 1\n");
    }

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
        assert!(last > 40);
    }

    #[test]
    fn open_models_read_definitions_as_json() {
        let encoding = Encoding::from_name("qwen2").expect("it exists");
        let parameters =
            r#"{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]}"#;
        let raw = format!(
            r#"[{{"type":"function","function":{{"name":"f","parameters":{parameters}}}}}]"#
        );
        assert!(count_list(encoding, &raw) >= encoding.count(&raw));
        assert!(count_list(Encoding::O200kBase, &raw) < Encoding::O200kBase.count(&raw));
        assert_eq!(count_response_format(encoding, r#"{"type":"json_object"}"#), 0);
    }

    #[test]
    fn tools_of_a_namespace_count_as_tools() {
        let encoding = Encoding::O200kBase;
        let tool = |name: &str| {
            format!(
                r#"{{"type":"function","name":"{name}","description":"Runs a command in the shell.","strict":false,"parameters":{{"type":"object","properties":{{"cmd":{{"type":"string","description":"The command."}},"timeout":{{"type":"number"}}}},"required":["cmd"],"additionalProperties":false}}}}"#
            )
        };
        let tools: Vec<String> = (0..20).map(|own| tool(&format!("run_{own}"))).collect();
        let plain = count_list(encoding, &format!("[{}]", tools.join(",")));
        let namespace =
            format!(r#"[{{"type":"namespace","name":"functions","tools":[{}]}}]"#, tools.join(","));
        let inner = count_list(encoding, &namespace);
        assert!(inner >= plain && inner < plain + 30, "{inner} and {plain}");
        assert!(inner * 3 < encoding.count(&namespace) * 2, "{inner}");
        let deep = r#"{"name":"n","tools":["#.repeat(90) + "{}" + &"]}".repeat(90);
        assert!(count_list(encoding, &format!("[{deep}]")) > 90);
    }

    /// Definitions that are deferred, and what of each stands in the prompt.
    fn deferred(long: &str) -> Vec<(String, &'static str)> {
        let schema =
            format!(r#"{{"type":"object","properties":{{"a":{{"description":"{long}"}}}}}}"#);
        vec![
            // Messages
            (
                format!(
                    r#"{{"name":"f","description":"{long}","input_schema":{schema},"defer_loading":true}}"#
                ),
                "",
            ),
            (
                format!(
                    r#"{{"type":"mcp_toolset","mcp_server_name":"s","default_config":{{"defer_loading":true}},"configs":{{"a":{{"note":"{long}"}},"b":{{"defer_loading":false}}}}}}"#
                ),
                r#"{"type":"mcp_toolset","mcp_server_name":"s","configs":{"b":{"defer_loading":false}}}"#,
            ),
            (
                format!(
                    r#"{{"type":"mcp_toolset","mcp_server_name":"s","configs":{{"a":{{"note":"{long}","defer_loading":true}}}}}}"#
                ),
                r#"{"type":"mcp_toolset","mcp_server_name":"s","configs":{}}"#,
            ),
            // Chat completions
            (
                format!(
                    r#"{{"type":"function","function":{{"name":"f","parameters":{schema}}},"defer_loading":true}}"#
                ),
                "",
            ),
            (
                format!(
                    r#"{{"type":"function","function":{{"name":"f","parameters":{schema},"defer_loading":true}}}}"#
                ),
                "",
            ),
            // Responses
            (
                format!(
                    r#"{{"type":"function","name":"f","description":"Reads.","parameters":{schema},"defer_loading":true}}"#
                ),
                r#"{"type":"function","name":"f","description":"Reads."}"#,
            ),
            (
                format!(
                    r#"{{"type":"namespace","name":"n","description":"All.","tools":[{{"name":"f","parameters":{schema},"defer_loading":true}},{{"name":"g"}}]}}"#
                ),
                r#"{"type":"namespace","name":"n","description":"All.","tools":[{"name":"g"}]}"#,
            ),
            (
                format!(
                    r#"{{"type":"mcp","server_label":"s","server_description":"Docs.","headers":{{"a":"{long}"}},"defer_loading":true}}"#
                ),
                r#"{"type":"mcp","server_label":"s","server_description":"Docs."}"#,
            ),
        ]
    }

    #[test]
    fn definitions_outside_the_prompt_do_not_count() {
        let long = "It reads the gauge and returns the level. ".repeat(50);
        for (deferred, shown) in deferred(&long) {
            for encoding in [Encoding::O200kBase, Encoding::from_name("qwen2").expect("it exists")]
            {
                let own = r#"{"type":"function","name":"own","description":"Always here."}"#;
                let shown = if shown.is_empty() { String::new() } else { format!("{shown},") };
                let counted = count_list(encoding, &format!("[{deferred},{own}]"));
                // A separator may count as a token of its own.
                let without = count_list(encoding, &format!("[{shown}{own}]"));
                assert!(counted.abs_diff(without) <= 2, "{counted}, {without}: {deferred}");
                let asked = deferred.replace(r#""defer_loading":true"#, r#""defer_loading":false"#);
                let whole = count_list(encoding, &format!("[{asked},{own}]"));
                assert!(whole > counted + 200, "{asked}");
            }
        }
    }

    #[test]
    fn hostile_definitions_count_as_text() {
        let deep = format!("[{}1{}]", "[".repeat(5000), "]".repeat(5000));
        assert!(count_list(Encoding::O200kBase, &deep) > 100);
        assert!(count_list(Encoding::O200kBase, "\"x\"") > 0);
        assert!(count_list(Encoding::O200kBase, r#"[1, null, "x", {"function": []}]"#) > 0);
        let hidden =
            format!(r#"[{{"name":"f","parameters":{{"x-notes":"{}"}}}}]"#, "word ".repeat(500));
        assert!(count_list(Encoding::O200kBase, &hidden) > 500);
    }

    #[test]
    fn texts_count_wherever_they_stand() {
        let long = "word ".repeat(500);
        for schema in [
            format!(
                r#"{{"type":"object","properties":{{"a":{{"type":"array","items":{{"type":"string","description":"{long}"}}}}}}}}"#
            ),
            format!(r#"{{"type":"object","description":"{long}","properties":{{}}}}"#),
            format!(
                r#"{{"type":"object","properties":{{"a":{{"anyOf":[{{"description":"{long}"}}]}}}}}}"#
            ),
            format!(r#"{{"enum":["a"],"properties":{{"a":{{"description":"{long}"}}}}}}"#),
            format!(r#"{{"type":"object","additionalProperties":{{"description":"{long}"}}}}"#),
            format!(r#"{{"description":"{long}","description":"short"}}"#),
        ] {
            let raw = format!(
                r#"[{{"type":"function","function":{{"name":"f","parameters":{schema}}}}}]"#
            );
            assert!(count_list(Encoding::O200kBase, &raw) >= 500, "{schema:.60}");
        }
        let raw = format!(r#"[{{"function":{{"name":"f"}},"custom":{{"name":"{long}"}}}}]"#);
        assert!(count_list(Encoding::O200kBase, &raw) >= 500);
        let raw = format!(r#"{{"type":"grammar","grammar":"{long}"}}"#);
        assert!(count_response_format(Encoding::O200kBase, &raw) >= 500);
    }

    #[test]
    fn nested_type_lists_do_not_multiply() {
        let mut schema = r#"{"type":"string"}"#.to_owned();
        for _ in 0..25 {
            schema =
                format!(r#"{{"type":["object","object","array"],"properties":{{"a":{schema}}}}}"#);
        }
        let raw = format!(r#"[{{"function":{{"name":"f","parameters":{schema}}}}}]"#);
        assert!(count_list(Encoding::O200kBase, &raw) < raw.len() as u64);
    }

    #[test]
    fn a_format_without_schema_is_free() {
        let encoding = Encoding::O200kBase;
        assert_eq!(count_response_format(encoding, r#"{"type":"json_object"}"#), 0);
        let schema = r#"{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"object","properties":{"a":{"type":"string"}}}}}"#;
        assert!(count_response_format(encoding, schema) > 20);
    }
}
