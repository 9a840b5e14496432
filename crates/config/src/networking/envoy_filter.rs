//! `EnvoyFilter`: patches to what the proxy is sent.

use std::collections::BTreeMap;

use serde_json::Value;

use super::sidecar::WorkloadSelector;
use super::{api, api_enum};
use crate::selector::PolicyTargetReference;

api! {
    pub struct EnvoyFilter {
        pub workload_selector: Option<WorkloadSelector>,
        pub target_refs: Vec<PolicyTargetReference>,
        pub config_patches: Vec<ConfigPatch>,
        pub priority: i32,
    }
}

api! {
    pub struct ProxyMatch {
        pub proxy_version: String,
        pub metadata: BTreeMap<String, String>,
    }
}

api! {
    pub struct ClusterMatch {
        pub port_number: u32,
        pub service: String,
        pub subset: String,
        pub name: String,
    }
}

api! {
    pub struct RouteConfigurationMatch {
        pub port_number: u32,
        pub port_name: String,
        pub gateway: String,
        pub vhost: Option<VirtualHostMatch>,
        pub name: String,
    }
}

api! {
    pub struct RouteMatch {
        pub name: String,
        pub action: RouteAction,
    }
}

api_enum! {
    RouteAction {
        Any = "ANY",
        Route = "ROUTE",
        Redirect = "REDIRECT",
        DirectResponse = "DIRECT_RESPONSE",
    }
}

api! {
    pub struct VirtualHostMatch {
        pub name: String,
        pub domain_name: String,
        pub route: Option<RouteMatch>,
    }
}

api! {
    pub struct ListenerMatch {
        pub port_number: u32,
        pub port_name: String,
        pub filter_chain: Option<FilterChainMatch>,
        pub listener_filter: String,
        pub name: String,
    }
}

api! {
    pub struct FilterChainMatch {
        pub name: String,
        pub sni: String,
        pub transport_protocol: String,
        pub application_protocols: String,
        pub filter: Option<FilterMatch>,
        pub destination_port: u32,
    }
}

api! {
    pub struct FilterMatch {
        pub name: String,
        pub sub_filter: Option<SubFilterMatch>,
    }
}

api! {
    pub struct SubFilterMatch {
        pub name: String,
    }
}

api! {
    pub struct WaypointMatch {
        pub port_number: u32,
        pub route: Option<WaypointRouteMatch>,
        pub filter: Option<FilterMatch>,
    }
}

api! {
    pub struct WaypointRouteMatch {
        pub name: String,
    }
}

api! {
    pub struct Patch {
        pub operation: PatchOperation,
        pub value: Option<Value>,
        pub filter_class: FilterClass,
    }
}

api_enum! {
    PatchOperation {
        Invalid = "INVALID",
        Merge = "MERGE",
        Add = "ADD",
        Remove = "REMOVE",
        InsertBefore = "INSERT_BEFORE",
        InsertAfter = "INSERT_AFTER",
        InsertFirst = "INSERT_FIRST",
        Replace = "REPLACE",
        MergeAndReplaceList = "MERGE_AND_REPLACE_LIST",
    }
}

api_enum! {
    FilterClass {
        Unspecified = "UNSPECIFIED",
        Authn = "AUTHN",
        Authz = "AUTHZ",
        Stats = "STATS",
    }
}

api! {
    pub struct ObjectMatch {
        pub context: PatchContext,
        pub proxy: Option<ProxyMatch>,
        pub listener: Option<ListenerMatch>,
        pub route_configuration: Option<RouteConfigurationMatch>,
        pub cluster: Option<ClusterMatch>,
        pub waypoint: Option<WaypointMatch>,
    }
}

api! {
    pub struct ConfigPatch {
        pub apply_to: ApplyTo,
        pub r#match: Option<ObjectMatch>,
        pub patch: Option<Patch>,
    }
}

api_enum! {
    ApplyTo {
        Invalid = "INVALID",
        Listener = "LISTENER",
        FilterChain = "FILTER_CHAIN",
        NetworkFilter = "NETWORK_FILTER",
        HttpFilter = "HTTP_FILTER",
        RouteConfiguration = "ROUTE_CONFIGURATION",
        VirtualHost = "VIRTUAL_HOST",
        HttpRoute = "HTTP_ROUTE",
        Cluster = "CLUSTER",
        ExtensionConfig = "EXTENSION_CONFIG",
        Bootstrap = "BOOTSTRAP",
        ListenerFilter = "LISTENER_FILTER",
    }
}

api_enum! {
    PatchContext {
        Any = "ANY",
        SidecarInbound = "SIDECAR_INBOUND",
        SidecarOutbound = "SIDECAR_OUTBOUND",
        Gateway = "GATEWAY",
        Waypoint = "WAYPOINT",
    }
}
