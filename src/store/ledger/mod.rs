//! The journal of requests: what was about to be sent, how it ended, and the sums over days. It is
//! written down in a log, which is moved into the tables behind the requests' backs. Every text and
//! number is made harmless before it is written, so that no request can keep another's row from
//! being written. Knows no prices and no rules: what a request cost is told to it.

pub(super) mod added;
pub(super) mod asked;
mod backup;
pub(super) mod ends;
pub(super) mod facts;
pub(super) mod frame;
mod instances;
mod journal;
mod log;
mod moved;
mod process;
mod prune;
mod queries;
mod sums;
pub(super) mod text;
mod told;

use std::fmt;
use std::ops::{BitOr, BitOrAssign};
use std::path::Path;
use std::sync::Arc;

use rusqlite::Connection;

use super::{Backend, Store, StoreError, Tenant};
pub(super) use process::Ledger;
use process::{gather, settle_directly, written_down};

pub use added::{FAILED, MAX_LEARNED_MODELS, MAX_ROWS_A_DAY, MAX_ROWS_A_TENANT_DAY, OTHER, Sums};
pub use asked::{Column, MAX_ROWS, RequestQuery, RequestRow, UsageQuery, UsageRow};
pub use ends::RequestEnd;
pub use text::{MAX_TEXT_BYTES, harmless};

/// The milliseconds of a day; days are those of UTC, counted from 1970.
pub const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// The most that a figure of one request counts: tokens or nano-dollars. It is the largest integer
/// that every JSON reader keeps exactly, and more than any request can take.
pub const MAX_FIGURE: u64 = 1 << 53;

/// What a request is known by, from before it is sent until its row is pruned. Ids sort by the
/// moment they were made at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub [u8; 16]);

impl RequestId {
    /// 48 bits of milliseconds since 1970, the rest `random`.
    pub fn new(now_ms: u64, random: [u8; 10]) -> Self {
        let mut id = [0; 16];
        id[..6].copy_from_slice(&now_ms.to_be_bytes()[2..]);
        id[6..].copy_from_slice(&random);
        Self(id)
    }

    /// The moment it was made at.
    pub fn begun_ms(self) -> u64 {
        let [a, b, c, d, e, f, ..] = self.0;
        u64::from_be_bytes([0, 0, a, b, c, d, e, f])
    }

    /// What is not below it was made at `moment_ms` or later.
    pub(super) fn first_of(moment_ms: u64) -> Self {
        const MAX_MS: u64 = (1 << 48) - 1;
        Self::new(moment_ms.min(MAX_MS), [0; 10])
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Every request's is written several times; the usual way, a byte at a time, takes many times as long.
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0; 32];
        for (pair, byte) in text.chunks_exact_mut(2).zip(self.0) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 15)];
        }
        f.write_str(std::str::from_utf8(&text).map_err(|_| fmt::Error)?)
    }
}

/// Who a request is counted for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    pub tenant: Tenant,
    /// The names of the virtual key that it came with, if any.
    pub key: Option<Arc<KeyNames>>,
}

/// A virtual key, and whose it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyNames {
    /// The key's id.
    pub key: String,
    pub team: String,
    pub organisation: String,
    pub user: String,
}

/// A request that is about to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Intent {
    pub id: RequestId,
    /// When it came, in milliseconds since 1970; says which day it counts for.
    pub begun_ms: u64,
    pub caller: Caller,
    pub route: String,
    pub model: String,
    pub upstream: String,
    pub stream: bool,
    /// What weir did to it, as in `x-weir-action`.
    pub action: String,
    /// How full its context was.
    pub zone: String,
    /// The prompt as it came, by weir's count.
    pub received_tokens: Option<u64>,
    /// The prompt as it is sent, by weir's count.
    pub sent_tokens: Option<u64>,
    /// The most output that the caller lets the model write.
    pub max_output_tokens: Option<u64>,
    /// How long planning took.
    pub plan_ms: Option<u64>,
    /// The most that it may come to, in nano-dollars and in tokens: as much as it holds in its budgets.
    /// `None` if it is in none.
    pub held_nano_usd: Option<u64>,
    pub held_tokens: Option<u64>,
}

/// What a reader of a row must know about it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Flags(pub(super) u32);

impl Flags {
    /// Tokens and money are by rule: the end of the request was not seen.
    pub const ESTIMATED: Self = Self(1);
    /// The caller left before the end.
    pub const CALLER_LEFT: Self = Self(1 << 1);
    /// The answer ended without a word on usage.
    pub const USAGE_MISSING: Self = Self(1 << 2);
    /// Nothing reached the upstream.
    pub const NOT_SENT: Self = Self(1 << 3);
    /// Some of what was used has no price; the rest is priced.
    pub const PARTLY_PRICED: Self = Self(1 << 4);
    /// The model has no price.
    pub const UNPRICED: Self = Self(1 << 5);

    /// Every flag with the name that it is shown by.
    pub const NAMES: [(Self, &'static str); 6] = [
        (Self::ESTIMATED, "estimated"),
        (Self::CALLER_LEFT, "caller_left"),
        (Self::USAGE_MISSING, "usage_missing"),
        (Self::NOT_SENT, "not_sent"),
        (Self::PARTLY_PRICED, "partly_priced"),
        (Self::UNPRICED, "unpriced"),
    ];

    /// Those that few rows have, which are found by an index.
    const RARE: Self = Self(0b1111);
    const IS_RARE_SQL: &str = "flags & 15 <> 0";

    /// Whether all flags of `other` are among these.
    fn covers(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any flag of `other` is set.
    pub fn any(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The names of those that are set.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMES.into_iter().filter(move |(flag, _)| self.any(*flag)).map(|(_, name)| name)
    }
}

impl BitOr for Flags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Flags {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// How a request ended. A figure that is not known is `None`; zero is a figure.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settlement {
    /// `complete`, `caller_left`, `upstream_cut`, `idle_timeout`, `killed`, `not_sent` or the code of
    /// an error.
    pub outcome: String,
    /// The status that the upstream answered with.
    pub status: Option<u16>,
    pub prompt_tokens: Option<u64>,
    pub completion_tokens: Option<u64>,
    pub cached_tokens: Option<u64>,
    pub cache_write_tokens: Option<u64>,
    pub reasoning_tokens: Option<u64>,
    pub cost_nano_usd: Option<u64>,
    pub saved_nano_usd: Option<i64>,
    pub flags: Flags,
    pub first_byte_ms: Option<u64>,
    pub total_ms: Option<u64>,
}

impl Store {
    /// Writes down that a request is about to be sent. Once this returns, a kill of the process
    /// does not lose it, and after [`super::StoreOptions::sync_interval`] nor does a loss of power.
    pub async fn open_request(&self, intent: &Intent) -> Result<(), StoreError> {
        let sqlite = match &self.backend {
            Backend::Sqlite(sqlite) => sqlite,
            Backend::Postgres(postgres) => return postgres.open_request(intent).await,
        };
        let ledger = sqlite.ledger();
        ledger.begin().await?;
        let frame = frame::opened(intent);
        let mut opened = ledger.log.open(intent.id, &frame);
        if matches!(opened, Err(StoreError::Behind { .. })) && !sqlite.is_failing() {
            // More is written down than one thread moves: whoever comes now takes part in it.
            ledger.log.turn();
            gather(sqlite).await;
            opened = ledger.log.open(intent.id, &frame);
        }
        opened?;
        written_down(sqlite);
        Ok(())
    }

    /// Writes down how a request ended. `false` if that is known to have been done before: a request
    /// is counted once, by its id.
    pub async fn settle_request(
        &self,
        intent: Arc<Intent>,
        settlement: Settlement,
    ) -> Result<bool, StoreError> {
        let sqlite = match &self.backend {
            Backend::Sqlite(sqlite) => sqlite,
            Backend::Postgres(postgres) => {
                return postgres.settle_request(&intent, &settlement).await;
            }
        };
        let frame = frame::settled(&intent, &settlement);
        match sqlite.ledger().log.end(intent.id, &frame) {
            Some(written) => {
                written?;
                written_down(sqlite);
                Ok(true)
            }
            None => settle_directly(sqlite, frame).await,
        }
    }

    /// Forgets a request that was not sent after all.
    pub async fn release_request(&self, id: RequestId) -> Result<(), StoreError> {
        let sqlite = match &self.backend {
            Backend::Sqlite(sqlite) => sqlite,
            Backend::Postgres(postgres) => return postgres.release_request(id).await,
        };
        match sqlite.ledger().log.end(id, &frame::released(id)) {
            Some(written) => {
                written?;
                written_down(sqlite);
                Ok(())
            }
            None => sqlite.write(move |connection| journal::release(connection, id)).await,
        }
    }

    /// Moves what all processes have written down so far into the tables, where a log stands before
    /// them.
    pub(super) async fn gather(&self) {
        if let Backend::Sqlite(sqlite) = &self.backend {
            gather(sqlite).await;
        }
    }

    /// Up to `limit` requests that were open when the process that had sent them ended, oldest
    /// first. They stay until they are settled or released.
    pub async fn orphans(&self, limit: usize) -> Result<Vec<Intent>, StoreError> {
        let sqlite = match &self.backend {
            Backend::Sqlite(sqlite) => sqlite,
            Backend::Postgres(postgres) => return postgres.orphans(limit).await,
        };
        gather(sqlite).await;
        let ledger = Arc::clone(sqlite.ledger());
        sqlite.read(move |connection| journal::orphans(connection, &ledger.instance, limit)).await
    }

    /// What an answer of `model` usually takes, `None` where none was seen to its end.
    pub async fn learned_output_tokens(&self, model: &str) -> Result<Option<u64>, StoreError> {
        let sqlite = match &self.backend {
            Backend::Sqlite(sqlite) => sqlite,
            Backend::Postgres(postgres) => return postgres.learned_output_tokens(model).await,
        };
        gather(sqlite).await;
        let model = text::harmless(model).into_owned();
        sqlite.read(move |connection| sums::learned_output_tokens(connection, &model)).await
    }

    /// Sums over days, at most [`MAX_ROWS`]: days in their order, and the costliest first.
    pub async fn usage(&self, query: UsageQuery) -> Result<Vec<UsageRow>, StoreError> {
        let sqlite = match &self.backend {
            Backend::Sqlite(sqlite) => sqlite,
            Backend::Postgres(postgres) => return postgres.usage(query).await,
        };
        gather(sqlite).await;
        sqlite.read(move |connection| queries::usage(connection, &query)).await
    }

    /// Single requests, at most [`MAX_ROWS`], newest first.
    pub async fn requests(&self, query: RequestQuery) -> Result<Vec<RequestRow>, StoreError> {
        let sqlite = match &self.backend {
            Backend::Sqlite(sqlite) => sqlite,
            Backend::Postgres(postgres) => return postgres.requests(query).await,
        };
        gather(sqlite).await;
        sqlite.read(move |connection| queries::requests(connection, &query)).await
    }

    /// What a tenant's requests of one route have cost since `from_ms`, in nano-dollars, as far as
    /// they have a price.
    pub async fn spent_on_route(
        &self,
        tenant: Tenant,
        route: &'static str,
        from_ms: u64,
    ) -> Result<u64, StoreError> {
        let sqlite = match &self.backend {
            Backend::Sqlite(sqlite) => sqlite,
            Backend::Postgres(postgres) => {
                return postgres.spent_on_route(tenant, route, from_ms).await;
            }
        };
        gather(sqlite).await;
        let spent = move |connection: &Connection| {
            queries::spent_on_route(connection, tenant, route, from_ms)
        };
        sqlite.read(spent).await
    }

    /// Deletes the rows of requests that begun before `before_ms`, and sums of days before
    /// `sums_before_ms`; how many rows that were. Others can write in between.
    pub async fn prune_requests(
        &self,
        before_ms: u64,
        sums_before_ms: u64,
    ) -> Result<u64, StoreError> {
        let sqlite = match &self.backend {
            Backend::Sqlite(sqlite) => sqlite,
            Backend::Postgres(postgres) => return postgres.prune(before_ms, sums_before_ms).await,
        };
        gather(sqlite).await;
        // What a row no longer says is to leave the log as well.
        sqlite.ledger().log.age();
        prune::prune(sqlite, before_ms, sums_before_ms).await
    }

    /// Writes a copy of the whole store as it is at one moment to a new file at `path`, which a
    /// weir can use as its store. Others may write meanwhile.
    pub async fn backup(&self, path: &Path) -> Result<(), StoreError> {
        let sqlite = match &self.backend {
            Backend::Sqlite(sqlite) if sqlite.is_file() => sqlite,
            Backend::Sqlite(_) => {
                return Err(StoreError::Failed("the store is in memory alone".to_owned()));
            }
            Backend::Postgres(_) => {
                let said = "the store is in PostgreSQL, whose own pg_dump copies a database";
                return Err(StoreError::Failed(said.to_owned()));
            }
        };
        gather(sqlite).await;
        let (ledger, path) = (Arc::clone(sqlite.ledger()), path.to_owned());
        sqlite
            .read(move |connection| Ok(backup::write(connection, &ledger.instance, &path)))
            .await?
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    fn intent(number: u64, text: &str) -> Intent {
        let mut random = [0; 10];
        random[2..].copy_from_slice(&number.to_be_bytes());
        Intent {
            id: RequestId::new(DAY_MS, random),
            begun_ms: DAY_MS,
            caller: Caller { tenant: Tenant([1; 16]), key: None },
            route: text.to_owned(),
            model: text.to_owned(),
            upstream: text.to_owned(),
            stream: false,
            action: text.to_owned(),
            zone: text.to_owned(),
            received_tokens: None,
            sent_tokens: None,
            max_output_tokens: None,
            plan_ms: None,
            held_nano_usd: None,
            held_tokens: None,
        }
    }

    #[test]
    fn ids_sort_by_their_moment_and_are_shown_whole() {
        let id = RequestId::new(0x0123_4567_89ab, [0xff; 10]);
        assert_eq!(id.to_string(), "0123456789abffffffffffffffffffff");
        assert_eq!(id.begun_ms(), 0x0123_4567_89ab);
        assert!(id < RequestId::new(0x0123_4567_89ac, [0; 10]));
        assert!(RequestId::first_of(0x0123_4567_89ab) < id);
        assert_eq!(RequestId::first_of(u64::MAX).0[..6], [0xff; 6]);
    }

    #[test]
    fn flags_have_names() {
        let mut flags = Flags::ESTIMATED | Flags::UNPRICED;
        flags |= Flags::CALLER_LEFT;
        assert_eq!(flags.names().collect::<Vec<_>>(), ["estimated", "caller_left", "unpriced"]);
        assert!(flags.any(Flags::UNPRICED | Flags::NOT_SENT) && !flags.any(Flags::NOT_SENT));
        assert!(Flags::default().is_empty() && !flags.is_empty());
        assert!(!Flags::RARE.covers(flags) && Flags::RARE.covers(Flags::ESTIMATED));
        assert_eq!(Flags::IS_RARE_SQL, format!("flags & {} <> 0", Flags::RARE.0));
    }

    #[tokio::test]
    async fn a_full_disk_is_told_and_leaves_nothing_half_done() {
        let store = Store::in_memory().expect("there is memory");
        let Backend::Sqlite(sqlite) = &store.backend else { panic!("it is in memory") };
        let limit = |more_pages: i64| {
            sqlite.write(move |connection| {
                let pages: i64 = connection.query_row("PRAGMA page_count", [], |row| row.get(0))?;
                let sql = format!("PRAGMA max_page_count = {}", pages + more_pages);
                connection.query_row(&sql, [], |_| Ok(()))
            })
        };
        limit(20).await.expect("a number");
        let text = "x".repeat(200);
        let requests = |rows: Vec<UsageRow>| rows.first().map_or(0, |row| row.sums.requests);
        let mut counted = 0;
        for number in 0.. {
            let intent = Arc::new(intent(number, &text));
            store.open_request(&intent).await.expect("it is written down");
            let settlement = Settlement { outcome: text.clone(), ..Settlement::default() };
            assert_eq!(store.settle_request(intent, settlement).await, Ok(true));
            let usage = store.usage(UsageQuery::default()).await.map(requests);
            if usage != Ok(number + 1) {
                assert_eq!(usage, Ok(number), "what there is is told");
                counted = number;
                break;
            }
        }
        assert!(counted > 10, "{counted}");
        assert_eq!(store.state(), State::Memory);
        let rows = store.requests(RequestQuery::default()).await.expect("it can be read");
        assert_eq!(rows.len() as u64, counted, "each row is in the sums");
        let late = Arc::new(intent(counted + 1, &text));
        let settled = store.settle_request(Arc::clone(&late), Settlement::default()).await;
        assert_eq!(settled, Err(StoreError::Full), "it was not opened, and goes there directly");
        limit(20).await.expect("a number");
        assert_eq!(store.settle_request(late, Settlement::default()).await, Ok(true));
        assert!(!sqlite.is_failing());
        let usage = store.usage(UsageQuery::default()).await.map(requests);
        assert_eq!(usage, Ok(counted + 2), "nothing that was written down is lost");
    }
}
