//! The mesh settings: `MeshConfig` laid over the defaults, and `MeshNetworks`.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::decode::{Spelling, camel, decode};
use super::path::{self, Segment};
use super::{locate, split, yaml};
use crate::diagnostic::{Diagnostic, Severity};
use crate::finding::{FIELD_IGNORED, Finding};
use crate::mesh::{MeshConfig, MeshNetworks, ProxyConfig};
use crate::object::Origin;
use crate::validate;

const REFUSED: &str = "the file is not used; the last good settings stay";

/// A mesh configuration laid over [`MeshConfig::standard`]; `None` if the text is unusable.
pub fn mesh_config(text: &str, file: &str) -> (Option<MeshConfig>, Vec<Diagnostic>) {
    mesh_layers(&[Layer { text, name: file }])
}

/// One of several texts that make up a mesh configuration.
#[derive(Debug, Clone, Copy)]
pub struct Layer<'a> {
    /// The text.
    pub text: &'a str,
    /// What findings name as its file.
    pub name: &'a str,
}

/// A mesh configuration of several texts laid over [`MeshConfig::standard`], each over those before it; `None` if one is
/// unusable.
pub fn mesh_layers(layers: &[Layer<'_>]) -> (Option<MeshConfig>, Vec<Diagnostic>) {
    let mut merged = serde_json::to_value(MeshConfig::standard()).unwrap_or_default();
    let (mut mesh, mut diagnostics) = (Some(MeshConfig::standard()), Vec::new());
    for layer in layers {
        let mut reader = Reader {
            text: layer.text,
            file: layer.name,
            diagnostics: Vec::new(),
        };
        let laid = reader.over(merged.clone());
        diagnostics.extend(reader.diagnostics);
        match laid {
            Some((value, config)) => {
                merged = value;
                mesh = mesh.map(|_| config);
            }
            None => mesh = None,
        }
    }
    (mesh, diagnostics)
}

/// The networks of a mesh; `None` if the text is unusable.
pub fn mesh_networks(text: &str, file: &str) -> (Option<MeshNetworks>, Vec<Diagnostic>) {
    let mut reader = Reader {
        text,
        file,
        diagnostics: Vec::new(),
    };
    let networks = reader.mesh_networks();
    (networks, reader.diagnostics)
}

/// The configuration a proxy brings with it, as it says in its metadata. Fields nobody knows are ignored: the proxy may be
/// newer than we are.
pub fn proxy_config(value: Value) -> Result<ProxyConfig, String> {
    let (config, _) = decode::<ProxyConfig>(value, &[], Spelling::CamelOrSnake);
    config.map_err(|mismatch| format!("{}: {}", path::display(&mismatch.path), mismatch.reason))
}

struct Reader<'a> {
    text: &'a str,
    file: &'a str,
    diagnostics: Vec<Diagnostic>,
}

impl Reader<'_> {
    /// The text laid over other settings: as a value, for the next layer, and as the type.
    fn over(&mut self, base: Value) -> Option<(Value, MeshConfig)> {
        let own = self.object()?;
        self.typed::<MeshConfig>(own.clone())?;
        let merged = merge(base, camel_keys(own));
        let mesh = self.typed::<MeshConfig>(merged.clone())?;
        self.report(validate::mesh_config(&mesh))
            .then_some((Value::Object(merged), mesh))
    }

    fn mesh_networks(&mut self) -> Option<MeshNetworks> {
        let own = self.object()?;
        let networks = self.typed::<MeshNetworks>(own)?;
        self.report(validate::mesh_networks(&networks))
            .then_some(networks)
    }

    /// The one object of the text; an empty text is an empty object.
    fn object(&mut self) -> Option<Map<String, Value>> {
        if let Err(diagnostic) = super::text(self.text.as_bytes(), self.file) {
            self.diagnostics.push(*diagnostic);
            return None;
        }
        let documents = split(self.text);
        if documents.len() > 1 {
            self.fault(documents[1].line, "syntax", "more than one document");
            return None;
        }
        match yaml::read(self.text) {
            Ok(None) => Some(Map::new()),
            Ok(Some(tree)) => match tree.value {
                Value::Object(map) => Some(map),
                Value::Null => Some(Map::new()),
                _ => {
                    self.fault(1, "not-an-object", "expected an object");
                    None
                }
            },
            Err(fault) => {
                self.fault(fault.line, fault.code, fault.reason);
                None
            }
        }
    }

    fn fault(&mut self, line: u32, code: &'static str, reason: impl Into<String>) {
        self.diagnostics.push(
            Diagnostic::error(code, reason, REFUSED).from_origin(Some(Origin {
                file: self.file.into(),
                line,
            })),
        );
    }

    fn typed<T: DeserializeOwned>(&mut self, map: Map<String, Value>) -> Option<T> {
        let (value, unknown) = decode::<T>(Value::Object(map), &[], Spelling::CamelOrSnake);
        let mut findings: Vec<Finding> = Vec::new();
        for unknown in unknown {
            let hint = unknown
                .suggestion
                .map(|name| format!("; did you mean {name}?"));
            findings.push(Finding {
                severity: Severity::Warning,
                code: "unknown-field",
                path: unknown.path,
                reason: format!("unknown field{}", hint.unwrap_or_default()),
                effect: FIELD_IGNORED.to_owned(),
            });
        }
        let value = value.map_err(|mismatch| {
            findings.push(Finding {
                severity: Severity::Error,
                code: "invalid-value",
                path: mismatch.path,
                reason: mismatch.reason,
                effect: REFUSED.to_owned(),
            });
        });
        self.report(findings);
        value.ok()
    }

    /// Reports findings once each; false if one of them is an error.
    fn report(&mut self, findings: Vec<Finding>) -> bool {
        let paths: Vec<Vec<Segment>> = findings
            .iter()
            .map(|finding| finding.path.clone())
            .collect();
        let lines = if paths.is_empty() {
            Vec::new()
        } else {
            locate::lines(self.text, &paths)
        };
        let mut usable = true;
        for (finding, line) in findings.into_iter().zip(lines) {
            usable &= finding.severity != Severity::Error;
            let diagnostic = Diagnostic {
                severity: finding.severity,
                object: None,
                origin: Some(Origin {
                    file: self.file.into(),
                    line,
                }),
                field: path::display(&finding.path),
                reason: super::shorten(finding.reason),
                effect: if finding.severity == Severity::Error {
                    REFUSED.to_owned()
                } else {
                    finding.effect
                },
                code: finding.code,
            };
            if !self.diagnostics.contains(&diagnostic) {
                self.diagnostics.push(diagnostic);
            }
        }
        usable
    }
}

/// The same settings with the field names that the defaults use, as far down as settings are merged.
fn camel_keys(map: Map<String, Value>) -> Map<String, Value> {
    let mut renamed = Map::new();
    for (key, value) in map {
        let key = camel(&key);
        let value = match (key.as_str(), value) {
            ("defaultConfig" | "defaultProviders", Value::Object(inner)) => {
                Value::Object(camel_keys(inner))
            }
            (_, value) => value,
        };
        renamed.insert(key, value);
    }
    renamed
}

/// Every field of `own` replaces the default, except those that add to it.
fn merge(standard: Value, own: Map<String, Value>) -> Map<String, Value> {
    let Value::Object(mut merged) = standard else {
        return own;
    };
    for (key, value) in own {
        if value.is_null() {
            continue;
        }
        match (key.as_str(), merged.get_mut(&key), value) {
            (
                "defaultConfig" | "defaultProviders",
                Some(Value::Object(base)),
                Value::Object(own),
            ) => {
                overlay(base, own);
            }
            ("extensionProviders", Some(Value::Array(base)), Value::Array(own)) => {
                for provider in own {
                    match base
                        .iter_mut()
                        .find(|known| known.get("name") == provider.get("name"))
                    {
                        Some(known) => *known = provider,
                        None => base.push(provider),
                    }
                }
            }
            (_, _, value) => {
                merged.insert(key, value);
            }
        }
    }
    if let Some(Value::Array(aliases)) = merged.get_mut("trustDomainAliases") {
        aliases.sort_by(|a, b| a.as_str().cmp(&b.as_str()));
        aliases.dedup();
    }
    merged
}

/// Fields of `own` replace those of `base`. The two ways to name a cluster exclude each other.
fn overlay(base: &mut Map<String, Value>, own: Map<String, Value>) {
    if own.contains_key("tracingServiceName") {
        base.remove("serviceCluster");
    }
    for (key, value) in own {
        if !value.is_null() {
            base.insert(key, value);
        }
    }
}
