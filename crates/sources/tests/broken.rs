//! Every file of `testdata/broken`, beside a good one: something is said about it, and the good one is there.
//!
//! The first lines of a file say what must be said: `# expect: text`, or `# expect: this|that`. A file with
//! `# expect-later:` is fine by itself; what is wrong with it takes other objects to see. JSON has no comments, so its
//! expectations are here.

use std::fs;
use std::path::{Path, PathBuf};

use pilotfish_config::{Change, Severity};
use pilotfish_sources::Batch;
use pilotfish_sources::files::{DirectorySource, Options};
use tempfile::TempDir;

const GOOD: &str = "apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: good}
spec:
  hosts: [good.example.com]
  http:
  - route: [{destination: {host: good}}]
";

const JSON: &[(&str, &str)] = &[
    ("syntax-duplicate-key.json", "duplicate key \"name\""),
    ("syntax-truncated.json", "invalid JSON: EOF"),
    ("syntax-missing-comma.json", "invalid JSON: expected"),
];

fn load(files: &[(&str, &[u8])]) -> Batch {
    let dir = TempDir::new().expect("a directory");
    for (name, content) in files {
        fs::write(dir.path().join(name), content).expect("a file");
    }
    DirectorySource::new(vec![dir.path().to_owned()], Options::default())
        .expect("a source")
        .read()
}

fn names(batch: &Batch) -> Vec<String> {
    let upserts = batch.changes.iter().filter_map(|change| match change {
        Change::Upsert(object) => Some(object.key.to_string()),
        _ => None,
    });
    upserts.collect()
}

fn check(name: &str, content: &[u8], expected: &[String], later: bool) -> Result<(), String> {
    // The good file sorts first, so that its definition counts.
    let batch = load(&[("a-good.yaml", GOOD.as_bytes()), (name, content)]);
    if !names(&batch).contains(&"VirtualService/default/good".to_owned()) {
        return Err(format!("{name}: the good object is missing"));
    }
    let lines: Vec<String> = batch.diagnostics.iter().map(ToString::to_string).collect();
    if let Some(stray) = lines
        .iter()
        .find(|line| !line.contains(&format!("{name}:")))
    {
        return Err(format!("{name}: not about the file: {stray}"));
    }
    if later {
        return if lines.is_empty() {
            Ok(())
        } else {
            Err(format!("{name}: {lines:#?}"))
        };
    }
    for text in expected {
        if !text
            .split('|')
            .any(|text| lines.iter().any(|line| line.contains(text)))
        {
            return Err(format!("{name}: expected {text:?}, found {lines:#?}"));
        }
    }
    if expected.is_empty() || lines.is_empty() {
        return Err(format!(
            "{name}: no expectation or no diagnostic: {lines:#?}"
        ));
    }
    let harmless = batch
        .diagnostics
        .iter()
        .all(|finding| finding.severity != Severity::Error);
    if !harmless
        && names(&batch).iter().any(|key| key.ends_with("/broken"))
        && !name.contains("duplicate")
    {
        return Err(format!("{name}: used in spite of an error: {lines:#?}"));
    }
    Ok(())
}

#[test]
fn every_broken_file_is_reported_and_harms_nothing_else() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/broken");
    let mut files: Vec<PathBuf> = fs::read_dir(dir)
        .expect("testdata")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    assert!(files.len() >= 60, "only {} files", files.len());
    let mut failures = Vec::new();
    for file in &files {
        let name = file
            .file_name()
            .expect("a name")
            .to_str()
            .expect("a plain name");
        #[expect(clippy::disallowed_methods, reason = "tests read files")]
        let content = fs::read(file).expect("a file");
        let text = String::from_utf8_lossy(&content);
        let mut expected: Vec<String> = text
            .lines()
            .map_while(|line| line.strip_prefix("# expect: "))
            .map(str::to_owned)
            .collect();
        expected.extend(
            JSON.iter()
                .filter(|(json, _)| *json == name)
                .map(|(_, text)| (*text).to_owned()),
        );
        let later = text.starts_with("# expect-later:");
        failures.extend(check(name, &content, &expected, later).err());
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn generated_monsters() {
    let object = |spec: &str| {
        format!(
            "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: broken}}\nspec:\n{spec}"
        )
    };
    let bomb = (1..30).fold(
        String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"),
        |text, i| {
            text + &format!(
                "a{i}: &a{i} [{}]\n",
                [format!("*a{}", i - 1).as_str(); 10].join(", ")
            )
        },
    );
    let utf16: Vec<u8> = "apiVersion: v1\n"
        .encode_utf16()
        .flat_map(u16::to_le_bytes)
        .collect();
    let noise: Vec<u8> = (0_u32..200_000)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8 | 0x80)
        .collect();
    let cases: [(&str, Vec<u8>, &str); 10] = [
        (
            "large.yaml",
            object(&format!("  hosts: [\"{}\"]\n", "a".repeat(5 << 20))).into_bytes(),
            "larger than 4 MiB",
        ),
        (
            "deep.yaml",
            object(&format!(
                "  hosts: {}{}\n",
                "[".repeat(50_000),
                "]".repeat(50_000)
            ))
            .into_bytes(),
            "levels deep",
        ),
        (
            "deep.json",
            format!("{}1{}", "{\"a\":".repeat(50_000), "}".repeat(50_000)).into_bytes(),
            "levels deep",
        ),
        ("bomb.yaml", bomb.into_bytes(), "values in one document"),
        ("utf16.yaml", utf16, "not text"),
        ("noise.yaml", noise, "not text"),
        (
            "key.yaml",
            format!("{}: 1\n", "k".repeat(100_000)).into_bytes(),
            "missing|invalid",
        ),
        (
            "line.yaml",
            "x".repeat(1 << 20).into_bytes(),
            "expected an object",
        ),
        (
            "dashes.yaml",
            "-".repeat(1 << 20).into_bytes(),
            "invalid|expected an object",
        ),
        (
            "colons.yaml",
            ": ".repeat(1 << 16).into_bytes(),
            "invalid|missing|must be text|duplicate|levels deep",
        ),
    ];
    for (name, content, expected) in cases {
        let result = check(name, &content, &[expected.to_owned()], false);
        assert_eq!(result, Ok(()));
    }
}

#[test]
fn all_broken_files_together_still_load_the_good_one() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/broken");
    let good = TempDir::new().expect("a directory");
    fs::write(good.path().join("good.yaml"), GOOD).expect("a file");
    let batch = DirectorySource::new(vec![good.path().to_owned(), dir], Options::default())
        .expect("a source")
        .read();
    assert!(names(&batch).contains(&"VirtualService/default/good".to_owned()));
    assert!(batch.diagnostics.len() > 60);
    assert!(batch.diagnostics.is_sorted());
}
