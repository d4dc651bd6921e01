//! The request log against SQLite alone: the same intents and settlements, once through the store
//! and once straight into the same tables by one thread that commits everything queued as one
//! transaction (SQLite's WAL, `synchronous = normal`, as the store uses them). Both take turns in
//! each round, and ratios are computed within a round. `docs/internals/wal.md` has the results.
//!
//! `cargo bench --bench wal [-- --rounds 12]`; needs Linux (`/proc`).

#![expect(clippy::disallowed_methods, reason = "a bench times itself")]

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rusqlite::{Connection, params};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use weir_store::Store;
use weir_store::ledger::{DAY_MS, Intent, RequestQuery, UsageQuery};

#[path = "support/journal.rs"]
mod journal;

use journal::{Folder, intent, settlement};

/// As in the store's own writer.
const QUEUE_LENGTH: usize = 256;
const MAX_GROUP: usize = 128;
/// A writer of another process: how long it holds the lock, and how long it does not.
const LOCK_TIME: Duration = Duration::from_millis(20);
const PAUSE: Duration = Duration::from_millis(60);

/// A record for the writer's thread, with the sender for its commit.
enum Work {
    Open(Arc<Intent>, oneshot::Sender<()>),
    Settle(Arc<Intent>, oneshot::Sender<()>),
}

/// One thread that writes all queued records as one transaction.
#[derive(Clone)]
struct Direct(mpsc::Sender<Work>);

impl Direct {
    fn start(path: &Path) -> rusqlite::Result<Self> {
        let connection = Connection::open(path)?;
        connection.pragma_update(None, "synchronous", "normal")?;
        connection.busy_timeout(Duration::from_secs(5))?;
        connection.set_prepared_statement_cache_capacity(64);
        let (queue, mut waiting) = mpsc::channel(QUEUE_LENGTH);
        std::thread::spawn(move || {
            while let Some(first) = waiting.blocking_recv() {
                let mut group = vec![first];
                while group.len() < MAX_GROUP
                    && let Ok(more) = waiting.try_recv()
                {
                    group.push(more);
                }
                write_group(&connection, &group).expect("the file can be written");
                for work in group {
                    let (Work::Open(_, reply) | Work::Settle(_, reply)) = work;
                    let _ = reply.send(());
                }
            }
        });
        Ok(Self(queue))
    }

    async fn write(&self, work: impl FnOnce(oneshot::Sender<()>) -> Work) {
        let (reply, committed) = oneshot::channel();
        self.0.send(work(reply)).await.expect("the thread lives");
        committed.await.expect("the thread lives");
    }
}

fn write_group(connection: &Connection, group: &[Work]) -> rusqlite::Result<()> {
    connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
    let mut settled: HashMap<&str, (&Intent, i64)> = HashMap::new();
    for work in group {
        match work {
            Work::Open(intent, _) => open(connection, intent)?,
            Work::Settle(intent, _) => {
                settle(connection, intent)?;
                let key = intent.caller.key.as_deref().expect("it has one");
                settled.entry(&key.key).or_insert((intent, 0)).1 += 1;
            }
        }
    }
    for (intent, count) in settled.into_values() {
        add(connection, intent, count)?;
    }
    connection.prepare_cached("COMMIT")?.execute([]).map(drop)
}

fn open(connection: &Connection, intent: &Intent) -> rusqlite::Result<()> {
    let key = intent.caller.key.as_deref().expect("it has one");
    let facts = serde_json::json!({
        "tenant": intent.caller.tenant.0,
        "key": { "key": key.key, "team": key.team, "organisation": key.organisation, "user": key.user },
        "route": intent.route, "model": intent.model, "upstream": intent.upstream,
        "stream": intent.stream, "action": intent.action, "zone": intent.zone,
        "received_tokens": intent.received_tokens, "sent_tokens": intent.sent_tokens,
        "max_output_tokens": intent.max_output_tokens, "plan_ms": intent.plan_ms,
        "held_nano_usd": intent.held_nano_usd, "held_tokens": intent.held_tokens,
    });
    connection
        .prepare_cached("INSERT OR REPLACE INTO intent VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![intent.id.0, [9_u8; 16], intent.begun_ms as i64, facts.to_string()])
        .map(drop)
}

fn settle(connection: &Connection, intent: &Intent) -> rusqlite::Result<()> {
    let key = intent.caller.key.as_deref().expect("it has one");
    let ended = settlement();
    connection
        .prepare_cached(
            "INSERT OR IGNORE INTO request VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11,
             ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26, ?27, ?28)",
        )?
        .execute(params![
            intent.id.0,
            intent.begun_ms as i64,
            intent.caller.tenant.0,
            key.key,
            key.team,
            key.organisation,
            key.user,
            intent.route,
            intent.model,
            intent.upstream,
            intent.stream,
            ended.status,
            ended.outcome,
            intent.action,
            intent.zone,
            1234,
            1234,
            1240,
            321,
            0,
            None::<i64>,
            None::<i64>,
            1_234_567,
            0,
            0,
            1,
            400,
            2000,
        ])?;
    connection.prepare_cached("DELETE FROM intent WHERE id = ?1")?.execute([intent.id.0]).map(drop)
}

/// Adds `count` requests to the daily totals and to the typical output of the model.
fn add(connection: &Connection, intent: &Intent, count: i64) -> rusqlite::Result<()> {
    let key = intent.caller.key.as_deref().expect("it has one");
    connection
        .prepare_cached(
            "INSERT INTO usage_day VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 0, 0, 0, 0,
             ?8 * 1234, ?8 * 1234, ?8 * 1240, ?8 * 321, 0, 0, 0, ?8 * 1234567, 0)
             ON CONFLICT DO UPDATE SET requests = requests + excluded.requests,
             received_tokens = received_tokens + excluded.received_tokens,
             sent_tokens = sent_tokens + excluded.sent_tokens,
             prompt_tokens = prompt_tokens + excluded.prompt_tokens,
             completion_tokens = completion_tokens + excluded.completion_tokens,
             cost_nano_usd = cost_nano_usd + excluded.cost_nano_usd",
        )?
        .execute(params![
            (intent.begun_ms / DAY_MS) as i64,
            intent.caller.tenant.0,
            key.key,
            key.team,
            key.organisation,
            key.user,
            intent.model,
            count,
        ])?;
    connection
        .prepare_cached(
            "INSERT INTO learned_output VALUES (?1, ?2, ?2 * 321) ON CONFLICT DO UPDATE SET
             requests = excluded.requests + iif(requests < 512, requests, requests / 2),
             completion_tokens = excluded.completion_tokens
                 + iif(requests < 512, completion_tokens, completion_tokens / 2)",
        )?
        .execute(params![intent.model, count])
        .map(drop)
}

/// One of the two programs to compare.
#[derive(Clone)]
enum Subject {
    Log(Store),
    Direct(Direct),
}

impl Subject {
    /// Opens and settles a request; returns the times of both.
    async fn request(&self, number: u64) -> [Duration; 2] {
        let intent = intent(number);
        let began = Instant::now();
        match self {
            Self::Log(store) => {
                store.open_request(&intent).await.expect("it can be written");
                let opened = began.elapsed();
                let is_new = store.settle_request(intent, settlement()).await;
                assert!(is_new.expect("it can be written"), "ids differ");
                [opened, began.elapsed() - opened]
            }
            Self::Direct(direct) => {
                direct.write(|reply| Work::Open(Arc::clone(&intent), reply)).await;
                let opened = began.elapsed();
                direct.write(|reply| Work::Settle(intent, reply)).await;
                [opened, began.elapsed() - opened]
            }
        }
    }

    /// Waits until all requests are in the tables.
    async fn finish(&self) {
        if let Self::Log(store) = self {
            store.usage(UsageQuery::default()).await.expect("it can be read");
        }
    }
}

/// A load: callers at once, requests of each, and whether another process writes meanwhile.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    callers: u64,
    requests: u64,
    pause: Duration,
    is_contended: bool,
}

const LOADS: [Load; 3] = [
    Load {
        name: "1 caller",
        callers: 1,
        requests: 1000,
        pause: Duration::ZERO,
        is_contended: false,
    },
    Load {
        name: "64 callers",
        callers: 64,
        requests: 60,
        pause: Duration::ZERO,
        is_contended: false,
    },
    Load {
        name: "8 callers, another process writes",
        callers: 8,
        requests: 60,
        pause: Duration::from_millis(10),
        is_contended: true,
    },
];

/// Result of one load on one subject.
struct Measured {
    wall_us: f64,
    cpu_us: f64,
    /// Times of opening requests, sorted.
    open_us: Vec<f64>,
}

/// CPU time of this process, over all threads.
fn cpu_ns() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux");
    tasks
        .flatten()
        .filter_map(|task| std::fs::read_to_string(task.path().join("schedstat")).ok())
        .filter_map(|text| text.split(' ').next()?.parse::<u64>().ok())
        .sum()
}

async fn measure(subject: &Subject, load: Load, path: &Path, count: &Arc<AtomicU64>) -> Measured {
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let path = path.to_owned();
    let other = load.is_contended.then(|| {
        std::thread::spawn(move || {
            let connection = Connection::open(path).expect("it is there");
            connection.busy_timeout(Duration::from_secs(5)).expect("a number");
            let disconnected = Err(std::sync::mpsc::RecvTimeoutError::Disconnected);
            while stopped.recv_timeout(PAUSE) != disconnected {
                connection.execute_batch("BEGIN IMMEDIATE").expect("it becomes free");
                let _ = stopped.recv_timeout(LOCK_TIME);
                connection.execute_batch("COMMIT").expect("it was begun");
            }
        })
    });
    let (began, cpu) = (Instant::now(), cpu_ns());
    let mut callers = JoinSet::new();
    for _ in 0..load.callers {
        let (subject, count) = (subject.clone(), Arc::clone(count));
        callers.spawn(async move {
            let mut times = Vec::new();
            for _ in 0..load.requests {
                let [opened, _] = subject.request(count.fetch_add(1, Ordering::Relaxed)).await;
                times.push(opened.as_secs_f64() * 1e6);
                if !load.pause.is_zero() {
                    tokio::time::sleep(load.pause).await;
                }
            }
            times
        });
    }
    let mut open_us: Vec<f64> = callers.join_all().await.into_iter().flatten().collect();
    let wall = began.elapsed();
    subject.finish().await;
    let cpu = cpu_ns().saturating_sub(cpu);
    drop(stop);
    if let Some(other) = other {
        other.join().expect("it does not panic");
    }
    open_us.sort_by(f64::total_cmp);
    let requests = (load.callers * load.requests) as f64;
    Measured {
        wall_us: wall.as_secs_f64() * 1e6 / requests,
        cpu_us: cpu as f64 / 1e3 / requests,
        open_us,
    }
}

/// Median of `values`, with the quartiles.
fn quartiles(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    let at = |share: f64| values[((values.len() - 1) as f64 * share).round() as usize];
    format!("{:.2} ({:.2}–{:.2})", at(0.5), at(0.25), at(0.75))
}

fn share(sorted: &[f64], share: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}

fn main() {
    let mut arguments = std::env::args().skip_while(|argument| argument != "--rounds");
    let rounds = arguments.nth(1).and_then(|text| text.parse().ok()).unwrap_or(12);
    let runtime = Runtime::new().expect("a runtime");
    let folder = Folder::new("wal");
    let paths = ["log.db", "direct.db"].map(|name| folder.0.join(name));
    let log = Store::open(&paths[0]).expect("the folder can be written");
    // Creates the tables.
    drop(Store::open(&paths[1]).expect("the folder can be written"));
    let direct = Direct::start(&paths[1]).expect("the tables are there");
    let subjects = [Subject::Log(log.clone()), Subject::Direct(direct)];
    let count = Arc::new(AtomicU64::new(0));
    println!("direct ÷ log, medians and quartiles of {rounds} rounds\n");
    println!(
        "| load | time per request | CPU per request | opening, p50 | opening, p99 | log, p50/p99 in µs | direct, p50/p99 in µs |"
    );
    println!("|---|---|---|---|---|---|---|");
    for load in LOADS {
        let mut ratios: [Vec<f64>; 4] = Default::default();
        let mut all: [Vec<f64>; 2] = Default::default();
        // The first round, in which caches fill, is discarded.
        for round in 0..=rounds {
            let mut measured = [None, None];
            for turn in 0..2 {
                let which = (turn + round) % 2;
                let one = measure(&subjects[which], load, &paths[which], &count);
                measured[which] = Some(runtime.block_on(one));
            }
            let [Some(log), Some(direct)] = measured else { unreachable!("both had a turn") };
            if round == 0 {
                continue;
            }
            let p = |one: &Measured, of: f64| share(&one.open_us, of);
            for (ratio, value) in ratios.iter_mut().zip([
                direct.wall_us / log.wall_us,
                direct.cpu_us / log.cpu_us,
                p(&direct, 0.5) / p(&log, 0.5),
                p(&direct, 0.99) / p(&log, 0.99),
            ]) {
                ratio.push(value);
            }
            all[0].extend(log.open_us);
            all[1].extend(direct.open_us);
        }
        let [log, direct] = all.map(|mut times| {
            times.sort_by(f64::total_cmp);
            format!("{:.0}/{:.0}", share(&times, 0.5), share(&times, 0.99))
        });
        let [wall, cpu, p50, p99] = ratios.map(quartiles);
        println!("| {} | {wall} | {cpu} | {p50} | {p99} | {log} | {direct} |", load.name);
    }
    let rows = |path: &Path| {
        let sql = "SELECT count(*) FROM request";
        let connection = Connection::open(path).expect("it is there");
        connection.query_row(sql, [], |row| row.get::<_, i64>(0)).expect("a number")
    };
    // Both have written the same number of rows.
    assert_eq!(rows(&paths[0]), rows(&paths[1]));
    let limited = RequestQuery { limit: Some(1), ..RequestQuery::default() };
    let newest = runtime.block_on(log.requests(limited)).expect("it can be read");
    assert_eq!(newest.len(), 1);
}
