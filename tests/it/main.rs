//! Integration tests: real bytes through real sockets, on loopback alone.

mod replay;
#[path = "../../examples/scripted_upstream/server.rs"]
mod scripted_upstream;
mod server;
mod upstream;
mod upstream_rules;
