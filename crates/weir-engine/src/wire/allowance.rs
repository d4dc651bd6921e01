//! What a request allows its provider to charge for: the largest output limit, the number of answers,
//! tools that run at the provider, content that lies elsewhere, audio, images, tiers and lifetimes. Reads
//! any JSON body; changes nothing. A fact that cannot be read counts as its most expensive value.

mod named;

use std::borrow::Cow;

use memchr::memmem;

use super::body::FALLBACKS;
use super::{Protocol, Request, json};
use named::has_references;
pub use named::{inner_models, items_tools, models_in};

/// Names of output limits: OpenAI's, then those of llama.cpp, Text Generation Inference, Ollama, Hugging
/// Face, Google and older servers.
const LIMITS: [&str; 13] = [
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "n_predict",
    "max_new_tokens",
    "num_predict",
    "max_tokens_to_sample",
    "max_length",
    "max_gen_len",
    "max_gen_toks",
    "maxOutputTokens",
    "maxTokens",
    "max_generated_tokens",
];
/// Members that may hold settings of their own.
const SETTING_GROUPS: [&str; 11] = [
    "options",
    "parameters",
    "extra_body",
    "generation_config",
    "generationConfig",
    "google",
    "sequential_image_generation_options",
    // Vercel's gateway; Venice.
    "providerOptions",
    "provider_options",
    "gateway",
    "venice_parameters",
];
/// Numbers of answers.
const ANSWERS: [&str; 14] = [
    "n",
    "batch_size",
    "num_outputs",
    "samples",
    "sampleCount",
    "sample_count",
    // Volcengine.
    "max_images",
    "best_of",
    "num_return_sequences",
    "candidate_count",
    "candidateCount",
    "num_images",
    "number_of_images",
    "numberOfImages",
];
/// Texts that are settings and no part of a prompt.
const SETTINGS: [&str; 14] = [
    "model",
    "user",
    "safety_identifier",
    "encoding_format",
    "response_format",
    "output_format",
    "stream_format",
    "voice",
    "size",
    "quality",
    "style",
    "background",
    "moderation",
    "service_tier",
];
/// Maximum number of other models that a price is looked up for; providers take far fewer.
const MAX_FALLBACKS: usize = 1000;
/// Most fallbacks of one message, and a model that stands for those that Anthropic chooses (`"default"`): its guide
/// to refusals and fallback.
const MOST_ATTEMPTS: u64 = 3;
const DEFAULT_FALLBACK: &str = "claude-opus-5";
/// Smallest thinking budget: Anthropic's, and that of gateways in front of it.
pub const LEAST_THINKING_TOKENS: u64 = 1024;

/// What a request allows its provider to charge for. The default allows one plain answer without a
/// limit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allowance {
    /// The largest of all output limits; 0 if there is none.
    pub limit_tokens: u64,
    /// Whether a limit holds at every provider of the protocol, and each is a number.
    pub is_limited: bool,
    /// The largest limit on thinking; 0 if there is none.
    pub thinking_tokens: u64,
    /// Most tokens of thinking that no output limit covers; `u64::MAX` without a limit.
    pub apart_tokens: u64,
    /// Number of answers to each prompt; 0 for one.
    pub answers: u64,
    /// Number of prompts in a list; 0 for one.
    pub prompts: u64,
    /// Most tokens that the texts and token ids outside the settings can be.
    pub prompt_tokens: u64,
    /// Most tokens of its audio.
    pub audio_tokens: u64,
    pub service_tier: Option<String>,
    /// Whether it asks for Anthropic's `speed: "fast"`.
    pub is_fast: bool,
    /// Region that it asks for.
    pub region: Option<String>,
    /// Whether cache entries may live longer than five minutes.
    pub has_long_writes: bool,
    pub has_audio_input: bool,
    pub has_audio_output: bool,
    /// Images in the prompt.
    pub images: u64,
    pub has_image_output: bool,
    /// Whether part of the prompt lies elsewhere, such as a file by its id.
    pub is_elsewhere: bool,
    /// Whether the provider may compact the conversation by another inference.
    pub may_compact: bool,
    /// Searches of the web; `u64::MAX` without a limit.
    pub searches: u64,
    /// Calls of other tools at the provider; `u64::MAX` without a limit.
    pub tool_calls: u64,
    /// Tools whose code runs in a container: each is a session with a fee of its own.
    pub sessions: u64,
    /// Most calls of all these tools together (`max_tool_calls`), if the protocol has such a limit.
    pub most_calls: Option<u64>,
    /// Images that the provider fetches.
    pub remote_images: u64,
    /// Most tokens of each generated image.
    pub image_tokens: u64,
    /// Characters of the text to speak.
    pub characters: u64,
    /// Speed of speech, in thousandths; 0 for the usual one.
    pub speed_permille: u64,
    /// Most tokens of each image that a tool generates; 0 without such a tool.
    pub image_tool_tokens: u64,
    /// Most tokens of a predicted output: what is rejected of it is billed as output, beyond its limit.
    pub predicted_tokens: u64,
    /// Tokens of the instructions that Anthropic adds for tools.
    pub hidden_tokens: u64,
    /// Most tokens of the definitions that a search at the provider may load; 0 without one.
    pub deferred_tokens: u64,
    /// Models that may answer instead.
    pub fallbacks: Vec<String>,
    /// Further attempts, each billed besides the first.
    pub more_attempts: u64,
}

/// Model of OpenAI's tool for images, if it names none: the dearest of those that it may be.
pub const IMAGE_MODEL: &str = "gpt-image-1";
/// Bytes of a definition's JSON for a token.
const DEFINITION_BYTES: u64 = 3;
/// Tokens that Anthropic adds to a prompt with tools, and for its own tools by the beginning of their type
/// (its page on pricing, largest figures of current models).
const TOOL_PROMPT_TOKENS: u64 = 346;
const HIDDEN_TOKENS: [(&str, u64); 3] =
    [("bash_", 245), ("text_editor_", 700), ("computer_", 1234)];

/// Keeps one of two names that a provider may read; of two different ones nobody knows which.
fn keep_one(place: &mut Option<String>, name: String) {
    let is_other = place.as_ref().is_some_and(|own| *own != name);
    *place = Some(if is_other { String::new() } else { name });
}

impl Allowance {
    /// Reads a body; `None` if it is not a JSON object. `protocol` is that of a conversation.
    pub fn of(body: &[u8], protocol: Option<Protocol>) -> Option<Self> {
        let text = simdutf8::basic::from_utf8(body).ok()?;
        let members = json::members(text)?;
        let mut allowance = Self::default();
        for (name, raw) in members.iter().filter(|(_, raw)| *raw != "null") {
            // Others do not obey it.
            if name == "max_tool_calls" && protocol == Some(Protocol::Responses) {
                allowance.most_calls = json::count(raw);
            }
            allowance.member(name, raw);
        }
        let mut thinks = false;
        for_each_setting(&members, MAX_GROUPS, &mut |name, raw| {
            thinks |= name == "enable_thinking" && raw == "true";
            if raw != "null" {
                allowance.setting(name, raw, protocol);
            }
        });
        let is_claude = |raw: &str| raw.to_ascii_lowercase().contains("claude");
        let names_claude = members.iter().any(|(name, raw)| name == "model" && is_claude(raw))
            || allowance.fallbacks.iter().any(|name| is_claude(name));
        if protocol != Some(Protocol::Messages) && !names_claude {
            allowance.hidden_tokens = 0;
        }
        let most_calls = allowance.most_calls.unwrap_or(u64::MAX);
        allowance.searches = allowance.searches.min(most_calls);
        allowance.tool_calls = allowance.tool_calls.min(most_calls);
        if protocol == Some(Protocol::Responses) {
            allowance.is_elsewhere |= has_references(&members);
        }
        let limit = |raw| output_limit(raw, protocol);
        let limits: Vec<Option<u64>> = limits_of(&members).into_iter().map(limit).collect();
        // One that cannot be read may be none: -1 in llama.cpp and Ollama.
        allowance.is_limited = is_limited(&members, protocol) && limits.iter().all(Option::is_some);
        allowance.limit_tokens = limits.into_iter().flatten().max().unwrap_or(0);
        let thinking = thinking_of(&members).into_iter().filter_map(json::count);
        allowance.thinking_tokens = thinking.max().unwrap_or(0);
        if thinks && allowance.apart_tokens == 0 {
            allowance.apart_tokens = u64::MAX;
        }
        allowance.marks(text);
        allowance.image_tokens = image_tokens(&members);
        Some(allowance)
    }

    fn member(&mut self, name: &str, raw: &str) {
        if ["input", "text"].contains(&name) {
            let text = json::string(raw).unwrap_or_default();
            self.characters = self.characters.max(text.chars().count() as u64);
        }
        if !SETTINGS.contains(&name) {
            self.prompt_tokens = self.prompt_tokens.saturating_add(prompt_tokens(raw));
        }
    }

    fn setting(&mut self, name: &str, raw: &str, protocol: Option<Protocol>) {
        let text = || json::string(raw).unwrap_or_default();
        match name {
            name if ANSWERS.contains(&name) => {
                self.answers = self.answers.max(number(raw).unwrap_or(0));
            }
            // A stored prompt may have tools.
            "prompt" if raw.starts_with('{') => {
                self.is_elsewhere = true;
                (self.searches, self.tool_calls) = (u64::MAX, u64::MAX);
            }
            "prediction" => self.predicted_tokens = self.predicted_tokens.max(prompt_tokens(raw)),
            "previous_response_id" | "conversation" | "container" => self.is_elsewhere = true,
            "input" if protocol == Some(Protocol::Responses) => {
                items_tools(raw).into_iter().for_each(|raw| self.tools(raw, protocol));
                self.prompts = self.prompts.max(prompts(raw));
            }
            "prompt" | "prompts" | "input" => self.prompts = self.prompts.max(prompts(raw)),
            "files" | "file_ids" if !raw.starts_with("[]") => self.is_elsewhere = true,
            "service_tier" => keep_one(&mut self.service_tier, text().into_owned()),
            "speed" => {
                self.is_fast |= text() == "fast";
                let own = permille(raw.trim_matches('"'));
                // The slowest is the longest.
                self.speed_permille =
                    if self.speed_permille == 0 { own } else { self.speed_permille.min(own) };
            }
            "inference_geo" => keep_one(&mut self.region, text().into_owned()),
            "context_management" => self.may_compact |= raw.contains("compact"),
            "modalities" | "responseModalities" | "response_modalities" => {
                let names = json::elements(raw).unwrap_or_default();
                let names =
                    names.into_iter().filter_map(json::string).map(|name| name.to_lowercase());
                for name in names {
                    self.has_audio_output |= name == "audio";
                    self.has_image_output |= name == "image";
                }
            }
            "audio" => self.has_audio_output = true,
            "tools" => self.tools(raw, protocol),
            // Each provider has its own word for it.
            "plugins" => self.plugins(raw),
            name if name.contains("search") && !is_off(raw) => self.searches = u64::MAX,
            "mcp_servers" => self.tool_calls = u64::MAX,
            // OpenAI's subagents: each has a context of its own.
            "multi_agent" if !is_off(raw) => self.tool_calls = u64::MAX,
            // Qwen's thinking is limited by its budget alone (Model Studio's guide to deep thinking).
            "thinking_budget" => {
                let own = json::count(raw).unwrap_or(u64::MAX);
                self.apart_tokens = self.apart_tokens.max(own);
            }
            // Azure; Cohere.
            "data_sources" | "connectors" => self.is_elsewhere = true,
            "fallbacks" if protocol == Some(Protocol::Messages) => self.attempts(raw),
            name if FALLBACKS.contains(&name) => self.models(models_in(raw)),
            "model" => self.model(&text()),
            _ => {}
        }
    }

    fn plugins(&mut self, raw: &str) {
        self.searches = u64::MAX;
        for plugin in json::elements(raw).unwrap_or_default() {
            let models = inner_models(plugin);
            self.tool_calls = if models.is_empty() { self.tool_calls } else { u64::MAX };
            self.models(models);
        }
    }

    /// Reads the fallbacks of a message: of those that Anthropic chooses neither number nor names are known.
    fn attempts(&mut self, raw: &str) {
        let attempts = json::elements(raw).map_or(MOST_ATTEMPTS, |all| all.len() as u64);
        self.more_attempts = self.more_attempts.max(attempts.min(MOST_ATTEMPTS));
        self.models(match raw {
            "\"default\"" => vec![Cow::Borrowed(DEFAULT_FALLBACK)],
            _ => models_in(raw),
        });
    }

    /// Adds other models whose prices the request may cost.
    fn models(&mut self, names: Vec<Cow<'_, str>>) {
        let most = MAX_FALLBACKS.saturating_sub(self.fallbacks.len());
        for name in names.into_iter().filter(|name| !name.is_empty()).take(most) {
            self.model(&name);
            self.fallbacks.push(name.into_owned());
        }
    }

    /// Reads what a model does without being asked to.
    fn model(&mut self, name: &str) {
        let name = name.to_ascii_lowercase();
        self.searches = if searches_unasked(&name) { u64::MAX } else { self.searches };
        self.has_image_output |= name.contains("image");
        self.tool_calls = if name.contains("multi-agent") { u64::MAX } else { self.tool_calls };
    }

    fn tools(&mut self, raw: &str, protocol: Option<Protocol>) {
        let tools = json::elements(raw).unwrap_or_default();
        if !tools.is_empty() {
            self.hidden_tokens = TOOL_PROMPT_TOKENS;
        }
        for tool in &tools {
            self.tool(tool, protocol);
            let kinds: Vec<_> = all(tool, "type").into_iter().filter_map(json::string).collect();
            let is = |start: &str| kinds.iter().any(|kind| kind.starts_with(start));
            let own = HIDDEN_TOKENS.iter().rev().find(|(start, _)| is(start));
            self.hidden_tokens += own.map_or(0, |(_, tokens)| *tokens);
            let executions = all(tool, "execution");
            let is_client = |raw: &&str| json::string(raw).is_some_and(|own| own == "client");
            let is_callers = !executions.is_empty() && executions.iter().all(is_client);
            if is("tool_search") && !is_callers {
                self.deferred_tokens = (raw.len() as u64).div_ceil(DEFINITION_BYTES);
            }
        }
    }

    /// Reads a tool. One without a function of the caller's runs at the provider.
    fn tool(&mut self, raw: &str, protocol: Option<Protocol>) {
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
        let kinds = of("type").map(|raw| json::string(raw).unwrap_or_default());
        let mut kinds: Vec<Cow<'_, str>> = kinds.collect();
        if kinds.is_empty() {
            kinds.push(Cow::Borrowed(""));
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

    /// Finds parts of the prompt that cost more than text, by their members.
    fn marks(&mut self, text: &str) {
        let (mut has_document, mut has_url) = (false, false);
        let (mut data_bytes, mut is_raw, mut is_compressed) = (0_u64, false, false);
        for_each_member(text, |name, raw| {
            let is_text = raw.starts_with('"');
            match name {
                "type" if is_text => match first_string(raw).as_ref() {
                    "input_audio" | "audio" => self.has_audio_input = true,
                    "audio_url" => (self.has_audio_input, self.is_elsewhere) = (true, true),
                    "image" | "image_url" | "input_image" => self.images += 1,
                    "document" | "file" => has_document = true,
                    "url" => has_url = true,
                    "container_upload" | "item_reference" | "document_url" | "video_url"
                    | "input_video" | "video" | "resource_link" => self.is_elsewhere = true,
                    _ => {}
                },
                "ttl" if is_text => self.has_long_writes |= first_string(raw) != "5m",
                // Mistral has addresses under the names of the parts; Gemini caches contexts by name.
                "file_id" | "file_data" | "fileId" | "input_audio" | "cached_content"
                | "cachedContent"
                    if is_text =>
                {
                    self.is_elsewhere = true;
                }
                "file_url" | "file_uri" | "fileUri" | "document_url" | "pdf_url" | "video_url"
                    if is_text || is_addressed(raw) =>
                {
                    self.is_elsewhere = true;
                }
                "file_ids" if !raw.starts_with("[]") => self.is_elsewhere = true,
                "media_type" if is_text => {
                    self.is_elsewhere |= first_string(raw).eq_ignore_ascii_case("application/pdf");
                }
                "audio" if raw.starts_with('{') => {
                    self.has_audio_input = true;
                    self.is_elsewhere |= is_by_id(raw);
                }
                "data" if is_text => {
                    let data = first_string(raw);
                    self.is_elsewhere |= is_remote(&data);
                    data_bytes += data.len() as u64;
                }
                "url" | "image_url" if is_text && is_remote(&first_string(raw)) => {
                    self.remote_images += 1;
                }
                // Embeddings of Jina and Voyage; pictures to change.
                "image" | "images" | "image_urls" | "input_image" => {
                    let first = raw.trim_start_matches(['[', ' ', '\n']);
                    if first.starts_with('"') && is_remote(&first_string(first)) {
                        (self.is_elsewhere, self.remote_images) = (true, self.remote_images + 1);
                    }
                }
                "format" if is_text => match first_string(raw).as_ref() {
                    "wav" | "pcm16" => is_raw = true,
                    _ => is_compressed = true,
                },
                _ => {}
            }
        });
        self.is_elsewhere |= has_document && (has_url || self.remote_images > 0);
        if self.has_audio_input {
            let bytes = if is_raw && !is_compressed { RAW_AUDIO_BYTES } else { AUDIO_BYTES };
            self.audio_tokens = data_bytes.div_ceil(bytes);
        }
    }
}

/// Letters of base64 for a token of audio: 32 tokens a second (Google; OpenAI has 10 to 20) at 6 kbit/s.
const AUDIO_BYTES: u64 = 31;
/// The same without compression: 8,000 bytes a second.
const RAW_AUDIO_BYTES: u64 = 333;

/// Returns the numbers that limit the output of `request`, as they stand in its text, with those that no
/// protocol knows.
pub(super) fn limits<'a>(request: &Request<'a>) -> Vec<&'a str> {
    limits_of(&json::members(request.text).unwrap_or_default())
}

/// Returns the numbers that limit thinking in `request`, as they stand in its text.
pub(super) fn thinking<'a>(request: &Request<'a>) -> Vec<&'a str> {
    thinking_of(&json::members(request.text).unwrap_or_default())
}

type Members<'a> = [(Cow<'a, str>, &'a str)];

/// Returns the values of all members of an object that have this name: of two a provider may read either.
fn all<'a>(raw: &'a str, name: &str) -> Vec<&'a str> {
    let members = json::members(raw).unwrap_or_default().into_iter();
    members.filter(|(own, _)| own == name).map(|(_, raw)| raw).collect()
}

fn limits_of<'a>(members: &Members<'a>) -> Vec<&'a str> {
    let is_limit = |name: &str| LIMITS.iter().any(|own| own.eq_ignore_ascii_case(name));
    let mut limits = Vec::new();
    for_each_setting(members, MAX_GROUPS, &mut |name, raw| {
        if is_limit(name) && raw != "null" {
            limits.push(raw);
        }
    });
    limits
}

fn thinking_of<'a>(members: &Members<'a>) -> Vec<&'a str> {
    let mut limits = Vec::new();
    for_each_setting(members, MAX_GROUPS, &mut |name, raw| {
        let own = match name {
            "thinking" => all(raw, "budget_tokens"),
            "reasoning" => all(raw, "max_tokens"),
            "thinking_budget" => vec![raw],
            "thinkingConfig" | "thinking_config" => {
                [all(raw, "thinkingBudget"), all(raw, "thinking_budget")].concat()
            }
            _ => Vec::new(),
        };
        limits.extend(own.into_iter().filter(|raw| *raw != "null"));
    });
    limits
}

/// Maximum depth of groups in groups, and of lists of models.
pub const MAX_GROUPS: u32 = 3;

/// Passes the members on to `see`, and those of groups of settings among them.
fn for_each_setting<'a>(members: &Members<'a>, depth: u32, see: &mut impl FnMut(&str, &'a str)) {
    for (name, raw) in members {
        see(name, raw);
        let groups = match name.as_ref() {
            // Fallbacks of Anthropic and LiteLLM have settings of their own.
            "fallbacks" => json::elements(raw).unwrap_or_default(),
            name if SETTING_GROUPS.contains(&name) => vec![*raw],
            _ => continue,
        };
        let Some(depth) = depth.checked_sub(1) else { continue };
        for group in groups.into_iter().filter(|raw| raw.starts_with('{')) {
            for_each_setting(&json::members(group).unwrap_or_default(), depth, see);
        }
    }
}

/// Bytes of an object that are looked at: nested ones would be searched to the end again and again.
const OBJECT_BYTES: usize = 512;

/// Whether an object, with which `raw` begins, has an ID and no contents, such as earlier audio.
fn is_by_id(raw: &str) -> bool {
    match first_object(raw) {
        Ok(names) => {
            let has = |name: &str| names.iter().any(|(own, _)| own == name);
            has("id") && !has("data")
        }
        Err(head) => memmem::find(head, b"\"data\"").is_none(),
    }
}

/// Whether an object, with which `raw` begins, has the address of another server. A long one counts as such.
fn is_addressed(raw: &str) -> bool {
    first_object(raw).map_or(raw.starts_with('{'), |names| {
        let mut texts = names.into_iter().filter_map(|(_, raw)| json::string(raw));
        texts.any(|text| is_remote(&text))
    })
}

/// Returns the members of the object that `raw` begins with, none if it holds another; its first bytes if it is
/// long.
fn first_object(raw: &str) -> Result<Vec<(Cow<'_, str>, &str)>, &[u8]> {
    let head = &raw.as_bytes()[..raw.len().min(OBJECT_BYTES)];
    let end = memchr::memchr(b'}', head).ok_or(head)?;
    Ok(json::members(&raw[..=end]).unwrap_or_default())
}

/// Whether a setting says that what it names is not to be used.
fn is_off(raw: &str) -> bool {
    let is_no = |raw: &str| matches!(raw, "false" | "\"off\"" | "\"none\"" | "\"disabled\"" | "0");
    let switches = ["enable", "enabled", "mode", "type"].map(|name| all(raw, name));
    is_no(raw) || switches.into_iter().any(|own| !own.is_empty() && own.into_iter().all(is_no))
}

/// Reads an output limit. Outside Messages 0 is none, as -1 is: Ollama stops only at a limit above it.
pub(super) fn output_limit(raw: &str, protocol: Option<Protocol>) -> Option<u64> {
    let is_counted = |tokens: &u64| *tokens > 0 || protocol == Some(Protocol::Messages);
    json::count(raw).filter(is_counted)
}

/// Whether a limit that every provider of the protocol obeys is given, and none is unreadable.
fn is_limited(members: &Members<'_>, protocol: Option<Protocol>) -> bool {
    let own: &[&str] = match protocol {
        Some(Protocol::Responses) => &["max_output_tokens"],
        Some(Protocol::Messages) => &["max_tokens"],
        Some(Protocol::Chat) | None => &["max_tokens", "max_completion_tokens"],
    };
    let given = members.iter().filter(|(name, raw)| own.contains(&name.as_ref()) && *raw != "null");
    let mut counts = given.map(|(_, raw)| output_limit(raw, protocol)).peekable();
    counts.peek().is_some() && counts.all(|count| count.is_some())
}

/// Reads a number, rounded up.
fn number(raw: &str) -> Option<u64> {
    let rounded = || raw.trim_matches('"').parse().ok().filter(|number: &f64| *number >= 0.0);
    json::count(raw).or_else(|| rounded().map(|number| number.ceil() as u64))
}

fn permille(raw: &str) -> u64 {
    let number: f64 = raw.parse().unwrap_or(1.0);
    (number * 1000.0).clamp(1.0, 1_000_000.0) as u64
}

/// Returns the number of prompts in a list of texts or of lists of token ids.
fn prompts(raw: &str) -> u64 {
    let elements = json::elements(raw).unwrap_or_default();
    let is_prompt = |raw: &&&str| raw.starts_with(['"', '[']);
    elements.iter().filter(is_prompt).count() as u64
}

/// Returns the most tokens that a member can be: one for each byte of its texts, with one at each end, and
/// one for each number in a list.
fn prompt_tokens(raw: &str) -> u64 {
    if !raw.starts_with(['"', '[', '{']) {
        return 0;
    }
    let (bytes, mut at, mut tokens) = (raw.as_bytes(), 0, 0_u64);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => {
                let end = string_end(bytes, at);
                tokens += (end - at) as u64;
                at = end;
            }
            b'0'..=b'9' => {
                tokens += 1;
                let is_more = |byte: &u8| !matches!(byte, b',' | b']' | b'}' | b' ');
                at += bytes[at..].iter().take_while(|byte| is_more(byte)).count();
            }
            _ => at += 1,
        }
    }
    tokens
}

/// Returns the end of the string that begins at `start`, behind its quote.
fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut end = start + 1;
    while let Some(place) = bytes.get(end..).and_then(|rest| memchr::memchr2(b'"', b'\\', rest)) {
        end += place;
        if bytes[end] == b'"' {
            return end + 1;
        }
        end += 2;
    }
    bytes.len()
}

/// Longest name of a member that [`Allowance::marks`] looks for, each letter as an escape of six bytes.
const MAX_NAME_BYTES: usize = 6 * 24;

/// Passes the name and the rest of the text from its value on to `see`, for each member at any depth.
fn for_each_member<'a>(text: &'a str, mut see: impl FnMut(&str, &'a str)) {
    let (bytes, mut at) = (text.as_bytes(), 0);
    while let Some(place) = bytes.get(at..).and_then(|rest| memchr::memchr(b'"', rest)) {
        let start = at + place;
        at = string_end(bytes, start);
        let is_short = at - start <= MAX_NAME_BYTES;
        let rest = text.get(at..).unwrap_or_default().trim_ascii_start();
        let Some(value) = rest.strip_prefix(':').filter(|_| is_short) else { continue };
        let Some(name) = text.get(start..at).and_then(json::name) else { continue };
        see(&name, value.trim_ascii_start());
    }
}

/// Whether the text of a part names its content, a document, sound or video, by an id or address: how much that is
/// cannot be known.
pub fn is_elsewhere(part: &str) -> bool {
    const KINDS: [&str; 7] =
        ["file", "input_file", "document", "document_url", "video_url", "input_video", "audio_url"];
    let mut is_content = None;
    let mut is_elsewhere = false;
    for_each_member(part, |name, raw| match name {
        "type" if is_content.is_none() => {
            is_content = Some(KINDS.contains(&first_string(raw).as_ref()));
        }
        "file_id" if raw.starts_with('"') => is_elsewhere = true,
        "file_url" | "file_uri" | "url" | "document_url" | "video_url" | "audio_url"
            if raw.starts_with('"') =>
        {
            is_elsewhere |= is_remote(&first_string(raw));
        }
        _ => {}
    });
    is_elsewhere && is_content == Some(true)
}

/// Whether an address is that of another server: its content is not in it.
fn is_remote(address: &str) -> bool {
    const MAX_SCHEME_BYTES: usize = 8;
    match address.split_once(':') {
        Some((scheme, _)) => {
            scheme.len() <= MAX_SCHEME_BYTES && !scheme.eq_ignore_ascii_case("data")
        }
        None => address.starts_with("//"),
    }
}

/// Returns the string that `raw` begins with.
fn first_string(raw: &str) -> Cow<'_, str> {
    let end = string_end(raw.as_bytes(), 0);
    raw.get(..end).and_then(json::string).unwrap_or_default()
}

/// Whether a model searches the web without being asked to.
pub fn searches_unasked(model: &str) -> bool {
    [
        ":online",
        "enable_web_search=",
        "search-preview",
        "search-api",
        "sonar",
        "deep-research",
        "compound",
    ]
    .iter()
    .any(|word| memmem::find(model.as_bytes(), word.as_bytes()).is_some())
}

/// Tokens of a generated image of high quality, 1,536 by 1,024: the largest that OpenAI's guide lists for
/// its first image models.
pub const IMAGE_TOKENS: u64 = 6240;
/// Pixels of such an image.
const IMAGE_PIXELS: u64 = 1536 * 1024;
/// Pixels of the smallest image that models generate.
const LEAST_IMAGE_PIXELS: u64 = 1024 * 1024;
/// Tokens of each partial image in a stream.
const PARTIAL_IMAGE_TOKENS: u64 = 100;

/// Returns the most tokens of one generated image, by quality and size.
fn image_tokens(members: &Members<'_>) -> u64 {
    let of = |name: &'static str| {
        members.iter().filter(move |(own, _)| own == name).map(|(_, raw)| *raw)
    };
    let sides = |raw| {
        let sides = json::string(raw)?;
        let (width, height) = sides.split_once('x')?;
        Some(width.parse::<u64>().ok()?.saturating_mul(height.parse().ok()?))
    };
    // A size that is no number may be any.
    let sized = of("size").map(|raw| sides(raw).unwrap_or(IMAGE_PIXELS)).max();
    let side = |name| of(name).filter_map(json::count).max();
    let pixels = sized.max(side("width").zip(side("height")).map(|(w, h)| w.saturating_mul(h)));
    // Models round smaller ones up.
    let pixels = pixels.map(|pixels| pixels.max(LEAST_IMAGE_PIXELS));
    // A quality divides the amount by about four.
    let shares = of("quality").map(|raw| match json::string(raw).as_deref() {
        Some("low") => 15,
        Some("medium") => 3,
        _ => 1,
    });
    let share = shares.min().unwrap_or(1);
    let whole = pixels.map_or(IMAGE_TOKENS, |pixels| {
        let scaled = u128::from(pixels) * u128::from(IMAGE_TOKENS);
        let scaled = scaled.div_ceil(u128::from(IMAGE_PIXELS));
        // A square of 1,024 takes slightly more than its share of pixels.
        u64::try_from(scaled).unwrap_or(u64::MAX).max(1).saturating_add(64)
    });
    let partial = side("partial_images").unwrap_or(0);
    (whole / share + 1).saturating_add(partial.saturating_mul(PARTIAL_IMAGE_TOKENS))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(body: &str) -> Allowance {
        Allowance::of(body.as_bytes(), Some(Protocol::Chat)).expect("an object")
    }

    #[test]
    fn the_largest_limit_counts_and_none_that_is_not_obeyed_everywhere() {
        for (body, tokens, is_limited) in [
            (r#"{"max_tokens":10}"#, 10, true),
            (r#"{"max_tokens":10,"max_completion_tokens":400}"#, 400, true),
            (r#"{"max_tokens":10,"n_predict":500}"#, 500, true),
            (r#"{"max_tokens":10,"options":{"num_predict":"600"}}"#, 600, true),
            (r#"{"max_tokens":10,"max_tokens":700}"#, 700, true),
            (r#"{"n_predict":500}"#, 500, false),
            (r#"{"max_tokens":-1}"#, 0, false),
            (r#"{"max_tokens":10,"n_predict":-1}"#, 10, false),
            (r#"{"max_tokens":10,"options":{"num_predict":-1}}"#, 10, false),
            (r#"{"max_tokens":null}"#, 0, false),
            (r#"{"max_tokens":1e2}"#, 100, true),
            (r#"{"max_tokens":0}"#, 0, false),
            (r#"{"max_tokens":"0","max_completion_tokens":null}"#, 0, false),
            (r#"{"max_output_tokens":20}"#, 20, false),
            (r#"{"max_tokens":10,"fallbacks":[{"model":"m","max_tokens":800}]}"#, 800, true),
        ] {
            let read = of(body);
            assert_eq!((read.limit_tokens, read.is_limited), (tokens, is_limited), "{body}");
        }
        let responses = br#"{"max_output_tokens":20}"#;
        let read = Allowance::of(responses, Some(Protocol::Responses)).expect("an object");
        assert_eq!((read.limit_tokens, read.is_limited), (20, true));
        for (input, is_elsewhere) in [
            (r#"{"input":[{"id":"msg_1"},{"role":"user","content":"go"}]}"#, true),
            (r#"{"input":[{"id":"rs_1","type":null}]}"#, true),
            (r#"{"input":[{"role":"user","content":"go"},{"type":"reasoning","id":"r"}]}"#, true),
            (r#"{"input":[{"type":"reasoning","id":"r","summary":[]}]}"#, true),
            (r#"{"input":[{"type":"reasoning","id":"r","encrypted_content":"e"}]}"#, false),
            (
                r#"{"input":[{"type":"reasoning","id":"r","content":[{"type":"reasoning_text"}]}]}"#,
                false,
            ),
            (r#"{"input":[{"type":"reasoning","summary":[]}]}"#, false),
            (r#"{"input":[{"type":"image_generation_call","id":"i","result":null}]}"#, true),
            (r#"{"input":[{"type":"image_generation_call","id":"i","result":"AAAA"}]}"#, false),
            (r#"{"input":[{"type":"web_search_call","id":"w","status":"completed"}]}"#, true),
            (r#"{"input":[{"type":"web_search_call","id":"w","action":{"query":"q"}}]}"#, false),
            (r#"{"input":[{"type":"computer_call","id":"c"}]}"#, true),
            (
                r#"{"input":[{"type":"code_interpreter_call","id":"c","code":"1","outputs":null}]}"#,
                true,
            ),
            (r#"{"input":[{"type":"function_call","id":"f","arguments":"{}"}]}"#, false),
            (r#"{"input":[{"type":"message","id":"m","role":"assistant","content":[]}]}"#, true),
        ] {
            let read = Allowance::of(input.as_bytes(), Some(Protocol::Responses));
            assert_eq!(read.expect("an object").is_elsewhere, is_elsewhere, "{input}");
        }
    }

    #[test]
    fn documents_by_id_or_address_stand_elsewhere() {
        for (part, expected) in [
            (r#"{"type":"file","file":{"file_id":"f"}}"#, true),
            (r#"{"type":"file","file":{"file_data":"data:application/pdf;base64,AAAA"}}"#, false),
            (r#"{"type":"input_file","file_url":"https://host/a.pdf"}"#, true),
            (r#"{"type":"input_file","filename":"a","file_data":"AAAA"}"#, false),
            (r#"{"type":"document","source":{"type":"url","url":"https://host/a.pdf"}}"#, true),
            (r#"{"type":"document","source":{"type":"file","file_id":"f"}}"#, true),
            (r#"{"type":"document","source":{"type":"text","data":"https://host/"}}"#, false),
            (r#"{"type":"document_url","document_url":"https://host/a.pdf"}"#, true),
            (r#"{"type":"video_url","video_url":{"url":"https://host/a.mp4"}}"#, true),
            (r#"{"type":"web_search_result","url":"https://host/"}"#, false),
            (r#"{"type":"text","text":"a","file_id":"f"}"#, false),
        ] {
            assert_eq!(is_elsewhere(part), expected, "{part}");
        }
    }

    #[test]
    fn answers_and_prompts_multiply() {
        for (body, answers, prompts, most_tokens) in [
            (r#"{"prompt":"abc"}"#, 0, 0, 5),
            (r#"{"prompt":["abc","de"],"n":3}"#, 3, 2, 9),
            (r#"{"prompt":[1,22,333]}"#, 0, 0, 3),
            (r#"{"prompt":[[1,22],[3]],"n":2,"best_of":5}"#, 5, 2, 3),
            (r#"{"n":"4","user":"abc"}"#, 4, 0, 3),
            (r#"{"n":2.5}"#, 3, 0, 0),
            (r#"{"generationConfig":{"candidateCount":4}}"#, 4, 0, 17),
            (r#"{"parameters":{"num_return_sequences":4}}"#, 4, 0, 23),
            (r#"{"batch_size":3}"#, 3, 0, 0),
            (r#"{"parameters":{"sampleCount":4}}"#, 4, 0, 14),
            (r#"{"prompts":["a","b"]}"#, 0, 2, 6),
        ] {
            let read = of(body);
            assert_eq!(
                (read.answers, read.prompts, read.prompt_tokens),
                (answers, prompts, most_tokens),
                "{body}"
            );
        }
    }

    #[test]
    fn what_costs_more_than_text_is_found_wherever_it_stands() {
        let part = |part: &str| of(&format!(r#"{{"messages":[{{"content":[{part}]}}]}}"#));
        assert!(part(r#"{"type":"file","file":{"file_id":"f"}}"#).is_elsewhere);
        assert!(part(r#"{"type":"document","source":{"type":"url","url":"u"}}"#).is_elsewhere);
        assert!(part(r#"{"source":{"media_type":"application/pdf"}}"#).is_elsewhere);
        assert!(!part(r#"{"type":"document","source":{"type":"text","data":"t"}}"#).is_elsewhere);
        assert!(!part(r#"{"type":"text","text":"\"file_id\":\"f\""}"#).is_elsewhere);
        for elsewhere in [
            r#"{"type":"file","file_url":{"url":"https://host/a.pdf"}}"#,
            r#"{"type":"text","pdf_url":"https://host/a.pdf"}"#,
            r#"{"type":"resource_link","uri":"https://host/a.pdf"}"#,
            r#"{"image":"https://host/a.png"}"#,
            r#"{"images":["https://host/a.png"]}"#,
        ] {
            assert!(part(elsewhere).is_elsewhere, "{elsewhere}");
        }
        assert!(!part(r#"{"properties":{"file_url":{"type":"string"}}}"#).is_elsewhere);
        let long =
            format!(r#"{{"file_url":{{"pad":"{}","url":"https://host/a"}}}}"#, "x".repeat(600));
        assert!(part(&long).is_elsewhere);
        assert!(of(r#"{"files":["f"]}"#).is_elsewhere && !of(r#"{"files":[]}"#).is_elsewhere);
        assert!(part(r#"{"t\u0074l" : "1h"}"#).has_long_writes);
        assert!(!part(r#"{"cache_control":{"ttl":"5m"}}"#).has_long_writes);
        let audio = r#"{"type":"input_audio","input_audio":{"data":"AAAA","format":"mp3"}}"#;
        assert!(part(audio).has_audio_input && part(audio).audio_tokens == 1);
        assert!(of(r#"{"modalities":["text","audio"]}"#).has_audio_output);
        assert!(of(r#"{"previous_response_id":"r"}"#).is_elsewhere);
        assert!(of(r#"{"context_management":[{"type":"compaction"}]}"#).may_compact);
        assert!(of(r#"{"speed":"fast"}"#).is_fast);
        assert!(of(r#"{"speed":"fast","speed":"standard"}"#).is_fast);
        let escaped = r#"{"modalities":["text","aud\u0069o"]}"#;
        assert!(of(escaped).has_audio_output && of(r#"{"audio":{"voice":"v"}}"#).has_audio_output);
        for elsewhere in [
            r#"{"type":"document","source":{"type":"ur\u006c","url":"u"}}"#,
            r#"{"source":{"media_type":"Application\/PDF"}}"#,
            r#"{"type":"input_audio","input_audio":{"data":"https://a/b.mp3"}}"#,
            r#"{"image":"https://a/b.png"}"#,
            r#"{"type":"document_url","document_url":"HTTPS://a/b.pdf"}"#,
            r#"{"type":"input_audio","input_audio":"s3://a/b.mp3"}"#,
            r#"{"google":{"cached_content":"cachedContents/a"}}"#,
        ] {
            assert!(part(elsewhere).is_elsewhere, "{elsewhere}");
        }
        let earlier = r#"{"messages":[{"role":"assistant","audio":{"id":"audio_1"}}]}"#;
        assert!(of(earlier).is_elsewhere);
        let two = r#"{"format":"wav"},{"type":"input_audio","input_audio":{"data":"AAAA","format":"mp3"}}"#;
        assert_eq!(part(two).audio_tokens, 1);
        let image = r#"{"type":"image_url","image_url":{"url":"https://a/b.png"}}"#;
        assert_eq!((part(image).images, part(image).remote_images), (1, 1));
        let two = r#"{"type":"input_image","image_url":"data:image/png;base64,AAAA"},{"type":"image","source":{"type":"url","url":"HTTPS://a/b.png"}}"#;
        assert_eq!((part(two).images, part(two).remote_images), (2, 1));
        assert!(of(r#"{"data_sources":[{"type":"azure_search"}]}"#).is_elsewhere);
        let thinking = r#"{"generationConfig":{"thinkingConfig":{"thinkingBudget":5000}}}"#;
        assert_eq!(of(thinking).thinking_tokens, 5000);
        assert_eq!(of(r#"{"extra_body":{"thinking":{"budget_tokens":7}}}"#).thinking_tokens, 7);
        assert_eq!(of(r#"{"tools":[{"type":"advisor_20260301","model":"m"}]}"#).fallbacks, ["m"]);
        let advisors = vec![r#"{"type":"advisor_20260301","model":"m"}"#; MAX_FALLBACKS].join(",");
        let many = of(&format!(r#"{{"models":["a","b"],"tools":[{advisors}]}}"#));
        assert_eq!(many.fallbacks.len(), MAX_FALLBACKS, "a body chooses their number");
        assert_eq!(of(r#"{"models":["a",{"model":"b"}]}"#).fallbacks, ["a", "b"]);
    }

    #[test]
    fn tools_at_the_provider_are_counted_and_those_of_the_caller_are_not() {
        let tools = |tools: &str| {
            let body = format!(r#"{{"tools":[{tools}]}}"#);
            Allowance::of(body.as_bytes(), Some(Protocol::Messages)).expect("an object")
        };
        let calls = |read: Allowance| (read.searches, read.tool_calls);
        let most = u64::MAX;
        for (tool, expected) in [
            (r#"{"type":"function","function":{"name":"web_search"}}"#, (0, 0)),
            (r#"{"name":"a","input_schema":{}}"#, (0, 0)),
            (r#"{"type":"bash_20250124","name":"bash"}"#, (0, 0)),
            (r#"{"type":"web_search_20250305","max_uses":3}"#, (3, 0)),
            (r#"{"type":"web_search_preview"}"#, (most, 0)),
            (r#"{"google_search":{}}"#, (most, 0)),
            (r#"{"type":"code_interpreter"}"#, (0, most)),
            (r#"{"type":"shell","environment":{"type":"container_auto"}}"#, (0, most)),
            (
                r#"{"type":"web_search_20250305","max_uses":3},{"type":"web_fetch_20250910","max_uses":2}"#,
                (3, 2),
            ),
        ] {
            assert_eq!(calls(tools(tool)), expected, "{tool}");
        }
        let bounded = r#"{"max_tool_calls":4,"tools":[{"type":"web_search","max_uses":2}]}"#;
        // Each protocol has its own limit.
        for (protocol, searches) in
            [(Protocol::Responses, 4), (Protocol::Messages, 2), (Protocol::Chat, most)]
        {
            let read = Allowance::of(bounded.as_bytes(), Some(protocol)).expect("an object");
            assert_eq!(calls(read), (searches, 0), "{protocol:?}");
        }
        assert_eq!(calls(tools(r#"{"type":"shell"}"#)), (0, 0));
        let twice = r#"{"type":"custom","type":"web_search_20250305","max_uses":1,"max_uses":9}"#;
        assert_eq!(calls(tools(twice)), (9, 0));
        assert_eq!(of(r#"{"search_parameters":{}}"#).searches, most);
        assert_eq!(of(r#"{"extra_body":{"enable_search":true}}"#).searches, most);
        for model in ["gpt-4o-search-preview", "gpt-5-search-api", "groq/compound"] {
            assert_eq!(of(&format!(r#"{{"model":"{model}"}}"#)).searches, most, "{model}");
        }
        let read = |protocol, body: &str| {
            Allowance::of(body.as_bytes(), Some(protocol)).expect("an object")
        };
        let declared =
            r#"{"input":[{"type":"additional_tools","tools":[{"type":"web_search"}]},"x"]}"#;
        let own = read(Protocol::Responses, declared);
        assert_eq!((own.searches, own.prompts), (most, 1));
        let loaded = r#"{"input":[{"type":"tool_search_output","tools":[{"type":"mcp","server_label":"m"}]}]}"#;
        assert_eq!(read(Protocol::Responses, loaded).tool_calls, most);
        let listed =
            r#"{"input":[{"type":"mcp_list_tools","tools":[{"name":"f","input_schema":{}}]}]}"#;
        assert_eq!(calls(read(Protocol::Responses, listed)), (0, 0));
        let stored = read(Protocol::Responses, r#"{"prompt":{"id":"p"}}"#);
        assert_eq!(calls(stored), (most, most));
        let image = read(Protocol::Responses, r#"{"tools":[{"type":"image_generation"}]}"#);
        assert_eq!(
            (image.image_tool_tokens, image.fallbacks),
            (6240, vec![IMAGE_MODEL.to_owned()])
        );
        let search = r#"{"tools":[{"type":"tool_search"},{"type":"function","name":"f","defer_loading":true}]}"#;
        assert!(read(Protocol::Responses, search).deferred_tokens > 20);
        let clients = r#"{"tools":[{"type":"tool_search","execution":"client"}]}"#;
        assert_eq!(read(Protocol::Responses, clients).deferred_tokens, 0);
        let anthropics =
            r#"{"tools":[{"name":"f","input_schema":{}},{"type":"bash_20250124","name":"bash"}]}"#;
        assert_eq!(read(Protocol::Messages, anthropics).hidden_tokens, 346 + 245);
        assert_eq!(of(anthropics).hidden_tokens, 0);
        for named in [r#"{"model":"anthropic/Claude-x","#, r#"{"models":["anthropic/Claude-x"],"#] {
            assert_eq!(of(&anthropics.replacen('{', named, 1)).hidden_tokens, 346 + 245);
        }
    }

    #[test]
    fn models_inside_tools_and_plugins_are_named() {
        for (body, names, tool_calls) in [
            (
                r#"{"tools":[{"type":"openrouter:advisor","parameters":{"model":"m"}}]}"#,
                vec!["m"],
                u64::MAX,
            ),
            (
                r#"{"tools":[{"type":"openrouter:fusion","parameters":{"analysis_models":["a","b"],"model":"c"}}]}"#,
                vec!["a", "b", "c"],
                u64::MAX,
            ),
            (
                r#"{"tools":[{"type":"openrouter:image_generation","parameters":{"model":"m"}}]}"#,
                vec!["m"],
                u64::MAX,
            ),
            (
                r#"{"plugins":[{"id":"fusion","analysis_models":["a","b"],"model":"c"}]}"#,
                vec!["a", "b", "c"],
                u64::MAX,
            ),
            (r#"{"plugins":[{"id":"web"}]}"#, vec![], 0),
            (r#"{"tools":[{"type":"function","parameters":{"model":"m"}}]}"#, vec![], 0),
        ] {
            let read = of(body);
            assert_eq!(read.fallbacks, names, "{body}");
            assert_eq!(read.tool_calls, tool_calls, "{body}");
        }
        for (tool, sessions) in [
            (r#"{"type":"shell","environment":{"type":"container_auto"}}"#, 1),
            (r#"{"type":"code_interpreter"}"#, 1),
            (r#"{"type":"file_search"}"#, 0),
        ] {
            assert_eq!(of(&format!(r#"{{"tools":[{tool}]}}"#)).sessions, sessions, "{tool}");
        }
    }

    #[test]
    fn every_provider_s_words_are_read() {
        let predicted = r#"{"prediction":{"type":"content","content":"one two three"}}"#;
        assert!(of(predicted).predicted_tokens >= 3);
        for search in [
            r#"{"web_search":{"enable":true}}"#,
            r#"{"venice_parameters":{"enable_web_search":"on"}}"#,
            r#"{"model":"m:enable_web_search=on"}"#,
            r#"{"models":["perplexity/sonar"]}"#,
            r#"{"extra_body":{"search_parameters":{"mode":"auto"}}}"#,
            r#"{"tools":[{"type":"builtin_function","function":{"name":"$web_search"}}]}"#,
            r#"{"tools":[{"type":"function","function":{"name":"$web_search"}}]}"#,
        ] {
            assert_eq!(of(search).searches, u64::MAX, "{search}");
        }
        for none in [
            r#"{"web_search":{"enable":false}}"#,
            r#"{"venice_parameters":{"enable_web_search":"off"}}"#,
            r#"{"search_parameters":{"mode":"off"},"enable_search":false}"#,
        ] {
            assert_eq!(of(none).searches, 0, "{none}");
        }
        for image in [
            r#"{"model":"google/gemini-2.5-flash-image"}"#,
            r#"{"models":["google/gemini-2.5-flash-image"]}"#,
            r#"{"extra_body":{"generationConfig":{"responseModalities":["TEXT","IMAGE"]}}}"#,
        ] {
            assert!(of(image).has_image_output, "{image}");
        }
        for (models, names) in [
            (r#"{"models":["a","b"]}"#, "a b"),
            (r#"{"fallbacks":[{"model":"a","max_tokens":4},{"m":["b","c"]}]}"#, "a b c"),
            (r#"{"context_window_fallbacks":{"m":["a"]}}"#, "a"),
            (r#"{"models":[["a",[["b"]]],3]}"#, "a"),
            (r#"{"providerOptions":{"gateway":{"models":["a"]}}}"#, "a"),
        ] {
            assert_eq!(of(models).fallbacks.join(" "), names, "{models}");
        }
    }

    #[test]
    fn each_attempt_of_a_message_is_billed() {
        let read = |body: &str| {
            Allowance::of(body.as_bytes(), Some(Protocol::Messages)).expect("an object")
        };
        for (body, attempts, names) in [
            (r#"{"fallbacks":[{"model":"a"},{"model":"b"}]}"#, 2, vec!["a", "b"]),
            (r#"{"fallbacks":"default"}"#, 3, vec![DEFAULT_FALLBACK]),
            (r#"{"fallbacks":null}"#, 0, vec![]),
            (r#"{"fallbacks":[]}"#, 0, vec![]),
        ] {
            let read = read(body);
            assert_eq!((read.more_attempts, read.fallbacks), (attempts, names_of(names)), "{body}");
        }
        let own = r#"{"max_tokens":10,"fallbacks":[{"model":"a","max_tokens":5000,"speed":"fast","thinking":{"budget_tokens":4000}}]}"#;
        let own = read(own);
        assert!(own.is_fast && own.is_limited);
        assert_eq!((own.limit_tokens, own.thinking_tokens), (5000, 4000));
        assert_eq!(of(r#"{"fallbacks":[{"model":"a"}]}"#).more_attempts, 0);
    }

    fn names_of(names: Vec<&str>) -> Vec<String> {
        names.into_iter().map(str::to_owned).collect()
    }

    #[test]
    fn of_two_different_tiers_nobody_knows_which_serves() {
        let tier = |body: &str| of(body).service_tier.expect("one is given");
        assert_eq!(tier(r#"{"service_tier":"flex","extra_body":{"service_tier":"flex"}}"#), "flex");
        assert_eq!(tier(r#"{"service_tier":"priority","extra_body":{"service_tier":"flex"}}"#), "");
        assert_eq!(tier(r#"{"service_tier":"priority","service_tier":"flex"}"#), "");
    }

    #[test]
    fn images_take_tokens_by_size_and_quality() {
        // The guide's figures: 272, 1,056 and 4,160 for a square, 408, 1,584 and 6,240 for a portrait.
        for (body, listed) in [
            (r#"{"size":"1024x1024","quality":"low"}"#, 272),
            (r#"{"size":"1024x1024","quality":"medium"}"#, 1056),
            (r#"{"size":"1024x1024","quality":"high"}"#, 4160),
            (r#"{"size":"1024x1536","quality":"low"}"#, 408),
            (r#"{"size":"1024x1536","quality":"medium"}"#, 1584),
            (r#"{"size":"1024x1536"}"#, 6240),
            (r#"{"size":"256x256","quality":"low"}"#, 272),
            (r#"{"size":"1024x1024","quality":"low","width":1024,"height":1536}"#, 408),
            (r#"{"size":"auto","partial_images":2}"#, 6440),
        ] {
            let held = of(body).image_tokens;
            assert!(held >= listed && held <= listed * 3 / 2, "{body}: {held}");
        }
    }

    #[test]
    fn of_two_members_of_one_name_the_dearer_counts() {
        for (body, tokens) in [
            (r#"{"thinking":{"budget_tokens":10,"budget_tokens":9000}}"#, 9000),
            (r#"{"reasoning":{"max_tokens":9000,"max_tokens":10}}"#, 9000),
            (r#"{"thinkingConfig":{"thinkingBudget":1,"thinking_budget":9000}}"#, 9000),
        ] {
            assert_eq!(of(body).thinking_tokens, tokens, "{body}");
        }
        let shell = r#"{"tools":[{"type":"shell","environment":{"type":"local"},"environment":{"type":"container_auto"}}]}"#;
        assert_eq!(of(shell).tool_calls, u64::MAX);
        let function =
            r#"{"tools":[{"type":"function","function":{"name":"f","name":"$web_search"}}]}"#;
        assert_eq!(of(function).searches, u64::MAX);
        assert_eq!(of(r#"{"web_search":{"enable":false,"enable":true}}"#).searches, u64::MAX);
        let long = r#""prediction":{"content":"one two three four"}"#;
        let two = format!(r#"{{{long},"extra_body":{{"prediction":{{"content":"one"}}}}}}"#);
        assert!(of(&two).predicted_tokens >= 18, "{two}");
        assert_eq!(of(r#"{"speed":0.25,"options":{"speed":4}}"#).speed_permille, 250);
        let large = of(r#"{"size":"1024x1024"}"#).image_tokens;
        for two in [
            r#"{"size":"1024x1024","size":"256x256"}"#,
            r#"{"size":"256x256","quality":"low","size":"1024x1024","quality":"high"}"#,
        ] {
            assert_eq!(of(two).image_tokens, large, "{two}");
        }
    }

    #[test]
    fn agents_and_thinking_beyond_the_output_are_found() {
        for (body, tool_calls, apart_tokens) in [
            (r#"{"multi_agent":{"enabled":true}}"#, u64::MAX, 0),
            (r#"{"multi_agent":{"enabled":false}}"#, 0, 0),
            (r#"{"model":"x-ai/grok-4.20-multi-agent"}"#, u64::MAX, 0),
            (r#"{"enable_thinking":true}"#, 0, u64::MAX),
            (r#"{"extra_body":{"enable_thinking":true,"thinking_budget":5000}}"#, 0, 5000),
            (r#"{"enable_thinking":false}"#, 0, 0),
            (r#"{"thinking_budget":"many"}"#, 0, u64::MAX),
        ] {
            let read = of(body);
            assert_eq!((read.tool_calls, read.apart_tokens), (tool_calls, apart_tokens), "{body}");
        }
    }

    #[test]
    fn a_name_in_escapes_is_the_same_name() {
        let escaped = |name: &str| -> String {
            name.chars().map(|letter| format!("\\u{:04x}", u32::from(letter))).collect()
        };
        for name in ["file_id", "cached_content", "cachedContent", "document_url"] {
            let body = format!(r#"{{"x":{{"{}":"https://host/a"}}}}"#, escaped(name));
            assert!(of(&body).is_elsewhere, "{body}");
        }
    }

    #[test]
    fn only_objects_are_read() {
        for body in ["", "[]", "7", "{", "\u{fffd}"] {
            assert_eq!(Allowance::of(body.as_bytes(), None), None, "{body}");
        }
        assert_eq!(Allowance::of(b"{\"a\":\"\xff\"}", None), None);
    }
}
