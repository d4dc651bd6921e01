//! Keys of upstreams and routes.

use super::{DAY_MS, EMPTY, Effect, Key, Kind::*, MAX_TOKENS, Sample, Section, each, keys};
use crate::config::choices::{AskUsage, CompactsBy, LargerWhen, words};

/// Keys of every upstream.
const UPSTREAM_KEYS: &[Key] = keys! {
    // Learned limits and token ratios belong to an upstream, so a new URL moves compactions.
    /// The provider's base URL, as you would give it to an SDK. `OPENAI_BASE_URL` overrides this
    /// default.
    url = "https://api.openai.com/v1", Text("URL"), MovesCompactions;
    /// weir's provider key, which replaces callers' credentials: "env:NAME" for an environment variable or
    /// "file:PATH". Required in keys mode. The key itself never stands in the configuration.
    api_key = "", Text("place"), NextRequest;
    /// Time limits for connecting, for the first byte of an answer (up to 30 s also for the first content of a
    /// stream; reasoning models are silent for minutes), and for the pause between two chunks of it.
    timeouts_ms = { connect = 10000, first_byte = 600000, idle = 300000 },
        Members(&each(["connect", "first_byte", "idle"], Whole(1, DAY_MS))), NextRequest;
    /// Whether weir requests usage for streamed chats whose caller does not: "auto" (unless the
    /// upstream has refused it for the model), "always" or "never". Usage that the caller did not
    /// request is removed from the answer and reported as `x-weir-edits: usage`.
    request_usage = "auto", Choice(words::<AskUsage>), NextRequest;
    /// Who compacts if a caller asks for it (`/v1/responses/compact`, `context_management`): "weir",
    /// "upstream", or "auto" for the upstream at api.openai.com and api.anthropic.com and weir
    /// elsewhere.
    compaction = "auto", Choice(words::<CompactsBy>), NextRequest;
    /// PEM files: authorities to trust in addition to the system's, such as a company's own, and a client
    /// certificate with its private key, for upstreams that request one.
    tls = { ca_file = "", cert_file = "", key_file = "" },
        Members(&each(["ca_file", "cert_file", "key_file"], Text("path"))), NextRequest;
    /// Maximum retries, with growing pauses, if there was no connection, it closed without an
    /// answer, or the status was 408, 409, 429 or 5xx (except 501 and 505); never after part of the
    /// answer was passed on. OpenAI's SDKs retry twice themselves, and retries multiply: keep 0 for
    /// them. If the upstream asks for a longer pause than `max_wait_ms` (`Retry-After`), its answer is
    /// passed on instead.
    retries = { max = 0, max_wait_ms = 30000 }, Members(&[
        ("max", Whole(0, 10)),
        ("max_wait_ms", Whole(0, DAY_MS)),
    ]), NextRequest;
    /// Whether the headers `baggage` and `tracestate` of callers are sent to this upstream. They may
    /// name users and accounts; `traceparent`, which holds random numbers, always is.
    forward_trace_headers = false, Switch, NextRequest;
    /// Headers added to every request: a table of names and values, such as OpenRouter's `http-referer`.
    /// "env:NAME" is the value of an environment variable, for secret ones.
    headers = {}, Table, NextRequest;
};

pub(in crate::config) const UPSTREAM: Section =
    Section { path: "upstream", keys: &[UPSTREAM_KEYS], ..EMPTY };

pub(in crate::config) const UPSTREAMS: Section = Section {
    path: "upstreams.*",
    heading: "[upstreams.NAME]",
    doc: "Named upstreams, with the keys of `[upstream]`.",
    keys: &[keys! {
        /// Whether callers' own credentials are sent to this upstream. `[upstream]` gets them unless weir has a key
        /// for it.
        forward_caller_key = false, Switch, NextRequest;
    }],
    shared: UPSTREAM_KEYS,
    rows: Effect::NextRequest,
    sample: Sample::Text(
        "[upstreams.local]\nurl = \"http://127.0.0.1:11434/v1\"\nforward_caller_key = false",
    ),
};

pub(in crate::config) const ROUTES: Section = Section {
    path: "routes.*",
    heading: "[[routes]]",
    doc: "Routes from models to upstreams, one per row. Exact names take precedence over patterns, \
          then the first row applies. Models without a row go to `[upstream]`.",
    keys: &[keys! {
        /// Names of models; `*` stands for any characters.
        models = ["small", "llama*"], List("patterns"), MovesCompactions;
        /// A name from `[upstreams.NAME]`, or "default" for `[upstream]`, which is the default.
        upstream = "local", Text("text"), MovesCompactions;
        /// Model name sent to the upstream, if it differs.
        send_as = "llama3.1:8b", Text("text"), MovesCompactions;
        /// Models to try, in this order, if the upstream fails. Each has its own route, and none
        /// may pass a caller's credential to another upstream.
        fallback = ["qwen3:8b"], List("models"), NextRequest;
        /// Failures after which they are tried: "transient" (no answer, 408, 409, 429, 5xx), which
        /// is the default, a status such as "402" or "413", "no_credit", "no_model",
        /// "content_filter" or "budget" (one has no room for the model).
        fallback_on = ["transient"], List("causes"), NextRequest;
        /// Model to use if a conversation cannot be made to fit.
        larger = "qwen3:32b", Text("text"), MovesCompactions;
        /// When to use the larger model: if the conversation would be "refused", the default, or
        /// already if it would be "compacted".
        larger_when = "refused", Choice(words::<LargerWhen>), MovesCompactions;
        /// Input limit in addition to the model's.
        max_input_tokens = 16000, Whole(1, MAX_TOKENS), MovesCompactions;
        /// Policy for requests that name none.
        policy = "careful", Text("text"), MovesCompactions;
    }],
    rows: Effect::MovesCompactions,
    sample: Sample::Examples(
        "[[routes]]\nmodels = [\"qwen*\"]\nupstream = \"local\"\n\n[[routes]]",
    ),
    ..EMPTY
};
