//! Time of a month's usage query on a journal of ten million requests. Fills a store by SQL,
//! through the tables that weir creates itself, queries it, and deletes it. It does not judge: it
//! prints times and exits with 0.

#![expect(clippy::disallowed_methods, reason = "a bench times itself")]

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use rusqlite::{Connection, params};
use tokio::runtime::Runtime;
use weir_store::Store;
use weir_store::ledger::{Column, DAY_MS, UsageQuery};

/// Rows per transaction.
const ROWS_AT_ONCE: u64 = 500_000;
/// First day, counted from 1970: 2024-10-04.
const FIRST_DAY: u64 = 20_000;
const DAYS: u64 = 90;
const MONTH_DAYS: u64 = 30;
/// Attempts to delete the store.
const REMOVALS: usize = 50;
const BETWEEN_REMOVALS: Duration = Duration::from_millis(20);
/// Repetitions of each query.
const ROUNDS: usize = 5;

#[derive(Parser)]
#[command(about = "Time of a month's usage query on a large journal")]
struct Flags {
    #[arg(long, default_value_t = 10_000_000)]
    rows: u64,
    /// Number of keys, in teams of ten.
    #[arg(long, default_value_t = 500)]
    keys: u64,
    #[arg(long, default_value_t = 10)]
    models: u64,
    /// Folder for the store, which is created in a subfolder and deleted at the end.
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Passed by `cargo bench` to every bench.
    #[arg(long, hide = true)]
    bench: bool,
}

/// A temporary folder, removed on drop.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // The store's threads may still close files in it, which then disappear during the removal.
        // If files remain, their removal is left to the user.
        for _ in 0..REMOVALS {
            if fs::remove_dir_all(&self.0).is_ok() {
                return;
            }
            thread::sleep(BETWEEN_REMOVALS);
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let flags = Flags::parse();
    let parent = flags.folder.clone().unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into());
    let folder = Folder(parent.join(format!("weir-usage-{}", std::process::id())));
    fs::create_dir_all(&folder.0)?;
    let path = folder.0.join("weir.db");
    let runtime = Runtime::new()?;
    // weir creates the tables.
    drop(Store::open(&path)?);
    let began = Instant::now();
    fill(&path, &flags)?;
    let sums = add_up(&path)?;
    println!(
        "{} rows over {DAYS} days, {sums} daily totals, {:.2} GB, filled in {:.0} s",
        flags.rows,
        fs::metadata(&path)?.len() as f64 / 1e9,
        began.elapsed().as_secs_f64()
    );
    let store = Store::open(&path)?;
    let from_day = FIRST_DAY + DAYS - MONTH_DAYS;
    let month = UsageQuery {
        from_day: Some(from_day),
        until_day: Some(FIRST_DAY + DAYS),
        ..UsageQuery::default()
    };
    for (name, by) in [
        ("in one row", vec![]),
        ("by day", vec![Column::Day]),
        ("by team", vec![Column::Team]),
        ("by model", vec![Column::Model]),
        ("by key", vec![Column::Key]),
        ("by day, key and model", vec![Column::Day, Column::Key, Column::Model]),
    ] {
        let query = UsageQuery { by, ..month.clone() };
        let (mut times_ms, mut rows, mut requests) = (Vec::new(), 0, 0);
        for _ in 0..ROUNDS {
            let began = Instant::now();
            let told = runtime.block_on(store.usage(query.clone()))?;
            times_ms.push(began.elapsed().as_secs_f64() * 1e3);
            (rows, requests) =
                (told.len(), told.iter().map(|row| row.totals.requests).sum::<u64>());
        }
        let first_ms = times_ms[0];
        times_ms.sort_by(f64::total_cmp);
        println!(
            "month {name:<22} {rows:>6} rows, {requests:>8} requests: first {first_ms:>5.0} ms, \
             median of {ROUNDS} {:>5.0} ms",
            times_ms[ROUNDS / 2]
        );
    }
    for by in ["model", "key", "day,key,model"] {
        command(&path, by)?;
    }
    Ok(())
}

/// Times `weir usage` as a user runs it, from start to exit.
fn command(path: &Path, by: &str) -> Result<(), Box<dyn Error>> {
    let began = Instant::now();
    let output = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["usage", "--month", "2024-11", "--csv", "--by", by, "--store"])
        .arg(path)
        .output()?;
    let time_ms = began.elapsed().as_secs_f64() * 1e3;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    let lines = output.stdout.iter().filter(|byte| **byte == b'\n').count();
    println!("weir usage --month 2024-11 --by {by:<14} {lines:>6} lines: {time_ms:>5.0} ms");
    Ok(())
}

/// Inserts the rows of requests in order, evenly over the days.
fn fill(path: &Path, flags: &Flags) -> Result<(), Box<dyn Error>> {
    let mut connection = Connection::open(path)?;
    let first_ms = FIRST_DAY * DAY_MS;
    let mut written = 0;
    while written < flags.rows {
        let until = flags.rows.min(written + ROWS_AT_ONCE);
        let transaction = connection.transaction()?;
        transaction.execute(
            "WITH RECURSIVE number (n) AS
             (SELECT ?1 UNION ALL SELECT n + 1 FROM number WHERE n + 1 < ?2),
             moment (n, begun_ms, key) AS
             (SELECT n, ?3 + n * ?4 / ?5, (n * 2654435761 >> 8) % ?6 FROM number)
             INSERT INTO request
             SELECT unhex(printf('%012x%020x', begun_ms, n)), begun_ms,
             unhex(printf('%032x', key / 10)), printf('key_%012x', key),
             printf('team-%d', key / 10), 'example', printf('user-%d@example.com', key),
             '/v1/chat/completions', printf('model-%d-2025-04-14', n % ?7), 'default', n & 1, 200,
             'complete', 'pass', 'green', 1234 + n % 1000, 1234 + n % 1000, 1240 + n % 1000,
             321 + n % 100, 0, NULL, NULL, 1234567 + n, 0, 0, 1, 400, 2000
             FROM moment",
            params![
                written as i64,
                until as i64,
                first_ms as i64,
                (DAYS * DAY_MS) as i64,
                flags.rows as i64,
                flags.keys as i64,
                flags.models as i64
            ],
        )?;
        transaction.commit()?;
        written = until;
        eprintln!("{written} rows");
    }
    Ok(())
}

/// Adds the rows up by day into the totals that the journal would have kept; returns their number.
fn add_up(path: &Path) -> Result<u64, Box<dyn Error>> {
    let connection = Connection::open(path)?;
    let sums = connection.execute(
        "INSERT INTO usage_day
         SELECT begun_ms / ?1, tenant, key, team, organisation, user, model, count(*), 0, 0, 0, 0,
         sum(received_tokens), sum(sent_tokens), sum(prompt_tokens), sum(completion_tokens),
         sum(cached_tokens), 0, 0, sum(cost_nano_usd), sum(saved_nano_usd)
         FROM request GROUP BY 1, 2, 3, 4, 5, 6, 7",
        [DAY_MS as i64],
    )?;
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    Ok(sums as u64)
}
