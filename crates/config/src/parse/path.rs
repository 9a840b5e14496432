//! The place of a field in a document.

use std::fmt::Write;

/// One step from a value to a value inside it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Segment {
    Key(String),
    Index(usize),
}

/// A path that borrows its steps, as decoding goes down; cheap until it is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Path<'a> {
    Root(&'a [Segment]),
    Key(&'a Path<'a>, &'a str),
    Index(&'a Path<'a>, usize),
}

impl Path<'_> {
    pub(crate) fn to_segments(self) -> Vec<Segment> {
        match self {
            Self::Root(segments) => segments.to_vec(),
            Self::Key(parent, key) => {
                let mut segments = parent.to_segments();
                segments.push(Segment::Key(key.to_owned()));
                segments
            }
            Self::Index(parent, index) => {
                let mut segments = parent.to_segments();
                segments.push(Segment::Index(index));
                segments
            }
        }
    }
}

/// `spec.http[0].match`, with keys that are no plain word as `["a.b/c"]`.
pub(crate) fn display(segments: &[Segment]) -> String {
    let mut text = String::new();
    for segment in segments {
        match segment {
            Segment::Index(index) => {
                let _ = write!(text, "[{index}]");
            }
            Segment::Key(key) => {
                let plain = !key.is_empty()
                    && key
                        .chars()
                        .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '<'));
                if !plain {
                    let short: String = key.chars().take(64).collect();
                    let _ = write!(text, "[{short:?}]");
                } else if text.is_empty() {
                    text.push_str(key);
                } else {
                    let _ = write!(text, ".{key}");
                }
            }
        }
    }
    text
}

/// The steps of a path as [`display`] writes it, up to the first that is no plain word.
pub(crate) fn parse(text: &str) -> Vec<Segment> {
    let mut segments = Vec::new();
    for word in text.split('.') {
        let mut parts = word.split('[');
        match parts.next() {
            Some(key) if !key.is_empty() => segments.push(Segment::Key(key.to_owned())),
            _ => return segments,
        }
        for part in parts {
            let Some(index) = part.strip_suffix(']').and_then(|n| n.parse().ok()) else {
                return segments;
            };
            segments.push(Segment::Index(index));
        }
    }
    segments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for text in ["spec", "spec.http[0].match[12].uri", "spec.a[1][2].b"] {
            assert_eq!(display(&parse(text)), text);
        }
        assert_eq!(
            display(&parse("metadata.labels[\"a.b/c\"].x")),
            "metadata.labels"
        );
        assert_eq!(parse(""), []);
    }
}
