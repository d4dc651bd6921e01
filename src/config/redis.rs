//! `[redis]`: shared counters of several instances. Errors repeat no URL: it may contain a
//! password.

use super::Secret;
use super::keys::REDIS;
use super::reader::Reader;

/// Maximum length of the key prefix.
const MAX_PREFIX_BYTES: usize = 64;

/// `[redis]`: shared counters of several instances.
#[derive(Debug, Clone)]
pub struct Redis {
    /// Empty for none: each instance counts separately.
    pub url: Secret,
    /// Prefix of all keys, so that several deployments can share one Redis.
    pub key_prefix: String,
}

/// Reads `[redis]`.
pub(super) fn read(reader: &mut Reader) -> Redis {
    let mut keys = reader.section(&REDIS);
    let (url, key_prefix) = keys.text("url", url);
    Redis { url, key_prefix }
}

/// Separates the address from the prefix of keys.
fn url(text: &str) -> Result<(Secret, String), String> {
    let (text, prefix) = text.trim().rsplit_once("?prefix=").unwrap_or((text.trim(), "weir"));
    let prefix = key_prefix(prefix)?;
    let rest = text.strip_prefix("redis://").or(text.strip_prefix("rediss://"));
    let host = rest.map(|rest| rest.rsplit('@').next().unwrap_or_default());
    if text.is_empty() || host.is_some_and(|host| !host.is_empty() && !host.starts_with('/')) {
        Ok((Secret::new(text), prefix))
    } else {
        Err("is not a Redis address; write redis://HOST:PORT, or rediss:// for TLS, such as \
             redis://127.0.0.1:6379"
            .to_owned())
    }
}

fn key_prefix(text: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
    if (1..=MAX_PREFIX_BYTES).contains(&text.len()) && text.chars().all(is_plain) {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "{text:?} is not a valid key prefix; write at most {MAX_PREFIX_BYTES} letters, digits \
             and -_.:"
        ))
    }
}
