//! `WasmPlugin` and `TrafficExtension`: code added to the proxy.
#![expect(
    missing_docs,
    reason = "the fields are those of the public API, where they are documented"
)]

use serde_json::Value;

use crate::api::{api, api_enum};
use crate::selector::{PolicyTargetReference, PortSelector, WorkloadMode, WorkloadSelector};

api! {
    pub struct WasmPlugin {
        pub selector: Option<WorkloadSelector>,
        pub target_ref: Option<PolicyTargetReference>,
        pub target_refs: Vec<PolicyTargetReference>,
        pub url: String,
        pub sha256: String,
        pub image_pull_policy: PullPolicy,
        pub image_pull_secret: String,
        pub verification_key: String,
        pub plugin_config: Option<Value>,
        pub plugin_name: String,
        pub phase: PluginPhase,
        pub priority: Option<i32>,
        pub fail_strategy: FailStrategy,
        pub vm_config: Option<VmConfig>,
        pub r#match: Vec<TrafficSelector>,
        pub r#type: PluginType,
    }
}

api! {
    pub struct TrafficSelector {
        pub mode: Option<WorkloadMode>,
        pub ports: Vec<PortSelector>,
    }
}

api_enum! {
    PluginType {
        UnspecifiedPluginType = "UNSPECIFIED_PLUGIN_TYPE",
        Http = "HTTP",
        Network = "NETWORK",
    }
}

api_enum! {
    PluginPhase {
        UnspecifiedPhase = "UNSPECIFIED_PHASE",
        Authn = "AUTHN",
        Authz = "AUTHZ",
        Stats = "STATS",
    }
}

api_enum! {
    PullPolicy {
        UnspecifiedPolicy = "UNSPECIFIED_POLICY",
        IfNotPresent = "IfNotPresent",
        Always = "Always",
    }
}

api! {
    pub struct VmConfig {
        pub env: Vec<EnvVar>,
    }
}

api! {
    pub struct EnvVar {
        pub name: String,
        pub value_from: EnvValueSource,
        pub value: String,
    }
}

api_enum! {
    EnvValueSource {
        Inline = "INLINE",
        Host = "HOST",
    }
}

api_enum! {
    FailStrategy {
        FailClose = "FAIL_CLOSE",
        FailOpen = "FAIL_OPEN",
        FailReload = "FAIL_RELOAD",
    }
}

api! {
    pub struct TrafficExtension {
        pub selector: Option<WorkloadSelector>,
        pub target_refs: Vec<PolicyTargetReference>,
        pub phase: ExecutionPhase,
        pub priority: Option<i32>,
        pub r#match: Vec<TrafficSelector>,
        pub wasm: Option<WasmConfig>,
        pub lua: Option<LuaConfig>,
    }
}

api_enum! {
    ExecutionPhase {
        Unspecified = "UNSPECIFIED",
        Authn = "AUTHN",
        Authz = "AUTHZ",
        Stats = "STATS",
    }
}

api! {
    pub struct WasmConfig {
        pub url: String,
        pub sha256: String,
        pub image_pull_policy: PullPolicy,
        pub image_pull_secret: String,
        pub verification_key: String,
        pub plugin_config: Option<Value>,
        pub plugin_name: String,
        pub fail_strategy: FailStrategy,
        pub vm_config: Option<VmConfig>,
        pub r#type: PluginType,
    }
}

api! {
    pub struct LuaConfig {
        pub inline_code: String,
    }
}
