//! Fixture: a weir in keys mode with its own store, and keys for it.

use weir::config::{AuthMode, Config, Secret};
use weir_store::keys::{KeyChange, NewKey};
use weir_store::{Store, now_ms};

use crate::server::harness::{self, Message, Weir, ask};
use crate::store::places::Somewhere;

/// weir's own key for the provider.
pub const OWN_KEY: &str = "sk-the-providers-own-key-0123456789";

/// Running weir.
pub struct Setting {
    pub weir: Weir,
    pub store: Store,
    _place: Somewhere,
}

/// Newly created key.
pub struct Key {
    pub id: String,
    pub secret: String,
}

impl Key {
    /// Returns the header that presents the key.
    pub fn header(&self) -> String {
        bearer(&self.secret)
    }
}

pub fn bearer(secret: &str) -> String {
    format!("authorization: Bearer {secret}\r\n")
}

/// Starts a weir in keys mode in front of `upstream`.
pub async fn start(upstream: &str, change: impl FnOnce(&mut Config)) -> Setting {
    let place = Somewhere::new();
    let store = place.handle();
    let weir = harness::start_with(store.clone(), upstream, |config| {
        config.auth.mode = AuthMode::Keys;
        config.upstream.provider_key = Some(Secret::new(OWN_KEY));
        change(config);
    })
    .await;
    Setting { weir, store, _place: place }
}

impl Setting {
    /// Creates a key of this team; `change` is the JSON that the admin API receives.
    pub async fn key(&self, team: &str, change: &str) -> Key {
        let mut change: KeyChange = serde_json::from_str(change).expect("a change");
        change.name = Some("a key".to_owned());
        let new = NewKey { team: Some(team.to_owned()), organisation: None, change };
        let issued = self.store.create_key(new, now_ms()).await.expect("a key");
        Key { id: issued.facts.key.id, secret: issued.secret.expose().to_owned() }
    }

    pub async fn ask(&self, request: impl AsRef<[u8]>) -> Message {
        ask(self.weir.address, request).await
    }
}

/// Builds a POST of JSON.
pub fn post(path: &str, headers: &str, body: impl AsRef<str>) -> String {
    let body = body.as_ref();
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\n{headers}content-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}
