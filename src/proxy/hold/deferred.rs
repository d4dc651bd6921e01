//! Responses in the background: their usage comes in the answer to a later request, and until then their holds
//! stay. Reads no answer and writes nothing.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use weir_store::Tenant;

/// Time after which a response that nobody has asked for is settled by rule.
const MAX_DEFERRED: Duration = Duration::from_secs(3600);
/// Maximum number of responses; further ones are settled by rule at once.
const MAX_RESPONSES: usize = 10_000;

/// Tenant, and the provider's name of the response.
pub type ResponseKey = (Tenant, String);

/// Accounts of responses that are not finished, each with how the last request about it ended.
pub struct Deferred<T>(Mutex<HashMap<ResponseKey, (T, Instant)>>);

impl<T> Default for Deferred<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Deferred<T> {
    fn parked(&self) -> MutexGuard<'_, HashMap<ResponseKey, (T, Instant)>> {
        // Nothing panics under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps an account until its response is asked for.
    ///
    /// # Errors
    ///
    /// The account, if there is no room.
    pub fn park(&self, response: ResponseKey, account: T) -> Result<(), T> {
        let mut parked = self.parked();
        if parked.len() >= MAX_RESPONSES || parked.contains_key(&response) {
            return Err(account);
        }
        parked.insert(response, (account, Instant::now() + MAX_DEFERRED));
        Ok(())
    }

    /// Keeps the account of a response that is asked for longer. Returns whether there is one.
    pub fn renew(&self, response: &ResponseKey) -> bool {
        let mut parked = self.parked();
        let Some((_, until)) = parked.get_mut(response) else { return false };
        *until = Instant::now() + MAX_DEFERRED;
        true
    }

    /// Takes the account of a response.
    pub fn take(&self, response: &ResponseKey) -> Option<T> {
        self.parked().remove(response).map(|(account, _)| account)
    }

    /// Takes the accounts that are settled by rule: those that nobody has asked for in time, or all.
    pub fn take_late(&self, all: bool) -> Vec<T> {
        let now = Instant::now();
        let mut parked = self.parked();
        let late = parked.extract_if(|_, (_, until)| all || *until <= now);
        late.map(|(_, (account, _))| account).collect()
    }
}
