//! Settings of the whole mesh: `MeshConfig` and `MeshNetworks`.
#![expect(
    missing_docs,
    reason = "the fields are those of the public API, where they are documented"
)]

use crate::api::{api, api_enum};

mod mesh_config;
mod networks;
mod provider;
mod proxy;
mod standard;

pub use mesh_config::*;
pub use networks::*;
pub use provider::*;
pub use proxy::{
    AuthenticationPolicy, ConnectionProfile, ConnectionSettings, ForwardClientCertDetails,
    InboundInterceptionMode, PrivateKeyProvider, ProxyConfig, ProxyHeaders, ProxyStatsMatcher,
    RemoteService, Topology, Tracing, TracingServiceName,
};

pub mod proxy_types {
    //! The rest of what a `ProxyConfig` is made of.
    pub use super::proxy::*;
}
