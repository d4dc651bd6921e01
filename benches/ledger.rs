//! Cost of the journal per request, its intent and its settlement, for one caller and for 64
//! concurrent ones. Measured in a file in the temporary folder, in memory, and in the PostgreSQL
//! database in `WEIR_TEST_POSTGRES`, if set; its tables stay there. One iteration of `64 at once`
//! is 64 requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::Instant;
use weir_store::Store;

#[path = "support/journal.rs"]
mod journal;

use journal::{Folder, intent, settlement};

async fn request(store: &Store, number: u64) {
    let intent = intent(number);
    store.open_request(&intent).await.expect("it can be written");
    let is_new = store.settle_request(intent, settlement()).await.expect("it can be written");
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
    let folder = Folder::new("ledger");
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
