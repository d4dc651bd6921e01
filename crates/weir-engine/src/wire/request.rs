//! Requests: the members of a body, and its messages as texts.

use std::borrow::Cow;
use std::ops::Range;

use super::usage_option::UsageOption;
use super::{Protocol, json, walk};

/// Parsed request body: its members, and its messages as JSON texts.
#[derive(Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// Protocol that it was read by.
    pub protocol: Protocol,
    /// The body as text.
    pub text: &'a str,
    /// Requested model; `None` if the body names none.
    pub model: Option<Cow<'a, str>>,
    /// Whether the answer is to be streamed.
    pub stream: bool,
    /// Edit that makes the answer report its usage, unless the request already asks for it.
    pub missing_usage_option: Option<UsageOption>,
    /// Maximum output tokens for each choice, as set by the caller.
    pub max_output_tokens: Option<u64>,
    /// Numbers that set this limit, as they appear in `text`.
    pub output_limits: Vec<&'a str>,
    /// Members that would set it and are absent.
    pub absent_limits: Vec<&'static str>,
    /// Number of requested answers.
    pub choices: u64,
    /// JSON texts outside the messages that become part of the prompt.
    pub extras: Vec<Extra<'a>>,
    /// JSON text of each message, borrowed from `text`. In Responses, one message of the assistant is a
    /// run of items; in Messages, a message with results of tools is one message for each result and
    /// one for the rest.
    pub messages: Vec<&'a str>,
    /// Number of first messages that stand outside the list of messages, such as `instructions`.
    pub outside: usize,
    /// Objects of the list of messages, if one may hold several.
    pub(super) containers: Vec<Container<'a>>,
    /// Member that refers to a conversation kept by the provider, which weir cannot compact.
    pub provider_state: Option<&'static str>,
    /// Whether a later item of the list could belong to the last message.
    pub(super) is_open: bool,
    /// Members before the list of messages, in the protocol's own order, from name to end.
    pub(super) leading: Vec<Option<&'a str>>,
    /// Members in which clients label their requests, in the order of [`LABELS`].
    pub(super) labels: [Option<&'a str>; LABELS.len()],
}

/// Members in which clients label their requests. weir reads them for its records only: one that is
/// given twice is left for the upstream to refuse.
pub(super) const LABELS: [&str; 4] =
    ["metadata", "client_metadata", "prompt_cache_key", "conversation"];
/// Maximum number of messages in [`Request::head`].
const MAX_HEAD: usize = 16;
/// Members with which no provider adds anything to the prompt that weir does not count. Others may, as a search
/// or a store of documents does.
const ADDING_NOTHING: [&str; 60] = [
    "model",
    "messages",
    "input",
    "instructions",
    "system",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "max_tool_calls",
    "functions",
    "function_call",
    "response_format",
    "text",
    "stream",
    "stream_options",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "n",
    "best_of",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "n_predict",
    "stop",
    "stop_sequences",
    "seed",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "user",
    "metadata",
    "client_metadata",
    "weir",
    "store",
    "service_tier",
    "speed",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "cache_control",
    "reasoning",
    "reasoning_effort",
    "thinking",
    "output_config",
    "verbosity",
    "include",
    "truncation",
    "modalities",
    "provider",
    "models",
    "route",
    "usage",
    "options",
    "keep_alive",
    "inference_geo",
];

impl<'a> Request<'a> {
    /// Returns the JSON text of `metadata`: an object of the caller's own.
    pub fn metadata(&self) -> Option<&'a str> {
        self.labels[0]
    }

    /// Returns the JSON text of `client_metadata`, in which codex describes a request.
    pub fn client_metadata(&self) -> Option<&'a str> {
        self.labels[1]
    }

    /// Returns the JSON text of `prompt_cache_key`, which requests of one conversation share.
    pub fn prompt_cache_key(&self) -> Option<&'a str> {
        self.labels[2]
    }

    /// Returns the JSON text of `conversation`, which names a conversation kept by the provider.
    pub fn conversation(&self) -> Option<&'a str> {
        self.labels[3]
    }

    /// Returns the number of first messages that are the system's. They may have a clock or a counter in them,
    /// so a conversation is known by those behind them.
    pub fn head(&self) -> usize {
        head(&self.messages)
    }

    /// Whether the whole prompt is text that stands in the body: no media, no sealed or unknown parts, no tools
    /// of the provider's, which bring their own prompts and results, and no state that it keeps.
    pub fn is_text(&self) -> bool {
        let is_defined = |raw: &&str| {
            let members = json::members(raw).unwrap_or_default();
            let has = |wanted: &str| members.iter().any(|(name, _)| name == wanted);
            (has("function") || has("parameters") || has("input_schema")) && !has("defer_loading")
        };
        let are_defined = |extra: &Extra<'_>| {
            let tools = json::elements(extra.raw).unwrap_or_default();
            extra.kind != ExtraKind::Tools || tools.iter().all(&is_defined)
        };
        let members = json::members(self.text).unwrap_or_default();
        self.provider_state.is_none()
            && members
                .iter()
                .all(|(name, raw)| *raw == "null" || ADDING_NOTHING.contains(&name.as_ref()))
            && self.extras.iter().all(are_defined)
            && self
                .messages
                .iter()
                .all(|raw| self.protocol.read_message(raw).is_ok_and(|message| message.is_text()))
    }

    /// Returns the messages in the list of messages.
    pub fn listed(&self) -> &[&'a str] {
        &self.messages[self.outside..]
    }
}

/// Returns the number of first messages that are the system's: members such as `instructions`, and those of the
/// list.
pub fn head(messages: &[&str]) -> usize {
    let is_member =
        |raw: &str| raw.starts_with("\"system\"") || raw.starts_with("\"instructions\"");
    let first = messages.iter().take(MAX_HEAD);
    first.take_while(|raw| is_member(raw) || is_of_system(raw)).count()
}

/// Whether a message of the list is the system's. Reads up to its role only.
fn is_of_system(raw: &str) -> bool {
    let mut role = None;
    // A name that is not the role's is skipped; the walk ends with the role.
    let _ = walk::Walk::new(raw).members(|name, walk| {
        let value = walk.value()?;
        if name == "\"role\"" {
            role = Some(value);
        }
        role.is_none().then_some(())
    });
    matches!(role, Some("\"system\"" | "\"developer\""))
}

/// Member outside the messages that takes prompt tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extra<'a> {
    pub kind: ExtraKind,
    /// JSON text of the member.
    pub raw: &'a str,
}

/// Kind of an [`Extra`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExtraKind {
    /// `tools`: an array of tool definitions.
    Tools,
    /// `functions`: the legacy form of tools.
    Functions,
    /// `response_format`, or `text` in Responses, if it carries a schema.
    ResponseFormat,
    /// `prediction` or `documents` of chat completions, or the variables of a `prompt` of Responses: content as
    /// it stands.
    Content,
}

/// Object in the list of messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Container<'a> {
    pub(super) raw: &'a str,
    /// JSON text of its role; empty if it has none.
    pub(super) role: &'a str,
    /// Its messages among those of the request.
    pub(super) messages: Range<usize>,
    /// Whether each of these messages is a part of the content, not the object itself.
    pub(super) is_split: bool,
}
