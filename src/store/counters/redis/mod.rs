//! Counts in Redis, for several instances that share one journal. Each step that must be whole is one
//! script (`scripts/`), so that a request holds in all its budgets or in none, whoever else counts.
//!
//! A request is a lease: its scopes, what it holds in which bucket, and until when it lives. Its
//! instance prolongs it while it lasts, and settles it once. What was spent before anybody counted is
//! asked of the journal (`load`). Everything belongs to a generation: where Redis was emptied or
//! started anew there is a new one, of which nothing is counted until the instances have told what
//! they hold, for which they have a while (`Options::grace`), and the journal the rest: what ended
//! requests came to, and how much each open one holds, of living and killed instances alike.
//!
//! What is exact: spent and held never pass a limit while instances reach Redis, however many hold,
//! settle, come and go at once; a request is settled once, by whoever comes first, its instance or one
//! that sweeps up after it; a count that is begun has each request once, those under way included.
//!
//! What is not:
//! - Requests that the journal does not have (`ledger.enabled`, `ledger.on_failure`) are known only from
//!   their instance. One that is killed, or out of reach for longer than the grace, when Redis is emptied
//!   leaves their room to others.
//! - A request in no budget (`note`) is registered with the next tick. One that ends in the very
//!   milliseconds in which another instance begins a count of its scope, and was not registered yet,
//!   may count twice: never less.
//! - A lease that ran out because its instance stood still before the journal knew its request is
//!   given back, and held again when the instance goes on, whether or not there is room.
//! - Settlements of a Redis that is away for long are kept up to a number; beyond it the journal's
//!   rows stand in for them, as soon as somebody sweeps.

mod asking;
mod ending;
mod keeper;
mod lease;
mod load;
mod queue;
mod scripts;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::tz::TimeZone;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::super::budgets::Applied;
use super::super::ledger::{MAX_FIGURE, RequestId};
use super::super::redis::Redis;
use super::super::{Store, StoreError};
use super::{Answer, MAX_WAITING, NoRoom, Owner, Reservation, Spending, Standing};
use crate::budget::counter::Count;
use crate::budget::hold::decide;
use crate::budget::{Room, Verdict};
use asking::{garbled, is_stale, random};
use lease::{Given, Lease, State, bucket_of, name_of, scopes};
use load::Uncovered;
use queue::Turn;
use scripts::HOLD;

/// How many leases one script is given.
const BATCH: usize = 200;
/// How often a step is tried that others come in between of.
const MAX_TRIES: usize = 8;

/// How counts in Redis are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// How long a request lives that nobody prolongs.
    pub lease: Duration,
    /// How often an instance looks after its requests.
    pub tick: Duration,
    /// How long after Redis was emptied nothing is counted anew, so that instances can tell what
    /// they hold. Several ticks.
    pub grace: Duration,
    /// How long an instance may take to begin a count before another does.
    pub lock: Duration,
    /// How often who waits for room looks whether another instance has left some.
    pub poll: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(30),
            tick: Duration::from_millis(250),
            grace: Duration::from_secs(2),
            lock: Duration::from_secs(10),
            poll: Duration::from_millis(50),
        }
    }
}

/// Counts in Redis.
pub struct InRedis {
    redis: Redis,
    /// The key of the generation.
    key: String,
    store: Store,
    zone: TimeZone,
    options: Options,
    state: Mutex<State>,
    /// One count at a time is begun by this instance.
    loading: tokio::sync::Mutex<()>,
    /// Held while requests are registered that Redis may not know, so that none is registered once
    /// it is settled.
    registering: tokio::sync::Mutex<()>,
    /// Rung when there is something to settle.
    bell: Arc<Notify>,
}

/// What one look at the counts came to.
enum Step {
    Done(Answer),
    Wait,
}

/// A request that asks for room, and what of it does not change while it asks.
struct Asked<'a> {
    wanted: &'a Reservation,
    owner: &'a Owner,
    names: Vec<String>,
}

impl fmt::Debug for InRedis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InRedis")
    }
}

impl InRedis {
    /// Has to be made inside a runtime, on which it keeps its requests alive.
    pub fn new(redis: Redis, store: Store, zone: TimeZone, options: Options) -> Arc<Self> {
        let bell = Arc::new(Notify::new());
        let counts = Arc::new(Self {
            key: redis.key("budgets"),
            redis,
            store,
            zone,
            options,
            state: Mutex::default(),
            loading: tokio::sync::Mutex::default(),
            registering: tokio::sync::Mutex::default(),
            bell: Arc::clone(&bell),
        });
        tokio::spawn(keeper::keep(Arc::downgrade(&counts), bell, options.tick));
        counts
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change under the lock is whole before anything in it could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn note(&self, id: RequestId, begun_ms: u64, owner: Owner) {
        self.note_lease(id, Lease::empty(begun_ms, owner));
    }

    /// Notes a request that the journal has had as open for some time. What it holds stands in its lease
    /// in Redis, or will once its counts are begun.
    pub fn adopt(&self, id: RequestId, begun_ms: u64, owner: Owner) {
        let written = Some(Instant::now());
        self.note_lease(id, Lease { written, ..Lease::empty(begun_ms, owner) });
    }

    fn note_lease(&self, id: RequestId, lease: Lease) {
        let mut state = self.state();
        // It may hold something already, if it asked and was not answered: settling it tells.
        state.ended.remove(&id);
        state.leases.insert(id, lease);
    }

    /// Notes that the journal has a request as open, before it is sent; whether it may be sent.
    ///
    /// No count begins within the grace after Redis was emptied, and each begins with what the journal
    /// has open. So a request that was written down within the grace after it was given what it holds is
    /// in every count. One that took longer may be sent only if Redis has not been emptied since, which
    /// costs a round trip.
    pub async fn opened(&self, id: RequestId) -> Result<bool, StoreError> {
        let given = match self.state().leases.get_mut(&id) {
            Some(lease) => {
                lease.written = Some(Instant::now());
                lease.given.clone()
            }
            None => None,
        };
        let is_late = |given: &Given| given.asked.elapsed() >= self.options.grace;
        match given.filter(is_late) {
            Some(given) => self.is_held(id, &given.generation).await,
            None => Ok(true),
        }
    }

    /// Leaves a request to whoever settles it: its instance, or one that sweeps.
    pub fn forget(&self, id: RequestId) {
        self.state().leases.remove(&id);
    }

    /// Settles a request at once, or as soon as Redis is back.
    pub async fn settle(&self, id: RequestId, spending: Spending) {
        self.state().end(id, spending);
        if self.finish(id).await.is_ok() {
            self.state().queue.call();
        }
    }

    /// Gives back what a request holds, without waiting for it.
    pub fn give_back(&self, id: RequestId) {
        self.state().end(id, Spending::default());
        self.bell.notify_one();
    }

    pub async fn reserve(self: &Arc<Self>, wanted: Reservation, owner: Owner) -> Answer {
        let deadline = Instant::now() + wanted.patience;
        let names: Vec<String> = wanted.applied.iter().map(name_of).collect();
        let asked = Asked { wanted: &wanted, owner: &owner, names };
        let may_hold = !self.state().queue.has_any_for(&asked.names);
        if let Step::Done(answer) = self.step(&asked, true, may_hold).await? {
            return answer;
        }
        {
            let queued = Queued::new(self, &asked)?;
            while Instant::now() < deadline {
                let wait = self.options.poll.min(deadline - Instant::now());
                // Called or not: another instance may have left room without a word.
                let _ = timeout(wait, queued.turn.called()).await;
                if queued.turn.is_first()
                    && let Step::Done(answer) = self.step(&asked, true, true).await?
                {
                    return answer;
                }
            }
        }
        match self.step(&asked, false, true).await? {
            Step::Done(answer) => answer,
            Step::Wait => Err(NoRoom::Held),
        }
    }

    pub async fn standings(
        self: &Arc<Self>,
        applied: &[Applied],
        now_ms: u64,
    ) -> Result<Vec<Standing>, StoreError> {
        let names: Vec<String> = applied.iter().map(name_of).collect();
        let parts: Vec<Value> =
            applied.iter().zip(&names).map(|(one, name)| self.part(one, name, now_ms, 1)).collect();
        let look = json!({ "id": "", "is_look": true, "parts": parts });
        for _ in 0..MAX_TRIES {
            let reply = self.ask(&HOLD, |_| look.clone()).await?;
            if reply.first().is_some_and(|word| word == "missing") {
                self.load_missing(applied, &names, &reply[1..], now_ms).await?;
                continue;
            }
            let (counts, _) = self.counts(applied, now_ms, reply.get(1..).unwrap_or_default())?;
            return Ok(standings(applied, &counts));
        }
        Err(StoreError::Busy)
    }

    /// What becomes of a request now. Where it may not hold, it can only be told that there never
    /// will be room.
    async fn step(
        self: &Arc<Self>,
        asked: &Asked<'_>,
        has_patience: bool,
        may_hold: bool,
    ) -> Result<Step, NoRoom> {
        let (wanted, mut unsure) = (asked.wanted, Unsure::new(self, asked));
        let mut output_tokens = wanted.ask.wanted_tokens;
        for _ in 0..MAX_TRIES {
            unsure.is_asked = may_hold;
            let asked_at = Instant::now();
            let (generation, reply) = self.hold(asked, output_tokens, may_hold).await?;
            let word = reply.first().map(String::as_str).unwrap_or_default();
            unsure.is_asked = word == "held";
            if word == "missing" {
                let (applied, begun_ms) = (&wanted.applied, wanted.begun_ms);
                self.load_missing(applied, &asked.names, &reply[1..], begun_ms).await?;
                continue;
            }
            let counted = reply.get(1..).unwrap_or_default();
            let (counts, rest) = self.counts(&wanted.applied, wanted.begun_ms, counted)?;
            if word == "held" {
                if !self.cover(&generation, uncovered(wanted, rest)).await? {
                    continue;
                }
                let given = Given { generation, asked: asked_at };
                self.state().leases.insert(wanted.id, self.lease(asked, output_tokens, given));
                unsure.is_asked = false;
                let standings = standings(&wanted.applied, &counts);
                return Ok(Step::Done(Ok((output_tokens, standings))));
            }
            let rooms: Vec<Room> = wanted.applied.iter().zip(&counts).map(room).collect();
            match decide(&rooms, &wanted.ask, has_patience) {
                Verdict::Granted { output_tokens: less } if may_hold => output_tokens = less,
                Verdict::Granted { .. } | Verdict::Wait => return Ok(Step::Wait),
                Verdict::Exhausted { index } => {
                    let mut all = standings(&wanted.applied, &counts);
                    return Ok(Step::Done(Err(NoRoom::Exhausted(all.swap_remove(index)))));
                }
            }
        }
        Ok(Step::Wait)
    }

    async fn hold(
        &self,
        asked: &Asked<'_>,
        output_tokens: u64,
        may_hold: bool,
    ) -> Result<(Arc<str>, Vec<String>), StoreError> {
        let wanted = asked.wanted;
        let parts = wanted.applied.iter().zip(&asked.names).map(|(applied, name)| {
            let amount = wanted.ask.amount(applied.budget.id.measure, output_tokens);
            self.part(applied, name, wanted.begun_ms, amount)
        });
        let hold = json!({
            "id": wanted.id.to_string(),
            "begun_ms": wanted.begun_ms,
            "lease_ms": ms(self.options.lease),
            "scopes": scopes(asked.owner),
            "is_look": !may_hold,
            "parts": parts.collect::<Vec<_>>(),
        });
        self.ask_known(&HOLD, |_| hold.clone()).await
    }

    /// A budget as `hold.lua` wants it.
    fn part(&self, applied: &Applied, name: &str, now_ms: u64, amount: u64) -> Value {
        let span = applied.budget.id.window.span(&self.zone, now_ms);
        json!({
            "key": name,
            "bucket": span.bucket_ms,
            "first": span.first_ms,
            "lifetime_ms": span.lifetime_ms.unwrap_or(0),
            "limit": applied.budget.limit.min(MAX_FIGURE),
            // More than any limit is, and exact.
            "amount": if amount > MAX_FIGURE { MAX_FIGURE * 2 } else { amount },
        })
    }

    /// What was told of each budget, and what stands behind it.
    fn counts<'a>(
        &self,
        applied: &[Applied],
        now_ms: u64,
        told: &'a [String],
    ) -> Result<(Vec<Count>, &'a [String]), StoreError> {
        let figures = told.get(..applied.len() * 3).ok_or_else(garbled)?;
        let counts = figures.chunks_exact(3).zip(applied).map(|(figures, applied)| {
            let number = |text: &String| text.parse::<u64>().map_err(|_| garbled());
            let span = applied.budget.id.window.span(&self.zone, now_ms);
            // The first bucket in which something is spent; below nothing where there is none.
            let first: Option<u64> = figures[2].parse().ok();
            let resets_ms = first.zip(span.lifetime_ms).map(|(first, lifetime)| first + lifetime);
            Ok(Count { spent: number(&figures[0])?, held: number(&figures[1])?, resets_ms })
        });
        Ok((counts.collect::<Result<_, StoreError>>()?, &told[applied.len() * 3..]))
    }

    fn lease(&self, asked: &Asked<'_>, output_tokens: u64, given: Given) -> Lease {
        let wanted = asked.wanted;
        let parts = wanted.applied.iter().zip(&asked.names).filter_map(|(applied, name)| {
            let held = wanted.ask.amount(applied.budget.id.measure, output_tokens);
            Some((name.clone(), bucket_of(name, &self.zone, wanted.begun_ms)?, held))
        });
        Lease {
            parts: parts.collect(),
            known_in: Some(Arc::clone(&given.generation)),
            given: Some(given),
            ..Lease::empty(wanted.begun_ms, asked.owner.clone())
        }
    }

    async fn load_missing(
        self: &Arc<Self>,
        applied: &[Applied],
        names: &[String],
        missing: &[String],
        now_ms: u64,
    ) -> Result<(), StoreError> {
        for (applied, name) in applied.iter().zip(names) {
            if missing.contains(name) {
                self.load(applied, now_ms).await?;
            }
        }
        Ok(())
    }
}

fn room((applied, count): (&Applied, &Count)) -> Room {
    Room {
        measure: applied.budget.id.measure,
        limit: applied.budget.limit,
        spent: count.spent,
        held: count.held,
    }
}

fn standings(applied: &[Applied], counts: &[Count]) -> Vec<Standing> {
    let standing = |(applied, count): (&Applied, &Count)| Standing {
        budget: Arc::clone(&applied.budget),
        scope: applied.scope.clone(),
        count: *count,
    };
    applied.iter().zip(counts).map(standing).collect()
}

fn uncovered(wanted: &Reservation, names: &[String]) -> Vec<Uncovered> {
    let uncovered = |name: &String| Uncovered {
        id: wanted.id,
        begun_ms: wanted.begun_ms,
        name: name.clone(),
        written_ago_ms: -1,
    };
    names.iter().map(uncovered).collect()
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A request that may hold something without anybody knowing: it was asked for, and not answered.
struct Unsure<'a> {
    counts: &'a InRedis,
    asked: &'a Asked<'a>,
    is_asked: bool,
}

impl<'a> Unsure<'a> {
    fn new(counts: &'a InRedis, asked: &'a Asked<'a>) -> Self {
        Self { counts, asked, is_asked: false }
    }
}

impl Drop for Unsure<'_> {
    fn drop(&mut self) {
        if self.is_asked {
            let Reservation { id, begun_ms, .. } = *self.asked.wanted;
            let owner = self.asked.owner.clone();
            let lease = Lease::empty(begun_ms, owner);
            self.counts.state().note_ended(id, lease, Spending::default());
            self.counts.bell.notify_one();
        }
    }
}

/// A request's place among those that wait here, given up with it.
struct Queued<'a> {
    counts: &'a InRedis,
    turn: Arc<Turn>,
}

impl<'a> Queued<'a> {
    fn new(counts: &'a InRedis, asked: &Asked<'_>) -> Result<Self, NoRoom> {
        let mut state = counts.state();
        if state.queue.len() >= MAX_WAITING {
            return Err(NoRoom::Held);
        }
        let turn = state.queue.join(asked.wanted.id, asked.names.clone());
        Ok(Self { counts, turn })
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        let mut state = self.counts.state();
        state.queue.leave(&self.turn);
        // Who stood behind it may fit in now.
        state.queue.call();
    }
}
