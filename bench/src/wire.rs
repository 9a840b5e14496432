//! What of xDS messages a played proxy needs, read without decoding them: it must not cost more than the server it measures.

use std::fmt;
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint};
use serde::Serialize;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// The variant of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Incremental.
    Delta,
    /// State of the world.
    Sotw,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Delta => "delta",
            Self::Sotw => "state of the world",
        })
    }
}

impl Mode {
    /// The method of the aggregated service.
    pub fn path(self) -> &'static str {
        match self {
            Self::Delta => {
                "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
            }
            Self::Sotw => {
                "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
            }
        }
    }

    /// The variant of a method.
    pub fn of_path(path: &str) -> Option<Self> {
        [Self::Delta, Self::Sotw]
            .into_iter()
            .find(|mode| mode.path() == path)
    }
}

/// The types that a sidecar asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Type {
    /// Clusters.
    Cds,
    /// Endpoints.
    Eds,
    /// Listeners.
    Lds,
    /// Route tables.
    Rds,
    /// Virtual hosts.
    Vhds,
}

impl Type {
    /// All, in the order in which they are asked for.
    pub const ALL: [Self; 5] = [Self::Cds, Self::Eds, Self::Lds, Self::Rds, Self::Vhds];

    /// The URL of the type.
    pub fn url(self) -> &'static str {
        match self {
            Self::Cds => "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            Self::Eds => "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
            Self::Lds => "type.googleapis.com/envoy.config.listener.v3.Listener",
            Self::Rds => "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
            Self::Vhds => "type.googleapis.com/envoy.config.route.v3.VirtualHost",
        }
    }

    /// The name operators use.
    pub fn short(self) -> &'static str {
        match self {
            Self::Cds => "CDS",
            Self::Eds => "EDS",
            Self::Lds => "LDS",
            Self::Rds => "RDS",
            Self::Vhds => "VHDS",
        }
    }

    /// The type with this URL.
    pub fn parse(url: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|t| t.url().as_bytes() == url)
    }
}

/// A field of an encoded message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// A number, truth value or enumeration.
    Varint(u64),
    /// Text, bytes, or a message.
    Bytes(&'a [u8]),
    /// Four or eight bytes, which nothing here reads.
    Fixed,
}

/// The fields of an encoded message in their order; ends where it is malformed.
#[derive(Clone, Debug)]
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = (u32, Value<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let mut rest = self.0;
        let (number, wire) = decode_key(&mut rest).ok()?;
        let value = match wire {
            WireType::Varint => Value::Varint(decode_varint(&mut rest).ok()?),
            WireType::LengthDelimited => {
                let len = usize::try_from(decode_varint(&mut rest).ok()?).ok()?;
                let (value, after) = rest.split_at_checked(len)?;
                rest = after;
                Value::Bytes(value)
            }
            WireType::ThirtyTwoBit => {
                rest = rest.get(4..)?;
                Value::Fixed
            }
            WireType::SixtyFourBit => {
                rest = rest.get(8..)?;
                Value::Fixed
            }
            WireType::StartGroup | WireType::EndGroup => return None,
        };
        self.0 = rest;
        Some((number, value))
    }
}

/// The values of a field that is text, bytes or a message.
fn all(message: &[u8], field: u32) -> impl Iterator<Item = &[u8]> {
    Fields(message).filter_map(move |found| match found {
        (number, Value::Bytes(bytes)) if number == field => Some(bytes),
        _ => None,
    })
}

/// The last value of such a field, which is the one that counts; empty if there is none.
fn one(message: &[u8], field: u32) -> &[u8] {
    all(message, field).last().unwrap_or_default()
}

fn text(bytes: &[u8]) -> Arc<str> {
    String::from_utf8_lossy(bytes).into()
}

/// A response, taken apart as far as a proxy must.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response<'a> {
    /// What it is about.
    pub kind: Type,
    /// Version of a state-of-the-world response.
    pub version: &'a [u8],
    /// To be sent back with the acknowledgement.
    pub nonce: &'a [u8],
    /// `Any`, or `Resource` if incremental.
    pub resources: Vec<&'a [u8]>,
    /// Names of what is gone, if incremental.
    pub removed: Vec<&'a [u8]>,
}

impl<'a> Response<'a> {
    /// None if the type is not one that we ask for.
    pub fn read(message: &'a [u8], mode: Mode) -> Option<Self> {
        let (mut url, mut version, mut nonce): (&[u8], &[u8], &[u8]) = (&[], &[], &[]);
        let (mut resources, mut removed) = (Vec::new(), Vec::new());
        for (number, value) in Fields(message) {
            match (number, value) {
                (1, Value::Bytes(bytes)) => version = bytes,
                (2, Value::Bytes(bytes)) => resources.push(bytes),
                (4, Value::Bytes(bytes)) => url = bytes,
                (5, Value::Bytes(bytes)) => nonce = bytes,
                (6, Value::Bytes(bytes)) if mode == Mode::Delta => removed.push(bytes),
                _ => {}
            }
        }
        Some(Self {
            kind: Type::parse(url)?,
            version,
            nonce,
            resources,
            removed,
        })
    }

    /// Name and encoded message of each resource. State of the world names clusters and listeners only inside of them,
    /// in their first field.
    pub fn bodies(&self, mode: Mode) -> impl Iterator<Item = (Arc<str>, &'a [u8])> {
        self.resources.iter().map(move |resource| match mode {
            Mode::Sotw => {
                let body = one(resource, 2);
                (text(one(body, 1)), body)
            }
            Mode::Delta => (text(one(resource, 3)), one(one(resource, 2), 2)),
        })
    }
}

/// The name under which the endpoints of a cluster are asked for, if they are.
pub fn endpoints_of(cluster: &[u8]) -> Option<Arc<str>> {
    const EDS: u64 = 3;
    let (mut name, mut config, mut eds): (&[u8], &[u8], bool) = (&[], &[], false);
    for field in Fields(cluster) {
        match field {
            (1, Value::Bytes(bytes)) => name = bytes,
            (2, Value::Varint(kind)) => eds = kind == EDS,
            (3, Value::Bytes(bytes)) => config = bytes,
            _ => {}
        }
    }
    let service = one(config, 2);
    eds.then(|| text(if service.is_empty() { name } else { service }))
}

/// The route tables that a listener names: those of the HTTP connection managers in its filter chains.
pub fn tables_of(listener: &[u8]) -> Vec<Arc<str>> {
    const MANAGER: &[u8] = b"type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
    let mut tables: Vec<_> = all(listener, 3)
        .chain(all(listener, 25))
        .flat_map(|chain| all(chain, 3))
        .map(|filter| one(filter, 4))
        .filter(|config| one(config, 1) == MANAGER)
        .map(|config| one(one(one(config, 2), 3), 2))
        .filter(|table| !table.is_empty())
        .map(text)
        .collect();
    tables.sort();
    tables.dedup();
    tables
}

/// Whether the virtual hosts of a route table come one by one.
pub fn has_hosts_apart(table: &[u8]) -> bool {
    all(table, 9).next().is_some()
}

/// What a request says, for who answers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// What is asked for.
    pub kind: Type,
    /// Who asks; empty after the first request.
    pub node_id: &'a [u8],
    /// The response that it answers; empty if none.
    pub nonce: &'a [u8],
}

impl<'a> Request<'a> {
    /// None if the type is not one that we ask for.
    pub fn read(message: &'a [u8], mode: Mode) -> Option<Self> {
        let (node, url, nonce) = match mode {
            Mode::Sotw => (2, 4, 5),
            Mode::Delta => (1, 2, 6),
        };
        Some(Self {
            kind: Type::parse(one(message, url))?,
            node_id: one(one(message, node), 1),
            nonce: one(message, nonce),
        })
    }
}

/// Encodes names as one repeated field. Fields concatenate, so it is a part of a request that can be shared.
pub fn names<'a>(field: u32, names: impl IntoIterator<Item = &'a Arc<str>>) -> Bytes {
    let mut out = BytesMut::new();
    for name in names {
        encode_key(field, WireType::LengthDelimited, &mut out);
        encode_varint(name.len() as u64, &mut out);
        out.put_slice(name.as_bytes());
    }
    out.freeze()
}

/// Messages that are bytes already.
#[derive(Clone, Copy, Debug, Default)]
pub struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

#[cfg(test)]
mod tests {
    use pilotfish_protos::any;
    use pilotfish_protos::envoy::config::cluster::v3::cluster::{
        ClusterDiscoveryType, DiscoveryType, EdsClusterConfig,
    };
    use pilotfish_protos::envoy::config::cluster::v3::Cluster;
    use pilotfish_protos::envoy::config::core::v3::Node;
    use pilotfish_protos::envoy::config::listener::v3::filter::ConfigType;
    use pilotfish_protos::envoy::config::listener::v3::{Filter, FilterChain, Listener};
    use pilotfish_protos::envoy::config::route::v3::{RouteConfiguration, Vhds};
    use pilotfish_protos::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::RouteSpecifier;
    use pilotfish_protos::envoy::extensions::filters::network::http_connection_manager::v3::{
        HttpConnectionManager, Rds,
    };
    use pilotfish_protos::envoy::extensions::filters::network::tcp_proxy::v3::TcpProxy;
    use pilotfish_protos::envoy::service::discovery::v3::{
        DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse, Resource,
    };
    use prost::Message;

    use super::*;

    fn cluster(name: &str, kind: DiscoveryType, service: &str) -> Cluster {
        Cluster {
            name: name.into(),
            cluster_discovery_type: Some(ClusterDiscoveryType::Type(kind.into())),
            eds_cluster_config: Some(EdsClusterConfig {
                service_name: service.into(),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    fn filter(config: pilotfish_protos::google::protobuf::Any) -> Filter {
        Filter {
            name: "f".into(),
            config_type: Some(ConfigType::TypedConfig(config)),
        }
    }

    fn manager(table: &str) -> Filter {
        filter(any(&HttpConnectionManager {
            stat_prefix: "s".into(),
            route_specifier: Some(RouteSpecifier::Rds(Rds {
                route_config_name: table.into(),
                ..Default::default()
            })),
            ..Default::default()
        }))
    }

    fn chain(filters: Vec<Filter>) -> FilterChain {
        FilterChain {
            filters,
            ..Default::default()
        }
    }

    #[test]
    fn only_clusters_of_type_eds_ask_for_endpoints() {
        let of = |c: Cluster| endpoints_of(&c.encode_to_vec());
        assert_eq!(
            of(cluster("a", DiscoveryType::Eds, "")).as_deref(),
            Some("a")
        );
        assert_eq!(
            of(cluster("a", DiscoveryType::Eds, "b")).as_deref(),
            Some("b")
        );
        assert_eq!(of(cluster("a", DiscoveryType::StrictDns, "")), None);
        assert_eq!(of(Cluster::default()), None);
    }

    #[test]
    fn a_listener_names_the_tables_of_all_its_chains() {
        let listener = Listener {
            name: "l".into(),
            filter_chains: vec![
                chain(vec![manager("80"), manager("9000")]),
                chain(vec![filter(any(&TcpProxy::default()))]),
            ],
            default_filter_chain: Some(chain(vec![manager("80"), manager("other")])),
            ..Default::default()
        };
        let tables = tables_of(&listener.encode_to_vec());
        assert_eq!(tables, ["80", "9000", "other"].map(Arc::from));
        let table = RouteConfiguration {
            vhds: Some(Vhds::default()),
            ..Default::default()
        };
        assert!(has_hosts_apart(&table.encode_to_vec()));
        assert!(!has_hosts_apart(
            &RouteConfiguration::default().encode_to_vec()
        ));
    }

    #[test]
    fn responses_of_both_variants_come_apart() {
        let body = cluster("a", DiscoveryType::Eds, "");
        let sotw = DiscoveryResponse {
            version_info: "7".into(),
            type_url: Type::Cds.url().into(),
            nonce: "n".into(),
            resources: vec![any(&body), any(&body)],
            ..Default::default()
        };
        let encoded = sotw.encode_to_vec();
        let read = Response::read(&encoded, Mode::Sotw).unwrap();
        assert_eq!(
            (read.kind, read.version, read.nonce),
            (Type::Cds, &b"7"[..], &b"n"[..])
        );
        let found: Vec<_> = read.bodies(Mode::Sotw).collect();
        assert_eq!(found, vec![("a".into(), &*body.encode_to_vec()); 2]);

        let delta = DeltaDiscoveryResponse {
            type_url: Type::Vhds.url().into(),
            nonce: "n".into(),
            resources: vec![Resource {
                name: "r".into(),
                version: "1".into(),
                resource: Some(any(&body)),
                ..Default::default()
            }],
            removed_resources: vec!["x".into()],
            ..Default::default()
        };
        let encoded = delta.encode_to_vec();
        let read = Response::read(&encoded, Mode::Delta).unwrap();
        assert_eq!((read.kind, &*read.removed), (Type::Vhds, &[&b"x"[..]][..]));
        let found: Vec<_> = read.bodies(Mode::Delta).collect();
        assert_eq!(found, [("r".into(), &*body.encode_to_vec())]);
    }

    #[test]
    fn requests_of_both_variants_come_apart() {
        let node = Some(Node {
            id: "me".into(),
            ..Default::default()
        });
        let sotw = DiscoveryRequest {
            node: node.clone(),
            type_url: Type::Lds.url().into(),
            response_nonce: "n".into(),
            ..Default::default()
        };
        let delta = DeltaDiscoveryRequest {
            node,
            type_url: Type::Lds.url().into(),
            response_nonce: "n".into(),
            ..Default::default()
        };
        let expected = Request {
            kind: Type::Lds,
            node_id: b"me",
            nonce: b"n",
        };
        assert_eq!(
            Request::read(&sotw.encode_to_vec(), Mode::Sotw),
            Some(expected.clone())
        );
        assert_eq!(
            Request::read(&delta.encode_to_vec(), Mode::Delta),
            Some(expected)
        );
    }

    #[test]
    fn names_are_the_same_field_in_both_variants() {
        let encoded = names(3, &["a".into(), "b".into()]);
        let sotw = DiscoveryRequest::decode(encoded.clone()).unwrap();
        let delta = DeltaDiscoveryRequest::decode(encoded).unwrap();
        assert_eq!(sotw.resource_names, ["a", "b"]);
        assert_eq!(delta.resource_names_subscribe, ["a", "b"]);
    }

    #[test]
    fn what_is_malformed_ends() {
        for broken in [
            &[0x0a_u8][..],
            &[0x0a, 5, 1],
            &[0x0a, 0xff, 0xff],
            &[0x0b, 1],
            &[0x0d, 1],
        ] {
            assert_eq!(Fields(broken).count(), 0, "{broken:?}");
        }
        assert!(Response::read(&[0x0a, 1, b'1', 0x12], Mode::Sotw).is_none());
    }
}
