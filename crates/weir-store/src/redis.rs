//! Connection to a Redis shared by several instances: one connection, re-established after errors,
//! and atomic scripts. Scripts are opaque here. No message repeats the URL.

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
use crate::Secret;

/// Timeout of an answer. It is long: a slow Redis is not unreachable, and requests without a hold
/// are not sent.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a failure, so that requests do not each wait for an unreachable Redis.
const PAUSE: Duration = Duration::from_millis(200);

/// A Redis client. Clones share one connection.
#[derive(Clone)]
pub struct Redis(Arc<Inner>);

struct Inner {
    client: Client,
    /// Prefix of all keys, in braces: a cluster keeps them in one slot.
    tag: String,
    timeout: Duration,
    connection: Mutex<Option<(u64, MultiplexedConnection)>>,
    /// End of the pause; number of the next connection.
    pause: std::sync::Mutex<(Option<Instant>, u64)>,
    is_unreachable: AtomicBool,
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Redis")
    }
}

impl Redis {
    /// Creates a client for `url` with the key prefix `prefix`. Connects on first use, and waits at
    /// most `timeout` for an answer.
    pub fn new(url: &str, prefix: &str, timeout: Duration) -> Result<Self, StoreError> {
        let client = Client::open(url).map_err(|_| {
            let message = "is not a Redis address, such as redis://127.0.0.1:6379";
            StoreError::Failed(message.to_owned())
        })?;
        Ok(Self(Arc::new(Inner {
            client,
            tag: format!("{{{prefix}}}"),
            timeout,
            connection: Mutex::default(),
            pause: std::sync::Mutex::default(),
            is_unreachable: AtomicBool::new(false),
        })))
    }

    /// The configured Redis, or `None` if `url` is empty.
    pub fn configured(url: &Secret, key_prefix: &str) -> Result<Option<Self>, StoreError> {
        match url.expose() {
            "" => Ok(None),
            url => Self::new(url, key_prefix, TIMEOUT).map(Some),
        }
    }

    /// Returns a key with this prefix.
    pub fn key(&self, name: &str) -> String {
        format!("{}:{name}", self.0.tag)
    }

    /// Pings the server.
    pub async fn ping(&self) -> Result<(), StoreError> {
        let nothing = Script::new("return {}");
        self.run(&nothing, &self.key("reached"), &Value::Null).await.map(drop)
    }

    /// Runs a script with one key and one JSON argument.
    pub async fn run(
        &self,
        script: &Script,
        key: &str,
        argument: &Value,
    ) -> Result<Vec<String>, StoreError> {
        let deadline = Instant::now() + self.0.timeout;
        if self.is_paused() {
            return Err(unreachable());
        }
        let mut invocation = script.key(key);
        invocation.arg(argument.to_string());
        let mut number = None;
        let answer = async {
            let (own, mut connection) = self.connection().await?;
            number = Some(own);
            invocation.invoke_async(&mut connection).await
        };
        match timeout_at(deadline, answer).await {
            Ok(Ok(reply)) => {
                self.note_reachable();
                Ok(reply)
            }
            Ok(Err(error)) if error.is_unrecoverable_error() || error.is_io_error() => {
                self.note_unreachable(number).await;
                Err(failed(&error))
            }
            Ok(Err(error)) => Err(failed(&error)),
            Err(_) => {
                self.note_unreachable(number).await;
                Err(unreachable())
            }
        }
    }

    async fn connection(&self) -> Result<(u64, MultiplexedConnection), RedisError> {
        let mut connection = self.0.connection.lock().await;
        if let Some(open) = &*connection {
            return Ok(open.clone());
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

    /// Returns whether a recent failure pauses calls. One call at a time tests whether it is back.
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

    fn note_reachable(&self) {
        if self.0.is_unreachable.swap(false, Ordering::Relaxed) {
            self.pause().0 = None;
            tracing::info!(target: "weir::redis", "Redis answers again");
        }
    }

    /// Drops the connection that failed, if it is still the current one.
    async fn note_unreachable(&self, number: Option<u64>) {
        self.pause().0 = Some(Instant::now() + PAUSE);
        if !self.0.is_unreachable.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                target: "weir::redis",
                "Redis does not answer; its counters are unavailable until it does"
            );
        }
        if let Ok(mut connection) = self.0.connection.try_lock()
            && connection.as_ref().is_some_and(|(own, _)| Some(*own) == number)
        {
            *connection = None;
        }
    }
}

fn unreachable() -> StoreError {
    StoreError::Failed("Redis does not answer".to_owned())
}

/// Converts an error without quoting any request data.
fn failed(error: &RedisError) -> StoreError {
    let code = error.code().map(|code| format!(" ({code})")).unwrap_or_default();
    StoreError::Failed(format!("Redis: {}{code}", error.category()))
}
