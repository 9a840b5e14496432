//! Keeps translated pieces up to date: rebuilds what a change touched and shares the rest.
//!
//! - [`Engine`] owns the current [`World`](pilotfish_mesh::World) and a log of which facts each generation changed.
//! - A section is one part of a proxy's configuration for one scope. All proxies whose scope is
//!   equal share its sheet, and with it the encoded resources.
//! - A sheet is made of pieces: one destination, one port, one virtual host. Each remembers the facts it read. Asking for
//!   a sheet brings it up to date: pieces that read a changed fact are lowered again, and what comes out equal is kept.
//! - Scopes that differ in nothing but what pieces can ask about are a family, with one memo: a piece that was built for one
//!   of them serves all that answer alike.
//! - Equal pieces of different families share one encoding through the interner.
//!
//! No clock, no I/O, no randomness: what is returned depends on the objects applied, not on their order or history.
#![deny(clippy::disallowed_methods)]

mod audit;
mod engine;
mod facts;
mod intern;
mod key;
mod memo;
mod section;
mod selectors;
mod sheet;

pub use audit::{Audit, Correction, Difference, Wrong};
pub use engine::{Applied, Cost, Engine, Proxy};
pub use facts::{NodeError, ProxyFacts};
