//! Places to count in during a test, and helpers to request room.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::tz::TimeZone;
use weir_store::budget::{Ask, Budget, BudgetId, OutputBound, Scope, ScopeKind};
use weir_store::budgets::Applied;
use weir_store::counters::{
    BudgetStatus, Counters, Granted, NoRoom, Owner, RedisOptions, Reservation, Spending,
};
use weir_store::ledger::{Attribution, Caller, Intent, KeyNames, RequestId, Settlement};
use weir_store::redis::Redis;
use weir_store::{Store, Tenant, now_ms};

use super::server::{Prefix, Server};
use crate::eventually::eventually;
use crate::folder::Folder;

/// Timeout: an operation that takes longer has hung.
pub const LONG: Duration = Duration::from_secs(20);

/// Place that keeps counts.
pub trait Place: Sized {
    fn new() -> Self;

    /// Returns an instance: another one if several count together, otherwise the same.
    fn instance(&self) -> Counters;

    /// A handle on the store.
    fn store(&self) -> Store;
}

pub struct InMemory {
    store: Store,
    counters: Counters,
    _folder: Folder,
}

impl Place for InMemory {
    fn new() -> Self {
        let folder = Folder::new();
        let store = Store::open(&folder.file("weir.db")).expect("the file can be written");
        let counters = Counters::in_memory(store.clone(), TimeZone::UTC);
        Self { store, counters, _folder: folder }
    }

    fn instance(&self) -> Counters {
        self.counters.clone()
    }

    fn store(&self) -> Store {
        self.store.clone()
    }
}

/// Several instances, each with its own handle on one store.
pub struct InRedis {
    prefix: Prefix,
    pub server: Server,
    folder: Folder,
    pub options: RedisOptions,
}

impl InRedis {
    pub fn on(server: Server) -> Self {
        let options = RedisOptions {
            lease: Duration::from_secs(30),
            tick: Duration::from_millis(20),
            grace: Duration::from_millis(100),
            lock: Duration::from_secs(10),
            poll: Duration::from_millis(5),
        };
        Self { prefix: Prefix::new(&server), server, folder: Folder::new(), options }
    }

    /// Returns an instance that connects to Redis at `url`.
    pub fn instance_at(&self, url: &str) -> Counters {
        self.on_redis(self.redis_at(url))
    }

    /// Returns an instance with its connection.
    pub fn watched_instance(&self) -> (Redis, Counters) {
        let redis = self.redis_at(&self.server.url);
        (redis.clone(), self.on_redis(redis))
    }

    fn redis_at(&self, url: &str) -> Redis {
        Redis::new(url, &self.prefix.name, Duration::from_secs(2)).expect("an address")
    }

    fn on_redis(&self, redis: Redis) -> Counters {
        Counters::in_redis(redis, self.store(), TimeZone::UTC, self.options)
    }
}

impl Place for InRedis {
    fn new() -> Self {
        Self::on(Server::shared())
    }

    fn instance(&self) -> Counters {
        self.instance_at(&self.server.url)
    }

    fn store(&self) -> Store {
        Store::open(&self.folder.file("weir.db")).expect("the file can be written")
    }
}

/// Runs each case in every place that can keep counts.
macro_rules! in_every_place {
    ($($case:ident)*) => {
        cases_in!(mod memory, super::super::places, InMemory as Place: $($case)*);
        cases_in!(
            #[ignore = "needs Redis"]
            mod redis, super::super::places, InRedis as Place: $($case)*
        );
    };
}
pub(super) use in_every_place;

/// Builds a budget from its id; per-team budgets apply to the team `t`.
pub fn budget(id: &str, limit: u64) -> Applied {
    let id = BudgetId::parse(id).expect("a budget's id");
    let scope = if id.scope.is_each() {
        Scope { kind: id.scope.kind, name: "t".to_owned() }
    } else {
        id.scope.clone()
    };
    Applied { budget: Arc::new(Budget { id, limit, warn_permille: None }), scope }
}

/// A request of the team `t`.
pub fn owner() -> Owner {
    owner_of(&["all", "team:t", "model:m"])
}

pub fn owner_of(scopes: &[&str]) -> Owner {
    let mut names = KeyNames::default();
    let mut origin = Attribution::default();
    let mut model = String::new();
    for Scope { kind, name } in scopes.iter().map(|text| Scope::parse(text).expect("a scope")) {
        match kind {
            ScopeKind::All => {}
            ScopeKind::Organisation => names.organisation = name,
            ScopeKind::Team => names.team = name,
            ScopeKind::User => names.user = name,
            ScopeKind::Key => names.key = name,
            ScopeKind::Model => model = name,
            ScopeKind::Conversation => origin.conversation = Some(name),
            ScopeKind::Agent => origin.agent = Some(name),
            ScopeKind::Tag => origin.tag = Some(name),
        }
    }
    let caller = Caller { tenant: Tenant([1; 16]), key: Some(Arc::new(names)) };
    Owner::new(&caller, Arc::new(origin), &model)
}

/// Returns a unique id.
pub fn id_at(begun_ms: u64) -> RequestId {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut random = [0; 10];
    random[2..].copy_from_slice(&COUNT.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    RequestId::new(begun_ms, random)
}

/// Requests exactly this many tokens or nano-dollars, in the unit of the budget.
pub fn firm(amount: u64) -> Ask {
    Ask {
        money: OutputBound { base_nano_usd: amount, output_nano_usd_per_mtok: 0 },
        prompt_tokens: amount,
        choices: 1,
        wanted_tokens: 0,
        enough_tokens: 0,
        least_tokens: 0,
        is_flexible: false,
    }
}

pub fn wanted(applied: &[Applied], ask: Ask, patience: Duration) -> Reservation {
    let begun_ms = now_ms();
    Reservation { id: id_at(begun_ms), begun_ms, applied: applied.to_vec(), ask, patience }
}

/// Requests an amount and does not wait for other requests.
pub async fn take(
    counters: &Counters,
    applied: &[Applied],
    amount: u64,
) -> Result<Granted, NoRoom> {
    counters.reserve(wanted(applied, firm(amount), Duration::ZERO), owner()).await
}

/// Requests an amount and waits a long time for other requests.
pub async fn wait_for(counters: &Counters, applied: &[Applied], amount: u64) -> Granted {
    let granted = counters.reserve(wanted(applied, firm(amount), LONG), owner()).await;
    granted.expect("there will be room")
}

pub fn tokens(tokens: u64) -> Spending {
    Spending { nano_usd: tokens, tokens }
}

/// Returns the amounts spent and held of one budget.
pub async fn figures(counters: &Counters, applied: &Applied) -> (u64, u64) {
    let statuses = counters.statuses(vec![applied.clone()], now_ms()).await;
    let status: BudgetStatus = statuses.expect("it is counted").remove(0);
    (status.count.spent, status.count.held)
}

/// Waits until these amounts of a budget are spent and held.
pub async fn until(counters: &Counters, applied: &Applied, expected: (u64, u64)) {
    let look = async || {
        let statuses = counters.statuses(vec![applied.clone()], now_ms()).await;
        statuses.map(|all| (all[0].count.spent, all[0].count.held))
    };
    eventually(LONG, look, |found| *found == Ok(expected)).await.expect("it was seen");
}

/// Waits until all earlier requests are answered: answers arrive in request order.
pub async fn after_answers(counters: &Counters, applied: &Applied) {
    for _ in 0..5 {
        figures(counters, applied).await;
        tokio::task::yield_now().await;
    }
}

/// Builds the journal entry of a request of [`owner`].
pub fn intent(id: RequestId, begun_ms: u64) -> Arc<Intent> {
    let names = KeyNames { team: "t".to_owned(), ..KeyNames::default() };
    Arc::new(Intent {
        id,
        begun_ms,
        caller: Caller { tenant: Tenant([1; 16]), key: Some(Arc::new(names)) },
        route: String::new(),
        model: "m".to_owned(),
        upstream: String::new(),
        stream: false,
        action: String::new(),
        zone: String::new(),
        attribution: Attribution::default(),
        received_tokens: None,
        sent_tokens: None,
        max_output_tokens: None,
        plan_ms: None,
        held_nano_usd: None,
        held_tokens: None,
    })
}

/// Records in the journal that a request has ended with this cost.
pub fn write_down(
    store: &Store,
    intent: Arc<Intent>,
    amount: u64,
) -> impl Future<Output = ()> + use<> {
    let store = store.clone();
    async move {
        let settlement = Settlement {
            outcome: "complete".to_owned(),
            status: Some(200),
            prompt_tokens: Some(amount),
            cost_nano_usd: Some(amount),
            ..Settlement::default()
        };
        let written = store.settle_request(intent, settlement).await;
        assert_eq!(written, Ok(true));
    }
}
