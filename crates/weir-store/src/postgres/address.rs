//! Address and connection settings of a PostgreSQL server, parsed from a URL. Keeps the password:
//! no message repeats the URL.

use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::ring::default_provider;
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::super::OpenError;

/// Timeout of connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Timeout of unacknowledged data.
const UNANSWERED_TIMEOUT: Duration = Duration::from_secs(10);
/// URL parameter for TLS.
const TLS_PARAMETER: &str = "sslmode=";

/// A server, a database and a role.
pub(super) struct Address {
    pub config: tokio_postgres::Config,
    pub tls: MakeRustlsConnect,
    /// Host, port and database, for messages.
    pub(super) shown: String,
}

impl Address {
    /// Parses a URL. Certificates are always verified; so `verify-full` and `verify-ca` mean the
    /// same as `require`.
    pub(super) fn read(url: &str) -> Result<Self, OpenError> {
        let unusable = |message: String| OpenError::Unusable { message };
        let mode_in_url = url_tls_mode(url);
        let url = match mode_in_url {
            Some(mode @ ("verify-full" | "verify-ca")) => {
                url.replacen(&format!("{TLS_PARAMETER}{mode}"), "sslmode=require", 1)
            }
            Some("disable" | "prefer" | "require") | None => url.to_owned(),
            Some(_) => {
                let message = "the URL's sslmode must be disable, prefer or require";
                return Err(unusable(message.to_owned()));
            }
        };
        let mut config: tokio_postgres::Config =
            url.parse().map_err(|error: tokio_postgres::Error| unusable(describe(&error)))?;
        if config.get_hosts().is_empty() {
            return Err(unusable("the URL has no host".to_owned()));
        }
        if mode_in_url.is_none() && config.get_hosts().iter().all(is_local) {
            config.ssl_mode(SslMode::Disable);
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        if config.get_application_name().is_none() {
            config.application_name("weir");
        }
        config.tcp_user_timeout(UNANSWERED_TIMEOUT).keepalives_idle(UNANSWERED_TIMEOUT);
        let tls = tls(config.get_ssl_mode()).map_err(unusable)?;
        let shown = shown(&config);
        Ok(Self { config, tls, shown })
    }
}

/// Returns the URL's TLS mode.
fn url_tls_mode(url: &str) -> Option<&str> {
    let (_, parameters) = url.split_once('?')?;
    parameters.split('&').find_map(|parameter| parameter.strip_prefix(TLS_PARAMETER))
}

/// Describes the unreadable part of a URL without quoting it.
fn describe(error: &tokio_postgres::Error) -> String {
    let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    // This names a parameter; other messages may quote a password that was taken for something
    // else.
    let is_named = cause.starts_with("invalid value for");
    let cause = if is_named { format!(": {cause}") } else { String::new() };
    format!("the URL is invalid{cause}; write characters such as @, / and % as %40, %2F and %25")
}

/// Returns whether a host is this machine.
fn is_local(host: &Host) -> bool {
    match host {
        Host::Tcp(name) => {
            name == "localhost"
                || name.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
        }
        #[cfg(unix)]
        Host::Unix(_) => true,
    }
}

/// Creates TLS with the system's roots, which are only loaded if TLS is used.
fn tls(mode: SslMode) -> Result<MakeRustlsConnect, String> {
    let mut roots = RootCertStore::empty();
    if mode != SslMode::Disable {
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() && mode == SslMode::Require {
            return Err(
                "the URL requires TLS, but the system has no root certificates; name a file of \
                 them in SSL_CERT_FILE"
                    .to_owned(),
            );
        }
    }
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS cannot be set up: {error}"))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

fn shown(config: &tokio_postgres::Config) -> String {
    let hosts: Vec<String> = config
        .get_hosts()
        .iter()
        .enumerate()
        .map(|(place, host)| {
            let ports = config.get_ports();
            let port = ports.get(place).or(ports.first()).copied().unwrap_or(5432);
            match host {
                Host::Tcp(name) => format!("{name}:{port}"),
                #[cfg(unix)]
                Host::Unix(path) => format!("{}:{port}", path.display()),
            }
        })
        .collect();
    format!("{}/{}", hosts.join(","), config.get_dbname().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_sets_the_tls_mode() {
        for (url, expected) in [
            ("postgres://u@127.0.0.1/d", SslMode::Disable),
            ("postgres://u@localhost/d", SslMode::Disable),
            ("postgres://u@[::1]:5/d", SslMode::Disable),
            ("postgres://u@db/d", SslMode::Prefer),
            ("postgres://u@db/d?sslmode=disable", SslMode::Disable),
            ("postgres://u@localhost/d?sslmode=prefer", SslMode::Prefer),
        ] {
            let address = Address::read(url).map_err(|error| error.to_string());
            assert_eq!(address.map(|it| it.config.get_ssl_mode()), Ok(expected), "{url}");
        }
    }

    #[test]
    fn an_invalid_url_is_reported_without_quoting_it() {
        for (url, expected) in [
            ("postgres://u:sesame@db/d?sslmode=allow", "sslmode"),
            ("postgres://u:sesame@db/d?sesame=1&a=sesame", "is invalid"),
            ("postgres://u:sesame%zz@db:port/d", "is invalid"),
            ("postgres://u:sesame@/d", "has no host"),
        ] {
            let message = Address::read(url).map(drop).expect_err(url).to_string();
            assert!(message.contains(expected), "{url}: {message}");
            assert!(!message.contains("sesame"), "{message}");
        }
        let address = Address::read("postgres://u:sesame@a,b:6/d").expect("it is right");
        assert_eq!(address.shown, "a:5432,b:6/d");
    }
}
