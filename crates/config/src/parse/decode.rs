//! From a JSON value to an API type, strictly.
//!
//! A serde deserializer of our own, because it alone knows all of: the path of what is wrong, the names that were
//! possible there, and that a field set to `null` was not set.

use std::cell::RefCell;
use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{self, DeserializeOwned, DeserializeSeed, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::{Map, Value};

use super::path::{Path, Segment};

/// A field that no type has.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unknown {
    pub(super) path: Vec<Segment>,
    /// A name that is close to it.
    pub(super) suggestion: Option<&'static str>,
}

/// Why a value does not have the type it should.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mismatch {
    pub(super) path: Vec<Segment>,
    pub(super) reason: String,
}

/// How fields may be spelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// As the Kubernetes API server wants them.
    Camel,
    /// Also as in the protobuf definition, `proxy_listen_port`: files that no API server has seen.
    CamelOrSnake,
}

/// The value as `T`, and the fields that `T` does not have. `at` is where the value is in the document.
pub(super) fn decode<T: DeserializeOwned>(
    value: Value,
    at: &[Segment],
    spelling: Spelling,
) -> (Result<T, Mismatch>, Vec<Unknown>) {
    let context = Context {
        unknown: Some(RefCell::default()),
        spelling,
    };
    let result = decode_in(value, at, &context);
    let unknown = context.unknown.map(RefCell::into_inner);
    (result, unknown.unwrap_or_default())
}

/// The value as `T`. Fields that `T` does not have are left out without a word, and cost nothing: of a Pod, that is most.
pub(super) fn decode_known<T: DeserializeOwned>(
    value: Value,
    at: &[Segment],
) -> Result<T, Mismatch> {
    let context = Context {
        unknown: None,
        spelling: Spelling::Camel,
    };
    decode_in(value, at, &context)
}

fn decode_in<T: DeserializeOwned>(
    value: Value,
    at: &[Segment],
    context: &Context,
) -> Result<T, Mismatch> {
    let root = Path::Root(at);
    let result = T::deserialize(Node {
        value,
        path: &root,
        context,
    });
    result.map_err(|error| Mismatch {
        path: error.path.unwrap_or_else(|| at.to_vec()),
        reason: error.reason,
    })
}

#[derive(Debug)]
struct DecodeError {
    path: Option<Vec<Segment>>,
    reason: String,
}

impl DecodeError {
    /// The innermost path wins: errors gain it on the way out.
    fn at(mut self, path: &Path<'_>) -> Self {
        if self.path.is_none() {
            self.path = Some(path.to_segments());
        }
        self
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for DecodeError {}

impl de::Error for DecodeError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self {
            path: None,
            reason: message.to_string(),
        }
    }

    fn invalid_type(found: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        let expected = expected.to_string();
        let expected = readable(&expected);
        let hint = match found {
            de::Unexpected::Bool(_)
            | de::Unexpected::Unsigned(_)
            | de::Unexpected::Signed(_)
            | de::Unexpected::Float(_)
                if expected == "text" =>
            {
                "; quote it"
            }
            _ => "",
        };
        Self::custom(format_args!(
            "expected {expected}, found {}{hint}",
            Found(found)
        ))
    }

    fn invalid_value(found: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        let expected = expected.to_string();
        Self::custom(format_args!(
            "{} is out of range: expected {}",
            Found(found),
            readable(&expected)
        ))
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        let short: String = variant.chars().take(64).collect();
        let hint = closest(variant, expected).map(|name| format!("; did you mean {name}?"));
        Self::custom(format_args!(
            "unknown value {short:?}, expected one of {}{}",
            expected.join(", "),
            hint.unwrap_or_default()
        ))
    }
}

/// What serde calls a type, in the words of the YAML file.
fn readable(expected: &str) -> &str {
    match expected {
        "u8" => "an integer from 0 to 255",
        "u16" => "an integer from 0 to 65535",
        "u32" => "an integer from 0 to 4294967295",
        "u64" => "a non-negative integer",
        "i32" => "an integer from -2147483648 to 2147483647",
        "i64" => "an integer",
        "f32" | "f64" => "a number",
        "a string" => "text",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" => "an object",
        _ if expected.starts_with("struct ") => "an object",
        _ => expected,
    }
}

struct Found<'a>(de::Unexpected<'a>);

impl fmt::Display for Found<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            de::Unexpected::Bool(value) => write!(f, "{value}"),
            de::Unexpected::Unsigned(value) => write!(f, "{value}"),
            de::Unexpected::Signed(value) => write!(f, "{value}"),
            de::Unexpected::Float(value) => write!(f, "{value}"),
            de::Unexpected::Str(value) => {
                let short: String = value.chars().take(64).collect();
                write!(f, "{short:?}")
            }
            de::Unexpected::Unit | de::Unexpected::Option => f.write_str("null"),
            de::Unexpected::Seq => f.write_str("a list"),
            de::Unexpected::Map => f.write_str("an object"),
            other => write!(f, "{other}"),
        }
    }
}

/// The name among `names` that `word` most likely stands for: equal but for case and `_`, or one or two letters off.
pub(super) fn closest(word: &str, names: &[&'static str]) -> Option<&'static str> {
    let fold = |text: &str| text.replace(['_', '-'], "").to_ascii_lowercase();
    if word.len() > 64 {
        return None;
    }
    let folded = fold(word);
    let allowed = if folded.len() < 5 { 1 } else { 2 };
    names
        .iter()
        .map(|name| (fold(name), *name))
        // Whatever is so much longer or shorter is as far off at least.
        .filter(|(candidate, _)| candidate.len().abs_diff(folded.len()) <= allowed)
        .map(|(candidate, name)| (distance(&folded, &candidate), name))
        .filter(|(distance, _)| *distance <= allowed)
        .min()
        .map(|(_, name)| name)
}

/// How many letters must be added, removed, changed or swapped with a neighbour.
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let change = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = change.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before_last[j - 2] + 1);
            }
            row.push(best);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

/// What all values of one decoding share.
struct Context {
    /// The fields that no type has; `None` if nobody wants to know.
    unknown: Option<RefCell<Vec<Unknown>>>,
    spelling: Spelling,
}

/// `proxy_listen_port` as `proxyListenPort`.
pub(super) fn camel(snake: &str) -> String {
    let mut words = snake.split('_');
    let mut text = words.next().unwrap_or_default().to_owned();
    for word in words {
        let mut letters = word.chars();
        text.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        text.push_str(letters.as_str());
    }
    text
}

/// A value and where it is.
struct Node<'a> {
    value: Value,
    path: &'a Path<'a>,
    context: &'a Context,
}

impl Node<'_> {
    fn mismatch(&self, expected: &dyn de::Expected) -> DecodeError {
        let found = match &self.value {
            Value::Null => de::Unexpected::Unit,
            Value::Bool(value) => de::Unexpected::Bool(*value),
            Value::Number(number) => unexpected_number(number),
            Value::String(text) => de::Unexpected::Str(text),
            Value::Array(_) => de::Unexpected::Seq,
            Value::Object(_) => de::Unexpected::Map,
        };
        let error: DecodeError = de::Error::invalid_type(found, expected);
        error.at(self.path)
    }

    fn list<'de, V: Visitor<'de>>(
        self,
        items: Vec<Value>,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        visitor
            .visit_seq(Items {
                rest: items.into_iter().enumerate(),
                path: self.path,
                context: self.context,
            })
            .map_err(|error| error.at(self.path))
    }

    fn object<'de, V: Visitor<'de>>(
        self,
        map: Map<String, Value>,
        fields: Option<&'static [&'static str]>,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        visitor
            .visit_map(Entries {
                rest: map.into_iter(),
                pending: None,
                known_as: None,
                fields,
                path: self.path,
                context: self.context,
            })
            .map_err(|error| error.at(self.path))
    }
}

fn unexpected_number(number: &serde_json::Number) -> de::Unexpected<'static> {
    if let Some(value) = number.as_u64() {
        de::Unexpected::Unsigned(value)
    } else if let Some(value) = number.as_i64() {
        de::Unexpected::Signed(value)
    } else {
        de::Unexpected::Float(number.as_f64().unwrap_or_default())
    }
}

impl<'de> de::Deserializer<'de> for Node<'_> {
    type Error = DecodeError;

    fn deserialize_any<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, DecodeError> {
        let path = self.path;
        let result: Result<_, DecodeError> = match std::mem::take(&mut self.value) {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(value),
            Value::Number(number) => match unexpected_number(&number) {
                de::Unexpected::Unsigned(value) => visitor.visit_u64(value),
                de::Unexpected::Signed(value) => visitor.visit_i64(value),
                _ => visitor.visit_f64(number.as_f64().unwrap_or_default()),
            },
            Value::String(text) => visitor.visit_string(text),
            Value::Array(items) => return self.list(items, visitor),
            Value::Object(map) => return self.object(map, None, visitor),
        };
        result.map_err(|error| error.at(path))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        mut self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        match std::mem::take(&mut self.value) {
            Value::Object(map) => self.object(map, Some(fields), visitor),
            value => {
                self.value = value;
                Err(self.mismatch(&visitor))
            }
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        match &self.value {
            Value::String(text) => {
                let text: StrDeserializer<'_, DecodeError> = text.as_str().into_deserializer();
                visitor
                    .visit_enum(text)
                    .map_err(|error| error.at(self.path))
            }
            Value::Bool(_) => {
                // YAML reads OFF and NO as false.
                let expected = format!("one of {} (in quotes)", variants.join(", "));
                Err(self.mismatch(&expected.as_str()))
            }
            _ => {
                let expected = format!("one of {}", variants.join(", "));
                Err(self.mismatch(&expected.as_str()))
            }
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        if self.value.is_null() {
            visitor.visit_none()
        } else {
            visitor.visit_some(self)
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier
    }
}

struct Items<'a> {
    rest: std::iter::Enumerate<std::vec::IntoIter<Value>>,
    path: &'a Path<'a>,
    context: &'a Context,
}

impl<'de> de::SeqAccess<'de> for Items<'_> {
    type Error = DecodeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, DecodeError> {
        let Some((index, value)) = self.rest.next() else {
            return Ok(None);
        };
        let path = Path::Index(self.path, index);
        seed.deserialize(Node {
            value,
            path: &path,
            context: self.context,
        })
        .map(Some)
        .map_err(|error| error.at(&path))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.rest.len())
    }
}

struct Entries<'a> {
    rest: serde_json::map::IntoIter,
    pending: Option<(String, Value)>,
    /// The field that the key of `pending` stands for, if it is not spelled so.
    known_as: Option<String>,
    /// The names a struct has; `None` for a map, where every key is fine and `null` is a value.
    fields: Option<&'static [&'static str]>,
    path: &'a Path<'a>,
    context: &'a Context,
}

impl Entries<'_> {
    /// Goes on to the next entry that is to be read; false if there is none. Not generic, since there would be a copy of it
    /// for every type.
    #[inline(never)]
    fn advance(&mut self) -> bool {
        for (key, value) in self.rest.by_ref() {
            let mut known_as = None;
            if let Some(fields) = self.fields {
                if self.context.spelling == Spelling::CamelOrSnake && key.contains('_') {
                    let name = camel(&key);
                    known_as = fields.contains(&name.as_str()).then_some(name);
                }
                if known_as.is_none() && !fields.contains(&key.as_str()) {
                    if let Some(unknown) = &self.context.unknown {
                        let path = Path::Key(self.path, &key).to_segments();
                        let suggestion = closest(&key, fields);
                        unknown.borrow_mut().push(Unknown { path, suggestion });
                    }
                    continue;
                }
                if value.is_null() {
                    continue;
                }
            }
            (self.pending, self.known_as) = (Some((key, value)), known_as);
            return true;
        }
        false
    }
}

impl<'de> de::MapAccess<'de> for Entries<'_> {
    type Error = DecodeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, DecodeError> {
        let (true, Some((key, _))) = (self.advance(), &self.pending) else {
            return Ok(None);
        };
        seed.deserialize(Key(self.known_as.as_deref().unwrap_or(key)))
            .map(Some)
            .map_err(|error| error.at(&Path::Key(self.path, key)))
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<T::Value, DecodeError> {
        let (key, value) = self.pending.take().unwrap_or_default();
        let path = Path::Key(self.path, &key);
        seed.deserialize(Node {
            value,
            path: &path,
            context: self.context,
        })
        .map_err(|error| error.at(&path))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.rest.len())
    }
}

/// A key: text, or a number for the maps that are keyed by port.
struct Key<'a>(&'a str);

impl<'de> de::Deserializer<'de> for Key<'_> {
    type Error = DecodeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_str(self.0)
    }

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.0.parse() {
            Ok(number) => visitor.visit_u32(number),
            Err(_) => Err(de::Error::invalid_type(
                de::Unexpected::Str(self.0),
                &visitor,
            )),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Default, PartialEq, Eq, Deserialize)]
    #[serde(default)]
    struct Port {
        number: u16,
    }

    #[test]
    fn who_does_not_ask_is_not_told_of_unknown_fields() {
        let value = json!({"numbr": 1, "number": 80});
        let (port, unknown) = decode::<Port>(value.clone(), &[], Spelling::Camel);
        assert_eq!(port, Ok(Port { number: 80 }));
        assert_eq!(unknown[0].suggestion, Some("number"));
        assert_eq!(decode_known::<Port>(value, &[]), Ok(Port { number: 80 }));
        let wrong = decode_known::<Port>(json!({"number": "x"}), &[]);
        assert_eq!(wrong.unwrap_err().path, [Segment::Key("number".to_owned())]);
    }

    #[test]
    fn a_close_name_is_one_or_two_letters_off() {
        let names = &["hosts", "exportTo", "tls", "number"];
        for (word, expected) in [
            ("host", Some("hosts")),
            ("export_to", Some("exportTo")),
            ("exprotTo", Some("exportTo")),
            ("tl", Some("tls")),
            ("t", None),
            ("numberrr", Some("number")),
            ("numberrrr", None),
        ] {
            assert_eq!(closest(word, names), expected, "{word}");
        }
    }
}
