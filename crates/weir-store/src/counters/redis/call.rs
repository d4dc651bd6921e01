//! Script calls within a generation. If the generation has ended, because Redis was emptied or
//! restarted, this instance registers its requests in the new one and repeats the call.

use std::sync::Arc;

use redis::Script;
use serde_json::{Value, json};

use super::super::super::{StoreError, Stored};
use super::scripts::GENERATION;
use super::{MAX_TRIES, RedisCounters};
use crate::secret::random_name;

impl RedisCounters {
    /// Reads the generation from Redis, or starts one if there is none.
    pub(crate) async fn refresh_generation(&self) -> Stored<Arc<str>> {
        let arguments = json!({ "proposal": random_name()? });
        let reply = self.redis.run(&GENERATION, &self.key, &arguments).await?;
        let token: Arc<str> =
            reply.first().map(|token| token.as_str().into()).ok_or_else(unexpected_reply)?;
        let is_new = {
            let mut state = self.state.lock();
            let is_new = state.generation.as_ref() != Some(&token);
            state.generation = Some(Arc::clone(&token));
            is_new
        };
        if is_new {
            self.register_unknown().await?;
        }
        Ok(token)
    }

    /// Runs a script in the known generation, and in a newer one after registering this instance's
    /// requests there.
    pub(crate) async fn call(
        &self,
        script: &Script,
        arguments: impl Fn(&str) -> Value,
    ) -> Stored<Vec<String>> {
        Ok(self.call_with_generation(script, arguments).await?.1)
    }

    pub(crate) async fn call_with_generation(
        &self,
        script: &Script,
        arguments: impl Fn(&str) -> Value,
    ) -> Stored<(Arc<str>, Vec<String>)> {
        for _ in 0..MAX_TRIES {
            let generation = self.generation().await?;
            let reply = self.call_in(&generation, script, &arguments).await?;
            if !is_stale(&reply) {
                return Ok((generation, reply));
            }
            self.refresh_generation().await?;
        }
        Err(StoreError::Busy)
    }

    /// Runs a script in this generation, without a retry.
    pub(crate) async fn call_in(
        &self,
        generation: &str,
        script: &Script,
        arguments: impl Fn(&str) -> Value,
    ) -> Stored<Vec<String>> {
        let mut arguments = arguments(generation);
        arguments["generation"] = Value::from(generation);
        self.redis.run(script, &self.key, &arguments).await
    }

    /// Returns the generation known to this instance.
    pub(crate) async fn generation(&self) -> Stored<Arc<str>> {
        let known = self.state.lock().generation.clone();
        match known {
            Some(known) => Ok(known),
            None => self.refresh_generation().await,
        }
    }
}

/// Returns whether Redis is in another generation than the call assumed.
pub(super) fn is_stale(reply: &[String]) -> bool {
    reply.first().is_some_and(|word| word == "stale")
}

pub(super) fn unexpected_reply() -> StoreError {
    StoreError::Failed("Redis: a script returned an unexpected reply".to_owned())
}
