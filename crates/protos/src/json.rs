//! Protobuf JSON for messages known only by name.

use std::sync::LazyLock;

use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};
use prost_reflect::{
    DescriptorPool, DynamicMessage, Kind, MapKey, MessageDescriptor, ReflectMessage, Value,
};
use serde_json::{Map, Value as Json, json};

use crate::google::protobuf::Any;

const ANY: &str = "google.protobuf.Any";

static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    DescriptorPool::decode(&include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"))[..])
        .expect("the build script wrote a valid descriptor set")
});

/// Why a message could not be converted.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    /// The pool has no such message.
    #[error("unknown message type `{0}`")]
    UnknownType(String),
    /// The bytes are not a message of the type they are said to be.
    #[error(transparent)]
    Decode(#[from] prost::DecodeError),
    /// The JSON does not fit the type, or the message has no JSON form.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// Descriptors of all of Envoy's types, also those not generated, with their options. Loaded on first use.
pub fn pool() -> &'static DescriptorPool {
    &POOL
}

/// Protobuf JSON of an `Any`, in lowerCamelCase, with `@type`. A nested `Any` that is unknown or malformed is shown as
/// `{"@type", "value": base64}`.
pub fn any_to_json(type_url: &str, value: &[u8]) -> Result<Json, JsonError> {
    let desc = message_type(type_url)?;
    let known = is_well_known(&desc);
    let json = to_json(&DynamicMessage::decode(desc, value)?)?;
    Ok(match json {
        Json::Object(mut fields) if !known => {
            fields.insert("@type".to_owned(), type_url.into());
            Json::Object(fields)
        }
        json => json!({"@type": type_url, "value": json}),
    })
}

/// Encodes protobuf JSON as the message `full_name`. Takes lowerCamelCase and original field names, refuses unknown fields.
/// Equal input gives equal bytes.
pub fn from_json(full_name: &str, json: &Json) -> Result<Any, JsonError> {
    let desc = message_type(full_name)?;
    Ok(Any {
        type_url: format!("type.googleapis.com/{}", desc.full_name()),
        value: encode(&DynamicMessage::deserialize(desc, json)?).into(),
    })
}

/// Looks up a full name or a type URL.
fn message_type(name: &str) -> Result<MessageDescriptor, JsonError> {
    let full_name = name.rsplit('/').next().unwrap_or(name);
    POOL.get_message_by_name(full_name)
        .ok_or_else(|| JsonError::UnknownType(name.to_owned()))
}

/// Whether the JSON form may be something else than an object of the message's fields.
fn is_well_known(desc: &MessageDescriptor) -> bool {
    desc.package_name() == "google.protobuf"
}

/// What prost-reflect's serializer does, except that it fails on an `Any` it cannot expand.
fn to_json(msg: &DynamicMessage) -> Result<Json, JsonError> {
    let desc = msg.descriptor();
    if desc.full_name() == ANY {
        let Any { type_url, value } = msg.transcode_to()?;
        return any_to_json(&type_url, &value).or_else(|_| opaque(&type_url, value));
    }
    if is_well_known(&desc) {
        return Ok(serde_json::to_value(msg)?);
    }
    let mut plain = DynamicMessage::new(desc);
    let mut nested = Map::new();
    for (field, value) in msg.fields() {
        let json = match value {
            Value::Message(inner) => to_json(inner)?,
            Value::List(items) if matches!(field.kind(), Kind::Message(_)) => items
                .iter()
                .filter_map(Value::as_message)
                .map(to_json)
                .collect::<Result<_, _>>()?,
            Value::Map(entries) if entries.values().any(|v| v.as_message().is_some()) => entries
                .iter()
                .filter_map(|(key, v)| Some((key_name(key), v.as_message()?)))
                .map(|(key, inner)| Ok((key, to_json(inner)?)))
                .collect::<Result<Map<_, _>, JsonError>>()?
                .into(),
            _ => {
                plain.set_field(&field, value.clone());
                continue;
            }
        };
        nested.insert(field.json_name().to_owned(), json);
    }
    if let Json::Object(fields) = serde_json::to_value(plain)? {
        nested.extend(fields);
    }
    Ok(nested.into())
}

fn opaque(type_url: &str, value: bytes::Bytes) -> Result<Json, JsonError> {
    let mut wrapper = DynamicMessage::new(message_type("google.protobuf.BytesValue")?);
    wrapper.set_field_by_number(1, Value::Bytes(value));
    Ok(json!({"@type": type_url, "value": serde_json::to_value(wrapper)?}))
}

fn key_name(key: &MapKey) -> String {
    match key {
        MapKey::Bool(key) => key.to_string(),
        MapKey::I32(key) => key.to_string(),
        MapKey::I64(key) => key.to_string(),
        MapKey::U32(key) => key.to_string(),
        MapKey::U64(key) => key.to_string(),
        MapKey::String(key) => key.clone(),
    }
}

/// Encodes with map entries in key order; prost-reflect keeps maps hashed, and so would encode them in any order.
fn encode(msg: &DynamicMessage) -> Vec<u8> {
    if msg.descriptor().full_name() == ANY {
        return encode_any(msg);
    }
    let mut out = Vec::new();
    for (field, value) in msg.fields() {
        let mut delimited = |inner: &DynamicMessage| {
            let bytes = encode(inner);
            encode_key(field.number(), WireType::LengthDelimited, &mut out);
            encode_varint(bytes.len() as u64, &mut out);
            out.extend(bytes);
        };
        match (value, field.kind()) {
            (Value::Message(inner), _) => delimited(inner),
            (Value::List(items), Kind::Message(_)) => {
                items
                    .iter()
                    .filter_map(Value::as_message)
                    .for_each(delimited);
            }
            (Value::Map(entries), Kind::Message(entry)) => {
                let mut entries: Vec<_> = entries.iter().collect();
                entries.sort_unstable_by_key(|(key, _)| *key);
                for (key, value) in entries {
                    let mut inner = DynamicMessage::new(entry.clone());
                    inner.set_field_by_number(1, key.clone().into());
                    inner.set_field_by_number(2, value.clone());
                    delimited(&inner);
                }
            }
            _ => {
                let mut plain = DynamicMessage::new(msg.descriptor());
                plain.set_field(&field, value.clone());
                out.extend(plain.encode_to_vec());
            }
        }
    }
    out
}

fn encode_any(msg: &DynamicMessage) -> Vec<u8> {
    let mut any: Any = msg.transcode_to().expect("an Any decodes as an Any");
    let inner = message_type(&any.type_url)
        .and_then(|desc| Ok(DynamicMessage::decode(desc, any.value.clone())?));
    if let Ok(inner) = inner {
        any.value = encode(&inner).into();
    }
    any.encode_to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::any;
    use crate::envoy::config::cluster::v3::{Cluster, Filter};
    use crate::google::protobuf::{Duration, Struct, Value as PbValue, value::Kind as PbKind};
    use crate::udpa::r#type::v1::TypedStruct;

    fn cluster(filters: Vec<Any>) -> Cluster {
        Cluster {
            name: "outbound|80||a.b".to_owned(),
            connect_timeout: Some(Duration {
                seconds: 1,
                nanos: 500_000_000,
            }),
            filters: filters
                .into_iter()
                .map(|f| Filter {
                    typed_config: Some(f),
                    ..Filter::default()
                })
                .collect(),
            ..Cluster::default()
        }
    }

    fn typed_struct() -> TypedStruct {
        let number = |n| PbValue {
            kind: Some(PbKind::NumberValue(n)),
        };
        TypedStruct {
            type_url: "type.googleapis.com/x.Y".to_owned(),
            value: Some(Struct {
                fields: (0..20)
                    .map(|i| (format!("k{i}"), number(f64::from(i))))
                    .collect(),
            }),
        }
    }

    #[test]
    fn round_trip_and_equal_bytes() -> Result<(), JsonError> {
        let packed = any(&cluster(vec![any(&typed_struct())]));
        assert_eq!(
            packed.type_url,
            "type.googleapis.com/envoy.config.cluster.v3.Cluster"
        );

        let mut json = any_to_json(&packed.type_url, &packed.value)?;
        assert_eq!(json["connectTimeout"], "1.500s");
        assert_eq!(
            json["filters"][0]["typedConfig"]["@type"],
            "type.googleapis.com/udpa.type.v1.TypedStruct"
        );
        assert_eq!(json["filters"][0]["typedConfig"]["value"]["k7"], 7.0);

        json.as_object_mut().map(|fields| fields.remove("@type"));
        assert_eq!(from_json("envoy.config.cluster.v3.Cluster", &json)?, packed);
        Ok(())
    }

    #[test]
    fn same_json_as_prost_reflect() -> Result<(), JsonError> {
        let packed = any(&cluster(vec![
            any(&typed_struct()),
            any(&Duration::default()),
        ]));
        let mut dynamic = DynamicMessage::new(message_type(ANY)?);
        dynamic.transcode_from(&packed)?;
        assert_eq!(
            any_to_json(&packed.type_url, &packed.value)?,
            serde_json::to_value(dynamic)?
        );
        Ok(())
    }

    #[test]
    fn unknown_and_malformed_nested_any_stay_opaque() -> Result<(), JsonError> {
        let odd = |type_url: &str| Any {
            type_url: type_url.to_owned(),
            value: vec![0xff, 1].into(),
        };
        let packed = any(&cluster(vec![
            odd("a/no.Such"),
            odd("a/envoy.config.cluster.v3.Cluster"),
        ]));
        let json = any_to_json(&packed.type_url, &packed.value)?;
        for (i, type_url) in ["a/no.Such", "a/envoy.config.cluster.v3.Cluster"]
            .iter()
            .enumerate()
        {
            assert_eq!(
                json["filters"][i]["typedConfig"],
                json!({"@type": type_url, "value": "/wE="})
            );
        }
        assert!(matches!(
            any_to_json("a/no.Such", &[]),
            Err(JsonError::UnknownType(_))
        ));
        Ok(())
    }

    #[test]
    fn both_casings_no_unknown_fields() -> Result<(), JsonError> {
        let read = |json| from_json("envoy.config.cluster.v3.Cluster", &json);
        let expected = any(&Cluster {
            connect_timeout: Some(Duration {
                seconds: 2,
                nanos: 0,
            }),
            ..Cluster::default()
        });
        assert_eq!(read(json!({"connectTimeout": "2s"}))?, expected);
        assert_eq!(read(json!({"connect_timeout": "2s"}))?, expected);
        assert!(read(json!({"connect_timeouts": "2s"})).is_err());
        Ok(())
    }

    #[test]
    fn validation_rules_are_kept() {
        let field = pool()
            .get_message_by_name("envoy.config.cluster.v3.Cluster")
            .and_then(|m| m.get_field_by_name("name"))
            .expect("Cluster has a name");
        assert_eq!(field.options().extensions().count(), 1);
    }
}
