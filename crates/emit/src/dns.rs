//! The table of DNS names that Istio's agent answers from.

use bytes::{Bytes, BytesMut};
use pilotfish_ir::dns::Name;
use pilotfish_protos::google::protobuf::Any;
use pilotfish_protos::istio::networking::nds::v1::NameTable;
use pilotfish_protos::istio::networking::nds::v1::name_table::NameInfo;
use prost::{Message, Name as _};

use crate::value;

/// Entries of the table as they stand in it: encoded map entries concatenate.
pub(crate) fn entries(names: &[Name]) -> Bytes {
    let table = names
        .iter()
        .map(|n| {
            let info = NameInfo {
                ips: n.addresses.iter().map(value::string).collect(),
                registry: n.registry.to_string(),
                shortname: n.short.to_string(),
                namespace: n.namespace.to_string(),
                ..Default::default()
            };
            (n.host.to_string(), info)
        })
        .collect();
    NameTable { table }.encode_to_vec().into()
}

/// The whole table from the entries of its services.
pub(crate) fn splice(parts: &[Bytes]) -> Bytes {
    let mut value = BytesMut::with_capacity(parts.iter().map(Bytes::len).sum());
    for part in parts {
        value.extend_from_slice(part);
    }
    let any = Any {
        type_url: NameTable::type_url(),
        value: value.freeze(),
    };
    any.encode_to_vec().into()
}
