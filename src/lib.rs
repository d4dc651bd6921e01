//! weir: an OpenAI-compatible reverse proxy that keeps every conversation inside its model's
//! context window.
//!
//! The modules below stand in layer order; one imports only from those above it.
//! ARCHITECTURE.md is the map and tells a request's life; `tests/tidy.rs` enforces the order.

#![forbid(unsafe_code)]

// Layer 0, pure: bytes in, spans and counts out.
pub mod tokens;
pub mod wire;

// Layer 1, pure: what to send of a conversation, what requests cost and what may be used.
pub mod budget;
pub mod context;

// Layer 2, pure: configuration as used.
pub mod config;

// Layer 3: the way to the model, what outlives a request, how connections are made safe, and recorded
// conversations replayed without a model.
pub mod replay;
pub mod store;
pub mod tls;
pub mod upstream;

// Layer 4: one request, from plan to relay.
pub mod proxy;

// Layer 5: the listening side, and where keys are looked after.
pub mod admin;
pub mod server;

// Layer 6: the command line.
pub mod cli;
