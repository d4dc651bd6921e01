//! `[events]`: events for operators, posted to a webhook. Posts nothing.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::auth::SecretPlace;
use super::choices::words;
use super::names::is_local_host;
use super::reader::settings;
use super::words::{Worded, worded};
use super::{Config, Secret};

/// Prefix of a signing secret by the scheme of Standard Webhooks.
const SECRET_PREFIX: &str = "whsec_";
/// Sizes of signing keys that the scheme allows.
const KEY_BYTES: std::ops::RangeInclusive<usize> = 24..=64;

worded! {
    /// Kind of event, with its name in posts and in the configuration.
    EventKind {
        /// A budget has passed its warning mark.
        BudgetWarning = "budget_warning",
        /// A budget is spent.
        BudgetExhausted = "budget_exhausted",
        /// An upstream is skipped, since it failed several times in a row.
        BreakerOpened = "breaker_opened",
        /// A skipped upstream answers again.
        BreakerClosed = "breaker_closed",
        /// An upstream refused a request as too long, so a lower limit applies.
        LimitLearned = "limit_learned",
        /// The store cannot be written.
        StoreFailing = "store_failing",
        /// The store can be written again.
        StoreRecovered = "store_recovered",
        /// A changed configuration was refused.
        ReloadRefused = "reload_refused",
    }
}

impl EventKind {
    fn from_word(word: &str) -> Result<Self, String> {
        let found = Self::WORDS.iter().find(|(own, _)| *own == word);
        found.map(|(_, kind)| *kind).ok_or_else(|| {
            let words = words::<Self>().join(", ");
            format!("{word:?} is not a kind of event; the kinds are {words}")
        })
    }
}

settings! {
    /// `[events]`: events for operators.
    #[derive(Debug, Clone, Default)]
    Events from keys {
        /// URL to post to; empty for none.
        webhook_url: String = keys.text("webhook_url", |text| web_url(text.trim())),
        /// Kinds to post; empty for all.
        kinds: Vec<EventKind> = keys.list("kinds", EventKind::from_word).unwrap_or_default(),
        /// Place of the signing secret.
        secret_place: SecretPlace = keys.text("secret", SecretPlace::parse),
        /// The secret itself, filled in at start.
        secret: Option<Secret> = None,
    }
}

impl Config {
    /// Returns the URL that events are posted to, and their kinds; `None` if nothing is posted.
    pub fn webhook(&self) -> Option<(&str, Vec<EventKind>)> {
        let events = &self.events;
        let mut kinds = events.kinds.clone();
        if kinds.is_empty() {
            kinds.extend(EventKind::WORDS.iter().map(|(_, kind)| *kind));
        }
        (!events.webhook_url.is_empty()).then_some((events.webhook_url.as_str(), kinds))
    }
}

/// Returns the key that a signing secret stands for; `None` if it is not one.
pub fn signing_key(secret: &str) -> Option<Vec<u8>> {
    let text = secret.strip_prefix(SECRET_PREFIX).unwrap_or(secret);
    let key = STANDARD.decode(text).ok()?;
    KEY_BYTES.contains(&key.len()).then_some(key)
}

/// Parses a URL to post to, or nothing. The text is not repeated in the error: it may hold a secret.
pub(super) fn web_url(text: &str) -> Result<String, String> {
    let is_web = text.starts_with("https://") || text.starts_with("http://");
    let has_host = text.parse::<http::Uri>().is_ok_and(|uri| uri.host().is_some());
    match text.is_empty() || is_web && has_host {
        true => Ok(text.to_owned()),
        false => Err("is not a URL to post to; write it as https://HOST/PATH".to_owned()),
    }
}

/// Returns settings that are probably not meant, by their keys.
pub(super) fn warnings(config: &Config) -> Vec<(&'static str, String)> {
    let (events, mut found) = (&config.events, Vec::new());
    let has_secret = events.secret_place.is_set();
    let url = config.webhook().map(|(url, _)| url);
    if events.webhook_url.is_empty() && !events.kinds.is_empty() {
        found.push(("events.kinds", "has no effect without events.webhook_url".to_owned()));
    }
    if url.is_none() && has_secret {
        let message = "nothing is signed: set events.webhook_url to the URL that events are \
                       posted to";
        found.push(("events.webhook_url", message.to_owned()));
    }
    let host = url.and_then(|url| url.parse::<http::Uri>().ok());
    let host = host.as_ref().and_then(http::Uri::host).unwrap_or_default();
    let is_remote = !host.is_empty() && !is_local_host(host);
    let is_plain = url.is_some_and(|url| url.to_ascii_lowercase().starts_with("http://"));
    if is_remote && !has_secret {
        let message = "posts are not signed, so the receiver cannot know that they come from weir; \
                       set events.secret";
        found.push(("events.secret", message.to_owned()));
    }
    if is_plain && is_remote {
        let message = format!("events go to {host} unencrypted; use https:// if it can");
        found.push(("events.webhook_url", message));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_base64_of_a_sound_length() {
        let key = [7; 32];
        let text = STANDARD.encode(key);
        for written in [text.clone(), format!("whsec_{text}")] {
            assert_eq!(signing_key(&written).as_deref(), Some(&key[..]), "{written}");
        }
        for wrong in ["", "whsec_", "not base64 at all!", &STANDARD.encode([7; 23])] {
            assert_eq!(signing_key(wrong), None, "{wrong}");
        }
        assert_eq!(signing_key(&STANDARD.encode([7; 65])), None);
    }

    #[test]
    fn no_kinds_are_all_kinds() {
        let mut config = Config::default();
        assert_eq!(config.webhook(), None);
        let all = EventKind::WORDS.iter().map(|(_, kind)| *kind).collect();
        config.events.webhook_url = "https://new.example/".to_owned();
        assert_eq!(config.webhook(), Some(("https://new.example/", all)));
        config.events.kinds = vec![EventKind::ReloadRefused];
        let kinds = vec![EventKind::ReloadRefused];
        assert_eq!(config.webhook(), Some(("https://new.example/", kinds)));
    }
}
