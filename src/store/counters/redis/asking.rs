//! Asks Redis in the name of a generation. Where it has passed, because Redis was emptied or started
//! anew, this instance registers in the next what it holds before it asks again.

use std::sync::Arc;

use redis::Script;
use serde_json::{Value, json};

use super::super::super::StoreError;
use super::scripts::GENERATION;
use super::{InRedis, MAX_TRIES};

impl InRedis {
    /// Asks Redis what generation it is, and for a new one where there is none.
    pub async fn look_for_generation(&self) -> Result<Arc<str>, StoreError> {
        let asked = json!({ "proposal": random()? });
        let reply = self.redis.run(&GENERATION, &self.key, &asked).await?;
        let token: Arc<str> =
            reply.first().map(|token| token.as_str().into()).ok_or_else(garbled)?;
        let is_new = {
            let mut state = self.state();
            let is_new = state.generation.as_ref() != Some(&token);
            state.generation = Some(Arc::clone(&token));
            is_new
        };
        if is_new {
            self.register_unknown().await?;
        }
        Ok(token)
    }

    /// Asks in the name of the generation that this instance believes in, and in that of a newer one
    /// once it has registered there what it holds.
    pub async fn ask(
        &self,
        script: &Script,
        asked: impl Fn(&str) -> Value,
    ) -> Result<Vec<String>, StoreError> {
        Ok(self.ask_known(script, asked).await?.1)
    }

    pub async fn ask_known(
        &self,
        script: &Script,
        asked: impl Fn(&str) -> Value,
    ) -> Result<(Arc<str>, Vec<String>), StoreError> {
        for _ in 0..MAX_TRIES {
            let generation = self.generation().await?;
            let reply = self.ask_in(&generation, script, &asked).await?;
            if !is_stale(&reply) {
                return Ok((generation, reply));
            }
            self.look_for_generation().await?;
        }
        Err(StoreError::Busy)
    }

    /// Asks in the name of this generation, whatever comes of it.
    pub async fn ask_in(
        &self,
        generation: &str,
        script: &Script,
        asked: impl Fn(&str) -> Value,
    ) -> Result<Vec<String>, StoreError> {
        let mut asked = asked(generation);
        asked["generation"] = Value::from(generation);
        self.redis.run(script, &self.key, &asked).await
    }

    /// The generation that this instance believes in.
    pub async fn generation(&self) -> Result<Arc<str>, StoreError> {
        let known = self.state().generation.clone();
        match known {
            Some(known) => Ok(known),
            None => self.look_for_generation().await,
        }
    }
}

/// Whether Redis knows another generation than it was asked in the name of.
pub fn is_stale(reply: &[String]) -> bool {
    reply.first().is_some_and(|word| word == "stale")
}

/// A text that nobody else makes.
pub fn random() -> Result<String, StoreError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| StoreError::Failed(format!("no random bytes: {error}")))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

pub fn garbled() -> StoreError {
    StoreError::Failed("Redis: a script told what weir does not understand".to_owned())
}
