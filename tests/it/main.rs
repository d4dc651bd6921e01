//! Tests over real sockets on loopback.

mod server;
mod upstream;
