//! Integration tests: real bytes through real sockets, on loopback alone.

mod promises;
#[path = "../../examples/scripted_upstream/server.rs"]
mod scripted_upstream;
mod server;
mod upstream;
mod upstream_rules;
