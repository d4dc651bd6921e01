//! Fixture: weirs that share a store and counters, and the upstream behind them.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use weir_store::Store;

use crate::budgeted::setting::{nano_usd, set, sum};
use crate::budgets::server::{Prefix, Server as Redis};
use crate::cli::{Serving, weir};
use crate::eventually::eventually;
use crate::scripted_upstream::{Options, Server};
use crate::server::harness::{ask, ask_until, bare};
use crate::store::places::{Place as _, Postgres};

/// Credential of all requests.
pub const HEADER: &str = "authorization: Bearer k\r\n";
/// Timeout: a test that reaches it has hung. The lease of a killed instance ends long before.
const WAIT_LIMIT: Duration = Duration::from_secs(120);

/// Services and files that the weirs share.
pub struct Shared {
    pub postgres: Postgres,
    pub redis: Redis,
    prefix: Prefix,
    pub upstream: Arc<Server>,
    pub store: Store,
}

impl Shared {
    /// Starts with a Redis for this test alone.
    pub async fn start() -> Self {
        Self::start_with(Redis::own()).await
    }

    pub async fn start_with(redis: Redis) -> Self {
        let postgres = Postgres::new();
        let prefix = Prefix::new(&redis);
        let store = Store::connect(&postgres.url()).expect("it can be used");
        let upstream = Server::start(Options::default()).await.expect("a free port");
        Self { postgres, redis, prefix, upstream: Arc::new(upstream), store }
    }

    /// Sets a budget by its id.
    pub async fn set(&self, id: &str, limit: &str) {
        set(&self.store, id, limit).await;
    }

    /// Adds the shared services to a command's environment.
    pub fn told<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command
            .env_remove("WEIR_STORE__PATH")
            .env("WEIR_STORE__URL", self.postgres.url())
            .env("WEIR_REDIS__URL", format!("{}?prefix={}", self.redis.url, self.prefix.name))
    }

    /// Starts another weir.
    pub fn serve(&self, settings: &[(&str, &str)]) -> Serving {
        let mut command = weir(&["serve", "--listen", "127.0.0.1:0", "--upstream"]);
        command.arg(self.upstream.base_url()).envs(settings.iter().copied());
        Serving::run(self.told(&mut command))
    }

    /// Returns the status of the one budget as this weir reports it.
    pub async fn status(&self, address: SocketAddr) -> Option<Value> {
        let answer = ask(address, bare("GET", "/weir/v1/budgets", HEADER)).await;
        let told: Value = serde_json::from_slice(&answer.body).ok()?;
        told["data"].as_array()?.first().cloned()
    }

    /// Waits until nothing is held of the one budget and the amount spent equals the sum of the
    /// rows.
    pub async fn until_settled(&self, address: SocketAddr) {
        let look = async || (self.status(address).await, sum(&self.store).await.0);
        let is_settled = |(status, in_rows): &(Option<Value>, u64)| {
            status.as_ref().is_some_and(|status| {
                status["held"] == "0.00" && nano_usd(&status["spent"]) == *in_rows
            })
        };
        eventually(WAIT_LIMIT, look, is_settled).await;
    }

    /// Waits until this weir lets a request in.
    pub async fn until_let_in(&self, address: SocketAddr, request: String) {
        ask_until(address, &request, 200).await;
    }
}
