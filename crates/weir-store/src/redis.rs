//! Connection to a Redis shared by several instances: one connection, re-established after errors,
//! and atomic scripts. Scripts are opaque here. No message repeats the URL.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisError, Script};
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout_at};

use super::{StoreError, Stored};
use crate::Secret;

/// Declares scripts by their files, each with the text of a common one in front.
macro_rules! scripts {
    ($common:literal; $($name:ident = $file:literal;)*) => {
        $(
            pub(super) static $name: std::sync::LazyLock<redis::Script> =
                std::sync::LazyLock::new(|| {
                    redis::Script::new(concat!(include_str!($common), "\n", include_str!($file)))
                });
        )*
    };
}
pub(crate) use scripts;

/// Timeout of an answer. It is long: a slow Redis is not unreachable, and requests without a hold
/// are not sent.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a failure, so that requests do not each wait for an unreachable Redis.
const PAUSE: Duration = Duration::from_millis(200);
/// Interval at which a failing server is asked to accept a write. Longer than the pause.
const PROBE_INTERVAL: Duration = Duration::from_millis(500);

/// A Redis client. Clones share one connection.
#[derive(Clone)]
pub struct Redis(Arc<ConnectionState>);

struct ConnectionState {
    client: Client,
    /// Prefix of all keys, in braces: a cluster keeps them in one slot.
    tag: String,
    timeout: Duration,
    connection: Mutex<Option<(u64, MultiplexedConnection)>>,
    /// End of the pause; number of the next connection.
    pause: parking_lot::Mutex<(Option<Instant>, u64)>,
    is_failing: AtomicBool,
    /// Cause of the last failure that was logged.
    logged: parking_lot::Mutex<String>,
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Redis")
    }
}

impl Redis {
    /// Creates a client for `url` with the key prefix `prefix`. Connects on first use, and waits at
    /// most `timeout` for an answer.
    pub fn new(url: &str, prefix: &str, timeout: Duration) -> Stored<Self> {
        let client = Client::open(url).map_err(|_| {
            let message = "is not a Redis address, such as redis://127.0.0.1:6379";
            StoreError::Failed(message.to_owned())
        })?;
        Ok(Self(Arc::new(ConnectionState {
            client,
            tag: format!("{{{prefix}}}"),
            timeout,
            connection: Mutex::default(),
            pause: parking_lot::Mutex::default(),
            is_failing: AtomicBool::new(false),
            logged: parking_lot::Mutex::default(),
        })))
    }

    /// The configured Redis, or `None` if `url` is empty.
    pub fn configured(url: &Secret, key_prefix: &str) -> Stored<Option<Self>> {
        match url.expose() {
            "" => Ok(None),
            url => Self::new(url, key_prefix, TIMEOUT).map(Some),
        }
    }

    /// Returns a key with this prefix.
    pub fn key(&self, name: &str) -> String {
        format!("{}:{name}", self.0.tag)
    }

    /// Returns whether Redis is silent, or refuses to count.
    pub fn is_failing(&self) -> bool {
        self.0.is_failing.load(Ordering::Relaxed)
    }

    /// Writes to the server, also while other calls pause: one that refuses writes may still answer to
    /// reads.
    pub async fn ping(&self) -> Stored<()> {
        let write = Script::new("redis.call('SET', KEYS[1], '', 'PX', 1000) return {}");
        self.call(&write, &self.key("reached"), &Value::Null).await.map(drop)
    }

    /// Runs a script with one key and one JSON argument.
    pub async fn run(&self, script: &Script, key: &str, argument: &Value) -> Stored<Vec<String>> {
        if self.is_paused() {
            return Err(unreachable());
        }
        self.call(script, key, argument).await
    }

    async fn call(&self, script: &Script, key: &str, argument: &Value) -> Stored<Vec<String>> {
        let deadline = Instant::now() + self.0.timeout;
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
                // One that refuses writes is watched by a task.
                if self.is_failing() {
                    self.note_answer();
                }
                Ok(reply)
            }
            // No script answers with an error of its own: a refusal, such as of the password, of
            // writes or for lack of memory, counts nothing, as silence does.
            Ok(Err(error)) => {
                self.note_failing(number, error.code().unwrap_or_default());
                Err(failed(&error))
            }
            Err(_) => {
                self.note_failing(number, "");
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
            let mut pause = self.0.pause.lock();
            pause.1 += 1;
            pause.1
        };
        *connection = Some((number, made.clone()));
        Ok((number, made))
    }

    /// Returns whether a recent failure pauses calls. One call at a time tests whether it is back.
    fn is_paused(&self) -> bool {
        let (now, mut pause) = (Instant::now(), self.0.pause.lock());
        match pause.0 {
            Some(until) if now < until => true,
            Some(_) => {
                pause.0 = Some(now + PAUSE);
                false
            }
            None => false,
        }
    }

    /// Records an answer while the state is failing, which ends it if the server was silent.
    fn note_answer(&self) {
        self.0.pause.lock().0 = None;
        if self.0.logged.lock().is_empty() {
            self.note_reachable();
        }
    }

    fn note_reachable(&self) {
        if self.0.is_failing.swap(false, Ordering::Relaxed) {
            self.0.pause.lock().0 = None;
            self.0.logged.lock().clear();
            tracing::info!(target: "weir::redis", "Redis answers again");
        }
    }

    /// Drops the connection that failed, if it is still the current one: the next one may lead to
    /// another server, or use another password. `code` is the server's word for its refusal, or empty
    /// if it did not answer. Warns once for each cause.
    fn note_failing(&self, number: Option<u64>, code: &str) {
        self.0.pause.lock().0 = Some(Instant::now() + PAUSE);
        let was_failing = self.0.is_failing.swap(true, Ordering::Relaxed);
        let is_new = {
            let mut logged = self.0.logged.lock();
            let is_new = !was_failing || *logged != code;
            code.clone_into(&mut logged);
            is_new
        };
        if !was_failing {
            tokio::spawn(watch(Arc::downgrade(&self.0)));
        }
        if is_new {
            tracing::warn!(
                target: "weir::redis",
                "Redis {}; its counters are unavailable. Requests in budgets that are spent by the \
                 store's records are refused; budgets.on_failure decides about the others",
                trouble(code)
            );
        }
        if let Ok(mut connection) = self.0.connection.try_lock()
            && connection.as_ref().is_some_and(|(own, _)| Some(*own) == number)
        {
            *connection = None;
        }
    }
}

/// Writes to a failing server until it accepts that.
async fn watch(inner: Weak<ConnectionState>) {
    loop {
        sleep(PROBE_INTERVAL).await;
        let Some(redis) = inner.upgrade().map(Redis) else { return };
        if !redis.is_failing() {
            return;
        }
        if redis.ping().await.is_ok() {
            redis.note_reachable();
            return;
        }
    }
}

/// Returns what a server's word for a refusal means, and what to do.
fn trouble(code: &str) -> String {
    match code {
        "" => "does not answer: check that it runs and that redis.url leads to it".to_owned(),
        "NOAUTH" | "WRONGPASS" => {
            format!("refuses the password ({code}): correct it in redis.url (WEIR_REDIS__URL)")
        }
        "NOPERM" => format!(
            "denies its user a command or key ({code}): permit EVAL, EVALSHA and the keys \
             with the prefix in redis.url"
        ),
        "READONLY" => {
            format!("is a replica ({code}): name the primary server in redis.url")
        }
        "OOM" => format!("has no memory left ({code}): raise its maxmemory, or free some of it"),
        "MISCONF" => format!("cannot save to its disk and refuses writes ({code}): see its log"),
        "LOADING" => format!("still loads its data ({code})"),
        _ => format!("refuses commands ({code}): see its log"),
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
