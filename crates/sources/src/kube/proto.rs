//! What the API server says in Protocol Buffers, which cost it and us a fraction of what JSON does.
//!
//! Messages have only the fields that are read, under the numbers of the public API; all others are skipped unread. An
//! object becomes the JSON that the server would have sent of these fields, so that there is one way to understand it, and
//! those of which there are many take a shorter way to the same end (`direct`). Custom resources come in JSON only.

use std::collections::BTreeMap;

use bytes::{Buf, Bytes, BytesMut};
use jiff::Timestamp;
use pilotfish_config::Kind;
use prost::Message;
use prost::encoding::{WireType, decode_varint};
use serde::{Serialize, Serializer};
use serde_json::Value;

mod direct;

pub(super) use direct::object;

/// What the server is asked for; what it does not have in the first form comes in the second.
pub(super) const ACCEPT: &str = "application/vnd.kubernetes.protobuf,application/json";
/// How the type of such an answer begins.
pub(super) const CONTENT: &str = "application/vnd.kubernetes.protobuf";
/// What every message begins with that is not part of another.
const MAGIC: &[u8] = b"k8s\0";

/// Whether objects of a kind are read in this form: those of Kubernetes itself of which there are many.
pub(super) fn speaks(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Pod | Kind::EndpointSlice | Kind::Service | Kind::Node | Kind::Namespace
    )
}

/// An object as JSON; of another kind than [`speaks`] names, only its metadata.
pub(super) fn value(kind: Kind, object: Bytes) -> Result<Value, String> {
    match kind {
        Kind::Pod => json::<Pod>(object),
        Kind::EndpointSlice => json::<EndpointSlice>(object),
        Kind::Service => json::<Service>(object),
        Kind::Node => json::<Node>(object),
        _ => json::<Bare>(object),
    }
}

fn json<T: Message + Default + Serialize>(object: Bytes) -> Result<Value, String> {
    let object = T::decode(object).map_err(|error| error.to_string())?;
    serde_json::to_value(object).map_err(|error| error.to_string())
}

/// The content of a whole message; `None` if it is not one in this form.
pub(super) fn open(bytes: &Bytes) -> Option<Result<Bytes, prost::DecodeError>> {
    bytes
        .starts_with(MAGIC)
        .then(|| Ok(Envelope::decode(bytes.slice(MAGIC.len()..))?.raw))
}

/// The type of an event of a watch, and its object.
pub(super) fn event(frame: Bytes) -> Result<(String, Bytes), prost::DecodeError> {
    let event = Event::decode(frame)?;
    let object = match open(&event.object.raw) {
        Some(object) => object?,
        None => event.object.raw,
    };
    Ok((event.r#type, object))
}

#[derive(Clone, PartialEq, Message)]
struct Envelope {
    #[prost(bytes = "bytes", tag = "2")]
    raw: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(string, tag = "1")]
    r#type: String,
    #[prost(message, required, tag = "2")]
    object: Extension,
}

#[derive(Clone, PartialEq, Message)]
struct Extension {
    #[prost(bytes = "bytes", tag = "1")]
    raw: Bytes,
}

/// Takes a list apart while it arrives, its objects unread.
#[derive(Debug, Default)]
pub(super) struct ListReader {
    part: ListPart,
    metadata: Option<ListMeta>,
}

/// Which part of a list comes next.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum ListPart {
    /// What says that it is a message.
    #[default]
    Magic,
    /// What is around the list.
    Before,
    /// So many bytes of the list itself.
    Inside(usize),
    After,
}

/// The fields of the envelope and of a list that count.
const RAW: u32 = 2;
const METADATA: u32 = 1;
const ITEM: u32 = 2;

impl ListReader {
    /// Takes the next object out of what has arrived; `None` if more must arrive first.
    pub(super) fn take(&mut self, arrived: &mut BytesMut) -> Result<Option<Bytes>, String> {
        loop {
            match self.part {
                ListPart::Magic => {
                    let Some(start) = arrived.get(..MAGIC.len()) else {
                        return Ok(None);
                    };
                    if start != MAGIC {
                        return Err("it does not begin as messages do".to_owned());
                    }
                    arrived.advance(MAGIC.len());
                    self.part = ListPart::Before;
                }
                ListPart::Inside(0) => self.part = ListPart::After,
                ListPart::Before | ListPart::After => {
                    let Some(field) = Field::read(arrived)? else {
                        return Ok(None);
                    };
                    if field.number == RAW && self.part == ListPart::Before {
                        arrived.advance(field.start);
                        self.part = ListPart::Inside(field.length);
                    } else if field.take(arrived).is_none() {
                        return Ok(None);
                    }
                }
                ListPart::Inside(left) => {
                    let Some(field) = Field::read(arrived)? else {
                        return Ok(None);
                    };
                    let rest = field.start.checked_add(field.length);
                    let rest = rest.and_then(|length| left.checked_sub(length));
                    let rest = rest.ok_or("a part is longer than the whole")?;
                    let Some(content) = field.take(arrived) else {
                        return Ok(None);
                    };
                    self.part = ListPart::Inside(rest);
                    match field.number {
                        ITEM => return Ok(Some(content)),
                        METADATA => {
                            let metadata = ListMeta::decode(content);
                            self.metadata = Some(metadata.map_err(|error| error.to_string())?);
                        }
                        _ => {}
                    }
                }
            }
        }
    }

    /// What the list says of itself, now that nothing more arrives after `rest`. One that is not whole is an error.
    pub(super) fn end(self, rest: &[u8]) -> Result<ListMeta, String> {
        if self.part != ListPart::After || !rest.is_empty() {
            return Err("it ends early".to_owned());
        }
        self.metadata.ok_or_else(|| "it has no version".to_owned())
    }
}

/// A field that says how long it is, as all of a list and around it do.
struct Field {
    number: u32,
    /// Where its content begins.
    start: usize,
    length: usize,
}

impl Field {
    /// Reads how a field begins; `None` if more must arrive first.
    fn read(bytes: &[u8]) -> Result<Option<Self>, String> {
        // A number takes ten bytes at most.
        const ENOUGH: usize = 20;
        let mut rest = bytes;
        let mut number = || decode_varint(&mut rest);
        let (tag, length) = match (number(), number()) {
            (Ok(tag), Ok(length)) => (tag, length),
            _ if bytes.len() < ENOUGH => return Ok(None),
            (Err(error), _) | (_, Err(error)) => return Err(error.to_string()),
        };
        let (number, wire_type) = (tag >> 3, tag & 7);
        if wire_type != WireType::LengthDelimited as u64 {
            return Err(format!("field {number} is of another type"));
        }
        Ok(Some(Self {
            number: u32::try_from(number).map_err(|error| error.to_string())?,
            start: bytes.len() - rest.len(),
            length: usize::try_from(length).map_err(|error| error.to_string())?,
        }))
    }

    /// Takes the field out and gives its content, if it is all there.
    fn take(&self, bytes: &mut BytesMut) -> Option<Bytes> {
        let end = self.start.checked_add(self.length)?;
        if bytes.len() < end {
            return None;
        }
        bytes.advance(self.start);
        Some(bytes.split_to(self.length).freeze())
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ListMeta {
    #[prost(string, tag = "2")]
    pub(super) resource_version: String,
    #[prost(string, tag = "3")]
    pub(super) r#continue: String,
}

/// What is looked at before an object is read as a whole.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Head {
    #[prost(message, required, tag = "1")]
    pub(super) metadata: HeadMeta,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct HeadMeta {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "3")]
    pub(super) namespace: String,
    #[prost(string, tag = "6")]
    pub(super) resource_version: String,
}

/// What somebody has to know who writes about an object.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Stand {
    #[prost(message, required, tag = "1")]
    pub(super) metadata: StandMeta,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct StandMeta {
    #[prost(string, tag = "5")]
    pub(super) uid: String,
    #[prost(string, tag = "6")]
    pub(super) resource_version: String,
    #[prost(int64, tag = "7")]
    pub(super) generation: i64,
}

/// What a bookmark says.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Bookmark {
    #[prost(message, required, tag = "1")]
    pub(super) metadata: BookmarkMeta,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct BookmarkMeta {
    #[prost(string, tag = "6")]
    pub(super) resource_version: String,
    #[prost(btree_map = "string, string", tag = "12")]
    pub(super) annotations: BTreeMap<String, String>,
}

/// A message that turns into JSON as the server writes it: without what is not set.
macro_rules! message {
    ($name:ident { $($(#[$attribute:meta])* $field:ident: $type:ty = [$($prost:tt)+],)* }) => {
        #[derive(Clone, PartialEq, Message, Serialize)]
        #[serde(rename_all = "camelCase")]
        #[allow(clippy::struct_field_names, reason = "the names are those of the API")]
        struct $name {
            $(
                #[prost($($prost)+)]
                #[serde(skip_serializing_if = "is_default")]
                $(#[$attribute])*
                $field: $type,
            )*
        }
    };
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

message!(Bare {
    metadata: Option<Meta> = [message, optional, tag = "1"],
});

message!(Meta {
    name: String = [string, tag = "1"],
    namespace: String = [string, tag = "3"],
    uid: String = [string, tag = "5"],
    resource_version: String = [string, tag = "6"],
    generation: i64 = [int64, tag = "7"],
    creation_timestamp: Option<Time> = [message, optional, tag = "8"],
    deletion_timestamp: Option<Time> = [message, optional, tag = "9"],
    labels: BTreeMap<String, String> = [btree_map = "string, string", tag = "11"],
    annotations: BTreeMap<String, String> = [btree_map = "string, string", tag = "12"],
    owner_references: Vec<Owner> = [message, repeated, tag = "13"],
});

message!(Owner {
    kind: String = [string, tag = "1"],
    name: String = [string, tag = "3"],
    api_version: String = [string, tag = "5"],
    controller: Option<bool> = [bool, optional, tag = "6"],
});

message!(Pod {
    metadata: Option<Meta> = [message, optional, tag = "1"],
    spec: Option<PodSpec> = [message, optional, tag = "2"],
    status: Option<PodStatus> = [message, optional, tag = "3"],
});

message!(PodSpec {
    containers: Vec<Container> = [message, repeated, tag = "2"],
    service_account_name: String = [string, tag = "8"],
    node_name: String = [string, tag = "10"],
    host_network: bool = [bool, tag = "11"],
    hostname: String = [string, tag = "16"],
    subdomain: String = [string, tag = "17"],
    init_containers: Vec<Container> = [message, repeated, tag = "20"],
});

message!(Container {
    name: String = [string, tag = "1"],
    ports: Vec<ContainerPort> = [message, repeated, tag = "6"],
    restart_policy: Option<String> = [string, optional, tag = "24"],
});

message!(ContainerPort {
    name: String = [string, tag = "1"],
    container_port: i32 = [int32, tag = "3"],
    protocol: String = [string, tag = "4"],
});

message!(PodStatus {
    phase: String = [string, tag = "1"],
    conditions: Vec<PodCondition> = [message, repeated, tag = "2"],
    #[serde(rename = "hostIP")]
    host_ip: String = [string, tag = "5"],
    #[serde(rename = "podIP")]
    pod_ip: String = [string, tag = "6"],
    #[serde(rename = "podIPs")]
    pod_ips: Vec<PodIp> = [message, repeated, tag = "12"],
});

message!(PodCondition {
    r#type: String = [string, tag = "1"],
    status: String = [string, tag = "2"],
});

message!(PodIp {
    ip: String = [string, tag = "1"],
});

message!(Service {
    metadata: Option<Meta> = [message, optional, tag = "1"],
    spec: Option<ServiceSpec> = [message, optional, tag = "2"],
    status: Option<ServiceStatus> = [message, optional, tag = "3"],
});

message!(ServiceSpec {
    ports: Vec<ServicePort> = [message, repeated, tag = "1"],
    selector: BTreeMap<String, String> = [btree_map = "string, string", tag = "2"],
    #[serde(rename = "clusterIP")]
    cluster_ip: String = [string, tag = "3"],
    r#type: String = [string, tag = "4"],
    #[serde(rename = "externalIPs")]
    external_ips: Vec<String> = [string, repeated, tag = "5"],
    session_affinity: String = [string, tag = "7"],
    #[serde(rename = "loadBalancerIP")]
    load_balancer_ip: String = [string, tag = "8"],
    external_name: String = [string, tag = "10"],
    external_traffic_policy: String = [string, tag = "11"],
    publish_not_ready_addresses: bool = [bool, tag = "13"],
    ip_family_policy: Option<String> = [string, optional, tag = "17"],
    #[serde(rename = "clusterIPs")]
    cluster_ips: Vec<String> = [string, repeated, tag = "18"],
    ip_families: Vec<String> = [string, repeated, tag = "19"],
    internal_traffic_policy: Option<String> = [string, optional, tag = "22"],
    traffic_distribution: Option<String> = [string, optional, tag = "23"],
});

message!(ServicePort {
    name: String = [string, tag = "1"],
    protocol: String = [string, tag = "2"],
    port: i32 = [int32, tag = "3"],
    target_port: Option<IntOrString> = [message, optional, tag = "4"],
    node_port: i32 = [int32, tag = "5"],
    app_protocol: Option<String> = [string, optional, tag = "6"],
});

message!(ServiceStatus {
    load_balancer: Option<LoadBalancer> = [message, optional, tag = "1"],
});

message!(LoadBalancer {
    ingress: Vec<LoadBalancerIngress> = [message, repeated, tag = "1"],
});

message!(LoadBalancerIngress {
    ip: String = [string, tag = "1"],
    hostname: String = [string, tag = "2"],
});

message!(EndpointSlice {
    metadata: Option<Meta> = [message, optional, tag = "1"],
    endpoints: Vec<Endpoint> = [message, repeated, tag = "2"],
    ports: Vec<EndpointPort> = [message, repeated, tag = "3"],
    address_type: String = [string, tag = "4"],
});

message!(Endpoint {
    addresses: Vec<String> = [string, repeated, tag = "1"],
    conditions: Option<EndpointConditions> = [message, optional, tag = "2"],
    hostname: Option<String> = [string, optional, tag = "3"],
    target_ref: Option<TargetRef> = [message, optional, tag = "4"],
    node_name: Option<String> = [string, optional, tag = "6"],
    zone: Option<String> = [string, optional, tag = "7"],
    hints: Option<EndpointHints> = [message, optional, tag = "8"],
});

message!(EndpointConditions {
    ready: Option<bool> = [bool, optional, tag = "1"],
    serving: Option<bool> = [bool, optional, tag = "2"],
    terminating: Option<bool> = [bool, optional, tag = "3"],
});

message!(TargetRef {
    kind: String = [string, tag = "1"],
    namespace: String = [string, tag = "2"],
    name: String = [string, tag = "3"],
    uid: String = [string, tag = "4"],
});

message!(EndpointHints {
    for_zones: Vec<ForZone> = [message, repeated, tag = "1"],
});

message!(ForZone {
    name: String = [string, tag = "1"],
});

message!(EndpointPort {
    name: Option<String> = [string, optional, tag = "1"],
    protocol: Option<String> = [string, optional, tag = "2"],
    port: Option<i32> = [int32, optional, tag = "3"],
    app_protocol: Option<String> = [string, optional, tag = "4"],
});

message!(Node {
    metadata: Option<Meta> = [message, optional, tag = "1"],
    status: Option<NodeStatus> = [message, optional, tag = "3"],
});

message!(NodeStatus {
    addresses: Vec<NodeAddress> = [message, repeated, tag = "5"],
});

message!(NodeAddress {
    r#type: String = [string, tag = "1"],
    address: String = [string, tag = "2"],
});

/// A moment.
#[derive(Clone, PartialEq, Message)]
struct Time {
    #[prost(int64, tag = "1")]
    seconds: i64,
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match Timestamp::from_second(self.seconds) {
            Ok(time) if self.seconds != 0 => serializer.collect_str(&time),
            _ => serializer.serialize_none(),
        }
    }
}

/// A port by number or by name.
#[derive(Clone, PartialEq, Message)]
struct IntOrString {
    /// 1 if it is a name.
    #[prost(int64, tag = "1")]
    r#type: i64,
    #[prost(int32, tag = "2")]
    number: i32,
    #[prost(string, tag = "3")]
    name: String,
}

impl Serialize for IntOrString {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.r#type {
            1 => serializer.serialize_str(&self.name),
            _ => serializer.serialize_i32(self.number),
        }
    }
}

#[cfg(test)]
mod tests {
    use pilotfish_config::parse;
    use serde_json::json;

    use super::super::{kinds, standings};
    use super::*;

    /// Fields by number, as text, as a message or as a number.
    enum Field<'a> {
        Text(u32, &'a str),
        Inside(u32, Vec<u8>),
        Number(u32, u8),
    }
    use Field::{Inside, Number, Text};

    fn encode(fields: &[Field<'_>]) -> Vec<u8> {
        let mut all = Vec::new();
        let mut long = |number: u32, content: &[u8]| {
            prost::encoding::encode_varint(u64::from(number << 3 | 2), &mut all);
            prost::encoding::encode_varint(content.len() as u64, &mut all);
            all.extend_from_slice(content);
        };
        for field in fields {
            match field {
                Text(number, text) => long(*number, text.as_bytes()),
                Inside(number, message) => long(*number, message),
                Number(..) => {}
            }
        }
        for field in fields {
            if let Number(number, value) = field {
                prost::encoding::encode_varint(u64::from(number << 3), &mut all);
                all.push(*value);
            }
        }
        all
    }

    fn pair(number: u32, key: &str, value: &str) -> Field<'static> {
        Inside(number, encode(&[Text(1, key), Text(2, value)]))
    }

    fn meta(more: Vec<Field<'_>>) -> Field<'static> {
        let mut fields = vec![Text(1, "web"), Text(3, "shop"), Text(6, "17")];
        fields.extend(more);
        Inside(1, encode(&fields))
    }

    /// All ways to read an object end in the same.
    fn check(kind: Kind, message: &[Field<'_>], json: &Value) {
        let message = Bytes::from(encode(message));
        let mut value = value(kind, message.clone()).expect("a message");
        assert_eq!(value, *json);
        let stands = standings::of(kind, &value, "");
        assert_eq!(standings::of_message(kind, message.clone()), stands);
        assert!(kinds::trim(kind, &mut value));
        let mut parsed = parse::object(value, kind);
        assert_eq!((parsed.objects.len(), parsed.diagnostics.len()), (1, 0));
        assert_eq!(object(kind, message), parsed.objects.pop());
    }

    #[test]
    fn a_pod_is_what_it_is_in_json() {
        let seconds = 1_700_000_000_i64;
        let mut time = vec![0x08];
        prost::encoding::encode_varint(seconds.unsigned_abs(), &mut time);
        let port = encode(&[Text(1, "http"), Number(3, 80), Text(4, "TCP")]);
        let container = encode(&[
            Text(1, "app"),
            Text(2, "image"),
            Inside(6, port),
            Text(24, "Always"),
        ]);
        let message = [
            meta(vec![
                Inside(8, time),
                pair(11, "app", "web"),
                Inside(17, vec![1, 2, 3]),
            ]),
            Inside(
                2,
                encode(&[
                    Inside(2, container),
                    Text(8, "account"),
                    Text(10, "node"),
                    Number(11, 1),
                ]),
            ),
            Inside(
                3,
                encode(&[
                    Text(1, "Running"),
                    Inside(2, encode(&[Text(1, "Ready"), Text(2, "True")])),
                    Text(6, "10.0.0.1"),
                    Inside(12, encode(&[Text(1, "10.0.0.1")])),
                ]),
            ),
        ];
        let json = json!({
            "metadata": {"name": "web", "namespace": "shop", "resourceVersion": "17", "labels": {"app": "web"},
                "creationTimestamp": "2023-11-14T22:13:20Z"},
            "spec": {"containers": [{"name": "app", "ports": [{"name": "http", "containerPort": 80, "protocol": "TCP"}],
                "restartPolicy": "Always"}], "serviceAccountName": "account", "nodeName": "node", "hostNetwork": true},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "podIP": "10.0.0.1",
                "podIPs": [{"ip": "10.0.0.1"}]},
        });
        check(Kind::Pod, &message, &json);
    }

    #[test]
    fn what_is_set_to_nothing_is_not_what_is_not_set() {
        let conditions = encode(&[Number(1, 0), Number(3, 1)]);
        let endpoint = encode(&[Text(1, "10.0.0.1"), Inside(2, conditions), Text(3, "")]);
        let message = [
            meta(Vec::new()),
            Inside(2, endpoint),
            Inside(3, encode(&[Text(1, ""), Text(2, "TCP")])),
            Text(4, "IPv4"),
        ];
        let meta = json!({"name": "web", "namespace": "shop", "resourceVersion": "17"});
        let json = json!({"metadata": meta, "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": false, "terminating": true}, "hostname": ""}],
            "ports": [{"name": "", "protocol": "TCP"}]});
        check(Kind::EndpointSlice, &message, &json);
    }

    #[test]
    fn ports_have_numbers_or_names() {
        let named = encode(&[Number(1, 1), Text(3, "web")]);
        let ports = [
            encode(&[Text(1, "a"), Number(3, 80), Inside(4, named)]),
            encode(&[
                Text(1, "b"),
                Number(3, 81),
                Inside(4, encode(&[Number(2, 90)])),
            ]),
        ];
        let [first, second] = ports;
        let spec = encode(&[
            Inside(1, first),
            Inside(1, second),
            pair(2, "app", "web"),
            Text(3, "10.96.0.1"),
            Text(11, ""),
        ]);
        let message = [meta(Vec::new()), Inside(2, spec)];
        let meta = json!({"name": "web", "namespace": "shop", "resourceVersion": "17"});
        let json = json!({"metadata": meta, "spec": {"clusterIP": "10.96.0.1", "selector": {"app": "web"}, "ports": [
            {"name": "a", "port": 80, "targetPort": "web"}, {"name": "b", "port": 81, "targetPort": 90}]}});
        check(Kind::Service, &message, &json);
    }

    #[test]
    fn what_cannot_be_read_is_said() {
        for bytes in [&[0x0a, 200][..], &[0x0f], &[0xff; 12], b"{}"] {
            for kind in [Kind::Pod, Kind::EndpointSlice, Kind::Service, Kind::Node] {
                assert!(
                    value(kind, Bytes::copy_from_slice(bytes)).is_err(),
                    "{bytes:?}"
                );
            }
        }
    }

    #[test]
    fn all_of_a_pods_metadata_is_read() {
        let owner = |kind: &'static str, number| {
            let fields = [Text(1, kind), Text(3, "web-1"), Text(5, "apps/v1"), number];
            Inside(13, encode(&fields))
        };
        let meta = meta(vec![
            Inside(8, encode(&[Number(1, 0)])),
            Inside(9, encode(&[Number(1, 9)])),
            pair(11, "app", ""),
            pair(12, "sidecar.istio.io/status", "{}"),
            pair(12, "kubectl.kubernetes.io/last-applied-configuration", "{}"),
            pair(12, "traffic.sidecar.istio.io/x", "1"),
            owner("Other", Number(6, 0)),
            owner("ReplicaSet", Number(6, 1)),
        ]);
        let pod = Bytes::from(encode(&[
            meta,
            Inside(2, Vec::new()),
            Inside(3, Vec::new()),
        ]));
        let mut json = value(Kind::Pod, pod.clone()).unwrap();
        assert!(kinds::trim(Kind::Pod, &mut json));
        let expected = parse::object(json, Kind::Pod).objects.remove(0);
        let read = object(Kind::Pod, pod).unwrap();
        assert_eq!(read, expected);
        assert_eq!(read.meta.annotations.len(), 1);
        assert_eq!(read.meta.created, None);
        assert_eq!(read.meta.owner.unwrap().kind, "ReplicaSet");
    }

    #[test]
    fn a_service_is_what_it_is_in_json() {
        let spec = encode(&[
            Inside(
                1,
                encode(&[Number(3, 80), Text(2, "UDP"), Number(5, 90), Text(6, "h2c")]),
            ),
            Text(3, "10.96.0.1"),
            Text(4, "LoadBalancer"),
            Text(5, "1.1.1.1"),
            Text(7, "ClientIP"),
            Text(8, "2.2.2.2"),
            Text(10, "a.example"),
            Text(11, "Local"),
            Number(13, 1),
            Text(17, "PreferDualStack"),
            Text(18, "10.96.0.1"),
            Text(19, "IPv6"),
            Text(22, "Local"),
            Text(23, "PreferClose"),
        ]);
        let ingress = encode(&[Text(1, "3.3.3.3"), Text(2, "b.example")]);
        let status = encode(&[Inside(1, encode(&[Inside(1, ingress)]))]);
        let more = vec![Text(5, "u"), Number(7, 3)];
        let message = [meta(more), Inside(2, spec), Inside(3, status)];
        let meta = json!({"name": "web", "namespace": "shop", "uid": "u", "resourceVersion": "17", "generation": 3});
        let json = json!({"metadata": meta, "spec": {"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"],
            "type": "LoadBalancer", "externalIPs": ["1.1.1.1"], "sessionAffinity": "ClientIP", "loadBalancerIP": "2.2.2.2",
            "externalName": "a.example", "externalTrafficPolicy": "Local", "publishNotReadyAddresses": true,
            "ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv6"], "internalTrafficPolicy": "Local",
            "trafficDistribution": "PreferClose",
            "ports": [{"port": 80, "protocol": "UDP", "nodePort": 90, "appProtocol": "h2c"}]},
            "status": {"loadBalancer": {"ingress": [{"ip": "3.3.3.3", "hostname": "b.example"}]}}});
        check(Kind::Service, &message, &json);
    }

    #[test]
    fn an_endpoint_is_what_it_is_in_json() {
        let target = encode(&[
            Text(1, "Pod"),
            Text(2, "shop"),
            Text(3, "web-1"),
            Text(4, "u"),
        ]);
        let endpoint = encode(&[
            Text(1, "10.0.0.1"),
            Inside(4, target),
            Text(6, "node"),
            Text(7, "zone"),
            Inside(8, encode(&[Inside(1, encode(&[Text(1, "zone")]))])),
        ]);
        let port = encode(&[
            Text(1, "http"),
            Text(2, "SCTP"),
            Number(3, 80),
            Text(4, "http"),
        ]);
        let message = [
            meta(vec![pair(12, "endpoints.kubernetes.io/x", "1")]),
            Inside(2, endpoint),
            Inside(3, port),
            Text(4, "IPv6"),
        ];
        let meta = json!({"name": "web", "namespace": "shop", "resourceVersion": "17",
            "annotations": {"endpoints.kubernetes.io/x": "1"}});
        let json = json!({"metadata": meta, "addressType": "IPv6",
            "endpoints": [{"addresses": ["10.0.0.1"], "nodeName": "node", "zone": "zone",
                "targetRef": {"kind": "Pod", "namespace": "shop", "name": "web-1", "uid": "u"},
                "hints": {"forZones": [{"name": "zone"}]}}],
            "ports": [{"name": "http", "protocol": "SCTP", "port": 80, "appProtocol": "http"}]});
        check(Kind::EndpointSlice, &message, &json);
    }

    /// What is not in order is left to the parser of JSON.
    #[test]
    fn what_needs_a_word_takes_the_long_way() {
        let port = |protocol| encode(&[meta(Vec::new()), Inside(3, encode(&[Text(2, protocol)]))]);
        assert!(object(Kind::EndpointSlice, port("TCP").into()).is_some());
        for protocol in ["", "tcp"] {
            assert!(object(Kind::EndpointSlice, port(protocol).into()).is_none());
        }
        let mut large = vec![0x18];
        prost::encoding::encode_varint(70_000, &mut large);
        let service = encode(&[meta(Vec::new()), Inside(2, encode(&[Inside(1, large)]))]);
        assert!(object(Kind::Service, service.into()).is_none());
        for name in ["", "Web", "-web", "a..b", "web.", "a_b"] {
            let meta = Inside(1, encode(&[Text(1, name), Text(3, "shop")]));
            assert!(object(Kind::EndpointSlice, encode(&[meta]).into()).is_none());
        }
        let named = |name| encode(&[Inside(1, encode(&[Text(1, name), Text(3, "shop")]))]);
        assert!(object(Kind::EndpointSlice, named("a.b-1").into()).is_some());
        assert!(object(Kind::Node, named("a").into()).is_none());
    }

    /// A list of two objects as the server sends it.
    fn list() -> Vec<u8> {
        let metadata = encode(&[Text(2, "17"), Text(3, "more")]);
        let long = "b".repeat(300);
        let list = encode(&[Inside(1, metadata), Text(2, "a"), Text(2, &long)]);
        let envelope = encode(&[
            Inside(1, encode(&[Text(1, "v1"), Text(2, "PodList")])),
            Inside(2, list),
            Text(3, ""),
            Text(4, ""),
        ]);
        [MAGIC, &envelope].concat()
    }

    /// The objects that a list has, read from pieces of this size.
    fn read(bytes: &[u8], piece: usize) -> Result<(Vec<usize>, ListMeta), String> {
        let (mut reader, mut arrived) = (ListReader::default(), BytesMut::new());
        let mut lengths = Vec::new();
        for piece in bytes.chunks(piece) {
            arrived.extend_from_slice(piece);
            while let Some(object) = reader.take(&mut arrived)? {
                lengths.push(object.len());
            }
        }
        Ok((lengths, reader.end(&arrived)?))
    }

    #[test]
    fn a_list_is_read_while_it_arrives() {
        let list = list();
        for piece in [1, 2, 7, 100, list.len()] {
            let (lengths, metadata) = read(&list, piece).expect("a list");
            assert_eq!(lengths, [1, 300]);
            assert_eq!(metadata.resource_version, "17");
            assert_eq!(metadata.r#continue, "more");
        }
    }

    #[test]
    fn a_list_that_is_cut_off_or_spoiled_is_an_error() {
        let list = list();
        // The last four bytes are around the list, which is whole without them.
        for length in 0..list.len() - 4 {
            assert!(read(&list[..length], 50).is_err(), "{length}");
        }
        let mut longer = list.clone();
        longer.push(0x0a);
        assert!(read(&longer, 50).is_err());
        let bare = encode(&[Inside(2, encode(&[Text(2, "a")]))]);
        let other = encode(&[Inside(2, encode(&[Number(1, 7)]))]);
        let excess = [0x12, 3, 0x12, 9, 0, 0];
        for content in [&bare[..], &other, &excess, &[0x12; 40], &[0xff; 40]] {
            assert!(read(&[MAGIC, content].concat(), 50).is_err(), "{content:?}");
        }
        assert!(read(br#"{"kind":"PodList"}"#, 50).is_err());
        let empty = encode(&[Inside(2, encode(&[Inside(1, encode(&[Text(2, "3")]))]))]);
        let (lengths, metadata) = read(&[MAGIC, &empty].concat(), 50).unwrap();
        assert_eq!(
            (lengths.len(), metadata.resource_version.as_str()),
            (0, "3")
        );
    }
}
