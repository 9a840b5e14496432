//! From JSON text to values: several may follow each other, and no key may be given twice.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::split::MAX_DOCUMENTS;
use super::yaml::{Fault, MAX_NODES, too_deep};

/// All values of `text`, each with the line it begins on.
pub(super) fn read(text: &str) -> Result<Vec<(u32, Value)>, Fault> {
    // Every value but the first of a list or object follows a comma, so this bounds the values before any is built.
    let nodes = text
        .bytes()
        .filter(|byte| matches!(byte, b',' | b'[' | b'{'))
        .count();
    if nodes > MAX_NODES {
        return Err(Fault::limit(
            1,
            format!("more than {MAX_NODES} values in one document"),
        ));
    }
    let mut values = Vec::new();
    let mut stream = serde_json::Deserializer::from_str(text).into_iter::<Strict>();
    let (mut line, mut counted) = (1, 0);
    loop {
        let start = stream.byte_offset();
        let blank = text[start..].len() - text[start..].trim_start().len();
        line += newlines(&text[counted..start + blank]);
        counted = start + blank;
        match stream.next() {
            None => return Ok(values),
            Some(Ok(_)) if values.len() >= MAX_DOCUMENTS => {
                return Err(Fault::limit(
                    line,
                    format!("more than {MAX_DOCUMENTS} values"),
                ));
            }
            Some(Ok(Strict(value))) => values.push((line as u32, value)),
            Some(Err(error)) => {
                let message = error.to_string();
                let reason = message.split(" at line ").next().unwrap_or_default();
                return Err(if reason.contains("recursion limit") {
                    Fault::limit(error.line(), too_deep())
                } else {
                    Fault::syntax(error.line(), format!("invalid JSON: {reason}"))
                });
            }
        }
    }
}

fn newlines(text: &str) -> usize {
    text.bytes().filter(|byte| *byte == b'\n').count()
}

/// A value whose objects have no key twice.
struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor).map(Self)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Strict(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if map.contains_key(&key) {
                let short: String = key.chars().take(64).collect();
                return Err(A::Error::custom(format!("duplicate key {short:?}")));
            }
            let Strict(value) = entries.next_value()?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}
