//! Connection of `weir top` to the admin API of a running weir: its address, its token, and its
//! answers. Keeps nothing.

use std::error::Error;
use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::StatusCode;
use http::header::{ACCEPT, AUTHORIZATION, HeaderValue};
use reqwest::Url;
use reqwest::tls::Certificate;
use serde::Deserialize;
use serde_json::Value;

use super::data::{BudgetRow, Live, Snapshot};
use crate::cli::greeting::dashboard_url;
use crate::cli::{reason, store_path};
use crate::config::{Config, Secret, names};
use crate::upstream::install_tls_provider;
use weir_engine::compact::report::shown::first_words;

/// Address of the admin API if the configuration names none.
const DEFAULT_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8410);
/// Timeouts of a connection and of a whole answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of an answer.
const MAX_ANSWER_BYTES: usize = 16 << 20;
/// Maximum number of new requests per look: as many as the listener keeps.
const MAX_NEW: usize = 500;
const MAX_TOKEN_BYTES: u64 = 4096;
/// Maximum length of a text from outside in a message.
const MAX_SAID_CHARS: usize = 200;

/// Flags that name a running weir.
#[derive(Debug, Default, clap::Args)]
pub(super) struct Place {
    /// The admin API's address [default: admin.listen of the configuration, or http://127.0.0.1:8410]
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// The file with the admin token [default: admin.token_file of the configuration, or admin.token
    /// next to the store]
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Authorities in PEM to trust for an https address [default: the certificate of admin.tls]
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// The configuration file of the weir that serves
    #[arg(long, value_name = "FILE", env = "WEIR_CONFIG")]
    pub config: Option<PathBuf>,
    /// The store's file of the weir that serves [default: weir/weir.db in the user's state folder]
    #[arg(long, value_name = "FILE")]
    pub store: Option<String>,
}

/// Admin API of a running weir.
pub(super) struct Feed {
    client: reqwest::Client,
    /// Without a path.
    base: Url,
    authorization: HeaderValue,
}

/// Reason why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum FeedError {
    #[error(
        "weir's admin API does not answer at {base}: {cause}. Start `weir serve --open`, or set \
         admin.listen (127.0.0.1:8410) and start `weir serve`, or name another address with --url"
    )]
    Unreachable { base: String, cause: String },
    #[error(
        "the certificate of {base} is not accepted: {cause}. Name its authority with --ca-file. A \
         self-signed one must not be an authority itself (CA:FALSE)"
    )]
    Certificate { base: String, cause: String },
    #[error(
        "{base} does not answer in HTTP: {cause}. With admin.tls the address begins with https://"
    )]
    NotHttp { base: String, cause: String },
    #[error(
        "the admin API at {base} refuses the token. Name the file of that weir's token with \
         --token-file; it is admin.token next to its store"
    )]
    Token { base: String },
    #[error(
        "{base} has no {path}: it is no admin API, or that of an older weir. The admin API has a \
         port of its own (admin.listen)"
    )]
    Missing { base: String, path: String },
    #[error("the admin API at {base} answered {status}: {said}")]
    Refused { base: String, status: StatusCode, said: String },
    #[error("the answer of {base} cannot be read: {cause}")]
    Unreadable { base: String, cause: String },
}

impl Feed {
    /// Finds the admin API that the flags, or the configuration, name.
    pub(super) fn open(place: &Place) -> Result<Self, String> {
        let config = store_path::configuration(place.config.as_deref(), place.store.clone())?;
        let base = match &place.url {
            Some(url) => read_url(url)?,
            None => configured(&config)?,
        };
        let token = token(place, &config)?;
        let mut authorization = HeaderValue::from_str(&format!("Bearer {}", token.expose()))
            .map_err(|_| "the admin token has characters that no header takes".to_owned())?;
        authorization.set_sensitive(true);
        install_tls_provider();
        let own = &config.admin.tls.cert_file;
        let ca_file = place.ca_file.clone();
        let is_own = place.url.is_none() && !own.is_empty();
        let ca_file = ca_file.or_else(|| is_own.then(|| PathBuf::from(own)));
        let mut builder = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(TIMEOUT)
            .pool_max_idle_per_host(1);
        if names::is_local_host(base.host_str().unwrap_or_default()) {
            builder = builder.no_proxy();
        }
        if let Some(file) = ca_file {
            builder = builder.tls_certs_merge(certificates(&file)?);
        }
        let client = builder.build();
        let client = client.map_err(|error| format!("cannot connect: {}", cause(&error)))?;
        Ok(Self { client, base, authorization })
    }

    /// Returns the address for people.
    pub(super) fn shown(&self) -> String {
        self.base.as_str().trim_end_matches('/').to_owned()
    }

    /// Asks for the requests after `after`, and for budgets and the status if `is_full`.
    pub(super) async fn snapshot(&self, after: u64, is_full: bool) -> Result<Snapshot, FeedError> {
        let live: Live = self.get(&format!("/admin/v1/live?after={after}&limit={MAX_NEW}")).await?;
        let mut snapshot = Snapshot { live, ..Snapshot::default() };
        if is_full {
            #[derive(Deserialize)]
            struct BudgetRows {
                data: Vec<BudgetRow>,
            }
            let budgets: BudgetRows = self.get("/admin/v1/budgets").await?;
            snapshot.budgets = Some(budgets.data);
            snapshot.status = Some(self.get("/admin/v1/status").await?);
        }
        Ok(snapshot)
    }

    async fn get<T: for<'de> Deserialize<'de>>(&self, path: &str) -> Result<T, FeedError> {
        let base = || self.shown();
        let unreadable = |cause: String| FeedError::Unreadable { base: base(), cause };
        let mut url = self.base.clone();
        let (plain, query) = path.split_once('?').unwrap_or((path, ""));
        url.set_path(plain);
        url.set_query(Some(query).filter(|query| !query.is_empty()));
        let sent = self
            .client
            .get(url)
            .header(AUTHORIZATION, self.authorization.clone())
            .header(ACCEPT, HeaderValue::from_static("application/json"))
            .send()
            .await;
        let mut answer = sent.map_err(|error| {
            let (base, cause) = (base(), cause(&error));
            match error.is_connect() {
                true if cause.contains("certificate") => FeedError::Certificate { base, cause },
                true => FeedError::Unreachable { base, cause },
                false if error.is_timeout() => FeedError::Unreachable { base, cause },
                false => FeedError::NotHttp { base, cause },
            }
        })?;
        let status = answer.status();
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(|error| unreadable(cause(&error)))? {
            if body.len() + chunk.len() > MAX_ANSWER_BYTES {
                return Err(unreadable(format!("it has more than {MAX_ANSWER_BYTES} bytes")));
            }
            body.extend_from_slice(&chunk);
        }
        match status {
            StatusCode::OK => {
                serde_json::from_slice(&body).map_err(|error| unreadable(error.to_string()))
            }
            StatusCode::UNAUTHORIZED => Err(FeedError::Token { base: base() }),
            StatusCode::NOT_FOUND => {
                Err(FeedError::Missing { base: base(), path: plain.to_owned() })
            }
            status => {
                let value: Value = serde_json::from_slice(&body).unwrap_or_default();
                let said = value["error"]["message"].as_str().unwrap_or("without a reason");
                let said = first_words(said, MAX_SAID_CHARS);
                Err(FeedError::Refused { base: base(), status, said })
            }
        }
    }
}

/// Parses `--url`; the path of the API may be part of it.
fn read_url(text: &str) -> Result<Url, String> {
    let with_scheme = match text.contains("://") {
        true => text.to_owned(),
        false => format!("http://{text}"),
    };
    let url = Url::parse(&with_scheme).ok().filter(|url| url.has_host());
    let url = url.filter(|url| matches!(url.scheme(), "http" | "https"));
    let url = url.filter(|url| url.username().is_empty() && url.password().is_none());
    let mut url = url.ok_or_else(|| {
        format!(
            "--url: {:?} is not an address, such as http://127.0.0.1:8410",
            first_words(text, MAX_SAID_CHARS)
        )
    })?;
    url.set_path("");
    url.set_query(None);
    url.set_fragment(None);
    Ok(url)
}

/// Returns the address of the admin API by the configuration. If that names none, it is the address
/// that `weir serve --open` tries first.
fn configured(config: &Config) -> Result<Url, String> {
    let address = config.admin_listen().filter(|address| address.port() != 0);
    read_url(&dashboard_url(config, address.unwrap_or(DEFAULT_ADDRESS)))
}

/// Reads the token of the weir that serves; makes none.
fn token(place: &Place, config: &Config) -> Result<Secret, String> {
    let path = place.token_file.clone().or_else(|| store_path::token_file(config));
    let Some(path) = path else {
        return Err(
            "there is no file of the admin token, since the store is in no file: name it with \
                    --token-file (admin.token_file)"
                .to_owned(),
        );
    };
    let mut text = String::new();
    let read =
        File::open(&path).and_then(|file| file.take(MAX_TOKEN_BYTES).read_to_string(&mut text));
    read.map_err(|error| {
        format!(
            "the admin token cannot be read from {}: {}. weir makes it when it first \
             serves with the admin API on (`weir serve --open`, or admin.listen); name the file with \
             --token-file",
            path.display(),
            reason(&error)
        )
    })?;
    Ok(Secret::new(text.trim()))
}

fn certificates(file: &Path) -> Result<Vec<Certificate>, String> {
    let wrong = |said: String| format!("--ca-file: {}: {said}", file.display());
    let text = std::fs::read(file).map_err(|error| wrong(reason(&error)))?;
    let found = Certificate::from_pem_bundle(&text).map_err(|error| wrong(cause(&error)))?;
    if found.is_empty() {
        return Err(wrong("it holds no certificate in PEM".to_owned()));
    }
    Ok(found)
}

/// Returns the innermost reason of an error, without the address.
fn cause(error: &reqwest::Error) -> String {
    let mut own: &dyn Error = error;
    while let Some(source) = own.source() {
        own = source;
    }
    first_words(&own.to_string(), MAX_SAID_CHARS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_many_forms() {
        for (text, expected) in [
            ("http://127.0.0.1:8410", Some("http://127.0.0.1:8410/")),
            ("127.0.0.1:8410", Some("http://127.0.0.1:8410/")),
            ("https://weir.example/admin/v1?a#b", Some("https://weir.example/")),
            ("http://[::1]:1/", Some("http://[::1]:1/")),
            ("ftp://x", None),
            ("http://u:p@x", None),
            ("", None),
            ("http://", None),
        ] {
            let url = read_url(text).ok();
            assert_eq!(url.as_ref().map(Url::as_str), expected, "{text}");
        }
    }
}
