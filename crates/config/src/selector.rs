//! How policies choose what they apply to.
#![expect(
    missing_docs,
    reason = "the fields are those of the public API, where they are documented"
)]

use crate::Labels;
use crate::api::{api, api_enum};

api! {
    pub struct WorkloadSelector {
        pub match_labels: Labels,
    }
}

api! {
    pub struct PortSelector {
        pub number: u32,
    }
}

api_enum! {
    WorkloadMode {
        Undefined = "UNDEFINED",
        Client = "CLIENT",
        Server = "SERVER",
        ClientAndServer = "CLIENT_AND_SERVER",
    }
}

api! {
    pub struct PolicyTargetReference {
        pub group: String,
        pub kind: String,
        pub name: String,
        pub namespace: String,
    }
}
