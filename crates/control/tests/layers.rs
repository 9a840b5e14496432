//! The architecture, checked: which crate may use which, and the shape of files.
#![allow(
    clippy::disallowed_methods,
    reason = "a test reads the files it checks"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Edges that the design rests on. They are also absent from the table; named here so that a change of the table alone
/// does not allow them.
const FORBIDDEN: &[(&str, &str)] = &[
    ("lower", "protos"),
    ("lower", "xds"),
    ("emit", "config"),
    ("emit", "mesh"),
    ("xds", "ir"),
    ("xds", "config"),
    ("xds", "mesh"),
    ("mesh", "protos"),
    ("config", "protos"),
];

const MAX_LINES: usize = 900;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Names of the crates, by folder.
fn crates() -> BTreeSet<String> {
    let folders = std::fs::read_dir(root().join("crates"))
        .expect("crates/ is there")
        .flatten();
    let is_crate = |folder: &std::fs::DirEntry| folder.path().join("Cargo.toml").is_file();
    folders
        .filter(is_crate)
        .map(|folder| folder.file_name().to_string_lossy().into_owned())
        .collect()
}

/// The table of ARCHITECTURE.md: crate to the crates it may use directly.
fn table() -> BTreeMap<String, BTreeSet<String>> {
    let text = read(&root().join("ARCHITECTURE.md"));
    let all = crates();
    let row = |line: &str| -> Option<(String, BTreeSet<String>)> {
        let mut cells = line.trim().strip_prefix('|')?.split('|').map(str::trim);
        let name = cells
            .next()?
            .strip_prefix('`')?
            .strip_suffix('`')?
            .to_owned();
        let uses = cells.nth(1)?;
        let uses = if uses == "all" {
            all.iter()
                .filter(|other| **other != name)
                .cloned()
                .collect()
        } else {
            let words = uses.split(|c: char| !c.is_ascii_alphanumeric());
            words
                .filter(|word| all.contains(*word))
                .map(str::to_owned)
                .collect()
        };
        Some((name, uses))
    };
    text.lines().filter_map(row).collect()
}

/// What may be used if whatever a used crate uses may be used as well.
fn closure(table: &BTreeMap<String, BTreeSet<String>>, name: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut open = vec![name.to_owned()];
    while let Some(next) = open.pop() {
        for used in table.get(&next).into_iter().flatten() {
            if found.insert(used.clone()) {
                open.push(used.clone());
            }
        }
    }
    found
}

/// Crates of ours that a manifest names in `[dependencies]` or `[build-dependencies]`.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let mut section = String::new();
    let mut found = BTreeSet::new();
    for line in manifest.lines().map(str::trim) {
        if let Some(header) = line.strip_prefix('[') {
            header.trim_end_matches(']').clone_into(&mut section);
            if let Some((of, name)) = section.split_once("dependencies.pilotfish-")
                && !of.starts_with("dev-")
            {
                found.insert(name.to_owned());
            }
        } else if section.ends_with("dependencies")
            && !section.ends_with("dev-dependencies")
            && let Some(rest) = line.strip_prefix("pilotfish-")
        {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '-');
            found.insert(rest[..end.unwrap_or(rest.len())].to_owned());
        }
    }
    found
}

fn manifest(name: &str) -> String {
    read(&root().join("crates").join(name).join("Cargo.toml"))
}

#[test]
fn every_crate_is_in_the_table_and_the_reverse() {
    let named: BTreeSet<_> = table().into_keys().collect();
    assert_eq!(named, crates(), "ARCHITECTURE.md and crates/ differ");
}

#[test]
fn crates_use_only_what_the_table_allows() {
    let table = table();
    for name in crates() {
        let allowed = closure(&table, &name);
        let used = dependencies(&manifest(&name));
        let beyond: Vec<_> = used.difference(&allowed).collect();
        assert!(
            beyond.is_empty(),
            "`{name}` uses {beyond:?}; ARCHITECTURE.md allows it {allowed:?}"
        );
    }
}

#[test]
fn forbidden_edges_are_absent() {
    let table = table();
    for name in crates() {
        let used = dependencies(&manifest(&name));
        if name == "ir" {
            assert!(used.is_empty(), "`ir` is plain data and uses {used:?}");
        }
        for (_, forbidden) in FORBIDDEN.iter().filter(|(from, _)| *from == name) {
            assert!(!used.contains(*forbidden), "`{name}` uses `{forbidden}`");
            let allowed = table.get(&name).is_some_and(|t| t.contains(*forbidden));
            assert!(
                !allowed,
                "ARCHITECTURE.md allows `{name}` to use `{forbidden}`"
            );
        }
    }
}

#[test]
fn the_graph_has_no_cycle() {
    let table = table();
    for name in crates() {
        assert!(
            !closure(&table, &name).contains(&name),
            "`{name}` uses itself"
        );
    }
}

#[test]
fn every_crate_takes_the_lints_of_the_workspace() {
    for name in crates() {
        let text = manifest(&name);
        let lints = text
            .split_once("[lints]")
            .is_some_and(|(_, rest)| rest.trim_start().starts_with("workspace = true"));
        assert!(
            lints,
            "crates/{name}/Cargo.toml lacks `[lints] workspace = true`"
        );
    }
}

/// All files of Rust below a folder.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let (mut open, mut found) = (vec![folder.to_path_buf()], Vec::new());
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(&folder)
            .expect("the folder can be read")
            .flatten()
        {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found
}

#[test]
fn every_file_says_what_it_is_and_is_of_a_size_to_be_read() {
    let of_crate = |name: &String| sources(&root().join("crates").join(name));
    let files: Vec<PathBuf> = crates().iter().flat_map(of_crate).collect();
    let mut wrong = Vec::new();
    for path in &files {
        let (text, shown) = (read(path), path.display().to_string());
        if !text.starts_with("//!") {
            wrong.push(format!("{shown} does not begin with `//!`"));
        }
        let lines = text.lines().count();
        if lines >= MAX_LINES {
            wrong.push(format!("{shown} has {lines} lines; split it"));
        }
    }
    let seen = files.len();
    assert!(seen > 50, "only {seen} files found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn manifests_are_read_rightly() {
    let text = "[dependencies]\npilotfish-config.workspace = true\npilotfish-ir = { path = \"x\" }\nserde = \"1\"\n\
                [dev-dependencies]\npilotfish-protos.workspace = true\n\
                [build-dependencies]\npilotfish-mesh.workspace = true\n[dependencies.pilotfish-xds]\nworkspace = true\n";
    let found: Vec<_> = dependencies(text).into_iter().collect();
    assert_eq!(found, ["config", "ir", "mesh", "xds"]);
}

/// A variable that shapes output is read by some stage of translation; one that is said to have no effect is read by none.
#[test]
fn variables_do_what_is_said_of_them() {
    let text = read(&root().join("crates/control/src/environment.rs"));
    let between = |from: &str, to: &str| {
        let start = text.find(from).unwrap_or_else(|| panic!("{from} is there"));
        let end = text[start..].find(to).expect("it ends");
        &text[start..start + end]
    };
    let names = |part: &str| -> BTreeSet<String> {
        let quoted = part.split('"').skip(1).step_by(2);
        let is_name = |word: &&str| {
            word.chars()
                .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
        };
        quoted.filter(is_name).map(str::to_owned).collect()
    };
    let mut translation = String::new();
    for name in ["mesh", "lower", "emit", "engine", "analysis"] {
        for file in sources(&root().join("crates").join(name).join("src")) {
            translation.push_str(&read(&file));
        }
    }
    let is_read = |name: &String| translation.contains(&format!("\"{name}\""));
    let features = names(between("const FEATURES", "];"));
    assert!(features.len() > 20, "{features:?}");
    let unread: Vec<_> = features.iter().filter(|name| !is_read(name)).collect();
    assert!(unread.is_empty(), "nothing reads {unread:?}");
    let without = names(between("const WITHOUT_EFFECT", "\n];"));
    let effective: Vec<_> = without.iter().filter(|name| is_read(name)).collect();
    assert!(effective.is_empty(), "{effective:?} have an effect");
}
