//! Budget counters in Redis, for several instances that share one journal. Each atomic step is one
//! script (`scripts/`), so a request holds an amount in all its budgets or in none, even if
//! other instances act concurrently.
//!
//! A request is a lease: its scopes, its holds by bucket, and its expiry. Its instance renews the
//! lease while the request runs, and settles it once. Past spending comes from the journal
//! (`load`). All data belongs to a generation. If Redis was emptied or restarted, a new generation
//! begins. It counts nothing until the instances have registered their holds, within
//! `Options::grace`. The journal supplies the rest: the cost of ended requests, and the hold of
//! each open one, of living and killed instances alike.
//!
//! Exact guarantees: spent plus held never exceeds a limit while instances reach Redis, under any
//! concurrency. Each request is settled once, by its instance or by a sweep, whichever comes first.
//! A loaded counter contains each request once, including those under way.
//!
//! Known deviations:
//! - Requests missing from the journal (`ledger.enabled`, `ledger.on_failure`) are known only to
//!   their instance. If that instance is killed, or unreachable for longer than the grace, when
//!   Redis is emptied, their room becomes free.
//! - A request without a budget (`note`) is registered at the next tick. If it ends within the very
//!   milliseconds in which another instance loads a counter of its scope, and was not registered
//!   yet, it may count twice, but never less.
//! - If a lease expires because its instance was stopped before the journal recorded its request,
//!   it is released, and held again when the instance continues, with or without room.
//! - Settlements for a Redis that is long unreachable are kept up to a limit; beyond it, the
//!   journal's rows replace them at the next sweep.

mod call;
mod lease;
mod load;
mod queue;
mod renewer;
mod scripts;
mod settle;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::tz::TimeZone;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::super::budgets::Applied;
use super::super::ledger::{MAX_FIGURE, RequestId};
use super::super::redis::Redis;
use super::super::{Store, StoreError, Stored};
use super::memory::Memory;
use super::reservation::{Answer, BudgetStatus, MAX_WAITING, NoRoom, Owner, Reservation, Spending};
use crate::budget::counter::Count;
use crate::budget::hold::{Share, decide};
use crate::budget::{HoldVerdict, Room};
use call::{is_stale, unexpected_reply};
use lease::{Grant, Lease, State, bucket_of, name_of, scopes};
use load::Uncovered;
use queue::QueueTurn;
use scripts::HOLD;

/// Maximum number of leases per script call.
const BATCH: usize = 200;
/// Maximum attempts of a step that concurrent changes interrupt.
const MAX_TRIES: usize = 8;

/// Settings of counters in Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Lifetime of a lease that is not renewed.
    pub lease: Duration,
    /// Interval of the background task.
    pub tick: Duration,
    /// Time after Redis was emptied in which no counter loads, so that instances can register their
    /// holds. Several ticks.
    pub grace: Duration,
    /// Time limit of one loader before another instance takes over.
    pub lock: Duration,
    /// Interval at which a waiting request checks for room left by other instances.
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

/// Budget counters in Redis.
pub(super) struct RedisCounters {
    redis: Redis,
    /// Key of the generation.
    key: String,
    store: Store,
    /// Copies of the journal's totals, for when Redis cannot be used.
    recorded: Memory,
    pub(super) zone: TimeZone,
    options: Options,
    state: Mutex<State>,
    /// Lets this instance load one counter at a time.
    loading: tokio::sync::Mutex<()>,
    /// Held while requests are registered, so that none is registered after its settlement.
    registering: tokio::sync::Mutex<()>,
    /// Notified when there is something to settle.
    wakeup: Arc<Notify>,
}

/// Result of one attempt to reserve.
enum ReserveStep {
    Done(Answer),
    Wait,
}

/// A reservation and its values that stay constant over attempts.
struct Reserving<'a> {
    wanted: &'a Reservation,
    owner: &'a Owner,
    names: Vec<String>,
}

impl fmt::Debug for RedisCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InRedis")
    }
}

impl RedisCounters {
    pub(super) fn new(redis: Redis, store: Store, zone: TimeZone, options: Options) -> Arc<Self> {
        let wakeup = Arc::new(Notify::new());
        let counts = Arc::new(Self {
            key: redis.key("budgets"),
            redis,
            recorded: Memory::new(store.clone(), zone.clone()),
            store,
            zone,
            options,
            state: Mutex::default(),
            loading: tokio::sync::Mutex::default(),
            registering: tokio::sync::Mutex::default(),
            wakeup: Arc::clone(&wakeup),
        });
        tokio::spawn(renewer::run(Arc::downgrade(&counts), wakeup, options.tick));
        counts
    }

    pub(super) fn note(&self, id: RequestId, begun_ms: u64, owner: Owner) {
        self.add_lease(id, Lease::empty(begun_ms, owner));
    }

    /// Registers a request that has long been open in the journal. Its hold is in its lease in
    /// Redis, or will be once its counters load.
    pub(super) fn adopt(&self, id: RequestId, begun_ms: u64, owner: Owner) {
        let written = Some(Instant::now());
        self.add_lease(id, Lease { written, ..Lease::empty(begun_ms, owner) });
    }

    fn add_lease(&self, id: RequestId, lease: Lease) {
        let mut state = self.state.lock();
        // It may already hold something, if its call was not answered: the settlement resolves
        // that.
        state.ended.remove(&id);
        state.leases.insert(id, lease);
    }

    /// Records that the journal has a request as open, before it is sent; returns whether it may be
    /// sent.
    ///
    /// After Redis was emptied, no counter loads within the grace, and each loads the journal's
    /// open requests. So a request recorded within the grace after its hold is in every counter. A
    /// later one may be sent only if Redis has not been emptied since, which costs a round trip.
    pub(super) async fn opened(&self, id: RequestId) -> Stored<bool> {
        let grant = match self.state.lock().leases.get_mut(&id) {
            Some(lease) => {
                lease.written = Some(Instant::now());
                lease.grant.clone()
            }
            None => None,
        };
        let is_late = |grant: &Grant| grant.called_at.elapsed() >= self.options.grace;
        match grant.filter(is_late) {
            Some(grant) => self.is_held(id, &grant.generation).await,
            None => Ok(true),
        }
    }

    /// Leaves a request to another settler: its instance, or a sweep.
    pub(super) fn forget(&self, id: RequestId) {
        self.state.lock().leases.remove(&id);
    }

    /// Settles a request at once, or as soon as Redis is back.
    pub(super) async fn settle(&self, id: RequestId, spending: Spending) {
        self.state.lock().end(id, spending);
        if self.finish(id).await.is_ok() {
            self.state.lock().queue.wake_next();
        }
    }

    /// Releases a request's hold, without waiting.
    pub(super) fn release(&self, id: RequestId) {
        self.state.lock().end(id, Spending::default());
        self.wakeup.notify_one();
    }

    pub(super) async fn reserve(self: &Arc<Self>, wanted: Reservation, owner: Owner) -> Answer {
        match self.try_reserve(&wanted, &owner).await {
            Err(NoRoom::Store(error)) => {
                Err(self.spent_on_record(&wanted).await.unwrap_or(NoRoom::Store(error)))
            }
            answer => answer,
        }
    }

    /// Returns a budget that this request does not fit in by the journal alone: while Redis cannot be
    /// used, holds are unknown, but spending is not.
    async fn spent_on_record(&self, wanted: &Reservation) -> Option<NoRoom> {
        let mut all = self.recorded.statuses(&wanted.applied, wanted.begun_ms).await.ok()?;
        let spent = |status: &BudgetStatus| Room { held: 0, ..status.room() };
        let rooms: Vec<Room> = all.iter().map(spent).collect();
        match decide(&rooms, &wanted.ask, Share::All) {
            HoldVerdict::Exhausted { index } => Some(NoRoom::Exhausted(all.swap_remove(index))),
            HoldVerdict::Granted { .. } | HoldVerdict::Wait => None,
        }
    }

    async fn try_reserve(self: &Arc<Self>, wanted: &Reservation, owner: &Owner) -> Answer {
        let deadline = Instant::now() + wanted.patience;
        let names: Vec<String> = wanted.applied.iter().map(name_of).collect();
        let attempt = Reserving { wanted, owner, names };
        let may_hold = !self.state.lock().queue.has_any_for(&attempt.names);
        if let ReserveStep::Done(answer) = self.step(&attempt, true, may_hold).await? {
            return answer;
        }
        {
            let queued = Queued::new(self, &attempt)?;
            while Instant::now() < deadline {
                let wait = self.options.poll.min(deadline - Instant::now());
                // A timeout also counts: another instance may have left room silently.
                let _ = timeout(wait, queued.turn.woken()).await;
                if queued.turn.is_first()
                    && let ReserveStep::Done(answer) = self.step(&attempt, true, true).await?
                {
                    return answer;
                }
            }
        }
        match self.step(&attempt, false, true).await? {
            ReserveStep::Done(answer) => answer,
            ReserveStep::Wait => Err(NoRoom::Held),
        }
    }

    pub(super) async fn statuses(
        self: &Arc<Self>,
        applied: &[Applied],
        now_ms: u64,
    ) -> Stored<Vec<BudgetStatus>> {
        let names: Vec<String> = applied.iter().map(name_of).collect();
        let parts: Vec<Value> =
            applied.iter().zip(&names).map(|(one, name)| self.part(one, name, now_ms, 1)).collect();
        let peek = json!({ "id": "", "is_look": true, "parts": parts });
        for _ in 0..MAX_TRIES {
            let reply = self.call(&HOLD, |_| peek.clone()).await?;
            if reply.first().is_some_and(|word| word == "missing") {
                self.load_missing(applied, &names, &reply[1..], now_ms).await?;
                continue;
            }
            let counted = reply.get(1..).unwrap_or_default();
            return Ok(self.read_statuses(applied, now_ms, counted)?.0);
        }
        Err(StoreError::Busy)
    }

    /// Attempts a reservation. A request that may not hold yet can only learn that it never fits.
    async fn step(
        self: &Arc<Self>,
        attempt: &Reserving<'_>,
        has_patience: bool,
        may_hold: bool,
    ) -> Result<ReserveStep, NoRoom> {
        let (wanted, mut unconfirmed) = (attempt.wanted, Unconfirmed::new(self, attempt));
        let mut output_tokens = wanted.ask.wanted_tokens;
        for _ in 0..MAX_TRIES {
            unconfirmed.is_pending = may_hold;
            let called_at = Instant::now();
            let (generation, reply) = self.hold(attempt, output_tokens, may_hold).await?;
            let word = reply.first().map(String::as_str).unwrap_or_default();
            unconfirmed.is_pending = word == "held";
            if word == "missing" {
                let (applied, begun_ms) = (&wanted.applied, wanted.begun_ms);
                self.load_missing(applied, &attempt.names, &reply[1..], begun_ms).await?;
                continue;
            }
            let counted = reply.get(1..).unwrap_or_default();
            let (mut statuses, rest) =
                self.read_statuses(&wanted.applied, wanted.begun_ms, counted)?;
            if word == "held" {
                if !self.cover(&generation, uncovered(wanted, rest)).await? {
                    continue;
                }
                let grant = Grant { generation, called_at };
                self.state
                    .lock()
                    .leases
                    .insert(wanted.id, self.lease(attempt, output_tokens, grant));
                unconfirmed.is_pending = false;
                return Ok(ReserveStep::Done(Ok((output_tokens, statuses))));
            }
            let rooms: Vec<Room> = statuses.iter().map(BudgetStatus::room).collect();
            let share = match has_patience {
                true => Share::among(
                    &rooms,
                    self.state.lock().queue.has_others_for(wanted.id, &attempt.names),
                ),
                false => Share::All,
            };
            match decide(&rooms, &wanted.ask, share) {
                HoldVerdict::Granted { output_tokens: less } if may_hold => output_tokens = less,
                HoldVerdict::Granted { .. } | HoldVerdict::Wait => return Ok(ReserveStep::Wait),
                HoldVerdict::Exhausted { index } => {
                    let status = statuses.swap_remove(index);
                    return Ok(ReserveStep::Done(Err(NoRoom::Exhausted(status))));
                }
            }
        }
        Ok(ReserveStep::Wait)
    }

    async fn hold(
        &self,
        attempt: &Reserving<'_>,
        output_tokens: u64,
        may_hold: bool,
    ) -> Stored<(Arc<str>, Vec<String>)> {
        let wanted = attempt.wanted;
        let parts = wanted.applied.iter().zip(&attempt.names).map(|(applied, name)| {
            let amount = wanted.ask.amount(applied.budget.id.measure, output_tokens);
            self.part(applied, name, wanted.begun_ms, amount)
        });
        let hold = json!({
            "id": wanted.id.to_string(),
            "begun_ms": wanted.begun_ms,
            "lease_ms": ms(self.options.lease),
            "scopes": scopes(attempt.owner),
            "is_look": !may_hold,
            "parts": parts.collect::<Vec<_>>(),
        });
        self.call_with_generation(&HOLD, |_| hold.clone()).await
    }

    /// Formats a budget for `hold.lua`.
    fn part(&self, applied: &Applied, name: &str, now_ms: u64, amount: u64) -> Value {
        let span = applied.budget.id.window.span(&self.zone, now_ms);
        json!({
            "key": name,
            "bucket": span.bucket_ms,
            "first": span.first_ms,
            "lifetime_ms": span.lifetime_ms.unwrap_or(0),
            "limit": applied.budget.limit.min(MAX_FIGURE),
            // Above any limit, and exact.
            "amount": if amount > MAX_FIGURE { MAX_FIGURE * 2 } else { amount },
        })
    }

    /// Parses each budget's state from a reply; also returns the rest of the reply.
    fn read_statuses<'a>(
        &self,
        applied: &[Applied],
        now_ms: u64,
        reply: &'a [String],
    ) -> Stored<(Vec<BudgetStatus>, &'a [String])> {
        let figures = reply.get(..applied.len() * 3).ok_or_else(unexpected_reply)?;
        let statuses = figures.chunks_exact(3).zip(applied).map(|(figures, applied)| {
            let number = |text: &String| text.parse::<u64>().map_err(|_| unexpected_reply());
            let span = applied.budget.id.window.span(&self.zone, now_ms);
            // First bucket with spending; negative if there is none.
            let first: Option<u64> = figures[2].parse().ok();
            let resets_ms = first.zip(span.lifetime_ms).map(|(first, lifetime)| first + lifetime);
            let resets_ms = resets_ms.or(applied.budget.id.window.ends_ms(&span));
            let (spent, held) = (number(&figures[0])?, number(&figures[1])?);
            Ok(BudgetStatus {
                budget: Arc::clone(&applied.budget),
                scope: applied.scope.clone(),
                count: Count { spent, held, resets_ms },
            })
        });
        Ok((statuses.collect::<Stored<_>>()?, &reply[applied.len() * 3..]))
    }

    fn lease(&self, attempt: &Reserving<'_>, output_tokens: u64, grant: Grant) -> Lease {
        let wanted = attempt.wanted;
        let parts = wanted.applied.iter().zip(&attempt.names).filter_map(|(applied, name)| {
            let held = wanted.ask.amount(applied.budget.id.measure, output_tokens);
            Some((name.clone(), bucket_of(name, &self.zone, wanted.begun_ms)?, held))
        });
        Lease {
            parts: parts.collect(),
            known_in: Some(Arc::clone(&grant.generation)),
            grant: Some(grant),
            ..Lease::empty(wanted.begun_ms, attempt.owner.clone())
        }
    }

    async fn load_missing(
        self: &Arc<Self>,
        applied: &[Applied],
        names: &[String],
        missing: &[String],
        now_ms: u64,
    ) -> Stored<()> {
        for (applied, name) in applied.iter().zip(names) {
            if missing.contains(name) {
                self.load(applied, now_ms).await?;
            }
        }
        Ok(())
    }
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

/// A call without an answer: the request may hold something in Redis.
struct Unconfirmed<'a> {
    counts: &'a RedisCounters,
    attempt: &'a Reserving<'a>,
    is_pending: bool,
}

impl<'a> Unconfirmed<'a> {
    fn new(counts: &'a RedisCounters, attempt: &'a Reserving<'a>) -> Self {
        Self { counts, attempt, is_pending: false }
    }
}

impl Drop for Unconfirmed<'_> {
    fn drop(&mut self) {
        if self.is_pending {
            let Reservation { id, begun_ms, .. } = *self.attempt.wanted;
            let owner = self.attempt.owner.clone();
            let lease = Lease::empty(begun_ms, owner);
            self.counts.state.lock().note_ended(id, lease, Spending::default());
            self.counts.wakeup.notify_one();
        }
    }
}

/// A request's place in the local queue, released on drop.
struct Queued<'a> {
    counts: &'a RedisCounters,
    turn: Arc<QueueTurn>,
}

impl<'a> Queued<'a> {
    fn new(counts: &'a RedisCounters, attempt: &Reserving<'_>) -> Result<Self, NoRoom> {
        let mut state = counts.state.lock();
        if state.queue.len() >= MAX_WAITING {
            return Err(NoRoom::Held);
        }
        let turn = state.queue.join(attempt.wanted.id, attempt.names.clone());
        Ok(Self { counts, turn })
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        let mut state = self.counts.state.lock();
        state.queue.leave(&self.turn);
        // Requests behind it may fit now.
        state.queue.wake_next();
    }
}
