//! weir: an OpenAI-compatible reverse proxy that keeps every conversation inside its model's
//! context window.
//!
//! The modules below stand in layer order; each imports only from those above it. `tests/tidy.rs`
//! enforces the order. ARCHITECTURE.md is the map and describes the life of a request.

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

// Configuration as used.
pub mod config;

// The way to the model, and how connections are made safe.
pub mod tls;
pub mod upstream;

// One request, from plan to relay.
pub mod proxy;

// The listening side, and where keys are managed.
pub mod admin;
pub mod server;

// The command line.
pub mod cli;
