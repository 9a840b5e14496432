//! The networking.istio.io kinds.
#![expect(
    missing_docs,
    reason = "the fields are those of the public API, where they are documented"
)]

use crate::api::{api, api_enum};

mod destination_rule;
pub mod envoy_filter;
mod gateway;
pub mod overlap;
mod proxy_config;
mod service_entry;
mod sidecar;
mod string_match;
mod virtual_service;
mod workload;

pub use destination_rule::*;
pub use envoy_filter::EnvoyFilter;
pub use gateway::*;
pub use proxy_config::*;
pub use service_entry::*;
pub use sidecar::*;
pub use string_match::StringMatch;
pub use virtual_service::*;
pub use workload::*;
