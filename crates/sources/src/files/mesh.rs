//! The two files with settings of the whole mesh.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use pilotfish_config::{Diagnostic, Origin, parse};
use tokio::sync::mpsc;
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_128;

use super::Options;
use super::walk::Stat;
use super::watch::Watch;
use crate::MeshUpdate;

/// Reads and watches the mesh settings until the receiver is dropped. The first update is sent at once.
///
/// A file that is missing is a warning: the defaults are in use, or the last good settings if there were any.
pub async fn watch_mesh(
    mesh: Option<PathBuf>,
    networks: Option<PathBuf>,
    options: Options,
    updates: mpsc::Sender<MeshUpdate>,
) -> anyhow::Result<()> {
    let mut directories: Vec<PathBuf> = [&mesh, &networks]
        .into_iter()
        .flatten()
        .map(|path| directory(path))
        .collect();
    directories.sort();
    directories.dedup();
    let watch = Watch::directories(&directories);
    let mut files = Files {
        mesh: mesh.map(Watched::new),
        networks: networks.map(Watched::new),
        options: options.clone(),
        reported: None,
    };
    loop {
        let update;
        (files, update) = tokio::task::spawn_blocking(move || {
            let update = files.look();
            (files, update)
        })
        .await
        .context("reading the mesh settings failed")?;
        if let Some(update) = update
            && updates.send(update).await.is_err()
        {
            return Ok(());
        }
        let every = if files.is_unsettled() {
            options.settle
        } else if watch.is_complete() {
            options.rescan
        } else {
            options.poll
        };
        tokio::select! {
            () = watch.changed() => tokio::time::sleep(options.coalesce).await,
            () = tokio::time::sleep_until(Instant::now() + every) => {}
            () = updates.closed() => return Ok(()),
        }
        watch.take();
        watch.rearm();
    }
}

fn directory(file: &Path) -> PathBuf {
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

struct Files {
    mesh: Option<Watched>,
    networks: Option<Watched>,
    options: Options,
    /// What was last sent, once something was.
    reported: Option<Vec<Diagnostic>>,
}

struct Watched {
    path: PathBuf,
    hash: Option<u128>,
    diagnostics: Vec<Diagnostic>,
    /// Whether the file was being written when it was last looked at.
    unsettled: bool,
}

impl Watched {
    fn new(path: PathBuf) -> Self {
        Self {
            path,
            hash: None,
            diagnostics: Vec::new(),
            unsettled: false,
        }
    }

    /// The settings, if the file changed and is usable.
    fn look<T>(
        &mut self,
        options: &Options,
        first: bool,
        parse: impl Fn(&str, &str) -> (Option<T>, Vec<Diagnostic>),
    ) -> Option<T> {
        let name = self.path.to_string_lossy().into_owned();
        // An empty file means the defaults, so one that is being written must not be taken at its word.
        let stat = std::fs::metadata(&self.path).map(|metadata| Stat::of(&metadata));
        self.unsettled = !first && stat.is_ok_and(|stat| stat.is_recent(options.settle));
        if self.unsettled {
            return None;
        }
        let bytes = match super::tree::read(&self.path, options.max_file_bytes) {
            Ok(bytes) => bytes,
            Err(error) => {
                self.hash = None;
                let reason = format!("cannot be read: {error}");
                let effect = "the last good settings stay, or the defaults";
                let finding = if error.kind() == io::ErrorKind::NotFound {
                    Diagnostic::warning("unreadable", reason, effect)
                } else {
                    Diagnostic::error("unreadable", reason, effect)
                };
                let origin = Origin {
                    file: name.into(),
                    line: 1,
                };
                self.diagnostics = vec![finding.from_origin(Some(origin))];
                return None;
            }
        };
        let hash = xxh3_128(&bytes);
        if self.hash == Some(hash) {
            return None;
        }
        self.hash = Some(hash);
        match parse::text(&bytes, &name) {
            Ok(text) => {
                let (value, diagnostics) = parse(text, &name);
                self.diagnostics = diagnostics;
                value
            }
            Err(diagnostic) => {
                self.diagnostics = vec![*diagnostic];
                None
            }
        }
    }
}

impl Files {
    fn is_unsettled(&self) -> bool {
        [&self.mesh, &self.networks]
            .into_iter()
            .flatten()
            .any(|file| file.unsettled)
    }

    /// An update, if there is anything new; the first time in any case.
    fn look(&mut self) -> Option<MeshUpdate> {
        let (options, first) = (&self.options, self.reported.is_none());
        let mesh = self
            .mesh
            .as_mut()
            .and_then(|file| file.look(options, first, parse::mesh_config));
        let networks = self
            .networks
            .as_mut()
            .and_then(|file| file.look(options, first, parse::mesh_networks));
        let diagnostics: Vec<Diagnostic> = [&self.mesh, &self.networks]
            .into_iter()
            .flatten()
            .flat_map(|file| file.diagnostics.clone())
            .collect();
        if mesh.is_none() && networks.is_none() && self.reported.as_ref() == Some(&diagnostics) {
            return None;
        }
        self.reported = Some(diagnostics.clone());
        Some(MeshUpdate {
            mesh,
            networks,
            diagnostics,
            waiting_for: Vec::new(),
        })
    }
}
