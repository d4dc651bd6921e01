//! Tests of whole plans, for kinds of conversations that real agents have.

mod planted;
mod shapes;
mod unread;
