//! Plans told: the route, the command, and the judgement of contents that may come next.

mod api;
mod command;
mod preflight;
