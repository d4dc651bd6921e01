//! Configuration as used: complete, checked, every key with its unit last.

pub mod models;

use std::net::SocketAddr;

use crate::context::Policy;
pub use models::{Catalogue, ModelEntry};

/// Everything weir is told, from defaults, file, environment and flags.
#[derive(Debug, Clone)]
pub struct Config {
    pub server: Server,
    pub cors: Cors,
    pub upstream: Upstream,
    pub context: Context,
    /// Lower limits by model pattern, for a whole organisation; the least that matches wins.
    pub limits: Vec<Limit>,
    /// Windows by model: the shipped catalogue with the configuration's own entries on top.
    pub models: Catalogue,
    pub cache: Cache,
    pub log: Log,
}

/// `[server]`: the listening side.
#[derive(Debug, Clone)]
pub struct Server {
    pub listen: SocketAddr,
    /// Names, beside loopback's, that a `Host` header may carry.
    pub allowed_hosts: Vec<String>,
    pub max_connections: usize,
    pub max_header_bytes: usize,
    pub max_body_bytes: usize,
    /// Bytes of request bodies held at once, over all requests.
    pub max_bodies_in_flight_bytes: usize,
    pub max_messages: usize,
    pub header_timeout_ms: u64,
    pub drain_deadline_ms: u64,
}

/// `[cors]`: web pages that may use this proxy.
#[derive(Debug, Clone)]
pub struct Cors {
    pub allow_origins: Vec<String>,
}

/// `[upstream]`: where requests go.
#[derive(Debug, Clone)]
pub struct Upstream {
    /// The base URL, as an SDK would be given it.
    pub url: String,
    pub connect_timeout_ms: u64,
    pub first_byte_timeout_ms: u64,
    pub idle_timeout_ms: u64,
}

/// `[context]`: what becomes of a conversation that grows.
#[derive(Debug, Clone)]
pub struct Context {
    pub mode: Mode,
    pub allow_bypass: bool,
    pub policy: Policy,
}

/// What weir does with a conversation past its mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Brings it inside the limit.
    Compact,
    /// Plans and reports, and forwards it unchanged.
    Observe,
}

/// `[[limits]]`: a lower limit for models that match.
#[derive(Debug, Clone)]
pub struct Limit {
    /// A model name; `*` stands for any run of characters.
    pub model: String,
    pub max_input_tokens: u64,
}

/// `[cache]`: memory for counts and folds; never changes a result.
#[derive(Debug, Clone)]
pub struct Cache {
    pub counts_bytes: u64,
    pub folds_bytes: u64,
}

/// `[log]`: one line a request, never with content.
#[derive(Debug, Clone)]
pub struct Log {
    pub format: LogFormat,
    /// `error`, `warn`, `info`, `debug` or `trace`.
    pub level: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}
