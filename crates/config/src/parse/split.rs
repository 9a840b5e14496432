//! Where one document of a text ends and the next begins.
//!
//! Only lines are looked at, so a document with a syntax error cannot take its neighbours along.

/// How many documents one text may have.
pub const MAX_DOCUMENTS: usize = 100_000;

/// One document of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Document<'a> {
    /// The text, with its `---` if it has one.
    pub text: &'a str,
    /// The line of the whole text that it begins on, counted from one.
    pub line: u32,
}

/// The documents of `text` that hold something other than comments; at most [`MAX_DOCUMENTS`] and one more.
pub fn split(text: &str) -> Vec<Document<'_>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut documents = Vec::new();
    let (mut start, mut start_line) = (0, 1);
    let mut offset = 0;
    for (number, line) in text.split_inclusive('\n').enumerate() {
        if is_marker(line, "---") && offset > start {
            push(&mut documents, &text[start..offset], start_line);
            (start, start_line) = (offset, number as u32 + 1);
        } else if is_marker(line, "...") {
            push(&mut documents, &text[start..offset], start_line);
            (start, start_line) = (offset + line.len(), number as u32 + 2);
        }
        offset += line.len();
        if documents.len() > MAX_DOCUMENTS {
            return documents;
        }
    }
    push(&mut documents, &text[start..], start_line);
    documents
}

fn is_marker(line: &str, marker: &str) -> bool {
    line.strip_prefix(marker)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']))
}

fn push<'a>(documents: &mut Vec<Document<'a>>, text: &'a str, line: u32) {
    if text.lines().any(has_content) {
        documents.push(Document { text, line });
    }
}

fn has_content(line: &str) -> bool {
    let rest = if is_marker(line, "---") {
        &line[3..]
    } else {
        line
    };
    let rest = rest.trim_start_matches('\u{feff}').trim();
    !rest.is_empty() && !rest.starts_with('#') && !line.starts_with('%')
}

/// The line within a document, counted from zero, that its content begins on.
pub(super) fn first_content(text: &str) -> u32 {
    text.lines().position(has_content).unwrap_or(0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts(text: &str) -> Vec<(u32, &str)> {
        split(text)
            .into_iter()
            .map(|document| (document.line, document.text.trim()))
            .collect()
    }

    #[test]
    fn documents_are_separated_by_lines_alone() {
        assert_eq!(starts("a: 1\n---\nb: 2\n"), [(1, "a: 1"), (2, "---\nb: 2")]);
        assert_eq!(
            starts("---\na: 1\n...\nb: 2\n"),
            [(1, "---\na: 1"), (4, "b: 2")]
        );
        assert_eq!(starts("\u{feff}---\r\na: 1\r\n---\r\nb: 2\r\n").len(), 2);
        assert_eq!(starts("# only\n---\n# comments\n---\n\n"), []);
        assert_eq!(starts("%YAML 1.2\n---\na: 1\n"), [(2, "---\na: 1")]);
        assert_eq!(starts("--- {a: 1}\n"), [(1, "--- {a: 1}")]);
        assert_eq!(starts("a: |\n  ---\n  b\n---x: 1\n").len(), 1);
        assert_eq!(starts(""), []);
    }
}
