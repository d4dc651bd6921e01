//! What a request allows its provider to charge for: the largest output limit, the number of answers,
//! tools that run at the provider, content that lies elsewhere, audio, images, tiers and lifetimes. Reads
//! any JSON body; changes nothing. A fact that cannot be read counts as its most expensive value.

mod images;
mod limits;
mod named;
mod parts;
#[cfg(test)]
mod tests;
mod tools;

use std::borrow::Cow;

use memchr::memmem;

use super::Protocol;
use super::body::FALLBACKS;
use super::json;
pub use images::{IMAGE_MODEL, IMAGE_TOKENS};
pub use limits::{LEAST_THINKING_TOKENS, MAX_GROUPS, limits, output_limit, thinking};
use limits::{for_each_setting, is_limited, is_off, limits_of, thinking_of, unasked_thinking};
pub use named::{inner_models, items_tools, models_in};
pub use parts::is_elsewhere;

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
    /// About the most tokens that its texts are, as dense as they are.
    pub dense_tokens: u64,
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
            allowance.is_elsewhere |= named::has_references(&members);
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
        if protocol == Some(Protocol::Chat) {
            let own = members.iter().filter(|(name, _)| name == "model");
            let own = own.filter_map(|(_, raw)| json::string(raw));
            let others = allowance.fallbacks.iter().map(|name| Cow::Borrowed(name.as_str()));
            let all: Vec<Cow<'_, str>> = own.chain(others).collect();
            let unasked = all.iter().map(|name| unasked_thinking(name, &members)).max();
            if !all.is_empty() && all.iter().all(|name| grounds_once(name)) {
                allowance.searches = allowance.searches.min(allowance.answers.max(1));
            }
            allowance.apart_tokens = allowance.apart_tokens.max(unasked.unwrap_or(0));
        }
        allowance.marks(text);
        allowance.image_tokens = images::image_tokens(&members);
        Some(allowance)
    }

    fn member(&mut self, name: &str, raw: &str) {
        if ["input", "text"].contains(&name) {
            let text = json::string(raw).unwrap_or_default();
            self.characters = self.characters.max(text.chars().count() as u64);
        }
        if !SETTINGS.contains(&name) {
            self.prompt_tokens = self.prompt_tokens.saturating_add(parts::prompt_tokens(raw));
            self.dense_tokens = self.dense_tokens.saturating_add(parts::dense_tokens(raw));
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
            "prediction" => {
                self.predicted_tokens = self.predicted_tokens.max(parts::prompt_tokens(raw))
            }
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

/// Whether a model's searches for a prompt cost one fee: Gemini's before the third (Google's page on pricing).
fn grounds_once(model: &str) -> bool {
    let name = model.rsplit('/').next().unwrap_or(model).to_ascii_lowercase();
    ["gemini-1", "gemini-2"].iter().any(|start| name.starts_with(start))
}
