//! A weir in keys mode, with a store of its own, and keys for it.

use weir::config::{AuthMode, Config, Secret};
use weir::store::keys::{KeyChange, NewKey};
use weir::store::{Store, now_ms};

use crate::server::harness::{self, Message, Weir, ask};
use crate::store::places::Somewhere;

/// weir's own key for the provider.
pub const OWN_KEY: &str = "sk-the-providers-own-key-0123456789";

/// A weir that serves.
pub struct Setting {
    pub weir: Weir,
    pub store: Store,
    _place: Somewhere,
}

/// A key as it was made.
pub struct Key {
    pub id: String,
    pub secret: String,
}

impl Key {
    /// The header that shows it.
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
        config.upstream.own_key = Some(Secret::new(OWN_KEY));
        change(config);
    })
    .await;
    Setting { weir, store, _place: place }
}

impl Setting {
    /// Makes a key of this team, which may do what `change` says, as the admin API is told it.
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

/// A POST of JSON.
pub fn post(path: &str, headers: &str, body: impl AsRef<str>) -> String {
    let body = body.as_ref();
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\n{headers}content-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}
