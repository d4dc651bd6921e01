//! Weir killed at random instants, repeatedly, with requests in flight. Compares the journal with
//! the upstream's own log, which no kill touches.
//!
//! `WEIR_KILL_ROUNDS` sets the number of rounds, `WEIR_KILL_SEED` the seed of the random choices.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use weir_store::ledger::{Flags, MAX_ROWS, RequestQuery, RequestRow, UsageQuery};
use weir_store::{Store, now_ms};

use super::{post, tokens};
use crate::cli::{Serving, weir};
use crate::folder::Folder;
use crate::scripted_upstream::{Options, Seen, Server};

const ROUNDS: u64 = 12;
const LANES: u64 = 8;
/// Header that identifies requests in the upstream's log, with or without a body.
const NAME: &str = "x-request-name";

/// Random numbers from a seed (SplitMix64).
pub struct Random(pub u64);

impl Random {
    /// Returns a number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// Kinds of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Plain,
    Streamed,
    /// Its caller requests usage.
    Asked,
    /// Its caller requests other stream options.
    Declined,
    /// Held by the upstream in the middle, until another request has been answered.
    Held,
    /// Its caller leaves after the first bytes.
    Left,
    Embeddings,
}

const WAYS: [Way; 7] =
    [Way::Plain, Way::Streamed, Way::Asked, Way::Declined, Way::Embeddings, Way::Left, Way::Held];

/// Number of values in each embedding request.
const NUMBERS: u64 = 23;

/// Builds a request with this name.
fn request(name: &str, way: Way, words: u64) -> String {
    let script = match way {
        Way::Held => format!("x-upstream-fault: hold_after:{}\r\n", words / 2),
        _ => String::new(),
    };
    let headers = format!("{NAME}: {name}\r\nx-upstream-script: {{\"words\":{words}}}\r\n{script}");
    if way == Way::Embeddings {
        let numbers: Vec<u64> = (0..NUMBERS).collect();
        let body = json!({"model": name, "input": numbers}).to_string();
        return post("/v1/embeddings", &headers, &body);
    }
    let mut body = json!({
        "model": name,
        "messages": [{"role": "user", "content": "river ".repeat(words as usize)}],
        "stream": way != Way::Plain,
    });
    match way {
        Way::Asked => body["stream_options"] = json!({"include_usage": true}),
        Way::Declined => body["stream_options"] = json!({"include_usage": false}),
        _ => {}
    }
    post("/v1/chat/completions", &headers, &body.to_string())
}

/// Progress of one round's callers.
#[derive(Default, Clone, Copy)]
struct Progress {
    sent: u64,
    received_bytes: u64,
}

/// Moment at which a round's weir is killed.
#[derive(Debug)]
enum Instant {
    /// This many requests were sent.
    Sent(u64),
    /// This many have reached the upstream.
    Logged(u64),
    /// This many bytes of answers have arrived.
    Received(u64),
}

impl Instant {
    fn choose(random: &mut Random) -> Self {
        match random.below(3) {
            0 => Self::Sent(1 + random.below(60)),
            1 => Self::Logged(1 + random.below(60)),
            _ => Self::Received(1 + random.below(100_000)),
        }
    }

    async fn comes(&self, upstream: &Server, mut progress: watch::Receiver<Progress>) {
        let before = upstream.requests().len() as u64;
        match *self {
            Self::Logged(count) => {
                upstream.wait_for(|log| log.len() as u64 >= before + count).await;
            }
            Self::Sent(count) => {
                progress.wait_for(|so_far| so_far.sent >= count).await.expect("they go on");
            }
            Self::Received(bytes) => {
                let has_come = |so_far: &Progress| so_far.received_bytes >= bytes;
                progress.wait_for(has_come).await.expect("they go on");
            }
        }
    }
}

/// One of the concurrent callers.
struct Lane {
    address: SocketAddr,
    names: String,
    random: Random,
    may_be_held: bool,
    upstream: Arc<Server>,
    progress: watch::Sender<Progress>,
    /// Names of requests with complete answers.
    answered: Arc<Mutex<HashSet<String>>>,
}

impl Lane {
    /// Sends one request after another until nobody answers.
    async fn run(mut self) {
        for number in 0_u64.. {
            let ways = WAYS.len() - usize::from(!self.may_be_held);
            let way = WAYS[self.random.below(ways as u64) as usize];
            let words = 4 + self.random.below(120);
            let name = format!("{}-{number}", self.names);
            let request = request(&name, way, words);
            let Ok(mut stream) = TcpStream::connect(self.address).await else { return };
            if stream.write_all(request.as_bytes()).await.is_err() {
                return;
            }
            self.progress.send_modify(|so_far| so_far.sent += 1);
            let Some(received) = self.receive(&mut stream, way).await else { return };
            if way != Way::Left && is_whole(&received, way) {
                self.answered.lock().expect("nobody panics with it").insert(name);
            } else if way != Way::Left {
                return;
            }
            self.upstream.release();
        }
    }

    /// Reads until the end, or until the caller leaves; `None` without any answer.
    async fn receive(&self, stream: &mut TcpStream, way: Way) -> Option<Vec<u8>> {
        let mut received = Vec::new();
        // A reset is also an end; the bytes before it count.
        while let Ok(bytes @ 1..) = stream.read_buf(&mut received).await {
            self.progress.send_modify(|so_far| so_far.received_bytes += bytes as u64);
            if way == Way::Left && find(&received, b"data: ").is_some() {
                break;
            }
        }
        (!received.is_empty()).then_some(received)
    }
}

/// Whether a caller of this kind considers the received bytes complete.
fn is_whole(received: &[u8], way: Way) -> bool {
    let Some(end) = find(received, b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&received[..end]);
    assert!(head.starts_with("HTTP/1.1 200"), "{}", String::from_utf8_lossy(received));
    match way {
        Way::Plain | Way::Embeddings => {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.expect("a length").parse().expect("a number");
            received.len() == end + 4 + length
        }
        _ => find(received, b"data: [DONE]\n\n").is_some(),
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

fn serve(store: &Path, upstream: &Server) -> Serving {
    let mut command = weir(&["serve", "--listen", "127.0.0.1:0", "--upstream"]);
    command.arg(upstream.base_url()).env("WEIR_STORE__PATH", store);
    Serving::run(&mut command)
}

/// Runs callers against a weir and kills it; returns the names of completely answered requests.
async fn round(
    store: &Path,
    upstream: &Arc<Server>,
    round: u64,
    random: &mut Random,
) -> HashSet<String> {
    let serving = serve(store, upstream);
    let progress = watch::Sender::new(Progress::default());
    let answered = Arc::new(Mutex::new(HashSet::new()));
    let instant = Instant::choose(random);
    let mut lanes = JoinSet::new();
    let coming = instant.comes(upstream, progress.subscribe());
    for lane in 0..LANES {
        let lane = Lane {
            address: serving.address,
            names: format!("kill-{round}-{lane}"),
            random: Random(random.below(u64::MAX)),
            may_be_held: lane > 0,
            upstream: Arc::clone(upstream),
            progress: progress.clone(),
            answered: Arc::clone(&answered),
        };
        lanes.spawn(lane.run());
    }
    coming.await;
    // Drop sends SIGKILL and waits for the exit.
    drop(serving);
    while let Some(ended) = lanes.join_next().await {
        ended.expect("no lane panics");
    }
    upstream.wait_for(|log| log.iter().all(Seen::ended)).await;
    std::mem::take(&mut *answered.lock().expect("nobody panics with it"))
}

/// Returns all rows, by the times at which rounds began.
async fn all_rows(store: &Store, begun_ms: &[u64]) -> Vec<RequestRow> {
    let mut rows = Vec::new();
    for (index, from_ms) in begun_ms.iter().enumerate() {
        let until_ms = begun_ms.get(index + 1).copied();
        let query = RequestQuery { from_ms: Some(*from_ms), until_ms, ..Default::default() };
        let found = store.requests(query).await.expect("it can be read");
        assert!(found.len() < MAX_ROWS, "a round fits into one answer");
        rows.extend(found);
    }
    rows
}

/// Result of the comparison.
#[derive(Default)]
struct Tally {
    logged: usize,
    rows: usize,
    exact: usize,
    estimated: usize,
    /// Embeddings whose rows have no name, since only an answer contains it.
    unnamed: usize,
    /// Recorded, and killed before the upstream received them.
    never_arrived: usize,
    answered_whole: usize,
    exact_tokens: u64,
    estimated_tokens: u64,
    estimated_tokens_logged: u64,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { logged, rows, exact, estimated, unnamed, never_arrived, .. } = self;
        let Self { exact_tokens, estimated_tokens, estimated_tokens_logged, .. } = self;
        writeln!(f, "{logged} requests in the upstream's log, {rows} rows")?;
        writeln!(f, "{exact} rows as the upstream logged them, {exact_tokens} tokens")?;
        writeln!(
            f,
            "{estimated} estimated, {estimated_tokens} tokens where it logged {estimated_tokens_logged}"
        )?;
        writeln!(f, "{unnamed} of other routes whose use is unknown")?;
        writeln!(f, "{never_arrived} of these two had not reached the upstream")?;
        write!(f, "{} answers had come whole, each with an exact row", self.answered_whole)
    }
}

impl Tally {
    /// Compares the upstream's entry with its row.
    fn compare(&mut self, name: &str, seen: &Seen, row: &RequestRow, was_answered: bool) {
        let is_embedding = seen.path.ends_with("/embeddings");
        let logged = match is_embedding {
            true => [Some(NUMBERS), None, None],
            false => [seen.prompt_tokens, seen.cached_tokens, seen.completion_tokens],
        };
        let flags = row.settlement.flags;
        if !flags.any(Flags::ESTIMATED) {
            assert_eq!(tokens(row), logged, "{name}: {row:?}");
            assert!(!flags.any(Flags::USAGE_MISSING | Flags::NOT_SENT), "{name}: {row:?}");
            assert_eq!(row.settlement.status, Some(seen.status), "{name}: {row:?}");
            self.exact += 1;
            self.exact_tokens += sum(logged);
            return;
        }
        assert!(!was_answered, "{name} was answered whole before its row was written: {row:?}");
        let names: Vec<_> = flags.names().collect();
        println!(
            "{name}: {} [{}] row {:?}, log {logged:?}, difference {}",
            row.settlement.outcome,
            names.join(" "),
            tokens(row),
            sum(tokens(row)) as i64 - sum(logged) as i64,
        );
        self.estimated += 1;
        self.estimated_tokens += sum(tokens(row));
        self.estimated_tokens_logged += sum(logged);
    }
}

/// Prompt and completion.
fn sum(tokens: [Option<u64>; 3]) -> u64 {
    tokens[0].unwrap_or(0) + tokens[2].unwrap_or(0)
}

fn name_of(seen: &Seen) -> String {
    let name = seen.headers.get(NAME).expect("weir passes it on");
    name.to_str().expect("ASCII").to_owned()
}

/// Compares the whole log with all rows.
fn compare(log: &[Seen], rows: &[RequestRow], answered: &HashSet<String>) -> Tally {
    let mut by_name: HashMap<&str, Vec<&RequestRow>> = HashMap::new();
    for row in rows {
        by_name.entry(&row.model).or_default().push(row);
    }
    let unnamed = by_name.remove("").unwrap_or_default();
    for row in &unnamed {
        assert_eq!(row.route, "embeddings", "{row:?}");
        assert_eq!(row.settlement.outcome, "killed", "{row:?}");
        assert!(row.settlement.flags.any(Flags::USAGE_MISSING), "{row:?}");
    }
    let mut tally = Tally {
        logged: log.len(),
        rows: rows.len(),
        unnamed: unnamed.len(),
        answered_whole: answered.len(),
        ..Tally::default()
    };
    let mut without_name = 0;
    for seen in log {
        let name = name_of(seen);
        match by_name.remove(name.as_str()).as_deref() {
            Some([row]) => tally.compare(&name, seen, row, answered.contains(&name)),
            Some(several) => panic!("{name} has several rows: {several:#?}"),
            None => {
                assert!(seen.path.ends_with("/embeddings"), "{name} has no row");
                assert!(!answered.contains(&name), "{name} was answered and has no row");
                println!("{name}: killed [usage_missing] row unknown, log {NUMBERS}");
                without_name += 1;
            }
        }
    }
    assert!(without_name <= unnamed.len(), "{without_name} of {}", unnamed.len());
    tally.never_arrived = unnamed.len() - without_name;
    for (name, rows) in by_name {
        // Such a request cannot be distinguished from one that has arrived, so it is counted by
        // rule.
        let [row] = rows.as_slice() else { panic!("{name} has several rows: {rows:#?}") };
        assert_eq!(row.settlement.outcome, "killed", "{name}: {row:?}");
        assert!(row.settlement.flags.any(Flags::ESTIMATED), "{name}: {row:?}");
        println!("{name}: killed before it arrived, row {:?}", tokens(row));
        tally.never_arrived += 1;
        tally.estimated += 1;
        tally.estimated_tokens += sum(tokens(row));
    }
    tally
}

fn told(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_is_lost_or_counted_twice_by_a_kill() {
    let rounds = told("WEIR_KILL_ROUNDS").unwrap_or(ROUNDS);
    let seed = told("WEIR_KILL_SEED").unwrap_or_else(now_ms);
    println!("WEIR_KILL_ROUNDS={rounds} WEIR_KILL_SEED={seed}");
    let folder = Folder::new();
    let path = folder.file("weir.db");
    let upstream = Server::start(Options::default()).await.expect("a free port");
    let upstream = Arc::new(upstream);
    let mut random = Random(seed);
    let (mut answered, mut begun_ms) = (HashSet::new(), Vec::new());
    for number in 0..rounds {
        begun_ms.push(now_ms());
        answered.extend(round(&path, &upstream, number, &mut random).await);
    }
    // Requests that the last kill left open are settled before the next weir listens.
    let last = serve(&path, &upstream);
    last.signal("-TERM");
    assert_eq!(last.ended(), Some(0));

    let store = Store::open(&path).expect("it is sound");
    assert_eq!(store.orphans(9).await, Ok(Vec::new()));
    let rows = all_rows(&store, &begun_ms).await;
    let tally = compare(&upstream.requests(), &rows, &answered);
    println!("{tally}");
    assert_eq!(tally.exact + tally.estimated + tally.unnamed, rows.len());
    assert!(tally.exact > 0 && tally.answered_whole > 0, "it served at all");

    let totals = store.usage(UsageQuery::default()).await.expect("it can be read")[0].totals;
    let sum = |index: usize| rows.iter().filter_map(|row| tokens(row)[index]).sum::<u64>();
    assert_eq!(totals.requests, rows.len() as u64, "each is in the sums once");
    assert_eq!((totals.prompt_tokens, totals.completion_tokens), (sum(0), sum(2)));
    let sound: String = rusqlite::Connection::open(&path)
        .and_then(|file| file.query_row("PRAGMA integrity_check", [], |row| row.get(0)))
        .expect("it can be read");
    assert_eq!(sound, "ok");
}
