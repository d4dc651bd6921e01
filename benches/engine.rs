//! What planning costs, in process: cold, with counts at hand, and for the next request of a
//! conversation, over lengths. Ratios between rows of one run tell; absolute times are the
//! machine's.

use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use tokio::runtime::Runtime;
use weir::config::Config;
use weir::proxy::Tenant;
use weir::proxy::planner::{Asked, Planned, Planner};
use weir::wire::Protocol;

/// An agent's conversation of about `tokens` tokens: task, then calls and results.
fn conversation(tokens: usize, seed: u64) -> Vec<String> {
    let mut state = seed;
    let mut next = move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    let words =
        ["return", "value", "config", "the", "request", "is", "error", "parse", "if", "none"];
    let mut messages = vec![
        r#"{"role":"system","content":"You are a coding agent."}"#.to_owned(),
        r#"{"role":"user","content":"Fix the failing test in the parser."}"#.to_owned(),
    ];
    let mut written = 0;
    while written < tokens {
        let id = next();
        let size = 100 + next() % 600;
        let mut text = String::new();
        for _ in 0..size {
            let _ = write!(text, "{} ", words[next() % words.len()]);
        }
        let _ = write!(text, "line {id}");
        messages.push(format!(
            r#"{{"role":"assistant","content":null,"tool_calls":[{{"id":"c{id}","type":"function","function":{{"name":"read","arguments":"{{\"path\":\"src/{id}.rs\"}}"}}}}]}}"#
        ));
        messages.push(format!(r#"{{"role":"tool","tool_call_id":"c{id}","content":"{text}"}}"#));
        written += size + 40;
    }
    messages
}

fn body(messages: &[String]) -> Bytes {
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
    for tokens in [1_000, 10_000, 100_000, 400_000] {
        let messages = conversation(tokens, 1);
        let whole = body(&messages);
        // Half of the conversation has to go, where it is long enough for that.
        let limit_tokens = (tokens as u64 / 2).max(3_000);
        let mut group = criterion.benchmark_group("plan");
        group.sample_size(10);
        group.bench_function(BenchmarkId::new("cold", tokens), |bencher| {
            bencher.iter_batched(
                || Planner::new(Arc::clone(&config)),
                |planner| plan(&runtime, &planner, whole.clone(), limit_tokens),
                BatchSize::PerIteration,
            );
        });
        let planner = Planner::new(Arc::clone(&config));
        plan(&runtime, &planner, whole.clone(), limit_tokens);
        let mut other_limit = limit_tokens;
        group.bench_function(BenchmarkId::new("counts at hand", tokens), |bencher| {
            bencher.iter(|| {
                // Another limit is another profile: the fold is made anew from known counts.
                other_limit += 1;
                plan(&runtime, &planner, whole.clone(), other_limit)
            });
        });
        let mut length = messages.len();
        group.bench_function(BenchmarkId::new("next request", tokens), |bencher| {
            bencher.iter_batched(
                || {
                    let mut longer = messages.clone();
                    longer.extend(conversation(1_000, length as u64).into_iter().skip(2));
                    length += 1;
                    plan(&runtime, &planner, whole.clone(), limit_tokens);
                    body(&longer)
                },
                |longer| plan(&runtime, &planner, longer, limit_tokens),
                BatchSize::PerIteration,
            );
        });
        group.finish();
    }
}

criterion_group!(benches, engine);
criterion_main!(benches);
