//! Phases of shutdown: who requests it and how far it has come. Ends nothing itself.

use std::io;
use std::sync::Arc;

use tokio::sync::watch;

/// Phase of shutdown. Phases only advance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    Serving,
    /// No new connection is accepted; requests in flight finish.
    Draining,
    /// Requests in flight are dropped.
    Ended,
}

/// Handle that ends a server, from anywhere and any number of times.
#[derive(Debug, Clone)]
pub struct Shutdown {
    phase: Arc<watch::Sender<Phase>>,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self { phase: Arc::new(watch::Sender::new(Phase::Serving)) }
    }
}

impl Shutdown {
    /// Stops accepting connections and finishes requests in flight.
    pub fn drain(&self) {
        self.advance(Phase::Draining);
    }

    /// Drops requests in flight.
    pub fn end(&self) {
        self.advance(Phase::Ended);
    }

    /// Returns the current phase.
    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Waits until shutdown reaches `phase`.
    pub async fn reached(&self, phase: Phase) {
        let mut receiver = self.phase.subscribe();
        receiver.wait_for(|now| *now >= phase).await.expect("the sender lives as long as `self`");
    }

    fn advance(&self, to: Phase) {
        self.phase.send_if_modified(|now| {
            let later = to > *now;
            if later {
                *now = to;
            }
            later
        });
    }
}

/// Operator's signals to shut down: SIGTERM or Ctrl-C.
#[cfg(unix)]
pub struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    /// Starts listening; the signals no longer kill the process by themselves.
    pub fn listen() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Operator's signal to reload files: SIGHUP.
#[cfg(unix)]
pub struct Hangups(tokio::signal::unix::Signal);

#[cfg(unix)]
impl Hangups {
    /// Starts listening; the signal no longer kills the process.
    pub fn listen() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self(signal(SignalKind::hangup())?))
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) {
        if self.0.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }
}

/// This platform has no such signal.
#[cfg(not(unix))]
pub struct Hangups {}

#[cfg(not(unix))]
impl Hangups {
    pub fn listen() -> io::Result<Self> {
        Ok(Self {})
    }

    pub async fn next(&mut self) {
        std::future::pending::<()>().await;
    }
}

/// Operator's signal to shut down: Ctrl-C.
#[cfg(not(unix))]
pub struct Signals {}

#[cfg(not(unix))]
impl Signals {
    /// Starts listening.
    pub fn listen() -> io::Result<Self> {
        Ok(Self {})
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_is_never_taken_back() {
        let shutdown = Shutdown::default();
        assert_eq!(shutdown.phase(), Phase::Serving);
        shutdown.end();
        shutdown.drain();
        assert_eq!(shutdown.phase(), Phase::Ended);
    }
}
