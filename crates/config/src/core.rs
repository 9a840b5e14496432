//! The Kubernetes kinds, each as the few fields a control plane reads.
//!
//! `spec` and `status` are one flat struct here; what is not listed is dropped while reading, without a diagnostic.
#![expect(
    missing_docs,
    reason = "the fields are those of the public API, where they are documented"
)]

use crate::api::{api, api_enum};

mod endpoints;
mod pod;
mod secret;
mod service;

pub use endpoints::*;
pub use pod::*;
pub use secret::*;
pub use service::*;

api! {
    /// Nothing but its name and labels, which are in `Meta`.
    pub struct Namespace {}
}

api! {
    /// Its labels (region, zone) are in `Meta`.
    pub struct Node {
        pub addresses: Vec<NodeAddress>,
    }
}

api! {
    pub struct NodeAddress {
        pub r#type: String,
        pub address: String,
    }
}

api! {
    pub struct ServiceAccount {}
}
