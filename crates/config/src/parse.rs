//! From text to objects. Never fails: what cannot be read becomes a diagnostic.
//!
//! A text is split into documents by its lines alone ([`split`]), and each document is read on its own ([`document`]),
//! so that one mistake costs one object. [`documents`] does both.

use crate::Text;
use std::collections::BTreeMap;

use serde_json::Value;

use crate::diagnostic::{Diagnostic, Severity};
use crate::finding::{Finding, OBJECT_REFUSED};
use crate::kind::Kind;
use crate::object::{Object, ObjectKey, Origin};

mod decode;
mod envelope;
mod json;
mod kinds;
mod locate;
mod mesh;
mod meta;
pub(crate) mod path;
mod scalar;
mod split;
mod yaml;

pub use mesh::{Layer, mesh_config, mesh_layers, mesh_networks, proxy_config};
use path::Segment;
pub use split::{Document, MAX_DOCUMENTS, split};

/// How large a text may be.
pub const MAX_TEXT_BYTES: usize = 64 << 20;
/// How large one object may be.
pub const MAX_OBJECT_BYTES: usize = 4 << 20;
/// How many findings of one document are reported.
const MAX_FINDINGS: usize = 100;

/// What a text holds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Parsed {
    /// The usable objects, in the order they were written.
    pub objects: Vec<Object>,
    /// The objects that are there but unusable: a source keeps their last good version.
    pub refused: Vec<ObjectKey>,
    /// How many documents are so broken that they do not tell which objects they are.
    pub unreadable: usize,
    /// What is wrong.
    pub diagnostics: Vec<Diagnostic>,
}

impl Parsed {
    /// Adds what another document holds.
    pub fn append(&mut self, other: Self) {
        self.objects.extend(other.objects);
        self.refused.extend(other.refused);
        self.unreadable += other.unreadable;
        self.diagnostics.extend(other.diagnostics);
    }

    /// Files an object by what was found wrong with it.
    fn settle(&mut self, object: Option<Object>, key: Option<&ObjectKey>, findings: &[Finding]) {
        let refused = findings
            .iter()
            .any(|finding| finding.severity == Severity::Error);
        match (object, key) {
            (Some(object), _) if !refused => self.objects.push(object),
            (_, Some(key)) if refused => self.refused.push(key.clone()),
            (_, None) if refused => self.unreadable += 1,
            _ => {}
        }
    }

    /// A whole text that cannot be read.
    fn unreadable(diagnostic: Diagnostic) -> Self {
        Self {
            unreadable: 1,
            diagnostics: vec![diagnostic],
            ..Self::default()
        }
    }
}

const DOCUMENT_REFUSED: &str =
    "the document is not used; the last good versions of its objects stay";
const FILE_REFUSED: &str = "the file is not used; the last good versions of its objects stay";

/// The text of a file, if it is text.
pub fn text<'a>(bytes: &'a [u8], file: &str) -> Result<&'a str, Box<Diagnostic>> {
    let refuse = |code, reason: String, before: &[u8]| {
        let line = before.split(|byte| *byte == b'\n').count() as u32;
        let origin = Origin {
            file: file.into(),
            line,
        };
        Box::new(Diagnostic::error(code, reason, FILE_REFUSED).from_origin(Some(origin)))
    };
    if bytes.len() > MAX_TEXT_BYTES {
        let reason = format!("larger than {} MiB", MAX_TEXT_BYTES >> 20);
        return Err(refuse("limit", reason, &[]));
    }
    if let Some(at) = bytes.iter().position(|byte| *byte == 0) {
        let reason = "not text: contains a NUL byte".to_owned();
        return Err(refuse("binary", reason, &bytes[..at]));
    }
    std::str::from_utf8(bytes).map_err(|error| {
        let reason = "not text: invalid UTF-8".to_owned();
        refuse("binary", reason, &bytes[..error.valid_up_to()])
    })
}

/// The line of a field of the object that begins at `line` of a text; that line itself where the field is not found.
pub fn line_of(text: &str, line: u32, field: &str) -> u32 {
    let documents = split(text);
    let Some(document) = documents.iter().rev().find(|d| d.line <= line) else {
        return line;
    };
    let found = locate::lines(document.text, &[path::parse(field)]);
    found
        .first()
        .map_or(line, |at| line.max(document.line + at - 1))
}

/// All objects of a YAML or JSON text of any number of documents. Of two that have the same key, the first counts.
pub fn documents(text: &str, file: &str) -> Parsed {
    let text = match self::text(text.as_bytes(), file) {
        Ok(text) => text,
        Err(diagnostic) => return Parsed::unreadable(*diagnostic),
    };
    let file: Text = file.into();
    let mut all = Parsed::default();
    let mut first: BTreeMap<ObjectKey, Option<Origin>> = BTreeMap::new();
    let documents = split(text);
    for document in documents.iter().take(MAX_DOCUMENTS) {
        let mut parsed = self::document(document, &file);
        parsed.objects.retain(|object| {
            let Some(earlier) = first.get(&object.key) else {
                first.insert(object.key.clone(), object.origin.clone());
                return true;
            };
            all.diagnostics.push(duplicate(object, earlier.as_ref()));
            false
        });
        all.append(parsed);
    }
    if let Some(excess) = documents.get(MAX_DOCUMENTS) {
        all.append(Parsed::unreadable(too_many_documents(excess, &file)));
    }
    all
}

/// The finding that a text has more documents than are read.
pub fn too_many_documents(first_unread: &Document<'_>, file: &Text) -> Diagnostic {
    let reason = format!("more than {MAX_DOCUMENTS} documents");
    Diagnostic::error("limit", reason, "the rest of the file is not read").from_origin(Some(
        Origin {
            file: file.clone(),
            line: first_unread.line,
        },
    ))
}

/// The finding that `object` was already written at `earlier`.
pub fn duplicate(object: &Object, earlier: Option<&Origin>) -> Diagnostic {
    let reason = match earlier {
        Some(earlier) => format!("already defined at {earlier}"),
        None => "already defined".to_owned(),
    };
    Diagnostic::error("duplicate-object", reason, "this definition is ignored")
        .of(object.key.clone())
        .from_origin(object.origin.clone())
}

/// The objects of one document: one, or several if it is a list.
pub fn document(document: &Document<'_>, file: &Text) -> Parsed {
    let mut reader = Reader {
        document,
        file,
        parsed: Parsed::default(),
    };
    match values(document.text) {
        Ok(values) => {
            for value in values {
                reader.value(value);
            }
        }
        Err(fault) => {
            let origin = reader.origin(fault.line);
            reader.parsed.unreadable += 1;
            reader.parsed.diagnostics.push(
                Diagnostic::error(fault.code, fault.reason, DOCUMENT_REFUSED)
                    .from_origin(Some(origin)),
            );
        }
    }
    reader.parsed
}

/// One object as an API server gives it, which was asked for `kind`. Findings name the object and no place.
pub fn object(value: Value, kind: Kind) -> Parsed {
    let outcome = envelope::open(value, &envelope::ItemDefaults::of(kind), &[]);
    let mut parsed = Parsed::default();
    parsed.settle(outcome.object, outcome.key.as_ref(), &outcome.findings);
    let (findings, excess) = most_severe(outcome.findings);
    let of_object = |diagnostic: Diagnostic| Diagnostic {
        object: outcome.key.clone(),
        ..diagnostic
    };
    parsed.diagnostics = findings
        .into_iter()
        .map(|finding| {
            let field = path::display(&finding.path);
            of_object(reported(finding, field))
        })
        .chain(excess.map(of_object))
        .collect();
    parsed
}

/// A value of a document, and where it begins.
struct Rooted {
    value: Value,
    /// The line within the document, counted from one.
    line: u32,
    item_lines: Vec<u32>,
    /// Whether it is the only value, so that lines can be found by path.
    alone: bool,
}

/// All values of a document. JSON may hold several, one after the other.
fn values(text: &str) -> Result<Vec<Rooted>, yaml::Fault> {
    let start = text.trim_start_matches(|c: char| c.is_whitespace() || c == '\u{feff}');
    let mut json_fault = None;
    if start.starts_with('{') {
        let skipped = text[..text.len() - start.len()].matches('\n').count() as u32;
        match json::read(start) {
            Ok(values) => {
                let alone = values.len() == 1;
                return Ok(values
                    .into_iter()
                    .map(|(line, value)| Rooted {
                        value,
                        line: line + skipped,
                        item_lines: Vec::new(),
                        alone,
                    })
                    .collect());
            }
            Err(mut fault) => {
                fault.line += skipped;
                json_fault = Some(fault);
            }
        }
    }
    // Flow-style YAML also begins with a brace.
    match (yaml::read(text), json_fault) {
        (Ok(tree), _) => Ok(tree
            .into_iter()
            .map(|tree| Rooted {
                value: tree.value,
                line: split::first_content(text) + 1,
                item_lines: tree.item_lines,
                alone: true,
            })
            .collect()),
        // Both failed: the reason is that of the notation which the text looks like.
        (Err(yaml), Some(json)) => {
            let next = start[1..].trim_start();
            Err(if next.starts_with(['"', '}']) {
                json
            } else {
                yaml
            })
        }
        (Err(fault), None) => Err(fault),
    }
}

struct Reader<'a> {
    document: &'a Document<'a>,
    file: &'a Text,
    parsed: Parsed,
}

impl Reader<'_> {
    /// The place of a line of the document, counted from one.
    fn origin(&self, line: u32) -> Origin {
        Origin {
            file: self.file.clone(),
            line: self.document.line + line.max(1) - 1,
        }
    }

    fn value(&mut self, root: Rooted) {
        let Rooted {
            value,
            line,
            item_lines,
            alone,
        } = root;
        match envelope::items(value) {
            Ok((defaults, items)) => {
                for (index, item) in items.into_iter().enumerate() {
                    let at = [Segment::Key("items".to_owned()), Segment::Index(index)];
                    let line = item_lines.get(index).copied().unwrap_or(line);
                    self.object(item, &defaults, &at, line, alone);
                }
            }
            Err(value) => {
                self.object(value, &envelope::ItemDefaults::default(), &[], line, alone);
            }
        }
    }

    fn object(
        &mut self,
        value: Value,
        defaults: &envelope::ItemDefaults,
        at: &[Segment],
        line: u32,
        alone: bool,
    ) {
        let too_large =
            self.document.text.len() > MAX_OBJECT_BYTES && size(&value) > MAX_OBJECT_BYTES;
        let origin = self.origin(line);
        let mut outcome = envelope::open(value, defaults, at);
        if too_large {
            outcome.object = None;
            outcome.findings.push(Finding {
                severity: Severity::Error,
                code: "limit",
                path: at.to_vec(),
                reason: format!("larger than {} MiB", MAX_OBJECT_BYTES >> 20),
                effect: OBJECT_REFUSED.to_owned(),
            });
        }
        if let Some(object) = &mut outcome.object {
            object.origin = Some(origin.clone());
        }
        self.parsed
            .settle(outcome.object, outcome.key.as_ref(), &outcome.findings);
        self.report(
            outcome.findings,
            outcome.key.as_ref(),
            at.len(),
            &origin,
            alone,
        );
    }

    /// Gives the findings a line. Paths are shown without the first `skip` steps, which lead to an item of a list.
    fn report(
        &mut self,
        findings: Vec<Finding>,
        key: Option<&ObjectKey>,
        skip: usize,
        origin: &Origin,
        alone: bool,
    ) {
        if findings.is_empty() {
            return;
        }
        let (findings, excess) = most_severe(findings);
        let paths: Vec<_> = findings
            .iter()
            .map(|finding| finding.path.clone())
            .collect();
        let lines = if alone {
            locate::lines(self.document.text, &paths)
        } else {
            Vec::new()
        };
        for (index, finding) in findings.into_iter().enumerate() {
            let place = match lines.get(index) {
                Some(line) if finding.path.len() > skip => self.origin(*line),
                _ => origin.clone(),
            };
            let field = path::display(finding.path.get(skip..).unwrap_or_default());
            self.parsed.diagnostics.push(Diagnostic {
                object: key.cloned(),
                origin: Some(place),
                ..reported(finding, field)
            });
        }
        if let Some(note) = excess {
            self.parsed.diagnostics.push(
                Diagnostic {
                    object: key.cloned(),
                    ..note
                }
                .from_origin(Some(origin.clone())),
            );
        }
    }
}

/// The findings worth reporting, the worst first, and a note if there are more.
fn most_severe(mut findings: Vec<Finding>) -> (Vec<Finding>, Option<Diagnostic>) {
    let excess = findings.len().saturating_sub(MAX_FINDINGS);
    findings.sort_by_key(|finding| finding.severity);
    findings.truncate(MAX_FINDINGS);
    let note = || {
        Diagnostic::info(
            "limit",
            format!("{excess} more findings"),
            "they are not shown",
        )
    };
    (findings, (excess > 0).then(note))
}

/// A finding at `field`, without object and place.
fn reported(finding: Finding, field: String) -> Diagnostic {
    Diagnostic {
        severity: finding.severity,
        object: None,
        origin: None,
        field,
        reason: shorten(finding.reason),
        effect: finding.effect,
        code: finding.code,
    }
}

/// Keeps one line of a report one line long.
fn shorten(reason: String) -> String {
    const MAX: usize = 400;
    let mut reason: String = if reason.contains(char::is_control) {
        reason
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect()
    } else {
        reason
    };
    if reason.len() > MAX {
        let end = (0..=MAX)
            .rev()
            .find(|at| reason.is_char_boundary(*at))
            .unwrap_or(0);
        reason.truncate(end);
        reason.push('…');
    }
    reason
}

/// About how many bytes the value takes as text.
fn size(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len() + 2,
        Value::Array(items) => items.iter().map(|item| size(item) + 1).sum::<usize>() + 2,
        Value::Object(map) => {
            map.iter()
                .map(|(key, item)| key.len() + size(item) + 4)
                .sum::<usize>()
                + 2
        }
        _ => 4,
    }
}
