//! Authentication: identifies the holder of a virtual key or, in open mode, everyone who sends the
//! same credential. Reads headers only; `proxy::Caller` decides on permissions.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use memchr::memmem;

use crate::config::AuthMode;
use crate::proxy::{Caller, ErrorKind, Proxy, ProxyError, Tenant};
use crate::upstream::query;
use weir_store::keys::{self, KeyCache, KeyStatus};
use weir_store::now_ms;

/// Headers that may carry a caller's credential.
const CREDENTIALS: [HeaderName; 3] =
    [AUTHORIZATION, HeaderName::from_static("api-key"), HeaderName::from_static("x-api-key")];
/// Scheme before a key in `authorization`.
const SCHEME: &str = "bearer ";
/// Scheme before a base64-encoded name and password in `authorization`.
const BASIC_SCHEME: &str = "basic ";

/// Authenticator of callers.
pub(super) enum Auth {
    Open { tenant_key: [u8; blake3::KEY_LEN] },
    Keys(Box<KeyCache>),
}

impl Auth {
    /// Creates the authenticator for `mode`. Its tenants are meaningless to anyone without the secret of
    /// `proxy`.
    pub(super) fn new(mode: AuthMode, proxy: &Proxy) -> Self {
        let store = proxy.store();
        match mode {
            AuthMode::Open => Self::Open { tenant_key: proxy.secret() },
            AuthMode::Keys => Self::Keys(Box::new(KeyCache::new(store.clone()))),
        }
    }

    /// Whether everyone who reaches weir may use it.
    pub(super) fn is_open(&self) -> bool {
        matches!(self, Self::Open { .. })
    }

    /// Identifies the sender of a request with these headers to this address. In keys mode, callers
    /// without a valid key are refused.
    pub(super) async fn caller(
        &self,
        headers: &HeaderMap,
        uri: &Uri,
    ) -> Result<Caller, ProxyError> {
        let ring = match self {
            Self::Open { tenant_key } => {
                if headers.values().any(|value| holds_secret(value.as_bytes())) || is_in_uri(uri) {
                    return Err(refused(OPEN_MODE));
                }
                return Ok(Caller::new(tenant(tenant_key, headers), None));
            }
            Self::Keys(ring) => ring,
        };
        let elsewhere = headers.iter().filter(|(name, _)| !CREDENTIALS.contains(name));
        if elsewhere.into_iter().any(|(_, value)| holds_secret(value.as_bytes())) || is_in_uri(uri)
        {
            return Err(refused(MISPLACED));
        }
        let secret = sole_key(headers)?;
        let found = ring.find(secret).await.map_err(|error| {
            tracing::warn!(target: "weir::store", %error, "keys cannot be read");
            let message = "weir cannot read its store of keys at the moment. Try again shortly.";
            ProxyError::new(ErrorKind::StoreUnavailable, message)
        })?;
        let Some((holder, as_of)) = found else {
            return Err(refused(
                "This API key is not one of weir's. Check it, or ask for a new one.",
            ));
        };
        match holder.status(now_ms()) {
            KeyStatus::Live => {
                let caller = Caller::new(holder.tenant, Some(holder.key.clone()));
                Ok(Caller { as_of: Some(as_of), ..caller })
            }
            KeyStatus::Expired => Err(refused("This API key has expired. Ask for a new one.")),
            KeyStatus::Revoked => Err(refused("This API key was revoked. Ask for a new one.")),
        }
    }
}

/// Refusal of a virtual key if weir forwards credentials unchanged.
const OPEN_MODE: &str = "The request carries one of weir's virtual keys (sk-weir-...), but this weir \
    does not check keys: auth.mode is \"open\", which forwards each caller's credential to the \
    provider. To use virtual keys, set auth.mode = \"keys\" in weir's configuration; otherwise send \
    the provider's own API key.";
/// Refusal of a virtual key in a place from which weir reads no keys.
const MISPLACED: &str = "The request carries one of weir's virtual keys (sk-weir-...) where it would be \
    forwarded. Send it as the SDK's API key, which is the header 'Authorization: Bearer KEY', and \
    nowhere else.";

/// Whether a header's value holds a virtual key's secret, plain or as a password.
fn holds_secret(value: &[u8]) -> bool {
    let holds = |bytes: &[u8]| memmem::find(bytes, keys::PREFIX.as_bytes()).is_some();
    if holds(value) {
        return true;
    }
    let value = value.trim_ascii();
    let is_basic = value
        .get(..BASIC_SCHEME.len())
        .is_some_and(|scheme| scheme.eq_ignore_ascii_case(BASIC_SCHEME.as_bytes()));
    is_basic
        && STANDARD
            .decode(value[BASIC_SCHEME.len()..].trim_ascii())
            .is_ok_and(|decoded| holds(&decoded))
}

/// Whether a path or query holds a virtual key's secret.
fn is_in_uri(uri: &Uri) -> bool {
    is_secret_in(uri.path_and_query().map_or("", |both| both.as_str()))
}

/// Whether part of a URL holds a virtual key's secret, possibly percent-encoded.
pub(super) fn is_secret_in(text: &str) -> bool {
    let holds = |bytes: &[u8]| memmem::find(bytes, keys::PREFIX.as_bytes()).is_some();
    holds(text.as_bytes()) || (text.contains('%') && holds(&query::percent_decoded(text)))
}

/// Returns the single key that a request carries, in any of the headers.
fn sole_key(headers: &HeaderMap) -> Result<&str, ProxyError> {
    let mut sole = None;
    for value in CREDENTIALS.iter().flat_map(|name| headers.get_all(name)) {
        if is_blank(value.as_bytes()) {
            continue;
        }
        // A value that is not plain text, or has another scheme, belongs to nobody.
        let text = value.to_str().unwrap_or("-").trim();
        let key = match text.get(..SCHEME.len()) {
            Some(scheme) if scheme.eq_ignore_ascii_case(SCHEME) => text[SCHEME.len()..].trim(),
            _ => text,
        };
        if sole.is_some_and(|sole| sole != key) {
            return Err(refused("The request carries more than one API key. Send one."));
        }
        sole = Some(key);
    }
    sole.ok_or_else(|| {
        refused(
            "You didn't provide an API key. Send one of weir's as the SDK's API key, which is the \
             header 'Authorization: Bearer KEY'.",
        )
    })
}

fn refused(message: &str) -> ProxyError {
    ProxyError::new(ErrorKind::InvalidApiKey, message)
}

/// Derives the tenant in open mode. Everything that may be a credential counts: two callers are the
/// same only if they agree in every part.
fn tenant(tenant_key: &[u8; blake3::KEY_LEN], headers: &HeaderMap) -> Tenant {
    let values = |name| headers.get_all(name).iter();
    if CREDENTIALS.iter().flat_map(values).all(|value| is_blank(value.as_bytes())) {
        return Tenant::ANONYMOUS;
    }
    let mut hasher = blake3::Hasher::new_keyed(tenant_key);
    for (place, name) in (0u8..).zip(&CREDENTIALS) {
        for value in headers.get_all(name) {
            hasher.update(&[place]);
            hasher.update(&value.len().to_le_bytes());
            hasher.update(value.as_bytes());
        }
    }
    let mut tenant = Tenant([0; 16]);
    hasher.finalize_xof().fill(&mut tenant.0);
    tenant
}

/// Returns the tenants in open mode of requests that carry this key alone, in any of the headers.
pub fn tenants_of(tenant_key: &[u8; blake3::KEY_LEN], key: &str) -> Vec<Tenant> {
    let sent = CREDENTIALS.into_iter().map(|name| {
        let value = match name == AUTHORIZATION {
            true => format!("Bearer {key}"),
            false => key.to_owned(),
        };
        let value = HeaderValue::from_str(&value).ok()?;
        Some(tenant(tenant_key, &HeaderMap::from_iter([(name, value)])))
    });
    sent.flatten().collect()
}

/// Whether a header identifies nobody: it is empty, or holds only the scheme, as clients with an
/// empty key send it.
fn is_blank(value: &[u8]) -> bool {
    let value = value.trim_ascii();
    value.is_empty() || value.eq_ignore_ascii_case(b"bearer")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(rows: &[(&'static str, &'static str)]) -> HeaderMap {
        rows.iter()
            .map(|(name, value)| {
                let name = HeaderName::from_static(name);
                (name, HeaderValue::from_static(value))
            })
            .collect()
    }

    #[test]
    fn a_tenant_is_its_whole_credential() {
        let tenant = |rows: &[_]| tenant(&[1; 32], &headers(rows));
        let different = [
            tenant(&[]),
            tenant(&[("authorization", "Bearer sk-same-start-1")]),
            tenant(&[("authorization", "Bearer sk-same-start-2")]),
            tenant(&[("api-key", "Bearer sk-same-start-1")]),
            tenant(&[("x-api-key", "Bearer sk-same-start-1")]),
            tenant(&[("authorization", "Bearer sk-same-start-1"), ("api-key", "k")]),
        ];
        for (index, one) in different.iter().enumerate() {
            assert!(!different[..index].contains(one), "{index}");
        }
        for nobody in [("user-agent", "any"), ("authorization", "Bearer "), ("api-key", "")] {
            assert_eq!(tenant(&[nobody]), Tenant::ANONYMOUS, "{nobody:?}");
        }
        assert_eq!(different[0], Tenant::ANONYMOUS);
        assert_eq!(tenant(&[("authorization", "Bearer sk-same-start-1")]), different[1]);
    }

    #[test]
    fn a_tenant_is_one_under_one_secret_alone() {
        let under = |key| {
            let rows = [("authorization", "Bearer sk-1")];
            tenant(&[key; 32], &headers(&rows))
        };
        assert_eq!(under(1), under(1));
        assert_ne!(under(1), under(2));
    }

    #[test]
    fn a_key_may_stand_in_any_header_but_there_is_one() {
        let key = |rows: &[_]| sole_key(&headers(rows)).map(str::to_owned).ok();
        for (rows, expected) in [
            (&[("authorization", "Bearer k")][..], Some("k")),
            (&[("authorization", "bearer  k ")], Some("k")),
            (&[("authorization", "k")], Some("k")),
            (&[("api-key", "k")], Some("k")),
            (&[("x-api-key", "k"), ("authorization", "Bearer k")], Some("k")),
            (&[("x-api-key", "k"), ("authorization", "Bearer ")], Some("k")),
            (&[("x-api-key", "k"), ("authorization", "Bearer l")], None),
            (&[("authorization", "Bearer k"), ("authorization", "Bearer l")], None),
            (&[("authorization", "Bearer")], None),
            (&[("cookie", "k")], None),
        ] {
            assert_eq!(key(rows).as_deref(), expected, "{rows:?}");
        }
    }
}
