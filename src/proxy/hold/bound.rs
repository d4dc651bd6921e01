//! The most that a request can cost: what it allows its provider to charge for, in the figures that a hold
//! is made of. Each rule is stated in `docs/budgets.md`. Pure arithmetic.

use crate::config::names;
use crate::proxy::plan::Planned;
use crate::upstream::{Endpoint, Naming, Route};
use weir_engine::tokens::Encoding;
use weir_engine::tokens::media::ImageRule;
use weir_engine::wire::allowance::{Allowance, LEAST_THINKING_TOKENS};
use weir_engine::wire::usage::SESSION_CALLS;
use weir_store::budget::{Ask, Kind, Most, OutputBound, Pieces, Price, ServiceTier};

/// Output that answers of a model rarely exceed, assumed until enough of its answers were seen.
const UNKNOWN_OUTPUT_TOKENS: u64 = 2048;
/// Factor for rare answers that are longer than nearly all seen before.
const SPARE: u64 = 2;
/// Minimum output for which a request is worth sending.
const LEAST_OUTPUT_TOKENS: u64 = 16;
/// Bytes of a token in dense text, where weir cannot count exactly.
const DENSE_BYTES: u64 = 3;
/// Tokens of the window that a tool's call with its result takes at least.
const CALL_TOKENS: u64 = 1000;
/// Most inferences after the first that calls of tools lead to, if the request states no maximum of calls:
/// Anthropic's guide to server tools ends a request after ten.
const MOST_INNER_INFERENCES: u64 = 10;
/// Most tokens of an image at models that weir does not know: the largest that OpenAI's guide to images
/// lists, for gpt-4o-mini.
const IMAGE_TOKENS: u64 = 48_169;
/// Longest thinking of models whose answers are shorter: Model Studio's list of Qwen's models.
const MOST_THINKING_TOKENS: u64 = 81_920;
/// Milliseconds of speech for each byte of text: 12 characters a second are slow.
const SPEECH_MS_A_BYTE: u64 = 200;
/// Tokens of a second of speech: OpenAI's models write about 21.
const SPEECH_TOKENS_A_SECOND: u64 = 25;

/// A conversation whose prompt weir has counted, as far as its cost depends on it.
pub struct Desired<'a> {
    pub model: &'a str,
    /// Name of its upstream, if not the default.
    pub upstream: Option<&'a str>,
    /// Prompt tokens by weir's count.
    pub sent_tokens: u64,
    /// Encoding of that count.
    pub encoding: Encoding,
    pub allowance: Allowance,
    pub window_tokens: u64,
    /// Output of each answer without a limit.
    pub most_output_tokens: u64,
    /// Whether its output limit can be lowered or set.
    pub is_clampable: bool,
    /// [`Caller::as_of`](crate::proxy::Caller::as_of).
    pub as_of: Option<u64>,
}

impl<'a> Desired<'a> {
    /// Describes a conversation that is sent as `planned`.
    pub fn planned(planned: &'a Planned, allowance: Allowance) -> Self {
        let known = planned.limits.max_output_tokens.filter(|_| planned.is_model_known);
        let window_tokens = planned.limits.window_tokens;
        let rest_tokens = window_tokens.saturating_sub(planned.sent_tokens);
        Self {
            model: &planned.model,
            upstream: planned.upstream.as_deref(),
            sent_tokens: planned.sent_tokens,
            encoding: planned.encoding,
            allowance,
            window_tokens,
            most_output_tokens: known.unwrap_or(rest_tokens),
            is_clampable: planned.is_clampable,
            as_of: None,
        }
    }
}

/// A request that weir does not plan, as far as its cost depends on it.
pub struct Unread<'a> {
    /// `None` for a path that weir does not know.
    pub route: Option<Route>,
    /// Empty if unknown.
    pub model: &'a str,
    pub allowance: Option<Allowance>,
    pub window_tokens: u64,
    /// Largest output of the model.
    pub most_output_tokens: u64,
}

/// First parts of paths that run no model and cost nothing, besides those that [`Naming::Nowhere`] knows.
const FREE: [&str; 5] = ["assistants", "tokenize", "detokenize", "apply_template", "weir"];
/// Paths that weir knows and cannot bound, as examples for the operator.
pub const CLOSED: [&str; 7] = [
    "audio/transcriptions",
    "audio/translations",
    "batches",
    "fine_tuning/jobs",
    "images/edits",
    "realtime",
    "videos",
];

/// Whether a path that weir does not meter costs nothing, if no body asks for a model there.
pub fn is_free(path: &str) -> bool {
    let path = path.to_ascii_lowercase();
    let names = names(&path);
    match Endpoint::of(&names) {
        // A new container is a session with a fee.
        Endpoint::Other(Naming::Nowhere | Naming::Optional) => names != ["containers"],
        Endpoint::Count => true,
        _ => FREE.contains(&names[0]) || names.last() == Some(&"cancel"),
    }
}

/// Whether a request to a path runs a model only if its body asks for one.
pub fn may_run(path: &str) -> bool {
    Endpoint::of(&names(path)) == Endpoint::Other(Naming::Optional)
}

fn names(path: &str) -> Vec<&str> {
    path.strip_prefix("v1/").unwrap_or(path).split('/').collect()
}

/// Returns the route with this name.
pub fn route(name: &str) -> Option<Route> {
    use Route::{
        Chat, Compact, Completions, Embeddings, Images, Messages, Moderations, Responses, Speech,
    };
    let all =
        [Chat, Completions, Embeddings, Responses, Compact, Messages, Images, Speech, Moderations];
    all.into_iter().find(|route| route.name() == name)
}

/// Returns the amounts to ask for a conversation whose prompt weir has counted, at the dearest of these
/// prices; answers of the model usually take at most `usual_tokens`.
pub fn conversation(
    desired: &Desired<'_>,
    prices: &[&Price],
    usual_tokens: Option<u64>,
    clamps: bool,
) -> Ask {
    let Desired { allowance, sent_tokens, .. } = desired;
    let sent_tokens = *sent_tokens;
    // The provider's count may exceed weir's. Base64 is no measure of it.
    let has_media = allowance.images > 0 || allowance.has_audio_input;
    let by_bytes = match has_media {
        true => 0,
        false => (allowance.prompt_tokens / DENSE_BYTES).max(allowance.dense_tokens),
    };
    // Others count the same text otherwise.
    let encoding = match allowance.fallbacks.is_empty() {
        true => desired.encoding,
        false => Encoding::Estimate,
    };
    let prompt_tokens = match encoding {
        Encoding::Estimate => (sent_tokens + sent_tokens / 4).max(by_bytes),
        Encoding::Scaled { .. } => (sent_tokens + sent_tokens / 20).max(by_bytes),
        _ => sent_tokens,
    };
    let prompt_tokens = match encoding {
        // A family's own rule has counted them at most.
        Encoding::Estimate if !ImageRule::is_known(desired.model) => {
            let image_tokens =
                allowance.images.max(allowance.remote_images).saturating_mul(IMAGE_TOKENS);
            prompt_tokens.saturating_add(image_tokens)
        }
        _ => prompt_tokens,
    };
    let more_tokens = allowance.audio_tokens + allowance.hidden_tokens + allowance.deferred_tokens;
    let prompt_tokens = prompt_tokens.saturating_add(more_tokens);
    let prompt = Prompt::new(allowance, prompt_tokens, desired.window_tokens);
    let image_tokens = prompt.pieces.images.saturating_mul(allowance.image_tool_tokens);
    let usual_tokens =
        usual_tokens.map_or(UNKNOWN_OUTPUT_TOKENS, |tokens| tokens.saturating_mul(SPARE));
    let may_clamp = clamps && desired.is_clampable;
    let output_tokens = output_tokens(allowance, desired.most_output_tokens);
    let wanted_tokens = match allowance.is_limited || clamps {
        true => output_tokens,
        // Without clamping, an answer without a limit may pass its hold.
        false => usual_tokens.min(output_tokens),
    };
    let least_tokens = match allowance.thinking_tokens {
        0 => LEAST_OUTPUT_TOKENS,
        // Thinking has to fit below the limit.
        thinking => thinking.min(LEAST_THINKING_TOKENS) + 1,
    };
    let fixed_tokens = image_tokens
        .saturating_add(allowance.predicted_tokens)
        .saturating_add(apart_tokens(desired, may_clamp));
    Ask {
        money: prompt.cost(desired.model, allowance, (prices, fixed_tokens)),
        prompt_tokens: prompt.all_tokens().saturating_add(fixed_tokens),
        choices: answers(allowance),
        wanted_tokens,
        enough_tokens: usual_tokens.min(wanted_tokens),
        least_tokens: least_tokens.min(wanted_tokens),
        is_flexible: may_clamp || !(clamps || allowance.is_limited),
    }
}

/// Returns the amounts to ask for a request that weir forwards as it is; `None` if nothing bounds them.
pub fn unread(unread: &Unread<'_>, prices: &[&Price]) -> Option<Ask> {
    let (Some(allowance), Some(route)) = (&unread.allowance, unread.route) else {
        let fee = prices.iter().filter_map(|price| price.fee(Kind::Request)).max()?;
        let money = OutputBound { base_nano_usd: fee, output_nano_usd_per_mtok: 0 };
        return Some(ask(money, 0, 1, 0));
    };
    // Their tokens are not counted here.
    let is_elsewhere = allowance.is_elsewhere || allowance.remote_images > 0;
    let allowance = &Allowance { is_elsewhere, ..allowance.clone() };
    let prompt = Prompt::new(allowance, allowance.prompt_tokens, unread.window_tokens);
    let (choices, output_tokens, fixed_tokens) = match route {
        Route::Embeddings | Route::Moderations => (1, 0, 0),
        Route::Images => (1, 0, allowance.image_tokens.saturating_mul(answers(allowance))),
        Route::Speech => (1, 0, speech_ms(allowance) / 1000 * SPEECH_TOKENS_A_SECOND + 25),
        Route::Chat | Route::Completions | Route::Responses | Route::Compact | Route::Messages => {
            (answers(allowance), output_tokens(allowance, unread.most_output_tokens), 0)
        }
    };
    let pieces = match route {
        Route::Images => Pieces { images: answers(allowance), ..prompt.pieces },
        Route::Speech => Pieces {
            characters: allowance.characters,
            audio_ms: speech_ms(allowance),
            ..prompt.pieces
        },
        _ => prompt.pieces,
    };
    let (is_sound, is_image) = (route == Route::Speech, route == Route::Images);
    // Each input of a list may lie elsewhere.
    let inputs = match route {
        Route::Embeddings if is_elsewhere => allowance.remote_images.max(allowance.prompts).max(1),
        _ => 1,
    };
    let inferences = prompt.inferences.saturating_mul(inputs);
    let prompt = Prompt { pieces, inferences, is_sound, is_image, ..prompt };
    let money = prompt.cost(unread.model, allowance, (prices, fixed_tokens));
    let all_tokens = prompt.all_tokens().saturating_add(fixed_tokens);
    Some(ask(money, all_tokens, choices, output_tokens))
}

fn ask(money: OutputBound, prompt_tokens: u64, choices: u64, output_tokens: u64) -> Ask {
    Ask {
        money,
        prompt_tokens,
        choices,
        wanted_tokens: output_tokens,
        enough_tokens: output_tokens,
        least_tokens: output_tokens,
        is_flexible: false,
    }
}

/// Advice about the output, and in its place if the prompt alone may cost too much.
const ABOUT_OUTPUT: [&str; 2] =
    ["It has no output limit: set max_tokens", "Send less, or lower max_tokens"];
const ABOUT_PROMPT: &str = "Its prompt alone may cost more than is left: send less, or ask for a cheaper tier if \
                            the model has several (service_tier)";

/// Returns the advice for a request whose prompt alone may cost more than is left.
pub fn without_output(advice: &'static str) -> &'static str {
    if ABOUT_OUTPUT.contains(&advice) { ABOUT_PROMPT } else { advice }
}

/// Says what would lower the bound of a request.
pub fn advice(allowance: Option<&Allowance>) -> &'static str {
    let Some(allowance) = allowance else { return ABOUT_OUTPUT[1] };
    let has_tools = allowance.searches.max(allowance.tool_calls) > 0;
    if has_tools && allowance.searches.max(allowance.tool_calls) == u64::MAX {
        "It may call tools at the provider without a limit: set max_uses of each tool or \
         max_tool_calls"
    } else if has_tools {
        "Each call of a tool at the provider may read the whole window again: lower max_uses or \
         max_tool_calls"
    } else if allowance.is_elsewhere {
        "It names content that weir cannot see, which counts as the model's whole window: send the \
         content itself"
    } else if allowance.apart_tokens == u64::MAX {
        "Its output limit does not cover its thinking: set thinking_budget, or enable_thinking: \
         false (Doubao: max_completion_tokens)"
    } else if !allowance.is_limited {
        ABOUT_OUTPUT[0]
    } else {
        ABOUT_OUTPUT[1]
    }
}

/// Returns the largest output of each answer; `most_tokens` is that of the model.
fn output_tokens(allowance: &Allowance, most_tokens: u64) -> u64 {
    let Allowance { limit_tokens, thinking_tokens, is_limited, .. } = *allowance;
    // With interleaved thinking its budget comes on top.
    let thinking = if thinking_tokens >= limit_tokens { thinking_tokens } else { 0 };
    match is_limited {
        true => limit_tokens.saturating_add(thinking),
        false => limit_tokens.max(most_tokens),
    }
}

/// Returns the most tokens of thinking that no output limit covers, neither the caller's nor one that weir sets.
fn apart_tokens(desired: &Desired<'_>, may_clamp: bool) -> u64 {
    let Desired { allowance, window_tokens, most_output_tokens, .. } = desired;
    let Allowance { limit_tokens, thinking_tokens, is_limited, .. } = *allowance;
    // Above the limit, or without any, the output has it already.
    let is_apart = if is_limited { thinking_tokens < limit_tokens } else { may_clamp };
    let most_tokens = (*most_output_tokens).max(MOST_THINKING_TOKENS).min(*window_tokens);
    let tokens = if is_apart { allowance.apart_tokens.min(most_tokens) } else { 0 };
    tokens.saturating_mul(answers(allowance))
}

/// Returns the number of answers of all attempts, with that of a compaction before each.
fn answers(allowance: &Allowance) -> u64 {
    let all = allowance.answers.max(1).saturating_mul(allowance.prompts.max(1));
    let attempts = 1 + allowance.more_attempts;
    all.saturating_mul(attempts * (1 + u64::from(allowance.may_compact)))
}

fn speech_ms(allowance: &Allowance) -> u64 {
    let usual_ms = allowance.prompt_tokens.saturating_mul(SPEECH_MS_A_BYTE);
    let permille = match allowance.speed_permille {
        0 => 1000,
        // More than the usual speed is not relied upon.
        permille => permille.min(1000),
    };
    usual_ms.saturating_mul(1000) / permille
}

/// Everything that a request is billed for besides its output.
struct Prompt {
    /// Tokens of each inference.
    tokens: u64,
    inferences: u64,
    pieces: Pieces,
    is_sound: bool,
    is_image: bool,
}

impl Prompt {
    fn new(allowance: &Allowance, prompt_tokens: u64, window_tokens: u64) -> Self {
        let most_calls = window_tokens / CALL_TOKENS;
        let attempts = 1 + allowance.more_attempts;
        let calls = [allowance.searches, allowance.tool_calls]
            .map(|calls| if calls == u64::MAX { most_calls } else { calls });
        let sessions = allowance.sessions.saturating_mul(SESSION_CALLS);
        let [web_searches, tool_calls] = [calls[0], calls[1].saturating_add(sessions)]
            .map(|calls| calls.saturating_mul(attempts));
        let calls = calls[0].saturating_add(calls[1]);
        let inferences = match allowance.most_calls {
            Some(most) => calls.min(most),
            None => calls.min(MOST_INNER_INFERENCES),
        };
        // Results of tools and content from elsewhere fill the window at most.
        let is_open = calls > 0 || allowance.is_elsewhere;
        let images =
            if allowance.has_image_output { tool_calls.max(answers(allowance)) } else { 0 };
        Self {
            tokens: if is_open { window_tokens.max(prompt_tokens) } else { prompt_tokens },
            inferences: attempts.saturating_mul(
                1 + inferences
                    + u64::from(allowance.may_compact)
                    + u64::from(allowance.deferred_tokens > 0),
            ),
            pieces: Pieces { web_searches, tool_calls, images, requests: 1, ..Pieces::default() },
            is_sound: false,
            is_image: false,
        }
    }

    fn all_tokens(&self) -> u64 {
        self.tokens.saturating_mul(self.inferences)
    }

    fn cost(
        &self,
        model: &str,
        allowance: &Allowance,
        (prices, fixed_tokens): (&[&Price], u64),
    ) -> OutputBound {
        let kinds: Vec<Kind> = [
            (Kind::CacheWrite1h, allowance.has_long_writes),
            (Kind::AudioInput, allowance.has_audio_input),
            (Kind::ImageInput, allowance.images > 0 || allowance.is_elsewhere),
            (Kind::AudioOutput, allowance.has_audio_output || self.is_sound),
            (Kind::ImageOutput, allowance.has_image_output || self.is_image),
        ]
        .into_iter()
        .filter_map(|(kind, is_possible)| is_possible.then_some(kind))
        .collect();
        let most = Most {
            prompt_tokens: self.tokens,
            inferences: self.inferences,
            fixed_output_tokens: fixed_tokens,
            service_tier: service_tier(allowance),
            may_be_priority: may_be_priority(model, allowance),
            region: allowance.region.as_deref(),
            kinds: &kinds,
            pieces: self.pieces,
        };
        let bounds = prices.iter().map(|price| price.bound(&most));
        bounds.reduce(OutputBound::max).unwrap_or_default()
    }
}

/// Whether a request without a tier of its own may be served by priority: OpenAI's projects choose it, and others
/// that copy OpenAI's `auto`. Anthropic's costs nothing more.
fn may_be_priority(model: &str, allowance: &Allowance) -> bool {
    let is_auto = allowance.service_tier.as_deref() == Some("auto");
    let mut all = [model].into_iter().chain(allowance.fallbacks.iter().map(String::as_str));
    all.any(|model| {
        let bare = names::bare(model);
        names::is_recent_openai(&bare) || is_auto && !bare.contains("claude")
    })
}

/// Returns the tier that a request asks for; `None` if its provider chooses. OpenAI serves a request without
/// a tier, or with `auto`, by the one that its project is set to, which may be priority (reference of chat
/// completions, `service_tier`).
fn service_tier(allowance: &Allowance) -> Option<ServiceTier> {
    if allowance.is_fast {
        return Some(ServiceTier::Fast);
    }
    match allowance.service_tier.as_deref() {
        None | Some("" | "auto") => None,
        Some("standard_only") => Some(ServiceTier::Standard),
        Some(name) => Some(ServiceTier::from_name(name)).filter(|tier| *tier != ServiceTier::Other),
    }
}
