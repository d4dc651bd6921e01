//! Integration tests: real bytes through real sockets, on loopback alone.

/// Declares a module of tests: each case in its own place, with a place type and its trait from
/// `from`.
macro_rules! cases_in {
    (
        $(#[$attribute:meta])?
        mod $module:ident, $($from:ident)::+, $place:ident as $trait:ident: $($case:ident)*
    ) => {
        mod $module {
            use $($from)::+::{$place, $trait};
            cases_in!(<$place as $trait>::new, $(#[$attribute])?: $($case)*);
        }
    };
    ($make:expr, $(#[$attribute:meta])?:) => {};
    ($make:expr, $(#[$attribute:meta])?: $case:ident $($rest:ident)*) => {
        #[tokio::test]
        $(#[$attribute])?
        async fn $case() {
            super::$case($make()).await;
        }
        cases_in!($make, $(#[$attribute])?: $($rest)*);
    };
}

mod budgeted;
mod budgets;
mod check;
mod cli;
mod conversations;
mod counted;
mod counting;
mod dashboard;
mod events;
mod eventually;
mod explain;
mod fitbench;
mod folder;
mod goals;
mod inspect;
mod invariants;
mod keys;
mod ledger;
mod logged;
mod metrics;
mod misplaced;
mod overflow_retry;
mod profile;
mod protocols;
mod recall_tool;
mod recalled;
mod reload;
mod replay;
mod replay_command;
mod rereads;
mod routes;
#[cfg(unix)]
mod run;
mod savings;
#[path = "../../examples/scripted_upstream/server.rs"]
mod scripted_upstream;
mod seeds;
mod server;
mod several;
mod spans;
mod spend;
mod store;
mod summaries;
mod terminal;
mod through;
mod tls;
mod traces;
mod upstream;
mod upstream_rules;
mod verify;
