//! Tests over real sockets on loopback.

mod upstream;
