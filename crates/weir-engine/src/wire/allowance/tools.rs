//! Tools of a request: those without a function of the caller's run at the provider.

use std::borrow::Cow;

use super::Allowance;
use super::images::{IMAGE_MODEL, IMAGE_TOKENS};
use super::named::inner_models;
use crate::wire::Protocol;
use crate::wire::json::{self, all};

/// Bytes of a definition's JSON for a token.
const DEFINITION_BYTES: u64 = 3;
/// Tokens that Anthropic adds to a prompt with tools, and for its own tools by the beginning of their type
/// (its page on pricing, largest figures of current models).
const TOOL_PROMPT_TOKENS: u64 = 346;
const HIDDEN_TOKENS: [(&str, u64); 3] =
    [("bash_", 245), ("text_editor_", 700), ("computer_", 1234)];

impl Allowance {
    pub(super) fn tools(&mut self, raw: &str, protocol: Option<Protocol>) {
        let tools = json::elements(raw).unwrap_or_default();
        if !tools.is_empty() {
            self.hidden_tokens = TOOL_PROMPT_TOKENS;
        }
        for tool in &tools {
            self.tool(tool, raw.len() as u64, protocol);
        }
    }

    /// Reads a tool of a list of so many bytes. One without a function of the caller's runs at the provider.
    fn tool(&mut self, raw: &str, list_bytes: u64, protocol: Option<Protocol>) {
        let members = json::members(raw).unwrap_or_default();
        let of = |name: &'static str| {
            members.iter().filter(move |(own, _)| own == name).map(|(_, raw)| *raw)
        };
        // Moonshot's own functions have such names.
        let names = of("function").flat_map(|raw| all(raw, "name")).chain(of("name"));
        let is_own = names.filter_map(json::string).any(|name| name.starts_with('$'));
        let is_callers = |kind: &str| match kind {
            _ if is_own => false,
            "" => ["name", "function", "input_schema", "parameters"]
                .into_iter()
                .any(|name| of(name).next().is_some()),
            // A shell runs where its environment is.
            "shell" => of("environment")
                .flat_map(|raw| all(raw, "type"))
                .all(|kind| json::string(kind).is_some_and(|kind| kind == "local")),
            "function" | "custom" | "local_shell" | "apply_patch" | "namespace" => true,
            kind => ["computer", "bash", "text_editor", "memory", "tool_search"]
                .iter()
                .any(|own| kind.starts_with(own)),
        };
        // Of two types the provider may read either.
        let mut kinds: Vec<_> =
            of("type").map(|raw| json::string(raw).unwrap_or_default()).collect();
        if kinds.is_empty() {
            kinds.push(Cow::Borrowed(""));
        }
        let is = |start: &str| kinds.iter().any(|kind| kind.starts_with(start));
        let hidden = HIDDEN_TOKENS.iter().rev().find(|(start, _)| is(start));
        self.hidden_tokens += hidden.map_or(0, |(_, tokens)| *tokens);
        let is_client = |raw| json::string(raw).is_some_and(|own| own == "client");
        let is_clients = of("execution").next().is_some() && of("execution").all(is_client);
        if is("tool_search") && !is_clients {
            self.deferred_tokens = list_bytes.div_ceil(DEFINITION_BYTES);
        }
        let Some(kind) = kinds.into_iter().find(|kind| !is_callers(kind)) else { return };
        // Anthropic's; others do not obey it.
        let most = of("max_uses").filter(|_| protocol == Some(Protocol::Messages));
        let most = most.map(|raw| json::count(raw).unwrap_or(u64::MAX)).max().unwrap_or(u64::MAX);
        let models = inner_models(raw);
        let is_search = kind.contains("web_search") || kind.is_empty() || is_own;
        let calls = if is_search { &mut self.searches } else { &mut self.tool_calls };
        *calls = calls.saturating_add(most);
        if kind.ends_with("image_generation") {
            self.has_image_output = true;
            self.image_tool_tokens = IMAGE_TOKENS;
            if models.is_empty() {
                self.fallbacks.push(IMAGE_MODEL.to_owned());
            }
        }
        let has_session = ["code_interpreter", "shell"].contains(&kind.as_ref());
        self.sessions = self.sessions.saturating_add(has_session.into());
        self.models(models);
    }
}
