//! Keys of limits, models and prices.

use super::{EMPTY, Effect, Key, Kind::*, MAX_TOKENS, Sample, Section, keys};
use crate::config::choices::{LateSystem, UnknownPrice, words};
use weir_store::budget::NanoUsd;
use weir_store::budget::price::RATE_END_NANO_USD;

pub(in crate::config) const LIMITS: Section = Section {
    path: "limits.*",
    heading: "[[limits]]",
    doc: "Lower limits for models by name; the lowest match applies. They never raise a model's own \
          limit.",
    keys: &[keys! {
        /// Name of a model; `*` stands for any characters.
        model = "gpt-4o*", Text("pattern"), MovesCompactions;
        /// Maximum size of a prompt.
        max_input_tokens = 100000, Whole(1, MAX_TOKENS), MovesCompactions;
    }],
    rows: Effect::MovesCompactions,
    sample: Sample::Examples("[[limits]]"),
    ..EMPTY
};

pub(in crate::config) const MODELS: Section = Section {
    path: "models.*",
    heading: "[models.\"NAME\"]",
    doc: "Models that weir does not know, and overrides for those that it does. A known model needs \
          only the keys that differ; an unknown one needs `window_tokens`.",
    keys: &[keys! {
        /// Input and output together.
        window_tokens = 32768, Whole(1, MAX_TOKENS), MovesCompactions;
        /// Separate input limit, if the provider has one.
        max_input_tokens = 28672, Whole(1, MAX_TOKENS), MovesCompactions;
        /// Maximum length of an answer.
        max_output_tokens = 4096, Whole(1, MAX_TOKENS), MovesCompactions;
        /// Encoding that counts its tokens: `o200k_base`, `cl100k_base`, `p50k_base`, `p50k_edit`,
        /// `r50k_base`, `deepseek_v3`, `llama3`, `mistral_v3`, `qwen2` or `estimate`; by default
        /// derived from its name.
        encoding = "o200k_base", Text("encoding"), MovesCompactions;
        /// Path of its `tokenizer.json`, in the format of Hugging Face's tokenizers, up to 64 MiB.
        /// It is read with the configuration and replaces `encoding` and `token_ratio`.
        tokenizer = _, Text("path"), MovesCompactions;
        /// Its tokens per token of `o200k_base` with digits counted singly. Overrides `encoding`
        /// and the learned ratio.
        token_ratio = 1.15, Share(500, 4000), MovesCompactions;
        /// Whether it refuses two user or two assistant messages in a row.
        strict_alternation = false, Switch, MovesCompactions;
        /// System messages after other messages: "keep", the default, or "user", which sends them
        /// as a user's.
        late_system = "keep", Choice(words::<LateSystem>), MovesCompactions;
        /// Whether its provider accepts prompt-cache breakpoints; by default not.
        cache_control = false, Switch, NextRequest;
        /// Policy for its requests that name none.
        policy = "careful", Text("text"), MovesCompactions;
    }],
    rows: Effect::NextRequest,
    sample: Sample::Examples("[models.\"my-model\"]"),
    ..EMPTY
};

const RATE: super::Kind = Dollars { end: NanoUsd(RATE_END_NANO_USD), unit: " per million tokens," };

const FEE: super::Kind = Dollars { end: NanoUsd(RATE_END_NANO_USD), unit: "" };

/// Keys of every price.
const RATES: &[Key] = keys! {
    /// Input.
    input_usd_per_mtok = "2.50", RATE, MovesCompactions;
    /// Input read from the provider's cache. Where it is cheaper than a tenth of other input, notes are larger.
    cached_input_usd_per_mtok = "0.25", RATE, MovesCompactions;
    /// Input written to the provider's cache.
    cache_write_usd_per_mtok = "3.75", RATE, MovesCompactions;
    /// The same for entries that live for an hour.
    cache_write_1h_usd_per_mtok = "5", RATE, NextRequest;
    /// Output.
    output_usd_per_mtok = "10", RATE, NextRequest;
    /// Reasoning, if it is priced separately.
    reasoning_usd_per_mtok = "10", RATE, NextRequest;
    /// Audio input.
    audio_input_usd_per_mtok = "40", RATE, NextRequest;
    /// Audio output.
    audio_output_usd_per_mtok = "80", RATE, NextRequest;
    /// Image input.
    image_input_usd_per_mtok = "10", RATE, NextRequest;
    /// Image output.
    image_output_usd_per_mtok = "40", RATE, NextRequest;
    /// A thousand web searches of the provider's.
    web_search_usd_per_1k = "10", FEE, NextRequest;
    /// A thousand calls of the provider's other tools, such as file search; a session of code counts as 12 (OpenAI: $0.0025 and $0.03).
    tool_call_usd_per_1k = "2.50", FEE, NextRequest;
    /// A generated image.
    image_usd_each = "0.04", FEE, NextRequest;
    /// A minute of audio that is transcribed or spoken.
    audio_usd_per_minute = "0.006", FEE, NextRequest;
    /// A million characters that are spoken.
    character_usd_per_million = "15", FEE, NextRequest;
    /// Each request, in addition to the others.
    request_usd_each = "0.01", FEE, NextRequest;
};

/// Keys of a price's tiers.
const TIERS: &[Key] = keys! {
    /// Prices above a prompt size: a list of tables, each with the rates above and
    /// `above_prompt_tokens` (cached input included). A tier applies to the whole request.
    tiers = [], Inner("list of tables"), MovesCompactions;
    /// Prices of the service tier "flex", with the rates above.
    flex = {}, Inner("table"), NextRequest;
    /// Prices of the service tier "priority", with the rates above.
    priority = {}, Inner("table"), NextRequest;
    /// Prices of the service tier "batch", with the rates above.
    batch = {}, Inner("table"), NextRequest;
    /// Prices of Anthropic's fast mode, with the rates above.
    fast = {}, Inner("table"), NextRequest;
    /// Factor on the fees for tokens by the region that an answer reports, such as `{ us = "1.1" }`.
    regions = {}, Table, NextRequest;
};

/// Keys of one tier.
pub(in crate::config) const TIER: &[Key] = keys! {
    /// Prompt size above which the tier applies.
    above_prompt_tokens = 200000, Whole(1, MAX_TOKENS), NextRequest;
};

pub(in crate::config) const PRICE: Section = Section {
    path: "models.*",
    heading: "Prices of a model",
    doc: "Price in dollars per million tokens: exact decimals, at most nine after the point. A price \
          that is set is complete: nothing is inherited from the catalogue. Kinds without their own \
          price cost as plain input or output, and, except for reasoning, mark the record as partly \
          priced.",
    keys: &[RATES, TIERS],
    shared: TIER,
    rows: Effect::NextRequest,
    sample: Sample::Text(
        "input_usd_per_mtok = \"2.50\"\ncached_input_usd_per_mtok = \"0.25\"\n\
         output_usd_per_mtok = \"10\"\n\
         # cache_write_usd_per_mtok, cache_write_1h_usd_per_mtok, reasoning_usd_per_mtok,\n\
         # audio_input_usd_per_mtok, audio_output_usd_per_mtok\n\
         # Another price for the whole request above a prompt size, cached input included:\n\
         tiers = [{ above_prompt_tokens = 200000, input_usd_per_mtok = \"5\", \
         cached_input_usd_per_mtok = \"0.50\", output_usd_per_mtok = \"15\" }]\n\
         # Prices of service tiers: flex, priority and batch.\n\
         flex = { input_usd_per_mtok = \"1.25\", output_usd_per_mtok = \"5\" }",
    ),
};

pub(in crate::config) const ROUTE_PRICE: Section = Section {
    path: "routes.*.price",
    heading: "[routes.price]",
    doc: "Price of a row's requests instead of the model's, with the keys of a model's price.",
    shared: RATES,
    rows: Effect::NextRequest,
    sample: Sample::Text(
        "price = { input_usd_per_mtok = \"0.10\", output_usd_per_mtok = \"0.40\" }",
    ),
    ..EMPTY
};

pub(in crate::config) const PRICES: Section = Section {
    path: "prices",
    keys: &[keys! {
        /// Cost of requests whose model has no known price: "zero" (the record is marked, and weir
        /// warns once per model), "reject" (chats are refused; on other routes the model is known
        /// only from the answer, too late) or "default" (the price in `[prices.default]`).
        unknown = "zero", Choice(words::<UnknownPrice>), NextRequest;
        /// Whether a cost that the provider states in its usage, as OpenRouter does, counts instead of
        /// a price.
        stated = false, Switch, NextRequest;
    }],
    ..EMPTY
};

pub(in crate::config) const DEFAULT_PRICE: Section = Section {
    path: "prices.default",
    doc: "Price of models without a known price, with `prices.unknown` \"default\"; the keys of a \
          model's price.",
    shared: RATES,
    rows: Effect::NextRequest,
    sample: Sample::Nothing,
    ..EMPTY
};
