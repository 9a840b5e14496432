//! Reads directories once and says how long that took and what is wrong with them.

use std::io::Write;
use std::path::PathBuf;

use pilotfish_config::Store;
use pilotfish_sources::files::{DirectorySource, Options};

#[expect(clippy::disallowed_methods, reason = "measures time")]
fn main() -> anyhow::Result<()> {
    let directories: Vec<PathBuf> = std::env::args().skip(1).map(Into::into).collect();
    let mut out = std::io::stdout().lock();
    let start = std::time::Instant::now();
    let batch = DirectorySource::new(directories, Options::default())?.read();
    let read = start.elapsed();
    let mut store = Store::new();
    let source = store.register("files");
    for diagnostic in &batch.diagnostics {
        writeln!(out, "{diagnostic}")?;
    }
    let start = std::time::Instant::now();
    let applied = store.apply(source, batch.changes);
    let objects = applied.snapshot.objects.len();
    writeln!(
        out,
        "{objects} objects, read in {read:?}, applied in {:?}",
        start.elapsed()
    )?;
    Ok(())
}
