//! Reasons why `weir serve` does not serve, with what to do. Prints nothing.

use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;

use tracing_subscriber::filter::ParseError;

use super::greeting::url_ip;
use super::store_path::UnusableStore;
use crate::config::Problem;
use crate::proxy::SetupError;
use crate::tls::TlsError;
use crate::upstream::ClientError;

/// The configuration is invalid.
pub(super) const BAD_CONFIGURATION: u8 = 2;
/// weir could not start to serve.
const CANNOT_SERVE: u8 = 1;

/// Reason why weir does not serve.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    #[error("cannot start threads or listen for signals: {0}")]
    Runtime(#[source] io::Error),
    #[error("{}", refused(.0))]
    Configuration(Vec<Problem>),
    #[error("{}", refused(&[Problem::with("", .0.to_string())]))]
    Log(#[source] LogError),
    #[error("cannot listen for signals: {0}")]
    Signals(#[source] io::Error),
    #[error(transparent)]
    Client(ClientError),
    #[error("no store is available: {0}")]
    Store(#[source] UnusableStore),
    #[error("no store is available: {0}")]
    Setup(#[source] SetupError),
    /// Budgets whose spending is not recorded.
    #[error(
        "the store has budgets, but ledger.enabled is false: nothing that is spent is recorded, so each \
         start makes all budgets whole again. Set ledger.enabled = true, or remove the budgets with \
         `weir budgets remove`"
    )]
    Forgetful,
    /// Without its keys weir could not identify anyone.
    #[error("with auth.mode = \"keys\" a store is required, since it holds the keys: {0}")]
    Keys(#[source] UnusableStore),
    /// `shown` is the path of the file, after a space; empty without one.
    #[error("admin.token_file:{shown} cannot be used: {source}")]
    Token { shown: String, source: io::Error },
    #[error(
        "the admin API cannot listen on {address}: {source}. Choose another address with \
         admin.listen, or \"off\" to manage keys with `weir keys` only."
    )]
    AdminListen { address: SocketAddr, source: io::Error },
    #[error("cannot listen on {address}: {source}. {}", cure(*address, source))]
    Listen { address: SocketAddr, source: io::Error },
    #[error("server.tls.{0}")]
    Tls(#[source] TlsError),
    /// An upstream leads back to weir.
    #[error("{0}")]
    Loop(Problem),
}

/// Reason why there is no log.
#[derive(Debug, thiserror::Error)]
pub(super) enum LogError {
    #[error("log.level: {0}")]
    Level(#[source] ParseError),
    #[error("the log cannot be set up: {0}")]
    Thread(#[source] io::Error),
    #[error("the log cannot be set up: {0}")]
    Subscriber(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl StartError {
    /// Returns the exit code of the process.
    pub(super) fn code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Configuration(_)
            | Self::Log(_)
            | Self::Client(_)
            | Self::Tls(_)
            | Self::Loop(_) => BAD_CONFIGURATION,
            _ => CANNOT_SERVE,
        })
    }
}

/// Lists the problems in the configuration.
fn refused(problems: &[Problem]) -> String {
    let lines: String = problems.iter().map(|problem| format!("  - {problem}\n")).collect();
    format!("the configuration cannot be used:\n{lines}`weir serve --help` lists the options.")
}

/// Says how to find another address.
fn cure(address: SocketAddr, error: &io::Error) -> String {
    let port = address.port();
    match error.kind() {
        io::ErrorKind::AddrInUse => format!(
            "Another program has the port, perhaps another weir (`ss -ltnp 'sport = :{port}'` or \
             `lsof -i :{port}` shows which). End it, or choose another port with `--listen \
             {ip}:PORT`.",
            ip = url_ip(address.ip())
        ),
        io::ErrorKind::PermissionDenied => {
            "Ports below 1024 need privileges. Choose another port with `--listen ADDRESS:PORT`."
                .to_owned()
        }
        io::ErrorKind::AddrNotAvailable => {
            "This machine does not have that address. Choose one with `--listen ADDRESS:PORT`."
                .to_owned()
        }
        _ => "Choose another address with `--listen ADDRESS:PORT`.".to_owned(),
    }
}
