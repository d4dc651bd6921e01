//! `[redis]`: where several instances count together. Repeats no URL in a message: it may hold a
//! password.

use super::reader::Reader;
use super::{Secret, set};

/// The longest beginning of keys.
const MAX_PREFIX_BYTES: usize = 64;

/// `[redis]`: where several instances count together.
#[derive(Debug, Clone)]
pub struct Redis {
    /// Empty for none: each instance counts for itself.
    pub url: Secret,
    /// What all keys begin with, so that several weirs can share a Redis.
    pub key_prefix: String,
}

impl Default for Redis {
    fn default() -> Self {
        Self { url: Secret::new(""), key_prefix: "weir".to_owned() }
    }
}

pub(super) fn read(reader: &mut Reader, redis: &mut Redis) {
    set(&mut redis.url, reader.text(&["redis", "url"], url));
    set(&mut redis.key_prefix, reader.text(&["redis", "key_prefix"], key_prefix));
}

fn url(text: &str) -> Result<Secret, String> {
    let text = text.trim();
    let rest = text.strip_prefix("redis://").or(text.strip_prefix("rediss://"));
    let host = rest.map(|rest| rest.rsplit('@').next().unwrap_or_default());
    if text.is_empty() || host.is_some_and(|host| !host.is_empty() && !host.starts_with('/')) {
        Ok(Secret::new(text))
    } else {
        Err("is no address of a Redis; write redis://HOST:PORT, or rediss:// for TLS, such as \
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
            "{text:?} cannot begin keys; write at most {MAX_PREFIX_BYTES} letters, digits and -_.:"
        ))
    }
}
