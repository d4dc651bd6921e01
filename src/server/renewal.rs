//! Replacement of a server's configuration while it serves, from the next request on. Requests in
//! flight keep their configuration. Reads no configuration.

use std::sync::Arc;

use super::connection::Connections;
use crate::config::Config;
use crate::proxy::Proxy;

/// Handle that applies other configurations to a server.
#[derive(Clone)]
pub struct Renewal {
    connections: Arc<Connections>,
}

impl Renewal {
    pub(super) fn new(connections: Arc<Connections>) -> Self {
        Self { connections }
    }

    /// Returns the proxy for new requests.
    pub fn proxy(&self) -> Arc<Proxy> {
        Arc::clone(&self.connections.routes().proxy)
    }

    /// Prepares `config` for new requests and its certificate for new connections, or says why it cannot be used.
    /// Nothing changes until the returned function is called.
    pub fn prepare(&self, config: Config) -> Result<impl FnOnce() + use<>, String> {
        let routes = self.connections.routes();
        let config = Arc::new(config);
        let proxy = routes.proxy.reconfigured(Arc::clone(&config));
        let proxy = Arc::new(proxy.map_err(|error| error.to_string())?);
        let tls = self.connections.tls().map(|tls| tls.prepare(&config.server.tls));
        let tls = tls.transpose().map_err(|error| format!("server.tls.{error}"))?;
        let routes = routes.reconfigured(&config, Arc::clone(&proxy));
        let connections = Arc::clone(&self.connections);
        Ok(move || {
            if let (Some(listener), Some(tls)) = (connections.tls(), tls) {
                listener.replace(tls);
            }
            proxy.take_effect();
            connections.follow(routes);
        })
    }

    /// Records that the last configuration was applied, or refused for problems with these keys.
    pub fn note_reload(&self, refused: Option<&[String]>) {
        self.connections.routes().note_refused(refused.is_some());
        self.proxy().reloaded(refused);
    }
}
