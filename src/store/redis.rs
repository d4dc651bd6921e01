//! The way to a Redis that several instances of weir share: one connection, made anew where it broke,
//! and scripts that are one step each. Knows nothing of what the scripts mean. Says nowhere what the
//! URL holds.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisError, Script};
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};

use super::StoreError;
use crate::config;

/// How long an answer is waited for: one that is slow is not away, and what is not held is not sent.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long after a failure nobody asks again, so that requests do not each wait for what is away.
const PAUSE: Duration = Duration::from_millis(200);

/// A Redis. Clones share one connection.
#[derive(Clone)]
pub struct Redis(Arc<Inner>);

struct Inner {
    client: Client,
    /// What all keys begin with, in braces: a cluster keeps them in one slot.
    tag: String,
    timeout: Duration,
    connection: Mutex<Option<(u64, MultiplexedConnection)>>,
    /// Until when nobody asks; the number of the next connection.
    pause: std::sync::Mutex<(Option<Instant>, u64)>,
    is_away: AtomicBool,
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Redis")
    }
}

impl Redis {
    /// The Redis at `url`, whose keys begin with `prefix`. Connects when something is asked, and
    /// waits for no answer longer than `timeout`.
    pub fn new(url: &str, prefix: &str, timeout: Duration) -> Result<Self, StoreError> {
        let client = Client::open(url).map_err(|_| {
            let said = "is no address of a Redis, such as redis://127.0.0.1:6379";
            StoreError::Failed(said.to_owned())
        })?;
        Ok(Self(Arc::new(Inner {
            client,
            tag: format!("{{{prefix}}}"),
            timeout,
            connection: Mutex::default(),
            pause: std::sync::Mutex::default(),
            is_away: AtomicBool::new(false),
        })))
    }

    /// The Redis that is configured, if one is.
    pub fn configured(config: &config::Redis) -> Result<Option<Self>, StoreError> {
        match config.url.expose() {
            "" => Ok(None),
            url => Self::new(url, &config.key_prefix, TIMEOUT).map(Some),
        }
    }

    /// A key of this prefix.
    pub fn key(&self, name: &str) -> String {
        format!("{}:{name}", self.0.tag)
    }

    /// Asks for nothing, to see whether there is an answer.
    pub async fn reached(&self) -> Result<(), StoreError> {
        let nothing = Script::new("return {}");
        self.run(&nothing, &self.key("reached"), &Value::Null).await.map(drop)
    }

    /// Runs a script with one key and one argument, which is JSON.
    pub async fn run(
        &self,
        script: &Script,
        key: &str,
        argument: &Value,
    ) -> Result<Vec<String>, StoreError> {
        let deadline = Instant::now() + self.0.timeout;
        if self.is_paused() {
            return Err(away());
        }
        let mut invocation = script.key(key);
        invocation.arg(argument.to_string());
        let mut number = None;
        let asked = async {
            let (own, mut connection) = self.connection().await?;
            number = Some(own);
            invocation.invoke_async(&mut connection).await
        };
        match timeout_at(deadline, asked).await {
            Ok(Ok(reply)) => {
                self.note_there();
                Ok(reply)
            }
            Ok(Err(error)) if error.is_unrecoverable_error() || error.is_io_error() => {
                self.note_away(number).await;
                Err(said(&error))
            }
            Ok(Err(error)) => Err(said(&error)),
            Err(_) => {
                self.note_away(number).await;
                Err(away())
            }
        }
    }

    async fn connection(&self) -> Result<(u64, MultiplexedConnection), RedisError> {
        let mut connection = self.0.connection.lock().await;
        if let Some(there) = &*connection {
            return Ok(there.clone());
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.0.timeout))
            .set_response_timeout(None);
        let made = self.0.client.get_multiplexed_async_connection_with_config(&config).await?;
        let number = {
            let mut pause = self.pause();
            pause.1 += 1;
            pause.1
        };
        *connection = Some((number, made.clone()));
        Ok((number, made))
    }

    /// Whether it was found away just now. One at a time asks whether it is back.
    fn is_paused(&self) -> bool {
        let (now, mut pause) = (Instant::now(), self.pause());
        match pause.0 {
            Some(until) if now < until => true,
            Some(_) => {
                pause.0 = Some(now + PAUSE);
                false
            }
            None => false,
        }
    }

    fn pause(&self) -> std::sync::MutexGuard<'_, (Option<Instant>, u64)> {
        self.0.pause.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn note_there(&self) {
        if self.0.is_away.swap(false, Ordering::Relaxed) {
            self.pause().0 = None;
            tracing::info!(target: "weir::redis", "Redis answers again");
        }
    }

    /// Gives up the connection that did not answer, if it is still the one in use.
    async fn note_away(&self, number: Option<u64>) {
        self.pause().0 = Some(Instant::now() + PAUSE);
        if !self.0.is_away.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                target: "weir::redis",
                "Redis does not answer; what is counted there is out of reach until it does"
            );
        }
        if let Ok(mut connection) = self.0.connection.try_lock()
            && connection.as_ref().is_some_and(|(own, _)| Some(*own) == number)
        {
            *connection = None;
        }
    }
}

fn away() -> StoreError {
    StoreError::Failed("Redis does not answer".to_owned())
}

/// An error in words that quote nothing that was asked.
fn said(error: &RedisError) -> StoreError {
    let code = error.code().map(|code| format!(" ({code})")).unwrap_or_default();
    StoreError::Failed(format!("Redis: {}{code}", error.category()))
}
