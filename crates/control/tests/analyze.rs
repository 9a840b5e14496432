//! `pilotfish analyze`: what it prints and how it exits.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test drives processes and files"
)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// A service, and a VirtualService whose second destination is nowhere; the weights are worth a remark.
const MESH: &str = "\
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  clusterIP: 10.96.0.10
  ports: [{name: http, port: 80}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: shop}
spec:
  hosts: [web]
  http:
  - route:
    - destination: {host: web}
      weight: 1
    - destination:
        host: nowhere
      weight: 2
";

const RULE: &str = "\
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: lost, namespace: shop}
spec: {host: lost}
";

fn analyze(args: &[&str], stdin: &str) -> (Option<i32>, String, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_pilotfish"))
        .arg("analyze")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(stdin.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

fn folder(files: &[(&str, &str)]) -> (TempDir, String) {
    let dir = TempDir::new().unwrap();
    for (name, text) in files {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    let path = dir.path().to_str().unwrap().to_owned();
    (dir, path)
}

#[test]
fn the_examples_are_clean() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let paths: Vec<PathBuf> = ["bookshop", "tour/mesh"].map(|p| examples.join(p)).to_vec();
    for path in paths {
        let (code, out, err) = analyze(&[path.to_str().unwrap(), "--fail-on", "info"], "");
        assert_eq!(code, Some(0), "{out}{err}");
        assert!(out.starts_with("Nothing found in "), "{out}");
    }
}

#[test]
fn a_table_names_object_field_place_and_problem() {
    let (_dir, path) = folder(&[("mesh.yaml", MESH)]);
    let (code, out, err) = analyze(&[&path], "");
    assert_eq!((code, err.as_str()), (Some(1), ""));
    let line = out.lines().find(|l| l.starts_with("error")).unwrap();
    for part in [
        "VirtualService/shop/web",
        "spec.http[0].route[1].destination.host",
        // The line of the field, not of the object.
        "mesh.yaml:18",
        "unknown-host",
        "no service has host nowhere.shop.svc.cluster.local; requests that take this route fail",
    ] {
        assert!(line.contains(part), "{part} is not in {line}");
    }
    assert!(
        out.ends_with("1 errors, 0 warnings, 1 remarks about 2 objects.\n"),
        "{out}"
    );
}

#[test]
fn json_and_standard_input() {
    let (code, out, _) = analyze(&["-", "--json"], MESH);
    assert_eq!(code, Some(1));
    let all: Vec<Value> = serde_json::from_str(&out).unwrap();
    assert_eq!(all.len(), 2);
    assert_eq!(all[0]["severity"], "error");
    assert_eq!(all[0]["object"], "VirtualService/shop/web");
    assert_eq!(all[0]["origin"]["file"], "stdin");
    assert_eq!(all[0]["origin"]["line"], 18);
    assert_eq!(all[1]["code"], "weights");
}

#[test]
fn what_fails_is_for_the_caller_to_say() {
    let (_dir, path) = folder(&[("rule.yaml", RULE)]);
    let code = |args: &[&str]| analyze(&[&[path.as_str()], args].concat(), "").0;
    assert_eq!(code(&[]), Some(0), "a warning is no error");
    assert_eq!(code(&["--fail-on", "warning"]), Some(1));
    assert_eq!(code(&["--fail-on", "never"]), Some(0));
    assert_eq!(
        code(&["--fail-on", "warning", "--ignore", "unknown-host"]),
        Some(0)
    );
    let (_, out, _) = analyze(&[&path, "--show", "error"], "");
    assert!(out.starts_with("Nothing found"), "{out}");
}

#[test]
fn several_paths_are_one_mesh() {
    let (_dir, path) = folder(&[("mesh.yaml", MESH), ("rule.yaml", RULE)]);
    let service = RULE
        .replace("DestinationRule", "ServiceEntry")
        .replace("{host: lost}", "{hosts: [lost.shop.svc.cluster.local], resolution: DNS, ports: [{number: 80, name: http, protocol: HTTP}]}");
    let (_, out, _) = analyze(&[&path, "-", "--show", "warning"], &service);
    assert!(!out.contains("DestinationRule/shop/lost"), "{out}");
    let (code, out, _) = analyze(&[&path, "-", "--fail-on", "error"], RULE);
    assert_eq!(code, Some(1));
    assert!(
        out.contains("duplicate-object") && out.contains("stdin:1"),
        "{out}"
    );
}

#[test]
fn mesh_settings_count() {
    let (_dir, path) = folder(&[(
        "rule.yaml",
        &format!("{RULE}---\n{}", MESH.replace("host: nowhere", "host: web")),
    )]);
    let (_settings, other) = folder(&[("mesh.yaml", "rootNamespace: [\n")]);
    let file = format!("{other}/mesh.yaml");
    let (code, out, _) = analyze(&[&path, "--mesh-config", &file], "");
    assert_eq!(code, Some(1), "{out}");
    assert!(out.contains("mesh.yaml:"), "{out}");
}

#[test]
fn what_cannot_be_read_is_told_apart_from_what_is_wrong() {
    let (code, out, err) = analyze(&["/nowhere/at/all"], "");
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert!(
        err.starts_with("error: /nowhere/at/all cannot be read"),
        "{err}"
    );
    assert_eq!(analyze(&[], "").0, Some(2));
    let (code, out, _) = analyze(&["-"], "kind: [");
    assert_eq!(code, Some(1), "{out}");
}

#[test]
fn nothing_of_a_user_reaches_the_terminal_as_a_command() {
    let text = MESH.replace("host: nowhere", "host: \"no\\e[2Jwhere\"");
    let (_, out, _) = analyze(&["-"], &text);
    assert!(!out.contains('\u{1b}'), "{out:?}");
}
