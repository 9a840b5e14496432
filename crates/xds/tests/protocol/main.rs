//! The protocol suite: the rules of both variants as state machines, a model client against random histories, and a real
//! server on loopback with raw gRPC clients.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

mod delta;
mod health;
mod model;
mod questions;
mod server;
mod slow;
mod sotw;
mod support;
