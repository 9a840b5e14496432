//! From the intermediate representation to encoded Envoy resources.
//!
//! Pure functions: equal values and an equal [`Dialect`] give equal bytes, so what they return may be shared and compared
//! byte by byte. Maps are ordered and constants are encoded once.

#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

use bytes::Bytes;
use pilotfish_ir as ir;
use pilotfish_ir::Text;

mod cluster;
mod dialect;
mod dns;
mod endpoint;
mod http;
mod listener;
pub mod names;
mod route;
mod secret;
mod tls;
mod value;

pub use dialect::Dialect;

/// A resource as it goes on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// Its name.
    pub name: Text,
    /// The encoded `google.protobuf.Any`, type URL included.
    pub any: Bytes,
}

/// One upstream: `envoy.config.cluster.v3.Cluster`.
pub fn cluster(cluster: &ir::Cluster, dialect: &Dialect) -> Encoded {
    let name = names::cluster_name(&cluster.name);
    let message = cluster::message(cluster, &name, dialect);
    Encoded {
        any: value::resource(&message),
        name: name.into(),
    }
}

/// The endpoints of one upstream: `envoy.config.endpoint.v3.ClusterLoadAssignment`.
/// Every dialect is sent the same today.
pub fn endpoints(set: &ir::EndpointSet, _dialect: &Dialect) -> Encoded {
    let message = endpoint::assignment(set);
    Encoded {
        any: value::resource(&message),
        name: message.cluster_name.into(),
    }
}

/// Whether a listener can be sent to the proxy. One for streams always can, and refuses what the proxy cannot serve.
pub fn can_listen(listener: &ir::Listener, dialect: &Dialect) -> bool {
    !listener.quic || listener::serves_quic(listener, dialect)
}

/// One listener: `envoy.config.listener.v3.Listener`.
pub fn listener(listener: &ir::Listener, dialect: &Dialect) -> Encoded {
    let message = listener::message(listener, dialect);
    Encoded {
        any: value::resource(&message),
        name: listener.name.clone(),
    }
}

/// One virtual host, a bare `envoy.config.route.v3.VirtualHost` message for [`route_table`] to splice.
pub fn virtual_host(host: &ir::VirtualHost, dialect: &Dialect) -> Bytes {
    use prost::Message as _;
    route::virtual_host(host, dialect).encode_to_vec().into()
}

/// A route table: `envoy.config.route.v3.RouteConfiguration`. The hosts, encoded by [`virtual_host`], are copied in as they are.
pub fn route_table(table: &ir::RouteTable, hosts: &[Bytes]) -> Encoded {
    Encoded {
        name: table.name.clone(),
        any: route::splice(table, hosts),
    }
}

/// A route table whose hosts come one by one: `envoy.config.route.v3.RouteConfiguration` without hosts.
pub fn table_without_hosts(table: &ir::RouteTable) -> Encoded {
    Encoded {
        name: table.name.clone(),
        any: value::resource(&route::without_hosts(table)),
    }
}

/// What a virtual host of a table is called where it is a resource of its own. Envoy removes a host by the name of the
/// resource, so that the two must be equal.
pub fn name_apart(table: &str, host: &str) -> Text {
    format!("{table}/{host}").into()
}

/// One virtual host, encoded by [`virtual_host`], as a resource of its own.
pub fn host_apart(name: &Text, host: &[u8]) -> Encoded {
    Encoded {
        name: name.clone(),
        any: route::apart(host),
    }
}

/// One secret: `envoy.extensions.transport_sockets.tls.v3.Secret`.
pub fn secret(secret: &ir::Secret) -> Encoded {
    Encoded {
        any: value::resource(&secret::message(secret)),
        name: secret.name.clone(),
    }
}

/// Names of one service, encoded as entries of the table.
pub fn names(names: &[ir::dns::Name]) -> Bytes {
    dns::entries(names)
}

/// The table of names: `istio.networking.nds.v1.NameTable`. The entries, encoded by [`names()`], are copied in as they are.
pub fn name_table(entries: &[Bytes]) -> Encoded {
    Encoded {
        name: "NameTable".into(),
        any: dns::splice(entries),
    }
}
