//! What the mesh means: services, workloads, endpoints and rules, kept as facts that change one by one.
//!
//! A [`World`] is derived from a configuration snapshot. It holds nothing that depends on who asks. Deriving the next
//! world from the last one and the objects that changed costs what those objects feed, and reports the [`Fact`]s whose
//! value changed; deriving it from nothing gives an equal world.
#![deny(clippy::disallowed_methods)]

mod alias;
mod allocation;
mod declare;
mod diagnostics;
mod discovery;
pub mod endpoint;
pub mod fact;
pub mod host;
mod index;
mod local_hosts;
pub mod lookup;
pub mod network;
mod population;
pub mod protocol;
pub mod reader;
pub mod rules;
pub mod service;
mod slices;
#[cfg(test)]
mod tests;
mod update;
mod view;
pub mod workload;
pub mod world;

pub use endpoint::{Backend, Endpoint, EndpointHealth, Locality, ServiceEndpoints, canonical};
pub use fact::Fact;
pub use network::NetworkGateway;
pub use protocol::Protocol;
pub use reader::Reader;
pub use service::{ExportTo, Port, Registry, Resolution, Service, ServiceId};
pub use workload::{Instance, Workload};
pub use world::{Settings, World};

pub use pilotfish_config::Text;
/// Labels.
pub type Labels = pilotfish_config::Labels;
