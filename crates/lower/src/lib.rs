//! From the facts of the mesh and the scope of a proxy to the intermediate representation.
//!
//! Every function here is pure: what it reads of the mesh goes through a [`Reader`](pilotfish_mesh::Reader), which
//! records it, and what it may know of the proxy is the scope it is given. A proxy fact that is not in the scope type
//! cannot be read, so results can be shared by all proxies whose scope is equal.
#![deny(clippy::disallowed_methods)]

mod chain;
pub mod cluster;
pub mod conduct;
pub mod delegate;
pub mod dns;
pub mod endpoint;
pub mod gateway;
pub mod inbound;
pub mod locality;
mod network;
pub mod outbound;
mod peer;
pub mod policy;
pub mod route;
mod rule;
pub mod scope;
pub mod secret;
mod server_tls;
mod session;
pub mod upstream_tls;
pub mod virtual_service;
pub mod visibility;

pub use conduct::Conduct;
pub use scope::{
    Client, ClusterScope, EndpointScope, Families, InboundScope, Interception, ListenerScope,
    NameScope, ProxyKind, RouteScope, SecretScope, Who,
};

pub use pilotfish_mesh::Text;
