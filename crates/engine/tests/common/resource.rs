//! Resources as a proxy reads them: their names, and what they refer to.

use std::collections::BTreeMap;
use std::rc::Rc;

use pilotfish_protos::envoy::config::cluster::v3 as cluster;
use pilotfish_protos::envoy::config::core::v3::config_source::ConfigSourceSpecifier;
use pilotfish_protos::envoy::config::core::v3::transport_socket::ConfigType;
use pilotfish_protos::envoy::config::core::v3::{ConfigSource, TransportSocket};
use pilotfish_protos::envoy::config::listener::v3 as listener;
use pilotfish_protos::envoy::config::route::v3::RouteConfiguration;
use pilotfish_protos::envoy::extensions::filters::network::http_connection_manager::v3 as hcm;
use pilotfish_protos::envoy::extensions::transport_sockets::tls::v3 as tls;
use pilotfish_protos::google::protobuf::Any;
use pilotfish_xds::TypeUrl::{self, Cluster, Endpoints, Listener, Route, Secret, VirtualHost};
use pilotfish_xds::Version;
use prost::Message as _;

/// What a proxy was sent under one name.
#[derive(Debug)]
pub(crate) struct Body {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) any: Any,
    /// Types and names that a proxy asks for because of it.
    pub(crate) refs: Vec<(TypeUrl, String)>,
}

impl Body {
    pub(crate) fn shown(&self) -> String {
        let json = pilotfish_protos::json::any_to_json(&self.any.type_url, &self.any.value);
        json.map_or_else(|e| format!("{e:?}"), |json| json.to_string())
    }
}

/// Every resource that was read, so that each is read once.
#[derive(Debug, Default)]
pub(crate) struct Known(BTreeMap<Version, Rc<Body>>);

impl Known {
    pub(crate) fn body(&mut self, t: &TypeUrl, any: &Any) -> Rc<Body> {
        assert_eq!(any.type_url, t.as_str());
        let version = Version::of(&any.encode_to_vec());
        let read = || Body {
            name: name(t, any),
            version: version.to_string(),
            any: any.clone(),
            refs: refs(t, any),
        };
        self.0
            .entry(version)
            .or_insert_with(|| Rc::new(read()))
            .clone()
    }
}

/// In all types that have a name it is the first field.
#[derive(Clone, PartialEq, prost::Message)]
struct Named {
    #[prost(string, tag = "1")]
    name: String,
}

fn name(t: &TypeUrl, any: &Any) -> String {
    match t {
        TypeUrl::NameTable => "NameTable".to_owned(),
        _ => Named::decode(any.value.clone()).unwrap().name,
    }
}

fn refs(t: &TypeUrl, any: &Any) -> Vec<(TypeUrl, String)> {
    let body = any.value.clone();
    match t {
        Cluster => of_cluster(&cluster::Cluster::decode(body).unwrap()),
        Listener => of_listener(&listener::Listener::decode(body).unwrap()),
        Route => {
            let table = RouteConfiguration::decode(body).unwrap();
            let apart = table.vhds.is_some();
            apart
                .then_some((VirtualHost, table.name))
                .into_iter()
                .collect()
        }
        _ => Vec::new(),
    }
}

fn of_cluster(c: &cluster::Cluster) -> Vec<(TypeUrl, String)> {
    use cluster::cluster::{ClusterDiscoveryType, DiscoveryType};
    let mut out = Vec::new();
    let eds = Some(ClusterDiscoveryType::Type(DiscoveryType::Eds.into()));
    if c.cluster_discovery_type == eds {
        let other = c.eds_cluster_config.as_ref().map(|e| &e.service_name);
        let name = other.filter(|n| !n.is_empty()).unwrap_or(&c.name);
        out.push((Endpoints, name.clone()));
    }
    let matched = c.transport_socket_matches.iter();
    let sockets = matched.filter_map(|m| m.transport_socket.as_ref());
    for socket in sockets.chain(&c.transport_socket) {
        of_socket(socket, &mut out);
    }
    out
}

fn of_listener(l: &listener::Listener) -> Vec<(TypeUrl, String)> {
    use hcm::http_connection_manager::RouteSpecifier;
    use listener::filter::ConfigType;
    let mut out = Vec::new();
    for chain in l.filter_chains.iter().chain(&l.default_filter_chain) {
        for filter in &chain.filters {
            let Some(ConfigType::TypedConfig(any)) = &filter.config_type else {
                continue;
            };
            if any.type_url.ends_with(".HttpConnectionManager") {
                let http = hcm::HttpConnectionManager::decode(any.value.clone()).unwrap();
                if let Some(RouteSpecifier::Rds(rds)) = http.route_specifier {
                    out.push((Route, rds.route_config_name));
                }
            }
        }
        if let Some(socket) = &chain.transport_socket {
            of_socket(socket, &mut out);
        }
    }
    out
}

/// Secrets that come from the control plane itself.
fn of_socket(socket: &TransportSocket, out: &mut Vec<(TypeUrl, String)>) {
    use tls::common_tls_context::ValidationContextType as Roots;
    let Some(ConfigType::TypedConfig(any)) = &socket.config_type else {
        return;
    };
    let body = any.value.clone();
    let common = match any.type_url.rsplit_once('.').map_or("", |(_, last)| last) {
        "UpstreamTlsContext" => {
            tls::UpstreamTlsContext::decode(body)
                .unwrap()
                .common_tls_context
        }
        "DownstreamTlsContext" => {
            tls::DownstreamTlsContext::decode(body)
                .unwrap()
                .common_tls_context
        }
        _ => None,
    };
    let Some(common) = common else {
        return;
    };
    let roots = match common.validation_context_type {
        Some(Roots::ValidationContextSdsSecretConfig(secret)) => Some(secret),
        Some(Roots::CombinedValidationContext(both)) => both.validation_context_sds_secret_config,
        _ => None,
    };
    let certificates = common.tls_certificate_sds_secret_configs.into_iter();
    for secret in certificates.chain(roots) {
        let is_ours = |source: &ConfigSource| {
            matches!(
                source.config_source_specifier,
                Some(ConfigSourceSpecifier::Ads(_))
            )
        };
        if secret.sds_config.as_ref().is_some_and(is_ours) {
            out.push((Secret, secret.name));
        }
    }
}
