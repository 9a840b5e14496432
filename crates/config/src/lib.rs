//! What users wrote: kinds, strict parsing, diagnostics and the store.
//!
//! Pure: no files, clock or environment here. Text comes in through [`parse`], objects through [`Store::apply`], and
//! everything downstream reads an immutable [`Snapshot`].
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod api;
pub mod base64;
mod cluster;
pub mod core;
pub mod diagnostic;
pub mod duration;
pub mod extensions;
mod finding;
pub mod kind;
pub mod mesh;
mod names;
pub mod networking;
pub mod object;
pub mod parse;
pub mod security;
pub mod selector;
pub mod snapshot;
pub mod standing;
pub mod store;
pub mod telemetry;
mod validate;

pub use cluster::ClusterId;
pub use diagnostic::{Diagnostic, Severity};
pub use duration::Duration;
pub use kind::Kind;
pub use object::{Labels, Meta, Object, ObjectKey, Origin, OwnerRef, Spec, SpecOf};
pub use snapshot::{Snapshot, every_second_first};
pub use standing::{Standing, Standings};
pub use store::{Applied, Change, SourceId, Store};

/// A string that is shared, not copied, and that takes one word to refer to: there are as many of them as there are names,
/// labels and addresses.
pub type Text = arcstr::ArcStr;
