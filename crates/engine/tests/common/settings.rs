//! Versions of the mesh's own configuration, and of its networks.

/// Each says something that translation reads.
pub(crate) const MESHES: [&str; 12] = [
    "{}",
    "outboundTrafficPolicy: {mode: REGISTRY_ONLY}",
    "localityLbSetting: {failover: [{from: north, to: south}]}",
    "localityLbSetting: {failoverPriority: [app, topology.kubernetes.io/zone]}",
    "{defaultServiceExportTo: ['.'], defaultVirtualServiceExportTo: ['.'], defaultDestinationRuleExportTo: ['.']}",
    "rootNamespace: shop",
    "enableAutoMtls: false",
    "{trustDomain: other.example, trustDomainAliases: [old.example]}",
    "{protocolDetectionTimeout: 2s, connectTimeout: 3s}",
    "h2UpgradePolicy: UPGRADE",
    "serviceEntryVisibility: {applyToSidecars: true, defaultVisibility: NAMESPACE}",
    "{proxyListenPort: 15101, defaultHttpRetryPolicy: {attempts: 5}, pathNormalization: {normalization: MERGE_SLASHES}}",
];

pub(crate) const NETWORKS: [&str; 3] = [
    "{}",
    "networks: {far: {endpoints: [{fromCidr: 10.0.0.0/30}], gateways: [{address: 192.0.2.1, port: 15443}]}}",
    "networks: {near: {endpoints: [{fromRegistry: Kubernetes}], gateways: [{address: 192.0.2.2, port: 15443}]}}",
];
