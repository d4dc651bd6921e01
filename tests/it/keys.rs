//! Virtual keys: authentication, permissions, limits, administration, and secrecy.

mod access;
mod admin;
pub mod command;
mod hostile;
mod limits;
mod organization;
mod repeats;
mod secrets;
pub mod setting;
mod teams;
