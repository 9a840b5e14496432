//! The wire: discovery sessions, subscriptions, nonces and flow control; bodies are opaque.
//!
//! The control plane implements [`Configuration`]: who may connect, what a proxy gets of a type ([`View`]), and a counter
//! that rises when something changed. [`Server`] does the rest and answers what debug pages ask.
//!
//! ```text
//!  TCP ─ accept ─ service ─ inbound ─▶ stream ─▶ session (delta │ sotw) ─▶ watch ─▶ frame
//!                           outbound ◀──┘ clock, permits, order      pure state machine
//! ```
//!
//! - [`Resource`]: encoded once, shared by all. [`ResourceSet`]: persistent map. [`View`]: what one proxy may get of one type.
//! - [`delta::Session`] and [`sotw::Session`] know the protocol and nothing of time or sockets ([`Protocol`]).
//! - `stream` owns one session and decides when: push order, one unanswered response per type, time-outs, removals last.
//! - `outbound` hands shared chunks to the transport; nothing is encoded per proxy but nonces, and the names of what is gone.
//!
//! Invariants:
//! 1. No request makes the server panic, and no client makes it hold more than its limits allow.
//! 2. What a client holds is the last view sent, restricted to its subscription, until it rejects something.
//! 3. A rejection causes no response; other content or a request does.
//! 4. Who comes back to an incremental stream with the version of a resource needs nothing of it (`proof`).
//! 5. A push permit is held while something is computed, never while a client is waited for.
//!
//! Deliberately absent: knowledge of what a body means, and copies of it.

#![allow(clippy::disallowed_methods, reason = "the wire has a clock")]

mod accept;
mod admission;
mod bundle;
mod configuration;
mod connection;
mod cork;
pub mod delta;
pub mod frame;
mod health;
mod inbound;
mod limits;
mod names;
mod nonce;
mod outbound;
mod packed;
mod parts;
mod proof;
mod question;
mod resource;
mod server;
mod service;
mod session;
pub mod sotw;
mod stream;
mod subscription;
mod turns;
mod type_url;
mod watch;

pub use accept::{http2, listen};
pub use bundle::Pool;
pub use configuration::{Configuration, Observer, Peer, Push};
pub use connection::{ConnectionInfo, TypeStatus};
pub use health::Health;
pub use limits::{Limits, NewStreams};
pub use names::Names;
pub use nonce::Nonce;
pub use packed::Packer;
pub use question::{Answer, Answering, Answers, Question};
pub use resource::{Change, Resource, ResourceSet, Version, View};
pub use server::Server;
pub use service::{Discovery, PeerAddress};
pub use session::{
    Generation, Protocol, Rejection, Reply, RequestError, Response, SessionConfig, Verdict, Watches,
};
pub use subscription::{Subscription, WILDCARD};
pub use type_url::TypeUrl;
pub use watch::Watch;

/// A string that is shared, not copied, and that takes one word to refer to.
pub type Text = arcstr::ArcStr;
