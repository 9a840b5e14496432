//! `ProxyConfig`: per-workload settings of the proxy process.

use std::collections::BTreeMap;

use super::api;
use crate::selector::WorkloadSelector;

api! {
    pub struct ProxyConfig {
        pub selector: Option<WorkloadSelector>,
        pub concurrency: Option<i32>,
        pub environment_variables: BTreeMap<String, String>,
        pub image: Option<ProxyImage>,
    }
}

api! {
    pub struct ProxyImage {
        pub image_type: String,
    }
}
