//! Limits that an upstream reports with a time: until then it is not asked again while another can be. By
//! model, since providers limit each by itself. Bounded in number and time.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use weir_store::Tenant;

/// Maximum number of models that are waited for.
const MAX_COOLING: usize = 1000;
/// Longest wait; after it, a request asks again.
const MAX_WAIT: Duration = Duration::from_secs(3600);

/// Models of one upstream that are at a limit, each until a time.
#[derive(Debug, Default)]
pub(super) struct Cooldowns(Mutex<HashMap<Limited, Instant>>);

/// Whose requests for which model; all if they share a credential.
type Limited = (Option<Tenant>, String);

impl Cooldowns {
    /// Records at `now` that requests for `model` are unwelcome for this long.
    pub(super) fn note(&self, tenant: Option<Tenant>, model: &str, now: Instant, wait: Duration) {
        if wait.is_zero() {
            return;
        }
        let mut cooling = self.0.lock();
        if cooling.len() >= MAX_COOLING {
            cooling.retain(|_, until| *until > now);
        }
        if cooling.len() < MAX_COOLING {
            cooling.insert((tenant, bare(model)), now + wait.min(MAX_WAIT));
        }
    }

    /// Whether requests for `model` are unwelcome at `now`.
    pub(super) fn is_cooling(&self, tenant: Option<Tenant>, model: &str, now: Instant) -> bool {
        let cooling = self.0.lock();
        if cooling.is_empty() {
            return false;
        }
        cooling.get(&(tenant, bare(model))).is_some_and(|until| now < *until)
    }
}

/// Returns a model's name in one spelling, without the prefix of its provider.
fn bare(model: &str) -> String {
    model.rsplit('/').next().unwrap_or(model).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_holds_for_its_time_its_model_and_its_tenant() {
        let (cooldowns, begun) = (Cooldowns::default(), Instant::now());
        let at = |seconds| begun + Duration::from_secs(seconds);
        cooldowns.note(None, "a", begun, Duration::from_secs(60));
        cooldowns.note(None, "b", begun, Duration::ZERO);
        cooldowns.note(None, "c", begun, Duration::MAX);
        for (tenant, model, seconds, expected) in [
            (None, "a", 0, true),
            (None, "a", 59, true),
            (None, "openai/A", 59, true),
            (None, "a", 60, false),
            (None, "b", 0, false),
            (Some(Tenant([1; 16])), "a", 0, false),
            (None, "c", 3599, true),
            (None, "c", 3600, false),
        ] {
            assert_eq!(
                cooldowns.is_cooling(tenant, model, at(seconds)),
                expected,
                "{model} {seconds}"
            );
        }
        for number in 0..2 * MAX_COOLING {
            cooldowns.note(None, &number.to_string(), begun, Duration::from_secs(1));
        }
        assert!(cooldowns.0.lock().len() <= MAX_COOLING);
    }
}
