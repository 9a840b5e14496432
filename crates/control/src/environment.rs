//! Environment variables: which ones mean something, and reading their values. Only `settings.rs` uses this.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

use anyhow::{Result, anyhow};
use pilotfish_config::Duration;

/// What a value must look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Bool,
    Number,
    Time,
    Text,
}

use Form::{Bool, Number, Text, Time};

/// Variables that shape what proxies are sent; translation reads them by name from `pilotfish_mesh::Settings::features`.
const FEATURES: &[(&str, Form)] = &[
    ("DISABLE_SHADOW_HOST_SUFFIX", Bool),
    ("DISABLE_TRACK_REMAINING_CB_METRICS", Bool),
    ("ENABLE_100_CONTINUE_HEADERS", Bool),
    ("ENABLE_HCM_INTERNAL_NETWORKS", Bool),
    ("ENABLE_LOCALITY_WEIGHTED_LB_CONFIG", Bool),
    ("ENABLE_MULTICLUSTER_HEADLESS", Bool),
    ("ENABLE_TLS_ON_SIDECAR_INGRESS", Bool),
    (
        "ISTIO_ENABLE_IPV4_OUTBOUND_LISTENER_FOR_IPV6_CLUSTERS",
        Bool,
    ),
    (
        "LABEL_CANONICAL_SERVICES_FOR_MESH_EXTERNAL_SERVICE_ENTRIES",
        Bool,
    ),
    ("MAX_CONNECTIONS_PER_SOCKET_EVENT_LOOP", Number),
    ("PILOT_ALLOW_ANY_DYNAMIC_DNS_MAX_HOSTS", Number),
    ("PILOT_ALLOW_SIDECAR_SERVICE_INBOUND_LISTENER_MERGE", Bool),
    ("PILOT_AUTO_SEND_UNHEALTHY_ENDPOINTS", Bool),
    ("PILOT_DISABLE_MX_ALPN", Bool),
    ("PILOT_DNS_CARES_UDP_MAX_QUERIES", Number),
    ("PILOT_DNS_JITTER_DURATION", Time),
    ("PILOT_DRAINING_LABEL", Text),
    ("PILOT_ENABLE_ABSOLUTE_FQDN_VHOST_DOMAIN", Bool),
    ("PILOT_ENABLE_ALPN_FILTER", Bool),
    ("PILOT_ENABLE_EDS_FOR_HEADLESS_SERVICES", Bool),
    ("PILOT_ENABLE_IP_AUTOALLOCATE", Bool),
    ("PILOT_ENABLE_K8S_SELECT_WORKLOAD_ENTRIES", Bool),
    ("PILOT_ENABLE_METADATA_EXCHANGE", Bool),
    ("PILOT_ENABLE_MONGO_FILTER", Bool),
    ("PILOT_ENABLE_MYSQL_FILTER", Bool),
    ("PILOT_ENABLE_PERSISTENT_SESSION_FILTER", Bool),
    ("PILOT_ENABLE_QUIC_LISTENERS", Bool),
    ("PILOT_ENABLE_REDIS_FILTER", Bool),
    ("PILOT_ENABLE_ROUTE_COLLAPSE_OPTIMIZATION", Bool),
    ("PILOT_ENABLE_SERVICEENTRY_SELECT_PODS", Bool),
    ("PILOT_ENABLE_TELEMETRY_LABEL", Bool),
    ("PILOT_ENABLE_WORKLOAD_ENTRY_HEALTHCHECKS", Bool),
    ("PILOT_ENDPOINT_TELEMETRY_LABEL", Bool),
    ("PILOT_FILTER_GATEWAY_CLUSTER_CONFIG", Bool),
    ("PILOT_GATEWAY_TRANSPORT_SOCKET_CONNECT_TIMEOUT", Time),
    ("PILOT_HTTP10", Bool),
    ("PILOT_PERSISTENT_SESSION_HEADER_LABEL", Text),
    ("PILOT_PERSISTENT_SESSION_LABEL", Text),
    ("PILOT_SCOPE_GATEWAY_TO_NAMESPACE", Bool),
    ("PILOT_SEND_UNHEALTHY_ENDPOINTS", Bool),
    ("PILOT_SIDECAR_USE_REMOTE_ADDRESS", Bool),
    ("PILOT_SKIP_VALIDATE_TRUST_DOMAIN", Bool),
    ("PILOT_TRACE_SAMPLING", Number),
    ("PREFER_DESTINATIONRULE_TLS_FOR_EXTERNAL_SERVICES", Bool),
];

/// Variables of istiod that have no effect here, with the reason.
const WITHOUT_EFFECT: &[(&str, &[&str])] = &[
    (
        "the behaviour they ask for is not supported",
        &[
            "ENABLE_ENHANCED_DESTINATIONRULE_MERGE",
            "PILOT_ENABLE_HEADLESS_FILTER_CHAIN_LISTENER",
            "PILOT_IP_AUTOALLOCATE_IPV4_PREFIX",
            "PILOT_IP_AUTOALLOCATE_IPV6_PREFIX",
            "PILOT_MX_ADDITIONAL_LABELS",
            "PILOT_SIDECAR_PICK_BEST_SERVICE_NAMESPACE",
            "PILOT_UNIFIED_SIDECAR_SCOPE",
            "RESOLVE_HOSTNAME_GATEWAYS",
        ],
    ),
    (
        "what they tune comes with RequestAuthentication, AuthorizationPolicy and WasmPlugin",
        &[
            "BLOCKED_CIDRS_IN_JWKS_URIS",
            "BLOCKED_CIDRS_IN_WASM_FETCH",
            "ISTIO_WASM_MAX_BINARY_SIZE_BYTES",
            "PILOT_ENABLE_MULTIPLE_CUSTOM_AUTHZ_PROVIDERS",
            "PILOT_JWT_ENABLE_REMOTE_JWKS",
        ],
    ),
    (
        "they are read by Istio's agent, not here",
        &[
            "ENVOY_STATUS_PORT_ENABLE_PROXY_PROTOCOL",
            "ISTIO_AGENT_ENABLE_WASM_REMOTE_LOAD_CONVERSION",
        ],
    ),
    (
        "what they tune in the Kubernetes source comes with a later release",
        &[
            "EXTERNAL_ISTIOD",
            "ISTIO_KUBE_CLIENT_CONTENT_TYPE",
            "ISTIO_WATCH_NAMESPACE",
            "LOCAL_CLUSTER_SECRET_WATCHER",
            "PILOT_ENABLE_ANALYSIS",
            "PILOT_ANALYSIS_INTERVAL",
            "PILOT_ENABLE_NODE_UNTAINT_CONTROLLERS",
            "PILOT_ENABLE_REMOTE_CREDENTIALS_CONTROLLER",
            "PILOT_IGNORE_RESOURCES",
            "PILOT_INCLUDE_RESOURCES",
            "PILOT_MULTICLUSTER_KUBECONFIG_PATH",
            "PILOT_NODE_UNTAINT_CONTROLLERS_TAINT_NAME",
            "PILOT_STATUS_MAX_WORKERS",
        ],
    ),
    (
        "what they tune comes with the certificate authority and authentication",
        &[
            "AUDIENCE",
            "CA_TRUSTED_NODE_ACCOUNTS",
            "CERT_SIGNER_DOMAIN",
            "CITADEL_ENABLE_JITTER_FOR_ROOT_CERT_ROTATOR",
            "CITADEL_SELF_SIGNED_CA_CERT_TTL",
            "CITADEL_SELF_SIGNED_CA_RSA_KEY_SIZE",
            "CITADEL_SELF_SIGNED_ROOT_CERT_CHECK_INTERVAL",
            "CITADEL_SELF_SIGNED_ROOT_CERT_GRACE_PERIOD_PERCENTILE",
            "COMPLIANCE_POLICY",
            "DEBUG_ENDPOINT_AUTH_ALLOWED_NAMESPACES",
            "DEFAULT_WORKLOAD_CERT_TTL",
            "ENABLE_CA_SERVER",
            "ENABLE_CLUSTER_TRUST_BUNDLE_API",
            "ENABLE_DEBUG_ENDPOINT_AUTH",
            "ENABLE_XDS_API_GENERATOR_AUTH",
            "EXTERNAL_CA",
            "ISTIOD_CUSTOM_HOST",
            "ISTIO_MULTIROOT_MESH",
            "JWKS_RESOLVER_INSECURE_SKIP_VERIFY",
            "JWT_RULE",
            "K8S_SIGNER",
            "MAX_WORKLOAD_CERT_TTL",
            "PILOT_CA_CERT_CONFIGMAP",
            "PILOT_CERT_PROVIDER",
            "PILOT_CRL_CONFIGMAP",
            "PILOT_ENABLE_CA_CRL",
            "PILOT_ENABLE_XDS_IDENTITY_CHECK",
            "PILOT_JWT_PUB_KEY_REFRESH_INTERVAL",
            "ROOT_CA_DIR",
            "TOKEN_ISSUER",
            "TRUSTED_GATEWAY_CIDR",
            "USE_CACERTS_FOR_SELF_SIGNED_CA",
            "USE_REMOTE_CERTS",
            "XDS_AUTH",
        ],
    ),
    (
        "what they tune comes with the Gateway API, injection or ambient mode",
        &[
            "AMBIENT_SCOPED_ADDRESS_PUSHES",
            "ENABLE_GATEWAY_API_INFERENCE_EXTENSION",
            "ENABLE_GATEWAY_API_MANUAL_DEPLOYMENT",
            "ENABLE_LAYERED_WAYPOINT_AUTHORIZATION_POLICIES",
            "ENABLE_MCS_AUTO_EXPORT",
            "ENABLE_MCS_CLUSTER_LOCAL",
            "ENABLE_MCS_HOST",
            "ENABLE_MCS_SERVICE_DISCOVERY",
            "ENABLE_NATIVE_SIDECARS",
            "ENABLE_SELECTOR_BASED_K8S_GATEWAY_POLICY",
            "ENABLE_WILDCARD_HOST_SERVICE_ENTRIES_FOR_TLS",
            "INJECTION_WEBHOOK_CONFIG_NAME",
            "INJECT_ENABLED",
            "K8S_INGRESS_NS",
            "MCS_API_GROUP",
            "MCS_API_VERSION",
            "PILOT_ENABLE_AGENTGATEWAY",
            "PILOT_ENABLE_AMBIENT",
            "PILOT_ENABLE_GATEWAY_API",
            "PILOT_ENABLE_GATEWAY_API_COPY_LABELS_ANNOTATIONS",
            "PILOT_ENABLE_GATEWAY_API_DEPLOYMENT_CONTROLLER",
            "PILOT_ENABLE_GATEWAY_API_GATEWAYCLASS_CONTROLLER",
            "PILOT_ENABLE_GATEWAY_API_STATUS",
            "PILOT_ENABLE_STRICT_GATEWAY_MERGING",
            "PILOT_GATEWAY_API_CONTROLLER_NAME",
            "PILOT_GATEWAY_API_DEFAULT_GATEWAYCLASS_NAME",
            "PILOT_MULTI_NETWORK_DISCOVER_GATEWAY_API",
            "VALIDATION_WEBHOOK_CONFIG_NAME",
        ],
    ),
    (
        "they tune internals of istiod that are not here",
        &[
            "ENABLE_LAZY_SIDECAR_EVALUATION",
            "ENABLE_PROXY_FIND_POD_BY_IP",
            "ENABLE_VTPROTOBUF",
            "ISTIO_DELTA_XDS",
            "ISTIO_ENABLE_CONTROLLER_QUEUE_METRICS",
            "MUTEX_PROFILE_FRACTION",
            "PILOT_AGENT_MERGE_ENVOY_STATS",
            "PILOT_CONVERT_SIDECAR_SCOPE_CONCURRENCY",
            "PILOT_ENABLE_CDS_CACHE",
            "PILOT_ENABLE_RDS_CACHE",
            "PILOT_ENABLE_XDS_CACHE",
            "PILOT_ENVOY_FILTER_STATS",
            "PILOT_XDS_CACHE_INDEX_CLEAR_INTERVAL",
            "PILOT_XDS_CACHE_SIZE",
            "PILOT_XDS_CACHE_STATS",
            "UNSAFE_ENABLE_ADMIN_ENDPOINTS",
            "UNSAFE_PILOT_ENABLE_RUNTIME_ASSERTIONS",
        ],
    ),
];

/// The variables of a process, and which of them were asked for.
#[derive(Debug, Default)]
pub(crate) struct Environment {
    vars: BTreeMap<String, String>,
}

impl Environment {
    /// Those of this process; what is not text cannot be one of ours.
    pub(crate) fn of_process() -> Self {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Self {
            vars: std::env::vars_os().filter_map(text).collect(),
        }
    }

    /// These, for tests.
    #[cfg(test)]
    pub(crate) fn of<const N: usize>(vars: [(&str, &str); N]) -> Self {
        Self {
            vars: vars
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
        }
    }

    /// A value as text; an empty variable counts as unset.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.vars
            .get(name)
            .map(|value| value.trim())
            .filter(|value| !value.is_empty())
    }

    /// A number, or the default.
    pub(crate) fn number<T: FromStr>(&self, name: &str, default: T) -> Result<T>
    where
        T::Err: Display,
    {
        self.text(name).map_or(Ok(default), |value| {
            value
                .parse()
                .map_err(|error| bad(name, value, &error, "a number, such as 100"))
        })
    }

    /// A duration, or the default.
    pub(crate) fn time(
        &self,
        name: &str,
        default: std::time::Duration,
    ) -> Result<std::time::Duration> {
        self.text(name).map_or(Ok(default), |value| {
            let parsed: Result<Duration, _> = value.parse();
            parsed
                .map(Duration::get)
                .map_err(|error| bad(name, value, &error, "a duration, such as 100ms or 1m30s"))
        })
    }

    /// A truth value, or the default.
    pub(crate) fn bool(&self, name: &str, default: bool) -> Result<bool> {
        self.text(name)
            .map_or(Ok(default), |value| parse_bool(name, value))
    }

    /// The variables that shape output, checked, with truth values as `true` or `false`.
    pub(crate) fn features(&self) -> Result<BTreeMap<String, String>> {
        let mut features = BTreeMap::new();
        for &(name, form) in FEATURES {
            let Some(value) = self.text(name) else {
                continue;
            };
            let value = match form {
                Bool => parse_bool(name, value)?.to_string(),
                Number => self.number::<f64>(name, 0.0).map(|_| value.to_owned())?,
                Time => self
                    .time(name, std::time::Duration::ZERO)
                    .map(|_| value.to_owned())?,
                Text => value.to_owned(),
            };
            features.insert(name.to_owned(), value);
        }
        Ok(features)
    }

    /// What is to be said in the log: variables that are set and have no effect, or that nobody knows.
    pub(crate) fn notes(&self, read_elsewhere: &[&str]) -> Vec<String> {
        let mut notes = Vec::new();
        for (why, names) in WITHOUT_EFFECT {
            let set: Vec<_> = names
                .iter()
                .copied()
                .filter(|name| self.text(name).is_some())
                .collect();
            if !set.is_empty() {
                notes.push(format!("{} set without effect: {why}", set.join(", ")));
            }
        }
        let known = |name: &str| {
            read_elsewhere.contains(&name)
                || FEATURES.iter().any(|(known, _)| *known == name)
                || WITHOUT_EFFECT
                    .iter()
                    .any(|(_, names)| names.contains(&name))
        };
        // Kubernetes sets PILOT_SERVICE_HOST, PILOT_PORT_15010_TCP and the like for a Service that is named pilot.
        let injected =
            |name: &str| name.starts_with("PILOT_SERVICE_") || name.starts_with("PILOT_PORT");
        let strange = self
            .vars
            .keys()
            .filter(|name| name.starts_with("PILOT_") && !injected(name) && !known(name));
        notes.extend(strange.map(|name| format!("{name} is set, but there is no such setting")));
        notes
    }
}

fn bad(name: &str, value: &str, error: &dyn Display, expected: &str) -> anyhow::Error {
    anyhow!(
        "environment variable {name}={value:?} cannot be read: {error}; set it to {expected}, or unset it"
    )
}

/// The spellings Go takes.
fn parse_bool(name: &str, value: &str) -> Result<bool> {
    match value {
        "1" | "t" | "T" | "true" | "True" | "TRUE" => Ok(true),
        "0" | "f" | "F" | "false" | "False" | "FALSE" => Ok(false),
        _ => Err(bad(name, value, &"neither true nor false", "true or false")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_value_names_its_variable() {
        let env = Environment::of([("A", "soon"), ("PILOT_HTTP10", "yes"), ("EMPTY", " ")]);
        for message in [
            env.time("A", std::time::Duration::ZERO).unwrap_err(),
            env.number("A", 1).unwrap_err(),
            env.bool("A", true).unwrap_err(),
        ] {
            assert!(message.to_string().contains("A=\"soon\""), "{message}");
        }
        assert!(
            env.features()
                .unwrap_err()
                .to_string()
                .contains("PILOT_HTTP10")
        );
        assert_eq!(env.number("EMPTY", 7).unwrap(), 7);
    }

    #[test]
    fn features_are_normalised() {
        let env = Environment::of([
            ("PILOT_HTTP10", "True"),
            ("PILOT_TRACE_SAMPLING", "2.5"),
            ("HOME", "/root"),
        ]);
        let features = env.features().unwrap();
        assert_eq!(features.len(), 2);
        assert_eq!(features["PILOT_HTTP10"], "true");
        assert_eq!(features["PILOT_TRACE_SAMPLING"], "2.5");
    }

    #[test]
    fn nothing_is_ignored_in_silence() {
        let env = Environment::of([
            ("PILOT_ENABLE_AMBIENT", "true"),
            ("PILOT_DEBOUNCE_AFTR", "1s"),
            ("PILOT_DEBOUNCE_AFTER", "1s"),
            ("PILOT_PORT_15010_TCP", "tcp://10.0.0.1:15010"),
        ]);
        let notes = env.notes(&["PILOT_DEBOUNCE_AFTER"]);
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(notes[0].starts_with("PILOT_ENABLE_AMBIENT set without effect"));
        assert!(notes[1].starts_with("PILOT_DEBOUNCE_AFTR "));
    }

    #[test]
    fn no_variable_is_listed_twice() {
        let features = FEATURES.iter().map(|(name, _)| *name);
        let mut all: Vec<_> = features
            .chain(
                WITHOUT_EFFECT
                    .iter()
                    .flat_map(|(_, names)| names.iter().copied()),
            )
            .collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
