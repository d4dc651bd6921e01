//! API listener: accepts connections up to a limit, until shutdown. Does not look at requests; the
//! modules below do.

mod accept;
mod auth;
mod body;
mod connection;
mod conversations;
pub mod decode;
mod handshake;
mod preflight;
mod process;
mod proxy_protocol;
mod renewal;
mod reply;
mod repoll;
mod routes;
mod shutdown;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

pub use auth::tenants_of;
pub use body::{Bodies, BodyRefused, Permit};
pub use process::{outlive_full_files, take_open_files};
pub use renewal::Renewal;
pub use shutdown::{Hangups, Phase, Shutdown, Signals};

use crate::config::Config;
use crate::proxy::{Drains, Proxy};
use crate::tls::TlsError;
use connection::{Connections, Welcome};
use routes::{RoutesState, ServedRoutes};

/// Number of connections past `max_connections`: those that gave way, and those that receive a 503 with a
/// retry delay, which helps callers more than silence. Beyond these, connections wait in the system's queue.
const MAX_TURNED_AWAY: usize = 64;
/// Pause if the system has no file descriptor or memory left for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Server, bound to its address.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    connections: Arc<Connections>,
    shutdown: Shutdown,
    places: Arc<Semaphore>,
    drain_deadline: Duration,
    /// Answers that are still read after their callers left.
    drains: Drains,
}

/// Reason why the server could not start.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The address is not available.
    #[error(transparent)]
    Listen(io::Error),
    /// The certificate cannot be used.
    #[error("server.tls.{0}")]
    Tls(#[source] TlsError),
}

/// How a server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Everything in flight finished.
    Finished,
    /// This many connections did not finish in time.
    Overdue(usize),
    /// A shutdown without grace period was requested.
    Forced,
}

impl Server {
    /// Binds to the configured address. From here on, connections queue up.
    pub async fn bind(config: &Config, proxy: Proxy) -> Result<Self, BindError> {
        let bound = TcpListener::bind(config.server.listen).await;
        let listener = bound.map_err(BindError::Listen)?;
        let address = listener.local_addr().map_err(BindError::Listen)?;
        let shutdown = Shutdown::default();
        let drains = proxy.drains().clone();
        let state = RoutesState::new(config, &proxy, shutdown.clone());
        let routes = ServedRoutes::new(config, Arc::new(proxy), state);
        let connections = Connections::new(config, routes, shutdown.clone());
        let connections = connections.map_err(BindError::Tls)?;
        let max_connections = config.server.max_connections.min(Semaphore::MAX_PERMITS);
        Ok(Self {
            listener,
            address,
            connections: Arc::new(connections),
            shutdown,
            places: Arc::new(Semaphore::new(max_connections)),
            drain_deadline: Duration::from_millis(config.server.drain_deadline_ms),
            drains,
        })
    }

    /// Returns the listen address, with the port that the system assigned.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns a handle that applies other configurations.
    pub fn renewal(&self) -> Renewal {
        Renewal::new(Arc::clone(&self.connections))
    }

    /// Returns a handle that ends the server.
    pub fn shutdown(&self) -> Shutdown {
        self.shutdown.clone()
    }

    /// Serves until shutdown.
    pub async fn run(self) -> Ending {
        let mut open = JoinSet::new();
        let waiting_room = Arc::new(Semaphore::new(MAX_TURNED_AWAY));
        loop {
            let (stream, peer) = tokio::select! {
                () = self.shutdown.reached(Phase::Draining) => break,
                stream = accept(&self.listener) => stream,
                Some(ended) = open.join_next() => {
                    report(ended);
                    continue;
                }
            };
            let place = tokio::select! {
                () = self.shutdown.reached(Phase::Draining) => break,
                place = self.place(&waiting_room) => place,
            };
            let connections = self.connections.clone();
            open.spawn(async move {
                repoll::repolled(connections.serve(stream, peer, place)).await;
            });
        }
        drop(self.listener);
        drain(open, &self.drains, &self.shutdown, self.drain_deadline).await
    }

    /// Acquires a place for a connection, if necessary that of one between requests, which then leaves by
    /// the waiting room; waits only if that is full, too.
    async fn place(&self, waiting_room: &Arc<Semaphore>) -> (OwnedSemaphorePermit, Welcome) {
        let (place, welcome) = tokio::select! {
            biased;
            place = self.places.clone().acquire_owned() => (place, Welcome::Serve),
            place = waiting_room.clone().acquire_owned() => (place, Welcome::TurnAway),
        };
        let place = place.expect("the semaphores are never closed");
        match welcome {
            Welcome::Serve => (place, welcome),
            Welcome::TurnAway => self.connections.give_way(place),
        }
    }
}

/// Accepts the next connection. After a lasting error of the system it pauses and tries again.
async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(target: "weir::connection", %error, "no TCP_NODELAY");
                }
                return (stream, peer);
            }
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                tracing::warn!(target: "weir::connection", %error, "cannot take a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Whether an error concerns only the connection being accepted, not the system.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}

/// Lets open connections finish within a deadline, then the answers read without a caller.
async fn drain(
    mut open: JoinSet<()>,
    drains: &Drains,
    shutdown: &Shutdown,
    deadline: Duration,
) -> Ending {
    let finished = async {
        while let Some(ended) = open.join_next().await {
            report(ended);
        }
        drains.settled().await;
    };
    let ending = tokio::select! {
        biased;
        () = shutdown.reached(Phase::Ended) => Some(Ending::Forced),
        finished = tokio::time::timeout(deadline, finished) => {
            finished.ok().map(|()| Ending::Finished)
        }
    };
    let ending = ending.unwrap_or(match open.len() {
        0 => Ending::Finished,
        connections => Ending::Overdue(connections),
    });
    open.shutdown().await;
    drains.end().await;
    ending
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(target: "weir::connection", "a connection ended because of a bug in weir");
    }
}
