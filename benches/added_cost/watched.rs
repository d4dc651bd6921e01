//! Cost of being watched: weir whose metrics, live requests and state are read each second, as by
//! Prometheus and an open dashboard, against the same weir without readers. Both take turns for some
//! seconds of load each, so that every turn contains the same number of readings.

use std::error::Error;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::load::{self, Batch};
use crate::report::Spread;
use crate::{Case, Target, metered};

/// Load of one turn.
const TURN: Duration = Duration::from_secs(4);
const INTERVAL: Duration = Duration::from_secs(1);
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Highest ratio that the project accepts.
const GOAL_RATIO: f64 = 1.03;

/// A weir with an admin listener.
pub struct Observed {
    pub target: Target,
    pub admin: SocketAddr,
    pub token: String,
}

#[derive(Serialize)]
pub struct Report {
    case: String,
    rounds: usize,
    /// CPU time per request, without readers and with them.
    unwatched_us: Option<Spread>,
    watched_us: Option<Spread>,
    /// Within each round.
    ratio: Option<Spread>,
    requests: usize,
    readings: usize,
    bytes_read: usize,
    failures: Vec<String>,
}

/// One turn's CPU time per request in microseconds, and its readings.
#[derive(Default)]
struct Turn {
    cpu_us: f64,
    requests: usize,
    readings: usize,
    bytes_read: usize,
    failures: Vec<String>,
}

/// Measures `cases`.
pub fn measure(
    upstream: SocketAddr,
    cases: &[&Case],
    rounds: usize,
) -> Result<Vec<Report>, Box<dyn Error>> {
    let observed = metered::start_observed(upstream)?;
    let mut reports = Vec::new();
    for case in cases {
        eprintln!("measuring: {}", case.name);
        let mut turns: [Vec<Turn>; 2] = Default::default();
        let mut seed = 0;
        // The first round is discarded: the process grows to the size of the case in it.
        for round in 0..=rounds {
            for step in 0..2 {
                let is_watched = (round + step) % 2 == 1;
                let turn = turn(&observed, case, is_watched, &mut seed)?;
                if round > 0 {
                    turns[usize::from(is_watched)].push(turn);
                }
            }
        }
        reports.push(report(case, rounds, &turns));
    }
    Ok(reports)
}

/// Sends load for one turn.
fn turn(observed: &Observed, case: &Case, is_watched: bool, seed: &mut usize) -> io::Result<Turn> {
    let (ended, end) = mpsc::channel();
    thread::scope(|scope| {
        let reader = is_watched.then(|| scope.spawn(move || read_pages(observed, &end)));
        let mut turn = Turn::default();
        let begun = Instant::now();
        let mut cpu_ns = 0.0;
        while begun.elapsed() < TURN {
            *seed += 1;
            let batch: Batch = case.batch(*seed);
            let target = &observed.target;
            let round = load::run(target.address, &target.credential, target.pid(), &batch);
            turn.requests += round.samples.len();
            cpu_ns += round.cpu_ns_per_request.unwrap_or(f64::NAN) * round.samples.len() as f64;
            turn.failures.extend(round.failures);
        }
        turn.cpu_us = cpu_ns / turn.requests as f64 / 1e3;
        drop(ended);
        if let Some(reader) = reader {
            let read = reader.join().expect("a reader reports errors and does not panic");
            (turn.readings, turn.bytes_read) = read?;
        }
        Ok(turn)
    })
}

/// Reads the pages each second until the turn has ended; returns the number of readings and their
/// bytes.
fn read_pages(observed: &Observed, end: &Receiver<()>) -> io::Result<(usize, usize)> {
    let (mut readings, mut bytes, mut after) = (0, 0, 0_u64);
    loop {
        let live = format!("/admin/v1/live?after={after}");
        for path in ["/metrics", "/admin/v1/status", &live] {
            let page = get(observed, path)?;
            bytes += page.len();
            if path == live {
                let next = serde_json::from_str::<serde_json::Value>(&page)?["next"].as_u64();
                after = next.ok_or_else(|| io::Error::other("the live page has no next"))?;
            }
        }
        readings += 1;
        match end.recv_timeout(INTERVAL) {
            Err(RecvTimeoutError::Timeout) => {}
            _ => return Ok((readings, bytes)),
        }
    }
}

/// Returns the body of a page of the admin listener.
fn get(observed: &Observed, path: &str) -> io::Result<String> {
    let Observed { admin, token, .. } = observed;
    let mut stream = TcpStream::connect(admin)?;
    stream.set_read_timeout(Some(READ_TIMEOUT))?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nhost: {admin}\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200") => Ok(body.to_owned()),
        _ => Err(io::Error::other(format!("{path}: {answer:.300}"))),
    }
}

fn report(case: &Case, rounds: usize, turns: &[Vec<Turn>; 2]) -> Report {
    let [unwatched, watched] = turns;
    let spread = |turns: &[Turn]| Spread::of(turns.iter().map(|turn| turn.cpu_us));
    let pairs = unwatched.iter().zip(watched);
    let all = || unwatched.iter().chain(watched);
    Report {
        case: case.name.to_owned(),
        rounds,
        unwatched_us: spread(unwatched),
        watched_us: spread(watched),
        ratio: Spread::of(pairs.map(|(without, with)| with.cpu_us / without.cpu_us)),
        requests: all().map(|turn| turn.requests).sum(),
        readings: all().map(|turn| turn.readings).sum(),
        bytes_read: all().map(|turn| turn.bytes_read).sum(),
        failures: all().flat_map(|turn| turn.failures.clone()).collect(),
    }
}

/// Prints the table.
pub fn print_table(reports: &[Report]) {
    println!(
        "{:<24} {:>14} {:>12} {:>22} {:>9} {:>9} {:>10}",
        "case", "unwatched µs", "watched µs", "ratio", "requests", "readings", "KB read"
    );
    for report in reports {
        let Report { case, unwatched_us, watched_us, ratio, requests, readings, .. } = report;
        let median = |spread: &Option<Spread>| spread.map_or(f64::NAN, |spread| spread.median);
        let ratio = ratio.map_or_else(String::new, |ratio| {
            let Spread { median, lower_quartile, upper_quartile } = ratio;
            format!("{median:.3} ({lower_quartile:.3}–{upper_quartile:.3})")
        });
        println!(
            "{case:<24} {:>14.1} {:>12.1} {ratio:>22} {requests:>9} {readings:>9} {:>10.0}",
            median(unwatched_us),
            median(watched_us),
            report.bytes_read as f64 / 1e3
        );
        if let Some(failure) = report.failures.first() {
            println!("    FAILED {}: {failure:.300}", report.failures.len());
        }
    }
    println!("goal: at most {GOAL_RATIO}");
}
