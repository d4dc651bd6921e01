//! Weirs killed at random while Redis is emptied, under load, until a budget is exhausted: spending
//! stays within the budget, nothing stays held, and a raised limit lets requests in again.
//!
//! `WEIR_RACE_ROUNDS` sets the number of rounds, `WEIR_RACE_SEED` the seed of the first.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use weir_store::Store;
use weir_store::budget::{Measure, NanoUsd, Scope};
use weir_store::budgets::{Spent, SpentQuery};
use weir_store::ledger::{Flags, RequestRow};

use super::setting::{HEADER, Shared};
use crate::budgeted::race::rounds;
use crate::budgeted::setting::{chat, sum};
use crate::cli::Serving;
use crate::eventually::eventually;
use crate::ledger::kill::Random;
use crate::scripted_upstream::Server;

const BUDGET: &str = "all/usd/total";
/// Enough for about 400 requests.
const LIMIT_USD: &str = "0.025";
/// Price of the model in use, in nano-dollars per prompt token and per output token.
const PRICES: [u64; 2] = [150, 600];
const INSTANCES: usize = 3;
const LANES: u64 = 24;
/// Approximate number of requests at the upstream when each kind of trouble begins.
const TROUBLE_AT: [u64; 4] = [80, 200, 300, 370];
const SETTINGS: [(&str, &str); 2] =
    [("WEIR_BUDGETS__CLAMP", "output"), ("WEIR_BUDGETS__WAIT_MS", "3000")];
/// Header that identifies requests in the upstream's log: one whose connection broke may be there
/// twice.
const NAME: &str = "x-request-name";
/// Interval between queries of the journal.
const WATCH_INTERVAL: Duration = Duration::from_millis(20);
/// Much longer than other instances need to settle the requests of a killed weir.
const WAIT_LIMIT: Duration = Duration::from_secs(120);
/// Interval at which held answers are released if no lane releases them.
const RELEASE_INTERVAL: Duration = Duration::from_millis(100);

/// State shared by the lanes of a round.
struct Race {
    upstream: Arc<Server>,
    addresses: Mutex<Vec<SocketAddr>>,
    /// Whether a lane was refused because the budget is exhausted.
    is_over: watch::Sender<bool>,
}

impl Race {
    fn addresses(&self) -> MutexGuard<'_, Vec<SocketAddr>> {
        self.addresses.lock().expect("no holder panics")
    }

    fn is_over(&self) -> bool {
        *self.is_over.borrow()
    }
}

/// Sends one request; returns the answer, empty if there was none.
async fn send(address: SocketAddr, request: &str, leaves: bool) -> String {
    let mut received = Vec::new();
    if let Ok(mut stream) = TcpStream::connect(address).await
        && stream.write_all(request.as_bytes()).await.is_ok()
        && !leaves
    {
        let _ = stream.read_to_end(&mut received).await;
    }
    String::from_utf8_lossy(&received).into_owned()
}

/// Sends requests until the budget is exhausted. The upstream holds back some answers of lanes with
/// an odd number until a lane with an even number releases them.
async fn lane(lane: u64, mut random: Random, race: Arc<Race>) {
    for number in 0.. {
        let address = {
            let addresses = race.addresses();
            addresses[random.below(addresses.len() as u64) as usize]
        };
        let is_held = lane % 2 == 1 && random.below(2) == 0 && !race.is_over();
        let fault = match random.below(16) {
            _ if is_held => "x-upstream-fault: hold_head\r\n",
            0 => "x-upstream-fault: status:500\r\n",
            _ => "",
        };
        // Most callers set a limit well above the length of their answers.
        let mut members = json!({"stream": random.below(2) == 0});
        if random.below(8) > 0 {
            members["max_tokens"] = json!(200);
        }
        let headers = format!("{HEADER}{fault}{NAME}: {lane}-{number}\r\n");
        let request = chat(&headers, 20 + random.below(160), members);
        let request = request.replacen("host:", "connection: close\r\nhost:", 1);
        let answer = send(address, &request, random.below(20) == 0).await;
        if lane.is_multiple_of(2) && random.below(4) == 0 {
            race.upstream.release();
        }
        if answer.contains("insufficient_quota") {
            race.is_over.send_replace(true);
            return;
        }
        tokio::task::yield_now().await;
    }
}

/// Outcome of a round.
#[derive(Debug, Default)]
struct Outcome {
    sent: usize,
    kills: usize,
    flushes: usize,
    /// Requests of killed weirs, settled by rule.
    estimated: usize,
    limit: u64,
    /// Sum over the rows of all requests.
    spent: u64,
    /// Cost by the upstream's own count. It differs from `spent` by the error of the rule for
    /// requests whose end nobody saw.
    billed: u64,
    /// Maximum amount spent or held in the journal. The journal removes an unsent request only
    /// after its hold was given to another, so this may exceed the limit for a moment.
    committed: u64,
}

/// Kills weirs and empties Redis, in random order and at random intervals.
struct Trouble<'a> {
    shared: &'a Shared,
    race: &'a Race,
    random: Random,
    weirs: Vec<Serving>,
    outcome: Outcome,
}

impl Trouble<'_> {
    /// Waits until the upstream has had this many requests, or the budget is exhausted.
    async fn wait_for(&self, requests: usize) {
        let mut over = self.race.is_over.subscribe();
        tokio::select! {
            () = self.race.upstream.wait_for(|log| log.len() >= requests) => {}
            _ = over.wait_for(|is_over| *is_over) => {}
        }
    }

    async fn wait_for_few(&mut self) {
        let few = self.random.below(12) as usize;
        if few > 2 {
            self.wait_for(self.race.upstream.requests().len() + few).await;
        }
    }

    fn kill(&mut self, victim: usize) {
        self.weirs[victim].signal("-KILL");
        self.outcome.kills += 1;
    }

    fn empty(&mut self) {
        self.shared.redis.empty();
        self.outcome.flushes += 1;
    }

    async fn make(&mut self) {
        let first = self.random.below(INSTANCES as u64) as usize;
        let mut victims = vec![first];
        if self.random.below(3) == 0 {
            victims.push((first + 1) % INSTANCES);
        }
        let is_emptied_first = self.random.below(3) == 0;
        if is_emptied_first {
            self.empty();
            self.wait_for_few().await;
        }
        for victim in &victims {
            self.kill(*victim);
        }
        if !is_emptied_first || self.random.below(3) == 0 {
            self.wait_for_few().await;
            self.empty();
        }
        self.wait_for_few().await;
        for victim in victims {
            self.weirs[victim] = self.shared.serve(&SETTINGS);
            self.race.addresses()[victim] = self.weirs[victim].address;
        }
    }
}

async fn round(seed: u64) -> Outcome {
    let shared = Shared::start().await;
    shared.set(BUDGET, LIMIT_USD).await;
    let weirs: Vec<_> = (0..INSTANCES).map(|_| shared.serve(&SETTINGS)).collect();
    let race = Arc::new(Race {
        upstream: Arc::clone(&shared.upstream),
        addresses: Mutex::new(weirs.iter().map(|weir| weir.address).collect()),
        is_over: watch::Sender::new(false),
    });
    let mut lanes = JoinSet::new();
    let mut random = Random(seed);
    for number in 0..LANES {
        lanes.spawn(lane(number, Random(random.below(u64::MAX)), Arc::clone(&race)));
    }
    let most = Arc::new(AtomicU64::default());
    let watching = tokio::spawn(watch(shared.store.clone(), Arc::clone(&most)));
    let outcome =
        Outcome { limit: NanoUsd::parse(LIMIT_USD).expect("an amount").0, ..Outcome::default() };
    let mut trouble = Trouble { shared: &shared, race: &race, random, weirs, outcome };
    for at in TROUBLE_AT {
        let at = at + trouble.random.below(50);
        trouble.wait_for(at as usize).await;
        if !race.is_over() {
            trouble.make().await;
        }
    }
    let Trouble { weirs, mut outcome, .. } = trouble;
    let mut releases = tokio::time::interval(RELEASE_INTERVAL);
    loop {
        tokio::select! {
            ended = lanes.join_next() => match ended {
                Some(ended) => ended.expect("no lane panics"),
                None => break,
            },
            _ = releases.tick() => race.upstream.release(),
        }
    }
    until_ended(&shared.store).await;
    shared.until_settled(weirs[0].address).await;
    watching.abort();
    outcome.committed = most.load(Ordering::SeqCst);
    let (spent, _, rows) = sum(&shared.store).await;
    outcome.spent = spent;
    outcome.estimated = rows.iter().filter(|row| is_estimated(row)).count();
    (outcome.sent, outcome.billed) = billed(&shared);
    shared.set(BUDGET, "1").await;
    for weir in &weirs {
        shared.until_let_in(weir.address, chat(HEADER, 5, json!({}))).await;
    }
    outcome
}

/// Returns the journal's totals: of ended requests and of open ones.
async fn journal(store: &Store) -> Spent {
    let query = SpentQuery {
        scope: Scope::parse("all").expect("a scope"),
        measure: Measure::NanoUsd,
        from_ms: 0,
        bucket_ms: None,
        open: Vec::new(),
        wants_open: true,
    };
    store.spent(query).await.expect("it can be read")
}

/// Waits until no request is open: other instances settle those of killed weirs.
async fn until_ended(store: &Store) {
    eventually(WAIT_LIMIT, async || journal(store).await.open, Vec::is_empty).await;
}

/// Queries the journal repeatedly for the sum of spent and held amounts; records the maximum.
async fn watch(store: Store, most: Arc<AtomicU64>) {
    let mut interval = tokio::time::interval(WATCH_INTERVAL);
    loop {
        interval.tick().await;
        let Spent { ended, open } = journal(&store).await;
        let held = open.iter().filter_map(|intent| intent.held_nano_usd);
        let committed = ended.iter().map(|(_, amount)| *amount).chain(held).sum();
        most.fetch_max(committed, Ordering::SeqCst);
    }
}

fn is_estimated(row: &RequestRow) -> bool {
    row.settlement.flags.any(Flags::ESTIMATED)
}

/// Returns the number of requests at the upstream, and their cost by its own count.
fn billed(shared: &Shared) -> (usize, u64) {
    let mut by_name: HashMap<_, u64> = HashMap::new();
    for seen in shared.upstream.requests() {
        let Some(name) = seen.headers.get(NAME) else { continue };
        let tokens = [seen.prompt_tokens, seen.completion_tokens];
        let cost = match seen.status {
            200 => {
                tokens.iter().zip(PRICES).map(|(tokens, price)| tokens.unwrap_or(0) * price).sum()
            }
            _ => 0,
        };
        let most = by_name.entry(name.clone()).or_default();
        *most = cost.max(*most);
    }
    (by_name.len(), by_name.values().sum())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and Redis"]
async fn kills_and_an_emptied_redis_leave_nothing_beyond_a_budget() {
    let mut beyond = Vec::new();
    for seed in rounds(1) {
        let outcome = round(seed).await;
        let over = outcome.spent.saturating_sub(outcome.limit);
        println!(
            "seed {seed}: {outcome:?}; {over} nano-dollars beyond ({:.3} %), {} by the upstream's count",
            100.0 * over as f64 / outcome.limit as f64,
            outcome.billed.saturating_sub(outcome.limit),
        );
        assert!(outcome.spent * 10 >= outcome.limit * 9, "seed {seed}: the budget was not used");
        if over > 0 {
            beyond.push((seed, over));
        }
    }
    assert!(beyond.is_empty(), "beyond the budget, by seed: {beyond:?}");
}
