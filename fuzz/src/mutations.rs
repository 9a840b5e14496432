//! Good meshes spoilt in their structure: the parser accepts most of it, so that what comes after it is reached.

use std::sync::LazyLock;

use pilotfish_config::parse::Parsed;
use serde_json::{Map, Value, json};

use crate::dice::Dice;
use crate::documents::{MESH_CONFIG, MESHES};
use crate::pipeline::{read, read_mesh, timed, translate};

struct Mesh {
    documents: Vec<Value>,
    parsed: Parsed,
}

/// Our own meshes, and those below the directory that `FUZZ_INPUTS` names.
static GOOD: LazyLock<Vec<Mesh>> = LazyLock::new(|| {
    let mesh = |text: &str| Mesh {
        documents: serde_saphyr::from_multiple(text).expect("a good mesh"),
        parsed: read(text),
    };
    let own = MESHES.iter().map(|text| mesh(text));
    own.chain(others().iter().map(|text| mesh(text))).collect()
});

/// `input.yaml` of each folder of `FUZZ_INPUTS`, by name.
fn others() -> Vec<String> {
    let Some(root) = std::env::var_os("FUZZ_INPUTS") else {
        return Vec::new();
    };
    let folders = std::fs::read_dir(&root).expect("FUZZ_INPUTS is a directory");
    let mut files: Vec<_> = folders
        .filter_map(|f| Some(f.ok()?.path().join("input.yaml")))
        .filter(|f| f.is_file())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "there are no inputs below FUZZ_INPUTS");
    files
        .iter()
        .map(|f| std::fs::read_to_string(f).expect("a text"))
        .collect()
}

static SETTINGS: LazyLock<Value> =
    LazyLock::new(|| serde_saphyr::from_str(MESH_CONFIG).expect("good settings"));

/// Values of the right or the wrong type at the limits of what is allowed.
static SPOILT: LazyLock<Vec<Value>> = LazyLock::new(|| {
    vec![
        Value::Null,
        json!(""),
        json!("*"),
        json!("."),
        json!("~"),
        json!("~/*"),
        json!("./*"),
        json!("*/*"),
        json!("mesh"),
        json!("web"),
        json!("web.shop.svc.cluster.local"),
        json!("*.shop.svc.cluster.local"),
        json!("api.example"),
        json!("WEB.Example"),
        json!("10.0.0.1"),
        json!("::"),
        json!("0.0.0.0"),
        json!("10.0.0.0/0"),
        json!("fd00::/8"),
        json!("unix:///x"),
        json!("None"),
        json!("0s"),
        json!("1ns"),
        json!("87600h"),
        json!("9223372036854775807ns"),
        json!("-1s"),
        json!("(a|b)*c{2,}"),
        json!("/"),
        json!("host"),
        json!(":authority"),
        json!("\u{0}\u{7f}\u{2028}"),
        json!("x".repeat(300)),
        json!(0),
        json!(1),
        json!(-1),
        json!(80),
        json!(443),
        json!(65_535),
        json!(65_536),
        json!(i32::MAX),
        json!(u32::MAX),
        json!(i64::MAX),
        json!(0.5),
        json!(-0.0),
        json!(1e300),
        json!(100.000_001),
        json!(true),
        json!(false),
        json!([]),
        json!({}),
        json!([[]]),
        json!([{}]),
        json!({"": ""}),
    ]
});

/// A value somewhere below `value`.
fn descend<'v>(dice: &mut Dice<'_>, value: &'v mut Value) -> &'v mut Value {
    let size = match value {
        Value::Array(items) => items.len(),
        Value::Object(fields) => fields.len(),
        _ => 0,
    };
    if size == 0 || dice.roll(5) == 0 {
        return value;
    }
    let at = dice.roll(size);
    match value {
        Value::Array(items) => descend(dice, &mut items[at]),
        Value::Object(fields) => match fields.values_mut().nth(at) {
            Some(field) => descend(dice, field),
            None => unreachable!("counted above"),
        },
        _ => value,
    }
}

fn rename(fields: &mut Map<String, Value>, at: usize, to: &str) {
    let Some(name) = fields.keys().nth(at).cloned() else {
        return;
    };
    if let Some(value) = fields.remove(&name) {
        fields.insert(to.to_owned(), value);
    }
}

/// Spoils one place of one document.
fn spoil(dice: &mut Dice<'_>, documents: &mut [Value]) {
    let at = dice.roll(documents.len());
    let what = dice.roll(16);
    // A part of another document, for those that need one.
    let donor = {
        let from = dice.roll(documents.len());
        descend(dice, &mut documents[from]).clone()
    };
    let target = descend(dice, &mut documents[at]);
    match (what, target) {
        (0..=2, Value::Object(fields)) if !fields.is_empty() => {
            let name = fields.keys().nth(dice.roll(fields.len())).cloned();
            name.and_then(|name| fields.remove(&name));
        }
        (0..=2, Value::Array(items)) if !items.is_empty() => {
            items.remove(dice.roll(items.len()));
        }
        (3 | 4, Value::Array(items)) if !items.is_empty() => {
            let again = items[dice.roll(items.len())].clone();
            items.insert(dice.roll(items.len()), again);
        }
        (3, Value::Object(fields)) if !fields.is_empty() => {
            let to = dice.pick(&["", "name", "host", "*", "web", "x"]);
            rename(fields, dice.roll(fields.len()), to);
        }
        (4, Value::Object(fields)) if fields.len() > 1 => {
            // Two fields change places.
            let (a, b) = (dice.roll(fields.len()), dice.roll(fields.len()));
            let values: Vec<Value> = fields.values().cloned().collect();
            for (i, value) in fields.values_mut().enumerate() {
                if i == a {
                    *value = values[b].clone();
                } else if i == b {
                    *value = values[a].clone();
                }
            }
        }
        (5, target) => *target = donor,
        (6, Value::Array(items)) => items.push(donor),
        (7, Value::Array(items)) if items.len() > 1 => items.reverse(),
        (8, Value::String(text)) => {
            let cut = text
                .char_indices()
                .nth(dice.roll(text.len() + 1))
                .map_or(text.len(), |(i, _)| i);
            text.truncate(cut);
        }
        (9, Value::String(text)) => {
            text.push_str(dice.pick(&[".", "/", "*", "x", " ", ":80", "0"]));
        }
        (10, target) => {
            for _ in 0..dice.roll(200) {
                *target = json!([target.take()]);
            }
        }
        (_, target) => *target = SPOILT[dice.roll(SPOILT.len())].clone(),
    }
}

/// Changes which documents there are.
fn rearrange(dice: &mut Dice<'_>, documents: &mut Vec<Value>) {
    let at = dice.roll(documents.len());
    match dice.roll(4) {
        0 if documents.len() > 1 => {
            documents.remove(at);
        }
        1 => {
            // The same again under another name, age or namespace: who wins is decided by these.
            let mut copy = documents[at].clone();
            let (field, value) = match dice.roll(3) {
                0 => ("name", dice.pick(&["a", "web", "zz"])),
                1 => ("namespace", dice.pick(&["shop", "bank", "istio-system"])),
                _ => (
                    "creationTimestamp",
                    dice.pick(&["2020-01-01T00:00:00Z", "2030-01-01T00:00:00Z"]),
                ),
            };
            if let Some(metadata) = copy.get_mut("metadata").and_then(Value::as_object_mut) {
                metadata.insert(field.to_owned(), value.into());
            }
            documents.push(copy);
        }
        2 => {
            let mesh = dice.roll(GOOD.len());
            let donor = &GOOD[mesh].documents;
            documents.push(donor[dice.roll(donor.len())].clone());
        }
        _ => documents.rotate_left(at),
    }
}

fn text(documents: &[Value]) -> String {
    // A text that begins with a brace would be read as JSON; half of them are.
    let all = documents
        .iter()
        .enumerate()
        .map(|(i, d)| format!("{}{d}", if i % 2 == 0 { "# \n" } else { "" }));
    all.collect::<Vec<String>>().join("\n---\n")
}

/// How many places are spoilt: with more of them nothing good is left.
const MOST: usize = 16;
/// How many values the documents of one input may have.
const LARGEST: usize = 4096;

fn size(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(size).sum::<usize>(),
        Value::Object(fields) => 1 + fields.values().map(size).sum::<usize>(),
        _ => 1,
    }
}

/// One input.
pub fn run(data: &[u8]) {
    let mut dice = Dice::new(data);
    let good = &GOOD[dice.roll(GOOD.len())];
    let mut documents = good.documents.clone();
    let mut settings = None;
    for _ in 0..MOST {
        // A part of a document put into itself doubles it.
        if dice.is_empty() || documents.iter().map(size).sum::<usize>() > LARGEST {
            break;
        }
        match dice.roll(12) {
            0 => {
                let settings = settings.get_or_insert_with(|| vec![SETTINGS.clone()]);
                spoil(&mut dice, settings);
            }
            1..=3 => rearrange(&mut dice, &mut documents),
            _ => spoil(&mut dice, &mut documents),
        }
    }
    let text = text(&documents);
    trace!("{text}\nsettings: {settings:?}");
    timed(|| {
        let mesh = settings.as_ref().and_then(|s| read_mesh(&s[0].to_string()));
        translate(&good.parsed, &read(&text), mesh, None);
    });
}
