//! `[auth]`, `[admin]` and the provider key: who may call, and where keys are managed. Reads no
//! file and no environment variable; it records their names.

use std::net::SocketAddr;

use super::checks::listen_address;
use super::choices::AuthMode;
use super::reader::{Reader, settings};
use super::tls::{self, TlsFiles};
use super::{Config, Originals, Secret, upstreams};

/// Default address of the admin API in keys mode.
const ADMIN_LISTEN: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 8410);

settings! {
    /// `[auth]`: caller authentication.
    #[derive(Debug, Clone, Default)]
    Auth from keys {
        mode: AuthMode = keys.get("mode"),
        /// Whether, in open mode, callers on other machines may use weir's provider key.
        allow_anonymous: bool = keys.get("allow_anonymous"),
        /// Place of the secret of several instances.
        secret_place: SecretPlace = keys.text("secret", SecretPlace::parse),
        /// The secret itself, filled in at start; `None` for that of the store.
        secret: Option<Secret> = None,
        /// First segment that the path of each request has to have, and is forwarded without; `None` for none.
        entrance: Option<Secret> = None,
    }
}

settings! {
    /// `[admin]`: the admin API.
    #[derive(Debug, Clone, Default)]
    Admin from keys {
        listen: AdminListen = keys.text("listen", admin_listen),
        /// File of the admin token; empty for `admin.token` next to the store.
        token_file: String = keys.text("token_file", file),
        /// Whether the inspector shows live conversations, if originals are kept.
        show_conversations: bool = keys.get("show_conversations"),
        tls: TlsFiles = tls::read_listener(keys),
    }
}

/// Address setting of the admin API.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AdminListen {
    /// On loopback in keys mode, otherwise off.
    #[default]
    ByMode,
    Nowhere,
    At(SocketAddr),
}

impl Config {
    /// Returns whether operators see live conversations.
    pub fn shows_conversations(&self) -> bool {
        self.admin.show_conversations && self.context.originals != Originals::Off
    }

    /// Returns the address of the admin API, if it is on.
    pub fn admin_listen(&self) -> Option<SocketAddr> {
        match (self.admin.listen, self.auth.mode) {
            (AdminListen::At(address), _) => Some(address),
            (AdminListen::ByMode, AuthMode::Keys) => Some(ADMIN_LISTEN),
            (AdminListen::ByMode, AuthMode::Open) | (AdminListen::Nowhere, _) => None,
        }
    }
}

/// Rejects contradicting keys.
pub(super) fn agree(reader: &mut Reader, config: &Config) {
    let is_keys = config.auth.mode == AuthMode::Keys;
    if is_keys && !config.upstream.has_own_key() {
        let message = "is missing: with auth.mode = \"keys\" callers have weir's virtual keys, and \
                       weir needs the provider's. Name the variable that holds it, such as \
                       \"env:OPENAI_API_KEY\", or its file. If the upstream needs no key, any text \
                       will do";
        reader.refuse(&["upstream", "api_key"], message);
    }
    for (name, _) in config.upstreams.iter().filter(|(_, own)| is_keys && own.forward_caller_key) {
        let message = "is true, but with auth.mode = \"keys\" callers have weir's virtual keys, \
                       which go to no upstream";
        reader.refuse(&["upstreams", name, "forward_caller_key"], message);
    }
    let listen = config.server.listen;
    let lender = config.all_upstreams().find(|(_, upstream)| upstream.lends());
    let lender = lender.filter(|_| !is_keys).map(|(name, _)| upstreams::section(name));
    if let Some(section) = lender
        && !listen.ip().to_canonical().is_loopback()
        && !config.auth.allow_anonymous
    {
        let message = format!(
            "is false, but weir listens on {listen} and has a key of its own \
             ({section}.api_key, headers or url), which anybody who can reach it could use. Give callers keys with auth.mode = \"keys\", listen on \
             loopback, or set this to true if you intend that"
        );
        reader.refuse(&["auth", "allow_anonymous"], message);
    }
    if config.admin_listen().is_some_and(|admin| admin == listen && admin.port() != 0) {
        let message = format!("is {listen}, the same as server.listen; choose another port");
        reader.refuse(&["admin", "listen"], message);
    }
}

/// Place of a secret. The configuration never contains the secret itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum SecretPlace {
    #[default]
    Nowhere,
    Variable(String),
    File(String),
}

impl SecretPlace {
    /// Whether a secret is wanted.
    pub fn is_set(&self) -> bool {
        *self != Self::Nowhere
    }

    /// Returns the name of the environment variable.
    pub fn variable(&self) -> Option<&str> {
        if let Self::Variable(name) = self { Some(name) } else { None }
    }

    /// Returns the path of the file.
    pub fn file(&self) -> Option<&String> {
        if let Self::File(path) = self { Some(path) } else { None }
    }

    /// Parses `env:NAME`, `file:PATH`, or nothing. Other text is not repeated in the error: it may be
    /// the secret itself, written here by mistake.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        match text.trim().split_once(':') {
            _ if text.is_empty() => Ok(Self::Nowhere),
            Some(("env", name)) if !name.is_empty() => Ok(Self::Variable(variable(name)?)),
            Some(("file", path)) if !path.is_empty() => Ok(Self::File(file(path)?)),
            _ => Err(
                "is not \"env:NAME\", such as \"env:OPENAI_API_KEY\", or \"file:PATH\"; do not \
                      write the key itself into the configuration"
                    .to_owned(),
            ),
        }
    }
}

/// Parses the name of a variable. The text is not repeated in the error: it may be the key itself,
/// written here by mistake.
pub(super) fn variable(text: &str) -> Result<String, String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if text.bytes().all(plain) && !text.starts_with(|first: char| first.is_ascii_digit()) {
        return Ok(text.to_owned());
    }
    Err("is not the name of an environment variable, such as \"OPENAI_API_KEY\"; do not write the \
         key itself into the configuration"
        .to_owned())
}

/// Parses a file path. The text is not repeated in the error: it may be a secret, written here by
/// mistake.
pub(super) fn file(text: &str) -> Result<String, String> {
    if text.starts_with('~') {
        Err("begins with ~, which only shells expand; write the full path".to_owned())
    } else if text.contains('\0') || text.ends_with('/') {
        Err("is not a file path, such as \"/etc/weir/provider.key\"".to_owned())
    } else {
        Ok(text.to_owned())
    }
}

fn admin_listen(text: &str) -> Result<AdminListen, String> {
    match text.trim() {
        "" => Ok(AdminListen::ByMode),
        "off" => Ok(AdminListen::Nowhere),
        text => listen_address(text, "8410")
            .map(AdminListen::At)
            .map_err(|problem| format!("{problem}, or \"off\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Secret;

    #[test]
    fn a_secret_is_not_shown() {
        let upstream = super::super::Upstream {
            provider_key: Some(Secret::new("sk-of-the-provider")),
            ..Config::default().upstream
        };
        let shown = format!("{upstream:?} {upstream:#?}");
        assert!(shown.contains("***") && !shown.contains("sk-of"), "{shown}");
    }

    #[test]
    fn the_admin_api_is_where_it_is_configured_or_on_loopback_with_keys() {
        let at = |mode, listen| {
            let auth = Auth { mode, ..Auth::default() };
            let admin = Admin { listen, ..Admin::default() };
            Config { auth, admin, ..Config::default() }.admin_listen()
        };
        let here: SocketAddr = "10.0.0.1:9".parse().expect("an address");
        assert_eq!(at(AuthMode::Open, AdminListen::ByMode), None);
        assert_eq!(at(AuthMode::Keys, AdminListen::ByMode), Some(ADMIN_LISTEN));
        assert_eq!(at(AuthMode::Keys, AdminListen::Nowhere), None);
        for mode in [AuthMode::Open, AuthMode::Keys] {
            assert_eq!(at(mode, AdminListen::At(here)), Some(here));
        }
    }
}
