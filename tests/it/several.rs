//! Several weirs at once, each a process of its own, on one PostgreSQL and one Redis: what no one of
//! them may do, all of them together may not do either.

mod beyond;
mod keys;
mod phantom;
mod race;
mod setting;
mod tls;
