//! Budget counters of one process. One lock guards them, held for a few arithmetic steps, so a
//! request holds an amount in all its budgets or in none.
//!
//! Only the leader counts. It begins with the journal's totals and holds the requests that others
//! have left open there. While another process leads, counters are copies of the journal, read again
//! once they are old: they refuse what is spent, and grant nothing.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::tz::TimeZone;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until};

use super::super::budgets::{Applied, Spent};
use super::super::ledger::{Intent, RequestEnd, RequestId};
use super::super::{Store, StoreError, Stored};
use super::leader_lock::LeaderLock;
use super::reservation::{
    Answer, BudgetStatus, MAX_WAITING, NoRoom, Owner, Reservation, Spending, read_past,
};
use crate::budget::counter::{Count, Counter};
use crate::budget::hold::{Share, decide};
use crate::budget::{Budget, BudgetId, HoldVerdict, Room, Scope, ScopeKind, Span, Window};

/// Number of counters above which empty ones are removed.
const FORGET_ABOVE: usize = 50_000;
/// Age of a copy at which it is read again.
const COPY_LIFETIME: Duration = Duration::from_secs(1);
/// Interval at which a waiting request looks for the ends of requests that other processes settle.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which a request that waits for the lead looks whether its budgets are spent.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// Message if another process leads.
const LED_BY_ANOTHER: &str = "another weir counts the budgets of this store until it ends; several at \
                              once need shared counters (redis.url)";

/// Counters and their waiting requests.
pub(super) struct Memory {
    store: Store,
    pub(super) zone: TimeZone,
    state: Mutex<State>,
    leader: LeaderLock,
    /// Lets one counter load at a time, so that concurrent requests query the journal once.
    loading: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    counters: HashMap<Key, CounterSlot>,
    /// Counters of each scope.
    by_scope: HashMap<ScopeKind, HashMap<String, Vec<Key>>>,
    /// All requests under way, with or without a budget.
    leases: HashMap<RequestId, Lease>,
    waiting: VecDeque<Waiter>,
    spans: Spans,
    /// Whether this process counts.
    leads: bool,
    /// Requests that have ended here since a counter began to load.
    ended: Option<HashSet<RequestId>>,
    /// When the journal was last asked for the ends of other processes' requests.
    followed_at: Option<Instant>,
}

/// Cached window spans, to avoid calendar arithmetic per request.
#[derive(Default)]
struct Spans(Vec<(Window, Span)>);

impl Spans {
    fn of(&mut self, zone: &TimeZone, window: Window, now_ms: u64) -> Span {
        if window.bucket_length_ms().is_some() {
            return window.span(zone, now_ms);
        }
        let holds = |span: &Span| {
            let end_ms = span.lifetime_ms.map_or(u64::MAX, |lifetime| span.bucket_ms + lifetime);
            (span.bucket_ms..end_ms).contains(&now_ms)
        };
        match self.0.iter_mut().find(|(known, _)| *known == window) {
            Some((_, span)) if holds(span) => *span,
            Some((_, span)) => {
                *span = window.span(zone, now_ms);
                *span
            }
            None => {
                let span = window.span(zone, now_ms);
                self.0.push((window, span));
                span
            }
        }
    }
}

/// Key of a counter: a budget and the member it counts for.
type Key = (BudgetId, Scope);

#[derive(Default)]
struct CounterSlot {
    counter: Counter,
    /// When past spending was loaded, if it is.
    loaded_at: Option<Instant>,
    /// Number of waiting requests.
    waiting: usize,
}

struct Lease {
    begun_ms: u64,
    owner: Owner,
    /// Held amounts, with their buckets.
    parts: Vec<Part>,
    /// Set if another process settles it: the amount that the journal holds for it.
    recorded: Option<Spending>,
}

impl Lease {
    /// Creates the lease of a request that holds nothing yet.
    fn empty(begun_ms: u64, owner: Owner) -> Self {
        Self { begun_ms, owner, parts: Vec::new(), recorded: None }
    }

    /// Creates the lease of a request that another process has left open in the journal.
    fn from_intent(intent: &Intent) -> Self {
        let owner = Owner::of(intent);
        let recorded = Some(Spending {
            nano_usd: intent.held_nano_usd.unwrap_or(0),
            tokens: intent.held_tokens.unwrap_or(0),
        });
        Self { recorded, ..Self::empty(intent.begun_ms, owner) }
    }

    /// Returns the amount that it holds in a counter which begins now, or again.
    fn held(&self, key: &Key) -> u64 {
        let held = self.parts.iter().find(|part| part.key == *key).map_or(0, |part| part.held);
        self.recorded.map_or(0, |recorded| recorded.of(key.0.measure)).max(held)
    }
}

struct Part {
    key: Key,
    bucket_ms: u64,
    held: u64,
}

struct Waiter {
    wanted: Reservation,
    owner: Owner,
    answer: oneshot::Sender<Answer>,
}

/// Result of one attempt to reserve.
enum HoldStep {
    Done(Answer),
    Wait,
    /// These counters are not loaded yet.
    Load(Vec<Applied>),
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Memory")
    }
}

impl Memory {
    pub(super) fn new(store: Store, zone: TimeZone) -> Self {
        let (state, loading) = (Mutex::default(), tokio::sync::Mutex::default());
        let leader = LeaderLock::new(&store);
        Self { store, zone, leader, state, loading }
    }

    pub(super) fn note(&self, id: RequestId, begun_ms: u64, owner: Owner) {
        self.state.lock().open(&self.zone, id, Lease::empty(begun_ms, owner));
    }

    /// Registers a request of another process that this one settles now.
    pub(super) fn adopt(&self, id: RequestId, begun_ms: u64, owner: Owner) {
        let mut state = self.state.lock();
        // What a counter holds for it stays held.
        if !state.leases.contains_key(&id) {
            state.open(&self.zone, id, Lease::empty(begun_ms, owner));
        }
    }

    /// Leaves a request to the process that settles it in the journal.
    pub(super) fn leave(&self, id: RequestId) {
        if let Some(lease) = self.state.lock().leases.get_mut(&id) {
            lease.recorded.get_or_insert_default();
        }
    }

    /// Settles requests of other processes that have ended in the journal, unless that was just
    /// done.
    pub(super) async fn follow(&self) -> Stored<()> {
        let ids: Vec<RequestId> = {
            let mut state = self.state.lock();
            let is_due = |at: Instant| at.elapsed() >= FOLLOW_INTERVAL;
            let recorded = state.leases.iter().filter(|(_, lease)| lease.recorded.is_some());
            let ids: Vec<RequestId> = recorded.map(|(id, _)| *id).collect();
            if ids.is_empty() || !state.followed_at.is_none_or(is_due) {
                return Ok(());
            }
            state.followed_at = Some(Instant::now());
            ids
        };
        let ends = self.store.request_ends(ids.clone()).await?;
        for (id, end) in ids.into_iter().zip(ends) {
            match end {
                RequestEnd::Ended { nano_usd, tokens } => {
                    self.settle(id, Spending { nano_usd, tokens });
                }
                RequestEnd::Unknown => self.settle(id, Spending::default()),
                RequestEnd::Open => {}
            }
        }
        Ok(())
    }

    /// Follows the journal until it is dropped.
    async fn follow_on(&self) {
        loop {
            sleep(FOLLOW_INTERVAL).await;
            let _ = self.follow().await;
        }
    }

    pub(super) fn settle(&self, id: RequestId, spending: Spending) {
        let mut state = self.state.lock();
        state.settle(id, spending);
        state.wake(&self.zone);
    }

    pub(super) async fn reserve(&self, wanted: Reservation, owner: Owner) -> Answer {
        let leads = tokio::select! {
            biased;
            leads = self.lead() => leads?,
            // The lead of a killed process ends after a while. It spends nothing more until then.
            status = self.exhausted(&wanted) => return Err(NoRoom::Exhausted(status)),
        };
        if !leads {
            return Err(self.refusal(&wanted).await);
        }
        let deadline = Instant::now() + wanted.patience;
        let mut queued = loop {
            let missing = {
                let mut state = self.state.lock();
                match state.step(&self.zone, &wanted, &owner, true, true) {
                    HoldStep::Done(answer) => return answer,
                    HoldStep::Load(missing) => missing,
                    HoldStep::Wait if state.waiting.len() >= MAX_WAITING => {
                        return Err(NoRoom::Held);
                    }
                    HoldStep::Wait => {
                        break QueuedRequest::new(self, &mut state, wanted.clone(), owner.clone());
                    }
                }
            };
            self.load(&missing, wanted.begun_ms).await?;
        };
        // If the journal cannot be read now, it may be at the next look.
        let _ = self.follow().await;
        tokio::select! {
            biased;
            answer = &mut queued.answer => {
                queued.is_over = answer.is_ok();
                // A waiter is only dropped after it is answered.
                answer.unwrap_or(Err(NoRoom::Held))
            }
            () = self.follow_on() => Err(NoRoom::Held),
            () = sleep_until(deadline) => queued.take_available(owner),
        }
    }

    /// Returns whether this process counts. When it begins to, the copies from before are dropped:
    /// the last leader has counted on.
    async fn lead(&self) -> Stored<bool> {
        if !self.leader.acquire().await? {
            self.state.lock().leads = false;
            return Ok(false);
        }
        if !self.state.lock().leads {
            // Nothing that was read before is loaded after this.
            let _guard = self.loading.lock().await;
            let mut state = self.state.lock();
            if !state.leads {
                state.leads = true;
                state.counters.values_mut().for_each(|slot| slot.loaded_at = None);
            }
        }
        Ok(true)
    }

    /// Returns a budget of a request that the journal shows as spent, as soon as there is one.
    async fn exhausted(&self, wanted: &Reservation) -> BudgetStatus {
        loop {
            sleep(LOOK_INTERVAL).await;
            if let NoRoom::Exhausted(status) = self.refusal(wanted).await {
                return status;
            }
        }
    }

    /// Returns why a request is not admitted while another process counts.
    async fn refusal(&self, wanted: &Reservation) -> NoRoom {
        match self.statuses(&wanted.applied, wanted.begun_ms).await {
            Err(error) => NoRoom::Store(error),
            Ok(mut statuses) => {
                let rooms: Vec<Room> = statuses.iter().map(BudgetStatus::room).collect();
                match decide(&rooms, &wanted.ask, Share::All) {
                    HoldVerdict::Exhausted { index } => {
                        NoRoom::Exhausted(statuses.swap_remove(index))
                    }
                    HoldVerdict::Granted { .. } | HoldVerdict::Wait => {
                        NoRoom::Store(StoreError::Failed(LED_BY_ANOTHER.to_owned()))
                    }
                }
            }
        }
    }

    pub(super) async fn statuses(
        &self,
        applied: &[Applied],
        now_ms: u64,
    ) -> Stored<Vec<BudgetStatus>> {
        let mut is_read = false;
        loop {
            let missing = {
                let mut state = self.state.lock();
                let missing = state.missing(&self.zone, applied, now_ms);
                // Copies grow old while others are read.
                if missing.is_empty() || (is_read && !state.leads) {
                    return Ok(state.statuses(&self.zone, applied, now_ms));
                }
                missing
            };
            self.load(&missing, now_ms).await?;
            is_read = true;
        }
    }

    /// Loads counters from the journal.
    ///
    /// Each counter is created empty before the journal is read, with a part for every request
    /// under way. Those add themselves when settled, and the journal query leaves them out.
    /// Requests that arrive meanwhile wait for the counter. Requests of other processes that are
    /// open in the journal get a part with what they hold there. So each request counts once.
    async fn load(&self, missing: &[Applied], now_ms: u64) -> Stored<()> {
        let _guard = self.loading.lock().await;
        for applied in missing {
            let key = (applied.budget.id.clone(), applied.scope.clone());
            let span = applied.budget.id.window.span(&self.zone, now_ms);
            let open = {
                let mut state = self.state.lock();
                if state.is_loaded(&key, &span) {
                    continue;
                }
                state.begin(&self.zone, &key, &span)
            };
            let _loading = Loading(self);
            let known = open.clone();
            let past = read_past(&self.store, applied, &span, &self.zone, open).await?;
            self.state.lock().complete(&self.zone, &key, &span, past, &known);
        }
        Ok(())
    }
}

impl State {
    /// Attempts a reservation. A waiting request keeps its place; new ones queue behind it.
    fn step(
        &mut self,
        zone: &TimeZone,
        wanted: &Reservation,
        owner: &Owner,
        has_patience: bool,
        is_new: bool,
    ) -> HoldStep {
        let missing = self.missing(zone, &wanted.applied, wanted.begun_ms);
        if !missing.is_empty() {
            return HoldStep::Load(missing);
        }
        let (rooms, keys) = self.rooms(zone, wanted);
        let waiting = keys.iter().map(|(key, _)| self.counters[key].waiting).max().unwrap_or(0);
        let is_behind = is_new && waiting > 0;
        // One that waits counts itself.
        let share = match has_patience {
            true => Share::among(&rooms, waiting > usize::from(!is_new)),
            false => Share::All,
        };
        match decide(&rooms, &wanted.ask, share) {
            HoldVerdict::Granted { .. } if is_behind => HoldStep::Wait,
            HoldVerdict::Granted { output_tokens } => {
                let parts = keys.into_iter().map(|(key, bucket_ms)| {
                    let held = wanted.ask.amount(key.0.measure, output_tokens);
                    Part { key, bucket_ms, held }
                });
                let lease = Lease {
                    parts: parts.collect(),
                    ..Lease::empty(wanted.begun_ms, owner.clone())
                };
                self.open(zone, wanted.id, lease);
                let statuses = self.statuses(zone, &wanted.applied, wanted.begun_ms);
                HoldStep::Done(Ok((output_tokens, statuses)))
            }
            HoldVerdict::Wait => HoldStep::Wait,
            HoldVerdict::Exhausted { index } => {
                let mut all = self.statuses(zone, &wanted.applied, wanted.begun_ms);
                HoldStep::Done(Err(NoRoom::Exhausted(all.swap_remove(index))))
            }
        }
    }

    /// Returns the state of each of a request's budgets, and the buckets it counts in.
    fn rooms(&mut self, zone: &TimeZone, wanted: &Reservation) -> (Vec<Room>, Vec<(Key, u64)>) {
        let mut rooms = Vec::with_capacity(wanted.applied.len());
        let mut keys = Vec::with_capacity(wanted.applied.len());
        for applied in &wanted.applied {
            let budget: &Budget = &applied.budget;
            let span = self.spans.of(zone, budget.id.window, wanted.begun_ms);
            let key = (budget.id.clone(), applied.scope.clone());
            let slot = self.counters.entry(key.clone()).or_default();
            let Count { spent, held, .. } = slot.counter.count(&span);
            rooms.push(Room { measure: budget.id.measure, limit: budget.limit, spent, held });
            keys.push((key, span.bucket_ms));
        }
        (rooms, keys)
    }

    fn missing(&mut self, zone: &TimeZone, applied: &[Applied], now_ms: u64) -> Vec<Applied> {
        let mut missing = Vec::new();
        for applied in applied {
            let span = self.spans.of(zone, applied.budget.id.window, now_ms);
            if !self.is_loaded(&(applied.budget.id.clone(), applied.scope.clone()), &span) {
                missing.push(applied.clone());
            }
        }
        missing
    }

    /// Whether a counter has the past spending of `span`. A copy of what another process counts grows old.
    fn is_loaded(&self, key: &Key, span: &Span) -> bool {
        let slot = self.counters.get(key).filter(|slot| slot.counter.is_complete(span));
        let loaded_at = slot.and_then(|slot| slot.loaded_at);
        loaded_at.is_some_and(|at| self.leads || at.elapsed() < COPY_LIFETIME)
    }

    fn statuses(&mut self, zone: &TimeZone, applied: &[Applied], now_ms: u64) -> Vec<BudgetStatus> {
        let status = |applied: &Applied| {
            let key = (applied.budget.id.clone(), applied.scope.clone());
            let span = self.spans.of(zone, applied.budget.id.window, now_ms);
            let slot = self.counters.entry(key).or_default();
            let mut count = slot.counter.count(&span);
            count.resets_ms = count.resets_ms.or(applied.budget.id.window.ends_ms(&span));
            BudgetStatus {
                budget: Arc::clone(&applied.budget),
                scope: applied.scope.clone(),
                count,
            }
        };
        applied.iter().map(status).collect()
    }

    /// Registers a request as under way. It gets a part in every counter of its scopes, also
    /// without a hold: a budget may be set or removed at that moment.
    fn open(&mut self, zone: &TimeZone, id: RequestId, mut lease: Lease) {
        let scopes = lease.owner.scopes();
        for (kind, by_name) in &self.by_scope {
            let Some(name) = scopes.name(*kind) else { continue };
            for key in by_name.get(&*name).into_iter().flatten() {
                if lease.parts.iter().all(|part| part.key != *key) {
                    let bucket_ms = self.spans.of(zone, key.0.window, lease.begun_ms).bucket_ms;
                    lease.parts.push(Part { key: key.clone(), bucket_ms, held: 0 });
                }
            }
        }
        for part in &lease.parts {
            if let Some(slot) = self.counters.get_mut(&part.key) {
                slot.counter.hold(part.bucket_ms, part.held);
            }
        }
        self.leases.insert(id, lease);
    }

    /// Starts a counter, gives every request under way a part in it, and returns those requests.
    /// Requests of other processes are read again from the journal.
    fn begin(&mut self, zone: &TimeZone, key: &Key, span: &Span) -> Vec<RequestId> {
        if self.counters.len() >= FORGET_ABOVE {
            self.forget();
        }
        let by_name = self.by_scope.entry(key.1.kind).or_default();
        let of_scope = by_name.entry(key.1.name.clone()).or_default();
        if !of_scope.contains(key) {
            of_scope.push(key.clone());
        }
        self.ended = Some(HashSet::new());
        let slot = self.counters.entry(key.clone()).or_default();
        // A counter that failed to load before, was a copy, or lacks what the clock now needs starts over.
        slot.counter = Counter::starting(span);
        slot.loaded_at = None;
        let mut open = Vec::new();
        for (id, lease) in &mut self.leases {
            if lease.owner.scopes().name(key.1.kind).as_deref() != Some(&*key.1.name) {
                continue;
            }
            let bucket_ms = self.spans.of(zone, key.0.window, lease.begun_ms).bucket_ms;
            let held = lease.held(key);
            slot.counter.hold(bucket_ms, held);
            lease.parts.retain(|part| part.key != *key);
            lease.parts.push(Part { key: key.clone(), bucket_ms, held });
            open.push(*id);
        }
        open
    }

    /// Completes a counter with the journal's totals, and with the open requests of other
    /// processes: those not in `known`, which had a part in it when it began.
    fn complete(
        &mut self,
        zone: &TimeZone,
        key: &Key,
        span: &Span,
        past: Spent,
        known: &[RequestId],
    ) {
        let slot = self.counters.entry(key.clone()).or_default();
        slot.loaded_at = Some(Instant::now());
        for (bucket_ms, spent) in past.ended {
            slot.counter.add_spent(span, bucket_ms, spent);
        }
        let ended = self.ended.take().unwrap_or_default();
        let known: HashSet<RequestId> = known.iter().copied().collect();
        for intent in past.open {
            let new = Lease::from_intent(&intent);
            let is_in_scope = new.owner.scopes().name(key.1.kind).as_deref() == Some(&*key.1.name);
            if !is_in_scope || known.contains(&intent.id) || ended.contains(&intent.id) {
                continue;
            }
            let lease = self.leases.entry(intent.id).or_insert(new);
            if lease.parts.iter().all(|part| part.key != *key) {
                let bucket_ms = self.spans.of(zone, key.0.window, lease.begun_ms).bucket_ms;
                let held = lease.held(key);
                slot.counter.hold(bucket_ms, held);
                lease.parts.push(Part { key: key.clone(), bucket_ms, held });
            }
        }
    }

    /// Removes counters without parts of requests under way; they load again on demand.
    fn forget(&mut self) {
        let parts = self.leases.values().flat_map(|lease| &lease.parts);
        let used: HashSet<Key> = parts.map(|part| part.key.clone()).collect();
        self.counters.retain(|key, slot| slot.waiting > 0 || used.contains(key));
        let counters = &self.counters;
        for by_name in self.by_scope.values_mut() {
            by_name.retain(|_, keys| {
                keys.retain(|key| counters.contains_key(key));
                !keys.is_empty()
            });
        }
    }

    fn settle(&mut self, id: RequestId, spending: Spending) {
        if let Some(ended) = &mut self.ended {
            ended.insert(id);
        }
        let Some(lease) = self.leases.remove(&id) else { return };
        for part in lease.parts {
            if let Some(slot) = self.counters.get_mut(&part.key) {
                slot.counter.settle(part.bucket_ms, part.held, spending.of(part.key.0.measure));
            }
        }
    }

    /// Admits waiting requests in order: none overtakes another that waits for the same budget.
    fn wake(&mut self, zone: &TimeZone) {
        if self.waiting.is_empty() {
            return;
        }
        let mut blocked: HashSet<Key> = HashSet::new();
        for waiter in std::mem::take(&mut self.waiting) {
            let keys: Vec<Key> = keys_of(&waiter.wanted).collect();
            if keys.iter().any(|key| blocked.contains(key)) {
                self.waiting.push_back(waiter);
                continue;
            }
            match self.step(zone, &waiter.wanted, &waiter.owner, true, false) {
                HoldStep::Done(answer) => {
                    self.leave_queue(&waiter.wanted);
                    let id = waiter.wanted.id;
                    if waiter.answer.send(answer).is_err() {
                        self.settle(id, Spending::default());
                    }
                }
                HoldStep::Wait | HoldStep::Load(_) => {
                    blocked.extend(keys);
                    self.waiting.push_back(waiter);
                }
            }
        }
    }

    /// Counts one waiting request fewer.
    fn leave_queue(&mut self, wanted: &Reservation) {
        for key in keys_of(wanted) {
            if let Some(slot) = self.counters.get_mut(&key) {
                slot.waiting = slot.waiting.saturating_sub(1);
            }
        }
    }
}

fn keys_of(wanted: &Reservation) -> impl Iterator<Item = Key> {
    wanted.applied.iter().map(|applied| (applied.budget.id.clone(), applied.scope.clone()))
}

/// Loading of a counter, which ends with it.
struct Loading<'a>(&'a Memory);

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        self.0.state.lock().ended = None;
    }
}

/// A request's place in the queue, released on drop.
struct QueuedRequest<'a> {
    memory: &'a Memory,
    wanted: Reservation,
    answer: oneshot::Receiver<Answer>,
    /// Whether it is answered.
    is_over: bool,
}

impl<'a> QueuedRequest<'a> {
    fn new(memory: &'a Memory, state: &mut State, wanted: Reservation, owner: Owner) -> Self {
        for key in keys_of(&wanted) {
            state.counters.entry(key).or_default().waiting += 1;
        }
        let (sender, answer) = oneshot::channel();
        state.waiting.push_back(Waiter { wanted: wanted.clone(), owner, answer: sender });
        Self { memory, wanted, answer, is_over: false }
    }

    /// Takes the available amount after waiting to the end.
    fn take_available(mut self, owner: Owner) -> Answer {
        let mut state = self.memory.state.lock();
        if let Ok(answer) = self.answer.try_recv() {
            self.is_over = true;
            return answer;
        }
        state.waiting.retain(|waiter| waiter.wanted.id != self.wanted.id);
        state.leave_queue(&self.wanted);
        self.is_over = true;
        match state.step(&self.memory.zone, &self.wanted, &owner, false, false) {
            HoldStep::Done(answer) => answer,
            HoldStep::Wait | HoldStep::Load(_) => {
                // Requests behind it may fit now.
                state.wake(&self.memory.zone);
                Err(NoRoom::Held)
            }
        }
    }
}

impl Drop for QueuedRequest<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let mut state = self.memory.state.lock();
        let before = state.waiting.len();
        state.waiting.retain(|waiter| waiter.wanted.id != self.wanted.id);
        if state.waiting.len() < before {
            state.leave_queue(&self.wanted);
        } else {
            // It was admitted, but its caller is gone.
            state.settle(self.wanted.id, Spending::default());
        }
        state.wake(&self.memory.zone);
    }
}
