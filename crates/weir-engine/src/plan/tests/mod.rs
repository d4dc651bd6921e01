//! Tests of whole plans, for kinds of conversations that real agents have.

mod dense;
mod planted;
mod rereads;
mod shapes;
mod shown;
mod talk;
mod unread;
