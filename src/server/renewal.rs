//! A server that goes by another configuration from the next request on, while it serves. Requests that
//! are under way end by the one that they began with. Reads no configuration.

use std::sync::Arc;

use super::connection::Connections;
use crate::config::Config;
use crate::proxy::Proxy;
use crate::store::OpenError;
use crate::tls::TlsError;

/// Has a server go by other configurations.
#[derive(Clone)]
pub struct Renewal {
    connections: Arc<Connections>,
}

/// Why a server goes on by the configuration that it has.
#[derive(Debug)]
pub enum RenewalError {
    /// Its certificate is of no use.
    Tls(TlsError),
    /// There is no way to the upstreams that it names, or no memory.
    Proxy(OpenError),
}

impl std::fmt::Display for RenewalError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tls(error) => write!(f, "server.tls.{error}"),
            Self::Proxy(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RenewalError {}

impl Renewal {
    pub(super) fn new(connections: Arc<Connections>) -> Self {
        Self { connections }
    }

    /// The way of requests that come now.
    pub fn proxy(&self) -> Arc<Proxy> {
        Arc::clone(self.connections.routes().proxy())
    }

    /// Makes all that is to have requests go by `config`, and new connections by its certificate.
    /// Nothing changes until what is given back is called.
    pub fn prepare(&self, config: Config) -> Result<impl FnOnce() + use<>, RenewalError> {
        let routes = self.connections.routes();
        let config = Arc::new(config);
        let proxy = routes.proxy().reconfigured(Arc::clone(&config));
        let proxy = Arc::new(proxy.map_err(RenewalError::Proxy)?);
        let tls = self.connections.tls().map(|tls| tls.prepare(&config.server.tls));
        let tls = tls.transpose().map_err(RenewalError::Tls)?;
        let renewed = routes.renewed(&config, proxy);
        let connections = Arc::clone(&self.connections);
        Ok(move || {
            if let (Some(listener), Some(tls)) = (connections.tls(), tls) {
                listener.replace(tls);
            }
            connections.follow(renewed);
        })
    }

    /// Notes whether the configuration that weir was last told is in force.
    pub fn note_refused(&self, is_refused: bool) {
        self.connections.routes().note_refused(is_refused);
    }
}
