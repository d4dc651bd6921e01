//! Cost of holding and settling per request, for one caller and for 64 concurrent callers with the
//! same key. Measured without budgets, with three in this process, and with three in Redis
//! (`WEIR_TEST_REDIS` names one). One iteration of `64 at once` is 64 requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use jiff::tz::TimeZone;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::Instant;
use weir_store::budget::{Ask, Budget, BudgetId, OutputBound};
use weir_store::budgets::Applied;
use weir_store::counters::{Counters, Owner, RedisOptions, Reservation, Spending};
use weir_store::ledger::{Caller, KeyNames, RequestId};
use weir_store::redis::Redis;
use weir_store::{Store, Tenant, now_ms};

/// Budgets that are never exhausted.
const BUDGETS: [&str; 3] = ["all/usd/day", "team:search/usd/month", "key:key_1/tokens/24h"];
const LIMIT: u64 = 1 << 52;

fn applied() -> Vec<Applied> {
    BUDGETS
        .iter()
        .map(|id| {
            let id = BudgetId::parse(id).expect("a budget");
            let scope = id.scope.clone();
            let budget = Budget { id, limit: LIMIT, warn_permille: None };
            Applied { budget: Arc::new(budget), scope }
        })
        .collect()
}

/// Shared data of the callers.
#[derive(Clone)]
struct Load {
    counters: Counters,
    owner: Owner,
    /// Empty if requests have no budget.
    applied: Vec<Applied>,
    count: Arc<AtomicU64>,
}

impl Load {
    fn new(counters: Counters, applied: Vec<Applied>) -> Self {
        let names = KeyNames {
            key: "key_1".to_owned(),
            team: "search".to_owned(),
            organisation: "example".to_owned(),
            user: "somebody@example.com".to_owned(),
        };
        let caller = Caller { tenant: Tenant([1; 16]), key: Some(Arc::new(names)) };
        let owner = Owner::new(&caller, Arc::default(), "gpt-4.1-mini");
        Self { counters, owner, applied, count: Arc::default() }
    }

    async fn request(&self) {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let mut random = [0; 10];
        random[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
        let begun_ms = now_ms();
        let id = RequestId::new(begun_ms, random);
        let held = if self.applied.is_empty() {
            self.counters.note(id, begun_ms, self.owner.clone())
        } else {
            let ask = Ask {
                money: OutputBound {
                    base_nano_usd: 500_000,
                    output_nano_usd_per_mtok: 600_000_000,
                },
                prompt_tokens: 1240,
                choices: 1,
                wanted_tokens: 4096,
                enough_tokens: 2048,
                least_tokens: 16,
                is_flexible: true,
            };
            let (applied, patience) = (self.applied.clone(), Duration::from_secs(30));
            let wanted = Reservation { id, begun_ms, applied, ask, patience };
            let granted = self.counters.reserve(wanted, self.owner.clone()).await;
            granted.expect("there is room").held
        };
        held.settle(Spending { nano_usd: 700_000, tokens: 1561 }).await;
    }

    /// Returns the time of `at_once` callers for `rounds` requests each.
    async fn time(&self, rounds: u64, at_once: u64) -> Duration {
        let began = Instant::now();
        let mut callers = JoinSet::new();
        for _ in 0..at_once {
            let load = self.clone();
            callers.spawn(async move {
                for _ in 0..rounds {
                    load.request().await;
                }
            });
        }
        callers.join_all().await;
        began.elapsed()
    }
}

fn budgets(criterion: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime");
    let _inside = runtime.enter();
    let store = Store::in_memory().expect("there is memory");
    let memory = || Counters::in_memory(store.clone(), TimeZone::UTC);
    let mut loads = vec![
        ("in no budget", Load::new(memory(), Vec::new())),
        ("in three, in memory", Load::new(memory(), applied())),
    ];
    if let Ok(url) = std::env::var("WEIR_TEST_REDIS") {
        let prefix = format!("weir-bench-{}", std::process::id());
        let redis = Redis::new(&url, &prefix, Duration::from_secs(2)).expect("an address");
        let (zone, options) = (TimeZone::UTC, RedisOptions::default());
        let counters = Counters::in_redis(redis, store.clone(), zone, options);
        loads.push(("in three, in Redis", Load::new(counters, applied())));
    }
    let mut group = criterion.benchmark_group("hold and settle");
    group.warm_up_time(Duration::from_secs(4));
    group.measurement_time(Duration::from_secs(4));
    for (name, load) in &loads {
        for at_once in [1, 64] {
            group.throughput(Throughput::Elements(at_once));
            group.bench_function(format!("{at_once} at once, {name}"), |bencher| {
                bencher.iter_custom(|rounds| runtime.block_on(load.time(rounds, at_once)));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, budgets);
criterion_main!(benches);
