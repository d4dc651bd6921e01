//! weir's own key for the provider, and removal of the caller's credentials if that key is used.
//! Sends the key to the upstream only.

use http::header::{AUTHORIZATION, COOKIE, SET_COOKIE};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::Base;
use super::endpoint::{Endpoint, Route};
use crate::config::Secret;

const API_KEY: HeaderName = HeaderName::from_static("api-key");
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const ORGANIZATION: HeaderName = HeaderName::from_static("openai-organization");
const PROJECT: HeaderName = HeaderName::from_static("openai-project");
/// Headers in which other providers and gateways look for a credential. A caller's credential next
/// to weir's key would leave open who pays.
const FOREIGN_CREDENTIALS: [HeaderName; 9] = [
    HeaderName::from_static("x-goog-api-key"),
    HeaderName::from_static("ocp-apim-subscription-key"),
    HeaderName::from_static("proxy-authorization"),
    HeaderName::from_static("anthropic-api-key"),
    HeaderName::from_static("x-access-token"),
    HeaderName::from_static("x-amz-security-token"),
    HeaderName::from_static("x-api-token"),
    HeaderName::from_static("x-auth-token"),
    HeaderName::from_static("private-token"),
];

/// weir's own key, ready to send.
#[derive(Clone)]
pub struct ProviderKey {
    bearer: HeaderValue,
    plain: HeaderValue,
    /// Whether the upstream is Azure, which expects `api-key`.
    is_azure: bool,
    /// Whether the upstream is Anthropic, whose native route expects `x-api-key`.
    is_anthropic: bool,
}

impl ProviderKey {
    /// Prepares the key for `base`; `None` if it contains characters that no header may have.
    pub fn new(secret: &Secret, base: &Base) -> Option<Self> {
        let value = |text: &str| {
            let mut value = HeaderValue::from_str(text).ok()?;
            value.set_sensitive(true);
            Some(value)
        };
        let is_of = |domain: &str| {
            let host = base.host().trim_end_matches('.');
            host.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        Some(Self {
            bearer: value(&format!("Bearer {}", secret.expose()))?,
            plain: value(secret.expose())?,
            is_azure: is_of("azure.com"),
            is_anthropic: is_of("anthropic.com"),
        })
    }

    /// Sets the key and removes the caller's credential and everything that identifies the caller
    /// or others: cookies, OpenAI's organisation and project.
    pub fn put_into(&self, headers: &mut HeaderMap, endpoint: &Endpoint) {
        Self::take_out(headers);
        if self.is_azure {
            headers.insert(API_KEY, self.plain.clone());
        } else if self.is_anthropic
            && matches!(endpoint, Endpoint::Route(Route::Messages) | Endpoint::Count)
        {
            headers.insert(X_API_KEY, self.plain.clone());
        } else {
            headers.insert(AUTHORIZATION, self.bearer.clone());
        }
    }

    /// Removes keys of Anthropic, which mean nothing to another provider.
    pub fn take_out_anthropic(headers: &mut HeaderMap) {
        let is_anthropics = |value: &HeaderValue| {
            let key = value.as_bytes().trim_ascii_start();
            let key = key.split(|byte| *byte == b' ').next_back().unwrap_or_default();
            key.starts_with(b"sk-ant-")
        };
        headers.remove(X_API_KEY);
        if headers.get_all(AUTHORIZATION).iter().any(is_anthropics) {
            headers.remove(AUTHORIZATION);
        }
    }

    /// Removes everything that identifies a caller, without a replacement.
    pub fn take_out(headers: &mut HeaderMap) {
        for name in [AUTHORIZATION, API_KEY, X_API_KEY, ORGANIZATION, PROJECT, COOKIE] {
            headers.remove(name);
        }
        for name in FOREIGN_CREDENTIALS {
            headers.remove(name);
        }
    }

    /// Removes from an answer everything that describes the key's owner, who is not the caller.
    pub fn clean_answer(headers: &mut HeaderMap) {
        for name in [SET_COOKIE, ORGANIZATION, PROJECT] {
            headers.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_goes_where_the_provider_looks_for_it() {
        for (url, endpoint, header, value) in [
            ("https://api.openai.com/v1", Route::Chat, "authorization", "Bearer sk-own"),
            ("https://api.openai.com/v1", Route::Messages, "authorization", "Bearer sk-own"),
            ("https://n.openai.azure.com/openai/v1", Route::Chat, "api-key", "sk-own"),
            ("https://notazure.com/v1", Route::Chat, "authorization", "Bearer sk-own"),
            ("https://api.anthropic.com/v1", Route::Chat, "authorization", "Bearer sk-own"),
            ("https://api.anthropic.com/v1", Route::Messages, "x-api-key", "sk-own"),
        ] {
            let base = Base::parse(url).expect(url);
            let key = ProviderKey::new(&Secret::new("sk-own"), &base).expect("plain text");
            let mut headers = HeaderMap::new();
            let callers = ["authorization", "api-key", "x-api-key", "cookie"];
            for name in callers.into_iter().chain(["openai-organization", "openai-project"]) {
                headers.append(name, HeaderValue::from_static("the caller's"));
                headers.append(name, HeaderValue::from_static("and another"));
            }
            key.put_into(&mut headers, &Endpoint::Route(endpoint));
            assert_eq!(headers.len(), 1, "{url}");
            assert_eq!(headers[header], value, "{url}");
            assert!(headers[header].is_sensitive());
        }
        let headers = |name: &'static str, value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.append(name, HeaderValue::from_static(value));
            ProviderKey::take_out_anthropic(&mut headers);
            headers.len()
        };
        assert_eq!(headers("x-api-key", "sk-ant-a"), 0);
        assert_eq!(headers("authorization", "Bearer sk-ant-a"), 0);
        assert_eq!(headers("authorization", "Bearer sk-proj-a"), 1);
        let base = Base::parse("https://api.openai.com/v1").expect("a base");
        assert!(ProviderKey::new(&Secret::new("a\nb"), &base).is_none());
    }
}
