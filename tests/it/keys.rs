//! Virtual keys: who is let in, what they may, how much, who looks after them, and what nobody ever
//! gets to see.

mod access;
mod admin;
pub mod command;
mod hostile;
mod limits;
mod secrets;
pub mod setting;
mod teams;
