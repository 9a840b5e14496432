//! A directory of YAML that a test may change while the control plane watches it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;
use tempfile::TempDir;

/// A temporary directory with a `config` folder for the control plane and a `logs` folder beside it.
#[derive(Debug)]
pub struct Workspace {
    root: TempDir,
}

impl Workspace {
    /// An empty one. Dropping it removes it.
    pub fn new() -> Result<Self> {
        let root = tempfile::Builder::new()
            .prefix("pilotfish-")
            .tempdir()
            .context("a temporary directory")?;
        for folder in ["config", "logs"] {
            fs::create_dir(root.path().join(folder))?;
        }
        Ok(Self { root })
    }

    /// What the control plane reads.
    pub fn config(&self) -> PathBuf {
        self.root.path().join("config")
    }

    /// Where processes write.
    pub fn logs(&self) -> PathBuf {
        self.root.path().join("logs")
    }

    /// A file or folder of the test's own, which the control plane does not read.
    pub fn place(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// The logs written so far.
    pub fn log_files(&self) -> Vec<PathBuf> {
        files(&self.logs(), "log").unwrap_or_default()
    }

    /// Writes a file as a careful editor does: beside the directory, then renamed into it.
    pub fn write(&self, name: &str, text: &str) -> Result<()> {
        let draft = self.root.path().join("draft");
        fs::write(&draft, text).context("write a draft")?;
        fs::rename(&draft, self.config().join(name))
            .with_context(|| format!("rename the draft to {name}"))
    }

    /// Removes a file.
    pub fn remove(&self, name: &str) -> Result<()> {
        fs::remove_file(self.config().join(name)).with_context(|| format!("remove {name}"))
    }

    /// Reads a file.
    pub fn read(&self, name: &str) -> Result<String> {
        fs::read_to_string(self.config().join(name)).with_context(|| format!("read {name}"))
    }

    /// Copies the files of a directory, passing each text through `edit`.
    pub fn copy(&self, from: &Path, edit: impl Fn(&str) -> String) -> Result<()> {
        for file in yaml_files(from)? {
            let name = file
                .file_name()
                .context("a file has a name")?
                .to_string_lossy();
            self.write(&name, &edit(&fs::read_to_string(&file)?))?;
        }
        Ok(())
    }
}

/// The YAML files of a directory, in order of their names.
fn yaml_files(dir: &Path) -> Result<Vec<PathBuf>> {
    files(dir, "yaml")
}

fn files(dir: &Path, wanted: &str) -> Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = fs::read_dir(dir)
        .with_context(|| format!("read {}", dir.display()))?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<std::io::Result<_>>()?;
    files.retain(|file| {
        file.extension()
            .is_some_and(|extension| extension == wanted)
    });
    files.sort();
    Ok(files)
}

/// The objects of all YAML files of a directory.
pub fn objects(dir: &Path) -> Result<Vec<Value>> {
    let mut objects = Vec::new();
    for file in yaml_files(dir)? {
        let documents: Vec<Value> = serde_saphyr::from_multiple(&fs::read_to_string(&file)?)
            .with_context(|| format!("parse {}", file.display()))?;
        objects.extend(documents);
    }
    Ok(objects)
}

/// Replaces the numbers of the lines `weight: N` of a text, in order.
pub fn with_weights(text: &str, weights: &[u32]) -> String {
    let mut weights = weights.iter();
    let lines = text.lines().map(|line| match line.find("weight:") {
        Some(at) if !line.trim_start().starts_with('#') => match weights.next() {
            Some(weight) => format!("{}weight: {weight}", &line[..at]),
            None => line.to_owned(),
        },
        _ => line.to_owned(),
    });
    lines.map(|line| line + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_replaced_in_order_and_comments_are_not() {
        let text = "# weight: of old\n- weight: 90\n  x: 1\n- a\n  weight: 10\n";
        assert_eq!(
            with_weights(text, &[50, 51]),
            "# weight: of old\n- weight: 50\n  x: 1\n- a\n  weight: 51\n"
        );
    }

    #[test]
    fn a_file_can_be_written_changed_and_removed() {
        let workspace = Workspace::new().unwrap();
        workspace
            .write("a.yaml", "kind: A\n---\nkind: B\n")
            .unwrap();
        assert_eq!(objects(&workspace.config()).unwrap().len(), 2);
        workspace.write("a.yaml", "kind: C\n").unwrap();
        assert_eq!(objects(&workspace.config()).unwrap()[0]["kind"], "C");
        workspace.remove("a.yaml").unwrap();
        assert!(objects(&workspace.config()).unwrap().is_empty());
    }
}
