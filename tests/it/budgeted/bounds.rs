//! Holds are upper bounds: an upstream that bills the most that each request allows, kind by kind, and many
//! callers at once against it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use tokio::task::JoinSet;
use weir::config::{Config, UnknownPrice};
use weir_store::budget::{Price, ServiceTier};

use super::setting::{nano_usd, set};
use crate::keys::setting::{Key, Setting, post, start};
use crate::protocols::through;
use crate::server::harness::{Message, Upstream, ask, bare};

/// Dollars per million tokens, and per 1,000 searches and calls.
const PRICE: &str = "in 1 cached 0.1 write 1.25 write1h 2 out 10 audio_in 40 audio_out 80 image_in 5 \
    image_out 20 search 10 call 2.5 above 200000 in 2 cached 0.2 write 2.5 write1h 4 out 15";
/// Window of a model that nobody knows.
const WINDOW_TOKENS: u64 = 132_096;

fn priced(config: &mut Config) {
    let mut price = Price::parse(PRICE).expect("a price");
    for (tier, rates) in [
        (ServiceTier::Fast, "in 6 cached 0.6 write 7.5 write1h 12 out 60"),
        (ServiceTier::Priority, "in 2 cached 0.2 out 20"),
        (ServiceTier::Flex, "in 0.5 cached 0.05 out 5"),
    ] {
        price.service_tiers.push((tier, Price::parse(rates).expect("a price").rates));
    }
    price.regions = vec![("us".to_owned(), 1100)];
    config.prices.unknown = UnknownPrice::Default;
    config.prices.default = Some(price);
}

/// A weir in front of an upstream that the test answers for, with a budget.
struct Bounded {
    weir: Setting,
    upstream: Upstream,
    key: Key,
}

impl Bounded {
    async fn start(usd: &str) -> Self {
        let upstream = Upstream::start().await;
        let weir = start(&upstream.address, priced).await;
        let key = weir.key("research", r#"{"passthrough":true}"#).await;
        set(&weir.store, "all/usd/total", usd).await;
        Self { weir, upstream, key }
    }

    async fn status(&self) -> Value {
        let answer = self.weir.ask(bare("GET", "/weir/v1/budgets", &self.key.header())).await;
        let told: Value = serde_json::from_slice(&answer.body).expect("JSON");
        told["data"][0].clone()
    }

    /// Sends a request that is answered so. Returns the amounts held meanwhile and spent in the end.
    async fn billed(&mut self, path: &str, body: &Value, answer: &str) -> (u64, u64) {
        let before = nano_usd(&self.status().await["spent"]);
        let request = post(path, &self.key.header(), body.to_string());
        let address = self.weir.weir.address;
        let mut asking = tokio::spawn(async move { ask(address, request).await });
        let seen = tokio::select! {
            seen = self.upstream.next() => seen,
            answer = &mut asking => panic!("{body}: {answer:?}"),
        };
        let held = nano_usd(&self.status().await["held"]);
        seen.answer(answer);
        assert_eq!(asking.await.expect("it is answered").status(), 200, "{body}");
        let status = self.status().await;
        assert_eq!(status["held"], "0.00", "{body}");
        (held, nano_usd(&status["spent"]) - before)
    }

    async fn refused(&self, path: &str, body: &Value) -> Message {
        let request = post(path, &self.key.header(), body.to_string());
        self.weir.ask(request).await
    }
}

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";
const EMBEDDINGS: &str = "/v1/embeddings";
const IMAGES: &str = "/v1/images/generations";
const SPEECH: &str = "/v1/audio/speech";

/// Adds members to a small request for this path.
fn request(path: &str, members: Value) -> Value {
    let mut body = match path {
        CHAT | MESSAGES => json!({"messages": [{"role": "user", "content": "hi"}]}),
        RESPONSES => json!({"input": "hi"}),
        COMPLETIONS => json!({"prompt": "hi"}),
        EMBEDDINGS | SPEECH => json!({"input": "hi"}),
        _ => json!({"prompt": "a cat"}),
    };
    body["model"] = json!("m1");
    for (name, value) in members.as_object().expect("members") {
        body[name] = value.clone();
    }
    body
}

/// Formats an answer with this usage, and these additional members.
fn answer(path: &str, usage: Value, members: Value) -> String {
    let mut own = match path {
        CHAT => json!({"object": "chat.completion", "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}]}),
        COMPLETIONS => {
            json!({"object": "text_completion", "choices": [{"index": 0, "text": "ok"}]})
        }
        RESPONSES => json!({"object": "response", "status": "completed", "output": []}),
        MESSAGES => json!({"type": "message", "role": "assistant", "stop_reason": "end_turn",
            "content": [{"type": "text", "text": "ok"}]}),
        SPEECH => {
            let event = json!({"type": "speech.audio.done", "usage": usage});
            let body = format!("data: {event}\n\n");
            return format!(
                "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
        }
        _ => json!({"data": []}),
    };
    (own["id"], own["model"], own["usage"]) = (json!("x"), json!("m1"), usage);
    for (name, value) in members.as_object().expect("members") {
        own[name] = value.clone();
    }
    through::whole(&own)
}

/// A kind of cost: its name, the path, members of the request and of the answer, the usage that is the most
/// that it allows, and the bill in dollars.
type Cell = (&'static str, &'static str, Value, Value, Value, f64);

fn limits() -> Vec<Cell> {
    let chat = |completion: u64| json!({"prompt_tokens": 5, "completion_tokens": completion});
    let none = json!({});
    let row = |name, members, completion| {
        let usd = (5 + 10 * completion) as f64 / 1e6;
        (name, CHAT, members, none.clone(), chat(completion), usd)
    };
    vec![
        row("the larger limit", json!({"max_tokens": 10, "max_completion_tokens": 400}), 400),
        row(
            "the larger limit, first",
            json!({"max_tokens": 400, "max_completion_tokens": 10}),
            400,
        ),
        row("a limit of other servers", json!({"max_tokens": 10, "n_predict": 500}), 500),
        row("their limit alone", json!({"n_predict": 60_000}), 60_000),
        row("no limit", json!({}), 100_000),
        row("no number", json!({"max_tokens": -1}), 30_000),
        row("answers", json!({"max_tokens": 100, "n": 3}), 300),
        row("answers as text", json!({"max_tokens": 100, "n": "3"}), 300),
        row(
            "thinking above the limit",
            json!({"max_tokens": 2000, "reasoning": {"max_tokens": 3000}}),
            5000,
        ),
    ]
}

fn tiers_and_lifetimes() -> Vec<Cell> {
    let chat = json!({"prompt_tokens": 5, "completion_tokens": 100});
    let own = json!({"input_tokens": 5, "output_tokens": 100});
    let with = |members: Value| {
        let mut usage = own.clone();
        for (name, value) in members.as_object().expect("members") {
            usage[name] = value.clone();
        }
        usage
    };
    let limit = |members: Value| {
        let mut all = json!({"max_tokens": 100});
        for (name, value) in members.as_object().expect("members") {
            all[name] = value.clone();
        }
        all
    };
    let (none, priority) = (json!({}), json!({"service_tier": "priority"}));
    let default = json!({"service_tier": "default"});
    let cached = json!({"system": [{"type": "text", "text": "a ".repeat(3000),
        "cache_control": {"type": "ephemeral", "ttl": "1h"}}]});
    let long = with(json!({"cache_creation_input_tokens": 1500,
        "cache_creation": {"ephemeral_1h_input_tokens": 1500}}));
    let plain = json!({"system": "a ".repeat(3000)});
    let short = json!({"prompt_tokens": 1500, "completion_tokens": 100,
        "prompt_tokens_details": {"cache_write_tokens": 1500}});
    let system = json!({"messages": [{"role": "user", "content": "a ".repeat(3000)}]});
    vec![
        (
            "a tier that nobody asked for",
            CHAT,
            limit(none.clone()),
            priority.clone(),
            chat.clone(),
            0.00201,
        ),
        ("a tier asked for", CHAT, limit(priority.clone()), priority, chat.clone(), 0.00201),
        (
            "flex at the standard price",
            CHAT,
            limit(json!({"service_tier": "flex"})),
            default,
            chat,
            0.001005,
        ),
        (
            "fast",
            MESSAGES,
            limit(json!({"speed": "fast"})),
            none.clone(),
            with(json!({"speed": "fast"})),
            0.00603,
        ),
        (
            "a region by default",
            MESSAGES,
            limit(none.clone()),
            none.clone(),
            with(json!({"inference_geo": "us"})),
            0.0011055,
        ),
        ("writes for an hour", MESSAGES, limit(cached), none.clone(), long, 0.004005),
        ("writes unasked", CHAT, limit(system), none.clone(), short, 0.002875),
        (
            "plain",
            MESSAGES,
            limit(plain),
            none,
            json!({"input_tokens": 1500, "output_tokens": 100}),
            0.0025,
        ),
    ]
}

fn content_and_tools() -> Vec<Cell> {
    let none = json!({});
    let window = json!({"input_tokens": WINDOW_TOKENS, "output_tokens": 100});
    let input = |item: Value| json!({"max_output_tokens": 100, "input": [{"role": "user", "content": [item]}]});
    let search = json!({"max_tokens": 100, "tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 2}]});
    let searched = json!({"input_tokens": 3 * WINDOW_TOKENS, "output_tokens": 100,
        "server_tool_use": {"web_search_requests": 2}});
    let code = json!({"max_output_tokens": 100, "max_tool_calls": 1,
        "tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]});
    let call = json!({"output": [{"type": "code_interpreter_call", "id": "c"}]});
    let audio = json!({"max_tokens": 100, "modalities": ["text", "audio"], "messages": [{"role": "user",
        "content": [{"type": "input_audio", "input_audio": {"data": "A".repeat(8000), "format": "mp3"}}]}]});
    let heard = json!({"prompt_tokens": 200, "completion_tokens": 100,
        "prompt_tokens_details": {"audio_tokens": 195}, "completion_tokens_details": {"audio_tokens": 100}});
    vec![
        (
            "a file by id",
            RESPONSES,
            input(json!({"type": "input_file", "file_id": "f"})),
            none.clone(),
            window.clone(),
            0.133096,
        ),
        (
            "a file by URL",
            RESPONSES,
            input(json!({"type": "input_file", "file_url": "https://a.example/f.pdf"})),
            none.clone(),
            window.clone(),
            0.133096,
        ),
        (
            "a state at the provider",
            RESPONSES,
            json!({"max_output_tokens": 100, "previous_response_id": "r"}),
            none.clone(),
            window.clone(),
            0.133096,
        ),
        ("searches", MESSAGES, search, none.clone(), searched, 0.814076),
        (
            "calls of tools",
            RESPONSES,
            code,
            call,
            json!({"input_tokens": 2 * WINDOW_TOKENS, "output_tokens": 100}),
            0.559884,
        ),
        ("audio", CHAT, audio, none, heard, 0.015805),
    ]
}

fn unplanned() -> Vec<Cell> {
    let none = json!({});
    let completed = |prompt: u64, completion: u64| json!({"prompt_tokens": prompt, "completion_tokens": completion});
    let ids: Vec<u64> = (0..1000).collect();
    let images = json!({"input_tokens": 5, "output_tokens": 2 * 4160,
        "output_tokens_details": {"image_tokens": 2 * 4160}});
    let speech =
        json!({"input_tokens": 2, "output_tokens": 8, "output_token_details": {"audio_tokens": 8}});
    vec![
        (
            "prompts, answers and the best of more",
            COMPLETIONS,
            json!({"prompt": ["a", "b"], "n": 2, "best_of": 4, "max_tokens": 50}),
            none.clone(),
            completed(2, 400),
            0.004002,
        ),
        (
            "lists of token ids",
            COMPLETIONS,
            json!({"prompt": [ids.clone(), ids.clone()], "max_tokens": 5}),
            none.clone(),
            completed(2000, 10),
            0.0021,
        ),
        (
            "token ids of one prompt",
            COMPLETIONS,
            json!({"prompt": ids, "max_tokens": 5}),
            none.clone(),
            completed(1000, 5),
            0.00105,
        ),
        (
            "a completion without a limit",
            COMPLETIONS,
            json!({}),
            none.clone(),
            completed(2, 30_000),
            0.300002,
        ),
        (
            "embeddings",
            EMBEDDINGS,
            json!({"input": "x".repeat(3000)}),
            none.clone(),
            json!({"prompt_tokens": 3000, "total_tokens": 3000}),
            0.003,
        ),
        (
            "images",
            IMAGES,
            json!({"n": 2, "size": "1024x1024", "quality": "high"}),
            none.clone(),
            images,
            0.166405,
        ),
        (
            "speech",
            SPEECH,
            json!({"voice": "alloy", "stream_format": "sse"}),
            none,
            speech,
            0.000642,
        ),
    ]
}

#[tokio::test]
async fn no_kind_of_cost_is_more_than_what_was_held() {
    let mut bounded = Bounded::start("100").await;
    for cells in [limits(), tiers_and_lifetimes(), content_and_tools(), unplanned()] {
        for (name, path, members, answered, usage, usd) in cells {
            let body = request(path, members);
            let (held, spent) = bounded.billed(path, &body, &answer(path, usage, answered)).await;
            println!("{name}: held {held}, settled {spent}");
            assert_eq!(spent, (usd * 1e9).round() as u64, "{name}");
            assert!(held >= spent, "{name}: {held} held, {spent} spent");
        }
    }
}

#[tokio::test]
async fn what_cannot_be_held_is_refused_with_the_reason() {
    let bounded = Bounded::start("0.10").await;
    let tools = json!([{"type": "web_search_20250305", "name": "web_search"}]);
    for (path, members, reason) in [
        (MESSAGES, json!({"max_tokens": 100, "tools": tools}), "set max_uses"),
        (
            RESPONSES,
            json!({"max_output_tokens": 100, "tools": [{"type": "web_search"}]}),
            "max_tool_calls",
        ),
        (COMPLETIONS, json!({}), "set max_tokens"),
        (COMPLETIONS, json!({"max_tokens": 100, "n": 200}), "it may cost 0.4"),
        (IMAGES, json!({"n": 10}), "it may cost 1."),
    ] {
        let refused = bounded.refused(path, &request(path, members)).await;
        let message = String::from_utf8_lossy(&refused.body).into_owned();
        assert_eq!(refused.status(), 429, "{message}");
        assert!(message.contains(reason), "{reason}: {message}");
    }
    let jobs = ["/v1/batches", "/v1/fine_tuning/jobs", "/v1/async/chat/completions"];
    for path in jobs.into_iter().chain(["/v1/audio/transcriptions"]) {
        let refused = bounded.refused(path, &json!({"model": "m1"})).await;
        let message = refused.assert_error(403, "passthrough_required");
        assert!(message.contains("request_usd_each"), "{path}: {message}");
    }
}

#[tokio::test]
async fn a_path_without_a_bound_is_open_at_a_price_a_request() {
    let upstream = Upstream::start().await;
    let weir = start(&upstream.address, |config| {
        config.prices.default = Price::parse("in 1 out 10 request 0.03");
    })
    .await;
    let key = weir.key("research", r#"{"passthrough":true}"#).await;
    set(&weir.store, "all/usd/total", "0.10").await;
    let mut bounded = Bounded { weir, upstream, key };
    let body = json!({"model": "m1"});
    for _ in 0..3 {
        let answer = through::whole(&json!({"text": "hi"}));
        let billed = bounded.billed("/v1/audio/transcriptions", &body, &answer).await;
        assert_eq!(billed, (30_000_000, 30_000_000));
    }
    assert_eq!(bounded.refused("/v1/audio/transcriptions", &body).await.status(), 429);
    // What costs nothing is open without a price.
    let path = "/v1/messages/count_tokens";
    let answer = through::whole(&json!({"input_tokens": 1}));
    assert_eq!(bounded.billed(path, &body, &answer).await, (0, 0));
}

/// Nothing counts the tokens of such a path, so that a budget in tokens closes it, too.
#[tokio::test]
async fn a_path_without_a_bound_is_closed_under_a_budget_in_tokens() {
    let upstream = Upstream::start().await;
    let weir = start(&upstream.address, |_| {}).await;
    let key = weir.key("research", r#"{"passthrough":true}"#).await;
    set(&weir.store, "all/tokens/total", "1000").await;
    let bounded = Bounded { weir, upstream, key };
    for path in ["/v1/audio/transcriptions", "/v1/rerank", "/v1/batches"] {
        let refused = bounded.refused(path, &json!({"model": "m1"})).await;
        refused.assert_error(403, "passthrough_required");
    }
}

/// A model's own price a request opens a path whose body names it.
#[tokio::test]
async fn a_path_without_a_bound_is_open_to_a_model_with_a_price_a_request() {
    let upstream = Upstream::start().await;
    let weir = start(&upstream.address, |config| {
        config.models.insert_price("reader", Price::parse("in 1 out 1 request 0.03").expect("it"));
    })
    .await;
    let key = weir.key("research", r#"{"passthrough":true}"#).await;
    set(&weir.store, "all/usd/total", "0.10").await;
    let mut bounded = Bounded { weir, upstream, key };
    let answer = through::whole(&json!({"pages": []}));
    let billed = bounded.billed("/v1/ocr", &json!({"model": "reader"}), &answer).await;
    assert_eq!(billed, (30_000_000, 30_000_000));
    let refused = bounded.refused("/v1/ocr", &json!({"model": "m1"})).await;
    refused.assert_error(403, "passthrough_required");
}

/// Mistral's conversations run a model, OpenAI's do not.
#[tokio::test]
async fn a_conversation_that_runs_a_model_is_closed_under_a_budget() {
    let mut bounded = Bounded::start("0.10").await;
    let path = "/v1/conversations";
    let answer = through::whole(&json!({"id": "conv_1"}));
    let kept = bounded.billed(path, &json!({"metadata": {}}), &answer).await;
    assert_eq!(kept, (0, 0));
    for body in [json!({"model": "m1", "inputs": "hi"}), json!({"agent_id": "a"})] {
        let refused = bounded.refused(path, &body).await;
        refused.assert_error(403, "passthrough_required");
    }
    let path = "/v1/conversations/conv_1";
    bounded.refused(path, &json!({"inputs": "hi"})).await.assert_error(403, "passthrough_required");
}

#[tokio::test]
async fn another_name_is_held_as_what_it_was_last_answered_by() {
    let upstream = Upstream::start().await;
    let weir = start(&upstream.address, |_| {}).await;
    let key = weir.key("research", "{}").await;
    set(&weir.store, "all/usd/total", "100").await;
    let mut bounded = Bounded { weir, upstream, key };
    let body = request(CHAT, json!({"model": "our-best", "max_tokens": 1000}));
    let usage = json!({"prompt_tokens": 5, "completion_tokens": 1000});
    let answer = answer(CHAT, usage, json!({"model": "gpt-4o"}));
    let (held, spent) = bounded.billed(CHAT, &body, &answer).await;
    assert!(held <= 1 && spent == 10_012_500, "nobody knows before: {held}, {spent}");
    let (held, spent) = bounded.billed(CHAT, &body, &answer).await;
    assert!(held >= spent && spent == 10_012_500, "{held}, {spent}");
    // A provider's own fallback may be dearer.
    let members = json!({"model": "gpt-4o-mini", "models": ["gpt-4o"], "max_tokens": 1000});
    let (held, spent) = bounded.billed(CHAT, &request(CHAT, members), &answer).await;
    assert!(held >= spent && spent == 10_012_500, "{held}, {spent}");
}

/// What a request names besides its own model: its path, the members, and what they may cost in dollars.
type Named = (&'static str, Value, f64);

fn models_inside() -> Vec<Named> {
    // Ten answers of an advisor, each of 2,000 tokens and 4,000 of output.
    let advised = 1.1;
    let tool = |kind: &str| {
        json!({"max_tokens": 16, "tools": [
        {"type": kind, "parameters": {"model": "anthropic/claude-opus-4.8"}}]})
    };
    let plugin = json!({"max_tokens": 16, "plugins": [
        {"id": "fusion", "analysis_models": ["anthropic/claude-opus-4.8"]}]});
    vec![
        (CHAT, tool("openrouter:advisor"), advised),
        (CHAT, tool("openrouter:subagent"), advised),
        (CHAT, plugin, advised),
    ]
}

/// A message that is refused in the midst of its output costs that of each attempt.
fn attempts() -> Vec<Named> {
    let fable = |members: Value| {
        let mut all = json!({"model": "claude-fable-5", "max_tokens": 1900});
        for (name, value) in members.as_object().expect("members") {
            all[name] = value.clone();
        }
        all
    };
    let own = json!({"model": "claude-haiku-4-5", "max_tokens": 16, "fallbacks": [
        {"model": "claude-haiku-4-5", "max_tokens": 64_000}]});
    vec![
        (MESSAGES, fable(json!({"fallbacks": [{"model": "claude-opus-4-8"}]})), 0.142_5),
        (MESSAGES, fable(json!({"fallbacks": "default"})), 0.142_5),
        (MESSAGES, own, 0.32),
        (
            MESSAGES,
            fable(json!({"model": "claude-opus-4-8", "fallbacks": [
                {"model": "claude-opus-4-6", "speed": "fast"}]})),
            1900.0 * 150e-6,
        ),
    ]
}

/// A model that answers instead has a window, an output and habits of its own.
fn instead() -> Vec<Named> {
    let file = json!([{"role": "user", "content": [
        {"type": "file", "file": {"filename": "a", "file_id": "f"}}]}]);
    let small = |members: Value| {
        let mut all = json!({"model": "openai/gpt-3.5-turbo"});
        for (name, value) in members.as_object().expect("members") {
            all[name] = value.clone();
        }
        all
    };
    let models = json!(["google/gemini-2.5-flash"]);
    vec![
        // 65,535 tokens of output, and 1,000,000 of the window.
        (CHAT, small(json!({"models": models})), 0.163),
        (CHAT, small(json!({"models": models, "max_tokens": 16, "messages": file})), 0.3),
        (
            CHAT,
            small(json!({"models": ["perplexity/sonar-deep-research"], "max_tokens": 100})),
            0.34,
        ),
    ]
}

/// Agents and thinking that no output limit covers.
fn beyond_the_output() -> Vec<Named> {
    let qwen = |members: Value| {
        let mut all = json!({"model": "qwen-plus", "max_tokens": 1000});
        for (name, value) in members.as_object().expect("members") {
            all[name] = value.clone();
        }
        all
    };
    let agents = json!({"model": "gpt-5.6-luna", "max_output_tokens": 1000,
        "multi_agent": {"enabled": true}});
    vec![
        // Sixteen agents, each of 8,000 tokens and 1,000 of output.
        (RESPONSES, agents, 0.045),
        (CHAT, qwen(json!({"enable_thinking": true})), 0.098),
        (CHAT, json!({"model": "qwen3.8-max", "max_tokens": 100}), 0.78),
        (CHAT, json!({"model": "doubao-seed-2-1-pro-260915", "max_tokens": 100}), 1.1),
        (CHAT, qwen(json!({"enable_thinking": true, "thinking_budget": 900})), 0.002_28),
    ]
}

/// A session of code costs $0.03, and a search in files $0.0025.
fn fees() -> Vec<Named> {
    let code = json!({"model": "gpt-4o-mini", "max_output_tokens": 16, "max_tool_calls": 1,
        "service_tier": "default", "tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]});
    let files = json!({"model": "gpt-5-nano", "max_output_tokens": 16, "max_tool_calls": 30,
        "service_tier": "default", "tools": [{"type": "file_search", "vector_store_ids": ["v"]}]});
    // Two prompts of the window, and one each for thirty searches.
    vec![(RESPONSES, code, 0.0684), (RESPONSES, files, 0.695)]
}

#[tokio::test]
async fn other_models_are_held_at_what_they_may_cost() {
    let upstream = Upstream::start().await;
    let weir = start(&upstream.address, |_| {}).await;
    let key = weir.key("research", "{}").await;
    set(&weir.store, "all/usd/total", "1000").await;
    let mut bounded = Bounded { weir, upstream, key };
    let all = [models_inside(), attempts(), instead(), beyond_the_output(), fees()];
    for (path, mut members, usd) in all.concat() {
        if members["model"].is_null() {
            members["model"] = json!("gpt-4o-mini");
        }
        let usage = json!({"prompt_tokens": 5, "input_tokens": 5});
        let answer = answer(path, usage, json!({"model": members["model"]}));
        let body = request(path, members);
        let (held, _) = bounded.billed(path, &body, &answer).await;
        assert!(held >= (usd * 1e9) as u64, "{body}: {held} of {usd}");
    }
}

/// A router answers one name by a cheap model and by a dear one.
#[tokio::test]
async fn a_name_that_a_router_answers_is_held_as_the_dearest_answer() {
    let upstream = Upstream::start().await;
    let weir = start(&upstream.address, |_| {}).await;
    let key = weir.key("research", r#"{"passthrough":true}"#).await;
    set(&weir.store, "all/usd/total", "100").await;
    let mut bounded = Bounded { weir, upstream, key };
    let file = json!({"model": "openrouter/auto", "max_tokens": 10, "messages": [
        {"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}]});
    let usage = json!({"prompt_tokens": 5, "completion_tokens": 10});
    let by = |model: &str| answer(CHAT, usage.clone(), json!({"model": model}));
    let body = request(CHAT, file);
    for model in ["gemini-2.5-pro", "gpt-5-nano"] {
        bounded.billed(CHAT, &body, &by(model)).await;
    }
    let (held, _) = bounded.billed(CHAT, &body, &by("gpt-5-nano")).await;
    // A million tokens above the step at $2.50.
    assert!(held >= 2_500_000_000, "{held}");
    // A prompt by its id has no name.
    let stored = json!({"prompt": {"id": "p"}, "input": "hi", "max_output_tokens": 10});
    let usage = json!({"input_tokens": 5, "output_tokens": 10});
    let best = answer(RESPONSES, usage, json!({"model": "gpt-4o"}));
    for is_known in [false, true] {
        let (held, _) = bounded.billed(RESPONSES, &stored, &best).await;
        assert!(held >= 2_000_000_000 || !is_known, "{held}");
    }
}

/// Of requests for a name that nobody has answered yet, one is sent first; the others are held as what
/// answered it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_names_pass_a_budget_by_one_request_at_most() {
    for budget in ["all/usd/total", "model:gpt-4o/usd/total"] {
        for is_invented in [false, true] {
            let mut upstream = Upstream::start().await;
            let weir = start(&upstream.address, |_| {}).await;
            let key = weir.key("research", "{}").await;
            set(&weir.store, budget, "0.05").await;
            let mut all = JoinSet::new();
            for number in 0..20 {
                let name = format!("our-best-{}", if is_invented { number } else { 0 });
                let request = request(CHAT, json!({"model": name, "max_tokens": 1000}));
                let request = post(CHAT, &key.header(), request.to_string());
                let address = weir.weir.address;
                all.spawn(async move { ask(address, request).await });
            }
            let usage = json!({"prompt_tokens": 5, "completion_tokens": 1000});
            let best = answer(CHAT, usage, json!({"model": "gpt-4o"}));
            let mut billed = 0;
            loop {
                tokio::select! {
                    seen = upstream.next() => {
                        billed += 10_012_500;
                        seen.answer(&best);
                    }
                    done = all.join_next() => match done {
                        Some(done) => {
                            assert!([200, 429].contains(&done.expect("nobody panics").status()));
                        }
                        None => break,
                    },
                }
            }
            let allowed = 30_000_000..=60_100_000;
            assert!(allowed.contains(&billed), "{budget}, invented: {is_invented}: {billed}");
        }
    }
}

/// A router answers the first by a cheap model and all others by a dear one: each waits for the one before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_router_is_asked_by_one_request_at_a_time() {
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, |_| {}).await;
    let key = weir.key("research", "{}").await;
    set(&weir.store, "all/usd/total", "0.05").await;
    let mut all = JoinSet::new();
    for _ in 0..20 {
        let request = request(CHAT, json!({"model": "openrouter/auto", "max_tokens": 1000}));
        let request = post(CHAT, &key.header(), request.to_string());
        let address = weir.weir.address;
        all.spawn(async move { ask(address, request).await });
    }
    let usage = json!({"prompt_tokens": 5, "completion_tokens": 1000});
    let by = |model: &str| answer(CHAT, usage.clone(), json!({"model": model}));
    let mut answers = vec![by("gpt-5-nano")].into_iter().chain(std::iter::repeat(by("gpt-4o")));
    let mut dear = 0;
    loop {
        tokio::select! {
            seen = upstream.next() => {
                seen.answer(answers.next().expect("it repeats"));
                dear += 1;
            }
            done = all.join_next() => match done {
                Some(done) => assert!([200, 429].contains(&done.expect("nobody panics").status())),
                None => break,
            },
        }
    }
    // A cheap one, then four at a cent: a fifth would be too much.
    assert!((4..=6).contains(&dear), "{dear}");
}

/// The plain name in an answer says nothing of the region or the host that the request names.
#[tokio::test]
async fn a_plainer_name_in_the_answer_costs_what_was_asked_for() {
    let upstream = Upstream::start().await;
    let weir = start(&upstream.address, |_| {}).await;
    let key = weir.key("research", "{}").await;
    set(&weir.store, "all/usd/total", "100").await;
    let mut bounded = Bounded { weir, upstream, key };
    for (asked, plain) in
        [("us.anthropic.claude-opus-4-8", "claude-opus-4-8"), ("azure/eu/gpt-5.5", "gpt-5.5")]
    {
        let usage = json!({"prompt_tokens": 5, "completion_tokens": 1000});
        let answer = answer(CHAT, usage, json!({"model": plain}));
        let ask = |model: &str| request(CHAT, json!({"model": model, "max_tokens": 1000}));
        let (held, spent) = bounded.billed(CHAT, &ask(asked), &answer).await;
        let (_, of_plain) = bounded.billed(CHAT, &ask(plain), &answer).await;
        assert!(held >= spent && spent > of_plain, "{asked}: {held}, {spent}, {of_plain}");
    }
}

/// Nobody knows what a fallback without a price costs: such requests are sent one by one, or not at all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fallback_without_a_price_is_asked_for_by_one_at_a_time() {
    let body =
        request(CHAT, json!({"model": "gpt-5-nano", "models": ["our-best"], "max_tokens": 1000}));
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, |_| {}).await;
    let key = weir.key("research", "{}").await;
    set(&weir.store, "all/usd/total", "0.015").await;
    let mut all = JoinSet::new();
    for _ in 0..10 {
        let request = post(CHAT, &key.header(), body.to_string());
        let address = weir.weir.address;
        all.spawn(async move { ask(address, request).await });
    }
    let usage = json!({"prompt_tokens": 5, "completion_tokens": 1000});
    let best = answer(CHAT, usage, json!({"model": "gpt-4o"}));
    let mut passed = 0;
    loop {
        tokio::select! {
            seen = upstream.next() => {
                passed += 1;
                seen.answer(&best);
            }
            done = all.join_next() => match done {
                Some(done) => assert!([200, 429].contains(&done.expect("nobody panics").status())),
                None => break,
            },
        }
    }
    assert!((1..=2).contains(&passed), "{passed}");

    let upstream = Upstream::start().await;
    let weir =
        start(&upstream.address, |config| config.prices.unknown = UnknownPrice::Reject).await;
    let key = weir.key("research", "{}").await;
    let refused = weir.ask(post(CHAT, &key.header(), body.to_string())).await;
    refused.assert_error(400, "model_not_priced");
}

/// An upstream that takes any name for a model does not take names for ever past the model's budget.
#[tokio::test]
async fn invented_names_count_as_the_model_that_answers_for_them() {
    let mut upstream = Upstream::start().await;
    let weir = start(&upstream.address, |_| {}).await;
    let key = weir.key("research", "{}").await;
    set(&weir.store, "model:gpt-4o/usd/total", "0.02").await;
    let usage = json!({"prompt_tokens": 5, "completion_tokens": 1000});
    let best = answer(CHAT, usage, json!({"model": "gpt-4o"}));
    let mut passed = 0;
    for number in 0..12 {
        let body =
            request(CHAT, json!({"model": format!("deployment-{number}"), "max_tokens": 1000}));
        let (address, request) = (weir.weir.address, post(CHAT, &key.header(), body.to_string()));
        let mut asking = tokio::spawn(async move { ask(address, request).await });
        tokio::select! {
            seen = upstream.next() => {
                passed += 1;
                seen.answer(&best);
                assert_eq!(asking.await.expect("it is answered").status(), 200);
            }
            answer = &mut asking => {
                assert_eq!(answer.expect("it is answered").status(), 429);
            }
        }
    }
    assert!((1..=3).contains(&passed), "{passed}");
}

/// Returns the answer that bills the most that a request allows, and the bill in nano-dollars.
fn worst(path: &str, body: &Value) -> (String, u64) {
    let number = |name: &str| body[name].as_u64().unwrap_or(0);
    let limit = ["max_tokens", "max_completion_tokens", "max_output_tokens"].map(number);
    let limit = limit.into_iter().max().unwrap_or(0);
    let text = |name: &str| body[name].as_str().map_or(0, |text| text.len() as u64);
    let none = json!({});
    match path {
        CHAT => {
            let completion = limit * number("n").max(1);
            let usage = json!({"prompt_tokens": 5, "completion_tokens": completion});
            let tier = json!({"service_tier": "priority"});
            (answer(path, usage, tier), 10_000 + 20_000 * completion)
        }
        COMPLETIONS => {
            let completion = 2 * limit * number("best_of").max(number("n"));
            let usage = json!({"prompt_tokens": 2, "completion_tokens": completion});
            (answer(path, usage, none), 2000 + 10_000 * completion)
        }
        RESPONSES => {
            let usage = json!({"input_tokens": 3, "output_tokens": limit});
            (answer(path, usage, json!({"service_tier": "priority"})), 6000 + 20_000 * limit)
        }
        MESSAGES => {
            let usage = json!({"input_tokens": 0, "output_tokens": limit, "cache_creation_input_tokens": 250,
                "cache_creation": {"ephemeral_1h_input_tokens": 250}});
            (answer(path, usage, none), 500_000 + 10_000 * limit)
        }
        EMBEDDINGS => {
            let tokens = text("input");
            let usage = json!({"prompt_tokens": tokens, "total_tokens": tokens});
            (answer(path, usage, none), 1000 * tokens)
        }
        IMAGES => {
            let tokens = 272 * number("n");
            let usage = json!({"input_tokens": 5, "output_tokens": tokens,
                "output_tokens_details": {"image_tokens": tokens}});
            (answer(path, usage, none), 5000 + 20_000 * tokens)
        }
        _ => {
            let (read, spoken) = (text("input"), 4 * text("input"));
            let usage = json!({"input_tokens": read, "output_tokens": spoken,
                "output_token_details": {"audio_tokens": spoken}});
            (answer(path, usage, none), 1000 * read + 80_000 * spoken)
        }
    }
}

/// Answers each request by the most that it allows; returns the sum of the bills.
fn bill(mut upstream: Upstream) -> (Arc<AtomicU64>, Arc<AtomicU64>) {
    let (billed, requests) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (sum, count) = (Arc::clone(&billed), Arc::clone(&requests));
    tokio::spawn(async move {
        loop {
            let seen = upstream.next().await;
            let path = seen.head.split(' ').nth(1).expect("a path").to_owned();
            let body: Value = serde_json::from_slice(&seen.body).expect("JSON");
            let (answer, nano_usd) = worst(&path, &body);
            sum.fetch_add(nano_usd, Ordering::SeqCst);
            count.fetch_add(1, Ordering::SeqCst);
            seen.answer(answer);
        }
    });
    (billed, requests)
}

async fn three_waves(path: &'static str, members: Value) {
    let Bounded { weir, upstream, key } = Bounded::start("0.10").await;
    let (billed, requests) = bill(upstream);
    let request = post(path, &key.header(), request(path, members).to_string());
    let mut refused = 0;
    for _ in 0..3 {
        let mut all = JoinSet::new();
        for _ in 0..60 {
            let (address, request) = (weir.weir.address, request.clone());
            all.spawn(async move { ask(address, request).await });
        }
        while let Some(answer) = all.join_next().await {
            let answer = answer.expect("nobody panics");
            if answer.status() != 200 {
                assert_eq!(answer.status(), 429, "{answer:?}");
                let body = String::from_utf8_lossy(&answer.body).into_owned();
                assert!(body.contains("it may cost"), "{body}");
                refused += 1;
            }
        }
    }
    let (billed, requests) = (billed.load(Ordering::SeqCst), requests.load(Ordering::SeqCst));
    println!(
        "{path}: {requests} sent, {refused} refused, {:.2} times the budget",
        billed as f64 / 1e8
    );
    assert_eq!(requests + refused, 180);
    assert!(billed <= 100_000_000, "{path}: {billed} billed of 100000000");
    assert!(billed >= 50_000_000, "{path}: most of the budget was of use: {billed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_at_once_never_pass_a_budget() {
    three_waves(CHAT, json!({"max_tokens": 20, "max_completion_tokens": 300, "n": 2})).await;
    three_waves(CHAT, json!({})).await;
    three_waves(COMPLETIONS, json!({"prompt": ["a", "b"], "n": 2, "max_tokens": 50})).await;
    three_waves(RESPONSES, json!({"max_output_tokens": 300})).await;
    let cached = json!([{"type": "text", "text": "a ".repeat(500), "cache_control": {"type": "ephemeral", "ttl": "1h"}}]);
    three_waves(MESSAGES, json!({"max_tokens": 300, "system": cached})).await;
    three_waves(EMBEDDINGS, json!({"input": "x".repeat(3000)})).await;
    three_waves(IMAGES, json!({"n": 1, "size": "1024x1024", "quality": "low"})).await;
    three_waves(SPEECH, json!({"input": "x".repeat(60), "stream_format": "sse"})).await;
}

#[tokio::test]
async fn thinking_is_lowered_with_the_output_or_the_request_is_refused() {
    // Room for about 3,900 tokens at the price of the dearest tier.
    let mut bounded = Bounded::start("0.08").await;
    let thinking =
        json!({"max_tokens": 32_000, "thinking": {"type": "enabled", "budget_tokens": 16_000}});
    let request =
        post(MESSAGES, &bounded.key.header(), request(MESSAGES, thinking.clone()).to_string());
    let address = bounded.weir.weir.address;
    let asking = tokio::spawn(async move { ask(address, request).await });
    let seen = bounded.upstream.next().await;
    let body: Value = serde_json::from_slice(&seen.body).expect("JSON");
    let most = body["max_tokens"].as_u64().expect("a number");
    assert!((3000..4000).contains(&most), "nobody waits, so it gets all: {body}");
    let budget = body["thinking"]["budget_tokens"].as_u64().expect("a number");
    assert!((most / 2 - 1..=most / 2).contains(&budget), "half of it as before: {body}");
    let usage = json!({"input_tokens": 5, "output_tokens": most});
    seen.answer(answer(MESSAGES, usage, json!({})));
    assert_eq!(asking.await.expect("an answer").status(), 200);
    // What is left is less than the smallest limit that allows any thinking.
    set(&bounded.weir.store, "all/usd/total", "0.058").await;
    let left = bounded.status().await["left"].clone();
    assert!(nano_usd(&left) < 22_500_000, "{left}");
    let refused = bounded.refused(MESSAGES, &self::request(MESSAGES, thinking)).await;
    assert_eq!(refused.status(), 429, "{refused:?}");
}
