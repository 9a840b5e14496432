//! JSON values as block YAML. Only what manifests contain is written plainly; any other string is quoted as in JSON, which is
//! YAML too, so that no string can be taken for something else.

use std::fmt::Write as _;

use serde_json::Value;

/// Words that some version of YAML takes for something other than a string.
const WORDS: [&str; 9] = ["true", "false", "yes", "no", "on", "off", "null", "y", "n"];

/// One document, which ends with a new line.
pub(super) fn document(value: &Value) -> String {
    let mut out = String::new();
    block(&mut out, value, 0);
    out
}

/// Writes a value on lines of its own.
fn block(out: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (index, (key, field)) in fields.iter().enumerate() {
                // What an item of a list begins with stands behind the dash.
                if index > 0 || !out.ends_with("- ") {
                    pad(out, indent);
                }
                scalar(out, key);
                out.push(':');
                nested(out, field, indent);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (index, item) in items.iter().enumerate() {
                if index > 0 || !out.ends_with("- ") {
                    pad(out, indent);
                }
                out.push_str("- ");
                block(out, item, indent + 2);
            }
        }
        other => {
            inline(out, other, indent);
            out.push('\n');
        }
    }
}

/// Writes the value of a key.
fn nested(out: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            out.push('\n');
            block(out, value, indent + 2);
        }
        Value::Array(items) if !items.is_empty() => {
            out.push('\n');
            block(out, value, indent);
        }
        other => {
            out.push(' ');
            inline(out, other, indent + 2);
            out.push('\n');
        }
    }
}

fn inline(out: &mut String, value: &Value, indent: usize) {
    match value {
        Value::String(text) if is_block(text) => {
            out.push('|');
            for line in text.trim_end_matches('\n').split('\n') {
                out.push('\n');
                pad(out, indent);
                out.push_str(line);
            }
        }
        Value::String(text) => scalar(out, text),
        other => {
            let _ = write!(out, "{other}");
        }
    }
}

/// Whether a text can be written line by line: it ends with one new line, and no line begins or ends with what a reader
/// might lose.
fn is_block(text: &str) -> bool {
    text.strip_suffix('\n').is_some_and(|text| {
        !text.starts_with([' ', '\n'])
            && text
                .split('\n')
                .all(|line| !line.is_empty() && line.bytes().all(|b| (b' '..=b'~').contains(&b)))
    })
}

fn scalar(out: &mut String, text: &str) {
    let is_word = |text: &str| WORDS.iter().any(|word| word.eq_ignore_ascii_case(text));
    let plain = text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '/')
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"_./-".contains(&b))
        && !is_word(text);
    if plain {
        out.push_str(text);
    } else {
        let _ = write!(out, "{}", Value::from(text));
    }
}

fn pad(out: &mut String, indent: usize) {
    out.extend(std::iter::repeat_n(' ', indent));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn it_reads_like_written_by_hand() {
        let value = json!({"kind": "X", "list": [{"a": 1, "b": ["c", "d"]}, {"e": {}}], "text": "one: 1\ntwo: 2\n"});
        assert_eq!(
            document(&value),
            "kind: X\nlist:\n- a: 1\n  b:\n  - c\n  - d\n- e: {}\ntext: |\n  one: 1\n  two: 2\n"
        );
    }

    #[test]
    fn every_string_stays_one() {
        let strings = [
            "",
            "yes",
            "No",
            "~",
            "1",
            "1e3",
            "0x1",
            "a: b",
            "a #b",
            "- a",
            "*",
            "&a",
            "{}",
            "100%",
            " a",
            "a ",
            "a\nb",
            "a\n",
            "\n",
            " a\n",
            "a\n\n",
            "a\n\nb\n",
            "\ttab\n",
            "ä\n",
            "name.io/x",
            "null",
            "-",
            "2020-01-01",
            "a\n  b\n",
        ];
        for text in strings {
            for value in [
                json!({"key": text}),
                json!([text, {"in": [text]}]),
                json!({"list": [{text: [[text]]}]}),
            ] {
                let written = document(&value);
                let read: Value = serde_saphyr::from_str(&written).unwrap();
                assert_eq!(read, value, "{written}");
            }
        }
    }
}
