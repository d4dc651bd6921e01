//! Explained plans: the route, the command, and the preflight check of future contents.

mod api;
mod command;
mod preflight;
