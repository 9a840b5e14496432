//! Who may call whom: peer and request authentication, authorization.
#![expect(
    missing_docs,
    reason = "the fields are those of the public API, where they are documented"
)]

use std::collections::BTreeMap;

use crate::api::{api, api_enum};
use crate::{
    duration::Duration,
    selector::{PolicyTargetReference, WorkloadSelector},
};

api! {
    pub struct AuthorizationPolicy {
        pub selector: Option<WorkloadSelector>,
        pub target_ref: Option<PolicyTargetReference>,
        pub target_refs: Vec<PolicyTargetReference>,
        pub rules: Vec<Rule>,
        pub action: Action,
        pub provider: Option<ExtensionProviderRef>,
    }
}

api! {
    pub struct ExtensionProviderRef {
        pub name: String,
    }
}

api_enum! {
    Action {
        Allow = "ALLOW",
        Deny = "DENY",
        Audit = "AUDIT",
        Custom = "CUSTOM",
    }
}

api! {
    pub struct Rule {
        pub from: Vec<RuleFrom>,
        pub to: Vec<RuleTo>,
        pub when: Vec<Condition>,
    }
}

api! {
    pub struct RuleFrom {
        pub source: Option<Source>,
    }
}

api! {
    pub struct RuleTo {
        pub operation: Option<Operation>,
    }
}

api! {
    pub struct Source {
        pub principals: Vec<String>,
        pub not_principals: Vec<String>,
        pub request_principals: Vec<String>,
        pub not_request_principals: Vec<String>,
        pub namespaces: Vec<String>,
        pub not_namespaces: Vec<String>,
        pub service_accounts: Vec<String>,
        pub not_service_accounts: Vec<String>,
        pub ip_blocks: Vec<String>,
        pub not_ip_blocks: Vec<String>,
        pub remote_ip_blocks: Vec<String>,
        pub not_remote_ip_blocks: Vec<String>,
        pub trust_domains: Vec<String>,
        pub not_trust_domains: Vec<String>,
    }
}

api! {
    pub struct Operation {
        pub hosts: Vec<String>,
        pub not_hosts: Vec<String>,
        pub ports: Vec<String>,
        pub not_ports: Vec<String>,
        pub methods: Vec<String>,
        pub not_methods: Vec<String>,
        pub paths: Vec<String>,
        pub not_paths: Vec<String>,
    }
}

api! {
    pub struct Condition {
        pub key: String,
        pub values: Vec<String>,
        pub not_values: Vec<String>,
    }
}

api! {
    pub struct PeerAuthentication {
        pub selector: Option<WorkloadSelector>,
        pub mtls: Option<MutualTls>,
        pub port_level_mtls: BTreeMap<u32, MutualTls>,
    }
}

api! {
    pub struct MutualTls {
        pub mode: MutualTlsMode,
    }
}

api_enum! {
    MutualTlsMode {
        Unset = "UNSET",
        Disable = "DISABLE",
        Permissive = "PERMISSIVE",
        Strict = "STRICT",
    }
}

api! {
    pub struct RequestAuthentication {
        pub selector: Option<WorkloadSelector>,
        pub target_ref: Option<PolicyTargetReference>,
        pub target_refs: Vec<PolicyTargetReference>,
        pub jwt_rules: Vec<JwtRule>,
    }
}

api! {
    pub struct JwtRule {
        pub issuer: String,
        pub audiences: Vec<String>,
        #[serde(alias = "jwks_uri")]
        pub jwks_uri: String,
        pub jwks: String,
        pub from_headers: Vec<JwtHeader>,
        pub from_params: Vec<String>,
        pub output_payload_to_header: String,
        pub from_cookies: Vec<String>,
        pub forward_original_token: bool,
        pub output_claim_to_headers: Vec<ClaimToHeader>,
        pub timeout: Option<Duration>,
        pub space_delimited_claims: Vec<String>,
    }
}

api! {
    pub struct JwtHeader {
        pub name: String,
        pub prefix: String,
    }
}

api! {
    pub struct ClaimToHeader {
        pub header: String,
        pub claim: String,
    }
}
