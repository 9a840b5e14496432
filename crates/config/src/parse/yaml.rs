//! From YAML text to a JSON value, within bounds.
//!
//! Every bound is a constant here: text that exceeds one is refused with a reason, so that no input can make reading it
//! slow or large out of proportion to its size.

use std::collections::BTreeMap;

use granit_parser::{ErrorKind, Event, Options, Parser, ScalarStyle, Tag};
use serde_json::{Map, Value};

use super::scalar;

/// How deep values may be nested.
pub(super) const MAX_DEPTH: usize = 100;
/// How many values a document may have, aliases counted as what they stand for.
pub(super) const MAX_NODES: usize = 2_000_000;
/// How many bytes of text aliases may stand for.
const MAX_ALIAS_BYTES: usize = 16 << 20;

/// A document as a value.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) value: Value,
    /// The line of each element of a top-level `items` list, counted from one.
    pub(super) item_lines: Vec<u32>,
}

/// Why a text is no document.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// The line within the text, counted from one.
    pub(super) line: u32,
    pub(super) reason: String,
    pub(super) code: &'static str,
}

impl Fault {
    pub(super) fn syntax(line: usize, reason: impl Into<String>) -> Self {
        Self {
            line: line as u32,
            reason: reason.into(),
            code: "syntax",
        }
    }

    pub(super) fn limit(line: usize, reason: impl Into<String>) -> Self {
        Self {
            line: line as u32,
            reason: reason.into(),
            code: "limit",
        }
    }
}

pub(super) fn parser(text: &str) -> Parser<'_, granit_parser::StrInput<'_>> {
    let mut options = Options::default();
    options.set_emit_comments(false);
    options.block_nesting_limit = MAX_DEPTH * 2;
    options.flow_nesting_limit = MAX_DEPTH * 2;
    Parser::new_from_str_with_options(text, options)
}

/// The only document of `text`; `None` if there is nothing but comments.
pub(super) fn read(text: &str) -> Result<Option<Tree>, Fault> {
    let mut builder = Builder::default();
    for event in parser(text) {
        let (event, span) = event.map_err(|error| {
            let reason = match error.kind() {
                ErrorKind::TabNotAllowed
                | ErrorKind::TabInBlockIndentation
                | ErrorKind::TabInIndentation
                | ErrorKind::TabAtBlockScalarStart => {
                    "a tab is used for indentation; use spaces".to_owned()
                }
                ErrorKind::RecursionLimitExceeded => {
                    return Fault::limit(error.marker().line(), too_deep());
                }
                _ => format!("invalid YAML: {}", error.info()),
            };
            Fault::syntax(error.marker().line(), reason)
        })?;
        builder.event(event, span.start.line())?;
    }
    Ok(builder.root.map(|value| Tree {
        value,
        item_lines: builder.item_lines,
    }))
}

pub(super) fn too_deep() -> String {
    format!("nested more than {MAX_DEPTH} levels deep")
}

/// What aliases to a value cost.
#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    nodes: usize,
    bytes: usize,
    /// Levels of collections, so that nesting aliases cannot get around the limit.
    depth: usize,
}

impl Cost {
    const NODE: Self = Self {
        nodes: 1,
        bytes: 0,
        depth: 0,
    };

    fn of(value: &Value) -> Self {
        let mut total = Self::NODE;
        let mut add = |item: &Value, key: usize| {
            let part = Self::of(item);
            total.nodes += part.nodes;
            total.bytes += part.bytes + key;
            total.depth = total.depth.max(part.depth + 1);
        };
        match value {
            Value::String(text) => total.bytes += text.len(),
            Value::Array(items) => items.iter().for_each(|item| add(item, 0)),
            Value::Object(map) => map.iter().for_each(|(key, item)| add(item, key.len())),
            _ => {}
        }
        total
    }
}

/// An open collection.
#[derive(Debug)]
enum Frame {
    Map {
        anchor: usize,
        map: Map<String, Value>,
        /// The key whose value comes next.
        key: Option<String>,
        /// Values of `<<`, which fill in what the map itself does not say.
        merges: Vec<Value>,
    },
    Seq {
        anchor: usize,
        items: Vec<Value>,
    },
}

/// The plain key that merges other maps.
const MERGE: &str = "<<";

#[derive(Debug, Default)]
struct Builder {
    stack: Vec<Frame>,
    anchors: BTreeMap<usize, (Value, Cost)>,
    spent: Cost,
    root: Option<Value>,
    item_lines: Vec<u32>,
}

impl Builder {
    fn event(&mut self, event: Event<'_>, line: usize) -> Result<(), Fault> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                self.spend(Cost::NODE, line)?;
                if let Some(Frame::Map {
                    map,
                    key: key @ None,
                    ..
                }) = self.stack.last_mut()
                {
                    if map.contains_key(&*text) {
                        let short: String = text.chars().take(64).collect();
                        return Err(Fault::syntax(line, format!("duplicate key {short:?}")));
                    }
                    *key = Some(text.clone().into_owned());
                    if anchor != 0 {
                        self.anchors
                            .insert(anchor, (Value::String(text.into_owned()), Cost::default()));
                    }
                    return Ok(());
                }
                let value = scalar_value(&text, style, tag.as_deref(), line)?;
                self.value(value, anchor, line)
            }
            Event::MappingStart(_, anchor, _) => self.open(
                Frame::Map {
                    anchor,
                    map: Map::new(),
                    key: None,
                    merges: Vec::new(),
                },
                line,
            ),
            Event::SequenceStart(_, anchor, _) => self.open(
                Frame::Seq {
                    anchor,
                    items: Vec::new(),
                },
                line,
            ),
            Event::MappingEnd | Event::SequenceEnd => match self.stack.pop() {
                Some(Frame::Map {
                    anchor,
                    mut map,
                    merges,
                    ..
                }) => {
                    for merge in merges {
                        merge_into(&mut map, merge, line)?;
                    }
                    self.value(Value::Object(map), anchor, line)
                }
                Some(Frame::Seq { anchor, items }) => self.value(Value::Array(items), anchor, line),
                None => Ok(()),
            },
            Event::Alias(id) => {
                let Some((value, cost)) = self.anchors.get(&id) else {
                    return Err(Fault::syntax(
                        line,
                        "an alias refers to a value that contains it",
                    ));
                };
                let (value, cost) = (value.clone(), *cost);
                if self.stack.len() + cost.depth > MAX_DEPTH {
                    return Err(Fault::limit(line, too_deep()));
                }
                self.spend(cost, line)?;
                if let Some(Frame::Map {
                    map,
                    key: key @ None,
                    ..
                }) = self.stack.last_mut()
                {
                    return match value {
                        Value::String(text) if map.contains_key(&text) => {
                            Err(Fault::syntax(line, format!("duplicate key {text:?}")))
                        }
                        Value::String(text) => {
                            *key = Some(text);
                            Ok(())
                        }
                        _ => Err(Fault::syntax(line, "a key must be text")),
                    };
                }
                self.value(value, 0, line)
            }
            _ => Ok(()),
        }
    }

    fn spend(&mut self, cost: Cost, line: usize) -> Result<(), Fault> {
        self.spent.nodes = self.spent.nodes.saturating_add(cost.nodes);
        self.spent.bytes = self.spent.bytes.saturating_add(cost.bytes);
        if self.spent.nodes > MAX_NODES {
            return Err(Fault::limit(
                line,
                format!("more than {MAX_NODES} values in one document"),
            ));
        }
        if self.spent.bytes > MAX_ALIAS_BYTES {
            return Err(Fault::limit(
                line,
                "aliases stand for more than 16 MiB of text",
            ));
        }
        Ok(())
    }

    fn open(&mut self, frame: Frame, line: usize) -> Result<(), Fault> {
        if let Some(Frame::Map { key: None, .. }) = self.stack.last() {
            return Err(Fault::syntax(
                line,
                "a key must be text, not a list or an object",
            ));
        }
        if self.stack.len() >= MAX_DEPTH {
            return Err(Fault::limit(line, too_deep()));
        }
        self.spend(Cost::NODE, line)?;
        self.note_item(line);
        self.stack.push(frame);
        Ok(())
    }

    /// Remembers where an element of the top-level `items` begins.
    fn note_item(&mut self, line: usize) {
        if let [Frame::Map { key: Some(key), .. }, Frame::Seq { .. }] = self.stack.as_slice()
            && key == "items"
        {
            self.item_lines.push(line as u32);
        }
    }

    fn value(&mut self, value: Value, anchor: usize, line: usize) -> Result<(), Fault> {
        if anchor != 0 {
            let cost = Cost::of(&value);
            self.anchors.insert(anchor, (value.clone(), cost));
        }
        if !matches!(value, Value::Object(_) | Value::Array(_)) {
            self.note_item(line);
        }
        match self.stack.last_mut() {
            None if self.root.is_some() => {
                return Err(Fault::syntax(line, "invalid YAML: more than one value"));
            }
            None => self.root = Some(value),
            Some(Frame::Seq { items, .. }) => items.push(value),
            Some(Frame::Map {
                map, key, merges, ..
            }) => match key.take() {
                Some(key) if key == MERGE => merges.push(value),
                Some(key) => {
                    map.insert(key, value);
                }
                None => return Err(Fault::syntax(line, "a key must be text")),
            },
        }
        Ok(())
    }
}

/// Adds what `from` says and `map` does not.
fn merge_into(map: &mut Map<String, Value>, from: Value, line: usize) -> Result<(), Fault> {
    match from {
        Value::Object(from) => {
            for (key, value) in from {
                map.entry(key).or_insert(value);
            }
            Ok(())
        }
        Value::Array(list) if list.iter().all(Value::is_object) => list
            .into_iter()
            .try_for_each(|from| merge_into(map, from, line)),
        _ => Err(Fault::syntax(
            line,
            "\"<<\" must be an object or a list of objects",
        )),
    }
}

fn scalar_value(
    text: &str,
    style: ScalarStyle,
    tag: Option<&Tag>,
    line: usize,
) -> Result<Value, Fault> {
    let resolve = || {
        scalar::resolve(text).ok_or_else(|| {
            Fault::syntax(line, format!("{text} is not a number that JSON can hold"))
        })
    };
    let Some(tag) = tag else {
        return if style == ScalarStyle::Plain {
            resolve()
        } else {
            Ok(Value::String(text.to_owned()))
        };
    };
    let wanted = tag.core_suffix();
    let value = match wanted {
        Some("str") => return Ok(Value::String(text.to_owned())),
        Some("int" | "float" | "bool" | "null") => resolve()?,
        None if tag.handle().is_empty() || tag.suffix().is_empty() => {
            return Ok(Value::String(text.to_owned()));
        }
        _ => {
            return Err(Fault::syntax(
                line,
                format!("the tag {} is not supported", tag.original()),
            ));
        }
    };
    let fits = match wanted {
        Some("int") => value.is_i64() || value.is_u64(),
        Some("float") => value.is_number(),
        Some("bool") => value.is_boolean(),
        _ => value.is_null(),
    };
    if fits {
        Ok(value)
    } else {
        Err(Fault::syntax(
            line,
            format!("the value is no {}", wanted.unwrap_or("value")),
        ))
    }
}
