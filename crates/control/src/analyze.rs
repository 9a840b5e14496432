//! `pilotfish analyze`: reads a configuration once and says what is wrong with it.

use pilotfish_config::Text;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use pilotfish_config::mesh::{MeshConfig, MeshNetworks};
use pilotfish_config::{
    Change, Diagnostic, Object, ObjectKey, Origin, Severity, Snapshot, Store, parse,
};
use pilotfish_mesh::World;
use pilotfish_sources::files::{DirectorySource, Options};

use crate::cli::{AnalyzeArgs, Threshold};
use crate::environment::Environment;
use crate::settings;

/// Exit code if it could not be found out what is wrong.
pub(crate) const NOT_DONE: u8 = 2;
/// Exit code if something is wrong.
const WRONG: u8 = 1;
/// What findings about standard input name as their file.
const STDIN: &str = "stdin";

/// What to print, and how to exit.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) text: String,
    pub(crate) code: u8,
}

/// Reads, analyses, and says what was found.
pub(crate) fn run(args: &AnalyzeArgs, env: &Environment, stdin: &mut dyn Read) -> Result<Outcome> {
    let settings = settings::translation(args.cluster_id.as_deref(), &args.domain, env)?;
    let mut input = Input::default();
    for path in &args.paths {
        input.read(path, stdin)?;
    }
    if let Some(path) = &args.mesh_config {
        let mesh = input.mesh_file(path, parse::mesh_config)?;
        input.store_mesh(mesh);
    }
    if let Some(path) = &args.mesh_networks {
        let networks = input.mesh_file(path, parse::mesh_networks)?;
        input.store_networks(networks);
    }
    let snapshot = input.store.snapshot();
    let keys: Vec<ObjectKey> = snapshot.objects.keys().cloned().collect();
    let world = World::empty(settings).update(&snapshot, &keys).world;
    let analysed = pilotfish_analysis::analyze(&world);
    let mut all: BTreeSet<Diagnostic> = input.located(analysed).into_iter().collect();
    all.extend(std::mem::take(&mut input.diagnostics));
    all.retain(|d| !args.ignore.iter().any(|code| code == d.code));
    let code = if all.iter().any(|d| reaches(args.fail_on, d.severity)) {
        WRONG
    } else {
        0
    };
    all.retain(|d| reaches(args.show, d.severity));
    let found: Vec<Diagnostic> = all.into_iter().collect();
    let text = if args.json {
        let text = serde_json::to_string_pretty(&found).context("cannot write JSON")?;
        format!("{text}\n")
    } else {
        format!("{}{}\n", table(&found), summary(&found, &snapshot))
    };
    Ok(Outcome { text, code })
}

fn reaches(threshold: Threshold, severity: Severity) -> bool {
    match threshold {
        Threshold::Error => severity == Severity::Error,
        Threshold::Warning => severity != Severity::Info,
        Threshold::Info => true,
        Threshold::Never => false,
    }
}

/// What was read.
#[derive(Default)]
struct Input {
    store: Store,
    diagnostics: Vec<Diagnostic>,
    /// Where each object was seen first.
    seen: BTreeMap<ObjectKey, Option<Origin>>,
    stdin: Option<Text>,
}

impl Input {
    fn read(&mut self, path: &Path, stdin: &mut dyn Read) -> Result<()> {
        if path.as_os_str() == "-" {
            // Read once, however often it is named.
            if self.stdin.is_none() {
                let mut bytes = Vec::new();
                stdin
                    .take(parse::MAX_TEXT_BYTES as u64 + 1)
                    .read_to_end(&mut bytes)
                    .context("standard input cannot be read")?;
                self.stdin = Some(String::from_utf8_lossy(&bytes).into());
                self.text(&bytes, STDIN);
            }
            return Ok(());
        }
        let shown = path.display();
        let metadata =
            std::fs::metadata(path).with_context(|| format!("{shown} cannot be read"))?;
        if metadata.is_dir() {
            let batch = DirectorySource::new(vec![path.to_owned()], Options::default())?.read();
            self.diagnostics.extend(batch.diagnostics);
            let objects = batch.changes.into_iter().filter_map(|change| match change {
                Change::Upsert(object) => Some(object),
                Change::Delete(_) | Change::Relocate(..) => None,
            });
            self.objects(objects.collect(), &path.to_string_lossy());
        } else {
            let bytes = std::fs::read(path).with_context(|| format!("{shown} cannot be read"))?;
            self.text(&bytes, &path.to_string_lossy());
        }
        Ok(())
    }

    fn text(&mut self, bytes: &[u8], name: &str) {
        match parse::text(bytes, name) {
            Ok(text) => {
                let parsed = parse::documents(text, name);
                self.diagnostics.extend(parsed.diagnostics);
                let objects = parsed.objects.into_iter().map(Arc::new);
                self.objects(objects.collect(), name);
            }
            Err(diagnostic) => self.diagnostics.push(*diagnostic),
        }
    }

    /// Objects of one path; those of earlier paths win.
    fn objects(&mut self, objects: Vec<Arc<Object>>, name: &str) {
        for object in &objects {
            if let Some(first) = self.seen.get(&object.key) {
                let place = first
                    .as_ref()
                    .map_or_else(String::new, |at| format!(" at {at}"));
                let double = Diagnostic::error(
                    "duplicate-object",
                    format!("already defined{place}"),
                    "this definition is ignored",
                );
                let double = double.of(object.key.clone());
                self.diagnostics
                    .push(double.from_origin(object.origin.clone()));
            } else {
                self.seen.insert(object.key.clone(), object.origin.clone());
            }
        }
        let source = self.store.register(name);
        let changes = objects.into_iter().map(Change::Upsert).collect();
        self.store.apply(source, changes);
    }

    fn mesh_file<T>(
        &mut self,
        path: &Path,
        parse: impl Fn(&str, &str) -> (Option<T>, Vec<Diagnostic>),
    ) -> Result<Option<T>> {
        let name = path.to_string_lossy();
        let bytes = std::fs::read(path).with_context(|| format!("{name} cannot be read"))?;
        match parse::text(&bytes, &name) {
            Ok(text) => {
                let (value, diagnostics) = parse(text, &name);
                self.diagnostics.extend(diagnostics);
                Ok(value)
            }
            Err(diagnostic) => {
                self.diagnostics.push(*diagnostic);
                Ok(None)
            }
        }
    }

    fn store_mesh(&mut self, mesh: Option<MeshConfig>) {
        if let Some(mesh) = mesh {
            self.store.set_mesh(mesh);
        }
    }

    fn store_networks(&mut self, networks: Option<MeshNetworks>) {
        if let Some(networks) = networks {
            self.store.set_networks(networks);
        }
    }

    /// The same findings with the lines of their fields instead of those of their objects.
    fn located(&self, diagnostics: Vec<Diagnostic>) -> Vec<Diagnostic> {
        let mut texts: BTreeMap<Text, Option<String>> = BTreeMap::new();
        let mut out = Vec::with_capacity(diagnostics.len());
        for mut diagnostic in diagnostics {
            if let Some(origin) = &mut diagnostic.origin {
                let text = texts.entry(origin.file.clone()).or_insert_with(|| {
                    match (&self.stdin, &*origin.file) {
                        (Some(text), STDIN) => Some(text.to_string()),
                        (_, file) => std::fs::read_to_string(file).ok(),
                    }
                });
                if let Some(text) = text {
                    origin.line = parse::line_of(text, origin.line, &diagnostic.field);
                }
            }
            out.push(diagnostic);
        }
        out
    }
}

fn table(found: &[Diagnostic]) -> String {
    if found.is_empty() {
        return String::new();
    }
    let head = ["SEVERITY", "OBJECT", "FIELD", "WHERE", "CODE", "PROBLEM"].map(str::to_owned);
    let mut rows = vec![head];
    rows.extend(found.iter().map(|d| {
        let dash = |text: Option<String>| text.filter(|t| !t.is_empty()).unwrap_or("-".to_owned());
        [
            d.severity.to_string(),
            dash(d.object.as_ref().map(ToString::to_string)),
            dash(Some(d.field.clone())),
            dash(d.origin.as_ref().map(ToString::to_string)),
            d.code.to_owned(),
            format!("{}; {}", d.reason, d.effect),
        ]
    }));
    let mut widths = [0; 6];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in rows {
        for (i, cell) in row.iter().enumerate() {
            // Nothing follows the last column, and control characters of users must not reach a terminal.
            let cell: String = cell
                .chars()
                .map(|c| if c.is_control() { ' ' } else { c })
                .collect();
            if i + 1 == row.len() {
                text.push_str(&cell);
            } else {
                let _ = write!(text, "{cell:width$}  ", width = widths[i]);
            }
        }
        text.push('\n');
    }
    text.push('\n');
    text
}

fn summary(found: &[Diagnostic], snapshot: &Snapshot) -> String {
    let objects = snapshot.objects.len();
    if found.is_empty() {
        return format!("Nothing found in {objects} objects.");
    }
    let count = |severity| found.iter().filter(|d| d.severity == severity).count();
    format!(
        "{} errors, {} warnings, {} remarks about {objects} objects.",
        count(Severity::Error),
        count(Severity::Warning),
        count(Severity::Info),
    )
}
