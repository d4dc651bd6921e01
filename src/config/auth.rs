//! `[auth]`, `[admin]` and weir's own key for the provider: who may call, and where keys are looked
//! after. Reads no file and no environment; it says which of them hold what.

use std::fmt;
use std::net::SocketAddr;

use super::checks::listen_address;
use super::reader::Reader;
use super::tls::{self, ListenTls};
use super::{Config, set, upstreams};

/// Where the admin API is in keys mode, unless it is told.
const ADMIN_LISTEN: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 8410);

/// A text that nobody is shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Who may call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AuthMode {
    /// Anybody, with a key of their own for the provider.
    #[default]
    Open,
    /// Holders of virtual keys.
    Keys,
}

/// `[auth]`: who may call.
#[derive(Debug, Clone, Default)]
pub struct Auth {
    pub mode: AuthMode,
    /// Whether, in open mode, callers on other machines may spend weir's own key.
    pub allow_anonymous: bool,
}

/// `[admin]`: where keys are looked after.
#[derive(Debug, Clone, Default)]
pub struct Admin {
    pub listen: AdminListen,
    /// The file of its token; empty for `admin.token` beside the store.
    pub token_file: String,
    pub tls: ListenTls,
}

/// Where the admin API is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AdminListen {
    /// On loopback in keys mode, else nowhere.
    #[default]
    ByMode,
    Nowhere,
    At(SocketAddr),
}

impl Config {
    /// Where the admin API is, if anywhere.
    pub fn admin_listen(&self) -> Option<SocketAddr> {
        match (self.admin.listen, self.auth.mode) {
            (AdminListen::At(address), _) => Some(address),
            (AdminListen::ByMode, AuthMode::Keys) => Some(ADMIN_LISTEN),
            (AdminListen::ByMode, AuthMode::Open) | (AdminListen::Nowhere, _) => None,
        }
    }
}

/// Reads both sections, once those of the upstreams are read.
pub(super) fn read(reader: &mut Reader, config: &mut Config) {
    let modes = [("open", AuthMode::Open), ("keys", AuthMode::Keys)];
    set(&mut config.auth.mode, reader.choice(&["auth", "mode"], &modes));
    set(&mut config.auth.allow_anonymous, reader.switch(&["auth", "allow_anonymous"]));
    set(&mut config.admin.listen, reader.text_or_whole(&["admin", "listen"], admin_listen));
    set(&mut config.admin.token_file, reader.text(&["admin", "token_file"], file));
    tls::read_listener(reader, &["admin", "tls"], &mut config.admin.tls);
    agree(reader, config);
}

/// Refuses what does not go together.
fn agree(reader: &mut Reader, config: &Config) {
    let is_keys = config.auth.mode == AuthMode::Keys;
    if is_keys && !config.upstream.has_own_key() {
        let message = "is missing: with auth.mode = \"keys\" callers have weir's virtual keys, and \
                       weir needs the provider's. Name the variable that holds it, such as \
                       \"OPENAI_API_KEY\", or its file in upstream.api_key_file. Where the upstream \
                       asks for no key, any text will do";
        reader.refuse(&["upstream", "api_key_env"], message);
    }
    for (name, _) in config.upstreams.iter().filter(|(_, own)| is_keys && own.forward_caller_key) {
        let message = "is true, yet with auth.mode = \"keys\" callers have weir's virtual keys, \
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
            "is false, yet weir listens on {listen} and has a key of its own ({section}.api_key_env, \
             api_key_file, header_envs, headers or url), which anybody who reaches it could spend. Give callers keys with \
             auth.mode = \"keys\", listen on loopback, or set this to true if that is what you want"
        );
        reader.refuse(&["auth", "allow_anonymous"], message);
    }
    if config.admin_listen().is_some_and(|admin| admin == listen && admin.port() != 0) {
        let message = format!("is {listen}, as server.listen is; give it a port of its own");
        reader.refuse(&["admin", "listen"], message);
    }
}

/// The name of a variable. What is written here by mistake may be the key itself, so that it is
/// not repeated.
pub(super) fn variable(text: &str) -> Result<String, String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if text.bytes().all(plain) && !text.starts_with(|first: char| first.is_ascii_digit()) {
        return Ok(text.to_owned());
    }
    Err("is no name of an environment variable, such as \"OPENAI_API_KEY\"; the key itself does not \
         belong into the configuration"
        .to_owned())
}

/// The path of a file, which may hold a secret in its place by mistake, and is not repeated.
pub(super) fn file(text: &str) -> Result<String, String> {
    if text.starts_with('~') {
        Err("begins with ~, which only shells know; write the whole path".to_owned())
    } else if text.contains('\0') || text.ends_with('/') {
        Err("is no path of a file, such as \"/etc/weir/provider.key\"".to_owned())
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

    #[test]
    fn a_secret_is_not_shown() {
        let upstream = super::super::Upstream {
            own_key: Some(Secret::new("sk-of-the-provider")),
            ..Config::default().upstream
        };
        let shown = format!("{upstream:?} {upstream:#?}");
        assert!(shown.contains("***") && !shown.contains("sk-of"), "{shown}");
    }

    #[test]
    fn the_admin_api_is_where_it_is_told_or_on_loopback_beside_keys() {
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
