//! Responses in the background: their usage comes in the answer to a later request, and until then their holds
//! stay. Reads no answer and writes nothing.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::proxy::hold::account::Ended;
use crate::proxy::hold::journal::Account;
use weir_store::Tenant;

/// Time after which a response that nobody has asked for is settled by rule.
const MAX_DEFERRED: Duration = Duration::from_secs(3600);
/// Maximum number of responses; further ones are settled by rule at once.
const MAX_RESPONSES: usize = 10_000;

/// Tenant, and the provider's name of the response.
type ResponseKey = (Tenant, String);

/// Accounts of responses that are not finished.
#[derive(Default)]
pub struct Deferred(Mutex<HashMap<ResponseKey, Parked>>);

struct Parked {
    account: Account,
    /// How the last request about it ended.
    ended: Ended,
    until: Instant,
}

impl Deferred {
    /// Keeps an account until its response is asked for.
    ///
    /// # Errors
    ///
    /// The account and the end, if there is no room.
    pub fn park(
        &self,
        (tenant, response): (Tenant, String),
        account: Account,
        ended: Ended,
    ) -> Result<(), Box<(Account, Ended)>> {
        let mut parked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (tenant, response);
        if parked.len() >= MAX_RESPONSES || parked.contains_key(&key) {
            return Err(Box::new((account, ended)));
        }
        let until = Instant::now() + MAX_DEFERRED;
        parked.insert(key, Parked { account, ended, until });
        Ok(())
    }

    /// Takes the account of a response that a request asks for, and how the last request about it ended.
    pub fn take(&self, tenant: Tenant, response: &str) -> Option<(Account, Ended)> {
        let mut parked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let parked = parked.remove(&(tenant, response.to_owned()))?;
        Some((parked.account, parked.ended))
    }

    /// Takes the accounts that are settled by rule: those that nobody has asked for in time, or all.
    pub fn take_late(&self, all: bool) -> Vec<(Account, Ended)> {
        let now = Instant::now();
        let mut parked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let late = parked.extract_if(|_, parked| all || parked.until <= now);
        late.map(|(_, parked)| (parked.account, parked.ended)).collect()
    }
}
