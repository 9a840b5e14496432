//! What the control plane costs: a mesh of a stated size, played proxies, measured changes.
//!
//! ```text
//!  mesh ── place ──▶ server (a process) ──▶ crowd: one connection per proxy, each a proxy::Session
//!    └── edits ─────────▲                      │ wire: messages, read without decoding
//!                                              ├──▶ recording ──▶ limit: the same bytes from memory
//!  run: one phase after the other ◀────────────┘
//!  growth: runs of several sizes          report: tables
//! ```
//!
//! The proxies share the machine with the server, so they do as little as a proxy can: bodies are not decoded, and what
//! must be read of a message is read once for all proxies that get the same.

#![allow(
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    reason = "a benchmark has a clock and files, and its figures are rounded anyway"
)]

pub mod crowd;
pub mod growth;
pub mod limit;
pub mod mesh;
pub mod place;
pub mod proxy;
pub mod report;
pub mod run;
pub mod server;
pub mod wire;
