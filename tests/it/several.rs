//! Several weir processes on one PostgreSQL and one Redis: limits that hold for one also hold for
//! all together.

mod beyond;
mod keys;
mod phantom;
mod race;
pub mod setting;
mod tls;
