//! Bills of providers, kind by kind: the journal has each to the nano-dollar, whole and streamed, or says
//! that it is priced in part.

use serde_json::{Value, json};
use weir::config::{Config, UnknownPrice};
use weir_store::Store;
use weir_store::budget::{NanoUsd, Price, ServiceTier};
use weir_store::ledger::{Flags, RequestRow};

use super::{post, rows, whole};
use crate::protocols::through;
use crate::server::harness::{self, Upstream};

/// Dollars per million tokens, and per 1,000 searches and calls.
const PRICE: &str = "in 1 cached 0.1 write 1.25 write1h 2 out 10 audio_in 40 audio_out 80 image_in 5 \
    image_out 20 search 10 call 2.5 minute 0.006 above 200000 in 2 cached 0.2 write 2.5 write1h 4 out 15";

fn priced(config: &mut Config) {
    let mut price = Price::parse(PRICE).expect("a price");
    let fast = Price::parse("in 6 cached 0.6 write 7.5 write1h 12 out 60").expect("a price").rates;
    let flex = Price::parse("in 0.5 cached 0.05 out 5").expect("a price").rates;
    price.service_tiers = vec![(ServiceTier::Fast, fast), (ServiceTier::Flex, flex)];
    price.regions = vec![("us".to_owned(), 1100)];
    config.prices.unknown = UnknownPrice::Default;
    config.prices.default = Some(price);
}

#[derive(Clone, Copy, PartialEq)]
enum Api {
    Chat,
    Responses,
    Messages,
}
use Api::{Chat, Messages, Responses};

/// A bill: its usage, its cost, and whether that may be more.
type Row = (&'static str, Api, Value, &'static str, bool);

fn bills() -> Vec<Row> {
    vec![
        (
            "Mistral, with its cache under three names",
            Chat,
            json!({"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100,
                "num_cached_tokens": 400, "prompt_token_details": {"cached_tokens": 400}}),
            "0.00164",
            false,
        ),
        (
            "Qwen, with writes in the details",
            Chat,
            json!({"prompt_tokens": 10_000, "completion_tokens": 100, "total_tokens": 10_100,
                "prompt_tokens_details": {"cached_tokens": 0, "cache_creation_input_tokens": 8000,
                    "cache_creation": {"ephemeral_5m_input_tokens": 8000}, "cache_type": "ephemeral"}}),
            "0.013",
            false,
        ),
        (
            "writes for an hour",
            Messages,
            json!({"input_tokens": 100, "output_tokens": 100, "cache_creation_input_tokens": 10_000,
                "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 10_000}}),
            "0.0211",
            false,
        ),
        (
            "writes of both lifetimes, and a rest",
            Messages,
            json!({"input_tokens": 100, "output_tokens": 100, "cache_creation_input_tokens": 10_000,
                "cache_creation": {"ephemeral_5m_input_tokens": 3000, "ephemeral_1h_input_tokens": 5000}}),
            "0.01735",
            false,
        ),
        (
            "writes for an hour above the step",
            Messages,
            json!({"input_tokens": 100, "output_tokens": 100, "cache_creation_input_tokens": 210_000,
                "cache_creation": {"ephemeral_1h_input_tokens": 210_000}}),
            "0.8417",
            false,
        ),
        (
            "searches",
            Messages,
            json!({"input_tokens": 1000, "output_tokens": 100, "server_tool_use": {"web_search_requests": 3}}),
            "0.032",
            false,
        ),
        (
            "code execution",
            Messages,
            json!({"input_tokens": 1000, "output_tokens": 100, "server_tool_use": {"code_execution_requests": 2}}),
            "0.007",
            false,
        ),
        (
            "fast",
            Messages,
            json!({"input_tokens": 1000, "output_tokens": 100, "speed": "fast"}),
            "0.012",
            false,
        ),
        (
            "a region",
            Messages,
            json!({"input_tokens": 1000, "output_tokens": 100, "inference_geo": "us"}),
            "0.0022",
            false,
        ),
        (
            "a region without a price",
            Messages,
            json!({"input_tokens": 1000, "output_tokens": 100, "inference_geo": "eu"}),
            "0.002",
            true,
        ),
        (
            "no region",
            Messages,
            json!({"input_tokens": 1000, "output_tokens": 100, "inference_geo": "global"}),
            "0.002",
            false,
        ),
        (
            "inner inferences",
            Messages,
            json!({"input_tokens": 1000, "output_tokens": 100, "iterations": [
                {"type": "compaction", "input_tokens": 50_000, "output_tokens": 2000},
                {"type": "message", "input_tokens": 1000, "output_tokens": 100}]}),
            "0.072",
            false,
        ),
        (
            "the size of each inference",
            Messages,
            json!({"input_tokens": 1000, "output_tokens": 100, "iterations": [
                {"type": "compaction", "input_tokens": 210_000, "output_tokens": 0}]}),
            "0.422",
            false,
        ),
        (
            "searches for tools",
            Messages,
            json!({"input_tokens": 1000, "output_tokens": 100, "server_tool_use": {"tool_search_requests": 2}}),
            "0.002",
            false,
        ),
        (
            "an advisor with a price of its own",
            Messages,
            json!({"input_tokens": 1000, "output_tokens": 100, "iterations": [
                {"type": "advisor_message", "model": "gpt-4o", "input_tokens": 1000, "output_tokens": 1000},
                {"type": "message", "input_tokens": 1000, "output_tokens": 100}]}),
            "0.0145",
            false,
        ),
        (
            "an attempt that was refused in the midst of its output, and its fallback",
            Messages,
            json!({"input_tokens": 1000, "output_tokens": 100, "iterations": [
                {"type": "message", "model": "gpt-4o", "input_tokens": 1000, "output_tokens": 1000},
                {"type": "fallback_message", "model": "m1", "input_tokens": 1000, "output_tokens": 100}]}),
            "0.0145",
            false,
        ),
        (
            "an attempt that was refused before its output",
            Messages,
            json!({"input_tokens": 1000, "output_tokens": 100, "iterations": [
                {"type": "message", "model": "gpt-4o", "input_tokens": 1000, "output_tokens": 0},
                {"type": "fallback_message", "model": "m1", "input_tokens": 1000, "output_tokens": 100}]}),
            "0.002",
            false,
        ),
        (
            "an advisor without a price",
            Messages,
            json!({"input_tokens": 1000, "output_tokens": 100, "iterations": [
                {"type": "advisor_message", "model": "oracle", "input_tokens": 1000, "output_tokens": 100}]}),
            "0.004",
            true,
        ),
        (
            "the larger of two names of the cache",
            Chat,
            json!({"prompt_tokens": 1000, "completion_tokens": 100, "prompt_cache_hit_tokens": 900,
                "prompt_tokens_details": {"cached_tokens": 0}}),
            "0.00119",
            false,
        ),
        (
            "an hour's writes in LiteLLM's details",
            Chat,
            json!({"prompt_tokens": 1000, "completion_tokens": 100, "prompt_tokens_details": {
                "cached_tokens": 0, "cache_creation_tokens": 500,
                "cache_creation_token_details": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 500}}}),
            "0.0025",
            false,
        ),
        (
            "ticks and speeds",
            Chat,
            json!({"prompt_tokens": 1000, "completion_tokens": 100, "cost_in_usd_ticks": 37_756_000,
                "acceptance_rate": 3.5, "completion_tokens_after_first_per_sec_first_ten": 400.1}),
            "0.002",
            false,
        ),
        (
            "decimals and texts",
            Chat,
            json!({"prompt_tokens": 1000.0, "completion_tokens": "100", "total_tokens": 1100.0}),
            "0.002",
            false,
        ),
        (
            "audio",
            Chat,
            json!({"prompt_tokens": 1000, "completion_tokens": 100,
                "prompt_tokens_details": {"audio_tokens": 500}, "completion_tokens_details": {"audio_tokens": 50}}),
            "0.025",
            false,
        ),
        (
            "what nobody knows",
            Chat,
            json!({"prompt_tokens": 1000, "completion_tokens": 100, "video_tokens": 5}),
            "0.002",
            true,
        ),
        (
            "a stated cost that does not count",
            Chat,
            json!({"prompt_tokens": 1000, "completion_tokens": 100, "cost": 0.5}),
            "0.002",
            false,
        ),
        (
            "images",
            Responses,
            json!({"input_tokens": 1000, "output_tokens": 600,
                "input_tokens_details": {"image_tokens": 400}, "output_tokens_details": {"image_tokens": 500}}),
            "0.0136",
            false,
        ),
    ]
}

fn path(api: Api) -> &'static str {
    match api {
        Chat => "/v1/chat/completions",
        Responses => "/v1/responses",
        Messages => "/v1/messages",
    }
}

fn request(api: Api, stream: bool) -> String {
    let hi = json!([{"role": "user", "content": "hi"}]);
    let usage = json!({"include_usage": true});
    match api {
        Chat if stream => {
            json!({"model": "m1", "messages": hi, "stream": true, "stream_options": usage})
        }
        Chat => json!({"model": "m1", "messages": hi}),
        Responses => json!({"model": "m1", "input": hi, "stream": stream, "store": false}),
        Messages => json!({"model": "m1", "messages": hi, "max_tokens": 100, "stream": stream}),
    }
    .to_string()
}

fn answer(api: Api, usage: &Value) -> Value {
    match api {
        Chat => {
            json!({"id": "c", "object": "chat.completion", "model": "m1", "usage": usage, "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}]})
        }
        Responses => json!({"id": "r", "object": "response", "status": "completed", "model": "m1",
            "output": [], "usage": usage}),
        Messages => json!({"id": "m", "type": "message", "role": "assistant", "model": "m1",
            "content": [{"type": "text", "text": "ok"}], "stop_reason": "end_turn", "usage": usage}),
    }
}

/// Builds the answer as a stream; each ends with reports of zero.
fn events(api: Api, usage: &Value) -> Vec<Value> {
    match api {
        Chat => vec![
            json!({"id": "c", "model": "m1", "choices": [{"index": 0, "delta": {"content": "ok"}, "finish_reason": "stop"}]}),
            json!({"id": "c", "model": "m1", "choices": [], "usage": usage}),
        ],
        Responses => {
            vec![json!({"type": "response.completed", "response": answer(api, usage)})]
        }
        Messages => vec![
            json!({"type": "message_start", "message": answer(api, usage)}),
            json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage":
                {"input_tokens": 0, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0, "output_tokens": 1}}),
            json!({"type": "message_stop"}),
        ],
    }
}

fn stream(events: &[Value]) -> String {
    let events: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    let done = "data: [DONE]\n\n";
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\r\n{events}{done}",
        events.len() + done.len()
    )
}

/// Sends one request that is answered so; returns its row.
async fn billed(
    change: impl FnOnce(&mut Config),
    api: Api,
    streams: bool,
    answer: &str,
) -> RequestRow {
    let store = Store::in_memory().expect("there is memory");
    let mut upstream = Upstream::start().await;
    let weir = harness::start_with(store.clone(), &upstream.address, |config| {
        config.ledger.enabled = true;
        priced(config);
        change(config);
    })
    .await;
    let asked = post(path(api), "", &request(api, streams));
    let asking = tokio::spawn(async move { whole(weir.address, &asked).await });
    upstream.next().await.answer(answer);
    asking.await.expect("it is answered");
    rows(&store, 1).await.remove(0)
}

fn check(name: &str, row: &RequestRow, usd: &str, is_partial: bool) {
    let cost = row.settlement.cost_nano_usd.map(NanoUsd);
    assert_eq!(cost, NanoUsd::parse(usd), "{name}: {row:#?}");
    assert_eq!(row.settlement.flags.any(Flags::PARTLY_PRICED), is_partial, "{name}: {row:#?}");
}

#[tokio::test]
async fn every_kind_of_fee_is_in_the_journal() {
    for (name, api, usage, usd, is_partial) in bills() {
        let row = billed(|_| {}, api, false, &through::whole(&answer(api, &usage))).await;
        check(name, &row, usd, is_partial);
        let row = billed(|_| {}, api, true, &stream(&events(api, &usage))).await;
        check(&format!("{name}, streamed"), &row, usd, is_partial);
    }
}

#[tokio::test]
async fn a_cost_that_the_provider_states_counts_if_the_operator_says_so() {
    let usage = json!({"prompt_tokens": 1000, "completion_tokens": 100, "cost": 0.0123456});
    for streams in [false, true] {
        let answer = match streams {
            true => stream(&events(Chat, &usage)),
            false => through::whole(&answer(Chat, &usage)),
        };
        let row = billed(|config| config.prices.stated = true, Chat, streams, &answer).await;
        check("stated", &row, "0.0123456", false);
    }
}

#[tokio::test]
async fn tiers_that_served_and_calls_of_tools_among_the_items_are_billed() {
    let mut own = answer(Responses, &json!({"input_tokens": 1000, "output_tokens": 100}));
    own["service_tier"] = json!("flex");
    own["output"] =
        json!([{"type": "web_search_call", "id": "w"}, {"type": "file_search_call", "id": "f"}]);
    let completed = json!({"type": "response.completed", "response": own});
    for (streams, answer) in [(false, through::whole(&own)), (true, stream(&[completed]))] {
        let row = billed(|_| {}, Responses, streams, &answer).await;
        // 1,000 × .50 + 100 × 5 by the million, a search and a call.
        check("flex", &row, "0.0135", false);
    }
}

#[tokio::test]
async fn an_answer_that_failed_costs_nothing() {
    let error = json!({"error": {"message": "Provider returned error", "code": 502}});
    for api in [Chat, Responses, Messages] {
        let row = billed(|_| {}, api, false, &through::whole(&error)).await;
        check("an error in a 200", &row, "0", false);
        let event = json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}});
        let row = billed(|_| {}, api, true, &stream(&[event])).await;
        check("an error as the first event", &row, "0", false);
    }
}

#[tokio::test]
async fn a_form_is_billed_by_the_model_that_it_names() {
    let part = |head: &str, value: &str| {
        format!("--x\r\ncontent-disposition: form-data; {head}\r\n\r\n{value}\r\n")
    };
    let sound = part("name=\"file\"; filename=\"a.mp3\"", &"sound ".repeat(20_000));
    let model = part("name=\"model\"", "whisper-9");
    let usage = json!({"text": "hm", "usage": {"type": "duration", "seconds": 90}});
    let verbose = json!({"text": "hm", "duration": 90.0});
    let (first, last) = (format!("{model}{sound}--x--\r\n"), format!("{sound}{model}--x--\r\n"));
    for (body, said, usd) in [
        (&first, &usage, Some("0.009")),
        (&last, &usage, Some("0.009")),
        (&first, &verbose, Some("0.009")),
        (&first, &json!({"text": "hm"}), None),
    ] {
        let mut upstream = Upstream::start().await;
        let store = Store::in_memory().expect("there is memory");
        let weir = harness::start_with(store.clone(), &upstream.address, priced).await;
        let request = format!(
            "POST /v1/audio/transcriptions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             accept-encoding: gzip\r\ncontent-type: multipart/form-data; boundary=x\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        let asking = tokio::spawn(async move { whole(weir.address, &request).await });
        let seen = upstream.next().await;
        assert_eq!(seen.body, body.as_bytes());
        assert!(seen.head.contains("accept-encoding: identity\r\n"), "{}", seen.head);
        seen.answer(through::whole(said));
        asking.await.expect("it is answered");
        let row = rows(&store, 1).await.remove(0);
        assert_eq!(row.model, "whisper-9");
        match usd {
            Some(usd) => check("minutes", &row, usd, false),
            None => {
                let flags = Flags::UNPRICED | Flags::USAGE_MISSING;
                assert_eq!((row.settlement.cost_nano_usd, row.settlement.flags), (None, flags));
            }
        }
    }
}
