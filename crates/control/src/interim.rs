//! Reads directories by looking at them again and again, until `pilotfish_sources::files` does better. To be removed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Result;
use pilotfish_config::{Change, ObjectKey, parse};
use pilotfish_sources::Batch;
use pilotfish_sources::files::MeshUpdate;
use tokio::sync::mpsc;

type Stamp = BTreeMap<PathBuf, (Option<SystemTime>, u64)>;

fn look(dir: &Path, stamp: &mut Stamp) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        match std::fs::metadata(&path) {
            Ok(meta) if meta.is_dir() => look(&path, stamp),
            Ok(meta)
                if path
                    .extension()
                    .is_some_and(|e| e == "yaml" || e == "yml" || e == "json") =>
            {
                stamp.insert(path, (meta.modified().ok(), meta.len()));
            }
            _ => {}
        }
    }
}

pub(crate) async fn directories(dirs: Vec<PathBuf>, batches: mpsc::Sender<Batch>) -> Result<()> {
    let (mut last, mut known): (Option<Stamp>, BTreeSet<ObjectKey>) = (None, BTreeSet::new());
    loop {
        let mut stamp = Stamp::new();
        dirs.iter().for_each(|dir| look(dir, &mut stamp));
        if last.as_ref() != Some(&stamp) {
            let mut batch = Batch {
                synced: true,
                ..Batch::default()
            };
            let mut now = BTreeSet::new();
            for path in stamp.keys() {
                let text = std::fs::read_to_string(path).unwrap_or_default();
                let parsed = parse::documents(&text, &path.display().to_string());
                for object in parsed.objects {
                    if now.insert(object.key.clone()) {
                        batch.changes.push(Change::Upsert(object));
                    }
                }
                batch.diagnostics.extend(parsed.diagnostics);
            }
            batch
                .changes
                .extend(known.difference(&now).cloned().map(Change::Delete));
            known = now;
            last = Some(stamp);
            if batches.send(batch).await.is_err() {
                return Ok(());
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub(crate) async fn mesh(
    mesh: Option<PathBuf>,
    networks: Option<PathBuf>,
    updates: mpsc::Sender<MeshUpdate>,
) -> Result<()> {
    let read = |path: Option<PathBuf>| path.and_then(|p| std::fs::read_to_string(p).ok());
    let mut update = MeshUpdate::default();
    if let Some(text) = read(mesh) {
        let (value, diagnostics) = parse::mesh_config(&text, "mesh");
        update.mesh = value;
        update.diagnostics.extend(diagnostics);
    }
    if let Some(text) = read(networks) {
        let (value, diagnostics) = parse::mesh_networks(&text, "networks");
        update.networks = value;
        update.diagnostics.extend(diagnostics);
    }
    let _ = updates.send(update).await;
    std::future::pending().await
}
