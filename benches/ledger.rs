//! Cost of the journal per request, its intent and its settlement, for one caller and for 64
//! concurrent ones. Measured in a file in the temporary folder, in memory, and in the PostgreSQL
//! database in `WEIR_TEST_POSTGRES`, if set; its tables stay there. One iteration of `64 at once`
//! is 64 requests.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::Instant;
use weir_store::ledger::{Caller, Intent, KeyNames, RequestId, Settlement};
use weir_store::{Store, Tenant, now_ms};

/// A temporary folder, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("weir-ledger-{}", std::process::id()));
        std::fs::create_dir(&path).expect("the temporary directory can be written");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // If removal fails, the system cleans up.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn intent(number: u64) -> Arc<Intent> {
    let begun_ms = now_ms();
    let mut random = [0; 10];
    random[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    let key = KeyNames {
        key: format!("key_{:012x}", number % 20),
        team: "search".to_owned(),
        organisation: "example".to_owned(),
        user: "somebody@example.com".to_owned(),
    };
    Arc::new(Intent {
        id: RequestId::new(begun_ms, random),
        begun_ms,
        caller: Caller { tenant: Tenant([7; 16]), key: Some(Arc::new(key)) },
        route: "/v1/chat/completions".to_owned(),
        model: "gpt-4.1-mini-2025-04-14".to_owned(),
        upstream: "default".to_owned(),
        stream: true,
        action: "pass".to_owned(),
        zone: "green".to_owned(),
        attribution: weir_store::ledger::Attribution::default(),
        received_tokens: Some(1234),
        sent_tokens: Some(1234),
        max_output_tokens: Some(1000),
        plan_ms: Some(1),
        held_nano_usd: Some(1_000_000),
        held_tokens: Some(1500),
    })
}

async fn request(store: &Store, number: u64) {
    let intent = intent(number);
    store.open_request(&intent).await.expect("it can be written");
    let settlement = Settlement {
        outcome: "complete".to_owned(),
        status: Some(200),
        prompt_tokens: Some(1240),
        completion_tokens: Some(321),
        cached_tokens: Some(0),
        cost_nano_usd: Some(1_234_567),
        saved_nano_usd: Some(0),
        first_byte_ms: Some(400),
        total_ms: Some(2000),
        ..Settlement::default()
    };
    let is_new = store.settle_request(intent, settlement).await.expect("it can be written");
    assert!(is_new, "ids differ");
}

/// Returns the time of `at_once` callers for `rounds` requests each, on runtime threads as in the
/// server.
async fn time(store: &Store, count: &Arc<AtomicU64>, rounds: u64, at_once: u64) -> Duration {
    let began = Instant::now();
    let mut callers = JoinSet::new();
    for _ in 0..at_once {
        let (store, count) = (store.clone(), Arc::clone(count));
        callers.spawn(async move {
            for _ in 0..rounds {
                request(&store, count.fetch_add(1, Ordering::Relaxed)).await;
            }
        });
    }
    callers.join_all().await;
    began.elapsed()
}

fn ledger(criterion: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime");
    let folder = Folder::new();
    // The writer's thread ends with the store, before the runtime and the folder.
    let file = Store::open(&folder.0.join("weir.db")).expect("the folder can be written");
    let memory = Store::in_memory().expect("there is memory");
    let count = Arc::new(AtomicU64::new(0));
    let mut group = criterion.benchmark_group("open and settle");
    group.warm_up_time(Duration::from_secs(1));
    group.measurement_time(Duration::from_secs(5));
    let server = std::env::var("WEIR_TEST_POSTGRES").ok();
    let server = server.map(|url| Store::connect(&url).expect("the database is there"));
    let places = [("file", Some(&file)), ("memory", Some(&memory)), ("server", server.as_ref())];
    for (place, store) in places {
        let Some(store) = store else { continue };
        for at_once in [1, 64] {
            group.throughput(Throughput::Elements(at_once));
            group.bench_function(format!("{at_once} at once, {place}"), |bencher| {
                bencher
                    .iter_custom(|rounds| runtime.block_on(time(store, &count, rounds, at_once)));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, ledger);
criterion_main!(benches);
