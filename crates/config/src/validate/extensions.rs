//! `WasmPlugin` and `TrafficExtension`.

use std::collections::BTreeSet;

use super::common::{at_most_one, attachment, port, unique};
use crate::extensions::{EnvValueSource, TrafficExtension, VmConfig, WasmPlugin};
use crate::finding::Checker;
use crate::selector::PortSelector;

pub(super) fn check_wasm_plugin(check: &mut Checker, plugin: &WasmPlugin) {
    attachment(
        check,
        plugin.selector.as_ref(),
        plugin.target_ref.as_ref(),
        &plugin.target_refs,
    );
    module(
        check,
        &plugin.url,
        &plugin.sha256,
        &plugin.image_pull_secret,
        &plugin.plugin_name,
    );
    check.some("vmConfig", plugin.vm_config.as_ref(), vm_config);
    check.each("match", &plugin.r#match, |check, matched| {
        ports(check, &matched.ports);
    });
}

pub(super) fn check_traffic_extension(check: &mut Checker, extension: &TrafficExtension) {
    attachment(
        check,
        extension.selector.as_ref(),
        None,
        &extension.target_refs,
    );
    at_most_one(
        check,
        &[
            ("wasm", extension.wasm.is_some()),
            ("lua", extension.lua.is_some()),
        ],
    );
    if extension.wasm.is_none() && extension.lua.is_none() {
        check.error("one of wasm and lua is required");
    }
    check.some("lua", extension.lua.as_ref(), |check, lua| {
        let length = lua.inline_code.len();
        check.error_if(length == 0, "inlineCode", "must not be empty");
        check.error_if(
            length > 64 << 10,
            "inlineCode",
            "must not be larger than 64 KiB",
        );
    });
    check.some("wasm", extension.wasm.as_ref(), |check, wasm| {
        module(
            check,
            &wasm.url,
            &wasm.sha256,
            &wasm.image_pull_secret,
            &wasm.plugin_name,
        );
        check.some("vmConfig", wasm.vm_config.as_ref(), vm_config);
    });
    check.each("match", &extension.r#match, |check, matched| {
        ports(check, &matched.ports);
    });
}

fn module(check: &mut Checker, url: &str, sha256: &str, pull_secret: &str, plugin_name: &str) {
    check.result("url", module_url(url));
    let hex = sha256.len() == 64
        && sha256
            .bytes()
            .all(|byte| matches!(byte, b'a'..=b'f' | b'0'..=b'9'));
    check.error_if(
        !sha256.is_empty() && !hex,
        "sha256",
        "must be 64 lowercase hexadecimal digits",
    );
    check.error_if(
        pull_secret.len() > 253,
        "imagePullSecret",
        "is longer than 253 characters",
    );
    check.error_if(
        plugin_name.len() > 256,
        "pluginName",
        "is longer than 256 characters",
    );
}

/// A URL of one of the known schemes, or an image name without one.
fn module_url(url: &str) -> Result<(), String> {
    if url.is_empty() {
        return Err("is required".to_owned());
    }
    if url.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err("is not a URL".to_owned());
    }
    match url.split_once("://") {
        Some((scheme, _)) if !matches!(scheme, "file" | "http" | "https" | "oci") => {
            Err(format!("unsupported scheme {scheme:?}"))
        }
        Some((_, "")) => Err("is not a URL".to_owned()),
        _ => Ok(()),
    }
}

fn vm_config(check: &mut Checker, config: &VmConfig) {
    let mut names = BTreeSet::new();
    check.each("env", &config.env, |check, variable| {
        check.error_if(variable.name.is_empty(), "name", "must not be empty");
        check.error_if(
            variable.name.len() > 256,
            "name",
            "is longer than 256 characters",
        );
        unique(check, &mut names, "name", &variable.name);
        check.error_if(
            variable.value_from != EnvValueSource::Inline && !variable.value.is_empty(),
            "value",
            "is possible for valueFrom INLINE only",
        );
    });
}

fn ports(check: &mut Checker, list: &[PortSelector]) {
    check.each("ports", list, |check, selector| {
        check.result("number", port(selector.number));
    });
}
