//! Benchmark of the exact counter (alone with `-- counting`) and of planning, in process: cold,
//! with cached counts, and for the next request of a conversation, over lengths and limits. The
//! text is that of the recorded conversations in `tests/data`, varied where it repeats. Compare
//! rows of one run; absolute times depend on the machine.

#[path = "support/counting.rs"]
mod counting;
#[path = "support/recorded.rs"]
mod recorded;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group};
use tokio::runtime::Runtime;
use weir::config::Config;
use weir::proxy::Tenant;
use weir::proxy::plan::{Planned, Planner, PlannerParts, RequestOptions};
use weir_engine::tokens::Encoding;
use weir_engine::wire::Protocol;

/// Far below most of the lengths, so that a conversation has many compactions.
const LOW_LIMIT_TOKENS: u64 = 16_000;
/// Added by the next request: a call and its result.
const NEXT: [&str; 2] = [
    r#"{"role":"assistant","content":"Let me look at the parser next.","tool_calls":[{"id":"next","type":"function","function":{"name":"read_file","arguments":"{\"path\":\"src/parser/tokens.py\"}"}}]}"#,
    r#"{"role":"tool","tool_call_id":"next","content":"12: def split(text):\n13:     return [part.strip() for part in text.split(',')]\n14: \n15: def join(parts, sep=','):\n16:     return sep.join(parts)\n"}"#,
];

/// Concatenates the recorded conversations, and again with other names and numbers, up to `tokens`.
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
                // A request ends before an answer of the model.
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
    let asked =
        RequestOptions { max_input_tokens: Some(limit_tokens), ..RequestOptions::default() };
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
            let planner = Planner::new(Arc::clone(&config), PlannerParts::default());
            let cuts = plan(&runtime, &planner, whole.clone(), limit_tokens).compactions;
            let id = |what: &str| {
                BenchmarkId::new(what, format!("{tokens} under {limit_tokens}, {cuts} cuts"))
            };
            group.bench_function(id("cold"), |bencher| {
                bencher.iter_batched(
                    || Planner::new(Arc::clone(&config), PlannerParts::default()),
                    |planner| plan(&runtime, &planner, whole.clone(), limit_tokens),
                    BatchSize::PerIteration,
                );
            });
            let mut other_limit = limit_tokens;
            group.bench_function(id("counts at hand"), |bencher| {
                bencher.iter(|| {
                    // Another limit is another profile: compaction restarts with known counts.
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

fn main() {
    counting::run();
    if std::env::args().all(|argument| argument != "counting") {
        benches();
        Criterion::default().configure_from_args().final_summary();
    }
}
