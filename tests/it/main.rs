//! Integration tests: real bytes through real sockets, on loopback alone.

#[path = "../../examples/scripted_upstream/server.rs"]
mod scripted_upstream;
mod seeds;
mod server;
mod upstream;
mod upstream_rules;
