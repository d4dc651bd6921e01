//! What planning costs, in process: cold, with counts at hand, and for the next request of a
//! conversation, over lengths and limits. The text is that of the recorded conversations in
//! `tests/data`, varied where it repeats. Ratios between rows of one run tell; absolute times are
//! the machine's.

#[path = "support/recorded.rs"]
mod recorded;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use tokio::runtime::Runtime;
use weir::config::Config;
use weir::proxy::Tenant;
use weir::proxy::planner::{Asked, Planned, Planner};
use weir::tokens::Encoding;
use weir::wire::Protocol;

/// Far below most of the lengths, so that many cuts are made on the way.
const LOW_LIMIT_TOKENS: u64 = 16_000;
/// What the next request adds: a call and its result.
const NEXT: [&str; 2] = [
    r#"{"role":"assistant","content":"Let me look at the parser next.","tool_calls":[{"id":"next","type":"function","function":{"name":"read_file","arguments":"{\"path\":\"src/parser/tokens.py\"}"}}]}"#,
    r#"{"role":"tool","tool_call_id":"next","content":"12: def split(text):\n13:     return [part.strip() for part in text.split(',')]\n14: \n15: def join(parts, sep=','):\n16:     return sep.join(parts)\n"}"#,
];

/// The recorded conversations, one behind the other and again with other names and numbers, until
/// they take `tokens`.
fn conversation(tokens: u64) -> Vec<String> {
    let recorded = recorded::conversations();
    let mut messages = Vec::new();
    let mut written = 0;
    for round in 0..26 {
        for conversation in &recorded {
            for message in conversation {
                if message["role"] == "system" && !messages.is_empty() {
                    continue;
                }
                // A request ends with what the model is to answer.
                if written >= tokens && message["role"] == "assistant" {
                    return messages;
                }
                let varied = recorded::vary(message.clone(), round).to_string();
                written += Encoding::O200kBase.count(&varied);
                messages.push(varied);
            }
        }
    }
    panic!("the sample is too short for {tokens} tokens");
}

fn body<'a>(messages: impl IntoIterator<Item = &'a str>) -> Bytes {
    let messages: Vec<&str> = messages.into_iter().collect();
    format!(r#"{{"model":"gpt-4.1","messages":[{}]}}"#, messages.join(",")).into()
}

fn plan(runtime: &Runtime, planner: &Planner, body: Bytes, limit_tokens: u64) -> Planned {
    let asked = Asked { max_input_tokens: Some(limit_tokens), ..Asked::default() };
    let planned = planner.plan(Tenant([7; 16]), Protocol::Chat, body, None, asked);
    runtime.block_on(planned).unwrap_or_else(|error| panic!("{}", error.message))
}

fn engine(criterion: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime");
    let config = Arc::new(Config::default());
    Encoding::O200kBase.warm();
    let mut group = criterion.benchmark_group("plan");
    group.sample_size(10);
    group.warm_up_time(Duration::from_millis(300));
    group.measurement_time(Duration::from_secs(1));
    for tokens in [1_000, 10_000, 100_000, 400_000] {
        let messages = conversation(tokens);
        let own = || messages.iter().map(String::as_str);
        let (whole, longer) = (body(own()), body(own().chain(NEXT)));
        for limit_tokens in [tokens * 2, tokens / 2, LOW_LIMIT_TOKENS] {
            let is_low = limit_tokens == LOW_LIMIT_TOKENS;
            if limit_tokens < 5_000 && limit_tokens < tokens || (is_low && tokens < 100_000) {
                continue;
            }
            let planner = Planner::new(Arc::clone(&config));
            let cuts = plan(&runtime, &planner, whole.clone(), limit_tokens).cuts;
            let id = |what: &str| {
                BenchmarkId::new(what, format!("{tokens} under {limit_tokens}, {cuts} cuts"))
            };
            group.bench_function(id("cold"), |bencher| {
                bencher.iter_batched(
                    || Planner::new(Arc::clone(&config)),
                    |planner| plan(&runtime, &planner, whole.clone(), limit_tokens),
                    BatchSize::PerIteration,
                );
            });
            let mut other_limit = limit_tokens;
            group.bench_function(id("counts at hand"), |bencher| {
                bencher.iter(|| {
                    // Another limit is another profile: the fold is made anew from known counts.
                    other_limit += 1;
                    plan(&runtime, &planner, whole.clone(), other_limit)
                });
            });
            group.bench_function(id("next request"), |bencher| {
                bencher.iter_batched(
                    || plan(&runtime, &planner, whole.clone(), limit_tokens),
                    |_| plan(&runtime, &planner, longer.clone(), limit_tokens),
                    BatchSize::PerIteration,
                );
            });
        }
    }
    group.finish();
}

criterion_group!(benches, engine);
criterion_main!(benches);
