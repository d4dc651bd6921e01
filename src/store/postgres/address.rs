//! Where a PostgreSQL server is and how it is spoken to, read from a URL. The password stays in here:
//! no message repeats the URL.

use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::ring::default_provider;
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::super::OpenError;

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long what was sent may go without an answer of the other machine's.
const UNANSWERED_TIMEOUT: Duration = Duration::from_secs(10);
/// The parameter that says whether TLS is used.
const TLS_PARAMETER: &str = "sslmode=";

/// A server, a database on it, and who asks.
pub struct Address {
    pub config: tokio_postgres::Config,
    pub tls: MakeRustlsConnect,
    /// Host, port and database, for messages.
    shown: String,
}

impl Address {
    /// Reads a URL. A certificate is always checked; so `verify-full` and `verify-ca` mean what
    /// `require` does.
    pub fn read(url: &str) -> Result<Self, OpenError> {
        let unusable = |said: String| OpenError::Unusable { said };
        let told = told_mode(url);
        let url = match told {
            Some(mode @ ("verify-full" | "verify-ca")) => {
                url.replacen(&format!("{TLS_PARAMETER}{mode}"), "sslmode=require", 1)
            }
            Some("disable" | "prefer" | "require") | None => url.to_owned(),
            Some(_) => {
                let said = "the URL's sslmode is none of disable, prefer and require";
                return Err(unusable(said.to_owned()));
            }
        };
        let mut config: tokio_postgres::Config =
            url.parse().map_err(|error: tokio_postgres::Error| unusable(unreadable(&error)))?;
        if config.get_hosts().is_empty() {
            return Err(unusable("the URL names no host".to_owned()));
        }
        if told.is_none() && config.get_hosts().iter().all(is_here) {
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

    /// Host, port and database.
    pub fn shown(&self) -> &str {
        &self.shown
    }
}

/// What the URL says of TLS.
fn told_mode(url: &str) -> Option<&str> {
    let (_, parameters) = url.split_once('?')?;
    parameters.split('&').find_map(|parameter| parameter.strip_prefix(TLS_PARAMETER))
}

/// What cannot be read in a URL, without a word of it.
fn unreadable(error: &tokio_postgres::Error) -> String {
    let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    // This names a parameter; others may quote a password that was taken for something else.
    let is_named = cause.starts_with("invalid value for");
    let cause = if is_named { format!(": {cause}") } else { String::new() };
    format!(
        "the URL cannot be read{cause}; characters such as @, / and % are written as %40, %2F and %25"
    )
}

/// Whether a host is this machine.
fn is_here(host: &Host) -> bool {
    match host {
        Host::Tcp(name) => {
            name == "localhost"
                || name.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
        }
        #[cfg(unix)]
        Host::Unix(_) => true,
    }
}

/// TLS by the system's roots. Where it is not used, none are read.
fn tls(mode: SslMode) -> Result<MakeRustlsConnect, String> {
    let mut roots = RootCertStore::empty();
    if mode != SslMode::Disable {
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() && mode == SslMode::Require {
            return Err("the URL wants TLS, and the system has no roots that would vouch for a \
                        certificate; name a file of them in SSL_CERT_FILE"
                .to_owned());
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
    fn tls_is_as_told() {
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
    fn what_cannot_be_read_is_told_without_a_word_of_it() {
        for (url, expected) in [
            ("postgres://u:sesame@db/d?sslmode=allow", "sslmode"),
            ("postgres://u:sesame@db/d?sesame=1&a=sesame", "cannot be read"),
            ("postgres://u:sesame%zz@db:port/d", "cannot be read"),
            ("postgres://u:sesame@/d", "names no host"),
        ] {
            let said = Address::read(url).map(drop).expect_err(url).to_string();
            assert!(said.contains(expected), "{url}: {said}");
            assert!(!said.contains("sesame"), "{said}");
        }
        let address = Address::read("postgres://u:sesame@a,b:6/d").expect("it is right");
        assert_eq!(address.shown(), "a:5432,b:6/d");
    }
}
