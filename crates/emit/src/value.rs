//! Small protobuf values, and the wrapping of a message as a resource.

use bytes::{Bytes, BytesMut};
use pilotfish_ir::endpoint::Address;
use pilotfish_ir::{Millis, Share, Text};
use pilotfish_protos::envoy::config::core::v3 as core;
use pilotfish_protos::envoy::r#type::v3 as kind;
use pilotfish_protos::google::protobuf as g;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};
use prost::{Message, Name};

/// Field numbers of `google.protobuf.Any`.
const ANY_TYPE_URL: u32 = 1;
const ANY_VALUE: u32 = 2;

/// Encodes an `Any` around a message, straight into one buffer of the right size.
pub(crate) fn resource<M: Message + Name>(message: &M) -> Bytes {
    framed(&M::type_url(), message.encoded_len(), |out| {
        message.encode_raw(out);
    })
}

/// Encodes an `Any` whose value is written by `write` and takes exactly `len` bytes.
pub(crate) fn framed(type_url: &str, len: usize, write: impl FnOnce(&mut BytesMut)) -> Bytes {
    let size = delimited_len(ANY_TYPE_URL, type_url.len()) + delimited_len(ANY_VALUE, len);
    let mut out = BytesMut::with_capacity(size);
    delimited_header(ANY_TYPE_URL, type_url.len(), &mut out);
    out.extend_from_slice(type_url.as_bytes());
    delimited_header(ANY_VALUE, len, &mut out);
    write(&mut out);
    debug_assert_eq!(out.len(), size, "the announced length is the written one");
    out.freeze()
}

/// Writes the key and length that precede `len` bytes of a length-delimited field.
pub(crate) fn delimited_header(field: u32, len: usize, out: &mut BytesMut) {
    encode_key(field, WireType::LengthDelimited, out);
    encode_varint(len as u64, out);
}

/// Size of a length-delimited field with `len` bytes of content.
pub(crate) fn delimited_len(field: u32, len: usize) -> usize {
    key_len(field) + encoded_len_varint(len as u64) + len
}

pub(crate) const fn u32(value: u32) -> g::UInt32Value {
    g::UInt32Value { value }
}

pub(crate) const fn u64(value: u64) -> g::UInt64Value {
    g::UInt64Value { value }
}

pub(crate) const fn bool(value: bool) -> g::BoolValue {
    g::BoolValue { value }
}

pub(crate) fn percent(value: impl Into<f64>) -> kind::Percent {
    kind::Percent {
        value: value.into(),
    }
}

/// A duration. What exceeds protobuf's range is cut to what its seconds can hold.
pub(crate) fn duration(span: Millis) -> g::Duration {
    g::Duration {
        seconds: i64::try_from(span.0 / 1000).unwrap_or(i64::MAX),
        nanos: i32::try_from(span.0 % 1000).unwrap_or_default() * 1_000_000,
    }
}

pub(crate) fn string(text: &Text) -> String {
    text.as_str().to_owned()
}

/// A share as a fraction of a million.
pub(crate) fn fraction(share: Share) -> kind::FractionalPercent {
    use kind::fractional_percent::DenominatorType as Of;
    let (numerator, of) = match share {
        Share::Percent(percent) => (percent, Of::Hundred),
        Share::Millionths(parts) => (parts.0, Of::Million),
    };
    kind::FractionalPercent {
        numerator,
        denominator: of.into(),
    }
}

/// All of the traffic, as a fraction of a hundred.
pub(crate) fn all() -> core::RuntimeFractionalPercent {
    core::RuntimeFractionalPercent {
        default_value: Some(kind::FractionalPercent {
            numerator: 100,
            ..Default::default()
        }),
        ..Default::default()
    }
}

pub(crate) fn socket(address: &str, port: u16) -> core::SocketAddress {
    core::SocketAddress {
        address: address.to_owned(),
        port_specifier: Some(core::socket_address::PortSpecifier::PortValue(port.into())),
        ..Default::default()
    }
}

pub(crate) fn address(address: &Address) -> core::Address {
    use core::address::Address as Kind;
    let kind = match address {
        Address::Socket(host, port) => Kind::SocketAddress(socket(host, *port)),
        Address::Unix(path) => Kind::Pipe(core::Pipe {
            path: string(path),
            ..Default::default()
        }),
    };
    core::Address {
        address: Some(kind),
    }
}

/// An address that takes datagrams.
pub(crate) fn datagram_address(of: &Address) -> core::Address {
    use core::address::Address as Kind;
    let mut out = address(of);
    if let Some(Kind::SocketAddress(socket)) = &mut out.address {
        socket.protocol = core::socket_address::Protocol::Udp.into();
    }
    out
}

/// Everything over the stream the proxy already has. Without a time limit: a warming resource waits for its parts.
pub(crate) fn ads() -> core::ConfigSource {
    core::ConfigSource {
        initial_fetch_timeout: Some(g::Duration::default()),
        resource_api_version: core::ApiVersion::V3.into(),
        config_source_specifier: Some(core::config_source::ConfigSourceSpecifier::Ads(
            core::AggregatedConfigSource {},
        )),
        ..Default::default()
    }
}

pub(crate) fn text_value(text: impl Into<String>) -> g::Value {
    g::Value {
        kind: Some(g::value::Kind::StringValue(text.into())),
    }
}

pub(crate) fn bool_value(value: bool) -> g::Value {
    g::Value {
        kind: Some(g::value::Kind::BoolValue(value)),
    }
}

pub(crate) fn list_value(values: Vec<g::Value>) -> g::Value {
    g::Value {
        kind: Some(g::value::Kind::ListValue(g::ListValue { values })),
    }
}

pub(crate) fn struct_value(fields: g::Struct) -> g::Value {
    g::Value {
        kind: Some(g::value::Kind::StructValue(fields)),
    }
}

pub(crate) fn fields<const N: usize>(entries: [(&str, g::Value); N]) -> g::Struct {
    g::Struct {
        fields: entries
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect(),
    }
}

/// Telemetry's note of the object a resource came from.
pub(crate) fn origin(path: &Text) -> core::Metadata {
    metadata(fields([("config", text_value(path.as_str()))]))
}

/// Metadata under Istio's key.
pub(crate) fn metadata(istio: g::Struct) -> core::Metadata {
    core::Metadata {
        filter_metadata: [("istio".to_owned(), istio)].into(),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_is_an_any() {
        let message = socket("10.0.0.1", 80);
        let any = g::Any::decode(resource(&message)).unwrap();
        assert_eq!(any, pilotfish_protos::any(&message));
    }

    #[test]
    fn durations() {
        assert_eq!(
            duration(Millis(1250)),
            g::Duration {
                seconds: 1,
                nanos: 250_000_000
            }
        );
        assert_eq!(duration(Millis(0)), g::Duration::default());
    }
}
