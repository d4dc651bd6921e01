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

/// What a configuration is read from, the weakest first.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// A file's name and text.
    pub file: Option<(String, String)>,
    /// Environment variables that concern weir.
    pub environment: Vec<(String, String)>,
    /// Keys and values from the command line.
    pub flags: Vec<(&'static str, String)>,
}

/// Something in the configuration that is wrong, with its cure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub key: String,
    pub message: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.key, self.message)
    }
}

/// The configuration that `sources` make, or all that is wrong with them.
pub fn load(sources: Sources) -> Result<Config, Vec<Problem>> {
    let mut listen = "127.0.0.1:8400".to_owned();
    let mut url = "https://api.openai.com/v1".to_owned();
    let mut level = "info".to_owned();
    for (name, value) in sources.environment {
        if name == "OPENAI_BASE_URL" {
            url = value;
        }
    }
    for (key, value) in sources.flags {
        match key {
            "server.listen" => listen = value,
            "upstream.url" => url = value,
            "log.level" => level = value,
            _ => {}
        }
    }
    let listen = listen.parse().map_err(|_| {
        vec![Problem {
            key: "server.listen".into(),
            message: "not ADDRESS:PORT".into(),
        }]
    })?;
    Ok(Config {
        server: Server {
            listen,
            allowed_hosts: Vec::new(),
            max_connections: 1024,
            max_header_bytes: 64 << 10,
            max_body_bytes: 64 << 20,
            max_bodies_in_flight_bytes: 1 << 30,
            max_messages: 100_000,
            header_timeout_ms: 10_000,
            drain_deadline_ms: 30_000,
        },
        cors: Cors {
            allow_origins: Vec::new(),
        },
        upstream: Upstream {
            url,
            connect_timeout_ms: 10_000,
            first_byte_timeout_ms: 600_000,
            idle_timeout_ms: 300_000,
        },
        context: Context {
            mode: Mode::Compact,
            allow_bypass: false,
            policy: Policy::default(),
        },
        limits: Vec::new(),
        models: Catalogue::default(),
        cache: Cache {
            counts_bytes: 64 << 20,
            folds_bytes: 64 << 20,
        },
        log: Log {
            format: LogFormat::Text,
            level,
        },
    })
}
