//! Integration tests: real bytes through real sockets, on loopback alone.

mod budgeted;
mod budgets;
mod check;
mod cli;
mod counting;
mod explain;
mod folder;
mod heal;
mod keys;
mod ledger;
mod logged;
mod metrics;
mod misplaced;
mod promises;
mod recalled;
mod reload;
mod replay;
mod replay_command;
mod routes;
#[path = "../../examples/scripted_upstream/server.rs"]
mod scripted_upstream;
mod seeds;
mod server;
mod several;
mod spend;
mod store;
mod summaries;
mod through;
mod tls;
mod traces;
mod upstream;
mod upstream_rules;
