//! Places to count in while a test runs, and short ways to ask for room.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::tz::TimeZone;
use weir::budget::{Ask, Budget, BudgetId, OutputBound, Scope, ScopeKind};
use weir::store::budgets::Applied;
use weir::store::counters::{
    Counters, Granted, NoRoom, Owner, RedisOptions, Reservation, Spending, Standing,
};
use weir::store::ledger::{Caller, Intent, KeyNames, RequestId, Settlement};
use weir::store::redis::Redis;
use weir::store::{Store, Tenant, now_ms};

use super::server::{Prefix, Server};
use crate::folder::Folder;

/// Longer than anything takes that does not hang.
pub const LONG: Duration = Duration::from_secs(20);

/// Something that counts are kept in.
pub trait Place: Sized {
    /// `None` where there is none, which is told.
    fn new() -> Option<Self>;

    /// An instance: a further one where several count together, else the same.
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
    fn new() -> Option<Self> {
        let folder = Folder::new();
        let store = Store::open(&folder.file("weir.db")).expect("the file can be written");
        let counters = Counters::in_memory(store.clone(), TimeZone::UTC);
        Some(Self { store, counters, _folder: folder })
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

    /// An instance that finds Redis at `url`.
    pub fn instance_at(&self, url: &str) -> Counters {
        let timeout = Duration::from_secs(2);
        let redis = Redis::new(url, &self.prefix.name, timeout).expect("an address");
        Counters::in_redis(redis, self.store(), TimeZone::UTC, self.options)
    }
}

impl Place for InRedis {
    fn new() -> Option<Self> {
        Server::shared().map(Self::on)
    }

    fn instance(&self) -> Counters {
        self.instance_at(&self.server.url)
    }

    fn store(&self) -> Store {
        Store::open(&self.folder.file("weir.db")).expect("the file can be written")
    }
}

/// Runs each case in each place that counts can be kept in.
macro_rules! in_every_place {
    ($place:ident as $module:ident: $($case:ident)*) => {
        mod $module {
            use crate::budgets::places::{$place, Place};
            $(
                #[tokio::test]
                async fn $case() {
                    if let Some(place) = <$place as Place>::new() {
                        super::$case(place).await;
                    }
                }
            )*
        }
    };
    ($($case:ident)*) => {
        crate::budgets::places::in_every_place!(InMemory as memory: $($case)*);
        crate::budgets::places::in_every_place!(InRedis as redis: $($case)*);
    };
}
pub(super) use in_every_place;

/// A budget by its id; one for each is the team's `t`.
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
    let mut model = String::new();
    for Scope { kind, name } in scopes.iter().map(|text| Scope::parse(text).expect("a scope")) {
        match kind {
            ScopeKind::All => {}
            ScopeKind::Organisation => names.organisation = name,
            ScopeKind::Team => names.team = name,
            ScopeKind::User => names.user = name,
            ScopeKind::Key => names.key = name,
            ScopeKind::Model => model = name,
        }
    }
    Owner { key: Some(Arc::new(names)), model }
}

/// An id that no other has.
pub fn id_at(begun_ms: u64) -> RequestId {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut random = [0; 10];
    random[2..].copy_from_slice(&COUNT.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    RequestId::new(begun_ms, random)
}

/// Asks for just so many tokens or nano-dollars, whatever is counted.
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

/// Asks for so much and does not wait for others.
pub async fn take(
    counters: &Counters,
    applied: &[Applied],
    amount: u64,
) -> Result<Granted, NoRoom> {
    counters.reserve(wanted(applied, firm(amount), Duration::ZERO), owner()).await
}

/// Asks for so much and waits for others for long.
pub async fn wait_for(counters: &Counters, applied: &[Applied], amount: u64) -> Granted {
    let granted = counters.reserve(wanted(applied, firm(amount), LONG), owner()).await;
    granted.expect("there will be room")
}

pub fn tokens(tokens: u64) -> Spending {
    Spending { nano_usd: tokens, tokens }
}

/// What is spent and held of one budget.
pub async fn figures(counters: &Counters, applied: &Applied) -> (u64, u64) {
    let standings = counters.standings(vec![applied.clone()], now_ms()).await;
    let standing: Standing = standings.expect("it is counted").remove(0);
    (standing.count.spent, standing.count.held)
}

/// Waits until so much is spent and held of a budget.
pub async fn until(counters: &Counters, applied: &Applied, expected: (u64, u64)) {
    let deadline = tokio::time::Instant::now() + LONG;
    loop {
        let standings = counters.standings(vec![applied.clone()], now_ms()).await;
        let found = standings.map(|all| (all[0].count.spent, all[0].count.held));
        if found == Ok(expected) {
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "{found:?} and not {expected:?}");
        tokio::task::yield_now().await;
    }
}

/// Lets all that was asked before be answered: answers come in the order of what was asked.
pub async fn after_answers(counters: &Counters, applied: &Applied) {
    for _ in 0..5 {
        figures(counters, applied).await;
        tokio::task::yield_now().await;
    }
}

/// The journal's account of a request of [`owner`].
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
        received_tokens: None,
        sent_tokens: None,
        max_output_tokens: None,
        plan_ms: None,
        held_nano_usd: None,
        held_tokens: None,
    })
}

/// Writes down that a request has ended, having come to so much.
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
