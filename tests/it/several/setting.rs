//! Weirs that share a store and counts, and the upstream that they stand in front of.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use weir::store::Store;

use crate::budgeted::setting::{nano_usd, set, sum};
use crate::budgets::server::{Prefix, Server as Redis};
use crate::cli::{Serving, weir};
use crate::scripted_upstream::{Options, Server};
use crate::server::harness::{ask, bare};
use crate::store::postgres::Postgres;

/// The credential of all requests.
pub const HEADER: &str = "authorization: Bearer k\r\n";
/// A test that waits as long for something has hung: a lease of an instance that was killed has ended
/// long before.
const WAIT_LIMIT: Duration = Duration::from_secs(120);

/// What weirs share.
pub struct Shared {
    pub postgres: Postgres,
    pub redis: Redis,
    prefix: Prefix,
    pub upstream: Arc<Server>,
    pub store: Store,
}

impl Shared {
    /// With a Redis of the test's own; `None` where there are no servers, which is told.
    pub async fn start() -> Option<Self> {
        Self::start_with(Redis::own()?).await
    }

    pub async fn start_with(redis: Redis) -> Option<Self> {
        let postgres = Postgres::new()?;
        let prefix = Prefix::new(&redis);
        let store = Store::connect(&postgres.url()).expect("it can be used");
        let upstream = Server::start(Options::default()).await.expect("a free port");
        Some(Self { postgres, redis, prefix, upstream: Arc::new(upstream), store })
    }

    /// Sets a budget by its id.
    pub async fn set(&self, id: &str, limit: &str) {
        set(&self.store, id, limit).await;
    }

    /// Lets a command use what is shared.
    pub fn told<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command
            .env_remove("WEIR_STORE__PATH")
            .env("WEIR_STORE__URL", self.postgres.url())
            .env("WEIR_REDIS__URL", &self.redis.url)
            .env("WEIR_REDIS__KEY_PREFIX", &self.prefix.name)
    }

    /// Starts one more weir.
    pub fn serve(&self, settings: &[(&str, &str)]) -> Serving {
        let mut command = weir(&["serve", "--listen", "127.0.0.1:0", "--upstream"]);
        command.arg(self.upstream.base_url()).envs(settings.iter().copied());
        Serving::run(self.told(&mut command))
    }

    /// How the one budget stands, as this weir tells it.
    pub async fn standing(&self, address: SocketAddr) -> Option<Value> {
        let answer = ask(address, bare("GET", "/weir/v1/budgets", HEADER)).await;
        let told: Value = serde_json::from_slice(&answer.body).ok()?;
        told["data"].as_array()?.first().cloned()
    }

    /// Waits until nothing is held of the one budget and what is spent is what the rows say.
    pub async fn until_settled(&self, address: SocketAddr) {
        let mut last = None;
        let settled = async {
            loop {
                let standing = self.standing(address).await;
                if let Some(standing) = &standing
                    && standing["held"] == "0.00"
                    && nano_usd(&standing["spent"]) == sum(&self.store).await.0
                {
                    return;
                }
                last = standing.or(last.take());
                tokio::task::yield_now().await;
            }
        };
        let settled = tokio::time::timeout(WAIT_LIMIT, settled).await;
        let spent = sum(&self.store).await.0;
        assert!(settled.is_ok(), "held for ever, or spent is not {spent}: {last:?}");
    }

    /// Waits until this weir lets a request in.
    pub async fn until_let_in(&self, address: SocketAddr, request: String) {
        let let_in = async { while ask(address, &request).await.status() != 200 {} };
        tokio::time::timeout(WAIT_LIMIT, let_in).await.expect("what has room is let in");
    }
}
